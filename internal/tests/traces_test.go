package tests

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A read hold of the writer has the writer's token, however long the writer has had the lock, and however
// rarely anything renewed it.
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
		bytes, keys := bytesOf(t, c)
		require.LessOrEqual(t, bytes, int64(200), "%v: %q", mode, keys)
		unlock(t, take(t, newOwner(), rw, write, "orders:42")) // the tokens go on from it
	}
}

// bytesOf returns how much of the server's memory the keys of locks take, and which they are.
func bytesOf(t *testing.T, c *redis.Client) (bytes int64, keys []string) {
	t.Helper()
	keys, err := c.Keys(t.Context(), "rwlock:{*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		n, err := c.MemoryUsage(t.Context(), key).Result()
		require.NoError(t, err)
		bytes += n
	}
	return bytes, keys
}

// A lock that is held takes less than 300 bytes of the server's memory, and each owner more that reads or
// waits less than 400.
func TestBytesPerLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	c, w := s.Client(), &world{T: t}
	rw := newLockOn(t, s.Client())
	const more = 100
	for _, mode := range bothModes {
		name := "orders:" + mode.String()
		require.NoError(t, c.FlushAll(t.Context()).Err())
		unlock(t, take(t, newOwner(), rw, mode, name))
		idle, _ := bytesOf(t, c)
		h := take(t, newOwner(), rw, mode, name)
		held, _ := bytesOf(t, c)
		require.Less(t, held, int64(300))
		var readers []*rwlock.Hold
		shared := held
		if mode == read {
			for range more {
				readers = append(readers, take(t, newOwner(), rw, read, name))
			}
			shared, _ = bytesOf(t, c)
			require.Less(t, (shared-held)/more, int64(400))
		}
		var waiting []*call
		for range more {
			waiting = append(waiting, w.launch(newOwner(), rw, write, name))
		}
		waitQueued(t, rw, name, more)
		queued, _ := bytesOf(t, c)
		require.Less(t, (queued-shared)/more, int64(400))
		t.Logf("%v: idle %d bytes, held %d, each reader more %d, each waiter %d", mode, idle, held, (shared-held)/more, (queued-shared)/more)
		unlock(t, append(readers, h)...)
		for _, call := range waiting {
			go func() {
				if <-call.done; call.err == nil {
					_ = call.hold.Unlock(context.Background())
				}
			}()
		}
		waitFree(t, rw, name)
	}
}
