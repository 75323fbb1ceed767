package stock

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// newLocks returns an RWLock on a client, both closed when the test ends. With strict owners, a test fails if
// the code starts a goroutine with the context of a hold and locks there, which excludes nobody.
func newLocks(t *testing.T, options *redis.Options) *rwlock.RWLock {
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	locks, err := rwlock.New(client, rwlock.WithStrictOwners())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, locks.Close()) })
	return locks
}

// Where time does not matter, a miniredis is enough.
func TestTwentyCallersTakeFiveArticles(t *testing.T) {
	t.Parallel()
	s := &Stock{newLocks(t, &redis.Options{Addr: miniredis.RunT(t).Addr()}), 5}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if err := s.Take(t.Context()); err != nil {
				assert.ErrorIs(t, err, ErrSoldOut)
			}
		})
	}
	callers.Wait()
	assert.Zero(t, s.Left)
}

// inBubble runs a test whose clock stands still while anything runs, and jumps to the next timer when all
// goroutines wait. The server and its connections are in the bubble too: a goroutine that waits for the
// network would keep the clock from jumping.
func inBubble(t *testing.T, test func(t *testing.T, server *miniredis.Miniredis, rw *rwlock.RWLock)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)   // keys expire by the bubble's clock
		t.Cleanup(server.Close) // after the client
		test(t, server, newLocks(t, &redis.Options{
			Addr:   "127.0.0.1:1", // nothing connects to it
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		}))
	})
}

func TestTakeWaitsForTwoSeconds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, _ *miniredis.Miniredis, rw *rwlock.RWLock) {
		s := &Stock{rw, 5}
		h, err := rw.Lock(t.Context(), "stock")
		require.NoError(t, err)
		start := time.Now()
		assert.ErrorIs(t, s.Take(t.Context()), ErrBusy)
		assert.Equal(t, 2*time.Second, time.Since(start)) // to the nanosecond, however busy the machine is
		assert.NoError(t, h.Unlock(t.Context()))
	})
}

func TestAuditStopsWhenTheLockIsLost(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, server *miniredis.Miniredis, rw *rwlock.RWLock) {
		s, counted := &Stock{rw, 5}, 0
		err := s.Audit(t.Context(), 100, func(int) {
			counted++
			time.Sleep(1100 * time.Millisecond) // never wakes at the same instant as the renewal
			if counted == 5 {
				server.FlushAll() // the next renewal, ten seconds after the grant, finds out
			}
		})
		assert.ErrorIs(t, err, rwlock.ErrLost)
		assert.Equal(t, 10, counted) // the tenth from 9.9 s to 11 s
	})
}

// A fake is what WithLock does. The nil Hold that a fake passes on is safe to use: its token is 0.
type fake func(ctx context.Context, fn func(ctx context.Context, h *rwlock.Hold) error) error

func (f fake) WithLock(ctx context.Context, _ string,
	fn func(ctx context.Context, h *rwlock.Hold) error, _ ...rwlock.LockOption) error {
	return f(ctx, fn)
}

var (
	free = fake(func(ctx context.Context, fn func(context.Context, *rwlock.Hold) error) error {
		return fn(ctx, nil)
	})
	busy = fake(func(context.Context, func(context.Context, *rwlock.Hold) error) error {
		return context.DeadlineExceeded
	})
	lost = fake(func(ctx context.Context, fn func(context.Context, *rwlock.Hold) error) error {
		ctx, lose := context.WithCancelCause(ctx)
		lose(rwlock.ErrLost)
		return errors.Join(fn(ctx, nil), rwlock.ErrLost)
	})
)

// With a fake, a test sees what the code makes of each result of the lock call, but not whether it locks
// correctly.
func TestTakeWithAFake(t *testing.T) {
	t.Parallel()
	s := &Stock{free, 1}
	assert.NoError(t, s.Take(t.Context()))
	assert.ErrorIs(t, s.Take(t.Context()), ErrSoldOut)
	s = &Stock{busy, 1}
	assert.ErrorIs(t, s.Take(t.Context()), ErrBusy)
	assert.Equal(t, 1, s.Left)
	s = &Stock{lost, 1}
	assert.ErrorIs(t, s.Take(t.Context()), rwlock.ErrLost) // the article may have been taken
}
