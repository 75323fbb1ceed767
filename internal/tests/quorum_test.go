package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
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

// A lock over three servers works while two of them do, and a call says how many answer when one alone is
// left.
func TestQuorumOutlivesAMinority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		plugs := newPlugs(3)
		var clients []redis.UniversalClient
		for _, p := range plugs {
			clients = append(clients, testredis.MemClient(t, testredis.Mem(t), p.into))
		}
		rw, err := rwlock.NewQuorum(clients)
		require.NoError(t, err)
		ctx := context.Background()
		held, err := rw.Lock(ctx, "held")
		require.NoError(t, err)

		plugs[1].pull()
		time.Sleep(5 * time.Minute)
		require.NoError(t, held.Context().Err())
		for _, name := range []string{"a", "b", "c", "d"} { // that have one home or another
			h, err := rw.Lock(ctx, name, rwlock.MaxWait(hang))
			require.NoError(t, err)
			require.NoError(t, h.Unlock(ctx))
		}

		plugs[2].pull()
		_, err = rw.TryLock(ctx, "a")
		require.ErrorIs(t, err, rwlock.ErrNoMajority)
		require.ErrorContains(t, err, "1 of 3 vote, 2 are needed")
		<-held.Context().Done()
		require.ErrorIs(t, context.Cause(held.Context()), rwlock.ErrLost)

		plugs[1].mend()
		h, err := rw.Lock(ctx, "a", rwlock.MaxWait(hang))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
		require.ErrorIs(t, held.Unlock(ctx), rwlock.ErrLost)
		plugs[2].mend()
		require.NoError(t, rw.Close())
	})
}

// A server that answers with errors that do not pass is one of those that may fail, whatever names it would
// be the home of. If two of three do, a call fails with what they say.
func TestQuorumDoesWithoutAServerThatRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Redis is configured to save RDB snapshots",
		"NOPERM this user has no permissions to run the 'evalsha' command", "ERR something else"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var clients []redis.UniversalClient
				var servers []*weather
				for range 3 {
					f := &weather{}
					c := testredis.MemClient(t, testredis.Mem(t))
					c.AddHook(f)
					clients, servers = append(clients, c), append(servers, f)
				}
				rw, err := rwlock.NewQuorum(clients)
				require.NoError(t, err)
				ctx := context.Background()
				held, err := rw.Lock(ctx, "held")
				require.NoError(t, err)
				for _, f := range servers {
					f.set(answer(text))
					// of which some have each server for their home
					for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
						for _, mode := range bothModes {
							h, err := try(ctx, rw, mode, name)
							require.NoError(t, err)
							waiter := make(chan error, 1)
							go func() {
								h, err := rw.Lock(ctx, name, rwlock.MaxWait(hang))
								if err == nil {
									err = h.Unlock(ctx)
								}
								waiter <- err
							}()
							synctest.Wait()
							state, err := rw.Inspect(ctx, name)
							require.NoError(t, err)
							require.Len(t, state.Waiters, 1)
							require.NoError(t, h.Unlock(ctx))
							require.NoError(t, <-waiter)
						}
					}
					time.Sleep(5 * time.Minute)
					require.NoError(t, held.Context().Err())
					f.set(nil)
					time.Sleep(5 * time.Minute)
				}
				require.NoError(t, held.Unlock(ctx))
				servers[0].set(answer(text))
				servers[2].set(answer(text))
				for _, mode := range bothModes {
					_, err = acquire(ctx, rw, mode, "a")
					require.ErrorIs(t, err, answer(text))
				}
				servers[0].set(nil)
				h, err := rw.Lock(ctx, "a", rwlock.MaxWait(hang))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
				require.NoError(t, rw.Close())
			})
		})
	}
}

func newPlugs(n int) (plugs []*plug) {
	for range n {
		plugs = append(plugs, &plug{conns: map[net.Conn]bool{}})
	}
	return plugs
}

