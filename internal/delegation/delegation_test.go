package delegation

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/puretest"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	hold      = 30 * time.Second
	lease     = 3 * time.Second
	block     = int64(lease / time.Microsecond)
	someToken = int64(1_763_763_763_000_000)
)

var errSilence = fmt.Errorf("%w", errors.New("i/o timeout"))

// A rig is an engine and a layer below it whose server is the test.
type rig struct {
	t       *testing.T
	now     time.Time
	engine  *engine.Engine
	layer   *Layer
	sent    []*engine.Request // without an answer
	events  []engine.Event
	listens bool
	handles uint64
	token   int64
}

func newRig(t *testing.T) *rig {
	t.Parallel()
	r := &rig{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), token: someToken}
	r.engine = engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: hold})
	r.layer = New(Config{Instance: "instance-01", Lease: lease, Hold: hold, Observe: true}, r.engine)
	r.do(func() { r.layer.Subscribed(r.now) })
	return r
}

// do has something happen, and takes what is sent.
func (r *rig) do(fn func()) {
	r.t.Helper()
	fn()
	var fx engine.Effects
	r.layer.Flush(r.now, &fx)
	r.sent = append(r.sent, fx.Send...)
	r.events = append(r.events, fx.Events...)
	r.listens = r.listens || fx.Listen
	for _, h := range r.engine.Current() {
		n := r.layer.names[protocol.KeysOf("p", h.Name).Lock]
		if h.State() == engine.Live && n != nil && n.table.holders.Len() > 0 {
			require.False(r.t, h.Deadline().After(n.until), "D1: a hold outlasts its delegation")
		}
	}
}

// call begins a call.
func (r *rig) call(h engine.Hold) *engine.Hold {
	r.t.Helper()
	if h.Owner == (engine.Owner{}) {
		r.handles++
		h.Owner = engine.Owner{Handle: r.handles}
	}
	if h.Name == "" {
		h.Name = "n"
	}
	if h.Lease == 0 {
		h.Lease = hold
	}
	h.Bounded = true
	c := &h
	r.do(func() { r.engine.Acquire(r.now, c) })
	return c
}

func (r *rig) read() *engine.Hold  { return r.call(engine.Hold{Mode: protocol.Read}) }
func (r *rig) write() *engine.Hold { return r.call(engine.Hold{Mode: protocol.Write}) }

// release ends a hold, and returns whether it was there, which must be known at once.
func (r *rig) release(h *engine.Hold) error {
	r.t.Helper()
	var known bool
	var err error
	r.do(func() { known, err = r.engine.Release(r.now, h) })
	if known {
		return err
	}
	require.Equal(r.t, engine.Finished, h.State(), "the release is under way")
	return h.Err()
}

// next takes out the first request without an answer of a script.
func (r *rig) next(s *lua.Script) *engine.Request {
	r.t.Helper()
	k := slices.IndexFunc(r.sent, func(q *engine.Request) bool { return q.Script == s })
	require.GreaterOrEqual(r.t, k, 0, "no %s is sent", s.Name)
	q := r.sent[k]
	r.sent = slices.Delete(r.sent, k, k+1)
	return q
}

// sends returns how many requests without an answer there are of a script.
func (r *rig) sends(s *lua.Script) (n int) {
	for _, q := range r.sent {
		if q.Script == s {
			n++
		}
	}
	return n
}

func (r *rig) reply(q *engine.Request, reply protocol.Reply) {
	r.t.Helper()
	r.do(func() { r.layer.Replied(r.now, q, reply, nil) })
}

func (r *rig) fail(q *engine.Request) {
	r.do(func() { r.layer.Replied(r.now, q, protocol.Reply{}, errSilence) })
}

// granted is the reply that grants a request.
func (r *rig) granted(q *engine.Request) protocol.Reply {
	r.token += 10
	switch q.Script {
	case lua.Lock:
		return protocol.Reply{Token: r.token}
	case lua.Delegate:
		reply := protocol.Reply{Code: protocol.Done, Token: r.token}
		if q.Claim.ID[1] == 'w' {
			reply.Top = r.token + block
		}
		return reply
	}
	return protocol.Reply{Code: protocol.Done}
}

// answer grants the first request of a script.
func (r *rig) answer(s *lua.Script) *engine.Request {
	r.t.Helper()
	q := r.next(s)
	r.reply(q, r.granted(q))
	return q
}

// use locks and unlocks a name on the server.
func (r *rig) use(name string, m protocol.Mode) {
	r.t.Helper()
	h := r.call(engine.Hold{Name: name, Mode: m})
	lock, unlock := lua.Lock, lua.Unlock
	if m == protocol.Read {
		lock, unlock = lua.Lock, lua.Unlock
	}
	r.answer(lock)
	r.do(func() { _, _ = r.engine.Release(r.now, h) })
	r.answer(unlock)
}

// delegate uses a name, has it delegated, and returns the number of the delegation.
func (r *rig) delegate(name string, m protocol.Mode) (number uint64) {
	r.t.Helper()
	r.use(name, m)
	return r.delegateAtOnce(name, m)
}

// delegateAtOnce has the next call on a name request a delegation.
func (r *rig) delegateAtOnce(name string, m protocol.Mode) (number uint64) {
	r.t.Helper()
	h := r.call(engine.Hold{Name: name, Mode: m})
	q := r.answer(lua.Delegate)
	require.Equal(r.t, engine.Live, h.State())
	require.NoError(r.t, r.release(h))
	require.Empty(r.t, r.sent)
	k, err := protocol.ParseClaim(q.Claim.ID)
	require.NoError(r.t, err)
	require.True(r.t, k.Delegated())
	return k.Number
}

func (r *rig) hear(format string, args ...any) {
	r.t.Helper()
	r.do(func() { r.layer.Heard(r.now, fmt.Sprintf(format, args...)) })
}

// pass lets time pass, and does what comes due.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	end := r.now.Add(d)
	for {
		at, ok := r.layer.Next()
		if !ok || at.After(end) {
			break
		}
		if at.After(r.now) {
			r.now = at
		}
		r.do(func() { r.layer.Tick(r.now) })
	}
	r.now = end
}

func TestPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t, "internal/engine", "internal/order", "internal/protocol", "lua")
}

// While a lock is delegated, its pairs cost no request.
func TestPairsUnderADelegationSendNothing(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	for range 100 {
		for _, h := range []*engine.Hold{r.read(), r.write()} {
			_ = h
		}
		for _, h := range r.engine.Current() {
			if h.State() == engine.Live {
				require.NoError(t, r.release(h))
			}
		}
		for _, h := range r.engine.Current() {
			require.Equal(t, engine.Live, h.State(), "what was released lets in who waited")
			require.NoError(t, r.release(h))
		}
	}
	require.Empty(t, r.sent)
}

// D1: a call is granted only while the delegation is live by the local deadline, which counts from when the
// last request that was answered was sent; and what is held then is lost.
func TestNothingIsGrantedAfterTheDeadline(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	h := r.write()
	begun := r.now
	q := r.next(lua.Delegate)
	r.now = r.now.Add(100 * time.Millisecond) // while the request is in flight
	r.reply(q, r.granted(q))
	require.Equal(t, engine.Live, h.State())
	deadline := engine.Deadline(begun, lease)
	require.Equal(t, deadline, h.Deadline())

	r.now = deadline.Add(-1)
	require.Equal(t, engine.Live, r.call(engine.Hold{Mode: protocol.Write, Owner: h.Owner}).State(),
		"it re-enters")
	r.now = deadline
	other := r.read()
	require.NotEqual(t, engine.Live, other.State())
	require.Equal(t, 1, r.sends(lua.Lock), "the server answers it")
	require.Equal(t, 1, r.sends(lua.Return))
	r.do(func() { r.layer.Tick(r.now) })
	require.ErrorIs(t, h.Err(), engine.ErrLost)
}

