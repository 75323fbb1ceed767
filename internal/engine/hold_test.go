package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A driver runs one engine by hand.
type driver struct {
	*engine.Engine
	now time.Time
}

func newDriver() *driver {
	e := engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: 3 * time.Second, Observe: true})
	return &driver{e, time.Unix(1000, 0)}
}

// confirm is for how long a replica of newReplicated may confirm a grant.
const confirm = 700 * time.Millisecond

// newReplicated is newDriver for grants that a replica has to confirm.
func newReplicated() *driver {
	e := engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: 3 * time.Second, Replicas: 1,
		Confirm: confirm})
	return &driver{e, time.Unix(1000, 0)}
}

// flush returns what is to be done.
func (d *driver) flush() (fx engine.Effects) {
	d.Flush(d.now, &fx)
	return fx
}

// hold returns a hold that was granted at once.
func (d *driver) hold(t *testing.T, owner uint64) *engine.Hold {
	t.Helper()
	h := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: owner}, Mode: protocol.Write,
		Lease: 3 * time.Second}
	d.Acquire(d.now, h)
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	d.Replied(d.now, fx.Send[0], protocol.Reply{Token: 1}, nil)
	d.flush()
	require.Equal(t, engine.Live, h.State())
	return h
}

// A call that re-enters without renewal has no end of its own yet: Tick has nothing to do about it.
func TestTickWhileACallReentersWithoutRenewal(t *testing.T) {
	d := newDriver()
	d.hold(t, 1)
	inner := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write,
		Lease: 3 * time.Second, NoRenew: true}
	d.Acquire(d.now, inner)
	require.Equal(t, engine.Entering, inner.State())
	at, ok := d.Next()
	require.True(t, ok)
	require.True(t, at.After(d.now), "Tick is due at %v, and would be without an end", at)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Tick(d.now)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("Tick does not return")
	}
}

// Close leaves nothing of a hold that was forgotten.
func TestCloseForgetsWhatWasForgotten(t *testing.T) {
	d := newDriver()
	h := d.hold(t, 1)
	d.Forget(d.now, h)
	d.Close(d.now)
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	d.Replied(d.now, fx.Send[0], protocol.Reply{Code: protocol.Done}, nil)
	require.True(t, d.Idle())
	require.Zero(t, d.InUse())
}

// read begins a call of the owner to read.
func (d *driver) read(t *testing.T, owner uint64) (*engine.Hold, *engine.Request) {
	t.Helper()
	h := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: owner}, Mode: protocol.Read, Lease: 3 * time.Second}
	d.Acquire(d.now, h)
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	require.NotNil(t, fx.Send[0].Writer, "it is to read under the write hold")
	return h, fx.Send[0]
}

// A writer that reads re-enters. If the server knows nothing of the write hold, that is lost, and the call
// does not start again.
func TestReadUnderALostWriteHold(t *testing.T) {
	for name, reply := range map[string]protocol.Reply{
		"others hold the lock": {Obstacle: protocol.Obstacle{Mode: protocol.Write}},
		"nobody does":          {Token: 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			outer := d.hold(t, 1)
			inner, r := d.read(t, 1)
			d.Replied(d.now, r, reply, nil)
			require.Equal(t, engine.Lapsed, outer.State())
			require.Equal(t, engine.Failed, inner.State())
			require.ErrorIs(t, inner.Err(), engine.ErrLost)
		})
	}
	t.Run("it is lost meanwhile", func(t *testing.T) {
		d := newDriver()
		outer := d.hold(t, 1)
		inner, _ := d.read(t, 1)
		d.now = outer.Deadline()
		d.Tick(d.now)
		require.Equal(t, engine.Lapsed, outer.State())
		require.Equal(t, engine.Failed, inner.State())
		require.ErrorIs(t, inner.Err(), engine.ErrLost)
	})
}

// An owner that has lost a hold takes the name in no mode before it has released that hold, though it has
// another one.
func TestReentryBesideALostHold(t *testing.T) {
	d := newDriver()
	outer := d.hold(t, 1)
	lost := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: time.Second,
		NoRenew: true}
	d.Acquire(d.now, lost)
	fx := d.flush()
	d.Replied(d.now, fx.Send[0], protocol.Reply{Code: protocol.Done}, nil)
	d.now = lost.Deadline()
	d.Tick(d.now)
	require.Equal(t, engine.Lapsed, lost.State())
	for _, r := range d.flush().Send {
		d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
	}
	require.Equal(t, engine.Live, outer.State())
	for _, mode := range []engine.Mode{protocol.Read, protocol.Write} {
		h := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: mode, Lease: 3 * time.Second}
		d.Acquire(d.now, h)
		require.Equal(t, engine.Failed, h.State())
		require.Equal(t, engine.ErrLost, h.Err())
		require.Empty(t, d.flush().Send)
	}
	known, err := d.Release(d.now, lost)
	require.True(t, known)
	require.Equal(t, engine.ErrLost, err)
	inner, r := d.read(t, 1)
	d.Replied(d.now, r, protocol.Reply{Token: 1}, nil)
	require.Equal(t, engine.Live, inner.State())
}

