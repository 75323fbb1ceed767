package rwlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// acquire is the one path on which both modes try, wait and give up.
func (rw *RWLock) acquire(ctx context.Context, op string, mode Mode, name string, try bool, opts []LockOption) (*Hold, error) {
	if err := rw.check(ctx, name); err != nil {
		return nil, wrap(op, name, err)
	}
	req, err := rw.request(opts)
	if err != nil {
		return nil, wrap(op, name, err)
	}
	return rw.take(ctx, op, mode, name, try, req)
}

// take is acquire with what was checked.
func (rw *RWLock) take(ctx context.Context, op string, mode Mode, name string, try bool, req request) (*Hold, error) {
	w := wait{ctx: ctx, start: time.Now()}
	if req.maxWait > 0 {
		timer := time.NewTimer(req.maxWait)
		defer timer.Stop()
		w.expired = timer.C
	}
	if err := ctx.Err(); err != nil {
		return nil, wrap(op, name, w.over(err))
	}
	owner, known := OwnerFromContext(ctx)
	if !known {
		owner = NewOwner()
	}
	if rw.tracer != nil {
		w.call = orElse(rw.tracer.TraceCall(ctx, name, mode), ctx)
	}
	for tries := 1; ; tries++ {
		h, err := rw.try(&w, owner, !known, mode, name, try, req)
		if err == nil {
			return h, nil
		}
		if !errors.Is(err, engine.ErrAgain) || tries == mostTries {
			return nil, wrap(op, name, err)
		}
	}
}

// mostTries is how often a call begins anew whose process has slept through the lease of what it was granted.
const mostTries = 10

// check refuses what no call can be made with.
func (rw *RWLock) check(ctx context.Context, name string) error {
	if err := rw.made(); err != nil {
		return err
	}
	if err := checkContext(ctx); err != nil {
		return err
	}
	return checkName(name)
}

func (rw *RWLock) made() error {
	if rw == nil || rw.engine == nil {
		return errors.New("the RWLock was not made by New")
	}
	return nil
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return errors.New("the context is nil")
	}
	return nil
}

// opOf names a call that waits for a lock in a mode.
func opOf(mode Mode) string {
	if mode == Read {
		return "rlock"
	}
	return "lock"
}

// A wait is what can end a lock call before it has the lock.
type wait struct {
	ctx     context.Context
	call    context.Context // the tracer's for the call
	start   time.Time
	expired <-chan time.Time // of MaxWait
}

// over returns what the call fails with when err ended the wait.
func (w *wait) over(err error) error {
	waited := time.Since(w.start).Round(time.Millisecond)
	if cause := context.Cause(w.ctx); cause != nil && errors.Is(err, w.ctx.Err()) && !errors.Is(err, cause) {
		return fmt.Errorf("%w after %v: %w", err, waited, cause)
	}
	return fmt.Errorf("%w after %v", err, waited)
}

// unanswered returns what a call fails with whose context ended before the servers had answered.
func (rw *RWLock) unanswered(w *wait) error {
	err := w.over(w.ctx.Err())
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if trouble := rw.servers.trouble(); trouble != nil {
		return fmt.Errorf("%w: %w", err, trouble)
	}
	return err
}

// try makes one attempt at a call.
func (rw *RWLock) try(w *wait, owner Owner, fresh bool, mode Mode, name string, try bool, req request) (*Hold, error) {
	held := &holding{rw: rw, parent: w.ctx}
	if rw.tracer != nil {
		held.trace = &trace{call: w.call}
	}
	held.hold = engine.Hold{
		Name: name, Owner: owner.id, Mode: engine.Mode(mode), Try: try, Lease: req.lease, NoRenew: req.noRenew, MaxHold: req.maxHold,
		Bounded: w.expired != nil || w.ctx.Done() != nil, NewOwner: fresh, Tag: held,
	}
	if rw.strict {
		held.hold.Caller = goroutine()
	}
	runtime.Callers(4, held.pcs[:])

	rw.mu.Lock()
	rw.engine.Acquire(time.Now(), &held.hold)
	if held.waits() {
		held.ended = make(chan struct{}, 1)
		rw.flush()
		var gaveUp error
		select {
		case <-held.ended:
		case <-w.ctx.Done():
			gaveUp = w.ctx.Err()
		case <-w.expired:
			gaveUp = context.DeadlineExceeded
		case <-rw.life.Done():
			gaveUp = ErrClosed
		}
		rw.mu.Lock()
		if held.waits() {
			// Should the server grant the lock in this very moment, it is told to pass it on.
			rw.engine.GiveUp(time.Now(), &held.hold, gaveUp)
		}
	}
	now := time.Now()
	if held.hold.State() == engine.Live && now.Before(held.hold.Deadline()) {
		h := &Hold{held: held}
		h.cleanup = runtime.AddCleanup(h, forget, held)
		rw.flush()
		if rw.tracer != nil {
			rw.traceHold(h)
		}
		return h, nil
	}
	rw.traced(held, w.call) // there will be no hold
	err := w.failed(rw, held)
	_, _ = rw.engine.Release(now, &held.hold) // of what was lost before the caller got it
	rw.flush()
	return nil, err
}

// waits reports whether the call has yet to come to an end.
func (h *holding) waits() bool {
	return h.hold.State() == engine.Wanted || h.hold.State() == engine.Entering
}

// failed returns what a call fails with: what ended it, who was in the way, and what the server has said last.
func (w *wait) failed(rw *RWLock, held *holding) error {
	err := held.hold.Err()
	if held.hold.State() != engine.Failed { // the process slept through the lease of what it was granted
		if errors.Is(err, ErrClosed) {
			return ErrClosed
		}
		return engine.ErrAgain
	}
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	unanswered := errors.Is(err, engine.ErrUnanswered)
	if !ended && !unanswered && !errors.Is(err, ErrLocked) {
		return err
	}
	last := held.hold.LastError()
	if ended {
		err = w.over(err)
	}
	if ended || unanswered {
		if trouble := rw.servers.trouble(); trouble != nil && (last == nil || errors.Is(last, ErrNoMajority)) {
			last = trouble
		}
	}
	if last != nil && !errors.Is(err, last) {
		return fmt.Errorf("%w: %w", err, last)
	}
	if blocked := rw.blocked(held); blocked != nil {
		return fmt.Errorf("%w: %w", err, blocked)
	}
	return err
}

// blocked returns who was in the way, or nil if the server has not said so.
func (rw *RWLock) blocked(held *holding) error {
	o, known, ours := rw.engine.Obstacle(&held.hold)
	if !known {
		return nil
	}
	return &BlockedError{
		Name: held.hold.Name, Mode: Mode(held.hold.Mode), HeldIn: Mode(o.Mode), Holder: Owner{o.Holder}, Ours: ours, Ahead: o.Ahead,
		RetryAfter: o.Again,
	}
}
