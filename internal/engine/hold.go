package engine

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A Hold is one acquisition of a lock, from the call that asks for it to its release. The caller of Acquire
// sets the first fields, and does not change them later.
type Hold struct {
	Name     string
	Owner    Owner
	Lease    time.Duration // whole milliseconds
	MaxHold  time.Duration // the hold ends so long after it was granted, at the latest; 0 for no such bound
	Caller   uint64        // the goroutine that calls, if only that one may re-enter; or else 0
	Tag      any           // the caller's own
	Mode     Mode
	Try      bool // fail rather than wait
	NoRenew  bool
	Bounded  bool // something else ends the wait if no answer comes
	NewOwner bool // nobody else knows the owner: it holds nothing

	state     HoldState
	path      Path // how the call got the lock
	fresh     bool // not renewed, and its lease counts from a renewal that is yet to come
	forgotten bool
	err       error // of Failed; of Over, and of Ended, which says how the release went
	trouble   error // of a call that has failed: what the last request failed with
	ownership *ownership
	claim     *claim
	tries     int
	since     time.Time // when the call began; once it has the lock, when it got that
	deadline  time.Time // until which the hold is to last at least, and a hold that is not renewed at most
	// by MaxHold, or zero; of a hold that has ended, the last time until which it could be relied on
	end          time.Time
	sequence     uint64 // of the request that counts it in, or out
	confirmation *confirmation

	first claim     // memory for its claim
	own   ownership // memory for its owner's ownership
}

// A confirmation is what is known of the replicas that are to confirm a hold.
type confirmation struct {
	until time.Time // when the call fails
	n     int       // how many have confirmed it, as of the last reply
}

// HoldState is what a hold has come to.
type HoldState uint8

// The states of a hold. A hold begins as Wanted.
const (
	Wanted    HoldState = iota // its claim waits, or another call of the owner is in front
	Entering                   // its owner has the lock; the server has yet to confirm one more hold
	Failed                     // there is no hold: see Err
	Live                       // it may be relied on
	Lapsed                     // it was lost or closed, and is not released: see Err
	Releasing                  // the server has yet to confirm that
	Finished                   // it was released: see Err for how that went
)

// State returns what the hold has come to.
func (h *Hold) State() HoldState { return h.state }

// Err returns why a call failed, why a hold was lost, or why its release failed.
func (h *Hold) Err() error { return h.err }

// Token returns the fencing token of a hold that was acquired.
func (h *Hold) Token() int64 { return h.claim.token }

