package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// What does not wait costs no commands but one script each to lock and to unlock, few calls within, and no
// subscription.
func TestCallsOfScripts(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	g := newGauge(t)
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			sent := &counter{}
			op := w.prepare(t, newLockOn(t, g.client(onEach(sent.count))))
			loadScripts(t, g.asks)
			require.NoError(t, op()) // from now on, the lock is all in one key
			const n = 20
			var spent cost
			var start time.Time
			eventually(t, func() bool { // a busy machine may send a script again
				start = time.Now()
				before := sent.Load()
				spent = g.of(t, func() {
					for range n {
						require.NoError(t, op())
					}
				})
				t.Logf("%v scripts, %v calls", spent.scripts/n, spent.calls/n)
				return spent.scripts == n*w.scripts && float64(sent.Load()-before) == n*w.scripts
			}, "%v scripts each time", w.scripts)
			seconds := 2 + time.Since(start).Seconds() // in each, one call sees to the time to live
			require.LessOrEqual(t, spent.calls, n*w.calls+seconds)
		})
	}
	total := g.read(t)
	require.Zero(t, total.by["subscribe"])
	require.Zero(t, total.by["publish"])
}

// A handover costs a script that queues up, and one that releases and grants, however many wait.
func TestCallsOfHandover(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const n, waiters = 50, 3
	g := newGauge(t)
	loadScripts(t, g.asks)
	rw := newLockOn(t, g.client(), rwlock.WithLease(quiet))
	holder, next := take(t, newOwner(), rw, write, "n"), make(chan *rwlock.Hold)
	join := func() {
		go func() {
			h, _ := rw.Lock(t.Context(), "n")
			select {
			case next <- h:
			case <-t.Context().Done(): // the others stay in the queue until the end
			}
		}()
	}
	for range waiters {
		join()
	}
	waitQueued(t, rw, "n", waiters)
	eventually(t, func() bool {
		spent := g.of(t, func() {
			before := g.read(t).scripts
			for range n {
				join()
				unlock(t, holder)
				holder = <-next
				require.NotNil(t, holder)
			}
			eventually(t, func() bool { return g.read(t).scripts >= before+2*n }, "%d waiters more", n)
		})
		t.Logf("%v scripts, %v calls", spent.scripts/n, spent.calls/n)
		// Who waits asks once more when the subscription is there, or an answer is slow.
		return spent.scripts <= 2*n+n/5 && spent.calls <= 22*n
	}, "two scripts and 22 calls each time")
}

// The client side of what does not wait makes twelve allocations more than go-redis does for two scripts, at
// most: about as many as other libraries. Each of the two events may start the goroutine that passes it to an
// observer: a queue, a channel and the call.
func TestAllocations(t *testing.T) {
	testredis.Need(t) // miniredis allocates too
	more, events := 12.0, 2*3.0
	if raceDetector() { // then a sync.Pool forgets some of what is put into it
		more = 20
	}
	g := newGauge(t)
	nothing, idle := g.asks.ScriptLoad(t.Context(), "return 1").Val(), g.client()
	floor := func() (err error) { // twice KEYS and ARGV such as ours
		for range 2 {
			err = errors.Join(err, idle.EvalSha(t.Context(), nothing, []string{"a", "b", "c"}, "1", "2", "3", "4").Err())
		}
		return err
	}
	observer := rwlock.WithObserver(rwlock.ObserverFunc(func(rwlock.Event) {}))
	for _, w := range workloads[:2] {
		t.Run(w.name, func(t *testing.T) {
			allocs := func(op func() error) float64 {
				require.NoError(t, op()) // loads the scripts
				return testing.AllocsPerRun(200, func() {
					if err := op(); err != nil {
						t.Error(err)
					}
				})
			}
			floor := allocs(floor)
			ours := allocs(w.prepare(t, newLockOn(t, g.client(), rwlock.WithPrefix("ours"))))
			observed := allocs(w.prepare(t, newLockOn(t, g.client(), rwlock.WithPrefix("observed"), observer)))
			t.Logf("%v, observed %v, the floor %v", ours, observed, floor)
			require.LessOrEqual(t, ours, floor+more)
			require.LessOrEqual(t, observed, floor+more+events)
		})
	}
}

