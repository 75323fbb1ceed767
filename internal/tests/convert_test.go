package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// detach hands a hold to a ticket, through its text.
func detach(t testing.TB, h *rwlock.Hold, lease time.Duration) (ticket rwlock.Ticket) {
	t.Helper()
	first, err := h.Detach(context.Background(), lease)
	require.NoError(t, err)
	text, err := json.Marshal(first)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &ticket))
	require.Equal(t, first, ticket)
	return ticket
}

// A hold that is handed on by a ticket is never free in between, and has a larger token afterwards. Who waits
// gets the lock after it.
func TestHoldIsHandedOn(t *testing.T) {
	onServers(t, func(w *world) {
		for _, mode := range []rwlock.Mode{read, write} {
			a, b, name := w.newLock(), w.newLock(), fmt.Sprint(mode)
			h := take(w, newOwner(), a, mode, name)
			waits := w.enqueue(newOwner(), b, write, name)
			ticket := detach(w, h, time.Minute)
			require.Equal(w, name, ticket.Name())
			require.Equal(w, mode, ticket.Mode())
			require.Equal(w, rwlock.ErrDetached, context.Cause(h.Context()))
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrNotHeld)
			require.ErrorIs(w, errOf(try(newOwner(), a, write, name)), rwlock.ErrLocked)
			w.waits(waits)

			next, err := b.Attach(context.Background(), ticket)
			require.NoError(w, err)
			requireHeld(w, next)
			require.Greater(w, next.Token(), h.Token())
			require.Equal(w, next.Owner(), held(w, a, name, next.Owner(), mode).Owner)
			for _, rw := range []*rwlock.RWLock{a, b} {
				require.ErrorIs(w, errOf(rw.Attach(context.Background(), ticket)), rwlock.ErrLost)
				require.ErrorIs(w, rw.Discard(context.Background(), ticket), rwlock.ErrLost)
			}
			requireHeld(w, next)
			w.waits(waits)
			unlock(w, next)
			unlock(w, waits.granted())
		}
	})
}

// A ticket that is discarded frees the lock at once, and one that nobody uses frees it after its lease.
func TestTicketsEnd(t *testing.T) {
	onServers(t, func(w *world) {
		a, b := w.newLock(), w.newLock()
		ticket := detach(w, take(w, newOwner(), a, write, "n"), time.Minute)
		waits := w.enqueue(newOwner(), a, write, "n")
		require.NoError(w, w.newLock(rwlock.WithDelegation(time.Minute)).Discard(context.Background(), ticket))
		unlock(w, waits.granted())
		require.ErrorIs(w, errOf(b.Attach(context.Background(), ticket)), rwlock.ErrLost)

		ticket = detach(w, take(w, newOwner(), a, write, "n"), w.lease)
		start := time.Now()
		h := take(w, newOwner(), b, write, "n")
		w.within(w.lease+w.slack, start, time.Now())
		require.GreaterOrEqual(w, time.Since(start), w.lease-w.slack)
		require.ErrorIs(w, errOf(b.Attach(context.Background(), ticket)), rwlock.ErrLost)
		requireHeld(w, h)
		unlock(w, h)
	})
}

// One of several readers is handed on beside the others.
func TestReaderIsHandedOnBesideOthers(t *testing.T) {
	onServers(t, func(w *world) {
		a, b := w.newLock(), w.newLock()
		others := []*rwlock.Hold{take(w, newOwner(), a, read, "n"), take(w, newOwner(), b, read, "n")}
		ticket := detach(w, take(w, newOwner(), a, read, "n"), time.Minute)
		w.requireHolders(a, "n", 3)
		next, err := b.Attach(context.Background(), ticket)
		require.NoError(w, err)
		w.requireHolders(a, "n", 3)
		requireHeld(w, append(others, next)...)
		unlock(w, others...)
		requireHeld(w, next)
		unlock(w, next)
		unlock(w, take(w, newOwner(), a, write, "n"))
	})
}

