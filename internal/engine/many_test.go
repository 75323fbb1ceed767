package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	many  = 2000
	slice = 50
)

// crowded returns an engine that looks at a slice of claims at a time, and has many holds, each of another
// name, that were granted within a millisecond; or as many calls that wait.
func crowded(t *testing.T, waiting bool) (*driver, []*engine.Hold) {
	t.Helper()
	d := newDriver()
	d.Engine = engine.New(engine.Config{Prefix: "p", Instance: "instance-01", Lease: lease, AtOnce: slice})
	var holds []*engine.Hold
	for i := range many {
		h := &engine.Hold{
			Name: fmt.Sprint("n", i), Owner: engine.Owner{Process: uuid.UUID{1}, Handle: uint64(i + 1)},
			Mode: protocol.Write, Lease: lease, Bounded: true,
		}
		d.Acquire(d.now, h)
		r := d.sent(t)
		if waiting {
			d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
		} else {
			d.Replied(d.now, r, protocol.Reply{Token: int64(i + 1)}, nil)
		}
		d.flush()
		holds = append(holds, h)
		d.now = d.now.Add(500 * time.Nanosecond)
	}
	return d, holds
}

// rest has the engine do what is due, each slice of which is no more than a slice, and returns what it has
// sent, cancelled and woken.
func (d *driver) rest(t *testing.T) (all engine.Effects) {
	t.Helper()
	for range 2*many/slice + 10 {
		fx := d.flush()
		require.LessOrEqual(t, max(len(fx.Send), len(fx.Cancel), len(fx.Wake)), slice)
		all.Send = append(all.Send, fx.Send...)
		all.Cancel = append(all.Cancel, fx.Cancel...)
		all.Wake = append(all.Wake, fx.Wake...)
		if at, ok := d.Next(); !ok || at.After(d.now) {
			return all
		}
		d.Tick(d.now)
	}
	t.Fatal("the engine does not come to rest")
	return all
}

// What is to be done for many claims is done for a few at a time, and for all of them.
func TestManyClaimsAreLookedAtInSlices(t *testing.T) {
	t.Parallel()
	t.Run("renewals", func(t *testing.T) {
		d, _ := crowded(t, false)
		d.now = d.now.Add(lease / 3)
		require.Len(t, d.rest(t).Send, many)
	})
	t.Run("losses", func(t *testing.T) {
		d, holds := crowded(t, false)
		d.now = d.now.Add(lease)
		all := d.rest(t)
		require.ElementsMatch(t, holds, all.Cancel)
		require.Len(t, all.Send, many)
	})
	t.Run("heartbeats", func(t *testing.T) {
		d, _ := crowded(t, true)
		d.now = d.now.Add(lease / 3)
		require.Len(t, d.rest(t).Send, many)
	})
	t.Run("a subscription that stands", func(t *testing.T) {
		d, _ := crowded(t, true)
		d.Subscribed(d.now)
		require.Len(t, d.rest(t).Send, many)
	})
	t.Run("another server", func(t *testing.T) {
		d, _ := crowded(t, true)
		d.Subscribed(d.now)
		for _, r := range d.rest(t).Send {
			d.Replied(d.now, r, protocol.Reply{}, serverError("CLUSTERDOWN"))
		}
		d.Resume(d.now)
		require.Len(t, d.rest(t).Send, many)
	})
	t.Run("drain", func(t *testing.T) {
		d, holds := crowded(t, true)
		d.Drain(d.now)
		all := d.rest(t)
		require.ElementsMatch(t, holds, all.Wake)
		require.True(t, d.Drained())
	})
	t.Run("close", func(t *testing.T) {
		d, holds := crowded(t, false)
		d.now = d.now.Add(time.Second)
		d.Close(d.now)
		all := d.rest(t)
		require.ElementsMatch(t, holds, all.Cancel)
		for _, r := range all.Send {
			d.Replied(d.now, r, protocol.Reply{Code: protocol.Done}, nil)
		}
		require.True(t, d.Idle())
	})
	t.Run("close, abandoned", func(t *testing.T) {
		d, _ := crowded(t, true)
		d.Close(d.now)
		require.Len(t, d.flush().Wake, slice)
		d.Abandon(d.now, true)
		d.rest(t)
		_, n, _ := d.Unreleased()
		require.Equal(t, many, n, "the server was heard of all of them")
	})
}

// What an event of one lock is followed by concerns the claims of that lock: nothing is left to do for
// others.
func TestEventOfALockWalksItsOwnClaims(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]func(d *driver) *engine.Request{
		"force": func(d *driver) *engine.Request {
			require.NoError(t, d.Force(d.now, "a", 0, nil))
			return d.sent(t)
		},
		"release": func(d *driver) *engine.Request {
			_, _ = d.Release(d.now, d.live(t, &engine.Hold{}))
			return d.sent(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := crowded(t, false)
			d.Replied(d.now, event(d), protocol.Reply{Code: protocol.DoneBefore}, nil)
			d.Tick(d.now)
			require.Positive(t, d.next(t))
		})
	}
}

