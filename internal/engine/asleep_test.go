package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A machine that may have been asleep renews each hold immediately. The hold ends a moment later if the
// server does not confirm it and its lease may be over, and otherwise when the rest of its lease is.
func TestSleepIsNotTakenForNothing(t *testing.T) {
	for slept, left := range map[time.Duration]time.Duration{
		time.Second: 3*time.Second - 32*time.Millisecond - time.Second,
		time.Hour:   100 * time.Millisecond,
	} {
		for _, answers := range []bool{false, true} {
			for _, late := range []bool{false, true} {
				d := newDriver()
				h := d.hold(t, 1)
				d.now = d.now.Add(time.Second)
				left := left
				if left > time.Second {
					left -= time.Second
				}
				d.Tick(d.now)
				before := d.sent(t) // whose answer comes after the sleep
				d.Slept(d.now, slept)
				d.Tick(d.now)
				r := d.sent(t)
				require.Equal(t, lua.Renew, r.Script)
				if late {
					d.Replied(d.now, before, protocol.Reply{Code: protocol.Done}, nil)
				}
				want := d.now.Add(left)
				require.LessOrEqual(t, h.Deadline(), want)
				if answers {
					d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
					want = d.now.Add(3*time.Second - 32*time.Millisecond)
				}
				require.Equal(t, want, h.Deadline())
				d.now = want.Add(-time.Millisecond)
				d.Tick(d.now)
				require.Equal(t, engine.Live, h.State())
				d.now = want
				d.Tick(d.now)
				require.Equal(t, engine.Lapsed, h.State())
			}
		}
	}
}

// What was granted before the machine was asleep, and is reported afterwards, is not a hold for longer than
// its lease lasts.
func TestGrantOfBeforeASleep(t *testing.T) {
	d := newDriver()
	h, r := d.ask(t, 1, "a")
	d.Slept(d.now, 2*time.Second)
	d.Replied(d.now, r, protocol.Reply{Token: 1}, nil)
	require.Equal(t, engine.Live, h.State())
	require.LessOrEqual(t, h.Deadline(), d.now.Add(time.Second))

	h, r = d.ask(t, 2, "b")
	d.Slept(d.now, time.Hour)
	d.Replied(d.now, r, protocol.Reply{Token: 1}, nil)
	require.NotEqual(t, engine.Live, h.State())
}
