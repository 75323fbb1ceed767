package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// margin is what a client's deadline is short of the server's.
func margin(lease time.Duration) time.Duration { return lease/100 + 2*time.Millisecond }

// around ends the test if got is not within a little of want: leases count in whole milliseconds.
func (w *world) around(want, got time.Duration) {
	w.Helper()
	require.InDelta(w, want, got, float64(2*time.Millisecond))
}

// left returns what is left of the lease of a hold that has not been lost.
func (w *world) left(rw *rwlock.RWLock, h *rwlock.Hold) time.Duration {
	w.Helper()
	holder := held(w, rw, h.Name(), h.Owner(), h.Mode())
	require.NotZero(w, holder.Count, "the hold is gone")
	return holder.Lease
}

// Re-entry neither shortens a lease nor lengthens it by adding: the longer of what is left and what is asked
// counts. The release of the inner hold shortens nothing.
func TestReentryKeepsTheLongerLease(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		u := w.lease
		for _, mode := range bothModes {
			for _, c := range []struct{ outer, passed, inner, want time.Duration }{
				{10 * u, 0, u, 10 * u},
				{u, 0, 10 * u, 10 * u},
				{10 * u, 0, 10 * u, 10 * u},
				{10 * u, u / 2, 5 * u, 9*u + u/2},
				{2 * u, u / 2, 5 * u, 5 * u},
			} {
				outer := take(w, newOwner(), rw, mode, "n", rwlock.Lease(c.outer), rwlock.NoRenew())
				time.Sleep(c.passed)
				inner := take(w, outer.Context(), rw, mode, "n", rwlock.Lease(c.inner), rwlock.NoRenew())
				w.around(c.want, w.left(rw, outer))
				unlock(w, inner)
				w.around(c.want, w.left(rw, outer))
				w.around(c.outer-c.passed-margin(c.outer), time.Until(outer.Deadline()))
				unlock(w, outer)
			}
		}
	})
}

// A live reader does not keep a dead one alive: a writer gets in when the live one has left and the dead
// one's lease is over, whichever comes last.
func TestDeadReaderBesideALiveOne(t *testing.T) {
	bubbled(t, func(w *world) {
		for _, c := range []struct {
			name    string
			leaving time.Duration // of the live reader, after the death of the other
		}{
			{"the live one leaves first", w.lease / 10},
			{"the live one leaves last", 2 * w.lease},
		} {
			rw := w.newLock(rwlock.WithLease(w.lease))
			mortal, wire := w.newMortal(rwlock.WithLease(w.lease))
			live := take(w, newOwner(), rw, read, c.name)
			dead := take(w, newOwner(), mortal, read, c.name)
			writer := w.enqueue(newOwner(), rw, write, c.name)
			wire.cut()
			free := time.Now().Add(max(c.leaving, w.left(rw, dead)))
			time.Sleep(c.leaving)
			require.False(w, writer.returned())
			unlock(w, live)
			unlock(w, writer.granted())
			require.WithinRange(w, writer.at, free.Add(-2*time.Millisecond), free.Add(w.slack))
			require.ErrorIs(w, dead.Unlock(context.Background()), rwlock.ErrLost)
		}
	})
}

// A reader whose own lease is over has lost its hold though others keep the lock in read mode: its re-entry
// and its Unlock say ErrLost, and revive nothing.
func TestReaderLosesItsHoldBesideOthers(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		owner := newOwner()
		b := take(w, newOwner(), rw, read, "n")
		a := take(w, owner, rw, read, "n", rwlock.NoRenew())
		w.lostWhen(a)
		for _, mode := range bothModes {
			require.ErrorIs(w, errOf(acquire(owner, rw, mode, "n")), rwlock.ErrLost)
			require.ErrorIs(w, errOf(try(owner, rw, mode, "n")), rwlock.ErrLost)
		}
		require.ErrorIs(w, a.Unlock(owner), rwlock.ErrLost)
		require.ErrorIs(w, a.Unlock(owner), rwlock.ErrNotHeld)
		eventually(w, func() bool { return held(w, rw, "n", a.Owner(), read).Count == 0 },
			"the end of the lost hold")
		require.Equal(w, 1, held(w, rw, "n", b.Owner(), read).Count)

		// The owner has settled its loss, and may start again.
		again := take(w, owner, rw, read, "n")
		require.Equal(w, 1, held(w, rw, "n", again.Owner(), read).Count)
		unlock(w, again, b)
	})
}

