package main

// A scene is what a user does with locks, and what the user then sees: a picture and a table, with which the
// report opens.
type scene struct {
	name        string
	title, unit string // of the picture
	columns     []column
}

var scenes = []*scene{
	{"order", "A lock per order, 64 goroutines", "orders per second", []column{
		{"orders", "orders/s", figureOf("once", 64, Rate)},
		{"", "server µs per order", figureOf("once", 64, ServerTime)},
		{"", "one lock call, µs", figureOf("once", 1, LockCall)},
	}},
	{"processes", "Four processes that share 100 names", "pairs per second", []column{
		{"all write", "pairs/s", figureOf("processes", 0, Rate)},
		{"", "server µs per pair", figureOf("processes", 0, ServerTime)},
		{"", "median wait, ms", figureOf("processes", 0, WaitP50)},
		{"", "p99 of the wait, ms", figureOf("processes", 0, WaitP99)},
	}},
	{"processes-reads", "Four processes that share 1,000 names", "pairs per second", []column{
		{"99 % read", "99 % read, pairs/s", figureOf("processes-reads", 99, Rate)},
		{"90 % read", "pairs/s", figureOf("processes-reads", 90, Rate)},
		{"", "server µs per pair", figureOf("processes-reads", 90, ServerTime)},
		{"", "median wait, ms", figureOf("processes-reads", 90, WaitP50)},
		{"", "p99 of the wait, ms", figureOf("processes-reads", 90, WaitP99)},
	}},
	{"own", "Names that stay with one process", "pairs per second", []column{
		{"250 names each", "250 names each, pairs/s", figureOf("processes-own", 0, Rate)},
		{"", "p99 of the wait, ms", figureOf("processes-own", 0, WaitP99)},
		{"one name, read", "one name, reads/s", figureOf("shared", 0, Rate)},
		{"", "p99 of the wait, ms", figureOf("shared", 0, WaitP99)},
	}},
	{"zipf", "A few popular names among 100,000, 64 goroutines", "pairs per second", []column{
		{"all write", "all write, pairs/s", figureOf("zipf", 0, Rate)},
		{"", "p99 of the wait, ms", figureOf("zipf", 0, WaitP99)},
		{"90 % read", "90 % read, pairs/s", figureOf("zipf-reads", 0, Rate)},
		{"", "p99 of the wait, ms", figureOf("zipf-reads", 0, WaitP99)},
	}},
	{"one-name", "One name that everyone wants", "locks taken per second", []column{
		{"16 goroutines", "16 goroutines, locks/s", figureOf("handover", 16, Rate)},
		{"", "longest wait, ms", figureOf("handover", 16, LongestWait)},
		{"256 goroutines", "256 goroutines, locks/s", figureOf("handover", 256, Rate)},
		{"", "longest wait, ms", figureOf("handover", 256, LongestWait)},
		{"", "Jain's index", figureOf("handover", 256, Fairness)},
	}},
	{"pair", "Latency of one lock and unlock", "µs", []column{
		{"write", "write, µs", figureOf("write-pair", 0, Latency)},
		{"read", "read, µs", figureOf("read-pair", 0, Latency)},
	}},
	{"footprint", "Bytes of one name on the server", "bytes", []column{
		{"held for writing", "held for writing, B", figureOf("footprint", 0, HeldWriting)},
		{"", "held for reading, B", figureOf("footprint", 0, HeldReading)},
		{"", "each waiter, B", figureOf("footprint", 0, PerWaiter)},
		{"used once", "used once, B", figureOf("footprint", 0, LeftBytes)},
		{"", "used once, keys", figureOf("footprint", 0, LeftKeys)},
		{"", "stays for, s", figureOf("footprint", 0, Stays)},
		{"", "in the client while held, B", figureOf("client-memory", 0, PerHold)},
	}},
}

// table returns the figures of the contenders that took part.
func (s *scene) table(r Results) table {
	t := newTable([]string{""}, s.columns)
	t.add(r, nil, contenders, s.columns)
	return t
}
