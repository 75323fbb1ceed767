package quorum

import (
	"cmp"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// elect asks the home of the name for its vote. It asks the other servers at the same time, unless the claim
// probably has to wait. Once the home has voted, it collects their votes. If the claim waits there, it gives
// them back.
func (b *bid) elect(now time.Time) {
	q := b.q
	if n, err := b.mayVote(); n < q.majority { // the engine asks again later
		b.answer(now, protocol.Reply{}, cmp.Or(err, q.noMajority()))
		return
	}
	home := q.home(b.lock.keys, b.votes)
	if home < 0 {
		return
	}
	if b.wanted == 0 {
		b.wanted = q.nextToken(now)
	}
	if home != b.home {
		if b.home >= 0 && b.votes[b.home].state == waiting {
			b.votes[b.home].drop(now)
		}
		b.home, b.phase = home, requesting
		b.by = engine.ByHeartbeat // the new home may have voted already
	}
	switch v := b.votes[home]; v.state {
	case absent:
		if v.blocked && b.try {
			b.refuseTry(now, v.obstacle)
			return
		}
		v.ask(now, !b.try)
		if b.phase == requesting && !b.lock.contended && !b.lock.taken(b.mode) {
			b.askOthers(now, false)
		}
	case waiting:
		b.phase, b.lock.contended = queued, true
		for i, other := range b.votes {
			if i != home {
				other.drop(now)
			}
		}
		b.tellWaiting(now, v.obstacle)
	case cast:
		if b.phase < collecting {
			b.startCollecting(now)
		}
		if b.phase == collecting {
			b.collect(now)
		}
	}
}

// mayVote returns how many servers may vote for the claim, and an error of a server that has refused.
func (b *bid) mayVote() (n int, refused error) {
	for _, v := range b.votes {
		switch s := v.server; {
		case v.refused != nil:
			refused = v.refused
		case s.usable(), s.asking && !s.known && !s.failing: // or its answer may be that it votes
			n++
		}
	}
	return n, refused
}

// tellWaiting answers the pending request with the obstacle, once the home has answered a request that was
// sent after it. From then on the engine may rely on its place.
func (b *bid) tellWaiting(now time.Time, o protocol.Obstacle) {
	if r := b.pending; r != nil && !b.votes[b.home].sent.Before(r.Sent) {
		b.waitsAt = order.Later(b.waitsAt, r.Sent)
		b.answer(now, protocol.Reply{Obstacle: b.q.toEngine(o)}, nil)
	}
}

// refuseTry answers a try that would have to wait, gives back all votes, and forgets the bid.
func (b *bid) refuseTry(now time.Time, o protocol.Obstacle) {
	b.lock.contended = true
	if b.pending != nil {
		b.dropAll(now)
		b.forget()
		b.answer(now, protocol.Reply{Obstacle: b.q.toEngine(o)}, nil)
	}
}

// toEngine translates an obstacle for the engine: it replaces a vote of this client by the claim that the
// vote is for.
func (q *Quorum) toEngine(o protocol.Obstacle) protocol.Obstacle {
	k, err := protocol.ParseClaim(o.Claim)
	if err != nil || k.Instance != q.instance {
		return o
	}
	o.Claim = ""
	if b := q.voters[k.Number]; b != nil {
		o.Claim = b.claim.(string)
	}
	return o
}
