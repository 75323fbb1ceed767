package rwlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// The error of a Try call, and that of a wait that has ended, say who is in the way: in which mode, whether it is an owner of the same
// RWLock, how many waiters go first, and when it may pay to ask again.
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
