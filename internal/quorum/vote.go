package quorum

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A state is the progress of a vote.
type state uint8

const (
	absent  state = iota // the server was not asked, or its vote is given back
	asked                // the server has not answered
	waiting              // the claim waits in the queue of the server
	cast                 // the server has voted for the claim
)

// A vote is one server's vote for a claim. To the server, each vote is a claim with its own number and slot.
type vote struct {
	state      state
	wire       protocol.Claim
	slot       int
	number     uint64
	request    *Request          // in flight
	queues     bool              // the last request asks to wait: it is not a try
	blocked    bool              // a try was refused, because the claim would have had to wait
	obstacle   protocol.Obstacle // if it waits or was blocked
	refused    error             // the server's permanent error: the claim does without its vote
	token      int64             // of the vote; 0 if not known
	local      int64             // the time of the grant by the server's clock, in µs
	first      time.Time         // when the first request was sent
	sent       time.Time         // when the last request was sent that certainly set the lease
	lease      time.Duration     // the lease that it set
	granted    time.Time         // a moment not after the vote was cast
	confirming int               // unanswered requests that confirm the vote
	recount    bool              // the server needs the number of holds once it answers
	// the server knows the number of holds, or local is the time of the owner's write claim
	entered  bool
	reported bool      // a message reported the vote before the reply to a request did
	again    time.Time // when to ask again, if the claim waits
	asked    int       // how often the subscription had been opened when the server was last asked
	late     bool      // a request was in flight when there was reason to ask again
	sought   time.Time // when a hold that lacks the vote last asked for it
}

// waits reports whether the claim waits in the server's queue, with no request in flight.
func (v *vote) waits() bool { return v.state == waiting && v.request == nil }

// requestVote asks a server for its vote, or asks again. queue says whether the claim should wait if it
// cannot have the vote.
func (b *bid) requestVote(now time.Time, i int, queue bool) {
	q, v := b.q, &b.votes[i]
	if r := v.request; r != nil && (r.sent.IsZero() || now.Sub(r.sent) < q.patience) {
		return
	}
	if v.state == absent {
		q.numbers++
		*v = vote{state: asked, slot: b.lock.slots[i].take(), number: q.numbers, refused: v.refused,
			sought: v.sought}
		v.wire = protocol.NewClaim(b.mode, q.instance, v.slot, v.number, b.owner)
		q.voters[v.number] = b
	}
	v.queues, v.blocked, v.again, v.asked = queue, false, time.Time{}, q.servers[i].subscriptions
	r := &Request{
		Request: protocol.Request{
			Script: lua.Vote, Keys: b.lock.keys, Claim: v.wire, Channels: q.channels, Lease: b.lease, Try: !queue,
			VoteArgs: &protocol.VoteArgs{Mark: q.mark, Generation: q.generation, ID: q.servers[i].mark.ID,
				Wanted: protocol.TokenArg(max(b.wanted, b.token))},
		},
		kind: votes, bid: b, number: v.number, lease: b.lease.Duration, lock: b.lock,
	}
	if b.mode == protocol.Read {
		r.Script = lua.RVote
		if w := b.writer(); w != nil && w.votes[i].state == cast {
			r.Writer, v.entered = w.votes[i].wire.ID, true
		}
	}
	v.request = r
	q.send(now, i, r)
}

// requestOthers asks the servers other than the home that were not asked yet.
func (b *bid) requestOthers(now time.Time, queue bool) {
	for i, s := range b.q.servers {
		if v := &b.votes[i]; i != b.home && v.state == absent && s.usable(b.q) && v.refused == nil &&
			(queue || !v.blocked) {
			b.requestVote(now, i, queue)
		}
	}
}

// voted handles the reply to a request for a vote.
func (q *Quorum) voted(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	b := r.bid
	v := &b.votes[s.index]
	if err == nil && reply.Unmarked && r.VoteArgs.ID == s.mark.ID && r.VoteArgs.Generation == s.mark.Generation {
		s.known = false // the server has probably lost its data
		q.readMark(now, s)
	}
	if v.number != r.number || v.state == absent {
		return // the vote has been given back meanwhile
	}
	if v.request == r {
		v.request = nil
	}
	switch {
	case err != nil:
		if !protocol.Passing(err) {
			v.refused = err
		}
		if v.state == asked || v.refused != nil {
			b.drop(now, s.index) // the request may have run
		}
	case reply.Unmarked:
		b.drop(now, s.index)
	case reply.Refused:
		was := v.state
		b.free(s.index)
		b.votes[s.index].blocked = was == asked && !v.queues
	case reply.Vote != 0:
		q.noteToken(now, reply.Vote)
		q.suspectSubscription(now, s, v, reply)
		if v.state != cast {
			if s.index == b.home {
				b.by = engine.ByHeartbeat
			}
			v.granted = v.sent
			if v.granted.IsZero() {
				v.granted = r.sent
			}
		}
		v.reported = false
		v.state, v.token, v.local, v.sent, v.lease = cast, reply.Vote, reply.Token, later(v.sent, r.sent), r.lease
	case v.queues:
		if v.state == cast {
			if v.reported { // the message overtook this reply, or the vote was lost since: the next reply shows which
				v.reported = false
				break
			}
			v.token = 0
		}
		v.state, v.obstacle, v.sent = waiting, reply.Obstacle, later(v.sent, r.sent)
		v.again = now.Add(max(reply.Again+grace, soonest))
		if v.late {
			v.again = now
		}
		v.late = false
		if b.phase != won { // a hold needs no subscription: its renewals return the votes that it lacked
			q.out.Listen = true
		}
	default:
		b.free(s.index)
		v := &b.votes[s.index]
		v.blocked, v.obstacle = true, reply.Obstacle
	}
	b.handleLateVote(now, s.index, r.number)
	b.advance(now)
	if b.reader != nil {
		b.reader.advance(now)
	}
}

// suspectSubscription records that a reply brought a vote that a message should have reported, since the
// subscription was established.
func (q *Quorum) suspectSubscription(now time.Time, s *server, v *vote, reply protocol.Reply) {
	if v.state == waiting && reply.Before && !s.listening.IsZero() && s.listening.Before(v.sent) {
		s.missedGrant, s.missedGrantAt = v.number, now.Add(suspectAfter)
	}
}

// askAgain asks again for a vote that the claim waits for.
func (b *bid) askAgain(now time.Time, i int) {
	if v := &b.votes[i]; v.state == waiting {
		v.late = v.request != nil
		b.requestVote(now, i, true)
	}
}

// free forgets a vote that the server does not keep. Its slot may be used again.
func (b *bid) free(i int) {
	v := &b.votes[i]
	delete(b.q.voters, v.number)
	b.lock.slots[i].put(v.slot)
	*v = vote{refused: v.refused, sought: v.sought}
}

// drop gives a vote back, or withdraws the request for it. A request that was not sent yet is removed.
func (b *bid) drop(now time.Time, i int) {
	v := &b.votes[i]
	if v.state == absent {
		return
	}
	if v.request != nil && v.request.sent.IsZero() {
		b.q.servers[i].unsent.Remove(v.request)
	}
	left := vote{refused: v.refused, blocked: v.blocked, obstacle: v.obstacle, sought: v.sought}
	if v.first.IsZero() {
		b.free(i)
	} else {
		b.giveBack(now, i)
		delete(b.q.voters, v.number)
	}
	*v = left
}

// dropAll gives back all votes.
func (b *bid) dropAll(now time.Time) {
	for i := range b.votes {
		b.drop(now, i)
	}
}
