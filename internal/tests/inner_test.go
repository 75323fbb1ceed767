package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// Once an inner hold with a longer lease is released, the server keeps what the outer one asked for: if the
// process dies then, others wait for the outer hold's lease. The outer hold's context does not outlive it.
func TestInnerLeaseEndsWithTheInnerHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			for name, opts := range map[string][]rwlock.LockOption{"renewed": nil, "not renewed": {rwlock.NoRenew()}} {
				name := mode.String() + " " + name
				mortal, plug := w.newMortal(rwlock.WithLease(w.lease))
				start := time.Now()
				outer := take(w, newOwner(), mortal, mode, name, opts...)
				inner := take(w, outer.Context(), mortal, mode, name, rwlock.Lease(quiet))
				require.Greater(w, w.left(rw, outer), w.lease)
				unlock(w, inner)
				require.LessOrEqual(w, w.left(rw, outer), w.lease)
				require.NoError(w, outer.Context().Err())

				plug.pull()
				died := time.Now()
				if opts != nil {
					died = start
				}
				next := w.launch(newOwner(), rw, write, name)
				lost := w.lostWhen(outer)
				unlock(w, next.granted())
				w.within(w.lease+w.slack, died, next.at)
				require.False(w, lost.After(next.at.Add(w.prompt)), "others had the lock before its holder knew")
				require.ErrorIs(w, outer.Unlock(context.Background()), rwlock.ErrLost)
			}
		}
	})
}

// A lease that an inner hold shares with others of its owner ends with the last of them that asked for it;
// what is left is renewed as before.
func TestLongestRemainingLeaseIsKept(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			ctx := newOwner()
			short, middle, long := take(w, ctx, rw, mode, "n", rwlock.Lease(6*time.Second)),
				take(w, ctx, rw, mode, "n", rwlock.Lease(time.Minute)), take(w, ctx, rw, mode, "n", rwlock.Lease(quiet))
			unlock(w, long)
			require.LessOrEqual(w, w.left(rw, short), time.Minute)
			require.Greater(w, w.left(rw, short), 30*time.Second)
			unlock(w, middle)
			for range 20 {
				require.LessOrEqual(w, w.left(rw, short), 6*time.Second)
				time.Sleep(time.Second)
			}
			require.NoError(w, short.Context().Err())
			unlock(w, short)
		}
	})
}

// An inner Unlock that learns from the server that the owner's hold is gone tells the outer hold's context at
// once.
func TestInnerUnlockThatFindsTheLossEndsTheOuterHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, other := w.newLock(rwlock.WithLease(quiet)), w.newLock()
		for _, mode := range bothModes {
			ctx := newOwner()
			outer, inner, again := take(w, ctx, rw, mode, "n"), take(w, ctx, rw, mode, "n"), take(w, ctx, rw, mode, "n")
			require.NoError(w, other.ForceUnlock(context.Background(), "n"))
			taken := take(w, newOwner(), other, write, "n")
			require.NoError(w, outer.Context().Err())
			start := time.Now()
			require.ErrorIs(w, inner.Unlock(context.Background()), rwlock.ErrLost)
			w.within(w.prompt, start, w.lostWhen(outer))
			w.within(w.prompt, start, w.lostWhen(again))
			require.ErrorIs(w, again.Unlock(context.Background()), rwlock.ErrLost)
			require.ErrorIs(w, outer.Unlock(context.Background()), rwlock.ErrLost)
			unlock(w, taken)
		}
	})
}
