package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	lease     = 30 * time.Second
	someToken = int64(1_763_763_763_000_000)
	name      = "n4" // whose home is server 0, or else 1
)

// full is a permanent error of a server.
const full = refusal("OOM command not allowed")

type refusal string

func (e refusal) Error() string { return string(e) }
func (refusal) RedisError()     {}

var errSilence = fmt.Errorf("%w", errors.New("i/o timeout"))

// A rig is an engine and a quorum of three servers whose replies a test decides.
type rig struct {
	t        *testing.T
	servers  [5]fake
	now      time.Time
	engine   *engine.Engine
	quorum   *Quorum
	sent     []*Request // without an answer
	outcomes []engine.Answer
	listens  bool
	logged   []string
	events   []engine.Event
	handles  uint64
	token    int64
	// what requests are answered with at once while time passes, or an error; nil for no answer
	answers func(*Request) any
}

func newRig(t *testing.T) *rig {
	t.Parallel()
	return makeRig(t)
}

func makeRig(t *testing.T) *rig {
	r := &rig{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), token: someToken}
	r.engine = engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: lease,
		Observe: true})
	r.quorum = New(Config{Servers: 3, Prefix: "p", Instance: "instance-01"}, r.engine)
	for i := range r.servers {
		r.servers[i] = fake{id: idOf(i), longest: longestInUse, did: map[string]deed{}}
	}
	return r
}

// newVotingRig returns a rig whose servers are known, and vote.
func newVotingRig(t *testing.T) *rig { return newRig(t).known() }

// asking returns such a rig with a call for a write lock.
func asking(t *testing.T) (*rig, *engine.Hold) {
	r := newVotingRig(t)
	return r, r.acquire(protocol.Write, false)
}

// holding returns such a rig with a hold for which all servers have voted.
func holding(t *testing.T) (*rig, *engine.Hold) {
	r, h := asking(t)
	r.votes(0, 1, 2)
	require.Equal(r.t, engine.Live, h.State())
	return r, h
}

// shortOfAVote returns such a rig with a hold that waits for the vote of server 2.
func shortOfAVote(t *testing.T) (*rig, *engine.Hold) {
	r, h := asking(t)
	r.votes(0)
	r.replies(2, lua.Vote, waits(time.Second))
	r.votes(1)
	require.Equal(r.t, engine.Live, h.State())
	return r, h
}

// known has the servers say that they vote.
func (r *rig) known() *rig {
	r.generation("g", 0, 1, 2)
	h := r.acquire(protocol.Read, true)
	r.replyAll(r.serve)
	require.Equal(r.t, engine.Live, h.State())
	r.release(h)
	r.replyAll(r.serve)
	require.Empty(r.t, r.sent)
	r.quorum.locks, r.quorum.idle = map[any]*lock{}, order.List[lock, *lock]{} // nothing is known of the name
	return r
}

// do has something happen, and takes what is sent.
func (r *rig) do(fn func()) {
	fn()
	var fx Effects
	r.quorum.Flush(r.now, &fx)
	r.sent = append(r.sent, fx.Requests...)
	r.outcomes = append(r.outcomes, fx.Answers...)
	r.listens = r.listens || fx.Listen
	for _, rec := range fx.Log {
		r.logged = append(r.logged, fmt.Sprintf("%s: %v", rec.Message, rec.Err))
	}
	r.events = append(r.events, fx.Events...)
}

// acquire begins a call of a new owner.
func (r *rig) acquire(m protocol.Mode, try bool) *engine.Hold {
	return r.begin(&engine.Hold{Name: name, Mode: m, Try: try})
}

// begin begins a call of a new owner.
func (r *rig) begin(h *engine.Hold) *engine.Hold {
	r.handles++
	h.Owner, h.Bounded, h.NewOwner = protocol.Owner{Handle: r.handles}, true, true
	h.Lease = cmp.Or(h.Lease, lease)
	r.do(func() { r.engine.Acquire(r.now, h) })
	return h
}

// call begins a call of a new owner for a name.
func (r *rig) call(name string) *engine.Hold {
	return r.begin(&engine.Hold{Name: name, Mode: protocol.Write})
}

// acquireFor begins a call of a new owner for a write hold with a lease.
func (r *rig) acquireFor(d time.Duration) *engine.Hold {
	return r.begin(&engine.Hold{Name: name, Mode: protocol.Write, Lease: d})
}

