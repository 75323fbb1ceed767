package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// reenters returns another hold of the owner that holds the lock.
func (d *driver) reenters(t *testing.T, h *engine.Hold) *engine.Hold {
	t.Helper()
	d.wait(t, h)
	require.Equal(t, engine.Live, h.State())
	return h
}

// downgrades releases the write hold of an owner that has a read hold, too. It returns both, and the request
// for the downgrade.
func (d *driver) downgrades(t *testing.T, read *engine.Hold) (w, r *engine.Hold, q *engine.Request) {
	t.Helper()
	w = d.live(t, &engine.Hold{})
	read.Mode = protocol.Read
	r = d.reenters(t, read)
	known, err := d.Release(d.now, w)
	require.False(t, known)
	require.NoError(t, err)
	q = d.sent(t)
	require.Equal(t, lua.Convert, q.Script)
	return w, r, q
}

// The release of the last write hold ends the claim that writes and begins one that reads, in one request,
// whose reply confirms the release. The read hold is the owner's until then, and after.
func TestReleaseOfTheLastWriteHoldDowngrades(t *testing.T) {
	d := newDriver()
	w := d.live(t, &engine.Hold{})
	again := d.reenters(t, &engine.Hold{})
	r := d.reenters(t, &engine.Hold{Mode: protocol.Read})
	number, token := w.ClaimNumber(), w.Token()
	known, err := d.Release(d.now, w)
	require.True(t, known, "not its last one")
	require.NoError(t, err)
	require.Empty(t, d.flush().Send)

	known, _ = d.Release(d.now, again)
	require.False(t, known)
	q := d.sent(t)
	require.Equal(t, lua.Convert, q.Script)
	require.Equal(t, 1, q.Count)
	_, writes, err := protocol.ClaimOf(q.Former)
	require.NoError(t, err)
	require.Equal(t, number, writes.Number)
	_, reads, err := protocol.ClaimOf(q.Claim.ID)
	require.NoError(t, err)
	require.Equal(t, protocol.Read, reads.Mode)
	require.NotEqual(t, writes.Slot, reads.Slot)
	require.Equal(t, engine.Releasing, again.State())
	require.Equal(t, engine.Live, r.State())
	require.Equal(t, token, r.Token())
	require.Equal(t, reads.Number, r.ClaimNumber())
	upgrade, _ := d.wants(&engine.Hold{Mode: protocol.Write})
	require.Equal(t, engine.ErrUpgrade, upgrade.Err())

	d.done(q)
	require.Equal(t, engine.Finished, again.State())
	require.NoError(t, again.Err())
	require.Equal(t, engine.Live, r.State())
	require.Equal(t, lua.Renew, d.resent(t, lua.Renew, d.next(t)).Script)
	_, _ = d.Release(d.now, r)
	end := d.sent(t)
	require.Empty(t, end.Record, "the token is older than the claim")
	d.settled(t, end)
	require.NoError(t, r.Err())
}

// wants begins a call of the owner for which nothing is sent, or a request.
func (d *driver) wants(h *engine.Hold) (*engine.Hold, []*engine.Request) {
	h.Name, h.Owner.Handle, h.Lease = "a", 1, lease
	d.Acquire(d.now, h)
	return h, d.flush().Send
}

// Until a downgrade is answered, the read hold relies on the earlier of the two leases, and is renewed by the
// same request. An answer to any of them counts from when that one was sent.
func TestUnansweredDowngradeIsRepeated(t *testing.T) {
	for _, noRenew := range []bool{false, true} {
		d := newDriver()
		w := d.live(t, &engine.Hold{})
		r := d.reenters(t, &engine.Hold{Mode: protocol.Read, NoRenew: noRenew})
		until := w.Deadline()
		d.now = d.now.Add(lease / 4)
		_, _ = d.Release(d.now, w)
		first := d.sent(t)
		require.Equal(t, until, r.Deadline())
		d.now = d.now.Add(d.next(t))
		d.Tick(d.now)
		second := d.sent(t)
		require.Equal(t, lua.Convert, second.Script)
		require.Equal(t, first.Claim, second.Claim)
		require.Equal(t, first.Former, second.Former)
		require.True(t, second.Again)
		require.Equal(t, until, r.Deadline())
		require.Equal(t, engine.Releasing, w.State())
		d.Replied(d.now, second, protocol.Reply{Code: protocol.DoneBefore}, nil)
		require.Equal(t, engine.Finished, w.State())
		require.NoError(t, w.Err())
		if noRenew {
			require.Equal(t, until, r.Deadline())
			continue
		}
		require.Equal(t, engine.Deadline(second.Sent, second.Lease.Duration), r.Deadline())
		d.done(first)
		require.Equal(t, engine.Live, r.State())
	}
}

