package main

import (
	"fmt"
	"math"
	"strings"
)

// of works a figure out for one contender; NaN if it did not take part.
type of func(r *Results, contender string) float64

// Target is a figure that the library is to reach. Each is worked out in the same way for every contender.
type Target struct {
	What    string
	Unit    string
	AtLeast bool // otherwise at most

	Goal    string                   // in words
	Explain bool                     // whether to say what the goal comes to in this run
	Limit   func(r *Results) float64 // in figures
	Of      of
}

// The other fair library, which is not among the contenders, made so many handovers per second with 16 and with 256
// goroutines where the floor made so many pairs with 64. In relation to the floor that carries over to other machines.
const (
	fair16, fair256 = 5200.0, 990.0
	fairFloor       = 21500.0
)

var targets = []Target{
	{What: "server time of a write pair, in large pipelines", Unit: "× bare", Goal: "≤ 2.2 × bare", Limit: fixed(2.2), Of: against(bare, "write-server", 0, ServerTime)},
	{What: "server time of a read pair, in large pipelines", Unit: "× bare", Goal: "≤ 2.0 × bare", Limit: fixed(2.0), Of: against(bare, "read-server", 0, ServerTime)},
	{What: "server time of a write pair, one by one", Unit: "× bare", Goal: "≤ 2.2 × bare", Limit: fixed(2.2), Of: against(bare, "write-pair", 0, ServerTime)},
	{What: "server time of a read pair, one by one", Unit: "× bare", Goal: "≤ 2.0 × bare", Limit: fixed(2.0), Of: against(bare, "read-pair", 0, ServerTime)},
	{What: "latency of a write pair", Unit: "× floor", Goal: "≤ 1.20 × floor", Limit: fixed(1.2), Of: against(floor, "write-pair", 0, Latency)},
	{What: "latency of a read pair", Unit: "× floor", Goal: "≤ 1.20 × floor", Limit: fixed(1.2), Of: against(floor, "read-pair", 0, Latency)},
	{What: "latency of a write pair, context that cannot end", Unit: "× floor", Goal: "≤ 1.20 × floor", Limit: fixed(1.2), Of: against(floor, "write-pair-endless", 0, Latency)},
	{What: "latency of a read pair, context that cannot end", Unit: "× floor", Goal: "≤ 1.20 × floor", Limit: fixed(1.2), Of: against(floor, "read-pair-endless", 0, Latency)},
	{What: "allocations of a write pair, beyond the floor's", Goal: "≤ 12", Limit: fixed(12), Of: allocsBeyondFloor("write-pair")},
	{What: "allocations of a read pair, beyond the floor's", Goal: "≤ 12", Limit: fixed(12), Of: allocsBeyondFloor("read-pair")},
	{
		What: "server time of a read pair among 10,000 readers", Unit: "× among none", Goal: "≤ 1.2 × among none", Limit: fixed(1.2),
		Of: func(r *Results, c string) float64 {
			return r.ratio(cell{"readers", 10000, c}, cell{"readers", 0, c}, ServerTime)
		},
	},
	{
		What: "server time of a read pair among 10,000 readers", Unit: "× among 10", Goal: "≤ 1.2 × among 10", Limit: fixed(1.2),
		Of: func(r *Results, c string) float64 {
			return r.ratio(cell{"readers", 10000, c}, cell{"readers", 10, c}, ServerTime)
		},
	},
	{
		What: "handovers/s, 16 goroutines", Unit: "× floor", AtLeast: true, Goal: "≥ 1.5 × the other fair library", Explain: true,
		Limit: fixed(1.5 * fair16 / fairFloor), Of: againstFloor64(16),
	}, {
		What: "handovers/s, 256 goroutines", Unit: "× floor", AtLeast: true, Goal: "≥ 5 × the other fair library", Explain: true,
		Limit: fixed(5 * fair256 / fairFloor), Of: againstFloor64(256),
	},
	{What: "handovers/s, 16 goroutines", Unit: "× the fastest peer", AtLeast: true, Goal: "≥ the fastest unfair one", Limit: fixed(1), Of: againstFastest(16)},
	{What: "handovers/s, 256 goroutines", Unit: "× the fastest peer", AtLeast: true, Goal: "≥ the fastest unfair one", Limit: fixed(1), Of: againstFastest(256)},
	{What: "Jain's index, 16 goroutines", AtLeast: true, Goal: "≥ 0.99", Limit: fixed(0.99), Of: figure("handover", 16, Fairness)},
	{What: "Jain's index, 256 goroutines", AtLeast: true, Goal: "≥ 0.99", Limit: fixed(0.99), Of: figure("handover", 256, Fairness)},
	{
		What: "handovers/s, 256 goroutines", Unit: "× with 16", AtLeast: true, Goal: "≥ 0.9 × with 16", Limit: fixed(0.9),
		Of: func(r *Results, c string) float64 {
			return r.ratio(cell{"handover", 256, c}, cell{"handover", 16, c}, Rate)
		},
	},
	{
		What: "distinct names, 64 goroutines, AutoPipeline", Unit: "× rueidislock", AtLeast: true, Goal: "≥ rueidislock", Limit: fixed(1),
		Of: against(rueidislockContender, "distinct-autopipeline", 64, Rate),
	},
	{What: "scripts/s of 1,000 idle waiters, lease 30 s", Goal: "≤ 120", Limit: fixed(120), Of: figure("many-waiters", 0, RequestRate)},
	{What: "10,000 holds renewed, lease 30 s: client", Unit: "% of a core", Goal: "≤ 2 %", Limit: fixed(2), Of: figure("renewal", 0, ClientCPU)},
	{What: "10,000 holds renewed, lease 30 s: server", Unit: "% of a core", Goal: "≤ 2 %", Limit: fixed(2), Of: figure("renewal", 0, ServerCPU)},
	{What: "10,000 waiting readers let in: longest script", Unit: "ms", Goal: "≤ 5 ms", Limit: fixed(5), Of: figure("crowd", 10000, LongestRun)},
	{What: "10,000 waiting readers let in: all in", Unit: "ms", Goal: "≤ 500 ms", Limit: fixed(500), Of: figure("crowd", 10000, AllIn)},
	{
		What: "reader's wait among 8 writers that hold for 2 ms", Unit: "ms", Goal: "≤ 1.3 × one hold + 1 ms", Explain: true,
		Limit: func(r *Results) float64 {
			return 1.3*r.median(cell{"reader-among-writers", 0, ours.Name}, HoldTime) + 1
		},
		Of: figure("reader-among-writers", 0, ReaderWait),
	},
}

