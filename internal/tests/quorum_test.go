package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/stretchr/testify/require"
)

// A connector opens a quorum over servers, by way of these wires, or of its own. It is closed when the test
// ends.
type connector = func(wires []*wire, opts ...rwlock.Option) *rwlock.RWLock

// inMems runs fn in a bubble with servers in memory.
func inMems(t *testing.T, n int, fn func(t *testing.T, servers []*miniredis.Miniredis, connect connector)) {
	t.Helper()
	parallel(t)
	synctest.Test(t, func(t *testing.T) {
		var servers []*miniredis.Miniredis
		for range n {
			servers = append(servers, testredis.Mem(t))
		}
		fn(t, servers, connectTo(t, n, func(i int, with ...func(*redis.Options)) *redis.Client {
			return testredis.MemClient(t, servers[i], with...)
		}))
	})
}

// connectTo returns what opens quorums over n servers.
func connectTo(t *testing.T, n int, dial func(i int, with ...func(*redis.Options)) *redis.Client) connector {
	return func(wires []*wire, opts ...rwlock.Option) *rwlock.RWLock {
		if wires == nil {
			wires = newWires(n)
		}
		var clients []redis.UniversalClient
		for i, w := range wires {
			clients = append(clients, dial(i, w.into, withoutRetries))
		}
		return openQuorum(t, clients, opts...)
	}
}

func newWires(n int) (wires []*wire) {
	for range n {
		wires = append(wires, &wire{})
	}
	return wires
}

// openQuorum returns a quorum that is closed when the test ends.
func openQuorum(t *testing.T, clients []redis.UniversalClient, opts ...rwlock.Option) *rwlock.RWLock {
	rw, err := rwlock.NewQuorum(clients, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rw.Close() })
	return rw
}

// reals starts servers, and returns what opens a quorum over them.
func reals(t *testing.T, args ...string) ([]*testredis.Server, connector) {
	var servers []*testredis.Server
	for range 3 {
		servers = append(servers, testredis.Start(t, args...))
	}
	return servers, connectTo(t, 3, func(i int, with ...func(*redis.Options)) *redis.Client {
		return servers[i].Client(with...)
	})
}

// homes are names of which some have each server for their home.
var homes = []string{"a", "b", "c", "d", "e", "f", "g", "h"}

// use locks and unlocks names.
func use(t *testing.T, rw *rwlock.RWLock, names []string, opts ...rwlock.LockOption) {
	t.Helper()
	for _, name := range names {
		unlock(t, take(t, newOwner(), rw, write, name, append(opts, rwlock.MaxWait(5*time.Second))...))
	}
}

// takeAll takes all names, and requireTaken requires that nobody else gets one.
func takeAll(t *testing.T, rw *rwlock.RWLock, opts ...rwlock.LockOption) (holds []*rwlock.Hold) {
	t.Helper()
	for _, name := range homes {
		holds = append(holds, take(t, newOwner(), rw, write, name, opts...))
	}
	return holds
}

func requireTaken(t *testing.T, rws ...*rwlock.RWLock) {
	t.Helper()
	for _, rw := range rws {
		for _, name := range homes {
			start := time.Now()
			require.ErrorIs(t, errOf(rw.TryLock(t.Context(), name)), rwlock.ErrLocked, name)
			require.Less(t, time.Since(start), time.Second, "a call that does not wait")
		}
	}
}

// mark returns what a server's mark says.
func mark(m *miniredis.Miniredis, field string) string { return m.HGet("rwlock:mark", field) }

// requireOneGeneration requires that all servers vote, under one generation, and that none has lost its data.
func requireOneGeneration(t *testing.T, servers []*miniredis.Miniredis) {
	t.Helper()
	for i, m := range servers {
		require.Empty(t, mark(m, "rest"), "server %d", i)
		require.NotEmpty(t, mark(m, "generation"), "server %d", i)
		require.Equal(t, mark(servers[0], "generation"), mark(m, "generation"))
	}
}

