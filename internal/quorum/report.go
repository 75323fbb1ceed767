package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

const (
	// fallen and risen are how long fewer or more servers have to vote before the change is reported. So a
	// server that sometimes answers late is reported once.
	fallen = time.Second
	risen  = 5 * time.Second
)

var (
	errSilent  = errors.New("it does not answer")
	errRests   = errors.New("it has lost data, and rests")
	errUnready = errors.New("it was not started along with the others")
)

// Voting returns how many servers vote, as far as is known. A server that was not asked yet counts as voting.
func (q *Quorum) Voting() int { return q.agreeing(q.mayBeVoting) }

func (q *Quorum) mayBeVoting(s *server) bool {
	return !s.suspected && (s.votes(q) || !s.known || q.generation == "" && !s.mark.Resting)
}

// report checks whether the number of servers that vote has changed. A lasting change is logged and becomes
// an event.
func (q *Quorum) report(now time.Time) {
	n := q.Voting()
	rises := n > q.voting
	switch {
	case n == q.voting:
		q.changes = time.Time{}
		return
	case q.changes.IsZero() || rises != q.rises:
		q.changes, q.rises = now, rises
	}
	if now.Before(q.reportDue()) {
		return
	}
	q.voting, q.changes = n, time.Time{}
	err := q.missing()
	q.out.Log = append(q.out.Log, engine.Record{
		Message: fmt.Sprintf("%d of %d servers of the quorum vote", n, len(q.servers)), Err: err})
	q.out.Events = append(q.out.Events, engine.Event{Kind: engine.Voting, Servers: len(q.servers), Voting: n,
		Err: err})
}

// reportDue returns when to report a changed number of voting servers, or zero for never.
func (q *Quorum) reportDue() time.Time {
	switch {
	case q.changes.IsZero():
		return time.Time{}
	case q.rises:
		return q.changes.Add(risen)
	}
	return q.changes.Add(fallen)
}

// missing returns why servers do not vote, or nil if all do.
func (q *Quorum) missing() (err error) {
	for _, s := range q.servers {
		why := errUnready
		switch {
		case q.mayBeVoting(s) && (q.generation != "" || q.Voting() == len(q.servers)):
			continue
		case s.suspected && s.failing && s.err != nil:
			why = s.err
		case s.suspected:
			why = errSilent
		case s.known && s.mark.Resting:
			why = errRests
		}
		why = fmt.Errorf("client %d: %w", s.index, why)
		if err == nil {
			err = why
		} else {
			err = fmt.Errorf("%w; %w", err, why)
		}
	}
	return err
}
