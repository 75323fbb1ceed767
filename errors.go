package rwlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// The errors that callers can distinguish with [errors.Is]. Each returned error names the call and the lock,
// and matches one of these errors, the context's error or the client's error.
var (
	// ErrLocked is returned by TryLock and TryRLock if they would have to wait: another owner holds the lock
	// in a conflicting mode, or waits for it.
	ErrLocked = engine.ErrLocked

	// ErrUpgrade is returned by Lock and TryLock if the owner holds the lock for reading only. Two readers
	// that both waited to become the writer would deadlock. The read hold remains valid.
	ErrUpgrade = engine.ErrUpgrade

	// ErrLost means that a hold ended before it was released: its lease ran out, the server lost its data, or
	// ForceUnlock dropped it. It is the cause of the hold's cancelled context, and Unlock and re-entry return
	// it.
	ErrLost = engine.ErrLost

	// ErrNotHeld is returned by Unlock if the hold was released before, or if the Hold is nil.
	ErrNotHeld = engine.ErrNotHeld

	// ErrClosed is returned by every call after Close.
	ErrClosed = engine.ErrClosed

	// ErrNotReplicated is returned by lock calls of an RWLock WithReplicas if fewer replicas than wanted have
	// confirmed the grant in time. The error says how many have. The hold is given back.
	ErrNotReplicated = engine.ErrNotReplicated

	// ErrOwner is returned by lock calls of an RWLock WithStrictOwners if the owner holds the lock, but
	// another goroutine took it. Nothing has changed.
	ErrOwner = engine.ErrOwner

	// ErrDeadlock is returned by Lock and RLock instead of a wait that would not end by itself: the owner
	// holds a lock that other owners of this RWLock wait for, while they hold what the call wants. The error
	// names the owners and the locks. The owner keeps what it holds; when it has released that, it may try
	// again.
	//
	// Only the locks of one RWLock are looked at, so a deadlock between processes is not noticed, and neither
	// is one in which a goroutine waits for something else than a lock. Waits and holds that are limited in
	// time count like others. An owner is taken for one goroutine: while it waits for a lock, it is expected
	// not to release what it held when it began to. The search for a deadlock is limited to 10,000 holds and
	// calls: one that involves more may go unnoticed.
	ErrDeadlock = engine.ErrDeadlock
)

// A BlockedError describes who blocked a Try call, or a wait that ended. [errors.As] finds it in errors that
// match ErrLocked, and in those that match the context's error or context.DeadlineExceeded if the server has
// reported who holds the lock. The report to a call that waits is at most a third of its lease old, unless
// the server has stopped answering. A hold of this RWLock that has ended since then is not named.
type BlockedError struct {
	Name       string
	Mode       Mode          // the mode that was requested
	HeldIn     Mode          // the mode in which the lock is held; None if the lock is free but others are queued ahead
	Holder     Owner         // one of the holders; zero if HeldIn is None
	Ours       bool          // whether Holder belongs to this RWLock; often the call did not get the hold's context
	Ahead      int           // how many waiters are served before this call
	RetryAfter time.Duration // after which a retry may succeed, from when the call returned
}

// Error returns a text such as "held for writing by <owner>, 3 waiting ahead".
func (e *BlockedError) Error() string {
	var b strings.Builder
	switch e.HeldIn {
	case Write:
		b.WriteString("held for writing by ")
	case Read:
		b.WriteString("held for reading by ")
	default:
		b.WriteString("others are served first")
	}
	if e.HeldIn != None {
		b.WriteString(e.Holder.String())
	}
	if e.Ahead > 0 {
		fmt.Fprintf(&b, ", %d waiting ahead", e.Ahead)
	}
	if e.Ours {
		b.WriteString(" (held by this process; was the call given the hold's Context?)")
	}
	return b.String()
}

// join returns an error that matches both, on one line; or the one that is not nil.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

func checkName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("the name has %d bytes, %d are allowed", len(name), maxName)
	}
	return nil
}

// maxName is how many bytes a name may have.
const maxName = 1024

// wrap names the call and the lock in front of err: rwlock: lock "orders:42": …
func wrap(op, name string, err error) error {
	if len(name) > maxName {
		name = name[:32] + "…"
	}
	return &callError{op, name, err}
}

// The errors of calls make their text when it is read: thousands of calls may fail together.

// A callError is an error of a call, with the lock.
type callError struct {
	op, name string
	err      error
}

func (e *callError) Error() string { return fmt.Sprintf("rwlock: %s %q: %v", e.op, e.name, e.err) }
func (e *callError) Unwrap() error { return e.err }

// An overError is what has ended a wait, and when.
type overError struct {
	err    error
	waited time.Duration
	ctx    context.Context // that has ended it, or nil. Its cause takes a lock to read that all calls with it share
}

// cause returns the cause of the end of the context, or nil if there is none but that.
func (e *overError) cause() error {
	if e.ctx == nil {
		return nil
	}
	if cause := context.Cause(e.ctx); !errors.Is(e.err, cause) {
		return cause
	}
	return nil
}

func (e *overError) Error() string {
	text := fmt.Sprintf("%v after %v", e.err, e.waited)
	if cause := e.cause(); cause != nil {
		text += ": " + cause.Error()
	}
	return text
}

// Is spares those who look for the context's error the cause.
func (e *overError) Is(target error) bool { return errors.Is(e.err, target) }

func (e *overError) Unwrap() []error {
	if cause := e.cause(); cause != nil {
		return []error{e.err, cause}
	}
	return []error{e.err}
}

// A because is an error with its reason.
type because struct{ err, why error }

func (e *because) Error() string   { return e.err.Error() + ": " + e.why.Error() }
func (e *because) Unwrap() []error { return []error{e.err, e.why} }
