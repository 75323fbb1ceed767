package rwlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// A Hold is one acquisition of a lock. Release it once, with Unlock; the holds of one owner may be released in any order.
// It is safe for use by many goroutines.
type Hold struct {
	*holding
	cleanup runtime.Cleanup
}

// A holding is what the RWLock refers to of a Hold, so that a Hold that nobody else refers to can be noticed.
type holding struct {
	claim     *claim
	lease     time.Duration
	noRenew   bool
	fresh     bool      // its lease counts from a renewal that is yet to come
	deadline  time.Time // of a hold that is not renewed
	over      bool      // released, lost or closed
	cause     error     // ErrLost or ErrClosed
	released  bool      // by Unlock
	forgotten bool
	parent    context.Context
	ctx       context.Context // made when it is first asked for
	cancel    context.CancelCauseFunc
	where     string
	limit     bounded // of its release
}

// newHold adds a hold to a held claim. queued says that the claim waited, so that the server keeps it for what is left
// of the lease it had while it waited.
func (c *claim) newHold(ctx context.Context, req request, queued bool) *Hold {
	h := &Hold{holding: &holding{
		claim:    c,
		lease:    req.lease,
		noRenew:  req.noRenew,
		fresh:    req.noRenew && queued,
		deadline: c.deadline,
		parent:   ctx,
	}}
	if c.holds == nil {
		c.holds = c.one[:0]
	}
	c.holds = append(c.holds, h.holding)
	c.unreleased++
	if c.rw().logger != nil {
		h.where = caller()
	}
	h.cleanup = runtime.AddCleanup(h, forget, h.holding)
	c.schedule()
	return h
}

// caller returns where the program called into this package.
func caller() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if !more || !strings.HasPrefix(f.Function, "github.com/seed-7e8842f7/rwlock.") {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
}

// forget stops renewing a hold whose Hold became unreachable without Unlock. Its context may still be in use, so it is
// left to its lease.
func forget(h *holding) {
	rw := h.claim.rw()
	var b batch
	defer rw.run(&b)
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if h.released || h.forgotten {
		return
	}
	h.forgotten = true
	if h.over {
		h.claim.unreleased--
		h.claim.settle()
		return
	}
	h.claim.log(&b, "hold forgotten without Unlock: it ends with its lease", "taken at", h.where)
	if !h.noRenew {
		h.noRenew, h.deadline = true, h.claim.deadline
		h.claim.schedule()
	}
}

// keptFor notes what a successful re-entry says of the lease: it may have lengthened it, and never shortens it.
func (c *claim) keptFor(h *Hold, sent time.Time, req request) {
	if d := sent.Add(req.lease - margin(req.lease)); d.After(c.deadline) {
		c.deadline = d
	}
	h.deadline = sent.Add(req.lease - margin(req.lease))
	if !h.over && c.state == held {
		c.schedule()
	}
}

// Context returns the context for what is done under the hold: made from the ctx given to the lock call, it carries the
// owner, so that lock calls with it re-enter. It is cancelled with the cause ErrLost as soon as the hold can no longer be
// relied on, which is before anyone else can have the lock; on Unlock; and with the cause ErrClosed on Close.
func (h *Hold) Context() context.Context {
	c := h.claim
	c.rw().mu.Lock()
	defer c.rw().mu.Unlock()
	if h.ctx == nil {
		ctx, cancel := context.WithCancelCause(h.parent)
		h.ctx, h.cancel = WithOwner(ctx, c.own.owner), cancel
		if h.over {
			cancel(h.cause)
		}
	}
	return h.ctx
}

// Token returns the fencing token. The tokens of the write holds of a name grow, whatever happens to the server, so a
// resource that remembers the largest it has seen can refuse a holder that does not know yet that it lost the lock. The
// token of a read hold is not less than any earlier writer's, and less than any later one's. A re-entered hold has the
// token of the outer one.
func (h *Hold) Token() int64 { return h.claim.token }

// Name returns the name of the lock.
func (h *Hold) Name() string { return h.claim.own.lk.name }

// Mode returns Read or Write.
func (h *Hold) Mode() Mode { return h.claim.mode }

