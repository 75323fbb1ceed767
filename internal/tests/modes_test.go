package tests

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

const (
	read  = rwlock.Read
	write = rwlock.Write
)

// What each owner gets, whatever it and others hold.
func TestModeMatrix(t *testing.T) {
	const (
		atOnce  = "at once"
		waits   = "waits"
		upgrade = "ErrUpgrade"
	)
	rows := []struct {
		holds                 []rwlock.Mode
		ownRead, ownWrite     string // what the holder gets
		otherRead, otherWrite string // what others get
	}{
		{nil, atOnce, atOnce, atOnce, atOnce},
		{[]rwlock.Mode{read}, atOnce, upgrade, atOnce, waits},
		{[]rwlock.Mode{write}, atOnce, atOnce, waits, waits},
		{[]rwlock.Mode{write, read}, atOnce, atOnce, waits, waits},
	}
	everywhere(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		check := func(name string, holds []rwlock.Mode, asker string, mode rwlock.Mode, want string) {
			owner, ctx, from := newOwner(), newOwner(), rw
			switch asker {
			case "the same owner":
				ctx = owner
			case "an owner elsewhere":
				from = far
			}
			var held []*rwlock.Hold
			for _, m := range holds {
				held = append(held, take(w, owner, rw, m, name))
			}
			before := inspect(w, rw, name)
			h, err := try(ctx, from, mode, name)
			switch want {
			case atOnce:
				require.NoError(w, err, name)
				unlock(w, h)
				unlock(w, take(w, ctx, from, mode, name))
			case upgrade:
				require.ErrorIs(w, err, rwlock.ErrUpgrade, name)
				_, err = acquire(ctx, from, mode, name)
				require.ErrorIs(w, err, rwlock.ErrUpgrade, name)
			case waits:
				require.ErrorIs(w, err, rwlock.ErrLocked, name)
				c := w.launch(ctx, from, mode, name)
				waitQueued(w, from, name, 1)
				unlock(w, held...)
				held = nil
				unlock(w, c.granted())
			}
			if want != waits {
				w.requireHolders(rw, name, len(before.Holders))
			}
			unlock(w, held...)
			w.requireHolders(rw, name, 0)
		}
		for _, row := range rows {
			for _, asker := range []string{"the same owner", "another owner", "an owner elsewhere"} {
				r, wr := row.otherRead, row.otherWrite
				if asker == "the same owner" {
					r, wr = row.ownRead, row.ownWrite
				}
				check(fmt.Sprintf("%v held: %s reads", row.holds, asker), row.holds, asker, read, r)
				check(fmt.Sprintf("%v held: %s writes", row.holds, asker), row.holds, asker, write, wr)
			}
		}
	})
}

// A call that must wait does wait, as long as the holder lives, and however many leases that takes.
func TestWaitsAsLongAsTheHolderLives(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, modes := range [][2]rwlock.Mode{{read, write}, {write, read}, {write, write}} {
			name := fmt.Sprint(modes)
			h := take(w, newOwner(), rw, modes[0], name)
			c := w.enqueue(newOwner(), rw, modes[1], name)
			w.waits(c)
			require.NoError(w, h.Context().Err())
			start := time.Now()
			unlock(w, h)
			unlock(w, c.granted())
			w.within(w.prompt, start, c.at)
		}
	})
}

// A reader re-enters while a writer waits; a new reader waits behind that writer.
func TestReaderReentersPastWaitingWriter(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		outer := take(w, newOwner(), rw, read, name)
		writer := w.enqueue(newOwner(), rw, write, name)

		inner := take(w, outer.Context(), rw, read, name)
		third, err := rw.TryRLock(outer.Context(), name)
		require.NoError(w, err)
		_, err = rw.TryRLock(newOwner(), name)
		require.ErrorIs(w, err, rwlock.ErrLocked)
		reader := w.enqueue(newOwner(), rw, read, name)

		unlock(w, outer, inner)
		w.waits(writer, reader)
		unlock(w, third)
		h := writer.granted()
		w.waits(reader)
		unlock(w, h)
		unlock(w, reader.granted())
	})
}

// A writer re-enters in both modes though others wait.
func TestWriterReentersPastWaiters(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		outer := take(w, newOwner(), rw, write, name)
		writer := w.enqueue(newOwner(), rw, write, name)
		reader := w.enqueue(newOwner(), rw, read, name)
		for _, mode := range []rwlock.Mode{write, read, write, read} {
			unlock(w, take(w, outer.Context(), rw, mode, name))
		}
		w.waits(writer, reader)
		unlock(w, outer)
		unlock(w, reader.granted())
		unlock(w, writer.granted())
	})
}

