package main

import (
	"context"
	"slices"
	"time"
)

// once measures goroutines that never lock a name twice.
func once(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	name := newNames()
	calls := make([][]time.Duration, e.Param)
	o, err := e.hammer(ctx, e.Param, 700*time.Millisecond, func(_ context.Context, g int) error {
		took, err := pairWithin(ctx, ctx, l.Lock, name(g)) // nobody waits, so nothing is to be cut short
		calls[g] = append(calls[g], took)
		return err
	})
	if err != nil {
		return nil, err
	}
	return Metrics{
		Rate:       o.rate(),
		LockCall:   median(inMicros(slices.Concat(calls...))),
		ServerTime: o.usage.Micros / o.n,
		Requests:   o.usage.Requests / o.n,
		Calls:      o.usage.Calls / o.n,
	}, nil
}
