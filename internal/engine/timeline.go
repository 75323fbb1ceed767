package engine

import "time"

// atOnce is the number of claims that one call processes, unless Config says otherwise. With many holds that
// takes a tenth of a millisecond, during which the caller has a mutex locked.
const atOnce = 64

// A sweep is work for each of many claims, done in parts.
type sweep struct {
	since  time.Time
	claims []*claim // left
	do     func(now time.Time, c *claim)
}

// each does something for all claims: for the first ones now, and for the others in later calls of Tick. By
// then a claim may have changed or ended.
func (e *Engine) each(now time.Time, do func(now time.Time, c *claim)) {
	e.sweeps = append(e.sweeps, sweep{now, e.timeline.All(), do})
	e.goOn(now, e.atOnce)
}

// goOn does the work for the next n claims, and returns how much of n is left.
func (e *Engine) goOn(now time.Time, n int) (left int) {
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
			do(now, c)
		}
	}
	if len(e.sweeps) == 0 {
		e.sweeps = nil
	}
	return n
}

// Next returns when Tick is due, and whether it is at all.
func (e *Engine) Next() (time.Time, bool) {
	if len(e.sweeps) > 0 {
		return e.sweeps[0].since, true
	}
	at, ok := e.timeline.Next()
	if e.suspicion.number != 0 && (!ok || e.suspicion.at.Before(at)) {
		return e.suspicion.at, true
	}
	return at, ok
}

// Tick does some of what is due: it sends renewals, heartbeats and retries, and ends what can no longer be
// relied on, whether or not the server answers. If more is due, Next says that Tick is due.
//
// Events may come before all due work is done. So the methods that handle a claim's own events also check
// what is due for that claim, as far as it matters to them: see Replied, Release and Extend.
func (e *Engine) Tick(now time.Time) {
	if e.suspicion.number != 0 && !now.Before(e.suspicion.at) {
		e.suspicion = suspicion{}
		if !e.listening.IsZero() {
			e.listening = time.Time{}
			e.out.Relisten = true
		}
	}
	t := &e.timeline
	for range e.goOn(now, e.atOnce) {
		before, ok := t.Next()
		if !ok {
			return
		}
		c := t.First()
		late := !before.After(now)
		if !late && (len(e.out.Send) == 0 || before.After(now.Add(c.lease/batchPart))) {
			return
		}
		e.due(now, c)
		switch {
		case !c.Placed():
		case !late && t.Due(c).Equal(before):
			return // the next thing is an end, which is not to come early
		case !t.Due(c).After(now):
			t.Set(c, now.Add(time.Millisecond)) // once a tick is enough
		}
	}
}

// schedule sets when Tick handles the claim next.
func (e *Engine) schedule(now time.Time, c *claim) {
	var at time.Time
	switch c.state {
	case Asking, Queued:
		var end time.Time
		if at, end = c.askAt(); !end.IsZero() {
			at = earlier(at, end)
		}
	case Held: // it is renewed, one of its holds ends, or a count is sent again
		at = c.deadline
		for _, h := range c.holds {
			at = earlier(at, h.Deadline())
			if h.state == Entering && h.confirmation != nil {
				at = earlier(at, h.confirmation.until)
			}
		}
		if renew := c.renewAt(now); !renew.IsZero() {
			at = earlier(at, renew)
		}
		if c.uncounted() {
			at = earlier(at, c.recount.again(c.lease))
		}
	case Ending:
		at = earlier(c.giveUp, c.endAt())
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
		if _, end := c.askAt(); !end.IsZero() && !now.Before(end) {
			if now.Sub(e.timeline.Due(c)) < max(c.lease/resendAfter, firstRetry) {
				e.withdraw(now, c, unanswered(c.err))
				return
			}
			c.resumed = now // the process stood still: the answer may be there already
		}
		if at, _ := c.askAt(); !at.After(batchUntil) {
			if !c.asked.IsZero() {
				c.failures++
			}
			e.sendAsk(now, c)
		}
	case Held:
		if e.expire(now, c); c.state != Held {
			return
		}
		if at := c.renewAt(now); !at.IsZero() && !at.After(batchUntil) {
			e.renew(now, c)
		}
		if c.uncounted() && !c.recount.again(c.lease).After(now) {
			e.tell(now, c)
		}
	case Ending:
		if !now.Before(c.giveUp) {
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

// period returns the part of a lease after which the server has to get another request for the claim. The
// periods of claims are spread over a tenth, so that claims which began together do not stay together.
func (c *claim) period(lease time.Duration) time.Duration {
	p := lease / renewAfter
	const golden, part = 0x9e3779b97f4a7c15, 20 // multiples of the golden ratio lie evenly between whole numbers
	less := (c.number - 1) * golden >> (64 - part)
	return p - time.Duration(less)*(p/10>>part)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
