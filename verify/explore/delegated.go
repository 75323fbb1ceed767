package main

import (
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// delegationLease is that of delegations, and of holds beside them.
const delegationLease = 3 * time.Second

// A memory is the layer of a client to which one server may delegate the lock.
type memory struct {
	*delegation.Layer
	Recalled []uint64  // the delegations that it has learned the recall of
	Dropped  uint64    // the delegation that was dropped by force, perhaps, without the layer knowing; or 0
	At       time.Time // when
}

func newMemory(e *engine.Engine, i int) *memory {
	return &memory{Layer: delegation.New(delegation.Config{Instance: instanceOf(i),
		Owner: protocol.Owner{Process: uuids}, Lease: delegationLease, Hold: delegationLease, Eager: true}, e)}
}

// tagType returns the type of what a layer notes of its own requests.
func tagType() reflect.Type {
	e := engine.New(engine.Config{Prefix: prefix, Instance: nobody, Lease: delegationLease})
	m := newMemory(e, 0)
	m.Layer.Subscribed(epoch)
	e.Acquire(epoch, &engine.Hold{Name: names[0], Mode: protocol.Write, Lease: delegationLease})
	var fx engine.Effects
	m.Layer.Flush(epoch, &fx)
	return reflect.TypeOf(fx.Send[0].Tag).Elem()
}

func (m *memory) Flush(now time.Time, to *quorum.Effects) { m.Layer.Flush(now, &to.Effects) }

func (m *memory) Replied(now time.Time, f *journey, raw any, err error) {
	var reply protocol.Reply
	if err == nil {
		reply, err = protocol.Decode(f.R.Script, raw)
	}
	m.Recalled = append(append(m.Recalled, reply.Message.Recalled...), reply.Message.Tried...)
	if reply.Recalled {
		_, k, _ := protocol.ClaimOf(f.R.Claim.ID)
		m.Recalled = append(m.Recalled, k.Number)
	}
	m.Layer.Replied(now, f.Of, reply, err)
}

func (m *memory) Heard(now time.Time, _ int, payload string) {
	msg, _ := protocol.ParseMessage(payload)
	m.Recalled = append(append(m.Recalled, msg.Recalled...), msg.Tried...)
	m.Layer.Heard(now, payload)
}

func (m *memory) Subscribed(now time.Time, _ int)              { m.Layer.Subscribed(now) }
func (m *memory) Unsubscribed(now time.Time, _ int, err error) { m.Layer.Unsubscribed(now, err) }

// relied calls each for every hold that is relied on, with its claim.
func (p *client) relied(at time.Time, each func(*call, engine.View)) {
	for _, v := range p.Engine.Views() {
		for _, l := range p.Calls {
			if v.State == engine.Held && l.relies(at) && slices.Contains(v.Holds, l.Hold) {
				each(l, v)
			}
		}
	}
}

// delegation returns the delegation, or zero: there is one name.
func (m *memory) delegation() (d delegation.View) {
	for _, d = range m.Views() {
	}
	return d
}

// check checks a client after something has happened to it: no hold outlasts the delegation that it is under
// (D1), none is granted once the client has learned of the recall (D3), and none is left when the delegation
// is returned (D4).
func (m *memory) check(p *client, granted uint32, at time.Time) (err error) {
	d := m.delegation()
	recalled := slices.Contains(m.Recalled, d.Number)
	if m.Recalled = nil; recalled {
		m.Recalled = []uint64{d.Number}
	}
	if m.Dropped != d.Number {
		m.Dropped, m.At = 0, time.Time{}
	}
	p.relied(at, func(l *call, v engine.View) {
		if v.Delegated && d.Number == m.Dropped && !l.Dropped {
			l.Dropped, l.Drops, l.DropsAt = true, 1, m.At
		}
		switch {
		case !v.Delegated:
		case d.State != delegation.Live && d.State != delegation.Recalled:
			err = errors.New("a delegation is returned while a hold is left under it")
		case l.Hold.Deadline().After(d.Until):
			err = errors.New("a hold outlasts the delegation that it is under")
		case recalled && granted>>slices.Index(p.Calls, l)&1 != 0:
			err = errors.New("a call is granted the lock under a delegation after its recall")
		}
	})
	return err
}

// holders returns who holds the lock, as the server sees it.
func (e *parliament) holders(s *store, at time.Time) []protocol.Holder {
	state, err := protocol.DecodeState(e.run(s, &protocol.Request{Script: lua.Inspect, Keys: keys}, at).reply)
	if err != nil {
		panic(err)
	}
	return state.Holders
}

// delegate returns the number of the delegation that a client has, as the server sees it, or 0.
func (e *parliament) delegate(s *store, at time.Time, client int) (number int) {
	if !e.delegated {
		return 0
	}
	for _, h := range e.holders(s, at) {
		if h.Delegated() && h.Instance == instanceOf(client) {
			number = int(h.Number)
		}
	}
	return number
}

// kept checks that the server keeps what clients rely on, for at least as long (D2).
func (e *parliament) kept(w *world) (err error) {
	for i, n := range w.clients {
		m, ok := n.p.Layer.(*memory)
		if !ok {
			continue
		}
		n.p.relied(w.at, func(l *call, v engine.View) {
			if v.Delegated {
				v.Number, v.Former = m.delegation().Number, 0
			}
			if !l.Dropped && !slices.ContainsFunc(e.holders(w.stores[0], w.at), func(h protocol.Holder) bool {
				return h.Instance == instanceOf(i) && (h.Number == v.Number || h.Number == v.Former) &&
					h.Lease >= l.Hold.Deadline().Sub(w.at)
			}) {
				err = errors.New("a client relies on a hold that the server does not keep")
			}
		})
	}
	return err
}