// A hold is renewed for as long as it is held: its Deadline moves on with each renewal, lies ahead while the
// hold lasts, and never steps back.
func TestHoldsAreRenewed(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		holds := []*rwlock.Hold{take(w, newOwner(), rw, write, "w"), take(w, newOwner(), rw, read, "r"),
			take(w, newOwner(), rw, read, "r", rwlock.Lease(w.lease/2))}
		start, last := time.Now(), make([]time.Time, len(holds))
		for range 100 {
			for i, h := range holds {
				require.NoError(w, h.Context().Err())
				require.True(w, h.Deadline().After(time.Now()))
				require.False(w, h.Deadline().Before(last[i]))
				last[i] = h.Deadline()
				require.Greater(w, w.left(rw, h), w.lease/4)
			}
			time.Sleep(w.lease / 20)
		}
		require.True(w, last[0].After(start.Add(2*w.lease)))
		unlock(w, holds...)
		require.False(w, holds[0].Deadline().After(time.Now().Add(w.lease)))
	})
}

// A process that holds many locks, alone or beside other readers, renews many of them by one request. Those
// that others wait for are renewed as well.
func TestRenewalsOfManyHoldsShareRequests(t *testing.T) {
	bubbled(t, func(w *world) {
		const many, leases = 50, 3
		sent := &counter{only: "evalsha"}
		rw := w.newLockVia(sent.over)
		holds := []*rwlock.Hold{take(w, newOwner(), rw, write, "n")}
		for i := range many {
			holds = append(holds, take(w, newOwner(), rw, bothModes[i%2], fmt.Sprint("alone", i)),
				take(w, newOwner(), rw, read, fmt.Sprint("shared", i/2)))
		}
		calls := w.enqueueAll(1, rw, write, "n")
		before := sent.Load()
		time.Sleep(leases * w.lease)
		require.Less(w, sent.Load()-before, int64(2*many*leases*len(w.servers())), "a third of the renewals")
		for _, h := range holds {
			require.NoError(w, h.Context().Err())
			require.Greater(w, w.left(rw, h), w.lease/4)
		}
		unlock(w, holds...)
		finish(calls...)
	})
}

// A hold that is not renewed ends with its lease, which counts from the grant, also if it had to be waited
// for.
func TestNoRenewEndsWithTheLease(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		for _, mode := range bothModes {
			blocker := take(w, newOwner(), rw, write, "n")
			queued := w.enqueue(newOwner(), rw, mode, "n", rwlock.NoRenew())
			time.Sleep(w.lease / 4)
			unlock(w, blocker)
			first := queued.granted()
			next := w.enqueue(newOwner(), rw, write, "n", rwlock.NoRenew())
			lost := w.isLost(first)
			second := next.granted()
			require.GreaterOrEqual(w, lost.Sub(queued.at), w.lease-margin(w.lease))
			require.False(w, lost.After(next.at), "others had the lock before its holder knew")
			require.Equal(w, w.lease-margin(w.lease), w.isLost(second).Sub(next.at))
			w.within(w.lease+w.slack, queued.at, next.at)
			waitFree(w, rw, "n")
		}
	})
}

// A hold is lost at its local deadline, and not before, though the server cannot be reached, or the
// connection hangs and no error comes: that is the lease, less one percent and two milliseconds, from the
// moment before the last request that succeeded. Nobody else has the lock before.
func TestLostAtTheLocalDeadline(t *testing.T) {
	type test struct {
		fault string
		mode  rwlock.Mode
		held  time.Duration // in tenths of a lease
	}
	cases := []test{
		{"cut", write, 4}, {"silent", read, 0}, {"cut", read, 0}, {"cut", write, 0}, {"silent", write, 0},
		{"cut", read, 4}, {"silent", write, 4}, {"silent", read, 4},
	}
	everywhere(t, func(w *world) {
		rw := w.newLock()
		together(len(cases), func(i int) {
			c, name := cases[i], fmt.Sprint(i)
			mortal, wire := w.newMortal(rwlock.WithLease(w.lease))
			start := time.Now()
			h := take(w, newOwner(), mortal, c.mode, name)
			time.Sleep(c.held * w.lease / 10) // a renewal has come after a third
			wireFaults[c.fault](wire)
			deadline := time.Now().Add(w.left(rw, h))
			next := w.launch(newOwner(), rw, write, name)
			require.NoError(w, h.Context().Err())
			lost := w.lostWhen(h)
			if w.fake {
				w.around(margin(w.lease), deadline.Sub(lost))
				require.False(w, next.returned(), "before anyone else can have the lock")
			}
			if w.fake && w.quorum == nil {
				require.Equal(w, (c.held*w.lease/10).Truncate(w.lease/3)+w.lease-margin(w.lease), lost.Sub(start))
			}
			w.within(w.prompt, deadline, lost)
			got := next.granted()
			w.within(w.slack, deadline, next.at)
			require.Greater(w, got.Token(), h.Token())
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
			unlock(w, got)
			waitFree(w, rw, name)
		})
	})
}

