package quorum

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A server is what the quorum knows of one server.
type server struct {
	index   int
	lease   time.Duration // the longest lease asked for since the server last recorded one
	noted   time.Duration // the longest lease that the server recorded for this client
	notedAt time.Time     // when that request was sent
	known   bool          // mark is what the server has said
	mark    protocol.Mark
	asked   time.Time // when the request for this mark was sent
	older   bool      // the mark has no generation, and may be older than the start of another server
	met     time.Time // when it first showed the mark's id; it has forgotten only earlier votes
	waited  bool      // startPatience has passed since met, or the server has lost its data
	resting time.Time // when it was first seen to rest; zero if it does not
	// the longest lease that it may have voted for before that; negative if that is not known
	forgot   time.Duration
	question question  // of this client
	news     news      // for this client
	wondered time.Time // when the last question was first seen
	asking   bool      // a request about the mark is in flight
	retry    time.Time // when the mark may be changed again, after a failure
	// it has not answered for a while, or a request failed: calls do not wait for it while enough others
	// answer
	suspected bool
	failing   bool      // the last request failed
	closed    bool      // the client for it was closed
	probed    time.Time // when its mark was last requested
	probes    int       // consecutive unanswered requests for the mark
	heard     time.Time // when it last answered
	// the round trip, at least shortestPatience/2; 0 if the server has not answered yet
	trip time.Duration
	err  error // the last error, of the server or of a request

	unsent        order.List[Request, *Request] // requests that are not sent yet
	late          order.List[Request, *Request] // the same, of requests that nobody waits for
	flyingLate    int                           // how many late requests are in flight
	flying        order.List[Request, *Request] // requests in flight, oldest first
	owed          order.List[Request, *Request] // votes that could not be given back, next attempt first
	listening     time.Time                     // when the subscription was established; zero if there is none
	subscriptions int                           // how often the subscription was opened
	// the number of a vote that a reply reported before any message did; or 0
	missedGrant        uint64
	missedGrantAt      time.Time // when the subscription counts as broken
	publishErrorLogged bool      // it was logged that the server may not publish
	unheard            bool      // it was logged that the server refuses the subscription
}

// votes reports whether the server belongs to the generation that votes.
func (s *server) votes(q *Quorum) bool {
	return s.known && q.generation != "" && s.mark.Generation == q.generation
}

// answers reports whether the server votes and is not suspected.
func (s *server) answers(q *Quorum) bool { return s.votes(q) && !s.suspected }

// usable reports whether to ask the server for votes. It answers; or too few servers do, and its last request
// has not failed.
func (s *server) usable(q *Quorum) bool {
	return s.answers(q) || s.votes(q) && !s.failing && q.shortOfServers()
}

// shortOfServers reports whether fewer than a majority answer.
func (q *Quorum) shortOfServers() bool {
	n := 0
	for _, s := range q.servers {
		if s.answers(q) {
			n++
		}
	}
	return n < q.majority
}

// oldest returns when the oldest request was sent that has no answer; zero if there is none.
func (s *server) oldest() time.Time {
	if r := s.flying.First(); r != nil {
		return r.sent
	}
	return time.Time{}
}

// slow reports whether a request has been unanswered for too long, even if the server answers others.
func (q *Quorum) slow(now time.Time, s *server) bool {
	at := s.oldest()
	return !at.IsZero() && now.Sub(at) >= q.patience
}

// givesBack reports whether a vote is being given back to the server, unless the server has refused it.
func (s *server) givesBack() bool {
	for _, list := range [...]*order.List[Request, *Request]{&s.flying, &s.unsent, &s.late} {
		for r := range list.All() {
			if r.kind == givesBack {
				return true
			}
		}
	}
	for r := range s.owed.All() {
		if !r.refused {
			return true
		}
	}
	return false
}

// probePause returns the pause between two requests for the mark.
func (s *server) probePause() time.Duration {
	return min(probeEvery<<min(max(s.probes-1, 0), 10), probeSlowly)
}

