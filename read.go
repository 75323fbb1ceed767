package rwlock

import "context"

// RLock locks name for reading. It shares the lock with other readers, and waits while a writer holds it or waits for it.
// An owner that holds the lock, in either mode, gets in at once.
//
// It returns ErrLost if the owner's hold has meanwhile been lost, ErrClosed, an error that matches ctx's when ctx is done
// first, context.DeadlineExceeded when MaxWait ends first, or the client's error when the server cannot be reached. On
// failure it leaves nothing behind: a request that is still on its way is withdrawn in the background.
//
// An uncontended RLock is one round trip.
func (rw *RWLock) RLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, "rlock", Read, name, false, opts)
}

// TryRLock locks name for reading if that is possible at once, and returns ErrLocked, or fails as RLock does, if not. It
// does not overtake a writer that waits.
func (rw *RWLock) TryRLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, "tryrlock", Read, name, true, opts)
}

// WithRLock runs fn while it holds name for reading, with a context that is cancelled when the hold is lost, and releases
// the lock when fn returns or panics. It returns fn's error, joined with ErrLost if the hold was lost before it was
// released. If the lock cannot be had, fn is not run, and the error is RLock's.
func (rw *RWLock) WithRLock(ctx context.Context, name string, fn func(ctx context.Context, h *Hold) error, opts ...LockOption) error {
	h, err := rw.RLock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return h.with(ctx, fn)
}
