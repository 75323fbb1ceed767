package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// When what is due: work for many claims, what Tick does, and until when leases last.

// atOnce is the number of claims that one call processes, unless Config says otherwise. With many holds that
// takes a quarter of a millisecond, during which the caller has a mutex locked.
const atOnce = 64

// A sweep is work for each of many claims, done in parts.
type sweep struct {
	since  time.Time
	claims []*claim // left
	do     func(now time.Time, c *claim)
}

// each leaves work for many claims to goOn. By the time that goOn does it, a claim may have changed or
// ended.
func (e *Engine) each(now time.Time, claims []*claim, do func(now time.Time, c *claim)) {
	if len(claims) > 0 {
		e.sweeps = append(e.sweeps, sweep{now, claims, do})
	}
}

// eachOf does something for the claims of a lock: for the first ones now, and has goOn do it for the others.
func (e *Engine) eachOf(now time.Time, lk *lock, do func(now time.Time, c *claim)) {
	claims := lk.all()
	n := min(len(claims), e.config.AtOnce)
	for _, c := range claims[:n] {
		do(now, c)
	}
	e.each(now, claims[n:], do)
}

// Next returns when Tick is due, and whether it is at all.
func (e *Engine) Next() (time.Time, bool) {
	at, _ := e.timeline.Next()
	if len(e.sweeps) > 0 {
		at = order.Earlier(at, e.sweeps[0].since)
	}
	return at, !at.IsZero()
}

// Tick does some of what is due: it sends renewals, heartbeats and retries, and ends what can no longer be
// relied on, whether or not the server answers. If more is due, Next says that Tick is due.
func (e *Engine) Tick(now time.Time) {
	e.goOn(now, true)
}

// goOn processes some claims: those for which something is due, then those for which each has left work,
// which may make something due. In a Tick, a quarter is for the latter, however many are due. Every other
// event but Forget ends with goOn, too, but begins no work that an earlier one has left. So whatever an event
// is about, and however much work it leaves, other claims are renewed, and end, in time.
//
// An event may come before all due work is done. So the methods that handle a claim's own events first check
// what is due for that claim, as far as it matters to them: see Replied, Release and Extend.
func (e *Engine) goOn(now time.Time, sweep bool) {
	n, reserved := e.config.AtOnce, 0
	if sweep && len(e.sweeps) > 0 {
		reserved = n / 4
	}
	left := e.catchUp(now, n-reserved) + reserved
	if sweep {
		e.catchUp(now, e.sweep(now, left))
	}
}

// sweep does what is left for up to n claims, and returns how much of n is left.
func (e *Engine) sweep(now time.Time, n int) (left int) {
	for len(e.sweeps) > 0 && n > 0 {
		s := &e.sweeps[0]
		some := s.claims[:min(n, len(s.claims))]
		s.claims = s.claims[len(some):]
		n -= len(some)
		do := s.do
		if len(s.claims) == 0 {
			e.sweeps = e.sweeps[1:]
		}
		for _, c := range some {
			next := c.next
			if do(now, c); next != nil { // it was converted since
				do(now, next)
			}
		}
	}
	if len(e.sweeps) == 0 {
		e.sweeps = nil
	}
	return n
}

// catchUp does what is due for up to n claims, and returns how much of n is left.
func (e *Engine) catchUp(now time.Time, n int) (left int) {
	t := &e.timeline
	if first, ok := t.Next(); !ok || first.After(now) {
		return n
	}
	for ; n > 0; n-- {
		before, ok := t.Next()
		if !ok {
			break
		}
		c := t.First()
		late := !before.After(now)
		if !late && (len(e.out.Send) == 0 || before.After(now.Add(c.lease/batchPart))) {
			break
		}
		e.due(now, c)
		if c.Placed() && !late && t.Due(c).Equal(before) {
			break // the next thing is an end, which is not to come early
		}
		if c.Placed() && !t.Due(c).After(now) {
			t.Set(c, now.Add(time.Millisecond)) // once a tick is enough
		}
	}
	return n
}

