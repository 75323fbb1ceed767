package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// ask begins a call of an owner for a lock of a name of its own making, and returns its first request.
func (d *driver) ask(t *testing.T, owner uint64, name string) (*engine.Hold, *engine.Request) {
	t.Helper()
	h := &engine.Hold{
		Name: name, Owner: engine.Owner{Process: uuid.UUID{1}, Handle: owner}, Mode: protocol.Write,
		Lease: 3 * time.Second, Bounded: true,
	}
	d.Acquire(d.now, h)
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	return h, fx.Send[0]
}

// won returns a hold that was granted, and the request for it.
func (d *driver) won(t *testing.T, owner uint64, name string) (*engine.Hold, *engine.Request) {
	t.Helper()
	h, asked := d.ask(t, owner, name)
	d.Replied(d.now, asked, protocol.Reply{Token: 1}, nil)
	d.flush()
	return h, asked
}

// blocked is the reply to a claim that has to wait for another.
func blocked(by protocol.Claim) protocol.Reply {
	return protocol.Reply{Obstacle: protocol.Obstacle{Mode: protocol.Write, Claim: by.ID,
		Again: time.Second}}
}

// A claim of the engine that was released, and is back because a server has taken over that missed its
// release, is released again as soon as a reply names it; and whoever waits asks again then.
func TestReleasedHoldThatIsBackIsReleasedAgain(t *testing.T) {
	t.Parallel()
	d := newDriver()
	h, asked := d.ask(t, 1, "a")
	d.Replied(d.now, asked, protocol.Reply{Token: 1}, nil)
	claim := asked.Claim
	_, _ = d.Release(d.now, h)
	fx := d.flush()
	d.Replied(d.now, fx.Send[0], protocol.Reply{Code: protocol.Done}, nil)
	require.Equal(t, engine.Finished, h.State())
	d.flush()

	waits, asked := d.ask(t, 2, "a")
	d.Replied(d.now, asked, blocked(claim), nil)
	fx = d.flush()
	require.Len(t, fx.Send, 1)
	again := fx.Send[0]
	require.Equal(t, lua.Unlock, again.Script)
	require.Equal(t, claim, again.Claim)
	require.Empty(t, again.Record, "the script is to look")

	d.Replied(d.now, again, protocol.Reply{Code: protocol.Done}, nil)
	d.Tick(d.now)
	fx = d.flush()
	require.Len(t, fx.Send, 1, "the waiter asks at once")
	d.Replied(d.now, fx.Send[0], protocol.Reply{Token: 2, Before: true}, nil)
	require.Equal(t, engine.Live, waits.State())
	_, _ = d.Release(d.now, waits)
	d.Replied(d.now, d.flush().Send[0], protocol.Reply{Code: protocol.Done}, nil)
	require.Zero(t, d.InUse())
}

// A claim of the engine that stands in the way rightly is not released: one that is held, one whose call
// waits for the reply, one whose release is in flight, and one of another engine.
func TestHoldInTheWayIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := newDriver()
	h, asked := d.ask(t, 1, "a")
	_, second := d.ask(t, 2, "a")
	d.Replied(d.now, second, blocked(asked.Claim), nil)
	require.Empty(t, d.flush().Send, "its reply is on the way")
	d.Replied(d.now, asked, protocol.Reply{Token: 1}, nil)
	_, third := d.ask(t, 3, "a")
	d.Replied(d.now, third, blocked(asked.Claim), nil)
	require.Empty(t, d.flush().Send, "it is held")
	_, _ = d.Release(d.now, h)
	require.Len(t, d.flush().Send, 1)
	_, fourth := d.ask(t, 4, "a")
	d.Replied(d.now, fourth, blocked(asked.Claim), nil)
	require.Empty(t, d.flush().Send, "its release is under way")
	_, fifth := d.ask(t, 5, "a")
	d.Replied(d.now, fifth, blocked(protocol.NewClaim(protocol.Write, "instance-02", 0, 9,
		engine.Owner{Handle: 1})), nil)
	require.Empty(t, d.flush().Send, "it is another's")
}

