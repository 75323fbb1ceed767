package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A fair is a system in a fair run, in which it makes no difference what may still go wrong.
type fair struct {
	fingerprint
	faulty bool
}

// fair lets a system run to its end in which nothing goes wrong any more: whatever is in flight arrives,
// holds are released at once, and nobody asks. It returns how many ticks that takes. Nobody waits for longer
// than the longest lease, and a tick or two for what is timed to take notice.
func (e *explorer) fair(x *system, key string) (ticks uint8, err error) {
	patience := e.patience(x)
	var path []fair
	var passes []bool
	base := uint8(0)
	for {
		at := fair{e.fingerprint(key), x.faulty}
		if t, ok := e.served[at]; ok {
			base = t
			break
		}
		a, ok := e.next(x)
		if !ok {
			break
		}
		path, passes = append(path, at), append(passes, a.do == pass)
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
	e.served[fair{e.fingerprint(key), x.faulty}] = base
	for k := len(path) - 1; k >= 0; k-- {
		if passes[k] {
			t++
		}
		e.served[path[k]] = t
	}
	if t > patience {
		return t, fmt.Errorf("in a fair run, it takes %d ticks until all have had the lock", t)
	}
	return t, nil
}

// patience is how many ticks a fair run may take. A lease has to end only if nobody is left who could release
// what the server keeps: the process has died, or has given it up, or is another's that does not know that
// the server has it again. Otherwise there is only a heartbeat to wait for. One tick each is for the look and
// for what is timed.
func (e *explorer) patience(x *system) uint8 {
	longest := uint8(0)
	for _, d := range e.lease {
		longest = max(longest, uint8(d/tick))
	}
	left := slices.ContainsFunc(x.procs, func(n *node) bool { return n.p.Crashed || n.p.Abandoned }) ||
		len(x.procs) > 1 && slices.ContainsFunc(x.sites, func(at site) bool { return at.s.undone })
	if !left {
		longest = (longest + 2) / 3
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
		case run, hear, stand, deliver, again, hearDelayed, wake, catchUp:
			return a, true
		case release:
			h := x.procs[a.proc].p.Holds[a.a]
			if !slices.ContainsFunc(x.procs[a.proc].p.Extending, func(c *extending) bool { return c.Hold == h }) {
				rest = append(rest, a)
			}
		}
	}
	if len(rest) > 0 {
		return rest[0], true
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
