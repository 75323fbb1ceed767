package faults

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// A fault is one way to break something.
type fault struct {
	name string
	plan plan

	// exact says that a holder that believes in its hold may do so, the fault notwithstanding. Otherwise only
	// the fence protects what the lock guards, until all holders know of the loss.
	exact bool

	// Of servers that vote: those that forget rest for a while; it happens to more than may fail; no client
	// misses more than may fail, but all clients together do.
	forgets, beyond, parted bool

	// Of a cluster, and of servers that sentinels watch, where workers have jobs:
	subscription bool          // it happens to a node that a process has subscribed at, not to that of the locks
	oneSlot      bool          // all locks are in one slot
	loses        time.Duration // writes of so long before it may be lost; or a master goes on that was replaced

	// inject does it once. It returns when the fault is over, and the workers can be expected to go on.
	inject func(r *rig)
}

// slack is what a loaded machine may add to the time that the library promises.
const slack = 800 * time.Millisecond

// persistent are the arguments of servers that come back with all their data.
var persistent = []string{"--appendonly", "yes", "--appendfsync", "always"}

// serverFaults returns what happens to a single server, and to servers that vote.
func serverFaults() []fault {
	return []fault{
		{name: "killed, restarted at once with the data", plan: plan{args: persistent}, exact: true,
			inject: during(0, killed, restart)},
		{name: "killed, restarted at once without data", forgets: true, inject: during(0, killedEmpty, restart)},
		{name: "FLUSHALL", forgets: true, inject: during(0, (*node).flushAll, nothing)},
		{name: "frozen for half a lease", exact: true, inject: during(1, freeze, thaw)},
		{name: "frozen for 1.5 leases", exact: true, inject: during(3, freeze, thaw)},
		{name: "cut off for 1.5 leases", exact: true, inject: cuts(faultproxy.Both, 3)},
		{name: "requests cut for 1.5 leases", exact: true, inject: cuts(faultproxy.Requests, 3)},
		{name: "replies cut for 1.5 leases", exact: true, inject: cuts(faultproxy.Replies, 3)},
		{name: "connections closed", exact: true, inject: during(0, (*node).disconnect, nothing)},
		{name: "delayed by 2 × 75 ms", exact: true, inject: during(3, delayed(usual/20), delayed(0))},
		{name: "out of memory", exact: true, inject: during(3, fill, empty)},
		{name: "clock 60 s forward", plan: plan{clock: true}, inject: during(0, stepped(+time.Minute), nothing)},
		{name: "clock 60 s back", plan: plan{clock: true}, exact: true,
			inject: during(0, stepped(-time.Minute), nothing)},
	}
}

