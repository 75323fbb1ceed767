package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"
)

// footprint measures the memory that a name takes on the server, and for how long.
func footprint(ctx context.Context, e *Env) (Metrics, error) {
	const waiters = 100
	m := Metrics{}
	if e.Contender.Reads {
		h, err := e.RLock(ctx, "held:read")
		if err != nil {
			return nil, err
		}
		t, err := e.Server.traces(ctx, "held:read")
		if err := errors.Join(err, h.Unlock(ctx)); err != nil {
			return nil, err
		}
		m[HeldReading] = t.bytes
	}
	var bytes [2]float64 // of a name that nobody waits for, and of one that many do
	for i, n := range []int{0, waiters} {
		name := fmt.Sprintf("behind:%03d", n)
		giveUp, err := e.behind(ctx, e.Locker, name, n)
		if err != nil {
			return nil, err
		}
		t, err := e.Server.traces(ctx, name)
		if err := errors.Join(err, giveUp()); err != nil {
			return nil, err
		}
		bytes[i] = t.bytes
	}
	m[HeldWriting], m[PerWaiter] = bytes[0], (bytes[1]-bytes[0])/waiters

	if err := pair(ctx, e.Lock, "once")(); err != nil {
		return nil, err
	}
	left, err := e.Server.traces(ctx, "once")
	m[LeftBytes], m[LeftKeys], m[Stays] = left.bytes, left.keys, max(left.ttl-usualLease, 0).Seconds()
	return m, err
}

// traces are what the server keeps for a name.
type traces struct {
	keys, bytes float64
	ttl         time.Duration // the longest time that one of the keys has to live
}

// traces returns what the server keeps for a name. All keys that contain the name are the name's.
func (s *Server) traces(ctx context.Context, name string) (t traces, err error) {
	keys, err := s.client.Keys(ctx, "*"+name+"*").Result()
	for _, key := range keys {
		bytes, sizeErr := s.client.MemoryUsage(ctx, key, 0).Result() // 0: every element
		ttl, ttlErr := s.client.PTTL(ctx, key).Result()
		if ttl < 0 { // it stays forever
			ttl = math.MaxInt64
		}
		err = errors.Join(err, sizeErr, ttlErr)
		t.keys++
		t.bytes += float64(bytes)
		t.ttl = max(t.ttl, ttl)
	}
	if err != nil {
		err = fmt.Errorf("looking for what is kept for %q: %w", name, err)
	}
	return t, err
}

// clientMemory measures what a contender keeps in this process: for names in use, after many were used, and
// after a peak.
func clientMemory(ctx context.Context, e *Env) (Metrics, error) {
	const peak, few, many = 10_000, 1000, 20_000
	m, names := Metrics{}, numbered(0, many)
	lockAll := func(l *Locker, names []string) ([]Hold, error) {
		return holdAll(ctx, len(names), func(i int) (Hold, error) { return l.Lock(ctx, names[i]) })
	}
	used := func(n int, left Metric) error {
		return e.growth(ctx, func(l *Locker, _, lowest func() float64) error {
			_, err := holdAll(ctx, n, func(i int) (Hold, error) { return nil, pair(ctx, l.Lock, names[i])() })
			m[left] = lowest() / 1024
			return err
		})
	}
	lost := func(n int, left Metric) error {
		return e.growth(ctx, func(l *Locker, _, lowest func() float64) error {
			for some := range slices.Chunk(names[:n], few) {
				holds, err := lockAll(l, some)
				if err := errors.Join(err, e.Server.Clear(ctx)); err != nil {
					return err
				}
				_ = releaseAll(ctx, holds) // says that they are lost
			}
			m[left] = lowest() / 1024
			return nil
		})
	}
	return m, errors.Join(
		e.growth(ctx, func(l *Locker, grown, lowest func() float64) error {
			holds, err := lockAll(l, names[:peak])
			top := grown()
			m[PerHold] = top / peak
			if err == nil {
				err = releaseAll(ctx, holds)
			}
			clear(holds)
			m[AfterHolds] = 100 * lowest() / top
			return err
		}),
		e.growth(ctx, func(l *Locker, grown, lowest func() float64) error {
			giveUp, err := e.behind(ctx, l, "name", peak)
			if err != nil {
				return err
			}
			top := grown()
			err = giveUp()
			m[AfterWaiters] = 100 * lowest() / top
			return err
		}),
		used(few, LeftFew), lost(few, LostFew), used(many, LeftMany), lost(many, LostMany))
}

// growth opens a locker and runs do with it. By grown, do learns by how many bytes this process has grown
// since the locker was in working order, and by lowest, what is left of that after a while.
func (e *Env) growth(ctx context.Context,
	do func(l *Locker, grown, lowest func() float64) error) (err error) {
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
	holds, err := holdAll(ctx, 256, func(i int) (Hold, error) { return l.Lock(ctx, nameOf(i)) })
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
