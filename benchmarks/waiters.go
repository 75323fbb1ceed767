package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// behind has n goroutines wait for a lock behind a holder. It returns when their requests have reached the
// server; giveUp ends all of it.
func (e *Env) behind(ctx context.Context, l Locker, name string, n int) (giveUp func() error, err error) {
	h, err := l.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	before, err := e.requests(ctx)
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	giveUp = func() error {
		cancel()
		wg.Wait()
		return h.Unlock(ctx)
	}
	for range n {
		wg.Go(func() {
			if h, err := l.Lock(waiting, name); err == nil { // the holder left
				_ = h.Unlock(ctx)
			}
		})
	}
	if err == nil {
		err = e.settle(ctx, before+float64(n))
	}
	if err != nil {
		err = errors.Join(err, giveUp())
	}
	return giveUp, err
}

// idleWaiters measures what it costs that goroutines wait for a lock that nobody releases, as many as the
// parameter says unless waiters does.
func idleWaiters(waiters int) measured {
	return func(ctx context.Context, e *Env, l Locker) (Metrics, error) {
		lease, window := e.lease(20 * time.Second)
		if e.Contender.Polls {
			window = min(window, 3*time.Second)
		}
		giveUp, err := e.behind(ctx, l, "name", cmp.Or(waiters, e.Param))
		if err != nil {
			return nil, err
		}
		m, err := e.watch(ctx, lease, window)
		m[Mutex] = mutexHeld(l, func() { err = errors.Join(err, giveUp()) })
		return m, err
	}
}

// renewal measures what it costs to keep many holds alive.
func renewal(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	lease, window := e.lease(30 * time.Second)
	before, err := e.requests(ctx)
	if err != nil {
		return nil, err
	}
	_, err = holdAll(ctx, e.Param, func(i int) (Hold, error) { return l.Lock(ctx, nameOf(i)) })
	if err != nil {
		return nil, err
	}
	if err := e.settle(ctx, before+float64(e.Param)); err != nil {
		return nil, err
	}
	m, err := e.watch(ctx, lease, window)
	if err == nil {
		m[Mutex] = mutexHeld(l, func() { time.Sleep(window / 3) })
	}
	return m, err
}

// crowd measures how waiting readers come in once the writer leaves.
func crowd(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	writer, err := l.Lock(ctx, "name")
	if err != nil {
		return nil, err
	}
	before, err := e.requests(ctx)
	if err != nil {
		return nil, err
	}
	var (
		start    = time.Now()
		cameIn   = make([]time.Duration, e.Param)
		in       sync.WaitGroup
		released = make(chan struct{})
		group    errgroup.Group
	)
	in.Add(e.Param)
	for g := range e.Param {
		group.Go(func() error {
			h, err := l.RLock(ctx, "name")
			cameIn[g] = time.Since(start)
			in.Done()
			if err != nil {
				return err
			}
			<-released
			return h.Unlock(ctx)
		})
	}
	err = errors.Join(e.settle(ctx, before+float64(e.Param)), e.Server.ResetSlowLog(ctx))
	unlocked := time.Since(start)
	err = errors.Join(err, writer.Unlock(ctx))
	in.Wait()
	close(released)
	if err := errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	longest, err := e.Server.longestScript(ctx)
	return Metrics{AllIn: millis(slices.Max(cameIn) - unlocked), LongestRun: millis(longest)}, err
}

// watched opens contenders whose holds and waiters are watched.
func watched(e *Env, o *Options) { o.Lease, _ = e.lease(0) }

// lease returns the lease of holds that are watched, and how long to watch them where a full run takes d. A
// quick run shortens both alike.
func (e *Env) lease(d time.Duration) (lease, window time.Duration) {
	if e.Less > 1 {
		return 3 * time.Second, d / e.Less / 2
	}
	return usualLease, d
}

// watch returns what the servers and this process do for a while, as if the lease were 30 s. Of several
// servers, the home is the one that is asked most.
func (e *Env) watch(ctx context.Context, lease, window time.Duration) (Metrics, error) {
	before := processCPU()
	each, err := e.usages(ctx, func() error {
		select {
		case <-ctx.Done():
		case <-time.After(window):
		}
		return ctx.Err()
	})
	cpu, all := processCPU()-before, sum(each)
	m := Metrics{
		RequestRate: all.Requests,
		CommandRate: all.Requests + all.Calls,
		ClientCPU:   100 * cpu.Seconds(),
		ServerCPU:   100 * all.CPU.Seconds(),
	}
	slices.SortFunc(each, func(a, b Usage) int { return cmp.Compare(b.Requests, a.Requests) })
	if len(each) > 1 {
		m[HomeRequests], m[HomeCommands] = each[0].Requests, each[0].Requests+each[0].Calls
		m[OtherRequests], m[OtherCommands] = each[1].Requests, each[1].Requests+each[1].Calls
	}
	scale := 1 / window.Seconds()
	if !e.Contender.Polls { // what polls does so whatever the lease
		scale *= lease.Seconds() / 30
	}
	for metric := range m {
		m[metric] *= scale
	}
	return m, err
}

// requests returns how many requests the servers have got of the contender, ever.
func (e *Env) requests(ctx context.Context) (float64, error) {
	var n float64
	for _, s := range e.Servers {
		snap, err := s.snapshot(ctx)
		if err != nil {
			return 0, err
		}
		for _, name := range e.Contender.Commands {
			n += snap.calls[name]
		}
	}
	return n, nil
}

// settle waits until the server has got that many requests of the contender, and half a second more.
func (e *Env) settle(ctx context.Context, requests float64) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		n, err := e.requests(ctx)
		if err != nil {
			return err
		}
		if n >= requests {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("only %.0f of %.0f requests have reached the server", n, requests)
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(500 * time.Millisecond):
	}
	return ctx.Err()
}

// processCPU returns the processor time that this process has used.
func processCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // not with these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// holdAll takes n holds, 64 at a time.
func holdAll(ctx context.Context, n int, lock func(i int) (Hold, error)) ([]Hold, error) {
	holds := make([]Hold, n)
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(64)
	for i := range n {
		group.Go(func() (err error) {
			holds[i], err = lock(i)
			return err
		})
	}
	return holds, group.Wait()
}

// releaseAll releases holds, 64 at a time.
func releaseAll(ctx context.Context, holds []Hold) error {
	_, err := holdAll(ctx, len(holds), func(i int) (Hold, error) { return nil, holds[i].Unlock(ctx) })
	return err
}

// mutexHeld returns for how many milliseconds at most ours has its mutex locked while do runs; NaN for
// others. A thread looks at the mutex all the time. What passes while the thread itself does not run is not
// counted.
func mutexHeld(l Locker, do func()) float64 {
	if o, ok := l.(*opened); ok {
		l = o.Locker
	}
	mine, ok := l.(*ourLocker)
	if !ok {
		do()
		return math.NaN()
	}
	field := reflect.ValueOf(mine.rw)
	for _, name := range []string{"client", "mu", "w", "mu", "state"} {
		field = reflect.Indirect(field).FieldByName(name)
	}
	state := (*int32)(field.Addr().UnsafePointer())
	var over atomic.Bool
	longest := make(chan time.Duration)
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
