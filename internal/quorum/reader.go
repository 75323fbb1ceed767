package quorum

import (
	"cmp"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// writer returns the bid of the write claim that this bid reads under, or nil.
func (b *bid) writer() *bid {
	if b.under == nil {
		return nil
	}
	return b.q.bids[b.under]
}

// readUnder asks for a read under a write hold of the same owner. Only votes of servers that have voted for
// the write hold count, and the read has the token of the write hold. If there are too few such servers, the
// write hold asks the others for their votes.
func (b *bid) readUnder(now time.Time) {
	q, w := b.q, b.writer()
	if b.pending == nil {
		return
	}
	n, open := 0, 0
	var obstacle protocol.Obstacle
	var refused error
	b.wanted, w.reader = w.token, b
	for i, v := range b.votes {
		usable := v.server.usable()
		if v.state == absent && !v.blocked && v.refused == nil && w.votes[i].state == cast && usable {
			v.ask(now, false)
		}
		switch {
		case v.request != nil && usable:
			open++
		case v.counts(w.token, b.pending.Sent):
			n++
		case v.blocked:
			obstacle = v.obstacle
		case v.refused != nil:
			refused = v.refused
		}
	}
	if n+open < q.majority {
		open += w.gains(now, !b.try)
	}
	switch {
	case n >= q.majority:
		b.home = w.home
		b.win(now, w.token)
	case n+open >= q.majority:
	case obstacle != (protocol.Obstacle{}):
		b.refuseTry(now, obstacle)
	default:
		b.answer(now, protocol.Reply{}, cmp.Or(refused, q.noMajority()))
	}
}
