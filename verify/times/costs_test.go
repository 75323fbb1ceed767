package times

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

const scriptRuns = "cmdstat_evalsha.calls"

// usage returns what a server says that it has used so far, such as "used_cpu_user" and
// "cmdstat_evalsha.calls".
func usage(t *testing.T, c *redis.Client) map[string]float64 {
	t.Helper()
	sections, err := c.InfoMap(context.Background(), "cpu", "stats", "commandstats").Result()
	require.NoError(t, err)
	use := map[string]float64{}
	for _, section := range sections {
		for name, values := range section {
			for value := range strings.SplitSeq(values, ",") {
				if field, number, named := strings.Cut(value, "="); named {
					use[name+"."+field], _ = strconv.ParseFloat(number, 64)
				} else {
					use[name], _ = strconv.ParseFloat(value, 64)
				}
			}
		}
	}
	return use
}

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
		use := usage(t, c)
		return use["cmdstat_eval.calls"] + use[scriptRuns],
			use["cmdstat_eval.usec"] + use["cmdstat_evalsha.usec"]
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

var costs = flag.Bool("costs", false, "measure what operations cost for long enough that benchmarks/scale.md can rely on it")

// A pair is two scripts, whether or not others wait for the lock. TestCosts also prints what an operation
// costs a server and a client, in processor time and bytes. The processor time of other programs does not
// count, so the machine need not be quiet.
func TestCosts(t *testing.T) {
	less, watched := 50, 3*time.Second
	if *costs {
		less, watched = 1, 10*time.Second
	}
	testredis.Need(t)
	servers := start(t, 1)
	c := servers[0].Client()
	// cost returns how many scripts an operation takes. do returns how many operations there were.
	cost := func(what string, do func() (ops float64)) float64 {
		read := func() map[string]float64 {
			var own syscall.Rusage
			require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
			use := usage(t, c)
			use["client"] = time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
			return use
		}
		before := read()
		ops := do()
		after := read()
		require.Positive(t, ops)
		each := func(names ...string) (sum float64) {
			for _, name := range names {
				sum += (after[name] - before[name]) / ops
			}
			return sum
		}
		fmt.Printf("| %s | %.1f | %.1f | %.0f | %.0f | %.2f |\n", what,
			1e6*each("used_cpu_sys", "used_cpu_user"), 1e6*each("client"),
			each("total_net_input_bytes"), each("total_net_output_bytes"), each(scriptRuns))
		return each(scriptRuns)
	}
	// calls returns how often a command is called while nobody calls the library.
	calls := func(command string) func() float64 {
		return func() float64 {
			before := usage(t, c)[command]
			time.Sleep(watched)
			return usage(t, c)[command] - before
		}
	}
	each := func(n int, fn func(i int)) {
		var next atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
					fn(i - 1)
				}
			})
		}
		all.Wait()
	}

	fmt.Println("| operation | server, µs | client, µs | bytes to the server | bytes from it | scripts |\n" +
		"|---|---|---|---|---|---|")
	usual, short := newLock(t, servers), newLock(t, servers, rwlock.WithLease(6*time.Second))
	pairs := cost("a pair on a fresh name, 64 goroutines", func() float64 {
		each(100_000/less, func(i int) { unlock(t, lock(t, usual.Lock, fmt.Sprint("fresh:", i))) })
		return float64(100_000 / less)
	})
	require.InDelta(t, 2, pairs, 0.02)
	pairs = cost("a pair, one goroutine", func() float64 {
		for i := range 10_000 / less {
			unlock(t, lock(t, usual.Lock, fmt.Sprint("alone:", i)))
		}
		return float64(10_000 / less)
	})
	require.InDelta(t, 2, pairs, 0.02)

	holds := make([]*rwlock.Hold, 20_000/less)
	each(len(holds), func(i int) { holds[i] = lock(t, short.Lock, fmt.Sprint("held:", i)) })
	cost(fmt.Sprint("a renewal, holds of one process: ", len(holds)), calls("cmdstat_hset.calls"))
	each(len(holds), func(i int) { _ = holds[i].Unlock(context.Background()) }) // a busy machine has lost some

	holder := lock(t, usual.Lock, "waited for")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	waiters := 5000 / less
	for range waiters {
		all.Go(func() {
			if _, err := short.Lock(ctx, "waited for"); err == nil {
				t.Error("the lock is held")
			}
		})
	}
	waiting(t, short, "waited for", waiters)
	cost(fmt.Sprint("a heartbeat, waiters of one process: ", waiters), calls(scriptRuns))
	cancel()
	all.Wait()
	unlock(t, holder)

	pairs = cost("a handover between processes, 16 names, 4 RWLocks", func() float64 {
		var n atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(watched / 2)
		for range 4 {
			rw := newLock(t, servers)
			for name := range 16 {
				all.Go(func() {
					for ; time.Now().Before(end); n.Add(1) {
						unlock(t, lock(t, rw.Lock, fmt.Sprint("turns:", name)))
					}
				})
			}
		}
		all.Wait()
		return float64(n.Load())
	})
	require.InDelta(t, 2, pairs, 0.1)
}
