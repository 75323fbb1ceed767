package tests

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// requireUntouched ends the test if fn changes anything at the server. What waits sends heartbeats beside, so
// fn has more than one try.
func (w *world) requireUntouched(c *redis.Client, fn func()) {
	w.Helper()
	eventually(w, func() bool {
		before := w.snapshot(c)
		fn()
		return reflect.DeepEqual(before, w.snapshot(c))
	}, "nothing changed")
}

// snapshot returns all that the server knows of the test's locks.
func (w *world) snapshot(c *redis.Client) map[string]string {
	w.Helper()
	all := map[string]string{}
	for _, key := range w.keys() {
		all[key] = content(w, c, key)
	}
	return all
}

// Inspect tells who holds a lock, how often, and who waits, in any state of the lock, and changes nothing.
func TestInspectTellsTheState(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far, c, name := w.newLock(), w.newLock(), w.dial(), "n"
		a, b, z := newOwner(), newOwner(), newOwner()
		holder := func(ctx context.Context, mode rwlock.Mode, count int) rwlock.Holder {
			o, _ := rwlock.OwnerFromContext(ctx)
			return rwlock.Holder{Owner: o.String(), Mode: mode, Count: count}
		}
		waiter := func(ctx context.Context, mode rwlock.Mode) rwlock.Waiter {
			o, _ := rwlock.OwnerFromContext(ctx)
			return rwlock.Waiter{Owner: o.String(), Mode: mode}
		}
		token := int64(0)
		check := func(mode rwlock.Mode, holders []rwlock.Holder, waiters ...rwlock.Waiter) {
			w.Helper()
			for _, from := range []*rwlock.RWLock{rw, far} {
				var s rwlock.State
				w.requireUntouched(c, func() { s = inspect(w, from, name) })
				require.Equal(w, name, s.Name)
				require.Equal(w, mode, s.Mode)
				require.Equal(w, token, s.Token)
				for i := range s.Holders {
					require.Greater(w, s.Holders[i].Lease, 20*time.Second)
					require.LessOrEqual(w, s.Holders[i].Lease, 30*time.Second)
					require.NotEmpty(w, s.Holders[i].Label)
					require.WithinDuration(w, time.Now(), s.Holders[i].Since, 20*time.Second)
					s.Holders[i].Lease, s.Holders[i].Label, s.Holders[i].Since = 0, "", time.Time{}
				}
				for i := range s.Waiters {
					require.Greater(w, s.Waiters[i].Lease, 20*time.Second)
					require.LessOrEqual(w, s.Waiters[i].Lease, 30*time.Second)
					require.NotEmpty(w, s.Waiters[i].Label)
					s.Waiters[i].Lease, s.Waiters[i].Label = 0, ""
				}
				require.ElementsMatch(w, holders, s.Holders)
				require.Equal(w, waiters, s.Waiters)
			}
		}

		check(rwlock.None, nil)
		h := take(w, a, rw, write, name)
		token = h.Token()
		check(write, []rwlock.Holder{holder(a, write, 1)})
		inner := take(w, a, rw, write, name)
		check(write, []rwlock.Holder{holder(a, write, 2)})
		r1, r2 := take(w, a, rw, read, name), take(w, a, rw, read, name)
		check(write, []rwlock.Holder{holder(a, write, 2), holder(a, read, 2)})
		unlock(w, inner, r2)
		check(write, []rwlock.Holder{holder(a, write, 1), holder(a, read, 1)})
		w1 := w.enqueue(b, rw, write, name)
		w2 := w.enqueue(z, far, read, name)
		check(write, []rwlock.Holder{holder(a, write, 1), holder(a, read, 1)}, waiter(z, read), waiter(b, write))
		unlock(w, h)
		token = w2.granted().Token()
		check(read, []rwlock.Holder{holder(a, read, 1), holder(z, read, 1)}, waiter(b, write))
		again := take(w, z, far, read, name)
		check(read, []rwlock.Holder{holder(a, read, 1), holder(z, read, 2)}, waiter(b, write))
		unlock(w, r1, w2.hold)
		check(read, []rwlock.Holder{holder(z, read, 1)}, waiter(b, write))
		unlock(w, again)
		token = w1.granted().Token()
		check(write, []rwlock.Holder{holder(b, write, 1)})
		unlock(w, w1.hold)
		check(rwlock.None, nil)
	})
}

