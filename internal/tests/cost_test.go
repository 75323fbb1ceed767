package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
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
			op := w.prepare(t, newLockOn(t, g.client(t, onEach(sent.count))))
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

// The first pair on a name costs one call more than the next: it sets the time to live.
func TestCallsOfAFirstPair(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	g := newGauge(t)
	rw := newLockOn(t, g.client(t))
	loadScripts(t, g.asks)
	for _, mode := range bothModes {
		const n = 20
		names := 0
		eventually(t, func() bool { // a busy machine may send a script again
			spent := g.of(t, func() {
				for range n {
					names++
					require.NoError(t, pair(t.Context(), rw, mode, fmt.Sprint(mode, names)))
				}
			})
			t.Logf("%v scripts, %v calls", spent.scripts/n, spent.calls/n)
			return spent.scripts == 2*n && spent.calls == 6*n
		}, "two scripts and six calls each time")
	}
}

// A handover costs a script that queues up, and one that releases and grants.
func TestCallsOfHandover(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const n, waiters = 50, 3
	g := newGauge(t)
	l := newLine(t, g, waiters)
	eventually(t, func() bool {
		spent := g.of(t, func() { l.handOver(n) })
		t.Logf("%v scripts, %v calls", spent.scripts/n, spent.calls/n)
		// Who waits asks once more when the subscription is there, or an answer is slow.
		return spent.scripts <= 2*n+n/5 && spent.calls <= 22*n
	}, "two scripts and 22 calls each time")
}

// A line is a lock that is held for writing, and writers that wait for it: always as many.
type line struct {
	*testing.T
	g      *gauge
	rw     *rwlock.RWLock
	holder *rwlock.Hold
	next   chan *rwlock.Hold
	group  sync.WaitGroup
}

func newLine(t *testing.T, g *gauge, waiters int) *line {
	t.Helper()
	loadScripts(t, g.asks)
	l := &line{T: t, g: g, next: make(chan *rwlock.Hold, waiters+1)}
	t.Cleanup(l.group.Wait)
	l.rw = newLockOn(t, g.client(t), rwlock.WithLease(quiet))
	l.holder = take(t, newOwner(), l.rw, write, "n")
	for range waiters {
		l.join()
	}
	waitQueued(t, l.rw, "n", waiters)
	return l
}

func (l *line) join() {
	l.group.Go(func() {
		h, _ := l.rw.Lock(context.Background(), "n")
		l.next <- h
	})
}

// handOver has the lock go to the next in line, n times, and each time another waiter come.
func (l *line) handOver(n int) {
	l.Helper()
	before := l.g.read(l).scripts
	for range n {
		l.join()
		unlock(l, l.holder)
		l.holder = <-l.next
		require.NotNil(l, l.holder)
	}
	eventually(l, func() bool { return l.g.read(l).scripts >= before+2*float64(n) }, "%d waiters more", n)
}

// The client side of what does not wait allocates little more than go-redis does for two scripts. Without an
// observer, it is as much as before there were any.
func TestAllocations(t *testing.T) {
	testredis.Need(t) // miniredis allocates too
	more, moreObserved := 5.0, 5.0+3
	if raceDetector() { // then a sync.Pool forgets some of what is put into it
		more, moreObserved = 12, 12+6
	}
	g := newGauge(t)
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
			floor := allocs(g.floor(t, g.client(t), w.prepare))
			ours := allocs(w.prepare(t, newLockOn(t, g.client(t), rwlock.WithPrefix("ours"))))
			observed := allocs(w.prepare(t, newLockOn(t, g.client(t), rwlock.WithPrefix("observed"), observer)))
			t.Logf("%v, observed %v, the floor %v", ours, observed, floor)
			require.LessOrEqual(t, ours, floor+more)
			require.LessOrEqual(t, observed, floor+moreObserved)
		})
	}
}

// What holds or waits costs one script per third of a lease.
func TestIdleCostsHeartbeatsAlone(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const n, lease, leases = 100, 4 * time.Second, 1
	g := newGauge(t)
	holder := take(t, newOwner(), newLockOn(t, g.client(t)), write, "n") // with a lease that is long
	rw := newLockOn(t, g.client(t), rwlock.WithLease(lease))
	takeMany(t, n, func(i int) (*rwlock.Hold, error) { return rw.Lock(newOwner(), fmt.Sprint("held", i)) })
	var group sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		group.Go(func() { _, errs[i] = rw.Lock(context.Background(), "n") })
	}
	waitQueued(t, rw, "n", n)

	spent := g.of(t, func() { <-time.After(leases * lease) })
	var others float64
	for command, calls := range spent.by {
		if name, _, _ := strings.Cut(command, "|"); name == "publish" || name == "subscribe" || name == "ping" {
			others += calls
		}
	}
	t.Logf("%v scripts, %v calls, %v others", spent.scripts, spent.calls, others)
	require.LessOrEqual(t, spent.scripts, float64(2*n*(3*leases+1)))
	require.LessOrEqual(t, spent.calls/spent.scripts, 12.0)
	require.LessOrEqual(t, others, 5.0)
	require.NoError(t, rw.Close())
	group.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, rwlock.ErrClosed)
	}
	unlock(t, holder)
}