// due returns when check has something to do for a server, or zero for never.
func (q *Quorum) due(s *server) (at time.Time) {
	note := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if s.missedGrant != 0 {
		note(s.missedGrantAt)
	}
	if t := s.oldest(); !t.IsZero() && !s.suspected {
		note(t.Add(q.patience))
	}
	if s.known && !s.waited {
		note(s.met.Add(q.startPatience()))
	}
	if !s.asking && q.concerned(s) && !s.answers(q) {
		note(later(s.probed.Add(s.probePause()), s.rested()))
	}
	if r := s.owed.First(); r != nil && !s.suspected {
		note(r.after)
	}
	if q.generation == "" && !q.since.IsZero() && q.parked > 0 {
		for _, wait := range [...]time.Duration{q.patience, q.startPatience()} {
			if t := q.since.Add(wait); t.After(s.probed) {
				note(t)
			}
		}
	}
	return at
}

// concerned reports whether to request the mark of a server that does not vote: either something waits for
// the server, or the others vote and this client has to notice when the server votes too.
func (q *Quorum) concerned(s *server) bool {
	return len(q.bids) > 0 || s.owed.Len() > 0 || q.generation != "" && !s.answers(q)
}

// rested returns when the server's rest ends, by this client's clock: one longest lease after this client
// first saw it rest. It is zero if the server does not rest, or the longest lease is not known.
func (s *server) rested() time.Time {
	if s.resting.IsZero() || s.forgot < 0 {
		return time.Time{}
	}
	return s.resting.Add(s.forgot + s.forgot/100 + grace)
}

// check does what is due for a server: it declares the subscription broken, suspects the server, or requests
// its mark.
func (q *Quorum) check(now time.Time, s *server) {
	if s.missedGrant != 0 && !now.Before(s.missedGrantAt) {
		s.missedGrant = 0
		if !s.listening.IsZero() {
			s.listening = time.Time{}
			q.out.Resubscribe = append(q.out.Resubscribe, s.index)
		}
	}
	if q.slow(now, s) {
		q.suspect(now, s)
	}
	q.retryOwed(now, s)
	if !s.asking && q.concerned(s) && !s.answers(q) && now.Sub(s.probed) >= s.probePause() {
		q.readMark(now, s)
	}
	if s.known && !s.waited && now.Sub(s.met) >= q.startPatience() {
		s.waited = true
		q.evaluateMarks(now) // the server is not about to be started
	}
	if q.generation == "" {
		s.probed = later(s.probed, now)
		q.evaluateMarks(now)
		q.handleParked(now)
	}
}

// trust records that a server has answered a request. A suspected server is trusted again when it has
// answered in time, and has no old requests.
func (q *Quorum) trust(now time.Time, s *server, r *Request) {
	s.failing = false
	if s.suspected && (now.Sub(r.sent) >= q.patience || q.slow(now, s)) {
		return
	}
	s.probes = 0
	if s.suspected {
		s.suspected = false
		if r.kind != marks {
			q.readMark(now, s) // the server may have lost its data
		}
		q.advanceAll(now)
	}
}

// suspect records that a server does not answer. Everything that waits for it continues without it.
func (q *Quorum) suspect(now time.Time, s *server) {
	if s.suspected {
		return
	}
	s.suspected = true
	for _, list := range [...]*order.List[Request, *Request]{&s.flying, &s.unsent, &s.late} {
		for r := range list.All() {
			if r.fanout != nil {
				q.decide(now, r.fanout)
			}
		}
	}
	q.advanceAll(now)
	q.handleParked(now)
}

// forgetVotes forgets the votes of a server that has lost its data.
func (q *Quorum) forgetVotes(s *server) {
	for b := range q.all.All() {
		if b.votes[s.index].state != absent {
			b.free(s.index)
		}
	}
}

// advanceAll advances all bids after a change of the servers: atOnce of them now, and the others in later
// calls of Tick.
func (q *Quorum) advanceAll(now time.Time) {
	q.stale, q.changed = q.all.Len(), now
	q.sweep(now)
}

// sweep advances bids that have not advanced since the servers changed.
func (q *Quorum) sweep(now time.Time) {
	for range min(q.stale, atOnce) {
		q.stale--
		if b := q.all.First(); b != nil {
			q.all.Remove(b)
			q.all.PushBack(b)
			b.advance(now)
		}
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
