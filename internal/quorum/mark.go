package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// readMarks asks for their marks the servers that are not known to vote, or do not answer, but none more often than is due.
func (q *Quorum) readMarks(now time.Time) {
	if q.since.IsZero() {
		q.since = now
	}
	for _, s := range q.servers {
		if !s.answers(q) && (s.probed.IsZero() || now.Sub(s.probed) >= s.probePause()) {
			q.readMark(now, s)
		}
	}
}

// readMark asks a server for its mark, unless a request about the mark is under way.
func (q *Quorum) readMark(now time.Time, s *server) {
	if s.asking {
		return
	}
	s.probed = now
	s.probes++
	q.askMark(now, s, "see", fmt.Sprintf("%s:%d", q.instance, s.index))
}

// askMark sends a request that reads or changes the mark of a server.
func (q *Quorum) askMark(now time.Time, s *server, args ...any) {
	s.asking = true
	q.send(now, s.index, &Request{
		Request: protocol.Request{Script: lua.Mark, Ballot: &protocol.Ballot{Mark: q.mark, Args: args}}, kind: marks})
}

// marked handles the reply to a request about a mark.
func (q *Quorum) marked(now time.Time, s *server, r *Request, m protocol.Mark, err error) {
	s.asking = false
	if err != nil {
		s.retry = now.Add(probeEvery)
		s.known = s.known && !errors.Is(err, protocol.ErrReply) // it has lost its data: there is no id
		q.evaluateMarks(now)
		q.settleParked(now)
		return
	}
	answered := s.answers(q)
	if s.mark.ID != "" && s.mark.ID != m.ID {
		q.forgetVotes(s)
	}
	rested := now.Add(m.Rest + m.Rest/100 + grace)
	if s.mark.ID == m.ID && s.mark.Resting && s.rested.Before(rested) {
		rested = s.rested // or else each reply would put off the end of the rest
	}
	s.known, s.mark, s.asked, s.rested = true, m, r.sent, rested
	q.noteToken(now, max(m.Top, m.Now))
	q.evaluateMarks(now)
	q.trust(now, s)
	if s.answers(q) && !answered {
		q.advanceAll(now)
	}
	q.settleParked(now)
}