// What cannot be handed on stays as it is.
func TestDetachIsRefused(t *testing.T) {
	onServers(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		inner := take(w, h.Context(), rw, read, "n")
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		for _, of := range []struct {
			ctx   context.Context
			lease time.Duration
		}{{context.Background(), time.Minute}, {cancelled, time.Minute}, {context.Background(), 0}} {
			_, err := h.Detach(of.ctx, of.lease)
			require.Error(w, err)
			requireHeld(w, h, inner)
		}
		unlock(w, inner, h)
		_, err := h.Detach(context.Background(), time.Minute)
		require.ErrorIs(w, err, rwlock.ErrNotHeld)
		_, err = (*rwlock.Hold)(nil).Detach(context.Background(), time.Minute)
		require.ErrorIs(w, err, rwlock.ErrNotHeld)

		var ticket rwlock.Ticket
		require.Error(w, errOf(rw.Attach(context.Background(), ticket)))
		require.Error(w, rw.Discard(context.Background(), ticket))
		for _, text := range []string{"", "AAAA", "not a ticket"} {
			require.Error(w, ticket.UnmarshalText([]byte(text)))
		}
	})
}

// A reply to Detach or Attach that is lost changes nothing. If the call gives up, the lock is free soon
// after.
func TestLostRepliesOfATicket(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500 * time.Millisecond)
		p.On(script("convert")).DropReply().Times(1)
		ticket := detach(w, take(w, newOwner(), rw, write, "n"), time.Minute)
		p.On(script("convert")).DropReply().Times(1)
		h, err := rw.Attach(context.Background(), ticket)
		require.NoError(w, err)
		requireHeld(w, h)
		require.NoError(w, h.Unlock(context.Background()))

		gate := make(chan struct{})
		for _, held := range []bool{false, true} {
			h = take(w, newOwner(), rw, write, "n")
			r := p.On(script("convert")).Times(1)
			if held {
				r.DelayRequest(gate)
			} else {
				r.DelayReply(gate)
			}
			_, err = h.Detach(lasting(w, w.while), time.Minute)
			require.ErrorIs(w, err, context.DeadlineExceeded)
			require.NoError(w, r.WaitHit(soon(w)))
			unlock(w, take(w, newOwner(), w.newLock(), write, "n"))
		}
		close(gate)
	})
}

// An owner that alone reads may write without releasing the lock, under a new token. While others read, or a
// writer waits, it may not, and goes on reading.
func TestTryUpgrade(t *testing.T) {
	onServers(t, func(w *world) {
		a, b := w.newLock(), w.newLock()
		h := take(w, newOwner(), a, read, "n")
		inner := take(w, h.Context(), a, read, "n")
		before := h.Token()
		ctx := h.Context()
		require.NoError(w, h.TryUpgrade(context.Background()))
		require.NoError(w, h.TryUpgrade(context.Background()))
		require.Equal(w, write, h.Mode())
		require.Equal(w, read, inner.Mode())
		require.Greater(w, h.Token(), before)
		require.Equal(w, ctx, h.Context())
		requireHeld(w, h, inner)
		require.ErrorIs(w, errOf(try(newOwner(), b, read, "n")), rwlock.ErrLocked)
		waitCount(w, b, "n", h.Owner(), write, 2)
		require.NoError(w, h.Downgrade(context.Background()))
		other := take(w, newOwner(), b, read, "n")

		refused := func(held rwlock.Mode, ahead int) {
			var blocked *rwlock.BlockedError
			err := h.TryUpgrade(context.Background())
			require.ErrorIs(w, err, rwlock.ErrLocked)
			require.ErrorAs(w, err, &blocked)
			require.Equal(w, held, blocked.HeldIn)
			require.Equal(w, ahead, blocked.Ahead)
			if held == read {
				require.Equal(w, other.Owner(), blocked.Holder)
			}
			require.Equal(w, read, h.Mode())
			requireHeld(w, h)
		}
		refused(read, 0)
		waits := w.enqueue(newOwner(), b, write, "n")
		refused(read, 1)
		unlock(w, other)
		refused(rwlock.None, 1)
		unlock(w, inner)
		refused(rwlock.None, 1)
		unlock(w, h)
		unlock(w, waits.granted())
		require.ErrorIs(w, h.TryUpgrade(context.Background()), rwlock.ErrNotHeld)
	})
}

