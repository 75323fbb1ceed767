package quorum

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
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
	bid    *bid
	server *server
	state  state
	party
	former     *party            // before a downgrade, until the server has carried that out; or nil
	request    *Request          // the last one for the vote, until it is answered
	open       int               // unanswered requests for the vote
	queues     bool              // the last request asks to wait: it is not a try
	blocked    bool              // a try was refused, because the claim would have had to wait
	obstacle   protocol.Obstacle // if it waits or was blocked
	refused    error             // the server's permanent error: the claim does without its vote
	token      int64             // of the vote; 0 if not known
	local      int64             // the time of the grant by the server's clock, in µs; 0 if not known
	first      time.Time         // when the first request was sent
	sent       time.Time         // when the last request was sent that certainly set the lease
	confirming int               // unanswered requests that confirm the vote
	counted    bool              // the server was sent another number of holds than 1
	reported   bool              // a message reported the vote before the reply to a request did
	again      time.Time         // when to ask again, if the claim waits
	asked      int               // server.subscriptions when it was last asked; -1 to ask again
	seen       int               // news at the last request whose reply confirmed the vote
	sought     time.Time         // when a hold that lacks the vote last asked for it
	losses     int               // server.losses when the vote got its name
}

// A party is what a server knows a vote by.
type party struct {
	wire   protocol.Claim
	slot   int
	number uint64
}

// name gives a vote a name, by which the server knows it from now on.
func (v *vote) name() {
	b, q := v.bid, v.bid.q
	v.slot, v.number, v.losses = b.lock.slots[v.server.index].Take(), q.nextNumber(), v.server.losses
	v.wire = protocol.NewClaim(b.mode, q.instance, v.slot, v.number, b.owner)
	q.voters[v.number] = b
	q.votersMax = max(q.votersMax, len(q.voters))
}

// downgrade gives a vote a new name, after the mode of its bid has changed.
func (v *vote) downgrade() {
	before := *v
	v.forget()
	v.state, v.token, v.first, v.sent, v.former = cast, before.token, before.first, before.sent, &before.party
	v.name()
}

// refresh forgets a vote that its server has lost.
func (v *vote) refresh() {
	if v.state != absent && v.losses != v.server.losses {
		v.free()
	}
}

// waits reports whether the claim waits in the server's queue, with no request in flight.
func (v *vote) waits() bool { return v.state == waiting && v.request == nil }

// news returns how often the vote may have been dropped unnoticed: by a ForceUnlock whose message was lost
// before the subscription was established again, or by one of this client.
func (v *vote) news() int { return v.server.subscribed + v.bid.lock.forced[v.server.index] }

// counts reports whether the server has voted with a token, and has set the lease by a request that was not
// sent before a time, nor before the last news.
func (v *vote) counts(token int64, since time.Time) bool {
	return v.state == cast && v.token == token && token > 0 && !v.sent.Before(since) && v.seen == v.news()
}

// ask asks the server for its vote, or asks again. queue says whether the claim should wait if it cannot have
// the vote.
func (v *vote) ask(now time.Time, queue bool) {
	b, q := v.bid, v.bid.q
	v.refresh()
	if r := v.request; r != nil && (r.sent.IsZero() || now.Sub(r.sent) < q.patience) {
		return
	}
	if v.state == absent {
		v.state = asked
		v.name()
	}
	v.queues, v.blocked, v.again, v.asked = queue, false, time.Time{}, v.server.subscriptions
	lease := b.lease
	if b.phase == won { // the hold may end with its lease
		left := max(lease.Duration-now.Sub(b.leased), soonest)
		lease = protocol.NewLease(left.Truncate(time.Millisecond))
	}
	wanted := max(b.wanted, b.token)
	if b.phase != won {
		// A server that was admitted may have old data about the name, and tokens from before its rest. Its mark
		// says no less than all that it has forgotten: this id and generation became known after it was admitted.
		wanted = max(wanted, v.server.mark.Top+1)
	}
	r := v.about(protocol.Request{Script: lua.Vote, Channels: q.channels, Lease: lease, Try: !queue,
		VoteArgs: &protocol.VoteArgs{Mark: q.mark, Generation: q.generation, ID: v.server.mark.ID,
			Wanted: protocol.TokenArg(wanted)}})
	r.news = v.news()
	v.request = r
	v.open++
	q.send(now, v.server, r)
}

