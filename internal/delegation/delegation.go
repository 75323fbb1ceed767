// Package delegation lets a lock stay with the RWLock that uses it. It is a layer between an engine and the
// server. It requests delegations of locks from the server. While a lock is delegated, it answers the
// engine's requests from memory, phase-fair and in order of arrival, as the scripts would. It passes all
// other requests on. When another RWLock wants the lock, the server recalls the delegation, and the layer
// returns it as soon as nobody holds the lock under it. Like the engine it is pure: requests, replies,
// messages and the time go in, and Effects come out. README.md has the states of a delegation.
package delegation

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	// mostIdle is the number of unused delegations that are kept, and mostKnown the number of names without a
	// delegation that are remembered.
	mostIdle  = 1024
	mostKnown = 4096
	// Delegations have to pay. Each call that a delegation answers earns a credit of 1, for its name and for
	// all names together. A recall costs others about as much as cost calls. A return for a call of this
	// RWLock, and a request that is refused, are charged as much. A name begins with newCredit: if its first
	// delegation answers only the call that requested it, nothing is left. The credit or debt of a name is
	// mostCredit at most, that of all names mostOfAll.
	cost       = 4
	newCredit  = cost - 1
	mostCredit = 4 * cost
	mostOfAll  = 32 * cost
	// If a recall leaves a name without credit, pause is how many times the duration of the return, counted
	// from the recall, must pass before the next request for a delegation. So recalls slow a name down by a
	// tenth at most, as revocations do in BRAVO.
	pause = 9
	// mostNeed limits how many calls on a name must go to the server before a delegation is requested. The
	// number grows with each recall and each refusal that leaves the name without credit, and is 0 after
	// others. It begins as newNeed, or as poorNeed if all names together are without credit.
	mostNeed = 1023
	newNeed  = 1
	poorNeed = 63
	// gatePatience is how long calls wait for the next of this RWLock's claims on the server to end, and
	// gateMost for all, so that the server can delegate the lock. If that was in vain, gatePause is the time
	// until the next such wait.
	gatePatience = 20 * time.Millisecond
	gateMost     = 100 * time.Millisecond
	gatePause    = time.Second

	renewAfter  = 3 // a delegation is renewed after a third of its lease,
	resendAfter = 6 // and a request is sent again after a sixth
	// A renewal that is due within a batchPart of the lease is sent with others, so that many share a pipeline.
	batchPart = 30

	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// returnPatience is how long the first return may stay without an answer.
	returnPatience = time.Second
	// firstSlot is larger than any slot of the engine's.
	firstSlot = 900_000
	// atOnce is how many names a Tick handles, beside sweptAtOnce for the sweeps.
	atOnce      = 250
	sweptAtOnce = 100
)

// Config configures a Layer.
type Config struct {
	Instance string
	Owner    protocol.Owner // of the delegations, as others see it: a process, without a handle
	Lease    time.Duration  // of delegations
	Hold     time.Duration  // calls with another lease go to the server
	Observe  bool           // put out Events
	Eager    bool           // ask for a delegation whenever a call comes that it would answer: for suites
}

// A Layer answers an engine's requests from memory where it can. It is not safe for concurrent use. Users of
// the lock call the engine itself. The Layer's methods replace the engine's methods of the same name.
type Layer struct {
	engine *engine.Engine
	config Config
	lease  protocol.Lease

	names     map[any]*name // by key
	numbers   map[uint64]*name
	idle      order.List[name, *name] // Live, and nobody holds or waits
	known     order.List[name, *name] // None
	timed     order.Timeline[*name]   // all others
	slot      int
	listening bool
	listens   bool // the subscription was asked for
	closed    bool
	credit    int           // of all names
	trip      time.Duration // the shortest that a request took to be answered
	sweeps    []sweep

	stranded   int   // delegations that were left to their leases by Close, since the client was closed
	strandedBy error // the last error of one

	taken  []*engine.Request // memory
	passed []*engine.Request // that the server is to answer
}

// New returns the layer below an engine. Nothing is delegated yet.
func New(c Config, e *engine.Engine) *Layer {
	return &Layer{
		engine: e, config: c, lease: protocol.NewLease(c.Lease), slot: firstSlot, credit: mostOfAll,
		trip:  1<<63 - 1,
		names: make(map[any]*name), numbers: make(map[uint64]*name),
	}
}

