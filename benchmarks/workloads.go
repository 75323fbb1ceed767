package main

import (
	"fmt"
	"slices"
	"time"
)

var (
	withReadMode = []*Contender{ours, classic}
	withoutFloor = contenders[:len(contenders)-1]
	asking       = without(contenders, delegated) // the server, each time
	overGoRedis  = without(asking, rueidislockContender)

	orBare    = append(slices.Clone(withReadMode), bare)
	peers     = []*Contender{redislockContender, rueidislockContender}
	justFloor = []*Contender{floor}

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

// workloads are those over one server or one cluster, in the order in which they run.
var workloads = []*Workload{
	{
		Name: "write-pair", Title: "Uncontended write pair", Rounds: 21,
		About:      "One goroutine locks and unlocks one name again and again, with a context that can be cancelled.",
		Contenders: contenders, Columns: pairColumns, Against: justFloor, Run: pairOf(Write, pairSpan),
	}, {
		Name: "read-pair", Title: "Uncontended read pair", Rounds: 21,
		About:      "One goroutine locks and unlocks one name for reading again and again.",
		Contenders: []*Contender{ours, delegated, classic, bare, floor}, Columns: pairColumns,
		Against: justFloor, Run: pairOf(Read, pairSpan),
	}, {
		Name: "write-server", Title: "Server time of a write pair in large pipelines", Rounds: 15,
		About: "256 names are locked and then unlocked, again and again. What a contender sends for that is recorded, and then sent once more " +
			"to the emptied server, in pipelines of 256 requests, by a client that sleeps meanwhile: what is left is the time of the scripts. " +
			"rueidislock's own client cannot be recorded.",
		Contenders: overGoRedis, Columns: pipeColumns, Against: []*Contender{bare, floor},
		Alone: true, Run: serverTime(Write, false),
	}, {
		Name: "read-server", Title: "Server time of a read pair in large pipelines", Rounds: 15,
		About:      "As above, for reading; the bare mutex stands beside as the yardstick.",
		Contenders: append(slices.Clone(orBare), floor), Columns: pipeColumns,
		Against: []*Contender{bare, floor}, Alone: true, Run: serverTime(Read, false),
	}, {
		Name: "readers", Title: "Read pair among other readers", Rounds: 7,
		About:     "Other owners hold the same name for reading, from the same process, while one goroutine locks and unlocks it for reading.",
		ParamName: "other readers", Params: []int{0, 10, 100, 1000, 10000},
		Contenders: append(slices.Clone(withReadMode), floor),
		Columns:    []Metric{ServerTime, AgainstNone, Latency}, Against: justFloor,
		Lease: 10 * time.Minute, // no renewal meanwhile
		Run:   amongReaders,
	}, {
		Name: "handover", Title: "One write lock, many goroutines",
		About: "Goroutines lock and unlock one name as fast as they can for a fixed time, with contexts that have a timeout. The floor excludes nobody: it shows what " +
			"the client and the server could do at most.",
		ParamName: "goroutines", Params: []int{2, 16, 64, 256}, Rounds: 3,
		Contenders: contenders, Columns: []Metric{Rate, Fairness, LongestWait, ServerTime, Requests},
		Against: justFloor, Run: together(Load{Span: 2 * time.Second}),
	}, {
		Name: "queued", Title: "Server time of a handover in large pipelines",
		About: "32 names, each of which always has the given number of waiters, are handed over again and again. A handover is two scripts: " +
			"the release, which hands over, and the request, which queues up again. What is sent for that is recorded, and then sent once " +
			"more to the emptied server, in pipelines of 64 requests. The bare mutex is the yardstick, with uncontended pairs of 64 names.",
		ParamName: "waiters", Params: []int{2, 16, 64, 256}, Rounds: 11,
		Contenders: []*Contender{ours, bare}, Columns: []Metric{ServerTime, Calls}, Against: []*Contender{bare},
		Alone: true, Run: queued,
	}, {
		Name: "shared", Title: "One name that 16 goroutines read, and few write",
		About: "Each operation of a goroutine writes with the given chance, and reads otherwise. Contenders without a read mode would let " +
			"in one after the other: they have 1,000 names, of which each operation draws one.",
		ParamName: "% writers", Params: []int{0, 1, 10}, Rounds: 3,
		Contenders: contenders, Columns: []Metric{Rate, WaitP50, WaitP99, ServerTime, Requests},
		Against: peers, Run: shared,
	}, {
		Name: "once", Title: "Each name once, plain client",
		About: "Every goroutine locks and unlocks one new name after the other, as a service does that locks each order once. The " +
			"contexts have a timeout.",
		ParamName: "goroutines", Params: []int{1, 64}, Rounds: 9,
		Contenders: contenders, Columns: []Metric{Rate, ServerTime, LockCall, Requests, Calls},
		Against: peers, Run: together(Load{Draw: fresh, Span: 700 * time.Millisecond}),
	}, {
		Name: "write-server-once", Title: "Server time of a name's first write pair in large pipelines",
		Rounds:     15,
		About:      "As above, with names that were never used before.",
		Contenders: overGoRedis, Columns: pipeColumns, Against: []*Contender{bare, floor},
		Alone: true, Run: serverTime(Write, true),
	}, {
		Name: "read-server-once", Title: "Server time of a name's first read pair in large pipelines",
		Rounds:     15,
		About:      "As above, for reading; the bare mutex is the yardstick.",
		Contenders: append(slices.Clone(orBare), floor), Columns: pipeColumns,
		Against: []*Contender{bare, floor}, Alone: true, Run: serverTime(Read, true),
	}, {
		Name: "turns", Title: "Server time of a write pair on names that processes take in turns",
		About: "Each process in turn locks and unlocks the same 2,000 names once, with 256 goroutines over go-redis's AutoPipeline. Only " +
			"one process works at a time, so nobody waits. Before or after each turn the process does the same with new names: these are the " +
			"first pairs.",
		ParamName: "processes", Params: []int{1, 2, 4}, Rounds: 3, Contenders: orBare, Columns: turnColumns,
		Against: []*Contender{bare}, AutoPipeline: true, Alone: true, Run: turns(0),
	}, {
		Name: "turns-read", Title: "Server time of a read pair on names that processes take in turns",
		About:     "As above, for reading.",
		ParamName: "processes", Params: []int{1, 2, 4}, Rounds: 3, Contenders: orBare, Columns: turnColumns,
		Against: []*Contender{bare}, AutoPipeline: true, Alone: true, Run: turns(100),
	}, {
		Name: "processes", Title: "Four processes that share 100 names",
		About: "Each process has 16 goroutines. They lock and unlock names drawn at random, over the plain client (rueidislock: its own), " +
			"with contexts that have a timeout. The waits are the times of the lock calls.",
		Contenders: withoutFloor, Rounds: 5, Columns: loadColumns,
		Against: peers, Alone: true, Run: processes(100, false, time.Second),
	}, {
		Name: "processes-reads", Title: "Four processes that share 1,000 names, and mostly read",
		About: "As above, for three seconds, which three that are not measured precede: the first call on each name goes to the server. " +
			"The contenders without a read mode take their mutex for reading, too.",
		ParamName: "% reads", Params: []int{90, 99}, Rounds: 3, Contenders: withoutFloor,
		Columns: loadColumns, Against: peers, Alone: true, Run: processes(1000, false, 3*time.Second),
	}, {
		Name: "processes-own", Title: "Four processes with 250 names each",
		About:      "As above, but nobody uses the names of another process. All operations write.",
		Contenders: withoutFloor, Rounds: 3, Columns: loadColumns,
		Against: peers, Alone: true, Run: processes(250, true, time.Second),
	}, {
		Name: "recalls", Title: "A writer behind four processes that read without a pause",
		About: "Each process has 16 goroutines that lock one name for reading, hold it for a millisecond, and lock it again. Every 100 ms " +
			"another process locks it for writing, and before that has a handover on a name that nobody else uses, from one client of its to " +
			"another. The waits are the writer's; reads per second and requests are those of the readers.",
		Contenders: []*Contender{ours, delegated}, Rounds: 5,
		Columns: []Metric{WaitP99, WaitP50, HandoverP99, LongestHold, Rate, Requests}, Run: recalls,
	}, {
		Name: "cluster", Cluster: true, Title: "Four processes that share 12 names of a cluster with six masters",
		About: "As the processes that share 100 names. Names that are handed over often have shard channels, through which messages " +
			"go by SPUBLISH. A user without the right to use them has its grants by PUBLISH, as on servers older than Redis 7. The bytes are " +
			"what the nodes write beside what they send to clients, for each pair, their gossip included.",
		Contenders: []*Contender{ours, oursByPublish}, Rounds: 5,
		Columns: []Metric{Rate, WaitP50, WaitP99, ServerTime, Between}, Against: []*Contender{oursByPublish},
		Alone: true, Run: processes(12, false, time.Second),
	}, {
		Name: "zipf", Title: "100,000 names, a few of them much wanted",
		About: "64 goroutines lock and unlock names drawn from Zipf's distribution with exponent 1.1, with contexts that have a timeout: " +
			"every seventh operation is on the first name.",
		Rounds: 3, Contenders: contenders, Columns: zipfColumns, Against: justFloor,
		Run: together(Load{Goroutines: 64, Draw: popular, To: 100_000, Span: time.Second}),
	}, {
		Name: "zipf-reads", Title: "100,000 names, a few of them much wanted, 90 % reads",
		About:  "As above. The contenders without a read mode take their mutex for reading, too.",
		Rounds: 3, Contenders: contenders, Columns: zipfColumns, Against: justFloor,
		Run: together(Load{Goroutines: 64, Draw: popular, To: 100_000, Reads: 90, Span: time.Second}),
	}, {
		Name: "distinct-autopipeline", Title: "Distinct names, AutoPipeline",
		About:     "Every goroutine locks and unlocks a name of its own over go-redis's AutoPipeline (rueidislock: its own client).",
		ParamName: "goroutines", Params: []int{1, 64, 512}, Rounds: 3,
		Contenders: []*Contender{ours, redislockContender, rueidislockContender, bare, floor},
		Columns:    []Metric{Rate}, Against: []*Contender{floor, rueidislockContender},
		AutoPipeline: true, Run: together(Load{Draw: own, Plain: true, Span: 700 * time.Millisecond}),
	}, {
		Name: "reader-among-writers", Title: "A reader among 8 writers",
		About: "8 goroutines lock one name for writing, hold it for 2 ms, and ask again at once, while one more locks it for reading " +
			"every 5 ms.",
		Contenders: withReadMode, Rounds: 3,
		Columns: []Metric{ReaderWait, HoldTime, LongestWait}, Run: readerAmongWriters,
	}, {
		Name: "crowd", Title: "10,000 waiting readers let in at once",
		About: fmt.Sprintf("Goroutines wait to read behind one writer; it unlocks. The longest script is read from the server's slow log, "+
			"which starts at %v.", slowScript),
		ParamName: "readers", Params: []int{1000, 10000}, Rounds: 3,
		Contenders: []*Contender{ours}, Columns: []Metric{AllIn, LongestRun}, Run: crowd,
	}, {
		Name: "round-trip", Title: "Uncontended write pair over a slower network",
		About:     "As the uncontended write pair, through a proxy that delays every byte by half of the given time each way.",
		ParamName: "µs added", Params: []int{200, 1000, 5000}, Rounds: 3,
		Contenders: asking, Columns: []Metric{Latency, LatencyP99}, Against: justFloor,
		Far: func(param int) time.Duration { return time.Duration(param) * time.Microsecond },
		Run: pairOf(Write, distantSpan),
	}, {
		Name: "busy", Title: "A lock per order in a program that computes",
		About: "One goroutine locks and unlocks one new name after the other. Beside it the given number of goroutines compute, 200 µs at " +
			"a time.",
		ParamName: "computing", Params: []int{0, 2, 8}, Rounds: 5,
		Contenders: []*Contender{ours, redislockContender, rueidislockContender, bare},
		Columns:    []Metric{Latency, LatencyP99, Rate}, Against: []*Contender{redislockContender}, Run: busy,
	}, {
		Name: "busy-far", Title: "A lock per order in a program that computes, the server 1 ms away",
		About:     "As above, through a proxy that delays every byte by 1 ms each way.",
		ParamName: "computing", Params: []int{2, 8}, Rounds: 3,
		Contenders: []*Contender{ours, redislockContender, rueidislockContender, bare},
		Columns:    []Metric{Latency, LatencyP99, Rate},
		Against:    []*Contender{redislockContender}, Far: away(2 * time.Millisecond), Run: busy,
	}, {
		Name: "far", Title: "Distinct names, the server 4 ms away",
		About:     "As above, over the plain client, through a proxy that delays every byte by 4 ms each way.",
		ParamName: "goroutines", Params: []int{256}, Rounds: 3,
		Contenders: []*Contender{ours, redislockContender, rueidislockContender}, Columns: []Metric{Rate},
		Against: []*Contender{rueidislockContender}, Far: away(8 * time.Millisecond),
		Run: together(Load{Draw: own, Plain: true, Span: 2 * time.Second}),
	}, {
		Name: "waiters", Title: "Idle waiters behind a holder, lease 30 s",
		About:     "Goroutines wait for a lock that is not released. Polling contenders are watched for 3 s, those that are told for 20 s.",
		ParamName: "waiters", Params: []int{100}, Rounds: 1, Contenders: without(asking, floor),
		Columns: watchColumns, Run: idleWaiters(0), Watch: 20 * time.Second,
	}, {
		Name: "many-waiters", Title: "Many idle waiters behind a holder, lease 30 s",
		About: "As above. In the end all of them give up; meanwhile a thread watches rwlock's mutex. The last column is the longest time that " +
			"it is locked.",
		ParamName: "waiters", Params: []int{1000, 20_000}, Rounds: 1, Contenders: []*Contender{ours},
		Columns: append(slices.Clone(watchColumns), Mutex), Run: idleWaiters(0), Watch: 20 * time.Second,
	}, {
		Name: "renewal", Title: "Holds kept alive by one process, lease 30 s",
		About: "Holds on distinct names are renewed by their library for 30 s; nothing else runs. For another 10 s, a thread watches " +
			"rwlock's mutex: the last column is the longest time that it is locked.",
		ParamName: "holds", Params: []int{10_000, 100_000},
		Contenders: []*Contender{ours, rueidislockContender}, Rounds: 1,
		Columns: []Metric{ClientCPU, ServerCPU, RequestRate, Mutex}, Run: renewal,
		Watch: 30 * time.Second,
	}, {
		Name: "footprint", Title: "Memory on the server for one name",
		About: "MEMORY USAGE, summed over the keys that contain the name: while it is held, for each of 100 waiters, and after one " +
			"pair. \"stays\" is the time to live of what one pair left, less the lease of 30 s.",
		Contenders: without(asking, floor), Rounds: 1,
		Columns: []Metric{HeldWriting, HeldReading, PerWaiter, LeftBytes, LeftKeys, Stays},
		Run:     footprint,
	}, {
		Name: "client-memory", Title: "Memory of the client process",
		About: "The growth of heap and goroutine stacks, after garbage collections: for each of 10,000 names held; after 10,000 holds were " +
			"released, and after 10,000 waiters gave up, as a share of the peak; after names were locked and unlocked once; and after " +
			"names were locked, lost by the server, and unlocked.",
		Contenders: []*Contender{ours, rueidislockContender}, Rounds: 5,
		Columns: []Metric{PerHold, AfterHolds, AfterWaiters, LeftFew, LeftMany, LostFew, LostMany},
		Alone:   true, Run: clientMemory,
	},
}

// allWorkloads are those over one server and those over several.
func allWorkloads() []*Workload { return slices.Concat(workloads, quorumWorkloads) }

// away is how far away servers are, there and back.
func away(roundTrip time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return roundTrip }
}
