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
	request *engine.Request   // the request that it answers
	bid     *bid              // nil for ForceUnlock and Inspect
	states  []*protocol.State // of Inspect, by server; nil if it has not answered
	lock    *lock             // of Inspect
	ends    bool              // it releases or withdraws the claim
	all     bool              // it waits for every server that is not suspected
	home    int               // a server whose answer is awaited, since it lets in the next claim; or -1
	answers []answer          // by server
	err     error             // of a failed request, preferably one that is not temporary
	over    bool
}

// An answer is the state of one request of a fan-out.
type answer uint8

const (
	unasked answer = iota
	open           // no answer yet
	silent         // no answer yet, and the server is suspected
	agreed
	lacking // the server has no such vote
	failed
)

func (q *Quorum) newFanout(r *engine.Request) *fanout {
	return &fanout{request: r, home: -1, answers: make([]answer, len(q.servers))}
}

// counted records a server's answer.
func (q *Quorum) counted(now time.Time, x *fanout, i int, reply protocol.Reply, err error) {
	switch {
	case err != nil:
		x.answers[i] = failed
		if x.err == nil || !protocol.Passing(err) {
			x.err = err
		}
	case reply.Code == protocol.NotThere && !x.all:
		x.answers[i] = lacking
	default:
		x.answers[i] = agreed
	}
	q.decide(now, x)
}

// decide ends a fan-out if the outcome is known.
//
//   - A request to all servers, or a withdrawal, waits for every server that is not suspected.
//   - Done: a majority has done it, and the home has answered or is suspected. A release is also done once
//     nothing is awaited but suspected servers, and the votes left there and where it failed are no majority:
//     they end with their leases.
//   - Not there: so many servers have no vote for the claim that the others are not a majority.
//   - A failure: a majority cannot do it any more.
func (q *Quorum) decide(now time.Time, x *fanout) {
	if x.over {
		return
	}
	var n [failed + 1]int
	homeOpen := false
	for i, a := range x.answers {
		if a == open && q.servers[i].suspected {
			a = silent
		}
		n[a]++
		homeOpen = homeOpen || i == x.home && a == open
	}
	without := n[unasked] + n[lacking]
	reply, err := protocol.Reply{Code: protocol.Done}, error(nil)
	switch {
	case x.all && n[open] > 0:
		return
	case x.all && x.ends:
		reply.Code = protocol.NotThere
	case n[agreed] >= q.majority:
		if homeOpen {
			return
		}
	case without >= q.majority:
		reply.Code = protocol.NotThere
	case x.ends && n[open] == 0 && n[failed]+n[silent] < q.majority:
	case n[failed] < q.majority && (x.ends || n[failed]+without < q.majority):
		return
	default:
		err = q.failure(now, x)
	}
	x.over = true
	if x.ends && err == nil {
		x.bid.forget()
	}
	if x.lock != nil {
		if err == nil {
			state := protocol.Join(x.states, q.home(x.lock, nil))
			reply.State = &state
		}
		q.release(x.lock)
	}
	q.engine.Replied(now, x.request, reply, err)
}

// failure returns the error of a fan-out that a majority cannot do any more.
func (q *Quorum) failure(now time.Time, x *fanout) error {
	if x.request.Script == lua.Reenter && x.bid.gains(now, true) > 0 {
		return fmt.Errorf("%w: %v", ErrNoMajority, x.err) // temporary: the next fan-out has those votes
	}
	if x.err != nil && !protocol.Passing(x.err) {
		return x.err
	}
	return q.noMajority()
}

// broadcast sends a renewal, or a change of the number of holds, to all servers that have voted for the
// claim, even suspected ones. It then asks for the votes that the hold lacks. These do not count in this
// fan-out: if the majority depended on them, another claim may have had the lock in between.
func (b *bid) broadcast(now time.Time, r *engine.Request) {
	q := b.q
	if b.phase != won {
		q.engine.Replied(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
		return
	}
	b.latest = r
	if r.Script == lua.Renew {
		b.lease = r.Lease
	} else {
		b.holds = r
	}
	x := q.newFanout(r)
	x.bid, x.home = b, b.home
	for i := range b.votes {
		if b.votes[i].state == cast {
			b.confirm(now, i, r, x)
		}
	}
	q.decide(now, x)
	b.keep(now, true)
}

// mostConfirming is the largest number of unanswered requests about one vote to a suspected server. Several
// are allowed, since a request may be delayed by others in its pipeline although the server is well.
const mostConfirming = 4

// confirm sends a renewal, or a change of the number of holds, to a server that has voted for the claim. If
// too many such requests are unanswered, the fan-out goes on without the server.
func (b *bid) confirm(now time.Time, i int, r *engine.Request, x *fanout) {
	v := &b.votes[i]
	if b.q.servers[i].suspected && v.confirming >= mostConfirming {
		if x != nil {
			x.answers[i] = failed
		}
		return
	}
	v.confirming++
	if r.Script == lua.Reenter {
		v.holds = r
	}
	copied := r.Request
	copied.Claim = v.wire
	b.q.send(now, i, &Request{Request: copied, bid: b, number: v.number, fanout: x, lock: b.lock})
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
			v.sent, v.lease = r.sent, r.Lease.Duration
		}
	}
	if r.fanout != nil {
		q.counted(now, r.fanout, s.index, reply, err)
	}
}

// keep asks for the votes that a hold lacks, at most every pause: a hold with the votes of a bare majority
// would be lost with one of these servers. The claim waits in the queues of the others. keep also sends the
// number of holds to servers that have voted and do not know it. all says whether to ask servers that have
// refused to vote, too.
func (b *bid) keep(now time.Time, all bool) {
	w := b.writer()
	for i, s := range b.q.servers {
		v := &b.votes[i]
		switch {
		case v.state == cast && v.holds != b.holds:
			b.confirm(now, i, b.holds, nil)
		case v.state == absent && (all || v.refused == nil) && s.usable(b.q) && now.Sub(v.sought) >= pause &&
			(w == nil || w.votes[i].state == cast):
			v.sought = now
			b.requestVote(now, i, true)
		}
	}
}

// gains asks for the votes that a hold lacks, and returns how many of them may come. waits says whether votes
// count that the claim has to wait for.
func (b *bid) gains(now time.Time, waits bool) (n int) {
	b.keep(now, true)
	for i, s := range b.q.servers {
		if v := &b.votes[i]; s.usable(b.q) && (v.state == asked || waits && v.state == waiting) {
			n++
		}
	}
	return n
}

// toAll sends each server the request that request returns for it. It also requests unknown marks: they
// decide which server is the home of a name, and how many servers vote.
func (q *Quorum) toAll(now time.Time, x *fanout, request func(i int) *Request) {
	x.all = true
	q.readMarks(now)
	for i := range q.servers {
		r := request(i)
		r.fanout = x
		q.send(now, i, r)
	}
}

// force drops every hold on all servers. It waits for every server that is not suspected, so that no late
// request drops later holds.
func (q *Quorum) force(now time.Time, r *engine.Request) {
	lk := q.use(r.Keys)
	q.toAll(now, q.newFanout(r), func(i int) *Request {
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

// inspect asks all servers what they know of a lock.
func (q *Quorum) inspect(now time.Time, r *engine.Request) {
	x := q.newFanout(r)
	x.lock, x.states = q.use(r.Keys), make([]*protocol.State, len(q.servers))
	q.toAll(now, x, func(int) *Request {
		return &Request{Request: protocol.Request{Script: lua.Inspect, Keys: r.Keys}}
	})
}
