// Package quorum has one engine lock on several servers at once, as if they were one. It stands between the engine and the
// servers: it takes the engine's requests, asks the servers for their votes, and answers when a majority has. Like the engine it is
// pure: requests, replies, messages and the time go in, and Effects come out. docs/quorum.md argues why it is right.
package quorum

import (
	"container/list"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// ErrNoMajority says that too few servers vote.
var ErrNoMajority = errors.New("no majority of the servers")

const (
	// patience is for how long a server may leave a request without an answer before the others are not kept waiting for it.
	patience = 250 * time.Millisecond
	// A server that does not answer, or does not vote, is asked again after so long, and after longer and longer.
	probeEvery  = 500 * time.Millisecond
	probeSlowly = 4 * time.Second
	// shortest and longest bound for how long a claim that its home has let in waits for the others, the first time.
	shortestPatience = 200 * time.Millisecond
	longestPatience  = 2 * time.Second
	// shortestLease is the lease for which a server that has lost its data rests at least.
	shortestLease = time.Minute
	// grace and soonest are as in the engine.
	grace   = 2 * time.Millisecond
	soonest = 10 * time.Millisecond
	// A subscription is deaf if the message of a grant comes so much later than a reply that tells of it.
	deafAfter = 250 * time.Millisecond
	// recordFresh is for how long after its grant a vote may be given back without a look at the server's clock.
	recordFresh = 45 * time.Second
	mostIdle    = 64 // names that are remembered that nobody has to do with
)

// Config is what a Quorum is made of.
type Config struct {
	Servers  int
	Prefix   string
	Instance string
	Lease    time.Duration
}

// A Quorum is what one engine's servers have to do with it. It is not safe for concurrent use. The engine's own methods are called
// as ever, except for Flush, Replied, Heard, Subscribed, Unsubscribed and Inspect.
type Quorum struct {
	engine   *engine.Engine
	prefix   string
	instance string
	mark     any
	channels any
	random   uint64
	majority int

	servers    []*server
	generation string        // of the servers that vote; "" while unknown
	longest    time.Duration // that a majority knows of, lest a server that has lost its data votes too early
	since      time.Time     // when the servers were first asked for their marks
	twice      error         // two of the servers are one
	made       uint64        // generations

	rooms   map[any]*room // by key
	idle    []*room
	ballots map[any]*ballot    // by the engine's claim
	voters  map[uint64]*ballot // by the numbers of the votes that servers may have cast, or wait to
	timed   map[*ballot]bool
	parked  []*engine.Request // until the servers are known
	polls   []*poll           // under way
	rounds  []*round          // likewise
	numbers uint64
	token   int64 // the largest that was seen, and when
	seen    time.Time

	taken engine.Effects // memory
	out   Effects
}

// Effects are what is to be done. Those of the engine have nothing to send and no subscription.
type Effects struct {
	engine.Effects
	Requests  []*Request
	Deaf      []int         // servers whose subscriptions are to be dropped and opened anew
	Inspected []*Inspection // that have come to an end
	Forced    []Forced      // likewise
}

// Forced is the end of a call of the engine's Force.
type Forced struct {
	Tag any // of its request
	Err error
}

// Reset empties the effects and keeps their memory.
func (o *Effects) Reset() {
	o.Effects.Reset()
	clear(o.Requests)
	clear(o.Inspected)
	clear(o.Forced)
	o.Requests, o.Deaf, o.Inspected, o.Forced = o.Requests[:0], o.Deaf[:0], o.Inspected[:0], o.Forced[:0]
}

// A Request is one to send to a server. Its reply or error is to be handed to Replied.
type Request struct {
	protocol.Request
	Server int
	For    *engine.Request // or nil

	sent   time.Time
	kind   kind
	flying *list.Element
	ballot *ballot
	number uint64        // of the vote
	lease  time.Duration // of the vote
	round  *round        // or nil
	ending *ending       // of gives
	poll   *poll         // of forces and inspects
	view   *Inspection   // of inspects
	lock   *room         // of those about a lock
	slot   int           // of forces
}

type kind uint8

const (
	marks kind = iota
	votes
	renews
	counts
	gives
	forces
	serves
	inspects
)

// New returns what stands between an engine and its servers.
func New(c Config, e *engine.Engine) *Quorum {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.Instance))
	q := &Quorum{
		engine: e, prefix: c.Prefix, instance: c.Instance, mark: protocol.MarkOf(c.Prefix), channels: protocol.Channels(c.Prefix),
		random: h.Sum64(), majority: c.Servers/2 + 1, longest: 0,
		rooms: make(map[any]*room), ballots: make(map[any]*ballot), voters: make(map[uint64]*ballot), timed: make(map[*ballot]bool),
	}
	for i := range c.Servers {
		q.servers = append(q.servers, &server{index: i, lease: max(c.Lease, shortestLease)})
	}
	return q
}

