package rwlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// The benchmarks use a real server where there is one, and miniredis where there is not. The module in
// benchmarks has measurements that tell more, beside other locks.

// client returns a client of a server of its own.
func client(b *testing.B) *redis.Client {
	b.Helper()
	if testredis.Available() {
		return testredis.Start(b).Client()
	}
	return testredis.NewClient(b, miniredis.RunT(b).Addr())
}

func newLock(b *testing.B, c redis.UniversalClient, opts ...rwlock.Option) *rwlock.RWLock {
	b.Helper()
	rw, err := rwlock.New(c, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, rw.Close()) })
	return rw
}

type lockFunc func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error)

// measure measures a lock and its release.
func measure(b *testing.B, ctx context.Context, lock lockFunc) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		h, err := lock(ctx, b.Name())
		if err == nil {
			err = h.Unlock(ctx)
		}
		require.NoError(b, err)
	}
}

// A lock that nobody else uses.
func BenchmarkUncontended(b *testing.B) {
	rw, ctx := newLock(b, client(b)), context.Background()
	for name, lock := range map[string]lockFunc{"Lock": rw.Lock, "RLock": rw.RLock} {
		b.Run(name, func(b *testing.B) { measure(b, ctx, lock) })
		b.Run(name+" again", func(b *testing.B) {
			outer, err := lock(ctx, b.Name())
			require.NoError(b, err)
			measure(b, outer.Context(), lock)
			require.NoError(b, outer.Unlock(ctx))
		})
	}
}

// A lock that goes from one goroutine to the next.
func BenchmarkHandover(b *testing.B) {
	for _, goroutines := range []int{2, 16, 256} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			rw, ctx := newLock(b, client(b)), context.Background()
			turns := make(chan struct{})
			var group sync.WaitGroup
			for range goroutines {
				group.Go(func() {
					for range turns {
						h, err := rw.Lock(ctx, "n")
						if err == nil {
							err = h.Unlock(ctx)
						}
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				turns <- struct{}{}
			}
			close(turns)
			group.Wait()
		})
	}
}

// What strict owners cost.
func BenchmarkStrictOwners(b *testing.B) {
	compare(b, "on", rwlock.WithStrictOwners())
}

// What it costs to be observed, and what it costs not to be.
func BenchmarkObserved(b *testing.B) {
	compare(b, "on", rwlock.WithObserver(rwlock.ObserverFunc(func(rwlock.Event) {})))
}

// compare measures a pair without an option and with it.
func compare(b *testing.B, name string, opt rwlock.Option) {
	c := client(b)
	b.Run("off", func(b *testing.B) { measure(b, context.Background(), newLock(b, c).Lock) })
	b.Run(name, func(b *testing.B) { measure(b, context.Background(), newLock(b, c, opt).Lock) })
}

// What it costs to have replicas confirm each grant, beside not to, of a master with two replicas.
func BenchmarkReplicas(b *testing.B) {
	testredis.Need(b)
	master, _ := testredis.StartReplicated(b, 2)
	for n := range 3 {
		var opts []rwlock.Option
		if n > 0 {
			opts = append(opts, rwlock.WithReplicas(n, time.Second))
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			measure(b, context.Background(), newLock(b, master.Client(), opts...).Lock)
		})
	}
}
