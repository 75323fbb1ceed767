package rwlock

import (
	"context"
	"errors"
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
	for tries := 1; ; tries++ {
		if rw.tracer != nil {
			w.call = orElse(rw.tracer.TraceCall(ctx, name, mode), ctx)
		}
		h, err := rw.try(&w, owner, !known, mode, name, try, req)
		if err == nil {
			return h, nil
		}
		if err != engine.ErrAgain || tries == mostTries {
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
	over := &overError{err: err, waited: time.Since(w.start).Round(time.Millisecond)}
	if ended := w.ctx.Err(); ended != nil && errors.Is(err, ended) {
		over.ctx = w.ctx
	}
	return over
}

// unanswered returns what a call fails with whose context ended before the server had answered; h is the hold
// that it is about, or nil.
func (rw *RWLock) unanswered(w *wait, h *engine.Hold) error {
	var err error = &because{w.over(w.ctx.Err()), engine.ErrUnanswered}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	var last error
	if h != nil {
		last = h.LastError()
	}
	if why := rw.why(last); why != nil {
		return &because{err, why}
	}
	return err
}

// why returns why a call was not answered whose last request failed with last, or nil if that is not known.
// RWLock.mu is locked.
func (rw *RWLock) why(last error) error {
	if trouble := rw.servers.Trouble(); trouble != nil && (last == nil || errors.Is(last, ErrNoMajority)) {
		return trouble
	}
	return last
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
		case <-rw.ends.Done():
			gaveUp = ErrClosed
		}
		switch {
		case gaveUp == nil || !fresh:
			rw.mu.Lock()
		case !rw.quitters.busy.Load() && rw.mu.TryLock():
		default: // many give up together
			if err := rw.quit(w, held, gaveUp); err != nil {
				return nil, err
			}
			rw.mu.Lock()
		}
		if held.waits() {
			// Should the server grant the lock in this very moment, it is told to pass it on.
			rw.engine.GiveUp(time.Now(), &held.hold, gaveUp)
		}
	}
	now := time.Now()
	// A call whose context has ended returns its error, also if the lock was granted meanwhile: which was
	// first, nobody can tell.
	if w.ctx.Err() == nil && held.hold.State() == engine.Live && now.Before(held.hold.Deadline()) {
		if req.atLeast > 0 {
			held.keptTill = now.Add(req.atLeast)
		}
		h := &Hold{held: held}
		h.cleanup = runtime.AddCleanup(h, forget, held)
		rw.flush()
		if rw.tracer != nil {
			rw.traceHold(h)
		}
		return h, nil
	}
	rw.traced(held, nil)
	err := w.failed(rw, held)
	_, _ = rw.engine.Release(now, &held.hold) // of what the caller does not get
	rw.flush()
	return nil, err
}

// waits reports whether the call has yet to come to an end.
func (h *holding) waits() bool {
	return h.hold.State() == engine.Wanted || h.hold.State() == engine.Entering
}

// failed returns what a call fails with: what ended it, who was in the way, and what the server has said
// last.
func (w *wait) failed(rw *RWLock, held *holding) error {
	err := held.hold.Err()
	switch {
	case held.hold.State() == engine.Failed:
	case errors.Is(err, ErrClosed):
		return ErrClosed
	case w.ctx.Err() != nil:
		return w.over(w.ctx.Err())
	default: // the process slept through the lease of what it was granted
		return engine.ErrAgain
	}
	return w.explain(rw, held, err)
}

// explain returns what a call fails with that err has ended. RWLock.mu is locked, for reading at least.
func (w *wait) explain(rw *RWLock, held *holding, err error) error {
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	unanswered := errors.Is(err, engine.ErrUnanswered)
	if !ended && !unanswered && !errors.Is(err, ErrLocked) {
		return err
	}
	if ended {
		err = w.over(err)
		if held.hold.Unanswered() {
			err = &because{err, engine.ErrUnanswered}
		}
	}
	if ended || unanswered {
		if why := rw.why(held.hold.LastError()); why != nil && !errors.Is(err, why) {
			return &because{err, why}
		}
	}
	if blocked := rw.blocked(held); blocked != nil {
		return &because{err, blocked}
	}
	return err
}

// blocked returns who is in the way, or nil if that is not known.
func (rw *RWLock) blocked(held *holding) error {
	o, known, ours := rw.engine.Obstacle(time.Now(), &held.hold)
	if !known {
		return nil
	}
	return &BlockedError{
		Name: held.hold.Name, Mode: Mode(held.hold.Mode), HeldIn: Mode(o.Mode), Holder: Owner{o.Holder}, Ours: ours, Ahead: o.Ahead,
		RetryAfter: o.Again,
	}
}
