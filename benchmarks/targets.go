package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A figure is worked out in the same way for every contender.
type figure struct {
	of   func(r Results, contender string) float64 // NaN if it did not take part
	unit string
}

// figureOf is a metric as measured.
func figureOf(workload string, param int, metric Metric) figure {
	return figure{of: func(r Results, c string) float64 { return r.median(cell{workload, param, c}, metric) }}
}

// over is a metric in relation to base's of the same round.
func over(base *Contender, workload string, param int, metric Metric) figure {
	return figure{func(r Results, c string) float64 {
		return r.ratio(cell{workload, param, c}, cell{workload, param, base.Name}, metric)
	}, "× " + base.Name}
}

// overFastest is a metric in relation to that of the fastest peer, which has the highest rate or the least
// latency.
func overFastest(workload string, param int, metric Metric) figure {
	return figure{func(r Results, c string) float64 {
		var fastest cell
		best := math.NaN()
		for _, peer := range without(without(asking, ours), floor) {
			at := cell{workload, param, peer.Name}
			if v := r.median(at, metric); math.IsNaN(best) || (v > best) == (metric == Rate) && v != best {
				fastest, best = at, v
			}
		}
		return r.ratio(cell{workload, param, c}, fastest, metric)
	}, "× the fastest peer"}
}

// spread is the largest of the medians at several settings in relation to the smallest.
func spread(workload string, metric Metric, params ...int) figure {
	return figure{func(r Results, c string) float64 {
		var medians []float64
		for _, param := range params {
			medians = append(medians, r.median(cell{workload, param, c}, metric))
		}
		return slices.Max(medians) / slices.Min(medians) // NaN if one is
	}, "× the least"}
}

// allocsBeyondFloor are the allocations of a pair that the floor does not have.
func allocsBeyondFloor(workload string) figure {
	return figure{of: func(r Results, c string) float64 {
		return r.median(cell{workload, 0, c}, Allocs) - r.median(cell{workload, 0, floor.Name}, Allocs)
	}}
}

// in is the figure with another unit.
func (f figure) in(unit string) figure { return figure{f.of, unit} }

// text is a value of the figure with its unit.
func (f figure) text(v float64) string { return strings.TrimSpace(number(v) + " " + f.unit) }

// Target is a figure that the library is to reach.
type Target struct {
	figure
	What    string
	AtLeast bool   // otherwise at most
	Goal    string // what the limit is, if it depends on the run
	Limit   func(r Results) float64
}

// within is a target that the figure does not exceed a limit that depends on the run.
func (f figure) within(goal string, limit func(r Results) float64, what string) Target {
	return Target{figure: f, What: what, Goal: goal, Limit: limit}
}

// atMost is a target that the figure does not exceed a limit.
func (f figure) atMost(limit float64, what string) Target {
	return f.within("", func(Results) float64 { return limit }, what)
}

// atLeast is a target that the figure reaches a limit.
func (f figure) atLeast(limit float64, what string) Target {
	t := f.atMost(limit, what)
	t.AtLeast = true
	return t
}

// atMostAt is a target for each setting, which the text names.
func atMostAt(params []int, limit float64, what string, figure func(param int) figure) (all []Target) {
	for _, param := range params {
		all = append(all, figure(param).atMost(limit, fmt.Sprintf(what, number(float64(param)))))
	}
	return all
}

// beyond is a limit above what ours measured of a metric of the client's memory, by the KB by which the
// process's memory differs from one garbage collection to the next.
func beyond(metric Metric) func(Results) float64 {
	const heapNoise = 100
	return func(r Results) float64 { return r.median(cell{"client-memory", 0, ours.Name}, metric) + heapNoise }
}

