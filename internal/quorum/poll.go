package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A poll is a request to all servers, such as ForceUnlock. It is over when a majority has answered and the others have answered
// or are suspected, or when no request is under way any more.
type poll struct {
	open []bool // by server: it has not answered
	done int
	err  error       // the last that a server has answered with, or that a request failed with
	end  func(error) // called when it is over
}

// poll sends all servers what request returns for each. It also asks for the marks that are not known: they say which server is the
// home of a name, and how many servers vote.
func (q *Quorum) poll(now time.Time, end func(error), request func(i int) *Request) *poll {
	q.readMarks(now)
	p := &poll{open: make([]bool, len(q.servers)), end: end}
	q.polls = append(q.polls, p)
	for i := range q.servers {
		r := request(i)
		r.poll, p.open[i] = p, true
		q.send(now, i, r)
	}
	return p
}

// polled counts the reply of a server to a poll.
func (q *Quorum) polled(r *Request, err error) {
	p := r.poll
	p.open[r.Server] = false
	if err == nil {
		p.done++
	} else {
		p.err = err
	}
	q.finishPolls()
}

// finishPolls ends the polls that are over.
func (q *Quorum) finishPolls() {
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
			p.end(q.noMajority())
		}
	}
}

// force drops every hold at all servers. It waits for every server that is not suspected, so that no request drops later holds.
func (q *Quorum) force(now time.Time, r *engine.Request) {
	lk := q.use(r.Keys)
	end := func(err error) { q.answer(now, r, protocol.Reply{Code: protocol.Done}, err) }
	q.poll(now, end, func(i int) *Request {
		q.numbers++
		slot := lk.slots[i].take()
		lk.refs++
		return &Request{
			Request: protocol.Request{Script: lua.Force, Keys: lk.keys, Channels: q.channels,
				Claim: protocol.NewClaim(protocol.Write, q.instance, slot, q.numbers, protocol.Owner{})},
			kind: forces, lock: lk, slot: slot,
		}
	})
	q.release(lk)
}

// forced handles the reply to force.
func (q *Quorum) forced(r *Request, err error) {
	if err == nil { // or else nobody knows whether the request may yet run
		r.lock.slots[r.Server].free = append(r.lock.slots[r.Server].free, r.slot)
	}
	q.release(r.lock)
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
	lk := q.use(protocol.KeysOf(q.prefix, name))
	end := func(err error) {
		if x.Err = err; err == nil {
			x.State = protocol.Join(x.states, q.home(lk, nil))
		}
		q.release(lk)
		q.out.Inspected = append(q.out.Inspected, x)
	}
	q.poll(now, end, func(int) *Request {
		return &Request{Request: protocol.Request{Script: lua.Inspect, Keys: lk.keys}, kind: inspects, view: x}
	})
}

// viewed handles the reply to Inspect.
func (q *Quorum) viewed(r *Request, state *protocol.State, err error) {
	if err == nil {
		r.view.states[r.Server] = state
	}
	q.polled(r, err)
}
