package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Hold is one acquisition of a lock, from the call that asks for it to its release. Whoever calls Acquire
// fills in the first fields, and changes nothing later.
type Hold struct {
	Name     string
	Owner    Owner
	Mode     Mode
	Try      bool          // fail rather than wait
	Lease    time.Duration // whole milliseconds
	NoRenew  bool
	MaxHold  time.Duration // the hold ends so long after it was granted, at the latest; 0 for no such bound
	Bounded  bool          // something else ends the wait if no answer comes
	Caller   uint64        // the goroutine that calls, if only that one may re-enter; or else 0
	NewOwner bool          // nobody else knows the owner: it holds nothing
	Tag      any           // the caller's own

	state    HoldState
	err      error // of Failed; of Over, and of Ended, which says how the release went
	trouble  error // of a call that has failed: what the last request failed with
	tenure   *tenure
	claim    *claim
	tries    int
	begun    time.Time
	since    time.Time // Live
	fresh    bool      // not renewed, and its lease counts from a renewal that is yet to come
	deadline time.Time // until which the hold is to last at least, and a hold that is not renewed at most
	// by MaxHold, or zero; of a hold that has ended, the last time until which it could be relied on
	end       time.Time
	path      Path      // how the call got the lock
	replicas  uint16    // how many have confirmed the hold, as of the last reply; this small, it takes no memory
	confirmBy time.Time // until when replicas may confirm the hold; or zero
	sequence  uint64    // of the request that counts it in, or out
	forgotten bool

	first claim  // memory for its claim
	own   tenure // memory for its owner's tenure
}

// HoldState is what a hold has come to.
type HoldState uint8

// The states of a hold. A hold begins as Wanted.
const (
	Wanted    HoldState = iota // its claim waits, or another call of the owner is in front
	Entering                   // its owner has the lock already; the server is being told of one more hold
	Failed                     // there is no hold: see Err
	Live                       // it may be relied on
	Lapsed                     // it was lost or closed, and is not released: see Err
	Releasing                  // the server is being told
	Finished                   // it was released: see Err for how that went
)

// State returns what the hold has come to.
func (h *Hold) State() HoldState { return h.state }

// Err returns why a call failed; why a hold was lost; or how its release went.
func (h *Hold) Err() error { return h.err }

// Token returns the fencing token of a hold that was acquired.
func (h *Hold) Token() int64 { return h.claim.token }

// Deadline returns until when a Live hold may be relied on. Once the hold has ended, it stays what it was
// then.
func (h *Hold) Deadline() time.Time { return h.until() }

// Begun returns when the call began.
func (h *Hold) Begun() time.Time { return h.begun }

// Since returns when the call got the lock.
func (h *Hold) Since() time.Time { return h.since }

// Renewed reports whether a Live hold goes on until its release: it is renewed, and nothing else ends it.
func (h *Hold) Renewed() bool { return !h.NoRenew && h.end.IsZero() }

// Forgotten reports whether nobody refers to a Live hold any more.
func (h *Hold) Forgotten() bool { return h.forgotten }

// LastError returns what the last request for the hold failed with, or nil if it did not.
func (h *Hold) LastError() error {
	if h.claim == nil || h.trouble != nil {
		return h.trouble
	}
	return h.claim.err
}

// Unanswered reports whether the server has not answered a call that has ended without the lock: neither the
// request for the lock, nor that to re-enter it.
func (h *Hold) Unanswered() bool {
	c := h.claim
	return c != nil && (c.caller != h || c.token == 0 && c.answered.IsZero())
}

// Obstacle returns what is in the way of a call, as far as the server has said so; and whether that is the
// engine's own. A call that has the lock has nothing in its way. Neither has one whose obstacle was a hold of
// the engine's that has ended.
func (e *Engine) Obstacle(now time.Time, h *Hold) (o protocol.Obstacle, known, ours bool) {
	c := h.claim
	if c == nil || c.caller != h || c.token != 0 || c.answered.IsZero() {
		return o, false, false
	}
	o = c.obstacle
	o.Again = max(o.Again-now.Sub(c.answered), soonest)
	k, err := protocol.ParseClaim(o.Claim)
	if o.Mode == protocol.None || err == nil && k.Instance != e.instance {
		return o, true, false
	}
	if t := c.lock.owners.of(k.Owner); t != nil && t.claim[k.Mode] != nil && t.claim[k.Mode].number == k.Number {
		return o, true, true
	}
	// The holder that the server has named has left since. The lock may have gone to a writer of the
	// engine's.
	if w := c.lock.writer; w != nil {
		o.Mode, o.Holder = protocol.Write, w.tenure.owner
		return o, true, true
	}
	return protocol.Obstacle{}, false, false
}

