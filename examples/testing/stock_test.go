package stock

import (
	"context"
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

// newLocks returns an RWLock on a client, both closed when the test ends. With strict owners, a test fails if the code starts a
// goroutine with the context of a hold and locks there, which excludes nobody.
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

// inBubble runs a test whose clock stands still while anything runs, and jumps to the next timer when all goroutines wait. The server
// and its connections are in the bubble as well: a goroutine that waits for the network would keep the clock from jumping.
func inBubble(t *testing.T, test func(t *testing.T, server *miniredis.Miniredis, s *Stock)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)   // keys expire by the bubble's clock
		t.Cleanup(server.Close) // after the client
		locks := newLocks(t, &redis.Options{
			Addr:   "127.0.0.1:1", // nothing connects to it
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		})
		test(t, server, &Stock{locks, 5})
	})
}

func TestTakeWaitsForTwoSeconds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, _ *miniredis.Miniredis, s *Stock) {
		h, err := s.Locks.Lock(t.Context(), "stock")
		require.NoError(t, err)
		start := time.Now()
		assert.ErrorIs(t, s.Take(t.Context()), context.DeadlineExceeded)
		assert.Equal(t, 2*time.Second, time.Since(start)) // to the nanosecond, however busy the machine is
		assert.NoError(t, h.Unlock(t.Context()))
	})
}

func TestAuditStopsWhenTheLockIsLost(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, server *miniredis.Miniredis, s *Stock) {
		counted := 0
		err := s.Audit(t.Context(), 100, func(int) {
			counted++
			time.Sleep(1100 * time.Millisecond) // never wakes at the same instant as the renewal
			if counted == 5 {
				server.FlushAll() // the server loses its data; the next renewal, ten seconds after the grant, tells
			}
		})
		assert.ErrorIs(t, err, rwlock.ErrLost)
		assert.Equal(t, 10, counted) // the tenth from 9.9 s to 11 s
	})
}