// about returns a request about the vote.
func (v *vote) about(p protocol.Request) *Request {
	p.Keys, p.Claim = v.bid.lock.keys, v.wire
	return &Request{Request: p, bid: v.bid, number: v.number, lock: v.bid.lock}
}

// askOthers asks the servers other than the home that were not asked yet.
func (b *bid) askOthers(now time.Time, queue bool) {
	for i, v := range b.votes {
		if i != b.home && v.state == absent && v.server.usable() && v.refused == nil && (queue || !v.blocked) {
			v.ask(now, queue)
		}
	}
}

// voted handles the reply to a request for a vote.
func (v *vote) voted(now time.Time, r *Request, reply protocol.Reply, err error) {
	b, s, q := v.bid, v.server, v.bid.q
	if err == nil && reply.Unmarked && r.VoteArgs.ID == s.mark.ID && r.VoteArgs.Generation == s.mark.Generation {
		s.known = false // the server has probably lost its data
		q.readMark(now, s)
	}
	if v.number != r.number || v.state == absent {
		return // the vote has been given back meanwhile
	}
	v.open--
	if v.request == r {
		v.request = nil
	} else if err == nil && reply.Vote == 0 {
		return // the server has been asked again since
	}
	switch {
	case err != nil:
		if !protocol.Passing(err) {
			v.refused = err
		}
		if v.state == asked || v.refused != nil {
			v.drop(now) // the request may have run
		} else if v.waits() {
			v.again = now.Add(pause)
		}
	case reply.Unmarked:
		v.drop(now)
	case reply.Vote != 0:
		q.noteToken(now, reply.Vote)
		if v.state != cast && s.index == b.home {
			b.by = engine.ByHeartbeat
		}
		v.state, v.reported, v.token, v.local = cast, false, reply.Vote, reply.Token
		v.sent, v.seen = order.Later(v.sent, r.sent), max(v.seen, r.news)
	case reply.Refused, !v.queues:
		v.blocked, v.obstacle = !v.queues && (v.state == asked || !reply.Refused), reply.Obstacle
		if v.state == cast || v.open > 0 {
			v.drop(now) // an earlier request may have run since, or may yet run
		} else {
			v.free()
		}
	case v.state == cast && v.reported:
		// The message overtook this reply, or the vote was lost since: the next reply shows which.
		v.reported = false
	default:
		v.state, v.token, v.obstacle, v.sent = waiting, 0, reply.Obstacle, order.Later(v.sent, r.sent)
		v.again = now.Add(max(reply.Again+grace, soonest))
		if b.phase != won { // a hold needs no subscription: its renewals return the votes that it lacked
			q.engine.Listen()
		}
	}
	b.advance(now)
}

// askWhereDue asks again on each server where the claim waits, if there is reason to.
func (b *bid) askWhereDue(now time.Time) {
	for _, v := range b.votes {
		due := v.asked != v.server.subscriptions || !v.again.IsZero() && !now.Before(v.again)
		if due && v.waits() && v.server.usable() {
			v.ask(now, true)
		}
	}
}

// free forgets a vote that the server does not keep. Its slot may be used again.
func (v *vote) free() {
	v.bid.lock.slots[v.server.index].Put(v.slot)
	v.forget()
}

// forget forgets the vote, but not what the server has said about the claim. A request that was not sent yet
// is not sent any more.
func (v *vote) forget() {
	q := v.bid.q
	if r := v.request; r != nil && r.sent.IsZero() {
		v.server.unsent.Remove(r)
		q.release(r.lock)
	}
	delete(q.voters, v.number)
	order.Shrink(&q.voters, &q.votersMax)
	*v = vote{bid: v.bid, server: v.server, refused: v.refused, blocked: v.blocked, obstacle: v.obstacle,
		sought: v.sought}
}