// Owner returns who holds the lock.
func (h *Hold) Owner() Owner { return h.claim.own.owner }

// Unlock releases the hold. The owner's last write hold makes way for waiting readers even if read holds remain.
//
// It works although ctx is already done. It waits for the server's answer until ctx ends, if it was not done before, and
// some seconds at most; if it returns an error by then, the release goes on in the background. It returns nil if the
// hold was good until it was released; ErrLost if it was lost before that, so that what was done under it may have
// collided with others; ErrNotHeld if it was released before; ErrClosed after Close.
func (h *Hold) Unlock(ctx context.Context) error {
	if err := h.unlock(ctx); err != nil {
		return wrap("unlock", h.Name(), err)
	}
	return nil
}

func (h *Hold) unlock(ctx context.Context) error {
	c, rw := h.claim, h.claim.rw()
	var b batch
	rw.mu.Lock()
	if h.released {
		rw.mu.Unlock()
		return ErrNotHeld
	}
	h.stop()
	if !h.over && !time.Now().Before(h.until()) {
		c.lapse(h.holding, &b) // the timeline is about to find out
	}
	over, end := h.over, time.Now().Add(closeTimeout)
	if over && h.cancel != nil { // whoever found out may not have come to this yet
		b.cancels = append(b.cancels, cancel{h.cancel, h.cause})
	}
	recount := c.leave(h.holding, &b)
	rw.mu.Unlock()
	if len(b.calls) == 1 && (ctx.Done() == nil || ctx.Err() != nil) {
		last := b.calls[0]
		b.calls = nil
		rw.run(&b)
		h.limit = bounded{Context: context.Background(), end: end}
		rw.pipe.sendHere(&h.limit, last)
	} else {
		rw.run(&b)
	}
	if over {
		return h.cause
	}

	done := c.ready
	if recount != nil {
		done = recount.ready
	}
	if err := rw.await(ctx, done, end); err != nil {
		return err
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	err, lost := c.releaseErr, c.outcome == notThere
	if recount != nil {
		err, lost = recount.err, !recount.exists
	}
	if err == nil && lost {
		h.cause = ErrLost
		return ErrLost
	}
	return err
}

// await waits for an answer of the server until end. If ctx is done already, the answer is still worth the wait.
func (rw *RWLock) await(ctx context.Context, done <-chan struct{}, end time.Time) error {
	select {
	case <-done:
		return nil
	default:
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
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
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no answer yet, the release goes on: %w", ctx.Err())
	case <-timeout.C:
		return fmt.Errorf("no answer for %v, the release goes on: %w", closeTimeout, context.DeadlineExceeded)
	}
}

// bounded is a context that is done after end, for a client that looks at its context between retries: it needs no timer
// for what is most often over at once.
type bounded struct {
	context.Context
	end time.Time
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (b *bounded) Done() <-chan struct{} {
	if b.Err() != nil {
		return closedChannel
	}
	return nil
}

func (b *bounded) Err() error {
	if time.Now().Before(b.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// stop notes that Unlock was called.
func (h *Hold) stop() {
	h.released = true
	h.cleanup.Stop()
}

// until is the moment up to which the hold may be relied on.
func (h *holding) until() time.Time {
	if h.noRenew && h.deadline.Before(h.claim.deadline) {
		return h.deadline
	}
	return h.claim.deadline
}

// with is the body of WithLock and WithRLock.
func (h *Hold) with(ctx context.Context, fn func(ctx context.Context, h *Hold) error) (err error) {
	defer func() {
		unlocked := h.Unlock(ctx)
		if errors.Is(unlocked, ErrNotHeld) { // fn released it
			unlocked = nil
			if h.lost() {
				unlocked = wrap("unlock", h.Name(), ErrLost)
			}
		}
		if unlocked != nil {
			err = errors.Join(err, unlocked)
		}
	}()
	return fn(h.Context(), h)
}

func (h *Hold) lost() bool {
	rw := h.claim.rw()
	rw.mu.Lock()
	defer rw.mu.Unlock()
	return h.cause == ErrLost
}
