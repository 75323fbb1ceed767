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

// events returns what an observer is told, and forgets what else is to be done but for what is to be sent.
func (d *driver) events(sent *[]*engine.Request) (list []string) {
	fx := d.flush()
	*sent = fx.Send
	for _, ev := range fx.Events {
		list = append(list, fmt.Sprint(ev.Kind, " ", ev.Path, " ", ev.Cause, " ", ev.Took))
	}
	return list
}

func event(kind engine.EventKind, path engine.Path, cause engine.Cause, took time.Duration) string {
	return fmt.Sprint(kind, " ", path, " ", cause, " ", took)
}

// An observer is told of each thing once: how a call got the lock and how long it took, and how a hold ended
// after what time.
func TestEvents(t *testing.T) {
	var sent []*engine.Request
	wait := protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}
	d := newDriver()
	h, r := d.call(t, &engine.Hold{})
	d.now = d.now.Add(time.Second / 10)
	d.Replied(d.now, r, wait, nil)
	require.Equal(t, []string{event(engine.Queueing, 0, 0, 0)}, d.events(&sent))
	r = d.resent(t, lua.Lock, lease/3-time.Second/10)
	d.Replied(d.now, r, wait, nil)
	require.Empty(t, d.events(&sent), "it waits already")
	d.Heard(d.now, fmt.Sprintf("7 0 %s", r.Claim.Number))
	require.Equal(t, []string{event(engine.Woken, engine.ByMessage, 0, 0),
		event(engine.Acquired, engine.ByMessage, 0, lease/3)}, d.events(&sent))
	require.Empty(t, sent)

	inner := &engine.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode, Lease: lease}
	d.Acquire(d.now, inner)
	require.Equal(t, []string{event(engine.Acquired, engine.ByReentry, 0, 0)}, d.events(&sent))
	_, _ = d.Release(d.now, inner)
	require.Equal(t, []string{event(engine.Ended, 0, engine.Released, 0)}, d.events(&sent))

	r = d.resent(t, lua.Renew, lease/3)
	d.now = d.now.Add(time.Second / 10)
	d.Replied(d.now, r, done, nil)
	require.Equal(t, []string{event(engine.Renewed, 0, 0, time.Second/10)}, d.events(&sent))
	_, _ = d.Release(d.now, h)
	require.Equal(t, []string{event(engine.Ended, 0, engine.Released, lease/3+time.Second/10)}, d.events(&sent))
	d.Replied(d.now, sent[0], done, nil)
	require.Empty(t, d.events(&sent))

	h, r = d.call(t, &engine.Hold{})
	d.Replied(d.now, r, wait, nil)
	d.flush()
	d.GiveUp(d.now, h, errPassing)
	require.Equal(t, []string{event(engine.Refused, 0, 0, 0)}, d.events(&sent))
	d.Replied(d.now, sent[0], gone, nil)
	require.Equal(t, []string{event(engine.Withdrawn, 0, 0, 0)}, d.events(&sent))
}

// A message that overtakes the first reply grants the lock, for the lease from when the request was sent.
func TestMessageThatOvertakesTheReply(t *testing.T) {
	d := newDriver()
	h, r := d.call(t, &engine.Hold{})
	sent := d.now
	d.now = d.now.Add(time.Second)
	d.Heard(d.now, fmt.Sprintf("7 0 %s", r.Claim.Number))
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, sent.Add(lease-margin), h.Deadline())
	d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Second}}, nil)
	require.Equal(t, engine.Live, h.State(), "that it waits was said before")

	d = newDriver()
	h = d.queued(t, &engine.Hold{})
	d.now = d.now.Add(lease / 3)
	d.Tick(d.now)
	r = d.sent(t)
	heartbeat := d.now
	d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Second}}, nil)
	d.now = d.now.Add(time.Second / 2)
	d.Heard(d.now, fmt.Sprintf("7 0 %s", r.Claim.Number))
	require.Equal(t, heartbeat.Add(lease-margin), h.Deadline(),
		"since the heartbeat, the server keeps it for longer")

	// The process stood still, and the lease of what it was granted is over: it asks again.
	d = newDriver()
	h, r = d.call(t, &engine.Hold{})
	d.now = d.now.Add(lease)
	d.Heard(d.now, fmt.Sprintf("7 0 %s", r.Claim.Number))
	require.Equal(t, engine.Wanted, h.State())
	fx := d.flush()
	require.Len(t, fx.Send, 2)
	require.Equal(t, lua.Unlock, fx.Send[0].Script)
	require.Equal(t, lua.Lock, fx.Send[1].Script)
	require.NotEqual(t, r.Claim.Number, fx.Send[1].Claim.Number)
}

