package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// A Call is a lock call: what it asks for, and how.
type Call struct {
	Name     string
	Mode     protocol.Mode
	Owner    protocol.Owner
	NewOwner bool // nobody else knows the owner: it holds nothing
	Try      bool // fail rather than wait
	Lease    time.Duration
	NoRenew  bool
	MaxHold  time.Duration    // or 0
	MaxWait  time.Duration    // or 0
	From     uintptr          // the place in the program that calls
	Ticket   *protocol.Ticket // that the hold is taken over with; or nil
}

// mostTries is how often a call begins again whose process was paused for longer than the lease of its grant.
const mostTries = 10

// A wait is what can end a lock call before it has the lock.
type wait struct {
	ctx     context.Context
	start   time.Time
	ended   error            // of ctx, when look was last called; or nil
	most    time.Duration    // MaxWait, or 0
	expired <-chan time.Time // of MaxWait
}

// look returns the context's error. Contexts are code of the user, so Client.mu must not be locked.
func (w *wait) look() error {
	w.ended = w.ctx.Err()
	return w.ended
}

// Acquire is the one path on which both modes try, wait and give up.
func (c *Client) Acquire(ctx context.Context, call Call) (*Hold, error) {
	w := wait{ctx: ctx, most: call.MaxWait}
	if err := w.look(); err != nil {
		w.start = time.Now()
		return nil, w.over(err)
	}
	if call.Ticket != nil && c.converts() != nil {
		return nil, c.converts()
	}
	if call.MaxWait > 0 {
		w.expired = time.After(call.MaxWait)
	}
	for tries := 1; ; tries++ {
		h, err := c.try(&w, &call)
		if err != engine.ErrAgain || tries == mostTries {
			return h, err
		}
	}
}

// try makes one attempt at a call.
func (c *Client) try(w *wait, call *Call) (*Hold, error) {
	h := c.newHold(w, call)
	c.mu.Lock()
	now := c.now()
	if w.start.IsZero() {
		w.start = now
	}
	c.engine.Acquire(now, &h.Hold)
	if c.local != nil { // whose answer comes before anyone waits for it
		c.local.Work(now)
	}
	if h.State() <= engine.Entering { // or else the call has ended
		h.ended = c.signals.Get().(chan struct{})
		sender := w.ctx
		if w.expired != nil {
			sender = nil // which could not be back in time
		}
		gone := true // if a hook of the client panics, or ends the goroutine
		defer func() {
			if gone {
				c.forsake(h)
			}
		}()
		c.run(c.unlock(now), sender)
		err := c.wait(w, h)
		if gone = false; err != nil {
			return nil, err
		}
		now = c.now()
	}
	return c.result(w, h, now)
}

// forsake gives up a call to which nobody returns.
func (c *Client) forsake(h *Hold) {
	c.mu.Lock()
	h.awaited()
	c.drop(c.now(), h, context.Canceled)
	c.flush()
}

// drop ends a call that returns no hold, with err unless it has ended. Client.mu is locked.
func (c *Client) drop(now time.Time, h *Hold, err error) {
	c.engine.GiveUp(now, &h.Hold, err)
	h.traced()
	_, _ = c.engine.Release(now, &h.Hold) // if it was granted the lock
}

// newHold returns the hold that a call asks for.
func (c *Client) newHold(w *wait, call *Call) *Hold {
	h := &Hold{client: c, from: call.From, parent: w.ctx}
	if c.config.Trace != nil {
		h.trace = &trace{call: c.config.Trace(w.ctx, call.Name, call.Mode)}
	}
	h.Name, h.Mode, h.Owner, h.NewOwner = call.Name, call.Mode, call.Owner, call.NewOwner
	h.Lease, h.NoRenew, h.MaxHold = call.Lease, call.NoRenew, call.MaxHold
	h.Ticket, h.Try, h.Bounded, h.Tag = call.Ticket, call.Try, w.expired != nil || w.ctx.Done() != nil, h
	if c.config.Strict {
		h.Hold.Caller = Goroutine()
	}
	return h
}

// result returns the hold of a call that has ended, or its error. Client.mu is locked, and result unlocks it.
func (c *Client) result(w *wait, h *Hold, now time.Time) (*Hold, error) {
	// A call whose context has ended returns its error, even if the lock was granted meanwhile: nobody can
	// tell which was first.
	if w.ended == nil && h.State() == engine.Live && now.Before(h.Hold.Deadline()) {
		c.run(c.unlock(now), nil)
		return h, nil
	}
	err := w.failed(h)
	c.drop(now, h, err)
	c.flush()
	return nil, err
}

// wait waits until a call has ended or gives up. It returns with Client.mu locked, or with the error of the
// call.
func (c *Client) wait(w *wait, h *Hold) error {
	gaveUp := h.await(w.ctx, w.expired, c.ends.Done())
	w.look()
	switch {
	case gaveUp == nil || !h.NewOwner:
		c.mu.Lock()
	case !c.abandoned.busy.Load() && c.mu.TryLock():
	default: // many give up together
		if err := c.abandon(w, h, gaveUp); err != nil {
			return err
		}
		c.mu.Lock()
	}
	h.awaited()
	if gaveUp != nil {
		// If the server grants the lock at this moment, the request that withdraws the call passes it on.
		c.engine.GiveUp(c.now(), &h.Hold, gaveUp)
	}
	return nil
}