// reenter begins a call that re-enters, and returns the request that counts it in.
func (d *driver) reenter(t *testing.T, lease time.Duration) (*engine.Hold, *engine.Request) {
	t.Helper()
	h := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: lease}
	d.Acquire(d.now, h)
	require.Equal(t, engine.Entering, h.State())
	return h, d.count(t)
}

// reentered returns an inner hold that the server has counted.
func (d *driver) reentered(t *testing.T, lease time.Duration) *engine.Hold {
	t.Helper()
	h, enters := d.reenter(t, lease)
	d.done(enters)
	require.Equal(t, engine.Live, h.State())
	d.flush()
	return h
}

// release releases an inner hold, and returns the request that counts it out.
func (d *driver) release(t *testing.T, h *engine.Hold) *engine.Request {
	t.Helper()
	known, err := d.Release(d.now, h)
	require.NoError(t, err)
	require.False(t, known)
	return d.count(t)
}

func (d *driver) count(t *testing.T) *engine.Request {
	t.Helper()
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	require.Equal(t, lua.Reenter, fx.Send[0].Script)
	return fx.Send[0]
}

// done answers a request that the server has heeded.
func (d *driver) done(r *engine.Request) {
	d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
}

// A call that re-enters for a longer lease is overtaken by the release of its hold: the server keeps the
// claim for the outer lease, and a late reply does not let the holder rely on more.
func TestOvertakenReentryPromisesNoMore(t *testing.T) {
	d := newDriver()
	outer := d.hold(t, 1)
	before := outer.Deadline()
	inner, enters := d.reenter(t, time.Minute)
	require.False(t, d.GiveUp(d.now, inner, engine.ErrClosed))
	leaves := d.count(t)
	require.True(t, leaves.Shorten)
	require.Greater(t, leaves.Sequence, enters.Sequence)
	d.done(enters) // late: it has run after the other, which may yet be unanswered, and changed nothing
	require.Equal(t, before, outer.Deadline())
	d.done(leaves)
	require.Equal(t, before, outer.Deadline())
	d.done(enters)
	require.Equal(t, before, outer.Deadline(), "a reply that comes twice")
}

// A renewal for a longer lease is sent before the lease is shortened, and answered after: nobody knows which
// ran last.
func TestRenewalBeforeAShorterLeasePromisesNoMore(t *testing.T) {
	d := newDriver()
	outer := d.hold(t, 1)
	inner := d.reentered(t, time.Minute)
	d.now = d.now.Add(20 * time.Second)
	d.Tick(d.now)
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	renews := fx.Send[0]
	require.Equal(t, lua.Renew, renews.Script)
	require.Equal(t, time.Minute, renews.Lease.Duration)

	leaves := d.release(t, inner)
	require.True(t, leaves.Shorten)
	d.done(leaves)
	short := outer.Deadline()
	require.Less(t, short.Sub(d.now), 3*time.Second)
	d.done(renews)
	require.Equal(t, short, outer.Deadline())

	// One that was sent after the lease was shortened counts again.
	d.flush()
	d.now = d.now.Add(time.Second)
	d.Tick(d.now)
	fx = d.flush()
	require.Len(t, fx.Send, 1)
	d.done(fx.Send[0])
	require.Greater(t, outer.Deadline(), short)
}

// The server may keep a claim for the lease of the last request that was confirmed, whatever late replies
// say: for so long the release is tried.
func TestLateReplyDoesNotShortenHowLongAReleaseIsTried(t *testing.T) {
	d := newDriver()
	outer := d.hold(t, 1)
	first := d.reentered(t, time.Minute)
	shortens := d.release(t, first)
	require.True(t, shortens.Shorten)
	second, enters := d.reenter(t, time.Minute)
	require.False(t, enters.Shorten)
	d.done(enters)
	require.Equal(t, engine.Live, second.State())
	d.done(shortens) // late
	d.flush()
	d.release(t, second) // and its request is lost
	_, err := d.Release(d.now, outer)
	require.NoError(t, err)
	d.flush()
	for end := d.now.Add(50 * time.Second); d.now.Before(end); {
		at, ok := d.Next()
		require.True(t, ok, "the release was given up")
		d.now = at
		d.Tick(d.now)
		d.flush()
	}
}

