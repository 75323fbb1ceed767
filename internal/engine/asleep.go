package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
)

// wakePatience is how long a hold whose deadline may have passed while the machine was asleep waits for a
// renewal.
const wakePatience = 100 * time.Millisecond

// Slept says that the machine may have been asleep for d until now, while the clock of the engine stood
// still. Or someone has set its wall clock forward: nobody can tell which. So all requests are repeated, and
// what is held is renewed immediately. A deadline that has passed meanwhile, if it did, comes after
// wakePatience unless a renewal succeeds by then.
func (e *Engine) Slept(now time.Time, d time.Duration) {
	e.slept += d
	e.each(now, e.timeline.All(), func(now time.Time, c *claim) {
		c.sent = c.sent.Add(-d)
		if !c.deadline.IsZero() {
			c.deadline = AfterSleep(c.deadline, now, d)
		}
		c.attempt = attempt{failures: 1, retry: now}
		c.unverified = c.state == Held
		if c.wanted != nil {
			c.wanted.resumed = now
		}
		e.schedule(now, c)
	})
}

// AfterSleep returns what becomes of a deadline if the machine may have been asleep for d until now.
func AfterSleep(deadline, now time.Time, d time.Duration) time.Time {
	return order.Earlier(deadline, order.Later(deadline.Add(-d), now.Add(wakePatience)))
}

// wake has the time of a request count that the machine was asleep for since. It reports whether it was.
func (e *Engine) wake(r *Request) bool {
	d := e.slept - r.slept
	r.Sent, r.slept = r.Sent.Add(-d), e.slept
	return d > 0
}
