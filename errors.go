package rwlock

import (
	"fmt"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// The errors that callers can distinguish with [errors.Is]. Each returned error names the call and the lock,
// and matches one of these errors, the context's error or the client's error.
var (
	// ErrLocked is returned by TryLock, TryRLock, TryAll and TryUpgrade if they would have to wait: another
	// owner holds the lock in a conflicting mode, or waits for it.
	ErrLocked = engine.ErrLocked

	// ErrUpgrade is returned by Lock and TryLock if the owner holds the lock for reading only. Two readers
	// that both waited to become the writer would deadlock. The read hold remains valid. [Hold.TryUpgrade] does
	// not wait.
	ErrUpgrade = engine.ErrUpgrade

	// ErrLost means that a hold ended before it was released: its lease ran out, the server lost its data, or
	// ForceUnlock dropped it. It is the cause of the hold's cancelled context, and Unlock and re-entry return
	// it. So do Attach and Discard if the ticket was used before, or its lease is over.
	ErrLost = engine.ErrLost

	// ErrNotHeld is returned by Unlock if the hold was released before, or if the Hold is nil; and by
	// ForceUnlock if the lock is not held with the token that was given.
	ErrNotHeld = engine.ErrNotHeld

	// ErrDetached is the cause of the cancelled context of a hold that Detach has handed on.
	ErrDetached = engine.ErrDetached

	// ErrClosed is returned by every call after Close.
	ErrClosed = engine.ErrClosed

	// ErrNotReplicated is returned by lock calls of an RWLock WithReplicas if fewer replicas than wanted have
	// confirmed the grant in time. The error says how many have. The hold is given back.
	ErrNotReplicated = engine.ErrNotReplicated

	// ErrOwner is returned by lock calls of an RWLock WithStrictOwners if the owner holds the lock, but
	// another goroutine took it. Nothing has changed.
	ErrOwner = engine.ErrOwner

	// ErrDeadlock is returned by Lock and RLock instead of a wait that would not end by itself: other owners
	// of this RWLock hold the lock, and wait for a lock that the owner holds. The error names the owners and
	// the locks. The owner keeps what it holds. It may try again after it has released that.
	//
	// Only deadlocks among the owners of one RWLock are detected, and only if each of them waits for a writer
	// that holds the lock, or waits to write while others hold it. A reader that waits behind a waiting writer
	// is not looked at. Waits and holds with a time limit count too. An owner is assumed to be one goroutine,
	// which does not release its holds while it waits. The search is limited to 1,000 holds. A deadlock that
	// is not detected ends when a call of it gives up, by MaxWait or its context. Then see BlockedError.Ours.
	ErrDeadlock = engine.ErrDeadlock

	// ErrNoMajority means that fewer than a majority of the servers of a quorum vote. A call that ends
	// meanwhile returns it. The error says how many servers vote, and why others do not.
	ErrNoMajority = quorum.ErrNoMajority
)

// A BlockedError describes who blocked a Try call, or a wait that ended. [errors.As] finds it in errors that
// match ErrLocked, and in those that match the context's error or context.DeadlineExceeded if the server has
// reported who holds the lock. The report to a call that waits is at most a third of its lease old, unless
// the server has stopped answering. A hold of this RWLock that has ended since then is not named.
//
// RetryAfter is an upper bound: it is when the holder's lease ends if it is not renewed. Most holders release
// the lock earlier, so cap it at what the work usually takes.
type BlockedError struct {
	Name string
	Mode Mode // the mode that was requested
	// the mode in which the lock is held; None if the lock is free but others are queued ahead
	HeldIn Mode
	Holder Owner  // one of the holders; zero if HeldIn is None
	Label  string // of the holder's RWLock: see WithLabel; "" if this RWLock does not know it yet
	// whether Holder belongs to this RWLock; often the call did not get the hold's context
	Ours       bool
	Ahead      int           // how many waiters are served before this call
	RetryAfter time.Duration // after which a retry may succeed, from when the call returned
}

// Error returns a text such as "held for writing by <label> (<owner>), 3 waiting ahead".
func (e *BlockedError) Error() string {
	holder, text := e.Holder.String(), "others are served first"
	if e.Label != "" && holder != "" && !e.Ours {
		holder = fmt.Sprintf("%s (%s)", e.Label, holder)
	}
	switch e.HeldIn {
	case Write:
		text = "held for writing"
	case Read:
		text = "held for reading"
	}
	if e.HeldIn != None && holder != "" {
		text += " by " + holder
	}
	if e.Ahead > 0 {
		text += fmt.Sprintf(", %d waiting ahead", e.Ahead)
	}
	if e.Ours {
		text += " (another owner of this process; if it is the caller itself, pass it the hold's Context)"
	}
	return text
}

// blocked returns the error that says who is in the way of a call.
func blocked(h *engine.Hold, o protocol.Obstacle, label string, ours bool) error {
	return &BlockedError{
		Name: h.Name, Mode: Mode(h.Mode), HeldIn: Mode(o.Mode), Holder: Owner{o.Holder}, Label: label, Ours: ours,
		Ahead: o.Ahead, RetryAfter: o.Again,
	}
}

// join returns an error that matches both errors, on one line. If one of them is nil, it returns the other.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

// wrap names the call and the lock in front of err: rwlock: lock "orders:42": … It returns nil for nil.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if len(name) > maxName {
		name = name[:32] + "…"
	}
	return &callError{op, name, err}
}

// A callError is an error of a call. It formats its text only when the text is read, since thousands of calls
// may fail together.
type callError struct {
	op, name string
	err      error
}

func (e *callError) Error() string { return fmt.Sprintf("rwlock: %s %q: %v", e.op, e.name, e.err) }
func (e *callError) Unwrap() error { return e.err }
