package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/deadlock"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// State is what a claim has come to.
type State uint8

// The states of a claim. A claim begins as Asking.
const (
	Asking State = iota // the first request is under way
	Queued              // the server has said that it waits
	Held                // it was granted the lock
	Ending              // its release, or its withdrawal, is under way
	Over                // the server knows its end, or will by the end of its lease
)

// change is what happens to a claim.
type change uint8

const (
	queues     change = iota // the server has it wait
	grants                   // the server grants it the lock
	turnedAway               // the server refuses it, and keeps nothing of it
	gives                    // its call gives up, or fails
	leaves                   // its last hold is released, lost or closed
	ceases                   // the server knows its end
	expires                  // its end was tried for as long as the server may keep it
)

// transitions are all that there are. Whatever else is tried is a mistake in this package.
var transitions = map[State]map[change]State{
	Asking: {queues: Queued, grants: Held, turnedAway: Over, gives: Ending},
	Queued: {queues: Queued, grants: Held, turnedAway: Over, gives: Ending},
	Held:   {leaves: Ending},
	Ending: {ceases: Over, expires: Over},
}

// step is the only place where a claim changes its state.
func (e *Engine) step(c *claim, ch change) {
	to, ok := transitions[c.state][ch]
	if !ok {
		panic("engine: a claim cannot go on that way")
	}
	if c.state <= Queued && to > Queued {
		delete(e.waiting, c.number)
		c.tenure.asking = nil
	}
	if c.state != to {
		switch Ending {
		case to:
			e.endings[c.number] = c
			e.endMax = max(e.endMax, len(e.endings))
		case c.state:
			delete(e.endings, c.number)
		}
		e.leaveState(c)
		c.state = to
		e.enterState(c)
	}
	if len(e.waiting) == 0 && e.waitMax > peak {
		e.waiting, e.waitMax = make(map[uint64]*claim), 0
	}
	if len(e.endings) == 0 && e.endMax > peak {
		e.endings, e.endMax = make(map[uint64]*claim), 0
	}
	if to == Over {
		e.timeline.Remove(c)
		if ch != expires { // or else nobody knows what the slot says at the server
			c.lock.free = append(c.lock.free, c.slot)
		}
		e.claims--
		e.drop(c.lock)
	}
}

// leaveState and enterState tell the graph that deadlocks are found by. queued tells it of calls that wait.
func (e *Engine) leaveState(c *claim) {
	e.graph.Leave(c.node)
	if c.lock.writer == c {
		c.lock.writer = nil
	}
	if r := c.tenure.claim[protocol.Read]; c.state == Held && c.mode == protocol.Write && r != nil {
		e.graph.Hold(r.node, e.numbers) // a downgrade ends a write hold, and lets readers in
	}
}

func (e *Engine) enterState(c *claim) {
	if c.state == Held {
		c.wanted = wanted{}
		e.graph.Hold(c.node, e.numbers)
		if c.mode == protocol.Write {
			c.lock.writer = c
		}
	}
}

// A claim is what the server knows an owner's holds in one mode by, from the request that asks for it until
// its end is known there.
type claim struct {
	tenure  *tenure
	lock    *lock
	mode    Mode
	slot    int
	number  uint64
	wire    protocol.Claim
	node    *deadlock.Node
	state   State
	caller  *Hold         // whose call asks for it
	lease   time.Duration // that it asks for, or is renewed for
	longest time.Duration // that the server may keep it for
	lent    time.Duration // the lease of the delegation that it is granted under; 0 for none
	below   any           // what the layer below keeps of it

	sent     time.Time // before the last request was sent that made the server keep the claim for a lease
	answered time.Time // when the server has answered last
	deadline time.Time // until when it may be relied on

	attempt       // to ask, to renew or to end
	err     error // of the last one

	wanted           // until the grant
	grant            // from then on
	giveUp time.Time // when an Ending claim is left to its lease

	order.Place               // in the timeline
	vertex      deadlock.Node // memory for node
}

// wanted is what is known of a claim that waits.
type wanted struct {
	obstacle protocol.Obstacle
	floor    int64     // the last token when the server had it wait: a grant with a smaller one was lost before
	look     time.Time // when there is reason to ask again; zero for none before the heartbeat
	prompted time.Time // when a message last had it ask again
	resumed  time.Time // when the process was last seen to have stood still
}