// schedule sets when Tick handles the claim next.
func (e *Engine) schedule(now time.Time, c *claim) {
	var at time.Time
	switch c.state {
	case Asking, Queued:
		if c.rises() {
			e.schedule(now, c.former)
			return
		}
		at = order.Earlier(c.askAt())
	case Held: // it is renewed, or one of its holds ends
		at = c.deadline
		for _, h := range c.holds {
			at = order.Earlier(at, h.Deadline())
			if h.state == Entering {
				at = order.Earlier(at, h.enterUntil())
			}
		}
		at = order.Earlier(at, e.renewAt(now, c))
	case Ending:
		if c.giveUp.IsZero() {
			return // the other claim of an unanswered conversion is due in its place
		}
		at = order.Earlier(c.giveUp, c.endAt())
	default:
		return
	}
	e.timeline.Set(c, at)
}

// due does what is due by now, or nearly, and schedules what comes next.
func (e *Engine) due(now time.Time, c *claim) {
	batchUntil := now.Add(c.lease / batchPart)
	switch c.state {
	case Asking, Queued:
		at, end := c.askAt()
		if !end.IsZero() && !now.Before(end) {
			if !e.stoodStill(now, c) {
				why := unanswered(c.err)
				if c.caller.Try && c.state == Queued {
					why = ErrLocked // the delegations in its way were not returned
				}
				e.withdraw(now, c, why)
				return
			}
			c.wanted.resumed = now // the answer may be there already
		}
		if !at.After(batchUntil) {
			if !c.asked.IsZero() {
				c.failures++
			}
			e.sendAsk(now, c)
		}
	case Held:
		if e.expire(now, c); c.state != Held {
			return
		}
		if at := e.renewAt(now, c); !at.IsZero() && !at.After(batchUntil) {
			counts := at.Equal(c.recountAt) && c.failures == 0
			e.renew(now, c).Late = counts // what renews goes first
		}
	case Ending:
		switch {
		case now.Before(c.giveUp):
		case c.hands:
			e.takeBack(now, c, unanswered(c.err))
			return
		case !c.putOff && e.stoodStill(now, c):
			c.giveUp, c.putOff = now.Add(EndTimeout), true // its request may not even have been sent
		default:
			e.abandon(c)
			return
		}
		if !now.Before(c.endAt()) {
			if !c.asked.IsZero() {
				c.failures++
			}
			e.sendEnd(now, c)
		}
	}
	e.schedule(now, c)
}

// stoodStill reports whether what is due for a claim is so late that the process must have stood still.
func (e *Engine) stoodStill(now time.Time, c *claim) bool {
	return now.Sub(e.timeline.Due(c)) >= max(c.lease/resendAfter, firstRetry)
}

// askAt returns when the claim asks next: to retry, or, if it waits, for its turn or with its heartbeat. It
// also returns when a call without an answer gives up, or zero if something else limits it.
func (c *claim) askAt() (at, giveUp time.Time) {
	if !c.asked.IsZero() || c.failures > 0 {
		at = c.again(c.lease)
	} else {
		at = order.Earlier(c.sent.Add(c.period(c.lease)), c.wanted.askAgain)
	}
	from := order.Later(c.sent, c.wanted.resumed)
	switch {
	case c.caller.Try:
		giveUp = order.Later(c.caller.since, c.wanted.resumed).Add(min(c.lease, EndTimeout))
	case !c.caller.Bounded:
		giveUp = from.Add(c.lease)
	}
	return at, giveUp
}

