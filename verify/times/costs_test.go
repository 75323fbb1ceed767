package times

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A read pair costs the server the same among few readers and many.
func TestCostOfManyReaders(t *testing.T) {
	testredis.Need(t)
	servers := start(t, 1)
	op := func(readers int) func() {
		rw, name := newLock(t, servers), fmt.Sprint(readers)
		holds := make([]*rwlock.Hold, readers)
		t.Cleanup(func() { runtime.KeepAlive(holds) })
		for i := range holds {
			holds[i] = lock(t, rw.RLock, name, rwlock.NoRenew(), rwlock.Lease(time.Hour))
		}
		return func() {
			for range 10 {
				unlock(t, lock(t, rw.RLock, name))
			}
		}
	}
	requireSame(t, servers[0], op(10), op(3000))
}

// A handover costs the server the same before few waiters and many.
func TestCostOfManyWaiters(t *testing.T) {
	testredis.Need(t)
	servers := start(t, 1)
	op := func(waiters int) func() {
		rw, name := newLock(t, servers, rwlock.WithLease(time.Hour)), fmt.Sprint(waiters)
		next := make(chan *rwlock.Hold, waiters+1)
		join := func() {
			go func() {
				h, _ := rw.Lock(context.Background(), name)
				next <- h
			}()
		}
		join()
		holder := <-next
		for range waiters {
			join()
		}
		waiting(t, rw, name, waiters)
		return func() {
			for range 10 {
				join()
				unlock(t, holder)
				holder = <-next
				require.NotNil(t, holder)
			}
			waiting(t, rw, name, waiters)
		}
	}
	requireSame(t, servers[0], op(10), op(1000))
}

// requireSame ends the test if the scripts of big take much longer than those of small.
func requireSame(t *testing.T, s *testredis.Server, small, big func()) {
	t.Helper()
	const rounds, most = 30, 2.0
	c := s.Client()
	read := func() (calls, micros float64) {
		stats, err := c.InfoMap(context.Background(), "commandstats").Result()
		require.NoError(t, err)
		for _, command := range []string{"eval", "evalsha"} {
			var n, us float64
			_, _ = fmt.Sscanf(stats["Commandstats"]["cmdstat_"+command], "calls=%g,usec=%g", &n, &us)
			calls, micros = calls+n, micros+us
		}
		return calls, micros
	}
	var cost [2][]float64
	for range rounds { // in turns, so that what disturbs the machine for a while disturbs both
		for i, fn := range []func(){small, big} {
			calls, micros := read()
			fn()
			callsAfter, microsAfter := read()
			cost[i] = append(cost[i], (microsAfter-micros)/(callsAfter-calls))
		}
	}
	for i := range cost {
		slices.Sort(cost[i])
	}
	few, many := cost[0][rounds/2], cost[1][rounds/2]
	t.Logf("%.1f µs, and %.1f: %.2f times as much", few, many, many/few)
	require.LessOrEqual(t, many, most*few)
}
