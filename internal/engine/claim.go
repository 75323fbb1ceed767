package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// What an engine knows: locks, what each owner has of a lock, claims, and holds.

// A lock is what an engine knows of one name, while the name is in use and for a while after.
type lock struct {
	name     string
	keys     protocol.Keys
	refs     int // claims that have not ended, ownerships, requests about no claim
	owners   ownerships
	held     order.List[claim, *claim] // claims that are Held
	claims   order.List[claim, *claim] // others that have not ended
	writer   *claim                    // Held; or nil
	slots    Slots                     // of claims; free once the server has confirmed the end
	steps    int                       // in a row that were not enough
	serving  bool                      // a request for a further step is in flight
	notified bool                      // a message was about it

	order.Link[lock] // in Engine.idle
}

// mostIdle is the number of unused names that an engine remembers, which saves building their keys again.
const mostIdle = 64

// use returns the lock of that name with another reference, which the caller has to drop.
func (e *Engine) use(name string) *lock {
	lk := e.locks[name]
	switch {
	case lk == nil:
		lk = e.newLock(name, protocol.KeysOf(e.config.Prefix, name))
		e.locks[name] = lk
		e.locksMax = max(e.locksMax, len(e.locks))
	case lk.refs == 0:
		e.idle.Remove(lk)
	}
	lk.refs++
	return lk
}

func (e *Engine) newLock(name string, keys protocol.Keys) *lock {
	return &lock{name: name, keys: keys, slots: NewSlots(e.firstSlot, 1)}
}

func (e *Engine) drop(lk *lock) {
	lk.refs--
	if lk.refs > 0 {
		return
	}
	if lk.slots.next-lk.slots.first > mostIdle { // after a crowd
		lk.slots.Forget(&e.firstSlot)
		*lk = *e.newLock(lk.name, lk.keys)
	}
	e.idle.PushBack(lk)
	if e.idle.Len() > mostIdle {
		oldest := e.idle.First()
		e.idle.Remove(oldest)
		oldest.slots.Forget(&e.firstSlot)
		delete(e.locks, oldest.name)
	}
	order.Shrink(&e.locks, &e.locksMax)
}

// all returns the claims of the lock that have not ended.
func (lk *lock) all() (list []*claim) {
	return slices.AppendSeq(slices.Collect(lk.held.All()), lk.claims.All())
}

// Slots are the slots of a lock on one server. Each belongs to one claim at a time.
type Slots struct {
	first, next, step int
	free              []int
}

// NewSlots returns the slots first, first + step, first + 2 step, and so on, all of them free.
func NewSlots(first, step int) Slots { return Slots{first: first, next: first, step: step} }

// Take returns a free slot.
func (s *Slots) Take() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next += s.step
	return s.next - s.step
}

// Put returns a slot that no claim uses any more.
func (s *Slots) Put(slot int) { s.free = append(s.free, slot) }

// Forget is called before the slots are forgotten. If one was not put back, a late request about its claim
// may still arrive. So Forget then raises the first slot of later locks above all of these.
func (s *Slots) Forget(first *int) {
	if s.next-s.first > s.step*len(s.free) {
		*first = max(*first, s.next)
	}
}

// An ownership is what one owner has of one lock.
type ownership struct {
	lock  *lock
	owner Owner
	claim *claim // Held; or nil
	// holds that were lost and are not released: the owner's calls fail until they are
	lost   int
	asking *Hold   // a call of the owner that has a claim Asking or Queued
	behind []*Hold // calls of the owner that wait for that one
}

// ownerships are in the order of their owners' handles, as all owners are of one process. The last one is
// usually the latest. Most locks have one owner, for which a map would take as much memory as the rest of the
// lock.
type ownerships []*ownership

func (l ownerships) find(o Owner) (i int, found bool) {
	return slices.BinarySearchFunc(l, o.Handle, func(t *ownership, handle uint64) int {
		return cmp.Compare(t.owner.Handle, handle)
	})
}

// takenBy reports whether the goroutine of h took what the owner holds.
func (t *ownership) takenBy(h *Hold) bool {
	return t.claim == nil || t.claim.holds[0].Caller == h.Caller
}

// dropIfOver forgets an ownership that is over.
func (e *Engine) dropIfOver(t *ownership) {
	lk := t.lock
	if t.claim != nil || t.lost > 0 || t.asking != nil || len(t.behind) > 0 {
		return
	}
	if i, found := lk.owners.find(t.owner); found && lk.owners[i] == t {
		if lk.owners = slices.Delete(lk.owners, i, i+1); len(lk.owners) == 0 && cap(lk.owners) > mostIdle {
			lk.owners = nil
		}
		e.drop(lk)
	}
}

