package quorum

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// readMarks requests the marks of servers that are not known to vote, or do not answer, unless their next
// request is not due yet.
func (q *Quorum) readMarks(now time.Time) {
	for _, s := range q.servers {
		if !s.answers() && now.Sub(s.probed) >= pause {
			q.readMark(now, s)
		}
	}
}

// readMark requests the mark of a server, unless a request about the mark is in flight.
func (q *Quorum) readMark(now time.Time, s *server) {
	if s.asking {
		return
	}
	s.probed = now
	q.askMark(now, s, "see", s.lease, q.name())
}

// name returns the end of a server's new id, different for each request.
func (q *Quorum) name() string { return fmt.Sprintf("%s:%d", q.instance, q.nextNumber()) }

// askMark sends a request that reads or changes the mark of a server, and that records a lease in use.
func (q *Quorum) askMark(now time.Time, s *server, do string, lease time.Duration, args ...string) {
	s.asking, s.older = true, false
	args = append([]string{do, protocol.Milliseconds(lease)}, args...)
	q.send(now, s, &Request{
		Request: protocol.Request{Script: lua.Mark, VoteArgs: &protocol.VoteArgs{Mark: q.mark, Args: args}},
		notes:   lease, slept: q.slept})
}

// marked handles the reply to a request about a mark.
func (q *Quorum) marked(now time.Time, s *server, r *Request, m protocol.Mark, err error) {
	s.asking = false
	answered := s.answers()
	if err == nil {
		err = q.exclude(now, s, m)
	}
	if err == nil {
		q.noteMark(now, s, r, m)
	} else {
		s.retry = now.Add(pause)
		s.known = s.known && !errors.Is(err, protocol.ErrReply) // no id: the server has lost its data
	}
	q.evaluateMarks(now)
	if err == nil {
		q.trust(now, s, r)
	}
	if s.answers() && !answered {
		q.advanceAll(now)
	}
	q.handleParked(now)
}

// noteMark records what a server says of itself.
func (q *Quorum) noteMark(now time.Time, s *server, r *Request, m protocol.Mark) {
	if s.mark.ID != m.ID {
		q.forgetVotes(now, s)
		s.lease = max(s.lease, s.noted)
		s.met, s.resting, s.forgot, s.noted = now, time.Time{}, -1, 0
		s.lost = s.mark.Generation != "" || s.mark.Resting
		s.question, s.news = question{}, news{}
	}
	q.noteQuestions(now, s, r, m)
	started := m.Generation != "" && m.Generation != s.mark.Generation
	if !s.known && count(q.servers, func(s *server) bool { return s.known }) == q.majority-1 {
		q.since = now
	}
	s.known, s.mark, s.asked = true, m, r.sent
	if r.notes > 0 {
		s.noted, s.notedAt = r.notes, q.sentAt(r)
		if s.lease <= r.notes {
			s.lease = 0
		}
	}
	if started { // marks without a generation, known or in flight, may be older than that
		for _, other := range q.servers {
			other.older = !other.known || other.mark.Generation == ""
		}
	}
	if m.Resting && s.resting.IsZero() {
		s.resting = now
	}
	q.noteToken(now, max(m.Top+1, m.Now)) // as much as is asked for
}

// sentAt returns when a request about a mark was sent. The machine may have been asleep since.
func (q *Quorum) sentAt(r *Request) time.Time { return r.sent.Add(r.slept - q.slept) }

// exclude returns an error if another client leads to the server with this mark. The client that was noticed
// last then counts as failed, until it leads to another server.
func (q *Quorum) exclude(now time.Time, s *server, m protocol.Mark) error {
	for _, other := range q.servers {
		switch {
		case other == s || !other.known || other.mark.ID != m.ID && (m.Run == "" || other.mark.Run != m.Run):
		case other.suspected: // its address may lead elsewhere by now
			other.known = false
			q.forgetVotes(now, other)
		default:
			s.err = fmt.Errorf("clients %d and %d of the quorum are of the same server", min(s.index, other.index),
				max(s.index, other.index))
			s.known, s.failing = false, true
			q.suspect(now, s)
			return s.err
		}
	}
	return nil
}

