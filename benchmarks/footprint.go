package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// footprint measures the memory that a name takes at the server, and for how long.
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