// D1: a renewal moves the deadlines of the delegation, and with it those of the holds under it.
func TestHoldsLastAsLongAsTheirDelegationIsRenewed(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	h := r.write()
	for range 50 {
		r.pass(lease / 3)
		for r.sends(lua.Delegate) > 0 {
			q := r.next(lua.Delegate)
			require.True(t, q.Keep)
			r.reply(q, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + 2*block})
		}
		require.Equal(t, engine.Live, h.State())
	}
	require.Empty(t, r.sent)
	r.pass(lease)
	require.Equal(t, engine.Lapsed, h.State(), "nothing renews it any more")
}

// D1: a hold under a delegation whose own lease is shorter than the delegation's is renewed at its own pace.
func TestShorterLeaseUnderADelegationIsRenewed(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	outer := r.write()
	again := r.call(engine.Hold{Mode: protocol.Write, Owner: outer.Owner, Lease: lease / 10})
	require.NoError(t, r.release(outer))
	for range 50 {
		r.pass(lease / 20)
		for r.sends(lua.Delegate) > 0 {
			r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + 2*block})
		}
		require.Equal(t, engine.Live, again.State())
	}
}

// D1: who enters again for less than what is left of the delegation does not shorten the hold.
func TestReentryForAShortTimeLeavesTheHoldAlone(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Read)
	h := r.read()
	for i := range 300 {
		if i == 138 { // the delegation has been renewed, and what the engine knows of is about to end
			r.call(engine.Hold{Mode: protocol.Read, Owner: h.Owner, Lease: lease / 4})
		}
		r.pass(lease / 100)
		for r.sends(lua.Delegate) > 0 {
			r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1})
		}
		require.Equal(t, engine.Live, h.State())
	}
}

// D1: a hold under a delegation can be made longer than the delegation's lease: the delegation is renewed for
// that long.
func TestExtendedHoldExtendsTheDelegation(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	h := r.write()
	r.extend(h)
	require.False(t, h.Deadline().Before(r.now.Add(time.Minute)))
	require.NoError(t, r.release(h))
	require.Equal(t, 1, r.sends(lua.Return), "nobody is to wait for a minute if the process dies now")
}

// extend extends a hold by a minute, which renews its delegation.
func (r *rig) extend(h *engine.Hold) {
	r.t.Helper()
	var x engine.Extension
	r.do(func() { r.engine.Extend(r.now, h, time.Minute, &x) })
	over, _ := x.Over()
	require.False(r.t, over)
	q := r.next(lua.Delegate)
	require.GreaterOrEqual(r.t, q.Lease.Duration, time.Minute)
	r.reply(q, r.granted(q))
	over, err := x.Over()
	require.True(r.t, over)
	require.NoError(r.t, err)
}

// D1: if others hold or want the lock when an extended hold ends, its delegation is returned with the last
// hold that there is. Whoever comes or waits does not prolong it.
func TestNothingNewAfterAnExtendedHold(t *testing.T) {
	t.Run("another reads", func(t *testing.T) {
		r := newRig(t)
		r.delegate("n", protocol.Read)
		h, other := r.read(), r.read()
		r.extend(h)
		require.NoError(t, r.release(h))
		require.Empty(t, r.sent)
		late := r.read()
		require.Equal(t, late, r.next(lua.Lock).Hold())
		require.NoError(t, r.release(other))
		r.answer(lua.Return)
	})
	t.Run("another writer waits", func(t *testing.T) {
		r := newRig(t)
		r.delegate("n", protocol.Write)
		h, waits := r.write(), r.write()
		r.extend(h)
		require.NoError(t, r.release(h))
		require.Equal(t, waits, r.next(lua.Lock).Hold())
		r.answer(lua.Return)
	})
	t.Run("it is downgraded", func(t *testing.T) {
		r := newRig(t)
		r.delegate("n", protocol.Write)
		h, read := r.write(), &engine.Hold{}
		r.extend(h)
		r.do(func() { _, _ = r.engine.Downgrade(r.now, h, read) })
		other := r.read()
		require.Equal(t, engine.Live, other.State(), "the hold lasts")
		require.NoError(t, r.release(read))
		require.NoError(t, r.release(other))
		r.answer(lua.Return)
	})
	t.Run("it ends late", func(t *testing.T) {
		r := newRig(t)
		r.delegate("n", protocol.Read)
		h := r.read()
		r.extend(h)
		for range 60 {
			r.pass(time.Second)
			for r.sends(lua.Delegate) > 0 {
				r.answer(lua.Delegate)
			}
		}
		require.Equal(t, engine.Live, r.read().State())
		r.do(func() { _, _ = r.engine.Release(r.now, h) })
		require.Equal(t, engine.Live, r.read().State(), "the delegation's lease is the usual one again")
	})
}

// D3: after a recall nobody new is let in, but those that hold the lock re-enter. Who waited goes on at the
// server, in order of arrival, and so does who comes.
func TestNothingNewAfterARecall(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	holder := r.write()
	var waiting []*engine.Hold
	for i := range 6 {
		m := protocol.Read
		if i%2 == 0 {
			m = protocol.Write
		}
		waiting = append(waiting, r.call(engine.Hold{Mode: m}))
	}
	require.Empty(t, r.sent)
	r.hear(";%d", number)
	require.Len(t, r.sent, 6)
	for i, h := range waiting {
		require.Equal(t, h, r.sent[i].Hold(), "in order of arrival")
	}
	late := r.read()
	require.Equal(t, late, r.sent[6].Hold())
	for _, m := range []protocol.Mode{protocol.Write, protocol.Read} {
		again := r.call(engine.Hold{Mode: m, Owner: holder.Owner})
		require.Equal(t, engine.Live, again.State(), "re-entry")
		require.Zero(t, r.sends(lua.Return))
		require.NoError(t, r.release(again))
	}
	require.Zero(t, r.sends(lua.Return), "D4: it is not returned while somebody holds the lock")
	require.NoError(t, r.release(holder))
	require.Equal(t, 1, r.sends(lua.Return), "D4: it is returned by the last release")
	for _, h := range append(waiting, late) {
		require.Equal(t, engine.Wanted, h.State())
	}
}

// D4: an idle delegation is returned at once, and one that is used with its last release, in whatever mode.
func TestReturnedOnceNobodyIsInside(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Read)
	r.hear(";%d", number)
	require.Equal(t, 1, r.sends(lua.Return))
	r.answer(lua.Return)

	number = r.delegate("m", protocol.Write)
	writer := r.call(engine.Hold{Name: "m", Mode: protocol.Write})
	reads := r.call(engine.Hold{Name: "m", Mode: protocol.Read, Owner: writer.Owner})
	r.hear(";%d", number)
	require.NoError(t, r.release(writer))
	require.Empty(t, r.sent, "the downgraded hold is inside")
	require.NoError(t, r.release(reads))
	require.Equal(t, 1, r.sends(lua.Return))
}