// Acquire begins a call. It has come to an end when the hold's state is Live or Failed.
func (e *Engine) Acquire(now time.Time, h *Hold) {
	h.begun = now
	if e.closed {
		e.fail(now, h, ErrClosed)
		return
	}
	lk := e.use(h.Name)
	h.tenure = e.tenure(lk, h.Owner, &h.own)
	e.start(now, h)
	e.drop(lk)
}

// start goes on with a call that no other of the owner is in front of.
func (e *Engine) start(now time.Time, h *Hold) {
	t := h.tenure
	c := t.claim[h.Mode]
	switch {
	case e.closed:
		e.fail(now, h, ErrClosed)
	case !t.takenBy(h):
		e.fail(now, h, ErrOwner)
	case t.lost > 0:
		e.fail(now, h, ErrLost)
	case c != nil:
		e.reenter(now, c, h)
	case t.asking != nil && h.Try:
		e.fail(now, h, ErrLocked)
	case t.asking != nil:
		t.behind = append(t.behind, h)
	case h.Mode == protocol.Write && t.claim[protocol.Read] != nil:
		e.fail(now, h, ErrUpgrade)
	case !e.admits(t):
		e.fail(now, h, ErrClosed)
	default:
		e.newAttempt(now, h)
	}
	if h.state == Failed {
		e.settle(t)
	}
}

// live begins a hold that was granted, and that is good until its own deadline if it is not renewed.
func (e *Engine) live(now time.Time, h *Hold, deadline time.Time, by Path) {
	h.state, h.since, h.deadline = Live, now, deadline
	if h.MaxHold > 0 {
		h.end = now.Add(h.MaxHold)
	}
	e.holdEvent(h, Event{Kind: Acquired, Path: by, Token: h.claim.token, Took: now.Sub(h.begun)})
	e.wake(h)
}

// reenter adds a hold to a claim that its owner has.
func (e *Engine) reenter(now time.Time, c *claim, h *Hold) {
	h.claim, h.path = c, ByReentry
	c.holds = append(c.holds, h)
	e.enter(now, c, h)
}

// enter tells the server of a hold, and has replicas confirm it if it is to be replicated. The request always
// writes, so that they confirm what is there now: a grant, or a repetition of it, or what another has
// granted.
func (e *Engine) enter(now time.Time, c *claim, h *Hold) {
	h.state = Entering
	if e.replicas > 0 {
		h.confirmBy = now.Add(e.confirm)
	}
	e.recountNow(now, c, h)
}

// entered ends the calls whose holds the server knows of, and enough replicas.
func (e *Engine) entered(now time.Time, c *claim, r *Request, reply protocol.Reply) {
	for _, h := range slices.Clone(c.holds) {
		switch {
		case h.state != Entering || h.sequence > c.confirmed:
		case reply.Confirmed >= e.replicas:
			e.live(now, h, r.Sent.Add(h.Lease-margin(h.Lease)), h.path)
		default:
			if r.Replicas > 0 {
				h.replicas = uint16(reply.Confirmed)
			}
			if r.Sequence == c.sequence {
				e.recountNow(now, c, h)
			}
		}
	}
}

// unconfirmed reports whether the replicas have not confirmed a hold in time.
func (h *Hold) unconfirmed(now time.Time) bool {
	return h.state == Entering && !h.confirmBy.IsZero() && !now.Before(h.confirmBy)
}

// giveBack ends a call whose hold the replicas have not confirmed in time.
func (e *Engine) giveBack(now time.Time, h *Hold) {
	e.fail(now, h, fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, h.replicas, e.replicas, e.confirm))
	e.leave(now, h.claim, h)
}

func (e *Engine) recountNow(now time.Time, c *claim, h *Hold) {
	h.sequence = e.renumber(c)
	e.tell(now, c)
}

// renumber returns the number of what is to be told the server of a claim.
func (e *Engine) renumber(c *claim) uint64 {
	e.numbers++
	c.sequence = e.numbers
	return c.sequence
}

// GiveUp ends a call whose wait has ended. It reports whether the hold is there nonetheless: then the caller
// has it.
func (e *Engine) GiveUp(now time.Time, h *Hold, err error) bool {
	switch h.state {
	case Wanted:
		t := h.tenure
		if i := slices.Index(t.behind, h); i >= 0 {
			t.behind = slices.Delete(t.behind, i, i+1)
			e.fail(now, h, err)
			e.settle(t)
			break
		}
		e.withdraw(now, h.claim, err)
	case Entering:
		// The request may yet run, so the count is set right, or the claim ended if this was its last hold.
		c := h.claim
		if h.trouble = c.err; h.trouble == nil && e.replicas > 0 {
			h.trouble = ErrNotReplicated
		}
		e.fail(now, h, err)
		e.leave(now, c, h)
	}
	return h.state == Live
}

