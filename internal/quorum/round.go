package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A round is a renewal, or a change of the number of holds, that a majority of the servers is to confirm.
type round struct {
	r        *engine.Request
	sent     int // to how many servers
	done     int // how many have confirmed it
	gone     int // how many have no vote for the claim any more
	failed   int // how many requests have failed
	home     int // the index of the home while it has not answered, or -1: it grants the lock to others by the lease that it knows
	err      error
	answered bool
}

// broadcast sends a renewal, or a change of the number of holds, to all servers that have voted for the claim, suspected ones
// included. A renewal asks the other servers for their votes again. These votes do not count in this round: if it took them to
// complete a majority, another claim may have had the lock in between.
func (b *ballot) broadcast(now time.Time, r *engine.Request) {
	q := b.q
	if b.phase != won {
		q.answer(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
		return
	}
	b.latest = r
	x := &round{r: r, home: -1}
	k := renews
	if r.Script == lua.Reenter {
		k, b.count = counts, r
	}
	for i, s := range q.servers {
		switch v := &b.votes[i]; {
		case v.state == cast:
			if x.sent++; i == b.home {
				x.home = i
			}
			b.confirm(now, i, k, x, r)
		case v.state == absent && k == renews && s.usable(q):
			b.recover(now, i, r)
		}
	}
	if q.finishRound(now, x); !x.answered {
		q.rounds = append(q.rounds, x)
	}
}

// confirm sends a renewal, or a change of the number of holds, to a server that has voted for the claim.
func (b *ballot) confirm(now time.Time, i int, k kind, x *round, r *engine.Request) {
	v := &b.votes[i]
	copied := r.Request
	copied.Claim = v.wire
	if k == counts {
		v.entered = true
	}
	b.q.send(now, i, &Request{Request: copied, kind: k, ballot: b, number: v.number, lease: r.Lease.Duration, round: x, lock: b.lock})
}

// recover asks a server for its vote that has not voted for the claim yet, or has lost its vote.
func (b *ballot) recover(now time.Time, i int, r *engine.Request) {
	if w := b.writer(); w != nil && w.votes[i].state != cast {
		return
	}
	before := b.lease
	b.lease = r.Lease
	b.requestVote(now, i, false)
	b.lease = before
}

// settleLateVote handles a vote that comes after the ballot was won: the claim does not wait for it, and its server is told the
// number of holds.
func (b *ballot) settleLateVote(now time.Time, i int, number uint64) {
	if b.phase != won {
		return
	}
	switch v := &b.votes[i]; {
	case v.state == waiting:
		b.drop(now, i)
	case v.state == cast && b.count != nil && v.number == number:
		b.confirm(now, i, counts, nil, b.count)
	}
}

// confirmed handles the reply to a renewal, or to a change of the number of holds.
func (q *Quorum) confirmed(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	b := r.ballot
	v := &b.votes[s.index]
	if v.number == r.number && v.state == cast && err == nil {
		if reply.Code == protocol.NotThere {
			b.drop(now, s.index) // so that a late request for the vote is refused
		} else if r.sent.After(v.sent) {
			v.sent, v.lease = r.sent, r.lease
		}
	}
	if r.round != nil {
		if s.index == r.round.home {
			r.round.home = -1
		}
		q.counted(now, r.round, reply, err)
	}
}

// counted counts a reply in its round.
func (q *Quorum) counted(now time.Time, x *round, reply protocol.Reply, err error) {
	switch {
	case err != nil:
		x.failed, x.err = x.failed+1, err
	case reply.Code == protocol.NotThere:
		x.gone++
	default:
		x.done++
	}
	q.finishRounds(now)
}

// finishRounds answers the engine's requests of all rounds that are over.
func (q *Quorum) finishRounds(now time.Time) {
	for _, x := range q.rounds {
		q.finishRound(now, x)
	}
	q.rounds = slices.DeleteFunc(q.rounds, func(x *round) bool { return x.answered })
}

// finishRound answers the engine once a majority has confirmed the request, and the home has answered or is suspected; or once
// a majority cannot confirm it any more.
func (q *Quorum) finishRound(now time.Time, x *round) {
	if x.answered {
		return
	}
	reply, err := protocol.Reply{Code: protocol.Done}, error(nil)
	switch {
	case x.done >= q.majority:
		if x.home >= 0 && !q.servers[x.home].suspected {
			return
		}
	case x.sent-x.gone < q.majority:
		reply.Code = protocol.NotThere
	case x.sent-x.gone-x.failed >= q.majority:
		return
	case !protocol.Passing(x.err):
		err = x.err
	default:
		err = q.noMajority()
	}
	x.answered = true
	q.answer(now, x.r, reply, err)
}
