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

// A hold whose context somebody keeps, or a context made from it, is not forgotten though nobody keeps the Hold: it is
// renewed, and its lock stays held. Once the context is gone as well, it ends with its lease.
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
