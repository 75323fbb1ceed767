package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A round is a request of the engine's that a majority is to confirm: a renewal, or a change of the number of holds.
type round struct {
	r        *engine.Request
	sent     int // to servers
	done     int // of them, that have confirmed it
	gone     int // that have no vote for the claim any more
	failed   int
	home     int // that has yet to answer, or -1: it lets in the next when the lease is over that it knows
	err      error
	answered bool
}

// spread sends a renewal, or a change of the number of holds, to all that have voted for the claim, whether or not they answer others.
// A renewal asks the others for their votes again. Those do not count in this round: a hold lasts while a majority of votes does that
// were there all the time, or else somebody may have had the lock in between.
func (b *ballot) spread(now time.Time, r *engine.Request) {
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
	if q.judgeRound(now, x); !x.answered {
		q.rounds = append(q.rounds, x)
	}
}

// judgeRounds answers what need not wait any more for a server that does not answer.
func (q *Quorum) judgeRounds(now time.Time) {
	for _, x := range q.rounds {
		q.judgeRound(now, x)
	}
	q.rounds = slices.DeleteFunc(q.rounds, func(x *round) bool { return x.answered })
}

// confirm sends a vote's server what the engine has to say of the claim.
func (b *ballot) confirm(now time.Time, i int, k kind, x *round, r *engine.Request) {
	v := &b.votes[i]
	copied := r.Request
	copied.Claim = v.wire
	if k == counts {
		v.entered = true
	}
	b.q.send(now, i, &Request{Request: copied, kind: k, ballot: b, number: v.number, lease: r.Lease.Duration, round: x, lock: b.room})
}

// recover asks a server for its vote that has not voted for the claim, or has lost its vote.
func (b *ballot) recover(now time.Time, i int, r *engine.Request) {
	if w := b.writer(); w != nil && w.votes[i].state != cast {
		return
	}
	before := b.lease
	b.lease = r.Lease
	b.call(now, i, false)
	b.lease = before
}

