package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	lease  = 3 * time.Second
	margin = lease/100 + 2*time.Millisecond // by so much a client's deadline is short of the server's
)

var (
	errPassing = errors.New("connection refused")
	errForGood = serverError("WRONGTYPE")
	done       = protocol.Reply{Code: protocol.Done}
	gone       = protocol.Reply{Code: protocol.NotThere}
)

// serverError is what a client makes of an error that a server replies.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// call begins a call, and returns it with its request.
func (d *driver) call(t *testing.T, h *engine.Hold) (*engine.Hold, *engine.Request) {
	t.Helper()
	if h.Name == "" {
		h.Name = "a"
	}
	if h.Owner == (engine.Owner{}) {
		h.Owner.Handle = 1
	}
	if h.Mode == protocol.None {
		h.Mode = protocol.Write
	}
	if h.Lease == 0 {
		h.Lease = lease
	}
	d.Acquire(d.now, h)
	return h, d.sent(t)
}

// live returns a hold that was granted at once.
func (d *driver) live(t *testing.T, h *engine.Hold) *engine.Hold {
	t.Helper()
	h, r := d.call(t, h)
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	require.Equal(t, engine.Live, h.State())
	d.flush()
	return h
}

// queued returns a call that the server has wait, with nothing to do before its heartbeat.
func (d *driver) queued(t *testing.T, h *engine.Hold) *engine.Hold {
	t.Helper()
	h, r := d.call(t, h)
	d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
	require.Equal(t, engine.Wanted, h.State())
	d.flush()
	return h
}

// sent returns the only request to send.
func (d *driver) sent(t *testing.T) *engine.Request {
	t.Helper()
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	return fx.Send[0]
}

// next returns in how long Tick is due.
func (d *driver) next(t *testing.T) time.Duration {
	t.Helper()
	at, ok := d.Next()
	require.True(t, ok)
	return at.Sub(d.now)
}

// due lets the time pass until Tick is due, which is to be after so long, and returns what is to be done
// then.
func (d *driver) due(t *testing.T, after time.Duration) engine.Effects {
	t.Helper()
	if after > 0 { // or else the event before has done it
		require.Equal(t, after, d.next(t))
		d.now = d.now.Add(after)
		d.Tick(d.now)
	}
	return d.flush()
}

// resent is due, for one request.
func (d *driver) resent(t *testing.T, s *lua.Script, after time.Duration) *engine.Request {
	t.Helper()
	fx := d.due(t, after)
	require.Len(t, fx.Send, 1)
	require.Equal(t, s.Name, fx.Send[0].Script.Name)
	return fx.Send[0]
}

// A second release of a hold does nothing, however the first one went.
func TestReleaseIsAnsweredOnce(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	known, err := d.Release(d.now, h)
	require.False(t, known)
	require.NoError(t, err)
	r := d.sent(t)
	for range 2 {
		known, err = d.Release(d.now, h)
		require.True(t, known)
		require.Equal(t, engine.ErrNotHeld, err)
		require.Empty(t, d.flush().Send)
		d.Replied(d.now, r, done, nil)
		require.Equal(t, engine.Finished, h.State())
		require.NoError(t, h.Err())
	}

	h = d.live(t, &engine.Hold{})
	d.now = h.Deadline()
	known, err = d.Release(d.now, h)
	require.True(t, known)
	require.Equal(t, engine.ErrLost, err)
	require.Equal(t, []*engine.Hold{h}, d.flush().Cancel)
	known, err = d.Release(d.now, h)
	require.True(t, known)
	require.Equal(t, engine.ErrNotHeld, err)
}

// A release says how it went on the server.
func TestReleaseIsToldHowItWent(t *testing.T) {
	for name, c := range map[string]struct {
		reply protocol.Reply
		err   error
		want  error
	}{
		"done":        {done, nil, nil},
		"done before": {protocol.Reply{Code: protocol.DoneBefore}, nil, nil},
		"gone":        {gone, nil, engine.ErrLost},
		"refused":     {protocol.Reply{}, errForGood, errForGood},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			h := d.live(t, &engine.Hold{})
			_, _ = d.Release(d.now, h)
			d.Replied(d.now, d.sent(t), c.reply, c.err)
			require.Equal(t, []*engine.Hold{h}, d.flush().Wake)
			require.Equal(t, engine.Finished, h.State())
			require.Equal(t, c.want, h.Err())
			require.Equal(t, c.err == nil, d.Idle())
		})
	}
}

// A release spares the server a look at its clock only if nothing speaks against it: the hold is young, was
// the server knows of no other hold, and this is the first request.
func TestReleaseOfLate(t *testing.T) {
	const fresh = 45 * time.Second
	end := func(t *testing.T, d *driver, h *engine.Hold) *engine.Request {
		_, _ = d.Release(d.now, h)
		return d.sent(t)
	}
	for _, mode := range []engine.Mode{protocol.Read, protocol.Write} {
		for after, young := range map[time.Duration]bool{0: true, fresh - 1: true, fresh: false} {
			d := newDriver()
			h := d.live(t, &engine.Hold{Mode: mode, Lease: time.Minute, NoRenew: true})
			d.now = d.now.Add(after)
			r := end(t, d, h)
			require.Equal(t, young, r.Record != "", after)
			require.Equal(t, lua.Unlock, r.Script)
			require.False(t, r.Again)
		}
	}

	d := newDriver()
	h := d.live(t, &engine.Hold{})
	r := end(t, d, h)
	require.Equal(t, protocol.Released(r.Claim, 7), r.Record)
	d.Replied(d.now, r, protocol.Reply{}, errPassing)
	again := d.resent(t, lua.Unlock, 50*time.Millisecond)
	require.Empty(t, again.Record)
	require.True(t, again.Again)

	d = newDriver()
	outer := d.live(t, &engine.Hold{})
	_, _ = d.Release(d.now, d.wait(t, &engine.Hold{}))
	r = end(t, d, outer)
	require.Equal(t, protocol.Released(r.Claim, 7), r.Record, "the server knows nothing of an inner hold")

	d = newDriver()
	h = d.queued(t, &engine.Hold{})
	require.False(t, d.GiveUp(d.now, h, errPassing))
	require.Empty(t, d.sent(t).Record, "there was no grant")
}