// The longest lease that the server may keep a claim for is that of the holds it has, also if another one was
// entered since for less.
func TestLeaseIsShortenedThoughAShorterOneWasEnteredSince(t *testing.T) {
	d := newDriver()
	d.hold(t, 1)
	long := d.reentered(t, time.Minute)
	_, enters := d.reenter(t, lease)
	require.False(t, enters.Shorten)
	d.done(enters)
	d.flush()
	require.True(t, d.release(t, long).Shorten)
}

// Once the server has confirmed that a lease is shorter, a release is not tried for longer than that.
func TestReleaseIsNotTriedForALeaseThatWasShortened(t *testing.T) {
	d := newDriver()
	outer := d.hold(t, 1)
	inner := d.reentered(t, time.Minute)
	d.done(d.release(t, inner))
	d.flush()
	_, err := d.Release(d.now, outer)
	require.NoError(t, err)
	d.flush()
	for end := d.now.Add(max(lease, engine.EndTimeout)); ; {
		at, ok := d.Next()
		if !ok {
			return
		}
		require.False(t, at.After(end))
		d.now = at
		d.Tick(d.now)
		d.flush()
	}
}

// A call whose grant the replicas do not confirm ends in time, though no reply comes, and its request is of
// no use any more.
func TestReplicasThatDoNotAnswerEndACallInTime(t *testing.T) {
	d := newReplicated()
	h, r := d.call(t, &engine.Hold{})
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	require.Equal(t, engine.Entering, h.State())
	count := d.sent(t)
	require.Equal(t, 1, count.Replicas)
	require.True(t, count.Wanted())
	begun := d.now
	for h.State() == engine.Entering {
		d.now, _ = d.Next()
		require.LessOrEqual(t, d.now.Sub(begun), confirm)
		d.Tick(d.now)
	}
	require.Equal(t, confirm, d.now.Sub(begun))
	require.ErrorIs(t, h.Err(), engine.ErrNotReplicated)
	require.False(t, count.Wanted())
	require.Equal(t, lua.Unlock, d.sent(t).Script)
}

// A request that replicas are to confirm is of no use once a later one says the same.
func TestLaterConfirmationTakesThePlaceOfAnEarlierOne(t *testing.T) {
	d := newReplicated()
	_, r := d.call(t, &engine.Hold{})
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	first := d.sent(t)
	d.Replied(d.now, first, done, nil) // none has confirmed it
	second := d.sent(t)
	require.False(t, first.Wanted())
	require.True(t, second.Wanted())
}

// A release does not wait for the replicas that are to confirm another hold of the same owner: they are asked
// after it.
func TestReleaseDoesNotWaitForReplicas(t *testing.T) {
	d := newReplicated()
	outer, r := d.call(t, &engine.Hold{})
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	confirmed := done
	confirmed.Confirmed = 1
	d.Replied(d.now, d.sent(t), confirmed, nil)
	require.Equal(t, engine.Live, outer.State())
	d.flush()
	inner, r := d.call(t, &engine.Hold{})
	require.Equal(t, 1, r.Replicas)
	_, _ = d.Release(d.now, outer)
	r = d.sent(t)
	require.Zero(t, r.Replicas)
	d.Replied(d.now, r, done, nil)
	require.Equal(t, engine.Finished, outer.State())
	require.NoError(t, outer.Err())
	require.Equal(t, engine.Entering, inner.State())
	r = d.sent(t)
	require.Equal(t, 1, r.Replicas)
	d.Replied(d.now, r, confirmed, nil)
	require.Equal(t, engine.Live, inner.State())
}

// A server whose clock was set back lets a lease count again from a renewal, so a renewal is for as long as
// any hold of the claim relies on, renewed or not.
func TestRenewalIsForWhatAllHoldsNeed(t *testing.T) {
	d := newDriver()
	long := &engine.Hold{
		Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: time.Hour, NoRenew: true,
	}
	d.Acquire(d.now, long)
	d.Replied(d.now, d.flush().Send[0], protocol.Reply{Token: 1}, nil)
	short := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write,
		Lease: 3 * time.Second}
	d.Acquire(d.now, short)
	for _, r := range d.flush().Send {
		d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
	}
	require.Equal(t, engine.Live, short.State())
	d.now = d.now.Add(1500 * time.Millisecond)
	d.Tick(d.now)
	renewal := func(r *engine.Request) bool { return r.Script == lua.Renew }
	sent := d.flush().Send
	i := slices.IndexFunc(sent, renewal)
	require.GreaterOrEqual(t, i, 0)
	require.GreaterOrEqual(t, d.now.Add(sent[i].Lease.Duration), long.Deadline())
}
