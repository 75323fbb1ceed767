package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// Whoever is next in line behind a dead holder, since those in front gave up, gets the lock as soon as the
// holder's lease is over, whenever they gave up, and however long its own lease is.
func TestWithdrawalLeavesNoLateLook(t *testing.T) {
	type test struct {
		holder  rwlock.Mode
		leaving []rwlock.Mode // in the order of their arrival
		next    rwlock.Mode
		order   []int // in which they leave
	}
	tests := []test{
		{write, []rwlock.Mode{write}, write, []int{0}},
		{read, []rwlock.Mode{write, write}, write, []int{1, 0}},
		{read, []rwlock.Mode{write}, write, []int{0}},
		{write, []rwlock.Mode{write}, read, []int{0}},
		{write, []rwlock.Mode{read}, write, []int{0}},
		{write, []rwlock.Mode{write, write}, write, []int{0, 1}},
		{write, []rwlock.Mode{write, read}, write, []int{1, 0}},
	}
	everywhere(t, func(w *world) {
		front, rw := w.newLock(rwlock.WithLease(quiet)), w.newLock(rwlock.WithLease(quiet))
		w.haveWaited(front)
		w.haveWaited(rw)
		pauses := []time.Duration{0, w.lease / 7, w.lease / 4}
		if !w.fake {
			pauses = pauses[:1]
		}
		for i, c := range some(w, tests) {
			for _, pause := range pauses {
				name := fmt.Sprint(i, " ", pause)
				mortal, plug := w.newMortal(rwlock.WithLease(w.lease))
				dead := take(w, newOwner(), mortal, c.holder, name)
				var leaving []*call
				var cancels []context.CancelFunc
				for _, mode := range c.leaving {
					ctx, cancel := context.WithCancel(newOwner())
					defer cancel()
					leaving, cancels = append(leaving, w.enqueue(ctx, front, mode, name)), append(cancels, cancel)
					time.Sleep(pause / 3)
				}
				next := w.enqueue(newOwner(), rw, c.next, name)
				plug.pull()
				over := time.Now().Add(w.left(rw, dead))
				for _, i := range c.order {
					time.Sleep(pause)
					cancels[i]()
					_, err := leaving[i].wait()
					require.ErrorIs(w, err, context.Canceled)
				}
				unlock(w, next.granted())
				require.WithinRange(w, next.at, over.Add(-2*time.Millisecond), over.Add(w.slack), name)
			}
		}
	})
}
