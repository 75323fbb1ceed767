package rwlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// confirms checks that the replicas confirm what a call gets, that a call fails which they do not confirm, and that this leaves
// nothing. There are n of them.
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

// A call WithReplicas succeeds when so many replicas have its grant, and otherwise fails and gives the lock back: on a server, and
// on each master of a cluster.
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

// Options that make no sense are refused.
func TestWithReplicasRefusesNonsense(t *testing.T) {
	t.Parallel()
	c := testredis.NewClient(t, "127.0.0.1:1")
	for _, opt := range []rwlock.Option{rwlock.WithReplicas(0, time.Second), rwlock.WithReplicas(1, 0)} {
		_, err := rwlock.New(c, opt)
		require.Error(t, err)
	}
}

// What it costs to have replicas confirm each grant, beside not to, of a master with two replicas.
func BenchmarkReplicas(b *testing.B) {
	testredis.Need(b)
	master, _ := testredis.StartReplicated(b, 2)
	for n := range 3 {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var opts []rwlock.Option
			if n > 0 {
				opts = append(opts, rwlock.WithReplicas(n, time.Second))
			}
			rw := newLockOn(b, master.Client(), opts...)
			for b.Loop() {
				if err := pair(context.Background(), rw, write, b.Name()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
