package main

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// pair returns what locks and unlocks name once.
func pair(ctx context.Context, lock lockFunc, name string) func() error {
	return func() error {
		h, err := lock(ctx, name)
		if err != nil {
			return err
		}
		return h.Unlock(ctx)
	}
}

// series runs op again and again for the given time, after a quarter of it unmeasured, and returns how long
// each run took and what a run cost on average.
func (e *Env) series(ctx context.Context, span time.Duration, op func() error) (Metrics, error) {
	for warm := time.Now().Add(span / 4); time.Now().Before(warm); {
		if err := op(); err != nil {
			return nil, err
		}
	}
	took := make([]time.Duration, 0, 1<<17)
	var before, after runtime.MemStats
	usage, err := e.usage(ctx, func() error {
		runtime.GC()
		runtime.ReadMemStats(&before)
		defer runtime.ReadMemStats(&after)
		for end := time.Now().Add(span); ; {
			start := time.Now()
			if err := op(); err != nil {
				return err
			}
			now := time.Now()
			took = append(took, now.Sub(start))
			if now.After(end) || ctx.Err() != nil {
				return ctx.Err()
			}
		}
	})
	n, latencies := float64(len(took)), inMicros(took)
	m := usage.per(n)
	m[Latency], m[LatencyP99] = median(latencies), quantile(latencies, 0.99)
	m[Allocs] = float64(after.Mallocs-before.Mallocs) / n
	return m, err
}

// pairOf measures one goroutine that locks and unlocks one name.
func pairOf(mode Mode, span time.Duration) measured {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		return e.series(ctx, e.span(span), pair(ctx, e.in(mode), "name"))
	}
}

// amongReaders measures a read pair while many others hold the lock for reading. In between it does the same
// on a name that nobody else has to do with, so that what disturbs the machine for a while disturbs both
// alike.
func amongReaders(ctx context.Context, e *Env) (_ Metrics, err error) {
	if e.Contender != floor {
		holds, err := holdAll(ctx, e.Param, func(int) (Hold, error) { return e.RLock(ctx, "name") })
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, releaseAll(ctx, holds)) }()
	}
	var times, latencies, ratios []float64
	for range 5 {
		among, err := e.series(ctx, e.span(40*time.Millisecond), pair(ctx, e.RLock, "name"))
		if err != nil {
			return nil, err
		}
		alone, err := e.series(ctx, e.span(40*time.Millisecond), pair(ctx, e.RLock, "nobody else's"))
		if err != nil {
			return nil, err
		}
		times = append(times, among[ServerTime])
		latencies = append(latencies, among[Latency])
		ratios = append(ratios, among[ServerTime]/alone[ServerTime])
	}
	return Metrics{ServerTime: median(times), Latency: median(latencies), AgainstNone: median(ratios)}, nil
}

// busy measures one goroutine that locks new names while others of its process compute.
func busy(ctx context.Context, e *Env) (Metrics, error) {
	computing, done := context.WithCancel(ctx)
	defer done()
	for range e.Param {
		go compute(computing)
	}
	span, pairs := e.span(time.Second), 0.0
	m, err := e.series(ctx, span, func() error {
		pairs++
		return pair(ctx, e.Lock, newName())()
	})
	if err != nil {
		return nil, err
	}
	m[Rate] = pairs / (span + span/4).Seconds() // series begins with a quarter unmeasured
	return m, nil
}

// compute occupies a processor for 200 µs at a time.
func compute(ctx context.Context) {
	for ctx.Err() == nil {
		for start := time.Now(); time.Since(start) < 200*time.Microsecond; {
		}
		runtime.Gosched()
	}
}
