package tests

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// confirms checks that the replicas confirm what a call gets, that a call fails which they do not confirm,
// and that this leaves nothing. There are n of them.
func confirms(t *testing.T, c redis.UniversalClient, n int, freeze, thaw func()) {
	ctx := context.Background()
	w := &world{T: t}
	rw := newLockOn(t, c, rwlock.WithReplicas(n, 20*time.Second))
	more := newLockOn(t, c, rwlock.WithReplicas(n+1, 50*time.Millisecond))
	plain := newLockOn(t, c)
	name := "a lock of " + t.Name()
	for _, mode := range bothModes {
		h := take(t, newOwner(), rw, mode, name)
		unlock(t, take(t, h.Context(), rw, mode, name), h)
		for _, call := range []lockFunc{acquire, try} {
			_, err := call(ctx, more, mode, name)
			require.ErrorIs(t, err, rwlock.ErrNotReplicated)
			require.ErrorContains(t, err, "of")
			waitFree(t, plain, name)
		}
		h = take(t, newOwner(), plain, write, name)
		waiting := w.enqueue(newOwner(), rw, mode, name)
		unlock(t, h)
		unlock(t, waiting.granted())
	}
	h := take(t, newOwner(), rw, write, "another of "+t.Name())
	freeze()
	_, err := rw.Lock(ctx, name, rwlock.MaxWait(300*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	few := newLockOn(t, c, rwlock.WithReplicas(n, 1500*time.Millisecond)) // more than one request waits
	_, err = few.Lock(ctx, name)
	require.ErrorIs(t, err, rwlock.ErrNotReplicated)
	waiting := w.launch(newOwner(), rw, write, name)
	thaw()
	unlock(t, waiting.granted(), h)
}

// A call WithReplicas succeeds when so many replicas have its grant, and otherwise fails and gives the lock
// back: on a server, and on each master of a cluster.
func TestWithReplicas(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		master, replicas := testredis.StartReplicated(t, 2)
		confirms(t, master.Client(), 2, replicas[0].Pause, replicas[0].Resume)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := testredis.StartReplicatedCluster(t, 3, "--cluster-node-timeout", "60000")
		c := cluster.Client()
		each := func(do func(*testredis.Server)) func() {
			return func() {
				for _, s := range cluster.Nodes[3:] {
					do(s)
				}
			}
		}
		confirms(t, c, 1, each((*testredis.Server).Pause), each((*testredis.Server).Resume))
		rw := newLockOn(t, c, rwlock.WithReplicas(1, 20*time.Second))
		for i := range 3 {
			unlock(t, take(t, newOwner(), rw, write, cluster.On(i, "on each")))
		}
	})
}

// A replica that does not answer costs the calls that it is to confirm, and nothing else: holds are kept,
// others are released meanwhile, and nothing is left of what was given back. However few connections there
// are.
func TestFrozenReplicaCostsLockCallsAlone(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	for _, pool := range []int{0, 3, 1} {
		t.Run(fmt.Sprint("pool of ", pool), func(t *testing.T) {
			t.Parallel()
			master, replicas := testredis.StartReplicated(t, 1)
			const lease, calls = 4 * time.Second, 60
			c := master.Client(func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = pool, pool })
			rw := newLockOn(t, c, rwlock.WithLease(lease), rwlock.WithReplicas(1, 500*time.Millisecond))
			confirmed := func(name string) (h *rwlock.Hold) {
				eventually(t, func() bool {
					var err error
					h, err = rw.Lock(newOwner(), name)
					return err == nil
				}, "a hold that the replica has confirmed")
				return h
			}
			kept, other := confirmed("kept"), confirmed("other")
			replicas[0].Pause()
			t.Cleanup(replicas[0].Resume)
			frozen := time.Now()
			var group sync.WaitGroup
			var longest atomic.Int64
			for i := range calls {
				group.Go(func() {
					for time.Since(frozen) < 2*lease {
						start := time.Now()
						_, err := rw.Lock(newOwner(), fmt.Sprint("name", i))
						assert.ErrorIs(t, err, rwlock.ErrNotReplicated)
						longest.Store(max(longest.Load(), int64(time.Since(start))))
					}
				})
			}
			<-time.After(lease)
			start := time.Now()
			unlock(t, other)
			released := time.Since(start)
			group.Wait()
			t.Logf("the longest call took %v, a release %v", time.Duration(longest.Load()), released)
			require.NoError(t, kept.Context().Err())
			unlock(t, kept)
			plain := newLockOn(t, master.Client())
			for i := range calls {
				waitFree(t, plain, fmt.Sprint("name", i))
			}
		})
	}
}
