package quorum

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	q.reads++
	q.askMark(now, s, "see", fmt.Sprintf("%s:%d", q.instance, q.reads))
}

// askMark sends a request that reads or changes the mark of a server.
func (q *Quorum) askMark(now time.Time, s *server, args ...any) {
	s.asking, s.older = true, false
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
	if s.mark.ID != m.ID {
		q.forgetVotes(s)
		s.met, s.waited, s.rested = now, false, time.Time{}
	}
	started := m.Generation != "" && m.Generation != s.mark.Generation
	s.known, s.mark, s.asked = true, m, r.sent
	if started {
		q.noteStart()
	}
	switch {
	case m.Resting && m.Rest > 0:
		s.rested = now.Add(m.Rest + m.Rest/100 + grace)
	case m.Resting && (s.rested.IsZero() || s.rested.After(now)):
		s.rested = now // and no later, however often it says so: the others are to be asked for their marks after that
	case !m.Resting:
		s.rested = time.Time{}
	}
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
		if best == q.newGeneration() {
			q.start(now, best) // it is named after all of them, none of which has lost its data since
		}
		for _, s := range q.servers {
			q.updateMark(now, s, longest, top)
		}
		return
	case q.generation != "":
		q.generation = "" // the servers have lost their data
		q.since = now
	}
	if answered < q.majority || !q.readyToDecide(now) {
		return
	}
	generation := q.newGeneration()
	if !voted && (len(members) == 0 || len(members) == 1 && members[generation] > 0) {
		q.start(now, generation)
		return
	}
	if now.Sub(q.since) < q.patience {
		q.readUnstarted(now) // other clients may be starting the servers
		return
	}
	// A majority has lost its data, or was not started. All rest but the servers of the generation that goes on.
	if best == "" {
		best = q.newGeneration()
	}
	q.generation = best
	for _, s := range q.servers {
		q.updateMark(now, s, max(longest, s.lease), top)
	}
	q.generation = ""
}

// readyToDecide reports whether the marks of all servers are known, or those of the others are not to be had.
func (q *Quorum) readyToDecide(now time.Time) bool {
	waited := now.Sub(q.since)
	return !slices.ContainsFunc(q.servers, func(s *server) bool {
		return !s.known && waited < q.startPatience() && !(s.failing && waited >= q.patience)
	})
}

// newGeneration returns the name of a generation that begins with the servers that are known. It follows from their ids: all clients that
// know the same servers give it the same name; and after one of the servers has lost its data it is another.
func (q *Quorum) newGeneration() string {
	var ids []string
	for _, s := range q.servers {
		if s.known {
			ids = append(ids, s.mark.ID)
		}
	}
	slices.Sort(ids)
	sum := sha256.Sum256([]byte(strings.Join(ids, " ")))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// start begins a generation at the servers that have none.
func (q *Quorum) start(now time.Time, generation string) {
	for _, s := range q.servers {
		if s.known && !s.asking && !s.suspected && !now.Before(s.retry) && !s.mark.Resting && s.mark.Generation == "" {
			q.askMark(now, s, "start", s.mark.ID, generation, protocol.Milliseconds(s.lease))
		}
	}
}

// noteStart notes that a server was found to have a generation. The marks of those without one, known or under way, may be older.
func (q *Quorum) noteStart() {
	for _, s := range q.servers {
		s.older = !s.known || s.mark.Generation == ""
	}
}

// readUnstarted asks again the servers that had no generation when they were asked, if that was before another server was found to
// have one: they may have been started since.
func (q *Quorum) readUnstarted(now time.Time) {
	for _, s := range q.servers {
		if s.older && s.known && s.mark.Generation == "" && !s.mark.Resting {
			q.readMark(now, s)
		}
	}
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
	case !s.mark.Resting && !s.waited: // another client may be starting it
	case !s.mark.Resting:
		// A lease that it may have voted for may be longer than those that were in use when this client read the others' marks.
		if q.marksRead(now, s, s.met) {
			q.askMark(now, s, "rest", s.mark.ID, s.mark.Generation, protocol.Milliseconds(longest))
		}
	case now.Before(s.rested):
	case q.marksRead(now, s, s.rested):
		q.askMark(now, s, "admit", s.mark.ID, q.generation, protocol.Milliseconds(longest), protocol.TokenArg(top))
	}
}

// marksRead reports whether what a server has forgotten is known, if it has lost its data by a time: a majority that votes was asked for
// its marks after that, or, where too many have lost their data, all others were. It asks those that were not.
func (q *Quorum) marksRead(now time.Time, lost *server, since time.Time) bool {
	members, answered := 0, 1
	for _, s := range q.servers {
		switch {
		case s == lost || !s.known || s.suspected:
		case s.asked.Before(since):
			q.readMark(now, s)
		default:
			answered++
			if s.mark.Generation == q.generation {
				members++
			}
		}
	}
	return members >= q.majority || answered == len(q.servers)
}

// majorityPossible reports whether a majority votes, or may vote once the marks under way are known.
func (q *Quorum) majorityPossible() bool {
	n := 0
	for _, s := range q.servers {
		if s.usable(q) || s.asking && !s.failing && !s.known || q.generation == "" && s.mayVote() {
			n++
		}
	}
	return n >= q.majority
}

// mayVote reports whether a server may turn out to vote once a generation stands: it has said what its mark is, and has not failed since.
func (s *server) mayVote() bool { return s.known && !s.failing && (s.asking || !s.mark.Resting) }

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