// A lock over three servers works while two of them do, and a call says how many answer when one alone is
// left.
func TestQuorumOutlivesAMinority(t *testing.T) {
	inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
		wires := newWires(3)
		rw := connect(wires)
		held := take(t, newOwner(), rw, write, "held")
		wires[1].cut()
		time.Sleep(5 * time.Minute)
		require.NoError(t, held.Context().Err())
		use(t, rw, homes)

		wires[2].cut()
		requireError(t, errOf(rw.TryLock(t.Context(), "a")), rwlock.ErrNoMajority, "1 of 3 vote, 2 are needed")
		(&world{T: t, fake: true}).lostWhen(held)

		wires[1].mend()
		unlock(t, take(t, newOwner(), rw, write, "a"))
		require.ErrorIs(t, held.Unlock(t.Context()), rwlock.ErrLost)
		wires[2].freeze()
		start := time.Now()
		require.NoError(t, rw.Close())
		require.Less(t, time.Since(start), bound)
	})
}

// A server that has lost its data votes again as soon as it has rested, whether its clients saw it lose them
// or came later.
func TestServerThatLostItsDataVotesAgain(t *testing.T) {
	eachOf(t, []bool{true, false}, func(t *testing.T, saw bool) {
		inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
			useFor := func(rw *rwlock.RWLock, seconds int) {
				for range seconds {
					use(t, rw, []string{"n"})
					time.Sleep(time.Second)
				}
			}
			rw := connect(nil)
			useFor(rw, 1) // or else the server's new id would be the one that it had
			servers[1].FlushAll()
			useFor(rw, 5)
			require.NotEmpty(t, mark(servers[1], "rest"))
			if !saw {
				require.NoError(t, rw.Close())
				time.Sleep(time.Hour)
				rw = connect(nil)
			}
			useFor(rw, 70)
			requireOneGeneration(t, servers)
		})
	})
}

// A server that has lost its data rests for the longest lease that it may have voted for, though the client
// that finds the loss does not know of that lease: another has come since.
func TestServerRestsForTheLeasesOfOthers(t *testing.T) {
	inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
		finder, wires := connect(nil), newWires(3)
		other := connect(wires)
		use(t, finder, homes)
		use(t, other, homes)
		wires[0].cut()
		holds := takeAll(t, other, rwlock.Lease(time.Hour), rwlock.NoRenew()) // by the votes of two
		wires[1].cut()                                                        // only the finder finds the loss
		wires[2].cut()
		time.Sleep(time.Second)
		servers[1].FlushAll()
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(2 * time.Minute) {
			requireTaken(t, finder)
		}
		requireHeld(t, holds...)
		for _, wire := range wires {
			wire.mend()
		}
		time.Sleep(time.Hour)
		use(t, finder, homes)
	})
}

// While too few servers answer, every call that ends says so, and how many do, whether the client knew the
// servers before or not.
func TestCallsSayThatTooFewServersAnswer(t *testing.T) {
	eachOf(t, []bool{true, false}, func(t *testing.T, knew bool) {
		inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
			network := &wire{}
			wires := []*wire{{}, network, network}
			rw := connect(wires)
			held := take(t, newOwner(), rw, write, "held")
			network.freeze()
			calls := maps.Clone(everyCall)
			calls["TryLock"], calls["TryRLock"] = nil, nil // which do not wait for the end of their contexts
			if knew {
				calls["Extend"] = func(ctx context.Context, _ *rwlock.RWLock) error { return held.Extend(ctx, time.Minute) }
			} else {
				rw = connect(wires)
			}
			for what, call := range calls {
				if call == nil {
					continue
				}
				err := call(lasting(t, time.Second), rw)
				require.ErrorIs(t, err, rwlock.ErrNoMajority, what)
				require.ErrorIs(t, err, context.DeadlineExceeded, what)
				require.ErrorContains(t, err, "1 of 3 vote, 2 are needed", what)
			}
			require.ErrorIs(t, errOf(rw.TryLock(t.Context(), "c")), rwlock.ErrNoMajority)
			_, err := rw.Lock(t.Context(), "d", rwlock.MaxWait(time.Minute), rwlock.Lease(time.Second))
			require.ErrorIs(t, err, rwlock.ErrNoMajority)
			network.mend()
			unlock(t, take(t, newOwner(), rw, write, "n"))
			_ = held.Unlock(t.Context()) // what was sent into the outage may have no answer yet
			_ = rw.Close()
			time.Sleep(hang) // until the client has given up what was sent into the outage
		})
	})
}