// State is what a delegation has come to.
type State uint8

// The states of a delegation.
const (
	None      State = iota // the server answers
	Gated                  // calls wait until those that the server knows have ended
	Asked                  // the request for it is in flight; calls wait
	Live                   // calls are answered from memory
	Recalled               // nobody new is let in; it is returned when nobody holds the lock under it any more
	Returning              // the return is in flight; the server answers
)

// A name is what the layer knows of a lock.
type name struct {
	order.Link[name]
	order.Place
	name  string
	key   any
	state State
	table table
	calls []*entry          // parked, and some that have ended since
	waits []*engine.Request // renewals of holds, until the delegation's own is answered
	// Released, in this order; the server is to confirm that the delegation stood then.
	leaving []*entry

	// Of the delegation:
	mode       protocol.Mode
	claim      protocol.Claim
	number     uint64
	delegation protocol.Delegation
	until      time.Time // the local deadline
	wanted     time.Time // until when a hold was to be extended; zero if none was
	token      int64     // the last that a local writer was given, or that of the readers before the first
	top        int64     // the last that there is for local writers
	low        int64     // from this one on, more are asked for: the middle of those that the last renewal left
	used       time.Time // when a call was last answered
	doubted    time.Time // it is not used until a renewal is answered that was sent since; zero if it is not
	early      bool      // it was recalled before it was known to be granted
	tells      bool      // the server is to know that the lock is held under it: a try waits
	more       bool      // a step has left readers whose turn it is

	// Of the request in flight, or the next:
	asked    time.Time // zero if there is none
	failures int
	retry    time.Time // or, Gated, when the wait ends unless a claim does
	giveUp   time.Time // of a return, or, Gated, when the wait ends at the latest

	// When to delegate:
	out        [protocol.Write + 1]int // claims that the server knows, by mode
	counts     int                     // how many times ungate has counted them
	uses       int                     // calls since the last delegation ended, or was refused
	need       int                     // as many are needed before the next is asked for
	credit     int                     // what its delegations have earned, less what they have cost
	recalled   time.Time               // by others; zero if it was not
	notBefore  time.Time
	notGated   time.Time
	alternates bool // the RWLock reads and writes, and nobody else was in its way of late
}

// lasts reports whether there is a delegation, as far as is known.
func (n *name) lasts() bool { return n.state == Live || n.state == Recalled }

// Flush handles the engine's requests. It exchanges what is to be done with to, which must be empty.
func (d *Layer) Flush(now time.Time, to *engine.Effects) {
	d.Work(now)
	d.engine.Flush(now, to)
	to.Send = append(to.Send, d.passed...)
	d.passed = engine.Emptied(d.passed)
}

// Work handles the engine's requests.
func (d *Layer) Work(now time.Time) {
	for d.taken = d.engine.Requests(d.taken); len(d.taken) > 0; {
		for _, r := range d.taken {
			d.handle(now, r)
		}
		d.taken = d.engine.Requests(engine.Emptied(d.taken))
	}
}

func (d *Layer) pass(r *engine.Request) {
	d.engine.Prepare(r)
	d.passed = append(d.passed, r)
}

// entryOf returns what is known of the claim that a request is about, or nil.
func entryOf(r *engine.Request) *entry { return entryIn(r.LayerData()) }

// entryIn returns the entry in the place that an engine has for it, or nil.
func entryIn(data *any) (e *entry) {
	if data != nil {
		e, _ = (*data).(*entry)
	}
	return e
}

// Replied takes the reply of the server, or the error with which a request failed.
func (d *Layer) Replied(now time.Time, r *engine.Request, reply protocol.Reply, err error) {
	d.recalled(now, reply.Message, false) // a reply recalls what is in the way of the call itself
	if o, ok := r.Tag.(*own); ok {
		if err == nil {
			d.trip = min(d.trip, now.Sub(r.Sent))
		}
		d.engine.Replied(now, r, reply, err)
		switch n := o.name; {
		case n.number != o.number:
		case n.state == Returning && r.Script == lua.Return:
			d.returned(now, n, reply, err)
		case n.state == Asked && !r.Keep:
			d.granted(now, n, r, reply, err)
		case n.lasts() && r.Keep:
			d.kept(now, n, r, reply, err)
		}
		return
	}
	e := entryOf(r)
	ended := r.Ends() || r.Asks() && (reply.Refused || r.Try && reply.Token == 0 && !reply.Idle)
	if former := entryIn(r.FormerLayerData()); former != nil && r.Script == lua.Convert {
		e, ended = former, reply.Code != protocol.NotThere
	}
	if err == nil {
		d.unmask(now, r, &reply)
	}
	d.engine.Replied(now, r, reply, err)
	if e != nil && e.place == remote && err == nil && ended {
		e.place = over
		if e.counted == e.name.counts {
			e.name.out[e.mode]--
		}
		d.open(now, e.name)
	}
	if n := d.names[r.Keys.Lock]; r.Script == lua.Force && n != nil {
		d.dropped(now, n) // most likely
	}
}

