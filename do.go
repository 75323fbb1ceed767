package rwlock

import "context"

// Do runs fn while it holds name for writing, as [RWLock.WithLock] does, and returns fn's value with the
// error of WithLock. If the lock cannot be had, fn is not run, and the value is T's zero value. An error
// beside another value means that fn failed, or that the value was obtained under a lock that was lost.
func Do[T any](ctx context.Context, rw *RWLock, name string, fn func(ctx context.Context, h *Hold) (T, error),
	opts ...LockOption) (T, error) {
	return value(rw.WithLock, ctx, name, fn, opts)
}

// RDo runs fn while it holds name for reading, as [RWLock.WithRLock] does, and returns fn's value with the
// error of WithRLock. It is otherwise like [Do].
func RDo[T any](ctx context.Context, rw *RWLock, name string,
	fn func(ctx context.Context, h *Hold) (T, error), opts ...LockOption) (T, error) {
	return value(rw.WithRLock, ctx, name, fn, opts)
}

type withFunc = func(ctx context.Context, name string, fn func(ctx context.Context, h *Hold) error,
	opts ...LockOption) error

func value[T any](with withFunc, ctx context.Context, name string,
	fn func(ctx context.Context, h *Hold) (T, error), opts []LockOption) (v T, err error) {
	if fn == nil {
		return v, with(ctx, name, nil, opts...)
	}
	err = with(ctx, name, func(ctx context.Context, h *Hold) (err error) {
		v, err = fn(ctx, h)
		return err
	}, opts...)
	return v, err
}
