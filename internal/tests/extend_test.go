package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// extended ends the test if the server does not keep a hold for d from some time on, or for much longer than
// the client's margin beyond.
func (w *world) extended(rw *rwlock.RWLock, h *rwlock.Hold, d time.Duration, from time.Time) {
	w.Helper()
	least, most := d, d+d/99+4*time.Millisecond
	left := w.left(rw, h)
	if !w.fake {
		least -= time.Since(from) + time.Millisecond // a lease counts in whole ones
	}
	require.GreaterOrEqual(w, left, least)
	require.LessOrEqual(w, left, most)
}

// A hold that is not renewed lasts for as long as Extend says, here and on the server, and no longer.
func TestExtendMovesTheEndOfAHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			h := take(w, newOwner(), rw, mode, "n", rwlock.NoRenew(), rwlock.Lease(w.lease))
			var extended time.Time
			for range 3 {
				time.Sleep(w.lease / 2)
				extended = time.Now()
				require.NoError(w, h.Extend(context.Background(), w.lease))
				require.False(w, h.Deadline().Before(extended.Add(w.lease)))
				w.extended(rw, h, w.lease, extended)
			}
			lost := w.lostWhen(h).Sub(extended)
			require.GreaterOrEqual(w, lost, w.lease)
			require.LessOrEqual(w, lost, w.lease+w.slack)
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}
	})
}

// An extended hold lasts though its process cannot reach the server, renewed or not, and nobody else has the
// lock meanwhile.
func TestExtendOutlastsTheServer(t *testing.T) {
	bubbled(t, func(w *world) {
		other := w.newLock()
		for _, opts := range [][]rwlock.LockOption{nil, {rwlock.NoRenew()}} {
			// all the time, servers are asked again
			for _, d := range []time.Duration{40 * time.Second, 20 * time.Minute} {
				mortal, wire := w.newMortal()
				h := take(w, newOwner(), mortal, write, "n", opts...)
				start := time.Now()
				require.NoError(w, h.Extend(context.Background(), d))
				wire.cut()
				next := w.launch(newOwner(), other, write, "n")
				require.Equal(w, h.Deadline(), w.lostWhen(h))
				require.GreaterOrEqual(w, time.Since(start), d)
				require.False(w, next.returned())
				unlock(w, next.granted())
				w.within(d+margin(d)+d/99+w.slack, start, next.at)
			}
		}
	})
}

// Extend never shortens a hold, and asks the server for nothing that is so already.
func TestExtendNeverShortens(t *testing.T) {
	bubbled(t, func(w *world) {
		mortal, wire := w.newMortal()
		for _, opts := range [][]rwlock.LockOption{nil, {rwlock.NoRenew()}} {
			h := take(w, newOwner(), mortal, write, "n", opts...)
			wire.cut()
			before := h.Deadline()
			require.NoError(w, h.Extend(context.Background(), time.Millisecond))
			require.NoError(w, h.Extend(context.Background(), time.Until(before)))
			require.Equal(w, before, h.Deadline())
			wire.mend()
			unlock(w, h)
		}
	})
}

// MaxHold ends a hold whatever Extend says.
func TestMaxHoldEndsAnExtendedHold(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, opts := range [][]rwlock.LockOption{{rwlock.MaxHold(time.Minute)},
			{rwlock.MaxHold(time.Minute), rwlock.NoRenew()}} {
			h := take(w, newOwner(), rw, write, "n", opts...)
			start := time.Now()
			require.NoError(w, h.Extend(context.Background(), time.Hour))
			require.Equal(w, start.Add(time.Minute), h.Deadline())
			require.LessOrEqual(w, w.left(rw, h), time.Minute+2*margin(time.Minute))
			require.Equal(w, time.Minute, w.lostWhen(h).Sub(start))
			require.ErrorIs(w, h.Extend(context.Background(), time.Hour), rwlock.ErrLost)
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}
	})
}