// The end of a claim is tried again after a second without an answer, then two, four, up to 32; after
// failures, sooner. It is given up when the server has it no longer.
func TestEndIsTriedAgain(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{Lease: 5 * time.Minute, NoRenew: true})
	begun := d.now
	_, _ = d.Release(d.now, h)
	d.flush()
	for _, after := range []time.Duration{1, 2, 4, 8, 16, 32, 32, 32} {
		require.True(t, d.resent(t, lua.Unlock, after*time.Second).Again)
	}
	for d.now.Before(begun.Add(5 * time.Minute)) {
		require.False(t, d.Idle())
		d.now = d.now.Add(d.next(t))
		d.Tick(d.now)
	}
	require.Equal(t, begun.Add(5*time.Minute), d.now)
	require.True(t, d.Idle())
	require.ErrorIs(t, h.Err(), engine.ErrUnanswered)

	d = newDriver()
	h = d.live(t, &engine.Hold{})
	begun = d.now
	_, _ = d.Release(d.now, h)
	r := d.sent(t)
	for _, after := range []time.Duration{50, 100, 200, 400, 500, 500} { // up to a sixth of the lease
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		n, places, err := d.Unreleased()
		require.Equal(t, 1, n)
		require.Zero(t, places)
		require.Equal(t, errPassing, err)
		r = d.resent(t, lua.Unlock, after*time.Millisecond)
	}
	for !d.Idle() {
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		d.now = d.now.Add(d.next(t))
		d.Tick(d.now)
		if fx := d.flush(); len(fx.Send) > 0 {
			r = fx.Send[0]
		}
	}
	require.Equal(t, engine.EndTimeout, d.now.Sub(begun))
	require.ErrorIs(t, h.Err(), engine.ErrUnanswered)
	require.ErrorIs(t, h.Err(), errPassing)
}

// A call that gets no answer asks again, beside the request in flight, after a sixth of the lease; one whose
// request fails, after 50 ms, 100 ms and so on. It fails a lease after it began, if nothing else ends it.
func TestCallWithoutAnAnswer(t *testing.T) {
	for _, bounded := range []bool{false, true} {
		d := newDriver()
		h, r := d.call(t, &engine.Hold{Bounded: bounded})
		require.False(t, r.Again)
		require.Equal(t, lease, r.Lease.Duration)
		for range 5 {
			again := d.resent(t, lua.Lock, lease/6)
			require.True(t, again.Again)
			require.Equal(t, r.Claim, again.Claim)
		}
		fx := d.due(t, lease/6)
		if bounded {
			require.Equal(t, engine.Wanted, h.State())
			continue
		}
		require.Equal(t, engine.Failed, h.State())
		require.Equal(t, engine.ErrUnanswered, h.Err())
		require.Equal(t, []*engine.Hold{h}, fx.Wake)
		require.Len(t, fx.Send, 1)
		require.Equal(t, lua.Unlock, fx.Send[0].Script)
	}

	d := newDriver()
	h, r := d.call(t, &engine.Hold{})
	for _, after := range []time.Duration{50, 100, 200, 400, 500} {
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		require.Equal(t, errPassing, h.LastError())
		r = d.resent(t, lua.Lock, after*time.Millisecond)
		require.True(t, r.Again)
	}
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	require.Equal(t, engine.Live, h.State())
	require.NoError(t, h.LastError())

	for _, err := range []error{errPassing, errForGood} {
		d = newDriver()
		h, r = d.call(t, &engine.Hold{Try: err == errPassing})
		d.Replied(d.now, r, protocol.Reply{}, err)
		require.Equal(t, engine.Failed, h.State(), "a try, and what does not pass, fail at once")
		require.Equal(t, err, h.Err())
		require.Equal(t, err, h.LastError())
		require.Equal(t, lua.Unlock, d.sent(t).Script)
	}
}

// A try without an answer fails after its lease, or five seconds.
func TestTryWithoutAnAnswer(t *testing.T) {
	for l, want := range map[time.Duration]time.Duration{lease: lease, time.Minute: engine.EndTimeout} {
		d := newDriver()
		begun := d.now
		h, r := d.call(t, &engine.Hold{Try: true, Lease: l})
		require.True(t, r.Try)
		for h.State() == engine.Wanted {
			d.now = d.now.Add(d.next(t))
			d.Tick(d.now)
			d.flush()
		}
		require.Equal(t, want, d.now.Sub(begun))
		require.Equal(t, engine.ErrUnanswered, h.Err())
	}
}

// A try waits while only idle delegations are in its way, for no longer than for an answer, and fails as soon
// as a reply says that there is more in its way.
func TestTryThatWaitsIsBounded(t *testing.T) {
	waits := protocol.Reply{Idle: true, Obstacle: protocol.Obstacle{Mode: protocol.Write, Again: time.Second}}
	bounds := map[time.Duration]time.Duration{lease / 10: lease / 10, time.Minute: engine.EndTimeout}
	for l, want := range bounds {
		d := newDriver()
		begun := d.now
		h, r := d.call(t, &engine.Hold{Try: true, Lease: l})
		for h.State() == engine.Wanted {
			if r != nil {
				d.Replied(d.now, r, waits, nil)
			}
			r = nil
			d.now = d.now.Add(d.next(t))
			d.Tick(d.now)
			for _, r = range d.flush().Send {
			}
		}
		require.Equal(t, want, d.now.Sub(begun))
		require.Equal(t, engine.ErrLocked, h.Err())
	}
	d := newDriver()
	h, r := d.call(t, &engine.Hold{Try: true})
	d.Replied(d.now, r, waits, nil)
	require.Equal(t, engine.Wanted, h.State())
	waits.Idle = false
	d.Replied(d.now, r, waits, nil)
	require.Equal(t, engine.ErrLocked, h.Err())
}

