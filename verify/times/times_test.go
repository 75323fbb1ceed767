// Package times measures, on real servers and a real clock, what the library promises in milliseconds. It
// wants a quiet machine: on a busy one it measures that. The same promises are tested in bubbles, where times
// are exact.
package times

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

const (
	tries = 11 // of each, whose median counts
	lease = time.Second

	roleEnv = "RWLOCK_TIMES_ROLE"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		play()
	}
	os.Exit(m.Run())
}

// play is a process that locks, says so, and stays until it is killed.
func play() {
	rw, err := rwlock.New(redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")}), rwlock.WithLease(lease))
	lock := rw.Lock
	if os.Getenv(roleEnv) == "reader" {
		lock = rw.RLock
	}
	if err == nil {
		_, err = lock(context.Background(), os.Getenv("NAME"))
	}
	fmt.Println(err)
	select {}
}

// median ends the test if the median of some times is more than is promised.
func median(t *testing.T, what string, promised time.Duration, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	middle := took[len(took)/2].Round(time.Microsecond)
	t.Logf("%s: median %v of %v", what, middle, took)
	require.LessOrEqual(t, middle, promised, "%s: %v", what, took)
}

// start starts so many servers.
func start(t *testing.T, n int) (servers []*testredis.Server) {
	t.Helper()
	for range n {
		servers = append(servers, testredis.Start(t))
	}
	return servers
}

// newLock returns an RWLock over a server, or over several that vote.
func newLock(t *testing.T, servers []*testredis.Server, opts ...rwlock.Option) *rwlock.RWLock {
	t.Helper()
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, s.Client())
	}
	rw, err := rwlock.New(clients[0], opts...)
	if len(clients) > 1 {
		rw, err = rwlock.NewQuorum(clients, opts...)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rw.Close()) })
	return rw
}

type lockCall func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold, error)

func lock(t *testing.T, call lockCall, name string, opts ...rwlock.LockOption) *rwlock.Hold {
	t.Helper()
	h, err := call(context.Background(), name, opts...)
	require.NoError(t, err)
	return h
}

func unlock(t *testing.T, h *rwlock.Hold) {
	t.Helper()
	require.NoError(t, h.Unlock(context.Background()))
}

// waiting waits until n owners wait for a lock, and returns its state.
func waiting(t *testing.T, rw *rwlock.RWLock, name string, n int) (s rwlock.State) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		s, err = rw.Inspect(t.Context(), name)
		return err == nil && len(s.Waiters) == n
	}, time.Minute, time.Millisecond)
	return s
}

