// Package quorum makes several servers appear as one to an engine. It takes the engine's requests, asks the
// servers for their votes, and answers when a majority has voted. Like the engine it is pure: requests,
// replies, messages and the time go in, and Effects come out. README.md argues why it is correct.
package quorum

import (
	"errors"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	// shortestPatience is the shortest time after which a server with an unanswered request is suspected.
	shortestPatience = 250 * time.Millisecond
	// An event that comes so long after Tick was due shows that the process has stood still: see pace.
	lateTick = 25 * time.Millisecond
	// longestTrip is the longest round trip that is assumed.
	longestTrip = 2 * time.Second
	// shortestStart is the shortest time that the first start waits for a silent server, once a majority has
	// answered. Without it, clients might start different sets of servers, and some servers would have to rest.
	shortestStart = time.Second
	// foundingTime is how long a client starts the servers with which it has begun, and no others. After that it
	// may begin with others: one of the first may be gone.
	foundingTime = 5 * time.Second
	// pause is the time between two requests of the same kind to a server that does not answer, refuses
	// them, or does not vote.
	pause = 500 * time.Millisecond
	// shortestCollecting and longestCollecting are the bounds of how long a claim collects votes before its
	// first retreat, if the servers are near.
	shortestCollecting = 200 * time.Millisecond
	longestCollecting  = 2 * time.Second
	// inUse is IN_USE of lua/shared/constants.lua: a server remembers a lease for that long plus twice the
	// lease.
	inUse = 10 * time.Minute
	// grace and soonest are as in the engine.
	grace   = 2 * time.Millisecond
	soonest = 10 * time.Millisecond
	// quickEndFor is how long after the first request for it a vote may be given back by a script that does
	// not read the server's clock.
	quickEndFor = 45 * time.Second
	// mostFlying is the largest number of requests in flight to one server that someone waits for. It is small
	// enough that a server with a thousand answers a second does not count as slow.
	mostFlying = 256
	// mostLate is the same for requests that nobody waits for. If thousands of calls give up, or begin to wait,
	// at the same time, other requests do not wait behind all of theirs.
	mostLate = 64
	// atOnce is the largest number of bids that one call of Tick or Flush advances. The others are due
	// immediately after.
	atOnce = 250
)

// Config configures a Quorum.
type Config struct {
	Servers  int
	Prefix   string
	Instance string
}

// A Quorum answers the requests of one engine with the votes of several servers. It is not safe for
// concurrent use. Users of the lock call the engine itself. Methods of the Quorum replace the engine's
// methods of the same name.
type Quorum struct {
	engine   *engine.Engine
	instance string
	mark     string
	channels string
	random   uint64
	majority int

	servers    []*server
	generation string    // of the servers that vote; "" while no majority is known to share one
	founders   []string  // the ids of the servers that this client has last begun to start together
	founded    time.Time // since when
	// how long a server may leave a request unanswered: twice what a majority takes
	patience time.Duration
	dueAt    time.Time // when Tick is due, or when the last event was if that is later; zero for never
	// when the marks of a majority became known, or were found to be lost
	since time.Time

	locks   map[any]*lock               // by key
	idle    order.List[lock, *lock]     // without references, in the order in which they were released
	bids    map[string]*bid             // by the ID of the claim
	all     order.List[bid, *bid]       // the same bids
	fanouts order.List[fanout, *fanout] // that are not over
	// how many at the front of all, and of fanouts, were not looked at since changed, when the servers changed
	stale, undecided int
	changed          time.Time
	parked           int                  // requests that wait until the marks are known and allow them
	voters           map[uint64]*bid      // by the numbers of their votes
	timed            order.Timeline[*bid] // bids that have something due
	numbers          uint64               // the last number given to a vote, or to a request for a mark
	voting           int                  // how many servers vote, as last reported
	changes          time.Time            // when to report that fewer or more vote; zero if as many do
	rises            bool                 // whether more vote
	token            int64                // the largest token seen
	seen             time.Time            // when that was
	slept            time.Duration        // for how long the machine may have been asleep, in all

	locksMax, bidsMax, votersMax int // how many there have been since the maps were made

	taken []*engine.Request // memory
	out   Effects
}

// Effects are what the caller has to do. Send of the engine's effects is not used.
type Effects struct {
	engine.Effects
	Requests []*Request
}

// Reset empties the effects and keeps their memory.
func (o *Effects) Reset() {
	o.Effects.Reset()
	o.Requests = engine.Emptied(o.Requests)
}