// Two owners that read and upgrade together are not both refused for ever, nor both upgraded.
func TestUpgradesTogether(t *testing.T) {
	onServers(t, func(w *world) {
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		var holds []*rwlock.Hold
		for _, rw := range rws {
			holds = append(holds, take(w, newOwner(), rw, read, "n"))
		}
		errs := make([]error, len(holds))
		together(len(holds), func(i int) { errs[i] = holds[i].TryUpgrade(context.Background()) })
		for i, h := range holds {
			require.ErrorIs(w, errs[i], rwlock.ErrLocked)
			require.Equal(w, read, h.Mode())
		}
		unlock(w, holds[0])
		require.NoError(w, holds[1].TryUpgrade(context.Background()))
		unlock(w, holds[1])
	})
}

// If the reply to an upgrade is lost, the owner reads on, whether or not the server has upgraded the hold,
// and others may read soon.
func TestLostRepliesOfAnUpgrade(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500 * time.Millisecond)
		other := w.newLock()
		for range 3 {
			h := take(w, newOwner(), rw, read, "n")
			r := p.On(script("convert")).DropReply().Times(1)
			err := h.TryUpgrade(lasting(w, w.while))
			require.NoError(w, r.WaitHit(soon(w)))
			if err == nil { // the client has sent it again
				require.Equal(w, write, h.Mode())
			} else {
				require.Equal(w, read, h.Mode())
				unlock(w, take(w, newOwner(), other, read, "n"))
			}
			requireHeld(w, h)
			require.NoError(w, h.Unlock(context.Background()))
		}
	})
}

// Calls that convert one hold at the same time agree on what it is, and leave it held. Its token can be read
// meanwhile.
func TestConversionsTogether(t *testing.T) {
	onServers(t, func(w *world) {
		rw := w.newLock()
		for i := range 20 {
			h := take(w, newOwner(), rw, write, fmt.Sprint("n", i))
			inner := take(w, h.Context(), rw, read, h.Name())
			together(4, func(int) { assert.NoError(w, h.Downgrade(context.Background())) })
			require.Equal(w, read, h.Mode())
			before := h.Token()
			together(4, func(i int) {
				if i > 0 {
					assert.Contains(w, []bool{true, false}, inner.Token() > before)
				} else {
					assert.NoError(w, h.TryUpgrade(context.Background()))
				}
			})
			require.Equal(w, write, h.Mode())
			together(8, func(int) {
				_ = h.TryUpgrade(context.Background()) // another one may be unanswered
				assert.NoError(w, h.Downgrade(context.Background()))
			})
			requireHeld(w, h, inner)
			unlock(w, inner, h)
		}
	})
}

// Tickets of long ago do not pile up in the hash of a lock that lives on.
func TestTicketsDoNotPileUp(t *testing.T) {
	t.Parallel()
	m := testredis.Mem(t)
	c := testredis.MemClient(t, m)
	rw := newLockOn(t, c)
	start := time.Now()
	for i := range 30 {
		m.SetTime(start.Add(time.Duration(i) * 200 * time.Second))
		h := take(t, newOwner(), rw, write, "n")
		for range 4 {
			next, err := rw.Attach(context.Background(), detach(t, h, time.Minute))
			require.NoError(t, err)
			h = next
		}
		unlock(t, h)
		n, err := c.HLen(context.Background(), "rwlock:{n}").Result()
		require.NoError(t, err)
		require.Less(t, n, int64(60), "fields")
	}
}

// ForceUnlock with a token drops the holds that someone has looked at, and not those that came next.
func TestForceUnlockOfWhatWasLookedAt(t *testing.T) {
	onServers(t, func(w *world) {
		a, b := w.newLock(), w.newLock()
		force := func(token int64) error {
			return b.ForceUnlock(context.Background(), "n", rwlock.Held(token))
		}
		require.ErrorIs(w, force(1), rwlock.ErrNotHeld)
		require.Error(w, force(0))
		for _, mode := range []rwlock.Mode{write, read} {
			h := take(w, newOwner(), a, mode, "n")
			seen := inspect(w, b, "n").Token
			unlock(w, h)
			require.ErrorIs(w, force(seen), rwlock.ErrNotHeld)
			h = take(w, newOwner(), a, mode, "n")
			require.ErrorIs(w, force(seen), rwlock.ErrNotHeld)
			requireHeld(w, h)
			require.NoError(w, force(h.Token()))
			unlock(w, take(w, newOwner(), b, write, "n"))
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}
	})
}