// However many clients use new servers for the first time at once, and though each sees the others' steps
// late, they agree on who votes: no server is taken for one that has lost its data, and has to rest.
func TestManyClientsStartAQuorum(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		clients, servers, runs int
		late                   time.Duration // at most
	}{{8, 5, 5, 0}, {6, 3, 12, 150 * time.Millisecond}} {
		for seed := range c.runs {
			t.Run(fmt.Sprint(c.servers, " servers ", seed), func(t *testing.T) {
				inMems(t, c.servers, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
					rng := rand.New(rand.NewPCG(uint64(seed), 0))
					var locks []*rwlock.RWLock
					for range c.clients {
						if c.late == 0 {
							locks = append(locks, connect(nil))
							continue
						}
						var clients []redis.UniversalClient
						for _, m := range servers {
							clients = append(clients, testredis.MemClient(t, m, slowly(randomly(rng.Uint64(), c.late))))
						}
						locks = append(locks, openQuorum(t, clients))
					}
					var calls sync.WaitGroup
					for i, rw := range locks {
						calls.Go(func() { take(t, newOwner(), rw, write, fmt.Sprint(i)) })
					}
					calls.Wait()
					for _, rw := range locks {
						_ = rw.Close() // it may be slow, too
					}
					requireOneGeneration(t, servers)
				})
			})
		}
	}
}

// Of several tries for a free lock at the same time, one gets it.
func TestOneOfSeveralTriesGetsAFreeLock(t *testing.T) {
	inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
		var locks []*rwlock.RWLock
		for range 4 {
			locks = append(locks, connect(nil))
			use(t, locks[len(locks)-1], []string{"first"})
		}
		var won [5]int
		for i := range 20 {
			var n atomic.Int32
			together(len(locks), func(k int) {
				if h, err := locks[k].TryLock(t.Context(), fmt.Sprint(i)); err == nil {
					n.Add(1)
					time.Sleep(time.Second)
					_ = h.Unlock(t.Context())
				}
			})
			won[n.Load()]++
		}
		require.Equal(t, [5]int{1: 20}, won)
	})
}

// Three processes of which each misses another server all get the lock, once what they could not give back
// has ended with its lease.
func TestProcessesThatReachDifferentMajoritiesAllMakeProgress(t *testing.T) {
	inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
		const lease = 2 * time.Second
		var wires [3][]*wire
		var locks [3]*rwlock.RWLock
		for i := range locks {
			wires[i] = newWires(3)
			locks[i] = connect(wires[i], rwlock.WithLease(lease))
			use(t, locks[i], homes)
		}
		cut := time.Now().Add(300 * time.Millisecond)
		counts, end := cut.Add(2*lease), cut.Add(4*lease)
		var holds [3]atomic.Int64
		var wg sync.WaitGroup
		for i, rw := range locks {
			for c := range 2 {
				wg.Go(func() {
					for k := 0; time.Now().Before(end); k++ {
						h := take(t, newOwner(), rw, bothModes[(c+k)%2], "n")
						if time.Now().After(counts) {
							holds[i].Add(1)
						}
						time.Sleep(50 * time.Millisecond)
						unlock(t, h)
					}
				})
			}
		}
		time.Sleep(time.Until(cut))
		for i := range 3 {
			wires[i][i].cut()
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
	inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
		var wg sync.WaitGroup
		for missed := range 3 {
			wires := newWires(3)
			wires[missed].cut()
			rw := connect(wires, rwlock.WithLease(2*time.Second))
			wg.Go(func() {
				for k := range 20 {
					unlock(t, take(t, newOwner(), rw, bothModes[k%2], "n"))
				}
			})
		}
		wg.Wait()
	})
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
// not refused, a hold is renewed, a waiter is let in, and no server is started without the others. A first
// try takes up to 16 round trips, most of them to set up connections. It ends after five seconds.
func TestQuorumOfServersThatAreFarAway(t *testing.T) {
	eachOf(t, []time.Duration{200 * time.Millisecond, 260 * time.Millisecond,
		300 * time.Millisecond, 400 * time.Millisecond}, func(t *testing.T, trip time.Duration) {
		inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, _ connector) {
			var locks []*rwlock.RWLock
			for i := range 2 {
				var clients []redis.UniversalClient
				for _, m := range servers {
					clients = append(clients, testredis.MemClient(t, m, slowly(func() time.Duration { return trip })))
				}
				locks = append(locks, openQuorum(t, clients))
				first := locks[i].TryLock
				if 16*trip > 5*time.Second {
					first = locks[i].Lock
				}
				h, err := first(newOwner(), fmt.Sprint("first of ", i))
				require.NoError(t, err, "the client does not know how far away the servers are")
				unlock(t, h)
				var took [2]time.Duration
				atBest := [...]time.Duration{trip, trip}
				// until all connections stand, and the servers know the scripts
				for try := 0; try < 20 && took != atBest; try++ {
					start := time.Now()
					h := take(t, newOwner(), locks[i], write, fmt.Sprint("second of ", i))
					took[0] = time.Since(start)
					unlock(t, h)
					took[1] = time.Since(start) - took[0]
				}
				require.Equal(t, atBest, took)
			}
			held := take(t, newOwner(), locks[0], write, "n", rwlock.Lease(6*time.Second))
			waiting := (&world{T: t, fake: true}).launch(newOwner(), locks[1], write, "n")
			time.Sleep(2 * time.Minute)
			require.False(t, waiting.returned())
			left := time.Now()
			unlock(t, held)
			unlock(t, waiting.granted())
			require.LessOrEqual(t, waiting.at.Sub(left), 3*trip)
			for _, rw := range locks {
				require.NoError(t, rw.Close())
			}
			time.Sleep(hang) // until go-redis has set up the connections that it was about to
			requireOneGeneration(t, servers)
		})
	})
}

