// Package engine is the client's side of the lock. An engine knows which locks the owners of one RWLock hold
// and wait for, and decides what follows from each event. It is pure: calls, replies, messages and the time
// go in, and Effects come out. Effects say what to send, whom to wake, which holds can no longer be relied
// on, and when to call Tick. An engine has no goroutine, mutex, clock, context or network. The library runs
// one under a mutex; simulation and exploration run many.
//
// Every method with a time expects that time does not go back. After a call of any method, Flush returns what
// has to be done.
package engine

import (
	"cmp"
	"errors"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/deadlock"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// The modes and owners of the protocol.
type (
	Mode  = protocol.Mode
	Owner = protocol.Owner
)

// Why a call or a hold came to an end.
var (
	ErrLocked  = errors.New("locked by another owner")
	ErrUpgrade = errors.New("held for reading by the same owner: use TryUpgrade, or lock for writing first")
	ErrLost    = errors.New("hold lost before it was released")
	ErrNotHeld = errors.New("not held: already released")
	ErrClosed  = errors.New("closed")
	// ErrDetached is why a hold was ended that a ticket has.
	ErrDetached = errors.New("handed to a ticket")
	// ErrDeadlock ends a call that would wait for itself.
	ErrDeadlock = deadlock.ErrDeadlock
	// ErrNotReplicated ends a call whose grant too few replicas have confirmed.
	ErrNotReplicated = errors.New("not confirmed by enough replicas")
	ErrOwner         = errors.New("held by the same owner in another goroutine")

	// ErrUnanswered ends a wait without another limit, when there was no answer for a lease. It ends a Try
	// after [EndTimeout] at most.
	ErrUnanswered = errors.New("the server has not answered in time")
	// ErrAgain ends a call whose claims the server keeps refusing, which may happen after the server has
	// forgotten its last writes in a failover.
	ErrAgain = errors.New("the server keeps refusing the request")
)

const (
	// Renewals and heartbeats are due after a third of a lease. A request without an answer is sent again
	// after a sixth, and a renewal after a twelfth, beside the first one.
	renewAfter         = 3
	resendAfter        = 6
	renewalResendAfter = 12
	// A grant under a delegation asks for the delegation's new deadline this long before its own. By then the
	// delegation has been renewed, if the server answers.
	delegatedPart = 4

	// Requests that are due within this part of their lease are sent along with those that are due now: few
	// pipelines cost less than many small ones. If the part were larger, more requests would be sent than
	// necessary.
	batchPart = 128

	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// endPatience is how long the first request to end a claim may be unanswered.
	endPatience = time.Second
	// withdrawPatience is the same for a call that has given up. Many calls may give up together, and other
	// requests go first.
	withdrawPatience = 3 * time.Second
	// EndTimeout is for how long at least the end of a claim is tried.
	EndTimeout = 5 * time.Second
	// mostConfirm is how long one request waits for replicas. Other requests share its connection, so it is
	// sent again instead of waiting longer.
	mostConfirm = time.Second
	// grace is added to a deadline in a reply, which counts from a moment before the reply arrived.
	grace = 2 * time.Millisecond
	// soonest keeps a waiter from asking without a pause.
	soonest = 10 * time.Millisecond
	// recountAfter is for how long the server may know another number of holds, apart from a renewal.
	recountAfter = 100 * time.Millisecond
	// slowReply is the delay after which a reply may come from a server that has been replaced.
	slowReply = time.Second
	// quickEndFor is how long after its grant a hold may be released without reading the server's clock.
	quickEndFor = 45 * time.Second

	mostTries = 10   // of a call, with a new claim each
	mostSteps = 1000 // in a row that a server is believed when it says that there is more to do
)

// Config is what an engine is made of.
type Config struct {
	Prefix   string
	Instance string // names the engine among all that ever use the server: see protocol.NewInstance
	Lease    time.Duration
	Observe  bool // emit Events

	Replicas int           // how many replicas must have a grant before its call has the lock
	Confirm  time.Duration // how long a call waits for them

	Sharded bool // the server is a cluster
	AtOnce  int  // how many claims a call handles, at most: Tick handles the others; 0 for 64
}

// An Engine is what one RWLock knows. It is not safe for concurrent use.
type Engine struct {
	config   Config
	channels string // what all channels' names begin with
	channel  string // its own
	lease    protocol.Lease

	locks     map[string]*lock
	idle      order.List[lock, *lock]     // of them: unused, in the order of their last use
	claims    map[uint64]*claim           // that have not ended, by number
	waiting   order.List[wanted, *wanted] // of them, those that are Asking or Queued
	ending    int                         // and those that are Ending
	calls     map[uint64][]*claim         // that are Queued, by their owners' handles; nil if there are none
	locksMax  int                         // since the map was made
	claimsMax int
	timeline  order.Timeline[*claim] // the claims, by when they are due
	sweeps    []sweep                // begun by each, and not done for all claims yet
	numbers   uint64
	firstSlot int // of the locks that are made from now on: see forget
	serving   int // requests for further steps that are in flight
	draining  bool
	closed    bool
	// what the last renewal took that was answered
	renewalTook time.Duration
	slept       time.Duration // for how long the machine may have been asleep, in all: see Slept

	stranded   int   // claims that were held, and left to their leases after Close since the client was closed
	strandedBy error // the last error of one

	subscribing        bool
	listening          time.Time // since when the subscription stands; zero if it does not
	publishErrorLogged bool      // the log says that the server may not publish
	unheard            bool      // the log says that the server refuses the subscription

	out Effects
}

// New returns an engine that knows of no lock.
func New(c Config) *Engine {
	c.AtOnce = cmp.Or(c.AtOnce, atOnce)
	channels := protocol.Channels(c.Prefix)
	e := &Engine{config: c, lease: protocol.NewLease(c.Lease), channels: channels,
		channel: channels + c.Instance, locks: make(map[string]*lock), claims: make(map[uint64]*claim)}
	if c.Sharded {
		e.channels = channels + protocol.Sharded
	}
	return e
}

// Channel returns the name of the channel that the engine's messages come by.
func (e *Engine) Channel() string { return e.channel }

// Effects are what is to be done, in the order in which they are listed.
type Effects struct {
	Send     []*Request
	Cancel   []*Hold      // that can no longer be relied on: see Cause
	Wake     []*Hold      // whose Acquire or Release has come to an end
	Extended []*Extension // that have come to an end
	Answers  []Answer     // to Force and Inspect
	Log      []Record
	Events   []Event
	Blockers []string // other instances that calls have found in their way
	Shards   []string // shard channels, of locks that messages are about again and again
	Listen   bool     // open the subscription, and call Subscribed whenever it stands
}

// Reset empties the effects and keeps their memory.
func (o *Effects) Reset() {
	*o = Effects{Send: Emptied(o.Send), Cancel: Emptied(o.Cancel), Wake: Emptied(o.Wake),
		Extended: Emptied(o.Extended), Answers: Emptied(o.Answers), Log: Emptied(o.Log),
		Events: Emptied(o.Events), Blockers: Emptied(o.Blockers), Shards: Emptied(o.Shards)}
}

// Emptied returns the memory of a slice, which refers to nothing any more.
func Emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// Flush exchanges what is to be done with to, which must be empty.
func (e *Engine) Flush(_ time.Time, to *Effects) {
	for _, r := range e.out.Send {
		for _, part := range r.all {
			e.Prepare(part)
		}
		e.Prepare(r)
	}
	e.out, *to = *to, e.out
}

// A Record is for the log: what no return value tells.
type Record struct {
	Message string
	Name    string
	Owner   Owner
	Mode    Mode
	Token   int64
	Hold    *Hold // or nil
	Err     error // or nil
	Cause   Cause // why the hold ended, if it was lost
}

// An Answer ends a call of Force or Inspect.
type Answer struct {
	Tag   any             // that the caller has given
	State *protocol.State // of Inspect
	Err   error
}

// A Request has to be sent. Pass its reply or error to Replied.
type Request struct {
	protocol.Request
	Sent  time.Time
	Tag   any   // of the caller of Force or Inspect, or of the layer below
	Layer Layer // that sent it, for Received
	// Extend is how long calls that wait for the renewal want the claim to last from now; 0 if there are none.
	Extend time.Duration

	lock   *lock
	claim  *claim     // or nil
	all    []*Request // that it stands for
	kind   kind
	slot   int           // of one that is about no claim
	number uint64        // of one that replicas are to confirm: when it was sent
	slept  time.Duration // Engine.slept when it was sent
}

// Hold returns the hold, or the call, that a request is for. It returns one of them if there are several, and
// nil if there is none.
func (r *Request) Hold() *Hold {
	switch c := r.claim; {
	case c == nil:
		return nil
	case r.Script == lua.Convert && c.former != nil && c.former.last != nil:
		return c.former.last
	case len(c.holds) > 0 && r.kind != ends:
		return c.holds[0]
	case c.last != nil:
		return c.last
	default:
		return c.caller
	}
}

// Wanted reports whether a request that replicas should confirm is still needed: its claim is held, and no
// later request replaces it.
func (r *Request) Wanted() bool { return r.claim.state == Held && r.number == r.claim.confirming }

// Asks reports whether a request asks for the lock.
func (r *Request) Asks() bool { return r.kind == asks }

// Ends reports whether a request releases a claim, or withdraws it.
func (r *Request) Ends() bool { return r.kind == ends }

type kind uint8

const (
	asks kind = iota
	asksAll
	renews
	ends
	handsOver
	serves
	queries
	ofLayer // of the layer below
)

// Received takes the undecoded reply to a request of r.Layer and the number of replicas that have confirmed
// it, or the error of the request.
func (r *Request) Received(now time.Time, _ *protocol.Request, answer any, confirmed int, err error) {
	var reply protocol.Reply
	if err == nil {
		reply, err = protocol.Decode(r.Script, answer)
		reply.Confirmed = confirmed
	}
	r.Layer.Replied(now, r, reply, err)
}

// Replied takes the reply of a request, or the error with which it failed.
func (e *Engine) Replied(now time.Time, r *Request, reply protocol.Reply, err error) {
	defer e.goOn(now, len(e.sweeps) == 0)
	if e.wake(r) && r.kind == renews && (err != nil || reply.Code != protocol.NotThere) {
		return // what was renewed before the machine was asleep says nothing; another renewal is in flight
	}
	switch r.kind {
	case asksAll:
		for _, part := range r.all {
			if c := part.claim; err != nil || reply.Token != 0 {
				e.Replied(now, part, reply, err)
			} else if c.state == Asking { // each alone: an earlier run may have granted them all
				e.sendAsk(now, c)
				e.schedule(now, c)
			}
		}
		return
	case serves:
		e.serving--
		r.lock.serving = false
	}
	if err == nil {
		e.deliver(now, reply.Message, ByReply) // whoever requested the step
		e.proceed(now, r.lock, reply.More)
	}
	if reply.PublishError != "" && !e.publishErrorLogged {
		e.publishErrorLogged = true
		e.out.Log = append(e.out.Log, Record{
			Message: "the server may not publish: others hear of grants by their heartbeats alone", Name: r.lock.name,
			Err: errors.New(reply.PublishError)})
	}
	c := r.claim
	if c != nil && c.state == Held {
		e.expire(now, c) // what is due comes first: a reply does not revive a hold whose time is over
	}
	switch r.kind {
	case asks:
		e.asked(now, c, r, reply, err)
	case renews:
		e.renewed(now, c, r, reply, err)
	case ends:
		e.ended(now, c, reply, err)
	case handsOver:
		e.handedOver(now, c, reply, err)
	case queries:
		e.answered(now, r, reply, err)
	case ofLayer, serves: // if a step failed, the waiters' heartbeats go on from there
		if reply.Code == protocol.DoneBefore {
			e.promptAll(now, r.lock) // the reply that named whom that run let in is lost
		}
		e.drop(r.lock)
	}
}

// proceed asks for the next step of letting in a crowd, if there is more.
func (e *Engine) proceed(now time.Time, lk *lock, more bool) {
	switch {
	case !more:
		lk.steps = 0
	case lk.steps < mostSteps && !lk.serving:
		lk = e.use(lk.name) // a second reply to the same request may find the lock unused, or forgotten
		lk.steps++
		lk.serving = true
		e.serving++
		claim, _ := e.NewClaim(protocol.Read, 0, Owner{})
		e.send(now, e.about(lk, serves, protocol.Request{Script: lua.Serve, Claim: claim}))
	}
}

// about returns a request about a lock. The reply to one about none of the engine's claims drops the
// reference to the lock.
func (e *Engine) about(lk *lock, k kind, p protocol.Request) *Request {
	p.Keys, p.Channels = lk.keys, e.channels
	return &Request{Request: p, lock: lk, kind: k, slept: e.slept}
}

func (e *Engine) send(now time.Time, r *Request) {
	r.Sent = now
	e.out.Send = append(e.out.Send, r)
}

// NewClaim names a claim, and returns its number.
func (e *Engine) NewClaim(m Mode, slot int, o Owner) (protocol.Claim, uint64) {
	e.numbers++
	return protocol.NewClaim(m, e.config.Instance, slot, e.numbers, o), e.numbers
}

func (e *Engine) holdEvent(h *Hold, ev Event) {
	if e.config.Observe {
		ev.Name, ev.Owner, ev.Mode, ev.Hold = h.Name, h.Owner, h.Mode, h
		e.out.Events = append(e.out.Events, ev)
	}
}

// Heard takes a message of the engine's channel.
func (e *Engine) Heard(now time.Time, payload string) {
	defer e.goOn(now, len(e.sweeps) == 0)
	m, ok := protocol.ParseMessage(payload)
	if !ok {
		return
	}
	lk := e.deliver(now, m, ByMessage)
	if lk == nil {
		return
	}
	e.proceed(now, lk, m.More)
	if e.config.Sharded {
		if lk.notified { // others hand it over again and again: it gets its own channel
			e.out.Shards = append(e.out.Shards, lk.keys.ShardChannel(e.channel))
		}
		lk.notified = true
	}
}

// Grant grants the lock to a waiting claim, as a message or a reply does. A quorum calls it, since no single
// server decides there.
func (e *Engine) Grant(now time.Time, number uint64, token int64, by Path) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.deliver(now, protocol.Message{Token: token, Granted: []uint64{number}}, by)
}

