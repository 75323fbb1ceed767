package quorum

import (
	"context"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/faults"
)

// Setup is how to run a fault.
type Setup struct {
	Servers int
	Times   int // how often the fault happens
	Seed    uint64
}

const (
	// heal is what it takes after a fault until every hold has the votes of all servers again: one renewal
	// wins back what was lost, and counts it in the next. A fault of other servers may cost a hold before
	// that.
	heal = Lease
	// mark is the key of what a server knows of itself.
	mark = "rwlock:mark"
)

// Run has workers work while the fault happens, to other servers each time.
func (f Fault) Run(tb testing.TB, s Setup) Result {
	tb.Helper()
	fault := f.plan(s)
	r := fault.Rig(tb, s.Seed)
	r.Work(20)
	for range s.Times {
		r.Do(fault)
		r.Work(30)
		r.Pass(heal)
	}
	return f.finish(r, s)
}

// Several has one of several faults after the other happen for about d.
func Several(tb testing.TB, list []Fault, s Setup, d time.Duration) Result {
	tb.Helper()
	var all Fault
	var plans []faults.Fault
	for _, f := range list {
		f.Keeps = true
		all.Name, all.Early, all.Beyond, all.Parted = "one after the other", all.Early || f.Early, all.Beyond || f.Beyond, all.Parted || f.Parted
		plans = append(plans, f.plan(s))
	}
	r := plans[0].Rig(tb, s.Seed)
	for start, i := time.Now(), 0; time.Since(start) < d; i++ {
		r.Work(10)
		r.Do(plans[i%len(plans)])
		r.Pass(heal)
	}
	return all.finish(r, s)
}

// plan returns the fault as it happens to some of the servers at a time.
func (f Fault) plan(s Setup) faults.Fault {
	n := failures(s.Servers)
	if f.Beyond {
		n++
	}
	var args []string
	if f.Keeps {
		args = []string{"--appendonly", "yes", "--appendfsync", "always"}
	}
	return faults.Fault{
		Name: f.Name, Exact: !f.Early, Clock: f.Clock,
		Plan: faults.Plan{
			Servers: s.Servers, Sides: 2, Hasty: 20, Args: args,
		},
		Inject: func(r *faults.Rig) {
			some := r.Some(n)
			f.inject(r, some)
			if f.Forgets {
				readmit(r, some)
			}
		},
	}
}

// readmit waits until servers that have lost their data have rested, and vote again.
func readmit(r *faults.Rig, some []*faults.Node) {
	for _, n := range some {
		r.Await(30*time.Second, "the server votes again", func() bool {
			return n.Admin.HGet(context.Background(), mark, "generation").Val() != ""
		})
	}
}

// finish ends the workers, and returns what came of it.
func (f Fault) finish(r *faults.Rig, s Setup) Result {
	r.End()
	events, strikes := r.Seen()
	result := f.measure(events, strikes)
	result.Servers = s.Servers
	result.Summary = r.Finish()
	return result
}
