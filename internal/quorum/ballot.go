package quorum

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A room is what is known of one name: which of its slots at each server are taken, and who keeps its queue.
type room struct {
	key     string
	keys    protocol.Keys
	refs    int // ballots, endings and requests
	slots   []slots
	serving []bool   // a request for a further step is under way
	weights []weight // by server
	hot     bool     // the last claim had to wait: the home is asked first, alone
}

// slots of a lock at one server: each is of one vote at a time.
type slots struct {
	free []int
	n    int
}

func (s *slots) take() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.n++
	return s.n - 1
}

// A weight says how early a server comes among those that may be the home of a name.
type weight struct {
	id     string // of the server
	weight uint64
}

// use returns the room of a name, with one reference more.
func (q *Quorum) use(keys protocol.Keys) *room {
	rm := q.rooms[keys.Lock]
	if rm == nil {
		n := len(q.servers)
		rm = &room{key: keys.Lock.(string), keys: keys, slots: make([]slots, n), serving: make([]bool, n), weights: make([]weight, n)}
		q.rooms[keys.Lock] = rm
	}
	rm.refs++
	return rm
}

func (q *Quorum) leave(rm *room) {
	if rm.refs--; rm.refs > 0 {
		return
	}
	q.idle = append(q.idle, rm)
	if len(q.idle) > mostIdle {
		oldest := q.idle[0]
		q.idle = slices.Delete(q.idle, 0, 1)
		if oldest.refs == 0 && !slices.Contains(q.idle, oldest) {
			delete(q.rooms, oldest.keys.Lock)
		}
	}
}

// home returns the server that keeps the queue of a name: of those that vote, the first in an order that all clients agree on; -1
// if none votes.
func (q *Quorum) home(rm *room) int {
	best := -1
	for _, s := range q.servers {
		if !s.usable(q) {
			continue
		}
		w := &rm.weights[s.index]
		if w.id != s.mark.ID {
			h := fnv.New64a()
			_, _ = h.Write([]byte(s.mark.ID))
			_, _ = h.Write([]byte{0})
			_, _ = h.Write([]byte(rm.key))
			*w = weight{s.mark.ID, h.Sum64()}
		}
		if best < 0 || w.weight > rm.weights[best].weight {
			best = s.index
		}
	}
	return best
}

// phase is what a ballot has come to.
type phase uint8

const (
	calling    phase = iota // the home has not said anything yet
	queued                  // the home has it wait
	collecting              // the home has let it in, and it waits for the others
	won                     // a majority has voted for it
	closing                 // its votes are given back
)

// A ballot is what the servers have to do with a claim of the engine's.
type ballot struct {
	q      *Quorum
	room   *room
	claim  any    // of the engine's
	number uint64 // of that
	born   uint64
	owner  protocol.Owner
	mode   protocol.Mode
	lease  protocol.Lease
	try    bool
	under  any // the write claim of the same owner, which it reads under; or nil
	votes  []vote
	phase  phase
	home   int
	by     engine.Path     // how the home's vote came
	asking *engine.Request // that has no answer
	latest *engine.Request
	told   time.Time // the last request of the engine's of which it knows that the claim is kept
	wanted int64
	token  int64

	gathered time.Time // when it began to collect
	patience time.Time // until when it collects
	pause    time.Time // until when it does not
	tries    int

	count *engine.Request // the last that has told the number of holds

	endings  []*ending // when its votes are given back
	ender    *engine.Request
	answered bool
	giveUp   time.Time
}

// state is what a vote has come to.
type state uint8

const (
	absent  state = iota // the server has not voted for the claim
	asked                // it was asked, and has not answered
	waiting              // the claim is in its queue
	cast                 // it has
)

// A vote is one server's for a claim. To the server it is a claim of its own.
type vote struct {
	state    state
	wire     protocol.Claim
	slot     int
	number   uint64
	request  *Request // under way
	queues   bool     // it is to wait
	blocked  bool     // the server would have had it wait
	obstacle protocol.Obstacle
	refused  error // by the server, for good
	token    int64 // 0 if it is not known
	local    int64 // token by the server's clock
	first    time.Time
	sent     time.Time // before the last request that the server is known to have kept the claim for
	lease    time.Duration
	granted  time.Time // not after the vote was cast
	entered  bool      // again: the server may have a count of its holds
	told     bool      // by a message, and the server has not been asked since
	again    time.Time // when it may pay to ask again, if it waits
	late     bool      // the request under way may have run before there was reason to ask again
}

