package quorum

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A server is what the quorum knows of one server.
type server struct {
	q         *Quorum
	index     int
	firstSlot int // of the locks that are made from now on: see release

	known   bool // mark is what the server has said
	mark    protocol.Mark
	asked   time.Time // when the request for this mark was sent
	older   bool      // the mark has no generation, and may be older than the start of another server
	met     time.Time // when it first showed the mark's id; it has forgotten only earlier votes
	lost    bool      // it has lost its data, so no other client is about to start it for the first time
	resting time.Time // when it was first seen to rest; zero if it does not
	// the longest lease that it may have voted for before that; negative if that is not known
	forgot   time.Duration
	asking   bool          // a request about the mark is in flight
	probed   time.Time     // when its mark was last requested
	retry    time.Time     // when the mark may be changed again, after a failure
	lease    time.Duration // the longest lease asked for since the server last recorded one
	noted    time.Duration // the longest lease that the server recorded for this client
	notedAt  time.Time     // when that request was sent
	question question      // of this client
	news     news          // for this client
	wondered time.Time     // when the last question was first seen

	// it has not answered for a while, or a request failed: calls do not wait for it while enough others
	// answer
	suspected bool
	failing   bool          // the last request failed
	closed    bool          // the client for it was closed
	err       error         // of the last request, if it failed
	heard     time.Time     // when it last answered
	resumed   time.Time     // when it last got its time once more: see Quorum.pace
	trip      time.Duration // at least shortestPatience/2; 0 if the server has not answered yet

	lane                                 // of requests that someone waits for, or that are about the mark
	late   lane                          // of requests that nobody waits for
	owed   order.List[Request, *Request] // votes that could not be given back, next attempt first
	ending int                           // votes that are being given back
	losses int                           // how often its votes were forgotten

	subscriptions int  // how often messages may have been lost, or replies that name claims
	subscribed    int  // how often the subscription was established
	warned        bool // the log says that waiters learn of its votes only from heartbeats
}

// A lane has requests to a server, oldest first: at most so many in flight, and others that are not sent yet.
type lane struct {
	flying, unsent order.List[Request, *Request]
	most           int
}

func (s *server) laneOf(r *Request) *lane {
	if r.Late {
		return &s.late
	}
	return &s.lane
}

// votes reports whether the server belongs to the generation that votes.
func (s *server) votes() bool {
	return s.known && s.q.generation != "" && s.mark.Generation == s.q.generation
}

// answers reports whether the server votes and is not suspected.
func (s *server) answers() bool { return s.votes() && !s.suspected }

// wouldVote reports whether the server votes, or would if enough others did.
func (s *server) wouldVote() bool {
	return s.answers() || s.q.generation == "" && s.known && !s.suspected && s.mark.Generation != ""
}

// usable reports whether to ask the server for votes. It answers; or too few servers do, and its last request
// has not failed.
func (s *server) usable() bool {
	return s.answers() || s.votes() && !s.failing && count(s.q.servers, (*server).answers) < s.q.majority
}

// rests reports whether the server is known to rest.
func (s *server) rests() bool { return s.known && s.mark.Resting }

// changeable reports whether the server's mark is known and can be changed now.
func (s *server) changeable(now time.Time) bool {
	return s.known && !s.suspected && !s.asking && !now.Before(s.retry)
}

// count returns the number of items that a condition is true of.
func count[T any](items []T, of func(T) bool) (n int) {
	for _, item := range items {
		if of(item) {
			n++
		}
	}
	return n
}

// slow reports whether a request has been unanswered for too long, even if the server answers others.
func (q *Quorum) slow(now time.Time, s *server) bool {
	oldest := s.flying.First()
	return oldest != nil && q.overdue(now, oldest)
}

// answerBy returns until when a request may be unanswered.
func (q *Quorum) answerBy(r *Request) time.Time {
	return order.Later(r.sent, q.servers[r.Server].resumed).Add(q.patience)
}

// overdue reports whether a request has been unanswered for too long.
func (q *Quorum) overdue(now time.Time, r *Request) bool { return !now.Before(q.answerBy(r)) }

// probeDue returns when to request the mark of the server, or zero for never. The mark is requested now and
// then if the server does not vote or does not answer, and others vote, or a call waits. If the server
// answers, but another one is missed, its mark may have questions.
func (q *Quorum) probeDue(s *server) time.Time {
	switch {
	case s.asking:
	case !s.answers():
		if q.generation != "" || len(q.bids) > 0 {
			return s.probed.Add(pause)
		}
	case slices.ContainsFunc(q.servers, func(s *server) bool { return !s.known || s.suspected }):
		return s.probed.Add(questionsEvery)
	}
	return time.Time{}
}

