package quorum

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

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
	if b.count(func(v *vote) bool { return v.state == cast || v.state == asked }) < b.q.majority {
		b.askOthers(now, true)
	}
	top := int64(0)
	for _, v := range b.votes {
		top = max(top, v.token)
	}
	if b.count(func(v *vote) bool { return v.counts(top, b.waitsAt) }) >= b.q.majority {
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
	if now.Sub(b.collectingSince) >= shortestCollecting && b.pending != nil && !b.try {
		b.tellWaiting(now, b.obstacle())
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
	if r != nil && b.count(func(v *vote) bool { return v.counts(token, r.Sent) }) >= b.q.majority {
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
