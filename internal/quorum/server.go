package quorum

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A server is what the quorum knows of one server.
type server struct {
	index   int
	lease   time.Duration // the longest that was asked for since the server last noted one
	noted   time.Duration // the longest that this client has had the server note
	notedAt time.Time     // when the request was sent that did
	known   bool          // mark is what the server has said
	mark    protocol.Mark
	asked   time.Time // when the request was sent that brought the mark
	older   bool      // another server was found to have a generation after that, and this one was not
	met     time.Time // when it first showed the mark's id: what it has forgotten is from before
	waited  bool      // startPatience has passed since then, or it has lost its data
	resting time.Time // when it was first seen to rest; zero if it does not
	// the longest lease that it may have voted for before that; negative if that is not known
	forgot   time.Duration
	question question  // that this client has asked there
	news     news      // that another client has left there for this one
	wondered time.Time // when the last question was first seen
	asking   bool      // a request about the mark is under way
	retry    time.Time // when the mark may be changed again, after a failure
	// it has not answered for a while, or a request failed: no call waits for it while enough others answer
	suspected bool
	failing   bool      // the last request failed
	closed    bool      // the client for it was closed
	probed    time.Time // when its mark was last requested
	probes    int       // how many requests for the mark in a row have no answer
	heard     time.Time // when it last answered
	// how long a round trip takes, at least shortestPatience/2; 0 if it has not answered yet
	trip time.Duration
	err  error // the last that it replied, or that a request failed with

	unsent        order.List[Request, *Request] // requests that wait until others are answered
	late          order.List[Request, *Request] // the same, of those that others overtake
	flyingLate    int                           // how many of them are under way
	flying        order.List[Request, *Request] // those without an answer, oldest first
	owed          order.List[Request, *Request] // votes that were not given back; the next to try again first
	listening     time.Time                     // since when the subscription stands; zero if it does not
	subscriptions int                           // how often the subscription was opened
	// the number of a vote that a reply told of, and no message; or 0
	deaf    uint64
	deafAt  time.Time // when the subscription is taken for deaf
	mute    bool      // the log has been told that the server may not publish
	unheard bool      // the log was told that the server refuses the subscription
}

// votes reports whether the server belongs to the generation that votes.
func (s *server) votes(q *Quorum) bool {
	return s.known && q.generation != "" && s.mark.Generation == q.generation
}

// answers reports whether the server votes and is not suspected.
func (s *server) answers(q *Quorum) bool { return s.votes(q) && !s.suspected }

// usable reports whether to ask the server for votes: it answers, or too few do and its last request has not
// failed.
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

// slow reports whether a request has been without an answer for too long, whatever else the server answers.
func (q *Quorum) slow(now time.Time, s *server) bool {
	at := s.oldest()
	return !at.IsZero() && now.Sub(at) >= q.patience
}

// givesBack reports whether a vote is being given back to the server that it does not refuse to take.
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

// probePause returns how long after one request for the mark the next is due.
func (s *server) probePause() time.Duration {
	return min(probeEvery<<min(max(s.probes-1, 0), 10), probeSlowly)
}

// due returns when check has something to do about a server; zero for never.
func (q *Quorum) due(s *server) (at time.Time) {
	note := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if s.deaf != 0 {
		note(s.deafAt)
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

// concerned reports whether to ask a server that does not vote for its mark: something waits for it, or the
// others vote, and this client is to say when it does, too.
func (q *Quorum) concerned(s *server) bool {
	return len(q.ballots) > 0 || s.owed.Len() > 0 || q.generation != "" && !s.answers(q)
}

// rested returns until when the server rests, by this client's clock: for the longest lease that it may have
// forgotten, from when it was first seen to rest. It is zero if it does not rest, or that lease is not known.
func (s *server) rested() time.Time {
	if s.resting.IsZero() || s.forgot < 0 {
		return time.Time{}
	}
	return s.resting.Add(s.forgot + s.forgot/100 + grace)
}

// check does what is due about a server: it takes the subscription for deaf, suspects the server, or asks for
// its mark.
func (q *Quorum) check(now time.Time, s *server) {
	if s.deaf != 0 && !now.Before(s.deafAt) {
		s.deaf = 0
		if !s.listening.IsZero() {
			s.listening = time.Time{}
			q.out.Deaf = append(q.out.Deaf, s.index)
		}
	}
	if q.slow(now, s) {
		q.suspect(now, s)
	}
	q.settleOwed(now, s)
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
		q.settleParked(now)
	}
}

// trust notes that a server has answered a request. A server that was suspected is trusted again once it
// answers in time, and has answered all that is old.
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

// suspect notes that a server does not answer. Whatever waited for it goes on without it.
func (q *Quorum) suspect(now time.Time, s *server) {
	if s.suspected {
		return
	}
	s.suspected = true
	for _, list := range [...]*order.List[Request, *Request]{&s.flying, &s.unsent, &s.late} {
		for r := range list.All() {
			if r.round != nil {
				q.decide(now, r.round)
			}
		}
	}
	q.advanceAll(now)
	q.settleParked(now)
}

// forgetVotes forgets the votes of a server that has lost its data.
func (q *Quorum) forgetVotes(s *server) {
	for b := range q.all.All() {
		if b.votes[s.index].state != absent {
			b.free(s.index)
		}
	}
}

// advanceAll advances all ballots, since the servers have changed: some now, and the others as soon as
// others had their turn.
func (q *Quorum) advanceAll(now time.Time) {
	q.stale, q.changed = q.all.Len(), now
	q.sweep(now)
}

// sweep advances ballots that have not been since the servers have changed.
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