// A hold that the server has lost is lost as soon as a renewal tells, and so are the inner ones. Nothing
// starts it again: not a re-entry, not the renewal, and not the Unlock.
func TestServerLosesTheHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		for _, mode := range bothModes {
			for _, reentered := range []bool{false, true} {
				owner := newOwner()
				h := take(w, owner, rw, mode, "n")
				w.removeKeys()
				start := time.Now()
				var inner *rwlock.Hold
				if reentered { // which asks nobody; on a slow machine, a renewal may have told already
					var err error
					if inner, err = acquire(owner, rw, mode, "n"); err != nil {
						require.ErrorIs(w, err, rwlock.ErrLost)
						require.False(w, w.fake)
					}
				}
				w.within(w.lease/3+w.prompt, start, w.lostWhen(h))
				if inner != nil {
					require.ErrorIs(w, inner.Unlock(owner), rwlock.ErrLost)
				}
				require.ErrorIs(w, errOf(acquire(owner, rw, mode, "n")), rwlock.ErrLost)
				require.ErrorIs(w, h.Unlock(owner), rwlock.ErrLost)
				w.requireClean()
				unlock(w, take(w, owner, rw, mode, "n"))

				// Nobody has noticed yet when the Unlock comes.
				h = take(w, owner, rw, mode, "n")
				w.removeKeys()
				require.ErrorIs(w, h.Unlock(owner), rwlock.ErrLost)
				w.requireClean()
			}
		}
	})
}

// Of many Unlocks of one Hold, at a time or one after the other, one releases; the others say ErrNotHeld and
// release nothing else of the owner.
func TestUnlockTwice(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			ctx := newOwner()
			other, h := take(w, ctx, rw, mode, "n"), take(w, ctx, rw, mode, "n")
			var released, refused atomic.Int32
			together(10, func(int) {
				switch err := h.Unlock(ctx); {
				case err == nil:
					released.Add(1)
				case errors.Is(err, rwlock.ErrNotHeld):
					refused.Add(1)
				}
			})
			require.EqualValues(w, 1, released.Load())
			require.EqualValues(w, 9, refused.Load())
			require.Equal(w, 1, held(w, rw, "n", other.Owner(), mode).Count)
			require.NoError(w, other.Context().Err())
			unlock(w, other)
		}
	})
}

