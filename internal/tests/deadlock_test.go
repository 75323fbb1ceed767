package tests

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// Two owners that hold what the other wants: the call that closes the circle fails at once, whether or not
// its wait is limited, and names the owners and the locks. It changes nothing: when its owner releases what
// it holds, the other gets on.
func TestDeadlockOfTwoFailsAtOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for i, modes := range [][4]rwlock.Mode{ // of the holds of a and b, and of the waits for b and a
			{write, write, write, write}, {write, write, read, read}, {write, write, read, write},
			{read, read, write, write}, {write, read, write, read}, {read, write, read, write},
		} {
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			ha, hb := take(w, newOwner(), rw, modes[0], a), take(w, newOwner(), rw, modes[1], b)
			waiting := w.enqueue(ha.Context(), rw, modes[2], b)
			start := time.Now()
			for _, opts := range [][]rwlock.LockOption{nil, {rwlock.MaxWait(hang)}} {
				_, err := acquire(hb.Context(), rw, modes[3], a, opts...)
				require.ErrorIs(w, err, rwlock.ErrDeadlock)
				require.EqualError(w, err, fmt.Sprintf("rwlock: %s %q: deadlock: %v holds %q and waits for %q; %v holds %q and waits for %q",
					map[rwlock.Mode]string{read: "rlock", write: "lock"}[modes[3]], a, hb.Owner(), b, a, ha.Owner(), a, b))
			}
			w.within(w.prompt, start, time.Now())
			w.waits(waiting)
			unlock(w, hb)
			unlock(w, waiting.granted(), ha)
		}
	})
}

// A circle may have any number of owners, and what WithAll waits for counts like the rest.
func TestDeadlockOfManyFailsAtOnce(t *testing.T) {
	bubbled(t, func(w *world) {
		const n = 10
		rw := w.newLock()
		var holds []*rwlock.Hold
		var calls []*call
		for i := range n {
			holds = append(holds, take(w, newOwner(), rw, write, fmt.Sprint(i)))
		}
		for i := range n - 1 {
			calls = append(calls, w.enqueue(holds[i].Context(), rw, bothModes[i%2], fmt.Sprint(i+1)))
		}
		err := rw.WithAll(holds[n-1].Context(), []rwlock.Want{{Name: "0", Mode: read}, {Name: "free", Mode: write}},
			nothingWithAll)
		require.ErrorIs(w, err, rwlock.ErrDeadlock)
		for _, h := range holds {
			require.ErrorContains(w, err, fmt.Sprintf("%v holds %q", h.Owner(), h.Name()))
		}
		unlock(w, holds[n-1])
		for i := n - 2; i >= 0; i-- {
			unlock(w, calls[i].granted(), holds[i])
		}
	})
}

// A reader waits behind a waiting writer, who waits for another reader, who waits for the first: a deadlock,
// though readers alone hold the lock. If the writer gives up before, there is none.
func TestDeadlockBehindAWaitingWriter(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, writes := range []bool{true, false} {
			ha, hb := take(w, newOwner(), rw, read, "a"), take(w, newOwner(), rw, write, "b")
			ctx, cancel := context.WithCancel(context.Background())
			writer := w.enqueue(ctx, rw, write, "a")
			if !writes {
				cancel()
				require.ErrorIs(w, errOf(writer.wait()), context.Canceled)
				waitQueued(w, rw, "a", 0)
			}
			waiting := w.enqueue(ha.Context(), rw, read, "b")
			second, err := rw.RLock(hb.Context(), "a")
			if writes {
				require.ErrorIs(w, err, rwlock.ErrDeadlock)
			} else {
				require.NoError(w, err)
				unlock(w, second)
			}
			unlock(w, hb)
			unlock(w, waiting.granted(), ha)
			if writes {
				unlock(w, writer.granted())
			}
			cancel()
		}
	})
}

