package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// everyCall makes each call of an RWLock that takes a context.
var everyCall = map[string]func(ctx context.Context, rw *rwlock.RWLock) error{
	"Lock":      func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.Lock(ctx, "n")) },
	"RLock":     func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.RLock(ctx, "n")) },
	"TryLock":   func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.TryLock(ctx, "n")) },
	"TryRLock":  func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.TryRLock(ctx, "n")) },
	"WithLock":  func(ctx context.Context, rw *rwlock.RWLock) error { return rw.WithLock(ctx, "n", nothing) },
	"WithRLock": func(ctx context.Context, rw *rwlock.RWLock) error { return rw.WithRLock(ctx, "n", nothing) },
	"WithAll": func(ctx context.Context, rw *rwlock.RWLock) error {
		return rw.WithAll(ctx, []rwlock.Want{{Name: "n", Mode: write}}, nothingWithAll)
	},
	"Do":          func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rwlock.Do(ctx, rw, "n", doNothing)) },
	"RDo":         func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rwlock.RDo(ctx, rw, "n", doNothing)) },
	"Inspect":     func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.Inspect(ctx, "n")) },
	"ForceUnlock": func(ctx context.Context, rw *rwlock.RWLock) error { return rw.ForceUnlock(ctx, "n") },
}

func nothing(context.Context, *rwlock.Hold) error { return nil }

func doNothing(context.Context, *rwlock.Hold) (int, error) { return 0, nil }

// A context that is nil, and an RWLock that New has not made, are errors in words.
func TestNilContextAndUnmadeRWLock(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for name, call := range everyCall {
			var none context.Context
			require.ErrorContains(w, call(none, rw), "rwlock: ", name)
			require.ErrorContains(w, call(none, rw), "the context is nil", name)
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
			for _, unmade := range []*rwlock.RWLock{nil, {}} {
				require.ErrorContains(w, call(newOwner(), unmade), "rwlock: ", name)
				require.ErrorContains(w, call(newOwner(), unmade), "the RWLock was not made by New", name)
			}
		}
		for _, unmade := range []*rwlock.RWLock{nil, {}} {
			require.EqualError(w, unmade.Close(), "rwlock: close: the RWLock was not made by New")
			require.EqualError(w, unmade.Shutdown(context.Background()), "rwlock: shutdown: the RWLock was not made by New")
			require.Empty(w, unmade.Snapshot().Holds)
		}
		var none context.Context
		require.EqualError(w, rw.Shutdown(none), "rwlock: shutdown: the context is nil")
		_, ok := rwlock.OwnerFromContext(none)
		require.False(w, ok)
	})
}

// A function that is nil is an error in words, and the lock is left free.
func TestNilFunction(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, ctx := w.newLock(), newOwner()
		for want, err := range map[string]error{
			`rwlock: lock "a": the function is nil`:  rw.WithLock(ctx, "a", nil),
			`rwlock: rlock "b": the function is nil`: rw.WithRLock(ctx, "b", nil),
			`rwlock: lock "c": the function is nil`:  errOf(rwlock.Do[int](ctx, rw, "c", nil)),
			`rwlock: rlock "d": the function is nil`: errOf(rwlock.RDo[int](ctx, rw, "d", nil)),
		} {
			require.EqualError(w, err, want)
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
		}
	})
}

// Unlock takes a context that is nil for one that does not end.
func TestUnlockWithNilContext(t *testing.T) {
	bubbled(t, func(w *world) {
		var none context.Context
		require.NoError(w, take(w, newOwner(), w.newLock(), write, "n").Unlock(none))
	})
}