// With a subscription that stands, a waiter does not ask before the server says that it may pay. One whose
// request was sent before asks once.
func TestWaiterAsksOnceAfterTheSubscriptionStands(t *testing.T) {
	wait := protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}
	d := newDriver()
	d.Subscribed(d.now)
	_, r := d.call(t, &engine.Hold{})
	d.Replied(d.now, r, wait, nil)
	d.flush()
	require.Equal(t, lease/3, d.next(t))

	d = newDriver()
	_, r = d.call(t, &engine.Hold{})
	d.now = d.now.Add(time.Millisecond)
	d.Subscribed(d.now)
	d.now = d.now.Add(time.Millisecond)
	d.Replied(d.now, r, wait, nil)
	r = d.resent(t, lua.Lock, 0)
	d.Replied(d.now, r, wait, nil)
	d.flush()
	require.Equal(t, lease/3, d.next(t))
}

// A waiter that is to ask again does so, also if the reply to a request that it sent before comes after the
// message, and says otherwise.
func TestPromptThatOvertakesTheReply(t *testing.T) {
	wait := protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}
	for _, heartbeat := range []bool{false, true} {
		d := newDriver()
		d.Subscribed(d.now)
		d.now = d.now.Add(time.Millisecond)
		_, r := d.call(t, &engine.Hold{})
		if heartbeat {
			d.Replied(d.now, r, wait, nil)
			d.flush()
			d.now = d.now.Add(lease / 3)
			d.Tick(d.now)
			r = d.sent(t)
		}
		d.now = d.now.Add(time.Millisecond)
		d.Heard(d.now, fmt.Sprintf(",%s", r.Claim.Number))
		d.flush()
		d.now = d.now.Add(time.Millisecond)
		d.Replied(d.now, r, wait, nil)
		r = d.resent(t, lua.Lock, 0)
		d.Replied(d.now, r, wait, nil)
		d.flush()
		require.Equal(t, lease/3, d.next(t), "once")
	}
}

// A release that the server refuses for good is told so once, and tried on.
func TestRefusedReleaseIsTriedOn(t *testing.T) {
	d := newDriver()
	h := d.live(t, &engine.Hold{})
	_, _ = d.Release(d.now, h)
	d.Replied(d.now, d.sent(t), protocol.Reply{}, errForGood)
	require.Equal(t, []*engine.Hold{h}, d.flush().Wake)
	r := d.resent(t, lua.Unlock, 50*time.Millisecond)
	d.Replied(d.now, r, done, nil)
	require.Empty(t, d.flush().Wake)
	require.Equal(t, errForGood, h.Err())
	d.settled(t)
}

// What fails at once leaves nothing, even where the owner has nothing else.
func TestCallThatFailsAtOnceLeavesNothing(t *testing.T) {
	d := newDriver()
	d.Drain(d.now)
	h := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: lease}
	d.Acquire(d.now, h)
	require.Equal(t, engine.ErrClosed, h.Err())
	d.settled(t)

	d = newDriver()
	reader := d.live(t, &engine.Hold{Mode: protocol.Read})
	up := d.wait(t, &engine.Hold{Mode: protocol.Write})
	require.Equal(t, engine.ErrUpgrade, up.Err())
	require.Equal(t, engine.Live, reader.State())
	_, _ = d.Release(d.now, reader)
	d.settled(t)
}

// A call that gives up behind another of its owner leaves that one its place: the next goes behind it, too.
func TestCallThatGivesUpBehindAnother(t *testing.T) {
	d := newDriver()
	first, r := d.call(t, &engine.Hold{})
	d.GiveUp(d.now, d.wait(t, &engine.Hold{Mode: protocol.Write}), errPassing)
	next := d.wait(t, &engine.Hold{Mode: protocol.Write})
	d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
	require.Equal(t, engine.Live, first.State())
	require.Equal(t, engine.Live, next.State())
}

// The renewal that shows what a force has done is sent again if it gets no answer.
func TestRenewalAfterAForceIsSentAgain(t *testing.T) {
	d := newDriver()
	d.live(t, &engine.Hold{})
	require.NoError(t, d.Force(d.now, "a", 0, nil))
	d.Replied(d.now, d.sent(t), done, nil)
	require.Equal(t, lua.Renew, d.sent(t).Script)
	require.True(t, d.resent(t, lua.Renew, lease/12).Again)
}

// The message that a hold was dropped by force may overtake its grant. So may the reply to a ForceUnlock.
func TestForceThatOvertakesTheGrant(t *testing.T) {
	for name, force := range map[string]func(*driver, *engine.Request){
		"of another": func(d *driver, r *engine.Request) { d.Heard(d.now, fmt.Sprintf("!%s", r.Claim.Number)) },
		"its own": func(d *driver, _ *engine.Request) {
			require.NoError(t, d.Force(d.now, "a", 0, nil))
			d.Replied(d.now, d.sent(t), done, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			h, r := d.call(t, &engine.Hold{NoRenew: true})
			force(d, r)
			d.Replied(d.now, r, protocol.Reply{Token: 7}, nil)
			require.Equal(t, engine.Live, h.State())
			d.Tick(d.now)
			require.Equal(t, lua.Renew, d.sent(t).Script)
		})
	}
}