// A write delegation is one hold: each token that it was given drops it, although its renewals give more. A
// token of a hold or delegation before it does not.
func TestForceUnlockOfADelegationThatWasLookedAt(t *testing.T) {
	onServers(t, func(w *world) {
		d, other := w.newDelegate(3*time.Second), w.newLock()
		force := func(token int64) error {
			return other.ForceUnlock(context.Background(), "n", rwlock.Held(token))
		}
		h := take(w, newOwner(), other, write, "n")
		unlock(w, h)
		before := h.Token()
		for range 2 {
			d.getsDelegated(w, write, "n")
			h = take(w, newOwner(), d.RWLock, write, "n")
			seen := inspect(w, other, "n").Token
			eventually(w, func() bool { return inspect(w, other, "n").Token > seen }, "a renewal")
			requireHeld(w, h)
			for _, token := range []int64{before, seen + time.Hour.Microseconds()} {
				require.ErrorIs(w, force(token), rwlock.ErrNotHeld)
			}
			requireHeld(w, h)
			require.NoError(w, force(seen))
			w.isLost(h)
			require.ErrorIs(w, force(seen), rwlock.ErrNotHeld)
			before = seen
		}
	})
}

// TryAll takes all locks or none, in either mode, on any servers, and names the one that is in the way.
func TestTryAll(t *testing.T) {
	everywhere(t, func(w *world) {
		a, b := w.newLock(), w.newLock()
		wants := []rwlock.Want{{Name: "c", Mode: write}, {Name: "a", Mode: read}, {Name: "b", Mode: write},
			{Name: "a", Mode: read}}
		for _, beside := range []bool{false, true} { // another reader
			var other *rwlock.Hold
			if beside {
				other = take(w, newOwner(), b, read, "a")
			}
			holds, err := a.TryAll(context.Background(), wants)
			require.NoError(w, err)
			require.Len(w, holds, 4)
			require.Same(w, holds[1], holds[3])
			for i, h := range holds {
				require.Equal(w, wants[i].Name, h.Name())
				require.Equal(w, holds[0].Owner(), h.Owner())
				require.Equal(w, wants[i].Mode, held(w, b, h.Name(), h.Owner(), h.Mode()).Mode)
				require.ErrorIs(w, errOf(try(newOwner(), b, write, h.Name())), rwlock.ErrLocked)
			}
			requireHeld(w, holds...)
			unlock(w, holds[:3]...)
			if beside {
				unlock(w, other)
			}
		}
		for _, want := range wants {
			other := take(w, newOwner(), b, write, want.Name)
			holds, err := a.TryAll(context.Background(), wants)
			require.Empty(w, holds)
			require.ErrorIs(w, err, rwlock.ErrLocked)
			var blocked *rwlock.BlockedError
			require.ErrorAs(w, err, &blocked)
			require.Equal(w, want.Name, blocked.Name)
			if w.fake || blocked.Holder != (rwlock.Owner{}) { // which a repeated request does not learn
				require.Equal(w, other.Owner(), blocked.Holder)
			}
			for _, free := range wants {
				if free.Name != want.Name {
					waitFree(w, b, free.Name)
				}
			}
			unlock(w, other)
		}
		ended, end := context.WithCancel(context.Background())
		end()
		for _, ctx := range []context.Context{context.Background(), ended} {
			holds, err := a.TryAll(ctx, nil)
			require.NoError(w, err)
			require.Empty(w, holds)
		}
		require.Error(w, errOf(a.TryAll(context.Background(), append(wants, rwlock.Want{}))))
	})
}

// Of calls that try to get the same locks together, one gets them.
func TestTryAllTogether(t *testing.T) {
	onServers(t, func(w *world) {
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		for round := range 20 {
			wants := []rwlock.Want{{Name: fmt.Sprint("a", round), Mode: write}, {Name: fmt.Sprint("b", round), Mode: write}}
			var holds [4][]*rwlock.Hold
			together(len(holds), func(i int) {
				holds[i], _ = rws[i%2].TryAll(context.Background(), wants)
			})
			got := 0
			for _, h := range holds {
				got += len(h)
				unlock(w, h...)
			}
			require.Equal(w, len(wants), got)
		}
	})
}