// If the write claim lasts longer than the read hold asks for, the lease of the latter counts from the
// sending.
func TestDowngradedHoldReliesOnItsOwnLease(t *testing.T) {
	d := newDriver()
	w := d.live(t, &engine.Hold{Lease: time.Minute})
	r := d.reenters(t, &engine.Hold{Mode: protocol.Read, Lease: lease})
	_, _ = d.Release(d.now, w)
	q := d.sent(t)
	require.Equal(t, lease, q.Lease.Duration)
	require.Equal(t, engine.Deadline(d.now, lease), r.Deadline())
}

// An answer that neither claim is there is a loss, of both.
func TestDowngradeOfWhatIsGone(t *testing.T) {
	d := newDriver()
	w, r, q := d.downgrades(t, &engine.Hold{})
	d.Replied(d.now, q, protocol.Reply{Code: protocol.NotThere}, nil)
	require.Equal(t, engine.Lapsed, r.State())
	require.Equal(t, engine.ErrLost, r.Err())
	end := d.sent(t)
	require.Equal(t, q.Former, end.Claim.ID)
	d.Replied(d.now, end, protocol.Reply{Code: protocol.NotThere}, nil)
	require.Equal(t, engine.Releasing, w.State(), "the downgrade may have run")
	end = d.sent(t)
	require.Equal(t, q.Claim.ID, end.Claim.ID)
	d.Replied(d.now, end, protocol.Reply{Code: protocol.NotThere}, nil)
	require.Equal(t, engine.ErrLost, w.Err())
	_, _ = d.Release(d.now, r)
	d.settled(t)
}

// A release while a downgrade is unanswered ends both claims: first the one that writes, since the downgrade
// then comes too late if it has not run. Neither release says that the lock was lost if either claim was
// there.
func TestReleaseDuringADowngrade(t *testing.T) {
	for name, c := range map[string]struct {
		writer, reader int // what the server answers
		err            error
	}{
		"it has yet to run":                  {protocol.Done, protocol.NotThere, nil},
		"it has yet to run, a reply is lost": {protocol.DoneBefore, protocol.NotThere, nil},
		"it has run":                         {protocol.NotThere, protocol.Done, nil},
		"it has run, a reply is lost":        {protocol.NotThere, protocol.DoneBefore, nil},
		"both are lost":                      {protocol.NotThere, protocol.NotThere, engine.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			w, r, q := d.downgrades(t, &engine.Hold{})
			known, err := d.Release(d.now, r)
			require.False(t, known)
			require.NoError(t, err)
			end := d.sent(t)
			require.Equal(t, lua.Unlock, end.Script)
			require.Equal(t, q.Former, end.Claim.ID)
			d.done(q) // which says nothing any more
			require.Equal(t, engine.Releasing, w.State())
			require.Equal(t, engine.Releasing, r.State())
			another, asks := d.wants(&engine.Hold{Mode: protocol.Write})
			require.Len(t, asks, 1, "the owner holds nothing")
			d.Replied(d.now, asks[0], protocol.Reply{Token: 9}, nil)
			d.flush()

			d.Replied(d.now, end, protocol.Reply{Code: c.writer}, nil)
			end = d.sent(t)
			require.Equal(t, lua.Unlock, end.Script)
			require.Equal(t, q.Claim.ID, end.Claim.ID)
			d.Replied(d.now, end, protocol.Reply{Code: c.reader}, nil)
			for _, h := range []*engine.Hold{w, r} {
				require.Equal(t, engine.Finished, h.State())
				require.Equal(t, c.err, h.Err())
			}
			_, _ = d.Release(d.now, another)
			d.settled(t)
		})
	}
}

// If nothing is answered, the holds end with the earlier lease, and both claims are left to their leases.
func TestDowngradeOnADeadServer(t *testing.T) {
	d := newDriver()
	w, r, _ := d.downgrades(t, &engine.Hold{})
	until := r.Deadline()
	for !d.Idle() {
		at, ok := d.Next()
		require.True(t, ok)
		require.False(t, at.After(until.Add(time.Minute)), "it never ends")
		d.now = at
		d.Tick(d.now)
		d.flush()
		require.Equal(t, d.now.Before(until), r.State() == engine.Live)
	}
	require.ErrorIs(t, w.Err(), engine.ErrUnanswered)
	require.Equal(t, engine.ErrLost, r.Err())
}