// An RWLock that nobody uses sends nothing, though it has a subscription: on a server, and on a master of a
// cluster.
func TestUnusedRWLockSendsNothing(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	sendsNothing := func(t *testing.T, nodes []*testredis.Server, dial func() redis.UniversalClient) {
		t.Parallel()
		holder, waiter := newLockOn(t, dial()), newLockOn(t, dial())
		handover(t, holder, waiter, "name")
		handover(t, waiter, holder, "name")
		var asking []*redis.Client
		for _, s := range nodes {
			asking = append(asking, s.Client())
		}
		eventually(t, func() bool {
			n := 0
			for _, c := range asking {
				n += len(channels(t, c, "rwlock"))
			}
			return n == 2
		}, "two subscriptions")
		processed := func() (n int) {
			for _, c := range asking {
				info, err := c.InfoMap(t.Context(), "stats").Result()
				require.NoError(t, err)
				here, err := strconv.Atoi(info["Stats"]["total_commands_processed"])
				require.NoError(t, err)
				n += here
			}
			return n
		}
		eventually(t, func() bool {
			before := processed()
			<-time.After(4 * time.Second)           // a subscription was checked every 1.5 s
			return processed()-before == len(nodes) // for the question
		}, "four seconds without a command")
	}
	t.Run("server", func(t *testing.T) {
		s := testredis.Start(t)
		sendsNothing(t, []*testredis.Server{s}, func() redis.UniversalClient { return s.Client() })
	})
	t.Run("cluster", func(t *testing.T) {
		cluster := testredis.StartCluster(t, 3)
		sendsNothing(t, cluster.Nodes, func() redis.UniversalClient { return cluster.Client() })
	})
}

// A crowd of waiting readers is let in by steps, none of which is for more than 200.
func TestCrowdEntersInSteps(t *testing.T) {
	testredis.Need(t)
	const step = 200
	crowd := 10_000
	if raceDetector() {
		crowd = 5_000 // it allows for no more than 8,000 goroutines
	}
	w, s := alone(t)
	g := gaugeOn(s)
	var mu sync.Mutex
	largest := 0 // of the numbers of waiters that replies say were let in
	read := sending(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		err := send()
		for _, cmd := range cmds {
			if script, ok := cmd.(*redis.Cmd); ok {
				if reply, _ := script.Slice(); len(reply) >= 4 {
					m, _ := protocol.ParseMessage(fmt.Sprint(reply[2]))
					mu.Lock()
					largest = max(largest, len(m.Granted))
					mu.Unlock()
				}
			}
		}
		return err
	})
	loadScripts(t, g.asks)
	rw := newLockOn(t, g.client(read), rwlock.WithLease(quiet))
	w.haveWaited(rw)
	eventually(t, func() bool { return g.read(t).by["subscribe"] > 0 }, "a subscription")
	holder := take(t, newOwner(), rw, write, "n")
	calls := w.queueUp(crowd, "n", rw)
	start := time.Now()
	spent := g.of(t, func() {
		unlock(t, holder)
		for _, c := range calls {
			c.granted()
		}
	})
	mu.Lock()
	most := largest
	mu.Unlock()
	t.Logf("all in within %v: %v scripts, %v calls, at most %d in a step",
		time.Since(start), spent.scripts, spent.calls, most)
	require.Equal(t, step, most)
	require.LessOrEqual(t, spent.scripts, float64(crowd/step+2))
	require.LessOrEqual(t, spent.calls/spent.scripts, 30.0)
	require.Zero(t, spent.by["publish"], "messages to oneself")
	require.Len(t, inspect(t, rw, "n").Holders, crowd)
	for some := range slices.Chunk(calls, step) { // Close has five seconds for all: see verify/times
		together(len(some), func(i int) { unlock(t, some[i].hold) })
	}
	require.NoError(t, rw.Close())
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Those that are let in hear of it by one message to each RWLock; those of the RWLock that unlocks, by the
// reply.
func TestOneMessagePerRWLock(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	w, s := alone(t)
	w.lease = 30 * time.Second
	g := gaugeOn(s)
	locks := []*rwlock.RWLock{w.newLock(), w.newLock()}
	wait := func() (calls []*call) {
		for i := range 40 {
			calls = append(calls, w.launch(newOwner(), locks[i%2], read, "a"))
		}
		waitQueued(t, locks[0], "a", len(calls))
		return calls
	}
	letIn := func(unlock func(), calls []*call, others ...*child) float64 {
		spent := g.of(t, func() {
			unlock()
			for _, c := range calls {
				c.granted()
			}
			for _, c := range others {
				c.held("a")
			}
		})
		return spent.by["publish"]
	}

	holder := take(t, newOwner(), locks[0], write, "a")
	calls := wait()
	first, second := w.holder(read), w.holder(read)
	waitQueued(t, locks[0], "a", len(calls)+2)
	require.EqualValues(t, 3, letIn(func() { unlock(t, holder) }, calls, first, second))
	finish(calls...)
	first.unlock("a")
	second.unlock("a")

	holder = take(t, newOwner(), w.newLock(), write, "a")
	calls = wait()
	require.EqualValues(t, 2, letIn(func() { unlock(t, holder) }, calls))
	finish(calls...)
}

