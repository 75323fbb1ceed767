package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// upgrades begins to upgrade a read hold, and returns the write hold with the request for it.
func (d *driver) upgrades(t *testing.T, h *engine.Hold) (up *engine.Hold, r *engine.Request) {
	t.Helper()
	up = &engine.Hold{}
	d.TryUpgrade(d.now, h, up)
	r = d.sent(t)
	require.Equal(t, lua.Convert, r.Script)
	return up, r
}

// overtaken upgrades a hold, has it hear before the answer that it is gone, and then answers the upgrade.
func (d *driver) overtaken(t *testing.T, h *engine.Hold, late *engine.Request, gone protocol.Reply,
	runs bool) {
	t.Helper()
	up, r := d.upgrades(t, h)
	d.Replied(d.now, late, gone, nil)
	require.Equal(t, engine.Live, h.State())
	if runs {
		d.Replied(d.now, r, protocol.Reply{Token: 9}, nil)
		require.Equal(t, engine.Live, up.State())
		return
	}
	d.Replied(d.now, r, protocol.Reply{Refused: true}, nil)
	require.Equal(t, engine.Lapsed, h.State())
	require.Equal(t, engine.ErrLost, up.Err())
}

// A renewal that the server runs after it has upgraded the hold finds no read hold. That does not end the
// hold: the answer to the upgrade says what has become of it.
func TestRenewalThatAnUpgradeOvertakes(t *testing.T) {
	for _, runs := range []bool{true, false} {
		d := newDriver()
		h := d.live(t, &engine.Hold{Mode: protocol.Read})
		d.now = d.now.Add(lease / 3)
		d.Tick(d.now)
		late := d.sent(t)
		require.Equal(t, lua.Renew, late.Script)
		d.overtaken(t, h, late, gone, runs)
	}
}

// A request for the lock that was sent twice, and runs for the second time after the server has upgraded the
// hold, is refused. That does not end the hold either.
func TestRequestThatAnUpgradeOvertakes(t *testing.T) {
	for _, runs := range []bool{true, false} {
		d := newDriver()
		h, first := d.call(t, &engine.Hold{Mode: protocol.Read})
		late := d.resent(t, lua.Lock, d.next(t))
		d.Replied(d.now, first, protocol.Reply{Token: 7}, nil)
		require.Equal(t, engine.Live, h.State())
		d.flush()
		d.overtaken(t, h, late, protocol.Reply{Refused: true}, runs)
	}
}

// Calls that begin together share a request only if each asks for its lock: not if one of them only ends what
// the owner has lost, which is a request, too.
func TestCallsTogetherShareNoOtherRequest(t *testing.T) {
	d := newDriver()
	d.live(t, &engine.Hold{})
	d.now = d.now.Add(lease)
	calls := make([]*engine.Hold, 2)
	for i, name := range []string{"a", "b"} {
		calls[i] = &engine.Hold{Name: name, Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: lease,
			Try: true}
	}
	d.AcquireAll(d.now, calls)
	require.Equal(t, engine.ErrLost, calls[0].Err())
	require.Equal(t, engine.Wanted, calls[1].State())
	var sent []*lua.Script
	for _, r := range d.flush().Send {
		sent = append(sent, r.Script)
	}
	require.Equal(t, []*lua.Script{lua.Unlock, lua.Lock}, sent)
}

// An upgrade that was made before the machine was asleep, and is reported afterwards, leaves no hold beyond
// its lease. If the server still has it, the repeated request says so.
func TestUpgradeOfBeforeASleep(t *testing.T) {
	for _, kept := range []bool{false, true} {
		d := newDriver()
		h := d.live(t, &engine.Hold{Mode: protocol.Read})
		up, before := d.upgrades(t, h)
		d.Slept(d.now, time.Hour)
		d.Tick(d.now)
		again := d.sent(t)
		require.Equal(t, lua.Convert, again.Script)
		d.Replied(d.now, before, protocol.Reply{Token: 9}, nil)
		if kept {
			d.Replied(d.now, again, protocol.Reply{Token: 9, Before: true}, nil)
			require.Equal(t, engine.Live, up.State())
			require.Equal(t, engine.Deadline(d.now, lease), up.Deadline())
			continue
		}
		d.Replied(d.now, again, protocol.Reply{Refused: true}, nil)
		require.Equal(t, engine.Failed, up.State())
		require.Equal(t, engine.ErrLost, up.Err())
	}
}

