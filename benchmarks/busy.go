package main

import (
	"context"
	"runtime"
	"time"
)

// busy measures one goroutine that locks new names while others of its process compute.
func busy(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	computing, done := context.WithCancel(ctx)
	defer done()
	for range e.Param {
		go compute(computing)
	}
	name, span, pairs := newNames(), e.span(time.Second), 0.0
	m, err := e.series(ctx, span, func() error {
		pairs++
		return pair(ctx, l, Write, name(0))()
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
