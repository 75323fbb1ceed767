package tests

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// doFunc is Do or RDo for a string.
type doFunc = func(context.Context, *rwlock.RWLock, string, func(context.Context, *rwlock.Hold) (string, error), ...rwlock.LockOption) (string, error)

var doFuncs = map[rwlock.Mode]doFunc{read: rwlock.RDo[string], write: rwlock.Do[string]}

// Do and RDo run their function under the lock, return its value and its error, and release the lock.
func TestDoReturnsTheFunctionsValue(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, failure := w.newLock(), errors.New("failure")
		for mode, do := range doFuncs {
			for _, want := range []error{nil, failure} {
				v, err := do(context.Background(), rw, "n", func(ctx context.Context, h *rwlock.Hold) (string, error) {
					require.Equal(w, mode, h.Mode())
					require.Equal(w, mode, inspect(w, rw, "n").Mode)
					unlock(w, take(w, ctx, rw, mode, "n")) // the same owner re-enters
					return "value", want
				})
				require.Equal(w, "value", v)
				require.Equal(w, want, err)
				require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
			}
		}
	})
}

// Do and RDo run nothing without the lock, and return the zero value.
func TestDoWithoutTheLock(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		for mode, do := range doFuncs {
			v, err := do(context.Background(), rw, "n", func(context.Context, *rwlock.Hold) (string, error) {
				w.Error("the function ran")
				return "value", nil
			}, rwlock.MaxWait(w.lease))
			require.Zero(w, v)
			require.ErrorIs(w, err, context.DeadlineExceeded)
			require.ErrorContains(w, err, map[rwlock.Mode]string{read: `rlock "n"`, write: `lock "n"`}[mode])
		}
		unlock(w, h)
	})
}

// A value that was made under a lost lock comes with ErrLost, and after a panic the lock is free.
func TestDoUnderALostLockOrAPanic(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what Do returns")
		rw := w.newLock()
		for _, do := range doFuncs {
			v, err := do(context.Background(), rw, "n", func(_ context.Context, h *rwlock.Hold) (string, error) {
				w.lostWhen(h)
				return "value", nil
			}, rwlock.Lease(w.lease), rwlock.NoRenew())
			require.Equal(w, "value", v)
			require.ErrorIs(w, err, rwlock.ErrLost)
			waitFree(w, rw, "n")

			require.PanicsWithValue(w, "panic", func() {
				_, _ = do(context.Background(), rw, "n", func(context.Context, *rwlock.Hold) (string, error) { panic("panic") })
			})
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
		}
	})
}
