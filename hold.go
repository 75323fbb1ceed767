package rwlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A Hold is one acquisition of a lock. Release it once, with Unlock. An owner may release its holds in any
// order. A Hold is safe for concurrent use.
//
// A hold is renewed until Unlock, or until neither the Hold nor a context made from its Context is reachable.
// In the latter case it ends with its lease, and the logger is told where it was taken. A context with a
// deadline is reachable until then. A function given to [context.AfterFunc] keeps no hold, and is not called
// if the hold is forgotten.
type Hold struct {
	held    *holding
	cleanup runtime.Cleanup
	work    *work // or nil, before Context is called
}

// A holding is what the RWLock refers to of a Hold, so that a Hold that nobody else refers to can be noticed.
type holding struct {
	hold     engine.Hold
	rw       *RWLock
	ended    chan struct{}   // has a signal when a call or a release has ended that somebody waits for
	released bool            // by Unlock
	parent   context.Context // that was given to the lock call; or the tracer's for the hold
	trace    *trace          // nil without a tracer
	pcs      [6]uintptr      // of the calls that took it
	keptTill time.Time       // with AtLeast: when Unlock may release it
	gaveUp   error           // why the call has returned, though the engine does not know yet; set while RWLock.mu is locked for reading

	// Of what Hold.Context returns, once it was called:
	work   weak.Pointer[work]
	strong *work           // the same, if the parent keeps it anyway
	done   <-chan struct{} // of work
	closed atomic.Bool     // done was closed without work
	detach func() bool     // from the parent, or nil
}

// A work has the context that contexts for work under a hold are made from. It leads to all of them, and each
// of them leads to the Hold. So the RWLock does not keep it, and neither does the parent.
type work struct {
	context.Context
	cancel context.CancelCauseFunc
	parent context.Context // that cancels it by holding.end; or nil
}

// follow cancels a work whose parent has ended, which the parent is about to do.
func (w *work) follow() {
	if w.parent != nil && w.parent.Err() != nil {
		w.cancel(context.Cause(w.parent))
	}
}

// begin makes what Hold.Context returns. RWLock.mu is locked.
func (h *holding) begin() *work {
	w, base := &work{}, h.parent
	_, bounded := h.parent.Deadline()
	if !bounded && h.parent.Done() != nil {
		w.parent, base = h.parent, context.WithoutCancel(h.parent)
	}
	w.Context, w.cancel = context.WithCancelCause(base)
	h.work, h.done = weak.Make(w), w.Context.Done()
	switch parent := w.parent; {
	case bounded: // a timer keeps it, or what has one
		h.strong = w
	case parent != nil:
		h.detach = context.AfterFunc(parent, func() { h.cancel(context.Cause(parent)) })
	}
	return w
}

// end cancels what Hold.Context has returned, for good.
func (h *holding) end(cause error) {
	h.cancel(cause)
	if h.detach != nil {
		h.detach()
	}
}

func (h *holding) cancel(cause error) {
	if w := h.work.Value(); w != nil {
		w.cancel(cause)
	} else if h.closed.CompareAndSwap(false, true) {
		// The Hold is gone, and all contexts made from this one. But somebody may wait for the channel.
		select {
		case <-h.done:
		default:
			close(*(*chan struct{})(unsafe.Pointer(&h.done))) // which nothing else can do any more
		}
	}
}

// wake signals that the engine has come to an end with what somebody waits for.
func (h *holding) wake() {
	if h.ended != nil {
		select {
		case h.ended <- struct{}{}:
		default:
		}
	}
}

// where returns the place in the program that took the hold.
func (h *holding) where() slog.Source {
	frames := runtime.CallersFrames(h.pcs[:])
	for {
		f, more := frames.Next()
		if f.File != "" && !strings.HasPrefix(f.Function, "github.com/seed-7e8842f7/rwlock.") {
			return slog.Source{Function: f.Function, File: f.File, Line: f.Line}
		}
		if !more {
			return slog.Source{}
		}
	}
}

