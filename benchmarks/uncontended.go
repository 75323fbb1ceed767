package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// pairOf measures one goroutine that locks and unlocks one name.
func pairOf(mode Mode) measured {
	return func(ctx context.Context, e *Env, l Locker) (Metrics, error) {
		return e.series(ctx, e.span(120*time.Millisecond), pair(ctx, l, mode, "name"))
	}
}

// serverTime measures what a pair costs the server when 256 arrive in one pipeline; naming returns what names
// the locks of one turn.
func serverTime(mode Mode, naming func() func(g int) string) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		recorded, err := recordRounds(ctx, e, mode, e.rounds(24), 256, naming())
		if err != nil {
			return nil, err
		}
		return replay(ctx, e, recorded, 2)
	}
}

// distinct measures goroutines that each lock and unlock a name of their own.
func distinct(span time.Duration) measured {
	return func(ctx context.Context, e *Env, l Locker) (Metrics, error) {
		o, err := e.hammer(ctx, e.Param, span, pairOn(ctx, l, Write, ownNames()))
		if err != nil {
			return nil, err
		}
		return Metrics{Rate: o.rate()}, nil
	}
}

// pairOn returns what a goroutine of hammer does to lock and unlock the name it is given, which nobody else
// uses at the time. As nobody waits, no call is cut short when the time is over.
func pairOn(ctx context.Context, l Locker, mode Mode, name func(g int) string) func(context.Context,
	int) error {
	lock := lockIn(l, mode)
	return func(_ context.Context, g int) error {
		h, err := lock(ctx, name(g))
		if err != nil {
			return err
		}
		return h.Unlock(ctx)
	}
}

// ownNames gives each goroutine one name for good.
func ownNames() func(g int) string { return func(g int) string { return names[g] } }

// newNames gives a name that was never used to each call.
func newNames() func(g int) string {
	var used atomic.Int64
	return func(int) string { return "order:" + strconv.FormatInt(used.Add(1), 10) }
}

// names are distinct names for as many goroutines or holds as any workload has.
var names = func() []string {
	all := make([]string, 10000)
	for i := range all {
		all[i] = fmt.Sprintf("name:%d", i)
	}
	return all
}()

// reentry measures an owner that locks again what it holds.
func reentry(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	outer, err := l.Lock(ctx, "name")
	if err != nil {
		return nil, err
	}
	inside := ctx
	if h, ok := outer.(interface{ Context() context.Context }); ok {
		inside = h.Context()
	}
	m, err := e.series(ctx, e.span(120*time.Millisecond), pair(inside, l, Write, "name"))
	return m, errors.Join(err, outer.Unlock(ctx))
}

// tryHeld measures calls that fail because someone else holds the lock.
func tryHeld(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	h, err := l.Lock(ctx, "name")
	if err != nil {
		return nil, err
	}
	m, err := e.series(ctx, e.span(120*time.Millisecond), func() error {
		if _, err := l.TryLock(ctx, "name"); !errors.Is(err, errHeld) {
			return fmt.Errorf("trying for a held lock: want %w, got: %w", errHeld, err)
		}
		return nil
	})
	return m, errors.Join(err, h.Unlock(ctx))
}

// amongReaders measures a read pair while many others hold the lock for reading. In between it does the same
// on a name that nobody else has to do with, so that what disturbs the machine for a while disturbs both
// alike.
func amongReaders(ctx context.Context, e *Env, l Locker) (_ Metrics, err error) {
	if e.Contender != floor {
		holds, err := holdAll(ctx, e.Param, func(int) (Hold, error) { return l.RLock(ctx, "name") })
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, releaseAll(ctx, holds)) }()
	}
	const slices = 5
	var times, latencies, ratios []float64
	for range slices {
		among, err := e.series(ctx, e.span(40*time.Millisecond), pair(ctx, l, Read, "name"))
		if err != nil {
			return nil, err
		}
		alone, err := e.series(ctx, e.span(40*time.Millisecond), pair(ctx, l, Read, "nobody else's"))
		if err != nil {
			return nil, err
		}
		times = append(times, among[ServerTime])
		latencies = append(latencies, among[Latency])
		ratios = append(ratios, among[ServerTime]/alone[ServerTime])
	}
	return Metrics{ServerTime: median(times), Latency: median(latencies), AgainstNone: median(ratios)}, nil
}

// roundTrip measures a write pair through the delaying proxies.
func roundTrip(ctx context.Context, e *Env, l Locker) (Metrics, error) {
	m, err := e.series(ctx, e.span(600*time.Millisecond), pair(ctx, l, Write, "name"))
	if err != nil {
		return nil, err
	}
	m[RoundTrip], err = measurePing(ctx, e.addrs[0], 20)
	return m, err
}

// measurePing returns the median time, in µs, of n PINGs to addr over one connection.
func measurePing(ctx context.Context, addr string, n int) (_ float64, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, client.Close()) }()
	took := make([]time.Duration, 0, n)
	for i := range n + 1 {
		start := time.Now()
		if err := client.Ping(ctx).Err(); err != nil {
			return 0, fmt.Errorf("pinging %s: %w", addr, err)
		}
		if i > 0 { // the first opens the connection
			took = append(took, time.Since(start))
		}
	}
	return median(inMicros(took)), nil
}

// closing closes l and adds what goes wrong to *err.
func closing(l Locker, err *error) {
	*err = errors.Join(*err, l.Close())
}
