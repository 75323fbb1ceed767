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
func (e *Env) behind(ctx context.Context, l *Locker, name string, n int) (giveUp func() error, err error) {
	h, err := l.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	giveUp = func() error {
		cancel()
		wg.Wait()
		return h.Unlock(ctx)
	}
	err = e.reached(ctx, n, func() error {
		for range n {
			wg.Go(func() {
				if h, err := l.Lock(waiting, name); err == nil { // the holder left
					_ = h.Unlock(ctx)
				}
			})
		}
		return nil
	})
	if err != nil {
		err = errors.Join(err, giveUp())
	}
	return giveUp, err
}

// idleWaiters measures what it costs that goroutines wait for a lock that nobody releases, as many as the
// parameter says unless waiters does.
func idleWaiters(waiters int) measured {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		giveUp, err := e.behind(ctx, e.Locker, "name", cmp.Or(waiters, e.Param))
		if err != nil {
			return nil, err
		}
		m, err := e.watch(ctx)
		m[Mutex] = mutexHeld(e.Locker, func() { err = errors.Join(err, giveUp()) })
		return m, err
	}
}

// renewal measures what it costs to keep many holds alive.
func renewal(ctx context.Context, e *Env) (Metrics, error) {
	var holds []Hold
	err := e.reached(ctx, e.Param, func() (err error) {
		holds, err = holdAll(ctx, e.Param, func(i int) (Hold, error) { return e.Lock(ctx, nameOf(i)) })
		return err
	})
	if err != nil {
		return nil, err
	}
	m, err := e.watch(ctx)
	if err == nil {
		m[Mutex] = mutexHeld(e.Locker, func() { time.Sleep(e.Watch / 3) })
	}
	runtime.KeepAlive(holds) // a hold that nobody refers to is not renewed
	return m, err
}

// crowd measures how waiting readers come in once the writer leaves.
func crowd(ctx context.Context, e *Env) (Metrics, error) {
	writer, err := e.Lock(ctx, "name")
	if err != nil {
		return nil, err
	}
	var (
		cameIn   = make([]time.Time, e.Param)
		in       sync.WaitGroup
		released = make(chan struct{})
		group    errgroup.Group
	)
	in.Add(e.Param)
	err = e.reached(ctx, e.Param, func() error {
		for g := range e.Param {
			group.Go(func() error {
				h, err := e.RLock(ctx, "name")
				cameIn[g] = time.Now()
				in.Done()
				if err != nil {
					return err
				}
				<-released
				return h.Unlock(ctx)
			})
		}
		return nil
	})
	err = errors.Join(err, e.Server.ResetSlowLog(ctx))
	unlocked := time.Now()
	err = errors.Join(err, writer.Unlock(ctx))
	in.Wait()
	close(released)
	if err := errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	longest, err := e.Server.longestScript(ctx)
	last := slices.MaxFunc(cameIn, time.Time.Compare)
	return Metrics{AllIn: millis(last.Sub(unlocked)), LongestRun: millis(longest)}, err
}

// watch returns what the servers and this process do for a while, as if the lease were the usual one. Of
// several servers, the home is the one that is asked most.
func (e *Env) watch(ctx context.Context) (Metrics, error) {
	window, pace := e.Watch, e.Lease.Seconds()/usualLease.Seconds()
	if e.Contender.Polls { // what polls does so whatever the lease, and renews nothing
		window, pace = min(window, 3*time.Second, e.Lease/3), 1
	}
	before := processCPU()
	each, err := e.usages(ctx, func() error {
		select {
		case <-ctx.Done():
		case <-time.After(window):
		}
		return ctx.Err()
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
	return m.per(window.Seconds() / pace), err
}

// reached runs do, and returns when the servers have got n requests more of the contender, and half a second
// later.
func (e *Env) reached(ctx context.Context, n int, do func() error) error {
	before, err := e.counters(ctx)
	if err == nil {
		err = do()
	}
	for deadline := time.Now().Add(20 * time.Second); err == nil; time.Sleep(20 * time.Millisecond) {
		var now []Metrics
		now, err = e.counters(ctx)
		if more := sum(now)[Requests] - sum(before)[Requests]; more >= float64(n) {
			break
		} else if err == nil && time.Now().After(deadline) {
			return fmt.Errorf("only %.0f of %d requests have reached the server", more, n)
		}
	}
	time.Sleep(500 * time.Millisecond)
	return errors.Join(err, ctx.Err())
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