// Releasing the last write hold lets waiting readers in at that moment; a writer stays out until the last
// reader goes.
func TestDowngrade(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far, name := w.newLock(), w.newLock(), "n"
		owner := newOwner()
		outer, inner, own := take(w, owner, rw, write, name), take(w, owner, rw, write, name), take(w, owner, rw, read, name)
		writer := w.enqueue(newOwner(), far, write, name)
		near := w.enqueue(newOwner(), rw, read, name)
		distant := w.enqueue(newOwner(), far, read, name)

		unlock(w, outer)
		w.waits(writer, near, distant)
		start := time.Now()
		unlock(w, inner)
		readers := []*rwlock.Hold{near.granted(), distant.granted()}
		w.within(w.prompt, start, near.at)
		w.within(w.prompt, start, distant.at)

		s := inspect(w, rw, name)
		require.Equal(w, read, s.Mode)
		require.Len(w, s.Holders, 3)
		_, err := rw.Lock(own.Context(), name)
		require.ErrorIs(w, err, rwlock.ErrUpgrade)

		unlock(w, readers...)
		w.waits(writer)
		unlock(w, own)
		unlock(w, writer.granted())
	})
}

// An upgrade is refused at once, and the read hold stays as it was.
func TestUpgradeIsRefused(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		h := take(w, newOwner(), rw, read, name)
		refused := func() {
			for _, f := range []func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error){rw.Lock, rw.TryLock} {
				start := time.Now()
				_, err := f(h.Context(), name)
				require.ErrorIs(w, err, rwlock.ErrUpgrade)
				w.within(w.prompt, start, time.Now())
			}
			require.NoError(w, h.Context().Err())
			require.Equal(w, 1, held(w, rw, name, h.Owner(), read).Count)
		}
		refused()
		other := take(w, newOwner(), rw, read, name)
		refused()
		writer := w.enqueue(newOwner(), rw, write, name)
		refused()
		unlock(w, other, h)
		unlock(w, writer.granted())
	})
}

// Two owners that upgrade together are both refused, instead of waiting for each other for ever.
func TestTwoOwnersUpgradeTogether(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		a := take(w, newOwner(), rw, read, name)
		b := take(w, newOwner(), rw, read, name)
		calls := []*call{w.launch(a.Context(), rw, write, name), w.launch(b.Context(), rw, write, name)}
		for _, c := range calls {
			_, err := c.wait()
			require.ErrorIs(w, err, rwlock.ErrUpgrade)
		}
		unlock(w, a, b)
		unlock(w, take(w, newOwner(), rw, write, name))
	})
}

// Calls of one owner that come together on different goroutines share what the first of them gets.
func TestGoroutinesOfOneOwner(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		for _, mode := range []rwlock.Mode{read, write} {
			ctx := newOwner()
			blocker := take(w, newOwner(), rw, write, name)
			var calls []*call
			for range 10 {
				calls = append(calls, w.launch(ctx, rw, mode, name))
			}
			waitQueued(w, rw, name, 1)
			w.waits(calls...)
			_, err := try(ctx, rw, mode, name)
			require.ErrorIs(w, err, rwlock.ErrLocked)
			unlock(w, blocker)
			var holds []*rwlock.Hold
			for _, c := range calls {
				holds = append(holds, c.granted())
				require.Equal(w, holds[0].Token(), c.hold.Token())
			}
			eventually(w, func() bool { return held(w, rw, name, holds[0].Owner(), mode).Count == 10 }, "a count of 10")
			unlock(w, holds...)
			waitFree(w, rw, name)
		}
	})
}

// A call of an owner that waits for another call of the same owner still ends with its own context.
func TestOwnersOwnCallDoesNotHoldUpCancellation(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		blocker := take(w, newOwner(), rw, write, name)
		owner := newOwner()
		first := w.enqueue(owner, rw, write, name)
		ctx, cancel := context.WithCancel(owner)
		second := w.launch(ctx, rw, write, name)
		third := w.launch(owner, rw, write, name, rwlock.MaxWait(50*time.Millisecond))
		w.waits(first, second)
		cancel()
		_, err := second.wait()
		require.ErrorIs(w, err, context.Canceled)
		_, err = third.wait()
		require.ErrorIs(w, err, context.DeadlineExceeded)
		unlock(w, blocker)
		unlock(w, first.granted())
	})
}