func fixed(limit float64) func(*Results) float64 {
	return func(*Results) float64 { return limit }
}

// againstFloor64 is the handover rate in relation to the pairs that the floor makes with 64 goroutines.
func againstFloor64(goroutines int) of {
	return func(r *Results, c string) float64 {
		return r.ratio(cell{"handover", goroutines, c}, cell{"handover", 64, floor.Name}, Rate)
	}
}

// figure is a metric as measured.
func figure(workload string, param int, metric Metric) of {
	return func(r *Results, c string) float64 { return r.median(cell{workload, param, c}, metric) }
}

// against is a metric in relation to base's of the same round.
func against(base *Contender, workload string, param int, metric Metric) of {
	return func(r *Results, c string) float64 {
		return r.ratio(cell{workload, param, c}, cell{workload, param, base.Name}, metric)
	}
}

func allocsBeyondFloor(workload string) of {
	return func(r *Results, c string) float64 {
		return r.median(cell{workload, 0, c}, Allocs) - r.median(cell{workload, 0, floor.Name}, Allocs)
	}
}

// againstFastest is the handover rate in relation to that of the fastest peer.
func againstFastest(goroutines int) of {
	return func(r *Results, c string) float64 {
		var fastest cell
		for _, peer := range contenders {
			at := cell{"handover", goroutines, peer.Name}
			if peer != ours && peer != floor && !(r.median(at, Rate) <= r.median(fastest, Rate)) && r.has(at) {
				fastest = at
			}
		}
		return r.ratio(cell{"handover", goroutines, c}, fastest, Rate)
	}
}

// targetsTable returns the targets that were measured: what was asked, what ours reached, and what the others did.
func targetsTable(r *Results) table {
	t := table{header: []string{"what", "target", "rwlock", "", "the others"}}
	for _, target := range targets {
		got, limit := target.Of(r, ours.Name), target.Limit(r)
		if math.IsNaN(got) {
			continue
		}
		goal := target.Goal
		if target.Explain {
			goal += fmt.Sprintf(": %s here", strings.TrimSpace(number(limit)+" "+target.Unit))
		}
		var others []string
		for _, c := range contenders {
			if v := target.Of(r, c.Name); c != ours && !math.IsNaN(v) {
				others = append(others, c.Name+" "+number(v))
			}
		}
		t.rows = append(t.rows, []string{
			target.What, goal, strings.TrimSpace(number(got) + " " + target.Unit), verdict(got, limit, target.AtLeast), strings.Join(others, ", "),
		})
	}
	return t
}

// verdict tells how far got is from limit.
func verdict(got, limit float64, atLeast bool) string {
	percent := 100 * math.Abs(got/limit-1)
	switch {
	case math.IsNaN(percent):
		return "–"
	case (got >= limit) == atLeast || got == limit:
		return fmt.Sprintf("met, %.0f %% to spare", percent)
	}
	return fmt.Sprintf("missed by %.0f %%", percent)
}