// forget stops renewing a hold whose Hold became unreachable without Unlock.
func forget(h *holding) {
	h.rw.mu.Lock()
	h.rw.engine.Forget(time.Now(), &h.hold)
	h.rw.flush()
}

// Context returns the context for work under the hold. It is derived from the context that was given to the
// lock call, and carries the owner, so that lock calls with it re-enter. It is cancelled with the cause
// ErrLost when the hold can no longer be relied on, which is before another owner can get the lock; with the
// cause ErrClosed by Close; and by Unlock. The context of a nil Hold is cancelled with the cause ErrNotHeld.
func (h *Hold) Context() context.Context {
	if h.none() {
		return notHeld
	}
	held := h.held
	held.rw.mu.Lock()
	defer held.rw.mu.Unlock()
	if h.work == nil {
		h.work = held.begin()
		if held.hold.State() != engine.Live {
			held.end(held.hold.Err())
		}
	}
	return &holdContext{h.work, h}
}

// notHeld is the context of a Hold that no call returned.
var notHeld = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotHeld)
	return ctx
}()

// none reports whether no lock call returned the Hold: it is nil or zero.
func (h *Hold) none() bool { return h == nil || h.held == nil }

// A holdContext carries the owner of a hold, and keeps the hold.
type holdContext struct {
	*work
	hold *Hold
}

// Done, Err and Value know of the end of the parent as soon as that has ended.

func (c *holdContext) Done() <-chan struct{} {
	c.follow()
	return c.work.Done()
}

func (c *holdContext) Err() error {
	c.follow()
	return c.work.Err()
}

// Value returns the owner for its key, and otherwise what the context that the hold was taken with does.
func (c *holdContext) Value(key any) any {
	if key == (ownerKey{}) {
		return c.hold.Owner()
	}
	c.follow()
	return c.work.Value(key)
}

// Token returns the fencing token. The tokens of the write holds on a name strictly increase, even if the
// server loses its data, so a resource that remembers the largest token can refuse a holder that has not
// noticed the loss of its lock. The token of a read hold is at least that of every earlier writer, and less
// than that of every later one. A hold that re-entered has the token of the outer hold. The token of a nil
// Hold is 0.
func (h *Hold) Token() int64 {
	if h.none() {
		return 0
	}
	return h.held.hold.Token()
}

// Name returns the name of the lock, or "" for a nil Hold.
func (h *Hold) Name() string {
	if h.none() {
		return ""
	}
	return h.held.hold.Name
}

// Mode returns Read or Write, or None for a nil Hold.
func (h *Hold) Mode() Mode {
	if h.none() {
		return None
	}
	return Mode(h.held.hold.Mode)
}

// Owner returns the owner of the hold, or the zero Owner for a nil Hold.
func (h *Hold) Owner() Owner {
	if h.none() {
		return Owner{}
	}
	return Owner{h.held.hold.Owner}
}

// Deadline returns the time until which the hold can currently be relied on. Each renewal moves it forward.
// After the hold has ended, Deadline returns the last such time. The deadline of a nil Hold is the zero Time.
func (h *Hold) Deadline() time.Time {
	if h.none() {
		return time.Time{}
	}
	h.held.rw.mu.Lock()
	defer h.held.rw.mu.Unlock()
	return h.held.hold.Deadline()
}

// Unlock releases the hold. When an owner releases its last write hold but keeps a read hold, waiting readers
// enter.
//
// Unlock waits for the server's answer until ctx ends, but for at most five seconds. If ctx is already done,
// it waits for up to five seconds all the same. If no answer comes, it returns an error that matches ctx's
// error or context.DeadlineExceeded, and the release continues in the background.
//
// Unlock returns nil if the hold was valid until it was released. It returns ErrLost if the hold was lost
// before that, in which case others may have held the lock during the work; ErrNotHeld if the hold was
// released before, or if h is nil; and ErrClosed after Close.
func (h *Hold) Unlock(ctx context.Context) error {
	if h.none() {
		return fmt.Errorf("rwlock: unlock: %w", ErrNotHeld)
	}
	if err := h.unlock(ctx); err != nil {
		return wrap("unlock", h.Name(), err)
	}
	return nil
}

