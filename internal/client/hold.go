package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Hold is the Client's part of a hold, or of a call that asks for one. The user's handle refers to the
// Hold, but the Hold does not refer to the handle. So the Client can notice that the handle is unreachable.
type Hold struct {
	hold     engine.Hold
	client   *Client
	ended    chan struct{} // has a signal when a call or a release has ended that someone waits for
	released bool          // by Unlock
	trace    *trace        // nil without a tracer
	from     uintptr       // the call that took it
	atLeast  time.Duration // how long after it was granted Unlock may release it
	// why the call has returned, though the engine does not know yet; set while Client.mu is locked for
	// reading
	gaveUp error

	scope
}

// Name returns the name of the lock.
func (h *Hold) Name() string { return h.hold.Name }

// Mode returns the mode of the hold.
func (h *Hold) Mode() protocol.Mode { return h.hold.Mode }

// Owner returns the owner of the hold.
func (h *Hold) Owner() protocol.Owner { return h.hold.Owner }

// Token returns the fencing token, or 0 for a zero Hold.
func (h *Hold) Token() int64 {
	if h.client == nil {
		return 0
	}
	return h.hold.Token()
}

// Deadline returns until when the hold may be relied on, or could be. It is zero for a zero Hold.
func (h *Hold) Deadline() time.Time {
	if h.client == nil {
		return time.Time{}
	}
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	return h.hold.Deadline()
}

// Lost reports whether the hold was lost before it was released.
func (h *Hold) Lost() bool {
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	return errors.Is(h.hold.Err(), engine.ErrLost)
}

// Caller returns the place in the program that asked for the hold, or a zero Source if that is not known.
func (h *Hold) Caller() slog.Source {
	if h == nil || h.from == 0 {
		return slog.Source{}
	}
	f, _ := runtime.CallersFrames([]uintptr{h.from}).Next()
	return slog.Source{Function: f.Function, File: f.File, Line: f.Line}
}

// Forget stops renewing a hold whose handle became unreachable without Unlock.
func (h *Hold) Forget() {
	h.client.do(func(now time.Time) { h.client.engine.Forget(now, &h.hold) })
}

// Unlock releases the hold, and waits for the server's answer until ctx ends, for five seconds at most.
func (h *Hold) Unlock(ctx context.Context) error {
	c := h.client
	c.mu.Lock()
	if h.released {
		c.mu.Unlock()
		return engine.ErrNotHeld
	}
	h.released = true
	now := time.Now()
	begun := h.done != nil
	if rest := h.hold.Since().Add(h.atLeast).Sub(now); rest > 0 && h.hold.State() == engine.Live {
		c.mu.Unlock()
		time.AfterFunc(rest, h.release)
		if begun {
			h.end(nil)
		}
		return nil
	}
	known, err := c.engine.Release(now, &h.hold)
	if c.local != nil {
		c.local.Work(now)
	}
	if !known && h.hold.State() == engine.Finished {
		known, err = true, h.hold.Err()
	}
	fx := c.unlock(now)
	if begun {
		h.end(err)
	}
	if known {
		c.run(fx, nil)
		return err
	}
	if ctx == nil || ctx.Err() != nil {
		ctx = context.Background()
	}
	c.run(fx, ctx)
	return h.await(ctx, now.Add(endTimeout))
}

// release releases a hold that Unlock has kept for AtLeast. Nobody waits for the answer.
func (h *Hold) release() {
	h.client.do(func(now time.Time) { _, _ = h.client.engine.Release(now, &h.hold) })
}

// await waits until the server has answered a release, or until ctx or end is done.
func (h *Hold) await(ctx context.Context, end time.Time) error {
	c := h.client
	c.mu.Lock()
	if h.hold.State() == engine.Finished {
		defer c.mu.Unlock()
		return h.hold.Err()
	}
	h.ended = c.signals.Get().(chan struct{})
	c.mu.Unlock()

	timeout, ok := c.timeouts.Get().(*time.Timer)
	if ok {
		timeout.Reset(time.Until(end))
	} else {
		timeout = time.NewTimer(time.Until(end))
	}
	defer func() {
		timeout.Stop()
		c.timeouts.Put(timeout)
	}()
	var gaveUp error
	select {
	case <-h.ended:
	case <-ctx.Done():
		gaveUp = fmt.Errorf("no answer yet, the release goes on: %w", ctx.Err())
	case <-timeout.C:
		gaveUp = fmt.Errorf("no answer for %v, the release goes on: %w", endTimeout, context.DeadlineExceeded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.hold.State() == engine.Finished {
		c.expected(h)
		return h.hold.Err()
	}
	if cause := h.hold.LastError(); cause != nil {
		return fmt.Errorf("%w: %w", gaveUp, cause)
	}
	return gaveUp
}

// Extend has the hold last for d from now, at least.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	w := wait{ctx: ctx, start: time.Now()}
	if err := ctx.Err(); err != nil {
		return w.over(err)
	}
	c := h.client
	done := make(chan error, 1)
	x := engine.Extension{Tag: done}
	c.do(func(now time.Time) { c.engine.Extend(now, &h.hold, d, &x) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	err := c.unanswered(&w, &h.hold)
	c.do(func(time.Time) { c.engine.GiveUpExtension(&x, err) })
	return <-done
}