// A server that has lost its data votes again as soon as it has rested, whether its clients saw it lose them
// or came later.
func TestServerThatLostItsDataVotesAgain(t *testing.T) {
	t.Parallel()
	for _, saw := range []bool{true, false} {
		t.Run(fmt.Sprintf("its clients saw that: %v", saw), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
				connect := func() *rwlock.RWLock {
					var clients []redis.UniversalClient
					for _, m := range servers {
						clients = append(clients, testredis.MemClient(t, m))
					}
					rw, err := rwlock.NewQuorum(clients)
					require.NoError(t, err)
					return rw
				}
				use := func(rw *rwlock.RWLock) {
					h, err := rw.Lock(t.Context(), "n", rwlock.MaxWait(hang))
					require.NoError(t, err)
					require.NoError(t, h.Unlock(t.Context()))
				}
				rw := connect()
				use(rw)
				time.Sleep(time.Second) // or else the server's new id would be the one that it had
				servers[1].FlushAll()
				for range 5 {
					use(rw)
					time.Sleep(time.Second)
				}
				require.NotEmpty(t, servers[1].HGet("rwlock:mark", "rest"))
				if !saw {
					require.NoError(t, rw.Close())
					time.Sleep(time.Hour)
					rw = connect()
				}
				for range 70 {
					use(rw)
					time.Sleep(time.Second)
				}
				require.Equal(t, servers[0].HGet("rwlock:mark", "generation"),
					servers[1].HGet("rwlock:mark", "generation"))
				require.NoError(t, rw.Close())
			})
		})
	}
}

// A server that has lost its data rests for the longest lease that it may have voted for, though the client
// that finds the loss does not know of that lease: another has come since.
func TestServerRestsForTheLeasesOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
		ctx := t.Context()
		connect := func(plugs ...*plug) *rwlock.RWLock {
			var clients []redis.UniversalClient
			for i, p := range plugs {
				clients = append(clients, testredis.MemClient(t, servers[i], p.into))
			}
			rw, err := rwlock.NewQuorum(clients)
			require.NoError(t, err)
			return rw
		}
		use := func(rw *rwlock.RWLock, name string) {
			h, err := rw.Lock(ctx, name, rwlock.MaxWait(hang))
			require.NoError(t, err)
			require.NoError(t, h.Unlock(ctx))
		}
		finder := connect(newPlugs(3)...)
		use(finder, "before")

		plugs := newPlugs(3)
		other := connect(plugs...)
		use(other, "before")
		plugs[0].pull()
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h"} // of which some have each server for their home
		var holds []*rwlock.Hold
		for _, name := range names {
			h, err := other.Lock(ctx, name, rwlock.Lease(time.Hour), rwlock.NoRenew()) // by the votes of two
			require.NoError(t, err)
			holds = append(holds, h)
		}
		plugs[1].pull() // only the finder finds the loss
		plugs[2].pull()
		time.Sleep(time.Second)
		servers[1].FlushAll()
		for end := time.Now().Add(30 * time.Minute); time.Now().Before(end); time.Sleep(time.Minute) {
			for _, name := range names {
				start := time.Now()
				_, err := finder.TryLock(ctx, name)
				require.ErrorIs(t, err, rwlock.ErrLocked, name)
				require.Less(t, time.Since(start), time.Second, "a call that does not wait")
			}
		}
		for _, h := range holds {
			require.NoError(t, h.Context().Err())
		}
		for _, p := range plugs {
			p.mend()
		}
		time.Sleep(time.Hour)
		for _, name := range names {
			use(finder, name)
		}
		require.NoError(t, finder.Close())
		require.NoError(t, other.Close())
	})
}

// silent connects a client. While it is set, what the client sends goes nowhere.
type silent struct{ atomic.Bool }

func (s *silent) into(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &silentConn{c, s}, err
	}
}

type silentConn struct {
	net.Conn
	silent *silent
}

