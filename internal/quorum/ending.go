package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// An ending is a vote that is being given back to its server.
type ending struct {
	server  int
	ballot  *ballot
	lock    *lock
	request protocol.Request
	slot    int
	giveUp  time.Time // when the vote is left to its lease
	open    bool      // a request is under way
	over    bool      // the server has confirmed it
	code    int       // that the server has replied
	err     error     // that the last request failed with
	after   time.Time // when to try again after a failure
}

// end handles the engine's request to release the claim, or to withdraw it.
func (b *ballot) end(now time.Time, r *engine.Request) {
	b.endRequest, b.latest = r, r
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
	b.advance(now)
}

// giveBack begins to give back the vote of a server. The reply to the first request, or a later attempt, frees its slot.
func (q *Quorum) giveBack(now time.Time, b *ballot, i int) *ending {
	v := &b.votes[i]
	e := &ending{
		server: i, ballot: b, lock: b.lock, slot: v.slot,
		giveUp:  now.Add(max(b.lease.Duration, v.lease, engine.EndTimeout)),
		request: protocol.Request{Script: lua.RUnlock, Keys: b.lock.keys, Claim: v.wire, Channels: q.channels},
	}
	if b.mode == protocol.Write {
		e.request.Script = lua.Unlock
	}
	if v.state == cast && v.local != 0 && !v.entered && now.Sub(v.granted) < recordFresh {
		e.request.Record = protocol.Released(v.wire, v.local)
	}
	b.lock.refs++
	s := q.servers[i]
	s.endings = append(s.endings, e)
	q.sendEnding(now, e)
	return e
}

func (q *Quorum) sendEnding(now time.Time, e *ending) {
	e.open = true
	q.send(now, e.server, &Request{Request: e.request, For: e.ballot.latest, kind: givesBack, ending: e, lock: e.lock})
}

// gaveBack handles the reply of a server to which a vote was given back.
func (q *Quorum) gaveBack(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	e := r.ending
	e.open, e.err = false, err
	e.request.Record = nil
	if err != nil {
		e.after = now.Add(probeEvery)
		e.ballot.advance(now)
		return
	}
	e.over, e.code = true, reply.Code
	s.endings = slices.DeleteFunc(s.endings, func(other *ending) bool { return other == e })
	e.lock.slots[e.server].free = append(e.lock.slots[e.server].free, e.slot)
	if reply.Code == protocol.DoneBefore {
		for _, b := range q.waiters(s) { // the reply to the first run, which may have granted them the lock, is lost
			if b.lock == e.lock {
				b.askAgain(now, s.index)
			}
		}
	}
	q.release(e.lock)
	if e.ballot.phase == closing {
		e.ballot.finish(now)
	}
}

// retryable reports whether another attempt may succeed: the last one has not failed with an error that the server would reply
// again.
func (e *ending) retryable() bool { return e.open || e.err == nil || protocol.Passing(e.err) }

// retryEndings tries again to give back votes after failures.
func (q *Quorum) retryEndings(now time.Time, s *server) {
	s.abandonExpired(now)
	for _, e := range s.endings {
		if !e.open && !now.Before(e.after) {
			q.sendEnding(now, e)
		}
	}
}

// abandonExpired leaves votes to their leases that could not be given back in time.
func (s *server) abandonExpired(now time.Time) {
	s.endings = slices.DeleteFunc(s.endings, func(e *ending) bool {
		if e.open || now.Before(e.giveUp) {
			return false
		}
		e.ballot.q.release(e.lock)
		return true
	})
}

// finish answers the engine's release or withdrawal once enough votes are given back.
func (b *ballot) finish(now time.Time) {
	q, r := b.q, b.endRequest
	if r == nil || b.answered {
		return
	}
	done, gone, open := 0, 0, 0
	home := false // it has not answered, and is not suspected: the next claim asks there
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
	case len(b.endings)-gone-done < q.majority: // what the servers have that do not answer is no majority
	default:
		err := refused
		if err == nil {
			err = q.noMajority()
		}
		b.endRequest = nil
		q.answer(now, r, protocol.Reply{}, err)
		return
	}
	b.forget()
	q.answer(now, r, protocol.Reply{Code: code}, nil)
}