// An RWLock that nobody uses sends nothing, though it has subscriptions: on a server, and on each master of a
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
			eventually(t, func() bool {
				return len(channels(t, s.Client(), "rwlock")) == 2
			}, "two subscriptions at each node")
		}
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

// A crowd of waiting readers is let in by steps, none of which is for more than 250.
func TestCrowdEntersInSteps(t *testing.T) {
	testredis.Need(t)
	const step = 250
	crowd := 10_000
	if raceDetector() {
		crowd = 5_000 // it allows for no more than 8,000 goroutines
	}
	g, largest := newGauge(t), &largestWake{}
	loadScripts(t, g.asks)
	rw := newLockOn(t, g.client(t, largest.hook()), rwlock.WithLease(quiet))
	holder := take(t, newOwner(), rw, write, "n")
	listen(t, g, rw, "n")
	type result struct {
		hold *rwlock.Hold
		err  error
	}
	results := make(chan result, crowd)
	for range crowd {
		go func() {
			h, err := rw.RLock(context.Background(), "n")
			results <- result{h, err}
		}()
	}
	eventually(t, func() bool {
		n, err := g.asks.ZCard(context.Background(), "rwlock:{n}:queue").Result()
		require.NoError(t, err)
		return n == int64(crowd)
	}, "%d waiting readers", crowd)

	var holds []*rwlock.Hold
	start := time.Now()
	spent := g.of(t, func() {
		unlock(t, holder)
		for range crowd {
			r := <-results
			require.NoError(t, r.err)
			holds = append(holds, r.hold)
		}
	})
	t.Logf("all in within %v: %v scripts, %v calls, at most %d in a step",
		time.Since(start), spent.scripts, spent.calls, largest.get())
	require.Equal(t, step, largest.get())
	require.LessOrEqual(t, spent.scripts, float64(crowd/step+2))
	require.LessOrEqual(t, spent.calls/spent.scripts, 30.0)
	require.Zero(t, spent.by["publish"], "messages to oneself")
	require.Len(t, inspect(t, rw, "n").Holders, crowd)
	require.NoError(t, rw.Close())
}

// listen has rw open its subscription, on a lock that is held: those who wait at that moment ask once more.
func listen(t *testing.T, g *gauge, rw *rwlock.RWLock, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := rw.RLock(ctx, name)
		done <- err
	}()
	eventually(t, func() bool { return g.read(t).by["subscribe"] > 0 }, "a subscription")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	waitQueued(t, rw, name, 0)
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// largestWake keeps the largest number of waiters that a reply says were let in.
type largestWake struct {
	mu sync.Mutex
	n  int
}

// hook returns what reads the replies.
func (l *largestWake) hook() redis.Hook {
	return sending(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		err := send()
		for _, cmd := range cmds {
			l.note(cmd)
		}
		return err
	})
}

func (l *largestWake) get() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *largestWake) note(cmd redis.Cmder) {
	script, ok := cmd.(*redis.Cmd)
	if !ok {
		return
	}
	reply, err := script.Slice()
	if err != nil || len(reply) < 4 {
		return
	}
	told, _ := reply[2].(string)
	if m, ok := protocol.ParseMessage(told); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.n = max(l.n, len(m.Granted))
	}
}