// renewAt returns when to renew a claim, or zero if it is not renewed.
func (e *Engine) renewAt(now time.Time, c *claim) time.Time {
	if c.next != nil {
		return c.next.again(c.lease)
	}
	var longest time.Duration // lease of a hold that is renewed
	waited := len(c.extensions) > 0 || c.former != nil
	for _, x := range c.extensions {
		longest = max(longest, x.hold.Lease)
	}
	for _, h := range c.holds {
		// A hold is renewed if its claim does not yet last until the hold's end, or may have been lost. In the
		// latter case, a renewal shows it.
		lasts := !h.end.IsZero() && !c.deadline.Before(h.end)
		if h.NoRenew {
			lasts = !c.unverified && !c.deadline.Before(h.deadline)
		}
		if c.former != nil || h.awaitsRenewal || h.state == Entering || !lasts {
			longest = max(longest, h.Lease)
		}
		waited = waited || h.awaitsRenewal || h.state == Entering && !now.Before(c.confirmBy)
	}
	switch {
	case longest == 0:
		return c.recountAt
	case !c.asked.IsZero(): // it may be for much longer than the claim has left
		return c.asked.Add(e.renewalPatience(min(longest, max(c.lease, 3*c.deadline.Sub(c.asked)))))
	case c.failures > 0:
		return c.retry
	case waited, c.unverified:
		return now
	case c.delegation > 0:
		return c.deadline.Add(-min(c.delegation, longest) / delegatedPart)
	}
	return order.Earlier(order.Earlier(c.sent.Add(c.period(longest)), c.confirmBy), c.recountAt)
}

// renewalPatience returns for how long a renewal may be unanswered before it is sent again, by another
// connection. If the server takes long for all of them, as after a stall, copies would take as much of it
// again: so it is at least twice what the last renewal took that was answered.
func (e *Engine) renewalPatience(lease time.Duration) time.Duration {
	return max(lease/renewalResendAfter, min(2*e.renewalTook, lease/renewAfter), firstRetry)
}

// endAt is when to try again to end the claim.
func (c *claim) endAt() time.Time {
	if c.asked.IsZero() {
		return c.retry
	}
	patience := endPatience
	if c.token == 0 {
		patience = withdrawPatience
	}
	return c.asked.Add(patience << min(c.failures, 5))
}

// period returns the part of a lease after which the server has to get another request for the claim. The
// periods of claims are spread over a tenth, so that claims which began together do not stay together.
func (c *claim) period(lease time.Duration) time.Duration {
	p := lease / renewAfter
	const golden, part = 0x9e3779b97f4a7c15, 20 // multiples of the golden ratio lie evenly between whole numbers
	less := (c.number - 1) * golden >> (64 - part)
	return p - time.Duration(less)*(p/10>>part)
}

// keep records that the server keeps the claim for a request's lease, which begins no earlier than the
// request was sent.
func (c *claim) keep(now time.Time, r *Request, delegation protocol.Delegation) {
	c.attempt = attempt{}
	c.err = nil
	if c.wanted != nil {
		c.wanted.answered = now
	}
	c.sent = order.Later(c.sent, r.Sent)
	if until := r.until(delegation); !until.Before(c.deadline) {
		c.deadline, c.kept = until, r.Lease.Duration
	}
	c.delegation = delegation.Lease
}

// until returns when the lease of a request ends, by the client's clock. Under a delegation, that is no later
// than the delegation's end.
func (r *Request) until(delegation protocol.Delegation) time.Time {
	until := Deadline(r.Sent, r.Lease.Duration)
	if delegation.Lease > 0 {
		until = order.Earlier(until, Deadline(delegation.Sent, delegation.Lease))
	}
	return until
}

// Deadline returns until when a client may rely on a lease that the server counts from a moment not before
// sent.
func Deadline(sent time.Time, lease time.Duration) time.Time { return sent.Add(lease - margin(lease)) }

// margin is how much earlier than the server's deadline a client's deadline is: clocks may drift apart by 1
// %.
func margin(lease time.Duration) time.Duration { return lease/100 + 2*time.Millisecond }

// LeaseFor returns the shortest lease, in whole milliseconds, that a client may rely on for d.
func LeaseFor(d time.Duration) time.Duration {
	lease := max(d, 0) + margin(0)
	lease += lease / 99
	return (lease + time.Millisecond - 1).Truncate(time.Millisecond)
}

func (e *Engine) leaseOf(d time.Duration) protocol.Lease {
	if d == e.lease.Duration {
		return e.lease
	}
	return protocol.NewLease(d)
}
