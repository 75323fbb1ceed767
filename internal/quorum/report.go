package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// fallen and risen are how long fewer or more servers have to vote before the change is reported. So a
	// server that sometimes answers late is reported once.
	fallen = time.Second
	risen  = 5 * time.Second
)

// ErrNoMajority says that too few servers vote.
var ErrNoMajority = errors.New("no majority of the servers")

// Voting returns how many servers vote, as far as is known. A server that was not asked yet counts as voting.
func (q *Quorum) Voting() int {
	return q.count(func(s *server) bool {
		return !s.suspected && (s.votes() || !s.known || q.generation == "" && !s.mark.Resting)
	})
}

// Trouble returns an error if too few servers are known to vote, and nil otherwise.
func (q *Quorum) Trouble() error {
	if q.Voting() >= q.majority {
		return nil
	}
	return q.noMajority()
}

// report checks whether the number of servers that vote has changed. A lasting change is logged and becomes
// an event.
func (q *Quorum) report(now time.Time) {
	n := q.Voting()
	if n == q.voting {
		q.changes = time.Time{}
		return
	}
	if rises := n > q.voting; q.changes.IsZero() || rises != q.rises {
		q.changes, q.rises = now.Add(fallen), rises
		if rises {
			q.changes = now.Add(risen)
		}
	}
	if now.Before(q.changes) {
		return
	}
	q.voting, q.changes = n, time.Time{}
	err := q.missing()
	q.engine.Log(fmt.Sprintf("%d of %d servers of the quorum vote", n, len(q.servers)), err)
	q.engine.Report(engine.Event{Kind: engine.Voting, Servers: len(q.servers), Voting: n, Err: err})
}

// missing returns why servers do not vote, or nil if none is known not to.
func (q *Quorum) missing() (err error) {
	for _, s := range q.servers {
		why := s.err
		switch {
		case s.answers() || !s.known && !s.suspected && s.err == nil:
			continue
		case s.err != nil:
		case s.suspected:
			why = errors.New("it does not answer")
		case s.rests():
			why = errors.New("it rests: it has lost data, or was not started along with the others")
		default:
			why = errors.New("it was not started along with the others")
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

// noMajority returns the error for too few servers that vote, with the reason.
func (q *Quorum) noMajority() error {
	voting := q.count(func(s *server) bool {
		return s.answers() || q.generation == "" && s.known && !s.suspected && s.mark.Generation != ""
	})
	err := fmt.Errorf("%w: %d of %d vote, %d are needed", ErrNoMajority, voting, len(q.servers), q.majority)
	if why := q.missing(); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	if q.count(func(s *server) bool { return s.closed }) >= q.majority {
		err = protocol.ClientClosed(err)
	}
	return err
}

// warn logs, once, that waiters learn of a server's votes only from heartbeats.
func (q *Quorum) warn(s *server, err error) {
	if !s.warned {
		s.warned = true
		q.engine.Log("a server does not notify waiters: they learn of its votes only from heartbeats", err)
	}
}