// D5: a recall names the delegation. One of another number is void, late or doubled.
func TestRecallOfAnotherNumberIsVoid(t *testing.T) {
	r := newRig(t)
	first := r.delegate("n", protocol.Write)
	r.hear(";%d", first)
	r.hear(";%d", first)
	require.Equal(t, 1, r.sends(lua.Return))
	r.answer(lua.Return)
	r.now = r.now.Add(time.Second)
	for range 3 { // it has answered one call, so more of them are needed before the next
		r.use("n", protocol.Write)
	}
	h := r.write()
	r.answer(lua.Delegate)
	require.Equal(t, engine.Live, h.State())
	r.hear(";%d !%d", first, first)
	r.hear(";%d", first)
	require.NoError(t, r.release(h))
	require.Empty(t, r.sent)
}

// A recall may overtake the reply that grants the delegation.
func TestRecallBeforeTheGrantIsKnown(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	h := r.write()
	q := r.next(lua.Delegate)
	k, err := protocol.ParseClaim(q.Claim.ID)
	require.NoError(t, err)
	r.hear(";%d", k.Number)
	r.reply(q, r.granted(q))
	require.Equal(t, engine.Wanted, h.State())
	require.Equal(t, []*engine.Hold{nil, h}, []*engine.Hold{r.sent[0].Hold(), r.sent[1].Hold()})
	require.Equal(t, lua.Return, r.sent[0].Script)
}

// D6: the tokens of local writers grow, and stay within what the server has said; a reader's is that of the
// writer before it. More are asked for before they are used up.
func TestLocalTokens(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	h := r.write()
	q := r.next(lua.Delegate)
	r.reply(q, protocol.Reply{Code: protocol.Done, Token: 1001, Top: 1003})
	require.EqualValues(t, 1001, h.Token())
	require.Equal(t, 1, r.sends(lua.Delegate), "half of the tokens are used")
	require.NoError(t, r.release(h))
	for _, want := range []int64{1002, 1003} {
		w := r.write()
		require.Equal(t, want, w.Token())
		require.NoError(t, r.release(w))
		reader := r.read()
		require.Equal(t, want, reader.Token())
		require.NoError(t, r.release(reader))
	}
	w := r.write()
	require.Equal(t, engine.Wanted, w.State(), "there is no token left")
	waits := r.read()
	require.Equal(t, engine.Wanted, waits.State(), "behind the writer")
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1000, Top: 1013})
	require.EqualValues(t, 1004, w.Token())
	require.Empty(t, r.sent)

	queued := r.write()
	require.NoError(t, r.release(w))
	require.EqualValues(t, 1004, waits.Token())
	require.NoError(t, r.release(waits))
	require.EqualValues(t, 1005, queued.Token())
}

// D6: readers before the first writer of a write delegation have a smaller token than that writer.
func TestReadersBeforeTheFirstWriter(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Read)
	require.NoError(t, r.release(r.read()))
	w := r.write() // from now on it is delegated for writing, too
	r.answer(lua.Return)
	r.answer(lua.Lock)
	r.do(func() { _, _ = r.engine.Release(r.now, w) })
	r.answer(lua.Unlock)
	r.now = r.now.Add(gatePause)
	reader := r.read()
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1001, Top: 1001})
	require.EqualValues(t, 1000, reader.Token())
	s := protocol.State{Token: 1001}
	r.layer.Reveal(r.now, "n", &s)
	require.Len(t, s.Holders, 1)
	require.EqualValues(t, 1001, s.Token, "the delegation was given no smaller one")
	require.NoError(t, r.release(reader))
	w = r.write()
	require.EqualValues(t, 1001, w.Token())
	require.Empty(t, r.sent)
}

// D6: if the server has no more tokens, as its clock was set back, the delegation is returned, and calls go
// to the server.
func TestDelegationWithoutTokensIsReturned(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	h := r.write()
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1001, Top: 1001})
	queued := r.write()
	r.do(func() { _, _ = r.engine.Release(r.now, h) })
	require.Equal(t, engine.Wanted, queued.State())
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1001, Top: 1001})
	r.answer(lua.Return)
	require.Equal(t, queued, r.next(lua.Lock).Hold())
	require.Empty(t, r.sent)
}

// D7: delegations are asked for and used only while the subscription stands. If it fell, they are returned;
// if it stands again, each is renewed before it is used.
func TestUsedOnlyWhileTheSubscriptionStands(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	r.do(func() { r.layer.Subscribed(r.now) })
	h := r.write()
	require.Equal(t, engine.Wanted, h.State())
	q := r.next(lua.Delegate)
	require.True(t, q.Keep)
	r.reply(q, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
	require.Equal(t, engine.Live, h.State())

	r.do(func() { r.layer.Unsubscribed(r.now, errSilence) })
	other := r.write()
	require.Equal(t, engine.Wanted, other.State())
	require.Equal(t, other, r.next(lua.Lock).Hold())
	require.NoError(t, r.release(h))
	r.answer(lua.Return)
	for range 5 {
		r.use("m", protocol.Write) // no delegation is asked for
	}
}

// D7: the subscription is asked for before the first delegation.
func TestSubscribesBeforeTheFirstDelegation(t *testing.T) {
	r := newRig(t)
	r.layer.listening = false
	r.use("n", protocol.Read)
	require.False(t, r.listens)
	r.use("n", protocol.Read)
	require.True(t, r.listens)
	r.do(func() { r.layer.Subscribed(r.now) })
	r.read()
	r.answer(lua.Delegate)
}

// D8: if the message is lost, a renewal's reply says that the delegation is recalled.
func TestRenewalTellsOfARecall(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	r.pass(lease / 3)
	r.reply(r.next(lua.Delegate),
		protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block, Recalled: true})
	require.Equal(t, 1, r.sends(lua.Return))
}

// D9: a delegation is not asked for on a name's first use, nor for nine times the duration of a return after
// a recall, unless delegations have paid.
func TestWhenToAskForADelegation(t *testing.T) {
	r := newRig(t)
	r.recalled(r.delegate("n", protocol.Read), "n", 0)
	for range 8 {
		r.now = r.now.Add(20 * time.Millisecond)
		r.use("n", protocol.Read)
	}
	r.now = r.now.Add(20 * time.Millisecond)
	r.read()
	r.answer(lua.Delegate)
}

// recalled has others recall the delegation of a name after it has answered some calls, and returns it.
func (r *rig) recalled(number uint64, name string, calls int) {
	r.t.Helper()
	for range calls {
		require.NoError(r.t, r.release(r.call(engine.Hold{Name: name, Mode: protocol.Read})))
	}
	r.hear(";%d", number)
	r.now = r.now.Add(20 * time.Millisecond)
	r.answer(lua.Return)
}

// D9: where delegations have paid, the next is asked for by the first call after a recall. One that is
// recalled early changes nothing yet.
func TestDelegationThatHasPaidIsAskedForAtOnce(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Read)
	for _, calls := range []int{2 * cost, 0, cost} {
		r.recalled(number, "n", calls)
		number = r.delegateAtOnce("n", protocol.Read)
	}
}

// D9: the calls that delegations have answered pay for some refusals.
func TestRefusalsArePaidFor(t *testing.T) {
	r := newRig(t)
	r.recalled(r.delegate("n", protocol.Read), "n", mostCredit)
	for range mostCredit/cost - 2 {
		h := r.read()
		r.reply(r.next(lua.Delegate), protocol.Reply{})
		r.answer(lua.Lock)
		r.do(func() { _, _ = r.engine.Release(r.now, h) })
		r.answer(lua.Unlock)
	}
	r.delegateAtOnce("n", protocol.Read)
}

