package rwlock

import (
	"container/heap"
	"time"
)

// The timeline keeps all claims of an RWLock alive: it renews holds, sends the heartbeats of waiters, tries again what
// failed, and ends what can no longer be relied on, the last without regard to whether the server answers. RWLock.mu
// guards it.
type timeline struct {
	claims  claimHeap
	timer   *time.Timer
	armed   time.Time // when the timer fires; zero if it does not
	stopped bool
}

// Renewals and heartbeats are due after a third of a lease. One that stays without an answer is sent again, beside the
// one that is under way, after another sixth.
const (
	renewAfter  = 3
	resendAfter = 6

	// What is due within a small part of its lease is sent along with what is due now: few large pipelines cost less
	// than many small ones.
	alongPart = 32

	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
	// endPatience is how long the first try to end a claim may stay without an answer.
	endPatience = time.Second
	// A deadline that a reply tells of counts from a moment before the reply came, so this much later it is surely over.
	grace = 2 * time.Millisecond
	// soonest keeps a waiter from asking without pause.
	soonest = 10 * time.Millisecond
)

// schedule says when the timeline looks at the claim next.
func (c *claim) schedule() {
	var at time.Time
	switch c.state {
	case waiting:
		at = c.waitUntil()
	case held:
		at = c.holdUntil()
	case ending:
		at = earlier(c.giveUp, c.endAgain())
	default:
		return
	}
	c.rw().timeline.set(c, at, c.rw())
}

// waitUntil is when a waiter sends its next heartbeat, or gives up.
func (c *claim) waitUntil() time.Time {
	lk, end := c.own.lk, c.sent.Add(c.lease)
	switch {
	case !c.known:
		return end
	case !c.asked.IsZero():
		return earlier(end, c.asked.Add(c.lease/resendAfter))
	case c.failures > 0:
		return earlier(end, c.retry)
	}
	// One waiter of the lock asks again as soon as what is in the way might end; the others then hear of it.
	heartbeat := c.sent.Add(c.lease / renewAfter)
	news := time.Now().Add(max(c.again+grace, soonest))
	if s := lk.scout; news.Before(heartbeat) && (s == nil || s == c || news.Before(s.next)) {
		lk.scout = c
		return news
	}
	if lk.scout == c {
		lk.scout = nil
	}
	return heartbeat
}

// holdUntil is when a held claim is renewed, or one of its holds ends.
func (c *claim) holdUntil() time.Time {
	at := c.deadline
	for _, h := range c.holds {
		at = earlier(at, h.until())
	}
	if _, renew := c.renewAt(); !renew.IsZero() {
		at = earlier(at, renew)
	}
	return at
}

// renewAt returns the lease to renew the claim for, which is the longest of its holds', and when; never if that is zero.
func (c *claim) renewAt() (lease time.Duration, at time.Time) {
	fresh := false
	for _, h := range c.holds {
		if !h.noRenew || h.fresh {
			lease = max(lease, h.lease)
		}
		fresh = fresh || h.fresh
	}
	switch {
	case lease == 0:
	case !c.asked.IsZero():
		at = c.asked.Add(lease / resendAfter)
	case c.failures > 0:
		at = c.retry
	case fresh:
		at = time.Now()
	default:
		at = c.sent.Add(lease / renewAfter)
	}
	return lease, at
}

// endAgain is when to try again to end a claim.
func (c *claim) endAgain() time.Time {
	if c.asked.IsZero() {
		return c.retry
	}
	return c.asked.Add(endPatience << min(c.failures, 5))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// due does what is due by now, or nearly, and schedules what comes next.
func (c *claim) due(now time.Time, b *batch) {
	along := now.Add(c.lease / alongPart)
	switch c.state {
	case waiting:
		switch {
		case !now.Before(c.sent.Add(c.lease)):
			err := c.err
			if err == nil {
				err = errNoAnswer
			}
			c.fail(err, b)
			return
		case c.known && !c.next.After(along):
			b.calls = append(b.calls, c.ask())
			c.asked = now
		}
	case held:
		if !now.Before(c.deadline) { // with its holds, or before its owner has taken up the grant
			c.lose(b)
			return
		}
		for i := len(c.holds) - 1; i >= 0; i-- {
			if h := c.holds[i]; !now.Before(h.until()) {
				c.lapse(h, b)
			}
		}
		if c.state != held {
			return
		}
		if lease, at := c.renewAt(); !at.IsZero() && !at.After(along) {
			b.calls = append(b.calls, c.renewal(lease))
			c.asked = now
		}
	case ending:
		if !now.Before(c.giveUp) {
			c.vanish() // and its slot with it: nobody knows what that says at the server
			return
		}
		if !now.Before(c.endAgain()) {
			if !c.asked.IsZero() {
				c.failures++
			}
			b.calls = append(b.calls, c.release())
			c.asked = now
		}
	}
	c.schedule()
}

// renewNow asks the server at once whether a held claim is still there.
func (c *claim) renewNow(b *batch) {
	lease, _ := c.renewAt()
	b.calls = append(b.calls, c.renewal(lease))
	c.asked = time.Now()
	c.schedule()
}

// askNow makes a waiter ask for news at once.
func (c *claim) askNow() {
	if c.known {
		c.rw().timeline.set(c, time.Now(), c.rw())
	}
}

// scoutAt makes a waiter the one that asks for news at t, if it does not anyway before.
func (c *claim) scoutAt(t time.Time) {
	c.own.lk.scout = c
	if t.Before(c.next) {
		c.rw().timeline.set(c, t, c.rw())
	}
}

func (rw *RWLock) tick() {
	var b batch
	rw.mu.Lock()
	t := &rw.timeline
	t.armed = time.Time{}
	now := time.Now()
	for len(t.claims) > 0 && !t.stopped {
		c := t.claims[0]
		late := !c.next.After(now)
		if !late && (len(b.calls) == 0 || c.next.After(now.Add(c.lease/alongPart))) {
			break
		}
		before := c.next
		c.due(now, &b)
		if !late && c.index > 0 && c.next.Equal(before) {
			break // the next thing is an end, which is not to come early
		}
	}
	t.arm(rw)
	rw.mu.Unlock()
	rw.run(&b)
}

func (t *timeline) set(c *claim, at time.Time, rw *RWLock) {
	if t.stopped {
		return
	}
	c.next = at
	if c.index == 0 {
		heap.Push(&t.claims, c)
	} else {
		heap.Fix(&t.claims, c.index-1)
	}
	t.arm(rw)
}

func (t *timeline) remove(c *claim) {
	if c.index > 0 {
		heap.Remove(&t.claims, c.index-1)
	}
}

// arm sets the timer for the first claim. A timer that fires for a claim that has gone does no harm, and is cheaper than
// one that is set for every hold.
func (t *timeline) arm(rw *RWLock) {
	if len(t.claims) == 0 || t.stopped {
		return
	}
	at := t.claims[0].next
	if !t.armed.IsZero() && !at.Before(t.armed) {
		return
	}
	t.armed = at
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Until(at), rw.tick)
	} else {
		t.timer.Reset(time.Until(at))
	}
}

func (t *timeline) stop() {
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// claimHeap is a heap of claims by next; each knows its place.
type claimHeap []*claim

func (h claimHeap) Len() int           { return len(h) }
func (h claimHeap) Less(i, j int) bool { return h[i].next.Before(h[j].next) }

func (h claimHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *claimHeap) Push(x any) {
	c := x.(*claim)
	*h = append(*h, c)
	c.index = len(*h)
}

func (h *claimHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.index = 0
	return c
}
