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

// To re-enter sends nothing. The inner hold has the token of the outer one, and lasts as long, or less if
// its own lease or MaxHold ends it. Its release sends nothing, either.
func TestReentrySendsNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range []engine.Mode{protocol.Read, protocol.Write} {
		for name, c := range map[string]struct {
			inner engine.Hold
			lasts time.Duration // less than the outer hold
		}{
			"as the outer one":    {inner: engine.Hold{Lease: lease}},
			"a shorter lease":     {inner: engine.Hold{Lease: time.Second}},
			"not renewed":         {inner: engine.Hold{Lease: lease, NoRenew: true}},
			"shorter, no renewal": {inner: engine.Hold{Lease: time.Second, NoRenew: true}, lasts: 2 * lease / 3},
			"MaxHold":             {inner: engine.Hold{Lease: lease, MaxHold: time.Second}, lasts: 2 * lease / 3},
			"longer, but MaxHold": {inner: engine.Hold{Lease: time.Hour, MaxHold: time.Second}, lasts: 2 * lease / 3},
		} {
			d := newDriver()
			outer := d.live(t, &engine.Hold{Mode: mode})
			d.now = d.now.Add(time.Millisecond)
			inner := &c.inner
			inner.Name, inner.Owner, inner.Mode = outer.Name, outer.Owner, mode
			d.Acquire(d.now, inner)
			require.Equal(t, engine.Live, inner.State(), name)
			require.Equal(t, outer.Token(), inner.Token())
			require.WithinDuration(t, outer.Deadline().Add(-c.lasts), inner.Deadline(), 50*time.Millisecond, name)
			require.False(t, inner.Deadline().After(outer.Deadline()), name)
			fx := d.flush()
			require.Empty(t, fx.Send, name)
			require.Equal(t, []*engine.Hold{inner}, fx.Wake)
			known, err := d.Release(d.now, inner)
			require.True(t, known, name)
			require.NoError(t, err)
			require.Equal(t, engine.Finished, inner.State())
			require.Equal(t, engine.Live, outer.State())
			require.Empty(t, d.flush().Send, name)
		}
	}
}

// A call that re-enters on a claim whose deadline has come, before Tick has found out, fails, and so does the
// outer hold.
func TestReentryAtTheDeadline(t *testing.T) {
	t.Parallel()
	d := newDriver()
	outer := d.hold(t, 1)
	d.now = outer.Deadline()
	inner, r := d.call(t, &engine.Hold{Mode: protocol.Write})
	require.Equal(t, lua.Unlock, r.Script, "the claim may be left on the server")
	require.Equal(t, engine.Failed, inner.State())
	require.Equal(t, engine.ErrLost, inner.Err())
	require.Equal(t, engine.Lapsed, outer.State())
}

