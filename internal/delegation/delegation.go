// Package delegation lets a lock stay with the RWLock that uses it. It is a layer between an engine and the
// server. It requests delegations of locks from the server. While a lock is delegated, it answers the
// engine's requests from memory, phase-fair and in order of arrival, as the scripts would. It passes all
// other requests on. When another RWLock wants the lock, the server recalls the delegation, and the layer
// returns it as soon as nobody holds the lock under it. Like the engine it is pure: requests, replies,
// messages and the time go in, and Effects come out. docs/design.md has the states of a delegation.
package delegation

import (
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
	// A recall costs others about as much as fewShare calls. If the delegations of a name answer fewer, on
	// average, pause is how many times the duration of a return, counted from the recall, must pass before
	// the next request for a delegation. So recalls slow a name down by a tenth at most, as revocations do in
	// BRAVO.
	pause = 9
	// mostNeed limits how many calls on a name must go to the server before a delegation is requested. The
	// number grows while delegations are refused, or answer fewer than fewShare calls, and is 0 after a
	// recall if they answer more. It begins as newNeed, or as poorNeed if the delegations of other names have
	// answered fewer.
	mostNeed = 1023
	newNeed  = 1
	poorNeed = 63
	fewShare = 8
	// A mean counts up to mostShare calls, in parts of one call. It moves by one part in nameMoves, that of
	// all names by one in allMoves.
	mostShare = 4 * fewShare
	parts     = 256
	nameMoves = 8
	allMoves  = 32
	// gatePatience is how long calls wait for the next of this RWLock's claims on the server to end, and
	// gateMost for all, so that the server can delegate the lock. If that was in vain, gatePause is the time
	// until the next such wait.
	gatePatience = 20 * time.Millisecond
	gateMost     = 100 * time.Millisecond
	gatePause    = time.Second

	renewAfter  = 3 // a delegation is renewed after a third of its lease,
	resendAfter = 6 // and a request is sent again after a sixth

	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// returnPatience is for how long the first return may stay without an answer.
	returnPatience = time.Second
	// allTokens is larger than any token: a return that says so gives none back.
	allTokens = 9_999_999_999_999_999
	// firstSlot is larger than any slot of the engine's.
	firstSlot = 1_000_000
	// atOnce is how many names a Tick handles.
	atOnce = 250
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
	share     int // calls that a delegation has answered, of late, in parts of one

	taken  []*engine.Request // memory
	passed []*engine.Request // that the server is to answer
}

