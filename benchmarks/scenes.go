package main

import "math"

// A scene is what a user does with locks, and what the user then sees. The report opens with the scenes.
type scene struct {
	title, text string
	chart       *chart
	columns     []column
}

// column is a figure of every contender.
type column struct {
	head string
	of   of
}

var scenes = []*scene{
	newScene("order", "A lock per order", "A lock per order, 64 goroutines", "orders per second",
		"A service locks each order once, by its number, and does not come back to it. 64 goroutines do so at the same time; the "+
			"last column is for one goroutine alone.",
		[]series{{"orders", figure("once", 64, Rate)}},
		column{"orders/s", figure("once", 64, Rate)},
		column{"server µs per order", figure("once", 64, ServerTime)},
		column{"one lock call, µs", figure("once", 1, LockCall)}),
	newScene("processes", "Many processes on a hundred names", "Processes that share 100 names",
		"pairs per second",
		"Several processes with 16 goroutines each share 100 accounts. Each goroutine locks an account, unlocks it, and goes on with "+
			"another one. The wait is the time that the lock call takes.",
		pairsOf("processes"), waitsOf("processes")...),
	newScene("processes-reads", "Many processes that mostly read a thousand names",
		"Processes that share 1,000 names, 90 % reads",
		"pairs per second",
		"The same processes share 1,000 documents. Nine of ten operations read. A library that has no read mode locks the document "+
			"against the other readers, too.",
		pairsOf("processes-reads"), waitsOf("processes-reads")...),
	newScene("zipf", "A few popular names among a hundred thousand",
		"A few popular names among 100,000, 64 goroutines",
		"pairs per second",
		"64 goroutines lock 100,000 items, some of which everyone wants: every seventh operation is on the same item. In the one case "+
			"all operations write, in the other nine of ten read.",
		[]series{{"all write", figure("zipf", 0, Rate)}, {"90 % read", figure("zipf-reads", 0, Rate)}},
		column{"all write, pairs/s", figure("zipf", 0, Rate)},
		column{"p99 of the wait, ms", figure("zipf", 0, WaitP99)},
		column{"90 % read, pairs/s", figure("zipf-reads", 0, Rate)},
		column{"p99 of the wait, ms", figure("zipf-reads", 0, WaitP99)}),
	newScene("one-name", "One name that everyone wants", "One name that everyone wants",
		"locks taken per second",
		"16 or 256 goroutines lock the same name, with contexts that have a timeout. Jain's index is 1 if all of them get the lock "+
			"equally often. The longest wait is that of the unluckiest goroutine within two seconds.",
		[]series{
			{"16 goroutines", figure("handover-timeout", 16, Rate)},
			{"256 goroutines", figure("handover-timeout", 256, Rate)},
		},
		column{"16 goroutines, locks/s", figure("handover-timeout", 16, Rate)},
		column{"longest wait, ms", figure("handover-timeout", 16, LongestWait)},
		column{"256 goroutines, locks/s", figure("handover-timeout", 256, Rate)},
		column{"longest wait, ms", figure("handover-timeout", 256, LongestWait)},
		column{"Jain's index", figure("handover-timeout", 256, Fairness)}),
	newScene("pair", "One goroutine, one name", "Latency of one lock and unlock", "µs",
		"One goroutine locks and unlocks the same name again and again. Nobody else wants it.",
		[]series{{"write", figure("write-pair", 0, Latency)}, {"read", figure("read-pair", 0, Latency)}},
		column{"write, µs", figure("write-pair", 0, Latency)},
		column{"read, µs", figure("read-pair", 0, Latency)}),
	newScene("footprint", "What a lock takes and leaves behind", "Bytes of one name at the server", "bytes",
		"The bytes are those of the name's keys at the server. A name that was used once leaves some of them there for the given time "+
			"after its lease.",
		[]series{
			{"held for writing", figure("footprint", 0, HeldWriting)},
			{"used once", figure("footprint", 0, LeftBytes)},
		},
		column{"held for writing, B", figure("footprint", 0, HeldWriting)},
		column{"held for reading, B", figure("footprint", 0, HeldReading)},
		column{"each waiter, B", figure("footprint", 0, PerWaiter)},
		column{"used once, B", figure("footprint", 0, LeftBytes)},
		column{"used once, keys", figure("footprint", 0, LeftKeys)},
		column{"stays for, s", figure("footprint", 0, Stays)},
		column{"in the client while held, B", figure("client-memory", 0, PerHold)}),
}

func newScene(file, title, chartTitle, unit, text string, sets []series, columns ...column) *scene {
	return &scene{title, text, &chart{file: file, title: chartTitle, draw: bars(unit, sets...)}, columns}
}

func pairsOf(workload string) []series {
	return []series{{"2 processes", figure(workload, 2, Rate)}, {"4 processes", figure(workload, 4, Rate)}}
}

func waitsOf(workload string) []column {
	return []column{
		{"2 processes, pairs/s", figure(workload, 2, Rate)},
		{"4 processes, pairs/s", figure(workload, 4, Rate)},
		{"server µs per pair", figure(workload, 4, ServerTime)},
		{"median wait, ms", figure(workload, 4, WaitP50)},
		{"p99 of the wait, ms", figure(workload, 4, WaitP99)},
	}
}

// table returns the figures of the contenders that took part.
func (s *scene) table(r *Results) table {
	t := table{header: []string{""}}
	for _, col := range s.columns {
		t.header = append(t.header, col.head)
	}
	for _, c := range contenders {
		row, measured := []string{c.Name}, false
		for _, col := range s.columns {
			v := col.of(r, c.Name)
			measured = measured || !math.IsNaN(v)
			row = append(row, number(v))
		}
		if measured {
			t.rows = append(t.rows, row)
		}
	}
	return t
}
