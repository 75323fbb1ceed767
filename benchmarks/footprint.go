package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// footprint measures the memory that a name takes on the server, and for how long.
func footprint(ctx context.Context, e *Env, l Locker) (_ Metrics, err error) {
	const waiters, processes = 100, 10
	m := Metrics{}

	// held returns the bytes of a name while it is held in mode.
	held := func(mode Mode) (float64, error) {
		name := "held:" + string(mode)
		h, err := lockIn(l, mode)(ctx, name)
		if err != nil {
			return 0, err
		}
		t, err := e.Server.traces(ctx, name)
		return t.bytes, errors.Join(err, h.Unlock(ctx))
	}
	if m[HeldWriting], err = held(Write); err != nil {
		return nil, err
	}
	if e.Contender.Reads {
		if m[HeldReading], err = held(Read); err != nil {
			return nil, err
		}
	}
	if m[PerWaiter], err = e.perWaiter(ctx, l, waiters); err != nil {
		return nil, err
	}

	if err := pair(ctx, l, Write, "once")(); err != nil {
		return nil, err
	}
	left, err := e.Server.traces(ctx, "once")
	if err != nil {
		return nil, err
	}
	m[LeftBytes], m[LeftKeys] = left.bytes, left.keys
	m[Stays] = max(left.ttl-usualLease, 0).Seconds()
	if left.endless {
		m[Stays] = math.Inf(1)
	}

	all, err := e.startWorkers(ctx, processes, false)
	if err != nil {
		return nil, err
	}
	defer all.Stop()
	for _, w := range all {
		if _, err := w.do(job{Goroutines: 1, From: 0, To: 1, Mode: Write}); err != nil {
			return nil, err
		}
	}
	left, err = e.Server.traces(ctx, workerName(0))
	m[LeftByTen] = left.bytes
	return m, err
}

// perWaiter returns the bytes that each of n goroutines adds that wait for a name.
func (e *Env) perWaiter(ctx context.Context, l Locker, n int) (float64, error) {
	const name = "waited for"
	h, err := l.Lock(ctx, name)
	if err != nil {
		return 0, err
	}
	without, err := e.Server.traces(ctx, name)
	if err != nil {
		return 0, err
	}
	before, err := e.requests(ctx)
	if err != nil {
		return 0, err
	}
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if h, err := l.Lock(waiting, name); err == nil { // the cancellation came too late
				_ = h.Unlock(ctx)
			}
		})
	}
	err = e.settle(ctx, before+float64(n))
	with, failed := e.Server.traces(ctx, name)
	cancel()
	wg.Wait()
	return (with.bytes - without.bytes) / float64(n), errors.Join(err, failed, h.Unlock(ctx))
}

// traces are what the server keeps for a name.
type traces struct {
	keys, bytes float64
	ttl         time.Duration // the longest time that one of the keys has to live
	endless     bool          // one of them has no end
}

// traces returns what the server keeps for a name. All keys that contain the name are the name's.
func (s *Server) traces(ctx context.Context, name string) (traces, error) {
	var t traces
	keys, err := s.client.Keys(ctx, "*"+name+"*").Result()
	if err != nil {
		return t, fmt.Errorf("looking for keys: %w", err)
	}
	for _, key := range keys {
		bytes, err := s.client.MemoryUsage(ctx, key, 0).Result() // 0: every element
		if err != nil {
			return t, fmt.Errorf("asking for the size of %q: %w", key, err)
		}
		ttl, err := s.client.PTTL(ctx, key).Result()
		if err != nil {
			return t, fmt.Errorf("asking for the time to live of %q: %w", key, err)
		}
		t.keys++
		t.bytes += float64(bytes)
		t.ttl = max(t.ttl, ttl)
		t.endless = t.endless || ttl < 0
	}
	return t, nil
}

