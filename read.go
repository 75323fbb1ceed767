package rwlock

import "context"

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
	return rw.with(ctx, Read, name, fn, opts, 2)
}

// RDo runs fn while it holds name for reading, as [RWLock.WithRLock] does, and returns fn's value with the
// error of WithRLock. It is otherwise like [Do].
func RDo[T any](ctx context.Context, rw *RWLock, name string,
	fn func(ctx context.Context, h *Hold) (T, error), opts ...LockOption) (T, error) {
	return value(ctx, rw, Read, name, fn, opts)
}
