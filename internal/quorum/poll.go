package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A poll is a question to all servers that is no matter of a vote. It is over when a majority has answered, and so have the others
// that answer anybody; or when nobody is left to answer.
type poll struct {
	open []bool // by server: it has yet to answer
	done int
	err  error       // the last that a server has answered with, or that a request failed with
	end  func(error) // called when it is over
}

// poll sends all servers what request returns for each.
func (q *Quorum) poll(now time.Time, end func(error), request func(i int) *Request) *poll {
	p := &poll{open: make([]bool, len(q.servers)), end: end}
	q.polls = append(q.polls, p)
	for i := range q.servers {
		r := request(i)
		r.poll, p.open[i] = p, true
		q.send(now, i, r)
	}
	return p
}

// polled takes a server's answer to a poll.
func (q *Quorum) polled(r *Request, err error) {
	p := r.poll
	p.open[r.Server] = false
	if err == nil {
		p.done++
	} else {
		p.err = err
	}
	q.judgePolls()
}

// judgePolls ends the polls that are over.
func (q *Quorum) judgePolls() {
	var over []*poll
	q.polls = slices.DeleteFunc(q.polls, func(p *poll) bool {
		open, slow := 0, 0
		for i, s := range q.servers {
			switch {
			case p.open[i] && s.suspected:
				slow++
			case p.open[i]:
				open++
			}
		}
		if open > 0 || slow > 0 && p.done < q.majority {
			return false
		}
		over = append(over, p)
		return true
	})
	for _, p := range over {
		switch {
		case p.done >= q.majority:
			p.end(nil)
		case p.err != nil && !protocol.Passing(p.err):
			p.end(p.err)
		default:
			p.end(q.few())
		}
	}
}

// force drops every hold at all servers. It ends when nobody is left who might drop one of those that come after.
func (q *Quorum) force(now time.Time, r *engine.Request) {
	rm := q.use(r.Keys)
	end := func(err error) { q.answer(now, r, protocol.Reply{Code: protocol.Done}, err) }
	q.poll(now, end, func(i int) *Request {
		q.numbers++
		slot := rm.slots[i].take()
		rm.refs++
		return &Request{
			Request: protocol.Request{Script: lua.Force, Keys: rm.keys, Channels: q.channels,
				Claim: protocol.NewClaim(protocol.Write, q.instance, slot, q.numbers, protocol.Owner{})},
			kind: forces, lock: rm, slot: slot,
		}
	})
	q.leave(rm)
}

func (q *Quorum) forced(r *Request, err error) {
	if err == nil { // or else nobody knows whether the request may yet run
		r.lock.slots[r.Server].free = append(r.lock.slots[r.Server].free, r.slot)
	}
	q.leave(r.lock)
	q.polled(r, err)
}

// An Inspection is a call that asks what the servers know of a lock.
type Inspection struct {
	Tag   any // the caller's own
	State protocol.State
	Err   error

	states []*protocol.State // by server; nil of one that has not said
}

// Inspect asks all servers what they know of a lock.
func (q *Quorum) Inspect(now time.Time, name string, tag any) {
	x := &Inspection{Tag: tag, states: make([]*protocol.State, len(q.servers))}
	q.learn(now) // which server is the name's home
	rm := q.use(protocol.KeysOf(q.prefix, name))
	end := func(err error) {
		if x.Err = err; err == nil {
			x.State = protocol.Join(x.states, q.home(rm))
		}
		q.leave(rm)
		q.out.Inspected = append(q.out.Inspected, x)
	}
	q.poll(now, end, func(int) *Request {
		return &Request{Request: protocol.Request{Script: lua.Inspect, Keys: rm.keys}, kind: inspects, view: x}
	})
}

func (q *Quorum) viewed(r *Request, state *protocol.State, err error) {
	if err == nil {
		r.view.states[r.Server] = state
	}
	q.polled(r, err)
}
