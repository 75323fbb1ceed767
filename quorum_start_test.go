package rwlock_test

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

// Clients that use new servers for the first time at once agree on who votes, though each sees the others' steps late.
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
						clients = append(clients, testredis.MemClient(t, m, slowly(rng.Uint64(), 150*time.Millisecond)))
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

// slowly has all that a client sends arrive late, by a time at random.
func slowly(seed uint64, most time.Duration) func(*redis.Options) {
	return func(o *redis.Options) {
		dial := o.Dialer
		rng, mu := rand.New(rand.NewPCG(seed, 0)), sync.Mutex{}
		late := func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(rng.Int64N(int64(most)))
		}
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

// A server that has never voted does not know whether others have. With one that has lost its data it is no majority.
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