// Dropped says that a hold may have been dropped by force, which its renewal shows. A quorum calls it: each
// of its servers has another number for the claim.
func (e *Engine) Dropped(now time.Time, number uint64) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.deliver(now, protocol.Message{Dropped: []uint64{number}}, ByMessage)
}

// deliver grants the lock to the claims that a message names, and makes others ask again. Unknown claims were
// given up: their withdrawal passes the lock on. deliver returns the lock, if a waiting claim identifies it.
func (e *Engine) deliver(now time.Time, m protocol.Message, by Path) (lk *lock) {
	for _, n := range m.Granted {
		c := e.waiter(n)
		if c == nil {
			if by == ByMessage && e.config.Observe {
				e.out.Events = append(e.out.Events, Event{Kind: Woken})
			}
			continue
		}
		if by == ByMessage {
			e.holdEvent(c.caller, Event{Kind: Woken, Path: by})
		}
		lk = c.lock
		if m.Token >= c.wanted.floor { // or else the message is of a grant that was lost
			c.unverified = c.troubled(now)
			e.granted(now, c, m.Token, by)
		}
	}
	for _, n := range m.Dropped { // by force
		switch c := e.claims[n]; {
		case c == nil:
		case c.state == Held:
			e.renew(now, c)
		case c.state <= Queued: // the message has overtaken its grant
			c.wanted.dropped = true
		}
	}
	for _, n := range m.AskAgain {
		if c := e.waiter(n); c != nil {
			lk = c.lock
			e.prompt(now, c)
		}
	}
	return lk
}