// A waiter asks for news when the reply says that it may pay, with its heartbeat after a third of the lease
// at the latest, and not without a pause.
func TestWaiterAsksForNews(t *testing.T) {
	for again, want := range map[time.Duration]time.Duration{
		0: 10 * time.Millisecond, 100 * time.Millisecond: 102 * time.Millisecond, time.Hour: lease / 3,
	} {
		d := newDriver()
		h, r := d.call(t, &engine.Hold{})
		d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: again, Ahead: 2}}, nil)
		require.True(t, d.flush().Listen)
		o, known, ours := d.Obstacle(d.now, h)
		require.Equal(t, protocol.Obstacle{Again: max(again, 10*time.Millisecond), Ahead: 2}, o)
		require.True(t, known)
		require.False(t, ours)
		heartbeat := d.resent(t, lua.Lock, want)
		require.False(t, heartbeat.Again)
		d.Replied(d.now, heartbeat, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
		require.False(t, d.flush().Listen, "there is a subscription")
		require.Equal(t, lease/3, d.next(t))
	}
}

// A hold may be relied on from before its request was sent, for the lease less a margin. It is renewed after
// a third of the lease, again after a twelfth without an answer, and lost at the deadline.
func TestHoldIsRenewed(t *testing.T) {
	d := newDriver()
	h, r := d.call(t, &engine.Hold{})
	sent := d.now
	d.now = d.now.Add(100 * time.Millisecond)
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	require.Equal(t, sent.Add(lease-margin), h.Deadline())
	d.flush()

	r = d.resent(t, lua.Renew, lease/3-100*time.Millisecond)
	require.False(t, r.Again)
	require.Equal(t, lease, r.Lease.Duration)
	sent = d.now
	d.now = d.now.Add(100 * time.Millisecond)
	d.Replied(d.now, r, done, nil)
	require.Equal(t, sent.Add(lease-margin), h.Deadline())

	d.resent(t, lua.Renew, lease/3-100*time.Millisecond)
	for range 7 {
		require.True(t, d.resent(t, lua.Renew, lease/12).Again)
	}
	fx := d.due(t, h.Deadline().Sub(d.now))
	require.Equal(t, []*engine.Hold{h}, fx.Cancel)
	require.Equal(t, engine.Lapsed, h.State())
	require.Equal(t, engine.ErrLost, h.Err())
	require.Equal(t, lua.Unlock, fx.Send[0].Script)
	require.Contains(t, fmt.Sprint(fx.Events), fmt.Sprint(engine.Expired))
}

// A renewal that fails is logged, and tried again after 50 ms, 100 ms and so on. One that learns that the
// hold is gone ends it at once.
func TestRenewalThatFails(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	r := d.resent(t, lua.Renew, lease/3)
	for _, after := range []time.Duration{50, 100, 200, 400} {
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		fx := d.flush()
		require.Len(t, fx.Log, 1)
		require.Equal(t, errPassing, fx.Log[0].Err)
		require.Equal(t, "renewal failed", fx.Log[0].Message)
		require.Equal(t, errPassing, h.LastError())
		r = d.resent(t, lua.Renew, after*time.Millisecond)
		require.True(t, r.Again)
	}
	d.Replied(d.now, r, done, nil)
	require.NoError(t, h.LastError())
	require.Equal(t, d.now.Add(lease-margin), h.Deadline())
	d.flush()
	d.Replied(d.now, d.resent(t, lua.Renew, lease/3), gone, nil)
	require.Equal(t, engine.Lapsed, h.State())
	fx := d.flush()
	require.Equal(t, []*engine.Hold{h}, fx.Cancel)
	require.Len(t, fx.Log, 1)
}

// A hold without renewal ends with its lease, and one with a MaxHold is renewed for as long as that says.
func TestHoldsThatEnd(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{NoRenew: true})
	require.Equal(t, []*engine.Hold{h}, d.due(t, lease-margin).Cancel)

	d = newDriver()
	begun := d.now
	h = d.live(t, &engine.Hold{MaxHold: 4 * time.Second})
	d.Replied(d.now, d.resent(t, lua.Renew, lease/3), done, nil)
	d.flush()
	r := d.resent(t, lua.Renew, lease/3)
	require.Less(t, r.Lease.Duration, lease)
	require.Greater(t, r.Lease.Duration, 2*time.Second)
	d.Replied(d.now, r, done, nil)
	d.flush()
	fx := d.due(t, begun.Add(4*time.Second).Sub(d.now))
	require.Equal(t, []*engine.Hold{h}, fx.Cancel)
	require.Equal(t, engine.ErrLost, h.Err())
}

// A message grants the lock to the calls that it names, and has others ask again. It is heeded once.
func TestMessages(t *testing.T) {
	d := newDriver()
	first, r1 := d.call(t, &engine.Hold{})
	second, r2 := d.call(t, &engine.Hold{Owner: engine.Owner{Handle: 2}})
	for _, r := range []*engine.Request{r1, r2} {
		d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
	}
	d.flush()
	d.Heard(d.now, "nonsense")
	require.Zero(t, d.flush())
	message := fmt.Sprintf("9 1 %s,%s", r1.Claim.Number, r2.Claim.Number)
	d.Heard(d.now, message)
	require.Equal(t, engine.Live, first.State())
	require.EqualValues(t, 9, first.Token())
	require.Equal(t, engine.Wanted, second.State())
	fx := d.flush()
	require.Len(t, fx.Send, 2)
	require.Equal(t, lua.Serve, fx.Send[0].Script)
	require.Equal(t, lua.Lock, fx.Send[1].Script)
	require.False(t, fx.Send[1].Try)
	d.Heard(d.now, fmt.Sprintf("10 0 %s", r1.Claim.Number))
	require.EqualValues(t, 9, first.Token())
	require.Equal(t, engine.Event{Kind: engine.Woken}, d.flush().Events[0])
}