// evaluateMarks decides from the marks which generation votes, and which servers are to start, to rest, or to be admitted.
// docs/quorum.md says why no server votes that may have forgotten a vote.
func (q *Quorum) evaluateMarks(now time.Time) {
	ids, members := map[string]int{}, map[string]int{}
	answered, voted, top, longest := 0, false, int64(0), time.Duration(0)
	for _, s := range q.servers {
		if !s.known {
			continue
		}
		if other, ok := ids[s.mark.ID]; ok {
			q.duplicate = fmt.Errorf("clients %d and %d of the quorum are of the same server", other, s.index)
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
		q.updateLongest()
		for _, s := range q.servers {
			q.updateMark(now, s, longest, top)
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
		// A majority has lost its data. The servers that have voted rest, too, unless they belong to the generation that goes on.
		if best == "" {
			best = q.newGeneration()
		}
		q.generation = best
		for _, s := range q.servers {
			q.updateMark(now, s, max(longest, s.lease), top)
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
		if s.known && !s.asking && !s.suspected && !now.Before(s.retry) && s.mark.Generation != best {
			q.askMark(now, s, "start", s.mark.ID, best, protocol.Milliseconds(s.lease))
		}
	}
}

// newGeneration returns a name that no generation has had.
func (q *Quorum) newGeneration() string {
	q.generations++
	return fmt.Sprintf("%s:%d", q.instance, q.generations)
}

// updateLongest notes the longest lease that the marks of a majority allow.
func (q *Quorum) updateLongest() {
	var list []time.Duration
	for _, s := range q.servers {
		if s.known && s.mark.Generation == q.generation {
			list = append(list, s.mark.Longest)
		}
	}
	slices.SortFunc(list, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	q.longest = list[q.majority-1]
}

// updateMark raises the longest lease of a server that votes. It has any other server rest, and admits it after that.
func (q *Quorum) updateMark(now time.Time, s *server, longest time.Duration, top int64) {
	switch {
	case !s.known || s.asking || s.suspected || now.Before(s.retry):
	case s.mark.Generation == q.generation:
		if s.mark.Longest < s.lease {
			q.askMark(now, s, "raise", s.mark.ID, q.generation, protocol.Milliseconds(s.lease))
		}
	case !s.mark.Resting && !q.established():
		// Clients that start the servers at the same time disagree for a moment: another one may be about to start this one.
	case !s.mark.Resting:
		q.askMark(now, s, "rest", s.mark.ID, s.mark.Generation, protocol.Milliseconds(longest))
	case now.Before(s.rested):
	case q.marksRead(now, s.rested):
		q.askMark(now, s, "admit", s.mark.ID, q.generation, protocol.Milliseconds(longest), protocol.TokenArg(top))
	}
}

// established reports whether a majority has voted in the generation: then no server of it can be started in another one any more.
func (q *Quorum) established() bool {
	n := 0
	for _, s := range q.servers {
		if s.known && s.mark.Generation == q.generation && s.mark.Top != 0 {
			n++
		}
	}
	return n >= q.majority
}

// marksRead reports whether a majority has said since a time what its marks are, of the servers that have not lost their data: one of
// them knows the token of each hold for which a server that has lost its data had voted. marksRead asks the servers that have not.
func (q *Quorum) marksRead(now time.Time, since time.Time) bool {
	members, read, open := 0, 0, 0
	for _, s := range q.servers {
		member := s.known && s.mark.Generation == q.generation
		if member {
			members++
		}
		switch {
		case !s.known || s.suspected:
		case s.asked.Before(since):
			open++
			q.readMark(now, s)
		case member:
			read++
		}
	}
	if members < q.majority {
		return open == 0 // a majority has lost its data: those that answer have to do
	}
	return read >= q.majority
}

// majorityPossible reports whether a majority votes, or may vote once the marks under way are known.
func (q *Quorum) majorityPossible() bool {
	n := 0
	for _, s := range q.servers {
		if s.usable(q) || s.asking && !s.failing && (!s.known || q.generation == "") {
			n++
		}
	}
	return n >= q.majority || q.generation == "" && q.knownServers() >= q.majority && q.duplicate == nil
}

// knownServers returns how many servers have said what their marks are, do not rest and have not failed since.
func (q *Quorum) knownServers() (n int) {
	for _, s := range q.servers {
		if s.known && !s.failing && !s.mark.Resting {
			n++
		}
	}
	return n
}

// settleParked handles the parked requests if the servers are known now, and fails them if no majority can vote.
func (q *Quorum) settleParked(now time.Time) {
	switch {
	case len(q.parked) == 0:
	case q.generation != "" && !q.awaitsMarks() || q.duplicate != nil:
		q.unparkAll(now)
	case !q.majorityPossible():
		parked := q.parked
		q.parked = nil
		for _, r := range parked {
			q.answer(now, r, protocol.Reply{}, q.noMajority())
		}
	}
}

// awaitsMarks reports whether a request for a mark is under way to a server that may turn out to vote, and is not suspected.
// Until it has answered, this client would choose another home for some names than clients do that know the server.
func (q *Quorum) awaitsMarks() bool {
	return slices.ContainsFunc(q.servers, func(s *server) bool {
		return s.asking && !s.suspected && !s.votes(q) && !(s.known && s.mark.Resting)
	})
}

// ready reports whether a majority votes and allows such a lease. If only the lease is too long, it asks the servers to raise
// theirs.
func (q *Quorum) ready(now time.Time, lease time.Duration) bool {
	if q.generation == "" || q.awaitsMarks() {
		return false
	}
	if lease <= q.longest {
		return true
	}
	for _, s := range q.servers {
		s.lease = max(s.lease, lease)
	}
	q.evaluateMarks(now)
	return false
}
