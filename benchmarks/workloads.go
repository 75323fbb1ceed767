package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// Workload is one thing to do with a lock, and to measure. To add one, write its Run and list it in workloads.
type Workload struct {
	Name  string
	Title string
	About string // what is measured, and how

	Shared     bool   // several have to do with one name
	ParamName  string // what Params are, empty if there is but one setting
	Params     []int
	Contenders []*Contender

	Columns []Metric     // what Run returns, the most telling first
	Against []*Contender // with whom the first column is compared, round by round
	Rounds  int          // many short ones, where the machine's noise would hide a small difference

	Run func(ctx context.Context, e *Env) (Metrics, error)
}

// Env is what a workload runs in: one turn of one contender.
type Env struct {
	Server    *Server
	Contender *Contender
	Param     int
	Quick     bool
	Floor     map[Mode]pairShape
}

var (
	withReadMode = []*Contender{ours, classic}

	pairColumns = []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests, Calls, Bytes}
)

// workloads are all there are, in the order in which they run.
var workloads = []*Workload{
	{
		Name: "write-pair", Title: "Uncontended write pair",
		Rounds:     21,
		About:      "One goroutine locks and unlocks one name again and again, with a context that can be cancelled.",
		Contenders: contenders, Columns: pairColumns, Against: []*Contender{floor},
		Run: pairOf(Write),
	}, {
		Name: "read-pair", Title: "Uncontended read pair",
		Rounds:     21,
		About:      "One goroutine locks and unlocks one name for reading again and again.",
		Contenders: append(slices.Clone(withReadMode), bare, floor), Columns: pairColumns, Against: []*Contender{floor},
		Run: pairOf(Read),
	}, {
		Name: "write-pair-endless", Title: "Uncontended write pair, context that cannot end",
		Rounds:     21,
		About:      "As the write pair, with a context that has no cancellation, as context.Background(): the caller's goroutine sends.",
		Contenders: []*Contender{ours, floor}, Columns: pairColumns, Against: []*Contender{floor},
		Run: endless(pairOf(Write)),
	}, {
		Name: "read-pair-endless", Title: "Uncontended read pair, context that cannot end",
		Rounds:     21,
		About:      "As above, for reading.",
		Contenders: []*Contender{ours, floor}, Columns: pairColumns, Against: []*Contender{floor},
		Run: endless(pairOf(Read)),
	}, {
		Name: "write-server", Title: "Server time of a write pair in large pipelines",
		Rounds: 15,
		About: "256 goroutines on names of their own over go-redis's AutoPipeline (rueidislock: its own client). " +
			"The server reads many requests at once, so what is left is the scripts' own time.",
		Contenders: contenders, Columns: []Metric{ServerTime, Requests, Calls, Bytes}, Against: []*Contender{bare, floor},
		Run: serverTime(Write),
	}, {
		Name: "read-server", Title: "Server time of a read pair in large pipelines",
		Rounds:     15,
		About:      "As above, for reading; the bare mutex stands beside as the yardstick.",
		Contenders: append(slices.Clone(withReadMode), bare, floor), Columns: []Metric{ServerTime, Requests, Calls, Bytes},
		Against: []*Contender{bare, floor},
		Run:     serverTime(Read),
	}, {
		Name: "reentry", Shared: true, Title: "Re-entry",
		Rounds:     15,
		About:      "The owner of a write hold locks and unlocks the same name for writing again and again.",
		Contenders: []*Contender{ours, floor}, Columns: pairColumns, Against: []*Contender{floor},
		Run: reentry,
	}, {
		Name: "try-held", Shared: true, Title: "TryLock on a held lock",
		Rounds:     9,
		About:      "One goroutine tries for a lock that somebody else holds, again and again. Figures are per call.",
		Contenders: contenders, Columns: []Metric{Latency, LatencyP99, Allocs, ServerTime, Requests, Calls},
		Against: []*Contender{floor}, Run: tryHeld,
	}, {
		Name: "readers", Shared: true, Title: "Read pair among other readers",
		Rounds:    7,
		About:     "Other owners hold the same name for reading, from the same process, while one goroutine locks and unlocks it for reading.",
		ParamName: "other readers", Params: []int{0, 10, 100, 1000, 10000},
		Contenders: append(slices.Clone(withReadMode), floor),
		Columns:    []Metric{ServerTime, Latency}, Against: []*Contender{floor},
		Run: amongReaders,
	}, {
		Name: "handover", Shared: true, Title: "One write lock, many goroutines",
		About: "Goroutines lock and unlock one name as fast as they can for a fixed time. The floor excludes nobody: it shows what " +
			"the client and the server could do at most.",
		ParamName: "goroutines", Params: []int{2, 16, 64, 256}, Rounds: 3,
		Contenders: contenders, Columns: []Metric{Rate, Fairness, LongestWait, ServerTime, Requests}, Against: []*Contender{floor},
		Run: handover,
	}, {
		Name: "mixed", Shared: true, Title: "Readers and writers mixed",
		About:     "64 goroutines on one name; each operation is a write with the given chance, and a read otherwise.",
		ParamName: "% writers", Params: []int{1, 10, 50}, Rounds: 3,
		Contenders: append(slices.Clone(withReadMode), floor),
		Columns:    []Metric{Rate, ReaderWait, WriterWait, ServerTime}, Against: []*Contender{floor},
		Run: mixed,
	}, {
		Name: "distinct", Title: "Distinct names, plain client",
		About:     "Every goroutine locks and unlocks a name of its own over go-redis's plain client (rueidislock: its own).",
		ParamName: "goroutines", Params: []int{1, 64, 512}, Rounds: 3,
		Contenders: []*Contender{ours, redislockContender, rueidislockContender, bare, floor},
		Columns:    []Metric{Rate}, Against: []*Contender{floor, rueidislockContender},
		Run: distinct(false),
	}, {
		Name: "distinct-autopipeline", Title: "Distinct names, AutoPipeline",
		About:     "As above, over go-redis's AutoPipeline (rueidislock: its own client, which always pipelines).",
		ParamName: "goroutines", Params: []int{1, 64, 512}, Rounds: 3,
		Contenders: []*Contender{ours, redislockContender, rueidislockContender, bare, floor},
		Columns:    []Metric{Rate}, Against: []*Contender{floor, rueidislockContender},
		Run: distinct(true),
	}, {
		Name: "reader-among-writers", Title: "A reader among 8 writers",
		About: "8 goroutines lock one name for writing, hold it for 2 ms, and ask again at once, while one more locks it for reading " +
			"every 5 ms.",
		Contenders: withReadMode, Rounds: 3,
		Columns: []Metric{ReaderWait, ReaderP95, HoldTime, LongestWait},
		Run:     readerAmongWriters,
	}, {
		Name: "crowd", Title: "10,000 waiting readers let in at once",
		About: fmt.Sprintf("Goroutines wait to read behind one writer; it unlocks. The longest script is read from the server's slow log, "+
			"which starts at %v.", slowScript),
		ParamName: "readers", Params: []int{1000, 10000}, Rounds: 3,
		Contenders: []*Contender{ours}, Columns: []Metric{AllIn, LongestRun},
		Run: crowd,
	}, {
		Name: "round-trip", Title: "Uncontended write pair over a slower network",
		About:     "As the uncontended write pair, through a proxy that delays every byte by half of the given time each way.",
		ParamName: "µs added", Params: []int{200, 1000, 5000}, Rounds: 3,
		Contenders: contenders, Columns: []Metric{Latency, LatencyP99, RoundTrip}, Against: []*Contender{floor},
		Run: roundTrip,
	}, {
		Name: "waiters", Title: "100 idle waiters behind a holder, lease 30 s",
		About:      "Goroutines wait for a lock that is not released. Polling contenders are watched for 3 s, those that are told for 20 s.",
		Contenders: []*Contender{ours, classic, redislockContender, redsyncContender, rueidislockContender, bare}, Rounds: 1,
		Columns: []Metric{RequestRate, CommandRate, ServerCPU, ClientCPU},
		Run:     idleWaiters(100),
	}, {
		Name: "many-waiters", Title: "1,000 idle waiters behind a holder, lease 30 s",
		About:      "As above.",
		Contenders: []*Contender{ours}, Rounds: 1,
		Columns: []Metric{RequestRate, CommandRate, ServerCPU, ClientCPU},
		Run:     idleWaiters(1000),
	}, {
		Name: "renewal", Title: "10,000 holds kept alive by one process, lease 30 s",
		About:      "Holds on distinct names are renewed by their library for 30 s; nothing else runs.",
		Contenders: []*Contender{ours, rueidislockContender}, Rounds: 1,
		Columns: []Metric{ClientCPU, ServerCPU, RequestRate},
		Run:     renewal,
	},
}