// evaluateMarks decides from the marks which generation votes, and which servers have to start, to rest, or
// to be admitted. README.md argues why a server that may have forgotten a vote does not vote.
func (q *Quorum) evaluateMarks(now time.Time) {
	var survey protocol.Survey // of the marks that are known
	members := map[string]int{}
	answered, voted := 0, false
	for _, s := range q.servers {
		if !s.known {
			continue
		}
		answered++
		voted = voted || s.mark.Top != 0 || s.mark.Resting
		survey.Top, survey.Longest = max(survey.Top, s.mark.Top), max(survey.Longest, s.mark.Longest)
		if g := s.mark.Generation; g != "" {
			members[g]++
		}
	}
	for g, n := range members {
		if most := members[survey.Generation]; n > most || n == most && g < survey.Generation {
			survey.Generation = g
		}
	}
	// This client may have missed a server since the server's mark became known.
	if n := q.newest(now); n != nil && n.Generation == survey.Generation {
		survey.Longest, survey.Top = max(survey.Longest, n.Longest), max(survey.Top, n.Top)
	}
	known := q.knownIDs()
	founders := known
	if now.Sub(q.founded) < foundingTime {
		founders = q.founders // a second generation could leave each with too few servers
	}
	if members[survey.Generation] >= q.majority {
		q.generation = survey.Generation
		if q.generation == generationOf(founders) {
			q.start(now, founders) // its name is a hash of their ids, so none of them has lost its data since
		}
		q.updateMarks(now, survey)
		q.tell(now, survey)
		return
	}
	if q.generation != "" {
		q.generation, q.since = "", now // the servers have lost their data
	}
	waited := now.Sub(q.since)
	missing := count(q.servers, func(s *server) bool {
		return !s.known && waited < q.startPatience() && (!s.failing || s.asking || waited < pause)
	})
	switch {
	case answered < q.majority || missing > 0:
	case !voted && (len(members) == 0 || len(members) == 1 && members[generationOf(founders)] > 0):
		q.start(now, founders)
	case waited < q.patience: // other clients may be starting the servers
		for _, s := range q.servers {
			if s.older && s.known && s.mark.Generation == "" && !s.mark.Resting {
				q.readMark(now, s)
			}
		}
	default:
		// A majority has lost its data, was not started, or cannot be reached. All servers rest except those of
		// the generation that continues.
		if n := q.newest(now); n != nil {
			survey.Generation = n.Generation
			survey.Longest, survey.Top = max(survey.Longest, n.Longest), max(survey.Top, n.Top)
		}
		q.generation = cmp.Or(survey.Generation, generationOf(known))
		q.updateMarks(now, survey)
		q.generation = ""
	}
}