// New returns the layer below an engine. Nothing is delegated yet.
func New(c Config, e *engine.Engine) *Layer {
	return &Layer{
		engine: e, config: c, lease: protocol.NewLease(c.Lease), slot: firstSlot, share: mostShare * parts,
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

	// Of the delegation:
	mode    protocol.Mode
	claim   protocol.Claim
	number  uint64
	lent    protocol.Lent
	until   time.Time // the local deadline
	token   int64     // the last that a local writer was given
	top     int64     // the last that is reserved
	used    time.Time // when a call was last answered
	served  int       // calls that it has answered
	doubted time.Time // it is not used until a renewal is answered that was sent since; zero if it is not
	early   bool      // it was recalled before it was known to be granted
	more    bool      // a step has left readers whose turn it is

	// Of the request in flight, or the next:
	asked    time.Time // zero if there is none
	failures int
	retry    time.Time // or, Gated, when the wait ends unless a claim does
	giveUp   time.Time // of a return, or, Gated, when the wait ends at the latest

	// When to delegate:
	out        [protocol.Write + 1]int // claims that the server knows, by mode
	uses       int                     // calls since the last delegation ended, or was refused
	need       int                     // as many are needed before the next is asked for
	share      int                     // calls that a delegation has answered, of late, in parts of one
	recalled   time.Time               // by others; zero if it was not
	notBefore  time.Time
	notGated   time.Time
	alternates bool // the RWLock reads and writes, and nobody else was in its way of late
}

// An own is what a request of the layer's is for.
type own struct {
	name   *name // nil for the return of one that came back
	number uint64
	keeps  bool
}

// Flush handles the engine's requests. It exchanges what is to be done with to, which must be empty.
func (d *Layer) Flush(now time.Time, to *engine.Effects) {
	d.Work(now)
	d.engine.Flush(now, to)
	to.Send = append(to.Send, d.passed...)
	clear(d.passed)
	d.passed = d.passed[:0]
}

// Work handles the engine's requests.
func (d *Layer) Work(now time.Time) {
	for {
		d.taken = d.engine.Requests(d.taken[:0])
		if len(d.taken) == 0 {
			return
		}
		for _, r := range d.taken {
			d.handle(now, r)
		}
		clear(d.taken)
	}
}

func (d *Layer) pass(r *engine.Request) { d.passed = append(d.passed, r) }

// entryOf returns what is known of the claim that a request is about, or nil.
func entryOf(r *engine.Request) *entry {
	below := r.Below()
	if below == nil {
		return nil
	}
	e, _ := (*below).(*entry)
	return e
}

// handle answers a request of the engine, or passes it on.
func (d *Layer) handle(now time.Time, r *engine.Request) {
	e := entryOf(r)
	switch {
	case r.Script == lua.Lock || r.Script == lua.RLock:
		d.ask(now, e, r)
	case e == nil || e.place == remote:
		d.pass(r)
	case r.Script == lua.Unlock || r.Script == lua.RUnlock:
		d.end(now, e, r)
	default:
		d.keep(now, e, r)
	}
}

// ask handles a request for the lock, or a heartbeat.
func (d *Layer) ask(now time.Time, e *entry, r *engine.Request) {
	switch {
	case e == nil:
		below := r.Below()
		if below == nil { // it is the layer's own, or about no claim
			d.pass(r)
			return
		}
		e = &entry{name: d.use(r), ask: r, mode: r.Mode()}
		*below = e
		e.name.uses++
		d.route(now, e)
	case e.place == remote:
		e.ask = r
		d.pass(r)
	case e.place == parked:
		e.ask = r
	case e.place == waits:
		e.ask = r
		d.queued(now, e)
	case e.place == holds:
		e.ask = r
		d.answer(now, r, protocol.Reply{Token: e.name.token, Lent: e.name.lent})
	}
}

// use returns the name that a request is about.
func (d *Layer) use(r *engine.Request) *name {
	n := d.names[r.Keys.Lock]
	if n == nil {
		n = &name{name: r.Name(), key: r.Keys.Lock, need: newNeed, share: fewShare * parts}
		if d.share < fewShare*parts {
			n.need = poorNeed
		}
		d.names[n.key] = n
		d.known.PushBack(n)
		if d.known.Len() > mostKnown {
			oldest := d.known.First()
			d.known.Remove(oldest)
			delete(d.names, oldest.key)
		}
	} else if n.state == None && d.names[n.key] == n {
		d.known.Remove(n)
		d.known.PushBack(n)
	}
	return n
}

// route decides who answers a call.
func (d *Layer) route(now time.Time, e *entry) {
	n := e.name
	if w := e.ask.Writer; w != nil && w != "" {
		// The owner has a write hold. What granted that, this layer or the server, also grants this request.
		// The delegation need not allow anything new for it.
		if within := n.table.writer; within != nil && within.ask.Claim.ID == w && now.Before(n.until) {
			n.table.ask(e, within, false)
			d.grant(now, e)
			return
		}
		d.send(e)
		return
	}
	if n.state == Live && !now.Before(n.until) {
		d.lapse(now, n)
	}
	switch special := d.special(e); {
	case special, n.state > Live:
		d.send(e)
	case n.state == Live && n.mode == protocol.Read && e.mode == protocol.Write:
		n.alternates = true
		d.recall(now, n, false)
		d.send(e)
	case n.state == Live && n.doubted.IsZero() && (e.mode == protocol.Read || n.token < n.top):
		d.local(now, e)
	case n.state == Live:
		if n.doubted.IsZero() {
			d.doubt(now, n) // all tokens are used up
		}
		d.park(e)
	case n.state == Asked, n.state == Gated && !e.ask.Try:
		d.park(e)
	case n.state == None && d.wants(now, e):
		d.begin(now, e)
	default:
		d.send(e)
	}
}

// special reports whether a call asks for what a delegation does not give.
func (d *Layer) special(e *entry) bool {
	h := e.ask.Hold()
	return h.NoRenew || h.Lease != d.config.Hold
}

// park has a call wait until it is decided who answers it.
func (d *Layer) park(e *entry) {
	e.place = parked
	e.name.calls = append(e.name.calls, e)
}

// unpark decides it.
func (d *Layer) unpark(now time.Time, n *name) {
	calls := n.calls
	n.calls = nil
	for _, e := range calls {
		if e.place == parked {
			d.route(now, e)
		}
	}
}

// send passes a call on to the server.
func (d *Layer) send(e *entry) {
	e.place = remote
	e.name.out[e.mode]++
	d.pass(e.ask)
}

// local answers a call from memory.
func (d *Layer) local(now time.Time, e *entry) {
	n := e.name
	idle := n.table.empty()
	switch {
	case n.table.ask(e, nil, e.ask.Try):
		if idle {
			d.idle.Remove(n)
		}
		d.grant(now, e)
	default:
		d.queued(now, e)
	}
}

func (d *Layer) answer(now time.Time, r *engine.Request, reply protocol.Reply) {
	d.engine.Replied(now, r, reply, nil)
}

// grant tells the engine that an entry has the lock.
func (d *Layer) grant(now time.Time, e *entry) {
	n := e.name
	if e.mode == protocol.Write {
		n.token++
	}
	n.used = now
	n.served++
	e.rely(e.ask)
	d.answer(now, e.ask, protocol.Reply{Token: n.token, Lent: n.lent})
}

// queued tells the engine that an entry waits, or has tried in vain.
func (d *Layer) queued(now time.Time, e *entry) {
	d.answer(now, e.ask, protocol.Reply{Last: e.name.token, Lent: e.name.lent,
		Obstacle: e.name.table.obstacle(e)})
}

// serve grants the lock to those whose turn it is.
func (d *Layer) serve(now time.Time, n *name) {
	if n.state != Live || !n.doubted.IsZero() || !now.Before(n.until) {
		return
	}
	n.more = n.table.serve(n.token < n.top, func(e *entry) { d.grant(now, e) })
	if w := n.table.writers.First(); w != nil && n.table.holders.Len() == 0 && n.token >= n.top {
		d.doubt(now, n)
	}
	d.schedule(n)
}

// end handles the end of a claim that the server does not know.
func (d *Layer) end(now time.Time, e *entry, r *engine.Request) {
	n, held := e.name, e.place == holds
	queued, used := n.table.waited(), !n.table.empty()
	n.table.leave(e)
	code := protocol.NotThere
	if held {
		code, n.used = protocol.Done, now
	}
	d.answer(now, r, protocol.Reply{Code: code})
	d.engine.Recycle(r)
	if held {
		d.engine.Recycle(e.ask)
		e.ask = nil
	}
	if queued {
		d.serve(now, n)
	}
	if used && n.table.empty() {
		d.emptied(now, n)
	}
}

// emptied is called when the last hold has left, and nobody waits.
func (d *Layer) emptied(now time.Time, n *name) {
	switch n.state {
	case Live:
		d.idle.PushBack(n)
		switch {
		case n.lent.Lease > d.lease.Duration: // for a hold that was extended
			d.recall(now, n, false)
		case d.idle.Len() > mostIdle:
			d.recall(now, d.idle.First(), false)
		}
	case Recalled:
		d.giveBack(now, n)
	}
}

// keep handles a renewal of a hold, or a change of its reentrancy count.
func (d *Layer) keep(now time.Time, e *entry, r *engine.Request) {
	n := e.name
	switch {
	case e.place != holds:
		d.answer(now, r, protocol.Reply{Code: protocol.NotThere})
	case r.Extend > 0 && engine.Deadline(now, r.Extend).After(n.until):
		n.waits = append(n.waits, r)
		d.renew(now, n, r.Extend)
	case !n.doubted.IsZero(), r.Script == lua.Renew && !n.until.After(e.until):
		n.waits = append(n.waits, r) // the delegation's own renewal is in flight, or fails
	default:
		d.confirm(now, e, r)
	}
}

// confirm tells the engine that a hold lasts for its lease, or for as long as the delegation does.
func (d *Layer) confirm(now time.Time, e *entry, r *engine.Request) {
	e.rely(r)
	d.answer(now, r, protocol.Reply{Code: protocol.Done, Lent: e.name.lent})
}

// wants reports whether a call is reason to ask for a delegation.
func (d *Layer) wants(now time.Time, e *entry) bool {
	n := e.name
	if d.closed || d.names[n.key] != n || !d.config.Eager && (n.uses <= n.need || now.Before(n.notBefore)) {
		return false
	}
	if !d.listening {
		if !d.listens {
			d.listens = true
			d.engine.Listen()
		}
		return false
	}
	return !d.blocked(n, d.modeFor(e)) || !e.ask.Try && !now.Before(n.notGated)
}

// modeFor returns the mode in which a call wants the lock delegated.
func (d *Layer) modeFor(e *entry) protocol.Mode {
	if e.name.alternates {
		return protocol.Write
	}
	return e.mode
}

// blocked reports whether claims of this RWLock on the server block a delegation.
func (d *Layer) blocked(n *name, m protocol.Mode) bool {
	return n.out[protocol.Write] > 0 || m == protocol.Write && n.out[protocol.Read] > 0
}

// begin asks for a delegation, or waits until no claim of this RWLock blocks it.
func (d *Layer) begin(now time.Time, e *entry) {
	n := e.name
	d.known.Remove(n)
	n.mode = d.modeFor(e)
	d.park(e)
	if d.blocked(n, n.mode) {
		n.state, n.retry, n.giveUp = Gated, now.Add(gatePatience), now.Add(gateMost)
		d.schedule(n)
		return
	}
	d.take(now, n)
}

// take asks for the delegation.
func (d *Layer) take(now time.Time, n *name) {
	n.state, n.early, n.doubted = Asked, false, time.Time{}
	n.claim, n.number = d.engine.NewClaim(n.mode, d.slot, d.config.Owner)
	d.numbers[n.number] = n
	d.request(now, n, protocol.Request{Script: lua.Delegate, Lease: d.lease}, false)
	d.schedule(n)
}

func (d *Layer) request(now time.Time, n *name, p protocol.Request, keeps bool) {
	p.Claim, p.Keep, p.Again = n.claim, keeps, !n.asked.IsZero() || n.failures > 0
	n.asked = now
	d.pass(d.engine.Request(now, n.name, p, &own{n, n.number, keeps}))
}

// renew renews a delegation for at least d, or for as long as the layer relies on it.
func (d *Layer) renew(now time.Time, n *name, atLeast time.Duration) {
	lease := d.lease
	if need := max(atLeast, engine.LeaseFor(n.until.Sub(now))); need > lease.Duration {
		lease = protocol.NewLease(need)
	}
	d.request(now, n, protocol.Request{Script: lua.Delegate, Lease: lease}, true)
	d.schedule(n)
}

// doubt has a delegation renewed before it is used again.
func (d *Layer) doubt(now time.Time, n *name) {
	n.doubted = now
	d.renew(now, n, 0)
}

// Replied takes the reply of the server, or the error with which a request failed.
func (d *Layer) Replied(now time.Time, r *engine.Request, reply protocol.Reply, err error) {
	for _, number := range reply.Message.Recalled {
		d.recallNumber(now, number)
	}
	if o, ok := r.Tag.(*own); ok {
		d.engine.Replied(now, r, reply, err)
		switch n := o.name; {
		case n == nil || n.number != o.number:
		case n.state == Returning && r.Script == lua.Return:
			d.returned(now, n, err)
		case n.state == Asked && !o.keeps:
			d.granted(now, n, r, reply, err)
		case (n.state == Live || n.state == Recalled) && o.keeps:
			d.kept(now, n, r, reply, err)
		}
		return
	}
	e := entryOf(r)
	if err == nil {
		d.unmask(now, r, &reply)
	}
	d.engine.Replied(now, r, reply, err)
	if e != nil && e.place == remote && err == nil && d.ends(r, reply) {
		e.place = over
		e.name.out[e.mode]--
		d.open(now, e.name)
	}
	if r.Script != lua.Force {
		return
	}
	if n := d.names[r.Keys.Lock]; n != nil && (n.state == Live || n.state == Recalled) {
		d.doubt(now, n) // it was dropped, most likely
	}
}

// ends reports whether a server that has answered so knows the claim no more.
func (d *Layer) ends(r *engine.Request, reply protocol.Reply) bool {
	switch r.Script {
	case lua.Lock, lua.RLock:
		return reply.Refused || r.Try && reply.Token == 0
	case lua.Unlock, lua.RUnlock:
		return true
	}
	return false
}

// open is called when a claim on the server has ended. It asks for a delegation that calls wait for, once no
// claim of this RWLock blocks it.
func (d *Layer) open(now time.Time, n *name) {
	switch {
	case n.state != Gated:
	case !d.blocked(n, n.mode):
		d.take(now, n)
	default:
		if n.retry = now.Add(gatePatience); n.giveUp.Before(n.retry) {
			n.retry = n.giveUp
		}
		d.schedule(n)
	}
}

// unmask replaces, in a reply, the delegation by a local hold under it.
func (d *Layer) unmask(now time.Time, r *engine.Request, reply *protocol.Reply) {
	if reply.Claim == "" {
		return
	}
	wire, k, err := protocol.ClaimOf(reply.Claim)
	if err != nil {
		return
	}
	if n := d.names[r.Keys.Lock]; n != nil && k.Instance != d.config.Instance {
		n.notGated = now.Add(gatePause) // calls that waited here would be overtaken by those of others
		n.alternates = false
	}
	if !k.Delegated() || k.Instance != d.config.Instance {
		return
	}
	reply.Claim = ""
	switch n := d.numbers[k.Number]; {
	case n == nil:
		// It was returned, and has come back: the server has forgotten its last writes.
		p := protocol.Request{Script: lua.Return, Claim: wire, Used: allTokens, Again: true}
		if k.Mode == protocol.Read {
			p.Used = 0
		}
		d.pass(d.engine.Request(now, r.Name(), p, &own{}))
	case n.table.holders.Len() > 0:
		h := n.table.holders.First().ask
		reply.Claim, reply.Holder = h.Claim.ID.(string), h.Owner()
	}
}

// Reveal replaces, in the state of a lock, the delegation by the holders and waiters under it.
func (d *Layer) Reveal(now time.Time, name string, s *protocol.State) {
	n := d.names[d.engine.Inspect(name).Keys.Lock]
	if n == nil || n.table.empty() || !now.Before(n.until) {
		return
	}
	known := func(e *entry) protocol.Known {
		return protocol.Known{Mode: e.mode, Instance: d.config.Instance, Owner: e.ask.Owner()}
	}
	left := n.until.Sub(now)
	var holders []protocol.Holder
	for e := range n.table.holders.All() {
		h := protocol.Holder{Known: known(e), Count: e.ask.Holds(), Lease: left, Under: true}
		if e == n.table.writer {
			holders = slices.Insert(holders, 0, h)
			continue
		}
		holders = append(holders, h)
	}
	var waiters []protocol.Waiter
	for _, e := range n.table.line() {
		waiters = append(waiters, protocol.Waiter{Known: known(e), Lease: left})
	}
	if len(holders) > 0 {
		holders = append(holders, slices.DeleteFunc(s.Holders, func(h protocol.Holder) bool {
			return h.Delegated() && h.Instance == d.config.Instance
		})...)
		s.Holders, s.Mode = holders, holders[0].Known.Mode
		if n.mode == protocol.Write {
			s.Token = n.token
		}
	}
	s.Waiters = append(waiters, s.Waiters...)
}

// granted takes the reply to the request for a delegation.
func (d *Layer) granted(now time.Time, n *name, r *engine.Request, reply protocol.Reply, err error) {
	n.asked, n.failures = time.Time{}, 0
	switch {
	case err != nil:
		d.giveBack(now, n) // it may have been granted
	case reply.Code != protocol.Done:
		delete(d.numbers, n.number)
		n.alternates = false
		n.need, n.uses = min(2*n.need+1, mostNeed), 0
		d.forget(n)
		d.sendCalls(n)
	default:
		n.state, n.served, n.used, n.recalled = Live, 0, now, time.Time{}
		n.token, n.top, n.until = reply.Token, reply.Top, time.Time{}
		d.extend(n, r)
		d.idle.PushBack(n)
		d.event(n, engine.Event{Kind: engine.Delegated, Took: now.Sub(r.Sent)})
		switch {
		case !now.Before(n.until):
			d.lapse(now, n)
		case n.early || reply.Recalled:
			d.recall(now, n, true)
		case d.closed || !d.listening:
			d.recall(now, n, false)
		case !n.doubted.IsZero():
			d.renew(now, n, 0)
			return
		}
		d.schedule(n)
	}
	d.unpark(now, n)
}

// extend notes until when a delegation lasts by a request that has succeeded.
func (d *Layer) extend(n *name, r *engine.Request) {
	if until := engine.Deadline(r.Sent, r.Lease.Duration); !until.Before(n.until) {
		n.lent, n.until = protocol.Lent{Sent: r.Sent, Lease: r.Lease.Duration}, until
	}
}

// kept takes the reply to a renewal.
func (d *Layer) kept(now time.Time, n *name, r *engine.Request, reply protocol.Reply, err error) {
	if !now.Before(n.until) {
		d.lapse(now, n) // what is due comes first
		return
	}
	n.asked = time.Time{}
	if err != nil {
		d.fail(now, n)
		d.schedule(n)
		return
	}
	n.failures = 0
	if reply.Code != protocol.Done {
		d.lapse(now, n)
		return
	}
	d.extend(n, r)
	n.top = max(n.top, reply.Top)
	if !n.doubted.IsZero() && !r.Sent.Before(n.doubted) {
		n.doubted = time.Time{}
	}
	waits := n.waits
	n.waits = nil
	for _, r := range waits {
		if e := entryOf(r); e != nil && e.place == holds {
			d.keep(now, e, r)
		}
	}
	if reply.Recalled {
		d.recall(now, n, true)
	}
	if n.state == Live && n.doubted.IsZero() {
		d.unpark(now, n)
		d.serve(now, n)
	}
	d.schedule(n)
}

func (d *Layer) fail(now time.Time, n *name) {
	n.asked = time.Time{}
	n.failures++
	n.retry = now.Add(min(firstRetry<<min(n.failures-1, 10), lastRetry))
}

// Heard takes a message of the engine's channel.
func (d *Layer) Heard(now time.Time, payload string) {
	m, ok := protocol.ParseMessage(payload)
	if !ok {
		return
	}
	for _, number := range m.Recalled {
		d.recallNumber(now, number)
	}
	for _, number := range m.Dropped {
		if n := d.numbers[number]; n != nil && (n.state == Live || n.state == Recalled) {
			d.doubt(now, n)
		}
	}
	d.engine.Heard(now, payload)
}

// recallNumber recalls the delegation of a number, if there is one.
func (d *Layer) recallNumber(now time.Time, number uint64) {
	switch n := d.numbers[number]; {
	case n == nil:
	case n.state == Asked:
		n.early = true
	default:
		d.recall(now, n, true)
	}
}

// recall grants nothing new under a delegation, and returns it when nobody holds the lock under it. Waiting
// calls go on waiting on the server, in order. others reports whether another RWLock wants the lock.
func (d *Layer) recall(now time.Time, n *name, others bool) {
	if n.state == Recalled && others && n.recalled.IsZero() {
		n.recalled = now
	}
	if n.state != Live {
		return
	}
	if others {
		n.recalled, n.alternates = now, false
	}
	if n.table.empty() {
		d.idle.Remove(n)
	}
	n.state = Recalled
	if n.table.holders.Len() == 0 {
		d.giveBack(now, n)
	}
	d.handOver(now, n)
}

// handOver makes the claims that wait for a local hold, or for an answer, wait on the server.
func (d *Layer) handOver(now time.Time, n *name) {
	n.more = false
	for e := n.table.first(); e != nil; e = n.table.first() {
		e.place = remote
		n.out[e.mode]++
		d.engine.Again(now, e.ask)
	}
	n.table.owed = 0
	d.unpark(now, n)
}

// lapse ends a delegation whose deadline has come, or that the server no longer knows. All holds under it are
// lost.
func (d *Layer) lapse(now time.Time, n *name) {
	if n.state == Live && n.table.empty() {
		d.idle.Remove(n)
	}
	n.state = Recalled
	n.waits = nil
	for e := n.table.holders.First(); e != nil; e = n.table.holders.First() {
		n.table.leave(e)
		e.place = remote // the server knows nothing of it, and says so
		n.out[e.mode]++
		d.engine.Lose(now, e.ask)
	}
	d.giveBack(now, n)
	d.handOver(now, n)
}

// giveBack returns a delegation.
func (d *Layer) giveBack(now time.Time, n *name) {
	n.state, n.waits, n.doubted = Returning, nil, time.Time{}
	n.asked, n.failures = time.Time{}, 0
	n.giveUp = now.Add(max(n.lent.Lease, d.lease.Duration, engine.EndTimeout))
	d.sendReturn(now, n)
}

func (d *Layer) sendReturn(now time.Time, n *name) {
	p := protocol.Request{Script: lua.Return}
	if n.mode == protocol.Write {
		p.Used = n.token // 0 if the reply to its grant is not known
	}
	d.request(now, n, p, false)
	d.schedule(n)
}

// returned takes the reply to a return.
func (d *Layer) returned(now time.Time, n *name, err error) {
	switch {
	case protocol.IsClientClosed(err):
		d.ended(now, n, false)
	case err != nil:
		d.fail(now, n)
		d.schedule(n)
	default:
		d.ended(now, n, true)
	}
}

// ended ends a return, after the server has confirmed it or can no longer keep the delegation.
func (d *Layer) ended(now time.Time, n *name, confirmed bool) {
	if !confirmed {
		d.slot++ // a late request may come for this one
	}
	delete(d.numbers, n.number)
	var took time.Duration
	if share := min(n.served, mostShare) * parts; !d.config.Eager {
		n.share += (share - n.share) / nameMoves
		d.share += (share - d.share) / allMoves
	}
	if !n.recalled.IsZero() {
		took = now.Sub(n.recalled)
		if n.share < fewShare*parts {
			n.notBefore = now.Add(pause * took)
			n.need = min(2*n.need+1, mostNeed)
		} else {
			n.need = 0
		}
		n.uses = 0
	}
	d.event(n, engine.Event{Kind: engine.Returned, Took: took})
	n.recalled, n.lent, n.until, n.token, n.top = time.Time{}, protocol.Lent{}, time.Time{}, 0, 0
	d.forget(n)
}

// forget notes that there is no delegation.
func (d *Layer) forget(n *name) {
	n.state, n.asked, n.failures, n.early = None, time.Time{}, 0, false
	d.timed.Remove(n)
	d.known.PushBack(n)
}

func (d *Layer) event(n *name, ev engine.Event) {
	if d.config.Observe {
		ev.Name, ev.Mode = n.name, n.mode
		d.engine.Report(ev)
	}
}

// Subscribed says that the subscription is established, for the first time or again. Earlier recalls are
// lost, so each delegation is renewed before it is used again.
func (d *Layer) Subscribed(now time.Time) {
	d.listening = true
	for _, n := range d.delegated() {
		switch n.state {
		case Asked:
			n.doubted = now
		case Live, Recalled:
			d.doubt(now, n)
		}
	}
	d.engine.Subscribed(now)
}

// Unsubscribed says that the subscription is broken, or could not be established. Recalls would be missed, so
// the delegations are returned.
func (d *Layer) Unsubscribed(now time.Time, err error) {
	d.listening = false
	for _, n := range d.delegated() {
		d.recall(now, n, false)
	}
	d.engine.Unsubscribed(now, err)
}

// delegated returns the names with a delegation, or with a request for one in flight, in the order of the
// requests.
func (d *Layer) delegated() []*name {
	list := make([]*name, 0, len(d.numbers))
	for _, n := range d.numbers {
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *name) int { return int(a.number) - int(b.number) })
	return list
}