// A message that overtakes the reply of the request in flight has the call ask once more, also in the instant
// in which that was sent.
func TestMessageOvertakesTheReply(t *testing.T) {
	d := newDriver()
	_, r := d.call(t, &engine.Hold{})
	waits := protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}
	d.Heard(d.now, ","+r.Claim.Number)
	d.Replied(d.now, r, waits, nil)
	asks := d.due(t, 0)
	require.Len(t, asks.Send, 1)
	d.Replied(d.now, asks.Send[0], waits, nil)
	d.flush()
	require.Positive(t, d.next(t))
}

// While a step says that there is more, the next is asked for: one at a time, and not for ever.
func TestStepsAreTakenOneAfterTheOther(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	_, _ = d.Release(d.now, h)
	d.Replied(d.now, d.sent(t), protocol.Reply{Code: protocol.Done, More: true}, nil)
	n := 0
	for r := d.sent(t); r != nil; n++ {
		require.Equal(t, lua.Serve, r.Script)
		require.False(t, d.Idle())
		d.Replied(d.now, r, protocol.Reply{Code: protocol.Done, More: true}, nil)
		fx := d.flush()
		require.LessOrEqual(t, len(fx.Send), 1)
		if r = nil; len(fx.Send) == 1 {
			r = fx.Send[0]
		}
	}
	require.Equal(t, 1000, n)
	require.True(t, d.Idle())
	require.Zero(t, d.InUse())
	h = d.live(t, &engine.Hold{}) // whose reply says that there is no more
	_, _ = d.Release(d.now, h)
	d.Replied(d.now, d.sent(t), protocol.Reply{Code: protocol.Done, More: true}, nil)
	require.Equal(t, lua.Serve, d.sent(t).Script)
}

// A slot is used again if the server has confirmed the end of its claim, and not otherwise.
func TestSlotsAreUsedAgain(t *testing.T) {
	d := newDriver()
	slot := func(answered bool) any {
		h, r := d.call(t, &engine.Hold{})
		d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
		d.flush()
		_, _ = d.Release(d.now, h)
		if end := d.sent(t); answered {
			d.Replied(d.now, end, done, nil)
		}
		for !d.Idle() {
			d.now = d.now.Add(d.next(t))
			d.Tick(d.now)
		}
		d.flush()
		return r.Claim.Slot
	}
	first := slot(true)
	require.Equal(t, first, slot(true))
	require.Equal(t, first, slot(false))
	second := slot(true)
	require.NotEqual(t, first, second)
	require.Equal(t, second, slot(true))
}

// A claim that the server refuses is asked for again, with another number, ten times.
func TestRefusedClaims(t *testing.T) {
	d := newDriver()
	h, r := d.call(t, &engine.Hold{})
	seen := map[any]bool{}
	n := 0
	for ; h.State() == engine.Wanted; n++ {
		require.False(t, seen[r.Claim.Number])
		seen[r.Claim.Number] = true
		d.Replied(d.now, r, protocol.Reply{Refused: true}, nil)
		if fx := d.flush(); len(fx.Send) > 0 {
			r = fx.Send[0]
		}
	}
	require.Equal(t, 10, n)
	require.Equal(t, engine.ErrAgain, h.Err())
	require.True(t, d.Idle())
}

// wait begins a call that sends nothing: its owner has the lock, or another of its calls is in front.
func (d *driver) wait(t *testing.T, h *engine.Hold) *engine.Hold {
	t.Helper()
	h.Name, h.Owner.Handle, h.Lease, h.Mode = "a", 1, cmp.Or(h.Lease, lease), cmp.Or(h.Mode, protocol.Write)
	d.Acquire(d.now, h)
	require.Empty(t, d.flush().Send)
	return h
}

// settled says that the engine knows of nothing any more, once the server has confirmed what is in flight.
func (d *driver) settled(t *testing.T, requests ...*engine.Request) {
	t.Helper()
	for _, r := range append(requests, d.flush().Send...) {
		d.Replied(d.now, r, done, nil)
	}
	require.True(t, d.Idle())
	require.Zero(t, d.InUse())
	_, ok := d.Next()
	require.False(t, ok)
}

// A call of an owner waits behind the one in front of it, and goes on when that is over: re-entering its
// hold, or in its place.
func TestCallsOfOneOwnerGoOneAfterTheOther(t *testing.T) {
	d := newDriver()
	first, r := d.call(t, &engine.Hold{Mode: protocol.Read})
	second, third := d.wait(t, &engine.Hold{Mode: protocol.Read}), d.wait(t, &engine.Hold{Mode: protocol.Read})
	d.Acquire(d.now, &engine.Hold{Name: "a", Owner: first.Owner, Mode: protocol.Read, Lease: lease, Try: true})
	fx := d.flush()
	require.Len(t, fx.Wake, 1)
	require.Equal(t, engine.ErrLocked, fx.Wake[0].Err(), "a try does not wait")
	require.False(t, d.GiveUp(d.now, second, errPassing))
	require.Equal(t, engine.Failed, second.State())
	require.Equal(t, errPassing, second.Err())
	require.Equal(t, engine.Wanted, third.State())
	fourth := d.wait(t, &engine.Hold{Mode: protocol.Read})
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	require.Equal(t, engine.Live, first.State())
	fx = d.flush()
	require.Empty(t, fx.Send)
	for _, h := range []*engine.Hold{third, fourth} {
		require.Equal(t, engine.Live, h.State())
		require.EqualValues(t, 7, h.Token())
		_, _ = d.Release(d.now, h)
	}
	_, _ = d.Release(d.now, first)
	d.settled(t)

	first, r = d.call(t, &engine.Hold{})
	second = d.wait(t, &engine.Hold{Mode: protocol.Write})
	d.GiveUp(d.now, first, errPassing)
	fx = d.flush()
	require.Equal(t, lua.Unlock, fx.Send[0].Script)
	require.Equal(t, lua.Lock, fx.Send[1].Script)
	require.NotEqual(t, r.Claim.Slot, fx.Send[1].Claim.Slot,
		"the first one's slot is in use until the server knows its end")
	d.Replied(d.now, fx.Send[1], protocol.Reply{Token: 7}, nil)
	require.Equal(t, engine.Live, second.State())
	_, _ = d.Release(d.now, second)
	d.settled(t, fx.Send[0])
}