func (c *silentConn) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// While too few servers answer, every call that ends says so, and how many do, whether the client knew the
// servers before or not.
func TestCallsSayThatTooFewServersAnswer(t *testing.T) {
	t.Parallel()
	for _, knew := range []bool{true, false} {
		t.Run(fmt.Sprintf("the client knew the servers: %v", knew), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
				var network silent
				connect := func() *rwlock.RWLock {
					var clients []redis.UniversalClient
					for i, m := range servers {
						opts := []func(*redis.Options){network.into}
						if i == 0 {
							opts = nil
						}
						clients = append(clients, testredis.MemClient(t, m, opts...))
					}
					rw, err := rwlock.NewQuorum(clients)
					require.NoError(t, err)
					return rw
				}
				rw, ctx := connect(), t.Context()
				held, err := rw.Lock(ctx, "held")
				require.NoError(t, err)
				network.Store(true)
				other := rw
				if !knew {
					other = connect()
				}
				limit := time.Second
				for what, call := range map[string]func(ctx context.Context) error{
					"Lock":        func(ctx context.Context) error { _, err := other.Lock(ctx, "a"); return err },
					"RLock":       func(ctx context.Context) error { _, err := other.RLock(ctx, "b"); return err },
					"Inspect":     func(ctx context.Context) error { _, err := other.Inspect(ctx, "n"); return err },
					"ForceUnlock": func(ctx context.Context) error { return other.ForceUnlock(ctx, "n") },
					"Extend":      func(ctx context.Context) error { return held.Extend(ctx, time.Minute) },
				} {
					if what == "Extend" && !knew {
						continue
					}
					ctx, cancel := context.WithTimeout(ctx, limit)
					err := call(ctx)
					require.ErrorIs(t, err, rwlock.ErrNoMajority, what)
					require.ErrorIs(t, err, context.DeadlineExceeded, what)
					require.ErrorContains(t, err, "1 of 3 vote, 2 are needed", what)
					cancel()
				}
				_, err = other.TryLock(ctx, "c")
				require.ErrorIs(t, err, rwlock.ErrNoMajority)
				_, err = other.Lock(ctx, "d", rwlock.MaxWait(time.Minute), rwlock.Lease(time.Second))
				require.ErrorIs(t, err, rwlock.ErrNoMajority)
				network.Store(false)
				h, err := other.Lock(ctx, "n", rwlock.MaxWait(hang))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
				_ = held.Unlock(ctx) // what was sent into the outage may have no answer yet
				_ = rw.Close()
				_ = other.Close()
				time.Sleep(hang) // until the client has given up what was sent into the outage
			})
		})
	}
}

// However many clients come first at the same time, every server votes: none is taken for one that has lost
// its data, and has to rest.
func TestFirstStartByManyClients(t *testing.T) {
	t.Parallel()
	for range 8 {
		synctest.Test(t, func(t *testing.T) {
			var servers []*miniredis.Miniredis
			for range 5 {
				servers = append(servers, testredis.Mem(t))
			}
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					var clients []redis.UniversalClient
					for _, m := range servers {
						clients = append(clients, testredis.MemClient(t, m))
					}
					rw, err := rwlock.NewQuorum(clients)
					require.NoError(t, err)
					for range 3 {
						h, err := rw.Lock(t.Context(), "n", rwlock.MaxWait(hang))
						require.NoError(t, err)
						require.NoError(t, h.Unlock(t.Context()))
						time.Sleep(time.Second)
					}
					require.NoError(t, rw.Close())
				})
			}
			wg.Wait()
			for i, m := range servers {
				require.Empty(t, m.HGet("rwlock:mark", "rest"), "server %d", i)
				require.NotEmpty(t, m.HGet("rwlock:mark", "generation"), "server %d", i)
			}
		})
	}
}

// Of several tries for a free lock at the same time, one gets it.
func TestOneOfSeveralTriesGetsAFreeLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
		ctx := t.Context()
		var locks []*rwlock.RWLock
		for range 4 {
			var clients []redis.UniversalClient
			for _, m := range servers {
				clients = append(clients, testredis.MemClient(t, m))
			}
			rw, err := rwlock.NewQuorum(clients)
			require.NoError(t, err)
			h, err := rw.Lock(ctx, "first", rwlock.MaxWait(hang))
			require.NoError(t, err)
			require.NoError(t, h.Unlock(ctx))
			locks = append(locks, rw)
		}
		var won [5]int
		for i := range 60 {
			var n atomic.Int32
			var wg sync.WaitGroup
			for _, rw := range locks {
				wg.Go(func() {
					h, err := rw.TryLock(ctx, fmt.Sprint(i))
					if err == nil {
						n.Add(1)
						time.Sleep(time.Second)
						_ = h.Unlock(ctx)
					}
				})
			}
			wg.Wait()
			won[n.Load()]++
		}
		for _, rw := range locks {
			require.NoError(t, rw.Close())
		}
		require.Equal(t, [5]int{1: 60}, won)
	})
}

