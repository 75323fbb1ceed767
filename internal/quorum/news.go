package quorum

import (
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A client that reaches no majority does not know the other marks, so it cannot admit a server. It asks a
// question on a server that votes. Another client that reaches this server and a majority reads the marks and
// leaves an answer on the server. The first client uses the answer as if it had read the marks itself, with
// slow replies. docs/quorum.md has the argument.

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
		s.question = question{r.sent, m.Asked}
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
