package rwlock

import "context"

// Lock locks name for writing: its owner holds it alone. It waits while others hold the lock, and is served after the
// writers that came before. An owner that holds the lock for writing gets in at once.
//
// It returns ErrUpgrade at once to an owner that holds the lock for reading only, ErrLost if the owner's hold has
// meanwhile been lost, ErrClosed, an error that matches ctx's when ctx is done first, context.DeadlineExceeded when MaxWait
// ends first, or the client's error when the server cannot be reached. On failure it leaves nothing behind: a request
// that is still on its way is withdrawn in the background.
//
// An uncontended Lock is one round trip.
func (rw *RWLock) Lock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, "lock", Write, name, false, opts)
}

// TryLock locks name for writing if that is possible at once, and returns ErrLocked, or fails as Lock does, if not. It
// does not overtake anyone who waits.
func (rw *RWLock) TryLock(ctx context.Context, name string, opts ...LockOption) (*Hold, error) {
	return rw.acquire(ctx, "trylock", Write, name, true, opts)
}

// WithLock runs fn while it holds name for writing, with a context that is cancelled when the hold is lost, and releases
// the lock when fn returns or panics. It returns fn's error, joined with ErrLost if the hold was lost before it was
// released. If the lock cannot be had, fn is not run, and the error is Lock's.
func (rw *RWLock) WithLock(ctx context.Context, name string, fn func(ctx context.Context, h *Hold) error, opts ...LockOption) error {
	h, err := rw.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return h.with(ctx, fn)
}