// attend sees to a vote that comes when the claim has the lock already.
func (b *ballot) attend(now time.Time, i int, number uint64) {
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

// confirmed takes a server's reply to what it was told of a vote.
func (q *Quorum) confirmed(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	b := r.ballot
	v := &b.votes[s.index]
	if v.number == r.number && v.state == cast && err == nil {
		if reply.Code == protocol.NotThere {
			b.drop(now, s.index) // whatever it has of the claim is to be refused
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

// counted takes a server's reply to a round.
func (q *Quorum) counted(now time.Time, x *round, reply protocol.Reply, err error) {
	switch {
	case err != nil:
		x.failed, x.err = x.failed+1, err
	case reply.Code == protocol.NotThere:
		x.gone++
	default:
		x.done++
	}
	q.judgeRounds(now)
}

// judgeRound answers the engine once a majority has confirmed its request, and the home if it answers anybody; or once they cannot.
func (q *Quorum) judgeRound(now time.Time, x *round) {
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
		err = q.few()
	}
	x.answered = true
	q.answer(now, x.r, reply, err)
}

// standing returns how many servers may have voted for the claim.
func (b *ballot) standing() (n int) {
	for i := range b.votes {
		if s := b.votes[i].state; s == cast || s == asked {
			n++
		}
	}
	return n
}

// An ending is a vote that is being given back.
type ending struct {
	server  int
	ballot  *ballot
	room    *room
	request protocol.Request
	slot    int
	cast    bool
	giveUp  time.Time // when it is left to its lease
	open    bool      // a request is under way
	over    bool
	code    int
	err     error
	after   time.Time // when to try again what the server has refused
}

// give begins to give back the vote of a server.
func (q *Quorum) give(now time.Time, b *ballot, i int) *ending {
	v := &b.votes[i]
	e := &ending{
		server: i, ballot: b, room: b.room, slot: v.slot, cast: v.state == cast,
		giveUp:  now.Add(max(b.lease.Duration, v.lease, engine.EndTimeout)),
		request: protocol.Request{Script: lua.RUnlock, Keys: b.room.keys, Claim: v.wire, Channels: q.channels},
	}
	if b.mode == protocol.Write {
		e.request.Script = lua.Unlock
	}
	if v.state == cast && v.local != 0 && !v.entered && now.Sub(v.granted) < recordFresh {
		e.request.Record = protocol.Released(v.wire, v.local)
	}
	b.room.refs++
	s := q.servers[i]
	s.endings = append(s.endings, e)
	q.sendEnding(now, e)
	return e
}

func (q *Quorum) sendEnding(now time.Time, e *ending) {
	e.open = true
	q.send(now, e.server, &Request{Request: e.request, For: e.ballot.latest, kind: gives, ending: e, lock: e.room})
}

// gave takes a server's reply to a vote that was given back.
func (q *Quorum) gave(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	e := r.ending
	e.open, e.err = false, err
	e.request.Record = nil
	if err != nil {
		e.after = now.Add(probeEvery)
		e.ballot.proceed(now)
		return
	}
	e.over, e.code = true, reply.Code
	s.endings = slices.DeleteFunc(s.endings, func(other *ending) bool { return other == e })
	e.room.slots[e.server].free = append(e.room.slots[e.server].free, e.slot)
	if reply.Code == protocol.DoneBefore {
		for _, b := range q.waiters(s) { // the reply that named whom that run let in is lost
			if b.room == e.room {
				b.look(now, s.index)
			}
		}
	}
	q.leave(e.room)
	if e.ballot.phase == closing {
		e.ballot.conclude(now)
	}
}

// hopeful reports whether the server may yet take the vote back: it has not refused to, as it does if a key has another type.
func (e *ending) hopeful() bool { return e.open || e.err == nil || protocol.Passing(e.err) }

// giveAgain tries again to give back what a server has not taken back.
func (q *Quorum) giveAgain(now time.Time, s *server) {
	s.dropLate(now)
	for _, e := range s.endings {
		if !e.open && !now.Before(e.after) {
			q.sendEnding(now, e)
		}
	}
}

// dropLate leaves to their leases what could not be given back in time.
func (s *server) dropLate(now time.Time) {
	s.endings = slices.DeleteFunc(s.endings, func(e *ending) bool {
		if e.open || now.Before(e.giveUp) {
			return false
		}
		e.ballot.q.leave(e.room)
		return true
	})
}

// end takes the engine's request to release the claim, or to withdraw it.
func (b *ballot) end(now time.Time, r *engine.Request) {
	b.ender, b.latest = r, r
	if b.phase != closing {
		b.phase = closing
		b.giveUp = now.Add(2 * max(b.lease.Duration, engine.EndTimeout))
		for i := range b.votes {
			if e := b.drop(now, i); e != nil {
				b.endings = append(b.endings, e)
			}
		}
	}
	for _, e := range b.endings {
		if !e.over && !e.open {
			b.q.sendEnding(now, e)
		}
	}
	b.proceed(now)
}

// conclude answers the engine once the votes are given back.
func (b *ballot) conclude(now time.Time) {
	q, r := b.q, b.ender
	if r == nil || b.answered {
		return
	}
	done, gone, open := 0, 0, 0
	home := false // it has yet to answer, and does: the next claim asks there
	var refused error
	code := protocol.Done
	for _, e := range b.endings {
		switch {
		case e.over && e.code == protocol.NotThere:
			gone++
		case e.over:
			done++
		case e.open && !q.servers[e.server].suspected:
			open++
			home = home || e.server == b.home
		case e.err != nil && !protocol.Passing(e.err):
			refused = e.err
		}
	}
	switch {
	case b.token == 0:
		if open > 0 {
			return
		}
		code = protocol.NotThere
	case done >= q.majority && home:
		return
	case done >= q.majority:
	case len(b.endings)-gone < q.majority:
		code = protocol.NotThere
	case open > 0:
		return
	default:
		err := refused
		if err == nil {
			err = q.few()
		}
		b.ender = nil
		q.answer(now, r, protocol.Reply{}, err)
		return
	}
	b.over()
	q.answer(now, r, protocol.Reply{Code: code}, nil)
}
