package rwlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A read hold of the writer has the writer's token, however long the writer has had the lock, and however rarely anything
// renewed it.
func TestReadHoldUnderAWriteHoldHasItsToken(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for _, held := range []time.Duration{time.Second, 5 * time.Minute, 5 * time.Hour, 49 * time.Hour} {
			for name, opts := range map[string][]rwlock.LockOption{
				"renewed":     {rwlock.Lease(time.Hour)},
				"not renewed": {rwlock.Lease(60 * time.Hour), rwlock.NoRenew()},
			} {
				name := name + held.String()
				outer := take(w, newOwner(), rw, write, name, opts...)
				time.Sleep(held)
				for _, mode := range bothModes {
					inner := take(w, outer.Context(), rw, mode, name)
					require.Equal(w, outer.Token(), inner.Token(), "%v after %v", mode, held)
					unlock(w, inner)
				}
				unlock(w, outer)
				next := take(w, newOwner(), rw, write, name)
				require.Greater(w, next.Token(), outer.Token())
				unlock(w, next)
			}
		}
	})
}

// A name that was used once leaves one key, and that for four minutes at most.
func TestNameUsedOnceLeavesOneKey(t *testing.T) {
	t.Parallel()
	uses := map[string]func(w *world, rw *rwlock.RWLock){
		"written": func(w *world, rw *rwlock.RWLock) { unlock(w, take(w, newOwner(), rw, write, "n")) },
		"read":    func(w *world, rw *rwlock.RWLock) { unlock(w, take(w, newOwner(), rw, read, "n")) },
		"re-entered": func(w *world, rw *rwlock.RWLock) {
			outer := take(w, newOwner(), rw, write, "n")
			unlock(w, take(w, outer.Context(), rw, read, "n"), take(w, outer.Context(), rw, write, "n"), outer)
		},
		"lost": func(w *world, rw *rwlock.RWLock) {
			h := take(w, newOwner(), rw, write, "n", rwlock.NoRenew())
			w.lostWhen(h)
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
			waitFree(w, rw, "n")
		},
		"waited for": func(w *world, rw *rwlock.RWLock) {
			h := take(w, newOwner(), rw, write, "n")
			next := w.enqueue(newOwner(), w.newLock(), read, "n")
			unlock(w, h)
			unlock(w, next.granted())
		},
	}
	for name, use := range uses {
		t.Run(name, func(t *testing.T) {
			bubbled(t, func(w *world) {
				use(w, w.newLock())
				eventually(w, func() bool { return len(w.keys()) <= 1 }, "one key; there are %q", w.keys())
				time.Sleep(w.lease + 4*time.Minute)
				require.Empty(w, w.keys())
			})
		})
	}
}

// What a name that was used once leaves takes 200 bytes of the server's memory at most.
func TestNameUsedOnceLeavesLittle(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	c, ctx := s.Client(), context.Background()
	rw := newLockOn(t, s.Client())
	for _, mode := range bothModes {
		require.NoError(t, c.FlushAll(ctx).Err())
		unlock(t, take(t, newOwner(), rw, mode, "orders:42"))
		keys, err := c.Keys(ctx, "rwlock:{*").Result()
		require.NoError(t, err)
		var bytes int64
		for _, key := range keys {
			n, err := c.MemoryUsage(ctx, key).Result()
			require.NoError(t, err)
			bytes += n
		}
		require.LessOrEqual(t, bytes, int64(200), "%v: %q", mode, keys)
		unlock(t, take(t, newOwner(), rw, write, "orders:42")) // the tokens go on from it
	}
}
