package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// of works a figure out for one contender; NaN if it did not take part.
type of func(r Results, contender string) float64

// Target is a figure that the library is to reach. Each is worked out in the same way for every contender.
type Target struct {
	What    string
	Unit    string
	AtLeast bool // otherwise at most

	Goal    string                  // in words
	Explain bool                    // whether to say what the goal comes to in this run
	Limit   func(r Results) float64 // in figures
	Of      of
}

// heapNoise is by how many KB the process's memory differs from one garbage collection to the next.
const heapNoise = 100

var targets = slices.Concat(
	[]Target{
		atMost(2.4, "× bare", "server time of a name's first write pair, in large pipelines",
			against(bare, "write-server-once", 0, ServerTime)),
		atMost(2.7, "× bare", "server time of a name's first read pair, in large pipelines",
			against(bare, "read-server-once", 0, ServerTime)),
		atMost(2.0, "× bare", "server time of a write pair again and again, in large pipelines",
			against(bare, "write-server", 0, ServerTime)),
		atMost(2.2, "× bare", "server time of a read pair again and again, in large pipelines",
			against(bare, "read-server", 0, ServerTime)),
	},
	forEach([]int{2, 4}, "server time of a write pair on names that %s processes take in turns",
		func(n int, what string) Target {
			return atMost(1.15, "× first pair", what, figure("turns", n, AgainstFirst))
		}),
	forEach([]int{2, 4}, "server time of a read pair on names that %s processes take in turns",
		func(n int, what string) Target {
			return atMost(1.15, "× first pair", what, figure("turns-read", n, AgainstFirst))
		}),
	forEach([]int{10, 1000, 10_000}, "server time of a read pair among %s readers",
		func(n int, what string) Target {
			return atMost(1.25, "× among none", what, figure("readers", n, AgainstNone))
		}),
	forEach([]int{2, 16, 64, 256}, "server time of a handover's two scripts, %s waiters",
		func(n int, what string) Target {
			return atMost(8, "× bare", what, against(bare, "queued", n, ServerTime))
		}),
	[]Target{
		atMost(1.2, "× the least", "server time of a handover, the most of 2 to 256 waiters",
			spread("queued", ServerTime, 2, 16, 64, 256)),
		atLeast(1, "× rueidislock", "each name once, 64 goroutines",
			against(rueidislockContender, "once", 64, Rate)),
		atLeast(1.3, "× redislock", "each name once, 64 goroutines", against(redislockContender, "once", 64, Rate)),
		atLeast(1, "× redislock", "pairs/s of 4 processes on 100 names",
			against(redislockContender, "processes", 0, Rate)),
		atMost(1, "× rueidislock", "p99 of the wait of 4 processes on 100 names",
			against(rueidislockContender, "processes", 0, WaitP99)),
		atLeast(1, fastestPeer, "handovers/s, 16 goroutines", againstFastest("handover", 16, Rate)),
		atLeast(1, fastestPeer, "handovers/s, 256 goroutines", againstFastest("handover", 256, Rate)),
		atLeast(0.99, "", "Jain's index, 16 goroutines", figure("handover", 16, Fairness)),
		atLeast(0.99, "", "Jain's index, 256 goroutines", figure("handover", 256, Fairness)),
		atMost(1.2, "× floor", "latency of a write pair, context that can be cancelled",
			against(floor, "write-pair", 0, Latency)),
		atMost(1.2, "× floor", "latency of a read pair, context that can be cancelled",
			against(floor, "read-pair", 0, Latency)),
		atMost(12, "", "allocations of a write pair, beyond the floor's", allocsBeyondFloor("write-pair")),
		atMost(12, "", "allocations of a read pair, beyond the floor's", allocsBeyondFloor("read-pair")),
		atMost(1, "", "keys left behind by a name used once", figure("footprint", 0, LeftKeys)),
		atMost(200, "B", "left behind by a name used once", figure("footprint", 0, LeftBytes)),
		atMost(240, "s", "how long that stays after the lease", figure("footprint", 0, Stays)),
		{
			What: "client memory after 20,000 names were used and released", Unit: "KB",
			Goal: "≤ after 1,000 + 100 KB", Explain: true,
			Limit: beyond(heapNoise, LeftFew), Of: figure("client-memory", 0, LeftMany),
		}, {
			What: "client memory after 20,000 names were lost and released", Unit: "KB",
			Goal: "≤ after 1,000 + 100 KB", Explain: true,
			Limit: beyond(heapNoise, LostFew), Of: figure("client-memory", 0, LostMany),
		},
		atMost(10, "% of the peak", "client memory after 10,000 holds were released",
			figure("client-memory", 0, AfterHolds)),
		atMost(10, "% of the peak", "client memory after 10,000 waiters gave up",
			figure("client-memory", 0, AfterWaiters)),
		atMost(1536, "B", "client memory of a name held", figure("client-memory", 0, PerHold)),
		atLeast(1, "× rueidislock", "distinct names, 64 goroutines, AutoPipeline",
			against(rueidislockContender, "distinct-autopipeline", 64, Rate)),
		atMost(120, "scripts/s", "1,000 idle waiters, lease 30 s", figure("many-waiters", 1000, RequestRate)),
		atMost(2, "% of a core", "10,000 holds renewed, lease 30 s: client", figure("renewal", 10_000, ClientCPU)),
		atMost(2, "% of a core", "10,000 holds renewed, lease 30 s: server", figure("renewal", 10_000, ServerCPU)),
		atMost(10, "% of a core", "100,000 holds renewed, lease 30 s: client", figure("renewal", 100_000, ClientCPU)),
		atMost(10, "% of a core", "100,000 holds renewed, lease 30 s: server", figure("renewal", 100_000, ServerCPU)),
		atMost(1, "ms", "the longest time that the mutex is locked: 100,000 holds renewed",
			figure("renewal", 100_000, Mutex)),
		atMost(5, "ms", "the longest time that the mutex is locked: 20,000 waiters give up",
			figure("many-waiters", 20_000, Mutex)),
		atLeast(1.4, "× by PUBLISH", "pairs/s of 4 processes on 12 names of a cluster, grants by SPUBLISH",
			against(oursByPublish, "cluster", 0, Rate)),
		atMost(0.01, "× by PUBLISH", "bytes between the nodes for each of them",
			against(oursByPublish, "cluster", 0, Between)),
		atMost(5, "ms", "10,000 waiting readers let in: longest script", figure("crowd", 10_000, LongestRun)),
		atMost(500, "ms", "10,000 waiting readers let in: all in", figure("crowd", 10_000, AllIn)),
		atMost(1.6, "× redislock", "latency of a pair on new names",
			against(redislockContender, "busy", 0, Latency)),
		atMost(1.6, "× redislock", "the same beside 2 goroutines that compute",
			against(redislockContender, "busy", 2, Latency)),
		atLeast(0.6, "× redislock", "its pairs/s", against(redislockContender, "busy", 2, Rate)),
		atMost(1.6, "× redislock", "the same beside 8", against(redislockContender, "busy", 8, Latency)),
		atLeast(0.6, "× redislock", "its pairs/s", against(redislockContender, "busy", 8, Rate)),
		atMost(1.15, "× redislock", "beside 2, the server 1 ms away",
			against(redislockContender, "busy-far", 2, Latency)),
		atLeast(0.87, "× redislock", "its pairs/s", against(redislockContender, "busy-far", 2, Rate)),
		atMost(1.15, "× redislock", "beside 8, the server 1 ms away",
			against(redislockContender, "busy-far", 8, Latency)),
		atLeast(0.87, "× redislock", "its pairs/s", against(redislockContender, "busy-far", 8, Rate)),
		atLeast(1, "× rueidislock", "pairs/s on distinct names, 256 goroutines, the server 4 ms away",
			against(rueidislockContender, "far", 256, Rate)),
		{
			What: "reader's wait among 8 writers that hold for 2 ms", Unit: "ms", Goal: "≤ 1.3 × one hold + 1 ms",
			Explain: true,
			Limit: func(r Results) float64 {
				return 1.3*r.median(cell{"reader-among-writers", 0, ours.Name}, HoldTime) + 1
			},
			Of: figure("reader-among-writers", 0, ReaderWait),
		},
	},
)