// grant is what a claim that was granted the lock holds.
type grant struct {
	token   int64
	granted time.Time // not after the token was handed out
	// its release may take the short path: the token is as old as the grant, and no count or long lease was
	// asked for
	brief    bool
	doubtful bool // its server may have been replaced since: to be renewed at once

	holds      []*Hold // live ones, and those of calls that re-enter
	one        [1]*Hold
	leaving    []*Hold // released, while others remain: until the server has confirmed it
	last       *Hold   // whose release ends the claim; or nil
	extensions []*Extension

	counting
}

// counting is how far the server knows how many holds there are.
type counting struct {
	sequence  uint64 // of the last change that is to be told the server; zero for none
	confirmed uint64 // of the last that it has confirmed
	shortened uint64 // of the last that may have shortened the lease
	told      []told // not confirmed
	recount   attempt
}

// An attempt is to get something done at the server that is tried until it works.
type attempt struct {
	asked    time.Time // when the request under way was sent; zero if there is none
	failures int       // since the last that succeeded
	retry    time.Time // when to try again, after failures
}

func (a *attempt) start(now time.Time) { a.asked = now }

func (a *attempt) succeed() { *a = attempt{} }

func (a *attempt) fail(now time.Time, lease time.Duration) {
	a.asked = time.Time{}
	a.failures++
	a.retry = now.Add(min(firstRetry<<min(a.failures-1, 10), max(lease/resendAfter, firstRetry), lastRetry))
}

// resume ends a pause, and reports whether there was one.
func (a *attempt) resume(now time.Time) bool {
	pauses := a.failures > 0 && a.asked.IsZero()
	if pauses {
		a.failures, a.retry = 1, now
	}
	return pauses
}

// again returns when to send the next request if none has an answer by then.
func (a *attempt) again(lease time.Duration) time.Time {
	if !a.asked.IsZero() {
		return a.asked.Add(max(lease/resendAfter, firstRetry))
	}
	return a.retry
}

// margin is what a client's deadline is short of the server's: clocks may drift apart by one percent.
func margin(lease time.Duration) time.Duration { return lease/100 + 2*time.Millisecond }

// LeaseFor returns the shortest lease, in whole milliseconds, that a client may rely on for d.
func LeaseFor(d time.Duration) time.Duration {
	lease := max(d, 0) + margin(0)
	lease += lease / 99
	return (lease + time.Millisecond - 1).Truncate(time.Millisecond)
}

// newAttempt begins a claim for a call.
func (e *Engine) newAttempt(now time.Time, h *Hold) {
	t := h.tenure
	lk := t.lock
	c := &h.first
	if h.tries > 0 {
		c = new(claim)
	}
	h.tries++
	slot := lk.takeSlot()
	*c = claim{tenure: t, lock: lk, mode: h.Mode, slot: slot, lease: h.Lease, longest: h.Lease, caller: h,
		wire: e.newClaim(h.Mode, slot, t.owner)}
	c.number = e.numbers
	c.Tie = c.number
	c.vertex = deadlock.Node{Owner: t.owner, Name: lk.name, Mode: h.Mode, Number: c.number, NewOwner: h.NewOwner}
	c.node = &c.vertex
	h.claim, t.asking = c, h
	lk.refs++
	e.claims++
	// A message may overtake the reply, so the claim is known before the request is sent.
	e.waiting[c.number] = c
	e.waitMax = max(e.waitMax, len(e.waiting))
	e.sendAsk(now, c)
	e.schedule(now, c)
}

// request returns a request about the claim.
func (c *claim) request(k kind) *Request {
	again := !c.asked.IsZero() || c.failures > 0
	return &Request{Request: protocol.Request{Keys: c.lock.keys, Claim: c.wire, Again: again}, lock: c.lock,
		claim: c, kind: k}
}

func (e *Engine) leaseOf(d time.Duration) protocol.Lease {
	if d == e.lease.Duration {
		return e.lease
	}
	return protocol.NewLease(d)
}