// newBallot begins the ballot for a claim of the engine's.
func (q *Quorum) newBallot(now time.Time, r *engine.Request) *ballot {
	view, _ := r.View()
	q.numbers++
	b := &ballot{
		q: q, room: q.use(r.Keys), claim: r.Claim.ID, number: view.Number, born: q.numbers, owner: view.Owner, mode: view.Mode,
		lease: r.Lease, try: r.Try, under: r.Writer, votes: make([]vote, len(q.servers)), home: -1, wanted: q.want(now),
	}
	q.ballots[b.claim] = b
	return b
}

// ask takes the engine's request for the lock, or its heartbeat.
func (b *ballot) ask(now time.Time, r *engine.Request) {
	if b.phase == closing {
		b.q.answer(now, r, protocol.Reply{Refused: true}, nil)
		return
	}
	b.asking, b.latest, b.lease, b.under = r, r, r.Lease, r.Writer
	for i := range b.votes {
		v := &b.votes[i]
		v.refused = nil
		if b.phase == won || b.phase == calling && v.state == absent {
			v.blocked = false
		}
		if v.state != absent && b.q.servers[i].usable(b.q) {
			b.call(now, i, v.queues)
		}
	}
	b.proceed(now)
}

// call asks a server for its vote, again if it was asked before.
func (b *ballot) call(now time.Time, i int, queue bool) {
	q, v := b.q, &b.votes[i]
	if v.request != nil && now.Sub(v.request.sent) < patience {
		return
	}
	if v.state == absent {
		q.numbers++
		*v = vote{state: asked, slot: b.room.slots[i].take(), number: q.numbers, first: now, refused: v.refused}
		v.wire = protocol.NewClaim(b.mode, q.instance, v.slot, v.number, b.owner)
		q.voters[v.number] = b
	}
	v.queues, v.blocked, v.again = queue, false, time.Time{}
	r := &Request{
		Request: protocol.Request{
			Script: lua.Vote, Keys: b.room.keys, Claim: v.wire, Channels: q.channels, Lease: b.lease, Try: !queue,
			Ballot: &protocol.Ballot{Mark: q.mark, Generation: q.generation, Wanted: protocol.TokenArg(max(b.wanted, b.token))},
		},
		kind: votes, ballot: b, number: v.number, lease: b.lease.Duration, lock: b.room,
	}
	if b.mode == protocol.Read {
		r.Script = lua.RVote
		if w := b.writer(); w != nil && w.votes[i].state == cast {
			r.Writer = w.votes[i].wire.ID
		}
	}
	v.request = r
	q.send(now, i, r)
}

// writer returns the ballot of the write claim that this one reads under, or nil.
func (b *ballot) writer() *ballot {
	if b.under == nil {
		return nil
	}
	return b.q.ballots[b.under]
}

// voted takes a server's reply to a request for its vote.
func (q *Quorum) voted(now time.Time, s *server, r *Request, reply protocol.Reply, err error) {
	b := r.ballot
	v := &b.votes[s.index]
	if v.number != r.number || v.state == absent {
		return // it was given back
	}
	if v.request == r {
		v.request = nil
	}
	switch {
	case err != nil:
		if !protocol.Passing(err) {
			v.refused = err
		}
		if v.state == asked || v.refused != nil {
			b.drop(now, s.index) // the request may have run
		}
	case reply.Unmarked:
		b.free(s.index)
		s.known = s.known && s.mark.Generation != q.generation // it has lost its data, most likely
		q.see(now, s)
	case reply.Refused:
		was := v.state
		b.free(s.index)
		b.votes[s.index].blocked = was == asked && !v.queues
	case reply.Vote != 0:
		q.saw(now, reply.Vote)
		q.suspectDeaf(now, s, v, reply)
		if v.state != cast {
			if s.index == b.home {
				b.by = engine.ByHeartbeat
			}
			v.granted = v.sent
			if v.granted.IsZero() {
				v.granted = r.sent
			}
		}
		v.told = false
		v.state, v.token, v.local, v.sent, v.lease = cast, reply.Vote, reply.Token, later(v.sent, r.sent), r.lease
	case v.queues:
		if v.state == cast {
			if v.told { // by a message that has overtaken the reply, or else the vote was lost: the next reply says
				v.told = false
				break
			}
			v.token = 0
		}
		v.state, v.obstacle, v.sent = waiting, reply.Obstacle, later(v.sent, r.sent)
		v.again = now.Add(max(reply.Again+grace, soonest))
		if v.late || !s.listening.IsZero() && r.sent.Before(s.listening) {
			v.again = now // what was told since may have been before the subscription stood
		}
		v.late = false
		q.out.Listen = true
	default:
		b.free(s.index)
		v := &b.votes[s.index]
		v.blocked, v.obstacle = true, reply.Obstacle
	}
	b.attend(now, s.index, r.number)
	b.proceed(now)
}

