package main

import (
	"context"
	"runtime"
	"time"
)

// busy measures one goroutine that locks new names while others of its process compute. The server is so far
// away, there and back.
func busy(roundTrip time.Duration) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (_ Metrics, err error) {
		l, stop, err := e.openFar(ctx, roundTrip)
		if err != nil {
			return nil, err
		}
		defer stop()
		defer closing(l, &err)
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
}

// compute occupies a processor for 200 µs at a time.
func compute(ctx context.Context) {
	for ctx.Err() == nil {
		for start := time.Now(); time.Since(start) < 200*time.Microsecond; {
		}
		runtime.Gosched()
	}
}

// far measures goroutines that each lock and unlock a name of their own on a server far away.
func far(roundTrip time.Duration) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (_ Metrics, err error) {
		l, stop, err := e.openFar(ctx, roundTrip)
		if err != nil {
			return nil, err
		}
		defer stop()
		defer closing(l, &err)
		o, err := e.hammer(ctx, e.Param, 2*time.Second, pairOn(ctx, l, Write, ownNames()))
		if err != nil {
			return nil, err
		}
		return Metrics{Rate: o.rate()}, nil
	}
}

// openFar is Open for a server that is so far away, there and back, and returns what ends that.
func (e *Env) openFar(ctx context.Context, roundTrip time.Duration) (Locker, func(), error) {
	if roundTrip == 0 {
		l, err := e.Open(ctx)
		return l, func() {}, err
	}
	p, err := startProxy(ctx, e.Server.Addr, roundTrip)
	if err != nil {
		return nil, nil, err
	}
	l, err := e.Open(ctx, func(o *Options) { o.Addr = p.Addr })
	if err != nil {
		p.Stop()
	}
	return l, p.Stop, err
}
