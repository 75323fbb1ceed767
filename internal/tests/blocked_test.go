package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// The error of a Try call, and that of a wait that has ended, say who is in the way: in which mode, whether
// it is an owner of the same RWLock, how many waiters go first, and when it may pay to ask again.
func TestBlockedErrorSaysWhoIsInTheWay(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what errors say")
		rw, far := w.newLock(rwlock.WithLease(w.lease)), w.newLock(rwlock.WithLease(w.lease))
		for _, holds := range bothModes {
			for _, ours := range []bool{true, false} {
				holder := far
				if ours {
					holder = rw
				}
				h := take(w, newOwner(), holder, holds, "n")
				waiter := w.enqueue(newOwner(), far, write, "n")
				for _, asks := range bothModes {
					ahead := 1 // the writer; but when a write hold ends, readers go first
					if holds == write && asks == read {
						ahead = 0
					}
					_, tried := try(newOwner(), rw, asks, "n")
					require.ErrorIs(w, tried, rwlock.ErrLocked)
					_, waited := acquire(newOwner(), rw, asks, "n", rwlock.MaxWait(w.lease/2))
					for _, err := range []error{tried, waited} {
						blocked, ok := errors.AsType[*rwlock.BlockedError](err)
						require.True(w, ok, "%v", err)
						require.Equal(w, "n", blocked.Name)
						require.Equal(w, asks, blocked.Mode)
						require.Equal(w, holds, blocked.HeldIn)
						require.Equal(w, h.Owner(), blocked.Holder)
						require.Equal(w, ours, blocked.Ours)
						require.Equal(w, ahead, blocked.Ahead)
						require.Positive(w, blocked.RetryAfter)
						require.LessOrEqual(w, blocked.RetryAfter, w.lease+time.Second)
					}
				}
				unlock(w, h)
				unlock(w, waiter.granted())
			}
		}
	})
}

// requireBlockedBy requires that an error names nobody but that holder, and that a try may pay within a time.
func requireBlockedBy(t *testing.T, err error, holder *rwlock.Hold, within time.Duration) {
	t.Helper()
	blocked, ok := errors.AsType[*rwlock.BlockedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, holder.Owner(), blocked.Holder)
	require.Equal(t, holder.Mode(), blocked.HeldIn)
	require.Positive(t, blocked.RetryAfter)
	require.LessOrEqual(t, blocked.RetryAfter, within)
}

// requireNotBlocked requires that an error names nobody.
func requireNotBlocked(t *testing.T, err error) {
	t.Helper()
	_, ok := errors.AsType[*rwlock.BlockedError](err)
	require.False(t, ok, "%v", err)
}

// What an error says of the holder, and of when to try again, is so when the call returns, and not when the
// server last answered.
func TestBlockedErrorIsOfNow(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		first := take(w, newOwner(), rw, write, "n")
		next := w.enqueue(newOwner(), rw, write, "n")
		last := w.enqueue(newOwner(), rw, write, "n", rwlock.MaxWait(4*time.Second))
		time.Sleep(time.Second)
		unlock(w, first)
		second := next.granted()
		requireBlockedBy(w.T, rw.Snapshot().Waits[0].Blocked, second, w.lease)
		_, err := last.wait()
		require.ErrorIs(w, err, context.DeadlineExceeded)
		requireBlockedBy(w.T, err, second, w.lease)
		unlock(w, second)

		h := take(w, newOwner(), far, write, "brief", rwlock.NoRenew(), rwlock.Lease(6*time.Second))
		_, err = rw.Lock(newOwner(), "brief", rwlock.MaxWait(4*time.Second))
		requireBlockedBy(w.T, err, h, 2*time.Second+margin(6*time.Second))
		unlock(w, h)
	})
}

// Whoever has the lock is not told that others are in the way, nor is anybody told that it is in its own.
func TestBlockedErrorIsNotOfTheCallersOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		rw, begin, end := w.underOutage("frozen", 0)
		before := take(w, newOwner(), rw, write, "n")
		waiting := w.enqueue(newOwner(), rw, write, "n")
		unlock(w, before)
		h := waiting.granted()
		begin()
		_, err := rw.Lock(h.Context(), "n", rwlock.MaxWait(time.Second))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.ErrorContains(w, err, "the server has not answered")
		requireNotBlocked(w.T, err)

		ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
		defer cancel()
		require.ErrorIs(w, h.Unlock(ctx), context.DeadlineExceeded)
		end()
		_, err = rw.TryLock(rwlock.WithOwner(context.Background(), h.Owner()), "n")
		require.ErrorIs(w, err, rwlock.ErrLocked)
		requireNotBlocked(w.T, err)
		waitFree(w, rw, "n")
	})
}
