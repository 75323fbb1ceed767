// Package quorum has some of several real servers fail while processes move money under locks that the
// servers vote on, and measures what the processes notice of it.
package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
	"github.com/seed-7e8842f7/rwlock/verify/faults"
)

// Lease is that of all holds.
const Lease = faults.Lease

// A Fault is something that happens to servers of a quorum.
type Fault struct {
	Name string

	Clock   bool // it sets clocks
	Keeps   bool // servers come back with their data
	Forgets bool // servers lose their data, and rest
	Early   bool // servers end leases early: then the fence alone protects what the locks guard
	Beyond  bool // it happens to more servers than may fail
	Parted  bool // no client misses more servers than may fail, but all clients together do

	inject func(r *faults.Rig, some []*faults.Node)
}

// All returns every fault.
func All() []Fault {
	return []Fault{
		{Name: "nothing", inject: during(2, func(*faults.Node) {}, func(*faults.Node) {})},
		{Name: "killed, restarted with the data", Keeps: true, inject: during(2,
			func(n *faults.Node) { n.Kill(false) }, (*faults.Node).Restart)},
		{Name: "killed, restarted at once with the data", Keeps: true, inject: during(0,
			func(n *faults.Node) { n.Kill(false) }, (*faults.Node).Restart)},
		{Name: "killed, restarted without data", Forgets: true, inject: during(2,
			func(n *faults.Node) { n.Kill(true) }, (*faults.Node).Restart)},
		{Name: "killed, restarted at once without data", Forgets: true, inject: during(0,
			func(n *faults.Node) { n.Kill(true) }, (*faults.Node).Restart)},
		{Name: "FLUSHALL", Forgets: true, inject: during(0,
			(*faults.Node).FlushAll, func(*faults.Node) {})},
		{Name: "frozen for half a lease", inject: during(1, pause, resume)},
		{Name: "frozen for 1.5 leases", inject: during(3, pause, resume)},
		{Name: "cut off for 1.5 leases", inject: cut(faultproxy.Both, 3)},
		{Name: "requests cut for 1.5 leases", inject: cut(faultproxy.Requests, 3)},
		{Name: "replies cut for 1.5 leases", inject: cut(faultproxy.Replies, 3)},
		{Name: "connections closed", inject: during(0,
			func(n *faults.Node) {
				for _, p := range n.Proxies {
					p.CloseAll()
				}
			}, func(*faults.Node) {})},
		{Name: "delayed by 2 × 75 ms", inject: during(3,
			func(n *faults.Node) { n.Delay(Lease / 20) }, func(n *faults.Node) { n.Delay(0) })},
		{Name: "out of memory", inject: during(3,
			func(n *faults.Node) { n.Config("maxmemory", "1") }, func(n *faults.Node) { n.Config("maxmemory", "0") })},
		{Name: "half of the clients cut off", inject: during(3,
			func(n *faults.Node) { n.Proxies[0].Blackhole(faultproxy.Both) }, func(n *faults.Node) { n.Cut(faultproxy.None) })},
		{Name: "each half of the clients cut off from others", Parted: true, inject: split},
		{Name: "clock 60 s forward", Clock: true, Early: true, inject: forward},
		{Name: "clock 60 s back", Clock: true, inject: during(0,
			func(n *faults.Node) { n.Step(-time.Minute) }, func(*faults.Node) {})},

		{Name: "too many killed, restarted with the data", Keeps: true, Beyond: true, inject: refused(
			func(n *faults.Node) { n.Kill(false) }, (*faults.Node).Restart)},
		{Name: "too many frozen for 2 leases", Beyond: true, inject: refused(pause, resume)},
		{Name: "too many cut off for 2 leases", Beyond: true, inject: refused(
			func(n *faults.Node) { n.Cut(faultproxy.Both) }, func(n *faults.Node) { n.Cut(faultproxy.None) })},
	}
}

// Needs returns why a fault cannot be had on this machine, or "".
func (f Fault) Needs() string {
	if f.Clock {
		return clock.Missing()
	}
	return ""
}

// failures returns how many of the servers may fail.
func failures(servers int) int { return (servers - 1) / 2 }

func each(nodes []*faults.Node, do func(*faults.Node)) {
	for _, n := range nodes {
		do(n)
	}
}