// The next in line gets the lock of a process that was killed within 200 ms of the end of its lease, and not
// before; so does whoever waits behind a process that was killed while it waited.
func TestSuccessorOfAKilledProcess(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	for _, dead := range []string{"reader", "writer", "waiter"} {
		t.Run(dead, func(t *testing.T) {
			t.Parallel()
			servers := start(t, 1)
			rw := newLock(t, servers)
			var late []time.Duration
			for range tries {
				var before *rwlock.Hold // of the one that is killed
				ahead := 0
				if dead == "waiter" {
					before, ahead = lock(t, rw.RLock, dead), 1
				}
				child := exec.Command(os.Args[0])
				child.Env = append(os.Environ(), roleEnv+"="+dead, "ADDR="+servers[0].Addr(), "NAME="+dead)
				out, err := child.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, child.Start())
				if before != nil {
					waiting(t, rw, dead, 1)
				} else {
					line, err := bufio.NewReader(out).ReadString('\n')
					require.NoError(t, err)
					require.Equal(t, "<nil>\n", line)
				}
				next := make(chan time.Time)
				go func() {
					h, err := rw.Lock(t.Context(), dead)
					got := time.Now()
					if err == nil {
						err = h.Unlock(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
					next <- got
				}()
				waiting(t, rw, dead, ahead+1)
				require.NoError(t, child.Process.Kill())
				_ = child.Wait()
				state := waiting(t, rw, dead, ahead+1)
				over := time.Now()
				if before != nil {
					over = over.Add(state.Waiters[0].Lease)
					unlock(t, before)
				} else {
					over = over.Add(state.Holders[0].Lease)
				}
				late = append(late, (<-next).Sub(over))
			}
			require.Greater(t, slices.Min(late), -10*time.Millisecond, "before the end of the lease")
			median(t, "after the end of the lease", 200*time.Millisecond, late)
		})
	}
}

// Every call returns within 50 ms of the end of its context, or of its MaxWait, though Redis is frozen.
func TestCallsReturnThoughRedisIsFrozen(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const patience = 100 * time.Millisecond
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n, " servers"), func(t *testing.T) {
			t.Parallel()
			servers := start(t, n)
			rw := newLock(t, servers)
			mine := lock(t, rw.Lock, "mine")
			none := func(context.Context, *rwlock.Hold) error { return nil }
			var released *rwlock.Hold
			says := func(_ *rwlock.Hold, err error) error { return err }
			again := func(ctx context.Context) context.Context { return rwlock.WithOwner(ctx, mine.Owner()) }
			most := rwlock.MaxWait(patience)
			var longer atomic.Int64
			lease := func() time.Duration { return time.Duration(longer.Add(1)) * 100 * time.Hour } // than before
			calls := map[string]func(ctx context.Context) error{
				"Lock":         func(ctx context.Context) error { return says(rw.Lock(ctx, "free")) },
				"RLock":        func(ctx context.Context) error { return says(rw.RLock(ctx, "free")) },
				"TryLock":      func(ctx context.Context) error { return says(rw.TryLock(ctx, "free")) },
				"TryRLock":     func(ctx context.Context) error { return says(rw.TryRLock(ctx, "free")) },
				"WithLock":     func(ctx context.Context) error { return rw.WithLock(ctx, "free", none) },
				"WithRLock":    func(ctx context.Context) error { return rw.WithRLock(ctx, "free", none) },
				"Inspect":      func(ctx context.Context) error { _, err := rw.Inspect(ctx, "free"); return err },
				"ForceUnlock":  func(ctx context.Context) error { return rw.ForceUnlock(ctx, "free") },
				"Unlock":       func(ctx context.Context) error { return released.Unlock(ctx) },
				"Extend":       func(ctx context.Context) error { return mine.Extend(ctx, lease()) },
				"re-entry":     func(ctx context.Context) error { return says(rw.Lock(again(ctx), "mine", rwlock.Lease(lease()))) },
				"in the queue": func(ctx context.Context) error { return says(rw.RLock(ctx, "mine")) },
				"MaxWait":      func(context.Context) error { return says(rw.Lock(t.Context(), "free", most)) },
			}
			var mu sync.Mutex
			late := map[string][]time.Duration{}
			for range tries {
				released = lock(t, rw.RLock, "released")
				queued, giveUp := context.WithCancel(context.Background())
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_ = calls["in the queue"](queued)
				}()
				waiting(t, rw, "mine", 1)
				for _, s := range servers {
					s.Pause()
				}
				var wg sync.WaitGroup
				start := time.Now()
				for name, call := range calls {
					wg.Go(func() {
						ctx, cancel := context.WithDeadline(context.Background(), start.Add(patience))
						defer cancel()
						err := call(ctx)
						took := time.Since(start)
						if err == nil {
							t.Errorf("%s: no error", name)
						}
						mu.Lock()
						defer mu.Unlock()
						late[name] = append(late[name], took-patience)
					})
				}
				wg.Wait()
				start = time.Now()
				giveUp()
				<-gone
				late["queued before"] = append(late["queued before"], time.Since(start))
				for _, s := range servers {
					s.Resume()
				}
				waiting(t, rw, "mine", 0)
			}
			for name, took := range late {
				median(t, name, 50*time.Millisecond, took)
			}
			unlock(t, mine)
		})
	}
}

// Over a quorum, writers of several RWLocks are served in the order in which they came, and Inspect lists
// them in it. A client subscribes on each server once a call has to wait. A server that is silent for a
// quarter of a second would be passed over: then the order may suffer.
func TestWaitersOfAQuorumKeepTheirOrder(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const waiters = 20
	servers := start(t, 3)
	rws := []*rwlock.RWLock{newLock(t, servers), newLock(t, servers), newLock(t, servers)}
	subscriptions := func() (n int) {
		for _, s := range servers {
			channels, err := s.Client().PubSubChannels(t.Context(), "rwlock:*").Result()
			require.NoError(t, err)
			n += len(channels)
		}
		return n
	}
	h := lock(t, rws[0].Lock, "n")
	_, err := rws[1].TryLock(t.Context(), "n")
	require.ErrorIs(t, err, rwlock.ErrLocked)
	require.Zero(t, subscriptions())
	holds, owners := make(chan *rwlock.Hold), []rwlock.Owner(nil)
	for i := range waiters {
		owner := rwlock.NewOwner()
		owners = append(owners, owner)
		go func() {
			h, err := rws[i%len(rws)].Lock(rwlock.WithOwner(t.Context(), owner), "n")
			if err != nil {
				t.Error(err)
			}
			holds <- h
		}()
		for k, w := range waiting(t, rws[0], "n", i+1).Waiters {
			require.Equal(t, owners[k], w.Owner)
		}
	}
	require.Eventually(t, func() bool { return subscriptions() == len(rws)*len(servers) }, time.Minute,
		time.Millisecond)
	for _, owner := range owners {
		unlock(t, h)
		h = <-holds
		require.Equal(t, owner, h.Owner())
	}
	unlock(t, h)
}