// What an owner's other holds need, and their release, takes nothing from an extended hold; nor does its
// extension outlive it.
func TestExtendOfOneOfSeveral(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		for _, mode := range bothModes {
			for _, opts := range [][]rwlock.LockOption{nil, {rwlock.NoRenew()}} {
				ctx := newOwner()
				a, b := take(w, ctx, rw, mode, "n", opts...), take(w, ctx, rw, mode, "n", rwlock.NoRenew())
				start := time.Now()
				require.NoError(w, a.Extend(ctx, 10*w.lease))
				c := take(w, ctx, rw, mode, "n")
				unlock(w, b, c)
				w.extended(rw, a, 10*w.lease, start)
				require.True(w, a.Deadline().After(start.Add(9*w.lease)))
				start = time.Now()
				d := take(w, ctx, rw, mode, "n", rwlock.NoRenew())
				unlock(w, a)
				w.around(w.lease, w.left(rw, d), start)
				unlock(w, d)
			}
		}
	})
}

// Extend of what is no hold any more says why, and changes nothing.
func TestExtendWithoutAHold(t *testing.T) {
	everywhere(t, func(w *world) {
		ctx := context.Background()
		rw, far := w.newLock(), w.newLock()
		for _, h := range []*rwlock.Hold{nil, {}} {
			require.ErrorIs(w, h.Extend(ctx, time.Hour), rwlock.ErrNotHeld)
		}
		released := take(w, newOwner(), rw, write, "released")
		unlock(w, released)
		require.ErrorIs(w, released.Extend(ctx, time.Hour), rwlock.ErrNotHeld)

		dropped := take(w, newOwner(), rw, write, "dropped")
		require.NoError(w, far.ForceUnlock(ctx, "dropped"))
		require.ErrorIs(w, dropped.Extend(ctx, time.Hour), rwlock.ErrLost)
		w.lostWhen(dropped)
		require.ErrorIs(w, dropped.Extend(ctx, time.Hour), rwlock.ErrLost)

		closed := take(w, newOwner(), rw, write, "closed")
		require.NoError(w, rw.Close())
		require.ErrorIs(w, closed.Extend(ctx, time.Hour), rwlock.ErrClosed)
		for _, name := range []string{"released", "dropped", "closed"} {
			require.Equal(w, rwlock.None, inspect(w, far, name).Mode)
		}
	})
}

// Extend refuses what is no time, and a context that is nil or done, and returns when its context ends; the
// hold stays.
func TestExtendThatFails(t *testing.T) {
	bubbled(t, func(w *world) {
		mortal, wire := w.newMortal()
		ctx, cancel := context.WithCancel(newOwner())
		h := take(w, ctx, mortal, write, "n")
		for _, d := range []time.Duration{-1, 0, 11 * 365 * 24 * time.Hour} {
			require.ErrorContains(w, h.Extend(ctx, d), "extension "+d.String())
		}
		var none context.Context
		require.ErrorContains(w, h.Extend(none, time.Hour), "the context is nil")
		wire.cut()
		start := time.Now()
		time.AfterFunc(5*time.Second, cancel)
		err := h.Extend(ctx, time.Hour)
		require.ErrorIs(w, err, context.Canceled)
		require.ErrorContains(w, err, `rwlock: extend "n": context canceled after 5s: the server has not answered`)
		require.ErrorContains(w, err, "the wire is cut")
		require.Equal(w, 5*time.Second, time.Since(start))
		require.ErrorIs(w, h.Extend(ctx, time.Hour), context.Canceled)
		require.True(w, h.Deadline().Before(start.Add(time.Minute)))
		wire.mend()
		unlock(w, h)
	})
}