// A Hold that becomes unreachable without Unlock is renewed no more: its lease frees the lock, and the logger
// hears where it was taken. One that was released is not reported, nor is one that is not renewed: it may be
// left to its lease, so that a job runs once in that time.
func TestForgottenHold(t *testing.T) {
	onServers(t, func(w *world) {
		log := &testredis.Output{}
		rw := w.newLock(rwlock.WithLease(w.lease), rwlock.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		for name, lock := range map[string]func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold,
			error){"r": rw.RLock, "w": rw.Lock} {
			h, err := lock(newOwner(), "released")
			require.NoError(w, err)
			unlock(w, h)
			require.NoError(w, errOf(lock(newOwner(), name)))
		}
		kept, start := take(w, newOwner(), rw, write, "kept", rwlock.Lease(hang)), time.Now()
		require.NoError(w, errOf(rw.TryLock(newOwner(), "job", rwlock.NoRenew())))
		eventually(w, func() bool { // and a snapshot says so
			runtime.GC()
			return slices.ContainsFunc(rw.Snapshot().Holds, func(h rwlock.LocalHold) bool {
				return h.Forgotten && !h.Renewed && h.Name != "kept"
			})
		}, "a forgotten hold")
		if time.Since(start) < w.lease/2 {
			require.ErrorIs(w, errOf(rw.TryLock(newOwner(), "job")), rwlock.ErrLocked)
		}
		waitFree(w, rw, "job")
		require.GreaterOrEqual(w, time.Since(start), w.lease-margin(w.lease), "it is returned at its Deadline")
		eventually(w, func() bool {
			runtime.GC()
			time.Sleep(w.lease / 10)
			return inspect(w, rw, "r").Mode == rwlock.None && inspect(w, rw, "w").Mode == rwlock.None
		}, "the forgotten holds are gone")
		out := log.String()
		require.Contains(w, out, "lock=r ")
		require.Contains(w, out, "lock=w ")
		require.Contains(w, out, "lease_test.go:")
		require.NotContains(w, out, "lock=released")
		require.NotContains(w, out, "lock=kept")
		require.NotContains(w, out, "lock=job")
		unlock(w, kept)
	})
}

// A hold whose Hold nobody refers to ends with its lease, though someone keeps its context or one made from
// it, and functions wait for its end; also if the context that it was taken with lives on. All of them are
// told.
func TestContextDoesNotKeepItsHold(t *testing.T) {
	type key struct{}
	contexts := map[string]func(ctx context.Context) context.Context{
		"itself": func(ctx context.Context) context.Context { return ctx },
		"AfterFunc": func(ctx context.Context) context.Context {
			told, tell := context.WithCancelCause(context.Background())
			context.AfterFunc(ctx, func() { tell(context.Cause(ctx)) })
			return told
		},
		"WithValue": func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, 1) },
		"WithOwner": func(ctx context.Context) context.Context {
			return rwlock.WithOwner(ctx, rwlock.NewOwner())
		},
		"WithCancel of WithValue": func(ctx context.Context) context.Context {
			child, cancel := context.WithCancel(context.WithValue(ctx, key{}, 1))
			_ = cancel // only with the hold
			return child
		},
		"WithTimeout": func(ctx context.Context) context.Context {
			child, cancel := context.WithTimeout(ctx, hang)
			_ = cancel
			return child
		},
	}
	onServers(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		alive, cancel := context.WithCancel(context.Background())
		defer cancel()
		kept := map[string]context.Context{}
		for parent, ctx := range map[string]context.Context{"of none": context.Background(),
			"of one that lives on": alive} {
			for name, child := range contexts {
				name += " " + parent
				kept[name] = child(take(w, rwlock.WithOwner(ctx, rwlock.NewOwner()), rw, write, name).Context())
			}
		}
		for name, ctx := range kept {
			w.isForgotten(rw, name, ctx.Done())
			require.ErrorIs(w, context.Cause(ctx), rwlock.ErrLost, name)
		}
	})
}

// isForgotten waits until a hold that nobody refers to has ended, which closes over. Then the lock can be
// had.
func (w *world) isForgotten(rw *rwlock.RWLock, name string, over <-chan struct{}) {
	w.Helper()
	eventually(w, func() bool {
		runtime.GC()
		select {
		case <-over:
			return true
		default:
			return false
		}
	}, "the end of the hold of %q", name)
	unlock(w, take(w, newOwner(), rw, write, name))
}

// A hold may be relied on for its lease from before the request was sent, however late the reply comes.
func TestDeadlineCountsFromBeforeTheRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		var delay atomic.Int64
		rw := newLockOn(w, w.dial(slowly(func() time.Duration { return time.Duration(delay.Load()) })))
		for _, mode := range bothModes {
			for range 2 { // loads the scripts
				unlock(w, take(w, newOwner(), rw, mode, "n"))
			}
			delay.Store(int64(10 * time.Second))
			start := time.Now()
			h := take(w, newOwner(), rw, mode, "n", rwlock.Lease(30*time.Second), rwlock.NoRenew())
			delay.Store(0)
			w.within(30*time.Second, start, w.isLost(h))
		}
	})
}

