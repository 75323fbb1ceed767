package main

import (
	"cmp"
	"hash/maphash"
	"io"
)

// options say what is explored.
type options struct {
	asks    uint8 // calls that each owner may make
	faults  uint8
	crashes uint8
	forces  uint8
	stalls  uint8 // times that a process stands still
	undos   uint8 // runs that a server forgets, as one does that has taken over from another
	extends uint8 // calls of Extend
	closes  uint8 // calls of Close, or of Shutdown
	ticks   uint8 // that may pass
	names   uint8 // of locks
	maxHold uint8 // of each hold, in ticks; 0 for none
	reenter bool  // owners make a second call beside the first, and enter again
	noRenew bool  // holds end with their leases
	bounded bool  // calls do not end by themselves
	stands  bool  // the server's clock stands still within a tick
}

// explore visits every system that can be reached, those with the shortest traces first. A system with
// something wrong is reported and not followed; each kind of wrong only once.
func (e *explorer) explore(l limits, progress io.Writer) report {
	visited := seen{last: map[fingerprint]int32{}, exact: e.exact}
	// An action is told from others by its index.
	w := &walk[*system, uint16]{limits: l, progress: progress, visit: e.visit, tidy: e.tidy}
	start, key := e.canonical(e.start())
	visited.add(e.fingerprint(key), start.left())
	found := func(at int32, flaw error, fair bool) {
		w.found(at, flaw, func(way []uint16) trace { return e.retrace(way, flaw, fair) })
	}
	return w.run(start, func(at int32, x *system) {
		for via, a := range e.actions(x) {
			w.report.Transitions++
			y, err := e.take(x, a)
			if flaw := cmp.Or(err, e.flaw); flaw != nil {
				found(at, flaw, false)
			}
			if err != nil {
				continue
			}
			y, key := e.canonical(y)
			if !visited.add(e.fingerprint(key), y.left()) {
				continue
			}
			reached := w.reach(at, uint16(via), y)
			if _, err := e.fair(y, key); err != nil {
				found(reached, err, true)
			}
		}
	})
}

// A fingerprint stands for a key: keys take too much memory.
type fingerprint [2]uint64

// seeds are what an exploration makes fingerprints with.
type seeds [2]maphash.Seed

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) fingerprint(key string) fingerprint {
	return fingerprint{maphash.String(s[0], key), maphash.String(s[1], key)}
}

// seen remembers the systems that were visited. Two systems may be equal but for what may still go wrong.
// Whatever can happen to one of them can happen to the other if no less may go wrong there. A system in which
// nothing has gone wrong yet has to meet more demands. So a system is not visited if one was that allows no
// less and has to meet the same demands, or more.
type seen struct {
	last  map[fingerprint]int32 // the place in list, and one more
	list  []left
	exact bool // all are visited
}

// A left is what may still go wrong in a system. before is the place of the last one that is equal otherwise,
// and one more.
type left struct {
	budget [9]byte
	before int32
}

// add reports whether a system is to be visited.
func (s *seen) add(p fingerprint, b [9]byte) bool {
	last := s.last[p]
	for k := last; k > 0; k = s.list[k-1].before {
		if old := s.list[k-1].budget; old == b || !s.exact && allows(old, b) {
			return false
		}
	}
	s.list = append(s.list, left{b, last})
	s.last[p] = int32(len(s.list))
	return true
}

// allows reports whether none of a is less than of b.
func allows(a, b [9]byte) bool {
	for i := range a {
		if a[i] < b[i] {
			return false
		}
	}
	return true
}