// D9: if the delegations of some names have been of no use, those of others are asked for later.
func TestUselessDelegationsAreAskedForLate(t *testing.T) {
	r := newRig(t)
	for i := 0; r.layer.credit > 0; i++ {
		require.LessOrEqual(t, i, mostOfAll)
		name := fmt.Sprint("n", i)
		r.recalled(r.delegate(name, protocol.Read), name, 0)
	}
	for range poorNeed {
		r.use("another", protocol.Read)
	}
	r.call(engine.Hold{Name: "another", Mode: protocol.Read})
	r.answer(lua.Delegate)
}

// An RWLock that reads and writes a name asks for a write delegation of it, unless others use the name, too.
func TestWriteDelegationsAreForOneUser(t *testing.T) {
	for others, mode := range map[bool]byte{false: 'w', true: 'r'} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t)
			r.delegate("n", protocol.Read)
			w := r.write()
			r.answer(lua.Return)
			if others {
				r.reply(r.next(lua.Lock), protocol.Reply{Last: 1,
					Obstacle: inTheWay("2r:instance-02:1:000000000000009:AAAAAAAAAAAAAAAAAAAAAA:0")})
				r.do(func() { r.engine.GiveUp(r.now, w, errSilence) })
			} else {
				r.answer(lua.Lock)
				r.do(func() { _, _ = r.engine.Release(r.now, w) })
			}
			r.answer(lua.Unlock)
			r.now = r.now.Add(gatePause)
			for r.sends(lua.Delegate) == 0 {
				h := r.read()
				if r.sends(lua.Lock) > 0 {
					r.answer(lua.Lock)
					r.do(func() { _, _ = r.engine.Release(r.now, h) })
					r.answer(lua.Unlock)
				}
			}
			require.Equal(t, mode, r.next(lua.Delegate).Claim.ID[1])
		})
	}
}

// D9: a request that is refused is not made again soon, and the call goes to the server.
func TestRefusedDelegation(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	h := r.write()
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.NotThere})
	r.answer(lua.Lock)
	require.Equal(t, engine.Live, h.State())
	r.do(func() { _, _ = r.engine.Release(r.now, h) })
	r.answer(lua.Unlock)
	for range 3 {
		r.use("n", protocol.Write)
	}
	r.write()
	r.answer(lua.Delegate)
}

// D9: a delegation that is not used for its lease is returned, and of more than 1,024 idle ones the least
// recently used.
func TestIdleDelegationsAreReturned(t *testing.T) {
	r := newRig(t)
	for i := range mostIdle {
		r.delegate(fmt.Sprint("n", i), protocol.Read)
	}
	require.NoError(t, r.release(r.call(engine.Hold{Name: "n0", Mode: protocol.Read})))
	r.use("more", protocol.Read)
	h := r.call(engine.Hold{Name: "more", Mode: protocol.Read})
	r.answer(lua.Delegate)
	require.Empty(t, r.sent)
	require.NoError(t, r.release(h))
	require.Equal(t, "n1", r.next(lua.Return).Name())

	r = newRig0(t)
	r.delegate("n", protocol.Write)
	begun := r.now
	for r.sends(lua.Return) == 0 {
		r.pass(lease / 30)
		for r.sends(lua.Delegate) > 0 {
			r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
		}
	}
	require.InDelta(t, lease.Seconds(), r.now.Sub(begun).Seconds(), lease.Seconds()/2)
}

// newRig0 returns another rig of the same test.
func newRig0(t *testing.T) *rig {
	r := &rig{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), token: someToken}
	r.engine = engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: hold})
	r.layer = New(Config{Instance: "instance-01", Lease: lease, Hold: hold}, r.engine)
	r.do(func() { r.layer.Subscribed(r.now) })
	return r
}

// Renewals that are due soon go with the first that is due. Nothing else comes early: neither the renewal
// of a delegation that is not due soon, nor one that is in flight or has failed.
func TestRenewalsAreSentTogether(t *testing.T) {
	r := newRig(t)
	begun := r.now
	for _, name := range []string{"a", "b", "c"} {
		r.delegate(name, protocol.Write)
		r.pass(lease / batchPart)
	}
	r.now = begun.Add(lease/renewAfter - time.Millisecond)
	r.do(func() { r.layer.Tick(r.now) })
	require.Empty(t, r.sent)
	r.pass(time.Millisecond)
	require.Equal(t, 2, r.sends(lua.Delegate))
	a, b := r.next(lua.Delegate), r.next(lua.Delegate)
	require.Equal(t, []string{"a", "b"}, []string{a.Name(), b.Name()})

	r.fail(b)
	r.pass(firstRetry - time.Millisecond)
	require.Empty(t, r.sent, "b waits after its failure")
	r.pass(time.Millisecond)
	require.Equal(t, "b", r.next(lua.Delegate).Name())
	require.Empty(t, r.sent, "c is not due soon")
	r.pass(2 * lease / batchPart)
	require.Equal(t, "c", r.next(lua.Delegate).Name())
	r.pass(a.Sent.Add(lease/resendAfter).Sub(r.now) - time.Millisecond)
	require.Empty(t, r.sent, "all are in flight")
}

// Calls that are to be renewed otherwise than the delegation go to the server, and so does what they are
// downgraded to.
func TestSpecialCallsGoToTheServer(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Read)
	for _, h := range []engine.Hold{{Mode: protocol.Read, NoRenew: true},
		{Mode: protocol.Read, Lease: hold / 2}} {
		c := r.call(h)
		r.answer(lua.Lock)
		require.Equal(t, engine.Live, c.State())
	}
	w := r.call(engine.Hold{Name: "m", Mode: protocol.Write, NoRenew: true})
	r.answer(lua.Lock)
	read := &engine.Hold{}
	r.do(func() { _, _ = r.engine.Downgrade(r.now, w, read) })
	q := r.next(lua.Convert)
	require.Equal(t, w.Owner, q.Hold().Owner)
	r.reply(q, protocol.Reply{Code: protocol.Done})
	require.Equal(t, engine.Finished, w.State())
	require.Equal(t, engine.Live, read.State())
	r.do(func() { _, _ = r.engine.Release(r.now, read) })
	r.reply(r.next(lua.Unlock), protocol.Reply{Code: protocol.Done})
	require.Zero(t, r.layer.names[protocol.KeysOf("p", "m").Lock].out, "the server has nothing any more")
}

// They do not overtake calls that wait under the delegation.
func TestSpecialCallsWaitBehindThoseUnderTheDelegation(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	r.write()
	waits := r.write()
	special := r.call(engine.Hold{Mode: protocol.Write, NoRenew: true})
	require.Same(t, waits, r.next(lua.Lock).Hold())
	require.Same(t, special, r.next(lua.Lock).Hold())
}

// Under a delegation, a downgrade asks nobody. It lets in who waits to read.
func TestDowngradeUnderADelegation(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	w := r.write()
	reader, writer := r.read(), r.write()
	require.Equal(t, engine.Wanted, reader.State())
	token, read := w.Token(), &engine.Hold{}
	r.do(func() { _, _ = r.engine.Downgrade(r.now, w, read) })
	require.Empty(t, r.sent)
	require.Equal(t, engine.Finished, w.State())
	require.NoError(t, w.Err())
	require.Equal(t, engine.Live, reader.State())
	require.Equal(t, engine.Wanted, writer.State())
	require.Equal(t, engine.Live, read.State())
	require.Equal(t, token, read.Token())
	require.NoError(t, r.release(read))
	require.NoError(t, r.release(reader))
	require.Equal(t, engine.Live, writer.State())
}