// await waits until the engine has ended the call or the release. It returns an error if something else has
// ended the wait. awaited must be called afterwards, once Client.mu is locked.
func (h *Hold) await(ctx context.Context, timeout <-chan time.Time, closed <-chan struct{}) error {
	select {
	case <-h.ended:
		return nil
	case <-ctx.Done():
		return cmp.Or(ctx.Err(), context.Canceled) // a context that says neither has ended all the same
	case <-timeout:
		return context.DeadlineExceeded
	case <-closed:
		return engine.ErrClosed
	}
}

// awaited gives the channel back.
func (h *Hold) awaited() {
	select {
	case <-h.ended: // the engine may have woken the hold again
	default:
	}
	h.client.signals.Put(h.ended)
	h.ended = nil
}

// over returns what the call fails with when err ended the wait.
func (w *wait) over(err error) error {
	over := &overError{err: err, waited: time.Since(w.start).Round(time.Millisecond)}
	switch {
	case w.ended != nil && errors.Is(err, w.ended):
		over.ctx = w.ctx
	case errors.Is(err, context.DeadlineExceeded):
		over.most = w.most
	}
	return over
}

// failed returns the error of a call: what ended it, who was in the way, and the last error of the server.
func (w *wait) failed(h *Hold) error {
	err := h.Err()
	switch {
	case h.State() == engine.Failed:
	case errors.Is(err, engine.ErrClosed):
		return engine.ErrClosed
	case w.ended != nil:
		return w.over(w.ended)
	default: // the process slept through the lease of what it was granted
		return engine.ErrAgain
	}
	return w.explain(h, err)
}

// explain returns the error of a call that err has ended. Client.mu is locked, for reading at least.
func (w *wait) explain(h *Hold, err error) error {
	c := h.client
	// A client's own timeout matches context.DeadlineExceeded, too.
	first, ended := err, err == context.DeadlineExceeded || w.ended != nil && errors.Is(err, w.ended)
	unanswered := errors.Is(err, engine.ErrUnanswered)
	if !ended && !unanswered && !errors.Is(err, engine.ErrLocked) {
		return err
	}
	if ended {
		err = w.over(err)
		if h.Unanswered() {
			err = &causedError{err, engine.ErrUnanswered}
		}
	}
	if ended || unanswered {
		if why := c.why(h.LastError()); why != nil && !errors.Is(first, why) {
			return &causedError{err, why}
		}
	}
	return withCause(err, h.blocked())
}

// unanswered returns the error of a call whose context ended before the server had answered. h is the call's
// hold, or nil.
func (c *Client) unanswered(w *wait, h *engine.Hold) error {
	err := &causedError{w.over(w.look()), engine.ErrUnanswered}
	c.mu.Lock()
	defer c.mu.Unlock()
	var last error
	if h != nil {
		last = h.LastError()
	}
	return withCause(err, c.why(last))
}

// why returns the reason that a call has no answer, or nil if that is not known. last is the error of its
// last request, or nil. Client.mu is locked.
func (c *Client) why(last error) error {
	if last == nil || errors.Is(last, quorum.ErrNoMajority) {
		return cmp.Or(c.servers.Trouble(), last)
	}
	return last
}

// blocked returns who is in the way, or nil if that is not known.
func (h *Hold) blocked() error {
	o, known, ours := h.client.engine.Obstacle(time.Now(), &h.Hold)
	if !known {
		return nil
	}
	label := h.client.label.text
	if !ours {
		label = h.client.others[protocol.InstanceOf(o.Claim)].label
	}
	return h.client.config.Blocked(&h.Hold, o, label, ours)
}

// The errors of calls format their text only when it is read: thousands of calls may fail together.

// An overError is what has ended a wait, and when.
type overError struct {
	err    error
	waited time.Duration
	most   time.Duration // MaxWait, if that has ended it
	// that has ended the call, or nil. To read its cause takes a lock that all calls with it share
	ctx context.Context
}

func (e *overError) Error() string {
	text := fmt.Sprintf("%v after %v", e.err, e.waited)
	if e.most > 0 {
		text = fmt.Sprintf("not free within %v", e.most.Round(time.Millisecond))
	}
	for _, cause := range e.Unwrap()[1:] {
		text += ": " + cause.Error()
	}
	return text
}

// Is spares those who look for the context's error the cause.
func (e *overError) Is(target error) bool { return errors.Is(e.err, target) }

// Unwrap returns the error, and the cause of the context's end if that is more than the context's error.
func (e *overError) Unwrap() []error {
	if e.ctx != nil {
		if cause := context.Cause(e.ctx); !errors.Is(e.err, cause) {
			return []error{e.err, cause}
		}
	}
	return []error{e.err}
}

// A causedError is an error with its cause.
type causedError struct{ err, cause error }

func (e *causedError) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e *causedError) Unwrap() []error { return []error{e.err, e.cause} }

// withCause returns err with its cause, if that is known.
func withCause(err, why error) error {
	if why == nil {
		return err
	}
	return &causedError{err, why}
}

// Goroutine returns the number of the calling goroutine, or 0 if the runtime does not report it. Unlike the
// address of a goroutine, a number is never reused while the process lives.
func Goroutine() uint64 {
	var buf [64]byte // for "goroutine <number> [running]:"
	text, ok := bytes.CutPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	digits, _, found := bytes.Cut(text, []byte(" "))
	if !ok || !found {
		return 0
	}
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}
