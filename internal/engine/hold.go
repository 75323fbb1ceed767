package engine

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a claim is kept: renewals, the number of its holds, and extensions.

func (e *Engine) recountNow(now time.Time, c *claim, h *Hold) {
	h.sequence = e.renumber(c)
	e.tell(now, c)
}

// renumber returns the number of the next change of a claim that the server has to know.
func (e *Engine) renumber(c *claim) uint64 {
	e.numbers++
	c.count().sequence = e.numbers
	return e.numbers
}

// owns reports whether an extension is of the hold.
func (h *Hold) owns(x *Extension) bool { return x.hold == h }

// need returns for how long from now a hold needs its claim.
func (h *Hold) need(now time.Time) time.Duration {
	lease := h.Lease
	if h.state == Live {
		left := h.deadline.Sub(now)
		if h.NoRenew && !h.fresh {
			lease = min(lease, max(left+margin(h.Lease), time.Millisecond).Round(time.Millisecond))
		}
		lease = max(lease, LeaseFor(left)) // it may have been extended
	}
	if !h.end.IsZero() {
		lease = min(lease, LeaseFor(h.end.Sub(now)))
	}
	return lease
}

func (e *Engine) renew(now time.Time, c *claim) {
	lease := c.needs(now)
	r := e.request(c, renews)
	r.Script, r.Lease, r.Sequence = lua.Renew, e.leaseOf(lease), c.latest()
	c.longest = max(c.longest, lease)
	c.asked = now
	e.send(now, r)
	e.schedule(now, c)
}

func (e *Engine) renewed(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	if c.state != Held {
		return
	}
	switch {
	case err != nil:
		c.fail(now, c.lease)
		c.err = err
		e.record("renewal failed", c.holds[0], err, 0)
		e.holdEvent(c.holds[0], Event{Kind: RenewalFailed, Err: err})
	case reply.Code == protocol.NotThere:
		e.lose(now, c, Gone)
		return
	default:
		due := c.sent.Add(c.period(r.Lease.Duration))
		e.renewalTook = now.Sub(r.Sent)
		c.kept(now, r, reply.Lent)
		c.doubtful = false
		for _, h := range c.holds {
			if h.fresh {
				h.fresh, h.deadline = false, c.deadline
			}
		}
		e.extendAll(c)
		e.holdEvent(c.holds[0], Event{Kind: Renewed, Took: max(now.Sub(due), 0)})
	}
	e.schedule(now, c)
}

// tell sends the number of the claim's holds to the server. The number is absolute and the request numbered,
// so that it may run twice, or late. shorten sets the lease to what the remaining holds need.
func (e *Engine) tell(now time.Time, c *claim) {
	c.brief = false
	lease := c.needs(now)
	shorten := lease < c.longest // the server may keep the claim for longer
	if asked := c.asks(now); asked > 0 {
		lease, shorten = asked, false
	}
	r := e.request(c, counts)
	r.Script, r.Lease, r.Channels = lua.Reenter, e.leaseOf(lease), e.channels
	r.Count, r.Sequence, r.Shorten = len(c.holds), c.sequence, shorten
	for _, x := range c.extensions {
		r.Extend = max(r.Extend, LeaseFor(x.until.Sub(now)))
	}
	until := Deadline(now, lease)
	c.sentCounts = append(c.sentCounts, sentCount{c.sequence, until})
	if shorten {
		c.shortened = c.sequence
		c.deadline = order.Earlier(c.deadline, until) // the request may run and its reply be lost
	} else {
		c.longest = max(c.longest, lease)
	}
	for _, h := range c.holds {
		// Releases and extensions do not wait for replicas, which are asked afterwards.
		if h.state == Entering && e.config.Replicas > 0 && len(c.leaving) == 0 && len(c.extensions) == 0 {
			r.Replicas = e.config.Replicas
			r.Confirm = max(r.Confirm, min(h.confirmation.until.Sub(now), mostConfirm))
		}
	}
	c.recount.asked = now.Add(r.Confirm)
	e.send(now, r)
	e.schedule(now, c)
}