// Flush exchanges what is to be done with to, which must be empty. It takes the engine's effects.
func (q *Quorum) Flush(now time.Time, to *Effects) {
	for {
		q.taken.Reset()
		q.engine.Flush(&q.taken)
		o := &q.out
		o.Cancel = append(o.Cancel, q.taken.Cancel...)
		o.Wake = append(o.Wake, q.taken.Wake...)
		o.Extended = append(o.Extended, q.taken.Extended...)
		o.Log = append(o.Log, q.taken.Log...)
		o.Events = append(o.Events, q.taken.Events...)
		o.Listen = o.Listen || q.taken.Listen
		if len(q.taken.Send) == 0 {
			break
		}
		for _, r := range q.taken.Send {
			q.take(now, r)
		}
	}
	q.out, *to = *to, q.out
}

// take takes a request of the engine's.
func (q *Quorum) take(now time.Time, r *engine.Request) {
	switch {
	case r.Script == lua.Force:
		q.force(now, r)
		return
	case q.twice != nil:
		q.answer(now, r, protocol.Reply{}, q.twice)
		return
	}
	b := q.ballots[r.Claim.ID]
	switch r.Script {
	case lua.Lock, lua.RLock:
		if !q.know(now, r.Lease.Duration) {
			q.park(now, r)
			return
		}
		if b == nil {
			b = q.newBallot(now, r)
		}
		b.ask(now, r)
	case lua.Unlock, lua.RUnlock:
		q.unpark(r.Claim.ID)
		if b == nil {
			q.answer(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
			return
		}
		b.end(now, r)
	case lua.Renew, lua.Reenter:
		switch {
		case b == nil:
			q.answer(now, r, protocol.Reply{Code: protocol.NotThere}, nil)
		case !q.know(now, r.Lease.Duration):
			q.park(now, r)
		default:
			b.spread(now, r)
		}
	}
}

// answer answers a request of the engine's.
func (q *Quorum) answer(now time.Time, r *engine.Request, reply protocol.Reply, err error) {
	q.engine.Replied(now, r, reply, err)
	if r.Script == lua.Force {
		q.out.Forced = append(q.out.Forced, Forced{r.Tag, err})
	}
}

// park keeps a request until the servers' marks are known, and say that a lease may be so long.
func (q *Quorum) park(now time.Time, r *engine.Request) {
	q.unpark(r.Claim.ID)
	q.parked = append(q.parked, r)
	q.learn(now)
	if !q.hopeful() {
		q.unpark(r.Claim.ID)
		q.answer(now, r, protocol.Reply{}, q.few())
	}
}

func (q *Quorum) unpark(claim any) {
	rest := q.parked[:0]
	for _, r := range q.parked {
		if r.Claim.ID != claim {
			rest = append(rest, r)
		}
	}
	clear(q.parked[len(rest):])
	q.parked = rest
}

// unparkAll tries what was parked again.
func (q *Quorum) unparkAll(now time.Time) {
	parked := q.parked
	q.parked = nil
	for _, r := range parked {
		q.take(now, r)
	}
}

// send sends a request to a server.
func (q *Quorum) send(now time.Time, i int, r *Request) {
	r.Server, r.sent = i, now
	if r.ballot != nil {
		r.For = r.ballot.latest
	}
	r.flying = q.servers[i].flying.PushBack(r)
	q.out.Requests = append(q.out.Requests, r)
}

// Replied takes the reply of a server, as it came, or the error with which the request failed.
func (q *Quorum) Replied(now time.Time, r *Request, raw any, err error) {
	s := q.servers[r.Server]
	s.flying.Remove(r.flying)
	var reply protocol.Reply
	var mark protocol.Mark
	var state protocol.State
	if err == nil {
		switch r.kind {
		case marks:
			mark, err = protocol.DecodeMark(raw)
		case inspects:
			state, err = protocol.DecodeState(raw)
		default:
			reply, err = protocol.Decode(r.Script, raw)
		}
	}
	switch {
	case err == nil:
		s.heard = now
		if r.kind != marks {
			q.trust(now, s)
		}
	case protocol.Passing(err):
		s.err = err
		if !s.heard.After(r.sent) { // or else the request was lost, and the server was not
			s.failing = true
			q.suspect(now, s)
		}
	default:
		s.err, s.heard = err, now
	}
	if err == nil && r.lock != nil {
		q.heed(now, s, r.lock, reply)
	}
	switch r.kind {
	case marks:
		q.marked(now, s, r, mark, err)
	case votes:
		q.voted(now, s, r, reply, err)
	case renews, counts:
		q.confirmed(now, s, r, reply, err)
	case gives:
		q.gave(now, s, r, reply, err)
	case forces:
		q.forced(r, err)
	case serves:
		r.lock.serving[s.index] = false
		q.leave(r.lock)
	case inspects:
		q.viewed(r, &state, err)
	}
}

// heed does what a reply asks for beside what it answers.
func (q *Quorum) heed(now time.Time, s *server, rm *room, reply protocol.Reply) {
	q.told(now, s, reply.Told, false)
	if reply.Mute != "" && !s.mute {
		s.mute = true
		q.out.Log = append(q.out.Log, engine.Record{
			Message: "a server may not publish: others hear of its votes by their heartbeats alone", Err: errors.New(reply.Mute)})
	}
	q.proceed(now, s, rm, reply.More)
}

// proceed asks a server for the next step of letting in a crowd, if there is more.
func (q *Quorum) proceed(now time.Time, s *server, rm *room, more bool) {
	if !more || rm.serving[s.index] {
		return
	}
	rm.serving[s.index] = true
	rm.refs++
	q.numbers++
	q.send(now, s.index, &Request{
		Request: protocol.Request{Script: lua.Serve, Keys: rm.keys, Channels: q.channels,
			Claim: protocol.NewClaim(protocol.Read, q.instance, 0, q.numbers, protocol.Owner{})},
		kind: serves, lock: rm,
	})
}

// Heard takes a message of a server's channel.
func (q *Quorum) Heard(now time.Time, i int, payload string) {
	if m, ok := protocol.ParseMessage(payload); ok {
		q.told(now, q.servers[i], m, true)
	}
}

// told lets in the votes that a message names, and has others look again.
func (q *Quorum) told(now time.Time, s *server, m protocol.Message, heard bool) {
	for _, n := range m.Granted {
		if heard && n == s.deaf {
			s.deaf = 0
		}
		b := q.voters[n]
		if b == nil || b.votes[s.index].state == cast {
			continue // it was given back, or a reply has told
		}
		if heard && m.More {
			q.proceed(now, s, b.room, true)
		}
		v := &b.votes[s.index]
		v.granted = v.sent
		if v.granted.IsZero() {
			v.granted = v.first
		}
		v.state, v.told = cast, v.request != nil
		if s.index == b.home {
			b.by = engine.ByReply
			if heard {
				b.by = engine.ByMessage
			}
		}
		b.proceed(now)
	}
	for _, n := range m.Look {
		if b := q.voters[n]; b != nil {
			b.look(now, s.index)
		}
	}
}

// Subscribed says that the subscription to a server's channel stands, for the first time or again: what was sent before is gone.
func (q *Quorum) Subscribed(now time.Time, i int) {
	s := q.servers[i]
	s.listening, s.unheard = now, false
	for _, b := range q.waiters(s) {
		b.look(now, i)
	}
}

// Unsubscribed says that the subscription does not stand any more, or could not be had.
func (q *Quorum) Unsubscribed(now time.Time, i int, err error) {
	s := q.servers[i]
	s.listening = time.Time{}
	if err != nil && !protocol.Passing(err) && !s.unheard {
		s.unheard = true
		q.out.Log = append(q.out.Log, engine.Record{
			Message: "a server refuses the subscription: waiters hear of its votes by their heartbeats alone", Err: err})
	}
	if len(q.waiters(s)) > 0 {
		q.see(now, s) // it may be gone
	}
}

// Next returns when Tick is due, and whether it is at all.
func (q *Quorum) Next() (at time.Time, ok bool) {
	note := func(t time.Time) {
		if !t.IsZero() && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	if t, due := q.engine.Next(); due {
		note(t)
	}
	for _, s := range q.servers {
		note(q.due(s))
	}
	for b := range q.timed {
		note(b.due())
	}
	return at, ok
}

// Tick has the engine and the votes do what is due.
func (q *Quorum) Tick(now time.Time) {
	q.engine.Tick(now)
	for _, s := range q.servers {
		if at := q.due(s); !at.IsZero() && !now.Before(at) {
			q.tend(now, s)
		}
	}
	for _, b := range sorted(q.timed) {
		if at := b.due(); !at.IsZero() && !now.Before(at) {
			b.tick(now)
		}
	}
}

// Idle reports whether the engine is idle, and nothing is to be given back to a server that answers, and does not refuse it.
func (q *Quorum) Idle() bool {
	if !q.engine.Idle() {
		return false
	}
	for _, s := range q.servers {
		if !s.suspected && slices.ContainsFunc(s.endings, (*ending).hopeful) {
			return false
		}
	}
	return true
}

// want returns the token that a claim wants: larger, most likely, than all that its servers have seen.
func (q *Quorum) want(now time.Time) int64 {
	if q.token == 0 {
		return 0
	}
	return q.token + max(now.Sub(q.seen).Microseconds(), 0)
}

// saw notes a token that somebody has, or a time of a server's.
func (q *Quorum) saw(now time.Time, token int64) {
	if token > q.want(now) {
		q.token, q.seen = token, now
	}
}

// roll returns a number below n, at random.
func (q *Quorum) roll(n time.Duration) time.Duration {
	q.random += 0x9e3779b97f4a7c15 // splitmix64
	z := q.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return time.Duration((z ^ z>>31) % uint64(max(n, 1)))
}

// few says that too few servers vote, and why.
func (q *Quorum) few() error {
	if q.twice != nil {
		return q.twice
	}
	usable, resting := 0, 0
	var last error
	for _, s := range q.servers {
		switch {
		case s.usable(q):
			usable++
		case s.known && s.mark.Resting && !s.suspected:
			resting++
		case s.err != nil:
			last = s.err
		}
	}
	err := fmt.Errorf("%w: %d of %d vote, %d are needed", ErrNoMajority, usable, len(q.servers), q.majority)
	if resting > 0 {
		err = fmt.Errorf("%w; %d have lost their data, and vote again when all leases are over", err, resting)
	}
	if last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// Describe says what is known of the servers and of every claim, for those who look from outside.
func (q *Quorum) Describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "generation %q, longest %v, %d parked", q.generation, q.longest, len(q.parked))
	for _, s := range q.servers {
		fmt.Fprintf(&b, "\n  server %d: known %v suspected %v seeing %v flying %d endings %d mark %+v", s.index, s.known, s.suspected, s.seeing,
			s.flying.Len(), len(s.endings), s.mark)
	}
	for _, bl := range q.all() {
		fmt.Fprintf(&b, "\n  %v: phase %d home %d asking %v", bl.claim, bl.phase, bl.home, bl.asking != nil)
		for i, v := range bl.votes {
			fmt.Fprintf(&b, "\n    %d: %d number %d token %d request %v blocked %v", i, v.state, v.number, v.token, v.request != nil, v.blocked)
		}
	}
	return b.String()
}
