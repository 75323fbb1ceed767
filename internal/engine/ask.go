package engine

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a call asks for the lock, until it is granted, gives up or fails.

// AcquireAll begins calls that try to get different locks. If each asks the server, they ask together, and
// get all of them. If they do not, each asks alone.
func (e *Engine) AcquireAll(now time.Time, holds []*Hold) {
	defer e.goOn(now, len(e.sweeps) == 0)
	before := len(e.out.Send)
	for _, h := range holds {
		e.acquire(now, h)
	}
	parts := slices.Clone(e.out.Send[before:])
	asked := func(h *Hold) bool { // and no other request than those for the locks was made
		return slices.ContainsFunc(parts, func(r *Request) bool { return r.kind == asks && r.claim == h.claim })
	}
	if len(parts) == len(holds) && !slices.ContainsFunc(holds, func(h *Hold) bool { return !asked(h) }) {
		r := &Request{all: parts, kind: asksAll, Sent: now, slept: e.slept}
		r.Script, r.Keys = lua.LockAll, parts[0].Keys
		for _, part := range parts {
			r.All = append(r.All, &part.Request)
		}
		e.out.Send = append(e.out.Send[:before], r)
	}
}

// Acquire begins a call. The call has ended when the hold's state is Live or Failed.
func (e *Engine) Acquire(now time.Time, h *Hold) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.acquire(now, h)
}

func (e *Engine) acquire(now time.Time, h *Hold) {
	h.since = now
	lk := e.use(h.Name)
	i, found := lk.owners.find(h.Owner)
	if found {
		lk.refs-- // the ownership has its own
		h.ownership = lk.owners[i]
	} else {
		h.own = ownership{lock: lk, owner: h.Owner}
		h.ownership = &h.own
		lk.owners = slices.Insert(lk.owners, i, h.ownership)
	}
	e.start(now, h)
}

// start continues a call that is not behind another call of its owner.
func (e *Engine) start(now time.Time, h *Hold) {
	t := h.ownership
	held := t.claim != nil
	if held {
		e.expire(now, t.claim)
	}
	switch {
	case e.closed:
		e.fail(now, h, ErrClosed)
	case h.Caller != 0 && !t.takenBy(h):
		e.fail(now, h, ErrOwner)
	case h.Ticket != nil && (t.lost > 0 || held || t.asking != nil):
		e.fail(now, h, errHolds) // ErrLost would say that the ticket is of no use
	case t.lost > 0, held && t.claim == nil:
		e.fail(now, h, ErrLost)
	case held && h.Mode == protocol.Write && t.claim.mode == protocol.Read:
		e.fail(now, h, ErrUpgrade)
	case held:
		e.reenter(now, t.claim, h)
	case t.asking != nil && h.Try:
		e.fail(now, h, ErrLocked)
	case t.asking != nil:
		t.behind = append(t.behind, h)
	case !e.admits():
		e.fail(now, h, ErrClosed)
	default:
		e.newAttempt(now, h)
	}
	if h.state == Failed {
		e.dropIfOver(t)
	}
}

// newAttempt begins a claim for a call.
func (e *Engine) newAttempt(now time.Time, h *Hold) {
	c := &h.first
	if h.tries > 0 {
		c = new(claim)
	}
	h.tries++
	*c = claim{ownership: h.ownership, mode: h.Mode, lease: h.Lease, longest: h.Lease, caller: h,
		wanted: new(wanted)}
	e.begin(c)
	h.claim, h.ownership.asking = c, h
	c.wanted.claim = c
	e.waiting.PushBack(c.wanted)
	e.sendAsk(now, c)
	e.schedule(now, c)
}

// begin gives a new claim its name. A message may overtake the reply, so the claim is known before the
// request is sent.
func (e *Engine) begin(c *claim) {
	lk := c.ownership.lock
	lk.refs++
	e.numbers++
	c.lock, c.slot, c.number, c.Tie = lk, lk.slots.Take(), e.numbers, e.numbers
	e.claims[c.number] = c
	lk.claims.PushBack(c)
	e.claimsMax = max(e.claimsMax, len(e.claims))
}