// Deadline is when the context of a hold that is not renewed is cancelled. From then on, Unlock says that the
// hold was lost, even if that is the first to notice, and the server has yet to end it.
func TestUnlockAtTheLocalDeadline(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for i := range 25 {
			for _, mode := range bothModes {
				start := time.Now()
				h := take(w, newOwner(), rw, mode, "n", rwlock.Lease(time.Second), rwlock.NoRenew())
				deadline := start.Add(time.Second - 12*time.Millisecond)
				require.Equal(w, deadline, h.Deadline())
				if i == 0 {
					require.Equal(w, deadline, w.lostWhen(h))
				}
				time.Sleep(time.Until(deadline))
				require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
				require.Equal(w, deadline, h.Deadline(), "it stays the last such moment")
			}
		}
	})
}

// All contexts that were made from a hold's are cancelled when it is lost, with the cause ErrLost, and
// functions that wait for its end are called; and so when the context ends that the hold was taken with, with
// its cause.
func TestChildrenOfAHoldsContextEnd(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, cause := w.newLock(), errors.New("the cause")
		for _, bounded := range []bool{false, true} {
			for want, finish := range map[error]func(h *rwlock.Hold, end context.CancelCauseFunc){
				context.Canceled: func(h *rwlock.Hold, _ context.CancelCauseFunc) { unlock(w, h) },
				rwlock.ErrLost: func(h *rwlock.Hold, _ context.CancelCauseFunc) {
					require.NoError(w, rw.ForceUnlock(context.Background(), "n"))
					w.isLost(h)
				},
				cause: func(h *rwlock.Hold, end context.CancelCauseFunc) {
					end(cause)
					require.Equal(w, cause, context.Cause(h.Context()))
					unlock(w, h)
				},
			} {
				parent, end := context.WithCancelCause(newOwner())
				if bounded {
					var cancel func()
					parent, cancel = context.WithTimeout(parent, 100*w.lease)
					defer cancel()
				}
				h := take(w, parent, rw, write, "n")
				ctx := h.Context()
				require.Equal(w, ctx.Done(), h.Context().Done())
				deadline, ok := ctx.Deadline()
				wantDeadline, wantOK := parent.Deadline()
				require.Equal(w, wantDeadline, deadline)
				require.Equal(w, wantOK, ok)
				called := make(chan error, 1)
				context.AfterFunc(ctx, func() { called <- context.Cause(ctx) })
				one, cancelOne := context.WithCancel(ctx)
				two, cancelTwo := context.WithTimeout(context.WithValue(ctx, t, 1), time.Hour)
				finish(h, end)
				require.ErrorIs(w, <-called, want)
				for _, child := range []context.Context{ctx, one, two} {
					<-child.Done()
					require.ErrorIs(w, child.Err(), context.Canceled)
					require.ErrorIs(w, context.Cause(child), want)
				}
				cancelOne()
				cancelTwo()
				end(nil)
			}
		}
	})
}

// extended ends the test if the server does not keep a hold for d, or for much longer than the client's
// margin beyond.
func (w *world) extended(rw *rwlock.RWLock, h *rwlock.Hold, d time.Duration) {
	w.Helper()
	left := w.left(rw, h)
	require.GreaterOrEqual(w, left, d)
	require.LessOrEqual(w, left, d+d/99+4*time.Millisecond)
}

// A hold lasts for as long as Extend says, here and on the server, and no longer: renewed or not, and though
// its process cannot reach the server. Nobody else has the lock meanwhile.
func TestExtendMovesTheEndOfAHold(t *testing.T) {
	bubbled(t, func(w *world) {
		other := w.newLock()
		for i, opts := range [][]rwlock.LockOption{nil, {rwlock.NoRenew()}} {
			// all the time, servers are asked again
			for j, d := range []time.Duration{40 * time.Second, 5 * time.Minute} {
				mortal, wire := w.newMortal()
				h := take(w, newOwner(), mortal, bothModes[(i+j)%2], "n", opts...)
				var start time.Time
				for range 3 {
					time.Sleep(w.lease / 2)
					start = time.Now()
					require.NoError(w, h.Extend(context.Background(), d))
					w.extended(other, h, d)
				}
				wire.cut()
				next := w.launch(newOwner(), other, write, "n")
				require.Equal(w, h.Deadline(), w.isLost(h))
				require.GreaterOrEqual(w, time.Since(start), d)
				require.False(w, next.returned())
				unlock(w, next.granted())
				w.within(d+margin(d)+d/99+w.slack, start, next.at)
			}
		}
	})
}

