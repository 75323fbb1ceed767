package delegation

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

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
		if n.mode == protocol.Write {
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
		reply.Claim, reply.Holder = d.engine.ClaimOf(h), h.Owner()
	}
}

func (d *Layer) event(n *name, ev engine.Event) {
	if d.config.Observe {
		ev.Name, ev.Mode = n.name, n.mode
		d.engine.Report(ev)
	}
}
