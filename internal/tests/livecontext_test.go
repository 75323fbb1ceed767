package tests

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A hold whose context somebody keeps, or a context made from it, is not forgotten though nobody keeps the
// Hold: it is renewed, and its lock stays held. Once the context is gone as well, it ends with its lease.
func TestLiveContextKeepsItsHold(t *testing.T) {
	t.Parallel()
	type key struct{}
	contexts := map[string]func(h *rwlock.Hold) context.Context{
		"itself": func(h *rwlock.Hold) context.Context { return h.Context() },
		"derived": func(h *rwlock.Hold) context.Context {
			return context.WithValue(h.Context(), key{}, "value")
		},
		"with an owner": func(h *rwlock.Hold) context.Context {
			return rwlock.WithOwner(h.Context(), rwlock.NewOwner())
		},
		"cancellable": func(h *rwlock.Hold) context.Context {
			ctx, cancel := context.WithCancel(context.WithValue(h.Context(), key{}, "value"))
			_ = cancel // only with the hold
			return ctx
		},
	}
	onServers(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		kept := map[string]context.Context{}
		for name, of := range contexts {
			kept[name] = of(take(w, newOwner(), rw, write, name))
		}
		for end := time.Now().Add(2 * w.lease); time.Now().Before(end); time.Sleep(w.lease / 20) {
			runtime.GC()
			for name, ctx := range kept {
				require.NoError(w, context.Cause(ctx), name)
			}
		}
		for name, ctx := range kept {
			_, err := rw.TryLock(newOwner(), name)
			require.ErrorIs(w, err, rwlock.ErrLocked, name)
			require.NoError(w, ctx.Err())
		}
		clear(kept)
		for name := range contexts {
			eventually(w, func() bool {
				runtime.GC()
				h, err := rw.TryLock(newOwner(), name)
				if errors.Is(err, rwlock.ErrLocked) {
					return false
				}
				require.NoError(w, err)
				unlock(w, h)
				return true
			}, "the end of the hold of %q", name)
		}
	})
}

// A hold that nobody refers to ends with its lease though contexts were made from its own that nobody refers
// to either, and functions wait for its end; also if the context that it was taken with lives on. Whoever
// waits for its Done channel is told.
func TestForgottenHoldWithChildrenOfItsContextEnds(t *testing.T) {
	t.Parallel()
	type key struct{}
	children := map[string]func(ctx context.Context) (done <-chan struct{}){
		"AfterFunc": func(ctx context.Context) <-chan struct{} { context.AfterFunc(ctx, func() {}); return ctx.Done() },
		"WithValue": func(ctx context.Context) <-chan struct{} { return context.WithValue(ctx, key{}, 1).Done() },
		"WithCancel": func(ctx context.Context) <-chan struct{} {
			child, cancel := context.WithCancel(ctx)
			_, _ = child, cancel
			return ctx.Done()
		},
		"WithTimeout": func(ctx context.Context) <-chan struct{} {
			child, cancel := context.WithTimeout(ctx, time.Second) // a timer has it until then
			_, _ = child, cancel
			return ctx.Done()
		},
		"WithCancel of WithValue": func(ctx context.Context) <-chan struct{} {
			child, cancel := context.WithCancel(context.WithValue(ctx, key{}, 1))
			_, _ = child, cancel
			return ctx.Done()
		},
	}
	onServers(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		alive, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := map[string]<-chan struct{}{}
		for parent, ctx := range map[string]context.Context{"of none": context.Background(), "of one that lives on": alive} {
			for name, child := range children {
				name += " " + parent
				done[name] = child(take(w, rwlock.WithOwner(ctx, rwlock.NewOwner()), rw, write, name).Context())
			}
		}
		for name, over := range done {
			eventually(w, func() bool {
				runtime.GC()
				select {
				case <-over:
					return true
				default:
					return false
				}
			}, "the end of the hold with %s", name)
			unlock(w, take(w, newOwner(), rw, write, name))
		}
	})
}

// All contexts that were made from a hold's are cancelled when it is lost, with the cause ErrLost, and
// functions that wait for its end are called; and so when the context ends that the hold was taken with, with
// its cause.
func TestChildrenOfAHoldsContextEnd(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("contexts")
		rw := w.newLock(rwlock.WithLease(w.lease))
		cause := errors.New("the cause")
		for _, bounded := range []bool{false, true} {
			for _, want := range []error{rwlock.ErrLost, cause, nil} {
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
				switch want {
				case rwlock.ErrLost:
					require.NoError(w, rw.ForceUnlock(context.Background(), "n"))
					<-ctx.Done()
					require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
				case cause:
					end(cause)
					require.ErrorIs(w, ctx.Err(), context.Canceled)
					require.Equal(w, cause, context.Cause(ctx))
					unlock(w, h)
				default:
					unlock(w, h)
					want = context.Canceled
				}
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
