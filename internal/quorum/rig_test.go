package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
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
	r.engine = engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: lease})
	r.quorum = New(Config{Servers: 3, Prefix: "p", Instance: "instance-01"}, r.engine)
	return r
}

// newVotingRig returns a rig whose servers are known, and vote.
func newVotingRig(t *testing.T) *rig { return newRig(t).known() }

// known has the servers say that they vote.
func (r *rig) known() *rig {
	h := r.acquire(protocol.Read, true)
	for i := range 3 {
		r.reply(r.next(i, lua.Mark), markOf(i, "g", false, ""))
	}
	for i := range 3 {
		r.reply(r.next(i, lua.RVote), waits(time.Second))
	}
	require.Equal(r.t, engine.Failed, h.State())
	r.answers = func(*Request) any { return done }
	r.answer() // what the try withdraws
	r.answers = nil
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
	return r.begin(&engine.Hold{Name: "n", Mode: m, Try: try})
}

// begin begins a call of a new owner.
func (r *rig) begin(h *engine.Hold) *engine.Hold {
	r.handles++
	h.Owner, h.Bounded, h.NewOwner = protocol.Owner{Handle: r.handles}, true, true
	h.Lease = cmp.Or(h.Lease, lease)
	r.do(func() { r.engine.Acquire(r.now, h) })
	return h
}

// acquireFor begins a call of a new owner for a write hold with a lease.
func (r *rig) acquireFor(d time.Duration) *engine.Hold {
	return r.begin(&engine.Hold{Name: "n", Mode: protocol.Write, Lease: d})
}

// again begins another call of a hold's owner.
func (r *rig) again(outer *engine.Hold, m protocol.Mode) *engine.Hold {
	h := &engine.Hold{Name: "n", Owner: outer.Owner, Mode: m, Lease: lease, Bounded: true}
	r.do(func() { r.engine.Acquire(r.now, h) })
	return h
}

func (r *rig) release(h *engine.Hold) { r.do(func() { _, _ = r.engine.Release(r.now, h) }) }

// held returns a hold for which all servers have voted.
func (r *rig) held() *engine.Hold {
	h := r.acquire(protocol.Write, false)
	r.votes(r.inOrder()...)
	require.Equal(r.t, engine.Live, h.State())
	return h
}

// inOrder returns the servers in the order in which they are the home of the name, of which there is one.
func (r *rig) inOrder() []int {
	lk := r.quorum.use(protocol.KeysOf("p", "n"))
	defer r.quorum.release(lk)
	require.GreaterOrEqual(r.t, r.quorum.home(lk.keys, nil), 0)
	order := []int{0, 1, 2}
	slices.SortFunc(order, func(a, b int) int {
		weight := func(i int) uint64 { return weigh(r.quorum.servers[i].mark.ID, "p:{n}") }
		return cmp.Compare(weight(b), weight(a))
	})
	return order
}

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

func (r *rig) reply(q *Request, raw any) { r.do(func() { r.quorum.Replied(r.now, q, raw, nil) }) }

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
			err, _ := raw.(error)
			r.do(func() { r.quorum.Replied(r.now, q, raw, err) })
		} else {
			k++
		}
	}
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
	nonsense   any = "what no script replies"
)

// longestInUse is the longest lease that the marks of markOf say is in use.
const longestInUse = time.Minute

// markOf is the reply of a server about its mark.
func markOf(i int, generation string, rests bool, top string) any {
	return markWith(fmt.Sprintf("1763763763000000:%d", i), generation, rests, longestInUse, top)
}

// markWith is the reply of a server of that id.
func markWith(id, generation string, rests bool, longest time.Duration, top string) any {
	return []any{id, generation, map[bool]int64{true: 1}[rests], longest.Milliseconds(), top,
		fmt.Sprint(someToken - 1000), "", int64(0), ""}
}
