package quorum

import (
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
	if b.mayVote() < q.majority { // the engine asks again later
		b.answer(now, protocol.Reply{}, b.tooFew())
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
		// A waiter without an answer for a lease would give up.
		first := min(shortestCollecting, b.lease.Duration/6)
		if b.phase != won && !b.try && now.Sub(b.collectingSince) >= first {
			b.tellWaiting(now, b.obstacle())
		}
	}
}

// mayVote returns how many servers may vote for the claim.
func (b *bid) mayVote() int {
	return count(b.votes, func(v *vote) bool {
		s := v.server
		return v.refused == nil && (s.usable() || s.asking && !s.known && !s.failing) // or it may say that it votes
	})
}

// tooFew returns why a claim does not get enough votes. If the servers that have not refused are no majority,
// that is the error of one that has; otherwise it is temporary: the others may answer soon.
func (b *bid) tooFew() error {
	var refused error
	left := len(b.votes)
	for _, v := range b.votes {
		if v.refused != nil {
			refused = v.refused
			left--
		}
	}
	if left < b.q.majority {
		return refused
	}
	return b.q.noMajority()
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
		o.Claim = b.claim
	}
	return o
}

// startCollecting begins to collect the votes of the other servers, after the home has voted for the claim.
func (b *bid) startCollecting(now time.Time) {
	if b.phase == queued || b.votes[b.home].token == 0 {
		b.wanted = b.q.nextToken(now)
	} else {
		b.lock.contended = false
	}
	b.phase, b.collectingSince = collecting, now
	b.until = now.Add(b.collectingTime())
}

// collectingTime returns how long to collect before a retreat. It is random and grows, so that one of two
// claims that block each other eventually wins. A try waits only for votes that are being given back.
func (b *bid) collectingTime() time.Duration {
	shortest := shortestCollecting + b.q.patience - shortestPatience
	base := min(max(b.lease.Duration/12, shortest), max(longestCollecting, shortest)) << min(b.attempts, 4)
	if b.try {
		base = shortest
	}
	return base + b.q.randomBelow(base)
}

// collect asks the other servers for their votes. The claim wins if a majority has voted with the same token.
func (b *bid) collect(now time.Time) {
	// The claim waits in the queues of other servers only if it needs their votes: some of these may be about
	// to be free.
	b.askOthers(now, false)
	coming := func(v *vote) bool { return v.state == cast || v.state == asked && v.server.usable() }
	if count(b.votes, coming) < b.q.majority {
		b.askOthers(now, true)
	}
	top := int64(0)
	for _, v := range b.votes {
		top = max(top, v.token)
	}
	if count(b.votes, func(v *vote) bool { return v.counts(top, b.waitsAt) }) >= b.q.majority {
		b.win(now, top)
		return
	}
	b.wanted = max(b.wanted, top)
	for _, v := range b.votes {
		// Servers that have voted with a smaller token are asked again with the largest one.
		if v.state == cast && !v.counts(top, b.waitsAt) && v.server.usable() {
			v.ask(now, true)
		}
	}
}

// obstacle returns what blocks a claim with the home's vote on the other servers.
func (b *bid) obstacle() protocol.Obstacle {
	for i, v := range b.votes {
		if i != b.home && (v.state == waiting || v.blocked) {
			return v.obstacle
		}
	}
	return protocol.Obstacle{}
}

// win grants the claim. It answers the pending request if a majority voted after it was sent; otherwise it
// delivers the grant like a message.
func (b *bid) win(now time.Time, token int64) {
	b.phase, b.token = won, token
	b.lock.held[b.mode]++
	r := b.pending
	if r != nil && count(b.votes, func(v *vote) bool { return v.counts(token, r.Sent) }) >= b.q.majority {
		b.answer(now, protocol.Reply{Token: token}, nil)
		return
	}
	b.pending = nil
	b.q.engine.Grant(now, b.number, token, b.by)
}

// retreat gives back the collected votes, since another claim may be collecting the rest. Every third time it
// also gives back the vote of the home: the other claim may have another home, and wait on this server.
func (b *bid) retreat(now time.Time) {
	b.attempts++
	if b.try {
		if trouble := b.q.Trouble(); trouble != nil {
			b.answer(now, protocol.Reply{}, trouble)
		} else {
			b.refuseTry(now, b.obstacle())
		}
		return
	}
	all := b.attempts%3 == 0
	for i, v := range b.votes {
		if i != b.home || all {
			v.drop(now)
			v.blocked = false
		}
	}
	b.phase, b.until = paused, now.Add(b.q.randomBelow(b.collectingTime()/4))
	if all {
		b.phase, b.lock.contended = requesting, true
	}
}