// advance lets the calls go on that waited for the call of a claim: the first ones now, and has goOn let the
// others.
func (e *Engine) advance(now time.Time, c *claim) {
	t := c.ownership
	next := func(now time.Time, _ *claim) {
		if len(t.behind) > 0 && t.asking == nil {
			h := t.behind[0]
			t.behind = t.behind[1:]
			e.start(now, h)
			e.dropIfOver(t)
		}
	}
	for range min(len(t.behind), e.config.AtOnce) {
		next(now, c)
	}
	if t.asking == nil { // or else the others wait for that call
		e.each(now, slices.Repeat([]*claim{c}, len(t.behind)), next)
	}
	e.dropIfOver(t)
}

// State is what a claim has come to.
type State uint8

// The states of a claim. A claim begins as Asking.
const (
	Asking State = iota // the first request is in flight
	Queued              // the server has said that it waits
	Held                // it was granted the lock
	Ending              // its release, or its withdrawal, is in flight
	Over                // the server knows its end, or will by the end of its lease
)

// transitions has the states that may follow each state.
var transitions = [...][]State{
	Asking: {Queued, Held, Ending, Over},
	Queued: {Queued, Held, Ending, Over},
	Held:   {Ending},
	Ending: {Over},
	Over:   {},
}

// endConfirmed ends a claim that the server has ended, or refused. So its slot is free.
func (e *Engine) endConfirmed(c *claim) {
	c.lock.slots.Put(c.slot)
	e.step(c, Over)
}

// step is the only place where a claim changes its state.
func (e *Engine) step(c *claim, to State) {
	from := c.state
	if !slices.Contains(transitions[from], to) {
		panic("engine: a claim cannot go on that way")
	}
	if c.state = to; to == from {
		return
	}
	if from == Queued {
		e.removeCall(c)
	}
	if c.wanted != nil && from <= Queued && to > Queued && c.former == nil {
		c.ownership.asking = nil
		e.waiting.Remove(c.wanted)
	}
	if from == Held {
		c.lock.held.Remove(c)
		c.lock.claims.PushBack(c)
		if c.lock.writer == c {
			c.lock.writer = nil
		}
	}
	if from == Ending {
		e.ending--
	}
	switch to {
	case Queued:
		e.addCall(c)
	case Held:
		c.lock.claims.Remove(c)
		c.lock.held.PushBack(c)
		c.since = e.numbers
		c.wanted = nil
		if c.mode == protocol.Write {
			c.lock.writer = c
		}
	case Ending:
		e.ending++
	case Over:
		e.timeline.Remove(c)
		c.lock.claims.Remove(c)
		delete(e.claims, c.number)
		order.Shrink(&e.claims, &e.claimsMax)
		e.drop(c.lock)
	}
}

// A claim is what the server knows of one owner's holds. It writes while the owner has a write hold. It
// exists from the request for it until its end is confirmed.
type claim struct {
	ownership *ownership
	lock      *lock
	mode      Mode
	state     State
	// quickEnd: the release may take the script's short path. The server granted the claim, the token is the
	// time of the grant, and no renewal has set another count than 1
	quickEnd   bool
	unverified bool // its server may have been replaced since the grant: to be renewed immediately
	slot       int
	number     uint64
	wire       protocol.Claim // zero until something of it is sent: see Engine.Prepare
	since      uint64         // the last number that was given when it was granted the lock
	caller     *Hold          // whose call asks for it
	lease      time.Duration  // that it asks for
	longest    time.Duration  // that the server may keep it for
	delegation time.Duration  // the lease of the delegation that it is granted under; 0 for none
	layerData  any            // what the layer below keeps of it

	sent     time.Time     // before the last request was sent that made the server keep the claim for a lease
	deadline time.Time     // until when it may be relied on
	kept     time.Duration // the lease of the request that has set the deadline

	attempt       // to ask, to renew or to end
	err     error // of the last one

	wanted *wanted   // until the grant, then nil
	grant            // from then on
	giveUp time.Time // when an Ending claim is left to its lease
	putOff bool      // giveUp was put off once, since the process had stood still

	order.Place       // in the timeline
	order.Link[claim] // in a list of its lock
}

// wanted is what is known of a claim that waits.
type wanted struct {
	claim    *claim
	answered time.Time // when the server has answered last
	obstacle protocol.Obstacle
	floor    int64     // the last token when the server had it wait: a grant with a smaller one was lost before
	askAgain time.Time // when there is reason to ask again; zero for none before the heartbeat
	prompted time.Time // when a message last had it ask again
	resumed  time.Time // when the process was last seen to have stood still
	dropped  bool      // by force: a message has said so before the grant arrived

	order.Link[wanted] // in Engine.waiting
}