// Close releases thousands of holds in the time that it has.
func TestCloseReleasesACrowd(t *testing.T) {
	testredis.Need(t)
	servers := start(t, 1)
	rw := newLock(t, servers)
	var holds [100][100]*rwlock.Hold
	var wg sync.WaitGroup
	for i := range holds {
		wg.Go(func() {
			for j := range holds[i] {
				h, err := rw.RLock(t.Context(), "n")
				if err != nil {
					t.Error(err)
				}
				holds[i][j] = h
			}
		})
	}
	wg.Wait()
	require.Len(t, waiting(t, rw, "n", 0).Holders, len(holds)*len(holds[0]))
	require.NoError(t, rw.Close())
	runtime.KeepAlive(&holds) // or they would be released before
	require.Empty(t, waiting(t, newLock(t, servers), "n", 0).Holders)
}

// Calls that give up together return soon after as many that wait for a bare context, and delay a lock of
// another name hardly more. Noise of the machine lasts for a while, so up to three series are measured.
func TestManyGiveUpTogether(t *testing.T) {
	testredis.Need(t)
	const rounds, series = 5, 3
	const promised = 100 * time.Millisecond // on a quiet machine it is less than half of that
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n, " servers"), func(t *testing.T) {
			servers := start(t, n)
			rw, other := newLock(t, servers), newLock(t, servers)
			for range series {
				var later, slower []time.Duration
				for range rounds {
					after, longer := againstBareContexts(t, rw, other)
					later, slower = append(later, after), append(slower, longer)
				}
				slices.Sort(later)
				slices.Sort(slower)
				t.Logf("the calls return %v after bare contexts; a lock of another name takes %v longer", later, slower)
				if max(later[rounds/2], slower[rounds/2]) <= promised {
					return
				}
			}
			t.Errorf("no series has medians of at most %v", promised)
		})
	}
}

// againstBareContexts returns how much later than bare contexts the last of a crowd of calls returns, and how
// much longer than beside these a pair of Lock and Unlock takes.
func againstBareContexts(t *testing.T, rw, other *rwlock.RWLock) (later, longer time.Duration) {
	t.Helper()
	bareLast, bareSlowest := giveUp(t, rw, func(ctx context.Context) { <-ctx.Done() }, func() {})
	h := lock(t, other.Lock, "n")
	last, slowest := giveUp(t, rw, func(ctx context.Context) {
		if _, err := rw.Lock(ctx, "n"); err == nil {
			t.Error("the lock is held")
		}
	}, func() {
		require.Eventually(t, func() bool {
			waits := rw.Snapshot().Waits
			return len(waits) == crowd && !slices.ContainsFunc(waits, func(w rwlock.LocalWait) bool {
				return w.Blocked == nil
			})
		}, 5*time.Minute, 100*time.Millisecond)
	})
	waiting(t, other, "n", 0)
	unlock(t, h)
	return last - bareLast, slowest - bareSlowest
}

const crowd = 20_000

// giveUp returns how long after the end of their context the last of a crowd of calls returns, and how long
// the slowest of some pairs of Lock and Unlock takes meanwhile. The context ends when ready returns.
func giveUp(t *testing.T, rw *rwlock.RWLock, call func(context.Context), ready func(),
) (last, slowest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begun, over sync.WaitGroup
	returned := make([]time.Time, crowd)
	begun.Add(crowd)
	for i := range returned {
		over.Go(func() {
			begun.Done()
			call(ctx)
			returned[i] = time.Now()
		})
	}
	begun.Wait()
	ready()
	end := time.Now()
	cancel()
	for range 50 {
		start := time.Now()
		unlock(t, lock(t, rw.Lock, "free"))
		slowest = max(slowest, time.Since(start))
	}
	over.Wait()
	return slices.MaxFunc(returned, time.Time.Compare).Sub(end), slowest
}
