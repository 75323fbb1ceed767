package main

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

var costs = flag.Bool("costs", false, "measure what operations cost for as long, and with as many holds, as scale.md says")

// TestCosts prints what an operation costs a server and a client, in processor time and bytes. The processor
// time of other programs does not count, so the machine need not be quiet.
func TestCosts(t *testing.T) {
	watched, share := 3*time.Second, 10 // longer than the period of renewals
	if *costs {
		watched, share = 10*time.Second, 1
	}
	testredis.Need(t)
	server := testredis.Start(t)
	asks := server.Client()
	newLock := func(opts ...rwlock.Option) *rwlock.RWLock { return newLock(t, server, opts...) }
	lock := func(rw *rwlock.RWLock, name string) *rwlock.Hold { return get(t, rw.Lock, name) }
	pair := func(rw *rwlock.RWLock, name string) {
		require.NoError(t, lock(rw, name).Unlock(context.Background()))
	}
	// cost prints what each operation costs. do returns how many there were.
	cost := func(what string, do func() (ops float64)) {
		read := func() map[string]float64 {
			var own syscall.Rusage
			require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
			use := serverUsage(t, asks)
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
	}
	// calls returns how often a command is called while nobody calls the library.
	calls := func(command string) func() float64 {
		return func() float64 {
			before := serverUsage(t, asks)[command]
			time.Sleep(watched)
			return serverUsage(t, asks)[command] - before
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
	usual, short := newLock(), newLock(rwlock.WithLease(6*time.Second))
	cost("a pair on a fresh name, 64 goroutines", func() float64 {
		each(100_000/share, func(i int) { pair(usual, fmt.Sprint("fresh:", i)) })
		return float64(100_000 / share)
	})
	cost("a pair, one goroutine", func() float64 {
		for i := range 10_000 / share {
			pair(usual, fmt.Sprint("alone:", i))
		}
		return float64(10_000 / share)
	})

	holds := make([]*rwlock.Hold, 20_000/share)
	each(len(holds), func(i int) { holds[i] = lock(short, fmt.Sprint("held:", i)) })
	cost(fmt.Sprint("a renewal, holds of one process: ", len(holds)), calls("cmdstat_hset.calls"))
	each(len(holds), func(i int) { _ = holds[i].Unlock(context.Background()) }) // a busy machine has lost some

	waiters := 5000 / share
	holder := lock(usual, "waited for")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
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
	require.NoError(t, holder.Unlock(t.Context()))

	cost("a handover between processes, 16 names, 4 RWLocks", func() float64 {
		var n atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(watched / 2)
		for range 4 {
			rw := newLock()
			for name := range 16 {
				all.Go(func() {
					for ; time.Now().Before(end); n.Add(1) {
						pair(rw, fmt.Sprint("turns:", name))
					}
				})
			}
		}
		all.Wait()
		return float64(n.Load())
	})
}

// newLock returns an RWLock over a server, closed when the test ends.
func newLock(t *testing.T, s *testredis.Server, opts ...rwlock.Option) *rwlock.RWLock {
	rw, err := rwlock.New(s.Client(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rw.Close()) })
	return rw
}

type lockCall = func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error)

// get takes a lock.
func get(t *testing.T, call lockCall, name string) *rwlock.Hold {
	h, err := call(context.Background(), name)
	require.NoError(t, err)
	return h
}

// waiting waits until n owners wait for a lock.
func waiting(t *testing.T, rw *rwlock.RWLock, name string, n int) {
	require.Eventually(t, func() bool {
		s, err := rw.Inspect(t.Context(), name)
		return err == nil && len(s.Waiters) == n
	}, time.Minute, time.Millisecond)
}

// A read pair costs the server the same among few readers and many.
func TestCostAmongReaders(t *testing.T) {
	requireSame(t, 3000, func(server *testredis.Server, readers int) (op func()) {
		rw, name := newLock(t, server, rwlock.WithLease(time.Hour)), fmt.Sprint(readers)
		var holds []*rwlock.Hold
		t.Cleanup(func() { runtime.KeepAlive(holds) })
		for range readers {
			holds = append(holds, get(t, rw.RLock, name))
		}
		return func() { require.NoError(t, get(t, rw.RLock, name).Unlock(context.Background())) }
	})
}

// A handover costs the server the same before few waiters and many.
func TestCostAmongWaiters(t *testing.T) {
	requireSame(t, 1000, func(server *testredis.Server, waiters int) (op func()) {
		rw, name := newLock(t, server, rwlock.WithLease(time.Hour)), fmt.Sprint(waiters)
		next := make(chan *rwlock.Hold, waiters+1)
		join := func() {
			go func() {
				h, _ := rw.Lock(context.Background(), name)
				next <- h
			}()
		}
		holder := get(t, rw.Lock, name)
		for range waiters {
			join()
		}
		waiting(t, rw, name, waiters)
		return func() {
			join()
			require.NoError(t, holder.Unlock(context.Background()))
			holder = <-next
			require.NotNil(t, holder)
		}
	})
}

// requireSame ends the test if the scripts of an operation among many take much longer than among ten.
func requireSame(t *testing.T, many int, prepare func(server *testredis.Server, n int) (op func())) {
	const rounds, most = 30, 2.0
	testredis.Need(t)
	server := testredis.Start(t)
	asks, ops := server.Client(), []func(){prepare(server, 10), prepare(server, many)}
	var cost [2][]float64
	for range rounds { // in turns, so that what disturbs the machine for a while disturbs both
		for i, op := range ops {
			before := serverUsage(t, asks)
			for range 10 {
				op()
			}
			after := serverUsage(t, asks)
			spent := func(of string) float64 { return after[of] - before[of] }
			cost[i] = append(cost[i], spent(scriptMicros)/spent(scriptRuns))
		}
	}
	for i := range cost {
		slices.Sort(cost[i])
	}
	few, among := cost[0][rounds/2], cost[1][rounds/2]
	t.Logf("%.1f µs, and %.1f: %.2f times as much", few, among, among/few)
	require.LessOrEqual(t, among, most*few)
}

const (
	scriptRuns   = "cmdstat_evalsha.calls"
	scriptMicros = "cmdstat_evalsha.usec"
)

// serverUsage returns what a server says that it has used so far, such as "used_cpu_user" and scriptRuns.
func serverUsage(t *testing.T, c *redis.Client) map[string]float64 {
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