// sendAsk asks for the lock; sent again by a waiter, it is the heartbeat.
func (e *Engine) sendAsk(now time.Time, c *claim) {
	r := e.request(c, asks)
	r.Script, r.Lease, r.Try = lua.Lock, e.leaseOf(c.lease), c.caller.Try
	if t := c.caller.Ticket; t != nil {
		r.Script, r.Former, r.Secret = lua.Convert, t.Claim.ID, t.Secret
	}
	if c.sent.IsZero() {
		c.sent = now
	}
	c.wanted.askAgain = time.Time{}
	if c.wanted.prompted.After(now) {
		c.wanted.prompted = now // this one is not older
	}
	c.asked = now
	e.send(now, r)
}

// asked takes the reply to a request for the lock, or a heartbeat.
func (e *Engine) asked(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	switch c.state {
	case Held:
		switch {
		case err != nil:
		case reply.Refused && c.next != nil:
			c.unverified = true // see renewed
		// in the second case the server had forgotten the claim, and took it for a new one
		case reply.Refused, reply.Token > c.token:
			e.lose(now, c, ErrLost, Gone)
		case reply.Token == c.token: // any other answer is of before the grant
			c.keep(now, r, reply.Delegation)
			e.schedule(now, c)
		}
	case Asking, Queued:
		switch {
		case c.rises():
			e.upgraded(now, c, r, reply, err)
		case err != nil && (c.caller.Try || !protocol.Passing(err)):
			c.err = err
			e.withdraw(now, c, err)
		case err != nil:
			c.err = err
			c.fail(now, c.lease)
			e.schedule(now, c)
		case c.caller.Ticket != nil && reply.Token == 0:
			h := c.caller
			e.endConfirmed(c)
			e.fail(now, h, ErrLost)
			e.advance(now, c)
		case reply.Refused && c.caller.Try:
			e.queued(now, c, r, reply) // it has run before, and had to wait
		case reply.Refused:
			// It was cleared away while its process was paused, or the server has forgotten its last writes.
			e.endConfirmed(c)
			e.retry(now, c.caller)
		case reply.Token != 0 && reply.Token < c.wanted.floor && r.Sent.Before(c.wanted.answered):
			// the server has lost that grant
		case reply.Token != 0:
			by := AtOnce
			switch {
			case reply.Delegation.Lease > 0:
				by = ByDelegation
			case c.state == Queued:
				by = ByHeartbeat
				e.overheard(c, reply, r)
			}
			c.unverified = by != ByDelegation && c.troubled(now)
			c.keep(now, r, reply.Delegation)
			e.granted(now, c, reply.Token, by)
		default:
			e.queued(now, c, r, reply)
		}
	}
}

// overheard reports that a heartbeat returned a grant although the subscription was established when the
// grant was made. A late message may still arrive.
func (e *Engine) overheard(c *claim, reply protocol.Reply, r *Request) {
	since := order.Earlier(r.Sent, c.wanted.answered)
	if reply.Before && !e.listening.IsZero() && e.listening.Before(since) {
		e.holdEvent(c.caller, Event{Kind: Woken, Path: ByHeartbeat})
	}
}

// queued notes that the claim has to wait.
func (e *Engine) queued(now time.Time, c *claim, r *Request, reply protocol.Reply) {
	c.keep(now, r, reply.Delegation)
	i := protocol.InstanceOf(reply.Claim)
	if i != "" && i != e.config.Instance && reply.Claim != c.wanted.obstacle.Claim {
		e.out.Blockers = append(e.out.Blockers, i)
	}
	c.wanted.floor, c.wanted.obstacle = reply.Last, reply.Obstacle
	if c.caller.Try && !reply.Idle {
		h := c.caller
		e.endConfirmed(c)
		e.fail(now, h, ErrLocked)
		e.advance(now, c)
		return
	}
	if c.state == Asking {
		e.holdEvent(c.caller, Event{Kind: Queueing})
	}
	e.step(c, Queued)
	if err := e.findDeadlock(c); err != nil {
		e.withdraw(now, c, err)
		return
	}
	if !e.subscribing && !e.closed {
		e.subscribing, e.out.Listen = true, true
	}
	c.wanted.askAgain = now.Add(max(reply.Again+grace, soonest))
	if r.Sent.Before(c.wanted.prompted) {
		c.wanted.askAgain = now // a message, received or missed, may be newer than the reply
	}
	e.schedule(now, c)
}

