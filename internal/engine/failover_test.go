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
