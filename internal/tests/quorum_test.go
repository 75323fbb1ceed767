package tests

import (
	"context"
	"fmt"
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
	for _, text := range []string{"OOM command not allowed when used memory > 'maxmemory'.", "MISCONF Redis is configured to save RDB snapshots",
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
					for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // of which some have each server for their home
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
				require.Equal(t, servers[0].HGet("rwlock:mark", "generation"), servers[1].HGet("rwlock:mark", "generation"))
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

// Processes that start the servers apart, since each misses another one, say that there is no majority. Once
// one of them reaches all servers, all get locks.
func TestServersThatAreStartedApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, connect := mems(t)
		var plugs [3][]*plug
		var locks [3]*rwlock.RWLock
		for i := range locks {
			plugs[i] = newPlugs(3)
			plugs[i][i].pull()
			locks[i] = connect(plugs[i], rwlock.WithLease(3*time.Second))
		}
		call := func(wait time.Duration) (errs [3]error) {
			var wg sync.WaitGroup
			for i, rw := range locks {
				wg.Go(func() {
					var h *rwlock.Hold
					if h, errs[i] = rw.Lock(t.Context(), fmt.Sprint(i), rwlock.MaxWait(wait)); h != nil {
						errs[i] = h.Unlock(t.Context())
					}
				})
			}
			wg.Wait()
			return errs
		}
		failed := 0
		for _, err := range call(10 * time.Second) {
			if err != nil {
				failed++
				require.ErrorIs(t, err, rwlock.ErrNoMajority)
				require.ErrorContains(t, err, "1 of 3 vote, 2 are needed")
			}
		}
		require.GreaterOrEqual(t, failed, 2)
		plugs[0][0].mend()
		for _, err := range call(hang) {
			require.NoError(t, err)
		}
	})
}
