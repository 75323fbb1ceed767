package rwlock

import "context"

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
// While the server cannot be reached, Lock retries until ctx or MaxWait ends. Without MaxWait and with a ctx
// that can never end, such as [context.Background], it returns the client's error after one lease. If Lock
// fails, it leaves nothing behind: a request in flight is withdrawn in the background.
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
	return rw.with(ctx, Write, name, fn, opts, 2)
}

// Do runs fn while it holds name for writing, as [RWLock.WithLock] does, and returns fn's value and the error
// of WithLock. If the lock cannot be acquired, fn does not run, and the value is T's zero value. If there is
// an error beside fn's value, then fn failed, or the lock was lost while fn ran.
func Do[T any](ctx context.Context, rw *RWLock, name string, fn func(ctx context.Context, h *Hold) (T, error),
	opts ...LockOption) (T, error) {
	return value(ctx, rw, Write, name, fn, opts)
}
