package sim

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

var fleetFor = flag.Duration("fleet", 0, "simulate 2,000 processes and 20 masters, for so long")

// A plan is for more than any machine of this project has: thousands of processes, and a cluster.
// benchmarks/scale.md compares what comes of it with what it predicts. After a quarter of its time, a master
// fails. In the third quarter, processes are started again, one after the other.
type plan struct {
	masters, processes int
	duration           time.Duration
	cold, hot          int // how many names there are of either kind
	keepers            int // processes that keep a hold of their own for as long as they live
}

const (
	think    = 20 * time.Second       // of a process, on average, between two pairs
	work     = 200 * time.Millisecond // under a lock, on average
	hotShare = 0.4                    // of all pairs
	trip     = time.Millisecond       // from a process to a master, or back, on average
	failFor  = 15 * time.Second       // a master
	away     = 5 * time.Second        // a process that is started again
	leased   = 30 * time.Second

	// slower is by how much the simulated masters are slower than measured, so that calls which take minutes to
	// simulate load them as much as calls would that take days.
	slower = 200
)

// cost is what a script costs a simulated master: see the table in benchmarks/scale.md.
func cost(name string, told int) time.Duration {
	us := map[string]int{"lock": 12, "unlock": 12, "renew": 9}[name]
	return time.Duration(us+5*told) * time.Microsecond * slower
}

// failing returns the index of the master that fails.
func (p plan) failing() int { return p.masters / 3 }

// A fleet is the world of a plan.
type fleet struct {
	*world
	plan
	pairs, failed   int
	waits, hotWaits []time.Duration // from call to grant, before anything fails
	hotAfter        []time.Duration // since then
	outage          []time.Duration // of calls at the failed master
}

func simulateFleet(p plan, seed uint64) *fleet {
	weather := Weather{Latency: trip * 8 / 5} // see chance.delay
	f := &fleet{plan: p, world: newWorld(seed, []Climate{{Name: "fleet", Weather: weather, Closes: true}}, "")}
	f.lease, f.longest, f.steady, f.names = leased, leased, true, nil
	for i := range p.hot {
		f.names = append(f.names, fmt.Sprint("hot:", i))
	}
	f.run(p.masters, f.live)
	for _, n := range f.nodes {
		if !n.killed && !n.base.Idle() {
			f.violation("close: %s has something left to do", n.engine.Channel())
		}
	}
	return f
}

func (f *fleet) live() {
	for _, s := range f.servers {
		s.cost = cost
	}
	for i := range f.processes {
		h := &host{id: i}
		f.hosts = append(f.hosts, h)
		f.spawn(func() {
			f.sleep(upTo(f.rng, think))
			f.begin(h)
			at := f.duration/2 + f.duration/4*time.Duration(h.id)/time.Duration(f.processes)
			f.sleep(at - f.now().Sub(f.start))
			f.replace(h)
		})
	}
	failing := f.servers[f.failing()]
	f.sleep(f.duration / 4)
	f.stop(failing)
	f.sleep(failFor)
	failing.down = false
	f.sleep(f.duration - f.now().Sub(f.start))
	f.over = true
	f.end()
}

// begin begins a process.
func (f *fleet) begin(h *host) {
	h.p = f.process(f.climate)
	k := &worker{world: f.world, h: h, who: fmt.Sprint(h.id), rng: f.fork()}
	if h.id < f.keepers {
		f.spawn(func() {
			k.enter()
			k.acquire(call{name: fmt.Sprint("kept:", h.id), mode: rwlock.Write})
		})
	}
	f.spawn(func() {
		k.enter()
		for k.sleep(k.about(think)); f.runs(k); k.sleep(k.about(think)) {
			f.pair(k)
		}
	})
}

// runs reports whether a worker's process is to go on.
func (f *fleet) runs(k *worker) bool { return k.p == k.h.p && !f.over }

// replace starts a process again: every second one is closed before, the others crash.
func (f *fleet) replace(h *host) {
	p := h.p
	h.p = nil
	if h.id%2 == 0 {
		f.close(p)
	} else {
		f.crash(p)
	}
	f.sleep(away)
	f.begin(h)
}

// about draws a time that has a mean, and no memory.
func (k *worker) about(mean time.Duration) time.Duration {
	return time.Duration(k.rng.ExpFloat64() * float64(mean))
}

