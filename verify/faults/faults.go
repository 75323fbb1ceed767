package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
)

// A fault is one way to break something.
type fault struct {
	name string
	plan plan

	// exact says that a holder that believes in its hold may do so, the fault notwithstanding. Otherwise only
	// the fence protects what the lock guards, until all holders know of the loss.
	exact bool

	// Of servers that vote: those it happens to lose their data, and rest; it happens to more than may fail; no
	// client misses more than may fail, but all clients together do.
	forgets, beyond, parted bool

	// inject does it once. It returns when the fault is over, and the workers can be expected to go on.
	inject func(m *mint)
}

// slack is what a loaded machine may add to the time that the library promises.
const slack = 800 * time.Millisecond

// faults returns every fault of a single server, of the network and of processes.
func faults() []fault {
	const lease = usual
	crowded := plan{procs: 5, names: 1}
	appends := func(fsync string) plan {
		return plan{args: []string{"--appendonly", "yes", "--appendfsync", fsync}}
	}
	clocks := plan{clock: true}

	list := []fault{
		{name: "none", exact: true, inject: func(m *mint) { m.work(50) }},
		{name: "SIGKILL of a middle waiter", plan: crowded, exact: true, inject: kills(middleWaiter)},
		{name: "SIGSTOP of a middle waiter past its lease", plan: crowded, exact: true,
			inject: stops(middleWaiter)},
		{name: "SIGKILL between grant and wake-up", exact: true, inject: func(m *mint) { m.crash(m.granted()) }},
		{name: "SIGSTOP between grant and wake-up", exact: true, inject: func(m *mint) {
			p := m.granted()
			time.Sleep(lease * 5 / 4)
			p.cont()
		}},
		{name: "SIGSTOP of a process for less than a lease", exact: true, inject: func(m *mint) {
			p, _ := m.freeze(holder)
			time.Sleep(lease / 2)
			p.cont()
		}},

		{name: "DEBUG SLEEP past a lease", exact: true, inject: func(m *mint) {
			m.do("DEBUG", "SLEEP", (lease * 3 / 2).Seconds())
		}},
		{name: "CLIENT PAUSE past a lease", exact: true, inject: func(m *mint) {
			m.do("CLIENT", "PAUSE", (lease * 3 / 2).Milliseconds())
			time.Sleep(lease * 3 / 2)
		}},
		{name: "Redis SIGKILL, nothing persisted", inject: func(m *mint) { m.restart(true) }},
		{name: "Redis SIGKILL, AOF everysec", plan: appends("everysec"), inject: func(m *mint) { m.restart(true) }},
		{name: "Redis SIGKILL, AOF always", plan: appends("always"), exact: true,
			inject: func(m *mint) { m.restart(false) }},
		{name: "CLIENT KILL normal", exact: true, inject: func(m *mint) {
			m.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		}},
		{name: "CLIENT KILL pubsub", exact: true, inject: func(m *mint) { m.do("CLIENT", "KILL", "TYPE", "pubsub") }},
		{name: "SCRIPT FLUSH", exact: true, inject: func(m *mint) { m.do("SCRIPT", "FLUSH") }},
		{name: "FLUSHALL", inject: func(m *mint) { m.flushAll() }},
		{name: "ForceUnlock", inject: (*mint).force},
		{name: "maxmemory, noeviction", exact: true, inject: during(3, func(n *node) { n.limit("1") },
			func(n *node) { n.limit("0") })},
		{name: "maxmemory, volatile-lru", inject: func(m *mint) {
			m.do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
			m.lossy(func() {
				m.limit("1")
				time.Sleep(lease / 10)
				m.limit("0")
			})
			m.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
		}},
		{name: "active expiry off", exact: true, inject: func(m *mint) {
			m.do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
			kills(holder)(m)
			m.do("DEBUG", "SET-ACTIVE-EXPIRE", "1")
		}},
		{name: "connection pool exhausted", plan: plan{config: config{Pool: 2, Hog: true}}, exact: true,
			inject: func(m *mint) { time.Sleep(2 * lease) }},

		{name: "clock steps 60 s forward", plan: clocks, inject: func(m *mint) { m.step(+time.Minute) }},
		{name: "clock steps 60 s back", plan: clocks, exact: true, inject: func(m *mint) { m.step(-time.Minute) }},
		{name: "clock strobed by 60 s", plan: clocks, inject: func(m *mint) {
			for range 10 {
				m.step(+time.Minute)
				time.Sleep(lease / 20)
				m.step(-time.Minute)
				time.Sleep(lease / 20)
			}
		}},

		{name: "network: delay", exact: true, inject: during(2, func(n *node) { n.delay(lease / 20) },
			func(n *node) { n.delay(0) })},
		{name: "network: wake-ups lost", exact: true, inject: during(2,
			func(n *node) { n.proxies[0].SwallowPushes(true) }, func(n *node) { n.proxies[0].SwallowPushes(false) })},
		{name: "network: all connections cut", exact: true, inject: func(m *mint) { m.proxies[0].CloseAll() }},
		{name: "network: requests executed late", exact: true, inject: func(m *mint) {
			gate := make(chan struct{})
			rules(func(rule *faultproxy.Rule) *faultproxy.Rule { return rule.DelayRequest(gate) })(m)
			time.Sleep(lease * 3 / 2)
			close(gate)
		}},
	}
	add := func(name string, inject func(*mint)) {
		list = append(list, fault{name: name, exact: true, inject: inject})
	}
	for what, role := range map[string]role{
		"a holder": holder, "a write holder": writeHolder, "the last reader": lastReader,
		"the first waiter": firstWaiter,
	} {
		add("SIGKILL of "+what, kills(role))
		add("SIGSTOP of "+what+" past its lease", stops(role))
	}
	for what, c := range map[string]struct {
		dirs   faultproxy.Direction
		halves int
	}{
		"requests dropped past a lease":    {faultproxy.Requests, 3},
		"replies dropped past a lease":     {faultproxy.Replies, 3},
		"black hole for less than a lease": {faultproxy.Both, 1}, "black hole past a lease": {faultproxy.Both, 3},
	} {
		add("network: "+what, cuts(c.dirs, c.halves))
	}
	for what, act := range map[string]func(*faultproxy.Rule) *faultproxy.Rule{
		"connections reset": (*faultproxy.Rule).Reset, "replies lost": (*faultproxy.Rule).DropReply,
		"cut in the middle of replies": (*faultproxy.Rule).CutMidReply,
		"requests executed twice":      (*faultproxy.Rule).Duplicate,
	} {
		add("network: "+what, rules(act))
	}
	add("Redis SIGSTOP for less than a lease", func(m *mint) { m.stand(lease / 3) })
	add("Redis SIGSTOP past a lease", func(m *mint) { m.stand(lease * 3 / 2) })
	for _, key := range []string{"writer", "queue", "fence", "readers", "leases", "waiters", "count"} {
		list = append(list, fault{name: "key deleted: " + key, inject: func(m *mint) {
			for _, name := range m.names {
				m.lossy(func() { m.do("DEL", "rwlock:{"+name+"}:"+key) })
			}
		}})
	}
	slices.SortFunc(list, func(a, b fault) int { return strings.Compare(a.name, b.name) })
	return list
}

