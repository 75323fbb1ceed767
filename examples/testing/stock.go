// Package stock is code that uses locks. Its tests show how such code is tested without a Redis server: with miniredis, and where
// time matters, in a testing/synctest bubble, where leases of half a minute run out in no time.
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

// Stock is a number of articles. The lock guards it.
type Stock struct {
	Locks *rwlock.RWLock // the caller makes it, so that tests can choose the server and the options
	Left  int
}

// Take takes one article. It waits for at most two seconds while others use the stock.
func (s *Stock) Take(ctx context.Context) error {
	return s.Locks.WithLock(ctx, "stock", func(ctx context.Context, _ *rwlock.Hold) error {
		if s.Left == 0 {
			return ErrSoldOut
		}
		s.Left--
		return nil
	}, rwlock.MaxWait(2*time.Second))
}

// Audit calls count under the lock, for each of n articles. It stops when the lock is lost, and returns rwlock.ErrLost then.
func (s *Stock) Audit(ctx context.Context, n int, count func(i int)) error {
	return s.Locks.WithRLock(ctx, "stock", func(ctx context.Context, _ *rwlock.Hold) error {
		for i := range n {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			count(i)
		}
		return nil
	})
}