// A server that has never voted does not know whether others have. With one that has lost its data it is no
// majority.
func TestServerThatHasNotVotedIsNoEvidence(t *testing.T) {
	inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
		wires := newWires(3)
		first := connect(wires)
		use(t, first, []string{"n"}) // starts the servers
		wires[0].cut()               // as if its votes had never reached it
		servers[0].Del("rwlock:{n}")
		for _, field := range []string{"top", "old", "turned"} {
			servers[0].HDel("rwlock:mark", field)
		}
		h := take(t, newOwner(), first, write, "n") // by the votes of the others
		servers[2].FlushAll()

		wires = newWires(3)
		wires[1].cut() // the one that remembers
		second := connect(wires)
		require.ErrorIs(t, errOf(second.Lock(t.Context(), "n", rwlock.MaxWait(5*time.Second))),
			context.DeadlineExceeded)
		require.NoError(t, h.Context().Err(), "two hold the lock")
		require.NoError(t, second.Close())
		_ = h.Unlock(t.Context())
		require.NoError(t, first.Close())
	})
}

// Two clients of one server count as one server, and one that has failed. The log says so. The databases of a
// server are one server, too.
func TestTwoClientsOfOneServerAreOneServer(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		inMems(t, 2, func(t *testing.T, servers []*miniredis.Miniredis, _ connector) {
			wire, said := &wire{}, &records{}
			rw := openQuorum(t, []redis.UniversalClient{
				testredis.MemClient(t, servers[0]), testredis.MemClient(t, servers[1], wire.into, withoutRetries),
				testredis.MemClient(t, servers[0])},
				rwlock.WithLogger(said.logger()))
			for range 3 {
				use(t, rw, homes)
				time.Sleep(10 * time.Second)
			}
			require.Len(t, said.items(), 1)
			require.Contains(t, said.items()[0], "clients 0 and 2 of the quorum are of the same server")
			require.NotContains(t, said.items()[0], "lock=", "it is about no lock")
			wire.cut()
			require.ErrorIs(t, errOf(rw.Lock(t.Context(), "n", rwlock.MaxWait(5*time.Second))), rwlock.ErrNoMajority)
			wire.mend()
			use(t, rw, homes)
		})
	})
	t.Run("databases", func(t *testing.T) {
		t.Parallel()
		s := testredis.Start(t)
		var clients []redis.UniversalClient
		for db := range 3 {
			clients = append(clients, s.Client(func(o *redis.Options) { o.DB = db }))
		}
		rw := openQuorum(t, clients, rwlock.WithLogger(slog.New(slog.DiscardHandler)))
		_, err := rw.Lock(t.Context(), "n", rwlock.MaxWait(3*time.Second))
		requireError(t, err, rwlock.ErrNoMajority, "of the same server")
	})
}

