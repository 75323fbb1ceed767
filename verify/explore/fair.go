package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// fair lets a system run to its end in which nothing goes wrong any more: whatever is under way arrives, holds are released at
// once, and nobody asks. It returns how many ticks that takes. Nobody waits for longer than the longest lease, and a tick or two
// for what is timed to take notice.
func (e *explorer) fair(x *system, key string) (ticks uint8, err error) {
	var path []string
	var passes []bool
	base := uint8(0)
	for {
		if t, ok := e.served[key]; ok {
			base = t
			break
		}
		a, ok := e.next(x)
		if !ok {
			break
		}
		path, passes = append(path, key), append(passes, a.do == pass)
		if len(path) > 1000 {
			return 0, errors.New("a fair run does not come to an end")
		}
		y, err := e.take(x, a)
		if err := cmp.Or(err, e.flaw); err != nil {
			return 0, fmt.Errorf("in a fair run: %w", err)
		}
		x, key = e.canonical(y)
	}
	t := base
	e.served[key] = base
	for k := len(path) - 1; k >= 0; k-- {
		if passes[k] {
			t++
		}
		e.served[path[k]] = t
	}
	if t > e.patience() {
		return t, fmt.Errorf("in a fair run, it takes %d ticks until all have had the lock", t)
	}
	return t, nil
}

// patience is how many ticks a fair run may take: the longest lease, and one each for the look and the heartbeat.
func (e *explorer) patience() uint8 {
	longest := uint8(0)
	for _, d := range e.lease {
		longest = max(longest, uint8(d/tick))
	}
	return longest + 2
}

// next is what happens next in a fair run, and whether anything has to.
func (e *explorer) next(x *system) (action, bool) {
	var rest []action
	for _, a := range e.actions(x) {
		if a.how != arrives {
			continue
		}
		switch a.do {
		case run, hear, stand, deliver, again, hearDelayed, wake:
			return a, true
		case release, pass:
			rest = append(rest, a)
		}
	}
	for _, a := range rest {
		if a.do == release {
			return a, true
		}
	}
	for _, n := range x.procs {
		if !n.p.Crashed && len(n.p.Engine.Views()) > 0 {
			return action{do: pass}, true
		}
		for _, h := range n.p.Holds {
			if h.State() != engine.Lapsed {
				return action{do: pass}, true
			}
		}
	}
	return action{}, false
}
