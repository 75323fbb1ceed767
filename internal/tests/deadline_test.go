package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// Deadline is when the context of a hold that is not renewed is cancelled.
func TestDeadlineIsWhenTheHoldEnds(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			start := time.Now()
			h := take(w, newOwner(), rw, mode, "n", rwlock.NoRenew())
			require.Equal(w, start.Add(w.lease-margin(w.lease)), h.Deadline())
			require.Equal(w, h.Deadline(), w.lostWhen(h))
			require.Equal(w, start.Add(w.lease-margin(w.lease)), h.Deadline(), "it stays the last such moment")
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}
	})
}

// Deadline moves on with each renewal, lies ahead while the hold lasts, and never steps back.
func TestDeadlineMovesOnWithRenewals(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		for _, mode := range bothModes {
			h := take(w, newOwner(), rw, mode, "n")
			first, last := h.Deadline(), h.Deadline()
			for end := time.Now().Add(2 * w.lease); time.Now().Before(end); time.Sleep(w.lease / 20) {
				require.True(w, h.Deadline().After(time.Now()))
				require.False(w, h.Deadline().Before(last))
				last = h.Deadline()
			}
			require.True(w, last.After(first.Add(w.lease)))
			unlock(w, h)
			require.False(w, h.Deadline().After(time.Now().Add(w.lease)))
		}
	})
}

// After a hold has ended, its Deadline stays, though another hold of its owner is renewed.
func TestDeadlineStaysOnceTheHoldHasEnded(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			outer := take(w, newOwner(), rw, mode, "n")
			released, lost := take(w, outer.Context(), rw, mode, "n"), take(w, outer.Context(), rw, mode, "n", rwlock.MaxHold(time.Second))
			unlock(w, released)
			at := released.Deadline()
			w.lostWhen(lost)
			end := lost.Deadline()
			time.Sleep(w.lease)
			require.NoError(w, outer.Context().Err())
			require.Equal(w, at, released.Deadline())
			require.Equal(w, end, lost.Deadline())
			require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
			unlock(w, outer)
		}
	})
}