// A View is what a delegation has come to, for suites that compare Layers.
type View struct {
	Number uint64
	State  State
	Until  time.Time // the local deadline
}

// Views returns all delegations that have not ended.
func (d *Layer) Views() (list []View) {
	for _, n := range d.delegated() {
		list = append(list, View{n.number, n.state, n.until})
	}
	return list
}

// Resume says that other servers answer requests than before: requests that pause after failures are retried
// now.
func (d *Layer) Resume(now time.Time) {
	d.engine.Resume(now)
	for _, n := range d.delegated() {
		if n.failures > 0 && n.asked.IsZero() {
			n.failures, n.retry = 1, now
			d.schedule(n)
		}
	}
}

// Close returns all delegations as soon as nobody holds a lock under them. No new ones are requested.
func (d *Layer) Close(now time.Time) {
	d.closed = true
	for _, n := range d.delegated() {
		d.recall(now, n, false)
	}
	for _, n := range d.timed.All() {
		if n.state == Gated {
			d.ungate(now, n)
		}
	}
}

// ungate has the server answer the calls that wait for a delegation.
func (d *Layer) ungate(now time.Time, n *name) {
	n.notGated = now.Add(gatePause)
	d.forget(n)
	d.sendCalls(n)
}

// sendCalls passes the calls on to the server that waited for a delegation.
func (d *Layer) sendCalls(n *name) {
	calls := n.calls
	n.calls = nil
	for _, e := range calls {
		if e.place == parked {
			d.send(e)
		}
	}
}