// While the address of a server leads to another server of the quorum, that is one failure: locks work, holds
// stay, and nobody holds a lock beside another. Once it leads to its own server again, another server may
// fail.
func TestAddressThatLeadsToAnotherServerIsOneFailure(t *testing.T) {
	inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
		var leads [3]atomic.Pointer[redis.Client] // where an address leads
		wires, clients := newWires(3), []redis.UniversalClient{}
		lead := func(from, to int) {
			leads[from].Store(testredis.MemClient(t, servers[to]))
			wires[from].endConns()
		}
		for i, m := range servers {
			lead(i, i)
			clients = append(clients, testredis.MemClient(t, m, func(o *redis.Options) {
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					return leads[i].Load().Options().Dialer(ctx, network, addr)
				}
			}, wires[i].into, withoutRetries))
		}
		lease := rwlock.WithLease(3 * time.Second)
		rw, other := openQuorum(t, clients, lease), connect(nil, lease)
		holds := []*rwlock.Hold{take(t, newOwner(), rw, write, "held")}
		for n := range 3 {
			from, to := n, (n+1+n%2)%3
			lead(from, to)
			holds = append(holds, take(t, newOwner(), rw, write, fmt.Sprint("held", n)))
			use(t, rw, homes)
			use(t, other, homes)
			for range 2 {
				requireHeld(t, holds...)
				for _, h := range holds {
					require.ErrorIs(t, errOf(other.TryLock(t.Context(), h.Name())), rwlock.ErrLocked)
				}
				time.Sleep(4 * time.Second)
			}
			lead(from, from)
			time.Sleep(10 * time.Second)
			use(t, rw, homes)
			wires[to].cut()
			use(t, rw, homes)
			wires[to].mend()
			time.Sleep(10 * time.Second)
		}
		unlock(t, holds...)
	})
}

// A server that has lost its data rests for the longest lease that was in use, and no longer, whatever the
// RWLock's own lease is: so the servers may lose their data one after the other.
func TestServerRestsForTheLongestLeaseInUse(t *testing.T) {
	leases := []time.Duration{500 * time.Millisecond, 4 * time.Second, time.Minute}
	eachOf(t, leases, func(t *testing.T, lease time.Duration) {
		inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
			wires := newWires(3)
			rw := connect(wires)
			held := take(t, newOwner(), rw, write, "held", rwlock.Lease(lease))
			for i, m := range servers {
				use(t, rw, homes, rwlock.Lease(lease))
				wires[i].cut()
				m.FlushAll()
				use(t, rw, homes, rwlock.Lease(lease))
				wires[i].mend()
				// The client notices within a second, and the hold gets the server's vote with its second
				// renewal.
				time.Sleep(lease + lease/50 + 2*lease/3 + 3*time.Second)
				require.NoError(t, held.Context().Err())
			}
			unlock(t, held)
		})
	})
}

// Locks work without the rights by which old data is found.
func TestQuorumWithoutTheRightsToLookAtServers(t *testing.T) {
	t.Parallel()
	servers, connect := reals(t)
	for _, s := range servers {
		require.NoError(t, s.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-info", "-lastsave",
			"-config").Err())
	}
	use(t, connect(nil), homes)
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
			wires := newWires(3)
			first, second := connect(wires), connect(nil)
			use(t, first, homes)
			use(t, second, homes)
			if !c.votes {
				require.NoError(t, servers[1].Client().Save(t.Context()).Err())
			}
			wires[2].cut()
			holds := takeAll(t, first, rwlock.Lease(time.Minute), rwlock.NoRenew()) // by the votes of 0 and 1
			servers[1].Kill()
			servers[1].Restart()
			for range 3 {
				for _, h := range holds {
					eventually(t, func() bool { // the server that was started again may not answer yet
						_, err := second.TryLock(t.Context(), h.Name())
						require.Error(t, err)
						require.NoError(t, h.Context().Err())
						return errors.Is(err, rwlock.ErrLocked)
					}, "an answer to a try")
				}
			}
			use(t, second, []string{"another", "of others"})
			eventually(t, func() bool { // the others may have answered before it was heard of
				generation, err := servers[1].Client().HGet(t.Context(), "rwlock:mark", "generation").Result()
				return err == nil && c.votes == (generation != "")
			}, "votes: %v", c.votes)
		})
	}
}

