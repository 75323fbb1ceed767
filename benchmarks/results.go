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
	HoldTime    Metric = "hold ms"          // how long one hold really lasted, median
	Fairness    Metric = "Jain's index"     // of the locks that each goroutine got
	RequestRate Metric = "requests/s"       // commands that clients sent
	CommandRate Metric = "commands/s"       // those, and what their scripts called
	ClientCPU   Metric = "client CPU %"     // of one core
	ServerCPU   Metric = "server CPU %"     // of one core
	AllIn       Metric = "all in after ms"  // from the release to the last waiter's return
	LongestRun  Metric = "longest script ms"

	LockCall      Metric = "lock call µs"   // median
	WaitP50       Metric = "median wait ms" // of the lock calls
	WaitP99       Metric = "p99 wait ms"    // of the lock calls
	Handovers     Metric = "handovers/s"    // changes of the holder
	HandoverP99   Metric = "p99 handover ms"
	LongestHold   Metric = "longest hold ms"
	Between       Metric = "bytes between nodes" // of a cluster, per pair
	Mutex         Metric = "mutex held ms"       // the longest time that an RWLock's mutex is locked
	CallMax       Metric = "longest call ms"
	AgainstWell   Metric = "× all well" // rate, in relation to that with all servers
	AgainstFew    Metric = "× alone"    // rate, in relation to that of the servers that are left, alone
	P99AgainstFew Metric = "p99 × alone"

	HomeRequests  Metric = "home requests/s"
	OtherRequests Metric = "each other requests/s"

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

// add adds other, times a factor.
func (m Metrics) add(other Metrics, times float64) {
	for metric, v := range other {
		m[metric] += times * v
	}
}

// per returns m divided by n.
func (m Metrics) per(n float64) Metrics {
	each := Metrics{}
	each.add(m, 1/n)
	return each
}

// sum adds up several.
func sum(each []Metrics) Metrics {
	all := Metrics{}
	for _, m := range each {
		all.add(m, 1)
	}
	return all
}

// cell names one line of the results: a contender at a workload, at one setting of its parameter.
type cell struct {
	workload  string
	param     int
	contender string
}

// Results are the rounds of each cell; nil where a turn failed.
type Results map[cell][]Metrics

// median returns the median of c's metric over the rounds, NaN if it was not measured.
func (r Results) median(c cell, metric Metric) float64 {
	var values []float64
	for _, m := range r[c] {
		if v, ok := m[metric]; ok && !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return median(values)
}

// ratio returns the median over the rounds of c's metric divided by base's metric of the same round. Rounds
// that either failed do not count.
func (r Results) ratio(c, base cell, metric Metric) float64 {
	var values []float64
	for i, m := range r[c][:min(len(r[c]), len(r[base]))] {
		v, ok := m[metric]
		b, okBase := r[base][i][metric]
		if ok && okBase && b != 0 && !math.IsNaN(v/b) {
			values = append(values, v/b)
		}
	}
	return median(values)
}
