package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// A client is an engine and the layer below it, and what of the network concerns them. As a process, it
// changes by events, each of which makes another client of it.
type client struct {
	Engine  *engine.Engine
	Layer   layer
	Calls   []*call
	Flights []*journey // requests that the quorum waits for, in the order in which they were sent
	Copies  []stray    // requests in flight that it does not wait for
	Inbox   []letter   // messages in flight
	Listens bool
	Cut     []bool // by server
	Crashed bool
	Stalled bool
}

// A layer is what an engine has below it: a majority, or a memory.
type layer interface {
	Flush(now time.Time, to *quorum.Effects)
	Replied(now time.Time, f *journey, reply any, err error)
	Heard(now time.Time, server int, payload string)
	Subscribed(now time.Time, server int)
	Unsubscribed(now time.Time, server int, err error)
	Tick(now time.Time)
	Next() (at time.Time, ok bool)
}

// A majority is the layer of a client of a quorum.
type majority struct{ *quorum.Quorum }

func (m *majority) Replied(now time.Time, f *journey, reply any, err error) {
	m.Quorum.Replied(now, f.R, reply, err)
}

// A call is one of Lock, RLock or their tries, and the hold that it brings.
type call struct {
	Hold    *engine.Hold // nil until it begins
	Mode    engine.Mode
	Try     bool
	Granted bool
	GaveUp  bool
	Dropped bool      // by force, perhaps
	Drops   int       // how many servers have dropped it by force at one moment, while it was relied on
	DropsAt time.Time // then
}

// A journey is a request to a server that the quorum waits for.
type journey struct {
	R     *quorum.Request
	Of    *engine.Request // that it is, of a client to which the lock may be delegated; or nil
	Late  bool            // it may run at any time, or fail
	Lost  bool            // it has run, and its reply is lost
	Reply string          // names the reply that waits for a client that stands still; or ""
}

// A stray is a request to a server whose reply nobody waits for.
type stray struct {
	Server int
	R      protocol.Request
}

// A letter is a message of a server's channel.
type letter struct {
	Server int
	Text   string
	Late   bool // it may be heard at any time
}

// A deed is what happens to a client.
type deed struct {
	do    verb
	at    time.Time
	a     int    // which call, flight, stray or letter; or server
	text  string // a message
	reply string // names a reply, which is in rep
}

// A peer is the node of a client, and an outcome what becomes of one.
type (
	peer    = node[client]
	outcome = change[client]
)

// mostClients bounds the clients that are remembered: each takes about 15 KB.
const mostClients = 100_000

func (e *parliament) newClient(i int) *client {
	c := &client{Cut: make([]bool, e.servers)}
	c.Engine = engine.New(engine.Config{Prefix: prefix, Instance: instanceOf(i), Lease: e.lease})
	if e.delegated {
		c.Layer = newMemory(c.Engine, i)
	} else {
		c.Layer = &majority{quorum.New(quorum.Config{Servers: e.servers, Prefix: prefix, Instance: instanceOf(i)},
			c.Engine)}
	}
	return c
}

// look takes a look at a client.
func (e *parliament) look(n *peer) {
	if !n.p.Crashed {
		n.next, _ = n.p.Layer.Next()
	}
}

// play has something happen to a client.
func (e *parliament) play(p *client, d deed, c *outcome) {
	defer func() {
		if r := recover(); r != nil {
			c.flaw = fmt.Errorf("a panic: %v", r)
		}
	}()
	p.do(d, e)
	if p.runs() {
		p.settle(d.at, e, c)
		if m, ok := p.Layer.(*memory); ok {
			c.flaw = cmp.Or(c.flaw, m.check(p, c.granted, d.at))
		}
	}
}

// runs reports whether a client neither is dead nor stands still.
func (p *client) runs() bool { return !p.Crashed && !p.Stalled }

