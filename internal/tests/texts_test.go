package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A try that is refused counts as ahead those that would go before it if it waited: for a reader that is no
// writer while one writes, since the readers that wait by then are let in first, and the first writer alone
// while others read.
func TestTryCountsWhoWouldGoBefore(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		ahead := map[rwlock.Mode]map[rwlock.Mode]string{
			write: {read: "", write: ", 3 waiting ahead"},
			read:  {read: ", 1 waiting ahead", write: ", 3 waiting ahead"},
		}
		for _, held := range bothModes {
			h := take(w, newOwner(), rw, held, held.String())
			var calls []*call
			for range 3 {
				calls = append(calls, w.enqueue(newOwner(), rw, write, held.String()))
			}
			for mode, want := range ahead[held] {
				_, err := try(newOwner(), rw, mode, held.String())
				require.ErrorIs(w, err, rwlock.ErrLocked)
				if want == "" {
					require.NotRegexp(w, `[1-9]\d* waiting ahead`, err.Error())
				} else {
					require.ErrorContains(w, err, want)
				}
			}
			unlock(w, h)
			for _, c := range calls {
				unlock(w, c.granted())
			}
		}
	})
}

// The error of a call whose context was cancelled says how long the call took of the call, not of the cause:
// a hold that was lost is not said to have been "released after" that.
func TestErrorSaysHowLongTheCallTook(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		lost := take(w, newOwner(), rw, write, "lost", rwlock.Lease(time.Second), rwlock.NoRenew())
		other := take(w, newOwner(), rw, write, "n")
		waiting := w.launch(rwlock.WithOwner(lost.Context(), rwlock.NewOwner()), rw, write, "n")
		w.lostWhen(lost)
		_, waited := waiting.wait()
		_, atOnce := rw.Lock(lost.Context(), "another")
		_, inspected := rw.Inspect(lost.Context(), "another")
		for _, err := range []error{waited, atOnce, inspected, rw.ForceUnlock(lost.Context(), "another")} {
			require.ErrorIs(w, err, context.Canceled)
			require.NotRegexp(w, `released after`, err.Error())
		}
		require.ErrorContains(w, waited, "context canceled after 988ms") // a second, less the margin
		require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
		unlock(w, other)
	})
}