// downgrading downgrades a hold that was held for longer than a round trip, under a delegation. It returns
// both holds. The server has not confirmed yet that the delegation stood.
func (r *rig) downgrading() (w, read *engine.Hold) {
	r.t.Helper()
	r.delegate("n", protocol.Write)
	w, read = r.write(), &engine.Hold{}
	r.now = r.now.Add(time.Millisecond)
	r.do(func() { _, _ = r.engine.Downgrade(r.now, w, read) })
	require.Equal(r.t, engine.Releasing, w.State())
	require.Equal(r.t, engine.Live, read.State())
	return w, read
}

// A read hold that is released while its downgrade waits for the server leaves nothing in the table, or of
// what is known of the server.
func TestReleaseDuringADowngrade(t *testing.T) {
	for _, recalled := range []bool{false, true} {
		r := newRig0(t)
		w, read := r.downgrading()
		r.do(func() { _, _ = r.engine.Release(r.now, read) })
		r.answer(lua.Delegate)
		require.Equal(t, engine.Finished, w.State())
		require.Equal(t, engine.Finished, read.State())
		if !recalled {
			require.Equal(t, engine.Live, r.write().State())
			continue
		}
		r.do(func() { r.layer.recall(r.now, r.layer.names[protocol.KeysOf("p", "n").Lock], true) })
		require.Equal(t, 1, r.sends(lua.Return))
	}

	r := newRig0(t)
	w := r.call(engine.Hold{Name: "m", Mode: protocol.Write, NoRenew: true})
	r.answer(lua.Lock)
	read := &engine.Hold{}
	r.do(func() { _, _ = r.engine.Downgrade(r.now, w, read) })
	q := r.next(lua.Convert)
	r.do(func() { _, _ = r.engine.Release(r.now, read) })
	r.reply(r.next(lua.Unlock), protocol.Reply{Code: protocol.Done})
	r.reply(q, protocol.Reply{Code: protocol.NotThere})
	require.Equal(t, engine.Finished, read.State())
	require.NoError(t, read.Err())
	r.reply(r.next(lua.Unlock), protocol.Reply{Code: protocol.NotThere})
	require.Zero(t, r.layer.names[protocol.KeysOf("p", "m").Lock].out)
}

// The next in line enters when such a read hold is released. A renewal that was sent before does not confirm
// the release.
func TestReleaseDuringADowngradeLetsTheNextIn(t *testing.T) {
	r := newRig(t)
	w, read := r.downgrading()
	before, next := r.next(lua.Delegate), r.write()
	require.Equal(t, engine.Wanted, next.State())
	r.now = r.now.Add(time.Millisecond)
	r.do(func() { _, _ = r.engine.Release(r.now, read) })
	require.Equal(t, engine.Live, next.State())
	r.reply(before, r.granted(before))
	require.NotEqual(t, engine.Finished, w.State())
	r.do(func() { r.layer.recall(r.now, r.layer.names[protocol.KeysOf("p", "n").Lock], true) })
	require.Zero(t, r.sends(lua.Return))
	require.NoError(t, r.release(next))
	r.answer(lua.Return)
	require.Equal(t, engine.Finished, w.State())
	require.NoError(t, w.Err())
	require.Equal(t, engine.Finished, read.State())
	require.NoError(t, read.Err())
}

// The release of what was held for longer than a round trip waits until the server has confirmed that the
// delegation stood, and so does that of a downgrade. The read hold lasts meanwhile, and is lost if the
// delegation is.
func TestDowngradeUnderADelegationWaitsForTheServer(t *testing.T) {
	for _, stands := range []bool{true, false} {
		for _, released := range []bool{false, true} {
			t.Run(fmt.Sprint(stands, released), func(t *testing.T) {
				r := newRig(t)
				w, read := r.downgrading()
				if released {
					r.do(func() { _, _ = r.engine.Release(r.now, read) })
				}
				for range 5 {
					for len(r.sent) > 0 {
						q := r.sent[0]
						r.sent = r.sent[1:]
						if stands && q.Script == lua.Delegate {
							r.reply(q, r.granted(q))
						} else {
							r.reply(q, protocol.Reply{Code: protocol.NotThere})
						}
					}
					r.pass(time.Second)
				}
				require.Equal(t, engine.Finished, w.State())
				if stands {
					require.NoError(t, w.Err())
					require.NoError(t, read.Err())
				} else {
					require.Equal(t, engine.ErrLost, w.Err())
					require.Equal(t, engine.ErrLost, read.Err())
				}
			})
		}
	}
}

// A writer among callers that only read has the delegation returned: it waits on the server, behind it. From
// then on the lock is delegated for writing, too.
func TestWriterEndsAReadDelegation(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Read)
	reader := r.read()
	w := r.write()
	require.Equal(t, w, r.next(lua.Lock).Hold())
	require.NoError(t, r.release(reader))
	r.answer(lua.Return)
	r.do(func() { r.engine.GiveUp(r.now, w, errSilence) })
	r.answer(lua.Unlock)
	r.read()
	require.Equal(t, byte('w'), r.answer(lua.Delegate).Claim.ID[1])
}

// A try that a hold under the delegation blocks fails at once, as on the server, and costs no delegation.
func TestTryFailsBesideHoldsUnderTheDelegation(t *testing.T) {
	for _, m := range []protocol.Mode{protocol.Read, protocol.Write} {
		r := newRig0(t)
		r.delegate("n", m)
		inside := r.call(engine.Hold{Mode: m})
		for _, noRenew := range []bool{false, true} {
			try := r.call(engine.Hold{Mode: protocol.Write, Try: true, NoRenew: noRenew})
			require.Equal(t, engine.Failed, try.State())
			require.Equal(t, engine.ErrLocked, try.Err())
			o, known, ours := r.engine.Obstacle(r.now, try)
			require.True(t, known && ours)
			require.Equal(t, inside.Owner, o.Holder)
		}
		require.Empty(t, r.sent)
	}
}

// A call of the RWLock itself that needs the server is charged once, though the server recalls the
// delegation, too, and says so in each reply.
func TestOwnCallsAreChargedOnce(t *testing.T) {
	for m, call := range map[protocol.Mode]engine.Hold{
		protocol.Read:  {Mode: protocol.Write},
		protocol.Write: {Mode: protocol.Write, NoRenew: true},
	} {
		r := newRig0(t)
		number := r.delegate("n", m)
		inside, n := r.call(engine.Hold{Mode: m}), r.layer.names[protocol.KeysOf("p", "n").Lock]
		credit := n.credit
		r.call(call)
		r.reply(r.next(lua.Lock), protocol.Reply{Last: 1, Message: protocol.Message{Recalled: []uint64{number}}})
		r.pass(lease / 3)
		r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Top: r.token + 2*block, Recalled: true})
		r.do(func() { _, _ = r.engine.Release(r.now, inside) })
		r.answer(lua.Return)
		require.Equal(t, credit-cost, n.credit)
		require.Zero(t, n.notBefore)
	}
}

