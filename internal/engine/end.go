package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a hold ends, and how the server learns of it.

// Release ends a hold. It returns true if the end is known immediately. Otherwise the hold's Err says how it
// went, once the state is Finished.
func (e *Engine) Release(now time.Time, h *Hold) (known bool, err error) {
	defer e.goOn(now, len(e.sweeps) == 0)
	switch e.lapseIfDue(now, h); h.state {
	case Live:
		c := h.claim
		e.stop(now, h, Finished, ErrNotHeld, Released)
		if len(c.holds) == 0 || c.mode == protocol.Write && !c.writes() {
			h.state, c.last = Releasing, h
		}
		e.settle(now, c)
		return h.state == Finished, nil
	case Lapsed:
		e.acknowledgeLoss(h)
		return true, h.err
	}
	return true, ErrNotHeld
}

// lapseIfDue ends a hold whose time is over: Tick was about to find out.
func (e *Engine) lapseIfDue(now time.Time, h *Hold) {
	if h.state == Live && !now.Before(h.Deadline()) {
		e.lapse(now, h)
	}
}

// unusable returns why nothing can be done with a hold that has ended, or nil if it can be relied on.
func (e *Engine) unusable(now time.Time, h *Hold) error {
	switch e.lapseIfDue(now, h); h.state {
	case Live:
		return nil
	case Lapsed:
		return h.err
	}
	return ErrNotHeld
}

// leave removes a hold, or a call that re-enters, from its claim.
func (e *Engine) leave(now time.Time, h *Hold) {
	h.claim.remove(h)
	e.settle(now, h.claim)
}

// settle adjusts a claim to the holds that are left: without any it ends, and without a write hold it is
// downgraded.
func (e *Engine) settle(now time.Time, c *claim) {
	switch {
	case len(c.holds) == 0:
		e.end(now, c)
	case c.mode == protocol.Write && !c.writes():
		e.downgrade(now, c)
	default:
		e.recount(now, c)
	}
}

func (c *claim) remove(h *Hold) {
	c.holds = slices.DeleteFunc(c.holds, func(other *Hold) bool { return other == h })
}

// acknowledgeLoss notes that an owner has released, or forgotten, a hold that it had lost.
func (e *Engine) acknowledgeLoss(h *Hold) {
	h.state = Finished
	h.ownership.lost--
	e.dropIfOver(h.ownership)
}

// Forget stops renewing a hold that nothing refers to any more. The hold ends with its lease. That is logged,
// unless the hold is not renewed anyway: then its lease was meant to end it.
func (e *Engine) Forget(now time.Time, h *Hold) {
	switch h.state {
	case Live:
		h.unreachable = true
		if h.NoRenew {
			return
		}
		e.record("hold forgotten without Unlock: it ends with its lease", h, nil, 0)
		h.forgotten, h.NoRenew, h.deadline = true, true, h.claim.deadline
		e.schedule(now, h.claim)
	case Lapsed:
		e.acknowledgeLoss(h)
	}
}

// lapse ends one hold of a claim, whose own lease is over.
func (e *Engine) lapse(now time.Time, h *Hold) {
	e.over(now, h, ErrLost, Expired)
	e.settle(now, h.claim)
}

// stop removes a Live hold from its claim. The calls that extend it fail.
func (e *Engine) stop(now time.Time, h *Hold, to HoldState, extensions error, why Cause) {
	h.end, h.state = h.Deadline(), to
	e.endExtensions(h.claim, h.owns, extensions)
	h.claim.remove(h)
	e.holdEvent(h, Event{Kind: Ended, Cause: why, Took: now.Sub(h.since)})
}

// over removes a hold that can no longer be relied on from its claim, or makes a call that re-enters fail.
func (e *Engine) over(now time.Time, h *Hold, cause error, why Cause) {
	if h.state == Entering {
		h.claim.remove(h)
		e.fail(now, h, cause)
		return
	}
	state := Finished
	if !h.unreachable {
		state = Lapsed
		h.ownership.lost++
		if cause == ErrLost {
			e.record("hold lost", h, nil, why)
		}
	}
	if h.forgotten {
		why = Forgotten
	}
	h.err = cause
	e.stop(now, h, state, cause, why)
	e.out.Cancel = append(e.out.Cancel, h)
}

