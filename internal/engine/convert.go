package engine

import (
	"errors"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a claim is converted: to write after reading, to read after writing, and for a ticket.

var (
	errHolds       = errors.New("the owner has a hold on the lock, or waits for it, already")
	errInFlight    = errors.New("a downgrade or an upgrade of it is not answered yet")
	errSeveralHeld = errors.New("its owner has other holds on the lock")
)

// Downgrade replaces a write hold by a read hold, which lasts as long, and whose Tag the caller has set. It
// returns as Release does. If the write hold could not be relied on, nothing changes, and the read hold has
// Failed.
func (e *Engine) Downgrade(now time.Time, h, read *Hold) (known bool, err error) {
	defer e.goOn(now, len(e.sweeps) == 0)
	read.likeness(now, h, protocol.Read)
	if err = e.unusable(now, h); err != nil {
		e.fail(now, read, err)
		return true, err
	}
	read.claim, read.path, read.awaitsRenewal = h.claim, ByReentry, h.awaitsRenewal
	// If it is not renewed, it may be meant to last longer than its claim does yet.
	read.state, read.deadline, read.end = Live, order.Later(h.deadline, h.Deadline()), h.end
	h.claim.holds = append(h.claim.holds, read)
	h.extensionsGoTo(read)
	e.holdEvent(read, Event{Kind: Acquired, Path: ByReentry, Token: h.claim.token})
	return e.Release(now, h)
}

// likeness makes h another hold of the same owner, which lasts as long as of.
func (h *Hold) likeness(now time.Time, of *Hold, m Mode) {
	h.Name, h.Owner, h.Mode, h.Caller = of.Name, of.Owner, m, of.Caller
	h.Lease, h.MaxHold, h.NoRenew = of.Lease, of.MaxHold, of.NoRenew
	h.ownership, h.since = of.ownership, now
}

// extensionsGoTo has the calls that extend a hold extend another hold of its claim.
func (h *Hold) extensionsGoTo(next *Hold) {
	for _, x := range h.claim.extensions {
		if x.hold == h {
			x.hold = next
		}
	}
}

// downgrade replaces a claim whose last write hold has ended: the server grants the holds that are left one
// that reads. Until it has answered, they rely on the earlier of the two leases; to renew them means to ask
// again.
func (e *Engine) downgrade(now time.Time, c *claim) {
	read := &claim{ownership: c.ownership, mode: protocol.Read, lease: c.lease, delegation: c.delegation,
		sent: now, deadline: c.deadline, kept: c.kept}
	read.grant = grant{token: c.token, granted: c.granted, former: c, holds: c.holds, confirmed: c.confirmed,
		extensions: c.extensions}
	c.holds, c.extensions, c.next = nil, nil, read
	e.begin(read)
	e.step(read, Held)
	e.step(c, Ending)
	e.timeline.Remove(c)
	c.ownership.claim = read
	for _, h := range read.holds {
		h.claim = read
	}
	r := e.renew(now, read)
	read.deadline = order.Earlier(read.deadline, r.until(protocol.Delegation{}))
	e.schedule(now, read)
}

// downgraded takes the reply to a downgrade that has run.
func (e *Engine) downgraded(now time.Time, c *claim, code int) {
	former := c.former
	if former == nil {
		return
	}
	c.former = nil
	if code == protocol.DoneBefore {
		e.promptAll(now, c.lock) // the reply that named whom that run let in is lost
	}
	e.conclude(former, nil)
	e.endConfirmed(former)
}

// TryUpgrade replaces a read hold by a write hold, which lasts as long, and whose Tag the caller has set, if
// nobody else reads the lock and no writer waits. The call has ended when up is Live or Failed. In the latter
// case, the owner has what it had.
func (e *Engine) TryUpgrade(now time.Time, h, up *Hold) {
	defer e.goOn(now, len(e.sweeps) == 0)
	up.likeness(now, h, protocol.Write)
	up.instead, up.Try = h, true
	if err := e.unusable(now, h); err != nil {
		e.fail(now, up, err)
		return
	}
	c := h.claim
	switch next := c.next; {
	case e.closed:
		e.fail(now, up, ErrClosed)
	case c.former != nil, next != nil && next.caller.state == Wanted:
		e.fail(now, up, errInFlight)
	case c.mode == protocol.Write:
		up.claim = c
		e.upgrade(now, up)
	case next != nil: // a call before has given up, and its request is unanswered
		next.caller, up.claim = up, next
	default:
		next = &claim{ownership: c.ownership, mode: protocol.Write, lease: c.lease, caller: up, sent: now,
			wanted: new(wanted)}
		e.begin(next)
		next.former, next.wanted.claim, c.next, up.claim = c, next, next, next
		e.askToRise(now, next)
	}
}

// askToRise asks for a claim that writes in place of one that reads. Until the server has answered, the holds
// rely on the latter, which the request renews if it has run before.
func (e *Engine) askToRise(now time.Time, c *claim) *Request {
	from := c.former
	if !c.asked.IsZero() {
		c.failures++
	}
	r := e.request(c, asks)
	lease := max(from.needs(now), from.asksFor(now), LeaseFor(from.deadline.Sub(now)))
	c.longest = max(c.longest, lease)
	r.Script, r.Lease, r.Count = lua.Convert, e.leaseOf(lease), len(from.holds)
	r.Former = e.named(from).ID
	c.asked = now
	e.send(now, r)
	e.schedule(now, from)
	return r
}

// upgraded takes the reply to a request to write after reading.
func (e *Engine) upgraded(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	from, up := c.former, c.caller
	if e.expire(now, from); c.state != Asking {
		return
	}
	switch {
	case reply.Token > 0 && !now.Before(r.until(protocol.Delegation{})):
		e.schedule(now, from) // the process was paused: it is asked again
	case reply.Token > 0:
		e.rise(now, c, r, reply.Token)
	case reply.Refused:
		e.lose(now, from, ErrLost, Gone)
	case err != nil && protocol.Passing(err): // nobody knows which of the two claims the server has
		c.err = err
		c.fail(now, c.lease)
		e.refuseUpgrade(now, up, err)
		e.schedule(now, from)
	default:
		tried := c.troubled(now) // perhaps an earlier copy has run
		from.unverified = from.unverified || tried
		c.wanted.answered, c.wanted.obstacle = now, reply.Obstacle
		from.next = nil
		if err != nil && tried {
			e.endUpgrade(now, c)
		} else {
			e.endConfirmed(c)
		}
		if err == nil {
			err = ErrLocked
		}
		e.refuseUpgrade(now, up, err)
		e.schedule(now, from)
	}
}

// endUpgrade ends the claim of an upgrade that the server may have made.
func (e *Engine) endUpgrade(now time.Time, c *claim) {
	e.step(c, Ending)
	c.token, c.deadline, c.former = c.former.token, c.former.deadline, nil
	e.finish(now, c)
}

func (e *Engine) refuseUpgrade(now time.Time, up *Hold, err error) {
	if up.state == Wanted {
		up.trouble = up.claim.err
		e.fail(now, up, err)
	}
}

// rise has a claim that writes take the place of the one that reads. If the call has given up, or its hold
// has ended, the claim is downgraded immediately.
func (e *Engine) rise(now time.Time, c *claim, r *Request, token int64) {
	from, up := c.former, c.caller
	granted := c.sent // no earlier than the first request was sent
	c.keep(now, r, protocol.Delegation{})
	e.step(c, Held)
	c.grant = grant{token: token, granted: granted, holds: from.holds, confirmed: from.confirmed,
		extensions: from.extensions, counted: r.Count}
	c.quickEnd = r.Count == 1
	from.holds, from.extensions, from.next = nil, nil, nil
	c.ownership.claim = c
	for _, h := range c.holds {
		h.claim = c
	}
	e.step(from, Ending)
	e.endConfirmed(from)
	if e.closed { // after Close has looked for what it is to end
		e.refuseUpgrade(now, up, ErrClosed)
		e.lose(now, c, ErrClosed, Closed)
		return
	}
	if up.state == Wanted {
		e.upgrade(now, up)
	}
	e.settle(now, c)
}

// upgrade has a write hold take the place of a read hold of its claim, which writes.
func (e *Engine) upgrade(now time.Time, up *Hold) {
	h, c := up.instead, up.claim
	if err := e.unusable(now, h); err != nil {
		e.fail(now, up, err)
		return
	}
	end, awaits := h.end, h.awaitsRenewal
	h.extensionsGoTo(up)
	e.stop(now, h, Finished, nil, Released)
	c.holds = append(c.holds, up)
	e.live(now, up, h.deadline, AtOnce)
	up.end, up.awaitsRenewal = end, awaits
	e.schedule(now, c)
}

// Detach hands a hold, which must be the only one of its owner, to a ticket, whose lease begins then. It
// returns as Release does. If it returns an error, and true, nothing has changed.
func (e *Engine) Detach(now time.Time, h *Hold, t protocol.Ticket, lease time.Duration) (
	known bool, err error) {
	defer e.goOn(now, len(e.sweeps) == 0)
	if err := e.unusable(now, h); err != nil {
		return true, err
	}
	c := h.claim
	switch {
	case c.former != nil, c.next != nil:
		return true, errInFlight
	case len(c.holds) > 1:
		return true, errSeveralHeld
	}
	next := &claim{ownership: c.ownership, mode: c.mode, lease: lease, longest: lease, wire: t.Claim}
	e.begin(next)
	next.token, next.deadline, next.former = c.token, Deadline(now, lease), c
	c.next, c.last, c.hands = next, h, true
	e.stop(now, h, Releasing, ErrNotHeld, Released)
	e.step(c, Ending)
	e.step(next, Ending)
	c.ownership.claim = nil
	e.finish(now, c)
	e.dropIfOver(c.ownership)
	return false, nil
}

func (e *Engine) sendHandOver(now time.Time, c *claim) {
	r := e.request(c.next, handsOver)
	r.Script, r.Lease = lua.Convert, e.leaseOf(c.next.lease)
	r.Former, r.Again = e.named(c).ID, c.failures > 0
	c.asked = now
	e.send(now, r)
}

// handedOver takes the reply to a request that hands a hold to a ticket.
func (e *Engine) handedOver(now time.Time, next *claim, reply protocol.Reply, err error) {
	c := next.former
	switch {
	case c == nil || !c.hands || c.state != Ending: // the call has given up, or was answered before
	case err != nil && protocol.Passing(err) && !protocol.IsClientClosed(err):
		c.fail(now, c.lease)
		c.err = err
		e.schedule(now, c)
	case err != nil:
		e.takeBack(now, c, err)
	default:
		if reply.Token == 0 {
			err = ErrLost
		}
		c.hands = false
		e.conclude(c, err)
		e.endConfirmed(c)
		e.endConfirmed(next)
	}
}

// takeBack releases a hold that was to be handed to a ticket, whether or not it was.
func (e *Engine) takeBack(now time.Time, c *claim, err error) {
	c.hands, c.next.former, c.longest = false, nil, max(c.longest, c.next.longest)
	e.conclude(c, err)
	e.finish(now, c)
}

// GiveUpDetach has a hold released whose call of Detach has given up. The ticket is void then.
func (e *Engine) GiveUpDetach(now time.Time, h *Hold, err error) {
	if h.state == Releasing && h.claim.hands {
		e.takeBack(now, h.claim, err)
	}
}