// clientMemory measures what a contender keeps in this process: for names in use, after many were used, and
// after a peak.
func clientMemory(ctx context.Context, e *Env) (Metrics, error) {
	const (
		peak      = 10_000
		few, many = 1000, 20_000
	)
	m := Metrics{}

	err := e.growth(ctx, func(l Locker, grown, lowest func() float64) error {
		holds, err := holdAll(ctx, peak, func(i int) (Hold, error) { return l.Lock(ctx, names[i]) })
		if err != nil {
			return err
		}
		top := grown()
		m[PerHold] = top / peak
		if err := releaseAll(ctx, holds); err != nil {
			return err
		}
		clear(holds)
		m[AfterHolds] = 100 * lowest() / top
		return nil
	})
	if err != nil {
		return nil, err
	}

	err = e.growth(ctx, func(l Locker, grown, lowest func() float64) error {
		h, err := l.Lock(ctx, "name")
		if err != nil {
			return err
		}
		waiting, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for range peak {
			wg.Go(func() {
				if h, err := l.Lock(waiting, "name"); err == nil { // the cancellation came too late
					_ = h.Unlock(ctx)
				}
			})
		}
		time.Sleep(time.Second) // all wait
		top := grown()
		cancel()
		wg.Wait()
		err = h.Unlock(ctx)
		m[AfterWaiters] = 100 * lowest() / top
		return err
	})
	if err != nil {
		return nil, err
	}

	for _, batch := range []struct {
		n          int
		left, lost Metric
	}{{few, LeftFew, LostFew}, {many, LeftMany, LostMany}} {
		err := e.growth(ctx, func(l Locker, _, lowest func() float64) error {
			_, err := holdAll(ctx, batch.n, func(i int) (Hold, error) {
				return nil, pair(ctx, l, Write, workerName(i))()
			})
			m[batch.left] = lowest() / 1024
			return err
		})
		if err != nil {
			return nil, err
		}
		err = e.growth(ctx, func(l Locker, _, lowest func() float64) error {
			for i := 0; i < batch.n; i += few {
				holds, err := holdAll(ctx, few, func(j int) (Hold, error) { return l.Lock(ctx, workerName(i+j)) })
				if err != nil {
					return err
				}
				if err := e.Server.Clear(ctx); err != nil {
					return err
				}
				_ = releaseAll(ctx, holds) // says that they are lost
			}
			m[batch.lost] = lowest() / 1024
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// growth opens a locker and runs do with it. By grown, do learns by how many bytes this process has grown
// since the locker was in working order, and by lowest, what is left of that after a while.
func (e *Env) growth(ctx context.Context, do func(l Locker, grown, lowest func() float64) error) (err error) {
	if err := e.Server.Clear(ctx); err != nil {
		return err
	}
	// With a short lease, what is tidied up when leases are renewed is tidied up meanwhile. A connection
	// takes as much memory as hundreds of names, so all are there before the start.
	l, err := e.Open(ctx, func(o *Options) { o.Lease, o.Connections = 3*time.Second, 8 })
	if err != nil {
		return err
	}
	defer closing(l, &err)
	holds, err := holdAll(ctx, 256, func(i int) (Hold, error) { return l.Lock(ctx, names[i]) })
	if err == nil {
		err = releaseAll(ctx, holds)
	}
	if err != nil {
		return err
	}
	clear(holds)
	base := clientBytes()
	grown := func() float64 { return max(clientBytes()-base, 0) }
	lowest := func() float64 {
		least := grown()
		for end := time.Now().Add(e.span(1500 * time.Millisecond)); time.Now().Before(end) && ctx.Err() == nil; {
			time.Sleep(100 * time.Millisecond)
			least = min(least, grown())
		}
		return least
	}
	return do(l, grown, lowest)
}

// clientBytes returns what this process has on its heap and its goroutines' stacks after a garbage
// collection.
func clientBytes() float64 {
	runtime.GC()
	runtime.GC() // the second frees what the first found pooled or with a finalizer
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse)
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
