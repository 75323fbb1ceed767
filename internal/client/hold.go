package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A Hold is the Client's part of a hold, or of a call that asks for one. The user's handle refers to the
// Hold, but the Hold does not refer to the handle. So the Client can notice that the handle is unreachable.
type Hold struct {
	engine.Hold
	client *Client
	ended  chan struct{} // has a signal when a call or a release has ended that someone waits for
	trace  *trace        // nil without a tracer
	from   uintptr       // the call that took it
	// why the call has returned, though the engine does not know yet; set while Client.mu is locked for
	// reading
	gaveUp error

	next    atomic.Pointer[Hold] // what a downgrade or an upgrade has made of this hold; or nil
	instead *Hold                // that an upgrade makes this one of; or nil
	// is closed when the upgrade has been answered; nil then
	upgraded chan struct{}
	parent   context.Context      // that was given to the lock call; or the tracer's for the hold
	work     atomic.Pointer[work] // or nil, before Context is called
}

// Current returns the hold that the user's handle stands for now: another one after a downgrade or an
// upgrade. It forgets those between.
func (h *Hold) Current() *Hold {
	last := h
	for next := h.next.Load(); next != nil; next = last.next.Load() {
		last = next
	}
	if last != h {
		h.next.Store(last)
	}
	return last
}

// Token returns the fencing token, or 0 for a zero Hold.
func (h *Hold) Token() int64 {
	if h.client == nil {
		return 0
	}
	h.client.mu.RLock() // an upgrade or a downgrade of its owner may be answered
	defer h.client.mu.RUnlock()
	return h.Hold.Token()
}

// Deadline returns the time until which the hold may be relied on, or could be before it ended. It is zero
// for a zero Hold.
func (h *Hold) Deadline() time.Time {
	if h.client == nil {
		return time.Time{}
	}
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	return h.Hold.Deadline()
}

// Lost reports whether the hold was lost before it was released.
func (h *Hold) Lost() bool {
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	return errors.Is(h.Current().Err(), engine.ErrLost)
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
	h.client.do(func(now time.Time) { h.client.engine.Forget(now, &h.Current().Hold) })
}

// Unlock releases the hold, and waits for the server's answer until ctx ends, for five seconds at most.
func (h *Hold) Unlock(ctx context.Context) error {
	until := time.Now().Add(endTimeout)
	h, fx, known, err := h.begin()
	if known {
		h.client.run(fx, nil)
		return err
	}
	ctx = forRelease(ctx)
	h.client.run(fx, ctx)
	return h.answered(ctx, until)
}

// UnlockAll releases holds together, and returns the error of each.
func UnlockAll(ctx context.Context, holds []*Hold) []error {
	return unlockAll(ctx, holds, false, endTimeout)
}

// soon is how long a call whose wait has ended waits for the release of what it has got: it is to return
// within 50 ms.
const soon = 20 * time.Millisecond

// ReleaseAll releases what a call with that context has got which fails with err, or panics.
func ReleaseAll(ctx context.Context, holds []*Hold, err error) {
	for _, h := range holds {
		h.client.do(func(time.Time) { h.traced() })
	}
	timedOut := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	unlockAll(ctx, holds, timedOut, soon)
}

// unlockAll releases holds together, and waits for the answers as Unlock does. If the wait for the locks has
// ended, or ctx has once all releases have begun, it waits for as long as late says.
func unlockAll(ctx context.Context, holds []*Hold, ended bool, late time.Duration) []error {
	start, limit := time.Now(), endTimeout
	errs, known := make([]error, len(holds)), make([]bool, len(holds))
	for i, h := range holds {
		var fx *effects
		holds[i], fx, known[i], errs[i] = h.begin()
		h.client.run(fx, nil)
	}
	if ended || ctx.Err() != nil {
		ctx, limit = context.Background(), late
	}
	for i, h := range holds {
		if !known[i] {
			errs[i] = h.answered(ctx, start.Add(limit))
		}
	}
	return errs
}

// forRelease returns the context that ends the wait for the answer: not one that has ended already, perhaps
// by the release.
func forRelease(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.Background()
	}
	return ctx
}

// begin begins the release of the current hold. It returns that, what is to be done, and true if the end is
// known immediately.
func (h *Hold) begin() (current *Hold, fx *effects, known bool, err error) {
	c := h.client
	c.mu.Lock()
	now := c.now()
	h = h.Current()
	known, err = c.engine.Release(now, &h.Hold)
	known, err = h.ends(now, known, err)
	fx = c.unlock(now)
	if err != engine.ErrNotHeld { // or else another call ends the context
		h.end(err)
	}
	return h, fx, known, err
}

// ends takes what the engine has returned for a release, and prepares the wait for an answer. It returns true
// if the end is known immediately. Client.mu is locked.
func (h *Hold) ends(now time.Time, known bool, err error) (bool, error) {
	c := h.client
	if c.local != nil {
		c.local.Work(now)
	}
	if !known && h.State() == engine.Finished {
		known, err = true, h.Err()
	}
	if !known {
		h.ended = c.signals.Get().(chan struct{})
	}
	return known, err
}

// answered waits for the answer to a release that has begun.
func (h *Hold) answered(ctx context.Context, until time.Time) error {
	c := h.client
	var gaveUp error
	select {
	case <-h.ended: // it has been answered
	default:
		timeout := c.timeouts.Get().(*time.Timer)
		timeout.Reset(time.Until(until))
		gaveUp = h.await(ctx, timeout.C, nil)
		timeout.Stop()
		c.timeouts.Put(timeout)
	}
	ended := ctx.Err() != nil // read while Client.mu is not locked: see look
	c.mu.Lock()
	defer c.mu.Unlock()
	h.awaited()
	if h.State() == engine.Finished {
		return h.Err()
	}
	waited := "yet"
	if !ended {
		waited = fmt.Sprint("for ", endTimeout)
	}
	err := fmt.Errorf("no answer %s, the release goes on: %w", waited, gaveUp)
	if cause := h.LastError(); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// Extend has the hold last for d from now, at least.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	w := wait{ctx: ctx, start: time.Now()}
	if err := w.look(); err != nil {
		return w.over(err)
	}
	c := h.client
	done := make(chan error, 1)
	x := engine.Extension{Tag: done}
	c.do(func(now time.Time) {
		h = h.Current()
		c.engine.Extend(now, &h.Hold, d, &x)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	err := c.unanswered(&w, &h.Hold)
	c.do(func(time.Time) { c.engine.GiveUpExtension(&x, err) })
	return <-done
}
