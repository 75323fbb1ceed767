package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
)

// footprint measures the memory that a name takes on the server, and for how long.
func footprint(ctx context.Context, e *Env) Metrics {
	const waiters = 100
	m := Metrics{}
	if e.Contender.Reads {
		h := e.held(e.RLock(ctx, "held:read"))
		m[HeldReading] = e.traces(ctx, "held:read").bytes
		require.NoError(e, h.Unlock(ctx))
	}
	behind := func(n int) float64 {
		name := fmt.Sprintf("behind:%03d", n)
		defer e.behind(ctx, e.Locker, name, n)()
		return e.traces(ctx, name).bytes
	}
	m[HeldWriting] = behind(0)
	m[PerWaiter] = (behind(waiters) - m[HeldWriting]) / waiters

	require.NoError(e, pair(ctx, e.Lock, "once"))
	left := e.traces(ctx, "once")
	m[LeftBytes], m[LeftKeys], m[Stays] = left.bytes, left.keys, max(left.ttl-usualLease, 0).Seconds()
	return m
}

// traces are what the server keeps for a name.
type traces struct {
	keys, bytes float64
	ttl         time.Duration // the longest time that one of the keys has to live
}

// traces returns what the server keeps for a name. All keys that contain the name are the name's.
func (e *Env) traces(ctx context.Context, name string) (t traces) {
	keys, err := e.Server.client.Keys(ctx, "*"+name+"*").Result()
	require.NoError(e, err)
	for _, key := range keys {
		bytes, err := e.Server.client.MemoryUsage(ctx, key, 0).Result() // 0: every element
		require.NoError(e, err)
		ttl, err := e.Server.client.PTTL(ctx, key).Result()
		require.NoError(e, err)
		if ttl < 0 { // it stays forever
			ttl = math.MaxInt64
		}
		t.keys++
		t.bytes += float64(bytes)
		t.ttl = max(t.ttl, ttl)
	}
	return t
}

// clientMemory measures what a contender keeps in this process: for names in use, after many were used, and
// after a peak.
func clientMemory(ctx context.Context, e *Env) Metrics {
	const peak, few, many = 10_000, 1000, 20_000
	m, names := Metrics{}, numbered(0, many)
	lockAll := func(l *Locker, names []string) []Hold {
		return e.holdAll(len(names), func(i int) (Hold, error) { return l.Lock(ctx, names[i]) })
	}
	e.growth(ctx, func(l *Locker, grown, lowest func() float64) {
		holds := lockAll(l, names[:peak])
		top := grown()
		m[PerHold] = top / peak
		require.NoError(e, releaseAll(ctx, holds))
		clear(holds)
		m[AfterHolds] = 100 * lowest() / top
	})
	e.growth(ctx, func(l *Locker, grown, lowest func() float64) {
		giveUp := e.behind(ctx, l, "name", peak)
		top := grown()
		giveUp()
		m[AfterWaiters] = 100 * lowest() / top
	})
	used := func(n int, left Metric) {
		e.growth(ctx, func(l *Locker, _, lowest func() float64) {
			require.NoError(e, parallel(n, func(i int) error { return pair(ctx, l.Lock, names[i]) }))
			m[left] = lowest() / 1024
		})
	}
	lost := func(n int, left Metric) {
		e.growth(ctx, func(l *Locker, _, lowest func() float64) {
			for some := range slices.Chunk(names[:n], few) {
				holds := lockAll(l, some)
				require.NoError(e, e.Server.client.FlushAll(ctx).Err())
				_ = releaseAll(ctx, holds) // says that they are lost
			}
			m[left] = lowest() / 1024
		})
	}
	used(few, LeftFew)
	lost(few, LostFew)
	used(many, LeftMany)
	lost(many, LostMany)
	return m
}

// growth opens a locker and runs do with it. By grown, do learns by how many bytes this process has grown
// since the locker was in working order, and by lowest, what is left of that after a while.
func (e *Env) growth(ctx context.Context, do func(l *Locker, grown, lowest func() float64)) {
	require.NoError(e, e.Server.client.FlushAll(ctx).Err())
	// With a short lease, what is tidied up when leases are renewed is tidied up meanwhile. A connection
	// takes as much memory as thousands of names, so all are there before the start.
	o := e.Options
	o.Lease, o.Connections = 3*time.Second, 8
	l := e.Open(ctx, o)
	defer e.closing(l)
	for opened, rounds := "", 0; rounds < 10; rounds++ {
		holds := e.holdAll(256, func(i int) (Hold, error) { return l.Lock(ctx, nameOf(i)) })
		require.NoError(e, releaseAll(ctx, holds))
		if now := e.Server.info(ctx, e.T, "stats")["total_connections_received"]; now != opened {
			opened, rounds = now, 0
		}
	}
	base := clientBytes()
	grown := func() float64 { return max(clientBytes()-base, 0) }
	do(l, grown, func() float64 {
		least, end := grown(), time.Now().Add(e.span(1500*time.Millisecond))
		for time.Now().Before(end) && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			least = min(least, grown())
		}
		return least
	})
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