// suspectDeaf notes that a reply told of a vote though the subscription stood when it was cast.
func (q *Quorum) suspectDeaf(now time.Time, s *server, v *vote, reply protocol.Reply) {
	if v.state == waiting && reply.Before && !s.listening.IsZero() && s.listening.Before(v.sent) {
		s.deaf, s.deafAt = v.number, now.Add(deafAfter)
	}
}

// free forgets a vote of which the server keeps nothing.
func (b *ballot) free(i int) {
	v := &b.votes[i]
	delete(b.q.voters, v.number)
	b.room.slots[i].free = append(b.room.slots[i].free, v.slot)
	*v = vote{refused: v.refused}
}

// drop gives a vote back, or withdraws the request for it.
func (b *ballot) drop(now time.Time, i int) *ending {
	v := &b.votes[i]
	if v.state == absent {
		return nil
	}
	e := b.q.give(now, b, i)
	delete(b.q.voters, v.number)
	*v = vote{refused: v.refused, blocked: v.blocked, obstacle: v.obstacle}
	return e
}

// look has a vote that waits asked for again.
func (b *ballot) look(now time.Time, i int) {
	if v := &b.votes[i]; v.state == waiting {
		v.late = v.request != nil
		b.call(now, i, true)
	}
}

// proceed has the ballot go on as far as it can.
func (b *ballot) proceed(now time.Time) {
	switch {
	case b.phase == closing:
		b.conclude(now)
	case b.phase == won:
	case b.writer() != nil:
		b.readUnder(now)
	default:
		b.elect(now)
	}
	b.time()
}

// elect goes on with a ballot that is not won.
func (b *ballot) elect(now time.Time) {
	q := b.q
	if !b.possible(now) {
		return
	}
	home := q.home(b.room)
	if home != b.home {
		if b.home >= 0 && b.votes[b.home].state == waiting {
			b.drop(now, b.home)
		}
		b.home, b.phase = home, calling
	}
	switch v := &b.votes[home]; v.state {
	case absent:
		switch {
		case v.blocked:
			b.turnedAway(now, v.obstacle)
			return
		case v.refused != nil:
			b.fail(now, v.refused)
			return
		}
		b.call(now, home, !b.try)
		if b.phase == calling && !b.room.hot {
			b.callOthers(now, false)
		}
	case asked:
	case waiting:
		b.wait(now, v)
	case cast:
		if b.phase != collecting {
			b.collect(now)
		}
		b.gather(now)
	}
}

// possible reports whether a majority can still vote for the claim. If not, the engine is told, and asks again.
func (b *ballot) possible(now time.Time) bool {
	q, n := b.q, 0
	var refused error
	for i, s := range q.servers {
		switch v := &b.votes[i]; {
		case v.refused != nil:
			refused = v.refused
		case s.usable(q):
			n++
		case s.seeing && !s.known && !s.failing:
			n++ // it may say that it votes
		}
	}
	if n >= q.majority {
		return q.home(b.room) >= 0
	}
	if refused == nil {
		refused = q.few()
	}
	b.fail(now, refused)
	return false
}

// fail tells the engine, if it asks, that it cannot have an answer.
func (b *ballot) fail(now time.Time, err error) {
	if r := b.asking; r != nil {
		b.asking = nil
		b.q.answer(now, r, protocol.Reply{}, err)
	}
}

// callOthers asks all but the home that have not been asked.
func (b *ballot) callOthers(now time.Time, queue bool) {
	for i, s := range b.q.servers {
		if v := &b.votes[i]; i != b.home && v.state == absent && s.usable(b.q) && v.refused == nil && (queue || !v.blocked) {
			b.call(now, i, queue)
		}
	}
}

// wait gives back all votes but the place in the home's queue, and tells the engine that the claim has to wait.
func (b *ballot) wait(now time.Time, v *vote) {
	b.phase, b.room.hot = queued, true
	for i := range b.votes {
		if i != b.home {
			b.drop(now, i)
		}
	}
	b.tellWaiting(now, v)
}

