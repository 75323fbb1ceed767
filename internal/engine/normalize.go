package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// This file is for code that compares engines from outside: the exploration of all reachable states.

// A View is what a claim that has not ended has come to.
type View struct {
	Name     string
	Number   uint64
	Owner    Owner
	Mode     Mode
	State    State
	Token    int64 // 0 if it was never granted the lock
	Sent     time.Time
	Deadline time.Time // until when it may be relied on, or, waiting, until when the server keeps its place
	Caller   *Hold     // whose call asks for it, while it waits
	Holds    []*Hold
	Former   uint64 // of one that reads: the number of the one that it is downgraded from, unanswered; or 0
	Counted  int    // how many holds there were when the server was last told
	Lent     bool   // it was granted under a delegation
}

// Views returns all claims that have not ended.
func (e *Engine) Views() []View {
	var list []View
	for _, c := range e.timeline.All() {
		list = append(list, c.view())
		for _, other := range []*claim{c.former, c.next} {
			if other != nil && other.state != Over && !other.Placed() {
				list = append(list, other.view())
			}
		}
	}
	return list
}

func (c *claim) view() View {
	former := uint64(0)
	if c.former != nil {
		former = c.former.number
	}
	return View{
		Name: c.lock.name, Number: c.number, Owner: c.ownership.owner, Mode: c.mode, State: c.state, Token: c.token,
		Sent: c.sent, Deadline: c.deadline,
		Former: former, Caller: c.caller, Holds: c.holds, Counted: c.counted, Lent: c.lent > 0,
	}
}

// View returns the claim that a request is about, and whether there is one that has not ended.
func (r *Request) View() (View, bool) {
	if r.claim == nil || r.claim.state == Over {
		return View{}, false
	}
	return r.claim.view(), true
}

// ReleasesStale reports whether a request releases a claim that has ended, and came back.
func (r *Request) ReleasesStale() bool { return r.kind == releasesStale }

// ClaimNumber returns the number of a hold's claim, or of the last claim that a call has asked for; 0 if
// there is none.
func (h *Hold) ClaimNumber() uint64 {
	if h.claim == nil {
		return 0
	}
	return h.claim.number
}

// Sweeping reports whether work for many claims is left for later calls of Tick, which do nothing else then.
func (e *Engine) Sweeping() bool { return len(e.sweeps) > 0 }

// Coarsen moves all times at which the engine has something due to the next of the moments now, now + tick,
// now + 2 ticks, and so on. It is for callers that report the time only at these moments, and do not want the
// engine to conclude that its process was paused.
func (e *Engine) Coarsen(now time.Time, tick time.Duration) {
	up := func(t *time.Time) {
		if t.After(now) {
			*t = now.Add((t.Sub(now) + tick - 1) / tick * tick)
		}
	}
	for _, c := range e.timeline.All() {
		next := e.timeline.Due(c)
		up(&next)
		e.timeline.Set(c, next)
		up(&c.retry)
		if c.wanted != nil {
			up(&c.wanted.askAgain)
		}
		up(&c.recountAt)
	}
	e.timeline.Sort()
}

// Normalize removes differences that do not affect what the engine does from now on, so that engines that
// will do the same are equal. Durations in events and the texts of errors are such differences. holds and
// requests are those that may be passed to the engine again. several says whether there may be locks of more
// than one name. The engine must have been Coarsened and flushed.
func (e *Engine) Normalize(now time.Time, holds []*Hold, requests []*Request, several bool) {
	claims := e.timeline.All()
	for _, r := range requests {
		if r.claim != nil {
			claims = append(claims, r.claim)
		}
	}
	for _, h := range holds {
		if h.claim != nil {
			claims = append(claims, h.claim)
		}
		h.normalize(now)
	}
	longest := e.config.Lease
	for _, c := range claims {
		longest = max(longest, c.longest)
		for _, h := range c.holds {
			h.normalize(now)
		}
		e.normalizeClaim(now, c, requests, several)
	}
	e.renewalTook = min(e.renewalTook, longest/renewAfter) // see renewalPatience
	for _, r := range requests {
		if r.kind != forces {
			r.slot = -1
		}
	}
	for _, lk := range e.locks {
		old := func(r *Request) bool { return r.lock == lk && r.kind == asks && r.Sent.Before(lk.ended) }
		if !slices.ContainsFunc(requests, old) {
			lk.ended = time.Time{}
		}
		for _, c := range slices.SortedFunc(lk.held.All(), byNumber) {
			lk.held.Remove(c)
			lk.held.PushBack(c)
		}
	}
	e.locksMax, e.claimsMax = 0, 0
}

func byNumber(a, b *claim) int { return cmp.Compare(a.number, b.number) }

func (h *Hold) normalize(now time.Time) {
	h.since, h.trouble = time.Time{}, nil
	// the latter matters to calls that wait for replicas alone
	h.path, h.confirmation = 0, nil
	if h.state != Live || !h.NoRenew && LeaseFor(h.deadline.Sub(now)) <= h.Lease { // or else it was extended
		h.deadline = time.Time{}
	}
	if h.state > Live && (h.state != Releasing || !now.Before(h.end)) {
		h.end = time.Time{}
	}
	if h.state > Failed {
		h.tries, h.Try, h.Bounded = 1, false, false
	}
	if h.state != Entering {
		h.entered = time.Time{}
	}
}

func (e *Engine) normalizeClaim(now time.Time, c *claim, requests []*Request, several bool) {
	if c.state == Over {
		before := *c
		*c = claim{state: Over, slot: -1}
		if c.last = before.last; c.last != nil { // its release waits for the end of the next claim
			c.number = before.number
		}
		if len(e.sweeps) > 0 { // one may come to the next claim by this one
			c.next = before.next
		}
		return
	}
	if !several {
		c.since = 0 // over one name there is no deadlock
	}
	c.err = nil
	c.attempt.normalize(c.state == Ending)
	if now.Sub(c.granted) >= tokenFresh && !c.granted.IsZero() {
		c.granted = now.Add(-tokenFresh)
	}
	if c.state >= Held {
		c.caller, c.wanted = nil, nil
	} else {
		e.normalizeWanted(now, c, requests)
	}
	if c.state == Ending {
		c.sent, c.granted, c.quickEnd, c.token = time.Time{}, time.Time{}, false, min(c.token, 1)
		c.counted, c.recountAt = 0, time.Time{}
	}
}

func (e *Engine) normalizeWanted(now time.Time, c *claim, requests []*Request) {
	c.wanted.obstacle = protocol.Obstacle{}
	if !c.wanted.answered.IsZero() {
		if e.listening.IsZero() || e.listening.Before(c.wanted.answered) {
			c.wanted.answered = now
		} else {
			c.wanted.answered = e.listening
		}
	}
	if c.caller.Bounded && !c.caller.Try {
		c.wanted.resumed = time.Time{}
	}
	older := func(r *Request) bool { return r.claim == c && r.kind == asks && r.Sent.Before(c.wanted.prompted) }
	if !slices.ContainsFunc(requests, older) {
		c.wanted.prompted = time.Time{}
	}
}

// normalize removes differences between attempts. Only a claim that ends counts more failures than the first.
func (a *attempt) normalize(counts bool) {
	most := 1
	if counts {
		most = 6
	}
	a.failures = min(a.failures, most)
}
