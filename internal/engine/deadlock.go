package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// This file finds deadlocks among the owners of one engine. A hold stands in the way of a call that waits for the same name; and it is
// not released while its owner waits. If that goes round in a circle, none of the calls gets its lock before another gives up.
//
// An owner is taken for one goroutine, that does nothing else while a call of it waits. Where there are signs of several goroutines,
// the doubt counts against the deadlock: a call that began before a hold was granted does not keep the hold from being released, since
// another goroutine got that; and of several calls that do, all must be stuck. So a hold that is granted closes no circle, even if its
// owner waits elsewhere: whoever got it can go on. Only a call that is told to wait does.

// ErrDeadlock is what a call fails with that would wait for itself.
var ErrDeadlock = errors.New("deadlock")

// block notes that a call waits whose owner may hold other locks.
func (e *Engine) block(c *claim) {
	if !c.caller.NewOwner {
		o := c.tenure.owner
		e.blocked[o] = append(e.blocked[o], c)
	}
}

func (e *Engine) unblock(c *claim) {
	if c.caller.NewOwner {
		return
	}
	o := c.tenure.owner
	rest := slices.DeleteFunc(e.blocked[o], func(other *claim) bool { return other == c })
	if len(rest) == 0 {
		delete(e.blocked, o)
	} else {
		e.blocked[o] = rest
	}
}

// calls are those for whose end a hold waits: its owner made them when it had the hold.
func (e *Engine) calls(hold *claim) []*claim {
	calls := e.blocked[hold.tenure.owner]
	if !slices.ContainsFunc(calls, func(c *claim) bool { return c.number < hold.since }) {
		return calls
	}
	return slices.DeleteFunc(slices.Clone(calls), func(c *claim) bool { return c.number < hold.since })
}

// obstructs reports whether a waiting call gets the lock only when a hold has ended: because of their modes; or because the call is a
// reader's, and a writer waits for the hold that goes first. The latter is certain only if it was known when the reader last asked: if
// the writer waited then, and the hold was there, the reader is not let in before the writer, and the writer not before the hold has
// ended. Otherwise the reader may have been let in already, and the grant be on its way here.
func (hold *claim) obstructs(call *claim) (does, certain bool) {
	switch {
	case hold.tenure.owner == call.tenure.owner:
		return false, true
	case hold.mode == protocol.Write || call.mode == protocol.Write:
		return true, true
	}
	writers := call.lock.writers
	return len(writers) > 0, len(writers) > 0 && writers[0].since <= call.waits && hold.since <= call.waits
}

// deadlock returns an error if a call waits for itself that the server has just told to wait, and nil if not. It is asked for with
// each heartbeat, too: a deadlock also arises when of two calls of an owner the one ends that was not stuck. If there may be one, but
// that is not certain, the readers that are in doubt ask again: those behind a writer that has come since, among others.
func (e *Engine) deadlock(now time.Time, call *claim) error {
	if len(e.blocked) < 2 {
		return nil
	}
	if circle := e.circle(call, true); circle != nil {
		return fmt.Errorf("%w: %s", ErrDeadlock, tell(circle))
	}
	for _, c := range e.circle(call, false) {
		if c.state == Queued && c.mode == protocol.Read {
			c.look = now
			e.schedule(now, c)
		}
	}
	return nil
}

// circle returns the way from a call back to it, as holds that are in the way and the calls of their owners in turns; or nil if there is
// none. If it need not be certain, the way may end at a reader that waits behind the call.
func (e *Engine) circle(call *claim, certain bool) []*claim {
	s := search{e: e, certain: certain, stuck: map[*claim]bool{}, seen: map[*claim]bool{}}
	s.reach(call)
	s.free()
	return s.way(call, call)
}

// A search is one for a deadlock.
type search struct {
	e       *Engine
	certain bool
	stuck   map[*claim]bool // holds that are never released unless a call gives up
	seen    map[*claim]bool
}

// inTheWay reports whether a hold has to end for a call to get the lock.
func (s *search) inTheWay(hold, call *claim) bool {
	does, certain := hold.obstructs(call)
	return does && (certain || !s.certain)
}

// reach takes all holds for stuck that are in a call's way, directly or not, and whose owners wait.
func (s *search) reach(call *claim) {
	for _, hold := range call.lock.held {
		calls := s.e.calls(hold)
		if len(calls) == 0 || s.stuck[hold] || !s.inTheWay(hold, call) {
			continue
		}
		s.stuck[hold] = true
		for _, c := range calls {
			s.reach(c)
		}
	}
}

// free takes back which holds are stuck, until each call of their owners waits for one that is.
func (s *search) free() {
	getsOn := func(call *claim) bool {
		return !slices.ContainsFunc(call.lock.held, func(hold *claim) bool { return s.stuck[hold] && s.inTheWay(hold, call) })
	}
	for before := -1; before != len(s.stuck); {
		before = len(s.stuck)
		for hold := range s.stuck {
			if slices.ContainsFunc(s.e.calls(hold), getsOn) {
				delete(s.stuck, hold)
			}
		}
	}
}

func (s *search) way(from, to *claim) []*claim {
	for _, hold := range from.lock.held {
		if !s.stuck[hold] || s.seen[hold] || !s.inTheWay(hold, from) {
			continue
		}
		s.seen[hold] = true
		for _, call := range s.e.calls(hold) {
			if call == to || !s.certain && call.mode == protocol.Read && to.mode == protocol.Write && call.lock == to.lock {
				return []*claim{hold, call}
			}
			if rest := s.way(call, to); rest != nil {
				return append([]*claim{hold, call}, rest...)
			}
		}
	}
	return nil
}

// tell says who holds what and waits for what, the one first whose call has closed the circle.
func tell(circle []*claim) string {
	n := len(circle)
	parts := []string{part(circle[n-2], circle[n-1])}
	for i := 0; i < n-2; i += 2 {
		parts = append(parts, part(circle[i], circle[i+1]))
	}
	return strings.Join(parts, "; ")
}

func part(hold, call *claim) string {
	return fmt.Sprintf("%s holds %s and waits for %s", hold.tenure.owner, quote(hold.lock.name), quote(call.lock.name))
}

// quote returns a name as an error shows it, on one line and not too long.
func quote(name string) string {
	if len(name) > mostShown {
		return fmt.Sprintf("%q…", name[:mostShown])
	}
	return fmt.Sprintf("%q", name)
}

const mostShown = 64