// A call that re-enters for a longer lease waits for one renewal, and has the lease then. If the server
// refuses it, or the call gives up, nothing is left of it.
func TestReentryForALongerLease(t *testing.T) {
	t.Parallel()
	for _, noRenew := range []bool{false, true} {
		d := newDriver()
		outer := d.hold(t, 1)
		inner, r := d.call(t, &engine.Hold{Mode: protocol.Write, Lease: time.Minute, NoRenew: noRenew})
		require.Equal(t, engine.Entering, inner.State())
		require.Equal(t, lua.Renew, r.Script)
		require.Equal(t, time.Minute, r.Lease.Duration)
		require.Equal(t, time.Minute, r.Extend)
		require.Equal(t, 2, r.Count)
		again := d.resent(t, lua.Renew, 3*outer.Deadline().Sub(d.now)/12) // in time for the outer hold
		require.Equal(t, time.Minute, again.Lease.Duration)
		d.done(again)
		require.Equal(t, engine.Live, inner.State())
		require.Equal(t, engine.Deadline(d.now, time.Minute), inner.Deadline())
		d.done(r) // late
		require.Equal(t, engine.Deadline(d.now, time.Minute), inner.Deadline())
		require.Equal(t, engine.Live, outer.State())
		d.flush()
		d.now = d.now.Add(10 * time.Millisecond)
		other := &engine.Hold{Name: "a", Owner: outer.Owner, Mode: protocol.Write, Lease: time.Minute}
		d.Acquire(d.now, other)
		require.Equal(t, !noRenew, other.State() == engine.Live, "it is renewed for as long already")
	}

	for _, giveUp := range []bool{false, true} {
		d := newDriver()
		outer := d.hold(t, 1)
		before := outer.Deadline()
		inner, r := d.call(t, &engine.Hold{Mode: protocol.Write, Lease: time.Minute})
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		require.Equal(t, engine.Entering, inner.State(), "it is tried again")
		r = d.resent(t, lua.Renew, 50*time.Millisecond)
		var want error = errForGood
		if giveUp {
			want = engine.ErrClosed
			require.False(t, d.GiveUp(d.now, inner, want))
		} else {
			d.Replied(d.now, r, protocol.Reply{}, want)
		}
		require.Equal(t, engine.Failed, inner.State())
		require.Equal(t, want, inner.Err())
		require.Equal(t, engine.Live, outer.State())
		require.Equal(t, before, outer.Deadline())
		d.flush()
		_, _ = d.Release(d.now, outer)
		require.Equal(t, lua.Unlock, d.sent(t).Script)
	}
}

// A call that re-enters for a longer lease may outlive the outer hold, and be refused then: nothing is left.
func TestRefusedReentryAfterTheReleaseLeavesNothing(t *testing.T) {
	t.Parallel()
	d := newDriver()
	outer := d.live(t, &engine.Hold{})
	inner, r := d.call(t, &engine.Hold{Lease: time.Minute})
	known, err := d.Release(d.now, outer)
	require.True(t, known)
	require.NoError(t, err)
	require.Empty(t, d.flush().Send)
	d.Replied(d.now, r, protocol.Reply{}, errForGood)
	require.Equal(t, errForGood, inner.Err())
	d.settled(t)
}

// The server is told how many holds there are: with each renewal, and a tenth of a second after the number
// has changed, unless it has changed back.
func TestServerIsToldHowManyHoldsThereAre(t *testing.T) {
	t.Parallel()
	d := newDriver()
	outer := d.hold(t, 1)
	short := d.wait(t, &engine.Hold{Mode: protocol.Write})
	_, _ = d.Release(d.now, short)
	require.Equal(t, lease/3, d.next(t), "the number is as before")
	inner := d.wait(t, &engine.Hold{Mode: protocol.Write})
	third := d.wait(t, &engine.Hold{Mode: protocol.Write})
	fx := d.due(t, 100*time.Millisecond)
	require.Len(t, fx.Send, 1)
	require.Equal(t, lua.Renew, fx.Send[0].Script)
	require.Equal(t, 3, fx.Send[0].Count)
	require.True(t, fx.Send[0].Late, "what renews goes first")
	d.done(fx.Send[0])
	_, _ = d.Release(d.now, third)
	_, _ = d.Release(d.now, outer)
	fx = d.due(t, 100*time.Millisecond)
	require.Len(t, fx.Send, 1)
	require.Equal(t, 1, fx.Send[0].Count)
	d.done(fx.Send[0])
	fx = d.due(t, lease/3)
	require.Len(t, fx.Send, 1)
	require.Equal(t, 1, fx.Send[0].Count, "a renewal")
	require.False(t, fx.Send[0].Late)
	d.done(fx.Send[0])
	_, _ = d.Release(d.now, inner)
	require.Empty(t, d.sent(t).Record, "the server has had another number")
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

// An owner that has lost a hold takes the name in no mode before it has released that hold, though it has
// another one.
func TestReentryBesideALostHold(t *testing.T) {
	d := newDriver()
	outer := d.hold(t, 1)
	lost := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: time.Second,
		NoRenew: true}
	d.Acquire(d.now, lost)
	require.Empty(t, d.flush().Send)
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
	d.reenters(t, &engine.Hold{Mode: protocol.Read})
}

