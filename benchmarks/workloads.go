package main

import (
	"slices"
	"time"
)

// Sets of contenders and columns that several workloads have.
var (
	withReadMode = []*Contender{ours, classic}
	orBare       = []*Contender{ours, classic, bare}
	orFloor      = []*Contender{ours, classic, bare, floor}
	withoutFloor = without(contenders, floor)
	asking       = without(contenders, delegated) // the server, each time
	overGoRedis  = without(asking, rueidislock)
	peers        = []*Contender{redislock, rueidislock}
	oursAndPeers = []*Contender{ours, redislock, rueidislock}
	peersAndBare = []*Contender{ours, redislock, rueidislock, bare}

	pairColumns  = []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests, Calls, Bytes}
	loadColumns  = []Metric{Rate, ServerTime, WaitP50, WaitP99, Requests}
	zipfColumns  = []Metric{Rate, WaitP50, WaitP99, ServerTime}
	pipeColumns  = []Metric{ServerTime, Calls, Bytes}
	turnColumns  = []Metric{ServerTime, FirstPair, AgainstFirst, Requests, Calls}
	watchColumns = []Metric{RequestRate, CommandRate, ServerCPU, ClientCPU}
)

func without(all []*Contender, one *Contender) []*Contender {
	return slices.DeleteFunc(slices.Clone(all), func(c *Contender) bool { return c == one })
}

// The time of one turn of a pair, the servers being near or far.
const pairSpan, distantSpan = 120 * time.Millisecond, 600 * time.Millisecond

