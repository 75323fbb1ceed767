package times

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/lua"
)

var large = flag.Bool("large", false, "stalls and crowds of the size that they have every night")

// A stall of the network is what a crowd of holds, and of calls that wait for others, has to survive.
type stall struct {
	where          topology
	holds, waiters int
	lease, lasts   time.Duration
	away           time.Duration // round trip
}

func (s stall) String() string {
	return fmt.Sprintf("%s, %d holds, %d waiters, lease %v, stall of %v, %v away", s.where, s.holds, s.waiters,
		s.lease, s.lasts, s.away)
}

// Holds that still have a third of their lease left when the network works again survive its stall, though
// the server can bear no more than twice what it usually gets. Two periods of renewal later it gets what it
// usually gets. Meanwhile each renewal is sent at most twice, and the repeated ones travel together.
func TestHoldsOutliveAStall(t *testing.T) {
	testredis.Need(t)
	const second, ms = time.Second, time.Millisecond
	stalls := []stall{
		{oneServer, 2500, 0, 6 * second, 1500 * ms, 50 * ms},
		{oneServer, 1500, 0, 9 * second, 2400 * ms, 5 * ms},
		{oneServer, 1000, 1000, 6 * second, 1500 * ms, 5 * ms},
		{clusterOf3, 1500, 0, 6 * second, 1500 * ms, 20 * ms},
	}
	if *large {
		stalls = []stall{
			{oneServer, 5000, 0, 12 * second, 3 * second, 50 * ms},
			{oneServer, 6000, 0, 12 * second, 3 * second, 5 * ms},
			{oneServer, 3000, 0, 30 * second, 8 * second, 50 * ms},
			{oneServer, 4000, 4000, 12 * second, 3 * second, 5 * ms},
			{clusterOf3, 5000, 0, 12 * second, 3 * second, 50 * ms},
			{clusterOf3, 3000, 0, 30 * second, 8 * second, 50 * ms},
		}
	}
	for _, s := range stalls {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			s.outlive(t)
		})
	}
}

func (s stall) outlive(t *testing.T) {
	net := openNetwork(t, s.where)
	var sent meter
	net.each(func(p *faultproxy.Proxy) {
		p.Latency(s.away / 2)
		p.On(sent.counts)
	})
	rw := net.lock(t, rwlock.WithLease(s.lease))
	period, lowest := s.lease/3, s.lease/3
	start := time.Now()
	holds := make([]*rwlock.Hold, s.holds)
	var all sync.WaitGroup
	for i := range holds {
		all.Go(func() { // not all at the same time, or they would be renewed at the same time
			time.Sleep(time.Until(start.Add(period * time.Duration(i) / time.Duration(len(holds)))))
			holds[i] = lock(t, rw.Lock, fmt.Sprint("n:", i))
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 6*s.lease)
	defer cancel()
	var refused atomic.Int64
	for i := range s.waiters {
		all.Go(func() {
			h, err := rw.Lock(ctx, fmt.Sprint("n:", i))
			if err != nil {
				refused.Add(1)
				return
			}
			unlock(t, h)
		})
	}
	if s.waiters > 0 {
		all := func() bool { return len(rw.Snapshot().Waits) == s.waiters }
		require.Eventually(t, all, time.Minute, 10*time.Millisecond)
	}

	time.Sleep(period)
	usual := sent.watch(period)
	net.limit(2 * usual.bytes / period.Seconds())
	before := sent.total()
	net.stall(s.lasts)
	var left []*rwlock.Hold
	for _, h := range holds {
		if time.Until(h.Deadline()) >= lowest {
			left = append(left, h)
		}
	}
	require.NotEmpty(t, left)
	time.Sleep(2 * period)
	during := sent.total().minus(before)
	after := sent.watch(period)
	time.Sleep(period)
	lost := 0
	for _, h := range left {
		if h.Context().Err() != nil {
			lost++
		}
	}
	t.Logf("in a period: %v; in the stall and two periods: %v; in the next period: %v", usual, during, after)
	require.Zero(t, lost, "holds lost of %d", len(left))
	require.LessOrEqual(t, after.bytes, 1.25*usual.bytes, "the servers get as little as before")
	periods := float64(s.lasts+2*period) / (0.9 * float64(period)) // of renewals, some of which are early
	require.LessOrEqual(t, during.renewals, (periods+1)*usual.renewals, "each renewal is sent twice at most")
	require.LessOrEqual(t, during.requests/during.renewals, 2*usual.requests/usual.renewals,
		"repeated renewals travel together")

	net.limit(0)
	together(256, len(holds), func(i int) {
		_ = holds[i].Unlock(context.Background()) // some may not have had a third of their lease left
	})
	all.Wait()
	require.Zero(t, refused.Load(), "calls that failed")
}

// A meter counts what is sent.
type meter struct{ bytes, requests, renewals atomic.Int64 }

// traffic is what was sent: bytes, and renewals of holds, many of which may be one request.
type traffic struct{ bytes, requests, renewals float64 }

func (a traffic) minus(b traffic) traffic {
	return traffic{a.bytes - b.bytes, a.requests - b.requests, a.renewals - b.renewals}
}

// counts takes note of a command on its way. It is a [faultproxy.Match] that matches nothing.
func (m *meter) counts(cmd []string) bool {
	for _, arg := range cmd {
		m.bytes.Add(int64(len("$99\r\n\r\n") + len(arg)))
	}
	holds := 0
	if strings.EqualFold(cmd[0], "EVALSHA") {
		switch cmd[1] {
		case lua.Renew.SHA:
			holds = 1
		case lua.Renewals.SHA:
			holds, _ = strconv.Atoi(cmd[2])
		}
	}
	if holds > 0 {
		m.requests.Add(1)
		m.renewals.Add(int64(holds))
	}
	return false
}

func (m *meter) total() traffic {
	return traffic{float64(m.bytes.Load()), float64(m.requests.Load()), float64(m.renewals.Load())}
}

// watch returns what is sent in that time.
func (m *meter) watch(d time.Duration) traffic {
	before := m.total()
	time.Sleep(d)
	return m.total().minus(before)
}

// limit has the servers together get at most so many bytes a second; 0 is no limit.
func (n *network) limit(perSecond float64) {
	n.each(func(p *faultproxy.Proxy) { p.Capacity(perSecond / float64(len(n.proxies))) })
}