// Close during a downgrade ends both claims.
func TestCloseDuringADowngrade(t *testing.T) {
	d := newDriver()
	_, r, q := d.downgrades(t, &engine.Hold{})
	d.Close(d.now)
	holds, _, err := d.Unreleased()
	require.NoError(t, err)
	require.Equal(t, 1, holds)
	require.Equal(t, engine.ErrClosed, r.Err())
	end := d.sent(t)
	require.Equal(t, q.Former, end.Claim.ID)
	d.Replied(d.now, end, protocol.Reply{Code: protocol.DoneBefore}, nil)
	end = d.sent(t)
	require.Equal(t, q.Claim.ID, end.Claim.ID)
	_, _ = d.Release(d.now, r)
	d.settled(t, end)
}

// A server that refuses a downgrade for good ends the release with its error. What it is asked again later
// may succeed.
func TestDowngradeThatTheServerRefuses(t *testing.T) {
	d := newDriver()
	w, r, q := d.downgrades(t, &engine.Hold{})
	refused := fmt.Errorf("%w: 1", protocol.ErrReply)
	d.Replied(d.now, q, protocol.Reply{}, refused)
	require.Equal(t, engine.Finished, w.State())
	require.Equal(t, refused, w.Err())
	require.Equal(t, engine.Live, r.State())
	q = d.resent(t, lua.Convert, d.next(t))
	d.done(q)
	require.Equal(t, engine.Live, r.State())
	require.Equal(t, refused, w.Err())
	_, _ = d.Release(d.now, r)
	d.settled(t)
}

// If the server refuses to end either claim, both releases are told.
func TestReleaseThatTheServerRefusesDuringADowngrade(t *testing.T) {
	d := newDriver()
	w, r, q := d.downgrades(t, &engine.Hold{})
	refused := fmt.Errorf("%w: 1", protocol.ErrReply)
	d.Replied(d.now, q, protocol.Reply{}, refused)
	_, _ = d.Release(d.now, r)
	d.Replied(d.now, d.sent(t), protocol.Reply{}, refused)
	require.Equal(t, engine.Finished, r.State())
	require.Equal(t, refused, r.Err())
	require.Equal(t, refused, w.Err())
}

// Nobody waits for the releases of holds that were lost: not for those of a downgrade either.
func TestShutdownDoesNotWaitForALostDowngrade(t *testing.T) {
	d := newDriver()
	_, r, _ := d.downgrades(t, &engine.Hold{})
	d.now = r.Deadline().Add(time.Second)
	d.Tick(d.now)
	_, _ = d.Release(d.now, r)
	d.Drain(d.now)
	require.True(t, d.Drained())
	d.Close(d.now)
	d.Abandon(d.now, false)
	require.True(t, d.Idle())
}

// What is done for many claims, part by part, is also done for those that some of them are downgraded to
// meanwhile.
func TestSweepsComeToDowngradedClaims(t *testing.T) {
	for name, event := range map[string]func(d *driver){
		"Close": func(d *driver) { d.Close(d.now) },
		"Slept": func(d *driver) { d.Slept(d.now, time.Hour) },
	} {
		for _, answered := range []bool{true, false} {
			t.Run(fmt.Sprint(name, answered), func(t *testing.T) {
				d := newDriver()
				var writes, reads []*engine.Hold
				for i := range uint64(200) {
					w := d.live(t, &engine.Hold{Name: fmt.Sprint("n", i), Owner: engine.Owner{Handle: i + 1}})
					r := &engine.Hold{Name: w.Name, Owner: w.Owner, Mode: protocol.Read, Lease: lease}
					d.Acquire(d.now, r)
					require.Equal(t, engine.Live, r.State())
					writes, reads = append(writes, w), append(reads, r)
				}
				d.flush()
				event(d)
				downgraded := 0
				for _, w := range writes {
					if w.State() == engine.Live {
						downgraded++
						_, _ = d.Release(d.now, w)
						for _, q := range d.flush().Send {
							if answered && q.Script == lua.Convert && name == "Close" {
								d.done(q)
							}
						}
					}
				}
				require.Positive(t, downgraded)
				for end := d.now.Add(time.Second); ; {
					at, ok := d.Next()
					if !ok || at.After(end) {
						break
					}
					if at.After(d.now) {
						d.now = at
					}
					d.Tick(d.now)
					d.flush() // nothing is answered
				}
				for _, r := range reads {
					require.NotEqual(t, engine.Live, r.State())
				}
			})
		}
	}
}

// The reply to a run of which another copy's reply is lost names nobody whom that has let in: the waiters of
// the same process ask again.
func TestRepeatedDowngradeHasWaitersAskAgain(t *testing.T) {
	d := newDriver()
	_, _, q := d.downgrades(t, &engine.Hold{})
	d.queued(t, &engine.Hold{Owner: engine.Owner{Handle: 2}})
	d.Replied(d.now, q, protocol.Reply{Code: protocol.DoneBefore}, nil)
	require.Equal(t, lua.Lock, d.sent(t).Script)
}

