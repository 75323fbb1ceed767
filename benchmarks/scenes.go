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
	{
		title: "A lock per order",
		text: "A service locks each order once, by its number, and does not come back to it. 64 goroutines do so at the same time; the " +
			"last column is for one goroutine alone.",
		chart: &chart{
			file: "order", title: "A lock per order, 64 goroutines",
			draw: bars("orders per second", series{"orders", figure("once", 64, Rate)}),
		},
		columns: []column{
			{"orders/s", figure("once", 64, Rate)},
			{"server µs per order", figure("once", 64, ServerTime)},
			{"one lock call, µs", figure("once", 1, LockCall)},
		},
	}, {
		title: "Many processes on a hundred names",
		text: "Several processes with 16 goroutines each share 100 accounts. Each goroutine locks an account, unlocks it, and goes on with " +
			"another one. The wait is the time that the lock call takes.",
		chart: &chart{
			file: "processes", title: "Processes that share 100 names",
			draw: bars("pairs per second",
				series{"2 processes", figure("processes", 2, Rate)},
				series{"4 processes", figure("processes", 4, Rate)}),
		},
		columns: []column{
			{"2 processes, pairs/s", figure("processes", 2, Rate)},
			{"4 processes, pairs/s", figure("processes", 4, Rate)},
			{"server µs per pair", figure("processes", 4, ServerTime)},
			{"median wait, ms", figure("processes", 4, WaitP50)},
			{"p99 of the wait, ms", figure("processes", 4, WaitP99)},
		},
	}, {
		title: "Many processes that mostly read a thousand names",
		text: "The same processes share 1,000 documents. Nine of ten operations read. A library that has no read mode locks the document " +
			"against the other readers, too.",
		chart: &chart{
			file: "processes-reads", title: "Processes that share 1,000 names, 90 % reads",
			draw: bars("pairs per second",
				series{"2 processes", figure("processes-reads", 2, Rate)},
				series{"4 processes", figure("processes-reads", 4, Rate)}),
		},
		columns: []column{
			{"2 processes, pairs/s", figure("processes-reads", 2, Rate)},
			{"4 processes, pairs/s", figure("processes-reads", 4, Rate)},
			{"server µs per pair", figure("processes-reads", 4, ServerTime)},
			{"median wait, ms", figure("processes-reads", 4, WaitP50)},
			{"p99 of the wait, ms", figure("processes-reads", 4, WaitP99)},
		},
	}, {
		title: "A few popular names among a hundred thousand",
		text: "64 goroutines lock 100,000 items, some of which everyone wants: every seventh operation is on the same item. In the one case " +
			"all operations write, in the other nine of ten read.",
		chart: &chart{
			file: "zipf", title: "A few popular names among 100,000, 64 goroutines",
			draw: bars("pairs per second",
				series{"all write", figure("zipf", 0, Rate)},
				series{"90 % read", figure("zipf-reads", 0, Rate)}),
		},
		columns: []column{
			{"all write, pairs/s", figure("zipf", 0, Rate)},
			{"p99 of the wait, ms", figure("zipf", 0, WaitP99)},
			{"90 % read, pairs/s", figure("zipf-reads", 0, Rate)},
			{"p99 of the wait, ms", figure("zipf-reads", 0, WaitP99)},
		},
	}, {
		title: "One name that everyone wants",
		text: "16 or 256 goroutines lock the same name, with contexts that have a timeout. Jain's index is 1 if all of them get the lock " +
			"equally often. The longest wait is that of the unluckiest goroutine within two seconds.",
		chart: &chart{
			file: "one-name", title: "One name that everyone wants",
			draw: bars("locks taken per second",
				series{"16 goroutines", figure("handover-timeout", 16, Rate)},
				series{"256 goroutines", figure("handover-timeout", 256, Rate)}),
		},
		columns: []column{
			{"16 goroutines, locks/s", figure("handover-timeout", 16, Rate)},
			{"longest wait, ms", figure("handover-timeout", 16, LongestWait)},
			{"256 goroutines, locks/s", figure("handover-timeout", 256, Rate)},
			{"longest wait, ms", figure("handover-timeout", 256, LongestWait)},
			{"Jain's index", figure("handover-timeout", 256, Fairness)},
		},
	}, {
		title: "One goroutine, one name",
		text:  "One goroutine locks and unlocks the same name again and again. Nobody else wants it.",
		chart: &chart{
			file: "pair", title: "Latency of one lock and unlock",
			draw: bars("µs",
				series{"write", figure("write-pair", 0, Latency)},
				series{"read", figure("read-pair", 0, Latency)}),
		},
		columns: []column{
			{"write, µs", figure("write-pair", 0, Latency)},
			{"read, µs", figure("read-pair", 0, Latency)},
		},
	}, {
		title: "What a lock takes and leaves behind",
		text: "The bytes are those of the name's keys at the server. A name that was used once leaves some of them there for the given time " +
			"after its lease.",
		chart: &chart{
			file: "footprint", title: "Bytes of one name at the server",
			draw: bars("bytes",
				series{"held for writing", figure("footprint", 0, HeldWriting)},
				series{"used once", figure("footprint", 0, LeftBytes)}),
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