// again begins another call of a hold's owner.
func (r *rig) again(outer *engine.Hold, m protocol.Mode, lease time.Duration) *engine.Hold {
	h := &engine.Hold{Name: name, Owner: outer.Owner, Mode: m, Lease: lease, Bounded: true}
	r.do(func() { r.engine.Acquire(r.now, h) })
	return h
}

func (r *rig) release(h *engine.Hold) { r.do(func() { _, _ = r.engine.Release(r.now, h) }) }

// next takes out the first request without an answer that a server has of a script.
func (r *rig) next(i int, s *lua.Script) *Request {
	r.t.Helper()
	k := slices.IndexFunc(r.sent, func(q *Request) bool { return q.Server == i && q.Script == s })
	require.GreaterOrEqual(r.t, k, 0, "server %d is sent no %s", i, s.Name)
	q := r.sent[k]
	r.sent = slices.Delete(r.sent, k, k+1)
	return q
}

// sends returns how many requests without an answer a server has of a script.
func (r *rig) sends(i int, s *lua.Script) (n int) {
	for _, q := range r.sent {
		if q.Server == i && q.Script == s {
			n++
		}
	}
	return n
}

func (r *rig) reply(q *Request, raw any) {
	if code, ok := raw.(int64); ok && q.Script == lua.Convert { // it replies with a token
		raw = map[int64]any{0: int64(-1), 1: "1", 2: []any{"1", int64(0), "", "", int64(0), int64(0), "held", "", "1"}}[code]
	}
	r.do(func() { r.quorum.Replied(r.now, q, raw, nil) })
}

// replies has a server answer its next request of a script.
func (r *rig) replies(i int, s *lua.Script, raw any) {
	r.t.Helper()
	r.reply(r.next(i, s), raw)
}

// serves has a server do what its next request of a script says.
func (r *rig) serves(i int, s *lua.Script) {
	r.t.Helper()
	q := r.next(i, s)
	r.reply(q, r.serve(q))
}

// refuse answers that the server is out of memory.
func (r *rig) refuse(q *Request) { r.do(func() { r.quorum.Replied(r.now, q, nil, full) }) }

func (r *rig) fail(q *Request) { r.do(func() { r.quorum.Replied(r.now, q, nil, errSilence) }) }

// pass lets time pass, and has the quorum do what comes due.
func (r *rig) pass(d time.Duration) {
	end := r.now.Add(d)
	for {
		at, ok := r.quorum.Next()
		if !ok || at.After(end) {
			break
		}
		if at.After(r.now) {
			r.now = at
		}
		r.do(func() { r.quorum.Tick(r.now) })
		r.answer()
	}
	r.now = end
}

// answer answers what is sent, and what is sent because of that.
func (r *rig) answer() {
	for k := 0; r.answers != nil && k < len(r.sent); {
		q := r.sent[k]
		if raw := r.answers(q); raw != nil {
			r.sent = slices.Delete(r.sent, k, k+1)
			if err, failed := raw.(error); failed {
				r.do(func() { r.quorum.Replied(r.now, q, nil, err) })
			} else {
				r.reply(q, raw)
			}
		} else {
			k++
		}
	}
}

// replyAll answers all that was sent, and what is sent because of that.
func (r *rig) replyAll(reply func(*Request) any) {
	before := r.answers
	r.answers = reply
	r.answer()
	r.answers = before
}

// answerFirst answers the oldest request that has no answer.
func (r *rig) answerFirst() {
	q := r.sent[0]
	r.sent = r.sent[1:]
	r.reply(q, r.serve(q))
	r.answer()
}

// use has a call get a lock, and release it.
func (r *rig) use(h *engine.Hold) {
	r.t.Helper()
	r.answer()
	require.Equal(r.t, engine.Live, h.State())
	r.release(h)
	r.answer()
}

// probe has a server asked for something.
func (r *rig) probe(i int) *Request {
	r.do(func() { _ = r.engine.Force(r.now, "other", 0, nil) })
	return r.next(i, lua.Force)
}

// hear tells that a server has voted for all claims that have asked it.
func (r *rig) hear(i int) {
	for number, b := range r.quorum.voters {
		if b.votes[i].number == number {
			r.do(func() { r.quorum.Heard(r.now, i, fmt.Sprintf("%d 0 %d", someToken, number)) })
		}
	}
}

