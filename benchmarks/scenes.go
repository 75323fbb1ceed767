package main

import "math"

// A scene is what a user does with locks, and what the user then sees: a picture and a table, with which the
// report opens.
type scene struct {
	name        string
	title, unit string // of the picture
	bars        []column
	columns     []column
}

// column is a figure of every contender.
type column struct {
	head string
	of   of
}

var scenes = []*scene{
	{
		name: "order", title: "A lock per order, 64 goroutines", unit: "orders per second",
		bars: []column{{"orders", figure("once", 64, Rate)}},
		columns: []column{
			{"orders/s", figure("once", 64, Rate)},
			{"server µs per order", figure("once", 64, ServerTime)},
			{"one lock call, µs", figure("once", 1, LockCall)},
		},
	}, {
		name: "processes", title: "Four processes that share 100 names", unit: "pairs per second",
		bars:    []column{{"all write", figure("processes", 0, Rate)}},
		columns: waitsOf("processes", 0),
	}, {
		name: "processes-reads", title: "Four processes that share 1,000 names", unit: "pairs per second",
		bars: []column{
			{"90 % read", figure("processes-reads", 90, Rate)},
			{"99 % read", figure("processes-reads", 99, Rate)},
		},
		columns: append([]column{{"99 % read, pairs/s", figure("processes-reads", 99, Rate)}},
			waitsOf("processes-reads", 90)...),
	}, {
		name: "own", title: "Names that stay with one process", unit: "pairs per second",
		bars: []column{
			{"250 names each", figure("processes-own", 0, Rate)},
			{"one name, read", figure("shared", 0, Rate)},
		},
		columns: []column{
			{"250 names each, pairs/s", figure("processes-own", 0, Rate)},
			{"p99 of the wait, ms", figure("processes-own", 0, WaitP99)},
			{"one name, reads/s", figure("shared", 0, Rate)},
			{"p99 of the wait, ms", figure("shared", 0, WaitP99)},
		},
	}, {
		name: "zipf", title: "A few popular names among 100,000, 64 goroutines", unit: "pairs per second",
		bars: []column{{"all write", figure("zipf", 0, Rate)}, {"90 % read", figure("zipf-reads", 0, Rate)}},
		columns: []column{
			{"all write, pairs/s", figure("zipf", 0, Rate)},
			{"p99 of the wait, ms", figure("zipf", 0, WaitP99)},
			{"90 % read, pairs/s", figure("zipf-reads", 0, Rate)},
			{"p99 of the wait, ms", figure("zipf-reads", 0, WaitP99)},
		},
	}, {
		name: "one-name", title: "One name that everyone wants", unit: "locks taken per second",
		bars: []column{
			{"16 goroutines", figure("handover", 16, Rate)},
			{"256 goroutines", figure("handover", 256, Rate)},
		},
		columns: []column{
			{"16 goroutines, locks/s", figure("handover", 16, Rate)},
			{"longest wait, ms", figure("handover", 16, LongestWait)},
			{"256 goroutines, locks/s", figure("handover", 256, Rate)},
			{"longest wait, ms", figure("handover", 256, LongestWait)},
			{"Jain's index", figure("handover", 256, Fairness)},
		},
	}, {
		name: "pair", title: "Latency of one lock and unlock", unit: "µs",
		bars:    []column{{"write", figure("write-pair", 0, Latency)}, {"read", figure("read-pair", 0, Latency)}},
		columns: []column{{"write, µs", figure("write-pair", 0, Latency)}, {"read, µs", figure("read-pair", 0, Latency)}},
	}, {
		name: "footprint", title: "Bytes of one name on the server", unit: "bytes",
		bars: []column{
			{"held for writing", figure("footprint", 0, HeldWriting)},
			{"used once", figure("footprint", 0, LeftBytes)},
		},
		columns: []column{
			{"held for writing, B", figure("footprint", 0, HeldWriting)},
			{"held for reading, B", figure("footprint", 0, HeldReading)},
			{"each waiter, B", figure("footprint", 0, PerWaiter)},
			{"used once, B", figure("footprint", 0, LeftBytes)},
			{"used once, keys", figure("footprint", 0, LeftKeys)},
			{"stays for, s", figure("footprint", 0, Stays)},
			{"in the client while held, B", figure("client-memory", 0, PerHold)},
		},
	},
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