// sendAsk asks for the lock; sent again by a waiter, it is the heartbeat.
func (e *Engine) sendAsk(now time.Time, c *claim) {
	r := c.request(asks)
	r.Script, r.Lease, r.Channels, r.Try = lua.Lock, e.leaseOf(c.lease), e.channels, c.caller.Try
	if c.mode == protocol.Read {
		r.Script = lua.RLock
		if w := c.tenure.claim[protocol.Write]; w != nil {
			r.Writer = w.wire.ID
		}
	}
	if c.sent.IsZero() {
		c.sent = now
	}
	e.numbers++
	r.number = e.numbers
	c.look = time.Time{}
	if c.prompted.After(now) {
		c.prompted = now // this one is not older
	}
	c.start(now)
	e.send(now, r)
}

func (e *Engine) renew(now time.Time, c *claim) {
	lease, _ := c.renewAt(now)
	if lease == 0 {
		lease, _ = c.needs(now)
	}
	r := c.request(renews)
	r.Script, r.Lease, r.Sequence = lua.Renew, e.leaseOf(lease), c.sequence
	c.longest = max(c.longest, lease)
	c.start(now)
	e.send(now, r)
	e.schedule(now, c)
}

// told is a change of the number of holds that the server was told of, and until when the claim can be relied
// on once the server has heeded it.
type told struct {
	sequence uint64
	until    time.Time
}

// tell tells the server how many holds the claim has. The number is absolute and the request numbered, so
// that it may run twice, or late. shorten has the lease end with what the remaining holds need.
func (e *Engine) tell(now time.Time, c *claim) {
	c.brief = false
	lease, shorten := c.needs(now)
	if asked := c.asks(now); asked > 0 {
		lease, shorten = asked, false
	}
	r := c.request(counts)
	r.Script, r.Lease, r.Channels = lua.Reenter, e.leaseOf(lease), e.channels
	r.Count, r.Sequence, r.Shorten = len(c.holds), c.sequence, shorten
	for _, x := range c.extensions {
		r.Extend = max(r.Extend, LeaseFor(x.until.Sub(now)))
	}
	until := now.Add(lease - margin(lease))
	c.told = append(c.told, told{c.sequence, until})
	if shorten {
		c.shortened = c.sequence
		c.deadline = earlier(c.deadline, until) // the request may run and its reply be lost
	} else {
		c.longest = max(c.longest, lease)
	}
	for _, h := range c.holds {
		// What a release or an extension waits for does not wait for replicas: they are asked after it.
		if h.state == Entering && e.replicas > 0 && len(c.leaving) == 0 && len(c.extensions) == 0 {
			r.Replicas, r.Confirm = e.replicas, max(r.Confirm, min(h.confirmBy.Sub(now), mostConfirm))
		}
	}
	c.recount.start(now.Add(r.Confirm))
	e.send(now, r)
	e.schedule(now, c)
}

// asks returns the longest lease that a call asks for that re-enters, or extends a hold; or 0 if none does.
func (c *claim) asks(now time.Time) (lease time.Duration) {
	for _, h := range c.holds {
		if h.state == Entering {
			lease = max(lease, h.Lease)
		}
	}
	for _, x := range c.extensions {
		lease = max(lease, LeaseFor(x.until.Sub(now)))
	}
	return lease
}

// needs returns for how long the holds need the claim, and whether the server may keep it for longer than
// that.
func (c *claim) needs(now time.Time) (lease time.Duration, shorten bool) {
	for _, h := range c.holds {
		lease = max(lease, h.need(now))
	}
	return lease, lease < c.longest
}

func (e *Engine) sendEnd(now time.Time, c *claim) {
	r := c.request(ends)
	r.Script, r.Channels = lua.RUnlock, e.channels
	if c.mode == protocol.Write {
		r.Script = lua.Unlock
	}
	if c.brief && c.longest <= protocol.ShortLease && now.Sub(c.granted) < tokenFresh && c.failures == 0 {
		r.Record = protocol.Released(c.wire, c.token)
	}
	r.Late = c.token == 0
	c.start(now)
	e.send(now, r)
}

// kept notes that the server keeps the claim for the lease that a request asked for, from a moment not before
// it was sent.
func (c *claim) kept(now time.Time, r *Request, lent protocol.Lent) {
	c.succeed()
	c.answered, c.err = now, nil
	if r.Sent.After(c.sent) {
		c.sent = r.Sent
	}
	if r.Sequence >= c.shortened { // or else the lease may have been shortened since
		c.rely(r.until(lent))
	}
	c.lent = lent.Lease
}