// What an owner holds already, TryAll has it hold once more. A lost reply leaves nothing held.
func TestTryAllOfWhatIsHeld(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500 * time.Millisecond)
		other := w.newLock()
		h := take(w, newOwner(), rw, write, "b")
		wants := []rwlock.Want{{Name: "a", Mode: write}, {Name: "b", Mode: write}}
		holds, err := rw.TryAll(h.Context(), wants)
		require.NoError(w, err)
		require.Equal(w, h.Token(), holds[1].Token())
		unlock(w, h)
		require.ErrorIs(w, errOf(try(newOwner(), other, read, "b")), rwlock.ErrLocked)
		unlock(w, holds...)

		gate := make(chan struct{})
		r := p.On(script("lock_all")).DelayReply(gate).Times(1)
		_, err = rw.TryAll(lasting(w, w.while), wants)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.NoError(w, r.WaitHit(soon(w)))
		close(gate)
		for _, want := range wants {
			unlock(w, take(w, newOwner(), other, write, want.Name))
		}
	})
}

// Detach ends the context that it may have been called with, as every call under a hold is.
func TestDetachWithTheHoldsOwnContext(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500 * time.Millisecond)
		var ticket rwlock.Ticket
		require.NoError(w, rw.WithLock(context.Background(), "n", func(ctx context.Context, h *rwlock.Hold) (err error) {
			inner := take(w, ctx, rw, read, "inner")
			defer unlock(w, inner)
			ctx, cancel := context.WithTimeout(inner.Context(), hang)
			defer cancel()
			ticket, err = h.Detach(ctx, time.Minute)
			return err
		}))
		h, err := rw.Attach(context.Background(), ticket)
		require.NoError(w, err)

		gate := make(chan struct{})
		p.On(script("convert")).DelayRequest(gate).Times(1)
		ctx, cancel := context.WithTimeout(h.Context(), w.while)
		defer cancel()
		require.ErrorIs(w, errOf(h.Detach(ctx, time.Minute)), context.DeadlineExceeded)
		close(gate)
		waitFree(w, rw, "n")

		h, gate = take(w, newOwner(), rw, write, "n"), make(chan struct{})
		r := p.On(script("convert")).DelayRequest(gate).Times(1)
		own, cancel := context.WithCancel(h.Context())
		detached := w.start(func() error { return errOf(h.Detach(own, time.Minute)) })
		require.NoError(w, r.WaitHit(soon(w)))
		start := time.Now()
		cancel()
		require.ErrorIs(w, errOf(detached.wait()), context.Canceled)
		require.Less(w, time.Since(start), w.lease)
		close(gate)
		waitFree(w, rw, "n")
	})
}

// A hold that was converted, and that a tracer knows, is detached with its own context, too.
func TestDetachAfterAConversion(t *testing.T) {
	onServers(t, func(w *world) {
		rw := w.newLock(rwlock.WithTracer(&tracer{}))
		h := take(w, newOwner(), rw, read, "n")
		require.NoError(w, h.TryUpgrade(context.Background()))
		ticket, err := h.Detach(h.Context(), time.Minute)
		require.NoError(w, err)
		require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrDetached)
		require.NoError(w, rw.Discard(context.Background(), ticket))
	})
}

// The context of a hold ends with the lease of its ticket, though Detach has no answer yet.
func TestDetachWithoutAnAnswer(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(500 * time.Millisecond)
		h, gate := take(w, newOwner(), rw, write, "n"), make(chan struct{})
		ctx := h.Context()
		p.On(script("convert")).DelayReply(gate)
		detached := w.start(func() error { return errOf(h.Detach(context.Background(), w.lease)) })
		<-ctx.Done() // the lock is free
		require.ErrorIs(w, context.Cause(ctx), rwlock.ErrDetached)
		close(gate)
		require.NoError(w, errOf(detached.wait()))
	})
}