// faults returns every fault of a single server, of the network and of processes.
func faults() []fault {
	const lease = usual
	crowded, handed := plan{procs: 5, locks: 1}, plan{config: config{Hand: 25}}
	// command has the server run a command.
	command := func(args ...any) func(*rig) {
		return during(0, func(n *node) { n.do(args...) }, nothing)
	}

	list := append(serverFaults(), []fault{
		{name: "none", plan: handed, exact: true, inject: func(r *rig) { r.work(50) }},
		{name: "SIGKILL of a middle waiter", plan: crowded, exact: true, inject: kills(middleWaiter)},
		{name: "SIGSTOP of a middle waiter past its lease", plan: crowded, exact: true,
			inject: stops(middleWaiter)},
		{name: "SIGKILL between grant and wake-up", exact: true, inject: func(r *rig) { r.crash(r.granted()) }},
		{name: "SIGSTOP between grant and wake-up", exact: true, inject: func(r *rig) {
			p := r.granted()
			time.Sleep(lease * 5 / 4)
			p.cont()
		}},
		{name: "SIGSTOP of a process for less than a lease", exact: true, inject: func(r *rig) {
			p, _ := r.freeze(holder)
			time.Sleep(lease / 2)
			p.cont()
		}},

		{name: "DEBUG SLEEP past a lease", exact: true,
			inject: command("DEBUG", "SLEEP", (lease * 3 / 2).Seconds())},
		{name: "CLIENT PAUSE past a lease", exact: true, inject: during(3, func(n *node) {
			n.do("CLIENT", "PAUSE", (lease * 3 / 2).Milliseconds())
		}, nothing)},
		{name: "killed, AOF everysec, restarted empty", inject: during(0, killedEmpty, restart),
			plan: plan{args: []string{"--appendonly", "yes", "--appendfsync", "everysec"}}},
		{name: "CLIENT KILL normal", exact: true,
			inject: command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")},
		{name: "CLIENT KILL pubsub", exact: true, inject: command("CLIENT", "KILL", "TYPE", "pubsub")},
		{name: "SCRIPT FLUSH", exact: true, inject: command("SCRIPT", "FLUSH")},
		{name: "ForceUnlock", inject: (*rig).force},
		{name: "maxmemory, volatile-lru", inject: func(r *rig) {
			r.do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
			r.lossy(func() {
				fill(r.node)
				time.Sleep(lease / 10)
				empty(r.node)
			})
			r.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
		}},
		{name: "active expiry off", exact: true, inject: func(r *rig) {
			r.do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
			kills(holder)(r)
			r.do("DEBUG", "SET-ACTIVE-EXPIRE", "1")
		}},
		{name: "connection pool exhausted", plan: plan{config: config{Pool: 2, Hog: true}}, exact: true,
			inject: func(r *rig) { time.Sleep(2 * lease) }},

		{name: "clock strobed by 60 s", plan: plan{clock: true}, inject: func(r *rig) {
			for range 10 {
				stepped(+time.Minute)(r.node)
				time.Sleep(lease / 20)
				stepped(-time.Minute)(r.node)
				time.Sleep(lease / 20)
			}
		}},

		{name: "network: wake-ups lost", exact: true, inject: during(2,
			func(n *node) { n.proxies[0].SwallowPushes(true) }, func(n *node) { n.proxies[0].SwallowPushes(false) })},
		{name: "network: cut off for half a lease", exact: true, inject: cuts(faultproxy.Both, 1)},
		{name: "network: requests executed late", exact: true, inject: func(r *rig) {
			gate := make(chan struct{})
			rules(func(rule *faultproxy.Rule) *faultproxy.Rule { return rule.DelayRequest(gate) })(r)
			time.Sleep(lease * 3 / 2)
			close(gate)
		}},
	}...)
	add := func(name string, inject func(*rig)) {
		list = append(list, fault{name: name, exact: true, inject: inject})
	}
	list = append(list,
		fault{name: "SIGKILL of a process that takes a ticket", plan: handed, exact: true,
			inject: func(r *rig) { r.crash(r.heir()) }},
		fault{name: "SIGSTOP of a process that takes a ticket, past its lease", plan: handed, exact: true,
			inject: func(r *rig) { r.rests(r.heir()) }})
	for what, role := range map[string]role{
		"a holder": holder, "a write holder": writeHolder, "the last reader": lastReader,
		"the first waiter": firstWaiter,
	} {
		add("SIGKILL of "+what, kills(role))
		add("SIGSTOP of "+what+" past its lease", stops(role))
	}
	for what, act := range map[string]func(*faultproxy.Rule) *faultproxy.Rule{
		"connections reset": (*faultproxy.Rule).Reset, "replies lost": (*faultproxy.Rule).DropReply,
		"cut in the middle of replies": (*faultproxy.Rule).CutMidReply,
		"requests executed twice":      (*faultproxy.Rule).Duplicate,
	} {
		add("network: "+what, rules(act))
	}
	for what, key := range map[string]string{"lock": "", "leases": ":leases", "queue": ":queue"} {
		list = append(list, fault{name: "key deleted: " + what, inject: func(r *rig) {
			r.poll(30*time.Second, "the key is there", func() (gone bool) {
				ctx, name := context.Background(), "rwlock:{"+r.someLock()+"}"+key
				if r.admin.Exists(ctx, name).Val() > 0 {
					r.lossy(func() { gone = r.admin.Del(ctx, name).Val() > 0 })
				}
				return gone
			})
		}})
	}
	slices.SortFunc(list, func(a, b fault) int { return strings.Compare(a.name, b.name) })
	return list
}

// during has something begin on each server that is broken, and end after so many halves of a lease.
func during(halves int, begin, end func(*node)) func(*rig) {
	return func(r *rig) {
		r.strikeNow(func() {
			for _, n := range r.broken {
				begin(n)
			}
		})
		time.Sleep(time.Duration(halves) * r.Lease / 2)
		for _, n := range r.broken {
			end(n)
		}
	}
}

// cuts holds back what goes to and from servers.
func cuts(dirs faultproxy.Direction, halves int) func(*rig) {
	return during(halves, func(n *node) { n.cut(dirs) }, join)
}

// rules has the proxy do something to the next ten scripts.
func rules(act func(*faultproxy.Rule) *faultproxy.Rule) func(*rig) {
	return func(r *rig) {
		rule := act(r.proxies[0].On(faultproxy.IsCommand("EVALSHA")).Times(10).Silent())
		r.poll(30*time.Second, "scripts run", func() bool { return rule.Hits() >= 3 })
	}
}

// kills kills a process that has the role, and starts another.
func kills(role role) func(*rig) {
	return func(r *rig) {
		p, _ := r.freeze(role)
		r.crash(p)
	}
}

// stops pauses a process that has the role for longer than its lease. The others go on meanwhile.
func stops(role role) func(*rig) {
	return func(r *rig) {
		p, _ := r.freeze(role)
		r.rests(p)
	}
}

// rests has a process stay paused for longer than its lease, and the ticket's that it has taken.
func (r *rig) rests(p *process) {
	r.tb.Helper()
	end := time.After(r.Lease * 5 / 4)
	r.survive()
	<-end
	p.cont()
}

// heir stops the next process that takes a ticket, before or after it has used that.
func (r *rig) heir() (p *process) {
	r.tb.Helper()
	before, _ := r.bank.Handed()
	r.poll(30*time.Second, "a process takes a ticket", func() bool {
		all, last := r.bank.Handed()
		i := slices.IndexFunc(r.living(), func(p *process) bool { return p.id == last })
		if all.Taken == before.Taken || i < 0 {
			return false
		}
		p = r.living()[i]
		p.stop()
		return true
	})
	return p
}

// crash kills a process, and checks that the others go on as soon as the dead one's lease is over.
func (r *rig) crash(p *process) {
	r.tb.Helper()
	p.kill()
	r.survive()
	r.spawn()
}

// survive checks that the others go on as soon as the lease of a process is over that does not.
func (r *rig) survive() {
	r.tb.Helper()
	r.progress(r.Lease + 200*time.Millisecond + slack)
}

// granted stops the first waiter, and returns it when it has the lock without knowing it, or does not wait
// any more.
func (r *rig) granted() *process {
	p, name := r.freeze(firstWaiter)
	for end := time.Now().Add(r.Lease); time.Now().Before(end) && !slices.Contains(r.have(name, holder), p); {
		time.Sleep(5 * time.Millisecond)
	}
	return p
}

// force drops the holds of every lock.
func (r *rig) force() {
	r.tb.Helper()
	for _, name := range r.Names {
		r.lossy(func() { r.must(r.witness.ForceUnlock(context.Background(), name)) })
	}
}

// run has workers work while the fault happens, several times, and checks what came of it.
func (f fault) run(tb testing.TB, times int, seed uint64) result {
	tb.Helper()
	f.plan.Seed = seed
	r := newRig(tb, f.plan)
	r.work(20)
	for range times {
		r.suffer(f)
		r.work(30)
	}
	return r.finish(f)
}

// chaos has workers work for about d, while one after the other of a list of faults happens: those that fit
// into a rig of the first. It checks what came of it, as of a fault that is all of these.
func (f fault) chaos(tb testing.TB, list []fault, d time.Duration, seed uint64) result {
	tb.Helper()
	first := list[0].plan
	first.procs, first.Seed, first.Hand = max(first.procs, f.plan.procs), seed, f.plan.Hand
	list = slices.DeleteFunc(slices.Clone(list), func(one fault) bool { return !one.plan.fits(first) })
	r := newRig(tb, first)
	for start := time.Now(); time.Since(start) < d; {
		r.work(10)
		r.suffer(list[r.rng.IntN(len(list))])
	}
	return r.finish(f)
}

// suffer injects the fault, and waits until the workers have got over it.
func (r *rig) suffer(f fault) {
	r.tb.Helper()
	r.inject(f)
	r.progress(2*r.Lease + 5*time.Second)
	if r.servers > 1 {
		time.Sleep(heal)
	}
}

// delegated has locks delegated to the processes of each fault, with a lease. The locks are so many that each
// process has one which it uses most, and there is one more that all read. A lease of 0 changes nothing.
func delegated(list []fault, lease time.Duration) []fault {
	list = slices.DeleteFunc(slices.Clone(list), func(f fault) bool {
		return lease > 0 && strings.Contains(f.name, "ticket") // which delegations exclude
	})
	for i := range list {
		p := &list[i].plan
		if p.Delegate = lease; lease > 0 {
			p.locks = cmp.Or(p.locks, 5)
		}
	}
	return list
}