// done answers a request that the server has heeded.
func (d *driver) done(r *engine.Request) {
	d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
}

// A lease that an inner hold asked for ends with the claim, or by itself: no request shortens it. The
// release is tried for as long as the server may keep the claim.
func TestNoRequestShortensALease(t *testing.T) {
	t.Parallel()
	d := newDriver()
	outer := d.hold(t, 1)
	inner, r := d.call(t, &engine.Hold{Mode: protocol.Write, Lease: time.Minute})
	d.done(r)
	long := outer.Deadline()
	require.Equal(t, engine.Deadline(d.now, time.Minute), long)
	_, _ = d.Release(d.now, inner)
	for range 20 {
		d.now, _ = d.Next()
		d.Tick(d.now)
		for _, r := range d.flush().Send {
			// or else a server whose clock was set back would let the lease end before the holder does
			require.False(t, engine.Deadline(d.now, r.Lease.Duration).Before(outer.Deadline()))
			require.Less(t, r.Lease.Duration, max(lease, long.Sub(d.now))+time.Second)
			d.done(r)
		}
		require.False(t, outer.Deadline().Before(long))
	}
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
	d.now = d.now.Add(time.Millisecond)
	d.Replied(d.now, first, done, nil) // none has confirmed it
	second := d.sent(t)
	require.False(t, first.Wanted())
	require.True(t, second.Wanted())
}