func (h *Hold) unlock(ctx context.Context) error {
	held := h.held
	rw := held.rw
	rw.mu.Lock()
	if held.released {
		rw.mu.Unlock()
		return ErrNotHeld
	}
	held.released = true
	h.cleanup.Stop()
	now := time.Now()
	begun := held.done != nil
	if rest := held.keptTill.Sub(now); rest > 0 && held.hold.State() == engine.Live {
		rw.mu.Unlock()
		time.AfterFunc(rest, held.release)
		if begun {
			held.end(nil)
		}
		return nil
	}
	known, err := rw.engine.Release(now, &held.hold)
	fx := rw.unlock()
	if begun {
		held.end(err)
	}
	if known {
		rw.run(fx)
		return err
	}
	if ctx == nil || ctx.Err() != nil {
		ctx = context.Background()
	}
	rw.run(fx)
	return held.await(ctx, now.Add(closeTimeout))
}

// release releases a hold that Unlock has kept for AtLeast. Nobody waits for the answer.
func (h *holding) release() {
	h.rw.mu.Lock()
	_, _ = h.rw.engine.Release(time.Now(), &h.hold)
	h.rw.flush()
}

// await waits until the server has answered a release, ctx is done, or end has come.
func (h *holding) await(ctx context.Context, end time.Time) error {
	rw := h.rw
	rw.mu.Lock()
	if h.hold.State() == engine.Finished {
		defer rw.mu.Unlock()
		return h.hold.Err()
	}
	if h.ended == nil {
		h.ended = make(chan struct{}, 1)
	}
	select {
	case <-h.ended: // that the call had ended
	default:
	}
	rw.mu.Unlock()

	timeout, ok := rw.timeouts.Get().(*time.Timer)
	if ok {
		timeout.Reset(time.Until(end))
	} else {
		timeout = time.NewTimer(time.Until(end))
	}
	defer func() {
		timeout.Stop()
		rw.timeouts.Put(timeout)
	}()
	var gaveUp error
	select {
	case <-h.ended:
	case <-ctx.Done():
		gaveUp = fmt.Errorf("no answer yet, the release goes on: %w", ctx.Err())
	case <-timeout.C:
		gaveUp = fmt.Errorf("no answer for %v, the release goes on: %w", closeTimeout, context.DeadlineExceeded)
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if h.hold.State() == engine.Finished {
		return h.hold.Err()
	}
	if cause := h.hold.LastError(); cause != nil {
		return fmt.Errorf("%w: %w", gaveUp, cause)
	}
	return gaveUp
}

// with is the body of WithLock and WithRLock.
func (h *Hold) with(ctx context.Context, fn func(ctx context.Context, h *Hold) error) (err error) {
	defer func() { err = join(err, h.finish(ctx)) }()
	if fn == nil {
		return wrap(opOf(h.Mode()), h.Name(), errNoFunc)
	}
	return fn(h.Context(), h)
}

// errNoFunc is what a call fails with that was given no function to run.
var errNoFunc = errors.New("the function is nil")

// finish releases the hold after a function has run under it. It returns ErrLost if the hold was lost before
// it was released, by finish or by the function.
func (h *Hold) finish(ctx context.Context) error {
	err := h.Unlock(ctx)
	if !errors.Is(err, ErrNotHeld) {
		return err
	}
	if h.lost() {
		return wrap("unlock", h.Name(), ErrLost)
	}
	return nil
}

func (h *Hold) lost() bool {
	h.held.rw.mu.Lock()
	defer h.held.rw.mu.Unlock()
	return errors.Is(h.held.hold.Err(), ErrLost)
}
