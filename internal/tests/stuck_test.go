package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A release that meets an outage is tried again for as long as the server may keep the claim, which a
// re-entry may have made longer than the lease that it began with: the lock is free soon after the outage,
// not at the end of that lease.
func TestReleaseIsRetriedForAsLongAsTheServerKeepsTheClaim(t *testing.T) {
	t.Parallel()
	for _, outage := range []time.Duration{9 * time.Second, time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			bubbled(t, func(w *world) {
				rw, hole := w.overHole(rwlock.WithLease(5 * time.Second))
				other := w.newLock()
				for _, mode := range bothModes {
					outer := take(w, newOwner(), rw, mode, mode.String())
					inner := take(w, outer.Context(), rw, mode, mode.String(), rwlock.Lease(quiet))
					hole.open.Store(true)
					start := time.Now()
					var wg sync.WaitGroup
					for _, h := range []*rwlock.Hold{inner, outer} {
						wg.Go(func() {
							ctx, cancel := context.WithTimeout(context.Background(), time.Second)
							defer cancel()
							_ = h.Unlock(ctx) // may say that it goes on in the background
						})
						time.Sleep(time.Millisecond)
					}
					wg.Wait()
					time.Sleep(time.Until(start.Add(outage)))
					hole.open.Store(false)
					next := w.launch(newOwner(), other, write, mode.String())
					unlock(w, next.granted())
					w.within(30*time.Second, start.Add(outage), next.at)
				}
				time.Sleep(time.Minute) // until the client gives up what was sent into the outage, or Close would wait for that
			})
		})
	}
}

// Close says so if the server may keep a hold that could not be released, though Unlock was called for it.
func TestCloseSaysWhatItCouldNotRelease(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, begin, _ := w.underOutage("frozen", 0)
		h := take(w, newOwner(), rw, write, "n", rwlock.Lease(quiet))
		begin()
		w.returnsIn(bound, "Unlock", func() { _ = h.Unlock(context.Background()) })
		var err error
		w.returnsIn(bound, "Close", func() { err = rw.Close() })
		require.Error(w, err)
	})
}