// Calls that convert or release a hold at the same time leave nothing held. They share what a tracer has said
// of it.
func TestConversionsAtOnceWithATracer(t *testing.T) {
	onServers(t, func(w *world) {
		rw := w.newLock(rwlock.WithTracer(&tracer{}), rwlock.WithObserver(&journal{}))
		for i := range 200 {
			h := take(w, newOwner(), rw, read, fmt.Sprint(i))
			var calls sync.WaitGroup
			for range 2 {
				calls.Go(func() {
					_ = h.TryUpgrade(context.Background())
					_ = h.Downgrade(context.Background())
				})
				calls.Go(func() {
					_ = h.Downgrade(context.Background())
					_ = h.TryUpgrade(context.Background())
				})
			}
			calls.Wait()
			calls.Go(func() { _ = h.TryUpgrade(context.Background()) })
			calls.Go(func() {
				if ticket, err := h.Detach(h.Context(), time.Minute); err == nil {
					_ = rw.Discard(context.Background(), ticket)
				}
			})
			calls.Go(func() { _ = h.Unlock(context.Background()) })
			calls.Wait()
			waitFree(w, rw, h.Name())
		}
	})
}

// An owner that has not released a hold that it lost is told so, and the ticket is still good.
func TestAttachBesideALostHold(t *testing.T) {
	onServers(t, func(w *world) {
		a, b, o := w.newLock(), w.newLock(rwlock.WithLease(w.lease)), newOwner()
		lost := take(w, o, b, read, "n")
		require.NoError(w, a.ForceUnlock(context.Background(), "n"))
		w.lostWhen(lost)
		ticket := detach(w, take(w, newOwner(), a, write, "n"), time.Minute)
		_, err := b.Attach(o, ticket)
		requireError(w, err, "has a hold on the lock")
		require.NotErrorIs(w, err, rwlock.ErrLost)
		require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
		h, err := b.Attach(o, ticket)
		require.NoError(w, err)
		unlock(w, h)
	})
}

// Shutdown lets a Detach that has begun end: the lock is the ticket's then.
func TestShutdownWaitsForDetach(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(hang)
		h, gate := take(w, newOwner(), rw, write, "n"), make(chan struct{})
		r := p.On(script("convert")).DelayReply(gate).Times(1)
		var ticket rwlock.Ticket
		detached := w.start(func() (err error) {
			ticket, err = h.Detach(context.Background(), time.Minute)
			return err
		})
		require.NoError(w, r.WaitHit(soon(w)))
		down := w.shutDown(context.Background(), rw)
		close(gate)
		require.NoError(w, errOf(detached.wait()))
		require.NoError(w, errOf(down.wait()))
		next, err := w.newLock().Attach(context.Background(), ticket)
		require.NoError(w, err)
		unlock(w, next)
	})
}

// A request of TryAll whose reply is lost, or that runs twice, has the result of one run.
func TestTryAllThatRunsTwice(t *testing.T) {
	onServers(t, func(w *world) {
		rw, p := w.behindProxy(300 * time.Millisecond)
		other := take(w, newOwner(), w.newLock(), read, "r")
		for i := range 10 {
			if r := p.On(script("lock_all")).Times(1); i%2 == 0 {
				r.DropReply()
			} else {
				r.Duplicate()
			}
			holds, err := rw.TryAll(context.Background(), []rwlock.Want{need(fmt.Sprint("a", i), write), need("r", read),
				need(fmt.Sprint("b", i), read)})
			require.NoError(w, err)
			requireHeld(w, holds...)
			unlock(w, holds...)
		}
		unlock(w, other)
	})
}

// An observer is told once of each call that TryAll makes: of those that got their locks, and of the one that
// did not. What was got ends, with a tracer, too.
func TestTryAllIsObserved(t *testing.T) {
	everywhere(t, func(w *world) {
		var j journal
		rw := w.newLock(rwlock.WithObserver(&j), rwlock.WithTracer(&tracer{}))
		other := take(w, newOwner(), w.newLock(), write, "b")
		_, err := rw.TryAll(context.Background(), []rwlock.Want{need("a", write), need("b", write), need("c", read)})
		require.ErrorIs(w, err, rwlock.ErrLocked)
		unlock(w, other)
		require.NoError(w, rw.Close())
		var refused []string
		for _, e := range j.of(rwlock.EventRefused) {
			require.ErrorIs(w, e.Err, rwlock.ErrLocked)
			refused = append(refused, e.Name)
		}
		require.Equal(w, []string{"b"}, refused)
		require.Len(w, j.of(rwlock.EventEnded), len(j.of(rwlock.EventAcquired)))
	})
}

