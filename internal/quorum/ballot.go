package quorum

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A phase is how far a ballot has come.
type phase uint8

const (
	requesting phase = iota // the home has not answered
	queued                  // the claim waits in the queue of the home
	collecting              // the home has voted for the claim, and the others are asked
	won                     // a majority has voted for the claim
	closing                 // the votes are being given back
)

// A ballot collects the votes of the servers for one claim of the engine.
type ballot struct {
	q       *Quorum
	lock    *lock
	claim   any    // its ID, as the engine knows it
	number  uint64 // of the claim
	born    uint64 // orders the ballots
	owner   protocol.Owner
	mode    protocol.Mode
	lease   protocol.Lease
	try     bool
	under   any    // the ID of the write claim of the same owner, of a read under a write hold; or nil
	votes   []vote // by server
	phase   phase
	home    int             // the index of the server, or -1
	by      engine.Path     // how the vote of the home became known
	pending *engine.Request // the request for the lock that the engine waits for, or nil
	latest  *engine.Request // the last about the claim
	told    time.Time       // when the engine sent the last request to which it was told that the claim waits
	wanted  int64           // the token to ask for
	token   int64           // of the hold; 0 until the ballot is won

	collectingSince time.Time
	patience        time.Time // when the ballot retreats if it has no majority
	pause           time.Time // when the ballot collects again after a retreat
	attempts        int       // retreats so far

	count *engine.Request // the last that sets the number of holds

	endings    []*ending       // of the votes that the claim had when it ended
	endRequest *engine.Request // the release or withdrawal that the engine waits for
	answered   bool            // the ballot is forgotten
	giveUp     time.Time       // when the ballot is forgotten without an answer
}

// newBallot begins the ballot for the claim of a request.
func (q *Quorum) newBallot(now time.Time, r *engine.Request) *ballot {
	view, _ := r.View()
	q.numbers++
	b := &ballot{
		q: q, lock: q.use(r.Keys), claim: r.Claim.ID, number: view.Number, born: q.numbers, owner: view.Owner, mode: view.Mode,
		lease: r.Lease, try: r.Try, under: r.Writer, votes: make([]vote, len(q.servers)), home: -1, wanted: q.nextToken(now),
	}
	q.ballots[b.claim] = b
	return b
}

// ask handles the engine's request for the lock, or its heartbeat.
func (b *ballot) ask(now time.Time, r *engine.Request) {
	if b.phase == closing {
		b.q.answer(now, r, protocol.Reply{Refused: true}, nil)
		return
	}
	b.pending, b.latest, b.lease, b.under = r, r, r.Lease, r.Writer
	// As long as others suffice, a server that has refused is not asked again: the claim would leave the queue that it waits in.
	n, _ := b.mayVote()
	for i := range b.votes {
		v := &b.votes[i]
		if n < b.q.majority {
			v.refused = nil
		}
		if b.phase == won || b.phase == requesting && v.state == absent {
			v.blocked = false
		}
		if v.state != absent && b.q.servers[i].usable(b.q) {
			b.requestVote(now, i, v.queues)
		}
	}
	b.advance(now)
}

// advance takes every step that the ballot can take now.
func (b *ballot) advance(now time.Time) {
	switch {
	case b.phase == closing:
		b.finish(now)
	case b.phase == won:
	case b.writer() != nil:
		b.readUnder(now)
	default:
		b.elect(now)
	}
	b.schedule()
}

// fail ends the pending request for the lock, if there is one, with an error.
func (b *ballot) fail(now time.Time, err error) {
	if r := b.pending; r != nil {
		b.pending = nil
		b.q.answer(now, r, protocol.Reply{}, err)
	}
}

// forget removes the ballot from the quorum. Its votes have been given back, or are being given back.
func (b *ballot) forget() {
	b.phase, b.answered = closing, true
	delete(b.q.timed, b.born)
	if b.q.ballots[b.claim] == b {
		delete(b.q.ballots, b.claim)
		b.q.release(b.lock)
	}
}

// due returns when tick has something to do; zero for never.
func (b *ballot) due() (at time.Time) {
	note := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	switch b.phase {
	case closing:
		note(b.giveUp)
	case collecting:
		if b.pause.IsZero() {
			note(b.patience)
		}
		note(b.pause)
		for i, s := range b.q.servers {
			if v := &b.votes[i]; v.state == waiting && v.request == nil && s.usable(b.q) {
				note(v.again)
			}
		}
	case queued:
		if v := &b.votes[b.home]; v.request == nil && v.state == waiting && b.q.servers[b.home].usable(b.q) {
			note(v.again)
		}
	}
	return at
}

// schedule keeps the set of ballots that have something due.
func (b *ballot) schedule() {
	if b.answered || b.due().IsZero() {
		delete(b.q.timed, b.born)
	} else {
		b.q.timed[b.born] = b
	}
}

// tick does what is due: it asks again where the claim waits, retreats, and resumes after a retreat.
func (b *ballot) tick(now time.Time) {
	if b.phase == closing {
		b.forget()
		return
	}
	for i, s := range b.q.servers {
		if v := &b.votes[i]; v.state == waiting && v.request == nil && !v.again.IsZero() && !now.Before(v.again) && s.usable(b.q) {
			b.requestVote(now, i, true)
		}
	}
	if b.phase == collecting {
		switch {
		case !b.pause.IsZero():
			if !now.Before(b.pause) {
				b.pause = time.Time{}
				b.patience = now.Add(b.collectingTime())
			}
		case !now.Before(b.patience):
			b.retreat(now)
		}
	}
	b.advance(now)
}

// all returns the ballots, oldest first.
func (q *Quorum) all() []*ballot { return sorted(q.ballots) }

// sorted returns the ballots of a map, oldest first.
func sorted[K comparable](of map[K]*ballot) []*ballot {
	return slices.SortedFunc(maps.Values(of), func(a, b *ballot) int { return cmp.Compare(a.born, b.born) })
}
