package engine

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a claim is kept: re-entry, renewals and extensions.

// reenter gives an owner that has the lock another hold on it. The server need not know. If the hold is to
// last longer than the claim, the call waits for a renewal.
func (e *Engine) reenter(now time.Time, c *claim, h *Hold) {
	h.claim, h.path = c, ByReentry
	c.holds = append(c.holds, h)
	lacks := c.lacks(now, h)
	if !c.confirmed {
		e.confirm(now, h)
	}
	switch {
	case lacks:
		h.state, h.entered = Entering, now
		e.renew(now, c)
	case c.confirmed:
		e.live(now, h, Deadline(now, h.Lease), ByReentry)
	}
	e.recount(now, c)
}

// lacks reports whether a call that re-enters asks for a longer lease than the claim has left, and than its
// other holds have it renewed for. The claim may have been kept for a shorter one of late than it began with.
func (c *claim) lacks(now time.Time, h *Hold) bool {
	for _, other := range c.holds {
		if other != h && other.state == Live && other.Renewed() && other.Lease >= h.Lease {
			return false
		}
	}
	until := Deadline(now, h.Lease)
	if h.MaxHold > 0 {
		until = order.Earlier(until, now.Add(h.MaxHold))
	}
	return h.Lease > min(c.lease, c.kept) && until.After(c.deadline)
}

// recount notes that the number of holds has changed. A renewal says so to the server, for those who inspect
// the lock. If the number still differs after recountAfter, the claim is renewed to report it.
func (e *Engine) recount(now time.Time, c *claim) {
	switch {
	case len(c.holds) == c.counted || c.delegation > 0:
		c.recountAt = time.Time{}
	case c.recountAt.IsZero():
		c.recountAt = now.Add(recountAfter)
	}
	e.schedule(now, c)
}

// enterUntil returns until when a call may wait for a longer lease, or for replicas; zero if something else
// ends the wait.
func (h *Hold) enterUntil() (at time.Time) {
	if h.confirmation != nil {
		at = h.confirmation.until
	}
	switch {
	case h.entered.IsZero():
	case h.Try:
		at = order.Earlier(at, h.entered.Add(min(h.claim.lease, EndTimeout)))
	case !h.Bounded:
		at = order.Earlier(at, h.entered.Add(h.claim.lease))
	}
	return at
}

// owns reports whether an extension is of the hold.
func (h *Hold) owns(x *Extension) bool { return x.hold == h }

// need returns for how long from now a hold needs its claim.
func (h *Hold) need(now time.Time) time.Duration {
	lease := h.Lease
	if h.state == Live {
		left := h.deadline.Sub(now)
		if h.NoRenew && !h.awaitsRenewal {
			lease = min(lease, max(left+margin(h.Lease), time.Millisecond).Round(time.Millisecond))
		}
		lease = max(lease, LeaseFor(left)) // it may have been extended
	}
	if !h.end.IsZero() {
		lease = min(lease, LeaseFor(h.end.Sub(now)))
	}
	return lease
}

// renew sends a renewal, which also says how many holds there are. It ends no earlier than the claim's
// deadline: a server whose clock was set back may shorten the lease to that of the renewal.
func (e *Engine) renew(now time.Time, c *claim) *Request {
	if c.next != nil {
		return e.askToRise(now, c.next)
	}
	r := e.request(c, renews)
	r.Extend = c.asksFor(now)
	lease := max(c.needs(now), r.Extend)
	if lease < c.longest {
		lease = max(lease, LeaseFor(c.deadline.Sub(now)))
	}
	r.Script, r.Lease, r.Count = lua.Renew, e.leaseOf(lease), len(c.holds)
	if c.former != nil {
		r.Script, r.Former = lua.Convert, e.named(c.former).ID
	}
	if c.longest = max(c.longest, lease); c.delegation == 0 {
		c.quickEnd = c.quickEnd && r.Count == 1
		c.counted, c.recountAt = r.Count, time.Time{}
	}
	if !c.confirmed && len(c.extensions) == 0 && !now.Before(c.confirmBy) {
		e.askReplicas(now, c, r)
	}
	if r.Replicas == 0 { // replicas may be late, but then other renewals keep the lease
		c.asked = now
	}
	e.send(now, r)
	e.schedule(now, c)
	return r
}

// askReplicas has a renewal wait for replicas.
func (e *Engine) askReplicas(now time.Time, c *claim, r *Request) {
	for _, h := range c.holds {
		if h.confirmation != nil {
			r.Replicas, r.Confirm = e.config.Replicas, max(r.Confirm, h.confirmation.until.Sub(now))
		}
	}
	if r.Replicas > 0 {
		r.Confirm = min(r.Confirm, mostConfirm)
		e.numbers++
		r.number, c.confirming = e.numbers, e.numbers
		c.confirmBy = now.Add(r.Confirm + e.renewalPatience(c.lease))
	}
}

