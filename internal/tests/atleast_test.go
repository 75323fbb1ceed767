package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

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
				_, err := far.TryLock(newOwner(), "n")
				require.ErrorIs(w, err, rwlock.ErrLocked)
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

func TestAtLeastThatCannotBeIsRefused(t *testing.T) {
	bubbled(t, func(w *world) {
		for _, opts := range [][]rwlock.LockOption{
			{rwlock.AtLeast(0)},
			{rwlock.AtLeast(-1)},
			{rwlock.AtLeast(time.Minute), rwlock.MaxHold(59 * time.Second)},
			{rwlock.NoRenew(), rwlock.Lease(time.Second), rwlock.AtLeast(2 * time.Second)},
		} {
			_, err := w.newLock().Lock(newOwner(), "n", opts...)
			require.ErrorContains(w, err, "at least")
		}
	})
}