// during has something begin on each server that is broken, and end after so many halves of a lease.
func during(halves int, begin, end func(*node)) func(*mint) {
	return func(m *mint) {
		for _, n := range m.broken {
			begin(n)
		}
		m.strikesNow("")
		time.Sleep(time.Duration(halves) * m.lease / 2)
		for _, n := range m.broken {
			end(n)
		}
	}
}

// cuts holds back what goes to and from servers.
func cuts(dirs faultproxy.Direction, halves int) func(*mint) {
	return during(halves, func(n *node) { n.cut(dirs) }, func(n *node) { n.cut(faultproxy.None) })
}

// rules has the proxy do something to the next ten scripts.
func rules(act func(*faultproxy.Rule) *faultproxy.Rule) func(*mint) {
	return func(m *mint) {
		rule := act(m.proxies[0].On(faultproxy.IsCommand("EVALSHA")).Times(10).Silent())
		m.poll(30*time.Second, "scripts run", func() bool { return rule.Hits() >= 3 })
	}
}

// kills kills a process that has the role, and starts another.
func kills(role role) func(*mint) {
	return func(m *mint) {
		p, _ := m.freeze(role)
		m.crash(p)
	}
}

// stops pauses a process that has the role for longer than its lease. The others go on meanwhile.
func stops(role role) func(*mint) {
	return func(m *mint) {
		p, _ := m.freeze(role)
		end := time.Now().Add(m.lease * 5 / 4)
		m.survive()
		time.Sleep(time.Until(end))
		p.cont()
	}
}