// Where calls of the RWLock itself are in the way on the server, new ones wait for a moment, so that the lock
// can be delegated.
func TestCallsWaitForThoseAtTheServer(t *testing.T) {
	r := newRig(t)
	first := r.write()
	r.answer(lua.Lock)
	second := r.write()
	require.Empty(t, r.sent)
	r.pass(gatePatience)
	require.Equal(t, second, r.next(lua.Lock).Hold(), "it has waited for long enough")
	r.do(func() { _, _ = r.engine.Release(r.now, first) })
	r.answer(lua.Unlock)
}

// A Try does not wait for calls of the RWLock that are at the server, nor overtake those that do.
func TestTryDoesNotOvertakeCallsThatWaitForOthers(t *testing.T) {
	r := newRig(t)
	r.write()
	r.answer(lua.Lock)
	second := r.write()
	require.Empty(t, r.sent)
	try := r.call(engine.Hold{Mode: protocol.Write, Try: true})
	require.Equal(t, second, r.next(lua.Lock).Hold())
	require.Equal(t, try, r.next(lua.Lock).Hold())
}

// Claims that the engine has left to their leases, since the server did not answer, keep no delegation from
// the name for ever.
func TestCallsDoNotWaitForWhatIsLeftToItsLease(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	given := r.call(engine.Hold{Mode: protocol.Write, NoRenew: true})
	late := r.next(lua.Lock)
	r.do(func() { r.engine.GiveUp(r.now, given, engine.ErrClosed) })
	for end := r.now.Add(2 * hold); r.now.Before(end); r.pass(time.Second) {
		for len(r.sent) > 0 {
			r.fail(r.sent[0])
			r.sent = slices.Delete(r.sent, 0, 1)
		}
	}
	require.True(t, r.engine.Idle())
	waits := r.write()
	r.pass(gateMost)
	r.answer(lua.Lock) // it has waited for what the engine has given up
	r.reply(late, protocol.Reply{Refused: true})
	require.Equal(t, 1, r.layer.names[protocol.KeysOf("p", "n").Lock].out[protocol.Write], "that is counted no more")
	r.do(func() { _, _ = r.engine.Release(r.now, waits) })
	r.answer(lua.Unlock)
	r.write()
	r.next(lua.Delegate)
	r.reply(late, protocol.Reply{Token: 1})
	require.Zero(t, r.layer.names[protocol.KeysOf("p", "n").Lock].out[protocol.Write])
}

// While one hold of a crowd after the other ends, new calls wait for the next, but not for long.
func TestCallsWaitForACrowdAtTheServer(t *testing.T) {
	t.Parallel()
	const pace = gatePatience / 2
	for crowd, script := range map[int]*lua.Script{
		int(gateMost/pace) - 1: lua.Delegate, // all have ended
		int(gateMost/pace) + 1: lua.Lock,
	} {
		t.Run(script.Name, func(t *testing.T) {
			r := newRig(t)
			holds := make([]*engine.Hold, crowd)
			for i := range holds {
				holds[i] = r.call(engine.Hold{Mode: protocol.Read, Lease: hold / 2}) // the server grants it
				r.answer(lua.Lock)
			}
			r.write()
			require.Empty(t, r.sent)
			for i := 0; i < len(holds) && r.sends(lua.Lock) == 0; i++ {
				r.pass(pace)
				r.do(func() { _, _ = r.engine.Release(r.now, holds[i]) })
				r.answer(lua.Unlock)
			}
			require.Equal(t, 1, r.sends(script))
			require.Len(t, r.sent, 1)
		})
	}
}

// Where others are in the way, calls queue on the server immediately: who waited in memory would be
// overtaken.
func TestCallsDoNotWaitWhileOthersAreInTheWay(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	r.layer.names[protocol.KeysOf("p", "n").Lock].need = 3
	r.write()
	claim := "2w:instance-02:1:000000000000009:AAAAAAAAAAAAAAAAAAAAAA:1"
	_, _, err := protocol.ClaimOf(claim)
	require.NoError(t, err)
	r.reply(r.next(lua.Lock), protocol.Reply{Last: 1, Obstacle: inTheWay(claim)})
	r.layer.names[protocol.KeysOf("p", "n").Lock].need = 1
	second := r.read()
	require.Equal(t, second, r.next(lua.Lock).Hold())
	r.now = r.now.Add(gatePause)
	r.write()
	require.Empty(t, r.sent)
}

// D10: what the server has lost is told by the next renewal; what was dropped by force, by a message at once.
func TestLossIsTold(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"by a renewal", "by a message"} {
		number := r.delegate(name, protocol.Write)
		h := r.call(engine.Hold{Name: name, Mode: protocol.Write})
		if name == "by a message" {
			r.hear("!%d", number)
		} else {
			r.pass(lease / 3)
		}
		r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.NotThere})
		require.Equal(t, engine.Lapsed, h.State())
		require.ErrorIs(t, r.release(h), engine.ErrLost)
		r.answer(lua.Return)
		r.answer(lua.Unlock)
		require.Empty(t, r.sent)
	}
	require.True(t, r.layer.Idle())
}

// The reply to a ForceUnlock may overtake the one that grants the delegation which it has dropped.
func TestForcedBeforeTheGrantIsKnown(t *testing.T) {
	r := newRig(t)
	r.use("n", protocol.Write)
	h := r.write()
	take := r.next(lua.Delegate)
	r.do(func() { require.NoError(t, r.engine.Force(r.now, "n", 0, nil)) })
	r.answer(lua.Force)
	r.reply(take, r.granted(take))
	require.Equal(t, engine.Wanted, h.State())
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.NotThere})
	require.Equal(t, h, r.next(lua.Lock).Hold())
}

// A request for a delegation that fails, or is not answered, is given up, and returned in case it was
// granted. The calls go to the server.
func TestUnansweredDelegation(t *testing.T) {
	r := newRig(t)
	for name, fails := range map[string]bool{"fails": true, "unanswered": false} {
		r.use(name, protocol.Write)
		h := r.call(engine.Hold{Name: name, Mode: protocol.Write})
		q := r.next(lua.Delegate)
		if fails {
			r.fail(q)
		} else {
			r.pass(lease / resendAfter)
			defer r.reply(q, r.granted(q)) // too late
		}
		require.Equal(t, h, r.next(lua.Lock).Hold())
		r.fail(r.next(lua.Return))
		r.pass(firstRetry)
		r.answer(lua.Return)
	}
}

// A call that waited in memory, and then waits on the server, is granted the lock there for the lease that it
// asked for, not for what was left of the delegation, though the reply to its request is lost.
func TestGrantAfterTheDelegationLastsForItsOwnLease(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	holder, waiter := r.write(), r.read()
	r.hear(";%d", number)
	asked := r.now
	q := r.next(lua.Lock)
	require.NoError(t, r.release(holder))
	r.answer(lua.Return)
	r.pass(lease + time.Second)
	k, err := protocol.ParseClaim(q.Claim.ID)
	require.NoError(t, err)
	r.hear("%d 0 %d", r.token, k.Number)
	require.Equal(t, engine.Live, waiter.State())
	require.Equal(t, engine.Deadline(asked, hold), waiter.Deadline())
}

