package main

import (
	"fmt"
	"slices"
	"time"
)

// The contenders over several servers. They have the names of those over one: no workload has both.
var (
	oursOverMany    = variant(ours, ours.Name, "`NewQuorum`")
	redsyncOverMany = variant(redsyncContender, redsyncContender.Name, "with a pool for each server, that is, Redlock")
	floorOverMany   = variant(floor, floor.Name, "EVALSHA of `return 1` to all servers at the same time, with the KEYS and ARGV that rwlock sends to "+
		"each, once to lock and once to unlock; the caller's goroutine sends to one of them")
	overMany = []*Contender{oursOverMany, redsyncOverMany, floorOverMany}
)

var quorumColumns = []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests}

// quorumWorkloads run over as many servers as the parameter says.
var quorumWorkloads = []*Workload{
	{
		Name: "quorum-write-pair", Quorum: true, Title: "Uncontended write pair over a quorum",
		About:     "One goroutine locks and unlocks one name again and again. Server time and requests are those of all servers together.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 15,
		Contenders: overMany, Columns: quorumColumns, Against: []*Contender{floorOverMany, redsyncOverMany},
		Run: pairOf(Write, pairSpan),
	}, {
		Name: "quorum-read-pair", Quorum: true, Title: "Uncontended read pair over a quorum",
		About:     "As above, for reading. Redsync has no read mode.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 15,
		Contenders: []*Contender{oursOverMany, floorOverMany}, Columns: quorumColumns,
		Against: []*Contender{floorOverMany}, Run: pairOf(Read, pairSpan),
	}, {
		Name: "quorum-distant-pair", Quorum: true, Title: "Uncontended write pair over a quorum, a millisecond away",
		About:     "As the write pair, through a proxy for each server that delays every byte by half a millisecond each way.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 5,
		Contenders: overMany, Columns: []Metric{Latency, LatencyP99},
		Against: []*Contender{floorOverMany, redsyncOverMany}, Far: away(time.Millisecond),
		Run: pairOf(Write, distantSpan),
	}, {
		Name: "quorum-handover", Quorum: true, Title: "One write lock over a quorum, 16 goroutines",
		About: "16 goroutines lock and unlock one name as fast as they can for two seconds, with contexts that have a timeout. A handover is " +
			"a change of the holder; \"per second\" are the locks taken, again and again by the same goroutine included.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 3,
		Contenders: []*Contender{oursOverMany, redsyncOverMany},
		Columns:    []Metric{Handovers, Rate, Fairness, LongestWait, ServerTime, Requests},
		Against:    []*Contender{redsyncOverMany}, Run: together(Load{Goroutines: 16, Span: 2 * time.Second}),
	}, {
		Name: "quorum-frozen", Quorum: true, Title: "A minority of the servers frozen (SIGSTOP), 64 goroutines on names of their own",
		About: "Of three servers one is stopped, of five two, while the goroutines work; the figures are for the 1.5 s from then on. \"× all " +
			"well\" is the rate in relation to that before. \"× alone\" compares with a quorum whose other servers refuse connections from the " +
			"start. A call is a Lock or an Unlock.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 5,
		Contenders: []*Contender{oursOverMany},
		Columns:    []Metric{Rate, AgainstWell, AgainstFew, P99AgainstFew, CallMax}, Run: frozen,
	}, {
		Name: "quorum-waiters", Quorum: true, Title: "1,000 idle waiters over a quorum, lease 30 s",
		About: "Goroutines wait for a lock that is not released. The home is the server that keeps the queue of the name; of the others, the " +
			"figure is for the one that is asked most.",
		ParamName: "servers", Params: []int{3, 5}, Rounds: 1,
		Contenders: []*Contender{oursOverMany}, Columns: []Metric{HomeRequests, OtherRequests},
		Run: idleWaiters(1000), Watch: 20 * time.Second,
	},
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