// workloads are all, in the order in which they run.
var workloads = []*Workload{
	{
		Name: "write-pair", Rounds: 21, Run: pairOf(Write, pairSpan),
		Contenders: contenders, Columns: pairColumns, Against: []*Contender{floor},
	}, {
		Name: "read-pair", Rounds: 21, Run: pairOf(Read, pairSpan),
		Contenders: []*Contender{ours, delegated, classic, bare, floor}, Columns: pairColumns,
		Against: []*Contender{floor},
	}, {
		Name: "write-reentry", Rounds: 9, Run: reentryOf(Write), Contenders: withReadMode, Columns: pairColumns,
	}, {
		Name: "read-reentry", Rounds: 9, Run: reentryOf(Read), Contenders: withReadMode, Columns: pairColumns,
	}, {
		Name: "write-server", Rounds: 15, Alone: true, Run: serverTime(Write, false),
		Contenders: overGoRedis, Columns: pipeColumns, Against: []*Contender{bare, floor},
	}, {
		Name: "read-server", Rounds: 15, Alone: true, Run: serverTime(Read, false),
		Contenders: orFloor, Columns: pipeColumns, Against: []*Contender{bare, floor},
	}, {
		Name: "readers", ParamName: "other readers", Params: []int{0, 10, 100, 1000, 10000}, Rounds: 7,
		Run: amongReaders, Lease: 10 * time.Minute, // no renewal meanwhile
		Contenders: []*Contender{ours, classic, floor}, Columns: []Metric{ServerTime, AgainstNone, Latency},
		Against: []*Contender{floor},
	}, {
		Name: "handover", ParamName: "goroutines", Params: []int{2, 16, 64, 256}, Rounds: 3,
		Run:        together(Load{Span: 2 * time.Second}),
		Contenders: contenders, Columns: []Metric{Rate, Fairness, LongestWait, ServerTime, Requests},
		Against: []*Contender{floor},
	}, {
		Name: "queued", ParamName: "waiters", Params: []int{2, 16, 64, 256}, Rounds: 11, Alone: true, Run: queued,
		Contenders: []*Contender{ours, bare}, Columns: []Metric{ServerTime, Calls}, Against: []*Contender{bare},
	}, {
		Name: "shared", ParamName: "% writers", Params: []int{0, 1, 10}, Rounds: 3, Run: shared,
		Contenders: contenders, Columns: []Metric{Rate, WaitP50, WaitP99, ServerTime, Requests}, Against: peers,
	}, {
		Name: "once", ParamName: "goroutines", Params: []int{1, 64}, Rounds: 9,
		Run:        together(Load{Draw: fresh, Span: 700 * time.Millisecond}),
		Contenders: contenders, Columns: []Metric{Rate, ServerTime, LockCall, Requests, Calls}, Against: peers,
	}, {
		Name: "write-server-once", Rounds: 15, Alone: true, Run: serverTime(Write, true),
		Contenders: overGoRedis, Columns: pipeColumns, Against: []*Contender{bare, floor},
	}, {
		Name: "read-server-once", Rounds: 15, Alone: true, Run: serverTime(Read, true),
		Contenders: orFloor, Columns: pipeColumns, Against: []*Contender{bare, floor},
	}, {
		Name: "turns", ParamName: "processes", Params: []int{1, 2, 4}, Rounds: 3,
		AutoPipeline: true, Alone: true, Run: turns(0),
		Contenders: orBare, Columns: turnColumns, Against: []*Contender{bare},
	}, {
		Name: "turns-read", ParamName: "processes", Params: []int{1, 2, 4}, Rounds: 3,
		AutoPipeline: true, Alone: true, Run: turns(100),
		Contenders: orBare, Columns: turnColumns, Against: []*Contender{bare},
	}, {
		Name: "processes", Rounds: 5, Alone: true, Run: processes(100, false, time.Second),
		Contenders: withoutFloor, Columns: loadColumns, Against: peers,
	}, {
		Name: "processes-reads", ParamName: "% reads", Params: []int{90, 99}, Rounds: 3,
		Alone: true, Run: processes(1000, false, 3*time.Second),
		Contenders: withoutFloor, Columns: loadColumns, Against: peers,
	}, {
		Name: "processes-own", Rounds: 3, Alone: true, Run: processes(250, true, time.Second),
		Contenders: withoutFloor, Columns: loadColumns, Against: peers,
	}, {
		Name: "recalls", Rounds: 5, Run: recalls, Contenders: []*Contender{ours, delegated},
		Columns: []Metric{WaitP99, WaitP50, HandoverP99, LongestHold, Rate, Requests},
	}, {
		Name: "cluster", ParamName: "processes", Params: []int{4, 16},
		Cluster: true, Rounds: 5, Alone: true, Run: handovers,
		Contenders: []*Contender{ours, oursByPublish}, Against: []*Contender{oursByPublish},
		Columns: []Metric{Rate, WaitP50, WaitP99, ServerTime, Between},
	}, {
		Name: "cluster-once", Cluster: true, Rounds: 5, Run: busy,
		Contenders: []*Contender{ours, redislock, bare}, Columns: []Metric{Latency, LatencyP99, Rate},
		Against: []*Contender{redislock},
	}, {
		Name: "zipf", Rounds: 3, Contenders: contenders, Columns: zipfColumns, Against: []*Contender{floor},
		Run: together(Load{Goroutines: 64, Draw: popular, To: 100_000, Span: time.Second}),
	}, {
		Name: "zipf-reads", Rounds: 3, Contenders: contenders, Columns: zipfColumns, Against: []*Contender{floor},
		Run: together(Load{Goroutines: 64, Draw: popular, To: 100_000, Reads: 90, Span: time.Second}),
	}, {
		Name: "distinct-autopipeline", ParamName: "goroutines", Params: []int{1, 64, 512}, Rounds: 3,
		AutoPipeline: true, Run: together(Load{Draw: own, Plain: true, Span: 700 * time.Millisecond}),
		Contenders: []*Contender{ours, redislock, rueidislock, bare, floor},
		Columns:    []Metric{Rate}, Against: []*Contender{floor, rueidislock},
	}, {
		Name: "reader-among-writers", Rounds: 3, Run: readerAmongWriters,
		Contenders: withReadMode, Columns: []Metric{ReaderWait, HoldTime, LongestWait},
	}, {
		Name: "crowd", ParamName: "readers", Params: []int{1000, 10000}, Rounds: 3, Run: crowd,
		Contenders: []*Contender{ours}, Columns: []Metric{AllIn, LongestRun},
	}, {
		Name: "round-trip", ParamName: "µs added", Params: []int{200, 1000, 5000}, Rounds: 3,
		Far: func(param int) time.Duration { return time.Duration(param) * time.Microsecond },
		Run: pairOf(Write, distantSpan), Contenders: asking, Columns: []Metric{Latency, LatencyP99},
		Against: []*Contender{floor},
	}, {
		Name: "busy", ParamName: "computing", Params: []int{0, 2, 8}, Rounds: 5, Run: busy,
		Contenders: peersAndBare, Columns: []Metric{Latency, LatencyP99, Rate},
		Against: []*Contender{redislock},
	}, {
		Name: "busy-far", ParamName: "computing", Params: []int{2, 8}, Rounds: 3,
		Far: away(2 * time.Millisecond), Run: busy,
		Contenders: peersAndBare, Columns: []Metric{Latency, LatencyP99, Rate},
		Against: []*Contender{redislock},
	}, {
		Name: "far", ParamName: "goroutines", Params: []int{256}, Rounds: 3, Far: away(8 * time.Millisecond),
		Run:        together(Load{Draw: own, Plain: true, Span: 2 * time.Second}),
		Contenders: oursAndPeers, Columns: []Metric{Rate}, Against: []*Contender{rueidislock},
	}, {
		Name: "waiters", ParamName: "waiters", Params: []int{100}, Rounds: 1,
		Run: idleWaiters(0), Watch: 20 * time.Second,
		Contenders: without(asking, floor), Columns: watchColumns,
	}, {
		Name: "many-waiters", ParamName: "waiters", Params: []int{1000, 20_000}, Rounds: 1,
		Run: idleWaiters(0), Watch: 20 * time.Second,
		Contenders: []*Contender{ours}, Columns: append(slices.Clone(watchColumns), Mutex),
	}, {
		Name: "renewal", ParamName: "holds", Params: []int{10_000, 100_000}, Rounds: 1,
		Run: renewal, Watch: 30 * time.Second,
		Contenders: []*Contender{ours, rueidislock},
		Columns:    []Metric{ClientCPU, ServerCPU, RequestRate, Mutex},
	}, {
		Name: "footprint", Rounds: 1, Run: footprint, Contenders: without(asking, floor),
		Columns: []Metric{HeldWriting, HeldReading, PerWaiter, LeftBytes, LeftKeys, Stays},
	}, {
		Name: "client-memory", Rounds: 5, Alone: true, Run: clientMemory,
		Contenders: []*Contender{ours, rueidislock},
		Columns:    []Metric{PerHold, AfterHolds, AfterWaiters, LeftFew, LeftMany, LostFew, LostMany},
	},

	// Over as many servers as the parameter says.
	{
		Name: "quorum-write-pair", Quorum: true, ParamName: "servers", Params: []int{3, 5}, Rounds: 15,
		Run: pairOf(Write, pairSpan), Contenders: []*Contender{ours, redsync, floor},
		Columns: []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests},
		Against: []*Contender{floor, redsync},
	}, {
		Name: "quorum-read-pair", Quorum: true, ParamName: "servers", Params: []int{3, 5}, Rounds: 15,
		Run: pairOf(Read, pairSpan), Contenders: []*Contender{ours, floor},
		Columns: []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests}, Against: []*Contender{floor},
	}, {
		Name: "quorum-distant-pair", Quorum: true, ParamName: "servers", Params: []int{3, 5}, Rounds: 5,
		Far: away(time.Millisecond), Run: pairOf(Write, distantSpan),
		Contenders: []*Contender{ours, redsync, floor}, Columns: []Metric{Latency, LatencyP99},
		Against: []*Contender{floor, redsync},
	}, {
		Name: "quorum-handover", Quorum: true, ParamName: "servers", Params: []int{3, 5}, Rounds: 3,
		Run:        together(Load{Goroutines: 16, Span: 2 * time.Second}),
		Contenders: []*Contender{ours, redsync}, Against: []*Contender{redsync},
		Columns: []Metric{Handovers, Rate, Fairness, LongestWait, ServerTime, Requests},
	}, {
		Name: "quorum-frozen", Quorum: true, ParamName: "servers", Params: []int{3, 5}, Rounds: 5, Run: frozen,
		Contenders: []*Contender{ours},
		Columns:    []Metric{Rate, AgainstWell, AgainstFew, P99AgainstFew, CallMax},
	}, {
		Name: "quorum-waiters", Quorum: true, ParamName: "servers", Params: []int{3, 5}, Rounds: 1,
		Run: idleWaiters(1000), Watch: 20 * time.Second,
		Contenders: []*Contender{ours}, Columns: []Metric{HomeRequests, OtherRequests},
	},
}

// away is how far away servers are, there and back.
func away(roundTrip time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return roundTrip }
}