// rely notes until when the claim can be relied on.
func (c *claim) rely(until time.Time) {
	if until.After(c.deadline) {
		c.deadline = until
	}
}

// until is when the lease ends that a request asks for, by a client's clock; under a delegation, no later
// than that ends.
func (r *Request) until(lent protocol.Lent) time.Time {
	until := r.Sent.Add(r.Lease.Duration - margin(r.Lease.Duration))
	if lent.Lease > 0 {
		until = earlier(until, Deadline(lent.Sent, lent.Lease))
	}
	return until
}

// Deadline returns until when a client may rely on a lease that the server counts from a moment not before
// sent.
func Deadline(sent time.Time, lease time.Duration) time.Time { return sent.Add(lease - margin(lease)) }

// asked takes the reply to a request for the lock, or a heartbeat.
func (e *Engine) asked(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	switch c.state {
	case Held:
		switch {
		case err != nil:
		// in the second case the server had forgotten the claim, and took it for a new one
		case reply.Refused, reply.Token > c.token:
			e.lose(now, c, Gone)
		case reply.Token == c.token: // any other answer is of before the grant
			c.kept(now, r, reply.Lent)
			e.schedule(now, c)
		}
	case Asking, Queued:
		switch {
		case err != nil:
			e.askFailed(now, c, err)
		case reply.Refused && c.caller.Try:
			e.queued(now, c, r, reply) // it has run before, and had to wait
		case reply.Refused:
			e.turnAway(now, c)
		case reply.Token != 0 && reply.Token < c.floor && r.Sent.Before(c.answered): // it has lost that grant
		case reply.Token != 0:
			by := AtOnce
			switch {
			case reply.Lent.Lease > 0:
				by = ByDelegation
			case c.state == Queued:
				by = ByHeartbeat
				e.suspect(now, c, reply, r)
			}
			c.doubtful = by != ByDelegation && c.troubled(now)
			c.kept(now, r, reply.Lent)
			e.granted(now, c, reply.Token, by)
		default:
			e.queued(now, c, r, reply)
		}
	}
}

// suspect notes that a heartbeat brought a grant though the subscription stood when the grant was made. If
// the message is only late, it still comes.
func (e *Engine) suspect(now time.Time, c *claim, reply protocol.Reply, r *Request) {
	if reply.Before && !e.listening.IsZero() && e.listening.Before(r.Sent) && e.listening.Before(c.answered) {
		e.holdEvent(c.caller, Event{Kind: Woken, Path: ByHeartbeat})
		if e.deaf.number == 0 { // or else one suspicion after the other would put off the end of the first
			e.deaf = deafness{c.number, now.Add(deafAfter)}
		}
	}
}

func (e *Engine) askFailed(now time.Time, c *claim, err error) {
	c.err = err
	if c.caller.Try || !protocol.Passing(err) {
		e.withdraw(now, c, err)
		return
	}
	c.fail(now, c.lease)
	e.schedule(now, c)
}

// queued notes that the claim has to wait.
func (e *Engine) queued(now time.Time, c *claim, r *Request, reply protocol.Reply) {
	if w := c.under(); w != nil && w.wire.ID == r.Writer {
		e.lose(now, w, Gone) // or else it need not wait
		return
	}
	c.kept(now, r, reply.Lent)
	if i := protocol.InstanceOf(reply.Claim); i != "" && i != e.instance && reply.Claim != c.obstacle.Claim {
		e.out.Blockers = append(e.out.Blockers, i)
	}
	c.floor, c.obstacle = reply.Last, reply.Obstacle
	if !r.Sent.Before(c.lock.ended) { // or else the one in the way may have ended since
		e.bury(now, c.lock, reply.Claim)
	}
	if c.caller.Try {
		h := c.caller
		e.step(c, turnedAway) // the server has noted its end
		e.fail(now, h, ErrLocked)
		e.advance(now, c.tenure)
		return
	}
	if c.state == Asking {
		e.holdEvent(c.caller, Event{Kind: Queueing})
	}
	e.step(c, queues)
	e.graph.Wait(c.node, e.numbers, r.number, reply.Ahead > 0)
	doubtful, err := e.graph.Search(now, c.node)
	if err != nil {
		e.withdraw(now, c, err)
		return
	}
	e.listen()
	c.look = now.Add(max(reply.Again+grace, soonest))
	if !e.listening.IsZero() && r.Sent.Before(e.listening) || r.Sent.Before(c.prompted) {
		c.look = now // the reply may be older than what was told before the subscription stood, or than the message
	}
	e.schedule(now, c)
	for _, n := range doubtful {
		c := e.waiting[n]
		c.look = now
		e.schedule(now, c)
	}
}