// Of a call that failed, or a hold that ended, nothing is left.
func TestNothingIsLeft(t *testing.T) {
	d := newDriver()
	try, r := d.call(t, &engine.Hold{Try: true})
	d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Second}}, nil)
	require.Equal(t, engine.ErrLocked, try.Err())
	d.settled(t)
	try, r = d.call(t, &engine.Hold{Try: true})
	d.Replied(d.now, r, protocol.Reply{Refused: true}, nil)
	require.Equal(t, engine.ErrLocked, try.Err(), "it has run before, and had to wait")
	d.settled(t)
	d.GiveUp(d.now, d.queued(t, &engine.Hold{}), errPassing)
	d.settled(t)
	_, _ = d.Release(d.now, d.live(t, &engine.Hold{}))
	d.settled(t)
	h, r := d.call(t, &engine.Hold{})
	d.GiveUp(d.now, h, errPassing)
	d.settled(t)
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil) // it comes late
	require.Equal(t, engine.Failed, h.State())
	d.settled(t)
}

// While an owner has not released a hold that it lost, its calls fail with ErrLost. Others' do not.
func TestOwnerIsToldOfItsLoss(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{NoRenew: true})
	d.Replied(d.now, d.due(t, lease-margin).Send[0], done, nil)
	require.Equal(t, engine.Lapsed, h.State())
	for _, mode := range []engine.Mode{protocol.Read, protocol.Write} {
		again := d.wait(t, &engine.Hold{Mode: mode})
		require.Equal(t, engine.Failed, again.State())
		require.Equal(t, engine.ErrLost, again.Err())
	}
	other := d.live(t, &engine.Hold{Owner: engine.Owner{Handle: 2}})
	_, _ = d.Release(d.now, other)
	d.Replied(d.now, d.sent(t), done, nil)
	require.Equal(t, 1, d.InUse())
	_, err := d.Release(d.now, h)
	require.Equal(t, engine.ErrLost, err)
	d.settled(t)
	d.live(t, &engine.Hold{})
}

// The reply to an early request says from when the hold may be relied on, though another was sent since.
func TestReplyToTheFirstOfTwoRequests(t *testing.T) {
	d := newDriver()
	h, first := d.call(t, &engine.Hold{})
	sent := d.now
	second := d.resent(t, lua.Lock, lease/6)
	d.Replied(d.now, first, protocol.Reply{Token: 7}, nil)
	require.Equal(t, sent.Add(lease-margin), h.Deadline())
	d.Replied(d.now, second, protocol.Reply{Token: 7, Before: true}, nil)
	require.Equal(t, d.now.Add(lease-margin), h.Deadline())
	d.flush()
	_, _ = d.Release(d.now, h)
	first = d.sent(t)
	second = d.resent(t, lua.Unlock, time.Second)
	require.NotEmpty(t, first.Record)
	require.NotSame(t, first, second)

	// A later grant of the same claim, or a refusal, shows that the hold was dropped.
	for _, reply := range []protocol.Reply{{Token: 8}, {Refused: true}} {
		d = newDriver()
		h, first = d.call(t, &engine.Hold{})
		second = d.resent(t, lua.Lock, lease/6)
		d.Replied(d.now, first, protocol.Reply{Token: 7}, nil)
		d.Replied(d.now, second, protocol.Reply{Token: 6}, nil)
		d.Replied(d.now, second, protocol.Reply{}, errPassing)
		require.Equal(t, engine.Live, h.State())
		d.Replied(d.now, second, reply, nil)
		require.Equal(t, engine.Lapsed, h.State())
	}
}

// Only one request for a further step is in flight for a lock.
func TestOneStepAtATime(t *testing.T) {
	d := newDriver()
	a, b := d.live(t, &engine.Hold{Mode: protocol.Read}),
		d.live(t, &engine.Hold{Mode: protocol.Read, Owner: engine.Owner{Handle: 2}})
	var ends []*engine.Request
	for _, h := range []*engine.Hold{a, b} {
		_, _ = d.Release(d.now, h)
		ends = append(ends, d.sent(t))
	}
	d.Replied(d.now, ends[0], protocol.Reply{Code: protocol.Done, More: true}, nil)
	serve := d.sent(t)
	d.Replied(d.now, ends[1], protocol.Reply{Code: protocol.Done, More: true}, nil)
	require.Empty(t, d.flush().Send)
	d.Replied(d.now, serve, protocol.Reply{}, errPassing)
	d.settled(t)
}

// A lock is in use while a further step is requested, even if a second reply to the end of its last claim
// requests it.
func TestStepOfAnUnusedLock(t *testing.T) {
	d := newDriver()
	_, _ = d.Release(d.now, d.live(t, &engine.Hold{}))
	end := d.sent(t)
	again := d.resent(t, lua.Unlock, time.Second)
	d.done(end)
	require.Zero(t, d.InUse())
	d.Replied(d.now, again, protocol.Reply{Code: protocol.DoneBefore, More: true}, nil)
	require.Equal(t, 1, d.InUse())
	d.done(d.sent(t))
	d.settled(t)
}

