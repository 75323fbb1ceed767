package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// votersFaults returns every fault of servers that vote. Each happens to as many of them as may fail, or to
// one more.
func votersFaults(servers int) []fault {
	keeps := plan{args: persistent}
	list := append(serverFaults(), []fault{
		{name: "nothing", inject: during(2, nothing, nothing)},
		{name: "killed, restarted with the data", plan: keeps, inject: during(2, killed, restart)},
		{name: "killed, restarted without data", forgets: true, inject: during(2, killedEmpty, restart)},
		{name: "half of the clients cut off", inject: during(3,
			func(n *node) { n.proxies[0].Blackhole(faultproxy.Both) }, join)},
		{name: "each half of the clients cut off from others", parted: true, inject: split},

		{name: "too many killed, restarted with the data", plan: keeps, beyond: true,
			inject: refused(killed, restart)},
		{name: "too many frozen for 2 leases", beyond: true, inject: refused(freeze, thaw)},
		{name: "too many cut off for 2 leases", beyond: true,
			inject: refused(func(n *node) { n.cut(faultproxy.Both) }, join)},
	}...)
	for i, f := range list {
		to := &list[i]
		to.exact = f.name != "clock 60 s forward" // then leases end early
		to.plan.servers, to.plan.sides, to.plan.Hasty = servers, 2, 20
		to.inject = func(r *rig) {
			fail := (servers - 1) / 2
			if f.beyond {
				fail++
			}
			r.broken = r.shuffled()[:fail]
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

// shuffled returns all servers in a random order.
func (r *rig) shuffled() []*node {
	nodes := slices.Clone(r.nodes)
	r.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes
}

// split cuts each half of the clients off from as many servers as may fail, and not from the same ones: they
// disagree on who answers.
func split(r *rig) {
	n := len(r.broken)
	r.broken = r.shuffled()
	for side := range 2 {
		for _, one := range r.broken[side*n : (side+1)*n] {
			one.proxies[side].Blackhole(faultproxy.Both)
		}
	}
	during(3, nothing, join)(r)
}

// refused has more servers fail than may. Clients say so when the contexts of their calls end, both one that
// knew the servers and a new one.
func refused(begin, end func(*node)) func(*rig) {
	return func(r *rig) {
		var rws [2]*rwlock.RWLock
		for side := range rws { // each as a worker of one side has it
			var clients []redis.UniversalClient
			for _, n := range r.nodes {
				clients = append(clients, n.proxies[side].Client())
			}
			rws[side] = r.over(clients)
		}
		_, err := rws[0].Inspect(context.Background(), r.Names[0])
		r.must(err)
		var wg sync.WaitGroup
		last := r.broken[len(r.broken)-1]
		during(4, func(n *node) {
			if begin(n); n == last {
				for _, rw := range rws {
					wg.Go(func() { r.refuses(rw) })
				}
			}
		}, func(n *node) {
			wg.Wait()
			end(n)
		})(r)
	}
}

// refuses checks what calls end with while too few servers answer.
func (r *rig) refuses(rw *rwlock.RWLock) {
	const little = usual / 2
	says := fmt.Sprintf("%d of %d vote", len(r.nodes)-len(r.broken), len(r.nodes))
	ctx, cancel := context.WithTimeout(context.Background(), little)
	defer cancel()
	start := time.Now()
	_, err := rw.Lock(ctx, r.Names[0])
	took, told := time.Since(start), errors.Is(err, rwlock.ErrNoMajority) && strings.Contains(err.Error(), says)
	if !told || took > little+500*time.Millisecond {
		r.tb.Errorf("Lock said after %v of %v: %v; and not: %s", took, little, err, says)
	}
	start = time.Now()
	_, err = rw.TryLock(context.Background(), r.Names[0])
	took, told = time.Since(start), errors.Is(err, rwlock.ErrNoMajority) || errors.Is(err, rwlock.ErrLocked)
	if !told || took > tries {
		r.tb.Errorf("TryLock said after %v: %v", took, err)
	}
}

// heal is what it takes after a fault until every hold has the votes of all servers again: one renewal wins
// back what was lost, and counts it in the next. A fault of other servers may cost a hold before that.
const heal = usual