// pair locks and unlocks once.
func (f *fleet) pair(k *worker) {
	c := call{name: fmt.Sprint("cold:", k.rng.IntN(f.cold)), mode: k.mode()}
	hot := k.rng.Float64() < hotShare
	if hot {
		c.name, c.mode = f.names[k.rng.IntN(f.hot)], rwlock.Write
	}
	begun, failed := f.now(), f.start.Add(f.duration/4)
	s := k.acquire(c)
	if s == nil {
		if f.runs(k) {
			f.failed++
		}
		return
	}
	wait := f.now().Sub(begun)
	switch {
	case f.master(c.name) == f.failing() && begun.Before(failed.Add(failFor)) && f.now().After(failed):
		f.outage = append(f.outage, wait)
	case hot && !begun.Before(failed):
		f.hotAfter = append(f.hotAfter, wait)
	case hot:
		f.hotWaits = append(f.hotWaits, wait)
	case begun.Before(failed):
		f.waits = append(f.waits, wait)
	}
	f.pairs++
	s.hold.linger(k.about(work))
	k.unlock(s)
}

// quantile returns the wait that a part of a list does not exceed.
func quantile(list []time.Duration, part float64) time.Duration {
	return slices.Sorted(slices.Values(list))[int(part*float64(len(list)-1))]
}

func mean(list []time.Duration) (mean time.Duration) {
	for _, d := range list {
		mean += d / time.Duration(len(list))
	}
	return mean
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
	trips := 2 * trip.Seconds()
	script := cost("lock", 0).Seconds()
	cycle := think.Seconds() + work.Seconds() + 2*(trips+script)

	// A process begins within the time that it thinks, and is away while it is started again.
	alive := 1 - (think.Seconds()/2+away.Seconds())/seconds
	pairs := alive * float64(p.processes) / cycle
	hot := pairs * hotShare / float64(p.hot) // of one name, a second
	// A hot name is a queue with one server: M/G/1. The work is exponential; to hand over takes the release,
	// its way there, the script, and the message. That is when someone waits.
	handover := trips + script + cost("unlock", 1).Seconds()
	service := work.Seconds() + handover
	load := hot * service
	second := 2*work.Seconds()*work.Seconds() + 2*work.Seconds()*handover + handover*handover
	queue := hot * second / (2 * (1 - load))
	// Half of the holds that are kept are granted again only after the lease of the process that has crashed.
	// They are the first of their processes, so no part of the period is taken off: see claim.period.
	renewals := (alive - leased.Seconds()/2/seconds) * float64(p.keepers) / (leased.Seconds() / 3)
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
	failing := (1 - hotShare) / float64(p.masters) // the part of all pairs that the master has which fails
	for _, name := range f.names {
		if f.master(name) == p.failing() {
			failing += hotShare / float64(p.hot)
		}
	}
	down := failFor.Seconds() * pairs * failing
	return []prediction{
		{"pairs/s", pairs, float64(f.pairs) / seconds, 0.05},
		{"renewals/s", renewals, total("renew"), 0.05},
		{"scripts/s of one master", perMaster, total("lock", "unlock", "renew", "reenter") / float64(p.masters), 0.15},
		{"a master is busy, %", 100 * busy, 100 * used.Seconds() / seconds / float64(p.masters), 0.15},
		{"messages/s", load * hot * float64(p.hot), float64(f.seen["messages"]) / seconds, 0.25},
		{"mean wait for a name that is free, ms", 1000 * (trips + script + wait), ms(mean(f.waits)), 0.15},
		{"mean wait for a hot name, ms", 1000 * (trips + script + wait + queue), ms(mean(f.hotWaits)),
			0.2 + 8/math.Sqrt(float64(len(f.hotWaits)))},
		{"calls that meet the outage", down, float64(len(f.outage)), 0.1 + 3/math.Sqrt(down)},
		{"longest wait in the outage, s", failFor.Seconds() + 1, quantile(f.outage, 1).Seconds(), 0.5},
		{"calls failed", 0, float64(f.failed), 0},
		{"broken promises", 0, float64(len(f.violations)), 0},
	}
}

// Thousands of processes on many masters, a master that fails and processes that are started again, half of
// which crash: nothing that the library promises is broken, and what it costs is what was predicted.
func TestWhatIsPredictedComesToPass(t *testing.T) {
	p := plan{masters: 4, processes: 100, keepers: 50, cold: 50_000, hot: 2, duration: 16 * time.Minute}
	if *fleetFor > 0 {
		p = plan{masters: 20, processes: 2000, keepers: 1000, cold: 5000, hot: 20, duration: *fleetFor}
	}
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
	t.Logf("a hot name since the failure: mean %v, p99 %v", mean(f.hotAfter), quantile(f.hotAfter, 0.99))
	require.Empty(t, missed)
}
