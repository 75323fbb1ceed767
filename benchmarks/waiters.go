package main

import (
	"cmp"
	"context"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// behind has n goroutines wait for a lock behind a holder. It returns when their requests have reached the
// server; giveUp ends all of it.
func (e *Env) behind(ctx context.Context, l *Locker, name string, n int) (giveUp func()) {
	h := e.held(l.Lock(ctx, name))
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	e.reached(ctx, n, func() {
		for range n {
			wg.Go(func() {
				if h, err := l.Lock(waiting, name); err == nil { // the holder left
					_ = h.Unlock(ctx)
				}
			})
		}
	})
	return func() {
		cancel()
		wg.Wait()
		require.NoError(e, h.Unlock(ctx))
	}
}

// idleWaiters measures what it costs that goroutines wait for a lock that nobody releases, as many as the
// parameter says unless waiters does.
func idleWaiters(waiters int) measured {
	return func(ctx context.Context, e *Env) Metrics {
		giveUp := e.behind(ctx, e.Locker, "name", cmp.Or(waiters, e.Param))
		m := e.watch(ctx)
		m[Mutex] = mutexHeld(e.Locker, giveUp)
		return m
	}
}

// renewal measures what it costs to keep many holds alive.
func renewal(ctx context.Context, e *Env) Metrics {
	var holds []Hold
	e.reached(ctx, e.Param, func() {
		holds = e.holdAll(e.Param, func(i int) (Hold, error) { return e.Lock(ctx, nameOf(i)) })
	})
	m := e.watch(ctx)
	m[Mutex] = mutexHeld(e.Locker, func() { time.Sleep(e.Watch / 3) })
	runtime.KeepAlive(holds) // a hold that nobody refers to is not renewed
	return m
}

// crowd measures how waiting readers come in once the writer leaves.
func crowd(ctx context.Context, e *Env) Metrics {
	writer := e.held(e.Lock(ctx, "name"))
	var in sync.WaitGroup
	var group errgroup.Group
	cameIn := make([]time.Time, e.Param)
	released, release := context.WithCancel(ctx)
	defer release()
	in.Add(e.Param)
	e.reached(ctx, e.Param, func() {
		for g := range e.Param {
			group.Go(func() error {
				h, err := e.RLock(ctx, "name")
				cameIn[g] = time.Now()
				in.Done()
				if err != nil {
					return err
				}
				<-released.Done()
				return h.Unlock(ctx)
			})
		}
	})
	require.NoError(e, e.Server.client.Do(ctx, "SLOWLOG", "RESET").Err())
	unlocked := time.Now()
	require.NoError(e, writer.Unlock(ctx))
	in.Wait()
	release()
	require.NoError(e, group.Wait())
	last := slices.MaxFunc(cameIn, time.Time.Compare)
	return Metrics{AllIn: millis(last.Sub(unlocked)), LongestRun: millis(e.longestScript(ctx))}
}

// longestScript returns the time of the longest script in the server's slow log, or slowScript if it has
// none.
func (e *Env) longestScript(ctx context.Context) time.Duration {
	entries, err := e.Server.client.SlowLogGet(ctx, -1).Result()
	require.NoError(e, err)
	longest := slowScript
	for _, entry := range entries {
		if len(entry.Args) > 0 && strings.HasPrefix(strings.ToLower(entry.Args[0]), "eval") {
			longest = max(longest, entry.Duration)
		}
	}
	return longest
}

// watch returns what the servers and this process do for a while, as if the lease were the usual one. Of
// several servers, the home is the one that is asked most.
func (e *Env) watch(ctx context.Context) Metrics {
	window, pace := e.Watch, e.Lease.Seconds()/usualLease.Seconds()
	if e.Contender.Polls { // what polls does so whatever the lease, and renews nothing
		window, pace = min(window, 3*time.Second, e.Lease/3), 1
	}
	before := processCPU()
	each := e.usages(ctx, func() {
		select {
		case <-ctx.Done():
		case <-time.After(window):
		}
	})
	all := sum(each)
	m := Metrics{
		RequestRate: all[Requests],
		CommandRate: all[Requests] + all[Calls],
		ClientCPU:   100 * (processCPU() - before).Seconds(),
		ServerCPU:   all[ServerCPU],
	}
	if len(each) > 1 {
		slices.SortFunc(each, func(a, b Metrics) int { return cmp.Compare(b[Requests], a[Requests]) })
		m[HomeRequests], m[OtherRequests] = each[0][Requests], each[1][Requests]
	}
	return m.per(window.Seconds() / pace)
}

// reached runs do, and returns when the servers have got n requests more of the contender, and half a second
// later.
func (e *Env) reached(ctx context.Context, n int, do func()) {
	requests := func() float64 { return sum(e.counters(ctx))[Requests] }
	before := requests()
	do()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		more := requests() - before
		if more >= float64(n) {
			break
		}
		require.Less(e, time.Since(start), 20*time.Second,
			"only %.0f of %d requests have reached the server", more, n)
	}
	time.Sleep(500 * time.Millisecond)
}

// processCPU returns the processor time that this process has used.
func processCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // not with these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// parallel does something n times, 64 times at a time.
func parallel(n int, do func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(64)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// holdAll takes n holds.
func (e *Env) holdAll(n int, lock func(i int) (Hold, error)) []Hold {
	holds := make([]Hold, n)
	require.NoError(e, parallel(n, func(i int) (err error) {
		holds[i], err = lock(i)
		return err
	}))
	return holds
}

// releaseAll releases holds.
func releaseAll(ctx context.Context, holds []Hold) error {
	return parallel(len(holds), func(i int) error { return holds[i].Unlock(ctx) })
}

// mutexHeld returns for how many milliseconds at most ours has its mutex locked while do runs; NaN for
// others. A thread looks at the mutex all the time. What passes while the thread itself does not run is not
// counted.
func mutexHeld(l *Locker, do func()) float64 {
	if l.rw == nil {
		do()
		return math.NaN()
	}
	field := reflect.ValueOf(l.rw)
	for _, name := range []string{"client", "mu", "w", "mu", "state"} {
		field = reflect.Indirect(field).FieldByName(name)
	}
	state := (*int32)(field.Addr().UnsafePointer())
	var over atomic.Bool
	defer over.Store(true) // do may end the test
	longest := make(chan time.Duration, 1)
	go func() {
		runtime.LockOSThread()
		var most time.Duration
		last := time.Now()
		for since := last; !over.Load(); {
			locked, now := atomic.LoadInt32(state)&1 != 0, time.Now()
			if !locked || now.Sub(last) > 20*time.Microsecond {
				since = now
			}
			most, last = max(most, now.Sub(since)), now
		}
		longest <- most
	}()
	do()
	over.Store(true)
	return millis(<-longest)
}