func (p *client) do(d deed, e *parliament) {
	switch d.do {
	case acquire:
		c := p.Calls[d.a]
		handle := uint8(d.a)
		if e.reenter {
			handle = 0
		}
		c.Hold = &engine.Hold{Name: names[0], Owner: owner(handle), Mode: c.Mode, Try: c.Try,
			Lease: e.lease, Bounded: true, NewOwner: !e.reenter}
		p.Engine.Acquire(d.at, c.Hold)
	case release:
		_, _ = p.Engine.Release(d.at, p.Calls[d.a].Hold)
		p.Calls[d.a].Granted = false
	case downgrade:
		c := p.Calls[d.a]
		read := *c
		read.Hold, read.Mode = &engine.Hold{}, engine.Mode(protocol.Read)
		_, _ = p.Engine.Downgrade(d.at, c.Hold, read.Hold)
		c.Granted = false
		p.Calls = slices.Insert(p.Calls, d.a+1, &read)
	case giveUp:
		p.Calls[d.a].GaveUp = true
		p.Engine.GiveUp(d.at, p.Calls[d.a].Hold, errGaveUp)
	case reply:
		f, raw := takeOut(&p.Flights, d.a), e.replies[d.reply]
		if !e.tries && !e.delegated && !e.plain { // who is in the way makes no difference
			raw = withoutObstacle(raw)
		}
		p.Layer.Replied(d.at, f, raw, nil)
	case fail:
		f := takeOut(&p.Flights, d.a)
		if f.Late {
			p.Copies = append(p.Copies, stray{f.R.Server, f.R.Request})
		}
		p.Layer.Replied(d.at, f, nil, errNetwork)
	case slowDown:
		p.Flights[d.a].Late = true
	case loseReply:
		p.Flights[d.a].Lost = true
	case keep:
		f := p.Flights[d.a]
		p.Copies = append(p.Copies, stray{f.R.Server, f.R.Request})
	case ran:
		takeOut(&p.Copies, d.a)
	case send:
		if p.Listens && !p.Cut[d.a] && !p.Crashed {
			p.Inbox = append(p.Inbox, letter{Server: d.a, Text: d.text})
		}
	case hear:
		l := takeOut(&p.Inbox, d.a)
		p.Layer.Heard(d.at, l.Server, l.Text)
	case hearLater:
		p.Inbox[d.a].Late = true
	case hearTwice:
		p.Inbox[d.a].Late = true
		p.Layer.Heard(d.at, p.Inbox[d.a].Server, p.Inbox[d.a].Text)
	case miss:
		takeOut(&p.Inbox, d.a)
	case doDue:
		p.Layer.Tick(d.at)
	case crash:
		p.die()
	case force:
		_ = p.Engine.Force(d.at, names[0], 0, nil)
	case dropped:
		if m, ok := p.Layer.(*memory); ok {
			m.Dropped, m.At = uint64(d.a), d.at
		}
		for _, l := range p.Calls {
			l.Dropped = l.Dropped || l.Hold != nil && !l.over()
			switch {
			case !l.relies(d.at):
			case d.at.Equal(l.DropsAt):
				l.Drops++
			default:
				l.Drops, l.DropsAt = 1, d.at
			}
		}
	case sleep:
		p.Stalled = true
	case wake:
		p.Stalled = false
		if d.a == 0 { // or else what comes is first, and then what is due
			p.Layer.Tick(d.at)
		}
	case holdReply:
		p.Flights[d.a].Reply = d.reply
	case reconnect:
		for i := 0; i < len(p.Flights); {
			if f := p.Flights[i]; f.R.Server == d.a && !f.Late {
				takeOut(&p.Flights, i)
				p.Layer.Replied(d.at, f, nil, errNetwork)
			} else {
				i++
			}
		}
		p.subscribeAnew(d)
	case cut:
		p.Cut[d.a] = true
		p.Inbox = slices.DeleteFunc(p.Inbox, func(l letter) bool { return l.Server == d.a })
	case mend:
		p.Cut[d.a] = false
		p.subscribeAnew(d)
	}
}