// Three processes of which each misses another server all get the lock, once what they could not give back
// has ended with its lease.
func TestProcessesThatReachDifferentMajoritiesAllMakeProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 2 * time.Second
		_, connect := mems(t)
		var plugs [3][]*plug
		var locks [3]*rwlock.RWLock
		for i := range locks {
			plugs[i] = newPlugs(3)
			locks[i] = connect(plugs[i], rwlock.WithLease(lease))
			eachHome(t, locks[i])
		}
		cut := time.Now().Add(300 * time.Millisecond)
		counts, end := cut.Add(2*lease), cut.Add(4*lease)
		var holds [3]atomic.Int64
		var wg sync.WaitGroup
		for i, rw := range locks {
			for c := range 2 {
				wg.Go(func() {
					for k := 0; time.Now().Before(end); k++ {
						h, err := acquire(t.Context(), rw, bothModes[(c+k)%2], "n", rwlock.MaxWait(hang))
						assert.NoError(t, err)
						if time.Now().After(counts) {
							holds[i].Add(1)
						}
						time.Sleep(20 * time.Millisecond)
						assert.NoError(t, h.Unlock(t.Context()))
					}
				})
			}
		}
		time.Sleep(time.Until(cut))
		for i := range 3 {
			plugs[i][i].pull()
		}
		wg.Wait()
		for i := range 3 {
			require.Greater(t, holds[i].Load(), int64(10), "process %d", i)
		}
	})
}

// Three processes that each miss another server from the first start on all get locks, though nobody reaches
// all servers: the one that was not started along with the others rests, and is admitted by a process that
// hears from another what the marks say that it cannot read.
func TestServersThatAreStartedApart(t *testing.T) {
	t.Parallel()
	apart := func(t *testing.T, client func(i int, p *plug) redis.UniversalClient) {
		var wg sync.WaitGroup
		for missed := range 3 {
			var clients []redis.UniversalClient
			for i, p := range newPlugs(3) {
				if i == missed {
					p.pull()
				}
				clients = append(clients, client(i, p))
			}
			rw := openQuorum(t, clients, rwlock.WithLease(2*time.Second))
			wg.Go(func() {
				for k := range 20 {
					h, err := acquire(t.Context(), rw, bothModes[k%2], "n", rwlock.MaxWait(hang))
					if !assert.NoError(t, err, "process %d", missed) {
						return
					}
					assert.NoError(t, h.Unlock(t.Context()))
				}
			})
		}
		wg.Wait()
	}
	t.Run("servers in memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
			apart(t, func(i int, p *plug) redis.UniversalClient { return testredis.MemClient(t, servers[i], p.into) })
		})
	})
	t.Run("real servers", func(t *testing.T) {
		t.Parallel()
		servers := []*testredis.Server{testredis.Start(t), testredis.Start(t), testredis.Start(t)}
		apart(t, func(i int, p *plug) redis.UniversalClient { return servers[i].Client(p.into) })
	})
}

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
						clients = append(clients, testredis.MemClient(t, m,
							slowly(randomly(rng.Uint64(), 150*time.Millisecond))))
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
	for _, trip := range []time.Duration{200 * time.Millisecond, 260 * time.Millisecond,
		400 * time.Millisecond} {
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
					atBest := [...]time.Duration{trip, trip}
					// until all connections stand, and the servers know the scripts
					for try := 0; try < 20 && took != atBest; try++ {
						start := time.Now()
						h, err = rw.Lock(ctx, fmt.Sprint("second of ", i))
						require.NoError(t, err)
						took[0] = time.Since(start)
						require.NoError(t, h.Unlock(ctx))
						took[1] = time.Since(start) - took[0]
					}
					require.Equal(t, atBest, took)
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

// mems returns servers, and a function that returns a quorum over them.
func mems(t *testing.T) ([]*miniredis.Miniredis, func(plugs []*plug, opts ...rwlock.Option) *rwlock.RWLock) {
	servers := []*miniredis.Miniredis{testredis.Mem(t), testredis.Mem(t), testredis.Mem(t)}
	return servers, func(plugs []*plug, opts ...rwlock.Option) *rwlock.RWLock {
		var clients []redis.UniversalClient
		for i, p := range plugs {
			clients = append(clients, testredis.MemClient(t, servers[i], p.into))
		}
		return openQuorum(t, clients, opts...)
	}
}

// openQuorum returns a quorum that is closed when the test ends.
func openQuorum(t *testing.T, clients []redis.UniversalClient, opts ...rwlock.Option) *rwlock.RWLock {
	rw, err := rwlock.NewQuorum(clients, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rw.Close() })
	return rw
}

