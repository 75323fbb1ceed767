package tests

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
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
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// Clients that use new servers for the first time at once agree on who votes, though each sees the others'
// steps late.
func TestManyClientsStartAQuorum(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
				var locks []*rwlock.RWLock
				for range 6 {
					var clients []redis.UniversalClient
					for _, m := range servers {
						clients = append(clients, testredis.MemClient(t, m, slowly(randomly(rng.Uint64(), 150*time.Millisecond))))
					}
					rw, err := rwlock.NewQuorum(clients)
					require.NoError(t, err)
					locks = append(locks, rw)
				}
				var calls sync.WaitGroup
				errs := make([]error, len(locks))
				for i, rw := range locks {
					calls.Go(func() { _, errs[i] = rw.Lock(t.Context(), fmt.Sprint(i), rwlock.MaxWait(hang)) })
				}
				calls.Wait()
				for i, rw := range locks {
					assert.NoError(t, errs[i])
					_ = rw.Close() // it may be slow, too
				}
				for _, m := range servers {
					require.Empty(t, m.HGet("rwlock:mark", "rest"), "no server has lost its data")
					require.Equal(t, servers[0].HGet("rwlock:mark", "generation"), m.HGet("rwlock:mark", "generation"))
				}
			})
		})
	}
}

// randomly returns times below a bound, one after the other.
func randomly(seed uint64, most time.Duration) func() time.Duration {
	rng, mu := rand.New(rand.NewPCG(seed, 0)), sync.Mutex{}
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(rng.Int64N(int64(most)))
	}
}

// slowly has all that a client sends arrive late.
func slowly(late func() time.Duration) func(*redis.Options) {
	return func(o *redis.Options) {
		dial := o.Dialer
		o.ReadTimeout, o.MaxRetries = -1, -1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			slow := &slowConn{Conn: c, sent: make(chan []byte, 4096)}
			go func() {
				for b := range slow.sent {
					time.Sleep(late())
					_, _ = c.Write(b)
				}
			}()
			return slow, nil
		}
	}
}

type slowConn struct {
	net.Conn
	sent  chan []byte
	close sync.Once
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.sent <- bytes.Clone(b)
	return len(b), nil
}

func (c *slowConn) Close() error {
	c.close.Do(func() { close(c.sent) })
	return c.Conn.Close()
}

// Servers that are far away are not taken for servers that are silent: a call takes a round trip, a try is
// not refused, a hold is renewed, a waiter is let in, and no server is started without the others.
func TestQuorumOfServersThatAreFarAway(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{200 * time.Millisecond, 260 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
				var locks []*rwlock.RWLock
				for range 2 {
					var clients []redis.UniversalClient
					for _, m := range servers {
						clients = append(clients, testredis.MemClient(t, m, slowly(func() time.Duration { return trip })))
					}
					rw, err := rwlock.NewQuorum(clients)
					require.NoError(t, err)
					locks = append(locks, rw)
				}
				ctx := t.Context()
				for i, rw := range locks {
					h, err := rw.TryLock(ctx, fmt.Sprint("first of ", i))
					require.NoError(t, err, "the client does not know how far away the servers are")
					require.NoError(t, h.Unlock(ctx))
					var took [2]time.Duration
					for range 4 { // until all connections stand, and the servers know the scripts
						start := time.Now()
						h, err = rw.Lock(ctx, fmt.Sprint("second of ", i))
						require.NoError(t, err)
						took[0] = time.Since(start)
						require.NoError(t, h.Unlock(ctx))
						took[1] = time.Since(start) - took[0]
					}
					require.Equal(t, [...]time.Duration{trip, trip}, took)
				}
				held, err := locks[0].Lock(ctx, "n", rwlock.Lease(6*time.Second))
				require.NoError(t, err)
				var left time.Time
				time.AfterFunc(2*time.Minute, func() {
					left = time.Now()
					assert.NoError(t, held.Unlock(ctx))
				})
				waiter, err := locks[1].Lock(ctx, "n")
				require.NoError(t, err)
				require.False(t, left.IsZero())
				require.LessOrEqual(t, time.Since(left), 3*trip)
				require.NoError(t, waiter.Unlock(ctx))
				for _, rw := range locks {
					require.NoError(t, rw.Close())
				}
				time.Sleep(hang) // until go-redis has set up the connections that it was about to
				for _, m := range servers {
					require.Equal(t, servers[0].HGet("rwlock:mark", "generation"), m.HGet("rwlock:mark", "generation"))
				}
			})
		})
	}
}

// A server that has never voted does not know whether others have. With one that has lost its data it is no
// majority.
func TestServerThatHasNotVotedIsNoEvidence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
		ctx := t.Context()
		connect := func(plugs []*plug) *rwlock.RWLock {
			var clients []redis.UniversalClient
			for i, p := range plugs {
				clients = append(clients, testredis.MemClient(t, servers[i], p.into))
			}
			rw, err := rwlock.NewQuorum(clients)
			require.NoError(t, err)
			return rw
		}
		plugs := newPlugs(3)
		first := connect(plugs)
		h, err := first.Lock(ctx, "n") // starts the servers
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
		plugs[0].pull() // as if its votes had never reached it
		servers[0].Del("rwlock:{n}")
		for _, field := range []string{"top", "old", "turned"} {
			servers[0].HDel("rwlock:mark", field)
		}
		h, err = first.Lock(ctx, "n") // by the votes of the others
		require.NoError(t, err)
		servers[2].FlushAll()

		plugs = newPlugs(3)
		plugs[1].pull() // the one that remembers
		second := connect(plugs)
		other, err := second.Lock(ctx, "n", rwlock.MaxWait(5*time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Nil(t, other)
		require.NoError(t, h.Context().Err(), "two hold the lock")
		require.NoError(t, second.Close())
		_ = h.Unlock(ctx)
		require.NoError(t, first.Close())
	})
}
