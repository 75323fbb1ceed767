package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// persistent are the arguments of servers that come back with all their data.
var persistent = []string{"--appendonly", "yes", "--appendfsync", "always"}

// votersFaults returns every fault of servers that vote. Each happens to as many of them as may fail, or to
// one more.
func votersFaults(servers int) []fault {
	nothing := func(*node) {}
	killed, killedEmpty := func(n *node) { n.kill(false) }, func(n *node) { n.kill(true) }
	restart := func(n *node) { n.server.Restart() }
	freeze, thaw := func(n *node) { n.server.Pause() }, func(n *node) { n.server.Resume() }
	join := func(n *node) { n.cut(faultproxy.None) }
	keeps := plan{args: persistent}
	list := []fault{
		{name: "nothing", inject: during(2, nothing, nothing)},
		{name: "killed, restarted with the data", plan: keeps, inject: during(2, killed, restart)},
		{name: "killed, restarted at once with the data", plan: keeps, inject: during(0, killed, restart)},
		{name: "killed, restarted without data", forgets: true, inject: during(2, killedEmpty, restart)},
		{name: "killed, restarted at once without data", forgets: true, inject: during(0, killedEmpty, restart)},
		{name: "FLUSHALL", forgets: true, inject: during(0, (*node).flushAll, nothing)},
		{name: "frozen for half a lease", inject: during(1, freeze, thaw)},
		{name: "frozen for 1.5 leases", inject: during(3, freeze, thaw)},
		{name: "cut off for 1.5 leases", inject: cuts(faultproxy.Both, 3)},
		{name: "requests cut for 1.5 leases", inject: cuts(faultproxy.Requests, 3)},
		{name: "replies cut for 1.5 leases", inject: cuts(faultproxy.Replies, 3)},
		{name: "connections closed", inject: during(0, (*node).disconnect, nothing)},
		{name: "delayed by 2 × 75 ms", inject: during(3, func(n *node) { n.delay(usual / 20) },
			func(n *node) { n.delay(0) })},
		{name: "out of memory", inject: during(3, func(n *node) { n.limit("1") }, func(n *node) { n.limit("0") })},
		{name: "half of the clients cut off", inject: during(3,
			func(n *node) { n.proxies[0].Blackhole(faultproxy.Both) }, join)},
		{name: "each half of the clients cut off from others", parted: true, inject: split},
		{name: "clock 60 s forward", plan: plan{clock: true}, inject: forward},
		{name: "clock 60 s back", plan: plan{clock: true},
			inject: during(0, func(n *node) { n.step(-time.Minute) }, nothing)},

		{name: "too many killed, restarted with the data", plan: keeps, beyond: true,
			inject: refused(killed, restart)},
		{name: "too many frozen for 2 leases", beyond: true, inject: refused(freeze, thaw)},
		{name: "too many cut off for 2 leases", beyond: true,
			inject: refused(func(n *node) { n.cut(faultproxy.Both) }, join)},
	}
	for i, f := range list {
		to := &list[i]
		to.exact = f.name != "clock 60 s forward" // then leases end early
		to.plan.servers, to.plan.sides, to.plan.Hasty = servers, 2, 20
		to.inject = func(r *rig) {
			fail := (servers - 1) / 2
			if f.beyond {
				fail++
			}
			r.broken = r.some(fail)
			f.inject(r)
			for _, n := range r.broken {
				if f.forgets {
					r.poll(30*time.Second, "a server that has rested votes again", func() bool {
						return n.admin.HGet(context.Background(), mark, "generation").Val() != ""
					})
				}
			}
		}
	}
	return list
}

// forward sets the clocks of servers forward, which ends their votes. A hold that had a bare majority is
// over, as its holder finds out when it renews it; the history is told when that was, as it is of a single
// server.
func forward(r *rig) {
	r.lossy(func() { during(0, func(n *node) { n.step(+time.Minute) }, func(*node) {})(r) })
}

// split cuts each half of the clients off from as many servers as may fail, and not from the same ones: they
// disagree on who answers.
func split(r *rig) {
	n, all := len(r.broken), r.some(len(r.nodes))
	for side := range 2 {
		for _, one := range all[side*n : (side+1)*n] {
			one.proxies[side].Blackhole(faultproxy.Both)
		}
	}
	r.broken = all
	during(3, func(*node) {}, func(n *node) { n.cut(faultproxy.None) })(r)
}

// refused has more servers fail than may. Calls say so when their contexts end.
func refused(begin, end func(*node)) func(*rig) {
	return func(r *rig) {
		client := func(side int) *rwlock.RWLock { // as a worker of one side has it
			var clients []redis.UniversalClient
			for _, n := range r.nodes {
				clients = append(clients, n.proxies[side].Client())
			}
			return r.over(clients)
		}
		knows := client(0)
		for _, name := range r.Names {
			if _, err := knows.Inspect(context.Background(), name); err != nil {
				r.breach("before the fault: %v", err)
			}
		}
		var wg sync.WaitGroup
		during(4, func(n *node) {
			if begin(n); n != r.broken[len(r.broken)-1] {
				return
			}
			for who, rw := range map[string]*rwlock.RWLock{"knew the servers": knows, "is new": client(1)} {
				wg.Go(func() { r.refuses(rw, "a client that "+who) })
			}
		}, func(n *node) {
			wg.Wait()
			end(n)
		})(r)
	}
}

// refuses checks what calls end with while too few servers answer.
func (r *rig) refuses(rw *rwlock.RWLock, who string) {
	const little, soon = usual / 2, 5 * time.Second
	name := r.Names[0]
	says := fmt.Sprintf("%d of %d vote", len(r.nodes)-len(r.broken), len(r.nodes))
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
				r.breach("%s: %s said: %v; and not: %s", who, what, err, says)
			}
			if took := time.Since(start); took > little+500*time.Millisecond {
				r.breach("%s: %s took %v of the %v that it had", who, what, took, little)
			}
		})
	}
	wg.Go(func() {
		start := time.Now()
		_, err := rw.TryLock(context.Background(), name)
		if !errors.Is(err, rwlock.ErrNoMajority) && !errors.Is(err, rwlock.ErrLocked) {
			r.breach("%s: TryLock said: %v", who, err)
		}
		if took := time.Since(start); took > soon {
			r.breach("%s: TryLock took %v", who, took)
		}
	})
	wg.Wait()
}

// heal is what it takes after a fault until every hold has the votes of all servers again: one renewal wins
// back what was lost, and counts it in the next. A fault of other servers may cost a hold before that.
const heal = usual