// drop gives the vote back, or withdraws the request for it.
func (v *vote) drop(now time.Time) {
	v.refresh()
	switch {
	case v.state == absent:
	case v.first.IsZero(): // nothing was sent
		v.free()
	default:
		v.giveBack(now)
		v.forget()
	}
}

// dropAll gives back all votes.
func (b *bid) dropAll(now time.Time) {
	for _, v := range b.votes {
		v.drop(now)
	}
}

// end handles the engine's request to release the claim, or to withdraw it.
func (b *bid) end(now time.Time, r *engine.Request) {
	q := b.q
	b.takeParked() // the claim ends, so the engine waits for no answer
	b.latest = r
	if x := b.release; x != nil {
		if x.over { // failed requests are retried meanwhile
			q.fanouts.PushBack(x)
		}
		x.request, x.over = r, false
		q.decide(now, x)
		return
	}
	x := q.newFanout(r, b, b.token == 0)
	b.close()
	b.release, b.until = x, now.Add(2*max(b.lease.Duration, engine.EndTimeout))
	b.dropAll(now)
	q.decide(now, x)
	b.schedule()
}

// giveBack begins to give the vote back. The slot is free when a reply has arrived, to the first request or
// to a later attempt.
func (v *vote) giveBack(now time.Time) {
	b, q := v.bid, v.bid.q
	r := v.about(protocol.Request{Script: lua.Unlock, Channels: q.channels})
	r.fanout, r.slot, r.giveUp = b.release, v.slot, now.Add(max(b.longest, engine.EndTimeout))
	// The call has given up, or goes on waiting.
	r.Late = b.token == 0 && (b.phase == closing || b.phase == queued)
	if v.state == cast && v.local != 0 && !v.counted && b.longest <= protocol.ShortLease &&
		now.Sub(v.first) < quickEndFor {
		r.Record = protocol.Released(v.wire, v.local)
	}
	v.server.ending++
	if v.former != nil { // first: as the engine does it
		first := *r
		first.Claim, first.slot, first.next = v.former.wire, v.former.slot, r
		r = &first
	}
	q.send(now, v.server, r)
}

// gaveBack handles the reply of a server to which a vote was given back. If the server refuses that, the vote
// ends with its lease. It reports whether another request for the same was sent.
func (q *Quorum) gaveBack(now time.Time, s *server, r *Request, reply protocol.Reply,
	err error) (goesOn bool) {
	if err != nil && protocol.Passing(err) {
		r.after = now.Add(pause)
		r.lock.refs++
		s.owed.PushBack(r)
		return false
	}
	if err == nil {
		r.lock.slots[s.index].Put(r.slot)
	}
	switch {
	case r.next == nil:
	case err == nil && reply.Code != protocol.NotThere: // the downgrade has not run, and cannot any more
		r.lock.slots[s.index].Put(r.next.slot)
	default:
		q.send(now, s, r.next)
		return true
	}
	s.ending--
	return false
}

// retryOwed retries to give back votes after a failure and a pause, if the server answers. After enough
// attempts it leaves a vote to its lease. It handles at most atOnce votes; the others stay due.
func (q *Quorum) retryOwed(now time.Time, s *server) {
	for range atOnce {
		r := s.owed.First()
		if r == nil || now.Before(r.after) {
			return
		}
		over := !now.Before(r.giveUp)
		if s.suspected && !over {
			return
		}
		s.owed.Remove(r)
		switch {
		case over && r.next != nil:
			q.send(now, s, r.next)
		case over:
			s.ending--
		default:
			again := *r // the first request may still run
			again.Record = ""
			q.send(now, s, &again)
		}
		q.release(r.lock)
	}
}
