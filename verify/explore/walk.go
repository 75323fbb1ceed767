package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

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

func (r report) String() string {
	return fmt.Sprintf("%d states, %d transitions, depth %d, %v; %d server states, %d script runs, %d process states, %d changes; complete: %v; bugs: %d",
		r.States, r.Transitions, r.Depth, r.Time.Round(time.Millisecond), r.ServerStates, r.Runs, r.Processes,
		r.Changes, r.Complete, len(r.Bugs))
}

// A bug is something wrong after a trace.
type bug struct {
	what  string
	trace trace
}

// A walk visits every X that can be reached from a first one, in the order of their distance. A V is a step
// from one X to another.
type walk[X, V any] struct {
	limits
	progress io.Writer     // or nil
	visit    func(X)       // sees each X; or nil
	tidy     func(*report) // is called regularly: it completes the report, and frees memory

	report report
	steps  []step[V]
	next   []item[X] // to be expanded
	kinds  map[string]bool
}

// A step says how an X was reached for the first time.
type step[V any] struct {
	parent int32 // -1 for the first
	via    V
}

// An item is an X that was reached, with its step.
type item[X any] struct {
	x  X
	at int32
}

// run calls expand for each X that is reached. expand calls reach for each X that its argument leads to, and
// found for each error.
func (w *walk[X, V]) run(first X, expand func(at int32, x X)) report {
	began := time.Now()
	said, r := began, &w.report
	stop := func() bool {
		return w.states > 0 && len(w.steps) >= w.states || w.time > 0 && time.Since(began) > w.time ||
			w.bugs > 0 && len(r.Bugs) >= w.bugs
	}
	w.kinds = map[string]bool{}
	var none V
	w.reach(-1, none, first)
	for len(w.next) > 0 && !stop() {
		frontier := w.next
		w.next = nil
		for i, p := range frontier {
			if i%256 == 0 {
				if stop() {
					w.next = append(w.next, frontier[i:]...)
					break
				}
				w.tidy(r)
				if w.progress != nil && time.Since(said) > 5*time.Second {
					said = time.Now()
					r.States, r.Time = len(w.steps), time.Since(began)
					fmt.Fprintln(w.progress, len(frontier)-i+len(w.next), "to go on from,", r)
				}
			}
			expand(p.at, p.x)
			frontier[i] = item[X]{}
		}
		if len(w.next) > 0 {
			r.Depth++
		}
	}
	w.tidy(r)
	r.States, r.Complete, r.Time = len(w.steps), len(w.next) == 0, time.Since(began)
	return *r
}

// reach notes that x was reached, for the first time, and returns its step.
func (w *walk[X, V]) reach(parent int32, via V, x X) int32 {
	at := int32(len(w.steps))
	w.steps = append(w.steps, step[V]{parent, via})
	w.next = append(w.next, item[X]{x, at})
	if w.visit != nil {
		w.visit(x)
	}
	return at
}

// found adds an error to the report, each kind of error once. trace gets the steps from the first X to the
// one at which the error was found.
func (w *walk[X, V]) found(at int32, flaw error, trace func(way []V) trace) {
	if w.kinds[kindOf(flaw)] {
		return
	}
	w.kinds[kindOf(flaw)] = true
	var way []V
	for ; w.steps[at].parent >= 0; at = w.steps[at].parent {
		way = append(way, w.steps[at].via)
	}
	slices.Reverse(way)
	w.report.Bugs = append(w.report.Bugs, bug{flaw.Error(), trace(way)})
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