// votes has servers vote that were asked to.
func (r *rig) votes(servers ...int) {
	r.t.Helper()
	for _, i := range servers {
		r.reply(r.next(i, lua.Vote), r.vote(someToken))
	}
}

// vote is the reply of a server that votes with a token.
func (r *rig) vote(token int64) any {
	r.token++
	return []any{fmt.Sprint(r.token), int64(0), "", "", int64(0), int64(0), "", "", fmt.Sprint(token)}
}

// waits is the reply of a server at which a claim waits, or a try would have to.
func waits(again time.Duration) any { return waitsFor(protocol.Write, 77, again) }

// waitsFor is that reply, where the lock is held by an owner.
func waitsFor(m protocol.Mode, handle uint64, again time.Duration) any {
	other := protocol.NewClaim(m, "instance-02", 0, 7, protocol.Owner{Handle: handle})
	return []any{"", int64(0), "", "", again.Milliseconds(), int64(0),
		[]string{protocol.Read: "read", protocol.Write: "write"}[m], other.ID, ""}
}

var (
	done       any = int64(protocol.Done)
	gone       any = int64(protocol.NotThere)
	doneBefore any = int64(protocol.DoneBefore)
	unmarked   any = int64(-2)
	nonsense   any = "what no script replies"
)

// longestInUse is the longest lease that marks say is in use.
const longestInUse = time.Minute

// A fake is a server that votes for everyone, and has a mark.
type fake struct {
	id, generation, top string
	rests               bool
	longest             time.Duration
	asked               int64
	told                string
	did                 map[string]deed // what requests to it say that it should do; "vote" for those for votes
}

// A deed is what requests of one kind had a server do.
type deed struct {
	times int
	at    time.Time // of the last
	args  []string
}

func idOf(n int) string { return fmt.Sprintf("1763763763000000:%d", n) }

// generation gives some servers a generation.
func (r *rig) generation(name string, servers ...int) {
	for _, i := range servers {
		r.servers[i].generation = name
	}
}

// loses has a server lose its data, and make another mark.
func (f *fake) loses(id string) { f.id, f.generation, f.rests = id, "", false }

// mark is what the server says about its mark.
func (f *fake) mark() any {
	return []any{f.id, f.generation, map[bool]int64{true: 1}[f.rests], f.longest.Milliseconds(), f.top,
		fmt.Sprint(someToken - 1000), "", f.asked, f.told}
}

// serve is what a server answers that works.
func (r *rig) serve(q *Request) any {
	f := &r.servers[q.Server]
	kind, args := "vote", []string(nil)
	switch q.Script {
	case lua.Mark:
		args = q.VoteArgs.Args
		kind = args[0]
	case lua.Vote:
	case lua.Inspect:
		return []any{fmt.Sprint(r.now.UnixMicro()), []any{}, []any{}, []any{}}
	default:
		if f.generation == "" {
			return gone
		}
		return done
	}
	f.did[kind] = deed{f.did[kind].times + 1, r.now, args}
	switch kind {
	case "start", "admit":
		f.generation, f.rests = args[3], false
	case "rest":
		f.generation, f.rests = "", true
	case "ask":
		f.asked++
	case "tell":
		f.told = strings.Join(args[3:], " ")
	case "vote":
		if q.VoteArgs.ID != f.id || q.VoteArgs.Generation != f.generation {
			return unmarked
		}
		return r.vote(someToken)
	}
	return f.mark()
}

// healthy returns what servers that work answer, except for some, which are silent.
func (r *rig) healthy(except ...int) func(*Request) any {
	return func(q *Request) any {
		if slices.Contains(except, q.Server) {
			return nil
		}
		return r.serve(q)
	}
}

// crowded is what servers answer where the claims of a crowd wait.
func (r *rig) crowded(q *Request) any {
	if q.Script == lua.Vote {
		return waits(time.Hour)
	}
	return r.serve(q)
}

// queue has so many calls wait for a lock.
func (r *rig) queue(waiters int) {
	for range waiters {
		r.acquire(protocol.Write, false)
		r.replyAll(r.crowded)
	}
}

// only returns what servers answer that are silent except about one script.
func (r *rig) only(s *lua.Script) func(*Request) any {
	return func(q *Request) any {
		if q.Script == s {
			return r.serve(q)
		}
		return nil
	}
}