// delegatedTargets are those of ours with delegations.
var delegatedTargets = []Target{
	atMost(0.1, fastestPeer, "latency of a write pair", againstFastest("write-pair", 0, Latency)),
	atMost(0.1, fastestPeer, "latency of a read pair", againstFastest("read-pair", 0, Latency)),
	atMost(0.05, withoutDelegation, "latency of a write pair", against(ours, "write-pair", 0, Latency)),
	atMost(0.05, withoutDelegation, "latency of a read pair", against(ours, "read-pair", 0, Latency)),
	atLeast(5, fastestPeer+" on 1,000 names", "pairs/s, 16 goroutines read one name",
		againstFastest("shared", 0, Rate)),
	atMost(0.001, "", "requests for each of them", figure("shared", 0, Requests)),
	atLeast(10, fastestPeer, "handovers/s, 16 goroutines", againstFastest("handover", 16, Rate)),
	atLeast(0.99, "", "Jain's index, 16 goroutines", figure("handover", 16, Fairness)),
	atLeast(3, "× rueidislock", "pairs/s of 4 processes on 1,000 names, 99 % reads",
		against(rueidislockContender, "processes-reads", 99, Rate)),
	atLeast(5, "× rueidislock", "pairs/s of 4 processes with 250 names each",
		against(rueidislockContender, "processes-own", 0, Rate)),
	atLeast(0.9, withoutDelegation, "pairs/s of 4 processes on 100 names", against(ours, "processes", 0, Rate)),
	atMost(1.2, withoutDelegation, "p99 of the wait of 4 processes on 100 names", against(ours, "processes", 0, WaitP99)),
	atLeast(0.97, withoutDelegation, "each name once, 1 goroutine", against(ours, "once", 1, Rate)),
	atLeast(0.97, withoutDelegation, "each name once, 64 goroutines", against(ours, "once", 64, Rate)),
	{
		What: "p99 of a writer's wait behind 4 processes that read without a pause", Unit: "ms",
		Goal: "≤ two handovers + the longest hold", Explain: true,
		Limit: func(r Results) float64 {
			at := cell{"recalls", 0, delegated.Name}
			return 2*r.median(at, HandoverP99) + r.median(at, LongestHold)
		},
		Of: figure("recalls", 0, WaitP99),
	},
}

