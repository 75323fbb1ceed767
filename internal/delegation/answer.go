package delegation

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How calls are answered from memory, or passed on to the server.

// handle answers a request of the engine, or passes it on.
func (d *Layer) handle(now time.Time, r *engine.Request) {
	e := entryOf(r)
	switch {
	case r.Asks():
		d.ask(now, e, r)
	case r.Script == lua.Convert:
		d.downgrade(now, e, r)
	case e == nil || e.place == remote:
		d.pass(r)
	case r.Ends():
		d.end(now, e, r)
	default:
		d.keep(now, e, r)
	}
}

// ask handles a request for the lock, or a heartbeat.
func (d *Layer) ask(now time.Time, e *entry, r *engine.Request) {
	if e == nil {
		e = &entry{name: d.use(r), ask: r, mode: r.Mode()}
		*r.LayerData() = e
		e.name.uses++
		d.route(now, e)
		return
	}
	e.ask = r
	switch e.place {
	case remote:
		d.pass(r)
	case waits:
		d.queued(now, e)
	case holds:
		d.answer(now, r, protocol.Reply{Token: e.name.token, Delegation: e.name.delegation})
	}
}

// use returns the name that a request is about.
func (d *Layer) use(r *engine.Request) *name {
	n := d.names[r.Keys.Lock]
	switch {
	case n == nil:
		n = &name{name: r.Name(), key: r.Keys.Lock, need: newNeed, credit: newCredit}
		if d.credit <= 0 {
			n.need = poorNeed
		}
		d.names[n.key] = n
		d.remember(n)
	case n.state == None:
		d.known.Remove(n)
		d.known.PushBack(n)
	}
	return n
}

// route decides who answers a call.
func (d *Layer) route(now time.Time, e *entry) {
	n := e.name
	if n.state == Live && !now.Before(n.until) {
		d.lapse(now, n)
	}
	if !d.listening {
		d.recall(now, n, false)
	}
	h := e.ask.Hold()
	special := h.NoRenew || h.Lease != d.config.Hold // it asks for what a delegation does not give
	if n.state == Gated && (special || e.ask.Try) {
		d.ungate(now, n) // it is not to overtake those that wait
	}
	switch {
	case e.ask.Try && n.state == Live && n.doubted.IsZero() && n.table.blocks(e):
		e.place = over
		d.queued(now, e)
	case special && n.state == Asked:
		d.park(e)
	case n.state == Live && (n.mode == protocol.Write && special ||
		n.mode == protocol.Read && e.mode == protocol.Write):
		n.alternates = n.alternates || !special
		d.charge(n)
		d.recall(now, n, false) // those that wait under the delegation wait on the server first
		d.send(e)
	case special, n.state > Live:
		d.send(e)
	case n.state == Live && n.doubted.IsZero() && (e.mode == protocol.Read || n.token < n.top):
		d.local(now, e)
	case n.state == Live:
		if n.doubted.IsZero() {
			d.exhausted(now, n)
		}
		if len(n.calls) == 0 && !e.ask.Try && n.table.blocks(e) {
			d.local(now, e) // it has to wait in any case, and its turn counts from now on
		} else {
			d.park(e)
		}
	case n.state == Asked, n.state == Gated:
		d.park(e)
	case n.state == None && d.wants(now, e):
		d.begin(now, e)
	default:
		d.send(e)
	}
}

// park has a call wait until it is decided who answers it.
func (d *Layer) park(e *entry) {
	e.place = parked
	e.name.calls = append(e.name.calls, e)
}

// unpark passes on the calls that are parked.
func (d *Layer) unpark(n *name, to func(*entry)) {
	calls := n.calls
	n.calls = nil
	for _, e := range calls {
		if e.place == parked {
			to(e)
		}
	}
}

// routeCalls decides who answers the calls that are parked.
func (d *Layer) routeCalls(now time.Time, n *name) { d.unpark(n, func(e *entry) { d.route(now, e) }) }

// send passes a call on to the server.
func (d *Layer) send(e *entry) {
	e.goes()
	d.pass(e.ask)
}

// local answers a call from memory.
func (d *Layer) local(now time.Time, e *entry) {
	n := e.name
	idle := n.table.empty()
	switch {
	case n.table.ask(e):
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
		if n.token >= n.low && n.token < n.top && n.asked.IsZero() && n.failures == 0 {
			d.renew(now, n)
		}
	}
	n.used, e.since = now, now
	d.earn(n, 1)
	e.rely(e.ask)
	d.answer(now, e.ask, protocol.Reply{Token: n.token, Delegation: n.delegation})
}

// queued tells the engine that an entry waits, or has tried in vain.
func (d *Layer) queued(now time.Time, e *entry) {
	o, holds := e.name.table.obstacle(e)
	if holds != nil {
		o.Claim = d.engine.ClaimOf(holds.ask)
	}
	d.answer(now, e.ask, protocol.Reply{Last: e.name.token, Delegation: e.name.delegation, Obstacle: o})
}

// serve grants the lock to those whose turn it is.
func (d *Layer) serve(now time.Time, n *name) {
	if n.state != Live || !d.listening || !n.doubted.IsZero() || !now.Before(n.until) {
		return
	}
	n.more = n.table.serve(n.token < n.top, func(e *entry) { d.grant(now, e) })
	if w := n.table.writers.First(); w != nil && n.table.holders.Len() == 0 && n.token >= n.top {
		d.exhausted(now, n)
	}
	d.schedule(n)
}

