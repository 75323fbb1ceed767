// Package stock is code that uses locks. Its tests show three ways to test such code without a Redis server:
// with miniredis; where time matters, in a testing/synctest bubble, in which leases of half a minute run out
// in no time; and with a fake, if only the results of the lock call matter.
//
//	go test ./examples/testing
package stock

import (
	"context"
	"errors"
	"time"

	"github.com/seed-7e8842f7/rwlock"
)

// ErrSoldOut is returned by Take if nothing is left.
var ErrSoldOut = errors.New("sold out")

// ErrBusy is returned by Take if others have used the stock for two seconds.
var ErrBusy = errors.New("try again later")

// Locks is what this package needs of a *rwlock.RWLock. The caller makes it, so tests choose the server and
// the options, or a fake.
type Locks interface {
	WithLock(ctx context.Context, name string,
		fn func(ctx context.Context, h *rwlock.Hold) error, opts ...rwlock.LockOption) error
}

// Stock is a number of articles. The lock guards it.
type Stock struct {
	Locks Locks
	Left  int
}

// Take takes one article.
func (s *Stock) Take(ctx context.Context) error {
	err := s.Locks.WithLock(ctx, "stock", func(ctx context.Context, _ *rwlock.Hold) error {
		if s.Left == 0 {
			return ErrSoldOut
		}
		s.Left--
		return nil
	}, rwlock.MaxWait(2*time.Second))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return ErrBusy
	}
	return err
}

// Audit calls count under the lock, for each of n articles. If the lock is lost, it stops, and returns an
// error that matches rwlock.ErrLost.
func (s *Stock) Audit(ctx context.Context, n int, count func(i int)) error {
	return s.Locks.WithLock(ctx, "stock", func(ctx context.Context, _ *rwlock.Hold) error {
		for i := range n {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			count(i)
		}
		return nil
	})
}