// tellWaiting answers the engine's request for the lock, if the home has kept the claim since.
func (b *ballot) tellWaiting(now time.Time, v *vote) {
	if r := b.asking; r != nil && !v.sent.Before(r.Sent) {
		b.asking, b.told = nil, later(b.told, r.Sent)
		b.q.answer(now, r, protocol.Reply{Obstacle: b.q.translated(v.obstacle)}, nil)
	}
}

// turnedAway tells the engine that a try would have to wait. The ballot is over.
func (b *ballot) turnedAway(now time.Time, o protocol.Obstacle) {
	b.room.hot = true
	r := b.asking
	if r == nil {
		return
	}
	b.asking = nil
	b.dropAll(now)
	b.over()
	b.q.answer(now, r, protocol.Reply{Obstacle: b.q.translated(o)}, nil)
}

// translated returns an obstacle as the engine knows it: where a vote of its own is in the way, it is the claim that has that.
func (q *Quorum) translated(o protocol.Obstacle) protocol.Obstacle {
	k, err := protocol.ParseClaim(o.Claim)
	if err != nil || k.Instance != q.instance {
		return o
	}
	o.Claim = ""
	if b := q.voters[k.Number]; b != nil {
		o.Claim = b.claim.(string)
	}
	return o
}

func (b *ballot) dropAll(now time.Time) {
	for i := range b.votes {
		b.drop(now, i)
	}
}

// over forgets the ballot. Its votes are given back, or being so.
func (b *ballot) over() {
	b.phase, b.answered = closing, true
	delete(b.q.timed, b)
	if b.q.ballots[b.claim] == b {
		delete(b.q.ballots, b.claim)
		b.q.leave(b.room)
	}
}

// collect begins to collect the votes of the others, now that the home has let the claim in.
func (b *ballot) collect(now time.Time) {
	if b.phase == queued || b.votes[b.home].token == 0 {
		b.wanted = b.q.want(now)
	} else {
		b.room.hot = false
	}
	b.phase, b.gathered = collecting, now
	b.patience = now.Add(b.span())
}

// span returns for how long to collect: random and growing, so that of two claims that have each other wait one gets its way.
func (b *ballot) span() time.Duration {
	base := min(max(b.lease.Duration/12, shortestPatience), longestPatience) << min(b.tries, 4)
	return base + b.q.roll(base)
}

// gather collects votes, and wins if there are enough.
func (b *ballot) gather(now time.Time) {
	if now.Before(b.pause) {
		return
	}
	if b.try && b.heldByOthers(now) {
		return
	}
	// It waits at others only if it needs their votes: some may be about to be free.
	if b.callOthers(now, false); b.standing() < b.q.majority {
		b.callOthers(now, true)
	}
	top, n := int64(0), 0
	for i := range b.votes {
		if v := &b.votes[i]; v.state == cast {
			top = max(top, v.token)
		}
	}
	for i := range b.votes {
		if v := &b.votes[i]; v.state == cast && v.token == top && top > 0 && !v.sent.Before(b.told) {
			n++
		}
	}
	if n >= b.q.majority {
		b.win(now, top)
		return
	}
	b.wanted = max(b.wanted, top)
	for i, s := range b.q.servers {
		// The token is written back where the vote has a smaller one.
		if v := &b.votes[i]; v.state == cast && s.usable(b.q) && (v.token != top || v.token == 0 || v.sent.Before(b.told)) {
			b.call(now, i, true)
		}
	}
	if home := &b.votes[b.home]; b.asking != nil && b.phase == collecting && !b.try && now.Sub(b.gathered) >= shortestPatience {
		home.obstacle = b.obstacle()
		b.tellWaiting(now, home)
	}
}

// obstacle returns what is in the way of a claim that its home has let in.
func (b *ballot) obstacle() protocol.Obstacle {
	for i := range b.votes {
		if v := &b.votes[i]; i != b.home && (v.state == waiting || v.blocked) {
			return v.obstacle
		}
	}
	return protocol.Obstacle{}
}