// leastHeap returns how many bytes are in use at least, over some time.
func leastHeap() uint64 {
	least := ^uint64(0)
	for range 10 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // for cleanups, and what is still on its way
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, m.HeapAlloc)
	}
	return least
}

// What a client remembers is bounded by what is held and waited for, and a number of names: it forgets names
// that were lost or used, and what a peak of readers or waiters needed. The test is not parallel: it looks at
// the heap of the process.
func TestMemoryIsBounded(t *testing.T) {
	const little = 128_000 // bytes: at most 43 for each waiter, and fewer for each name or reader
	type work struct {
		before, then func(w *world, rw *rwlock.RWLock)
	}
	loses := func(n int) func(w *world, rw *rwlock.RWLock) {
		return func(w *world, rw *rwlock.RWLock) {
			for thousand := range n / 1000 {
				holds := inCrowd(1000, func(i int) (h *rwlock.Hold) {
					eventually(w, func() (ok bool) { // the lease is short
						var err error
						h, err = acquire(newOwner(), rw, bothModes[i%2], fmt.Sprint(n, thousand, i),
							rwlock.Lease(300*time.Millisecond), rwlock.NoRenew())
						return err == nil
					}, "a hold")
					return h
				})
				for _, h := range holds {
					w.isLost(h)
				}
			}
		}
	}
	uses := func(n int, name func(i int) string) func(w *world, rw *rwlock.RWLock) {
		return func(w *world, rw *rwlock.RWLock) {
			holds := inCrowd(n, func(i int) *rwlock.Hold { return take(w, newOwner(), rw, read, name(i)) })
			inCrowd(n, func(i int) *rwlock.Hold { unlock(w, holds[i]); return nil })
		}
	}
	fresh := func(i int) string { return fmt.Sprint("name ", i) }
	one := func(int) string { return "read" }
	const waiters = 3_000
	each := map[string]work{
		"names lost": {loses(3_000), loses(5_000)}, // until what grows with a peak has seen one
		"names used": {uses(1_000, fresh), uses(10_000, fresh)},
		"readers":    {uses(100, one), uses(5_000, one)},
		"waiters": {func(*world, *rwlock.RWLock) { // the runtime keeps goroutines and channels
			var running, over sync.WaitGroup
			gate, never := make(chan struct{}), make(chan struct{})
			running.Add(waiters)
			for range waiters {
				over.Go(func() {
					running.Done()
					select {
					case <-gate:
					case <-never:
					}
				})
			}
			running.Wait()
			time.Sleep(100 * time.Millisecond)
			close(gate)
			over.Wait()
		}, func(w *world, rw *rwlock.RWLock) {
			h := take(w, newOwner(), rw, write, "waited for")
			calls := w.queueUp(waiters, "waited for", rw)
			unlock(w, h)
			finish(calls...)
		}},
	}
	for what, work := range each {
		t.Run(what, func(t *testing.T) {
			w, s := alone(t)
			rw := newLockOn(t, s.Client(func(o *redis.Options) { // its own needs are not to hide the lock's
				o.PoolSize, o.ReadBufferSize, o.WriteBufferSize = 4, 4096, 4096
				o.PipelinePoolSize, o.PipelineReadBufferSize, o.PipelineWriteBufferSize = 4, 4096, 4096
			}), rwlock.WithLease(5*time.Minute))
			w.haveWaited(rw) // opens what an RWLock opens once
			work.before(w, rw)
			before := leastHeap()
			work.then(w, rw)
			eventually(t, func() bool {
				more := int64(leastHeap()) - int64(before)
				t.Logf("%d bytes more", more)
				return more < little
			}, "less than %d bytes more", little)
		})
	}
}

// inCrowd returns what fn returns for all numbers below n, on a few goroutines.
func inCrowd(n int, fn func(i int) *rwlock.Hold) []*rwlock.Hold {
	const workers = 32
	all := make([]*rwlock.Hold, n)
	together(workers, func(worker int) {
		for i := worker; i < n; i += workers {
			all[i] = fn(i)
		}
	})
	return all
}
