package engine

import (
	"iter"
	"slices"

	"github.com/seed-7e8842f7/rwlock/internal/deadlock"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A write hold blocks all calls of other owners for the lock. A read hold blocks their calls for writing. A
// hold is not released while its owner waits. So a cycle of owners that wait for each other does not end by
// itself.
//
// A reader may also have to wait because a writer waits that readers block. Such a block is not certain while
// the reader's grant may be on its way, and is not looked at.
//
// An owner is assumed to be one goroutine. If it seems to have several, another one may release the hold. So
// an owner does not count as waiting if it has several waiting calls, or one that began before the grant.

// addCall notes that a claim is Queued. A new owner holds nothing, so its claim is in no cycle.
func (e *Engine) addCall(c *claim) {
	if c.caller.NewOwner {
		return
	}
	if e.calls == nil {
		e.calls = make(map[uint64][]*claim)
	}
	o := c.ownership.owner.Handle
	e.calls[o] = append(e.calls[o], c)
}

// removeCall notes that a claim is not Queued any more.
func (e *Engine) removeCall(c *claim) {
	o := c.ownership.owner.Handle
	if calls := slices.DeleteFunc(e.calls[o], func(other *claim) bool { return other == c }); len(calls) > 0 {
		e.calls[o] = calls
		return
	}
	if delete(e.calls, o); len(e.calls) == 0 {
		e.calls = nil // a map does not shrink by itself
	}
}

// Waits returns who waits with a Queued claim, and for which lock.
func (c *claim) Waits() (o Owner, name string) { return c.ownership.owner, c.lock.name }

// findDeadlock returns an error if a Queued claim is part of a cycle. The last call of a cycle completes it,
// so each call is looked at whenever the server says that it waits.
func (e *Engine) findDeadlock(c *claim) error {
	if c.caller.NewOwner {
		return nil
	}
	return deadlock.Search(c, e.blockers)
}

// blockers returns, for each hold that blocks a Queued claim, the claim that the hold's owner waits with, or
// nil. That is another owner: one that holds the lock does not wait for it, since its calls re-enter or fail.
func (e *Engine) blockers(c *claim) iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		if w := c.lock.writer; w != nil {
			yield(e.waitsWith(w)) // others do not hold the lock beside it
			return
		}
		if c.mode == protocol.Read {
			return
		}
		for h := range c.lock.held.All() {
			if !yield(e.waitsWith(h)) {
				return
			}
		}
	}
}

// waitsWith returns the claim that the owner of a Held claim waits with, or nil.
func (e *Engine) waitsWith(h *claim) *claim {
	if calls := e.calls[h.ownership.owner.Handle]; len(calls) == 1 && calls[0].number > h.since {
		return calls[0]
	}
	return nil
}
