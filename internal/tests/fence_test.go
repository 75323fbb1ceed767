package tests

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// Tokens of write holds strictly increase, over thousands of grants by several RWLocks, with and without a
// wait.
func TestTokensIncrease(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		grants := 3_000
		if !w.real {
			grants = 500
		}
		const goroutines = 4
		var wg sync.WaitGroup
		last := int64(0) // under the lock
		for range goroutines {
			rw := w.newLock()
			wg.Go(func() {
				for range grants / goroutines {
					err := rw.WithLock(context.Background(), "n", func(_ context.Context, h *rwlock.Hold) error {
						if h.Token() <= last {
							w.Errorf("token %d came after %d", h.Token(), last)
						}
						last = h.Token()
						return nil
					})
					if err != nil {
						w.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.Equal(w, last, inspect(w, w.newLock(), "n").Token)
	})
}

// Tokens go on increasing after every key of the lock has expired, or was lost.
func TestTokensIncreaseOverLossOfAllKeys(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, last := w.newLock(), int64(0)
		for range 10 {
			for _, mode := range []rwlock.Mode{write, read} {
				h := take(w, newOwner(), rw, mode, "n")
				require.Greater(w, h.Token(), last)
				last = h.Token()
				unlock(w, h)
				if w.fake {
					time.Sleep(72 * time.Hour)
				} else {
					w.removeKeys()
				}
				require.Empty(w, w.keys())
			}
		}
	})
}

// A FLUSHALL does not reset the tokens.
func TestTokensIncreaseOverFlush(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	rw, c := newLockOn(t, s.Client()), s.Client()
	last := int64(0)
	for range 10 {
		h := take(t, newOwner(), rw, write, "n")
		require.Greater(t, h.Token(), last)
		last = h.Token()
		require.NoError(t, c.FlushAll(context.Background()).Err())
		require.ErrorIs(t, h.Unlock(context.Background()), rwlock.ErrLost)
	}
}

// A server clock that is behind the last token does not make a smaller one.
func TestTokensIncreaseThoughTheClockIsBehind(t *testing.T) {
	everywhere(t, func(w *world) {
		w.alone("the tokens of several follow from no clock")
		rw := w.newLock()
		ahead := time.Now().Add(time.Hour).UnixMicro()
		w.setFence("n", ahead)
		h := take(w, newOwner(), rw, write, "n")
		require.Equal(w, ahead+1, h.Token())
		next, reader := w.enqueue(newOwner(), rw, write, "n"), w.enqueue(newOwner(), rw, read, "n")
		unlock(w, h)
		require.Equal(w, ahead+1, reader.granted().Token())
		unlock(w, reader.hold)
		require.Equal(w, ahead+2, next.granted().Token())
		unlock(w, next.hold)
		h = take(w, newOwner(), rw, read, "n")
		require.Equal(w, ahead+2, h.Token())
		unlock(w, h)

		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			w.setFence(name, ahead)
			h := take(w, newOwner(), rw, mode, name)
			if mode == write {
				require.Equal(w, ahead+1, h.Token())
			} else {
				require.Equal(w, ahead, h.Token())
			}
			unlock(w, h)
		}
	})
}

// A re-entered hold has the token of the outer one, however it was got and whatever else happens meanwhile.
func TestTokenIsEqualOnReentry(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		for _, mode := range []rwlock.Mode{read, write} {
			blocker := take(w, newOwner(), far, write, "n")
			queued := w.enqueue(newOwner(), rw, mode, "n")
			unlock(w, blocker)
			outer := queued.granted()
			for range 3 {
				inner := take(w, outer.Context(), rw, mode, "n")
				require.Equal(w, outer.Token(), inner.Token())
				if mode == write {
					reading := take(w, outer.Context(), rw, read, "n")
					require.Equal(w, outer.Token(), reading.Token())
					unlock(w, reading)
				} else {
					unlock(w, take(w, newOwner(), far, read, "n"))
				}
				unlock(w, inner)
			}
			unlock(w, outer)
		}
	})
}

// A read hold's token is not less than that of any writer before it, and less than that of any writer after
// it, as long as the server knows them; so a resource that refuses smaller tokens refuses what was read
// before it was written.
func TestTokenOfAReaderIsBetweenItsNeighbours(t *testing.T) {
	everywhere(t, func(w *world) {
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		var lastWrite, lastRead int64
		for i := range 200 {
			mode := []rwlock.Mode{read, write}[rand.IntN(2)]
			var h *rwlock.Hold
			if i%4 == 0 {
				blocker := take(w, newOwner(), rws[0], write, "n")
				lastWrite = blocker.Token()
				queued := w.enqueue(newOwner(), rws[rand.IntN(2)], mode, "n")
				unlock(w, blocker)
				h = queued.granted()
			} else {
				h = take(w, newOwner(), rws[rand.IntN(2)], mode, "n")
			}
			if mode == write {
				require.Greater(w, h.Token(), max(lastWrite, lastRead))
				lastWrite = h.Token()
			} else {
				require.GreaterOrEqual(w, h.Token(), lastWrite)
				lastRead = h.Token()
			}
			unlock(w, h)
		}
	})
}

// The token of the last writer outlives its lease by three minutes, so that tokens go on from it and late
// requests are refused.
func TestFenceIsRemembered(t *testing.T) {
	everywhere(t, func(w *world) {
		w.alone("it reads the hash of one")
		rw, far := w.newLock(), w.newLock()
		for _, rw := range []*rwlock.RWLock{rw, rw, far} {
			h := take(w, newOwner(), rw, write, "n")
			unlock(w, h)
			key := w.prefix + ":{n}"
			last, err := w.dial().HGet(context.Background(), key, "fence").Result()
			require.NoError(w, err)
			require.Equal(w, strconv.FormatInt(h.Token(), 10), last)
			ttl, err := w.dial().PTTL(context.Background(), key).Result()
			require.NoError(w, err)
			require.Greater(w, ttl, w.lease+150*time.Second)
			require.LessOrEqual(w, ttl, w.lease+4*time.Minute)
		}
	})
}

// setFence has a lock that nobody holds say what its last token was.
func (w *world) setFence(name string, token int64) {
	w.Helper()
	key := w.prefix + ":{" + name + "}"
	require.NoError(w, w.dial().HSet(context.Background(), key, "fence", token).Err())
	require.NoError(w, w.dial().PExpire(context.Background(), key, time.Hour).Err())
}