// A write hold whose own time is over is downgraded, too, if the owner also reads.
func TestEndOfTheLastWriteHoldDowngrades(t *testing.T) {
	for name, h := range map[string]*engine.Hold{
		"not renewed": {NoRenew: true},
		"MaxHold":     {MaxHold: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			w := d.live(t, h)
			r := d.reenters(t, &engine.Hold{Mode: protocol.Read})
			for w.State() == engine.Live {
				d.now = d.now.Add(d.next(t))
				d.Tick(d.now)
				for _, q := range d.flush().Send {
					if w.State() != engine.Live {
						require.Equal(t, lua.Convert, q.Script)
					}
					d.done(q)
				}
			}
			require.Equal(t, engine.ErrLost, w.Err())
			require.Equal(t, engine.Live, r.State())
			known, err := d.Release(d.now, w)
			require.True(t, known)
			require.Equal(t, engine.ErrLost, err)
			_, _ = d.Release(d.now, r)
			d.settled(t)
		})
	}
}

// A call that re-enters for a longer lease goes on with the claim that the downgrade begins.
func TestCallForALongerLeaseBesideADowngrade(t *testing.T) {
	d := newDriver()
	w := d.live(t, &engine.Hold{})
	long, _ := d.call(t, &engine.Hold{Mode: protocol.Read, Lease: time.Minute})
	require.Equal(t, engine.Entering, long.State())
	_, _ = d.Release(d.now, w)
	q := d.sent(t)
	require.Equal(t, lua.Convert, q.Script)
	require.Equal(t, time.Minute, q.Lease.Duration)
	d.done(q)
	require.Equal(t, engine.Live, long.State())
	require.Equal(t, engine.Deadline(d.now, time.Minute), long.Deadline())
}

// An extension that is under way goes on, too.
func TestExtensionBesideADowngrade(t *testing.T) {
	d := newDriver()
	w := d.live(t, &engine.Hold{})
	r := d.reenters(t, &engine.Hold{Mode: protocol.Read})
	var x engine.Extension
	d.Extend(d.now, r, time.Minute, &x)
	d.flush()
	_, _ = d.Release(d.now, w)
	q := d.sent(t)
	require.Equal(t, lua.Convert, q.Script)
	d.done(q)
	over, err := x.Over()
	require.True(t, over)
	require.NoError(t, err)
	require.False(t, r.Deadline().Before(d.now.Add(time.Minute)))
}

// Downgrade makes a read hold of a write hold, with its time and token.
func TestDowngradeInPlace(t *testing.T) {
	t.Run("the last one", func(t *testing.T) {
		d := newDriver()
		w := d.live(t, &engine.Hold{MaxHold: time.Hour, NoRenew: true})
		until := w.Deadline()
		read := &engine.Hold{}
		known, err := d.Downgrade(d.now, w, read)
		require.False(t, known)
		require.NoError(t, err)
		q := d.sent(t)
		require.Equal(t, lua.Convert, q.Script)
		d.done(q)
		require.NoError(t, w.Err())
		require.Equal(t, engine.Live, read.State())
		require.Equal(t, protocol.Read, read.Mode)
		require.Equal(t, until, read.Deadline())
		require.Equal(t, w.Token(), read.Token())
		_, _ = d.Release(d.now, read)
		d.settled(t)
	})
	t.Run("beside another", func(t *testing.T) {
		d := newDriver()
		w := d.live(t, &engine.Hold{})
		inner := d.reenters(t, &engine.Hold{})
		read := &engine.Hold{}
		known, err := d.Downgrade(d.now, inner, read)
		require.True(t, known)
		require.NoError(t, err)
		require.Empty(t, d.flush().Send)
		require.Equal(t, engine.Live, read.State())
		_, _ = d.Release(d.now, w)
		require.Equal(t, lua.Convert, d.sent(t).Script)
	})
	t.Run("of one that is over", func(t *testing.T) {
		d := newDriver()
		w := d.live(t, &engine.Hold{NoRenew: true})
		d.now = w.Deadline()
		read := &engine.Hold{}
		known, err := d.Downgrade(d.now, w, read)
		require.True(t, known)
		require.Equal(t, engine.ErrLost, err)
		require.Equal(t, engine.Failed, read.State())
		known, err = d.Release(d.now, w)
		require.True(t, known)
		require.Equal(t, engine.ErrLost, err)
		_, err = d.Downgrade(d.now, w, &engine.Hold{})
		require.Equal(t, engine.ErrNotHeld, err)
		d.settled(t)
	})
}