// withoutObstacle leaves out of a reply who is in the way, which matters to tries alone.
func withoutObstacle(raw any) any {
	list, ok := raw.([]any)
	if !ok || len(list) < 8 || list[0] != "" {
		return raw
	}
	list = slices.Clone(list)
	list[5], list[6], list[7] = int64(0), "", ""
	return list
}

func (p *client) subscribeAnew(d deed) {
	p.Inbox = slices.DeleteFunc(p.Inbox, func(l letter) bool { return l.Server == d.a })
	if p.Listens {
		p.Layer.Unsubscribed(d.at, d.a, nil)
		p.Layer.Subscribed(d.at, d.a)
	}
}

// die leaves of a client what it has sent.
func (p *client) die() {
	left := &client{Copies: p.Copies, Cut: p.Cut, Crashed: true}
	for _, f := range p.Flights {
		if !f.Lost && f.Reply == "" {
			left.Copies = append(left.Copies, stray{f.R.Server, f.R.Request})
		}
	}
	*p = *left
}

// settle carries out what the quorum wants done.
func (p *client) settle(at time.Time, e *parliament, c *outcome) {
	for again := true; again; {
		again = false
		var fx quorum.Effects
		p.Layer.Flush(at, &fx)
		for _, r := range fx.Requests {
			p.Flights = append(p.Flights, &journey{R: r})
		}
		for _, r := range fx.Send {
			p.Flights = append(p.Flights, &journey{R: &quorum.Request{Request: r.Request}, Of: r})
		}
		if fx.Listen && !p.Listens {
			p.Listens, again = true, true
			for i := range p.Cut {
				if !p.Cut[i] {
					p.Layer.Subscribed(at, i)
				}
			}
		}
		for _, h := range fx.Cancel {
			c.lost = true
			p.callOf(h).Granted = false
			if !errors.Is(h.Err(), engine.ErrLost) {
				c.flaw = cmp.Or(c.flaw, fmt.Errorf("a hold ends with %w", h.Err()))
			}
		}
	}
	for k, l := range p.Calls {
		switch {
		case l.Hold == nil:
		case l.Drops == e.servers && l.relies(at) && l.Hold.Deadline().After(l.DropsAt.Add(e.lease)):
			c.flaw = cmp.Or(c.flaw, errors.New("a client goes on to rely on a hold that was dropped"))
		case l.Hold.State() == engine.Live && !l.Granted:
			entered := slices.ContainsFunc(p.Calls, func(o *call) bool {
				return o != l && o.Hold != nil && (o.Hold.ClaimNumber() == l.Hold.ClaimNumber() ||
					o.Hold.Owner == l.Hold.Owner && o.relies(at))
			})
			l.Granted = true
			if !at.Before(l.Hold.Deadline()) {
				c.flaw = cmp.Or(c.flaw, errors.New("a call returns a hold that is over"))
			}
			if !entered { // or else it has the outer one's token, and needs no new grant
				c.granted |= 1 << k
			}
		case l.Hold.State() == engine.Failed && !l.GaveUp && !errors.Is(l.Hold.Err(), engine.ErrUpgrade) &&
			!(l.Try && errors.Is(l.Hold.Err(), engine.ErrLocked)):
			c.lost = true
		case l.Hold.State() == engine.Finished && l.Hold.Err() != nil:
			c.lost = true
		}
	}
}

func (p *client) callOf(h *engine.Hold) *call {
	return p.Calls[slices.IndexFunc(p.Calls, func(l *call) bool { return l.Hold == h })]
}

// relies reports whether the caller may rely on its hold.
func (l *call) relies(at time.Time) bool {
	return l.Hold != nil && l.Granted && l.Hold.State() == engine.Live && at.Before(l.Hold.Deadline())
}

// over reports whether a call has ended, and what it brought was released.
func (l *call) over() bool {
	if l.Hold == nil {
		return true
	}
	s := l.Hold.State()
	return s == engine.Failed || s == engine.Finished || s == engine.Lapsed
}