// lose ends a held claim, and all of its holds.
func (e *Engine) lose(now time.Time, c *claim, cause error, why Cause) {
	holds := c.holds
	c.holds = nil // all at once, which takes less time
	for _, h := range holds {
		e.over(now, h, cause, why)
	}
	e.end(now, c)
}

// end ends a held claim that has no holds left. If it is one of an unanswered conversion, nobody knows which
// of the two claims the server has, and the former is ended first: a late request cannot bring about the
// other then.
func (e *Engine) end(now time.Time, c *claim) {
	e.step(c, Ending)
	c.ownership.claim = nil
	if next := c.next; next != nil {
		e.step(next, Ending)
		next.token, next.deadline, c.longest = c.token, c.deadline, max(c.longest, next.longest)
		if up := next.caller; up.state == Wanted {
			e.fail(now, up, e.unusable(now, up.instead))
		}
		c = next
	}
	if former := c.former; former != nil {
		c.former, former.longest = nil, max(former.longest, c.longest)
		e.timeline.Remove(c)
		c = former
	}
	e.finish(now, c)
	e.dropIfOver(c.ownership)
}

// finish sends the end of a claim. It is repeated for as long as the server may keep the claim.
func (e *Engine) finish(now time.Time, c *claim) {
	c.attempt = attempt{}
	c.err = nil
	c.giveUp = now.Add(max(c.longest, EndTimeout))
	e.sendEnd(now, c)
	e.schedule(now, c)
}

func (e *Engine) sendEnd(now time.Time, c *claim) {
	if c.hands {
		e.sendHandOver(now, c)
		return
	}
	r := e.request(c, ends)
	r.Script = lua.Unlock
	if c.quickEnd && c.longest <= protocol.ShortLease && now.Sub(c.granted) < quickEndFor && c.failures == 0 {
		r.Record = protocol.Released(e.named(c), c.token)
	}
	r.Late = c.token == 0
	c.asked = now
	e.send(now, r)
}

func (e *Engine) ended(now time.Time, c *claim, reply protocol.Reply, err error) {
	if c.state != Ending {
		return
	}
	if err != nil {
		c.fail(now, c.lease)
		c.err = err
		if !protocol.Passing(err) {
			e.conclude(c, err)
			if c.next != nil {
				e.conclude(c.next, err)
			}
		}
		gone := protocol.IsClientClosed(err)
		if gone && e.closed && c.token != 0 {
			e.stranded, e.strandedBy = e.stranded+1, err
		}
		if gone || e.closed && c.deadline.IsZero() { // in the second case, the server was never heard to have it
			e.abandon(c)
			return
		}
		e.schedule(now, c)
		return
	}
	if reply.Code == protocol.DoneBefore {
		e.promptAll(now, c.lock) // the reply that named whom that run let in is lost
	}
	if c.token == 0 {
		e.holdEvent(c.caller, Event{Kind: Withdrawn})
	}
	if reply.Code == protocol.NotThere {
		err = ErrLost
	}
	switch next := c.next; {
	case next == nil:
		e.conclude(c, err)
	case err == ErrLost: // unless the conversion has run, which the end of the other claim shows
		next.former = c
		e.finish(now, next)
	default: // it has not run, and cannot any more
		e.conclude(c, nil)
		e.conclude(next, nil)
		e.finish(now, next)
	}
	e.endConfirmed(c)
}

// conclude ends the release that waits for the server, and that of the claim before it.
func (e *Engine) conclude(c *claim, err error) {
	if c.former != nil {
		e.conclude(c.former, err)
	}
	if c.last != nil {
		e.released(c.last, err)
		c.last = nil
	}
}

// released notes how a release went.
func (e *Engine) released(h *Hold, err error) {
	h.state, h.err = Finished, err
	e.out.Wake = append(e.out.Wake, h)
}

