package browsertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A shop holds some locks and waits for others, until the test ends.
type shop struct {
	*testing.T
	ctx context.Context // until then
	rw  *rwlock.RWLock
}

func (s shop) shipOrder()  { s.keep(s.rw.Lock(s.ctx, "orders:42")) }
func (s shop) readPrices() { s.keep(s.rw.RLock(s.ctx, "prices")) }
func (s shop) nightlyReport() {
	s.keep(s.rw.Lock(s.ctx, "reports:nightly", rwlock.NoRenew(), rwlock.Lease(10*time.Minute)))
}
func (s shop) importFeed()   { s.keep(s.rw.Lock(s.ctx, "feed <draft> \xff")) }
func (s shop) updatePrices() { s.await(s.rw.Lock(s.ctx, "prices")) }
func (s shop) showPrices()   { s.await(s.rw.RLock(s.ctx, "prices")) }
func (s shop) countStock()   { s.await(s.rw.RLock(s.ctx, "stock")) }
func (s shop) cancelOrder()  { s.await(s.rw.Lock(s.ctx, "orders:42")) }

// attack has a lock whose name sets the title of a page that takes it for a part of itself.
func (s shop) attack() {
	s.keep(s.rw.Lock(s.ctx, `<img src=x onerror="document.title='evil'"><script>document.title='evil'</script>`))
}

func (s shop) keep(h *rwlock.Hold, err error) {
	s.Helper()
	require.NoError(s, err)
	s.Cleanup(func() { _ = h.Unlock(context.Background()) })
}

// await releases what a call has got, if it has.
func (s shop) await(h *rwlock.Hold, err error) {
	if err == nil {
		_ = h.Unlock(context.Background())
	}
}

// begin starts calls that wait, one after the other.
func (s shop) begin(calls ...func()) {
	s.Helper()
	for i, call := range calls {
		done := make(chan struct{})
		go func() {
			defer close(done)
			call()
		}()
		s.Cleanup(func() { <-done })
		require.Eventually(s, func() bool {
			waits := s.rw.Snapshot().Waits
			return len(waits) == i+1 && waits[i].Blocked != nil && waits[i].Blocked.Label != ""
		}, 30*time.Second, 5*time.Millisecond)
	}
}