// However many delegations end together, no more names are remembered than otherwise.
func TestNamesAreForgotten(t *testing.T) {
	r := newRig(t)
	r.layer.config.Eager = true
	var holds []*engine.Hold
	r.do(func() {
		for i := range mostIdle + mostKnown + 10 {
			h := &engine.Hold{Name: fmt.Sprint("n", i), Owner: engine.Owner{Handle: uint64(i + 1)}, Lease: hold,
				Mode: protocol.Write, Bounded: true}
			r.engine.Acquire(r.now, h)
			holds = append(holds, h)
		}
	})
	for range 2 {
		sent := r.sent
		r.sent = nil
		r.do(func() {
			for _, q := range sent {
				r.layer.Replied(r.now, q, r.granted(q), nil)
			}
			for _, h := range holds {
				_, _ = r.engine.Release(r.now, h)
			}
		})
	}
	require.Equal(t, mostIdle, len(r.layer.numbers))
	require.Equal(t, mostIdle+mostKnown, len(r.layer.names))
}

// Close returns all delegations in one go, and those that are used with the holds under them.
func TestCloseReturnsEverything(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.delegate(fmt.Sprint("n", i), protocol.Write)
	}
	r.call(engine.Hold{Name: "n0", Mode: protocol.Write})
	r.do(func() {
		r.engine.Close(r.now)
		r.layer.Close(r.now)
	})
	require.Equal(t, 5, r.sends(lua.Return))
	for range 5 {
		require.False(t, r.layer.Idle())
		r.answer(lua.Return)
	}
	require.True(t, r.layer.Idle())
	n, err := r.layer.Unreturned()
	require.Zero(t, n)
	require.NoError(t, err)
}

// If the client was closed before, Close says that the locks stay taken: also those whose delegations were to
// be returned when the subscription broke.
func TestCloseTellsWhatItCouldNotReturn(t *testing.T) {
	r := newRig(t)
	closed := protocol.ClientClosed(errSilence)
	for _, name := range []string{"idle", "used"} {
		r.delegate(name, protocol.Write)
	}
	r.call(engine.Hold{Name: "used", Mode: protocol.Write})
	refuse := func() {
		for len(r.sent) > 0 {
			q := r.next(lua.Return)
			r.do(func() { r.layer.Replied(r.now, q, protocol.Reply{}, closed) })
		}
	}
	r.do(func() { r.layer.Unsubscribed(r.now, closed) })
	refuse()
	r.do(func() {
		r.engine.Close(r.now)
		r.layer.Close(r.now)
	})
	refuse()
	require.True(t, r.layer.Idle())
	n, err := r.layer.Unreturned()
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, closed)
}

// If the reply to a return is lost, so is what it says of the calls that it let in. They ask again when a
// copy of the return replies that it was done before.
func TestLostReplyToAReturn(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	holder, waiter := r.write(), r.write()
	r.hear(";%d", number)
	r.reply(r.next(lua.Lock), protocol.Reply{Last: 1, Obstacle: protocol.Obstacle{Again: time.Hour}})
	require.NoError(t, r.release(holder))
	r.fail(r.next(lua.Return))
	r.pass(firstRetry)
	r.reply(r.next(lua.Return), protocol.Reply{Code: protocol.DoneBefore})
	r.pass(0)
	r.answer(lua.Lock)
	require.Equal(t, engine.Live, waiter.State())
}

// A call that waits on the server behind the RWLock's own delegation is told of a hold under it.
func TestObstacleIsTheHoldUnderTheDelegation(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	claim := r.layer.numbers[number].claim.ID
	holder := r.write()
	w := r.call(engine.Hold{Mode: protocol.Write, NoRenew: true})
	r.reply(r.next(lua.Lock), protocol.Reply{Last: 1, Obstacle: inTheWay(claim),
		Message: protocol.Message{Recalled: []uint64{number}}})
	o, known, ours := r.engine.Obstacle(r.now, w)
	require.True(t, known && ours)
	require.Equal(t, holder.Owner, o.Holder)
	require.NoError(t, r.release(holder))
	require.Equal(t, 1, r.sends(lua.Return))
}

// inTheWay says that a claim holds the lock for writing.
func inTheWay(claim string) protocol.Obstacle {
	return protocol.Obstacle{Mode: protocol.Write, Claim: claim, Again: time.Second}
}

// D5: a late reply about a delegation that has ended is void for the next one.
func TestLateReplyOfAnotherNumberIsVoid(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	r.pass(lease / 3)
	late := r.next(lua.Delegate)
	r.hear(";%d", number)
	r.answer(lua.Return)
	r.now = r.now.Add(time.Second)
	for range 3 {
		r.use("n", protocol.Write)
	}
	h := r.write()
	r.answer(lua.Delegate)
	r.reply(late, protocol.Reply{Code: protocol.NotThere})
	require.Equal(t, engine.Live, h.State())
	require.Empty(t, r.sent)
}

// What the engine wants done is handed on, once.
func TestEffectsAreHandedOnOnce(t *testing.T) {
	r := newRig(t)
	r.do(func() { require.NoError(t, r.engine.Force(r.now, "n", 0, "a call")) })
	var fx engine.Effects
	r.layer.Replied(r.now, r.next(lua.Force), protocol.Reply{Code: protocol.Done}, nil)
	r.layer.Flush(r.now, &fx)
	require.Equal(t, []engine.Answer{{Tag: "a call"}}, fx.Answers)
}

