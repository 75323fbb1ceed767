package times

import (
	"context"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

var (
	crowd  = flag.Int("crowd", 20_000, "how many calls give up together")
	rounds = flag.Int("rounds", 5, "how often they do")
)

// giveUpWithin bounds how much later than bare contexts a crowd of calls ends, and how long it delays a lock of
// another name. On a quiet machine it is less than half of it.
const giveUpWithin = 100 * time.Millisecond

// Calls that give up together return soon after as many that wait for a bare context, and hardly delay a lock
// of another name.
func TestManyGiveUpTogether(t *testing.T) {
	testredis.Need(t)
	t.Run("one server", func(t *testing.T) {
		s := testredis.Start(t)
		giveUpTogether(t, newLock(t, s), newLock(t, s))
	})
	t.Run("quorum", func(t *testing.T) {
		servers := []*testredis.Server{testredis.Start(t), testredis.Start(t), testredis.Start(t)}
		open := func() *rwlock.RWLock {
			var clients []redis.UniversalClient
			for _, s := range servers {
				clients = append(clients, s.Client())
			}
			rw, err := rwlock.NewQuorum(clients)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, rw.Close()) })
			return rw
		}
		giveUpTogether(t, open(), open())
	})
}

func giveUpTogether(t *testing.T, rw, other *rwlock.RWLock) {
	var bare, calls, before, beside []time.Duration
	for range *rounds {
		bare = append(bare, untilAllReturn(t, func(context.Context) {}, func(ctx context.Context) { <-ctx.Done() }, func() {}))
		h, err := other.Lock(t.Context(), "n")
		require.NoError(t, err)
		before = append(before, slowest(t, rw, 50))
		var busy time.Duration
		calls = append(calls, untilAllReturn(t, func(context.Context) {
			require.Eventually(t, func() bool {
				waits := rw.Snapshot().Waits
				return len(waits) == *crowd && !slices.ContainsFunc(waits, func(w rwlock.LocalWait) bool { return w.Blocked == nil })
			}, 5*time.Minute, 100*time.Millisecond)
		}, func(ctx context.Context) {
			if _, err := rw.Lock(ctx, "n"); err == nil {
				t.Error("the lock is held")
			}
		}, func() { busy = slowest(t, rw, 50) }))
		beside = append(beside, busy)
		require.Eventually(t, func() bool {
			s, err := other.Inspect(t.Context(), "n")
			return err == nil && len(s.Waiters) == 0
		}, time.Minute, 100*time.Millisecond)
		unlock(t, h)
	}
	for _, list := range [][]time.Duration{bare, calls, before, beside} {
		slices.Sort(list)
	}
	i := *rounds / 2
	t.Logf("%d bare contexts: %v, as many calls: %v; a lock and unlock: %v, meanwhile: %v (medians; all: %v %v %v %v)",
		*crowd, bare[i], calls[i], before[i], beside[i], bare, calls, before, beside)
	require.Less(t, calls[i]-bare[i], giveUpWithin, "returns")
	require.Less(t, beside[i]-before[i], giveUpWithin, "a lock of another name")
}

// untilAllReturn returns how long after the end of their context the last of a crowd of calls returns. during
// is called meanwhile.
func untilAllReturn(t *testing.T, begun, call func(ctx context.Context), during func()) time.Duration {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ready, over sync.WaitGroup
	var mu sync.Mutex
	var last time.Time
	ready.Add(*crowd)
	for range *crowd {
		over.Go(func() {
			ready.Done()
			call(ctx)
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if now.After(last) {
				last = now
			}
		})
	}
	ready.Wait()
	begun(ctx)
	start := time.Now()
	cancel()
	during()
	over.Wait()
	return last.Sub(start)
}

// slowest returns how long the slowest of some pairs of Lock and Unlock takes.
func slowest(t *testing.T, rw *rwlock.RWLock, pairs int) (most time.Duration) {
	for range pairs {
		start := time.Now()
		h, err := rw.Lock(t.Context(), "free")
		require.NoError(t, err)
		unlock(t, h)
		most = max(most, time.Since(start))
	}
	return most
}
