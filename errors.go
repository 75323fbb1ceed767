package rwlock

import (
	"errors"
	"fmt"
)

// The errors that callers tell apart. Each returned error names the call and the lock and matches one of these, the
// context's error, or the client's, with [errors.Is].
var (
	// ErrLocked is what TryLock and TryRLock return when they would have to wait: somebody holds the lock in a mode
	// that excludes the call, or waits for it.
	ErrLocked = errors.New("locked by another owner")

	// ErrUpgrade is what Lock and TryLock return to an owner that holds the lock for reading only. Two readers that
	// both waited to become the writer would wait for each other for ever. The read hold stays as it is.
	ErrUpgrade = errors.New("held for reading by the same owner: a read hold cannot be upgraded")

	// ErrLost says that a hold ended before it was released: its lease ran out, the server lost its data, or
	// ForceUnlock dropped it. It is the cause of the hold's cancelled context, and what Unlock and re-entry return.
	ErrLost = errors.New("hold lost before it was released")

	// ErrNotHeld is what Unlock returns for a hold that was released before.
	ErrNotHeld = errors.New("not held: already released")

	// ErrClosed is what every call returns once Close was called.
	ErrClosed = errors.New("closed")
)

// errNoAnswer is why a waiter whose heartbeats stay without an answer gives up.
var errNoAnswer = errors.New("the server has not answered for a lease")

// wrap names the call and the lock in front of err: rwlock: lock "orders:42": …
func wrap(op, name string, err error) error {
	if len(name) > maxName {
		name = name[:32] + "…"
	}
	return fmt.Errorf("rwlock: %s %q: %w", op, name, err)
}
