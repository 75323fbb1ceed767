package main

import "math"

// Metric is one measured quantity; its text heads the column that shows it.
type Metric string

const (
	Latency    Metric = "latency µs" // median of a lock call and its release
	LatencyP99 Metric = "p99 µs"     // its 99th percentile
	Allocs     Metric = "allocs"     // heap allocations of the client process per pair
	// spent by the server in the requests of a pair, inner calls included
	ServerTime  Metric = "server µs"
	Requests    Metric = "requests"         // commands that the client sent, per pair
	Calls       Metric = "redis.calls"      // commands that scripts called, per pair
	Bytes       Metric = "bytes"            // that the server received and sent, per pair
	Rate        Metric = "per second"       // locks taken
	LongestWait Metric = "longest wait ms"  // of any goroutine, the unfinished waits at the end included
	ReaderWait  Metric = "reader's wait ms" // median
	ReaderP95   Metric = "p95 ms"           // 95th percentile of the reader's wait
	HoldTime    Metric = "hold ms"          // how long one hold really lasted, median
	Fairness    Metric = "Jain's index"     // of the locks that each goroutine got
	RequestRate Metric = "requests/s"       // commands that clients sent
	CommandRate Metric = "commands/s"       // those, and what their scripts called
	ClientCPU   Metric = "client CPU %"     // of one core
	ServerCPU   Metric = "server CPU %"     // of one core
	AllIn       Metric = "all in after ms"  // from the release to the last waiter's return
	LongestRun  Metric = "longest script ms"
	RoundTrip   Metric = "round trip µs" // of a PING over the same connection, median

	LockCall      Metric = "lock call µs"   // median
	WaitP50       Metric = "median wait ms" // of the lock calls
	WaitP99       Metric = "p99 wait ms"    // of the lock calls
	Handovers     Metric = "handovers/s"    // changes of the holder
	HandoverP99   Metric = "p99 handover ms"
	LongestHold   Metric = "longest hold ms"
	Between       Metric = "bytes between nodes" // of a cluster, per pair
	Mutex         Metric = "mutex held ms"       // the longest time that an RWLock's mutex is locked
	CallP50       Metric = "median call ms"      // of the lock and unlock calls
	CallP99       Metric = "p99 call ms"
	CallMax       Metric = "longest call ms"
	AgainstWell   Metric = "× all well" // rate, in relation to that with all servers
	AgainstFew    Metric = "× alone"    // rate, in relation to that of the servers that are left, alone
	WellP99       Metric = "p99 all well ms"
	FewP99        Metric = "p99 alone ms"
	P99AgainstFew Metric = "p99 × alone"

	HomeRequests  Metric = "home requests/s"
	HomeCommands  Metric = "home commands/s"
	OtherRequests Metric = "each other requests/s"
	OtherCommands Metric = "each other commands/s"

	FirstPair    Metric = "first pair µs" // as the server time, of a name's first pair
	AgainstFirst Metric = "× first pair"  // server time, in relation to a name's first pair in the same turn
	// server time, in relation to a pair on a name that nobody else reads, in the same turn
	AgainstNone Metric = "× among none"

	// The bytes that the keys of one name take on the server.
	HeldWriting Metric = "held for writing B"
	HeldReading Metric = "held for reading B"
	PerWaiter   Metric = "per waiter B"
	LeftBytes   Metric = "used once B"
	LeftKeys    Metric = "used once keys"
	LeftByTen   Metric = "used by 10 processes B"
	Stays       Metric = "stays s" // for how long after the lease of a hold that was released

	// The growth of the client process.
	PerHold      Metric = "per name held B"
	AfterHolds   Metric = "after 10,000 holds %"   // left, of what it was at the peak
	AfterWaiters Metric = "after 10,000 waiters %" // likewise
	LeftFew      Metric = "after 1,000 names KB"   // that were used and released
	LeftMany     Metric = "after 20,000 names KB"
	LostFew      Metric = "after 1,000 lost KB" // names whose keys the server lost before the release
	LostMany     Metric = "after 20,000 lost KB"
)

// Metrics is what one contender's turn at a workload measured.
type Metrics map[Metric]float64

// cell names one line of the results: a contender at a workload, at one setting of its parameter.
type cell struct {
	workload  string
	param     int
	contender string
}

// Results holds every round of every cell.
type Results struct {
	rounds map[cell][]Metrics // by round; nil where the turn failed
}

func newResults() *Results {
	return &Results{rounds: make(map[cell][]Metrics)}
}

// add records the next round of c; m is nil if it failed.
func (r *Results) add(c cell, m Metrics) {
	r.rounds[c] = append(r.rounds[c], m)
}

// has tells whether c was measured at all.
func (r *Results) has(c cell) bool {
	for _, m := range r.rounds[c] {
		if m != nil {
			return true
		}
	}
	return false
}

// median returns the median of c's metric over the rounds, NaN if it was not measured.
func (r *Results) median(c cell, metric Metric) float64 {
	var values []float64
	for _, m := range r.rounds[c] {
		if v, ok := m[metric]; ok && !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return median(values)
}

// ratio returns the median over the rounds of c's metric divided by base's metric of the same round. Rounds
// that either failed do not count.
func (r *Results) ratio(c, base cell, metric Metric) float64 {
	var values []float64
	for i, m := range r.rounds[c] {
		if i >= len(r.rounds[base]) {
			break
		}
		v, ok := m[metric]
		b, okBase := r.rounds[base][i][metric]
		if ok && okBase && b != 0 && !math.IsNaN(v/b) {
			values = append(values, v/b)
		}
	}
	return median(values)
}