// dropped is called when a delegation may have been dropped by force.
func (d *Layer) dropped(now time.Time, n *name) {
	switch {
	case n.lasts():
		d.doubt(now, n)
	case n.state == Asked: // this has overtaken the reply
		n.doubted = now
	}
}

// Heard takes a message of the engine's channel.
func (d *Layer) Heard(now time.Time, payload string) {
	m, ok := protocol.ParseMessage(payload)
	if !ok {
		return
	}
	d.recalled(now, m, true)
	for _, number := range m.Dropped {
		if n := d.numbers[number]; n != nil {
			d.dropped(now, n)
		}
	}
	d.engine.Heard(now, payload)
}

// Subscribed says that the subscription is established, for the first time or again. Earlier recalls are
// lost, so each delegation is renewed before it is used again.
func (d *Layer) Subscribed(now time.Time) {
	d.listening = true
	d.doubtAll(now)
	d.engine.Subscribed(now)
}

// Unsubscribed says that the subscription is broken, or could not be established. Recalls would be missed, so
// the delegations are returned.
func (d *Layer) Unsubscribed(now time.Time, err error) {
	d.listening = false
	d.each(now, func(now time.Time, n *name) {
		if !d.listening {
			d.recall(now, n, false)
		}
	})
	d.engine.Unsubscribed(now, err)
}

// delegated returns the names with a delegation, or with a request for one in flight, in the order of the
// requests.
func (d *Layer) delegated() []*name {
	byNumber := func(a, b *name) int { return cmp.Compare(a.number, b.number) }
	return slices.SortedFunc(maps.Values(d.numbers), byNumber)
}

// Resume says that other servers answer requests than before: requests that pause after failures are retried
// now.
func (d *Layer) Resume(now time.Time) {
	d.engine.Resume(now)
	d.each(now, func(now time.Time, n *name) {
		if n.failures > 0 && n.asked.IsZero() {
			n.failures, n.retry = 1, now
			d.schedule(n)
		}
	})
}

// Slept says that the machine may have been asleep for slept until now. Nothing is granted under a delegation
// until it was renewed.
func (d *Layer) Slept(now time.Time, slept time.Duration) {
	d.engine.Slept(now, slept)
	for _, n := range d.timed.All() {
		switch n.state {
		case Live, Recalled:
			n.delegation.Sent = n.delegation.Sent.Add(-slept)
			n.until = engine.AfterSleep(n.until, now, slept)
		case Returning:
			n.asked, n.failures, n.retry = time.Time{}, 1, now
			d.schedule(n)
		}
	}
	d.doubtAll(now)
}

// A sweep is what is to be done for many delegations.
type sweep struct {
	since time.Time
	names []*name // left; what has no delegation is left out
	do    func(now time.Time, n *name)
}

// each does something for all delegations: for the first ones now, and in Ticks for the others, so that no
// call waits until all are done. By then, a delegation may have ended.
func (d *Layer) each(now time.Time, do func(now time.Time, n *name)) {
	d.sweeps = append(d.sweeps, sweep{now, d.timed.All(), do})
	d.sweep(now)
}

// sweep does what each has left to do, for some delegations.
func (d *Layer) sweep(now time.Time) {
	for left := sweptAtOnce; left > 0 && len(d.sweeps) > 0; {
		s := &d.sweeps[0]
		some := s.names[:min(left, len(s.names))]
		s.names = s.names[len(some):]
		left -= len(some)
		for _, n := range some {
			if n.state > Gated {
				s.do(now, n)
			}
		}
		if len(s.names) == 0 {
			d.sweeps = slices.Delete(d.sweeps, 0, 1)
		}
	}
}