// Inspect lists waiters in the order in which they are then served: a mode's in order of arrival, readers
// together.
func TestInspectListsWaitersAsTheyAreServed(t *testing.T) {
	arrivals := [][]rwlock.Mode{
		{write, read, write, read, read, write},
		{read, read, write, write, read},
		{write, write, read},
		{read, write},
	}
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, first := range []rwlock.Mode{read, write} {
			for _, modes := range arrivals {
				name := fmt.Sprint(first, modes)
				if first == read {
					modes = append([]rwlock.Mode{write}, modes...)
				}
				h := take(w, newOwner(), rw, first, name)
				calls := map[string]*call{}
				for _, mode := range modes {
					ctx := newOwner()
					o, _ := rwlock.OwnerFromContext(ctx)
					calls[o.String()] = w.enqueue(ctx, rw, mode, name)
				}
				said := inspect(w, rw, name).Waiters
				require.Len(w, said, len(modes))
				unlock(w, h)
				for len(said) > 0 {
					// Those of the next phase: a writer, or the readers up to the next one.
					n := 1
					for said[0].Mode == read && n < len(said) && said[n].Mode == read {
						n++
					}
					for _, waiter := range said[:n] {
						calls[waiter.Owner].granted()
					}
					said = said[n:]
					s := inspect(w, rw, name)
					require.Len(w, s.Holders, n)
					require.Equal(w, owners(said), owners(s.Waiters), "after each phase the rest comes in the order that was said")
					for _, holder := range s.Holders {
						unlock(w, calls[holder.Owner].hold)
					}
				}
			}
		}
	})
}

func owners(waiters []rwlock.Waiter) []string {
	list := []string{}
	for _, w := range waiters {
		list = append(list, w.Owner)
	}
	return list
}

// Inspect leaves out holds and waiters whose lease is over, though nothing has cleared them away.
func TestInspectLeavesOutTheDead(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, c := w.newLock(), w.dial()
		mortal, plug := w.newMortal(rwlock.WithLease(w.lease))
		dead := take(w, newOwner(), mortal, read, "n")
		live := take(w, newOwner(), rw, read, "n")
		w.enqueue(newOwner(), mortal, write, "n")
		plug.pull()
		w.lostWhen(dead)
		eventually(w, func() bool {
			s := inspect(w, rw, "n")
			return len(s.Holders) == 1 && s.Holders[0].Owner == live.Owner().String() && len(s.Waiters) == 0
		}, "only the live one")
		w.requireUntouched(c, func() { inspect(w, rw, "n") })
		unlock(w, live)
	})
}

// Inspect works for a user who may only read.
func TestInspectNeedsNoRightToWrite(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	h := take(t, newOwner(), newLockOn(t, s.Client()), write, "n")
	ctx, admin := context.Background(), s.Client()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "guest", "on", "nopass", "~*", "&*", "+@read", "+@connection", "+@scripting", "+time", "-eval", "-evalsha").Err())
	guest := newLockOn(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "guest", "x" }))
	state := inspect(t, guest, "n")
	require.Equal(t, write, state.Mode)
	require.Equal(t, h.Token(), state.Token)
	unlock(t, h)
}

// ForceUnlock drops every hold, lets in whoever is next, and its holders find out; what they then release is
// not the hold of those that came after.
func TestForceUnlock(t *testing.T) {
	everywhere(t, func(w *world) {
		ctx := context.Background()
		rw, far := w.newLock(rwlock.WithLease(w.lease)), w.newLock(rwlock.WithLease(w.lease))
		for _, modes := range [][]rwlock.Mode{{}, {read}, {write}, {read, read}, {write, write, read}} {
			name, owner := fmt.Sprint(modes), newOwner()
			var holds []*rwlock.Hold
			for i, mode := range modes {
				if !slices.Contains(modes, write) && i > 0 {
					owner = newOwner()
				}
				holds = append(holds, take(w, owner, rw, mode, name))
			}
			var next *call
			if len(holds) > 0 {
				next = w.enqueue(newOwner(), far, write, name)
			}
			start := time.Now()
			require.NoError(w, far.ForceUnlock(ctx, name))
			if next == nil {
				require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
				continue
			}
			next.granted()
			w.within(w.prompt, start, next.at)
			for _, h := range holds {
				w.within(w.lease/3+w.prompt, start, w.lostWhen(h))
				require.ErrorIs(w, h.Unlock(ctx), rwlock.ErrLost)
			}
			s := inspect(w, far, name)
			require.Len(w, s.Holders, 1)
			require.Equal(w, next.hold.Owner().String(), s.Holders[0].Owner)
			unlock(w, next.hold)
		}
	})
}