// Many may extend a hold at a time, while it is renewed, re-entered and released.
func TestExtendByMany(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(4 * w.lease))
		h := take(w, newOwner(), rw, write, "n")
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for j := range 5 {
					d := 5*w.lease + time.Duration(i*10+j)*time.Millisecond
					end := time.Now().Add(d)
					if err := h.Extend(context.Background(), d); err != nil {
						w.Error(err)
					}
					if h.Deadline().Before(end) {
						w.Errorf("the hold lasts until %v, not until %v", h.Deadline(), end)
					}
					inner := take(w, h.Context(), rw, write, "n")
					if err := inner.Unlock(context.Background()); err != nil {
						w.Error(err)
					}
					time.Sleep(w.lease / 100)
				}
			})
		}
		wg.Wait()
		unlock(w, h)
	})
}

// A hold with MaxHold lasts for just so long, however its lease divides that, and however it was granted; and
// the server keeps it for no longer than the margin beyond.
func TestMaxHoldEndsTheHold(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		for _, mode := range bothModes {
			for _, c := range []struct{ lease, most time.Duration }{
				{30 * time.Second, 10 * time.Second},
				{30 * time.Second, 30 * time.Second},
				{30 * time.Second, 31 * time.Second},
				{30 * time.Second, 40 * time.Second},
				{30 * time.Second, 10 * time.Minute},
				{30 * time.Second, 100 * time.Millisecond},
				{time.Second, time.Minute + 1},
				{time.Hour, time.Minute},
			} {
				for _, waits := range []bool{false, true} {
					opts := []rwlock.LockOption{rwlock.Lease(c.lease), rwlock.MaxHold(c.most)}
					var h *rwlock.Hold
					if waits {
						before := take(w, newOwner(), far, write, "n")
						next := w.enqueue(newOwner(), rw, mode, "n", opts...)
						time.Sleep(7 * time.Second)
						unlock(w, before)
						h = next.granted()
					} else {
						h = take(w, newOwner(), rw, mode, "n", opts...)
					}
					start := time.Now()
					left := c.most
					for left > c.most/8 {
						time.Sleep(c.most / 10)
						left = c.most - time.Since(start)
						require.NoError(w, h.Context().Err(), "%v of %v", time.Since(start), c)
						require.LessOrEqual(w, w.left(rw, h), left+margin(c.lease)+2*time.Millisecond)
						require.False(w, h.Deadline().After(start.Add(c.most)))
					}
					require.InDelta(w, c.most, w.lostWhen(h).Sub(start), float64(time.Millisecond), "%v", c)
					require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
					waitFree(w, rw, "n")
				}
			}
		}
	})
}

// Whoever waits behind a hold with MaxHold gets the lock when it ends, though its process has died.
func TestMaxHoldOfADeadProcess(t *testing.T) {
	everywhere(t, func(w *world) {
		mortal, wire := w.newMortal(rwlock.WithLease(100 * w.lease))
		start := time.Now()
		take(w, newOwner(), mortal, write, "n", rwlock.MaxHold(w.lease/2))
		wire.cut()
		h := take(w, newOwner(), w.newLock(), write, "n")
		w.within(w.lease/2+w.slack, start, time.Now())
		unlock(w, h)
	})
}

// Each hold of an owner has a MaxHold of its own: when one ends, the others go on, and keep the lease that
// they need.
func TestMaxHoldOfOneOfSeveral(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			ctx := newOwner()
			long := take(w, ctx, rw, mode, "n")
			short := take(w, ctx, rw, mode, "n", rwlock.MaxHold(time.Minute))
			shorter := take(w, ctx, rw, mode, "n", rwlock.MaxHold(5*time.Second))
			start := time.Now()
			require.Equal(w, 5*time.Second, w.lostWhen(shorter).Sub(start))
			require.Equal(w, time.Minute, w.lostWhen(short).Sub(start))
			time.Sleep(time.Hour)
			require.NoError(w, long.Context().Err())
			require.Equal(w, 1, held(w, rw, "n", long.Owner(), mode).Count)
			for _, h := range []*rwlock.Hold{shorter, short} {
				require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
			}
			unlock(w, long)
		}
	})
}

