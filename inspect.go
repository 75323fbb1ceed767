package rwlock

import (
	"context"
	"fmt"
	"time"
)

// State is the state of a lock at one moment, by the server's clock. It does not include holds and waiters
// whose leases have run out.
type State struct {
	Name    string
	Mode    Mode     // None, Read or Write; Write if the writer also holds it for reading
	Holders []Holder // the writer first, if there is one
	Waiters []Waiter // in the order in which they will be served
	Token   int64    // the last fencing token; 0 if the server knows none
}

// Holder is an owner that holds a lock. An owner that holds it in both modes is listed once, as one that
// writes.
type Holder struct {
	Owner Owner
	Label string // of the owner's RWLock: see WithLabel; "" if the server does not know it
	Mode  Mode
	Count int           // how many holds the owner has, in both modes
	Lease time.Duration // how much of the lease is left
	// Full is the whole lease. A holder that lives renews it when a third of it has passed. Full is zero if the
	// server does not keep it: for one of several readers, and for a hold under a delegation.
	Full  time.Duration
	Since time.Time // when the lock was granted, by the server's clock; zero if that was set back since
	// Delegated says that the lock is delegated to an RWLock, which grants it to its own callers: see
	// WithDelegation. Inspect of that RWLock lists the callers that hold the lock. Other RWLocks see one
	// Holder for all of them, and so does that RWLock while no caller holds the lock. Token of the State is
	// then the last token that is reserved for them.
	Delegated bool
}

// Waiter is an owner that waits for a lock.
type Waiter struct {
	Owner Owner
	Label string // of the owner's RWLock: see WithLabel; "" if the server does not know it
	Mode  Mode
	Lease time.Duration // how much of the lease is left
	Full  time.Duration // the whole lease; zero if it waits for a delegated lock
	Since time.Time     // when its call began, by this process's clock; zero if it is not of this RWLock
}

// Inspect returns the state of a lock, of any name. It does not change the lock. The server's work is
// proportional to the number of holders and waiters. If other RWLocks hold the lock or wait for it, Inspect
// then reads their labels. Inspect returns an error, and no state, if ctx ends first or the server cannot be
// reached.
func (rw *RWLock) Inspect(ctx context.Context, name string) (State, error) {
	err := rw.check(ctx, name)
	if err != nil {
		return State{}, wrap("inspect", name, err)
	}
	state, labels, err := rw.client.Inspect(ctx, name)
	if err != nil {
		return State{}, wrap("inspect", name, err)
	}
	s := State{Name: name, Mode: Mode(state.Mode), Token: state.Token}
	for _, h := range state.Holders {
		holder := Holder{Owner: Owner{h.Owner}, Label: labels[h.Instance], Mode: Mode(h.Known.Mode), Count: h.Count,
			Lease: h.Lease, Full: h.Full, Delegated: h.Under || h.Delegated()}
		if h.Since > 0 {
			holder.Since = time.UnixMicro(h.Since)
		}
		s.Holders = append(s.Holders, holder)
	}
	for _, w := range state.Waiters {
		s.Waiters = append(s.Waiters, Waiter{Owner{w.Owner}, labels[w.Instance], Mode(w.Known.Mode),
			w.Lease, w.Full, w.Since})
	}
	return s, nil
}

// ForceUnlock ends every hold on name, and the next in line gets the lock. It returns nil when the server has
// done so, also if nobody held the lock.
//
// A holder whose RWLock has a subscription is notified by a message. An RWLock has one once a call of it has
// waited, or while locks are delegated to it. Other holders find out at their next renewal, or at a call that
// asks the server, such as the last Unlock. Until then, their owners may re-enter, and only the fencing token
// stops them.
//
// With [Held], it changes nothing unless the lock is still held as it was when someone looked at it, and
// returns an error that matches ErrNotHeld if it is not. If ForceUnlock returns another error, the holds may
// have ended, or may end later.
func (rw *RWLock) ForceUnlock(ctx context.Context, name string, opts ...ForceOption) error {
	err := rw.check(ctx, name)
	var f force
	if err == nil {
		err = apply(&f, opts)
	}
	if err == nil {
		err = rw.client.Force(ctx, name, f.held)
	}
	return wrap("force unlock", name, err)
}

// A ForceOption limits a call of ForceUnlock. The call returns an error if the option is invalid.
type ForceOption func(*force) error

type force struct{ held int64 }

// Held has ForceUnlock drop the holds only while the lock is held and the last token that was given out for
// it is token: that of State, as Inspect returns it, or that of the write hold. So it drops the holds that
// someone has looked at, and not those of who came next. A delegation for writing is one hold: every token
// that it was given drops it, with all holds under it. Over a quorum, whose servers have tokens of their own,
// ForceUnlock refuses the option.
func Held(token int64) ForceOption {
	return func(f *force) error {
		if token <= 0 {
			return fmt.Errorf("token %d is not more than zero", token)
		}
		f.held = token
		return nil
	}
}
