package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

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
func reals(t *testing.T, args ...string) ([]*testredis.Server, func(plugs []*plug, opts ...rwlock.Option) *rwlock.RWLock) {
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
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // of which some have each server for their home
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
		eventually(t, func() bool { // the hold gets the vote of the server with a renewal, which counts with the next
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
		"snapshots":           {[]string{"--save", "3600 1"}, false},
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