// Replicas confirm a grant once. A call that re-enters meanwhile waits for them, too; a later one does not. A
// release and an extension do not wait for replicas.
func TestReplicasConfirmAGrantOnce(t *testing.T) {
	t.Parallel()
	d := newReplicated()
	outer, r := d.call(t, &engine.Hold{})
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	r = d.sent(t)
	inner := d.wait(t, &engine.Hold{})
	require.Equal(t, engine.Entering, inner.State())
	require.False(t, d.GiveUp(d.now, outer, errPassing))
	require.Empty(t, d.flush().Send, "another call waits for the same")
	confirmed := done
	confirmed.Confirmed = 1
	d.Replied(d.now, r, confirmed, nil)
	require.Equal(t, engine.Live, inner.State())
	d.flush()
	third := d.wait(t, &engine.Hold{})
	require.Equal(t, engine.Live, third.State())
	longer, _ := d.call(t, &engine.Hold{Lease: time.Minute})
	require.False(t, d.GiveUp(d.now, longer, errPassing))
	require.NoError(t, longer.LastError(), "the replicas have confirmed it")
	x := new(engine.Extension)
	d.Extend(d.now, third, time.Minute, x)
	r = d.sent(t)
	require.Zero(t, r.Replicas)
	d.Replied(d.now, r, done, nil)
	over, err := x.Over()
	require.True(t, over)
	require.NoError(t, err)
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

// The number of holds is told again if the server may not have heard it, though no hold is renewed.
func TestNumberOfHoldsIsToldAgain(t *testing.T) {
	t.Parallel()
	d := newDriver()
	d.live(t, &engine.Hold{NoRenew: true, Lease: time.Hour})
	d.wait(t, &engine.Hold{NoRenew: true, Lease: time.Hour})
	fx := d.due(t, 100*time.Millisecond)
	require.Len(t, fx.Send, 1)
	d.Replied(d.now, fx.Send[0], protocol.Reply{}, errPassing)
	d.flush()
	require.Equal(t, 2, d.resent(t, lua.Renew, 50*time.Millisecond).Count)
}

// A call that re-enters for a longer lease while replicas have yet to confirm the grant ends in time,
// whatever becomes of the first call, and a renewal is not sent for each reply.
func TestReentryForALongerLeaseBeforeReplicasConfirm(t *testing.T) {
	t.Parallel()
	for _, giveUp := range []bool{false, true} {
		d := newReplicated()
		outer, r := d.call(t, &engine.Hold{})
		d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
		d.flush()
		begun := d.now
		inner, r := d.call(t, &engine.Hold{Lease: time.Minute})
		if giveUp {
			require.False(t, d.GiveUp(d.now, outer, errPassing))
		}
		sent := 0
		for open := []*engine.Request{r}; inner.State() == engine.Entering; {
			for _, r := range open {
				sent++
				d.now = d.now.Add(10 * time.Millisecond)
				d.Replied(d.now, r, done, nil) // none has confirmed it
			}
			if open = d.flush().Send; len(open) == 0 {
				d.now, _ = d.Next()
				d.Tick(d.now)
				open = d.flush().Send
			}
			require.LessOrEqual(t, d.now.Sub(begun), confirm+10*time.Millisecond)
		}
		require.ErrorIs(t, inner.Err(), engine.ErrNotReplicated)
		require.LessOrEqual(t, sent, 71)
	}
}

// Each call that waits for a renewal sends one. A reply to an earlier renewal sends no more, while a later
// one is in flight.
func TestRepliesToEarlierRenewalsSendNoMore(t *testing.T) {
	t.Parallel()
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	var sent []*engine.Request
	for i := range 10 {
		d.now = d.now.Add(time.Millisecond)
		d.Extend(d.now, h, time.Duration(1+i)*time.Minute, new(engine.Extension))
		sent = append(sent, d.sent(t))
	}
	for _, r := range sent {
		d.now = d.now.Add(time.Millisecond)
		d.done(r)
		d.Tick(d.now)
		require.Empty(t, d.flush().Send)
	}
}

// The lease of a hold that is not renewed, and that was granted after a wait, counts from the first renewal.
// It is its own, also if that renewal is for a longer one.
func TestLeaseOfAWaiterIsItsOwn(t *testing.T) {
	t.Parallel()
	d := newDriver()
	outer := d.queued(t, &engine.Hold{NoRenew: true})
	d.Grant(d.now, outer.ClaimNumber(), 9, engine.ByMessage)
	require.Equal(t, engine.Live, outer.State())
	d.flush()
	_, r := d.call(t, &engine.Hold{Lease: time.Hour})
	d.done(r)
	require.Equal(t, engine.Deadline(d.now, lease), outer.Deadline())
}

// A call that re-enters for a longer lease, and that nothing else ends, ends in time though no answer comes.
func TestReentryForALongerLeaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	const long = time.Hour
	for _, c := range []struct {
		inner engine.Hold
		want  time.Duration
	}{{engine.Hold{Try: true}, engine.EndTimeout}, {engine.Hold{}, long}} {
		d := newDriver()
		outer := d.live(t, &engine.Hold{Lease: long})
		d.now = d.now.Add(long / 100)
		d.Extend(d.now, outer, long, new(engine.Extension))
		d.done(d.sent(t)) // so that the claim lasts for longer than the call waits
		begun := d.now
		inner := &c.inner
		inner.Lease = 2 * long
		_, r := d.call(t, inner)
		for inner.State() == engine.Entering {
			d.Replied(d.now, r, protocol.Reply{}, errPassing)
			d.now, _ = d.Next()
			d.Tick(d.now)
			if sent := d.flush().Send; len(sent) > 0 {
				r = sent[0]
			}
			require.LessOrEqual(t, d.now.Sub(begun), c.want)
		}
		require.Equal(t, c.want, d.now.Sub(begun))
		require.ErrorIs(t, inner.Err(), engine.ErrUnanswered)
		require.ErrorIs(t, inner.Err(), errPassing)
		require.Equal(t, engine.Live, outer.State())
	}
}

// A renewal that has failed is no late request when it is sent again, whatever it was to tell.
func TestFailedRenewalIsSentAgainInTime(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	again := d.reenters(t, &engine.Hold{})
	d.now = d.now.Add(d.next(t))
	d.Tick(d.now)
	r := d.sent(t)
	require.True(t, r.Late, "it only says how many holds there are")
	for range 3 {
		d.Replied(d.now, r, protocol.Reply{}, errPassing)
		r = d.resent(t, lua.Renew, d.next(t))
		require.False(t, r.Late)
	}
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, engine.Live, again.State())
}