// grant is what a claim that was granted the lock holds.
type grant struct {
	token   int64
	granted time.Time // not after the token was handed out
	// While a conversion is unanswered, the claim before is the former of the next one. To write after reading,
	// the former is Held, and the next one Asking; to read after writing, the next one is Held, and the former
	// Ending; and for a ticket, both are Ending. If the hold ends meanwhile, the former is ended by a request of
	// its own, and the next one after it.
	former *claim
	next   *claim
	hands  bool // Ending: a ticket is to have it

	holds []*Hold // live ones, and those of calls that re-enter
	one   [1]*Hold
	last  *Hold // whose release ends the claim; or nil

	confirmed  bool      // enough replicas have it
	confirming uint64    // number of the last request that they are to confirm
	confirmBy  time.Time // until when its answer is waited for; zero if it has been answered
	counted    int       // how many holds there were when the server was last told
	recountAt  time.Time // when it is told of another number; zero if that is the same
	extensions []*Extension
}

// An attempt is a request that is repeated until the server has carried it out. It is zero then.
type attempt struct {
	asked    time.Time // when the request in flight was sent; zero if there is none
	failures int       // since the last that succeeded
	retry    time.Time // when to try again, after failures
}

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

// rises reports whether the claim is to replace one that reads: it waits for no other, and is due in its
// place.
func (c *claim) rises() bool { return c.former != nil && c.state <= Queued }

// writes reports whether the claim has a write hold.
func (c *claim) writes() bool {
	return slices.ContainsFunc(c.holds, func(h *Hold) bool { return h.Mode == protocol.Write })
}

// request returns a request about the claim.
func (e *Engine) request(c *claim, k kind) *Request {
	r := e.about(c.lock, k, protocol.Request{Claim: c.wire, Again: !c.asked.IsZero() || c.failures > 0})
	r.claim = c
	return r
}

// Prepare names the claim of a request that is to be sent. A request that the layer below answers needs no
// name, and saves its memory.
func (e *Engine) Prepare(r *Request) {
	if r.claim != nil {
		r.Claim = e.named(r.claim)
	}
}

// named returns a claim as it goes over the wire.
func (e *Engine) named(c *claim) protocol.Claim {
	if c.wire.ID == "" {
		c.wire = protocol.NewClaim(c.mode, e.config.Instance, c.slot, c.number, c.ownership.owner)
	}
	return c.wire
}

// unanswered is the error of a request without an answer in time. Its cause is the last failure.
func unanswered(cause error) error {
	if cause == nil {
		return ErrUnanswered
	}
	return fmt.Errorf("%w: %w", ErrUnanswered, cause)
}

// record puts out a record about a hold.
func (e *Engine) record(message string, h *Hold, err error, why Cause) {
	e.out.Log = append(e.out.Log, Record{Message: message, Name: h.Name, Owner: h.Owner, Mode: h.Mode,
		Token: h.claim.token, Hold: h, Err: err, Cause: why})
}

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
	Bounded  bool             // something else ends the wait if no answer comes
	Ticket   *protocol.Ticket // that the hold is taken over with; or nil
	NewOwner bool             // nobody else knows the owner: it holds nothing

	state         HoldState
	path          Path  // how the call got the lock
	awaitsRenewal bool  // not renewed, and its lease counts from a renewal that is yet to come
	unreachable   bool  // nothing refers to it any more
	forgotten     bool  // unreachable, and it was renewed until then
	err           error // of Failed; of Over, and of Ended, which says how the release went
	trouble       error // of a call that has failed: what the last request failed with
	ownership     *ownership
	claim         *claim
	tries         int
	since         time.Time // when the call began; once it has the lock, when it got that
	deadline      time.Time // until which the hold is to last at least, and a hold that is not renewed at most
	// by MaxHold, or zero; of a hold that has ended, the last time until which it could be relied on
	end          time.Time
	entered      time.Time     // since when a call that re-enters waits for a renewal; zero if it does not
	confirmation *confirmation // of a call that waits for replicas; or nil

	instead *Hold // that a call of TryUpgrade is to replace; or nil

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
	Entering                   // its owner has the lock; replicas, or a longer lease, are waited for
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
		at = order.Earlier(at, h.deadline)
	}
	return order.Earlier(at, h.end)
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
	return c != nil && (c.caller != h || c.wanted != nil && c.wanted.answered.IsZero())
}

// Obstacle returns what is in the way of a call, as last reported by the server, and whether that belongs to
// this engine. Nothing is in the way of a call that has the lock, or whose obstacle was a hold of this engine
// that has ended.
func (e *Engine) Obstacle(now time.Time, h *Hold) (o protocol.Obstacle, known, ours bool) {
	c := h.claim
	if c == nil || c.caller != h || c.wanted == nil || c.wanted.answered.IsZero() {
		return o, false, false
	}
	o = c.wanted.obstacle
	o.Again = max(o.Again-now.Sub(c.wanted.answered), soonest)
	k, err := protocol.ParseClaim(o.Claim)
	if o.Mode == protocol.None || err == nil && k.Instance != e.config.Instance {
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
