package rwlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/client"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Hold is one acquisition of a lock. Release it once, with Unlock. An owner may release its holds in any
// order. A Hold is safe for concurrent use.
//
// A hold is renewed until Unlock, or until the Hold is unreachable. In the latter case it ends with its
// lease, which cancels its Context, and a log record says where it was taken. A context does not keep the
// Hold that it is derived from: keep the Hold itself while you rely on the lock, as a deferred Unlock does.
type Hold struct {
	held    *client.Hold
	tracer  Tracer // or nil
	cleanup runtime.Cleanup
}

// Context returns the context for work under the hold. It is derived from the context of the lock call and
// carries the owner, so lock calls with it re-enter.
//
// It is cancelled with the cause ErrLost when the hold can no longer be relied on. That is before another
// owner can get the lock, unless the server itself loses the hold. It is also cancelled by Unlock, and by
// Close with the cause ErrClosed. The context of a nil Hold is cancelled with the cause ErrNotHeld.
func (h *Hold) Context() context.Context {
	if h == nil || h.held == nil {
		return notHeld
	}
	return h.held.Context(carry)
}

// carry returns a context that carries an owner.
func carry(ctx context.Context, o protocol.Owner) context.Context {
	if known, _ := OwnerFromContext(ctx); known.id == o {
		return ctx
	}
	return WithOwner(ctx, Owner{o})
}

// notHeld is the context of a Hold that no call returned.
var notHeld = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotHeld)
	return ctx
}()

// orNone returns a client's hold, which is zero if no lock call returned h: it is nil or zero.
func (h *Hold) orNone() *client.Hold {
	if h == nil || h.held == nil {
		return new(client.Hold)
	}
	return h.held.Current()
}

// Token returns the fencing token, a positive number. The tokens of the write holds on a name strictly
// increase, even if the server loses its data, so a resource that remembers the largest token can refuse a
// holder that has not noticed the loss of its lock. The token of a read hold is at least that of every
// earlier writer, and less than that of every later one. A hold that re-entered has the token of the outer
// hold. The token of a nil Hold is 0.
func (h *Hold) Token() int64 { return h.orNone().Token() }

// Name returns the name of the lock, or "" for a nil Hold.
func (h *Hold) Name() string { return h.orNone().Name }

// Mode returns Read or Write, or None for a nil Hold. It is Read after Downgrade, and Write after TryUpgrade.
func (h *Hold) Mode() Mode { return Mode(h.orNone().Mode) }

// Owner returns the owner of the hold, or the zero Owner for a nil Hold.
func (h *Hold) Owner() Owner { return Owner{h.orNone().Owner} }

// Deadline returns the time until which the hold can currently be relied on. Each renewal moves it forward.
// After the hold has ended, Deadline returns the last such time. The deadline of a nil Hold is the zero Time.
func (h *Hold) Deadline() time.Time { return h.orNone().Deadline() }

// Unlock releases the hold. When an owner releases its last write hold but keeps a read hold, waiting readers
// enter.
//
// Unlock waits for the server's answer until ctx ends, but for at most five seconds. If ctx is already done,
// it waits for up to five seconds all the same. If no answer comes, it returns an error that matches ctx's
// error or context.DeadlineExceeded, and the release continues in the background. ctx must not be nil.
//
// Unlock returns nil if the hold was valid until it was released. While its owner has other holds on the
// lock, the server is not asked: nil then means that no loss is known, and the last release tells. Unlock
// returns ErrLost if the hold was lost before that, in which case others may have held the lock during the
// work; ErrNotHeld if the hold was released before, or if h is nil; and ErrClosed after Close.
func (h *Hold) Unlock(ctx context.Context) error {
	switch {
	case h == nil || h.held == nil:
		return prefix("unlock", errNil)
	case ctx == nil:
		return wrap("unlock", h.held.Name, errNoContext)
	}
	h.cleanup.Stop()
	return wrap("unlock", h.held.Name, h.held.Unlock(ctx))
}

// Extend makes the hold last for at least d from now, whether or not it is renewed, and even if the server
// cannot be reached meanwhile. A worker that holds a lock with NoRenew can call it whenever it makes
// progress. Extend never shortens a hold. It does not extend a hold beyond its MaxHold. [Hold.Deadline]
// returns until when the hold lasts. d must be positive and at most ten years.
//
// Extend returns nil when the server has confirmed the extension, or immediately if none is needed. Otherwise
// it returns
//
//   - ErrLost if the hold was lost.
//   - ErrNotHeld if the hold was released, or if h is nil.
//   - ErrClosed after Close.
//   - An error that matches ctx's error if ctx ends first, or the server's error. The hold is then still
//     valid, and lasts at least until its Deadline.
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	if h == nil || h.held == nil {
		return prefix("extend", errNil)
	}
	defer runtime.KeepAlive(h)
	var err error
	switch {
	case ctx == nil:
		err = errNoContext
	case d <= 0 || d > maxLease:
		err = fmt.Errorf("extension %v is not more than zero and at most %v", d, maxLease)
	default:
		err = h.held.Extend(ctx, d)
	}
	return wrap("extend", h.Name(), err)
}

