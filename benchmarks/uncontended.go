package main

import (
	"context"
	"runtime"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pair locks and unlocks name once.
func pair(ctx context.Context, lock lockFunc, name string) error {
	h, err := lock(ctx, name)
	if err != nil {
		return err
	}
	return h.Unlock(ctx)
}

// series runs op again and again for the given time, after a quarter of it unmeasured, and returns how long
// each run took and what a run cost on average.
func (e *Env) series(ctx context.Context, span time.Duration, op func() error) Metrics {
	var err error
	for warm := time.Now().Add(span / 4); err == nil && time.Now().Before(warm); {
		err = op()
	}
	took := make([]float64, 0, 1<<17)
	var before, after runtime.MemStats
	usage := e.usage(ctx, func() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		for now, end := time.Now(), time.Now().Add(span); err == nil && !now.After(end); {
			start := time.Now()
			err = op()
			now = time.Now()
			took = append(took, 1000*millis(now.Sub(start)))
		}
		runtime.ReadMemStats(&after)
	})
	require.NoError(e, err)
	n := float64(len(took))
	m := usage.per(n)
	m[Latency], m[LatencyP99] = median(took), quantile(took, 0.99)
	m[Allocs] = float64(after.Mallocs-before.Mallocs) / n
	return m
}

// pairOf measures one goroutine that locks and unlocks one name.
func pairOf(mode Mode, span time.Duration) measured {
	return func(ctx context.Context, e *Env) Metrics {
		return e.series(ctx, e.span(span), func() error { return pair(ctx, e.in(mode), "name") })
	}
}

// reentryOf measures one goroutine that holds a name, and locks it again and releases that.
func reentryOf(mode Mode) measured {
	return func(ctx context.Context, e *Env) Metrics {
		outer, err := e.in(mode)(ctx, "name")
		require.NoError(e, err)
		defer func() { assert.NoError(e, outer.Unlock(ctx)) }()
		owned := outer.(interface{ Context() context.Context }).Context()
		return e.series(ctx, e.span(pairSpan), func() error { return pair(owned, e.in(mode), "name") })
	}
}

// amongReaders measures a read pair while many others hold the lock for reading. In between it does the same
// on a name that nobody else has to do with, so that what disturbs the machine for a while disturbs both
// alike.
func amongReaders(ctx context.Context, e *Env) Metrics {
	if e.Contender != floor {
		holds := e.holdAll(e.Param, func(int) (Hold, error) { return e.RLock(ctx, "name") })
		defer func() { assert.NoError(e, releaseAll(ctx, holds)) }()
	}
	pairs := func(name string) Metrics {
		return e.series(ctx, e.span(40*time.Millisecond), func() error { return pair(ctx, e.RLock, name) })
	}
	var times, latencies, ratios []float64
	for range 5 {
		among, alone := pairs("name"), pairs("nobody else's")
		times = append(times, among[ServerTime])
		latencies = append(latencies, among[Latency])
		ratios = append(ratios, among[ServerTime]/alone[ServerTime])
	}
	return Metrics{ServerTime: median(times), Latency: median(latencies), AgainstNone: median(ratios)}
}

// busy measures one goroutine that locks new names while others of its process compute.
func busy(ctx context.Context, e *Env) Metrics {
	computing, done := context.WithCancel(ctx)
	defer done()
	for range e.Param {
		go compute(computing)
	}
	span, pairs := e.span(time.Second), 0.0
	m := e.series(ctx, span, func() error {
		pairs++
		return pair(ctx, e.Lock, newName())
	})
	m[Rate] = pairs / (span + span/4).Seconds() // series begins with a quarter unmeasured
	return m
}

// compute occupies a processor for 200 µs at a time.
func compute(ctx context.Context) {
	for ctx.Err() == nil {
		for start := time.Now(); time.Since(start) < 200*time.Microsecond; {
		}
		runtime.Gosched()
	}
}