const (
	fastestPeer       = "× the fastest peer"
	withoutDelegation = "× without"
)

// forEach returns a target for each setting. Its text names the setting.
func forEach(params []int, what string, target func(param int, what string) Target) (all []Target) {
	for _, param := range params {
		all = append(all, target(param, fmt.Sprintf(what, number(float64(param)))))
	}
	return all
}

// atMost is a target that a figure does not exceed a limit.
func atMost(limit float64, unit, what string, of of) Target {
	return Target{What: what, Unit: unit, Goal: strings.TrimSpace("≤ " + number(limit) + " " + unit),
		Limit: func(Results) float64 { return limit }, Of: of}
}

// atLeast is a target that a figure reaches a limit.
func atLeast(limit float64, unit, what string, of of) Target {
	t := atMost(limit, unit, what, of)
	t.AtLeast, t.Goal = true, strings.Replace(t.Goal, "≤", "≥", 1)
	return t
}

// beyond is a limit that is by so much above what ours measured of a metric of the client's memory.
func beyond(slack float64, metric Metric) func(Results) float64 {
	return func(r Results) float64 { return r.median(cell{"client-memory", 0, ours.Name}, metric) + slack }
}

// spread is the largest of the medians at several settings in relation to the smallest.
func spread(workload string, metric Metric, params ...int) of {
	return func(r Results, c string) float64 {
		least, most := math.Inf(1), math.Inf(-1)
		for _, param := range params {
			v := r.median(cell{workload, param, c}, metric)
			if math.IsNaN(v) {
				return v
			}
			least, most = min(least, v), max(most, v)
		}
		return most / least
	}
}