// knownIDs returns the ids of the known servers, in order.
func (q *Quorum) knownIDs() (ids []string) {
	for _, s := range q.servers {
		if s.known {
			ids = append(ids, s.mark.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// generationOf returns the name of a generation that begins with some servers. It is a hash of their ids. So
// all clients that know the same servers use the same name, and the name changes after one of the servers has
// lost its data.
func generationOf(ids []string) string {
	sum := sha256.Sum256([]byte(strings.Join(ids, " ")))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// start begins the generation of some servers on those of them that have none. It starts none until a
// majority can be started. If this client does not know all servers, it starts one after the other, in the
// order of their ids. So if three clients each miss a different server, one of them gets a majority.
func (q *Quorum) start(now time.Time, founders []string) {
	founds := func(s *server) bool { return s.known && slices.Contains(founders, s.mark.ID) }
	if count(q.servers, func(s *server) bool {
		return founds(s) && (!s.suspected || s.mark.Generation != "")
	}) < q.majority {
		return
	}
	if !slices.Equal(q.founders, founders) {
		q.founders, q.founded = founders, now
	}
	byID := func(a, b *server) int { return strings.Compare(a.mark.ID, b.mark.ID) }
	for _, s := range slices.SortedFunc(slices.Values(q.servers), byID) {
		switch {
		case !founds(s) || s.suspected || s.mark.Resting || s.mark.Generation != "" || now.Before(s.retry):
			continue
		case !s.asking:
			q.askMark(now, s, "start", s.lease, s.mark.ID, generationOf(founders))
		}
		if len(founders) < len(q.servers) {
			return
		}
	}
}

// updateMarks makes servers that do not vote rest, and admits them afterwards.
func (q *Quorum) updateMarks(now time.Time, survey protocol.Survey) {
	for _, s := range q.servers {
		if s.votes() || !s.changeable(now) {
			continue
		}
		if !s.mark.Resting && !s.lost && now.Sub(s.met) < q.startPatience() { // another client may be starting it
			continue
		}
		// The server may have voted for a longer lease than those that were in use when this client read the
		// other marks.
		if s.forgot < 0 && q.marksRead(now, s, s.met) {
			s.forgot = survey.Longest
		}
		switch {
		case s.forgot < 0:
		case !s.mark.Resting:
			q.askMark(now, s, "rest", 0, s.mark.ID, s.mark.Generation, q.name())
		case !now.Before(s.rested()) && q.marksRead(now, s, s.rested()):
			q.askMark(now, s, "admit", max(survey.Longest, s.lease), s.mark.ID, q.generation,
				protocol.TokenArg(survey.Top))
		}
	}
}

// marksRead reports whether enough marks were read after a server may have lost its data. That is so if this
// client or another has read the marks of a majority that votes since then; or, if too many servers have lost
// their data, of all other servers. It requests the missing marks, or asks other clients for what they say.
func (q *Quorum) marksRead(now time.Time, lost *server, since time.Time) bool {
	members, answered := q.readSince(now, lost, since)
	if members >= q.majority || answered == len(q.servers)-1 {
		return true
	}
	if n := q.newest(now); n != nil && n.Generation == q.generation && !n.since.Before(since) {
		return true
	}
	if count(q.servers, (*server).answers) >= q.majority {
		return false // their replies are in flight
	}
	for _, s := range q.servers {
		old := s.question.sent.Before(since) || now.Sub(s.question.sent) > newsLast
		if old && s.changeable(now) && s.mark.Generation != "" {
			q.askMark(now, s, "ask", 0, s.mark.ID)
		}
	}
	return false
}

// readSince returns how many of the servers that vote, and how many of all servers but one, have sent marks
// that were requested at since or later. It requests the marks of the others.
func (q *Quorum) readSince(now time.Time, except *server, since time.Time) (members, all int) {
	for _, s := range q.servers {
		switch {
		case s == except || !s.known || s.suspected:
		case s.asked.Before(since):
			q.readMark(now, s)
		default:
			all++
			if s.mark.Generation == q.generation {
				members++
			}
		}
	}
	return members, all
}

// majorityPossible reports whether a majority votes, or may vote once the requested marks are known.
func (q *Quorum) majorityPossible() bool {
	return count(q.servers, func(s *server) bool {
		mayVote := s.asking && !s.known || q.generation == "" && s.known && !s.mark.Resting
		return s.usable() || !s.failing && mayVote
	}) >= q.majority
}

// startPatience returns how long the first start waits for a silent server.
func (q *Quorum) startPatience() time.Duration { return max(shortestStart, 2*q.patience) }

// handleParked handles the parked requests if that is possible now.
func (q *Quorum) handleParked(now time.Time) {
	if q.parked > 0 && q.decided() {
		q.advanceAll(now)
	}
}

// decided reports whether parked requests can be handled: the servers are known, or no majority can vote, so
// that the requests fail.
func (q *Quorum) decided() bool { return q.known() || !q.majorityPossible() }

// known reports whether the servers that vote are known. No mark is requested of a server that may turn out
// to vote, and is not suspected: before it has answered, this client would choose another home for some names
// than clients that know the server.
func (q *Quorum) known() bool {
	return q.generation != "" && !slices.ContainsFunc(q.servers, func(s *server) bool {
		return s.asking && !s.suspected && !s.votes() && !s.rests()
	})
}

// ready reports whether a majority votes and has recorded that a lease is in use, for as long as a vote for
// it may last. It asks the servers that have not recorded the lease, and those that will soon forget it.
func (q *Quorum) ready(now time.Time, lease time.Duration) bool {
	n := 0
	for _, s := range q.servers {
		age, soon := now.Sub(s.notedAt), (s.noted+inUse)/4
		if s.noted < lease || age > soon/2 {
			s.lease = max(s.lease, lease)
		}
		if s.votes() && s.noted >= lease && age < 2*soon {
			n++
		}
		if s.votes() && (s.noted < lease || age > soon) && !s.suspected && !now.Before(s.retry) {
			q.readMark(now, s)
		}
	}
	return n >= q.majority && q.known()
}

// A client that reaches no majority does not know the other marks, so it cannot admit a server. It asks a
// question on a server that votes. Another client that reaches this server and a majority reads the marks and
// leaves an answer on the server. The first client uses the answer as if it had read the marks itself, with
// slow replies. README.md has the argument.

const (
	// questionsEvery is how often a client that reaches a majority, but misses a server, looks for questions on
	// the others: the client that asks may reach that server.
	questionsEvery = 2 * time.Second
	// newsLast is how long a client waits for an answer, and how long it relies on one.
	newsLast = 30 * time.Second
)

// A question is the last one that this client has asked on a server.
type question struct {
	sent   time.Time
	number int64 // 0 until the server has answered
}

// News are what another client has found in the marks of a majority.
type news struct {
	protocol.Survey
	since time.Time // it has read the marks after this
}

// noteQuestions records what a reply about a mark says of questions, both this client's and those of others.
func (q *Quorum) noteQuestions(now time.Time, s *server, r *Request, m protocol.Mark) {
	if r.VoteArgs.Args[0] == "ask" && r.VoteArgs.Args[2] == m.ID {
		s.question = question{q.sentAt(r), m.Asked}
	}
	if s.question.number > 0 && m.Survey.Asked >= s.question.number {
		s.news = news{m.Survey, s.question.sent}
	}
	if m.Asked != s.mark.Asked || m.ID != s.mark.ID {
		s.wondered = now
	}
}

// newest returns the latest answer about the servers of a generation, or nil. An answer on a server of
// another generation does not count.
func (q *Quorum) newest(now time.Time) (last *news) {
	for _, s := range q.servers {
		n := &s.news
		if s.known && n.Asked > 0 && n.Generation == s.mark.Generation && now.Sub(n.since) <= newsLast &&
			(last == nil || n.since.After(last.since)) {
			last = n
		}
	}
	return last
}

// tell answers the questions on servers that vote, once a majority of the marks was read after the questions
// were seen.
func (q *Quorum) tell(now time.Time, survey protocol.Survey) {
	for _, s := range q.servers {
		if !s.answers() || !s.changeable(now) || s.mark.Asked <= s.mark.Survey.Asked {
			continue
		}
		if members, _ := q.readSince(now, nil, s.wondered); members >= q.majority && !s.asking {
			q.askMark(now, s, "tell", 0, s.mark.ID, strconv.FormatInt(s.mark.Asked, 10), q.generation,
				protocol.Milliseconds(survey.Longest), protocol.TokenArg(survey.Top))
		}
	}
}