// Extend and Downgrade of what is no hold any more say why, and change nothing.
func TestExtendAndDowngradeWithoutAHold(t *testing.T) {
	everywhere(t, func(w *world) {
		ctx, far := context.Background(), w.newLock()
		for what, call := range map[string]func(*rwlock.Hold) error{
			"Extend":    func(h *rwlock.Hold) error { return h.Extend(ctx, time.Hour) },
			"Downgrade": func(h *rwlock.Hold) error { return h.Downgrade(ctx) },
		} {
			rw := w.newLock()
			for _, h := range []*rwlock.Hold{nil, {}} {
				require.ErrorIs(w, call(h), rwlock.ErrNotHeld, what)
			}
			released := take(w, newOwner(), rw, write, "released")
			unlock(w, released)
			require.ErrorIs(w, call(released), rwlock.ErrNotHeld, what)

			dropped := take(w, newOwner(), rw, write, "dropped")
			require.NoError(w, far.ForceUnlock(ctx, "dropped"))
			require.ErrorIs(w, call(dropped), rwlock.ErrLost, what)
			w.lostWhen(dropped)
			require.ErrorIs(w, call(dropped), rwlock.ErrLost, what)
			require.ErrorIs(w, dropped.Unlock(ctx), rwlock.ErrLost, what)
			require.ErrorIs(w, call(dropped), rwlock.ErrNotHeld, what)

			closed := take(w, newOwner(), rw, write, "closed")
			require.NoError(w, rw.Close())
			require.ErrorIs(w, call(closed), rwlock.ErrClosed, what)
			for _, name := range []string{"released", "dropped", "closed"} {
				require.Equal(w, rwlock.None, inspect(w, far, name).Mode)
			}
		}
	})
}

// Extend refuses what is no time, and a context that is nil or done, and returns when its context ends; the
// hold stays. It never shortens a hold, and asks the server for nothing that is so already.
func TestExtendThatFails(t *testing.T) {
	bubbled(t, func(w *world) {
		mortal, wire := w.newMortal()
		for _, opts := range [][]rwlock.LockOption{nil, {rwlock.NoRenew()}} {
			ctx, cancel := context.WithCancel(newOwner())
			h := take(w, ctx, mortal, write, "n", opts...)
			for _, d := range []time.Duration{-1, 0, 11 * 365 * 24 * time.Hour} {
				require.ErrorContains(w, h.Extend(ctx, d), "extension "+d.String())
			}
			var none context.Context
			require.ErrorContains(w, h.Extend(none, time.Hour), "the context is nil")
			wire.cut()
			before := h.Deadline()
			for _, d := range []time.Duration{time.Until(before), time.Millisecond} {
				require.NoError(w, h.Extend(ctx, d))
				require.Equal(w, before, h.Deadline())
			}
			start := time.Now()
			time.AfterFunc(5*time.Second, cancel)
			requireError(w, h.Extend(ctx, time.Hour), context.Canceled, "the wire is cut",
				`rwlock: extend "n": context canceled after 5s: the server has not answered`)
			require.Equal(w, 5*time.Second, time.Since(start))
			require.ErrorIs(w, h.Extend(ctx, time.Hour), context.Canceled)
			require.True(w, h.Deadline().Before(start.Add(time.Minute)))
			wire.mend()
			unlock(w, h)
		}
	})
}