// An extension is over at once if the hold lasts for so long, and else when the server has confirmed it. It
// goes no further than MaxHold.
func TestExtensions(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	x := new(engine.Extension)
	d.Extend(d.now, h, lease-margin, x)
	over, err := x.Over()
	require.True(t, over)
	require.NoError(t, err)
	fx := d.flush()
	require.Empty(t, fx.Send)
	require.Equal(t, []*engine.Extension{x}, fx.Extended)

	x = new(engine.Extension)
	d.Extend(d.now, h, 10*time.Second, x)
	r := d.sent(t)
	require.GreaterOrEqual(t, r.Lease.Duration-r.Lease.Duration/100-2*time.Millisecond, 10*time.Second)
	require.Less(t, r.Lease.Duration, 10200*time.Millisecond)
	over, _ = x.Over()
	require.False(t, over)
	d.Replied(d.now, r, done, nil)
	over, err = x.Over()
	require.True(t, over)
	require.NoError(t, err)
	require.GreaterOrEqual(t, h.Deadline().Sub(d.now), 10*time.Second)

	d = newDriver()
	h = d.live(t, &engine.Hold{MaxHold: 4 * time.Second})
	begun := d.now
	x = new(engine.Extension)
	d.Extend(d.now, h, time.Minute, x)
	r = d.sent(t)
	require.Less(t, r.Lease.Duration, 4200*time.Millisecond)
	d.Replied(d.now, r, done, nil)
	over, err = x.Over()
	require.True(t, over)
	require.NoError(t, err)
	require.Equal(t, begun.Add(4*time.Second), h.Deadline())

	// It ends with the hold, with its caller's wait, and when the server refuses it.
	for want, end := range map[error]func(d *driver, h *engine.Hold, x *engine.Extension, r *engine.Request){
		engine.ErrNotHeld: func(d *driver, h *engine.Hold, _ *engine.Extension, _ *engine.Request) {
			_,
				_ = d.Release(d.now, h)
		},
		engine.ErrLost: func(d *driver, _ *engine.Hold, _ *engine.Extension, r *engine.Request) {
			d.Replied(d.now, r, gone, nil)
		},
		errForGood: func(d *driver, _ *engine.Hold, _ *engine.Extension, r *engine.Request) {
			d.Replied(d.now, r, done, errForGood)
		},
		errPassing: func(d *driver, _ *engine.Hold, x *engine.Extension, _ *engine.Request) {
			d.GiveUpExtension(x, errPassing)
			d.GiveUpExtension(x, errForGood)
		},
		engine.ErrClosed: func(d *driver, _ *engine.Hold, _ *engine.Extension,
			_ *engine.Request) {
			d.Close(d.now)
		},
	} {
		d = newDriver()
		h = d.live(t, &engine.Hold{})
		x = new(engine.Extension)
		d.Extend(d.now, h, time.Minute, x)
		end(d, h, x, d.sent(t))
		over, err = x.Over()
		require.True(t, over)
		require.Equal(t, want, err)
		require.Equal(t, []*engine.Extension{x}, d.flush().Extended)
	}
	_, _ = d.Release(d.now, h)
	x = new(engine.Extension)
	d.Extend(d.now, h, time.Minute, x)
	_, err = x.Over()
	require.Equal(t, engine.ErrNotHeld, err)
}

// Of two extensions, the server heeds the later request, and what it says to the earlier does not end the
// later.
func TestExtensionsHaveRequestsOfTheirOwn(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	first, second := new(engine.Extension), new(engine.Extension)
	d.Extend(d.now, h, time.Minute, first)
	r1 := d.sent(t)
	d.now = d.now.Add(time.Millisecond)
	d.Extend(d.now, h, 2*time.Minute, second)
	r2 := d.sent(t)
	d.Replied(d.now, r1, done, errForGood)
	over, err := first.Over()
	require.True(t, over)
	require.Equal(t, errForGood, err)
	over, _ = second.Over()
	require.False(t, over)
	d.Replied(d.now, r2, done, nil)
	over, err = second.Over()
	require.True(t, over)
	require.NoError(t, err)
}

// An extension that the server refuses ends no release of its hold that came after it, whether or not others
// remain.
func TestRefusedExtensionEndsNoRelease(t *testing.T) {
	for _, others := range []bool{false, true} {
		d := newDriver()
		h := d.live(t, &engine.Hold{})
		if others {
			d.wait(t, &engine.Hold{})
		}
		x := new(engine.Extension)
		d.Extend(d.now, h, time.Minute, x)
		extends := d.sent(t)
		known, _ := d.Release(d.now, h)
		require.Equal(t, others, known)
		d.Replied(d.now, extends, protocol.Reply{}, errForGood)
		if !others {
			require.Equal(t, engine.Releasing, h.State())
			d.done(d.sent(t))
		}
		require.Equal(t, engine.Finished, h.State())
		require.NoError(t, h.Err())
	}
}

// A call that gives up is no hold that was not released: it may leave a place in a queue.
func TestUnreleasedTellsHoldsFromPlaces(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	waiter := d.queued(t, &engine.Hold{Owner: engine.Owner{Handle: 2}})
	_, _ = d.Release(d.now, h)
	d.GiveUp(d.now, waiter, errors.New("gave up"))
	holds, places, err := d.Unreleased()
	require.Equal(t, [...]int{1, 1}, [...]int{holds, places})
	require.NoError(t, err)
}

// While an engine is drained, what is held may be entered again. Everything else ends with ErrClosed.
func TestDrain(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	reader := d.live(t, &engine.Hold{Name: "b", Mode: protocol.Read})
	waiter := d.queued(t, &engine.Hold{Owner: engine.Owner{Handle: 2}})
	d.Drain(d.now)
	require.Equal(t, engine.ErrClosed, waiter.Err())
	require.Equal(t, lua.Unlock, d.sent(t).Script)
	d.reenters(t, &engine.Hold{Mode: protocol.Read})
	require.Equal(t, 3, d.Holds())
	again := &engine.Hold{Name: "b", Owner: reader.Owner, Mode: protocol.Read, Lease: lease}
	d.Acquire(d.now, again)
	require.Equal(t, engine.Live, again.State())
	for _, other := range []*engine.Hold{
		{Name: "a", Owner: engine.Owner{Handle: 2}, Mode: protocol.Read, Lease: lease},
		{Name: "c", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: lease},
	} {
		d.Acquire(d.now, other)
		require.Equal(t, engine.ErrClosed, other.Err())
	}
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, engine.Live, reader.State())
	d.Close(d.now)
	d.Close(d.now)
	for _, h := range []*engine.Hold{h, reader} {
		require.Equal(t, engine.Lapsed, h.State())
		require.Equal(t, engine.ErrClosed, h.Err())
	}
	require.Equal(t, engine.ErrClosed, d.Force(d.now, "a", 0, nil))
	h = &engine.Hold{Name: "a", Mode: protocol.Write, Lease: lease}
	d.Acquire(d.now, h)
	require.Equal(t, engine.ErrClosed, h.Err())
}