// granted makes a waiting claim Held. Its lease runs from the last request that the server processed before
// it granted the lock. That is no earlier than the last one with a reply: the server never has a claim wait
// that was granted, or lost, before (I4).
func (e *Engine) granted(now time.Time, c *claim, token int64, by Path) {
	if c.deadline.IsZero() { // a message has overtaken the first reply
		c.deadline, c.kept = Deadline(c.sent, c.lease), c.lease
	}
	h, t := c.caller, c.ownership
	c.attempt = attempt{}
	c.token, c.granted = token, c.sent // it was granted after that
	c.quickEnd = c.delegation == 0
	e.step(c, Held)
	if !now.Before(c.deadline) {
		// The process has slept through the lease of what it was granted.
		e.step(c, Ending)
		e.finish(now, c)
		e.retry(now, h)
		return
	}
	t.claim = c
	c.holds, c.counted, c.confirmed = append(c.one[:0], h), 1, e.config.Replicas == 0
	// its lease counts from a renewal that is yet to come
	h.awaitsRenewal = by != AtOnce && by != ByDelegation && h.NoRenew
	if h.path = by; !c.confirmed {
		e.confirm(now, h)
		e.renew(now, c)
	} else {
		e.live(now, h, c.deadline, by)
	}
	e.schedule(now, c)
	if len(t.behind) > 0 {
		e.advance(now, c)
	}
}

// troubled reports whether the current request of the claim, or an earlier one, failed or took long, or the
// claim was dropped. Its grant is then verified by a renewal immediately.
func (c *claim) troubled(now time.Time) bool {
	return c.wanted.dropped || c.failures > 0 || !c.asked.IsZero() && now.Sub(c.asked) >= slowReply
}

// retry begins a call again after its claim was refused, or after its grant has expired.
func (e *Engine) retry(now time.Time, h *Hold) {
	switch {
	case !e.admits():
		e.fail(now, h, ErrClosed)
	case h.tries < mostTries:
		e.newAttempt(now, h)
		return
	default:
		e.fail(now, h, ErrAgain)
	}
	e.advance(now, h.claim)
}

// live begins a hold that was granted, and that is good until its own deadline if it is not renewed.
func (e *Engine) live(now time.Time, h *Hold, deadline time.Time, by Path) {
	took := now.Sub(h.since)
	h.state, h.since, h.deadline = Live, now, deadline
	if h.MaxHold > 0 {
		h.end = now.Add(h.MaxHold)
	}
	e.holdEvent(h, Event{Kind: Acquired, Path: by, Token: h.claim.token, Took: took})
	e.out.Wake = append(e.out.Wake, h)
}

// GiveUp ends a call that has given up. It reports whether the hold exists nevertheless: then the caller has
// it.
func (e *Engine) GiveUp(now time.Time, h *Hold, err error) bool {
	defer e.goOn(now, len(e.sweeps) == 0)
	switch h.state {
	case Wanted:
		t := h.ownership
		if i := slices.Index(t.behind, h); i >= 0 {
			t.behind = slices.Delete(t.behind, i, i+1)
			e.fail(now, h, err)
			e.dropIfOver(t)
			break
		}
		if h.instead != nil { // once the server has answered, the owner has what it had
			e.fail(now, h, err)
			break
		}
		e.withdraw(now, h.claim, err)
	case Entering:
		c := h.claim
		if h.trouble = c.err; h.trouble == nil && !c.confirmed {
			h.trouble = ErrNotReplicated
		}
		e.fail(now, h, err)
		e.leave(now, h)
	}
	return h.state == Live
}

// withdraw ends a waiting claim with the error of its call. If the server grants the lock at that moment, the
// request passes it on.
func (e *Engine) withdraw(now time.Time, c *claim, err error) {
	h := c.caller
	h.trouble = c.err
	e.step(c, Ending)
	e.fail(now, h, err)
	e.finish(now, c)
	e.advance(now, c)
}

// fail ends a call.
func (e *Engine) fail(now time.Time, h *Hold, err error) {
	h.state, h.err = Failed, err
	e.holdEvent(h, Event{Kind: Refused, Err: err, Took: now.Sub(h.since)})
	e.out.Wake = append(e.out.Wake, h)
}

// confirm has a call wait until replicas have its claim. A renewal always writes. So the replicas confirm the
// present state: a grant, its repetition, or a grant by another request.
func (e *Engine) confirm(now time.Time, h *Hold) {
	h.state, h.confirmation = Entering, &confirmation{until: now.Add(e.config.Confirm)}
}