// waiters returns the waiting claims.
func (e *Engine) waiters() (list []*claim) {
	for w := range e.waiting.All() {
		list = append(list, w.claim)
	}
	return list
}

// waiter returns the waiting claim of that number, or nil. An upgrade does not wait.
func (e *Engine) waiter(n uint64) *claim {
	if c := e.claims[n]; c != nil && c.state <= Queued && !c.rises() {
		return c
	}
	return nil
}

// Subscribed says that the subscription is established, for the first time or again. Earlier messages are
// lost, so every waiter asks once.
func (e *Engine) Subscribed(now time.Time) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.listening, e.unheard = now, false
	e.each(now, e.waiters(), e.prompt)
}

// promptAll makes the waiters for a lock ask again.
func (e *Engine) promptAll(now time.Time, lk *lock) { e.eachOf(now, lk, e.prompt) }

// prompt makes a claim ask again, if it waits. The reply to a request in flight may be older than what the
// claim is to learn of, so it asks again after that reply.
func (e *Engine) prompt(now time.Time, c *claim) {
	if c.state > Queued {
		return
	}
	c.wanted.prompted = now
	if c.asked.Equal(now) { // the request in flight was sent before, all the same
		c.wanted.prompted = now.Add(1)
	}
	if c.state == Queued {
		c.wanted.askAgain = now
		e.schedule(now, c)
	}
}