// crash kills a process, and checks that the others go on as soon as the dead one's lease is over.
func (m *mint) crash(p *process) {
	m.tb.Helper()
	p.kill()
	m.survive()
	m.spawn()
}

// survive checks that the others go on as soon as the lease of a process is over that does not.
func (m *mint) survive() {
	m.tb.Helper()
	took := m.progress(m.lease + 200*time.Millisecond + slack)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.HandoverAfterCrash = max(m.HandoverAfterCrash, took)
}

// granted stops the first waiter, and returns it when it has the lock without knowing it, or does not wait
// any more.
func (m *mint) granted() *process {
	p, name := m.freeze(firstWaiter)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(m.lease); !m.holds(p, name) && time.Now().Before(end); {
		<-tick.C
	}
	return p
}

// stand freezes the server.
func (n *node) stand(d time.Duration) {
	n.server.Pause()
	time.Sleep(d)
	n.server.Resume()
}

// force drops the holds of every lock.
func (m *mint) force() {
	m.tb.Helper()
	for _, name := range m.names {
		m.lossy(func() { m.must(m.witness.ForceUnlock(context.Background(), name)) })
	}
	// Tokens that were reserved for a delegation are ahead of the clock until its lease would have ended. If
	// the server lost its data before, tokens would start again from the clock.
	time.Sleep(m.plan.Delegate)
}

// run has workers work while the fault happens, several times.
func (f fault) run(tb testing.TB, times int, seed uint64) *mint {
	tb.Helper()
	f.plan.Seed = seed
	m := newMint(tb, f.plan)
	m.work(20)
	for range times {
		m.suffer(f)
		m.work(30)
	}
	return m
}

// chaos has workers work for about d, while one after the other of the faults happens that fit into a mint of
// the first.
func chaos(tb testing.TB, list []fault, d time.Duration, procs int, seed uint64) *mint {
	tb.Helper()
	first := list[0].plan
	first.procs, first.Seed = max(first.procs, procs), seed
	list = slices.DeleteFunc(slices.Clone(list), func(f fault) bool { return !f.plan.fits(first) })
	m := newMint(tb, first)
	for start := time.Now(); time.Since(start) < d; {
		m.work(10)
		m.suffer(list[m.rng.IntN(len(list))])
	}
	return m
}

// fits reports whether what is planned can happen in a mint of another plan.
func (p plan) fits(o plan) bool {
	return p.clock == o.clock && slices.Equal(p.args, o.args) && p.servers == o.servers && p.Pool == o.Pool &&
		p.names == o.names && p.cluster == o.cluster
}

// suffer injects the fault, and waits until the workers have got over it.
func (m *mint) suffer(f fault) {
	m.tb.Helper()
	m.strikesNow(f.name)
	f.inject(m)
	m.struckOver()
	m.progress(2*m.lease + 5*time.Second)
	if m.plan.servers > 1 {
		time.Sleep(heal)
	}
}

// A summary is what came of a run.
type summary struct {
	Acquired, Failed int
	Quit             int // calls that had little time, were cancelled, or only tried
	Local, Unsure    int // holds that were granted from memory, and those of them that are left out
	LongestRead      time.Duration
	LongestWrite     time.Duration
	Faults           map[string]int
	Lost             int
	Fenced, Unfenced bank.Counts
	HistoryOps       int
	Broken           []string
	Processes        int

	HandoverAfterCrash time.Duration // the longest
}

// String describes a run in one line.
func (s summary) String() string {
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(s.Faults)) {
		kinds = append(kinds, fmt.Sprintf("%s ×%d", k, s.Faults[k]))
	}
	return fmt.Sprintf("%d holds (%d from memory, of which %d are left out of the history), %d calls failed, "+
		"%d holds lost, %d processes; fenced: %d steps, %d refused, %d violations; "+
		"unfenced: %d steps, %d violations, %d late; longest wait: read %v, write %v, after a crash %v; %d operations; %s",
		s.Acquired, s.Local, s.Unsure, s.Failed, s.Lost, s.Processes,
		s.Fenced.Reads+s.Fenced.Writes, s.Fenced.Refused, s.Fenced.Violations,
		s.Unfenced.Reads+s.Unfenced.Writes, s.Unfenced.Violations, s.Unfenced.Late,
		s.LongestRead.Round(time.Millisecond),
		s.LongestWrite.Round(time.Millisecond), s.HandoverAfterCrash.Round(time.Millisecond), s.HistoryOps,
		strings.Join(kinds, ", "))
}