// eachHome locks and unlocks names of which some have each server for their home.
func eachHome(t *testing.T, rw *rwlock.RWLock, opts ...rwlock.LockOption) {
	t.Helper()
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		h, err := rw.Lock(t.Context(), name, append(opts, rwlock.MaxWait(5*time.Second))...)
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
	}
}

// Two clients of one server count as one server, and one that has failed. The log says so.
func TestTwoClientsOfOneServerAreOneServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const same = "clients 0 and 2 of the quorum are of the same server"
		twice, once, plugs := testredis.Mem(t), testredis.Mem(t), newPlugs(1)
		said := &records{}
		rw := openQuorum(t, []redis.UniversalClient{
			testredis.MemClient(t, twice), testredis.MemClient(t, once, plugs[0].into), testredis.MemClient(t, twice)},
			rwlock.WithLogger(said.logger()))
		for range 3 {
			eachHome(t, rw)
			time.Sleep(10 * time.Second)
		}
		require.Len(t, said.list(), 1)
		require.Contains(t, said.list()[0], same)
		require.NotContains(t, said.list()[0], "lock=", "it is about no lock")
		plugs[0].pull()
		_, err := rw.Lock(t.Context(), "n", rwlock.MaxWait(5*time.Second))
		require.ErrorIs(t, err, rwlock.ErrNoMajority)
		plugs[0].mend()
		eachHome(t, rw)
	})
}

// The databases of a server are one server.
func TestDatabasesOfOneServerAreNoQuorum(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	var clients []redis.UniversalClient
	for db := range 3 {
		clients = append(clients, s.Client(func(o *redis.Options) { o.DB = db }))
	}
	rw := openQuorum(t, clients, rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	_, err := rw.Lock(t.Context(), "n", rwlock.MaxWait(3*time.Second))
	require.ErrorIs(t, err, rwlock.ErrNoMajority)
	require.ErrorContains(t, err, "of the same server")
}

// A signpost connects a client with one server or another.
type signpost struct {
	mu   sync.Mutex
	to   *redis.Options
	plug *plug
}

func (s *signpost) into(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.mu.Lock()
		dial := s.to.Dialer
		s.mu.Unlock()
		return dial(ctx, network, addr)
	}
	s.plug.into(o)
}

// turn has the client connect to another server.
func (s *signpost) turn(to *redis.Client) {
	s.mu.Lock()
	s.to = to.Options()
	s.mu.Unlock()
	s.plug.pull()
	s.plug.mend()
}