// during has something begin at each server, and end after so many halves of a lease.
func during(halves int, begin, end func(*faults.Node)) func(*faults.Rig, []*faults.Node) {
	return func(r *faults.Rig, some []*faults.Node) {
		each(some, begin)
		r.Struck()
		r.Pass(time.Duration(halves) * Lease / 2)
		each(some, end)
	}
}

func pause(n *faults.Node)  { n.Server.Pause() }
func resume(n *faults.Node) { n.Server.Resume() }

func cut(dirs faultproxy.Direction, halves int) func(*faults.Rig, []*faults.Node) {
	return during(halves, func(n *faults.Node) { n.Cut(dirs) }, func(n *faults.Node) { n.Cut(faultproxy.None) })
}

// forward sets the clocks of servers forward, which ends their votes. A hold that had a bare majority is
// over, as its holder finds out when it renews it; the history is told when that was, as it is of a single
// server.
func forward(r *faults.Rig, some []*faults.Node) {
	r.Lossy()
	each(some, func(n *faults.Node) { n.Step(+time.Minute) })
	r.Lossy()
	r.Struck()
}

// split cuts each half of the clients off from as many servers as may fail, and not from the same ones: they
// disagree on who answers.
func split(r *faults.Rig, some []*faults.Node) {
	all := r.Some(len(r.Nodes))
	each(all[:len(some)], func(n *faults.Node) { n.Proxies[0].Blackhole(faultproxy.Both) })
	each(all[len(some):2*len(some)], func(n *faults.Node) { n.Proxies[1].Blackhole(faultproxy.Both) })
	r.Struck()
	r.Pass(3 * Lease / 2)
	each(all, func(n *faults.Node) { n.Cut(faultproxy.None) })
}

// refused has more servers fail than may. Calls say so when their contexts end.
func refused(begin, end func(*faults.Node)) func(*faults.Rig, []*faults.Node) {
	return func(r *faults.Rig, some []*faults.Node) {
		knows := r.RWLock(0)
		for _, name := range r.Names() {
			if _, err := knows.Inspect(context.Background(), name); err != nil {
				r.Breach("before the fault: %v", err)
			}
		}
		each(some, begin)
		r.Struck()
		start := time.Now()
		var wg sync.WaitGroup
		for who, rw := range map[string]*rwlock.RWLock{"knew the servers": knows, "is new": r.RWLock(1)} {
			wg.Go(func() { refuses(r, rw, "a client that "+who, len(r.Nodes)-len(some)) })
		}
		wg.Wait()
		r.Pass(time.Until(start.Add(2 * Lease)))
		each(some, end)
	}
}

// refuses checks what calls end with while so few servers answer.
func refuses(r *faults.Rig, rw *rwlock.RWLock, who string, answer int) {
	const little, soon = Lease / 2, 5 * time.Second
	name := r.Names()[0]
	says := fmt.Sprintf("%d of %d vote", answer, len(r.Nodes))
	var wg sync.WaitGroup
	for what, call := range map[string]func(ctx context.Context) error{
		"Lock":    func(ctx context.Context) error { _, err := rw.Lock(ctx, name); return err },
		"RLock":   func(ctx context.Context) error { _, err := rw.RLock(ctx, name); return err },
		"Inspect": func(ctx context.Context) error { _, err := rw.Inspect(ctx, name); return err },
	} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), little)
			defer cancel()
			start := time.Now()
			err := call(ctx)
			if !errors.Is(err, rwlock.ErrNoMajority) || !strings.Contains(err.Error(), says) {
				r.Breach("%s: %s said: %v; and not: %s", who, what, err, says)
			}
			if took := time.Since(start); took > little+500*time.Millisecond {
				r.Breach("%s: %s took %v of the %v that it had", who, what, took, little)
			}
		})
	}
	wg.Go(func() {
		start := time.Now()
		_, err := rw.TryLock(context.Background(), name)
		if !errors.Is(err, rwlock.ErrNoMajority) && !errors.Is(err, rwlock.ErrLocked) {
			r.Breach("%s: TryLock said: %v", who, err)
		}
		if took := time.Since(start); took > soon {
			r.Breach("%s: TryLock took %v", who, took)
		}
	})
	wg.Wait()
}