// A force drops what the engine holds as the server says, and the waiters ask if a run before has let some of
// them in.
func TestForce(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	other := d.live(t, &engine.Hold{Name: "b"})
	waiter := d.queued(t, &engine.Hold{Owner: engine.Owner{Handle: 2}})
	for _, reply := range []protocol.Reply{done, {Code: protocol.DoneBefore}} {
		require.NoError(t, d.Force(d.now, "a", 0, "tag"))
		r := d.sent(t)
		require.Equal(t, lua.Force, r.Script)
		require.Equal(t, "tag", r.Tag)
		d.Replied(d.now, r, reply, nil)
		fx := d.flush()
		require.Equal(t, lua.Renew, fx.Send[0].Script)
		if reply.Code == protocol.DoneBefore {
			require.Equal(t, lua.Lock, fx.Send[1].Script)
			fx.Send = fx.Send[1:]
		}
		require.Len(t, fx.Send, 1)
		require.Positive(t, d.next(t))
	}
	require.NoError(t, d.Force(d.now, "a", 0, nil))
	d.Replied(d.now, d.sent(t), protocol.Reply{}, errPassing)
	require.Empty(t, d.flush().Send)
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, engine.Live, other.State())
	require.Equal(t, engine.Wanted, waiter.State())
}

// The lost reply to a request that let a call in would have named it. The repetition of that request has the
// call ask again: at once if it is known to wait, or else when the reply to its request says that it waits.
func TestCallThatALostReplyLetInAsksAgain(t *testing.T) {
	t.Parallel()
	for name, repeat := range map[string]func(d *driver, h *engine.Hold) *engine.Request{
		"release": func(d *driver, h *engine.Hold) *engine.Request {
			_, _ = d.Release(d.now, h)
			return d.sent(t)
		},
		"force": func(d *driver, _ *engine.Hold) *engine.Request {
			require.NoError(t, d.Force(d.now, "a", 0, nil))
			return d.sent(t)
		},
	} {
		for _, inFlight := range []string{"the first request", "a heartbeat", "nothing"} {
			t.Run(name+", in flight: "+inFlight, func(t *testing.T) {
				d := newDriver()
				h := d.live(t, &engine.Hold{})
				_, asked := d.call(t, &engine.Hold{Owner: engine.Owner{Handle: 2}, Bounded: true})
				if inFlight != "the first request" {
					d.Replied(d.now, asked, waits, nil)
				}
				if inFlight == "a heartbeat" {
					d.now = d.now.Add(time.Millisecond)
					d.Subscribed(d.now)
					d.Tick(d.now)
					asked = d.sent(t)
				}
				r := repeat(d, h)
				d.now = d.now.Add(time.Millisecond)
				d.Replied(d.now, r, protocol.Reply{Code: protocol.DoneBefore}, nil)
				if inFlight != "nothing" {
					d.Replied(d.now, asked, waits, nil)
				}
				d.Tick(d.now)
				require.True(t, slices.ContainsFunc(d.flush().Send, func(r *engine.Request) bool {
					return r.Script == lua.Lock
				}))
			})
		}
	}
}

// Nobody knows whether a ForceUnlock that failed will run: its slot is not used again.
func TestSlotOfAForceIsUsedAgainOnceItHasRun(t *testing.T) {
	d := newDriver()
	var slots []string
	for _, err := range []error{nil, errPassing, nil, nil} {
		require.NoError(t, d.Force(d.now, "a", 0, nil))
		r := d.sent(t)
		k, parsed := protocol.ParseClaim(r.Claim.ID)
		require.NoError(t, parsed)
		slots = append(slots, k.Slot)
		d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, err)
	}
	require.Equal(t, slots[0], slots[1])
	require.NotEqual(t, slots[1], slots[2])
	require.Equal(t, slots[2], slots[3])
}

// A message counts as lost only if it could have come: the subscription stood when the server last said that
// the call waits, and when the request was sent that brought the grant.
func TestMessageIsNotMissedWithoutReason(t *testing.T) {
	d := newDriver()
	h, first := d.call(t, &engine.Hold{})
	second := d.resent(t, lua.Lock, lease/6)
	d.now = d.now.Add(time.Millisecond)
	d.Subscribed(d.now)
	d.now = d.now.Add(time.Millisecond)
	d.Replied(d.now, second, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
	d.Replied(d.now, first, protocol.Reply{Token: 7, Before: true}, nil)
	require.Equal(t, engine.Live, h.State())
	require.Greater(t, d.next(t), 250*time.Millisecond)
	for _, ev := range d.flush().Events {
		require.False(t, ev.Kind == engine.Woken && ev.Path == engine.ByHeartbeat)
	}
}

var waits = protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}, Last: 100}

// A process that has stood still past the deadline of a hold gets the reply to a heartbeat of before: it
// revives nothing.
func TestLateReplyDoesNotReviveAHold(t *testing.T) {
	for name, reply := range map[string]protocol.Reply{"waits": waits, "its own token": {Token: 101}} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			h := d.queued(t, &engine.Hold{})
			heartbeat := d.resent(t, lua.Lock, lease/3)
			d.Heard(d.now, "101 0 1")
			require.Equal(t, engine.Live, h.State())
			d.now = h.Deadline().Add(time.Millisecond)
			d.Replied(d.now, heartbeat, reply, nil)
			require.Equal(t, engine.Lapsed, h.State())
			require.Equal(t, []*engine.Hold{h}, d.flush().Cancel)
		})
	}
}

// A reply that says that a claim waits is of before its grant: it does not lengthen the hold.
func TestReplyOfBeforeTheGrantDoesNotLengthenTheHold(t *testing.T) {
	d := newDriver()
	h := d.queued(t, &engine.Hold{})
	heartbeat := d.resent(t, lua.Lock, lease/3)
	d.Heard(d.now, "101 0 1")
	until := h.Deadline()
	d.Replied(d.now, heartbeat, waits, nil)
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, until, h.Deadline())
}