// A hold whose ticket nobody gets is ended for as long as the server may keep it for the ticket.
func TestHoldIsTakenBackForAsLongAsItsTicketLasts(t *testing.T) {
	const long = time.Hour
	for _, givesUp := range []bool{false, true} {
		d := newDriver()
		h := d.live(t, &engine.Hold{})
		ticket := protocol.NewTicket(h.Name, h.Mode, h.Owner)
		known, err := d.Detach(d.now, h, ticket, long)
		require.False(t, known)
		require.NoError(t, err)
		r := d.sent(t)
		require.Equal(t, ticket.Claim, r.Claim)
		if givesUp {
			d.GiveUpDetach(d.now, h, errPassing)
		}
		for end := d.now.Add(long - time.Second); d.now.Before(end); d.now = d.now.Add(time.Second) {
			for _, r := range d.flush().Send {
				d.Replied(d.now, r, protocol.Reply{}, errPassing)
			}
			d.Tick(d.now)
		}
		require.Equal(t, engine.Finished, h.State())
		require.Error(t, h.Err())
		var ends *engine.Request
		for ends == nil {
			if list := d.flush().Send; len(list) > 0 {
				ends = list[0]
				break
			}
			d.now = d.now.Add(d.next(t))
			d.Tick(d.now)
		}
		require.Equal(t, lua.Unlock, ends.Script)
		d.Replied(d.now, ends, gone, nil)
		ends = d.sent(t)
		require.Equal(t, ticket.Claim, ends.Claim)
		d.settled(t, ends)
	}
}

// Close does not leave a ticket's hold to its lease because one request has failed.
func TestCloseEndsTheHoldOfATicket(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	ticket := protocol.NewTicket(h.Name, h.Mode, h.Owner)
	_, _ = d.Detach(d.now, h, ticket, time.Hour)
	d.sent(t)
	d.Close(d.now)
	d.GiveUpDetach(d.now, h, engine.ErrClosed)
	d.Replied(d.now, d.sent(t), gone, nil)
	first := d.sent(t)
	require.Equal(t, ticket.Claim, first.Claim)
	d.Replied(d.now, first, protocol.Reply{}, errPassing)
	require.False(t, d.Idle())
	again := d.resent(t, lua.Unlock, d.next(t))
	require.Equal(t, ticket.Claim, again.Claim)
	d.settled(t, again)
}

// A request to upgrade that the server refuses for good says nothing of one before it that was not answered:
// a write hold that this one has made is ended.
func TestUpgradeRefusedAfterATry(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{Mode: protocol.Read})
	up, r := d.upgrades(t, h)
	d.Replied(d.now, r, protocol.Reply{}, errPassing)
	require.Equal(t, engine.Failed, up.State())
	again := d.resent(t, lua.Convert, d.next(t))
	d.Replied(d.now, again, protocol.Reply{}, errForGood)
	require.Equal(t, engine.Live, h.State())
	var ends, renews *engine.Request
	for _, r := range d.flush().Send {
		switch r.Script {
		case lua.Unlock:
			ends = r
		case lua.Renew:
			renews = r
		}
	}
	require.NotNil(t, renews)
	require.NotNil(t, ends)
	require.Equal(t, again.Claim, ends.Claim)
	require.Equal(t, again.Former, renews.Claim.ID)
	d.Replied(d.now, ends, done, nil)
	d.Replied(d.now, renews, gone, nil)
	require.Equal(t, engine.Lapsed, h.State())
}

// A request to hand a hold on that was sent twice is answered twice.
func TestDetachIsAnsweredTwice(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	_, _ = d.Detach(d.now, h, protocol.NewTicket(h.Name, h.Mode, h.Owner), time.Minute)
	first := d.sent(t)
	again := d.resent(t, lua.Convert, d.next(t))
	require.True(t, again.Again)
	for _, r := range []*engine.Request{again, first} {
		d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
		require.Equal(t, engine.Finished, h.State())
		require.NoError(t, h.Err())
		d.settled(t)
	}
}