// A grant whose reply was slow, or followed a failure, may come from a server that has been replaced: it is
// verified by a renewal at once, that of a hold which is not renewed otherwise too. One that came as usual is
// not. A grant by a message is verified likewise; a NoRenew hold always renews after one.
func TestUnverifiedGrantIsVerifiedAtOnce(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(d *driver, r *engine.Request) *engine.Request{
		"slow": func(d *driver, r *engine.Request) *engine.Request {
			d.now = d.now.Add(1200 * time.Millisecond)
			return r
		},
		"after a failure": func(d *driver, r *engine.Request) *engine.Request {
			d.Replied(d.now, r, protocol.Reply{}, errors.New("connection refused"))
			d.now = d.now.Add(100 * time.Millisecond)
			d.Tick(d.now)
			return d.flush().Send[0]
		},
		"usual": func(_ *driver, r *engine.Request) *engine.Request { return r },
	} {
		for _, how := range []string{"reply", "NoRenew", "message"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				d := newDriver()
				h, asked := d.ask(t, 1, "a")
				h.NoRenew = how == "NoRenew"
				asked = trouble(d, asked)
				if how == "message" {
					d.Heard(d.now, fmt.Sprintf("1 0 %d", h.ClaimNumber()))
				} else {
					d.Replied(d.now, asked, protocol.Reply{Token: 1}, nil)
				}
				require.Equal(t, engine.Live, h.State())
				d.Tick(d.now)
				fx := d.flush()
				if name == "usual" {
					require.Empty(t, fx.Send)
					return
				}
				require.Len(t, fx.Send, 1)
				require.Equal(t, lua.Renew, fx.Send[0].Script)
				d.Replied(d.now, fx.Send[0], protocol.Reply{Code: protocol.Done}, nil)
				d.Tick(d.now)
				require.Empty(t, d.flush().Send, "once is enough")
			})
		}
	}
}

// A reply to a request that was sent before a claim ended names it rightly: nothing has come back.
func TestAnswerFromBeforeAnEndReleasesNothing(t *testing.T) {
	t.Parallel()
	d := newDriver()
	h, asked := d.won(t, 1, "a")
	_, second := d.ask(t, 2, "a")
	d.now = d.now.Add(time.Millisecond)
	_, _ = d.Release(d.now, h)
	d.Replied(d.now, d.flush().Send[0], protocol.Reply{Code: protocol.Done}, nil)
	d.flush()
	d.Replied(d.now, second, blocked(asked.Claim), nil)
	require.Empty(t, d.flush().Send)
}

// A claim that is back is released also if its owner has the lock again, by another claim.
func TestReleasedHoldIsReleasedAgainUnderItsOwnersNextOne(t *testing.T) {
	t.Parallel()
	d := newDriver()
	h, asked := d.won(t, 1, "a")
	_, _ = d.Release(d.now, h)
	d.Replied(d.now, d.flush().Send[0], protocol.Reply{Code: protocol.Done}, nil)
	d.flush()
	_, next := d.ask(t, 1, "a")
	d.Replied(d.now, next, protocol.Reply{Token: 2}, nil)
	d.flush()

	_, waits := d.ask(t, 2, "a")
	d.Replied(d.now, waits, blocked(asked.Claim), nil)
	fx := d.flush()
	require.Len(t, fx.Send, 1)
	require.Equal(t, lua.Unlock, fx.Send[0].Script)
	require.Equal(t, asked.Claim, fx.Send[0].Claim)
}

// released has an owner take and release a lock, and returns the request for the lock.
func (d *driver) released(t *testing.T, name string) *engine.Request {
	t.Helper()
	h, asked := d.won(t, 1, name)
	_, _ = d.Release(d.now, h)
	d.Replied(d.now, d.flush().Send[0], protocol.Reply{Code: protocol.Done}, nil)
	d.flush()
	return asked
}
