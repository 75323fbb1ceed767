package delegation

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a delegation ends: by a recall, or by the end of its lease.

// recalled recalls the delegations that a message names, if they stand. others is as in recall.
func (d *Layer) recalled(now time.Time, m protocol.Message, others bool) {
	for i, number := range slices.Concat(m.Recalled, m.Tried) {
		switch n := d.numbers[number]; {
		case n == nil:
		case n.state == Asked:
			n.early = true
		default:
			d.recall(now, n, others)
			if i >= len(m.Recalled) {
				d.tell(now, n)
			}
		}
	}
}

// tell says that the lock is held under a delegation, for which a try waits.
func (d *Layer) tell(now time.Time, n *name) {
	if n.state == Recalled && !n.tells {
		n.tells = true
		d.renew(now, n)
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
		e.goes()
		d.engine.Again(now, e.ask)
	}
	n.table.owed = 0
	for _, r := range d.engine.Requests(nil) { // before those of the calls that came later
		d.handle(now, r)
	}
	d.routeCalls(now, n)
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
		e.goes() // the server knows nothing of it, and says so
		d.engine.Lose(now, e.ask)
	}
	d.giveBack(now, n)
	d.handOver(now, n)
}

// giveBack returns a delegation.
func (d *Layer) giveBack(now time.Time, n *name) {
	n.state, n.waits, n.doubted = Returning, nil, time.Time{}
	n.asked, n.failures = time.Time{}, 0
	n.giveUp = now.Add(max(n.delegation.Lease, d.lease.Duration, engine.EndTimeout))
	d.sendReturn(now, n)
}

func (d *Layer) sendReturn(now time.Time, n *name) {
	d.request(now, n, protocol.Request{Script: lua.Return})
	d.schedule(n)
}

// returned takes the reply to a return.
func (d *Layer) returned(now time.Time, n *name, reply protocol.Reply, err error) {
	switch {
	case d.closed && protocol.IsClientClosed(err):
		d.stranded, d.strandedBy = d.stranded+1, err
		d.ended(now, n, false)
	case err != nil:
		d.fail(now, n)
		d.schedule(n)
	default:
		d.left(now, n, now, min(reply.Code, protocol.Done))
		d.ended(now, n, true)
	}
}

// ended ends a return, after the server has confirmed it or can no longer keep the delegation.
func (d *Layer) ended(now time.Time, n *name, confirmed bool) {
	if !confirmed {
		d.slot++ // a late request may come for this one
		for _, e := range n.leaving {
			e.goes() // the server knows nothing of it, and says so
			d.pass(e.end)
		}
		n.leaving = nil
	}
	d.leave(n)
	var took time.Duration
	if !n.recalled.IsZero() {
		took = now.Sub(n.recalled)
		d.charge(n)
		if n.credit <= 0 {
			n.notBefore = now.Add(pause * took)
		}
	}
	d.event(n, engine.Event{Kind: engine.Returned, Took: took})
	n.recalled, n.delegation, n.until, n.wanted = time.Time{}, protocol.Delegation{}, time.Time{}, time.Time{}
	n.token, n.top, n.tells = 0, 0, false
	d.forget(n)
}

// forget notes that there is no delegation.
func (d *Layer) forget(n *name) {
	n.state, n.asked, n.failures, n.early = None, time.Time{}, 0, false
	d.timed.Remove(n)
	d.remember(n)
}

// remember keeps a name without a delegation, in place of the one that was used the longest ago.
func (d *Layer) remember(n *name) {
	d.known.PushBack(n)
	if d.known.Len() > mostKnown {
		oldest := d.known.First()
		d.known.Remove(oldest)
		delete(d.names, oldest.key)
	}
}
