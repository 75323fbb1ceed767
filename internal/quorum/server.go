package quorum

import (
	"cmp"
	"container/list"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A server is what is known of one of the servers.
type server struct {
	index     int
	lease     time.Duration // the longest that the others are told of at the start
	known     bool          // what its mark says
	mark      protocol.Mark
	asked     time.Time // before the request was sent that brought the mark
	rested    time.Time // until when it rests
	seeing    bool      // a request about its mark is under way
	suspected bool      // it does not answer: nobody waits for it, if there are enough others
	failing   bool      // the last request has failed, and was not only left without an answer
	probed    time.Time // when it was last asked for its mark
	probes    int       // in a row that were not answered
	heard     time.Time // when it last answered
	err       error     // the last

	flying    list.List // of *Request that have no answer, the oldest first
	endings   []*ending // votes that are to be given back
	listening time.Time // since when the subscription stands
	deaf      uint64    // a vote that a reply told of, and no message yet
	deafAt    time.Time
	mute      bool
	unheard   bool
}

// votes reports whether the server votes, if it answers.
func (s *server) votes(q *Quorum) bool {
	return s.known && q.generation != "" && s.mark.Generation == q.generation
}

// answers reports whether the server votes, and answers.
func (s *server) answers(q *Quorum) bool { return s.votes(q) && !s.suspected }

// usable reports whether to ask the server for votes: if it answers; or if too few do, and it may yet.
func (s *server) usable(q *Quorum) bool {
	return s.answers(q) || s.votes(q) && !s.failing && q.pressed()
}

// pressed reports whether too few servers answer.
func (q *Quorum) pressed() bool {
	n := 0
	for _, s := range q.servers {
		if s.answers(q) {
			n++
		}
	}
	return n < q.majority
}

// waiters returns the ballots that wait in a server's queue, in a certain order.
func (q *Quorum) waiters(s *server) []*ballot {
	return slices.DeleteFunc(q.all(), func(b *ballot) bool { return b.votes[s.index].state != waiting })
}

// silent returns since when the server owes an answer; zero if it owes none. If it answers others, a request is lost, and the server
// is not.
func (s *server) silent() time.Time {
	if e := s.flying.Front(); e != nil {
		return later(e.Value.(*Request).sent, s.heard)
	}
	return time.Time{}
}

// pause returns how long after a probe the next is due.
func (s *server) pause() time.Duration {
	return min(probeEvery<<min(max(s.probes-1, 0), 10), probeSlowly)
}

// due is when something is to be done about a server.
func (q *Quorum) due(s *server) (at time.Time) {
	note := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if s.deaf != 0 {
		note(s.deafAt)
	}
	if t := s.silent(); !t.IsZero() && !s.suspected {
		note(t.Add(patience))
	}
	if !s.seeing && q.concerned(s) && !s.answers(q) {
		t := s.probed.Add(s.pause())
		if s.known && s.mark.Resting && s.rested.After(t) {
			t = s.rested
		}
		note(t)
	}
	if q.generation == "" && !q.since.IsZero() && len(q.parked) > 0 {
		if t := q.since.Add(patience); t.After(s.probed) {
			note(t)
		}
	}
	return at
}

// concerned reports whether it matters what a server does.
func (q *Quorum) concerned(s *server) bool {
	return len(q.ballots) > 0 || len(q.parked) > 0 || len(s.endings) > 0
}

// tend does what is due about a server.
func (q *Quorum) tend(now time.Time, s *server) {
	if s.deaf != 0 && !now.Before(s.deafAt) {
		s.deaf = 0
		if !s.listening.IsZero() {
			s.listening = time.Time{}
			q.out.Deaf = append(q.out.Deaf, s.index)
		}
	}
	if t := s.silent(); !t.IsZero() && !s.suspected && now.Sub(t) >= patience {
		q.suspect(now, s)
	}
	if !s.seeing && q.concerned(s) && !s.answers(q) && now.Sub(s.probed) >= s.pause() {
		s.dropLate(now)
		q.see(now, s)
	}
	if q.generation == "" {
		s.probed = later(s.probed, now)
		q.judge(now)
		q.settleParked(now)
	}
}

// learn asks for the marks that are not known.
func (q *Quorum) learn(now time.Time) {
	if q.since.IsZero() {
		q.since = now
	}
	for _, s := range q.servers {
		if !s.known && (s.probed.IsZero() || now.Sub(s.probed) >= s.pause()) {
			q.see(now, s)
		}
	}
}

func (q *Quorum) see(now time.Time, s *server) {
	if s.seeing {
		return
	}
	s.probed = now
	s.probes++
	q.askMark(now, s, "see", fmt.Sprintf("%s:%d", q.instance, s.index))
}

// askMark reads or changes the mark of a server.
func (q *Quorum) askMark(now time.Time, s *server, args ...any) {
	s.seeing = true
	q.send(now, s.index, &Request{
		Request: protocol.Request{Script: lua.Mark, Ballot: &protocol.Ballot{Mark: q.mark, Args: args}}, kind: marks})
}

// marked takes what a server says of itself.
func (q *Quorum) marked(now time.Time, s *server, r *Request, m protocol.Mark, err error) {
	s.seeing = false
	if err != nil {
		q.judge(now)
		q.settleParked(now)
		return
	}
	answered := s.answers(q)
	if s.known && s.mark.ID != m.ID {
		q.forget(s)
	}
	s.known, s.mark, s.asked = true, m, r.sent
	if m.Resting {
		s.rested = now.Add(m.Rest + m.Rest/100 + grace)
	}
	q.saw(now, max(m.Top, m.Now))
	q.judge(now)
	q.trust(now, s)
	if s.answers(q) && !answered {
		q.proceedAll(now)
	}
	q.settleParked(now)
}

// forget notes that a server has lost its data, and with them its votes.
func (q *Quorum) forget(s *server) {
	for _, b := range q.all() {
		if b.votes[s.index].state != absent {
			b.free(s.index)
		}
	}
}

// proceedAll has every ballot go on that can.
func (q *Quorum) proceedAll(now time.Time) {
	for _, b := range q.all() {
		b.proceed(now)
	}
}

// hopeful reports whether a majority votes, or may turn out to.
func (q *Quorum) hopeful() bool {
	n := 0
	for _, s := range q.servers {
		if s.usable(q) || s.seeing && !s.failing && (!s.known || q.generation == "") {
			n++
		}
	}
	return n >= q.majority || q.generation == "" && q.knownServers() >= q.majority && q.twice == nil
}

func (q *Quorum) knownServers() (n int) {
	for _, s := range q.servers {
		if s.known && !s.failing && !s.mark.Resting {
			n++
		}
	}
	return n
}

// settleParked goes on with the requests that were parked, if they may be tried now, or are in vain.
func (q *Quorum) settleParked(now time.Time) {
	switch {
	case len(q.parked) == 0:
	case q.generation != "" && !q.introducing() || q.twice != nil:
		q.unparkAll(now)
	case !q.hopeful():
		parked := q.parked
		q.parked = nil
		for _, r := range parked {
			q.answer(now, r, protocol.Reply{}, q.few())
		}
	}
}

// introducing reports whether a server may be about to say that it votes. Until it has, or has been silent for too long, this client
// would take another for the home of some names than clients do that know it already.
func (q *Quorum) introducing() bool {
	return slices.ContainsFunc(q.servers, func(s *server) bool {
		return s.seeing && !s.suspected && !s.votes(q) && !(s.known && s.mark.Resting)
	})
}

// know reports whether the servers are known and a majority votes, and knows that leases may be so long.
func (q *Quorum) know(now time.Time, lease time.Duration) bool {
	if q.generation == "" || q.introducing() {
		return false
	}
	if lease <= q.longest {
		return true
	}
	for _, s := range q.servers {
		s.lease = max(s.lease, lease)
	}
	q.judge(now)
	return false
}

// judge draws conclusions from the marks: who votes, who is to start, to rest, or to be let in again.
func (q *Quorum) judge(now time.Time) {
	ids, members := map[string]int{}, map[string]int{}
	answered, voted, top, longest := 0, false, int64(0), time.Duration(0)
	for _, s := range q.servers {
		if !s.known {
			continue
		}
		if other, ok := ids[s.mark.ID]; ok {
			q.twice = fmt.Errorf("clients %d and %d of the quorum are of the same server", other, s.index)
			return
		}
		ids[s.mark.ID] = s.index
		answered++
		voted = voted || s.mark.Top != 0 || s.mark.Resting
		top, longest = max(top, s.mark.Top), max(longest, s.mark.Longest)
		if g := s.mark.Generation; g != "" {
			members[g]++
		}
	}
	best := ""
	for g, n := range members {
		if best == "" || n > members[best] || n == members[best] && g < best {
			best = g
		}
	}
	switch {
	case best != "" && members[best] >= q.majority:
		q.generation = best
		q.tally()
		for _, s := range q.servers {
			q.restore(now, s, longest, top)
		}
		return
	case q.generation != "":
		q.generation = "" // the servers have lost their data
		q.since = now
	}
	if answered < len(q.servers) && (answered < q.majority || now.Sub(q.since) < patience) {
		return
	}
	if voted {
		// A majority has lost its data. Who has voted rests, too, unless its generation goes on.
		if best == "" {
			best = q.newGeneration()
		}
		q.generation = best
		for _, s := range q.servers {
			q.restore(now, s, max(longest, s.lease), top)
		}
		q.generation = ""
		return
	}
	if best == "" || len(members) > 1 {
		for g := range members {
			best = min(best, g)
		}
		if len(members) == 0 {
			best = q.newGeneration()
		}
	}
	for _, s := range q.servers {
		if s.known && !s.seeing && !s.suspected && s.mark.Generation != best {
			q.askMark(now, s, "start", s.mark.ID, best, protocol.Milliseconds(s.lease))
		}
	}
}

func (q *Quorum) newGeneration() string {
	q.made++
	return fmt.Sprintf("%s:%d", q.instance, q.made)
}

// tally notes the longest lease that a majority knows of.
func (q *Quorum) tally() {
	var list []time.Duration
	for _, s := range q.servers {
		if s.known && s.mark.Generation == q.generation {
			list = append(list, s.mark.Longest)
		}
	}
	slices.SortFunc(list, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	q.longest = list[q.majority-1]
}

// restore has a server rest that is not of the generation that votes, lets it in when it has, and tells one that is of the longest
// lease.
func (q *Quorum) restore(now time.Time, s *server, longest time.Duration, top int64) {
	switch {
	case !s.known || s.seeing || s.suspected:
	case s.mark.Generation == q.generation:
		if s.mark.Longest < s.lease {
			q.askMark(now, s, "raise", s.mark.ID, q.generation, protocol.Milliseconds(s.lease))
		}
	case !s.mark.Resting:
		q.askMark(now, s, "rest", s.mark.ID, s.mark.Generation, protocol.Milliseconds(longest))
	case now.Before(s.rested):
	case q.fresh(now, s.rested):
		q.askMark(now, s, "admit", s.mark.ID, q.generation, protocol.Milliseconds(longest), protocol.TokenArg(top))
	}
}

// fresh reports whether a majority has been asked for its marks since a time, and asks for them.
func (q *Quorum) fresh(now time.Time, since time.Time) bool {
	n, answered := 0, 0
	for _, s := range q.servers {
		if !s.known || s.suspected {
			continue
		}
		answered++
		if !s.asked.Before(since) {
			n++
		} else {
			q.see(now, s)
		}
	}
	return n >= q.majority
}

// trust notes that a server answers.
func (q *Quorum) trust(now time.Time, s *server) {
	s.failing, s.probes = false, 0
	if s.suspected {
		s.suspected = false
		q.see(now, s) // it may have lost its data
		q.proceedAll(now)
	}
	if s.known {
		q.giveAgain(now, s)
	}
}

// suspect notes that a server does not answer. Nobody waits for it any more.
func (q *Quorum) suspect(now time.Time, s *server) {
	if s.suspected {
		return
	}
	s.suspected = true
	q.judgePolls()
	q.judgeRounds(now)
	q.proceedAll(now)
	q.settleParked(now)
}

func (q *Quorum) all() []*ballot {
	list := make([]*ballot, 0, len(q.ballots))
	for _, b := range q.ballots {
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b *ballot) int { return cmp.Compare(a.born, b.born) })
	return list
}

func sorted(set map[*ballot]bool) []*ballot {
	list := make([]*ballot, 0, len(set))
	for b := range set {
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b *ballot) int { return cmp.Compare(a.born, b.born) })
	return list
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
