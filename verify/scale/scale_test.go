package scale

import (
	"flag"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var whole = flag.Duration("whole", 0, "simulate 2,000 processes and 20 masters, for so long")

// slower is by how much the simulated masters are slower than measured, so that calls which take minutes to
// simulate load them as much as calls would that take days.
const slower = 200

// cost is what a script costs a simulated master: see the table in docs/scale.md.
func cost(name string, told int) time.Duration {
	us := map[string]int{"lock": 12, "rlock": 12, "unlock": 12, "runlock": 12, "renew": 9}[name]
	return time.Duration(us+5*told) * time.Microsecond * slower
}

func plan() Plan {
	p := Plan{
		Masters: 20, Processes: 2000, Duration: *whole, Think: 20 * time.Second, Work: 200 * time.Millisecond,
		Names: 5000, Hot: 20, HotShare: 0.4, Keepers: 1000, Trip: time.Millisecond, Cost: cost,
		Lease: 30 * time.Second, FailFor: 15 * time.Second,
	}
	if *whole == 0 {
		p.Processes, p.Keepers, p.Masters, p.Hot, p.Names, p.Duration = 100, 50, 4, 2, 50_000, 4*time.Minute
	}
	p.FailAt, p.RestartAt, p.RestartIn = p.Duration/4, p.Duration/2, p.Duration/4
	return p
}

// A line has what was predicted beside what the simulation came to.
type line struct {
	what                 string
	predicted, simulated float64
	within               float64 // of the prediction, as a part of it
}

// predict works figures out by hand, from the plan alone.
func predict(p Plan, r *Report) []line {
	seconds := p.Duration.Seconds()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	trips := 2 * p.Trip.Seconds()
	script := cost("lock", 0).Seconds()
	cycle := p.Think.Seconds() + p.Work.Seconds() + 2*(trips+script)

	// A process begins within the time that it thinks, and is away while it is started again.
	alive := 1 - (p.Think.Seconds()/2+away.Seconds())/seconds
	pairs := alive * float64(p.Processes) / cycle
	hot := pairs * p.HotShare / float64(p.Hot) // of one name, a second
	// A hot name is a queue with one server: M/G/1. The work is exponential; to hand over takes the release,
	// its way there, the script, and the message. That is when someone waits.
	handover := trips + script + cost("unlock", 1).Seconds()
	service := p.Work.Seconds() + handover
	load := hot * service
	second := 2*p.Work.Seconds()*p.Work.Seconds() + 2*p.Work.Seconds()*handover + handover*handover
	queue := hot * second / (2 * (1 - load))
	// Half of the holds that are kept are granted again only after the lease of the process that has crashed.
	renewals := (alive - p.Lease.Seconds()/2/seconds) * float64(p.Keepers) / (p.Lease.Seconds() / 3 * 0.95)
	perMaster := (2*pairs + renewals) / float64(p.Masters)
	busy := (2*pairs*script + renewals*cost("renew", 0).Seconds()) / float64(p.Masters)
	wait := busy * script / (2 * (1 - busy)) // M/D/1
	total := func(names ...string) (n float64) {
		for _, name := range names {
			n += float64(r.Scripts[name])
		}
		return n / seconds
	}
	var used time.Duration
	for _, b := range r.Busy {
		used += b
	}
	down := p.FailFor.Seconds() * pairs / float64(p.Masters)
	return []line{
		{"pairs/s", pairs, float64(r.Pairs) / seconds, 0.05},
		{"renewals/s", renewals, total("renew"), 0.1},
		{"scripts/s of one master", perMaster, (total("lock", "rlock", "unlock", "runlock", "renew", "reenter")) / float64(p.Masters), 0.15},
		{"a master is busy, %", 100 * busy, 100 * used.Seconds() / seconds / float64(p.Masters), 0.15},
		{"messages/s", load * hot * float64(p.Hot), float64(r.Messages) / seconds, 0.25},
		{"mean wait for a name that is free, ms", 1000 * (trips + script + wait), ms(Mean(r.Waits)), 0.15},
		{"mean wait for a hot name, ms", 1000 * (trips + script + wait + queue), ms(Mean(r.HotWaits)),
			0.2 + 8/math.Sqrt(float64(len(r.HotWaits)))},
		{"calls that meet the outage", down, float64(len(r.Outage)), 0.1 + 3/math.Sqrt(down)},
		{"longest wait in the outage, s", p.FailFor.Seconds() + 1, Quantile(r.Outage, 1).Seconds(), 0.5},
		{"holds lost", 0, float64(r.Lost), 0},
		{"calls failed", 0, float64(r.Failed), 0},
	}
}

// Thousands of processes on many masters, a master that fails and processes that are started again, half of
// which crash: nothing that the library promises is broken, and what it costs is what was predicted.
func TestWhatIsPredictedComesToPass(t *testing.T) {
	p := plan()
	begun := time.Now()
	r, err := Simulate(p, 1)
	require.NoError(t, err)
	require.Empty(t, r.Flaws)
	fmt.Println("| | predicted | simulated |\n|---|---|---|")
	var missed []string
	for _, l := range predict(p, r) {
		fmt.Printf("| %s | %.4g | %.4g |\n", l.what, l.predicted, l.simulated)
		if off := l.simulated - l.predicted; max(off, -off) > l.within*l.predicted {
			missed = append(missed, l.what)
		}
	}
	t.Logf("%v, took %v; a hot name since the failure: mean %v, p50 %v, p99 %v",
		r.Scripts, time.Since(begun).Round(time.Second),
		Mean(r.HotAfter), Quantile(r.HotAfter, 0.5), Quantile(r.HotAfter, 0.99))
	require.Empty(t, missed)
}
