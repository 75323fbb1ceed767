package rwlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/client"
)

// A Want is a lock that WithAll is to take, and how: Read or Write.
type Want struct {
	Name string
	Mode Mode
}

// WithAll runs fn while it holds several locks. It takes them one after the other in the order of their
// names. So two calls of WithAll never wait for each other in a circle, unless they hold other locks
// meanwhile. If a name is wanted twice, WithAll takes it once, in the stronger mode.
//
// fn's context is cancelled when one of the holds is lost. It carries their owner: ctx's owner, or a new one.
// holds has the hold of each want, in the order of wants, so a name that is wanted twice has its hold there
// twice. The options apply to each hold, but MaxWait limits all waits together.
//
// When fn returns or panics, WithAll releases all holds together, and waits for the server's answers as
// [Hold.Unlock] waits for one. It returns fn's error, joined with ErrLost for each hold that was
// lost before it was released. If a want is invalid, or fn is nil, it returns an error before it takes any
// lock. If it cannot get one of the locks, it releases those that it has, does not run fn, and returns the
// error of RLock or Lock. If ctx or MaxWait has ended the call, it does not wait until the server confirms
// these releases. Without wants it only runs fn.
func (rw *RWLock) WithAll(ctx context.Context, wants []Want,
	fn func(ctx context.Context, holds []*Hold) error, opts ...LockOption) (err error) {
	order, err := rw.plan(ctx, wants, opts)
	if err == nil && fn == nil {
		err = errNoFunc
	}
	if err != nil {
		return prefix("lock all", err)
	}
	if _, ok := OwnerFromContext(ctx); !ok {
		ctx = WithOwner(ctx, NewOwner())
	}

	holds := make([]*Hold, len(wants))
	taken := make([]*Hold, 0, len(order))
	start := time.Now()
	opts = append(slices.Clip(opts), func(r *request) error {
		if r.MaxWait > 0 {
			r.MaxWait = max(r.MaxWait-time.Since(start), 1)
		}
		return nil
	})
	all := false
	defer func() {
		if !all { // or if a hook of the client panics, or ends the goroutine
			client.ReleaseAll(ctx, release(taken), err)
		}
	}()
	inner := ctx
	for _, want := range order {
		h, err := rw.acquire(inner, want.Mode, want.Name, false, opts, 1)
		if err != nil {
			return err
		}
		taken = append(taken, h)
		for i := range wants {
			if wants[i].Name == want.Name {
				holds[i] = h
			}
		}
		inner = h.Context() // it ends when this hold does, or one before
	}
	all = true
	defer func() {
		slices.Reverse(taken)
		err = finish(ctx, err, taken...)
	}()
	return fn(inner, holds)
}

// TryAll takes several locks, all or none, and waits for none of them. If one server has them, it takes up to
// 200 in one step. Otherwise it takes one after the other in the order of their names. It releases them again
// if one cannot be had. It returns the hold of each want, in the order of wants. A name that is wanted twice
// is taken once, in the stronger mode, and has its hold there twice: release each hold once.
//
// The holds have one owner: that of ctx, or a new one. Release them in any order. If ErrLocked is returned,
// nothing is held, and the error names the lock that is in the way; [errors.As] finds a [*BlockedError] as
// for TryLock. TryAll fails with the other errors of TryLock, too, and then leaves nothing behind. Without
// wants, it returns no holds and no error.
func (rw *RWLock) TryAll(ctx context.Context, wants []Want, opts ...LockOption) ([]*Hold, error) {
	order, err := rw.plan(ctx, wants, opts)
	if err != nil {
		return nil, prefix("try lock all", err)
	}
	if len(order) == 0 {
		return []*Hold{}, nil
	}
	if _, ok := OwnerFromContext(ctx); !ok {
		ctx = WithOwner(ctx, NewOwner())
	}
	calls := make([]request, len(order))
	for i, want := range order {
		if calls[i], err = rw.call(ctx, opOf(want.Mode, true), want.Mode, want.Name, opts, 1); err != nil {
			return nil, err
		}
		calls[i].Try = true
	}
	held, failed, err := rw.client.TryAll(ctx, calls)
	if err != nil {
		return nil, wrap("try lock all", calls[failed].Name, err)
	}
	byName := make(map[string]*Hold, len(held))
	for _, h := range held { // all, before a tracer may panic
		byName[h.Name] = rw.handle(h)
	}
	for _, want := range order {
		rw.trace(ctx, byName[want.Name])
	}
	holds := make([]*Hold, len(wants))
	for i, want := range wants {
		holds[i] = byName[want.Name]
	}
	return holds, nil
}

// plan returns the locks to take, without duplicates, in the order in which to take them.
func (rw *RWLock) plan(ctx context.Context, wants []Want, opts []LockOption) ([]Want, error) {
	if err := rw.check(ctx); err != nil {
		return nil, err
	}
	order := make([]Want, 0, len(wants))
	for i, want := range wants {
		err := rw.check(ctx, want.Name)
		if err == nil && want.Mode != Read && want.Mode != Write {
			err = errors.New("the mode is neither Read nor Write")
		}
		if err != nil {
			return nil, fmt.Errorf("want %d: %w", i, err)
		}
		order = append(order, want)
	}
	slices.SortFunc(order, func(a, b Want) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Mode, a.Mode)) // the stronger mode first: it stays
	})
	order = slices.CompactFunc(order, func(a, b Want) bool { return a.Name == b.Name })
	if rw.client.IsClosed() {
		return nil, ErrClosed
	}
	_, err := rw.request(opts)
	return order, err
}
