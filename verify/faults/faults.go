package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A Fault is one way to break something.
type Fault struct {
	Name string
	Plan Plan

	// Exact says that a holder that believes in its hold may do so, the fault notwithstanding. Otherwise only
	// the fence protects what the lock guards, until all holders know of the loss.
	Exact bool

	// Clock says that the server runs under a clock that the rig sets.
	Clock bool

	// Inject does it once. It returns when the fault is over, and the workers can be expected to go on.
	Inject func(r *Rig)
}

// slack is what a loaded machine may add to the time that the library promises.
const slack = 800 * time.Millisecond

// All returns every fault.
func All() []Fault {
	list := []Fault{
		{Name: "none", Exact: true, Inject: func(r *Rig) { r.Work(50) }},

		{Name: "SIGKILL of a holder", Exact: true, Inject: func(r *Rig) { r.kill(Holder) }},
		{Name: "SIGKILL of a write holder", Exact: true, Inject: func(r *Rig) { r.kill(WriteHolder) }},
		{Name: "SIGKILL of the last reader", Exact: true, Inject: func(r *Rig) { r.kill(LastReader) }},
		{Name: "SIGKILL of the first waiter", Exact: true, Inject: func(r *Rig) { r.kill(FirstWaiter) }},
		{Name: "SIGKILL of a middle waiter", Plan: crowded, Exact: true, Inject: func(r *Rig) { r.kill(MiddleWaiter) }},
		{Name: "SIGKILL between grant and wake-up", Exact: true, Inject: func(r *Rig) {
			w, name := r.Freeze(FirstWaiter)
			r.granted(w, name)
			r.crash(w)
		}},
		{Name: "SIGSTOP of a holder past its lease", Exact: true, Inject: func(r *Rig) { r.stop(Holder) }},
		{Name: "SIGSTOP of a write holder past its lease", Exact: true, Inject: func(r *Rig) { r.stop(WriteHolder) }},
		{Name: "SIGSTOP of the last reader past its lease", Exact: true, Inject: func(r *Rig) { r.stop(LastReader) }},
		{Name: "SIGSTOP of the first waiter past its lease", Exact: true, Inject: func(r *Rig) { r.stop(FirstWaiter) }},
		{Name: "SIGSTOP of a middle waiter past its lease", Plan: crowded, Exact: true, Inject: func(r *Rig) { r.stop(MiddleWaiter) }},
		{Name: "SIGSTOP between grant and wake-up", Exact: true, Inject: func(r *Rig) {
			w, name := r.Freeze(FirstWaiter)
			r.granted(w, name)
			r.pass(r.plan.Lease * 5 / 4)
			w.Cont()
		}},
		{Name: "SIGSTOP of a process for less than a lease", Exact: true, Inject: func(r *Rig) {
			w, _ := r.Freeze(Holder)
			r.pass(r.plan.Lease / 2)
			w.Cont()
		}},

		{Name: "Redis SIGSTOP for less than a lease", Exact: true, Inject: func(r *Rig) { r.freeze(r.plan.Lease / 3) }},
		{Name: "Redis SIGSTOP past a lease", Exact: true, Inject: func(r *Rig) { r.freeze(r.plan.Lease * 3 / 2) }},
		{Name: "DEBUG SLEEP past a lease", Exact: true, Inject: func(r *Rig) {
			r.must(r.Admin.Do(context.Background(), "DEBUG", "SLEEP", (r.plan.Lease * 3 / 2).Seconds()).Err())
		}},
		{Name: "CLIENT PAUSE past a lease", Exact: true, Inject: func(r *Rig) {
			d := r.plan.Lease * 3 / 2
			r.must(r.Admin.Do(context.Background(), "CLIENT", "PAUSE", d.Milliseconds()).Err())
			r.pass(d)
		}},
		{Name: "Redis SIGKILL, nothing persisted", Inject: func(r *Rig) { r.restart(true) }},
		{Name: "Redis SIGKILL, AOF everysec", Plan: Plan{Args: []string{"--appendonly", "yes", "--appendfsync", "everysec"}},
			Inject: func(r *Rig) { r.restart(true) }},
		{Name: "Redis SIGKILL, AOF always", Plan: Plan{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}},
			Exact: true, Inject: func(r *Rig) { r.restart(false) }},
		{Name: "CLIENT KILL normal", Exact: true, Inject: func(r *Rig) {
			r.must(r.Admin.Do(context.Background(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
		}},
		{Name: "CLIENT KILL pubsub", Exact: true, Inject: func(r *Rig) {
			r.must(r.Admin.Do(context.Background(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		}},
		{Name: "SCRIPT FLUSH", Exact: true, Inject: func(r *Rig) { r.must(r.Admin.ScriptFlush(context.Background()).Err()) }},
		{Name: "FLUSHALL", Inject: func(r *Rig) { r.FlushAll() }},
		{Name: "maxmemory, noeviction", Exact: true, Inject: func(r *Rig) {
			r.Config("maxmemory", "1")
			r.pass(r.plan.Lease * 3 / 2)
			r.Config("maxmemory", "0")
		}},
		{Name: "maxmemory, volatile-lru", Inject: func(r *Rig) {
			r.Config("maxmemory-policy", "volatile-lru")
			r.Lossy()
			r.Config("maxmemory", "1")
			r.pass(r.plan.Lease / 10)
			r.Lossy()
			r.Config("maxmemory", "0")
			r.Config("maxmemory-policy", "noeviction")
		}},
		{Name: "active expiry off", Exact: true, Inject: func(r *Rig) {
			r.must(r.Admin.Do(context.Background(), "DEBUG", "SET-ACTIVE-EXPIRE", "0").Err())
			r.kill(Holder)
			r.must(r.Admin.Do(context.Background(), "DEBUG", "SET-ACTIVE-EXPIRE", "1").Err())
		}},
		{Name: "connection pool exhausted", Plan: Plan{Pool: 2, Hog: true}, Exact: true, Inject: func(r *Rig) { r.pass(2 * r.plan.Lease) }},

		{Name: "clock steps 60 s forward", Clock: true, Inject: func(r *Rig) { r.Step(+time.Minute) }},
		{Name: "clock steps 60 s back", Clock: true, Exact: true, Inject: func(r *Rig) { r.Step(-time.Minute) }},
		{Name: "clock strobed by 60 s", Clock: true, Inject: func(r *Rig) {
			for range 10 {
				r.Step(+time.Minute)
				r.pass(r.plan.Lease / 20)
				r.Step(-time.Minute)
				r.pass(r.plan.Lease / 20)
			}
		}},

		{Name: "network: delay", Exact: true, Inject: func(r *Rig) {
			r.Proxy.Latency(r.plan.Lease / 20)
			r.pass(r.plan.Lease)
			r.Proxy.Latency(0)
		}},
		{Name: "network: requests dropped past a lease", Exact: true, Inject: func(r *Rig) { r.blackhole(faultproxy.Requests, 3) }},
		{Name: "network: replies dropped past a lease", Exact: true, Inject: func(r *Rig) { r.blackhole(faultproxy.Replies, 3) }},
		{Name: "network: black hole for less than a lease", Exact: true, Inject: func(r *Rig) { r.blackhole(faultproxy.Both, 1) }},
		{Name: "network: black hole past a lease", Exact: true, Inject: func(r *Rig) { r.blackhole(faultproxy.Both, 3) }},
		{Name: "network: all connections cut", Exact: true, Inject: func(r *Rig) { r.Proxy.CloseAll() }},
		{Name: "network: connections reset", Exact: true, Inject: func(r *Rig) { r.rule((*faultproxy.Rule).Reset) }},
		{Name: "network: replies lost", Exact: true, Inject: func(r *Rig) { r.rule((*faultproxy.Rule).DropReply) }},
		{Name: "network: cut in the middle of replies", Exact: true, Inject: func(r *Rig) { r.rule((*faultproxy.Rule).CutMidReply) }},
		{Name: "network: requests executed twice", Exact: true, Inject: func(r *Rig) { r.rule((*faultproxy.Rule).Duplicate) }},
		{Name: "network: requests executed late", Exact: true, Inject: func(r *Rig) {
			gate := make(chan struct{})
			r.rule(func(rule *faultproxy.Rule) *faultproxy.Rule { return rule.DelayRequest(gate) })
			r.pass(r.plan.Lease * 3 / 2)
			close(gate)
		}},
		{Name: "network: wake-ups lost", Exact: true, Inject: func(r *Rig) {
			r.Proxy.SwallowPushes(true)
			r.pass(r.plan.Lease)
			r.Proxy.SwallowPushes(false)
		}},
	}
	for _, key := range []string{"writer", "queue", "fence", "readers", "leases", "waiters", "count"} {
		list = append(list, Fault{Name: "key deleted: " + key, Inject: func(r *Rig) {
			for _, name := range r.names {
				r.Lossy()
				r.must(r.Admin.Del(context.Background(), "rwlock:{"+name+"}:"+key).Err())
			}
		}})
	}
	return list
}

// Needs returns why a fault cannot be had on this machine, or "".
func (f Fault) Needs() string {
	if f.Clock {
		return clock.Missing()
	}
	return ""
}

var crowded = Plan{Procs: 5, Names: 1}

// Run has workers work while the fault happens, several times.
func (f Fault) Run(tb testing.TB, times int, seed uint64) Summary {
	tb.Helper()
	r := f.Rig(tb, seed)
	r.Work(20)
	for range times {
		r.Do(f)
		r.Work(30)
	}
	return r.Finish()
}

// Chaos has workers work for about d, while one after the other of the faults happens that fit into a rig of
// the first.
func Chaos(tb testing.TB, list []Fault, d time.Duration, procs int, seed uint64) Summary {
	tb.Helper()
	first := list[0]
	first.Plan.Procs = max(first.Plan.Procs, procs)
	list = slices.DeleteFunc(slices.Clone(list), func(f Fault) bool { return !f.Fits(first) })
	r := first.Rig(tb, seed)
	for start := time.Now(); time.Since(start) < d; {
		r.Work(10)
		r.Do(list[r.rng.IntN(len(list))])
	}
	return r.Finish()
}

// Rig returns a rig that the fault can happen in.
func (f Fault) Rig(tb testing.TB, seed uint64) *Rig {
	tb.Helper()
	plan := f.Plan
	plan.Seed = seed
	plan.Clock = f.Clock
	return NewRig(tb, plan)
}

// Fits reports whether the fault can happen in the rig of another.
func (f Fault) Fits(other Fault) bool {
	return f.Clock == other.Clock && slices.Equal(f.Plan.Args, other.Plan.Args) && f.Plan.Servers == other.Plan.Servers && f.Plan.Pool == other.Plan.Pool && f.Plan.Names == other.Plan.Names
}

// Do injects the fault, and waits until the workers have got over it.
func (r *Rig) Do(f Fault) {
	r.tb.Helper()
	r.mu.Lock()
	r.Faults[f.Name]++
	r.strikes = append(r.strikes, Strike{Fault: f.Name, At: time.Now()})
	r.mu.Unlock()
	f.Inject(r)
	r.mu.Lock()
	r.strikes[len(r.strikes)-1].Over = time.Now()
	r.mu.Unlock()
	r.Progress(2*r.plan.Lease + 5*time.Second)
}

// A Strike is one time that a fault happened.
type Strike struct {
	Fault    string
	At, Over time.Time
}

// Struck notes that the fault under way has struck by now.
func (r *Rig) Struck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.strikes[len(r.strikes)-1].At = time.Now()
}

// Seen returns what the workers have reported, and what happened to the servers meanwhile. Finish forgets it.
func (r *Rig) Seen() ([]history.Event, []Strike) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events), slices.Clone(r.strikes)
}

// Pass lets time pass: how long a fault lasts.
func (r *Rig) Pass(d time.Duration) { r.pass(d) }

// pass lets time pass: how long a fault lasts.
func (r *Rig) pass(d time.Duration) { time.Sleep(d) }

// kill kills a process that has the role, and starts another.
func (r *Rig) kill(role Role) {
	r.tb.Helper()
	w, _ := r.Freeze(role)
	r.crash(w)
}

// crash kills a process, and checks that the others go on as soon as the dead one's lease is over.
func (r *Rig) crash(w *Worker) {
	r.tb.Helper()
	w.Kill()
	took := r.Progress(r.plan.Lease + 200*time.Millisecond + slack)
	r.mu.Lock()
	r.HandoverAfterCrash = max(r.HandoverAfterCrash, took)
	r.mu.Unlock()
	r.Spawn()
}

// stop pauses a process that has the role for longer than its lease. The others go on meanwhile.
func (r *Rig) stop(role Role) {
	r.tb.Helper()
	w, _ := r.Freeze(role)
	start := time.Now()
	took := r.Progress(r.plan.Lease + 200*time.Millisecond + slack)
	r.mu.Lock()
	r.HandoverAfterCrash = max(r.HandoverAfterCrash, took)
	r.mu.Unlock()
	r.pass(time.Until(start.Add(r.plan.Lease * 5 / 4)))
	w.Cont()
}

// granted waits until the stopped process has the lock without knowing it, or does not wait any more.
func (r *Rig) granted(w *Worker, name string) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(r.plan.Lease); !r.Holds(w, name) && time.Now().Before(end); {
		<-tick.C
	}
}

// Add adds another run's numbers.
func (s *Summary) Add(o Summary) {
	s.Acquired += o.Acquired
	s.Failed += o.Failed
	s.Quit += o.Quit
	s.Lost += o.Lost
	s.Processes += o.Processes
	s.LongestRead = max(s.LongestRead, o.LongestRead)
	s.LongestWrite = max(s.LongestWrite, o.LongestWrite)
	s.HandoverAfterCrash = max(s.HandoverAfterCrash, o.HandoverAfterCrash)
	s.Histories += o.Histories
	s.HistoryOps += o.HistoryOps
	s.Broken = append(s.Broken, o.Broken...)
	s.Fenced.Add(o.Fenced)
	s.Unfenced.Add(o.Unfenced)
	if s.Faults == nil {
		s.Faults = map[string]int{}
	}
	for k, n := range o.Faults {
		s.Faults[k] += n
	}
}

// String describes a run in one line.
func (s Summary) String() string {
	var kinds []string
	for k, n := range s.Faults {
		kinds = append(kinds, fmt.Sprintf("%s ×%d", k, n))
	}
	slices.Sort(kinds)
	return fmt.Sprintf("%d holds, %d calls failed, %d holds lost, %d processes; fenced: %d steps, %d refused, %d violations; unfenced: %d steps, %d violations, %d late; "+
		"longest wait: read %v, write %v; %d histories of %d operations; %s",
		s.Acquired, s.Failed, s.Lost, s.Processes,
		s.Fenced.Reads+s.Fenced.Writes, s.Fenced.Refused, s.Fenced.Violations,
		s.Unfenced.Reads+s.Unfenced.Writes, s.Unfenced.Violations, s.Unfenced.Late,
		s.LongestRead.Round(time.Millisecond), s.LongestWrite.Round(time.Millisecond), s.Histories, s.HistoryOps, strings.Join(kinds, ", "))
}