// rested returns when the server's rest ends, by this client's clock: one longest lease after this client
// first saw it rest. It is zero if the server does not rest, or the longest lease is not known.
func (s *server) rested() time.Time {
	if s.resting.IsZero() || s.forgot < 0 {
		return time.Time{}
	}
	return s.resting.Add(s.forgot + s.forgot/100 + grace)
}

// due returns when check has something to do for a server, or zero for never.
func (q *Quorum) due(s *server) (at time.Time) {
	if at = q.probeDue(s); !at.IsZero() && !s.rested().IsZero() {
		// It may lose its data again, or another client may admit it.
		at = order.Later(at, order.Earlier(s.rested(), s.probed.Add(questionsEvery)))
	}
	if s.suspected {
		return at
	}
	if r := s.flying.First(); r != nil {
		at = order.Earlier(at, q.answerBy(r))
	}
	if r := s.owed.First(); r != nil {
		at = order.Earlier(at, r.after)
	}
	return at
}

// check does what is due for a server: it suspects the server, requests its mark, or retries to give votes
// back.
func (q *Quorum) check(now time.Time, s *server) {
	if q.slow(now, s) {
		q.suspect(now, s)
	}
	q.retryOwed(now, s)
	if at := q.probeDue(s); !at.IsZero() && !now.Before(at) {
		q.readMark(now, s)
	}
}

// trust records that a server has answered a request. A suspected server is trusted again when it has
// answered in time, and has no old requests.
func (q *Quorum) trust(now time.Time, s *server, r *Request) {
	s.failing = false
	if !s.suspected || q.overdue(now, r) || q.slow(now, s) {
		return
	}
	s.suspected = false
	if r.Script != lua.Mark {
		q.readMark(now, s) // the server may have lost its data
	}
	q.advanceAll(now)
}

// suspect records that a server does not answer. Everything that waits for it continues without it.
func (q *Quorum) suspect(now time.Time, s *server) {
	if s.suspected {
		return
	}
	s.suspected = true
	q.undecided = q.fanouts.Len()
	q.advanceAll(now)
	q.handleParked(now)
}

// forgetVotes has every claim forget the vote of a server that has lost its data.
func (q *Quorum) forgetVotes(now time.Time, s *server) {
	s.losses++
	q.advanceAll(now)
}

// messagesLost has every claim ask again that waits on a server.
func (q *Quorum) messagesLost(now time.Time, s *server) {
	s.subscriptions++
	q.advanceAll(now)
}

// advanceAll advances all bids after a change of the servers: see sweep.
func (q *Quorum) advanceAll(now time.Time) { q.stale, q.changed = q.all.Len(), now }

// sweep decides fan-outs, and advances bids, that were not looked at since the servers changed. Each call of
// Flush does that for atOnce of them. Tick is due while there are others.
func (q *Quorum) sweep(now time.Time) {
	for range min(q.undecided, atOnce) {
		q.undecided--
		if x := q.fanouts.First(); x != nil {
			q.fanouts.Remove(x)
			q.fanouts.PushBack(x)
			q.decide(now, x)
		}
	}
	for range min(q.stale, atOnce) {
		q.stale--
		if b := q.all.First(); b != nil {
			q.all.Remove(b)
			q.all.PushBack(b)
			b.advance(now)
		}
	}
}

// noteTrip records how long an answer took. The shortest answer shows the round trip. A longer one may have
// waited for something else. If many are longer, the server is farther away than before.
func (q *Quorum) noteTrip(s *server, d time.Duration) {
	d = min(max(d, shortestPatience/2), longestTrip)
	switch {
	case d == s.trip:
		return
	case s.trip == 0 || d < s.trip:
		s.trip = d
	default:
		s.trip += (d - s.trip) / 8
	}
	// Twice the round trip to the nearest majority, or to all servers that have answered.
	var trips []time.Duration
	for _, s := range q.servers {
		if s.trip > 0 {
			trips = append(trips, s.trip)
		}
	}
	slices.Sort(trips)
	q.patience = 2 * trips[min(q.majority, len(trips))-1]
}

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
	return count(q.servers, func(s *server) bool {
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
		case s.wouldVote() || !s.known && !s.suspected && s.err == nil:
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
	voting := count(q.servers, (*server).wouldVote)
	err := fmt.Errorf("%w: %d of %d vote, %d are needed", ErrNoMajority, voting, len(q.servers), q.majority)
	if why := q.missing(); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	if count(q.servers, func(s *server) bool { return s.closed }) >= q.majority {
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