// While the address of a server leads to another server of the quorum, that is one failure: locks work, holds
// stay, and nobody holds a lock beside another. Once it leads to its own server again, another server may
// fail.
func TestAddressThatLeadsToAnotherServerIsOneFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers, connect := mems(t)
		var direct []*redis.Client
		var posts []*signpost
		var clients []redis.UniversalClient
		plugs := newPlugs(3)
		for i, m := range servers {
			direct = append(direct, testredis.MemClient(t, m))
			posts = append(posts, &signpost{to: direct[i].Options(), plug: plugs[i]})
			clients = append(clients, testredis.MemClient(t, m, posts[i].into))
		}
		rw := openQuorum(t, clients, rwlock.WithLease(3*time.Second))
		other := connect(newPlugs(3), rwlock.WithLease(3*time.Second))
		ctx := t.Context()
		var holds []*rwlock.Hold
		hold := func(n int) {
			for i := range 4 {
				h, err := rw.Lock(ctx, fmt.Sprint("held", n, i), rwlock.MaxWait(5*time.Second))
				require.NoError(t, err)
				holds = append(holds, h)
			}
		}
		hold(0)
		for n := range 3 {
			from, to := n, (n+1+n%2)%3
			posts[from].turn(direct[to])
			hold(1 + n)
			eachHome(t, rw)
			eachHome(t, other)
			for range 4 {
				for _, h := range holds {
					require.NoError(t, h.Context().Err())
					_, err := other.TryLock(ctx, h.Name())
					require.ErrorIs(t, err, rwlock.ErrLocked)
				}
				time.Sleep(2 * time.Second)
			}
			posts[from].turn(direct[from])
			time.Sleep(10 * time.Second)
			eachHome(t, rw)
			plugs[to].pull()
			eachHome(t, rw)
			plugs[to].mend()
			time.Sleep(10 * time.Second)
		}
		for _, h := range holds {
			require.NoError(t, h.Unlock(ctx))
		}
	})
}

// A server that has lost its data rests for the longest lease that was in use, and no longer, whatever the
// RWLock's own lease is: so the servers may lose their data one after the other.
func TestServerRestsForTheLongestLeaseInUse(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{500 * time.Millisecond, 4 * time.Second, time.Minute} {
		t.Run(lease.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				servers, connect := mems(t)
				plugs := newPlugs(3)
				rw := connect(plugs)
				held, err := rw.Lock(t.Context(), "held", rwlock.Lease(lease))
				require.NoError(t, err)
				for _, m := range servers {
					eachHome(t, rw, rwlock.Lease(lease))
					plug := plugs[0]
					plugs = append(plugs[1:], plug)
					plug.pull()
					m.FlushAll()
					eachHome(t, rw, rwlock.Lease(lease))
					plug.mend()
					// The client notices within a second, and the hold gets the server's vote with its second
					// renewal.
					time.Sleep(lease + lease/50 + 2*lease/3 + 3*time.Second)
					require.NoError(t, held.Context().Err())
				}
				require.NoError(t, held.Unlock(t.Context()))
			})
		})
	}
}

// No server's clock ends a rest: it may have shown another time when the rest began.
func TestClockThatIsSetEndsNoRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers, connect := mems(t)
		ctx, plugs := t.Context(), newPlugs(3)
		first := connect(plugs)
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h"} // of which some have each server for their home
		eachHome(t, first)                                        // starts the servers
		plugs[2].pull()
		var holds []*rwlock.Hold
		for _, name := range names {
			h, err := first.Lock(ctx, name, rwlock.NoRenew()) // by the votes of 0 and 1
			require.NoError(t, err)
			holds = append(holds, h)
		}
		time.Sleep(time.Second)
		servers[1].FlushAll()
		servers[1].SetTime(time.Now().Add(-time.Hour)) // it starts before its clock is set
		plugs[2].mend()
		finder := connect(newPlugs(3))
		locked := func(rw *rwlock.RWLock) {
			for _, name := range names {
				_, err := rw.TryLock(ctx, name)
				require.ErrorIs(t, err, rwlock.ErrLocked)
			}
		}
		for range 5 {
			locked(finder)
			time.Sleep(time.Second)
		}
		require.NotEmpty(t, servers[1].HGet("rwlock:mark", "rest"))
		servers[1].SetTime(time.Now().Add(time.Minute))
		second := connect(newPlugs(3))
		for time.Until(holds[0].Deadline()) > 5*time.Second {
			locked(finder)
			locked(second)
			time.Sleep(time.Second)
		}
	})
}

// reals starts servers, and returns a function that returns a quorum over them.
func reals(t *testing.T, args ...string) ([]*testredis.Server,
	func(plugs []*plug, opts ...rwlock.Option) *rwlock.RWLock) {
	var servers []*testredis.Server
	for range 3 {
		servers = append(servers, testredis.Start(t, args...))
	}
	return servers, func(plugs []*plug, opts ...rwlock.Option) *rwlock.RWLock {
		var clients []redis.UniversalClient
		for i, p := range plugs {
			clients = append(clients, servers[i].Client(p.into))
		}
		return openQuorum(t, clients, opts...)
	}
}