// abandon leaves an ending claim to its lease, and the one that was to be ended after it.
func (e *Engine) abandon(c *claim) {
	for c := c; c != nil; c = c.next {
		e.conclude(c, unanswered(c.err))
		e.step(c, Over) // nobody knows what its slot says on the server
	}
}

// expire ends a Held claim at its local deadline, or those of its holds whose time is over.
func (e *Engine) expire(now time.Time, c *claim) {
	if !now.Before(c.deadline) {
		e.lose(now, c, ErrLost, Expired)
		return
	}
	over := func(h *Hold) bool {
		at := h.enterUntil()
		late := h.state == Entering && !at.IsZero() && !now.Before(at)
		return late || h.state == Live && !now.Before(h.Deadline())
	}
	if !slices.ContainsFunc(c.holds, over) {
		return
	}
	for _, h := range slices.Clone(c.holds) {
		switch {
		case !over(h):
		case h.state == Live:
			e.lapse(now, h)
		case h.confirmation == nil || now.Before(h.confirmation.until):
			e.fail(now, h, unanswered(c.err))
			e.leave(now, h)
		default: // the replicas have not confirmed it in time
			e.fail(now, h, fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, h.confirmation.n, e.config.Replicas,
				e.config.Confirm))
			e.leave(now, h)
		}
	}
}

// Force drops every hold on a name, of any RWLock; if held is not 0, only while the lock is held and that is
// its last token. tag identifies the request. Afterwards, the holds of this engine are renewed immediately,
// which shows that they are lost.
func (e *Engine) Force(now time.Time, name string, held int64, tag any) error {
	return e.query(now, name, protocol.Request{Script: lua.Force, Held: held}, tag)
}

// Discard ends the hold of a ticket. tag identifies the request.
func (e *Engine) Discard(now time.Time, t protocol.Ticket, tag any) error {
	return e.query(now, t.Name, protocol.Request{Script: lua.Unlock, Claim: t.Claim, Again: true}, tag)
}

// Inspect reads the state of a lock. tag identifies the request.
func (e *Engine) Inspect(now time.Time, name string, tag any) error {
	return e.query(now, name, protocol.Request{Script: lua.Inspect}, tag)
}

func (e *Engine) query(now time.Time, name string, p protocol.Request, tag any) error {
	defer e.goOn(now, len(e.sweeps) == 0)
	if e.closed {
		return ErrClosed
	}
	lk, slot := e.use(name), -1
	if p.Script == lua.Force {
		slot = lk.slots.Take()
		p.Claim, _ = e.NewClaim(protocol.Write, slot, Owner{})
	}
	r := e.about(lk, queries, p)
	r.Tag, r.slot = tag, slot
	e.send(now, r)
	return nil
}

func (e *Engine) answered(now time.Time, r *Request, reply protocol.Reply, err error) {
	if err == nil && r.slot >= 0 {
		r.lock.slots.Put(r.slot) // or else nobody knows whether the request may yet run
	}
	switch s := reply.State; {
	case r.Script != lua.Inspect:
		e.eachOf(now, r.lock, func(now time.Time, c *claim) {
			switch {
			case c.state == Held && err == nil:
				e.renew(now, c)
			case reply.Code == protocol.DoneBefore:
				e.prompt(now, c) // the reply is lost that named whom that run let in
			}
			if r.Script == lua.Force && err == nil && c.state <= Queued { // this may have overtaken its grant
				c.wanted.dropped = true
			}
		})
		if err == nil && reply.Code == protocol.NotThere {
			if err = ErrLost; r.Script == lua.Force {
				err = ErrNotHeld
			}
		}
	case s != nil: // the server may not know yet how many holds an owner of this engine has
		for i, h := range s.Holders {
			k, found := r.lock.owners.find(h.Owner)
			if !found || h.Instance != e.config.Instance {
				continue
			}
			if c := r.lock.owners[k].claim; c != nil && c.mode == h.Mode {
				s.Holders[i].Count = len(c.holds)
			}
		}
	}
	e.out.Answers = append(e.out.Answers, Answer{r.Tag, reply.State, err})
	e.drop(r.lock)
}