// The owner travels in the context: a Hold's context carries it on, and no context without it does.
func TestOwnerTravelsInContext(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, name := w.newLock(), "n"
		_, ok := rwlock.OwnerFromContext(context.Background())
		require.False(w, ok)
		_, ok = rwlock.OwnerFromContext(rwlock.WithOwner(newOwner(), rwlock.Owner{}))
		require.False(w, ok, "the zero Owner is nobody")

		fresh, other := take(w, context.Background(), rw, read, name), take(w, context.Background(), rw, read, name)
		require.NotEqual(w, fresh.Owner(), other.Owner())
		nobody := take(w, rwlock.WithOwner(fresh.Context(), rwlock.Owner{}), rw, read, name)
		require.NotEqual(w, fresh.Owner(), nobody.Owner())

		got, ok := rwlock.OwnerFromContext(fresh.Context())
		require.True(w, ok)
		require.Equal(w, fresh.Owner(), got)
		again := take(w, fresh.Context(), rw, read, name)
		require.Equal(w, fresh.Owner(), again.Owner())
		elsewhere := take(w, fresh.Context(), rw, write, "another lock")
		require.Equal(w, fresh.Owner(), elsewhere.Owner())

		o := rwlock.NewOwner()
		mine := take(w, rwlock.WithOwner(fresh.Context(), o), rw, read, name)
		require.Equal(w, o, mine.Owner())
		require.Equal(w, o.String(), mine.Owner().String())
		unlock(w, fresh, other, nobody, again, elsewhere, mine)
	})
}

// A Hold says what it is, and its context has the values and the end of the context of the call.
func TestHoldAndItsContext(t *testing.T) {
	type key struct{}
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range []rwlock.Mode{read, write} {
			parent, cancel := context.WithCancel(context.WithValue(newOwner(), key{}, "value"))
			defer cancel()
			h, other := take(w, parent, rw, mode, "n"), take(w, parent, rw, mode, "n")
			require.Equal(w, "n", h.Name())
			require.Equal(w, mode, h.Mode())
			owner, _ := rwlock.OwnerFromContext(parent)
			require.Equal(w, owner, h.Owner())
			require.Positive(w, h.Token())
			require.Equal(w, "value", h.Context().Value(key{}))
			require.NoError(w, h.Context().Err())

			unlock(w, h)
			require.ErrorIs(w, h.Context().Err(), context.Canceled)
			require.NotErrorIs(w, context.Cause(h.Context()), rwlock.ErrLost)
			require.NoError(w, other.Context().Err(), "each hold has a context of its own")

			cancel()
			require.ErrorIs(w, other.Context().Err(), context.Canceled)
			require.Equal(w, 1, held(w, rw, "n", owner, mode).Count, "a done context does not release")
			require.NoError(w, other.Unlock(other.Context()))
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
		}
	})
}

type with func(ctx context.Context, name string, fn func(context.Context, *rwlock.Hold) error, opts ...rwlock.LockOption) error

func withs(rw *rwlock.RWLock) map[rwlock.Mode]with {
	return map[rwlock.Mode]with{read: rw.WithRLock, write: rw.WithLock}
}

// WithLock and WithRLock run fn under the hold, return what it returns, and release.
func TestWithReturnsWhatFnReturns(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, failure := w.newLock(), errors.New("failure")
		for mode, with := range withs(rw) {
			for _, want := range []error{nil, failure} {
				err := with(context.Background(), "n", func(ctx context.Context, h *rwlock.Hold) error {
					owner, _ := rwlock.OwnerFromContext(ctx)
					require.Equal(w, h.Owner(), owner)
					require.Equal(w, mode, inspect(w, rw, "n").Mode)
					require.NoError(w, withs(rw)[mode](ctx, "n", func(_ context.Context, inner *rwlock.Hold) error {
						require.Equal(w, h.Token(), inner.Token())
						require.Equal(w, 2, held(w, rw, "n", owner, mode).Count)
						return nil
					}))
					return want
				})
				require.Equal(w, want, err)
				require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
			}
		}
	})
}

// fn does not run if the lock cannot be had, and the error is the lock call's.
func TestWithWithoutTheLock(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		for _, with := range withs(rw) {
			err := with(newOwner(), "n", func(context.Context, *rwlock.Hold) error {
				t.Error("fn ran")
				return nil
			}, rwlock.MaxWait(10*time.Millisecond))
			require.ErrorIs(w, err, context.DeadlineExceeded)
		}
		unlock(w, h)
	})
}

