package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A fanout is a request of the engine that goes to several servers, and that a majority decides: a renewal, a
// release, ForceUnlock or Inspect.
type fanout struct {
	order.Link[fanout]
	request *engine.Request   // the request that it answers
	bid     *bid              // nil for ForceUnlock and Inspect
	states  []*protocol.State // of Inspect, by server; nil if it has not answered
	all     bool              // it waits for every server that is not suspected
	answers []answer          // by server
	err     error             // of a failed request, preferably one that failed for good
	over    bool
}

// An answer is the state of one request of a fan-out.
type answer uint8

const (
	unasked answer = iota // Inspect may ask later
	open                  // no answer yet
	silent                // no answer yet, and the server is suspected
	agreed
	lacking // the server has no such vote
	failed
	refused // failed for good
)

func (q *Quorum) newFanout(r *engine.Request, b *bid, all bool) *fanout {
	x := &fanout{request: r, bid: b, all: all, answers: make([]answer, len(q.servers))}
	q.fanouts.PushBack(x)
	return x
}

// counted records a server's answer.
func (q *Quorum) counted(now time.Time, x *fanout, i int, reply protocol.Reply, err error) {
	switch {
	case err != nil && protocol.Passing(err):
		x.answers[i], x.err = failed, cmp.Or(x.err, err)
	case err != nil:
		x.answers[i], x.err = refused, err
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
//   - Done: a majority has done it, and the home has answered or is suspected: it lets in the next claim. A
//     release is also done once nothing is awaited but suspected servers, and the votes left there and where
//     it failed are no majority: they end with their leases.
//   - Not there: so many servers have no vote for the claim that the others are not a majority.
//   - A failure: a majority cannot do it any more.
func (q *Quorum) decide(now time.Time, x *fanout) {
	if x.over {
		return
	}
	var n [refused + 1]int
	ends, homeOpen := x.request.Ends(), false
	for i, a := range x.answers {
		if a == open && q.servers[i].suspected {
			a = silent
		}
		n[a]++
		homeOpen = homeOpen || x.bid != nil && i == x.bid.home && a == open
	}
	if x.states != nil && n[unasked] > 0 && n[agreed]+n[open] < q.majority {
		q.askRest(now, x, true)
		q.decide(now, x)
		return
	}
	without := n[unasked] + n[lacking]
	n[failed] += n[refused]
	reply, err := protocol.Reply{Code: protocol.Done}, error(nil)
	switch {
	case x.all && n[open] > 0:
		return
	case x.all && ends:
		reply.Code = protocol.NotThere
	case n[agreed] >= q.majority:
		if homeOpen {
			return
		}
	case without >= q.majority:
		reply.Code = protocol.NotThere
	case !ends && n[open] > 0 && without > 0 && without+n[open] >= q.majority:
		return // a vote that is won back must not hide that a majority has dropped the hold by force
	case ends && n[open] == 0 && n[failed]+n[silent] < q.majority:
	case n[failed] < q.majority && (ends || n[failed]+without < q.majority):
		return
	default:
		err = q.failure(now, x, n[refused]+without)
	}
	x.over = true
	q.fanouts.Remove(x)
	if ends && err == nil {
		x.bid.forget()
	}
	if x.states != nil && err == nil {
		state := protocol.Join(x.states, q.home(x.request.Keys, nil))
		reply.State = &state
	}
	q.engine.Replied(now, x.request, reply, err)
}

// errVotes is the error of a renewal that may succeed once the hold has more votes.
var errVotes = errors.New("the hold has too few votes, and asks for others")

// failure returns the error of a fan-out that a majority cannot do any more. Some servers will never do it:
// they have refused, or have no vote. The error is temporary if the others are a majority.
func (q *Quorum) failure(now time.Time, x *fanout, never int) error {
	if x.bid != nil && !x.request.Ends() && x.bid.gains(now) > 0 {
		if x.err != nil {
			return fmt.Errorf("%w: %v", errVotes, x.err) // temporary, whatever that is
		}
		return errVotes
	}
	if x.err != nil && !protocol.Passing(x.err) && never > len(q.servers)-q.majority {
		return x.err
	}
	return q.noMajority()
}

// broadcast sends a renewal to all servers that have voted for the claim, even suspected ones. It then asks
// for the votes that the hold lacks. These do not count in this fan-out: if the majority depended on them,
// another claim may have had the lock in between.
func (b *bid) broadcast(now time.Time, r *engine.Request) {
	q := b.q
	if b.phase != won {
		q.engine.Replied(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
		return
	}
	b.latest = r
	b.longest, b.lease, b.leased = max(b.longest, r.Lease.Duration), r.Lease, r.Sent
	x := q.newFanout(r, b, false)
	for _, v := range b.votes {
		v.refresh()
		if v.state == cast {
			v.confirm(now, r, x)
		}
	}
	q.decide(now, x)
	b.keep(now, true)
}

// mostConfirming is the largest number of unanswered requests about one vote to a suspected server. Several
// are allowed, since a request may be delayed by others in its pipeline although the server is well.
const mostConfirming = 4

// confirm sends a renewal to a server that has voted for the claim. If too many such requests are unanswered,
// the fan-out goes on without the server.
func (v *vote) confirm(now time.Time, r *engine.Request, x *fanout) {
	if v.server.suspected && v.confirming >= mostConfirming {
		x.answers[v.server.index] = failed
		return
	}
	v.confirming++
	v.counted = v.counted || r.Count != 1
	copied := v.about(r.Request)
	copied.fanout, copied.Script, copied.Channels, copied.Former = x, lua.Renew, v.bid.q.channels, ""
	if v.former != nil {
		copied.Script, copied.Former = lua.Convert, v.former.wire.ID
	}
	v.bid.q.send(now, v.server, copied)
}

// confirmed handles the reply to a renewal, or to a downgrade.
func (v *vote) confirmed(now time.Time, r *Request, reply protocol.Reply, err error) {
	if v.number != r.number {
		return
	}
	v.confirming--
	switch {
	case v.state != cast || err != nil:
	case reply.Code == protocol.NotThere:
		v.drop(now)                     // so that a late request for the vote is refused
		v.bid.q.readMark(now, v.server) // the server may have lost its data
	default:
		v.sent = order.Later(v.sent, r.sent)
		if v.former != nil {
			v.bid.lock.slots[v.server.index].Put(v.former.slot)
			v.former = nil
		}
	}
}

// keep asks for the votes that a hold lacks, at most every pause: a hold with the votes of a bare majority
// would be lost with one of these servers. The claim waits in the queues of the others. all says whether to
// ask servers that have refused to vote, too, and those where it waits: the message of a vote may be lost,
// and the place ends with its lease.
func (b *bid) keep(now time.Time, all bool) {
	for _, v := range b.votes {
		lacks := v.state == absent && (all || v.refused == nil) || all && v.waits()
		if lacks && v.server.usable() && now.Sub(v.sought) >= pause {
			v.sought = now
			v.ask(now, true)
		}
	}
}

// gains asks for the votes that a hold lacks, and returns how many of them may come.
func (b *bid) gains(now time.Time) int {
	if b.phase != won {
		return 0 // it is over
	}
	b.keep(now, true)
	return count(b.votes, func(v *vote) bool {
		return v.server.usable() && (v.state == asked || v.state == waiting)
	})
}

// toAll sends ForceUnlock to all servers, or Inspect to those that are enough. It waits for every server that
// is not suspected, so that no late request drops later holds. It also requests unknown marks: they decide
// which server is the home of a name, and how many servers vote.
func (q *Quorum) toAll(now time.Time, r *engine.Request) {
	x := q.newFanout(r, nil, true)
	if r.Script == lua.Inspect {
		x.states = make([]*protocol.State, len(q.servers))
	}
	q.readMarks(now)
	q.askRest(now, x, x.states == nil)
	q.decide(now, x)
}

// askRest sends ForceUnlock or Inspect to the servers that were not asked. suspected says whether to ask
// those that are suspected, where the request would wait.
func (q *Quorum) askRest(now time.Time, x *fanout, suspected bool) {
	script, lk := x.request.Script, q.use(x.request.Keys)
	for i, s := range q.servers {
		if x.answers[i] != unasked || s.suspected && !suspected {
			continue
		}
		each := &Request{Request: protocol.Request{Script: script, Keys: lk.keys, Channels: q.channels}, fanout: x,
			lock: lk}
		if script == lua.Force {
			each.slot = lk.slots[i].Take()
			each.Claim = protocol.NewClaim(protocol.Write, q.instance, each.slot, q.nextNumber(), protocol.Owner{})
		}
		q.send(now, s, each)
	}
	q.release(lk)
}