// Resume says that other servers answer requests than before: requests that pause after failures are retried
// now.
func (e *Engine) Resume(now time.Time) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.each(now, e.timeline.All(), func(now time.Time, c *claim) {
		if c.resume(now) {
			e.schedule(now, c)
		}
	})
}

// Unsubscribed says that the subscription is broken, or could not be established. If the client was closed,
// every waiter asks once, and so learns of it.
func (e *Engine) Unsubscribed(now time.Time, err error) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.listening = time.Time{}
	if protocol.IsClientClosed(err) {
		e.each(now, e.waiters(), e.prompt)
		return
	}
	if err != nil && !protocol.Passing(err) && !e.unheard {
		e.unheard = true
		e.Log("the server refuses the subscription: waiters hear of grants by their heartbeats alone", err)
	}
}

// Close releases every hold and withdraws every waiting call. They end with ErrClosed, and so does every
// later call.
func (e *Engine) Close(now time.Time) {
	defer e.goOn(now, len(e.sweeps) == 0)
	if e.closed {
		return
	}
	e.closed = true
	e.each(now, e.timeline.All(), func(now time.Time, c *claim) {
		switch c.state {
		case Asking, Queued:
			e.withdraw(now, c, ErrClosed)
		case Held:
			e.lose(now, c, ErrClosed, Closed)
		case Ending:
			if c.failures > 0 {
				c.asked, c.retry = time.Time{}, now
				e.schedule(now, c)
			}
		}
	})
}

