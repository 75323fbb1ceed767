package main

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"io"
	"time"
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

// limits end an exploration early; 0 is no limit.
type limits struct {
	states int
	time   time.Duration
	bugs   int
}

// A report says how far an exploration came.
type report struct {
	States, Transitions, Depth int
	ServerStates, Runs         int
	Processes, Changes         int
	Complete                   bool
	Time                       time.Duration
	Bugs                       []bug
}

// A bug is something wrong after a trace.
type bug struct {
	what  string
	trace trace
}

// A step is how a state was reached first.
type step struct {
	parent int32
	via    uint16 // the index of the action
}

// explore visits every system that can be reached, those with the shortest traces first. A system with
// something wrong is reported and not followed; each kind of wrong only once.
func (e *explorer) explore(l limits, progress io.Writer) report {
	began := time.Now()

	type entry struct {
		x     *system
		index int32
	}
	visited := seen{last: map[fingerprint]int32{}, exact: e.exact}
	var nodes []step
	var r report
	kinds := map[string]bool{}
	start, key := e.canonical(e.start())
	visited.add(e.fingerprint(key), start.left())
	nodes = append(nodes, step{parent: -1})
	if e.visit != nil {
		e.visit(start)
	}
	frontier := []entry{{start, 0}}
	found := func(at int32, flaw error, fair bool) {
		if !kinds[kindOf(flaw)] {
			kinds[kindOf(flaw)] = true
			r.Bugs = append(r.Bugs, bug{flaw.Error(), e.retrace(nodes, at, flaw, fair)})
		}
	}
	stop := func() bool {
		return l.states > 0 && len(nodes) >= l.states || l.time > 0 && time.Since(began) > l.time ||
			l.bugs > 0 && len(r.Bugs) >= l.bugs
	}
	said := began
	for len(frontier) > 0 && !stop() {
		var next []entry
		for i, at := range frontier {
			if i%1024 == 0 {
				if stop() {
					next = append(next, frontier[i:]...)
					break
				}
				e.forget()
				if progress != nil && time.Since(said) > 5*time.Second {
					said = time.Now()
					fmt.Fprintf(progress, "%8.0fs  %d states  %d transitions  depth %d  frontier %d  %d server states  %d script runs\n",
						time.Since(began).Seconds(), len(nodes), r.Transitions, r.Depth, len(frontier)-i+len(next),
						len(e.states), len(e.runs))
				}
			}
			for via, a := range e.actions(at.x) {
				r.Transitions++
				y, err := e.take(at.x, a)
				if flaw := cmp.Or(err, e.flaw); flaw != nil {
					found(at.index, flaw, false)
				}
				if err != nil {
					continue
				}
				y, key := e.canonical(y)
				if !visited.add(e.fingerprint(key), y.left()) {
					continue
				}
				nodes = append(nodes, step{parent: at.index, via: uint16(via)})
				next = append(next, entry{y, int32(len(nodes) - 1)})
				if e.visit != nil {
					e.visit(y)
				}
				if _, err := e.fair(y, key); err != nil {
					found(int32(len(nodes)-1), err, true)
				}
			}
			frontier[i].x = nil
		}
		frontier = next
		if len(frontier) > 0 {
			r.Depth++
		}
	}
	r.States, r.ServerStates, r.Runs = len(nodes), len(e.states), len(e.runs)
	r.Processes, r.Changes = len(e.ids), e.worked
	r.Complete, r.Time = len(frontier) == 0, time.Since(began)
	return r
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

func (r report) String() string {
	return fmt.Sprintf("%d states, %d transitions, depth %d, %v; %d server states, %d script runs, %d process states, %d changes; complete: %v; bugs: %d",
		r.States, r.Transitions, r.Depth, r.Time.Round(time.Millisecond), r.ServerStates, r.Runs, r.Processes,
		r.Changes, r.Complete, len(r.Bugs))
}

// kindOf tells errors apart by their words, not their numbers.
func kindOf(err error) string {
	kind := []byte{}
	for _, c := range []byte(err.Error()) {
		if c >= 'a' && c <= 'z' {
			kind = append(kind, c)
		}
	}
	return string(kind)
}
