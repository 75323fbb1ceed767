package rwlock

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// Extend makes the hold last for at least d from now, whether or not it is renewed, and even if the server
// cannot be reached meanwhile. A worker that holds a lock with NoRenew can call it whenever it makes
// progress. Extend never shortens a hold. It does not extend a hold beyond its MaxHold; [Hold.Deadline]
// returns until when the hold lasts.
//
// Extend returns nil when the server has confirmed the extension, or at once if none is needed. It returns
// ErrLost if the hold was lost; ErrNotHeld if the hold was released, or if h is nil; ErrClosed after Close;
// an error that matches ctx's if ctx ends first; or the server's error. In the last two cases the hold is
// still there, and lasts at least until its Deadline. d must be positive and at most ten years.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	if h.none() {
		return fmt.Errorf("rwlock: extend: %w", ErrNotHeld)
	}
	defer runtime.KeepAlive(h)
	if err := h.held.extend(ctx, d); err != nil {
		return wrap("extend", h.Name(), err)
	}
	return nil
}

func (h *holding) extend(ctx context.Context, d time.Duration) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if d <= 0 || d > maxLease {
		return fmt.Errorf("extension %v is not more than zero and at most %v", d, maxLease)
	}
	w := wait{ctx: ctx, start: time.Now()}
	if err := ctx.Err(); err != nil {
		return w.over(err)
	}
	done := make(chan error, 1)
	x := engine.Extension{Tag: done}
	h.rw.mu.Lock()
	h.rw.engine.Extend(time.Now(), &h.hold, d, &x)
	h.rw.flush()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	err := h.rw.unanswered(&w, &h.hold)
	h.rw.mu.Lock()
	h.rw.engine.GiveUpExtension(&x, err)
	h.rw.flush()
	return <-done
}