// An event of a claim comes before Tick has come to the claim, whose time is over: the claim ends first.
func TestEventThatComesBeforeAllIsDone(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]func(d *driver, h *engine.Hold, renewal *engine.Request){
		"reply": func(d *driver, _ *engine.Hold, renewal *engine.Request) {
			d.Replied(d.now, renewal, protocol.Reply{Code: protocol.Done}, nil)
		},
		"release": func(d *driver, h *engine.Hold, _ *engine.Request) {
			known, err := d.Release(d.now, h)
			require.True(t, known)
			require.Equal(t, engine.ErrLost, err)
		},
		"extension": func(d *driver, h *engine.Hold, _ *engine.Request) {
			var x engine.Extension
			d.Extend(d.now, h, lease, &x)
			over, err := x.Over()
			require.True(t, over)
			require.Equal(t, engine.ErrLost, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, holds := crowded(t, false)
			d.now = d.now.Add(lease / 3)
			renewals := map[*engine.Hold]*engine.Request{}
			for _, r := range d.rest(t).Send {
				require.Same(t, lua.Renew, r.Script)
				renewals[r.Hold()] = r
			}
			last := holds[many-1]
			d.now = last.Deadline()
			d.Tick(d.now)
			cancelled := d.flush().Cancel
			require.Len(t, cancelled, slice)
			require.NotContains(t, cancelled, last)
			event(d, last, renewals[last])
			require.Contains(t, d.flush().Cancel, last)
			require.Contains(t, []engine.HoldState{engine.Lapsed, engine.Finished}, last.State())
		})
	}
}

// Claims that began together do not stay together: what the server hears of them is spread evenly over a
// tenth of their period, and comes neither later than a third of their lease nor much before.
func TestRenewalsAreSpread(t *testing.T) {
	t.Parallel()
	for name, waiting := range map[string]bool{"renewals": false, "heartbeats": true} {
		t.Run(name, func(t *testing.T) {
			const parts = 20
			d, _ := crowded(t, waiting)
			begun := d.now
			if waiting {
				d.Subscribed(d.now)
				for _, r := range d.rest(t).Send {
					d.Replied(d.now, r, protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}, nil)
				}
			}
			period := lease / 3
			var sent [parts]int
			for total := 0; total < many; {
				d.now = d.now.Add(d.next(t))
				after := d.now.Sub(begun)
				require.GreaterOrEqual(t, after, period-period/10-2*time.Millisecond)
				require.LessOrEqual(t, after, period)
				for d.Tick(d.now); ; d.Tick(d.now) {
					fx := d.flush()
					part := min(int((after-period+period/10)*parts/(period/10)), parts-1)
					sent[max(part, 0)] += len(fx.Send)
					total += len(fx.Send)
					for _, r := range fx.Send {
						reply := protocol.Reply{Code: protocol.Done}
						if waiting {
							reply = protocol.Reply{Obstacle: protocol.Obstacle{Again: time.Hour}}
						}
						d.Replied(d.now, r, reply, nil)
					}
					if at, _ := d.Next(); at.After(d.now) {
						break
					}
				}
			}
			for _, n := range sent {
				require.LessOrEqual(t, n, many/parts*3/2+slice, "%v", sent)
			}
		})
	}
}

// The calls of one owner that wait for one in front of them go on a slice at a time.
func TestCallsOfOneOwnerGoOnInSlices(t *testing.T) {
	d, _ := crowded(t, false)
	mine := engine.Owner{Handle: many + 1}
	first, r := d.call(t, &engine.Hold{Name: "b", Owner: mine, Mode: protocol.Read})
	holds := []*engine.Hold{first}
	for range many {
		h := &engine.Hold{Name: "b", Owner: mine, Mode: protocol.Read, Lease: lease, Bounded: true}
		d.Acquire(d.now, h)
		holds = append(holds, h)
	}
	live := func() (n int) {
		for _, h := range holds {
			if h.State() == engine.Live {
				n++
			}
		}
		return n
	}
	d.Replied(d.now, r, protocol.Reply{Token: many + 1}, nil)
	for before := 0; before < len(holds); {
		require.Len(t, d.Current(), many+len(holds), "those that go on later are shown, too")
		n := live()
		require.LessOrEqual(t, n-before, 2*slice+1)
		require.Greater(t, n, before)
		before = n
		d.Tick(d.now)
	}
	for _, h := range holds {
		_, err := d.Release(d.now, h)
		require.NoError(t, err)
	}
}

// Calls that wait behind one that asks leave nothing to do.
func TestCallsOfOneOwnerWaitForTheNext(t *testing.T) {
	d := newDriver()
	calls := []*engine.Hold{d.queued(t, &engine.Hold{Bounded: true})}
	for range many {
		calls = append(calls, d.wait(t, &engine.Hold{Bounded: true}))
	}
	for _, h := range calls[:3] {
		d.GiveUp(d.now, h, errPassing)
		at, _ := d.Next()
		require.True(t, at.After(d.now))
	}
}
