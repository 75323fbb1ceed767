package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

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
					for left > c.most/20 {
						time.Sleep(c.most / 25)
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
		mortal, plug := w.newMortal(rwlock.WithLease(100 * w.lease))
		start := time.Now()
		take(w, newOwner(), mortal, write, "n", rwlock.MaxHold(w.lease/2))
		plug.pull()
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

// A MaxHold that is no time to hold a lock is refused.
func TestBadMaxHold(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, d := range []time.Duration{-1, 0, 99 * time.Millisecond, 11 * 365 * 24 * time.Hour} {
			require.ErrorContains(w, errOf(rw.Lock(newOwner(), "n", rwlock.MaxHold(d))), "max hold "+d.String())
		}
	})
}

// While an owner has not released a hold that it lost, its calls fail with ErrLost in both modes, though
// another of its holds is good.
func TestReentryBesideALostHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			outer := take(w, newOwner(), rw, mode, "n")
			lost := take(w, outer.Context(), rw, mode, "n", rwlock.MaxHold(w.lease/10))
			w.lostWhen(lost)
			for _, asks := range bothModes {
				for _, lock := range []lockFunc{acquire, try} {
					require.ErrorIs(w, errOf(lock(outer.Context(), rw, asks, "n")), rwlock.ErrLost)
				}
			}
			require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
			unlock(w, take(w, outer.Context(), rw, mode, "n"), outer)
		}
	})
}
