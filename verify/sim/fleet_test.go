package sim

import (
	"flag"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var fleetFor = flag.Duration("fleet", 0, "simulate 2,000 processes and 20 masters, for so long")

// slower is by how much the simulated masters are slower than measured, so that calls which take minutes to
// simulate load them as much as calls would that take days.
const slower = 200

// cost is what a script costs a simulated master: see the table in docs/scale.md.
func cost(name string, told int) time.Duration {
	us := map[string]int{"lock": 12, "rlock": 12, "unlock": 12, "runlock": 12, "renew": 9}[name]
	return time.Duration(us+5*told) * time.Microsecond * slower
}

func newPlan() plan {
	p := plan{
		masters: 20, processes: 2000, duration: *fleetFor, think: 20 * time.Second, work: 200 * time.Millisecond,
		cold: 5000, hot: 20, hotShare: 0.4, keepers: 1000, trip: time.Millisecond, cost: cost,
		lease: 30 * time.Second, failFor: 15 * time.Second,
	}
	if *fleetFor == 0 {
		p.processes, p.keepers, p.masters, p.hot, p.cold, p.duration = 100, 50, 4, 2, 50_000, 16*time.Minute
	}
	p.failAt, p.restartAt, p.restartIn = p.duration/4, p.duration/2, p.duration/4
	return p
}

// A prediction has what was predicted beside what the simulation came to.
type prediction struct {
	what                 string
	predicted, simulated float64
	within               float64 // of the prediction, as a part of it
}

// predict works figures out by hand, from the plan alone.
func predict(p plan, f *fleet) []prediction {
	seconds := p.duration.Seconds()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	trips := 2 * p.trip.Seconds()
	script := cost("lock", 0).Seconds()
	cycle := p.think.Seconds() + p.work.Seconds() + 2*(trips+script)

	// A process begins within the time that it thinks, and is away while it is started again.
	alive := 1 - (p.think.Seconds()/2+away.Seconds())/seconds
	pairs := alive * float64(p.processes) / cycle
	hot := pairs * p.hotShare / float64(p.hot) // of one name, a second
	// A hot name is a queue with one server: M/G/1. The work is exponential; to hand over takes the release,
	// its way there, the script, and the message. That is when someone waits.
	handover := trips + script + cost("unlock", 1).Seconds()
	service := p.work.Seconds() + handover
	load := hot * service
	second := 2*p.work.Seconds()*p.work.Seconds() + 2*p.work.Seconds()*handover + handover*handover
	queue := hot * second / (2 * (1 - load))
	// Half of the holds that are kept are granted again only after the lease of the process that has crashed.
	// They are the first of their processes, so no part of the period is taken off: see claim.period.
	renewals := (alive - p.lease.Seconds()/2/seconds) * float64(p.keepers) / (p.lease.Seconds() / 3)
	perMaster := (2*pairs + renewals) / float64(p.masters)
	busy := (2*pairs*script + renewals*cost("renew", 0).Seconds()) / float64(p.masters)
	wait := busy * script / (2 * (1 - busy)) // M/D/1
	total := func(names ...string) (n float64) {
		for _, name := range names {
			n += float64(f.seen["runs of "+name])
		}
		return n / seconds
	}
	var used time.Duration
	for _, b := range f.servers {
		used += b.used
	}
	failing := (1 - p.hotShare) / float64(p.masters) // the part of all pairs that the master has which fails
	for _, name := range f.names {
		if f.master(name) == p.failing() {
			failing += p.hotShare / float64(p.hot)
		}
	}
	down := p.failFor.Seconds() * pairs * failing
	return []prediction{
		{"pairs/s", pairs, float64(f.pairs) / seconds, 0.05},
		{"renewals/s", renewals, total("renew"), 0.05},
		{"scripts/s of one master", perMaster, (total("lock", "rlock", "unlock", "runlock", "renew", "reenter")) / float64(p.masters), 0.15},
		{"a master is busy, %", 100 * busy, 100 * used.Seconds() / seconds / float64(p.masters), 0.15},
		{"messages/s", load * hot * float64(p.hot), float64(f.seen["messages"]) / seconds, 0.25},
		{"mean wait for a name that is free, ms", 1000 * (trips + script + wait), ms(mean(f.waits)), 0.15},
		{"mean wait for a hot name, ms", 1000 * (trips + script + wait + queue), ms(mean(f.hotWaits)),
			0.2 + 8/math.Sqrt(float64(len(f.hotWaits)))},
		{"calls that meet the outage", down, float64(len(f.outage)), 0.1 + 3/math.Sqrt(down)},
		{"longest wait in the outage, s", p.failFor.Seconds() + 1, quantile(f.outage, 1).Seconds(), 0.5},
		{"calls failed", 0, float64(f.failed), 0},
		{"broken promises", 0, float64(len(f.violations)), 0},
	}
}

// Thousands of processes on many masters, a master that fails and processes that are started again, half of
// which crash: nothing that the library promises is broken, and what it costs is what was predicted.
func TestWhatIsPredictedComesToPass(t *testing.T) {
	p := newPlan()
	begun := time.Now()
	f := simulateFleet(p, *first)
	require.Empty(t, f.report())
	fmt.Println("| | predicted | simulated |\n|---|---|---|")
	var missed []string
	for _, l := range predict(p, f) {
		fmt.Printf("| %s | %.4g | %.4g |\n", l.what, l.predicted, l.simulated)
		if off := l.simulated - l.predicted; max(off, -off) > l.within*l.predicted {
			missed = append(missed, l.what)
		}
	}
	t.Logf("%v, took %v; a hot name since the failure: mean %v, p50 %v, p99 %v",
		f.seen, time.Since(begun).Round(time.Second),
		mean(f.hotAfter), quantile(f.hotAfter, 0.5), quantile(f.hotAfter, 0.99))
	require.Empty(t, missed)
}