// Deadline returns until when a Live hold may be relied on. Once the hold has ended, it stays what it was
// then.
func (h *Hold) Deadline() time.Time {
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

// Since returns when the call got the lock; while it waits, when it began.
func (h *Hold) Since() time.Time { return h.since }

// Renewed reports whether a Live hold lasts until its release: it is renewed, and nothing else ends it.
func (h *Hold) Renewed() bool { return !h.NoRenew && h.end.IsZero() }

// Forgotten reports whether nobody refers to a Live hold any more.
func (h *Hold) Forgotten() bool { return h.forgotten }

// LastError returns the error of the last request for the hold, or nil if it succeeded.
func (h *Hold) LastError() error {
	if h.claim == nil || h.trouble != nil {
		return h.trouble
	}
	return h.claim.err
}

// Unanswered reports whether a call has ended without the lock and without an answer, either to its request
// for the lock or to its request to re-enter.
func (h *Hold) Unanswered() bool {
	c := h.claim
	return c != nil && (c.caller != h || c.wanted != nil && c.answered.IsZero())
}

// Obstacle returns what is in the way of a call, as last reported by the server, and whether that belongs to
// this engine. Nothing is in the way of a call that has the lock, or whose obstacle was a hold of this engine
// that has ended.
func (e *Engine) Obstacle(now time.Time, h *Hold) (o protocol.Obstacle, known, ours bool) {
	c := h.claim
	if c == nil || c.caller != h || c.wanted == nil || c.answered.IsZero() {
		return o, false, false
	}
	o = c.obstacle
	o.Again = max(o.Again-now.Sub(c.answered), soonest)
	k, err := protocol.ParseClaim(o.Claim)
	if o.Mode == protocol.None || err == nil && k.Instance != e.instance {
		return o, true, false
	}
	if of := e.claims[k.Number]; of != nil && of.state == Held {
		return o, true, true
	}
	// The holder that the server named has released the lock since. A writer of this engine may have it now.
	if w := c.lock.writer; w != nil {
		o.Mode, o.Holder = protocol.Write, w.ownership.owner
		return o, true, true
	}
	return protocol.Obstacle{}, false, false
}

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

// renewable reports whether the hold has to be renewed: its claim does not yet last until the hold's end, or
// may have been lost. In the latter case, a renewal shows it.
func (h *Hold) renewable() bool {
	switch {
	case h.fresh:
		return true
	case h.NoRenew:
		return h.claim.doubtful
	}
	return h.end.IsZero() || h.claim.deadline.Before(h.end)
}

// kept records that the server keeps the claim for a request's lease, which begins no earlier than the
// request was sent.
func (c *claim) kept(now time.Time, r *Request, lent protocol.Lent) {
	c.attempt = attempt{}
	c.err = nil
	if c.wanted != nil {
		c.answered = now
	}
	c.sent = later(c.sent, r.Sent)
	if c.counting == nil || r.Sequence >= c.shortened { // or else the lease may have been shortened since
		c.deadline = later(c.deadline, r.until(lent))
	}
	c.lent = lent.Lease
}

// until returns when the lease of a request ends, by the client's clock. Under a delegation, that is no later
// than the delegation's end.
func (r *Request) until(lent protocol.Lent) time.Time {
	until := Deadline(r.Sent, r.Lease.Duration)
	if lent.Lease > 0 {
		until = earlier(until, Deadline(lent.Sent, lent.Lease))
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

func (e *Engine) renew(now time.Time, c *claim) {
	lease, _ := c.needs(now)
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
		e.record("renewal failed", c, c.holds[0], err)
		e.holdEvent(c.holds[0], Event{Kind: RenewalFailed, Err: err})
	case reply.Code == protocol.NotThere:
		e.lose(now, c, Gone)
		return
	default:
		due := c.sent.Add(c.period(r.Lease.Duration))
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
	lease, shorten := c.needs(now)
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
		c.deadline = earlier(c.deadline, until) // the request may run and its reply be lost
	} else {
		c.longest = max(c.longest, lease)
	}
	for _, h := range c.holds {
		// Releases and extensions do not wait for replicas, which are asked afterwards.
		if h.state == Entering && e.replicas > 0 && len(c.leaving) == 0 && len(c.extensions) == 0 {
			r.Replicas, r.Confirm = e.replicas, max(r.Confirm, min(h.confirmation.until.Sub(now), mostConfirm))
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
// counts the lease from the start again. It also returns whether the server may keep the claim for longer.
func (c *claim) needs(now time.Time) (lease time.Duration, shorten bool) {
	for _, h := range c.holds {
		lease = max(lease, h.need(now))
	}
	return lease, lease < c.longest
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
		passing := protocol.Passing(err)
		c.recount.fail(now, c.lease)
		if !passing {
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
			until = earlier(until, t.until)
		}
		c.deadline = later(c.deadline, until)
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
	if c.state != Held {
		return
	}
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

// renewAt returns when to renew the claim, or zero if it is not renewed.
func (c *claim) renewAt(now time.Time) time.Time {
	var longest time.Duration // lease of a hold that is renewed
	fresh := false
	for _, h := range c.holds {
		if h.renewable() {
			longest = max(longest, h.Lease)
		}
		fresh = fresh || h.fresh
	}
	switch {
	case longest == 0:
		return time.Time{}
	case !c.asked.IsZero() || c.failures > 0:
		return c.again(longest)
	case fresh, c.doubtful:
		return now
	case c.lent > 0:
		return c.deadline.Add(-min(c.lent, longest) / lentPart)
	}
	return c.sent.Add(c.period(longest))
}
