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
	newScene("processes", "Many processes on a hundred names", "Four processes that share 100 names",
		"pairs per second",
		"Four processes with 16 goroutines each share 100 accounts. Each goroutine locks an account, unlocks it, and goes on with "+
			"another one. The wait is the time that the lock call takes.",
		[]series{{"all write", figure("processes", 0, Rate)}}, waitsOf("processes", 0)...),
	newScene("processes-reads", "Many processes that mostly read a thousand names",
		"Four processes that share 1,000 names",
		"pairs per second",
		"The same processes share 1,000 documents. Of a hundred operations, 90 or 99 read; the other columns are for 90. A library that has no "+
			"read mode locks the document against the other readers, too.",
		[]series{{"90 % read", figure("processes-reads", 90, Rate)}, {"99 % read", figure("processes-reads", 99, Rate)}},
		append([]column{{"99 % read, pairs/s", figure("processes-reads", 99, Rate)}}, waitsOf("processes-reads", 90)...)...),
	newScene("own", "Names that stay with one process", "Names that stay with one process", "pairs per second",
		"In the one case each of four processes has 250 accounts of its own, and all operations write. In the other, 16 goroutines of one "+
			"process read the same configuration; for a library that has no read mode, it is in 1,000 parts, of which each operation locks one.",
		[]series{{"250 names each", figure("processes-own", 0, Rate)}, {"one name, read", figure("shared", 0, Rate)}},
		column{"250 names each, pairs/s", figure("processes-own", 0, Rate)},
		column{"p99 of the wait, ms", figure("processes-own", 0, WaitP99)},
		column{"one name, reads/s", figure("shared", 0, Rate)},
		column{"p99 of the wait, ms", figure("shared", 0, WaitP99)}),
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
			{"16 goroutines", figure("handover", 16, Rate)},
			{"256 goroutines", figure("handover", 256, Rate)},
		},
		column{"16 goroutines, locks/s", figure("handover", 16, Rate)},
		column{"longest wait, ms", figure("handover", 16, LongestWait)},
		column{"256 goroutines, locks/s", figure("handover", 256, Rate)},
		column{"longest wait, ms", figure("handover", 256, LongestWait)},
		column{"Jain's index", figure("handover", 256, Fairness)}),
	newScene("pair", "One goroutine, one name", "Latency of one lock and unlock", "µs",
		"One goroutine locks and unlocks the same name again and again. Nobody else wants it.",
		[]series{{"write", figure("write-pair", 0, Latency)}, {"read", figure("read-pair", 0, Latency)}},
		column{"write, µs", figure("write-pair", 0, Latency)},
		column{"read, µs", figure("read-pair", 0, Latency)}),
	newScene("footprint", "What a lock takes and leaves behind", "Bytes of one name on the server", "bytes",
		"The bytes are those of the name's keys on the server. A name that was used once leaves some of them there for the given time "+
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

func waitsOf(workload string, reads int) []column {
	return []column{
		{"pairs/s", figure(workload, reads, Rate)},
		{"server µs per pair", figure(workload, reads, ServerTime)},
		{"median wait, ms", figure(workload, reads, WaitP50)},
		{"p99 of the wait, ms", figure(workload, reads, WaitP99)},
	}
}

// table returns the figures of the contenders that took part.
func (s *scene) table(r Results) table {
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