func (e *Engine) renewed(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	if c.state != Held {
		return
	}
	if r.Replicas > 0 && r.number == c.confirming {
		c.confirmBy = time.Time{}
	}
	switch i := slices.IndexFunc(c.holds, func(h *Hold) bool { return h.state == Live }); {
	case err != nil:
		c.fail(now, c.lease)
		c.err = err
		if !c.quickEnd && c.delegation == 0 {
			c.counted, c.recountAt = 0, c.retry // the server may not know how many holds there are
		}
		if i >= 0 {
			e.record("renewal failed", c.holds[i], err, 0)
			e.holdEvent(c.holds[i], Event{Kind: RenewalFailed, Err: err})
		}
		if !protocol.Passing(err) {
			if c.former != nil {
				e.conclude(c.former, err)
			}
			e.refuse(now, c, r, err)
		}
	case reply.Code == protocol.NotThere && c.next != nil:
		// Perhaps the server had upgraded it before. The answer to the upgrade says whether it has.
		c.attempt, c.unverified = attempt{}, true
	case reply.Code == protocol.NotThere:
		e.lose(now, c, ErrLost, Gone)
	default:
		e.downgraded(now, c, reply.Code)
		due := c.sent.Add(c.period(r.Lease.Duration))
		e.renewalTook = now.Sub(r.Sent)
		asked := c.asked
		c.keep(now, r, reply.Delegation)
		c.unverified = false
		for _, h := range c.holds {
			if h.awaitsRenewal {
				h.awaitsRenewal, h.deadline = false, order.Earlier(c.deadline, Deadline(r.Sent, h.Lease))
			}
		}
		if i >= 0 {
			e.holdEvent(c.holds[i], Event{Kind: Renewed, Took: max(now.Sub(due), 0)})
		}
		e.extendAll(c)
		e.entered(now, c, r, reply)
		switch {
		case !c.confirmed && !now.Before(c.confirmBy):
			e.renew(now, c)
		case asked.After(r.Sent.Add(r.Confirm)) && c.asksFor(now) > 0:
			c.asked = asked // a later renewal is in flight, which calls wait for
		}
	}
	e.schedule(now, c)
}

// entered ends the calls that waited for this renewal: the claim now lasts long enough for their holds. It
// ends none before replicas have confirmed the claim.
func (e *Engine) entered(now time.Time, c *claim, r *Request, reply protocol.Reply) {
	c.confirmed = c.confirmed || r.Replicas > 0 && reply.Confirmed >= r.Replicas
	if c.confirmed {
		c.confirmBy = time.Time{}
	}
	for _, h := range c.holds {
		sent := r.Sent
		if h.confirmation != nil {
			sent = c.sent // it was renewed while it waited for replicas
		}
		switch {
		case h.state != Entering:
		case !c.confirmed && r.Replicas > 0 && h.confirmation != nil:
			h.confirmation.n = reply.Confirmed
		case c.confirmed && (h.entered.IsZero() || !r.Sent.Before(h.entered) && r.Lease.Duration >= h.Lease):
			e.live(now, h, order.Earlier(c.deadline, Deadline(sent, h.Lease)), h.path)
		}
	}
}

// refuse ends the calls that waited for a renewal which the server refuses.
func (e *Engine) refuse(now time.Time, c *claim, r *Request, err error) {
	for _, h := range slices.Clone(c.holds) {
		if h.state == Entering && !h.entered.After(r.Sent) {
			c.remove(h)
			e.fail(now, h, err)
		}
	}
	e.endExtensions(c, func(x *Extension) bool { return !x.since.After(r.Sent) }, err)
	e.settle(now, c)
}

// asksFor returns for how long from now calls that extend a hold, or re-enter for longer, ask for the claim;
// 0 if there are none.
func (c *claim) asksFor(now time.Time) (lease time.Duration) {
	for _, h := range c.holds {
		if h.state == Entering && !h.entered.IsZero() {
			lease = max(lease, h.Lease)
		}
	}
	for _, x := range c.extensions {
		lease = max(lease, LeaseFor(x.until.Sub(now)))
	}
	return lease
}

// needs returns how long the holds need the claim, renewed or not, since a server whose clock was set back
// counts the lease from the start again.
func (c *claim) needs(now time.Time) (lease time.Duration) {
	for _, h := range c.holds {
		lease = max(lease, h.need(now))
	}
	return lease
}

// An Extension is a call that has a hold last longer.
type Extension struct {
	Tag any // the caller's own

	hold  *Hold
	since time.Time
	until time.Time
	over  bool
	err   error
}

// Over reports whether the call has come to an end, and with what error.
func (x *Extension) Over() (bool, error) { return x.over, x.err }

// Extend makes a hold last for d from now, or until its MaxHold ends it. It never shortens the hold.
func (e *Engine) Extend(now time.Time, h *Hold, d time.Duration, x *Extension) {
	defer e.goOn(now, len(e.sweeps) == 0)
	x.hold, x.since, x.until = h, now, now.Add(d)
	if err := e.unusable(now, h); err != nil {
		e.extended(x, err)
		return
	}
	x.until = order.Earlier(x.until, h.end)
	c := h.claim
	c.extensions = append(c.extensions, x)
	e.extendAll(c)
	if !x.over {
		e.renew(now, c)
	}
	e.schedule(now, c)
}

// GiveUpExtension ends a call of Extend that has given up. The hold lasts as long as before, or as long as
// the call wanted.
func (e *Engine) GiveUpExtension(x *Extension, err error) {
	if !x.over {
		e.endExtensions(x.hold.claim, func(other *Extension) bool { return other == x }, err)
	}
}

// extendAll ends the calls of Extend that have succeeded: the claim can be relied on for long enough.
func (e *Engine) extendAll(c *claim) {
	e.endExtensions(c, func(x *Extension) bool {
		if c.deadline.Before(x.until) {
			return false
		}
		x.hold.deadline = order.Later(x.hold.deadline, x.until)
		return true
	}, nil)
}

// endExtensions ends some of the calls of Extend.
func (e *Engine) endExtensions(c *claim, which func(*Extension) bool, err error) {
	c.extensions = slices.DeleteFunc(c.extensions, func(x *Extension) bool {
		if which(x) {
			e.extended(x, err)
			return true
		}
		return false
	})
}

func (e *Engine) extended(x *Extension, err error) {
	x.over, x.err = true, err
	e.out.Extended = append(e.out.Extended, x)
}