// Downgrade turns a write hold into a read hold in place. Its Context and Token stay what they are, and it
// lasts as long as before. If it was the last write hold of its owner, the readers that are waiting enter.
// Nobody else can write in between. Afterwards, [RWLock.Lock] of its owner fails with ErrUpgrade. For a read
// hold, Downgrade does nothing, and returns nil. That includes a hold whose earlier Downgrade the server has
// not confirmed yet.
//
// Downgrade returns nil when the server has confirmed that the lock is held for reading only, or immediately
// if its owner has another write hold. Otherwise it returns
//
//   - ErrLost if the hold was lost, in which case others may have held the lock during the work.
//   - ErrNotHeld if the hold was released, or if h is nil.
//   - ErrClosed after Close.
//   - An error that matches ctx's error if ctx ends first, or the server's error. [Hold.Mode] tells whether
//     it still is a write hold. If it is Read, the server has not confirmed the release of the write hold
//     yet, which continues in the background.
func (h *Hold) Downgrade(ctx context.Context) error {
	return h.convert(ctx, "downgrade", Read)
}

// TryUpgrade turns a read hold into a write hold in place, if nobody else reads the lock, and no writer
// waits for it. It does not wait, and so cannot be part of a deadlock. The hold gets a new Token. Its
// Context stays what it is, and it lasts as long as before. Other read holds of its owner stay read holds.
// For a write hold, TryUpgrade does nothing, and returns nil.
//
// Otherwise the read hold stays as it is, and TryUpgrade returns
//
//   - ErrLocked if another owner reads the lock, or a writer waits. [errors.As] finds a [*BlockedError].
//     What was read may change before the lock can be held for writing: release the hold, and call Lock.
//   - ErrLost if the hold was lost.
//   - ErrNotHeld if the hold was released, or if h is nil.
//   - ErrClosed after Close.
//   - An error that matches ctx's error if ctx ends first, or the client's first error. If the server has
//     upgraded the hold nevertheless, it is downgraded in the background.
//   - Another error, before anything is sent, over a quorum, with WithDelegation and with WithReplicas; and
//     while another upgrade, or a downgrade, of its owner is not answered.
//
// A delegation for reading of another RWLock counts as an owner that reads: see WithDelegation.
func (h *Hold) TryUpgrade(ctx context.Context) error {
	return h.convert(ctx, "try upgrade", Write)
}

// convert has the handle stand for a hold in another mode.
func (h *Hold) convert(ctx context.Context, op string, to Mode) error {
	switch {
	case h == nil || h.held == nil:
		return prefix(op, errNil)
	case ctx == nil:
		return wrap(op, h.held.Name, errNoContext)
	}
	defer runtime.KeepAlive(h)
	h.Context() // or else the hold before and the next one could each make one
	next, err := h.held.Convert(ctx, protocol.Mode(to))
	if next != nil && h.tracer != nil {
		next.Trace(cmp.Or(h.tracer.TraceHold(h.Context(), h), h.Context()))
	}
	return wrap(op, h.held.Name, err)
}

// errNoFunc is what a call fails with that was given no function to run.
var errNoFunc = errors.New("the function is nil")

// errNil is what the calls of a nil Hold fail with.
var errNil error = nilError{}

// A nilError matches ErrNotHeld.
type nilError struct{}

func (nilError) Error() string        { return "the Hold is nil" }
func (nilError) Is(target error) bool { return target == ErrNotHeld }

// finish releases holds after a function has run under them. It returns the function's error, joined
// with the error of each release. That is ErrLost if the hold was lost before it was released, by finish or
// by the function, unless the function's error already matches ErrLost.
func finish(ctx context.Context, err error, holds ...*Hold) error {
	if len(holds) == 1 {
		return holds[0].finished(err, holds[0].Unlock(ctx))
	}
	for i, end := range client.UnlockAll(ctx, release(holds)) {
		err = holds[i].finished(err, wrap("unlock", holds[i].Name(), end))
	}
	return err
}

// release returns the client's holds, which are about to be released.
func release(holds []*Hold) []*client.Hold {
	held := make([]*client.Hold, len(holds))
	for i, h := range holds {
		h.cleanup.Stop()
		held[i] = h.held
	}
	return held
}

// finished returns the error of a function that has run under the hold, joined with that of the release.
func (h *Hold) finished(err, end error) error {
	if errors.Is(end, ErrNotHeld) {
		if end = nil; h.held.Lost() {
			end = wrap("unlock", h.Name(), ErrLost)
		}
	}
	switch of := (*callError)(nil); {
	case !errors.Is(end, ErrLost) || !errors.Is(err, ErrLost):
		return join(err, end)
	case err == ErrLost: // as the context's cause is
		return end
	case errors.As(err, &of) && of.name != h.Name():
		return join(err, end) // another lock was lost, too
	}
	return err
}
