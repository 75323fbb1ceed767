package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/deadlock"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// What an engine knows: locks, what each owner has of a lock, and claims.

// A lock is what an engine knows of one name, while the name is in use and for a while after.
type lock struct {
	name           string
	keys           protocol.Keys
	refs           int // claims that have not ended, ownerships, requests about no claim
	owners         ownerships
	writer         *claim    // Held; or nil
	first          int       // slot
	slots          int       // how many there are, with those before the first
	free           []int     // of them, those of claims whose end the server has confirmed
	steps          int       // in a row that were not enough
	ended          time.Time // when the server last confirmed the end of a claim
	serving        bool      // a request for a further step is in flight
	notified       bool      // a message was about it
	releasingStale bool      // a claim that had ended, and came back, is being released

	order.Link[lock] // in Engine.idle
}

// mostIdle is the number of unused names that an engine remembers, which saves building their keys again.
const mostIdle = 64

// use returns the lock of that name with another reference, which the caller has to drop.
func (e *Engine) use(name string) *lock {
	lk := e.locks[name]
	switch {
	case lk == nil:
		lk = e.newLock(name, protocol.KeysOf(e.prefix, name))
		e.locks[name] = lk
		e.locksMax = max(e.locksMax, len(e.locks))
	case lk.refs == 0:
		e.idle.Remove(lk)
	}
	lk.refs++
	return lk
}

func (e *Engine) newLock(name string, keys protocol.Keys) *lock {
	return &lock{name: name, keys: keys, first: e.firstSlot, slots: e.firstSlot}
}

// forget is called before the slots of a lock are forgotten. If the end of a claim was not confirmed, a late
// request about it may still arrive, so no later lock uses its slot.
func (e *Engine) forget(lk *lock) {
	if lk.first+len(lk.free) < lk.slots {
		e.firstSlot = max(e.firstSlot, lk.slots)
	}
}

func (e *Engine) drop(lk *lock) {
	lk.refs--
	if lk.refs > 0 {
		return
	}
	if lk.slots-lk.first > mostIdle { // after a crowd
		e.forget(lk)
		*lk = *e.newLock(lk.name, lk.keys)
	}
	e.idle.PushBack(lk)
	if e.idle.Len() > mostIdle {
		oldest := e.idle.First()
		e.idle.Remove(oldest)
		e.forget(oldest)
		delete(e.locks, oldest.name)
	}
	order.Shrink(&e.locks, &e.locksMax)
}

// takeSlot returns a slot that no other claim of the engine on the lock has.
func (lk *lock) takeSlot() int {
	if n := len(lk.free); n > 0 {
		s := lk.free[n-1]
		lk.free = lk.free[:n-1]
		return s
	}
	lk.slots++
	return lk.slots - 1
}

// An ownership is what one owner has of one lock.
type ownership struct {
	lock  *lock
	owner Owner
	claim [protocol.Write + 1]*claim // by mode: Held; or nil
	// holds that were lost and are not released: the owner's calls fail until they are
	lost   int
	asking *Hold   // a call of the owner that has a claim Asking or Queued
	behind []*Hold // calls of the owner that wait for that one
}

// ownerships are in the order of their owners' handles. The last one is usually the latest. Most locks have
// one owner, for which a map would take as much memory as the rest of the lock.
type ownerships []*ownership

func (l ownerships) find(o Owner) (i int, found bool) {
	return slices.BinarySearchFunc(l, o, func(t *ownership, o Owner) int {
		return cmp.Or(cmp.Compare(t.owner.Handle, o.Handle), bytes.Compare(t.owner.Process[:], o.Process[:]))
	})
}

// of returns what an owner has, or nil.
func (l ownerships) of(o Owner) *ownership {
	if i, found := l.find(o); found {
		return l[i]
	}
	return nil
}

// ownership returns what the owner of a call has of the lock.
func (e *Engine) ownership(h *Hold) *ownership {
	lk := e.use(h.Name)
	i, found := lk.owners.find(h.Owner)
	if found {
		lk.refs-- // the ownership has its own
		return lk.owners[i]
	}
	h.own = ownership{lock: lk, owner: h.Owner}
	lk.owners = slices.Insert(lk.owners, i, &h.own)
	return &h.own
}

