package sim

import (
	"math/rand/v2"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// A below is what is below the layers of a node: a server, or several that vote. i is the index of a server.
type below interface {
	flush(now time.Time) engine.Effects // sends what is to be sent, and returns what else is to be done
	Subscribed(now time.Time, i int)
	Unsubscribed(now time.Time, i int, err error)
	Heard(now time.Time, i int, message string)
	Tick(now time.Time)
	Next() (time.Time, bool)
	Idle() bool
}

// oneServer is a node over one server.
type oneServer node

func (o *oneServer) Subscribed(now time.Time, _ int)              { o.layer.Subscribed(now) }
func (o *oneServer) Unsubscribed(now time.Time, _ int, err error) { o.layer.Unsubscribed(now, err) }
func (o *oneServer) Heard(now time.Time, _ int, message string)   { o.layer.Heard(now, message) }
func (o *oneServer) Tick(now time.Time)                           { o.layer.Tick(now) }
func (o *oneServer) Next() (time.Time, bool)                      { return o.layer.Next() }
func (o *oneServer) Idle() bool                                   { return o.layer.Idle() }

func (o *oneServer) flush(now time.Time) (fx engine.Effects) {
	o.layer.Flush(now, &fx)
	for _, r := range fx.Send {
		o.wires[0].send(&r.Request, func(now time.Time, raw any, err error) {
			var reply protocol.Reply
			if err == nil {
				if reply, err = protocol.Decode(r.Script, raw); err != nil {
					o.w.Violation("server: %s replies %v: %v", r.Script.Name, raw, err)
				}
			}
			o.layer.Replied(now, r, reply, err)
		})
	}
	if fx.Relisten {
		o.w.Note("a subscription is given up for deaf")
		o.wires[0].lose(nil)
	}
	return fx
}

// voters are the servers of a node that vote.
type voters struct {
	n *node
	*quorum.Quorum
}

func (v *voters) flush(now time.Time) engine.Effects {
	var fx quorum.Effects
	v.Flush(now, &fx)
	for _, r := range fx.Requests {
		v.n.wires[r.Server].send(&r.Request, func(now time.Time, raw any, err error) {
			v.Replied(now, r, raw, err)
		})
	}
	return fx.Effects
}

// mend has a node reach all servers, or, where nodes are apart, all but one.
func (n *node) mend() {
	for i, w := range n.wires {
		misses := n.apart && i == int(n.process[0])%len(n.wires)
		w.upLost, w.downLost = misses, misses
		w.lose(errBroken) // nothing can be relied on that came meanwhile
	}
}

// troubles are what may happen to servers that vote, to no more than a minority at a time.
func (t *table) troubles(rng *rand.Rand) (acts []func()) {
	c := t.w.climate
	few := func() (some []*server) {
		for _, i := range rng.Perm(len(t.servers))[:1+rng.IntN(len(t.servers)/2)] {
			some = append(some, t.servers[i])
		}
		return some
	}
	pause := func() { t.sleep(time.Duration(rng.Int64N(int64(3 * t.w.lease)))) }
	if c.Restarts {
		acts = append(acts, func() { // with their data
			some := few()
			for _, s := range some {
				t.restart(s)
				s.down = true
			}
			pause()
			for _, s := range some {
				t.w.Note("server %d is up", s.index)
				s.down = false
			}
		})
	}
	if c.Empties {
		acts = append(acts, func() {
			if !t.allVote() {
				return
			}
			restarts := rng.IntN(2) > 0 // or else its clients do not notice
			for _, s := range few() {
				if restarts {
					t.restart(s)
				}
				t.w.Note("server %d has lost its data", s.index)
				s.Mini.FlushAll()
			}
		})
	}
	if c.Pauses {
		acts = append(acts, func() {
			some := few()
			for _, s := range some {
				t.w.Note("server %d stands still", s.index)
				s.frozen = true
			}
			pause()
			for _, s := range some {
				t.w.Note("server %d goes on", s.index)
				gate := s.gate
				s.frozen, s.gate = false, nil
				for _, fn := range gate {
					fn()
				}
			}
		})
	}
	if c.Partitions {
		acts = append(acts, func() {
			n := t.nodes[rng.IntN(len(t.nodes))]
			up, down := rng.IntN(3) > 0, rng.IntN(3) > 0
			for _, i := range rng.Perm(len(n.wires))[:1+rng.IntN(len(n.wires)-1)] {
				t.w.Note("%s and server %d: lost to it %v, from it %v", n.engine.Channel(), i, up, down)
				n.wires[i].upLost, n.wires[i].downLost = up, down
			}
			pause()
			n.mend()
		})
	}
	return acts
}

// restart breaks all connections to a server.
func (t *table) restart(s *server) {
	t.w.Note("server %d is restarted", s.index)
	s.gate = nil
	for _, n := range t.nodes {
		n.wires[s.index].cut()
	}
}

// allVote reports whether all servers vote: then a minority of them may lose its data.
func (t *table) allVote() bool {
	generation := ""
	for i, m := range t.minis() {
		g := m.HGet(mark, "generation")
		if g == "" || i > 0 && g != generation {
			return false
		}
		generation = g
	}
	return true
}