// under returns the write claim of the owner of a read claim, or nil. What its owner reads under it has its
// token.
func (c *claim) under() *claim {
	if c.mode == protocol.Write {
		return nil
	}
	return c.tenure.claim[protocol.Write]
}

// turnAway begins the call anew: the server refuses the claim, because it was cleared away after its process
// had stood still, or since the server has forgotten its last writes.
func (e *Engine) turnAway(now time.Time, c *claim) {
	h, t := c.caller, c.tenure
	t.lock.refs++ // past the end of the claim
	e.step(c, turnedAway)
	e.retry(now, h)
	e.drop(t.lock)
}

// granted makes a waiting claim Held. Its lease runs from the last request that the server processed before
// it granted the lock. That is no earlier than the last one with a reply: the server never has a claim wait
// that was granted, or lost, before (I4).
func (e *Engine) granted(now time.Time, c *claim, token int64, by Path) {
	if w := c.under(); w != nil && w.token != token {
		e.lose(now, w, Gone) // the server took the call for one of an owner that holds nothing
		return
	}
	if c.deadline.IsZero() { // a message has overtaken the first reply
		c.deadline = c.sent.Add(c.lease - margin(c.lease))
	}
	h, t := c.caller, c.tenure
	c.doubtful = c.doubtful || by != ByDelegation && c.troubled(now)
	c.succeed()
	c.token, c.granted, c.brief = token, c.sent, c.under() == nil // it was granted since
	e.step(c, grants)
	if !now.Before(c.deadline) {
		// The process has slept through the lease of what it was granted.
		e.end(now, c)
		e.retry(now, h)
		return
	}
	t.claim[c.mode] = c
	c.holds = append(c.one[:0], h)
	// its lease counts from a renewal that is yet to come
	h.fresh = by != AtOnce && by != ByDelegation && h.NoRenew
	if h.path = by; e.replicas > 0 {
		e.enter(now, c, h)
	} else {
		e.live(now, h, c.deadline, by)
	}
	e.schedule(now, c)
	e.advance(now, t)
}

// retry begins a call anew that came to nothing though nobody is in its way.
func (e *Engine) retry(now time.Time, h *Hold) {
	switch {
	case !e.admits(h.tenure):
		e.fail(now, h, ErrClosed)
	case h.tries < mostTries:
		e.newAttempt(now, h)
		return
	default:
		e.fail(now, h, ErrAgain)
	}
	e.advance(now, h.tenure)
}

// withdraw ends a claim that waits, with the error of its call. Should the server grant it in this very
// moment, it is told to pass the lock on.
func (e *Engine) withdraw(now time.Time, c *claim, err error) {
	h, t := c.caller, c.tenure
	h.trouble = c.err
	e.step(c, gives)
	e.fail(now, h, err)
	e.finish(now, c)
	e.advance(now, t)
}

// end ends a held claim that has no holds left.
func (e *Engine) end(now time.Time, c *claim) {
	e.step(c, leaves)
	if c.tenure.claim[c.mode] == c {
		c.tenure.claim[c.mode] = nil
	}
	e.finish(now, c)
}

// finish sends the end of a claim, and goes on for as long as the server may keep it.
func (e *Engine) finish(now time.Time, c *claim) {
	c.succeed()
	c.err = nil
	c.giveUp = now.Add(max(c.longest, EndTimeout))
	e.sendEnd(now, c)
	e.schedule(now, c)
}