// generation returns the generation under which a server votes.
func generation(s *testredis.Server) string {
	return s.Client().HGet(context.Background(), "rwlock:mark", "generation").Val()
}

// Servers without persistence are killed and started again one after the other, each as soon as the last one
// votes.
func TestServersThatAreKilledOneAfterTheOther(t *testing.T) {
	t.Parallel()
	failInTurn(t, (*testredis.Server).Kill, (*testredis.Server).Restart)
}

// Servers lose their data one after the other, each as soon as the last one votes.
func TestServersThatForgetOneAfterTheOther(t *testing.T) {
	t.Parallel()
	failInTurn(t, func(s *testredis.Server) {
		require.NoError(t, s.Client().FlushAll(t.Context()).Err())
	}, func(*testredis.Server) {})
}

// failInTurn has servers fail and lose their data one after the other. All the time, locks work within
// seconds, a hold lasts, nobody gets a lock beside it, and tokens grow.
func failInTurn(t *testing.T, fail, mend func(s *testredis.Server)) {
	const lease = 3 * time.Second // more than a busy machine keeps a process waiting
	servers, connect := reals(t)
	opts := []rwlock.Option{rwlock.WithLease(lease), rwlock.WithLogger(slog.New(slog.DiscardHandler))}
	rw, other, ctx := connect(newPlugs(3), opts...), connect(newPlugs(3), opts...), t.Context()
	tokens := map[string]int64{}
	works := func() {
		for _, rw := range []*rwlock.RWLock{rw, other} {
			// of which some have each server for their home
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
				h, err := rw.Lock(ctx, name, rwlock.MaxWait(10*time.Second))
				require.NoError(t, err)
				require.Greater(t, h.Token(), tokens[name])
				tokens[name] = h.Token()
				require.NoError(t, h.Unlock(ctx))
			}
		}
	}
	works()
	held, err := rw.Lock(ctx, "held")
	require.NoError(t, err)
	for _, s := range append(servers, servers[0]) {
		before := s.Client().HGet(ctx, "rwlock:mark", "id").Val()
		fail(s)
		works()
		mend(s)
		eventually(t, func() bool {
			works()
			require.NoError(t, held.Context().Err())
			_, err := other.TryLock(ctx, "held")
			require.ErrorIs(t, err, rwlock.ErrLocked)
			return generation(s) != "" && s.Client().HGet(ctx, "rwlock:mark", "id").Val() != before
		}, "a server that votes again")
		sent := time.Now()
		// the hold gets the vote of the server with a renewal, which counts with the next
		eventually(t, func() bool {
			return held.Deadline().After(sent.Add(lease + lease/2))
		}, "two renewals")
	}
	require.NoError(t, held.Unlock(ctx))
}

// Locks work without the rights by which old data is found.
func TestQuorumWithoutTheRightsToLookAtServers(t *testing.T) {
	t.Parallel()
	servers, connect := reals(t)
	for _, s := range servers {
		require.NoError(t, s.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-info", "-config").Err())
	}
	eachHome(t, connect(newPlugs(3)))
}

// A server that is started again with old data has forgotten its last votes: it rests, unless it confirms
// nothing before that is on disk.
func TestServerThatComesBackWithOldDataRests(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		args  []string
		votes bool // at once
	}{
		"snapshots":           {[]string{"--save", "3600", "1"}, false},
		"fsync every second":  {[]string{"--appendonly", "yes"}, false},
		"fsync at each write": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers, connect := reals(t, c.args...)
			ctx, plugs, names := t.Context(), newPlugs(3), []string{"1", "2", "3", "4", "5", "6", "7", "8"}
			first, second := connect(plugs), connect(newPlugs(3))
			eachHome(t, first)
			eachHome(t, second)
			if !c.votes {
				require.NoError(t, servers[1].Client().Save(ctx).Err())
			}
			plugs[2].pull()
			var holds []*rwlock.Hold
			for _, name := range names {
				h, err := first.Lock(ctx, name, rwlock.Lease(time.Minute), rwlock.NoRenew()) // by the votes of 0 and 1
				require.NoError(t, err)
				holds = append(holds, h)
			}
			servers[1].Kill()
			servers[1].Restart()
			for range 3 {
				for i, name := range names {
					eventually(t, func() bool { // the server that was started again may not answer yet
						_, err := second.TryLock(ctx, name)
						require.Error(t, err)
						require.NoError(t, holds[i].Context().Err())
						return errors.Is(err, rwlock.ErrLocked)
					}, "an answer to a try")
				}
			}
			eachHome(t, second)
			require.Equal(t, c.votes, generation(servers[1]) != "")
		})
	}
}

