package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
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

// flush returns what is to be done.
func (d *driver) flush() (fx engine.Effects) {
	d.Flush(&fx)
	return fx
}

// hold returns a hold that was granted at once.
func (d *driver) hold(t *testing.T, owner uint64) *engine.Hold {
	t.Helper()
	h := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: owner}, Mode: protocol.Write, Lease: 3 * time.Second}
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
	inner := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: 3 * time.Second, NoRenew: true}
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

// A writer that reads re-enters. If the server knows nothing of the write hold, that is lost, and the call does not start anew.
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

// Whoever holds the lock for writing reads at once, though another hold of theirs was lost.
func TestReadUnderTheOtherOfTwoWriteHolds(t *testing.T) {
	d := newDriver()
	d.hold(t, 1)
	lost := &engine.Hold{Name: "a", Owner: engine.Owner{Handle: 1}, Mode: protocol.Write, Lease: time.Second, NoRenew: true}
	d.Acquire(d.now, lost)
	fx := d.flush()
	d.Replied(d.now, fx.Send[0], protocol.Reply{Code: protocol.Done}, nil)
	d.now = lost.Deadline()
	d.Tick(d.now)
	require.Equal(t, engine.Lapsed, lost.State())
	for _, r := range d.flush().Send {
		d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
	}
	inner, r := d.read(t, 1)
	d.Replied(d.now, r, protocol.Reply{Token: 1}, nil)
	require.Equal(t, engine.Live, inner.State())
}
