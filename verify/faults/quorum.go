package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/history"
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
		{name: "connections closed", inject: during(0, func(n *node) {
			for _, p := range n.proxies {
				p.CloseAll()
			}
		}, nothing)},
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
		to.inject = func(m *mint) {
			fail := (servers - 1) / 2
			if f.beyond {
				fail++
			}
			m.broken = m.some(fail)
			f.inject(m)
			for _, n := range m.broken {
				if f.forgets {
					m.poll(30*time.Second, "a server that has rested votes again", func() bool {
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
func forward(m *mint) {
	m.lossy(func() { during(0, func(n *node) { n.step(+time.Minute) }, func(*node) {})(m) })
}

// split cuts each half of the clients off from as many servers as may fail, and not from the same ones: they
// disagree on who answers.
func split(m *mint) {
	n, all := len(m.broken), m.some(len(m.nodes))
	for side := range 2 {
		for _, one := range all[side*n : (side+1)*n] {
			one.proxies[side].Blackhole(faultproxy.Both)
		}
	}
	m.broken = all
	during(3, func(*node) {}, func(n *node) { n.cut(faultproxy.None) })(m)
}

// refused has more servers fail than may. Calls say so when their contexts end.
func refused(begin, end func(*node)) func(*mint) {
	return func(m *mint) {
		knows := m.client(0)
		for _, name := range m.names {
			if _, err := knows.Inspect(context.Background(), name); err != nil {
				m.breach("before the fault: %v", err)
			}
		}
		var wg sync.WaitGroup
		during(4, func(n *node) {
			if begin(n); n != m.broken[len(m.broken)-1] {
				return
			}
			for who, rw := range map[string]*rwlock.RWLock{"knew the servers": knows, "is new": m.client(1)} {
				wg.Go(func() { m.refuses(rw, "a client that "+who) })
			}
		}, func(n *node) {
			wg.Wait()
			end(n)
		})(m)
	}
}

// refuses checks what calls end with while too few servers answer.
func (m *mint) refuses(rw *rwlock.RWLock, who string) {
	const little, soon = usual / 2, 5 * time.Second
	name := m.names[0]
	says := fmt.Sprintf("%d of %d vote", len(m.nodes)-len(m.broken), len(m.nodes))
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
				m.breach("%s: %s said: %v; and not: %s", who, what, err, says)
			}
			if took := time.Since(start); took > little+500*time.Millisecond {
				m.breach("%s: %s took %v of the %v that it had", who, what, took, little)
			}
		})
	}
	wg.Go(func() {
		start := time.Now()
		_, err := rw.TryLock(context.Background(), name)
		if !errors.Is(err, rwlock.ErrNoMajority) && !errors.Is(err, rwlock.ErrLocked) {
			m.breach("%s: TryLock said: %v", who, err)
		}
		if took := time.Since(start); took > soon {
			m.breach("%s: TryLock took %v", who, took)
		}
	})
	wg.Wait()
}

// heal is what it takes after a fault until every hold has the votes of all servers again: one renewal wins
// back what was lost, and counts it in the next. A fault of other servers may cost a hold before that.
const heal = usual

// A votersResult is what came of a fault.
type votersResult struct {
	fault   string
	servers int
	// from when the fault had struck, or was over if too many failed, to a lock's next grant
	first   time.Duration
	longest time.Duration // that a call took while the fault lasted, whatever it came to
	usual   time.Duration // that a call took at other times
	calls   int
	lost    int // holds
	causes  int // of them, those that need not have been lost
	summary
}

// votersResult ends the workers, and returns what came of a fault.
func (m *mint) votersResult(f fault) votersResult {
	m.endWorkers()
	r := f.measure(m.seen())
	r.servers = len(m.nodes)
	r.summary = m.finish()
	return r
}

// measure looks at what the workers have reported.
func (f fault) measure(events []history.Event, strikes []strike) votersResult {
	r := votersResult{fault: f.name}
	stood := stallsOf(events)
	type grant struct {
		strike int
		name   string
	}
	had := map[grant]bool{}
	for _, c := range history.Calls(events) {
		r.calls++
		longest := &r.usual
		for i, s := range strikes {
			at, over := s.at.UnixNano(), s.over.UnixNano()
			if c.At <= over && c.Answered >= at {
				longest = &r.longest
			}
			since := at
			if f.beyond {
				since = over
			}
			if g := (grant{i, c.Name}); !had[g] && c.Granted && c.At >= at && c.Answered >= since {
				had[g] = true
				r.first = max(r.first, time.Duration(c.Answered-since))
			}
		}
		*longest = max(*longest, time.Duration(c.Answered-c.At))
		if c.Gone != 0 {
			r.lost++
			if !f.cause(c, strikes) && !stood.cost(c, usual) {
				r.causes++
			}
		}
	}
	return r
}

// cause reports whether a hold may have been lost because too many servers failed, or ended it early; or
// because it was granted so shortly before that a majority had voted for it, and the others had not yet been
// asked again.
func (f fault) cause(c history.Call, strikes []strike) bool {
	return slices.ContainsFunc(strikes, func(s strike) bool {
		at := s.at.UnixNano()
		young := c.Answered <= at && c.Answered >= s.at.Add(-heal).UnixNano()
		return (f.beyond || !f.exact || f.parted || young) && c.Gone >= at && c.Gone <= s.over.Add(usual).UnixNano()
	})
}

// stalls are when processes stood still.
type stalls map[int][]history.Event

func stallsOf(events []history.Event) stalls {
	of := stalls{}
	for _, e := range events {
		if e.What == history.Stalls {
			of[e.Process] = append(of[e.Process], e)
		}
	}
	return of
}

// cost reports whether the holder's process stood still for a good part of the lease before a loss.
func (of stalls) cost(c history.Call, lease time.Duration) bool {
	var still time.Duration
	for _, s := range of[c.Process] {
		if s.At > c.Gone-int64(lease) && s.At <= c.Gone {
			still += time.Duration(s.For)
		}
	}
	return still > lease/3
}

// misses returns where the result is short of what it should be.
func (r votersResult) misses(f fault) []string {
	var list misses
	list.add(r.first == 0 && r.Acquired > 0, "no grant after the fault")
	list.add(r.Failed > r.lost && !f.beyond, "%d calls failed", r.Failed)
	list.add(r.causes > 0, "%d holds lost without cause", r.causes)
	list.add(r.Unfenced.Violations > 0 && f.exact, "%d violations without a fence", r.Unfenced.Violations)
	list.add(r.Fenced.Violations > 0, "%d violations behind the fence", r.Fenced.Violations)
	list.add(r.Fenced.Writes == 0 || r.Unfenced.Writes == 0, "no money was moved")
	return append(list, r.Broken...)
}

// misses says where a result is short of what it should be.
type misses []string

func (list *misses) add(is bool, format string, args ...any) {
	if is {
		*list = append(*list, fmt.Sprintf(format, args...))
	}
}

// votersHead is the head of a table of results.
const votersHead = `
| what happens to f servers | servers | first grant | longest call then | at other times | calls | failed | lost | ` +
	`without cause | violations, no fence | behind the fence | operations | one lock? |
|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// String returns a row of the table.
func (r votersResult) String() string {
	fits := "yes"
	if slices.ContainsFunc(r.Broken, func(b string) bool { return strings.Contains(b, "a history of") }) {
		fits = "no"
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	return fmt.Sprintf("| %s | %d | %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %s |", r.fault, r.servers,
		ms(r.first),
		ms(r.longest), ms(r.usual), r.calls, r.Failed, r.lost, r.causes, r.Unfenced.Violations, r.Fenced.Violations,
		r.HistoryOps, fits)
}