var targets = slices.Concat(
	[]Target{
		over(bare, "write-server-once", 0, ServerTime).
			atMost(2.4, "server time of a name's first write pair, in large pipelines"),
		over(bare, "read-server-once", 0, ServerTime).
			atMost(2.7, "server time of a name's first read pair, in large pipelines"),
		over(bare, "write-server", 0, ServerTime).
			atMost(2.0, "server time of a write pair again and again, in large pipelines"),
		over(bare, "read-server", 0, ServerTime).
			atMost(2.2, "server time of a read pair again and again, in large pipelines"),
	},
	atMostAt([]int{2, 4}, 1.15, "server time of a write pair on names that %s processes take in turns",
		func(n int) figure { return figureOf("turns", n, AgainstFirst).in("× first pair") }),
	atMostAt([]int{2, 4}, 1.15, "server time of a read pair on names that %s processes take in turns",
		func(n int) figure { return figureOf("turns-read", n, AgainstFirst).in("× first pair") }),
	atMostAt([]int{10, 1000, 10_000}, 1.25, "server time of a read pair among %s readers",
		func(n int) figure { return figureOf("readers", n, AgainstNone).in("× among none") }),
	atMostAt([]int{2, 16, 64, 256}, 8, "server time of a handover's two scripts, %s waiters",
		func(n int) figure { return over(bare, "queued", n, ServerTime) }),
	[]Target{
		spread("queued", ServerTime, 2, 16, 64, 256).
			atMost(1.2, "server time of a handover, the most of 2 to 256 waiters"),
		over(rueidislock, "once", 64, Rate).atLeast(1, "each name once, 64 goroutines"),
		over(redislock, "once", 64, Rate).atLeast(1.3, "each name once, 64 goroutines"),
		over(redislock, "processes", 0, Rate).atLeast(1, "pairs/s of 4 processes on 100 names"),
		over(rueidislock, "processes", 0, WaitP99).atMost(1, "p99 of the wait of 4 processes on 100 names"),
		overFastest("handover", 16, Rate).atLeast(1, "handovers/s, 16 goroutines"),
		overFastest("handover", 256, Rate).atLeast(1, "handovers/s, 256 goroutines"),
		figureOf("handover", 16, Fairness).atLeast(0.99, "Jain's index, 16 goroutines"),
		figureOf("handover", 256, Fairness).atLeast(0.99, "Jain's index, 256 goroutines"),
		over(floor, "write-pair", 0, Latency).
			atMost(1.2, "latency of a write pair, context that can be cancelled"),
		over(floor, "read-pair", 0, Latency).
			atMost(1.2, "latency of a read pair, context that can be cancelled"),
		allocsBeyondFloor("write-pair").atMost(12, "allocations of a write pair, beyond the floor's"),
		allocsBeyondFloor("read-pair").atMost(12, "allocations of a read pair, beyond the floor's"),
		figureOf("footprint", 0, LeftKeys).atMost(1, "keys left behind by a name used once"),
		figureOf("footprint", 0, LeftBytes).in("B").atMost(200, "left behind by a name used once"),
		figureOf("footprint", 0, Stays).in("s").atMost(240, "how long that stays after the lease"),
		figureOf("client-memory", 0, LeftMany).in("KB").within("≤ after 1,000 + 100 KB", beyond(LeftFew),
			"client memory after 20,000 names were used and released"),
		figureOf("client-memory", 0, LostMany).in("KB").within("≤ after 1,000 + 100 KB", beyond(LostFew),
			"client memory after 20,000 names were lost and released"),
		figureOf("client-memory", 0, AfterHolds).in("% of the peak").
			atMost(10, "client memory after 10,000 holds were released"),
		figureOf("client-memory", 0, AfterWaiters).in("% of the peak").
			atMost(10, "client memory after 10,000 waiters gave up"),
		figureOf("client-memory", 0, PerHold).in("B").atMost(1536, "client memory of a name held"),
		over(rueidislock, "distinct-autopipeline", 64, Rate).
			atLeast(1, "distinct names, 64 goroutines, AutoPipeline"),
		figureOf("many-waiters", 1000, RequestRate).in("scripts/s").
			atMost(120, "1,000 idle waiters, lease 30 s"),
		figureOf("renewal", 10_000, ClientCPU).in("% of a core").
			atMost(2, "10,000 holds renewed, lease 30 s: client"),
		figureOf("renewal", 10_000, ServerCPU).in("% of a core").
			atMost(2, "10,000 holds renewed, lease 30 s: server"),
		figureOf("renewal", 100_000, ClientCPU).in("% of a core").
			atMost(10, "100,000 holds renewed, lease 30 s: client"),
		figureOf("renewal", 100_000, ServerCPU).in("% of a core").
			atMost(10, "100,000 holds renewed, lease 30 s: server"),
		figureOf("renewal", 100_000, Mutex).in("ms").
			atMost(1, "the longest time that the mutex is locked: 100,000 holds renewed"),
		figureOf("many-waiters", 20_000, Mutex).in("ms").
			atMost(5, "the longest time that the mutex is locked: 20,000 waiters give up"),
		over(oursByPublish, "cluster", 4, Rate).in("× by PUBLISH").
			atLeast(1.4, "pairs/s of 4 processes on 12 names of a cluster, grants by SPUBLISH"),
		over(oursByPublish, "cluster", 16, Rate).in("× by PUBLISH").
			atLeast(1.4, "pairs/s of 16 processes"),
		over(oursByPublish, "cluster", 16, Between).in("× by PUBLISH").
			atMost(0.01, "bytes between the nodes for each of them"),
		over(redislock, "cluster-once", 0, Latency).atMost(1.6, "latency of a pair on new names of a cluster"),
		figureOf("crowd", 10_000, LongestRun).in("ms").
			atMost(5, "10,000 waiting readers let in: longest script"),
		figureOf("crowd", 10_000, AllIn).in("ms").atMost(500, "10,000 waiting readers let in: all in"),
		over(redislock, "busy", 0, Latency).atMost(1.6, "latency of a pair on new names"),
		over(redislock, "busy", 2, Latency).atMost(1.6, "the same beside 2 goroutines that compute"),
		over(redislock, "busy", 2, Rate).atLeast(0.6, "its pairs/s"),
		over(redislock, "busy", 8, Latency).atMost(1.6, "the same beside 8"),
		over(redislock, "busy", 8, Rate).atLeast(0.6, "its pairs/s"),
		over(redislock, "busy-far", 2, Latency).atMost(1.15, "beside 2, the server 1 ms away"),
		over(redislock, "busy-far", 2, Rate).atLeast(0.87, "its pairs/s"),
		over(redislock, "busy-far", 8, Latency).atMost(1.15, "beside 8, the server 1 ms away"),
		over(redislock, "busy-far", 8, Rate).atLeast(0.87, "its pairs/s"),
		over(rueidislock, "far", 256, Rate).
			atLeast(1, "pairs/s on distinct names, 256 goroutines, the server 4 ms away"),
		figureOf("reader-among-writers", 0, ReaderWait).in("ms").within("≤ 1.3 × one hold + 1 ms",
			func(r Results) float64 {
				return 1.3*r.median(cell{"reader-among-writers", 0, ours.Name}, HoldTime) + 1
			}, "reader's wait among 8 writers that hold for 2 ms"),
	},
)

