package quorum

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A server is what the quorum knows of one server.
type server struct {
	index     int
	lease     time.Duration // the longest that a mark is to allow
	known     bool          // mark is what the server has said
	mark      protocol.Mark
	asked     time.Time     // when the request was sent that brought the mark
	older     bool          // another server was found to have a generation after that, and this one was not
	met       time.Time     // when it first showed the mark's id: what it has forgotten is from before
	waited    bool          // startPatience has passed since then
	rested    time.Time     // until when it rests, if the mark says so
	asking    bool          // a request about the mark is under way
	retry     time.Time     // when the mark may be changed again, after a failure
	suspected bool          // it has not answered for a while, or a request failed: no call waits for it while enough others answer
	failing   bool          // the last request failed
	probed    time.Time     // when its mark was last requested
	probes    int           // how many requests for the mark in a row have no answer
	heard     time.Time     // when it last answered
	trip      time.Duration // how long a round trip takes, at least shortestPatience/2; 0 if it has not answered yet
	err       error         // the last that it replied, or that a request failed with

	flying    []*Request // those without an answer, oldest first
	endings   []*ending  // votes that are being given back
	listening time.Time  // since when the subscription stands; zero if it does not
	deaf      uint64     // the number of a vote of which a reply told, and no message has yet; or 0
	deafAt    time.Time  // when the subscription is taken for deaf
	mute      bool       // the log has been told that the server may not publish
	unheard   bool       // the log has been told that the server refuses the subscription
}

// votes reports whether the server belongs to the generation that votes.
func (s *server) votes(q *Quorum) bool {
	return s.known && q.generation != "" && s.mark.Generation == q.generation
}

// answers reports whether the server votes and is not suspected.
func (s *server) answers(q *Quorum) bool { return s.votes(q) && !s.suspected }

// usable reports whether to ask the server for votes: it answers, or too few do and its last request has not failed.
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

// waiters returns the ballots whose claims wait in the queue of a server, oldest first.
func (q *Quorum) waiters(s *server) []*ballot {
	return slices.DeleteFunc(q.all(), func(b *ballot) bool { return b.votes[s.index].state != waiting })
}

// silentSince returns since when the server has answered nothing although a request is under way; zero if none is. A server
// that answers other requests is not silent: the one without an answer may have been lost.
func (s *server) silentSince() time.Time {
	if len(s.flying) > 0 {
		return later(s.flying[0].sent, s.heard)
	}
	return time.Time{}
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
	if t := s.silentSince(); !t.IsZero() && !s.suspected {
		note(t.Add(q.patience))
	}
	if s.known && !s.waited {
		note(s.met.Add(q.startPatience()))
	}
	if !s.asking && q.concerned(s) && !s.answers(q) {
		t := s.probed.Add(s.probePause())
		if s.known && s.mark.Resting && s.rested.After(t) {
			t = s.rested
		}
		note(t)
	}
	if q.generation == "" && !q.since.IsZero() && len(q.parked) > 0 {
		for _, wait := range [...]time.Duration{q.patience, q.startPatience()} {
			if t := q.since.Add(wait); t.After(s.probed) {
				note(t)
			}
		}
	}
	return at
}

// concerned reports whether anything waits for the server.
func (q *Quorum) concerned(s *server) bool {
	return len(q.ballots) > 0 || len(q.parked) > 0 || len(s.endings) > 0
}

// check does what is due about a server: it takes the subscription for deaf, suspects the server, or asks for its mark.
func (q *Quorum) check(now time.Time, s *server) {
	if s.deaf != 0 && !now.Before(s.deafAt) {
		s.deaf = 0
		if !s.listening.IsZero() {
			s.listening = time.Time{}
			q.out.Deaf = append(q.out.Deaf, s.index)
		}
	}
	if t := s.silentSince(); !t.IsZero() && !s.suspected && now.Sub(t) >= q.patience {
		q.suspect(now, s)
	}
	if !s.asking && q.concerned(s) && !s.answers(q) && now.Sub(s.probed) >= s.probePause() {
		s.abandonExpired(now)
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

// trust notes that a server has answered.
func (q *Quorum) trust(now time.Time, s *server) {
	s.failing, s.probes = false, 0
	if s.suspected {
		s.suspected = false
		q.readMark(now, s) // the server may have lost its data
		q.advanceAll(now)
	}
	if s.known {
		q.retryEndings(now, s)
	}
}

// suspect notes that a server does not answer. Whatever waited for it goes on without it.
func (q *Quorum) suspect(now time.Time, s *server) {
	if s.suspected {
		return
	}
	s.suspected = true
	q.finishPolls()
	q.finishRounds(now)
	q.advanceAll(now)
	q.settleParked(now)
}

// forgetVotes forgets the votes of a server that has lost its data.
func (q *Quorum) forgetVotes(s *server) {
	for _, b := range q.all() {
		if b.votes[s.index].state != absent {
			b.free(s.index)
		}
	}
}

// advanceAll advances all ballots.
func (q *Quorum) advanceAll(now time.Time) {
	for _, b := range q.all() {
		b.advance(now)
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
