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
	"slices"
	"sync"
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
	require.Len(t, took, tries)
	slices.Sort(took)
	t.Logf("%s: median %v, at most %v", what, took[tries/2].Round(time.Microsecond), took[tries-1].Round(time.Microsecond))
	require.LessOrEqual(t, took[tries/2], promised, "%s: %v", what, took)
}

func newLock(t *testing.T, s *testredis.Server, opts ...rwlock.Option) *rwlock.RWLock {
	t.Helper()
	rw, err := rwlock.New(s.Client(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rw.Close()) })
	return rw
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
			s := testredis.Start(t)
			rw := newLock(t, s)
			var late []time.Duration
			for range tries {
				var before *rwlock.Hold // of the one that is killed
				if dead == "waiter" {
					var err error
					before, err = rw.RLock(t.Context(), dead)
					require.NoError(t, err)
				}
				child := exec.Command(os.Args[0])
				child.Env = append(os.Environ(), roleEnv+"="+dead, "ADDR="+s.Addr(), "NAME="+dead)
				out, err := child.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, child.Start())
				ahead := 0
				if before != nil {
					waiting(t, rw, dead, 1)
					ahead = 1
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
			var servers []*testredis.Server
			var clients []redis.UniversalClient
			for i := range n {
				servers = append(servers, testredis.Start(t))
				clients = append(clients, servers[i].Client())
			}
			rw, err := rwlock.New(clients[0])
			if n > 1 {
				rw, err = rwlock.NewQuorum(clients)
			}
			require.NoError(t, err)
			t.Cleanup(func() { _ = rw.Close() })
			owner := rwlock.WithOwner(context.Background(), rwlock.NewOwner())
			mine, err := rw.Lock(owner, "mine")
			require.NoError(t, err)
			none := func(context.Context, *rwlock.Hold) error { return nil }
			var released *rwlock.Hold
			calls := map[string]func(ctx context.Context) error{
				"Lock":        func(ctx context.Context) error { _, err := rw.Lock(ctx, "free"); return err },
				"RLock":       func(ctx context.Context) error { _, err := rw.RLock(ctx, "free"); return err },
				"TryLock":     func(ctx context.Context) error { _, err := rw.TryLock(ctx, "free"); return err },
				"TryRLock":    func(ctx context.Context) error { _, err := rw.TryRLock(ctx, "free"); return err },
				"WithLock":    func(ctx context.Context) error { return rw.WithLock(ctx, "free", none) },
				"WithRLock":   func(ctx context.Context) error { return rw.WithRLock(ctx, "free", none) },
				"Inspect":     func(ctx context.Context) error { _, err := rw.Inspect(ctx, "free"); return err },
				"ForceUnlock": func(ctx context.Context) error { return rw.ForceUnlock(ctx, "free") },
				"Unlock":      func(ctx context.Context) error { return released.Unlock(ctx) },
				"Extend":      func(ctx context.Context) error { return mine.Extend(ctx, time.Hour) },
				"re-entry": func(ctx context.Context) error {
					_, err := rw.Lock(rwlock.WithOwner(ctx, mine.Owner()), "mine")
					return err
				},
				"in the queue": func(ctx context.Context) error { _, err := rw.RLock(ctx, "mine"); return err },
				"MaxWait": func(context.Context) error {
					_, err := rw.Lock(context.Background(), "free", rwlock.MaxWait(patience))
					return err
				},
			}
			var mu sync.Mutex
			late := map[string][]time.Duration{}
			for range tries {
				released, err = rw.RLock(context.Background(), "released")
				require.NoError(t, err)
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