// A hold with MaxHold lasts for just so long, however its lease divides that, and however it was granted; and
// the server keeps it for no longer than the margin beyond.
func TestMaxHoldEndsTheHold(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		for _, mode := range bothModes {
			for i, c := range []struct{ lease, most time.Duration }{
				{30 * time.Second, 10 * time.Second},
				{30 * time.Second, 30 * time.Second},
				{30 * time.Second, 31 * time.Second},
				{30 * time.Second, 40 * time.Second},
				{30 * time.Second, 10 * time.Minute},
				{30 * time.Second, 100 * time.Millisecond},
				{time.Second, 10*time.Second + 1},
				{time.Hour, time.Minute},
			} {
				opts := []rwlock.LockOption{rwlock.Lease(c.lease), rwlock.MaxHold(c.most)}
				var h *rwlock.Hold
				if (i%2 == 0) == (mode == write) {
					h = take(w, newOwner(), rw, mode, "n", opts...)
				} else {
					before := take(w, newOwner(), far, write, "n")
					next := w.enqueue(newOwner(), rw, mode, "n", opts...)
					time.Sleep(7 * time.Second)
					unlock(w, before)
					h = next.granted()
				}
				start := time.Now()
				left := c.most
				for left > c.most/8 {
					time.Sleep(c.most / 10)
					left = c.most - time.Since(start)
					require.NoError(w, h.Context().Err(), "%v of %v", time.Since(start), c)
					require.LessOrEqual(w, w.left(rw, h), left+margin(c.lease)+2*time.Millisecond)
					require.False(w, h.Deadline().After(start.Add(c.most)))
				}
				require.InDelta(w, c.most, w.isLost(h).Sub(start), float64(time.Millisecond), "%v", c)
				waitFree(w, rw, "n")
			}
		}
	})
}

// A hold that is released before its MaxHold is over is not lost, and MaxHold lengthens nothing. Whoever
// waits behind a hold with MaxHold gets the lock when it ends, though its process has died.
func TestMaxHoldThatIsNotReached(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		start := time.Now()
		short := take(w, newOwner(), rw, write, "a", rwlock.NoRenew(), rwlock.MaxHold(100*w.lease))
		h := take(w, newOwner(), rw, write, "b", rwlock.MaxHold(100*w.lease))
		require.LessOrEqual(w, w.lostWhen(short).Sub(start), w.lease+w.prompt)
		time.Sleep(w.lease)
		unlock(w, h)
		require.ErrorIs(w, short.Unlock(context.Background()), rwlock.ErrLost)

		mortal, wire := w.newMortal(rwlock.WithLease(100 * w.lease))
		start = time.Now()
		w.keep(newOwner(), mortal, write, "n", rwlock.MaxHold(w.lease/2))
		wire.cut()
		h = take(w, newOwner(), rw, write, "n")
		w.within(w.lease/2+w.slack, start, time.Now())
		unlock(w, h)
	})
}

// Each reader has its own lease: what others take, renew and release neither shortens nor lengthens it.
func TestReadersKeepTheirOwnLeases(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		start := time.Now()
		a := take(w, newOwner(), rw, read, "n", rwlock.Lease(120*time.Second), rwlock.NoRenew())
		b := take(w, newOwner(), far, read, "n", rwlock.Lease(30*time.Second))
		for time.Since(start) < 116*time.Second {
			time.Sleep(1700 * time.Millisecond)
			w.around(120*time.Second-time.Since(start), w.left(rw, a))
			require.Greater(w, w.left(rw, b), 19*time.Second)
			unlock(w, take(w, newOwner(), far, read, "n", rwlock.Lease(time.Second)))
		}
		require.Equal(w, 120*time.Second-margin(120*time.Second), w.lostWhen(a).Sub(start))
		time.Sleep(120*time.Second - time.Since(start))
		require.Zero(w, held(w, rw, "n", a.Owner(), read))
		require.ErrorIs(w, a.Unlock(context.Background()), rwlock.ErrLost)
		require.NoError(w, b.Context().Err())
		unlock(w, b)
	})
}

// A hold that re-enters lasts for its own lease, though the claim has been renewed for a shorter one since
// its first hold was released.
func TestReentryAfterTheLongerHoldWasReleased(t *testing.T) {
	for name, opts := range map[string][]rwlock.LockOption{
		"renewed": nil, "not renewed": {rwlock.NoRenew()}, "at most": {rwlock.MaxHold(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			bubbled(t, func(w *world) {
				rw := w.newLock(rwlock.WithLease(w.lease))
				for _, mode := range bothModes {
					first := take(w, newOwner(), rw, mode, mode.String())
					ctx := rwlock.WithOwner(context.Background(), first.Owner())
					short := take(w, ctx, rw, mode, mode.String(), rwlock.Lease(w.lease/10))
					unlock(w, first)
					time.Sleep(2 * w.lease) // renewed for a second at a time
					h := take(w, ctx, rw, mode, mode.String(), opts...)
					unlock(w, short)
					time.Sleep(w.lease / 2)
					unlock(w, h)
				}
			})
		})
	}
}