// A Request has to be sent to a server. The caller passes its reply or error to Replied.
type Request struct {
	protocol.Request
	Server int
	For    *engine.Request // the last request of the engine about the same claim, or nil

	order.Link[Request] // in a list of the server

	quorum *Quorum
	sent   time.Time
	bid    *bid
	number uint64        // of the vote
	news   int           // of a request for a vote: vote.news when it was made
	notes  time.Duration // the lease that the mark is to record
	slept  time.Duration // Quorum.slept when it was made; of one about a mark
	fanout *fanout       // or nil
	lock   *lock         // nil if the request is about a mark
	slot   int           // of a request that ends a vote, or of force
	next   *Request      // of one that ends the vote before a downgrade: the one that ends the other
	// Of a request that gives back a vote:
	after  time.Time // when to try again, after a failure
	giveUp time.Time // when the vote is left to its lease
}

// New returns the quorum of an engine. It knows nothing about the servers yet.
func New(c Config, e *engine.Engine) *Quorum {
	q := &Quorum{
		engine: e, instance: c.Instance, mark: protocol.MarkOf(c.Prefix),
		channels: protocol.Channels(c.Prefix),
		random:   weigh(c.Instance, ""), majority: c.Servers/2 + 1, patience: shortestPatience,
		voting: c.Servers, locks: make(map[any]*lock), bids: make(map[string]*bid),
		voters: make(map[uint64]*bid),
	}
	for i := range c.Servers {
		q.servers = append(q.servers, &server{q: q, index: i, firstSlot: i, lane: lane{most: mostFlying},
			late: lane{most: mostLate}})
	}
	return q
}

// Flush handles the engine's requests, and exchanges the collected effects with to, which must be empty.
func (q *Quorum) Flush(now time.Time, to *Effects) {
	q.report(now)
	q.pace(now)
	q.sweep(now)
	for q.taken = q.engine.Requests(q.taken); len(q.taken) > 0; {
		for _, r := range q.taken {
			q.engine.Prepare(r)
			q.handle(now, r)
		}
		q.taken = q.engine.Requests(engine.Emptied(q.taken))
	}
	q.engine.Flush(now, &q.out.Effects)
	if q.dueAt, _ = q.Next(); !q.dueAt.IsZero() {
		q.dueAt = order.Later(q.dueAt, now)
	}
	q.out, *to = *to, q.out
}