func (e *Engine) ended(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
	if c.state != Ending {
		return
	}
	if err != nil {
		c.fail(now, c.lease)
		c.err = err
		if !protocol.Passing(err) {
			e.conclude(c, err)
		}
		if protocol.IsClientClosed(err) {
			if e.closed && c.token != 0 {
				e.stranded, e.strandedBy = e.stranded+1, err
			}
			e.abandon(c)
			return
		}
		if e.closed && c.deadline.IsZero() {
			e.abandon(c) // the server was never heard to have it
			return
		}
		e.schedule(now, c)
		return
	}
	c.lock.ended = now
	if reply.Code == protocol.DoneBefore {
		e.lookAll(now, c.lock) // the reply that named whom that run let in is lost
	}
	if c.token == 0 {
		e.holdEvent(c.caller, Event{Kind: Withdrawn})
	}
	if reply.Code == protocol.NotThere {
		e.conclude(c, ErrLost)
	} else {
		e.conclude(c, nil)
	}
	e.step(c, ceases)
}

// abandon leaves an ending claim to its lease.
func (e *Engine) abandon(c *claim) {
	e.conclude(c, unanswered(c.err))
	e.step(c, expires)
}

// conclude tells the releases that wait for the server how they went.
func (e *Engine) conclude(c *claim, err error) {
	e.concludeUpTo(c, c.sequence, err)
	if c.last != nil {
		c.last.conclude(err)
		e.wake(c.last)
		c.last = nil
	}
}

// concludeUpTo does that for those of which a change of the number of holds, or one before it, tells the
// server while others remain.
func (e *Engine) concludeUpTo(c *claim, sequence uint64, err error) {
	rest := c.leaving[:0]
	for _, h := range c.leaving {
		if h.sequence > sequence {
			rest = append(rest, h)
			continue
		}
		h.conclude(err)
		e.wake(h)
	}
	clear(c.leaving[len(rest):])
	c.leaving = rest
}

// lookAll has every waiter of a lock ask for news.
func (e *Engine) lookAll(now time.Time, lk *lock) {
	e.each(now, func(now time.Time, c *claim) {
		if c.lock == lk && c.state == Queued {
			c.look = now
			e.schedule(now, c)
		}
	})
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

// counted takes the reply to a change of the number of holds.
func (e *Engine) counted(now time.Time, c *claim, r *Request, reply protocol.Reply, err error) {
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
		c.told = slices.DeleteFunc(c.told, func(t told) bool { return t.sequence <= r.Sequence })
		// A later request may have overtaken this one: then the server has not heeded it.
		until := r.until(reply.Lent)
		for _, t := range c.told {
			until = earlier(until, t.until)
		}
		c.rely(until)
	}
	if c.confirmed == c.sequence {
		c.recount.succeed()
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
			e.renumber(c) // told when the attempt is repeated
		}
	}
	e.extendNone(c, func(x *Extension) bool { return x.sequence <= sequence }, err)
	e.concludeUpTo(c, sequence, err)
	if len(c.holds) == 0 && c.state == Held {
		e.end(now, c)
	}
}

// unanswered is the error of what nobody has answered in time; the last failure is its cause.
func unanswered(cause error) error {
	if cause == nil {
		return ErrUnanswered
	}
	return fmt.Errorf("%w: %w", ErrUnanswered, cause)
}

// lose ends a held claim that can no longer be relied on.
func (e *Engine) lose(now time.Time, c *claim, why Cause) {
	for len(c.holds) > 0 {
		e.over(now, c.holds[0], ErrLost, why)
	}
	e.conclude(c, ErrLost)
	e.endLost(now, c)
}

// endLost ends a claim that was lost. A call that was to read under it has nothing to re-enter any more.
func (e *Engine) endLost(now time.Time, c *claim) {
	e.end(now, c)
	if h := c.tenure.asking; h != nil && c.mode == protocol.Write {
		e.withdraw(now, h.claim, ErrLost)
	}
	e.settle(c.tenure)
}

func (e *Engine) record(message string, c *claim, h *Hold, err error) {
	e.out.Log = append(e.out.Log, Record{
		Message: message, Name: c.lock.name, Owner: c.tenure.owner, Mode: c.mode, Token: c.token, Hold: h,
		Err: err})
}

func (c *claim) remove(h *Hold) {
	c.holds = slices.DeleteFunc(c.holds, func(other *Hold) bool { return other == h })
}

