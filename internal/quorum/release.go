package quorum

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// end handles the engine's request to release the claim, or to withdraw it.
func (b *bid) end(now time.Time, r *engine.Request) {
	q := b.q
	b.takeParked() // the claim ends, so the engine waits for no answer
	b.latest = r
	if x := b.release; x != nil {
		x.request, x.over = r, false // failed requests are retried meanwhile
		q.decide(now, x)
		return
	}
	x := q.newFanout(r)
	x.bid, x.home, x.ends, x.all = b, b.home, true, b.token == 0
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
	r := &Request{
		Request: protocol.Request{Script: lua.RUnlock, Keys: b.lock.keys, Claim: v.wire, Channels: q.channels},
		bid:     b,
		fanout:  b.release,
		lock:    b.lock,
		slot:    v.slot,
		giveUp:  now.Add(max(b.longest, engine.EndTimeout)),
	}
	if b.mode == protocol.Write {
		r.Script = lua.Unlock
	}
	r.Late = b.phase == closing && b.token == 0 // the call has given up
	if v.state == cast && v.local != 0 && v.holds == nil && b.under == nil && b.longest <= protocol.ShortLease &&
		now.Sub(v.first) < recordFresh {
		r.Record = protocol.Released(v.wire, v.local)
	}
	v.server.ending++
	q.send(now, v.server, r)
}

// gaveBack handles the reply of a server to which a vote was given back. If the server refuses that, the vote
// ends with its lease.
func (q *Quorum) gaveBack(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	if err != nil && protocol.Passing(err) {
		r.after = now.Add(pause)
		r.lock.refs++
		s.owed.PushBack(r)
	} else {
		if err == nil {
			r.lock.slots[s.index].Put(r.slot)
		}
		if reply.Code == protocol.DoneBefore {
			q.messagesLost(now, s) // the reply to the first run is lost: it may have contained grants
		}
		s.ending--
	}
}

// retryOwed retries to give back votes after a failure and a pause, if the server answers. After enough
// attempts it leaves a vote to its lease.
func (q *Quorum) retryOwed(now time.Time, s *server) {
	for r := s.owed.First(); r != nil && !now.Before(r.after); r = s.owed.First() {
		over := !now.Before(r.giveUp)
		if s.suspected && !over {
			return
		}
		s.owed.Remove(r)
		if over {
			s.ending--
		} else {
			again := *r // the first request may still run
			again.Record = nil
			q.send(now, s, &again)
		}
		q.release(r.lock)
	}
}