// delegatedTargets are those of ours with delegations.
var delegatedTargets = []Target{
	overFastest("write-pair", 0, Latency).atMost(0.1, "latency of a write pair"),
	overFastest("read-pair", 0, Latency).atMost(0.1, "latency of a read pair"),
	overPlain("write-pair", 0, Latency).atMost(0.05, "latency of a write pair"),
	overPlain("read-pair", 0, Latency).atMost(0.05, "latency of a read pair"),
	overFastest("shared", 0, Rate).in("× the fastest peer on 1,000 names").
		atLeast(5, "pairs/s, 16 goroutines read one name"),
	figureOf("shared", 0, Requests).atMost(0.001, "requests for each of them"),
	overFastest("handover", 16, Rate).atLeast(10, "handovers/s, 16 goroutines"),
	figureOf("handover", 16, Fairness).atLeast(0.99, "Jain's index, 16 goroutines"),
	over(rueidislock, "processes-reads", 99, Rate).
		atLeast(3, "pairs/s of 4 processes on 1,000 names, 99 % reads"),
	over(rueidislock, "processes-own", 0, Rate).atLeast(5, "pairs/s of 4 processes with 250 names each"),
	overPlain("processes", 0, Rate).atLeast(0.9, "pairs/s of 4 processes on 100 names"),
	overPlain("processes", 0, WaitP99).atMost(1.2, "p99 of the wait of 4 processes on 100 names"),
	overPlain("once", 1, Rate).atLeast(0.97, "each name once, 1 goroutine"),
	overPlain("once", 64, Rate).atLeast(0.97, "each name once, 64 goroutines"),
	figureOf("recalls", 0, WaitP99).in("ms").within("≤ two handovers + the longest hold",
		func(r Results) float64 {
			at := cell{"recalls", 0, delegated.Name}
			return 2*r.median(at, HandoverP99) + r.median(at, LongestHold)
		}, "p99 of a writer's wait behind 4 processes that read without a pause"),
}