// figure is a metric as measured.
func figure(workload string, param int, metric Metric) of {
	return func(r Results, c string) float64 { return r.median(cell{workload, param, c}, metric) }
}

// against is a metric in relation to base's of the same round.
func against(base *Contender, workload string, param int, metric Metric) of {
	return func(r Results, c string) float64 {
		return r.ratio(cell{workload, param, c}, cell{workload, param, base.Name}, metric)
	}
}

func allocsBeyondFloor(workload string) of {
	return func(r Results, c string) float64 {
		return r.median(cell{workload, 0, c}, Allocs) - r.median(cell{workload, 0, floor.Name}, Allocs)
	}
}

// againstFastest is a metric in relation to that of the fastest peer, which has the highest rate or the least
// latency.
func againstFastest(workload string, param int, metric Metric) of {
	return func(r Results, c string) float64 {
		var fastest cell
		best := math.NaN()
		for _, peer := range without(without(asking, ours), floor) {
			at := cell{workload, param, peer.Name}
			if v := r.median(at, metric); math.IsNaN(best) || (v > best) == (metric == Rate) && v != best {
				fastest, best = at, v
			}
		}
		return r.ratio(cell{workload, param, c}, fastest, metric)
	}
}

// targetsTable returns those of some targets that were measured: what was asked, what c reached, and what the
// others did.
func targetsTable(targets []Target, r Results, c *Contender) table {
	t := table{header: []string{"what", "target", c.Name, "", "the others"}}
	for _, target := range targets {
		got, limit := target.Of(r, c.Name), target.Limit(r)
		if math.IsNaN(got) {
			continue
		}
		goal := target.Goal
		if target.Explain {
			goal += fmt.Sprintf(": %s here", strings.TrimSpace(number(limit)+" "+target.Unit))
		}
		var others []string
		for _, other := range append(slices.Clone(contenders), oursByPublish) {
			if v := target.Of(r, other.Name); other != c && !math.IsNaN(v) {
				others = append(others, other.Name+" "+number(v))
			}
		}
		t.rows = append(t.rows, []string{
			target.What, goal, strings.TrimSpace(number(got) + " " + target.Unit), verdict(got, limit, target.AtLeast),
			strings.Join(others, ", "),
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

var quorumTargets = slices.Concat(quorumTargetsOver(3), quorumTargetsOver(5))

func quorumTargetsOver(n int) []Target {
	servers := fmt.Sprintf(", %d servers", n)
	return []Target{
		atMost(1.3, "× floor", "latency of a write pair"+servers, against(floor, "quorum-write-pair", n, Latency)),
		atMost(1.3, "× floor", "latency of a read pair"+servers, against(floor, "quorum-read-pair", n, Latency)),
		atMost(1, "× redsync", "latency of a write pair"+servers,
			against(redsyncContender, "quorum-write-pair", n, Latency)),
		atMost(1.3, "× floor", "latency of a write pair, servers 1 ms away"+servers,
			against(floor, "quorum-distant-pair", n, Latency)),
		atMost(1, "× redsync", "latency of a write pair, servers 1 ms away"+servers,
			against(redsyncContender, "quorum-distant-pair", n, Latency)),
		atLeast(3, "× redsync", "handovers/s, 16 goroutines"+servers,
			against(redsyncContender, "quorum-handover", n, Handovers)),
		atLeast(1, "× redsync", "locks/s, 16 goroutines on one name"+servers,
			against(redsyncContender, "quorum-handover", n, Rate)),
		atLeast(0.99, "", "Jain's index, 16 goroutines"+servers, figure("quorum-handover", n, Fairness)),
		atLeast(0.8, "× all well", fmt.Sprintf("pairs/s, %d of %d servers frozen", n/2, n),
			figure("quorum-frozen", n, AgainstWell)),
		atMost(1.1, "× the others alone", fmt.Sprintf("p99 of a call, %d of %d servers frozen", n/2, n),
			figure("quorum-frozen", n, P99AgainstFew)),
		atMost(1, "requests/s", "1,000 idle waiters: on each server but the home"+servers,
			figure("quorum-waiters", n, OtherRequests)),
	}
}