// takenBy reports whether the goroutine of h took everything that the owner holds.
func (t *ownership) takenBy(h *Hold) bool {
	for _, c := range t.claim {
		if c != nil && c.holds[0].Caller != h.Caller {
			return false
		}
	}
	return true
}

// dropIfOver forgets an ownership that is over.
func (e *Engine) dropIfOver(t *ownership) {
	lk := t.lock
	if t.claim[protocol.Read] != nil || t.claim[protocol.Write] != nil || t.lost > 0 || t.asking != nil ||
		len(t.behind) > 0 {
		return
	}
	if i, found := lk.owners.find(t.owner); found && lk.owners[i] == t {
		if lk.owners = slices.Delete(lk.owners, i, i+1); len(lk.owners) == 0 && cap(lk.owners) > mostIdle {
			lk.owners = nil
		}
		e.drop(lk)
	}
}

// advance lets the calls go on that waited for the owner's call in progress.
func (e *Engine) advance(now time.Time, t *ownership) {
	behind := t.behind
	t.behind = nil
	for _, h := range behind {
		e.start(now, h)
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

// change is what happens to a claim.
type change uint8

const (
	queues     change = iota // the server makes it wait
	grants                   // the server grants it the lock
	turnedAway               // the server refuses it, and keeps nothing of it
	gives                    // its call gives up, or fails
	leaves                   // its last hold is released, lost or closed
	ceases                   // the server knows its end
	expires                  // its end was tried for as long as the server may keep it
)

// transitions has the allowed transitions. All others are Asking, and make step panic.
var transitions = [...][expires + 1]State{
	Asking: {queues: Queued, grants: Held, turnedAway: Over, gives: Ending},
	Queued: {queues: Queued, grants: Held, turnedAway: Over, gives: Ending},
	Held:   {leaves: Ending},
	Ending: {ceases: Over, expires: Over},
	Over:   {},
}

// step is the only place where a claim changes its state.
func (e *Engine) step(c *claim, ch change) {
	from, to := c.state, transitions[c.state][ch]
	switch to {
	case Asking:
		panic("engine: a claim cannot go on that way")
	case from:
		return
	}
	c.state = to
	if from != Asking {
		e.graph.Leave(c.node) // queued reports calls that wait
	}
	if from <= Queued && to > Queued {
		c.ownership.asking = nil
		e.waiting--
	}
	if from == Held && c.mode == protocol.Write {
		if c.lock.writer == c {
			c.lock.writer = nil
		}
		if r := c.ownership.claim[protocol.Read]; r != nil {
			e.graph.Hold(r.node, e.numbers) // a downgrade ends a write hold, and lets readers in
		}
	}
	if from == Ending {
		e.ending--
	}
	switch to {
	case Held:
		e.spareWanted.put(c.wanted)
		c.wanted = nil
		e.graph.Hold(c.node, e.numbers)
		if c.mode == protocol.Write {
			c.lock.writer = c
		}
	case Ending:
		e.ending++
	case Over:
		e.timeline.Remove(c)
		delete(e.claims, c.number)
		order.Shrink(&e.claims, &e.claimsMax)
		if ch != expires { // or else nobody knows what the slot says on the server
			c.lock.free = append(c.lock.free, c.slot)
		}
		e.drop(c.lock)
	}
}

// A claim is what the server knows of one owner's holds in one mode. It exists from the request for it until
// its end is confirmed.
type claim struct {
	ownership *ownership
	lock      *lock
	mode      Mode
	state     State
	// brief: the release may take the script's short path. The server granted the claim, the token is the time
	// of the grant, and no request has set a count or a longer lease
	brief    bool
	doubtful bool // its server may have been replaced since the grant: to be renewed immediately
	slot     int
	number   uint64
	wire     protocol.Claim
	node     *deadlock.Node
	caller   *Hold         // whose call asks for it
	lease    time.Duration // that it asks for, or is renewed for
	longest  time.Duration // that the server may keep it for
	lent     time.Duration // the lease of the delegation that it is granted under; 0 for none
	below    any           // what the layer below keeps of it

	sent     time.Time // before the last request was sent that made the server keep the claim for a lease
	deadline time.Time // until when it may be relied on

	attempt       // to ask, to renew or to end
	err     error // of the last one

	*wanted             // until the grant
	grant               // from then on
	*counting           // nil until its holds are counted for the first time
	giveUp    time.Time // when an Ending claim is left to its lease

	order.Place               // in the timeline
	vertex      deadlock.Node // memory for node
}

// wanted is what is known of a claim that waits.
type wanted struct {
	answered time.Time // when the server has answered last
	obstacle protocol.Obstacle
	floor    int64     // the last token when the server had it wait: a grant with a smaller one was lost before
	askAgain time.Time // when there is reason to ask again; zero for none before the heartbeat
	prompted time.Time // when a message last had it ask again
	resumed  time.Time // when the process was last seen to have stood still
}

// A spare has memory to be used again.
type spare[T any] []*T

// mostSpare is the number of requests whose memory an engine keeps, and of claims that have waited.
const mostSpare = 32

// get returns a zero value, in memory that put has taken back if there is some.
func (s *spare[T]) get() *T {
	n := len(*s) - 1
	if n < 0 {
		return new(T)
	}
	v := (*s)[n]
	(*s)[n] = nil
	*s = (*s)[:n]
	return v
}

// put takes back memory that nothing refers to any more.
func (s *spare[T]) put(v *T) {
	if len(*s) < mostSpare {
		*v = *new(T)
		*s = append(*s, v)
	}
}

// grant is what a claim that was granted the lock holds.
type grant struct {
	token   int64
	granted time.Time // not after the token was handed out

	holds []*Hold // live ones, and those of calls that re-enter
	one   [1]*Hold
	last  *Hold // whose release ends the claim; or nil
}

// counting is how far the server knows how many holds there are.
type counting struct {
	sequence   uint64      // of the last change that the server has to know; zero for none
	confirmed  uint64      // of the last that it has confirmed
	shortened  uint64      // of the last that may have shortened the lease
	sentCounts []sentCount // not confirmed
	recount    attempt
	leaving    []*Hold // released, while others remain: until the server has confirmed it
	extensions []*Extension
}

// count returns the claim's counting, which begins with the first change.
func (c *claim) count() *counting {
	if c.counting == nil {
		c.counting = new(counting)
	}
	return c.counting
}

// latest returns the number of the last change that the server has to know; 0 for none.
func (c *claim) latest() uint64 {
	if c.counting == nil {
		return 0
	}
	return c.sequence
}

// uncounted reports whether the server has yet to confirm a change.
func (c *claim) uncounted() bool { return c.counting != nil && c.confirmed < c.sequence }

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

// request returns a request about the claim. It prefers memory that Recycle has taken back.
func (e *Engine) request(c *claim, k kind) *Request {
	r := e.spare.get()
	r.Keys, r.Claim, r.Again = c.lock.keys, c.wire, !c.asked.IsZero() || c.failures > 0
	r.lock, r.claim, r.kind = c.lock, c, k
	return r
}

// A sentCount is a change of the number of holds that was sent to the server, and until when the claim can be
// relied on once the server has processed it.
type sentCount struct {
	sequence uint64
	until    time.Time
}

// unanswered is the error of a request without an answer in time. Its cause is the last failure.
func unanswered(cause error) error {
	if cause == nil {
		return ErrUnanswered
	}
	return fmt.Errorf("%w: %w", ErrUnanswered, cause)
}

func (e *Engine) record(message string, c *claim, h *Hold, err error) {
	e.out.Log = append(e.out.Log, Record{
		Message: message, Name: c.lock.name, Owner: c.ownership.owner, Mode: c.mode, Token: c.token, Hold: h,
		Err: err})
}