// A hold that is released before its MaxHold is over is not lost, and MaxHold lengthens nothing.
func TestMaxHoldThatIsNotReached(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("when renewals end")
		rw := w.newLock(rwlock.WithLease(w.lease))
		start := time.Now()
		short := take(w, newOwner(), rw, write, "a", rwlock.NoRenew(), rwlock.MaxHold(100*w.lease))
		h := take(w, newOwner(), rw, write, "b", rwlock.MaxHold(100*w.lease))
		require.LessOrEqual(w, w.lostWhen(short).Sub(start), w.lease+w.prompt)
		time.Sleep(w.lease)
		unlock(w, h)
		require.ErrorIs(w, short.Unlock(context.Background()), rwlock.ErrLost)
	})
}

// While an owner has not released a hold that it lost, its calls fail with ErrLost in both modes, also if
// another of its holds is good.
func TestReentryBesideALostHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			for _, beside := range []bool{false, true} {
				ctx := newOwner()
				outer := take(w, ctx, rw, mode, "n")
				lost := take(w, ctx, rw, mode, "n", rwlock.MaxHold(w.lease/10))
				if !beside {
					unlock(w, outer)
				}
				w.lostWhen(lost)
				for _, asks := range bothModes {
					for _, lock := range []lockFunc{acquire, try} {
						require.ErrorIs(w, errOf(lock(ctx, rw, asks, "n")), rwlock.ErrLost)
					}
				}
				require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
				unlock(w, take(w, ctx, rw, mode, "n"))
				if beside {
					unlock(w, outer)
				}
			}
		}
	})
}

// Unlock ends the hold for its user, and the lock goes to the next in line when the time of AtLeast is over:
// also when that is longer than a lease.
func TestAtLeastKeepsTheLock(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		for _, mode := range bothModes {
			for _, d := range []time.Duration{time.Millisecond, 5 * time.Second, 50 * time.Second} {
				start := time.Now()
				h := take(w, newOwner(), rw, mode, "n", rwlock.AtLeast(d))
				ctx := h.Context()
				require.NoError(w, h.Unlock(context.Background()))
				require.Equal(w, start, time.Now())
				require.ErrorIs(w, context.Cause(ctx), context.Canceled)
				require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrNotHeld)
				require.ErrorIs(w, errOf(far.TryLock(newOwner(), "n")), rwlock.ErrLocked)
				next := take(w, newOwner(), far, write, "n")
				require.InDelta(w, d, time.Since(start), float64(time.Millisecond))
				unlock(w, next)
			}
		}
	})
}

// A hold that has lasted for longer than AtLeast is released by Unlock.
func TestAtLeastThatIsOverKeepsNothing(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		v, err := rwlock.Do(newOwner(), rw, "n", func(context.Context, *rwlock.Hold) (int, error) {
			time.Sleep(time.Minute)
			return 42, nil
		}, rwlock.AtLeast(time.Minute))
		require.NoError(w, err)
		require.Equal(w, 42, v)
		w.requireHolders(rw, "n", 0)
	})
}

func TestShutdownWaitsForAtLeastAndCloseDoesNot(t *testing.T) {
	bubbled(t, func(w *world) {
		for _, c := range []struct {
			end  func(rw *rwlock.RWLock) error
			took time.Duration
		}{
			{func(rw *rwlock.RWLock) error { return rw.Shutdown(context.Background()) }, time.Minute},
			{(*rwlock.RWLock).Close, 0},
		} {
			rw, start := w.newLock(), time.Now()
			unlock(w, take(w, newOwner(), rw, write, "n", rwlock.AtLeast(time.Minute)))
			require.NoError(w, c.end(rw))
			require.InDelta(w, c.took, time.Since(start), float64(time.Millisecond))
			waitFree(w, w.newLock(), "n")
		}
	})
}