// overPlain is a metric in relation to that of ours without delegations.
func overPlain(workload string, param int, metric Metric) figure {
	return over(ours, workload, param, metric).in("× without")
}

var quorumTargets = slices.Concat(quorumTargetsOver(3), quorumTargetsOver(5))

func quorumTargetsOver(n int) []Target {
	servers, frozen := fmt.Sprintf(", %d servers", n), fmt.Sprintf(", %d of %d servers frozen", n/2, n)
	return []Target{
		over(floor, "quorum-write-pair", n, Latency).atMost(1.3, "latency of a write pair"+servers),
		over(floor, "quorum-read-pair", n, Latency).atMost(1.3, "latency of a read pair"+servers),
		over(redsync, "quorum-write-pair", n, Latency).atMost(1, "latency of a write pair"+servers),
		over(floor, "quorum-distant-pair", n, Latency).
			atMost(1.3, "latency of a write pair, servers 1 ms away"+servers),
		over(redsync, "quorum-distant-pair", n, Latency).
			atMost(1, "latency of a write pair, servers 1 ms away"+servers),
		over(redsync, "quorum-handover", n, Handovers).atLeast(3, "handovers/s, 16 goroutines"+servers),
		over(redsync, "quorum-handover", n, Rate).atLeast(1, "locks/s, 16 goroutines on one name"+servers),
		figureOf("quorum-handover", n, Fairness).atLeast(0.99, "Jain's index, 16 goroutines"+servers),
		figureOf("quorum-frozen", n, AgainstWell).in("× all well").atLeast(0.8, "pairs/s"+frozen),
		figureOf("quorum-frozen", n, P99AgainstFew).in("× the others alone").atMost(1.1, "p99 of a call"+frozen),
		figureOf("quorum-waiters", n, OtherRequests).in("requests/s").
			atMost(1, "1,000 idle waiters: on each server but the home"+servers),
	}
}

// targetsTable returns those of some targets that were measured: what was asked, what c reached, and what the
// others did.
func targetsTable(targets []Target, r Results, c *Contender) table {
	t := table{header: []string{"what", "target", c.Name, "", "the others"}}
	for _, target := range targets {
		got, limit := target.of(r, c.Name), target.Limit(r)
		if math.IsNaN(got) {
			continue
		}
		goal := "≤ " + target.text(limit)
		switch {
		case target.AtLeast:
			goal = "≥ " + target.text(limit)
		case target.Goal != "":
			goal = target.Goal + ": " + target.text(limit) + " here"
		}
		var others []string
		for _, other := range append(slices.Clone(contenders), oursByPublish) {
			if v := target.of(r, other.Name); other != c && !math.IsNaN(v) {
				others = append(others, other.Name+" "+number(v))
			}
		}
		t.rows = append(t.rows, []string{target.What, goal, target.text(got), verdict(got, limit, target.AtLeast),
			strings.Join(others, ", ")})
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