// How many servers vote shows in snapshots, and the log and an event say once when the number falls, and once
// when it rises.
func TestHowManyServersVoteCanBeSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers, connect := mems(t)
		said, plugs := &records{}, newPlugs(3)
		var mu sync.Mutex
		var events []rwlock.Event
		rw := connect(plugs, rwlock.WithLogger(said.logger()), rwlock.WithLease(3*time.Second),
			rwlock.WithObserver(rwlock.ObserverFunc(func(e rwlock.Event) {
				if e.Kind == rwlock.EventVoting {
					mu.Lock()
					defer mu.Unlock()
					events = append(events, e)
				}
			})))
		saw := func(voting int, why string) {
			t.Helper()
			snapshot := rw.Snapshot()
			require.Equal(t, 3, snapshot.Servers)
			require.Equal(t, voting, snapshot.Voting)
			list := said.list()
			last := list[len(list)-1]
			require.Contains(t, last, fmt.Sprintf("%d of 3 servers of the quorum vote", voting))
			require.Contains(t, last, why)
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, events, len(list), "each is said once")
			e := events[len(events)-1]
			require.Equal(t, []int{3, voting}, []int{e.Servers, e.Voting})
			require.Equal(t, voting == 3, e.Err == nil)
		}
		require.Equal(t, 3, rw.Snapshot().Voting, "none has been asked")
		eachHome(t, rw)
		time.Sleep(time.Minute)
		require.Empty(t, said.list())

		plugs[1].pull()
		eachHome(t, rw)
		time.Sleep(time.Minute)
		saw(2, "client 1: ")
		plugs[1].mend()
		time.Sleep(time.Minute)
		saw(3, "")
		require.Len(t, said.list(), 2)

		servers[2].FlushAll()
		eachHome(t, rw)
		time.Sleep(2 * time.Second)
		saw(2, "client 2: it has lost data, and rests")
		time.Sleep(time.Minute)
		saw(3, "")
		require.Len(t, said.list(), 4)
		require.NoError(t, rw.Close())
	})
}

// An owner that holds a lock for writing locks it again while one of three servers is out of memory,
// whichever it is and whichever was when the owner got the lock.
func TestOwnerLocksAgainThoughAServerIsOutOfMemory(t *testing.T) {
	t.Parallel()
	var servers []*testredis.Server
	var clients []redis.UniversalClient
	for range 3 {
		s := testredis.Start(t)
		servers, clients = append(servers, s), append(clients, s.Client())
	}
	full := func(i int, memory string) {
		require.NoError(t, servers[i].Client().ConfigSet(t.Context(), "maxmemory", memory).Err())
	}
	rw := openQuorum(t, clients, rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	eachHome(t, rw)
	for before := range 3 {
		for then := range 3 {
			for i := range 4 {
				name := fmt.Sprint(before, then, i)
				full(before, "1")
				var w *rwlock.Hold
				eventually(t, func() bool {
					var err error
					w, err = rw.Lock(t.Context(), name, rwlock.MaxWait(10*time.Second))
					return err == nil
				}, "a hold though %d is full", before)
				full(before, "0")
				full(then, "1")
				for _, mode := range bothModes {
					eventually(t, func() bool { // another server may be slow at the moment
						h, err := acquire(w.Context(), rw, mode, name, rwlock.MaxWait(10*time.Second))
						if errors.Is(err, rwlock.ErrNoMajority) {
							return false
						}
						require.NoError(t, err)
						return h.Unlock(t.Context()) == nil
					}, "another hold, full before: %d, and then: %d", before, then)
				}
				full(then, "0") // a release needs memory, too
				require.NoError(t, w.Unlock(t.Context()))
			}
		}
	}
}