// doubtAll has all delegations renewed before they are used again.
func (d *Layer) doubtAll(now time.Time) {
	for _, n := range d.timed.All() {
		if n.lasts() || n.state == Asked {
			n.doubted = now
		}
	}
	d.each(now, func(now time.Time, n *name) {
		if n.lasts() && !n.doubted.IsZero() && !n.asked.After(n.doubted) {
			d.renew(now, n)
		}
	})
}

// Close returns all delegations as soon as nobody holds a lock under them. No new ones are requested.
func (d *Layer) Close(now time.Time) {
	d.closed = true
	d.each(now, func(now time.Time, n *name) {
		d.recall(now, n, false)
		if n.state == Returning && n.asked.IsZero() {
			d.sendReturn(now, n) // it has failed, and would be repeated later
		}
	})
	for _, n := range d.timed.All() {
		if n.state == Gated {
			d.ungate(now, n)
		}
	}
}

// Waiting reports whether messages are waited for: there are delegations, or calls wait.
func (d *Layer) Waiting() bool { return len(d.numbers) > 0 || d.engine.Waiting() }

// Idle reports whether the engine is idle, and nothing is delegated.
func (d *Layer) Idle() bool { return len(d.numbers) == 0 && d.engine.Idle() }

// Unreturned returns how many delegations there are, or were left to their leases by Close because the client
// was closed. It also returns why the return of one of the latter failed.
func (d *Layer) Unreturned() (int, error) { return len(d.numbers) + d.stranded, d.strandedBy }

// schedule sets when Tick handles a name next.
func (d *Layer) schedule(n *name) {
	at := n.retry
	switch n.state {
	case None:
		return
	case Asked:
		at = n.asked.Add(d.patience())
	case Live, Recalled:
		at = order.Earlier(d.renewAt(n), n.until)
		if n.more && n.doubted.IsZero() {
			at = n.used
		}
	case Returning:
		if !n.asked.IsZero() {
			at = n.asked.Add(returnPatience << min(n.failures, 5))
		}
		at = order.Earlier(at, n.giveUp)
	}
	n.Tie = n.number
	d.timed.Set(n, at)
}

// Next returns when Tick is due, and whether it is at all.
func (d *Layer) Next() (at time.Time, ok bool) {
	at, _ = d.engine.Next()
	names, _ := d.timed.Next()
	if at = order.Earlier(at, names); len(d.sweeps) > 0 {
		at = order.Earlier(at, d.sweeps[0].since)
	}
	return at, !at.IsZero()
}

// Tick does what is due.
func (d *Layer) Tick(now time.Time) {
	d.engine.Tick(now)
	d.sweep(now)
	for range atOnce {
		at, ok := d.timed.Next()
		if !ok || at.After(now) && len(d.passed) == 0 {
			return
		}
		n := d.timed.First()
		if at.After(d.soon(now, n)) {
			return
		}
		d.due(now, n)
		if at.After(now) && n.Placed() && d.timed.Due(n).Equal(at) {
			return // it needs no renewal yet, and other work is not done early
		}
	}
}

// soon returns the time until which the work for a name is done now. The first request of a renewal may be
// sent early. Nothing else is done before it is due.
func (d *Layer) soon(now time.Time, n *name) time.Time {
	if n.lasts() && n.asked.IsZero() && n.failures == 0 {
		return now.Add(d.lease.Duration / batchPart)
	}
	return now
}

func (d *Layer) due(now time.Time, n *name) {
	soon := d.soon(now, n)
	switch n.state {
	case Gated:
		d.ungate(now, n)
	case Asked:
		d.giveBack(now, n) // the request may yet be answered, but calls do not wait for that
		d.routeCalls(now, n)
	case Live, Recalled:
		switch {
		case !now.Before(n.until):
			d.lapse(now, n)
		case n.more && n.doubted.IsZero():
			d.serve(now, n)
		case n.state == Live && n.table.empty() && n.doubted.IsZero() && soon.Sub(n.used) >= d.lease.Duration:
			d.recall(now, n, false)
		case !d.renewAt(n).After(soon):
			if !n.asked.IsZero() {
				n.failures++
			}
			d.renew(now, n)
		default:
			d.schedule(n)
		}
	case Returning:
		switch {
		case !now.Before(n.giveUp):
			d.ended(now, n, false)
		default:
			if !n.asked.IsZero() {
				n.failures++
			}
			d.sendReturn(now, n)
		}
	}
}