// schedule says when the timeline looks at the claim next.
func (e *Engine) schedule(now time.Time, c *claim) {
	var at time.Time
	switch c.state {
	case Asking, Queued:
		at = c.askAt()
		if end := c.unanswered(); !end.IsZero() {
			at = earlier(at, end)
		}
	case Held:
		at = c.holdUntil(now)
	case Ending:
		at = earlier(c.giveUp, c.endAt())
	default:
		return
	}
	e.timeline.Set(c, at)
}

// unanswered is when a call gives up that no answer comes to; zero if something else bounds it.
func (c *claim) unanswered() time.Time {
	from := c.sent
	if c.resumed.After(from) {
		from = c.resumed
	}
	switch {
	case c.caller.Try:
		return from.Add(min(c.lease, EndTimeout))
	case c.caller.Bounded:
		return time.Time{}
	}
	return from.Add(c.lease)
}

// askAt is when the claim asks next: again, or, waiting, for news or with its heartbeat.
func (c *claim) askAt() time.Time {
	if !c.asked.IsZero() || c.failures > 0 {
		return c.again(c.lease)
	}
	at := c.sent.Add(c.period(c.lease))
	if !c.look.IsZero() {
		at = earlier(at, c.look)
	}
	return at
}

// holdUntil is when a held claim is renewed, or one of its holds ends.
func (c *claim) holdUntil(now time.Time) time.Time {
	at := c.deadline
	for _, h := range c.holds {
		at = earlier(at, h.until())
		if h.state == Entering && !h.confirmBy.IsZero() {
			at = earlier(at, h.confirmBy)
		}
	}
	if lease, renew := c.renewAt(now); lease > 0 {
		at = earlier(at, renew)
	}
	if c.confirmed < c.sequence {
		at = earlier(at, c.recount.again(c.lease))
	}
	return at
}

// renewAt returns the lease to renew the claim for, and when; zero if it is not renewed. The lease is the
// longest that any of its holds needs, renewed or not: a server whose clock was set back lets it count anew.
func (c *claim) renewAt(now time.Time) (lease time.Duration, at time.Time) {
	var longest time.Duration
	renewed, fresh := false, false
	for _, h := range c.holds {
		if lease = max(lease, h.need(now)); h.renewable() {
			renewed, longest = true, max(longest, h.Lease)
		}
		fresh = fresh || h.fresh
	}
	switch {
	case !renewed:
		return 0, time.Time{}
	case !c.asked.IsZero() || c.failures > 0:
		at = c.again(longest)
	case fresh, c.doubtful:
		at = now
	case c.lent > 0:
		at = c.deadline.Add(-c.lent / lentPart)
	default:
		at = c.sent.Add(c.period(longest))
	}
	return lease, at
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

// due does what is due by now, or nearly, and schedules what comes next.
func (e *Engine) due(now time.Time, c *claim) {
	along := now.Add(c.lease / alongPart)
	switch c.state {
	case Asking, Queued:
		if end := c.unanswered(); !end.IsZero() && !now.Before(end) {
			if now.Sub(e.timeline.Due(c)) < max(c.lease/resendAfter, firstRetry) {
				e.withdraw(now, c, unanswered(c.err))
				return
			}
			c.resumed = now // the process stood still: the answer may be there already
		}
		if !c.askAt().After(along) {
			if !c.asked.IsZero() {
				c.failures++
			}
			e.sendAsk(now, c)
		}
	case Held:
		if e.expire(now, c); c.state != Held {
			return
		}
		if lease, at := c.renewAt(now); lease > 0 && !at.After(along) {
			e.renew(now, c)
		}
		if c.confirmed < c.sequence && !c.recount.again(c.lease).After(now) {
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

// expire ends a Held claim whose local deadline has come, or those of its holds whose time is over.
func (e *Engine) expire(now time.Time, c *claim) {
	if !now.Before(c.deadline) {
		e.lose(now, c, Expired)
		return
	}
	over := func(h *Hold) bool { return h.state == Live && !now.Before(h.until()) || h.unconfirmed(now) }
	if slices.ContainsFunc(c.holds, over) {
		for _, h := range slices.Clone(c.holds) {
			switch {
			case !over(h):
			case h.state == Live:
				e.lapse(now, h)
			default:
				e.giveBack(now, h)
			}
		}
	}
}