// Drain withdraws what waits, and an upgrade does not: neither one that is under way, nor one that has begun
// since of a hold that was still to be withdrawn.
func TestDrainLeavesUpgrades(t *testing.T) {
	d, _ := crowded(t, true)
	h := d.queued(t, &engine.Hold{Name: "of late", Owner: engine.Owner{Handle: many + 1}, Mode: protocol.Read})
	d.Drain(d.now)
	d.Grant(d.now, h.ClaimNumber(), 7, engine.ByMessage)
	require.Equal(t, engine.Live, h.State())
	ends := d.flush().Send
	up, r := d.upgrades(t, h)
	ends = append(ends, d.rest(t).Send...)
	d.Replied(d.now, r, protocol.Reply{Token: 9}, nil)
	require.Equal(t, engine.Live, up.State())
	for _, r := range ends {
		d.Replied(d.now, r, done, nil)
	}
	_, err := d.Release(d.now, up)
	require.NoError(t, err)
	d.settled(t)
}

// Close ends a hold whose upgrade is answered before Close comes to it, among many.
func TestCloseEndsWhatWasUpgradedMeanwhile(t *testing.T) {
	d, _ := crowded(t, false)
	var holds, ups []*engine.Hold
	var requests []*engine.Request
	for i := range 2 * slice {
		h := d.live(t, &engine.Hold{Name: "of late", Owner: engine.Owner{Handle: uint64(many + 1 + i)},
			Mode: protocol.Read})
		up, r := d.upgrades(t, h)
		holds, ups, requests = append(holds, h), append(ups, up), append(requests, r)
	}
	d.Close(d.now)
	ends, before := d.flush().Send, 0
	for i, h := range holds {
		if h.State() == engine.Live {
			before++
		}
		d.Replied(d.now, requests[i], protocol.Reply{Token: 9}, nil)
		require.Equal(t, engine.ErrClosed, ups[i].Err())
		require.Equal(t, engine.ErrClosed, h.Err())
		ends = append(ends, d.flush().Send...)
	}
	require.NotZero(t, before, "Close has not come to all of them at once")
	for ends = append(ends, d.rest(t).Send...); len(ends) > 0; ends = d.flush().Send {
		for _, r := range ends {
			d.Replied(d.now, r, done, nil)
		}
	}
	require.True(t, d.Idle())
}

// The answer to a request that hands a hold on may come after Close has left the hold to its lease. Close
// does so when the ticket's lease is over, too.
func TestDetachIsAnsweredAfterItWasAbandoned(t *testing.T) {
	for _, reply := range []protocol.Reply{{Token: 7}, {}} {
		d := newDriver()
		h := d.live(t, &engine.Hold{})
		_, _ = d.Detach(d.now, h, protocol.NewTicket(h.Name, h.Mode, h.Owner), 2*lease)
		r := d.sent(t)
		for range 2 {
			d.now = d.now.Add(lease)
			require.Equal(t, engine.Releasing, h.State())
			d.Abandon(d.now, false)
		}
		require.Equal(t, engine.Finished, h.State())
		require.ErrorIs(t, h.Err(), engine.ErrUnanswered)
		d.Replied(d.now, r, reply, nil)
		require.True(t, d.Idle())
	}
}

// A read hold that is not renewed lasts as long as the write hold before it, though their claim does not last
// so long yet.
func TestDowngradedHoldEndsWhenItWasTo(t *testing.T) {
	d := newDriver()
	outer := d.live(t, &engine.Hold{})
	d.now = d.now.Add(lease / 4)
	h := d.reenters(t, &engine.Hold{NoRenew: true})
	end := engine.Deadline(d.now, lease)
	read := &engine.Hold{}
	known, err := d.Downgrade(d.now, h, read)
	require.True(t, known)
	require.NoError(t, err)
	for d.now.Before(end.Add(-time.Millisecond)) {
		require.Equal(t, engine.Live, read.State())
		d.now = d.now.Add(lease / 100)
		d.Tick(d.now)
		for _, r := range d.flush().Send {
			d.Replied(d.now, r, protocol.Reply{Code: 1}, nil)
		}
	}
	require.Equal(t, engine.Live, outer.State())
	require.Equal(t, end, read.Deadline())
}

// A call that extends a hold goes on when the hold is downgraded.
func TestExtensionOfADowngradedHold(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	x := &engine.Extension{}
	d.Extend(d.now, h, 10*lease, x)
	d.sent(t)
	read := &engine.Hold{}
	_, err := d.Downgrade(d.now, h, read)
	require.NoError(t, err)
	d.Replied(d.now, d.sent(t), done, nil)
	over, err := x.Over()
	require.True(t, over)
	require.NoError(t, err)
	require.False(t, read.Deadline().Before(d.now.Add(10*lease)))
}