// handle handles a request of the engine.
func (q *Quorum) handle(now time.Time, r *engine.Request) {
	if r.Script == lua.Force || r.Script == lua.Inspect {
		q.toAll(now, r)
		return
	}
	b := q.bids[r.Claim.ID]
	if b == nil && r.Script == lua.Convert {
		if former := q.bids[r.Former]; former != nil && former.phase == won {
			b = former
			b.downgrade(now, r)
		}
	}
	if b == nil {
		if !r.Asks() {
			q.engine.Replied(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
			return
		}
		b = q.newBid(r)
	}
	switch {
	case r.Ends():
		b.end(now, r)
	case !q.ready(now, r.Lease.Duration):
		b.park(now, r)
	case r.Asks():
		b.ask(now, r)
	default:
		b.broadcast(now, r)
	}
}

// send sends a request to a server, or queues it while too many are in flight there. A request for a mark is
// never queued: it shows whether the server answers.
func (q *Quorum) send(now time.Time, s *server, r *Request) {
	r.Server = s.index
	if r.fanout != nil {
		r.fanout.answers[s.index] = open
	}
	if r.lock != nil {
		r.lock.refs++
	}
	l := s.laneOf(r)
	if r.Script == lua.Mark {
		q.transmit(now, r, l)
		return
	}
	l.unsent.PushBack(r)
	q.sendNext(now, l)
}

// sendNext sends queued requests until enough are in flight.
func (q *Quorum) sendNext(now time.Time, l *lane) {
	for r := l.unsent.First(); r != nil && l.flying.Len() < l.most; r = l.unsent.First() {
		l.unsent.Remove(r)
		if r.Script == lua.Vote {
			if v := r.bid.votes[r.Server]; v.first.IsZero() {
				v.first = now
			}
		}
		q.transmit(now, r, l)
	}
}

func (q *Quorum) transmit(now time.Time, r *Request, l *lane) {
	r.quorum, r.From, r.sent = q, r, now
	if r.bid != nil {
		r.For = r.bid.latest
	}
	l.flying.PushBack(r)
	q.out.Requests = append(q.out.Requests, r)
}

// Received passes the undecoded reply of a server, or the error of the request, to the Quorum.
func (r *Request) Received(now time.Time, _ *protocol.Request, reply any, _ int, err error) {
	r.quorum.Replied(now, r, reply, err)
}

// Replied takes the undecoded reply of a server, or the error of the request.
func (q *Quorum) Replied(now time.Time, r *Request, raw any, err error) {
	s := q.servers[r.Server]
	l := s.laneOf(r)
	l.flying.Remove(r)
	var reply protocol.Reply
	var mark protocol.Mark
	switch {
	case err != nil:
	case r.Script == lua.Mark:
		mark, err = protocol.DecodeMark(raw)
	default:
		reply, err = protocol.Decode(r.Script, raw)
	}
	switch {
	case err == nil:
		s.heard, s.err = now, nil
		q.noteTrip(s, now.Sub(r.sent))
		if r.Script != lua.Mark {
			q.trust(now, s, r)
			q.deliver(now, s, reply.Message, engine.ByReply)
			if reply.PublishError != "" {
				q.warn(s, errors.New(reply.PublishError))
			}
			if reply.More {
				q.proceed(now, s, r.lock)
			}
			// The reply to the first run is lost. It may have named waiters that were let in.
			if reply.Code == protocol.DoneBefore {
				q.messagesLost(now, s)
			}
		}
	case protocol.IsClientClosed(err): // the other servers may be enough
		err = q.closed(now, s, err)
	case protocol.Passing(err):
		s.err = err
		if !s.heard.After(r.sent) { // a server that has answered since is not down
			s.failing = true
			q.suspect(now, s)
		}
	default:
		s.err, s.heard = err, now
	}
	switch r.Script {
	case lua.Mark:
		q.marked(now, s, r, mark, err)
	case lua.Vote:
		r.bid.votes[s.index].voted(now, r, reply, err)
	case lua.Renew, lua.Convert:
		r.bid.votes[s.index].confirmed(now, r, reply, err)
	case lua.Unlock:
		if q.gaveBack(now, s, r, reply, err) {
			r.fanout = nil // another request of it follows
		}
	case lua.Force:
		if err == nil { // or else nobody knows whether the request may yet run
			r.lock.slots[s.index].Put(r.slot)
			r.lock.forced[s.index]++
		}
	case lua.Serve:
		r.lock.serving[s.index] = false
	case lua.Inspect:
		r.fanout.states[s.index] = reply.State
	}
	if r.fanout != nil {
		q.counted(now, r.fanout, s.index, reply, err)
	}
	if r.lock != nil {
		q.release(r.lock)
	}
	q.sendNext(now, l)
}

// proceed requests the next step from a server, since more readers have to be let in.
func (q *Quorum) proceed(now time.Time, s *server, lk *lock) {
	if lk.serving[s.index] {
		return
	}
	lk.serving[s.index] = true
	q.send(now, s, &Request{
		Request: protocol.Request{Script: lua.Serve, Keys: lk.keys, Channels: q.channels,
			Claim: protocol.NewClaim(protocol.Read, q.instance, 0, q.nextNumber(), protocol.Owner{})},
		lock: lk,
	})
}

// Heard takes a message from a server's channel.
func (q *Quorum) Heard(now time.Time, i int, payload string) {
	if m, ok := protocol.ParseMessage(payload); ok {
		q.deliver(now, q.servers[i], m, engine.ByMessage)
	}
}

// deliver records the votes that a message or reply reports, asks again for those claims that it says should
// ask, and forgets votes that were dropped by force, or has their holds renewed.
func (q *Quorum) deliver(now time.Time, s *server, m protocol.Message, by engine.Path) {
	for _, n := range m.Granted {
		b := q.voters[n]
		if b == nil {
			continue // the vote was given back
		}
		v := b.votes[s.index]
		if v.number != n || v.state == cast {
			continue // the vote belongs to a server that another client leads to, or is known
		}
		if m.More && by == engine.ByMessage {
			q.proceed(now, s, b.lock)
		}
		v.state, v.reported = cast, v.request != nil
		if s.index == b.home {
			b.by = by
		}
		b.advance(now)
	}
	for _, n := range m.AskAgain {
		if b := q.voters[n]; b != nil {
			b.votes[s.index].asked = -1 // asks again as soon as no request for the vote is in flight
			b.askWhereDue(now)
		}
	}
	for _, n := range m.Dropped {
		b := q.voters[n]
		switch {
		case b == nil || b.votes[s.index].number != n:
		case b.phase < won: // even if the reply that says that the server has voted is yet to come
			b.votes[s.index].drop(now)
			b.advance(now)
		default:
			b.votes[s.index].sought = now // the hold does not win the vote back while others are dropped
			q.engine.Dropped(now, b.number)
		}
	}
}

// Subscribed says that the subscription to a server's channel is established, for the first time or again.
// Messages sent before that are lost.
func (q *Quorum) Subscribed(now time.Time, i int) {
	q.servers[i].warned = false
	q.servers[i].subscribed++
	q.messagesLost(now, q.servers[i])
}

// Unsubscribed says that the subscription is broken, or could not be established.
func (q *Quorum) Unsubscribed(now time.Time, i int, err error) {
	s := q.servers[i]
	if protocol.IsClientClosed(err) {
		_ = q.closed(now, s, err)
	} else if err != nil && !protocol.Passing(err) {
		q.warn(s, err)
	}
	if !s.answers() || len(q.bids) > 0 {
		q.readMark(now, s) // the server may be gone
	}
}

// Slept says that the machine may have been asleep for d until now. What the servers remember has become
// older. They rest by the clock that stood still meanwhile, which only makes the rest longer.
func (q *Quorum) Slept(now time.Time, d time.Duration) {
	q.slept += d
	for _, s := range q.servers {
		s.notedAt, s.news.since, s.question.sent = s.notedAt.Add(-d), s.news.since.Add(-d), s.question.sent.Add(-d)
	}
	q.engine.Slept(now, d)
}

// Next returns when Tick is due, and whether it is at all.
func (q *Quorum) Next() (at time.Time, ok bool) {
	at, _ = q.engine.Next()
	bids, _ := q.timed.Next()
	at = order.Earlier(order.Earlier(at, bids), q.changes)
	for _, s := range q.servers {
		at = order.Earlier(at, q.due(s))
	}
	if q.stale+q.undecided > 0 {
		at = order.Earlier(at, q.changed)
	}
	return at, !at.IsZero()
}

// pace looks at when an event comes. If Tick was due long before, the process has stood still, and answers
// may be there already: so each server gets its time once more, but not again before it has answered.
// Otherwise a process that is always late would never pass over a dead server.
func (q *Quorum) pace(now time.Time) {
	if q.dueAt.IsZero() || now.Sub(q.dueAt) < lateTick {
		return
	}
	for _, s := range q.servers {
		if !s.heard.Before(s.resumed) {
			s.resumed = now
		}
	}
}

// Tick does what is due.
func (q *Quorum) Tick(now time.Time) {
	q.pace(now)
	q.engine.Tick(now)
	for _, s := range q.servers {
		if at := q.due(s); !at.IsZero() && !now.Before(at) {
			q.check(now, s)
		}
	}
	for range atOnce {
		if at, due := q.timed.Next(); !due || now.Before(at) {
			return
		}
		b := q.timed.First()
		q.timed.Remove(b)
		b.tick(now)
	}
}

// Idle reports whether the engine is idle and no vote is being given back. Votes do not count if their server
// does not answer.
func (q *Quorum) Idle() bool {
	return q.engine.Idle() && !slices.ContainsFunc(q.servers, func(s *server) bool {
		return !s.suspected && s.ending > 0
	})
}

// Waiting reports whether a message may come that matters.
func (q *Quorum) Waiting() bool { return q.engine.Waiting() }

// nextToken returns the token to ask for, which is probably larger than all that the servers have seen. It is
// 0 if no token is known.
func (q *Quorum) nextToken(now time.Time) int64 {
	if q.token == 0 {
		return 0
	}
	return q.token + max(now.Sub(q.seen).Microseconds(), 0)
}

// noteToken records a token, or the time of a server. nextToken continues from the larger of these.
func (q *Quorum) noteToken(now time.Time, token int64) {
	if token > q.nextToken(now) {
		q.token, q.seen = token, now
	}
}

// nextNumber returns a number that was not given before.
func (q *Quorum) nextNumber() uint64 {
	q.numbers++
	return q.numbers
}

// randomBelow returns a pseudorandom duration below n.
func (q *Quorum) randomBelow(n time.Duration) time.Duration {
	q.random += 0x9e3779b97f4a7c15 // splitmix64
	return time.Duration(mix(q.random) % uint64(max(n, 1)))
}

// mix is the finalizer of splitmix64: each bit of the result depends on every bit of z.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// closed records that the client for a server was closed. The server then counts as failed for good. closed
// returns the error for its requests. Calls end once too few servers are left.
func (q *Quorum) closed(now time.Time, s *server, err error) error {
	for protocol.IsClientClosed(err) {
		err = errors.Unwrap(err)
	}
	if !s.closed {
		s.closed, s.err, s.failing = true, err, true
		q.suspect(now, s)
		if err := q.noMajority(); protocol.IsClientClosed(err) {
			q.engine.Unsubscribed(now, err)
		}
	}
	return err
}