// heldByOthers ends a try if so many servers name the same holder that it must hold the lock, though the home does not know.
func (b *ballot) heldByOthers(now time.Time) bool {
	type holder struct {
		owner protocol.Owner
		mode  protocol.Mode
	}
	n := map[holder]int{}
	for i := range b.votes {
		v := &b.votes[i]
		if i == b.home || !v.blocked && v.state != waiting {
			continue
		}
		h := holder{v.obstacle.Holder, v.obstacle.Mode}
		if h.mode == protocol.Read {
			h.owner = protocol.Owner{}
		}
		if n[h]++; h.mode != protocol.None && n[h] >= b.q.majority {
			b.turnedAway(now, v.obstacle)
			return true
		}
	}
	return false
}

// win tells the engine that the claim has the lock.
func (b *ballot) win(now time.Time, token int64) {
	b.phase, b.token = won, token
	r := b.asking
	b.asking = nil
	n := 0
	for i := range b.votes {
		switch v := &b.votes[i]; v.state {
		case waiting:
			b.drop(now, i)
		case cast:
			if r != nil && v.token == token && !v.sent.Before(r.Sent) {
				n++
			}
		}
	}
	if n >= b.q.majority {
		b.q.answer(now, r, protocol.Reply{Token: token}, nil)
		return
	}
	b.q.engine.Grant(now, b.number, token, b.by)
}

// readUnder goes on with a ballot for a read under a write hold of the same owner: it needs the votes of servers that have voted for
// that, and has its token.
func (b *ballot) readUnder(now time.Time) {
	q, w := b.q, b.writer()
	if b.asking == nil {
		return
	}
	n, open := 0, 0
	var obstacle protocol.Obstacle
	b.wanted = w.token
	for i, s := range q.servers {
		v := &b.votes[i]
		switch {
		case v.state == absent && !v.blocked && v.refused == nil && w.votes[i].state == cast && s.usable(q):
			b.call(now, i, false)
			open++
		case v.state == asked && s.usable(q), v.request != nil && s.usable(q):
			open++
		case v.state == cast && v.token == w.token && !v.sent.Before(b.asking.Sent):
			n++
		case v.blocked:
			obstacle = v.obstacle
		}
	}
	switch r := b.asking; {
	case n >= q.majority:
		b.home = w.home
		b.phase, b.token, b.asking = won, w.token, nil
		q.answer(now, r, protocol.Reply{Token: w.token}, nil)
	case n+open >= q.majority:
	case obstacle != (protocol.Obstacle{}):
		b.turnedAway(now, obstacle)
	default:
		b.fail(now, q.few())
	}
}

// due is when the ballot is to be looked at; zero for never.
func (b *ballot) due() (at time.Time) {
	note := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	switch b.phase {
	case closing:
		note(b.giveUp)
	case collecting:
		if b.pause.IsZero() {
			note(b.patience)
		}
		note(b.pause)
		for i, s := range b.q.servers {
			if v := &b.votes[i]; v.state == waiting && v.request == nil && s.usable(b.q) {
				note(v.again)
			}
		}
	case queued:
		if v := &b.votes[b.home]; v.request == nil && v.state == waiting && b.q.servers[b.home].usable(b.q) {
			note(v.again)
		}
	}
	return at
}

// time notes whether the ballot has anything due.
func (b *ballot) time() {
	if b.answered || b.due().IsZero() {
		delete(b.q.timed, b)
	} else {
		b.q.timed[b] = true
	}
}

// tick does what is due.
func (b *ballot) tick(now time.Time) {
	if b.phase == closing {
		b.over()
		return
	}
	for i, s := range b.q.servers {
		if v := &b.votes[i]; v.state == waiting && v.request == nil && !v.again.IsZero() && !now.Before(v.again) && s.usable(b.q) {
			b.call(now, i, true)
		}
	}
	if b.phase == collecting {
		switch {
		case !b.pause.IsZero():
			if !now.Before(b.pause) {
				b.pause = time.Time{}
				b.patience = now.Add(b.span())
			}
		case !now.Before(b.patience):
			b.retreat(now)
		}
	}
	b.proceed(now)
}

// retreat gives back what was collected: perhaps another claim has the rest. Now and then it gives back the home's vote, too, since
// the other may have another home.
func (b *ballot) retreat(now time.Time) {
	b.tries++
	if b.try {
		b.turnedAway(now, b.obstacle())
		return
	}
	for i := range b.votes {
		if i != b.home || b.tries%3 == 0 {
			b.drop(now, i)
			b.votes[i].blocked = false
		}
	}
	if b.tries%3 == 0 {
		b.phase, b.room.hot = calling, true
	}
	b.pause = now.Add(b.q.roll(b.span() / 4))
}