// Awaits reports whether messages are waited for: there are delegations, or calls wait.
func (d *Layer) Awaits() bool { return len(d.numbers) > 0 || d.engine.Waiting() }

// Idle reports whether the engine is idle, and nothing is delegated.
func (d *Layer) Idle() bool { return len(d.numbers) == 0 && d.engine.Idle() }

// Unreturned returns how many delegations there are.
func (d *Layer) Unreturned() int { return len(d.numbers) }

// schedule sets when Tick handles a name next.
func (d *Layer) schedule(n *name) {
	at := n.retry
	switch n.state {
	case None:
		return
	case Asked:
		at = n.asked.Add(d.patience())
	case Live, Recalled:
		at = d.renewAt(n)
		if n.until.Before(at) {
			at = n.until
		}
		if n.more {
			at = n.used
		}
	case Returning:
		if !n.asked.IsZero() {
			at = n.asked.Add(returnPatience << min(n.failures, 5))
		}
		if n.giveUp.Before(at) {
			at = n.giveUp
		}
	}
	n.Tie = n.number
	d.timed.Set(n, at)
}

// patience is for how long a request may stay without an answer.
func (d *Layer) patience() time.Duration { return max(d.lease.Duration/resendAfter, firstRetry) }

func (d *Layer) renewAt(n *name) time.Time {
	switch {
	case !n.asked.IsZero():
		return n.asked.Add(d.patience())
	case n.failures > 0:
		return n.retry
	}
	return n.lent.Sent.Add(d.lease.Duration / renewAfter)
}

// Next returns when Tick is due, and whether it is at all.
func (d *Layer) Next() (at time.Time, ok bool) {
	at, ok = d.engine.Next()
	if t, due := d.timed.Next(); due && (!ok || t.Before(at)) {
		return t, true
	}
	return at, ok
}

// Tick does what is due.
func (d *Layer) Tick(now time.Time) {
	d.engine.Tick(now)
	for range atOnce {
		at, due := d.timed.Next()
		if !due || now.Before(at) {
			return
		}
		d.due(now, d.timed.First())
	}
}

func (d *Layer) due(now time.Time, n *name) {
	switch n.state {
	case Gated:
		d.ungate(now, n)
	case Asked:
		d.giveBack(now, n) // the request may yet be answered, but calls do not wait for that
		d.unpark(now, n)
	case Live, Recalled:
		switch {
		case !now.Before(n.until):
			d.lapse(now, n)
		case n.more:
			d.serve(now, n)
		case n.state == Live && n.table.empty() && n.doubted.IsZero() && now.Sub(n.used) >= d.lease.Duration:
			d.recall(now, n, false)
		case !now.Before(d.renewAt(n)):
			if !n.asked.IsZero() {
				n.failures++
			}
			d.renew(now, n, 0)
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