// A panic in fn, and runtime.Goexit, release the lock and go on.
func TestWithReleasesOnPanic(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, with := range withs(rw) {
			require.PanicsWithValue(w, "oh", func() {
				_ = with(context.Background(), "n", func(context.Context, *rwlock.Hold) error { panic("oh") })
			})
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)

			var wg sync.WaitGroup
			wg.Go(func() {
				_ = with(context.Background(), "n", func(context.Context, *rwlock.Hold) error {
					runtime.Goexit()
					return nil
				})
				t.Error("Goexit ended")
			})
			wg.Wait()
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
		}
	})
}

// Work done under a lost lock is not taken for done: fn's error is joined with ErrLost, be it nil, and even
// if fn has released the lock itself.
func TestWithJoinsErrLost(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, failure := w.newLock(), errors.New("failure")
		for _, with := range withs(rw) {
			for _, want := range []error{nil, failure} {
				for _, itself := range []bool{false, true} {
					err := with(context.Background(), "n", func(ctx context.Context, h *rwlock.Hold) error {
						require.NoError(w, rw.ForceUnlock(context.Background(), "n"))
						w.lostWhen(h)
						require.ErrorIs(w, context.Cause(ctx), rwlock.ErrLost)
						if itself {
							require.ErrorIs(w, h.Unlock(ctx), rwlock.ErrLost)
						}
						return want
					})
					require.ErrorIs(w, err, rwlock.ErrLost)
					if want != nil {
						require.ErrorIs(w, err, want)
					}
				}
			}
			// Released in time by fn, nothing was lost.
			require.NoError(w, with(context.Background(), "n", func(ctx context.Context, h *rwlock.Hold) error {
				return h.Unlock(ctx)
			}))
		}
	})
}

// Each error names the call and the lock, and that of a wait says how long it was and who stood in the way.
func TestErrorsNameCallAndLock(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what errors say")
		ctx, rw, name := context.Background(), w.newLock(), "orders:42"
		h := take(w, newOwner(), rw, write, name)
		reader := take(w, newOwner(), rw, read, "read")
		first := w.enqueue(newOwner(), rw, write, name)
		second := w.enqueue(newOwner(), rw, write, name)
		third := w.enqueue(newOwner(), rw, write, name)
		wait := rwlock.MaxWait(w.lease / 5)
		lockErr := func(_ *rwlock.Hold, err error) error { return err }

		by := " by " + regexp.QuoteMeta(h.Owner().String())
		ours := regexp.QuoteMeta(" (held by this process; was the call given the hold's Context?)")
		for _, c := range []struct {
			err  error
			is   error
			text string
		}{
			{lockErr(rw.Lock(newOwner(), name, wait)), context.DeadlineExceeded,
				`lock "orders:42": context deadline exceeded after [0-9.]+m?s: held for writing` + by + `, 3 waiting ahead` + ours},
			{lockErr(rw.RLock(newOwner(), name, wait)), context.DeadlineExceeded,
				`rlock "orders:42": context deadline exceeded after [0-9.]+m?s: held for writing` + by + `.*`},
			{lockErr(rw.Lock(newOwner(), "read", wait)), context.DeadlineExceeded,
				`lock "read": context deadline exceeded after [0-9.]+m?s: held for reading by ` + regexp.QuoteMeta(reader.Owner().String()) + ours},
			{lockErr(rw.TryLock(newOwner(), name)), rwlock.ErrLocked, `trylock "orders:42": locked by another owner: held for writing` + by + `.*`},
			{lockErr(rw.TryRLock(newOwner(), name)), rwlock.ErrLocked, `tryrlock "orders:42": locked by another owner: held for writing` + by + `.*`},
			{lockErr(rw.Lock(reader.Context(), "read")), rwlock.ErrUpgrade, `lock "read": .*`},
			{lockErr(rw.TryLock(reader.Context(), "read")), rwlock.ErrUpgrade, `trylock "read": .*`},
			{rw.WithLock(newOwner(), name, nil, wait), context.DeadlineExceeded, `lock "orders:42": .*`},
			{rw.WithRLock(newOwner(), name, nil, wait), context.DeadlineExceeded, `rlock "orders:42": .*`},
		} {
			require.ErrorIs(w, c.err, c.is)
			require.Regexp(w, `^rwlock: `+c.text+`$`, c.err.Error())
		}

		unlock(w, h, reader)
		for _, c := range []*call{first, second, third} {
			unlock(w, c.granted())
		}
		err := h.Unlock(ctx)
		require.ErrorIs(w, err, rwlock.ErrNotHeld)
		require.Regexp(w, `^rwlock: unlock "orders:42": `, err.Error())
	})
}
