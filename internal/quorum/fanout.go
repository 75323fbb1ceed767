package quorum

import (
	"fmt"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A fanout is a request of the engine that goes to several servers, and that a majority decides: a renewal, a
// change of the number of holds, a release, ForceUnlock or Inspect.
type fanout struct {
	kind    kind            // of the requests to the servers
	request *engine.Request // the request that it answers; nil for Inspect
	bid     *bid            // of a release, or a change of the number of holds
	view    *Inspection     // of Inspect
	home    int             // a server whose answer is awaited, since it lets in the next claim; or -1
	answers []answer        // by server
	asked   []*Request      // by server, of a fan-out to all
	err     error           // of a failed request, preferably one that is not temporary
	over    bool
}

// An answer is the state of one request of a fan-out.
type answer uint8

const (
	unasked answer = iota
	open           // no answer yet
	agreed
	lacking // the server has no such vote
	failed
)

func (q *Quorum) newFanout(k kind, r *engine.Request) *fanout {
	return &fanout{kind: k, request: r, home: -1, answers: make([]answer, len(q.servers))}
}

// counted records a server's answer.
func (q *Quorum) counted(now time.Time, x *fanout, i int, reply protocol.Reply, err error) {
	switch {
	case err != nil:
		x.answers[i] = failed
		if x.err == nil || !protocol.Passing(err) {
			x.err = err
		}
	case reply.Code == protocol.NotThere && x.kind != forces && x.kind != inspects:
		x.answers[i] = lacking
	default:
		x.answers[i] = agreed
	}
	q.decide(now, x)
}

// decide ends a fan-out if the outcome is known.
//
//   - Done: a majority has done it, and the home has answered or is suspected.
//   - Not there: so many servers have no vote for the claim that the others are not a majority.
//   - A failure: a majority cannot do it any more.
//
// A request to all servers, or a withdrawal, waits for every server that is not suspected. A release does not
// wait for suspected servers: their votes end with their leases.
func (q *Quorum) decide(now time.Time, x *fanout) {
	if x.over {
		return
	}
	var n [failed + 1]int
	silent := 0
	for i, a := range x.answers {
		if a == open && q.servers[i].suspected {
			silent++
		} else {
			n[a]++
		}
	}
	release := x.kind == givesBack
	withdrawal := release && x.bid.token == 0
	held := len(x.answers) - n[unasked] - n[lacking] // servers that may have a vote
	code, fails := protocol.Done, false
	switch {
	case n[open] > 0 && (withdrawal || x.kind == forces || x.kind == inspects):
		return
	case withdrawal:
		code = protocol.NotThere
	case n[agreed] >= q.majority:
		if x.home >= 0 && x.answers[x.home] == open && !q.servers[x.home].suspected {
			return
		}
	case held < q.majority:
		code = protocol.NotThere
	case release && n[open] > 0:
		return
	case release:
		fails = held-n[agreed] >= q.majority // otherwise the remaining votes are not a majority
	case n[agreed]+n[open]+silent >= q.majority:
		return
	default:
		fails = true
	}
	x.over = true
	q.cancel(x)
	var err error
	switch {
	case !fails:
	case x.kind == counts && x.bid.seekAll(now):
		err = fmt.Errorf("%w: %v", ErrNoMajority, x.err) // temporary: the next fan-out has those votes
	case x.err != nil && !protocol.Passing(x.err):
		err = x.err
	default:
		err = q.noMajority()
	}
	switch {
	case x.view != nil:
		q.inspected(x.view, err)
		return
	case release && err == nil:
		x.bid.forget()
	}
	q.answer(now, x.request, protocol.Reply{Code: code}, err)
}

// broadcast sends a renewal, or a change of the number of holds, to all servers that have voted for the
// claim, even suspected ones. A renewal also asks the other servers for their votes. These votes do not count
// in this fan-out: if the majority depended on them, another claim may have had the lock in between.
func (b *bid) broadcast(now time.Time, r *engine.Request) {
	q := b.q
	if b.phase != won {
		q.answer(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
		return
	}
	b.latest = r
	x := q.newFanout(renews, r)
	if r.Script == lua.Reenter {
		x.kind, x.bid, b.count = counts, b, r
	}
	for i, s := range q.servers {
		switch v := &b.votes[i]; {
		case v.state == cast:
			if i == b.home {
				x.home = i
			}
			b.confirm(now, i, x.kind, x, r)
		case x.kind == renews && s.usable(q):
			b.recover(now, i, r.Lease)
		}
	}
	q.decide(now, x)
}

// mostConfirming is the largest number of unanswered requests about one vote to a suspected server. Several
// are allowed, since a request may be delayed by others in its pipeline although the server is well.
const mostConfirming = 4

// confirm sends a renewal, or a change of the number of holds, to a server that has voted for the claim. If
// too many such requests are unanswered, this fan-out goes on without the server.
func (b *bid) confirm(now time.Time, i int, k kind, x *fanout, r *engine.Request) {
	v := &b.votes[i]
	if b.q.servers[i].suspected && v.confirming >= mostConfirming {
		v.recount = v.recount || k == counts
		if x != nil {
			x.answers[i] = failed
		}
		return
	}
	v.confirming++
	copied := r.Request
	copied.Claim = v.wire
	if k == counts {
		v.entered = true
	}
	b.q.send(now, i, &Request{Request: copied, kind: k, bid: b, number: v.number, lease: r.Lease.Duration,
		fanout: x, lock: b.lock})
}

// recover asks a server for its vote for a claim that holds the lock, if the server has not voted or has lost
// its vote. The claim waits in the server's queue: a hold with the votes of a bare majority would be lost
// with one of these servers.
func (b *bid) recover(now time.Time, i int, lease protocol.Lease) {
	if w := b.writer(); w != nil && w.votes[i].state != cast {
		return
	}
	before := b.lease
	b.lease = lease
	b.requestVote(now, i, true)
	b.lease, b.votes[i].sought = before, now
}

// seek asks a server for a vote that the hold lacks, unless it has asked within probeEvery. It reports
// whether the vote may come.
func (b *bid) seek(now time.Time, i int) bool {
	v, s := &b.votes[i], b.q.servers[i]
	if v.state == absent && s.usable(b.q) && now.Sub(v.sought) >= probeEvery {
		b.recover(now, i, b.lease)
	}
	return (v.state == asked || v.state == waiting) && s.usable(b.q)
}

// seekAll seeks all votes that the hold lacks, and reports whether one may come.
func (b *bid) seekAll(now time.Time) (may bool) {
	for i := range b.votes {
		may = b.seek(now, i) || may
	}
	return may
}

// handleLateVote handles a server's answer after the bid was won. If the answer is a vote, the server gets
// the number of holds. If the claim would have to wait, it waits.
func (b *bid) handleLateVote(now time.Time, i int, number uint64) {
	if b.phase != won {
		return
	}
	switch v := &b.votes[i]; {
	case v.state == absent && v.blocked && b.q.servers[i].usable(b.q):
		b.recover(now, i, b.lease)
	case v.state == cast && b.count != nil && v.number == number:
		b.confirm(now, i, counts, nil, b.count)
	}
}

// confirmed handles the reply to a renewal, or to a change of the number of holds.
func (q *Quorum) confirmed(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	b := r.bid
	v := &b.votes[s.index]
	if v.number == r.number {
		v.confirming--
		switch {
		case v.state != cast || err != nil:
		case reply.Code == protocol.NotThere:
			b.drop(now, s.index) // so that a late request for the vote is refused
			q.readMark(now, s)   // the server may have lost its data
		case r.sent.After(v.sent):
			v.sent, v.lease = r.sent, r.lease
		}
		if v.recount {
			v.recount = false
			b.confirm(now, s.index, counts, nil, b.count)
		}
	}
	if r.fanout != nil {
		q.counted(now, r.fanout, s.index, reply, err)
	}
}

// askAll sends each server the request that request returns for it. It also requests unknown marks: they
// decide which server is the home of a name, and how many servers vote.
func (q *Quorum) askAll(now time.Time, x *fanout, request func(i int) *Request) {
	q.readMarks(now)
	for i := range q.servers {
		r := request(i)
		r.kind, r.fanout = x.kind, x
		x.asked = append(x.asked, r)
		q.send(now, i, r)
	}
}

// cancel removes those requests of a fan-out to all servers that were not sent yet.
func (q *Quorum) cancel(x *fanout) {
	for _, r := range x.asked {
		if !r.sent.IsZero() {
			continue
		}
		q.servers[r.Server].unsent.Remove(r)
		if r.kind == forces {
			r.lock.slots[r.Server].put(r.slot)
			q.release(r.lock)
		}
	}
}

// force drops every hold on all servers. It waits for every server that is not suspected, so that no late
// request drops later holds.
func (q *Quorum) force(now time.Time, r *engine.Request) {
	lk := q.use(r.Keys)
	q.askAll(now, q.newFanout(forces, r), func(i int) *Request {
		q.numbers++
		slot := lk.slots[i].take()
		lk.refs++
		return &Request{
			Request: protocol.Request{Script: lua.Force, Keys: lk.keys, Channels: q.channels,
				Claim: protocol.NewClaim(protocol.Write, q.instance, slot, q.numbers, protocol.Owner{})},
			lock: lk, slot: slot,
		}
	})
	q.release(lk)
}

// forced handles the reply to force.
func (q *Quorum) forced(now time.Time, r *Request, reply protocol.Reply, err error) {
	if err == nil { // or else nobody knows whether the request may yet run
		r.lock.slots[r.Server].put(r.slot)
	}
	q.release(r.lock)
	q.counted(now, r.fanout, r.Server, reply, err)
}

// An Inspection is a call that reads what the servers know of a lock.
type Inspection struct {
	Tag   any // the caller's own
	State protocol.State
	Err   error

	lock   *lock
	states []*protocol.State // by server; nil if it has not answered
}

// Inspect asks all servers what they know of a lock.
func (q *Quorum) Inspect(now time.Time, name string, tag any) {
	lk := q.use(protocol.KeysOf(q.prefix, name))
	x := q.newFanout(inspects, nil)
	x.view = &Inspection{Tag: tag, lock: lk, states: make([]*protocol.State, len(q.servers))}
	q.askAll(now, x, func(int) *Request {
		return &Request{Request: protocol.Request{Script: lua.Inspect, Keys: lk.keys}}
	})
}

// viewed handles the reply to Inspect.
func (q *Quorum) viewed(now time.Time, r *Request, state *protocol.State, err error) {
	if err == nil {
		r.fanout.view.states[r.Server] = state
	}
	q.counted(now, r.fanout, r.Server, protocol.Reply{}, err)
}

// inspected ends an Inspection.
func (q *Quorum) inspected(v *Inspection, err error) {
	if v.Err = err; err == nil {
		v.State = protocol.Join(v.states, q.home(v.lock, nil))
	}
	q.release(v.lock)
	q.out.Inspected = append(q.out.Inspected, v)
}