// Open opens the contender of this turn with a lease of 30 s, unless adjust asks for something else.
func (e *Env) Open(ctx context.Context, adjust ...func(*Options)) (Locker, error) {
	o := Options{Addr: e.Server.Addr, Lease: 30 * time.Second, Floor: e.Floor}
	for _, f := range adjust {
		f(&o)
	}
	l, err := e.Contender.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", e.Contender.Name, err)
	}
	return l, nil
}

// span returns how long to go on where a full run goes on for d.
func (e *Env) span(d time.Duration) time.Duration {
	if e.Quick {
		return d / 4
	}
	return d
}

// usage runs do and returns what it cost the server.
func (e *Env) usage(ctx context.Context, do func() error) (Usage, error) {
	return e.Server.usage(ctx, e.Contender.Commands, do)
}

// series runs op again and again for the given time, after a quarter of it unmeasured, and returns how long each run
// took and what a run cost on average.
func (e *Env) series(ctx context.Context, span time.Duration, op func() error) (Metrics, error) {
	for warm := time.Now().Add(span / 4); time.Now().Before(warm); {
		if err := op(); err != nil {
			return nil, err
		}
	}
	took := make([]time.Duration, 0, 1<<17)
	var before, after runtime.MemStats
	usage, err := e.usage(ctx, func() error {
		runtime.GC()
		runtime.ReadMemStats(&before)
		defer runtime.ReadMemStats(&after)
		for end := time.Now().Add(span); ; {
			start := time.Now()
			if err := op(); err != nil {
				return err
			}
			now := time.Now()
			took = append(took, now.Sub(start))
			if now.After(end) || ctx.Err() != nil {
				return ctx.Err()
			}
		}
	})
	if err != nil {
		return nil, err
	}
	n, latencies := float64(len(took)), inMicros(took)
	return Metrics{
		Latency:    median(latencies),
		LatencyP99: quantile(latencies, 0.99),
		Allocs:     float64(after.Mallocs-before.Mallocs) / n,
		ServerTime: usage.Micros / n,
		Requests:   usage.Requests / n,
		Calls:      usage.Calls / n,
		Bytes:      usage.Bytes / n,
	}, nil
}

// pair returns what locks and unlocks name once.
func pair(ctx context.Context, l Locker, mode Mode, name string) func() error {
	lock := lockIn(l, mode)
	return func() error {
		h, err := lock(ctx, name)
		if err != nil {
			return err
		}
		return h.Unlock(ctx)
	}
}
