package engine_test

import (
	"errors"
	"fmt"
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

// due lets the time pass until Tick is due, which is to be after so long, and returns what is to be done then.
func (d *driver) due(t *testing.T, after time.Duration) engine.Effects {
	t.Helper()
	require.Equal(t, after, d.next(t))
	d.now = d.now.Add(after)
	d.Tick(d.now)
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

// A second release of a hold is none, however the first went.
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

// A release says how it went at the server.
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

// A release spares the server a look at its clock only if nothing speaks against it: the hold is young, was not entered again, and this
// is the first request.
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
			require.Equal(t, young, r.Record != nil, after)
			require.Equal(t, mode == protocol.Write, r.Script == lua.Unlock)
			require.False(t, r.Again)
		}
	}

	d := newDriver()
	h := d.live(t, &engine.Hold{})
	r := end(t, d, h)
	require.Equal(t, protocol.Released(r.Claim, 7), r.Record)
	d.Replied(d.now, r, protocol.Reply{}, errPassing)
	again := d.resent(t, lua.Unlock, 50*time.Millisecond)
	require.Nil(t, again.Record)
	require.True(t, again.Again)

	d = newDriver()
	outer := d.live(t, &engine.Hold{})
	inner, r := d.call(t, &engine.Hold{})
	d.Replied(d.now, r, done, nil)
	require.Equal(t, engine.Live, inner.State())
	d.flush()
	r = end(t, d, inner)
	require.Equal(t, lua.Reenter, r.Script)
	require.Equal(t, 1, r.Count)
	d.Replied(d.now, r, done, nil)
	d.flush()
	require.Nil(t, end(t, d, outer).Record, "the server may have a count")

	d = newDriver()
	h = d.queued(t, &engine.Hold{})
	require.False(t, d.GiveUp(d.now, h, errPassing))
	require.Nil(t, d.sent(t).Record, "there was no grant")
}

// The end of a claim is tried again after a second without an answer, then two, four, up to 32; after failures, sooner. It is given up
// when the server has it no longer.
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
		n, err := d.Unreleased()
		require.Equal(t, 1, n)
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

// A call that gets no answer asks again, beside the request under way, after a sixth of the lease; one whose request fails, after 50 ms,
// 100 ms and so on. It fails a lease after it began, if nothing else ends it.
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

// A waiter asks for news when the reply says that it may pay, with its heartbeat after a third of the lease at the latest, and not
// without a pause.
func TestWaiterAsksForNews(t *testing.T) {
	for again, want := range map[time.Duration]time.Duration{
		0: 10 * time.Millisecond, 100 * time.Millisecond: 102 * time.Millisecond, time.Hour: lease / 3,
	} {
		d := newDriver()
		h, r := d.call(t, &engine.Hold{})
		d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: again, Ahead: 2}}, nil)
		require.True(t, d.flush().Listen)
		o, known, ours := d.Obstacle(h)
		require.Equal(t, protocol.Obstacle{Again: again, Ahead: 2}, o)
		require.True(t, known)
		require.False(t, ours)
		heartbeat := d.resent(t, lua.Lock, want)
		require.False(t, heartbeat.Again)
		d.Replied(d.now, heartbeat, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
		require.False(t, d.flush().Listen, "there is a subscription")
		require.Equal(t, lease/3, d.next(t))
	}
}

// A hold may be relied on from before its request was sent, for the lease less a margin. It is renewed after a third of the lease, again
// after a sixth without an answer, and lost at the deadline.
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
	require.True(t, d.resent(t, lua.Renew, lease/6).Again)
	require.True(t, d.resent(t, lua.Renew, lease/6).Again)
	require.True(t, d.resent(t, lua.Renew, lease/6).Again)
	fx := d.due(t, h.Deadline().Sub(d.now))
	require.Equal(t, []*engine.Hold{h}, fx.Cancel)
	require.Equal(t, engine.Lapsed, h.State())
	require.Equal(t, engine.ErrLost, h.Err())
	require.Equal(t, lua.Unlock, fx.Send[0].Script)
	require.Contains(t, fmt.Sprint(fx.Events), fmt.Sprint(engine.Expired))
}

// A renewal that fails is logged, and tried again after 50 ms, 100 ms and so on. One that learns that the hold is gone ends it at once.
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

// A grant that a heartbeat brings, though the subscription stood, means that this is deaf, unless the message still comes.
func TestDeafSubscription(t *testing.T) {
	for _, comes := range []bool{false, true} {
		d := newDriver()
		h := d.queued(t, &engine.Hold{})
		d.now = d.now.Add(time.Millisecond)
		d.Subscribed(d.now)
		d.now = d.now.Add(time.Millisecond)
		d.Tick(d.now)
		r := d.sent(t)
		d.now = d.now.Add(time.Millisecond)
		d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
		d.flush()
		d.now = d.now.Add(d.next(t))
		d.Tick(d.now)
		r = d.sent(t)
		d.Replied(d.now, r, protocol.Reply{Token: 7, Before: true}, nil)
		require.Equal(t, engine.Live, h.State())
		d.flush()
		if comes {
			d.Heard(d.now, fmt.Sprintf("7 0 %s", r.Claim.Number))
			require.Greater(t, d.next(t), 250*time.Millisecond)
			continue
		}
		require.True(t, d.due(t, 250*time.Millisecond).Relisten)
		d.Subscribed(d.now)
		d.Tick(d.now)
		require.False(t, d.flush().Relisten, "once")
	}
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
	require.Len(t, fx.Send, 1)
	require.Equal(t, lua.Serve, fx.Send[0].Script)
	require.False(t, d.due(t, 0).Send[0].Try)
	d.Heard(d.now, fmt.Sprintf("10 0 %s", r1.Claim.Number))
	require.EqualValues(t, 9, first.Token())
	require.Equal(t, engine.WokenInVain, d.flush().Events[0].Kind)
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

// A claim that the server refuses is asked for anew, with another number, ten times.
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