// What is no deadlock waits: readers beside readers, a Try, an owner that has another goroutine that can go
// on.
func TestNoDeadlockWhereSomebodyCanGoOn(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		t.Run("a try", func(*testing.T) {
			ha, hb := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, write, "b")
			waiting := w.enqueue(ha.Context(), rw, write, "b")
			require.ErrorIs(w, errOf(rw.TryLock(hb.Context(), "a")), rwlock.ErrLocked)
			unlock(w, hb)
			unlock(w, waiting.granted(), ha)
		})
		t.Run("a goroutine that got its hold while another of its owner waited", func(*testing.T) {
			hb := take(w, newOwner(), rw, write, "b")
			owner := newOwner()
			waiting := w.enqueue(owner, rw, write, "b")
			ha := take(w, owner, rw, write, "a") // by another goroutine, which can release it
			other := w.enqueue(hb.Context(), rw, write, "a")
			w.waits(waiting, other)
			unlock(w, ha)
			unlock(w, other.granted(), hb)
			unlock(w, waiting.granted())
		})
		t.Run("a second call of the owner that is not stuck", func(*testing.T) {
			ha, hb, hc := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, write, "b"),
				take(w, newOwner(), rw, write, "c")
			free := w.enqueue(ha.Context(), rw, write, "c")
			waiting := w.enqueue(ha.Context(), rw, write, "b")
			other := w.enqueue(hb.Context(), rw, write, "a")
			unlock(w, hc)
			unlock(w, free.granted(), ha)
			unlock(w, other.granted(), hb)
			require.ErrorIs(w, errOf(waiting.wait()), context.Canceled, "its context ended with the hold of a")
		})
	})
}

// Of a crowd of readers that were let in together but enter in steps, the first may wait for what the last
// holds: the last is about to get in, though a writer waits by then.
func TestReaderThatIsAboutToGetInIsInNoDeadlock(t *testing.T) {
	t.Parallel()
	w, _ := alone(t)
	rw := w.newLock()
	first, last := newOwner(), newOwner()
	writer, y := take(w, newOwner(), rw, write, "x"), take(w, last, rw, write, "y")
	head := w.enqueue(first, rw, read, "x")
	crowd := w.queueUp(1500, "x", rw)
	tail := w.enqueue(y.Context(), rw, read, "x")
	next := w.enqueue(newOwner(), rw, write, "x")
	unlock(w, writer)
	x := head.granted()
	waiting := w.launch(x.Context(), rw, write, "y")
	unlock(w, tail.granted(), y)
	unlock(w, waiting.granted(), x)
	finish(crowd...)
	unlock(w, next.granted())
}

// A deadlock with another RWLock is not noticed: the wait ends with MaxWait.
func TestDeadlockWithAnotherRWLockIsNotNoticed(t *testing.T) {
	bubbled(t, func(w *world) {
		one, two := w.newLock(), w.newLock()
		ha, hb := take(w, newOwner(), one, write, "a"), take(w, newOwner(), two, write, "b")
		waiting := w.enqueue(ha.Context(), one, write, "b", rwlock.MaxWait(2*w.lease))
		require.ErrorIs(w, errOf(two.Lock(hb.Context(), "a", rwlock.MaxWait(w.lease))), context.DeadlineExceeded)
		require.ErrorIs(w, errOf(waiting.wait()), context.DeadlineExceeded)
		unlock(w, ha, hb)
	})
}

// Owners that take locks in any order get on, if they release what they hold when they meet a deadlock: none
// goes unnoticed.
func TestDeadlocksAllowAnyOrder(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		var met atomic.Int32
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for j := range 20 {
					ctx := newOwner()
					var holds []*rwlock.Hold
					for k := range 3 {
						h, err := acquire(ctx, rw, bothModes[(i+j*k)%2], fmt.Sprint((i+k*(1+i%2))%3), rwlock.MaxWait(hang))
						if err != nil {
							assert.ErrorIs(w, err, rwlock.ErrDeadlock)
							met.Add(1)
							break
						}
						holds = append(holds, h)
					}
					unlock(w, holds...)
				}
			})
		}
		wg.Wait()
		require.Positive(w, met.Load())
	})
}

// elsewhere runs fn on a goroutine of its own, and returns its error.
func elsewhere(fn func() error) error {
	done := make(chan error)
	go func() { done <- fn() }()
	return <-done
}