// Release ends a hold. It returns true if the end is known at once, and false if the hold's Err says how it
// went once the state is Finished.
func (e *Engine) Release(now time.Time, h *Hold) (known bool, err error) {
	if h.state == Live && !now.Before(h.until()) {
		e.lapse(now, h) // Tick was about to find out
	}
	switch h.state {
	case Live:
		c := h.claim
		h.end, h.state = h.until(), Releasing
		e.extendNone(c, h.owns, ErrNotHeld)
		e.holdEvent(h, Event{Kind: Ended, Cause: Released, Took: now.Sub(h.since)})
		e.leave(now, c, h)
		return false, nil
	case Lapsed:
		err := h.err
		h.state = Finished
		e.forgive(h)
		return true, err
	}
	return true, ErrNotHeld
}

// leave takes off a hold that its owner has released, or given up. If others remain, the server is told of
// the new count.
func (e *Engine) leave(now time.Time, c *claim, h *Hold) {
	c.remove(h)
	if len(c.holds) > 0 {
		if h.state == Releasing {
			c.leaving = append(c.leaving, h)
		}
		e.recountNow(now, c, h)
		return
	}
	if h.state == Releasing {
		c.last = h
	}
	e.end(now, c)
	e.settle(c.tenure)
}

// forgive notes that an owner has released, or forgotten, a hold that it had lost.
func (e *Engine) forgive(h *Hold) {
	h.tenure.lost--
	e.settle(h.tenure)
}

// Forget stops renewing a hold that nobody refers to any more: it is left to its lease.
func (e *Engine) Forget(now time.Time, h *Hold) {
	switch h.state {
	case Live:
		h.forgotten = true
		e.record("hold forgotten without Unlock: it ends with its lease", h.claim, h, nil)
		if !h.NoRenew {
			h.NoRenew, h.deadline = true, h.claim.deadline
			e.schedule(now, h.claim)
		}
	case Lapsed:
		h.state = Finished
		e.forgive(h)
	}
}

// lapse ends one hold of a claim, whose own lease is over.
func (e *Engine) lapse(now time.Time, h *Hold) {
	c := h.claim
	e.over(now, h, ErrLost, Expired)
	if len(c.holds) > 0 {
		e.recountNow(now, c, h)
		return
	}
	e.endLost(now, c)
}

// over takes a hold off its claim that can no longer be relied on, or fails a call that re-enters.
func (e *Engine) over(now time.Time, h *Hold, cause error, why Cause) {
	h.claim.remove(h)
	if h.state == Entering {
		e.fail(now, h, cause)
		return
	}
	h.end, h.state, h.err = h.until(), Lapsed, cause
	e.extendNone(h.claim, h.owns, cause)
	if cause == ErrLost {
		e.record("hold lost", h.claim, h, nil)
		e.out.Log[len(e.out.Log)-1].Cause = why
	}
	e.out.Cancel = append(e.out.Cancel, h)
	if h.forgotten {
		h.state, why = Finished, Forgotten
	} else {
		h.tenure.lost++
	}
	e.holdEvent(h, Event{Kind: Ended, Cause: why, Took: now.Sub(h.since)})
}

// fail ends a call.
func (e *Engine) fail(now time.Time, h *Hold, err error) {
	h.state, h.err = Failed, err
	e.holdEvent(h, Event{Kind: Refused, Err: err, Took: now.Sub(h.begun)})
	e.wake(h)
}

// conclude notes how a release went.
func (h *Hold) conclude(err error) { h.state, h.err = Finished, err }

func (e *Engine) wake(h *Hold) { e.out.Wake = append(e.out.Wake, h) }

// until is the moment up to which the hold may be relied on.
func (h *Hold) until() time.Time {
	if h.state > Live {
		return h.end
	}
	at := h.claim.deadline
	if h.state == Entering {
		return at
	}
	if h.NoRenew {
		at = earlier(at, h.deadline)
	}
	if !h.end.IsZero() {
		at = earlier(at, h.end)
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

// renewable reports whether the hold is to be renewed: its claim does not last until its end yet, or may not
// be there, of which a renewal that does not lengthen it tells.
func (h *Hold) renewable() bool {
	switch {
	case h.fresh:
		return true
	case h.NoRenew:
		return h.claim.doubtful
	}
	return h.end.IsZero() || h.claim.deadline.Before(h.end)
}
