package rwlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/client"
)

// Lock locks name for writing, so that no other owner holds it. It waits while others hold the lock, and is
// served after the writers that came before. If the owner already holds the lock for writing, Lock succeeds
// immediately.
//
// Lock returns
//
//   - ErrUpgrade immediately if the owner holds the lock for reading only. That hold remains valid.
//   - ErrLost if the owner lost a hold on name and has not released it.
//   - ErrDeadlock if the call would wait for itself.
//   - ErrOwner, with WithStrictOwners, if another goroutine took the owner's hold.
//   - ErrNotReplicated, with WithReplicas, if too few replicas confirm the hold in time.
//   - ErrNoMajority, over a quorum, if the call ends while too few servers vote.
//   - ErrClosed after Close.
//   - An error that matches ctx's error if ctx ends first, and context.DeadlineExceeded if MaxWait ends the
//     wait. [errors.As] then finds a [*BlockedError] if another owner held the lock.
//   - Another error if name does not have 1 to 1,024 bytes, an option is invalid, or the server refuses the
//     request.
//
// While the server cannot be reached, Lock retries until ctx or MaxWait ends. If neither is set, it returns
// the client's error after one lease. If Lock fails, it leaves nothing behind: a request in flight is
// withdrawn in the background.
//
// An uncontended Lock takes one round trip.
func (rw *RWLock) Lock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, Write, name, false, opts, 1)
}

// TryLock locks name for writing if that is possible without waiting, and returns ErrLocked if not. It does
// not overtake a waiter. [errors.As] finds a [*BlockedError] in the error, unless a call or a release of the
// same owner is in progress.
//
// Otherwise TryLock fails as Lock does, but it does not retry while the server cannot be reached: it returns
// the client's first error, or an error after five seconds without an answer, or after one lease if that is
// shorter.
func (rw *RWLock) TryLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, Write, name, true, opts, 1)
}

// WithLock locks name for writing, calls fn, and releases the lock when fn returns or panics. The context
// that fn gets is cancelled when the hold is lost. WithLock returns fn's error, joined with ErrLost if the
// hold was lost before it was released. If the server does not confirm the release, WithLock returns the
// error of [Hold.Unlock] too. If WithLock cannot acquire the lock, it does not call fn, and returns Lock's
// error. A nil fn is an error.
func (rw *RWLock) WithLock(ctx context.Context, name string, fn func(ctx context.Context, h *Hold) error,
	opts ...LockOption) error {
	h, err := rw.acquire(ctx, Write, name, false, opts, 1)
	if err != nil {
		return err
	}
	return h.with(ctx, fn)
}

// RLock locks name for reading. It waits while a writer holds the lock or waits for it. If the owner already
// holds the lock, in either mode, RLock succeeds immediately.
//
// RLock fails with the errors that [RWLock.Lock] lists, except ErrUpgrade, and retries as Lock does while the
// server cannot be reached. If RLock fails, it leaves nothing behind.
//
// An uncontended RLock takes one round trip.
func (rw *RWLock) RLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, Read, name, false, opts, 1)
}

// TryRLock locks name for reading if that is possible without waiting, and returns ErrLocked if not. It does
// not overtake a waiting writer. It is otherwise like [RWLock.TryLock].
func (rw *RWLock) TryRLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, Read, name, true, opts, 1)
}

// WithRLock locks name for reading, calls fn, and releases the lock when fn returns or panics. It is
// otherwise like [RWLock.WithLock].
func (rw *RWLock) WithRLock(ctx context.Context, name string, fn func(ctx context.Context, h *Hold) error,
	opts ...LockOption) error {
	h, err := rw.acquire(ctx, Read, name, false, opts, 1)
	if err != nil {
		return err
	}
	return h.with(ctx, fn)
}

// Do runs fn while it holds name for writing, as [RWLock.WithLock] does, and returns fn's value and the error
// of WithLock. If the lock cannot be acquired, fn does not run, and the value is T's zero value. If there is
// an error beside fn's value, then fn failed, or the lock was lost while fn ran.
func Do[T any](ctx context.Context, rw *RWLock, name string, fn func(ctx context.Context, h *Hold) (T, error),
	opts ...LockOption) (T, error) {
	return value(ctx, rw, Write, name, fn, opts)
}

