package main

import (
	"context"
	"runtime"
	"sync"
	"time"
)

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
