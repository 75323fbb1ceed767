package times

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A read pair costs the server the same among few readers and many.
func TestCostOfManyReaders(t *testing.T) {
	testredis.Need(t)
	s := testredis.Start(t)
	op := func(readers int) func() {
		rw, name := newLock(t, s), fmt.Sprint(readers)
		holds := make([]*rwlock.Hold, readers)
		t.Cleanup(func() { runtime.KeepAlive(holds) })
		for i := range holds {
			var err error
			holds[i], err = rw.RLock(t.Context(), name, rwlock.NoRenew(), rwlock.Lease(time.Hour))
			require.NoError(t, err)
		}
		return func() {
			for range 10 {
				h, err := rw.RLock(t.Context(), name)
				require.NoError(t, err)
				unlock(t, h)
			}
		}
	}
	requireSame(t, s, op(10), op(3000))
}

// A handover costs the server the same before few waiters and many.
func TestCostOfManyWaiters(t *testing.T) {
	testredis.Need(t)
	s := testredis.Start(t)
	op := func(waiters int) func() {
		rw, name := newLock(t, s, rwlock.WithLease(time.Hour)), fmt.Sprint(waiters)
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
	requireSame(t, s, op(10), op(1000))
}

// requireSame ends the test if the scripts of big take much longer than those of small.
func requireSame(t *testing.T, s *testredis.Server, small, big func()) {
	t.Helper()
	const rounds, most = 30, 2.0
	c := s.Client()
	read := func() (calls, micros float64) {
		text, err := c.Info(context.Background(), "commandstats").Result()
		require.NoError(t, err)
		for line := range strings.Lines(text) {
			var n, usec float64
			if command, stats, _ := strings.Cut(line, ":"); command == "cmdstat_eval" || command == "cmdstat_evalsha" {
				_, err := fmt.Sscanf(stats, "calls=%g,usec=%g", &n, &usec)
				require.NoError(t, err, line)
				calls, micros = calls+n, micros+usec
			}
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