// Those that are let in hear of it by one message to each RWLock; those of the RWLock that unlocks, by the
// reply.
func TestOneMessagePerRWLock(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	w, s := alone(t)
	w.lease = 30 * time.Second
	g := gaugeOn(t, s)
	locks := []*rwlock.RWLock{w.newLock(), w.newLock()}
	wait := func() (calls []*call) {
		for i := range 40 {
			calls = append(calls, w.launch(newOwner(), locks[i%2], read, "a"))
		}
		waitQueued(t, locks[0], "a", len(calls))
		return calls
	}
	letIn := func(unlock func(), calls []*call, others ...stranger) float64 {
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

	release := takeAsStranger(t, w.dial(), w.prefix, "a")
	calls = wait()
	require.EqualValues(t, 2, letIn(release, calls))
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

// playHoarder is a process that has much to do with locks for a while, and says how much memory it needs
// before, and again and again when all is over.
func playHoarder() {
	// The client's own needs are not to hide the lock's.
	const few, small = 4, 4096
	client := redis.NewClient(&redis.Options{
		Addr:     os.Getenv("ADDR"),
		PoolSize: few, ReadBufferSize: small, WriteBufferSize: small,
		PipelinePoolSize: few, PipelineReadBufferSize: small, PipelineWriteBufferSize: small,
	})
	rw, err := rwlock.New(client, rwlock.WithPrefix(os.Getenv("PREFIX")), rwlock.WithLease(5*time.Minute),
		rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	// check ends the process, and the test with it.
	check := func(err error) {
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
	}
	const workers = 32
	// each runs fn for all numbers below n, on a few goroutines.
	each := func(n int, fn func(i int)) {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for i := worker; i < n; i += workers {
					fn(i)
				}
			})
		}
		wg.Wait()
	}
	names := 0
	// lose takes n new names, loses them and releases them.
	lose := func(n int) {
		holds := make([]*rwlock.Hold, n)
		each(n, func(i int) {
			name := fmt.Sprint("name ", names+i)
			for err := errors.New("not yet"); err != nil; { // the lease is short
				holds[i], err = acquire(newOwner(), rw, bothModes[i%2], name, rwlock.Lease(300*time.Millisecond),
					rwlock.NoRenew())
			}
		})
		names += n
		for _, h := range holds {
			<-h.Context().Done()
			if err := h.Unlock(context.Background()); !errors.Is(err, rwlock.ErrLost) {
				check(fmt.Errorf("unlock of a lost hold: %v", err))
			}
		}
	}
	// hold has n owners hold, and release.
	hold := func(n int, name func(i int) string) {
		holds := make([]*rwlock.Hold, n)
		each(n, func(i int) {
			var err error
			holds[i], err = rw.RLock(newOwner(), name(i))
			check(err)
		})
		each(n, func(i int) { check(holds[i].Unlock(context.Background())) })
	}
	// wait has n owners wait for one lock at a time, or for as many channels as a call.
	never := make(chan struct{})
	wait := func(n int, acquire bool) {
		var wg sync.WaitGroup
		gate := make(chan struct{})
		h, err := rw.Lock(newOwner(), "waited for")
		check(err)
		for range n {
			wg.Go(func() {
				if !acquire {
					select {
					case <-gate:
					case <-never:
					}
					return
				}
				h, err := rw.RLock(newOwner(), "waited for")
				check(err)
				check(h.Unlock(context.Background()))
			})
		}
		if acquire {
			for {
				s, err := rw.Inspect(context.Background(), "waited for")
				check(err)
				if len(s.Waiters) == n {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		} else {
			for text := make([]byte, 4<<20); strings.Count(string(text[:runtime.Stack(text, true)]), "[select") < n; {
				time.Sleep(10 * time.Millisecond) // goroutines that do not run yet wait for no channel
			}
		}
		close(gate)
		check(h.Unlock(context.Background()))
		wg.Wait()
	}

	n, err := strconv.Atoi(os.Getenv("N"))
	check(err)
	wait(100, true) // opens what a process opens once
	switch os.Getenv("WORK") {
	case "names lost":
		for range 3 { // until what grows with a peak has seen one
			lose(1000)
		}
		fmt.Println("heap", leastHeap())
		for ; n > 0; n -= 1000 {
			lose(1000)
		}
	case "names used":
		hold(1000, func(i int) string { return fmt.Sprint("name ", i) })
		fmt.Println("heap", leastHeap())
		hold(n, func(i int) string { return fmt.Sprint("another name ", i) })
	case "readers":
		hold(100, func(int) string { return "read" })
		fmt.Println("heap", leastHeap())
		hold(n, func(int) string { return "read" })
	case "waiters":
		wait(n, false) // the runtime keeps what it needs for so many goroutines and channels
		fmt.Println("heap", leastHeap())
		wait(n, true)
	}
	for { // until the test has seen enough: what is still on its way may take its time
		fmt.Println("heap", leastHeap())
	}
}

// What a client remembers is bounded by what is held and waited for, and a number of names: it forgets names
// that were lost or used, and what a peak of readers or waiters needed.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	const little = 128_000 // bytes: at most 43 for each waiter, and fewer for each name or reader
	for work, n := range map[string]int{"names lost": 5_000, "names used": 10_000, "readers": 5_000,
		"waiters": 3_000} {
		t.Run(work, func(t *testing.T) {
			t.Parallel()
			w, _ := alone(t)
			c := w.spawn("hoarder", map[string]string{"WORK": work, "N": strconv.Itoa(n)})
			heap := func() int {
				n, err := strconv.Atoi(c.expect("heap"))
				require.NoError(t, err)
				return n
			}
			before := heap()
			eventually(t, func() bool {
				more := heap() - before
				t.Logf("%d bytes more", more)
				return more < little
			}, "less than %d bytes more", little)
		})
	}
}