// With strict owners, another goroutine than the one that took a lock cannot re-enter it, in any mode and by
// any call. It changes nothing, and the one that took the lock still re-enters.
func TestStrictOwnersRefuseAnotherGoroutine(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		for _, held := range bothModes {
			for _, owner := range []context.Context{context.Background(), newOwner()} {
				outer := take(w, owner, rw, held, "n")
				for _, ctx := range []context.Context{outer.Context(), context.WithoutCancel(outer.Context())} {
					for _, mode := range bothModes {
						for op, call := range map[string]lockFunc{"": acquire, "try": try} {
							err := elsewhere(func() error {
								_, err := call(ctx, rw, mode, "n")
								return err
							})
							require.ErrorIs(w, err, rwlock.ErrOwner)
							require.ErrorContains(w, err, "rwlock: "+op+map[rwlock.Mode]string{read: "rlock", write: "lock"}[mode]+
								` "n": `)
						}
					}
				}
				inner := take(w, outer.Context(), rw, read, "n")
				require.Equal(w, outer.Owner(), inner.Owner())
				if held == write {
					unlock(w, take(w, inner.Context(), rw, write, "n"))
				}
				unlock(w, outer)
				require.ErrorIs(w, elsewhere(func() error {
					return errOf(try(rwlock.WithOwner(context.Background(), inner.Owner()), rw, read, "n"))
				}), rwlock.ErrOwner, "the inner hold is left")
				unlock(w, inner)
			}
		}
	})
}

// With strict owners, a goroutine may do all but re-enter: take other names for the same owner, the same name
// for another one or once it is free, and release what another goroutine holds.
func TestStrictOwnersAllowTheRest(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		outer := take(w, newOwner(), rw, read, "n")
		require.NoError(w, elsewhere(func() error {
			other, err := rw.Lock(outer.Context(), "other")
			if err != nil {
				return err
			}
			require.Equal(w, outer.Owner(), other.Owner())
			second, err := rw.RLock(rwlock.WithOwner(outer.Context(), rwlock.NewOwner()), "n")
			if err != nil {
				return err
			}
			unlock(w, second, other, outer)
			again, err := rw.Lock(rwlock.WithOwner(context.Background(), outer.Owner()), "n")
			if err != nil {
				return err
			}
			return again.Unlock(context.Background())
		}))
		require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
	})
}

// With strict owners, a call that waited for another goroutine of its owner to get the lock fails when that
// one has it, and gets it when that one has given up.
func TestStrictOwnersBehindACallOfTheirOwn(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		for _, gets := range []bool{true, false} {
			blocker, owner := take(w, newOwner(), rw, write, "n"), newOwner()
			ctx, cancel := context.WithCancel(owner)
			first := w.enqueue(ctx, rw, write, "n")
			second := w.launch(owner, rw, write, "n")
			w.waits(first, second)
			if !gets {
				cancel()
				require.ErrorIs(w, errOf(first.wait()), context.Canceled)
			}
			unlock(w, blocker)
			if gets {
				require.ErrorIs(w, errOf(second.wait()), rwlock.ErrOwner)
				unlock(w, first.granted())
			} else {
				unlock(w, second.granted())
			}
			cancel()
		}
	})
}

// With strict owners, the functions of WithLock, WithRLock, WithAll and Do re-enter, and goroutines that they
// start do not.
func TestStrictOwnersUnderFunctions(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, ran := w.newLock(rwlock.WithStrictOwners()), 0
		body := func(ctx context.Context, _ *rwlock.Hold) error {
			ran++
			require.ErrorIs(w, elsewhere(func() error { return rw.WithRLock(ctx, "a", nothing) }), rwlock.ErrOwner)
			return rw.WithRLock(ctx, "a", nothing)
		}
		require.NoError(w, rw.WithLock(context.Background(), "a", body))
		require.NoError(w, rw.WithRLock(context.Background(), "a", body))
		_, err := rwlock.Do(context.Background(), rw, "a", func(ctx context.Context, h *rwlock.Hold) (int, error) {
			return 0, body(ctx, h)
		})
		require.NoError(w, err)
		wants := []rwlock.Want{{Name: "b", Mode: read}, {Name: "a", Mode: write}, {Name: "b", Mode: write}}
		require.NoError(w, rw.WithAll(context.Background(), wants,
			func(ctx context.Context, holds []*rwlock.Hold) error {
				require.NoError(w, rw.WithAll(ctx, wants, nothingWithAll))
				return body(ctx, holds[1])
			}))
		require.Equal(w, 4, ran)
	})
}

// With strict owners, what was lost is ErrLost to every goroutine of the owner.
func TestStrictOwnersLoseAsOthersDo(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		h := take(w, newOwner(), rw, write, "n", rwlock.NoRenew())
		time.Sleep(w.lease)
		w.lostWhen(h)
		ctx := rwlock.WithOwner(context.Background(), h.Owner())
		require.ErrorIs(w, errOf(rw.Lock(ctx, "n")), rwlock.ErrLost)
		require.ErrorIs(w, elsewhere(func() error { return errOf(rw.Lock(ctx, "n")) }), rwlock.ErrLost)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
	})
}