// An extension waits for the one renewal that it needs, however long that takes, and whatever else is
// answered before.
func TestExtensionNeedsOneRenewal(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	h := r.write()
	r.pass(lease / 3)
	regular := r.next(lua.Delegate)
	r.pass(time.Millisecond)
	var x engine.Extension
	r.do(func() { r.engine.Extend(r.now, h, time.Minute, &x) })
	want := r.now.Add(time.Minute)
	q := r.next(lua.Delegate)
	r.pass(time.Millisecond)
	r.reply(regular, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
	r.pass(time.Millisecond)
	r.reply(q, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
	over, err := x.Over()
	require.True(t, over)
	require.NoError(t, err)
	require.False(t, h.Deadline().Before(want))
	require.Empty(t, r.sent)
}

// Holds whose renewal waits for the delegation's learn that it has failed.
func TestFailedRenewalIsReported(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	h := r.write()
	var x engine.Extension
	r.do(func() { r.engine.Extend(r.now, h, time.Minute, &x) })
	var fx engine.Effects
	r.layer.Replied(r.now, r.next(lua.Delegate), protocol.Reply{}, errSilence)
	r.layer.Flush(r.now, &fx)
	require.Len(t, fx.Log, 1)
	require.Equal(t, errSilence, fx.Log[0].Err)
}

// If the reply to the renewal is lost, the next renewal asks for as much.
func TestExtensionIsRepeated(t *testing.T) {
	r := newRig(t)
	r.delegate("n", protocol.Write)
	h := r.write()
	var x engine.Extension
	r.do(func() { r.engine.Extend(r.now, h, time.Minute, &x) })
	want := r.now.Add(time.Minute)
	r.fail(r.next(lua.Delegate))
	r.pass(firstRetry)
	q := r.next(lua.Delegate)
	r.pass(time.Millisecond)
	r.reply(q, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
	over, err := x.Over()
	require.True(t, over)
	require.NoError(t, err)
	require.False(t, h.Deadline().Before(want))
}

// A reader that comes while the delegation is in doubt, and has to wait in any case, is let in when the
// writer leaves, before the next one.
func TestReaderThatComesInDoubtHasItsTurn(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	first, second := r.write(), r.write()
	r.hear("!%d", number)
	reader := r.read()
	r.do(func() { _, _ = r.engine.Release(r.now, first) })
	require.Equal(t, engine.Wanted, reader.State())
	r.answer(lua.Delegate)
	require.Equal(t, engine.Live, reader.State())
	require.Equal(t, engine.Wanted, second.State())
}

// While a delegation is in doubt, a crowd of readers waits for the renewal, and keeps nobody busy.
func TestCrowdWaitsWhileTheDelegationIsInDoubt(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	h := r.write()
	const crowd = 2*step + 10
	readers := make([]*engine.Hold, crowd)
	for i := range readers {
		readers[i] = r.read()
	}
	require.NoError(t, r.release(h)) // lets the first of them in; there are more
	r.hear("!%d", number)
	for range 10 {
		at, ok := r.layer.Next()
		if !ok || at.After(r.now) {
			break
		}
		r.do(func() { r.layer.Tick(r.now) })
	}
	at, _ := r.layer.Next()
	require.True(t, at.After(r.now), "nothing is due")
	r.reply(r.next(lua.Delegate), protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
	r.pass(0)
	for _, h := range readers {
		require.Equal(t, engine.Live, h.State())
	}
}

// D4: a delegation that is recalled while a reader is inside is not returned before the reader leaves.
func TestNotReturnedWhileAReaderIsInside(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a", "b"} {
		mode := map[string]protocol.Mode{"a": protocol.Read, "b": protocol.Write}[name]
		number := r.delegate(name, mode)
		reader := r.call(engine.Hold{Name: name, Mode: protocol.Read})
		r.hear(";%d", number)
		require.Empty(t, r.sent)
		require.NoError(t, r.release(reader))
		r.answer(lua.Return)
	}
}

// A hold that lasted for longer than a round trip may have been lost meanwhile, together with the server's
// data. Its release waits until the server has confirmed that the delegation stood, and the lock goes on.
// Releases wait for one request together.
func TestReleaseOfALongHoldIsConfirmed(t *testing.T) {
	for code, want := range map[int]error{protocol.Done: nil, protocol.NotThere: engine.ErrLost} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			r := newRig(t)
			number := r.delegate("n", protocol.Write)
			first, next := r.write(), r.write()
			release := func(h *engine.Hold) {
				t.Helper()
				r.now = r.now.Add(time.Millisecond)
				r.do(func() { _, _ = r.engine.Release(r.now, h) })
				require.Equal(t, engine.Releasing, h.State())
			}
			release(first)
			require.Equal(t, engine.Live, next.State())
			one := r.next(lua.Delegate)
			last := r.read()
			release(next)
			release(last)
			require.Empty(t, r.sent, "they wait for the request in flight, or the next")
			r.reply(one, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
			require.Equal(t, engine.Finished, first.State())
			require.NoError(t, first.Err(), "it was confirmed")
			require.Equal(t, engine.Releasing, next.State())
			r.reply(r.next(lua.Delegate), protocol.Reply{Code: code, Token: 1, Top: r.token + block})
			if code == protocol.NotThere { // its lease has ended, or it is lost: the return tells
				require.Equal(t, engine.Releasing, next.State())
				r.reply(r.next(lua.Return), protocol.Reply{Code: code})
			}
			for _, h := range []*engine.Hold{next, last} {
				require.Equal(t, engine.Finished, h.State())
				require.ErrorIs(t, h.Err(), want)
			}
			if code != protocol.Done {
				return
			}

			// The return confirms, too, and in the end the server is asked.
			h := r.write()
			r.hear(";%d", number)
			release(h)
			r.fail(r.next(lua.Return))
			require.Equal(t, engine.Releasing, h.State())
			r.pass(firstRetry)
			r.reply(r.next(lua.Return), protocol.Reply{Code: protocol.DoneBefore})
			require.Equal(t, engine.Finished, h.State())
			require.NoError(t, h.Err())
		})
	}
}

// If the return is never answered, the server is asked about the hold itself.
func TestReleaseThatNoReturnConfirmsAsksTheServer(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	h := r.write()
	r.hear(";%d", number)
	r.now = r.now.Add(time.Millisecond)
	r.do(func() { _, _ = r.engine.Release(r.now, h) })
	for r.sends(lua.Unlock) == 0 {
		r.pass(time.Second)
	}
	require.Equal(t, engine.Releasing, h.State())
	r.reply(r.next(lua.Unlock), protocol.Reply{Code: protocol.NotThere})
	require.ErrorIs(t, h.Err(), engine.ErrLost)
}

// A try of another RWLock waits for the return of a delegation. If the lock is held under it, the server is
// told so, until it knows.
func TestTryIsToldThatTheLockIsHeld(t *testing.T) {
	r := newRig(t)
	number := r.delegate("n", protocol.Write)
	r.hear("?%d", number)
	r.answer(lua.Return) // nobody holds it
	require.Empty(t, r.sent)

	for range 3 {
		r.now = r.now.Add(time.Second)
		r.use("n", protocol.Write)
	}
	number = r.delegateAtOnce("n", protocol.Write)
	h := r.write()
	r.hear("?%d", number)
	r.hear("?%d", number)
	q := r.next(lua.Delegate)
	require.True(t, q.Used && q.Keep)
	require.Empty(t, r.sent)
	r.fail(q)
	r.pass(firstRetry)
	q = r.next(lua.Delegate)
	require.True(t, q.Used)
	r.reply(q, protocol.Reply{Code: protocol.Done, Token: 1, Top: r.token + block})
	r.pass(lease / 3)
	require.False(t, r.next(lua.Delegate).Used, "the server knows")
	r.do(func() { _, _ = r.engine.Release(r.now, h) })
	r.answer(lua.Return)
	require.NoError(t, h.Err())
}

// What concerns all delegations is done for some of them at a time, so that other calls wait for these alone.
// No delegation is used meanwhile.
func TestManyDelegationsAreHandledInSlices(t *testing.T) {
	const many = 3 * sweptAtOnce
	for name, c := range map[string]struct {
		begin  func(r *rig)
		script *lua.Script
		served bool // by the delegation, once it is renewed
	}{
		"subscribed":   {func(r *rig) { r.layer.Subscribed(r.now) }, lua.Delegate, true},
		"slept":        {func(r *rig) { r.layer.Slept(r.now, time.Millisecond) }, lua.Delegate, true},
		"unsubscribed": {func(r *rig) { r.layer.Unsubscribed(r.now, errSilence) }, lua.Return, false},
		"closed":       {func(r *rig) { r.layer.Close(r.now) }, lua.Return, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for i := range many {
				r.delegate(fmt.Sprint("n", i), protocol.Write)
			}
			r.now = r.now.Add(time.Millisecond)
			r.do(func() { c.begin(r) })
			require.Equal(t, sweptAtOnce, r.sends(c.script))
			var calls []*engine.Hold
			if name != "closed" {
				for i := range many {
					calls = append(calls, r.call(engine.Hold{Name: fmt.Sprint("n", i), Mode: protocol.Write}))
				}
			}
			for _, h := range calls {
				require.Equal(t, engine.Wanted, h.State())
			}
			for r.sends(c.script) < many {
				before := r.sends(c.script)
				at, due := r.layer.Next()
				require.True(t, due && !at.After(r.now))
				r.do(func() { r.layer.Tick(r.now) })
				require.LessOrEqual(t, r.sends(c.script)-before, sweptAtOnce)
			}
			for r.sends(c.script) > 0 {
				r.answer(c.script)
			}
			for _, h := range calls {
				require.Equal(t, c.served, h.State() == engine.Live)
			}
		})
	}
}