// TryAll begins again if its process stood still for longer than the lease, as TryLock does.
func TestTryAllAfterAPause(t *testing.T) {
	onServers(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		asks := 0
		ctx := pausing{newOwner(), func() {
			if asks++; asks == 2 {
				time.Sleep(2 * w.lease)
			}
		}}
		holds, err := rw.TryAll(ctx, []rwlock.Want{need("a", write), need("b", write)}, rwlock.NoRenew())
		require.NoError(w, err)
		require.Greater(w, asks, 2)
		unlock(w, holds...)
	})
}

// A pausing context does something before it says its error.
type pausing struct {
	context.Context
	pause func()
}

func (c pausing) Err() error {
	c.pause()
	return c.Context.Err()
}

// A tracer that panics in TryAll leaves holds that are forgotten, as it does in a lock call.
func TestTracerThatPanicsInTryAll(t *testing.T) {
	t.Parallel()
	rw := newLockOn(t, testredis.MemClient(t, testredis.Mem(t)), rwlock.WithTracer(new(secondPanics)),
		rwlock.WithLease(time.Second))
	require.Panics(t, func() {
		_, _ = rw.TryAll(newOwner(), []rwlock.Want{need("a", write), need("b", write), need("c", write)})
	})
	eventually(t, func() bool {
		runtime.GC()
		return len(rw.Snapshot().Holds) == 0
	}, "holds that end")
}

type secondPanics struct{ holds int }

func (*secondPanics) TraceCall(ctx context.Context, _ string, _ rwlock.Mode) context.Context {
	return ctx
}

func (s *secondPanics) TraceHold(ctx context.Context, _ *rwlock.Hold) context.Context {
	if s.holds++; s.holds == 2 {
		panic("oh")
	}
	return ctx
}

// TryAll takes so many locks in several steps, and releases all if one of the last cannot be had.
func TestTryAllOfMany(t *testing.T) {
	onServers(t, func(w *world) {
		rw, other := w.newLock(), w.newLock()
		var wants []rwlock.Want
		for i := range 450 {
			wants = append(wants, need(fmt.Sprintf("%03d", i), bothModes[i%2]))
		}
		h := take(w, newOwner(), other, write, "440")
		holds, err := rw.TryAll(context.Background(), wants)
		require.ErrorIs(w, err, rwlock.ErrLocked)
		require.ErrorContains(w, err, `"440"`)
		require.Empty(w, holds)
		for _, name := range []string{"000", "200", "439", "449"} {
			waitFree(w, other, name)
		}
		unlock(w, h)
		holds, err = rw.TryAll(context.Background(), wants)
		require.NoError(w, err)
		require.Len(w, holds, len(wants))
		require.Equal(w, holds[0].Owner(), held(w, other, "449", holds[0].Owner(), bothModes[1]).Owner)
		unlock(w, holds...)
	})
}

// WithAll returns soon after its wait has ended, though the server does not answer any more: it does not wait
// for the release of what it has.
func TestWithAllReturnsThoughTheServerIsFrozen(t *testing.T) {
	each(t, map[string][]rwlock.LockOption{"context": nil, "MaxWait": {rwlock.MaxWait(time.Second)}},
		func(t *testing.T, opts []rwlock.LockOption) {
			inBubble(t, func(w *world) {
				rw, wire := w.newMortal()
				w.keep(newOwner(), w.newLock(), write, "b")
				ctx, start := context.Background(), time.Now()
				if opts == nil {
					ctx = lasting(w, time.Second)
				}
				time.AfterFunc(time.Second/2, wire.freeze)
				err := rw.WithAll(ctx, []rwlock.Want{need("a", write), need("b", write)}, nothingWithAll, opts...)
				require.ErrorIs(w, err, context.DeadlineExceeded)
				w.within(time.Second+50*time.Millisecond, start, time.Now())
			})
		})
}