// asks returns the longest lease that a call which re-enters, or extends a hold, asks for; or 0 if there is
// none.
func (c *claim) asks(now time.Time) (lease time.Duration) {
	for _, h := range c.holds {
		if h.state == Entering {
			lease = max(lease, h.Lease)
		}
	}
	for _, x := range c.count().extensions {
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

// counted takes the reply to a change of the number of holds.
func (e *Engine) counted(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	if c.state == Over { // everything that waited for the reply has ended
		return
	}
	if c.state == Held {
		c.err = err
	}
	if err == nil && reply.Code == protocol.NotThere {
		if c.state == Held {
			e.lose(now, c, Gone)
		} // or else the end of the claim has overtaken the request, and its reply tells
		return
	}
	if err != nil {
		c.recount.fail(now, c.lease)
		if !protocol.Passing(err) {
			e.uncount(now, c, r.Sequence, err)
		}
		if c.state == Held {
			e.schedule(now, c)
		}
		return
	}
	if r.Sequence >= c.confirmed {
		c.confirmed = r.Sequence
		c.sentCounts = slices.DeleteFunc(c.sentCounts, func(t sentCount) bool { return t.sequence <= r.Sequence })
		// A later request may have overtaken this one: then the server has ignored it.
		until := r.until(reply.Lent)
		for _, t := range c.sentCounts {
			until = order.Earlier(until, t.until)
		}
		c.deadline = order.Later(c.deadline, until)
	}
	if c.confirmed == c.sequence {
		c.recount = attempt{}
		if r.Shorten && r.Sequence == c.sequence { // a later request may have lengthened the lease again
			c.longest = r.Lease.Duration
		}
	}
	e.concludeUpTo(c, c.confirmed, nil)
	if c.state != Held {
		return
	}
	e.entered(now, c, r, reply)
	e.extendAll(c)
	e.schedule(now, c)
}

// uncount ends the calls that the server did not let re-enter or leave.
func (e *Engine) uncount(now time.Time, c *claim, sequence uint64, err error) {
	for _, h := range slices.Clone(c.holds) {
		if h.state == Entering && h.sequence <= sequence {
			c.remove(h)
			e.fail(now, h, err)
			e.renumber(c) // sent when the attempt is repeated
		}
	}
	e.endExtensions(c, func(x *Extension) bool { return x.sequence <= sequence }, err)
	e.concludeUpTo(c, sequence, err)
	if len(c.holds) == 0 && c.state == Held {
		e.end(now, c)
	}
}

// An Extension is a call that has a hold last longer.
type Extension struct {
	Tag any // the caller's own

	hold     *Hold
	until    time.Time
	sequence uint64 // of the request that asks for it
	over     bool
	err      error
}

// Over reports whether the call has come to an end, and with what error.
func (x *Extension) Over() (bool, error) { return x.over, x.err }

// Extend makes a hold last for d from now, or until its MaxHold ends it. It never shortens the hold.
func (e *Engine) Extend(now time.Time, h *Hold, d time.Duration, x *Extension) {
	defer e.goOn(now, len(e.sweeps) == 0)
	x.hold, x.until = h, now.Add(d)
	if h.state == Live && !now.Before(h.Deadline()) {
		e.lapse(now, h) // Tick was about to find out
	}
	if h.state != Live {
		err := ErrNotHeld
		if h.state == Lapsed {
			err = h.err
		}
		e.extended(x, err)
		return
	}
	x.until = order.Earlier(x.until, h.end)
	c := h.claim
	n := c.count()
	n.extensions = append(n.extensions, x)
	e.extendAll(c)
	if !x.over {
		x.sequence = e.renumber(c)
		e.tell(now, c)
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
	if c.counting == nil {
		return
	}
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