// RDo runs fn while it holds name for reading, as [RWLock.WithRLock] does, and returns fn's value with the
// error of WithRLock. It is otherwise like [Do].
func RDo[T any](ctx context.Context, rw *RWLock, name string,
	fn func(ctx context.Context, h *Hold) (T, error), opts ...LockOption) (T, error) {
	return value(ctx, rw, Read, name, fn, opts)
}

// value is WithLock and WithRLock, with a value.
func value[T any](ctx context.Context, rw *RWLock, mode Mode, name string,
	fn func(ctx context.Context, h *Hold) (T, error), opts []LockOption) (v T, err error) {
	h, err := rw.acquire(ctx, mode, name, false, opts, 2)
	if err != nil {
		return v, err
	}
	var with func(ctx context.Context, h *Hold) error
	if fn != nil {
		with = func(ctx context.Context, h *Hold) (err error) {
			v, err = fn(ctx, h)
			return err
		}
	}
	err = h.with(ctx, with)
	return v, err
}

// acquire is what all lock calls do. The public function that was called is so many calls above it.
func (rw *RWLock) acquire(ctx context.Context, mode Mode, name string, try bool, opts []LockOption,
	above int) (*Hold, error) {
	call, err := request{}, rw.check(ctx, name)
	if err == nil {
		call, err = rw.request(opts)
	}
	if err != nil {
		return nil, wrap(opOf(mode, try), name, err)
	}
	owner, known := OwnerFromContext(ctx)
	if !known {
		owner = NewOwner()
	}
	var from [1]uintptr // to look up one place takes a third of the time of several
	runtime.Callers(above+2, from[:])
	call.Name, call.Mode, call.Try, call.From = name, mode, try, from[0]
	call.Owner, call.NewOwner = owner.id, !known
	held, err := rw.client.Acquire(ctx, call)
	if err != nil {
		return nil, wrap(opOf(mode, try), name, err)
	}
	h := &Hold{held: held}
	h.cleanup = runtime.AddCleanup(h, (*client.Hold).Forget, held)
	if tracer := rw.config.tracer; tracer != nil {
		held.Trace(orElse(tracer.TraceHold(ctx, h), ctx))
	}
	return h, nil
}

// request returns what the options of a lock call say.
func (rw *RWLock) request(opts []LockOption) (request, error) {
	if len(opts) == 0 { // which costs no memory
		return request{Lease: rw.config.Lease}, nil
	}
	r := request{Lease: rw.config.Lease}
	for _, opt := range opts {
		if opt == nil {
			return r, errors.New("nil option")
		}
		if err := opt(&r); err != nil {
			return r, err
		}
	}
	if r.MaxHold > 0 {
		r.Lease = min(r.Lease, (r.MaxHold + time.Millisecond - 1).Truncate(time.Millisecond))
	}
	if r.MaxHold > 0 && r.AtLeast > r.MaxHold || r.NoRenew && r.AtLeast > r.Lease {
		return r, fmt.Errorf("at least %v is more than the hold lasts", r.AtLeast)
	}
	return r, nil
}

// maxName is how many bytes a name may have.
const maxName = 1024

// check refuses an RWLock that New has not made, a nil context, and invalid names of locks.
func (rw *RWLock) check(ctx context.Context, names ...string) error {
	if rw == nil || rw.client == nil {
		return errors.New("the RWLock was not made by New")
	}
	if ctx == nil {
		return errNoContext
	}
	for _, name := range names {
		switch {
		case name == "":
			return errors.New("the name is empty")
		case len(name) > maxName:
			return fmt.Errorf("the name has %d bytes, %d are allowed", len(name), maxName)
		}
	}
	return nil
}

var errNoContext = errors.New("the context is nil")

// opOf names a lock call.
func opOf(mode Mode, try bool) string {
	op := "lock"
	if mode == Read {
		op = "rlock"
	}
	if try {
		op = "try" + op
	}
	return op
}
