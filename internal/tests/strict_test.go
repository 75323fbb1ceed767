package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

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
							require.ErrorContains(w, err, "rwlock: "+op+map[rwlock.Mode]string{read: "rlock", write: "lock"}[mode]+` "n": `)
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

// Without the option, the goroutines that share a hold's context share the hold.
func TestOwnersAreNotStrictUnlessAsked(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		outer := take(w, newOwner(), rw, write, "n")
		require.NoError(w, elsewhere(func() error {
			h, err := rw.TryLock(outer.Context(), "n")
			if err != nil {
				return err
			}
			return h.Unlock(context.Background())
		}))
		unlock(w, outer)
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
		_, err := rwlock.Do(context.Background(), rw, "a", func(ctx context.Context, h *rwlock.Hold) (int, error) { return 0, body(ctx, h) })
		require.NoError(w, err)
		wants := []rwlock.Want{{Name: "b", Mode: read}, {Name: "a", Mode: write}, {Name: "b", Mode: write}}
		require.NoError(w, rw.WithAll(context.Background(), wants, func(ctx context.Context, holds []*rwlock.Hold) error {
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