// A server that has lost its data has a claim wait again that it had granted the lock. What still tells of
// that grant is not believed: not a message, and not a reply to a request of before.
func TestGrantOfBeforeAWaitIsNotBelieved(t *testing.T) {
	granted := protocol.Reply{Token: 99}
	for name, tell := range map[string]func(d *driver, slow *engine.Request){
		"message": func(d *driver, _ *engine.Request) { d.Heard(d.now, "99 0 1") },
		"reply":   func(d *driver, slow *engine.Request) { d.Replied(d.now, slow, granted, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			h, slow := d.call(t, &engine.Hold{})
			again := d.resent(t, lua.Lock, lease/6)
			d.Replied(d.now, again, waits, nil)
			d.flush()
			tell(d, slow)
			require.Equal(t, engine.Wanted, h.State())

			// The answer to a request of after that is true, whatever the server's clock says.
			d.now = d.now.Add(lease / 3)
			d.Tick(d.now)
			d.Replied(d.now, d.sent(t), granted, nil)
			require.Equal(t, engine.Live, h.State())
		})
	}
}

// A slot whose claim may not have ended on the server is used for no other claim, though the lock was
// forgotten meanwhile: a late release would end that one.
func TestSlotOfAnUnconfirmedEndIsNotUsedAgain(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	_, _ = d.Release(d.now, h)
	release := d.sent(t)
	for range 20 {
		d.now = d.now.Add(lease)
		d.Tick(d.now)
		d.flush()
	}
	require.Equal(t, engine.Finished, h.State(), "given up")
	for i := range 100 {
		other := d.live(t, &engine.Hold{Name: fmt.Sprint("other", i), Owner: engine.Owner{Handle: 2}})
		_, _ = d.Release(d.now, other)
		d.Replied(d.now, d.sent(t), done, nil)
		d.flush()
	}
	_, r := d.call(t, &engine.Hold{})
	require.NotEqual(t, release.Claim.Slot, r.Claim.Slot)
}

// A release is given up when the lease is over, and a process that has stood still then tries for a while
// longer: once, though it is late each time.
func TestReleaseOfAProcessThatIsAlwaysLateIsGivenUp(t *testing.T) {
	const late = 50 * time.Millisecond
	d := newDriver()
	h := d.live(t, &engine.Hold{Lease: 6 * late})
	_, _ = d.Release(d.now, h)
	start := d.now
	for h.State() != engine.Finished && d.now.Sub(start) < time.Minute {
		d.now, _ = d.Next()
		d.now = d.now.Add(late)
		d.Tick(d.now)
		d.flush()
	}
	require.InDelta(t, 2*engine.EndTimeout, d.now.Sub(start), float64(3*late))
}

// What a release has the slot say is the time of the grant, so that it is kept for as long as late requests
// may come.
func TestReleaseTellsTheTimeOfARecentGrantOnly(t *testing.T) {
	record := func(h *engine.Hold, d *driver) string {
		_, _ = d.Release(d.now, h)
		return d.sent(t).Record
	}
	d := newDriver()
	require.NotEmpty(t, record(d.live(t, &engine.Hold{}), d))

	d = newDriver()
	require.Empty(t, record(d.live(t, &engine.Hold{Lease: time.Hour}), d),
		"the keys are kept for longer than is needed then")
}

// When other servers answer than before, all that pauses after failures is sent again: calls, waits,
// renewals, counts and releases. What is in flight, or never failed, is not.
func TestResumeEndsPauses(t *testing.T) {
	d := newDriver()
	begin := map[string]func() *engine.Request{
		"a call": func() *engine.Request {
			_, r := d.call(t, &engine.Hold{Name: "asks"})
			return r
		},
		"a heartbeat": func() *engine.Request {
			d.queued(t, &engine.Hold{Name: "waits", Bounded: true})
			d.now, _ = d.Next()
			d.Tick(d.now)
			return d.sent(t)
		},
		"a renewal": func() *engine.Request {
			d.live(t, &engine.Hold{})
			d.now, _ = d.Next()
			d.Tick(d.now)
			return d.sent(t)
		},
		"a longer lease": func() *engine.Request {
			d.live(t, &engine.Hold{})
			_, r := d.call(t, &engine.Hold{Lease: 4 * lease})
			return r
		},
		"a release": func() *engine.Request {
			_, _ = d.Release(d.now, d.live(t, &engine.Hold{}))
			return d.sent(t)
		},
	}
	for what, begin := range begin {
		d = newDriver()
		r := begin()
		d.Resume(d.now)
		d.Tick(d.now)
		require.Empty(t, d.flush().Send, "%s, which is under way", what)
		for range 2 { // so that there is a pause
			d.Replied(d.now, r, protocol.Reply{}, errPassing)
			d.now, _ = d.Next()
			d.Tick(d.now)
			r = d.sent(t)
		}
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		d.Tick(d.now)
		require.Empty(t, d.flush().Send, what)
		d.Resume(d.now)
		require.Equal(t, r.Script, d.sent(t).Script, what)
	}
}

// While renewals take long, as after a stall, a renewal is not sent again before twice that time: copies
// would keep the server busy. Once one is answered soon, a renewal without an answer is sent again after a
// twelfth of its lease.
func TestRenewalsAreRepeatedLaterWhileAllTakeLong(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	next := func() *engine.Request {
		at, ok := d.Next()
		require.True(t, ok)
		d.now = at
		d.Tick(d.now)
		return d.sent(t)
	}
	for took, again := range map[time.Duration]time.Duration{
		lease / 100: lease / 12, lease / 8: lease / 4, lease / 4: lease / 3,
	} {
		r := next()
		require.Equal(t, lua.Renew, r.Script)
		d.now = d.now.Add(took)
		d.Replied(d.now, r, done, nil)
		r = next()
		require.Equal(t, lua.Renew, r.Script)
		copied := next()
		require.Equal(t, lua.Renew, copied.Script)
		require.Equal(t, again, copied.Sent.Sub(r.Sent), "after one that took %v", took)
		d.Replied(d.now, copied, done, nil)
		require.Equal(t, engine.Live, h.State())
	}
}