// Abandon leaves ending claims to their leases: those that no reply or message has ever confirmed, or else
// those of lost holds, whose leases are over.
func (e *Engine) Abandon(now time.Time, unheard bool) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.each(now, e.timeline.All(), func(_ time.Time, c *claim) {
		lasts := now.Before(c.deadline) || c.next != nil && now.Before(c.next.deadline) // for a ticket
		if c.state == Ending && c.Placed() && c.deadline.IsZero() == unheard && !lasts {
			e.abandon(c)
		}
	})
}

// Drain withdraws every waiting call, and makes every later call end with ErrClosed. Owners that hold the
// lock may still re-enter.
func (e *Engine) Drain(now time.Time) {
	defer e.goOn(now, len(e.sweeps) == 0)
	e.draining = true
	e.each(now, e.waiters(), func(now time.Time, c *claim) {
		if c.state <= Queued && !c.rises() { // it may have been let in, and be upgraded, since
			e.withdraw(now, c, ErrClosed)
		}
	})
}

// admits reports whether an owner that holds nothing may ask for the lock.
func (e *Engine) admits() bool { return !e.closed && !e.draining }

// Holds returns how many holds there are that were not released or lost.
func (e *Engine) Holds() (n int) {
	for _, c := range e.timeline.All() {
		n += len(c.holds)
	}
	return n
}

// Current returns, in no order, the holds that may be relied on, and the calls that have not ended.
func (e *Engine) Current() (list []*Hold) {
	for _, c := range e.timeline.All() {
		if c.state <= Queued {
			list = append(list, c.caller)
		}
		if t := c.ownership; c.state <= Queued || t.claim == c {
			list = append(list, t.behind...) // of a claim that is held, those that advance has left to goOn
		}
		list = append(list, c.holds...)
	}
	return list
}

// AsksSince returns when the call began with which an owner asks for a lock; zero if there is none.
func (e *Engine) AsksSince(name string, o Owner) (since time.Time) {
	if lk := e.locks[name]; lk != nil {
		if i, found := lk.owners.find(o); found && lk.owners[i].asking != nil {
			since = lk.owners[i].asking.since
		}
	}
	return since
}

// Drained reports whether nothing is held or waited for. Releases may still be in flight.
func (e *Engine) Drained() bool { return len(e.claims) == e.ending }

// Idle reports whether nothing is held, waited for or to be released, and no further step is to be requested.
func (e *Engine) Idle() bool { return len(e.claims) == 0 && e.serving == 0 }

// Unreleased returns how many holds, and how many places in queues, have not ended, or were left to their
// leases since Close because the client was closed. It also returns why the end of one of them failed, if it
// did.
func (e *Engine) Unreleased() (holds, places int, err error) {
	holds, err = e.stranded, e.strandedBy
	for _, c := range e.claims {
		if c.state != Ending || c.giveUp.IsZero() { // or else it is counted with the other claim of a downgrade
			continue
		}
		if c.err != nil {
			err = c.err
		}
		if c.token != 0 {
			holds++
		} else {
			places++
		}
	}
	return holds, places, err
}

// Waiting reports whether any call waits for the lock.
func (e *Engine) Waiting() bool { return e.waiting.Len() > 0 }

// InUse returns the number of names with a call, a hold or a request. It is zero once everything has ended.
func (e *Engine) InUse() int { return len(e.locks) - e.idle.Len() }
