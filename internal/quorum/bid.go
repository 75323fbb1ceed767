package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A phase is the progress of a bid.
type phase uint8

const (
	requesting phase = iota // the home has not answered
	queued                  // the claim waits in the queue of the home
	collecting              // the home has voted for the claim, and the others are asked
	paused                  // the same, but votes were given back, and the others are asked later
	won                     // a majority has voted for the claim
	closing                 // the votes are being given back
)

// A bid collects the votes of the servers for one claim of the engine.
type bid struct {
	order.Link[bid]
	order.Place
	q       *Quorum
	lock    *lock
	claim   string // its ID, as the engine knows it
	former  string // the ID of the claim before it, which a downgrade has ended; or ""
	number  uint64 // of the claim
	owner   protocol.Owner
	mode    protocol.Mode
	lease   protocol.Lease
	leased  time.Time     // when the request with that lease was sent
	longest time.Duration // the longest lease that a request about the claim has set
	try     bool
	votes   []*vote // by server
	phase   phase
	home    int               // the index of the server, or -1
	by      engine.Path       // how the vote of the home became known
	parked  []*engine.Request // requests that wait until the marks are known and allow their leases
	pending *engine.Request   // the request for the lock that the engine waits for, or nil
	latest  *engine.Request   // the last request about the claim
	waitsAt time.Time         // when the engine sent the last request that was answered with "waits"
	wanted  int64             // the token to ask for
	token   int64             // of the hold; 0 until the bid is won

	collectingSince time.Time
	// when collecting ends in a retreat, when paused ends, and when a closing bid is forgotten without an
	// answer
	until    time.Time
	attempts int // retreats so far

	release *fanout // of the release, or withdrawal, that the engine waits for
}

// newBid begins the bid for the claim of a request.
func (q *Quorum) newBid(r *engine.Request) *bid {
	view, _ := r.View()
	b := &bid{
		q: q, lock: q.use(r.Keys), claim: r.Claim.ID, number: view.Number, owner: view.Owner, mode: view.Mode,
		lease: r.Lease, try: r.Try, home: -1,
	}
	for _, s := range q.servers {
		b.votes = append(b.votes, &vote{bid: b, server: s})
	}
	b.Tie = q.nextNumber()
	q.bids[b.claim] = b
	q.bidsMax = max(q.bidsMax, len(q.bids))
	q.all.PushBack(b)
	return b
}

// park keeps a request until the marks are known and allow its lease. It replaces an earlier parked request
// of the same kind. The request fails if no majority can vote.
func (b *bid) park(now time.Time, r *engine.Request) {
	q := b.q
	q.readMarks(now)
	if !q.majorityPossible() {
		q.engine.Replied(now, r, protocol.Reply{}, q.noMajority())
		return
	}
	same := func(other *engine.Request) bool { return other.Script == r.Script }
	if i := slices.IndexFunc(b.parked, same); i >= 0 {
		b.parked[i] = r
	} else {
		b.parked = append(b.parked, r)
		q.parked++
	}
}

func (b *bid) takeParked() (parked []*engine.Request) {
	parked, b.parked = b.parked, nil
	b.q.parked -= len(parked)
	return parked
}

// ask handles the engine's request for the lock, or its heartbeat.
func (b *bid) ask(now time.Time, r *engine.Request) {
	if b.phase == closing {
		b.q.engine.Replied(now, r, protocol.Reply{Refused: true}, nil)
		return
	}
	b.pending, b.latest, b.lease, b.leased = r, r, r.Lease, r.Sent
	b.longest = max(b.longest, r.Lease.Duration)
	// While the other servers are enough, a server that has refused is not asked again: the claim would leave
	// the queue that it waits in.
	n := b.mayVote()
	for _, v := range b.votes {
		if n < b.q.majority {
			v.refused = nil
		}
		if b.phase == requesting && v.state == absent {
			v.blocked = false
		}
		if v.state != absent && v.server.usable() {
			v.ask(now, v.queues)
		}
	}
	b.advance(now)
}

// advance takes every step that the bid can take now.
func (b *bid) advance(now time.Time) {
	for _, v := range b.votes {
		v.refresh()
	}
	if len(b.parked) > 0 && b.q.decided() {
		for _, r := range b.takeParked() {
			b.q.handle(now, r)
		}
	}
	switch {
	case b.phase >= won:
	case b.phase == requesting && len(b.parked) > 0: // the servers may not vote for such a lease yet
	default:
		b.elect(now)
	}
	if b.phase == won {
		b.keep(now, false)
	}
	b.askWhereDue(now)
	b.schedule()
}

// downgrade has the bid be for the claim of a request that reads, in place of the one that wrote. Until a
// server has carried that out, its vote is for both.
func (b *bid) downgrade(now time.Time, r *engine.Request) {
	view, _ := r.View()
	b.lock.held[b.mode]--
	b.former, b.claim, b.number, b.mode = b.claim, r.Claim.ID, view.Number, protocol.Read
	b.lock.held[b.mode]++
	b.q.bids[b.claim] = b
	for _, v := range b.votes {
		v.refresh()
		if v.state == cast {
			v.downgrade()
		} else {
			v.drop(now) // it is asked for again, for the claim that reads
		}
	}
}

// answer answers the pending request for the lock, if there is one.
func (b *bid) answer(now time.Time, reply protocol.Reply, err error) {
	if r := b.pending; r != nil {
		b.pending = nil
		b.q.engine.Replied(now, r, reply, err)
	}
}

// close says that the claim ends.
func (b *bid) close() {
	if b.phase == won {
		b.lock.held[b.mode]--
	}
	b.phase = closing
}

// forget removes the bid from the quorum. Its votes have been given back, or are being given back.
func (b *bid) forget() {
	b.close()
	b.q.timed.Remove(b)
	if b.q.bids[b.claim] == b {
		delete(b.q.bids, b.claim)
		delete(b.q.bids, b.former)
		order.Shrink(&b.q.bids, &b.q.bidsMax)
		b.q.all.Remove(b)
		b.q.release(b.lock)
	}
}

// schedule updates the bid's place among those that have something due.
func (b *bid) schedule() {
	var at time.Time
	if b.phase == collecting || b.phase == paused || b.phase == closing {
		at = b.until
	}
	for _, v := range b.votes {
		if v.waits() && v.server.usable() {
			at = order.Earlier(at, v.again)
		}
	}
	if at.IsZero() || b.q.bids[b.claim] != b {
		b.q.timed.Remove(b)
	} else {
		b.q.timed.Set(b, at)
	}
}

// tick does what is due: it asks again where the claim waits, retreats, and resumes after a retreat.
func (b *bid) tick(now time.Time) {
	switch over := !now.Before(b.until); {
	case b.phase == closing:
		if _, waits := b.latest.View(); !waits {
			b.forget()
			return
		}
		b.until = now.Add(engine.EndTimeout) // the process stood still: the engine has not given up
		b.schedule()
		return
	case b.phase == collecting && over:
		b.retreat(now)
	case b.phase == paused && over:
		b.phase, b.until = collecting, now.Add(b.collectingTime())
	}
	b.advance(now)
}
