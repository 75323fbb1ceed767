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
	asks    uint8 // claims that each owner may begin
	faults  uint8
	crashes uint8
	forces  uint8
	reenter bool
	before  bool // the first owner's process had the lock before, which is all in one key now
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
	Complete                   bool
	Time                       time.Duration
	Bugs                       []bug
}

// A bug is something wrong after a trace.
type bug struct {
	what  string
	trace trace
}

// node is how a state was reached first.
type node struct {
	parent int32
	via    uint8 // the index of the action
}

// explore visits every system that can be reached, those with the shortest traces first. A system with something wrong
// is reported and not followed; each kind of wrong only once.
func (e *explorer) explore(l limits, progress io.Writer) report {
	began := time.Now()
	seed := maphash.MakeSeed()
	type fingerprint [2]uint64
	other := maphash.MakeSeed()
	print := func(key string) fingerprint {
		return fingerprint{maphash.String(seed, key), maphash.String(other, key)}
	}

	type entry struct {
		x     *system
		index int32
	}
	visited := map[fingerprint]struct{}{}
	var nodes []node
	var r report
	kinds := map[string]bool{}
	start, key := e.start().canonical(e.layout, e.terms)
	visited[print(key)] = struct{}{}
	nodes = append(nodes, node{parent: -1})
	frontier := []entry{{start, 0}}
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
				if progress != nil && time.Since(said) > 5*time.Second {
					said = time.Now()
					fmt.Fprintf(progress, "%8.0fs  %d states  %d transitions  depth %d  frontier %d  %d server states  %d script runs\n",
						time.Since(began).Seconds(), len(nodes), r.Transitions, r.Depth, len(frontier)-i+len(next), len(e.states), len(e.runs))
				}
			}
			for via, a := range e.actions(at.x) {
				r.Transitions++
				y, err := e.take(at.x, a)
				if flaw := cmp.Or(err, e.flaw); flaw != nil {
					if !kinds[kindOf(flaw)] {
						kinds[kindOf(flaw)] = true
						r.Bugs = append(r.Bugs, bug{flaw.Error(), e.retrace(nodes, at.index, flaw)})
					}
				}
				if err != nil {
					continue
				}
				y, key := y.canonical(e.layout, e.terms)
				p := print(key)
				if _, known := visited[p]; known {
					continue
				}
				visited[p] = struct{}{}
				y.s = e.intern(y.s)
				nodes = append(nodes, node{parent: at.index, via: uint8(via)})
				next = append(next, entry{y, int32(len(nodes) - 1)})
			}
			frontier[i].x = nil
		}
		frontier = next
		if len(frontier) > 0 {
			r.Depth++
		}
	}
	r.States, r.ServerStates, r.Runs = len(nodes), len(e.states), len(e.runs)
	r.Complete, r.Time = len(frontier) == 0, time.Since(began)
	return r
}

func (r report) String() string {
	return fmt.Sprintf("%d states, %d transitions, depth %d, %v; %d server states, %d script runs; complete: %v; bugs: %d",
		r.States, r.Transitions, r.Depth, r.Time.Round(time.Millisecond), r.ServerStates, r.Runs, r.Complete, len(r.Bugs))
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