// How many servers vote shows in snapshots, and the log and an event say once when the number falls, and once
// when it rises.
func TestHowManyServersVoteCanBeSeen(t *testing.T) {
	inMems(t, 3, func(t *testing.T, servers []*miniredis.Miniredis, connect connector) {
		said, wires := &records{}, newWires(3)
		var j journal
		rw := connect(wires, rwlock.WithLogger(said.logger()), rwlock.WithLease(3*time.Second),
			rwlock.WithObserver(&j))
		saw := func(voting int, why string) {
			t.Helper()
			snapshot := rw.Snapshot()
			require.Equal(t, 3, snapshot.Servers)
			require.Equal(t, voting, snapshot.Voting)
			list := said.items()
			last := list[len(list)-1]
			require.Contains(t, last, fmt.Sprintf("%d of 3 servers of the quorum vote", voting))
			require.Contains(t, last, why)
			e := j.next(t, len(list), rwlock.EventVoting) // each is said once
			require.Equal(t, []int{3, voting}, []int{e.Servers, e.Voting})
			require.Equal(t, voting == 3, e.Err == nil)
		}
		require.Equal(t, 3, rw.Snapshot().Voting, "none has been asked")
		use(t, rw, homes)
		time.Sleep(time.Minute)
		require.Empty(t, said.items())

		wires[1].cut()
		use(t, rw, homes)
		time.Sleep(time.Minute)
		saw(2, "client 1: ")
		wires[1].mend()
		time.Sleep(time.Minute)
		saw(3, "")
		require.Len(t, said.items(), 2)

		servers[2].FlushAll()
		use(t, rw, homes)
		time.Sleep(2 * time.Second)
		saw(2, "client 2: it rests: it has lost data")
		time.Sleep(time.Minute)
		saw(3, "")
		require.Len(t, said.items(), 4)
		require.NoError(t, rw.Close())
	})
}

// With a minority of the servers down, ForceUnlock ends every hold: the holder learns of it with its next
// renewal, and wins no vote back.
func TestForceUnlockWithAMinorityDown(t *testing.T) {
	for down := range 3 {
		for how, fail := range map[string]func(*wire){"refuses": (*wire).cut, "is silent": (*wire).freeze} {
			t.Run(fmt.Sprint(down, " ", how), func(t *testing.T) {
				inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
					wires := newWires(3)
					a, b := connect(wires), connect(wires)
					err := a.WithLock(context.Background(), "n", func(ctx context.Context, _ *rwlock.Hold) error {
						fail(wires[down])
						time.Sleep(time.Second)
						require.NoError(t, b.ForceUnlock(context.Background(), "n"))
						unlock(t, take(t, newOwner(), b, write, "n"))
						select {
						case <-ctx.Done():
						case <-time.After(5 * time.Minute):
						}
						return nil
					})
					require.ErrorIs(t, err, rwlock.ErrLost)
					wires[down].mend()
				})
			})
		}
	}
}

// A server that comes back votes for a hold until its lease ends, and for no whole lease of its own.
func TestServerThatComesBackKeepsNoHoldLonger(t *testing.T) {
	for down := range 3 {
		inMems(t, 3, func(t *testing.T, _ []*miniredis.Miniredis, connect connector) {
			wires := newWires(3)
			a, b := connect(wires), connect(nil)
			use(t, a, []string{"x"})
			wires[down].cut()
			use(t, a, []string{"x"})
			start := time.Now()
			h := take(t, newOwner(), a, write, "n", rwlock.NoRenew(), rwlock.Lease(30*time.Second))
			time.Sleep(20 * time.Second)
			wires[down].mend()
			time.Sleep(7 * time.Second)
			for _, w := range wires {
				w.freeze()
			}
			next := take(t, newOwner(), b, write, "n")
			require.LessOrEqual(t, time.Since(start), 30*time.Second+200*time.Millisecond)
			unlock(t, next)
			for _, w := range wires {
				w.mend()
			}
			require.ErrorIs(t, h.Unlock(context.Background()), rwlock.ErrLost)
		})
	}
}
