package delegation

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// When the layer requests a delegation, how it gets it, and how it renews it.

// An own is what a request of the layer's is for.
type own struct {
	name   *name
	number uint64
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
	// A call waits here only if it would have to wait on the server, too.
	return !d.blocked(n, d.modeFor(e)) || d.blocked(n, e.mode) && !e.ask.Try && !now.Before(n.notGated)
}

// earn changes the credit of a name, and of all.
func (d *Layer) earn(n *name, credit int) {
	if d.config.Eager {
		return
	}
	n.credit = min(max(n.credit+credit, -mostCredit), mostCredit)
	d.credit = min(max(d.credit+credit, -mostOfAll), mostOfAll)
}

// charge notes a recall, a return for a call of the RWLock, or a refusal. It decides how many calls on
// the name must precede the next request.
func (d *Layer) charge(n *name) {
	d.earn(n, -cost)
	n.uses = 0
	if n.credit <= 0 {
		n.need = min(2*n.need+1, mostNeed)
	} else {
		n.need = 0
	}
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

// open is called when a claim on the server has ended. It asks for a delegation that calls wait for, once no
// claim of this RWLock blocks it.
func (d *Layer) open(now time.Time, n *name) {
	switch {
	case n.state != Gated:
	case !d.blocked(n, n.mode):
		d.take(now, n)
	default:
		n.retry = order.Earlier(now.Add(gatePatience), n.giveUp)
		d.schedule(n)
	}
}

// ungate has the server answer the calls that wait for a delegation. It counts the claims on the server: the
// engine may have left some to their leases, of which no reply tells.
func (d *Layer) ungate(now time.Time, n *name) {
	clear(n.out[:])
	n.counts++
	for _, data := range d.engine.LayerDataOf(n.name) {
		if e, ok := data.(*entry); ok && e.place == remote {
			e.goes()
		}
	}
	n.notGated = now.Add(gatePause)
	d.forget(n)
	d.unpark(n, d.send)
}

// take asks for the delegation.
func (d *Layer) take(now time.Time, n *name) {
	n.state, n.early, n.doubted = Asked, false, time.Time{}
	n.claim, n.number = d.engine.NewClaim(n.mode, d.slot, d.config.Owner)
	d.numbers[n.number] = n
	d.engine.Keep(n.name) // its calls are many, and short
	d.request(now, n, protocol.Request{Script: lua.Delegate, Lease: d.lease})
	d.schedule(n)
}

// granted takes the reply to the request for a delegation.
func (d *Layer) granted(now time.Time, n *name, r *engine.Request, reply protocol.Reply, err error) {
	n.asked, n.failures = time.Time{}, 0
	switch {
	case err != nil:
		d.giveBack(now, n) // it may have been granted
	case reply.Code != protocol.Done:
		d.leave(n)
		n.alternates = false
		d.charge(n)
		d.forget(n)
		d.unpark(n, d.send)
	default:
		n.state, n.used, n.recalled = Live, now, time.Time{}
		n.token, n.until = reply.Token, time.Time{}
		if n.mode == protocol.Write {
			n.token-- // it is the first writer's
		}
		d.tokens(n, reply.Top)
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
			d.renew(now, n)
			return
		}
		d.schedule(n)
	}
	d.routeCalls(now, n)
}

// leave is called when a delegation has ended, or was refused.
func (d *Layer) leave(n *name) {
	delete(d.numbers, n.number)
	d.engine.Leave(n.name)
}

// extend notes until when a delegation lasts by a request that has succeeded.
func (d *Layer) extend(n *name, r *engine.Request) {
	if until := engine.Deadline(r.Sent, r.Lease.Duration); !until.Before(n.until) {
		n.delegation, n.until = protocol.Delegation{Sent: r.Sent, Lease: r.Lease.Duration}, until
	}
}

// renew renews a delegation. It lasts at least as long as the layer relies on it, and as the holds were
// extended.
func (d *Layer) renew(now time.Time, n *name) {
	lease := d.lease
	if need := engine.LeaseFor(order.Later(n.until, n.wanted).Sub(now)); need > lease.Duration {
		lease = protocol.NewLease(need)
	}
	d.request(now, n, protocol.Request{Script: lua.Delegate, Lease: lease, Keep: true, Used: n.tells})
	d.schedule(n)
}

// doubt has a delegation renewed before it is used again.
func (d *Layer) doubt(now time.Time, n *name) {
	n.doubted = now
	d.renew(now, n)
}

// exhausted has a delegation renewed, for more tokens, before it is used again.
func (d *Layer) exhausted(now time.Time, n *name) {
	if n.asked.IsZero() {
		d.doubt(now, n)
	}
	n.doubted = n.asked
}

// tokens notes the last token that a reply allows.
func (d *Layer) tokens(n *name, top int64) {
	n.top = max(n.top, top)
	n.low = n.token + (n.top-n.token)/2
}

// kept takes the reply to a renewal.
func (d *Layer) kept(now time.Time, n *name, r *engine.Request, reply protocol.Reply, err error) {
	if !now.Before(n.until) {
		d.lapse(now, n) // what is due comes first
		return
	}
	latest := !r.Sent.Before(n.asked) // or else another is in flight
	switch {
	case err != nil && latest:
		d.fail(now, n)
		d.schedule(n)
		waits := n.waits
		n.waits = nil
		for _, r := range waits { // the engine reports it, and asks again
			d.engine.Replied(now, r, protocol.Reply{}, err)
		}
		return
	case err != nil:
		return
	case latest:
		n.asked, n.failures = time.Time{}, 0
	}
	if reply.Code != protocol.Done {
		d.lapse(now, n) // if only its lease has ended, the return confirms the releases all the same
		return
	}
	d.left(now, n, r.Sent, protocol.Done)
	d.extend(n, r)
	d.tokens(n, reply.Top)
	n.tells = n.tells && !r.Used
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
	switch {
	case reply.Recalled && n.state == Live:
		d.recall(now, n, true)
		d.tell(now, n) // the message is lost, and may have been a try's
	case latest && n.mode == protocol.Write && n.token >= n.top:
		d.recall(now, n, false) // the server's clock was set back, and only the server has more tokens
	}
	if n.state == Live && n.doubted.IsZero() {
		d.routeCalls(now, n)
		d.serve(now, n)
	}
	if len(n.leaving) > 0 && n.lasts() && n.asked.IsZero() {
		d.renew(now, n)
	}
	d.schedule(n)
}

func (d *Layer) request(now time.Time, n *name, p protocol.Request) {
	p.Claim, p.Again = n.claim, !n.asked.IsZero() || n.failures > 0
	n.asked = now
	d.pass(d.engine.Request(now, n.name, p, &own{n, n.number}))
}

func (d *Layer) fail(now time.Time, n *name) {
	n.asked = time.Time{}
	n.failures++
	n.retry = now.Add(min(firstRetry<<min(n.failures-1, 10), lastRetry))
}

func (d *Layer) renewAt(n *name) time.Time {
	switch {
	case !n.asked.IsZero():
		return n.asked.Add(d.patience())
	case n.failures > 0:
		return n.retry
	}
	return n.delegation.Sent.Add(d.lease.Duration / renewAfter)
}

// patience returns how long a request may stay without an answer.
func (d *Layer) patience() time.Duration { return max(d.lease.Duration/resendAfter, firstRetry) }
