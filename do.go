package rwlock

import "context"

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