// end handles the end of a claim that the server does not know.
func (d *Layer) end(now time.Time, e *entry, r *engine.Request) {
	n := e.name
	if reads := e.reads; e.place == leaves && reads != nil && reads.place == holds && r.Script != lua.Convert {
		n.leaving = slices.DeleteFunc(n.leaving, func(other *entry) bool { return other == e })
		e.place, e = over, reads // the engine ends both, and the answer is for both
		e.since = time.Time{}    // neither is confirmed yet
	}
	held := e.place == holds
	if e.end = r; e.place == leaves {
		return
	}
	queued, used := n.table.waited(), !n.table.empty()
	n.table.leave(e)
	switch {
	case !held:
		d.ends(now, e, protocol.NotThere)
	case n.doubted.IsZero() && now.Sub(e.since) <= d.trip:
		d.ends(now, e, protocol.Done)
	default:
		e.place, e.since = leaves, now
		n.leaving = append(n.leaving, e)
	}
	if held {
		n.used = now
	}
	if used && n.table.empty() {
		d.emptied(now, n)
	}
	if e.extended && n.wanted.Sub(now) > d.lease.Duration {
		n.wanted = time.Time{}
		d.recall(now, n, false) // nobody new is to be let in under a lease that long, in case the process dies
	}
	if queued {
		d.serve(now, n)
	}
	if e.place == leaves && n.lasts() && n.asked.IsZero() && n.failures == 0 {
		d.renew(now, n)
	}
}

// ends answers the request that releases an entry. One that downgrades it stays the request of the entry that
// reads.
func (d *Layer) ends(now time.Time, e *entry, code int) {
	if e.end.Script == lua.Convert {
		d.answer(now, e.end, protocol.Reply{Code: code, Delegation: e.name.delegation})
	} else {
		d.answer(now, e.end, protocol.Reply{Code: code})
	}
	e.place, e.end, e.ask = over, nil, nil
}

// downgrade handles a request to downgrade a claim. e is that of the claim that reads, or nil the first time.
func (d *Layer) downgrade(now time.Time, e *entry, r *engine.Request) {
	former := entryIn(r.FormerLayerData())
	switch {
	case former == nil && e == nil: // neither is held any more
		d.answer(now, r, protocol.Reply{Code: protocol.NotThere})
	case e == nil:
		n := former.name
		e = &entry{name: n, ask: r, mode: protocol.Read, since: now, extended: former.extended}
		former.extended, former.reads = false, e
		*r.LayerData() = e
		if former.place == remote {
			d.send(e)
			return
		}
		n.table.enter(e)
		e.rely(r)
		d.end(now, former, r)
	case e.place == remote:
		d.pass(r)
	case former == nil:
		d.keep(now, e, r)
	default:
		e.rely(r)
		d.end(now, former, r)
	}
}

// left answers the releases that came before a request was sent. The reply to that request says whether
// the delegation stood.
func (d *Layer) left(now time.Time, n *name, sent time.Time, code int) {
	later := slices.IndexFunc(n.leaving, func(e *entry) bool { return e.since.After(sent) })
	if later < 0 {
		later = len(n.leaving)
	}
	done := n.leaving[:later]
	n.leaving = slices.Clone(n.leaving[later:])
	for _, e := range done {
		d.ends(now, e, code)
	}
}

// emptied is called when the last hold has left, and nobody waits.
func (d *Layer) emptied(now time.Time, n *name) {
	switch n.state {
	case Live:
		d.idle.PushBack(n)
		if d.idle.Len() > mostIdle {
			d.recall(now, d.idle.First(), false)
		}
	case Recalled:
		d.giveBack(now, n)
	}
}

// keep handles a renewal of a hold.
func (d *Layer) keep(now time.Time, e *entry, r *engine.Request) {
	n, until := e.name, engine.Deadline(r.Sent, r.Extend)
	switch {
	case e.place != holds:
		d.answer(now, r, protocol.Reply{Code: protocol.NotThere})
	case r.Extend > 0 && until.After(n.until):
		n.waits, e.extended = append(n.waits, r), true
		if until.After(n.wanted) {
			n.wanted = until
			d.renew(now, n)
		}
	case !n.doubted.IsZero(), !n.until.After(e.until):
		n.waits = append(n.waits, r) // the delegation's own renewal is in flight, or fails
	default: // the hold lasts for its lease, or for as long as the delegation does
		e.rely(r)
		d.answer(now, r, protocol.Reply{Code: protocol.Done, Delegation: n.delegation})
	}
}

// What others see of delegations: suites, Inspect, observers, and the engine in replies about what is in its
// way.

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

// Reveal replaces, in the state of a lock, the delegation by the holders and waiters under it.
func (d *Layer) Reveal(now time.Time, name string, s *protocol.State) {
	n := d.names[d.engine.Keys(name).Lock]
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
		if n.table.writer != nil { // the token of readers before the first writer is not one of the delegation's
			s.Token = n.token
		}
	}
	s.Waiters = append(waiters, s.Waiters...)
}

// unmask replaces, in a reply, the delegation by a local hold under it.
func (d *Layer) unmask(now time.Time, r *engine.Request, reply *protocol.Reply) {
	if reply.Claim == "" {
		return
	}
	_, k, err := protocol.ClaimOf(reply.Claim)
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
	if n := d.numbers[k.Number]; n != nil && n.table.holders.Len() > 0 {
		h := n.table.holders.First().ask
		reply.Claim, reply.Holder = d.engine.ClaimOf(h), h.Owner()
	}
}

func (d *Layer) event(n *name, ev engine.Event) {
	if d.config.Observe {
		ev.Name, ev.Mode = n.name, n.mode
		d.engine.Report(ev)
	}
}
