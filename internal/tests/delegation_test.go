package tests

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// delegationLease is that of the delegations of tests in which it does not run out.
const delegationLease = 3 * time.Second

// A delegate is an RWLock with delegations, and what its observer was told.
type delegate struct {
	*rwlock.RWLock
	local, returned atomic.Int64
}

// newDelegate returns an RWLock to which locks are delegated.
func newDelegate(t *testing.T, s testredis.Backend, client redis.UniversalClient, lease time.Duration,
	opts ...rwlock.Option) *delegate {
	d := &delegate{}
	observe := rwlock.ObserverFunc(func(e rwlock.Event) {
		switch {
		case e.Kind == rwlock.EventAcquired && e.Path == rwlock.PathDelegated:
			d.local.Add(1)
		case e.Kind == rwlock.EventReturned:
			d.returned.Add(1)
		}
	})
	rw, err := rwlock.New(client, append(opts, rwlock.WithPrefix(s.Prefix), rwlock.WithDelegation(lease),
		rwlock.WithObserver(observe))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rw.Close()) })
	d.RWLock = rw
	return d
}

func (d *delegate) lock(t *testing.T, mode rwlock.Mode, name string) *rwlock.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lock := d.Lock
	if mode == rwlock.Read {
		lock = d.RLock
	}
	h, err := lock(context.WithoutCancel(ctx), name, rwlock.MaxWait(20*time.Second))
	require.NoError(t, err)
	return h
}

// delegated has a name delegated to the RWLock.
func (d *delegate) delegated(t *testing.T, mode rwlock.Mode, name string) {
	t.Helper()
	before := d.local.Load()
	require.Eventually(t, func() bool {
		require.NoError(t, d.lock(t, mode, name).Unlock(t.Context()))
		return d.local.Load() > before
	}, 20*time.Second, time.Millisecond)
}

// While a lock is delegated, Lock and Unlock send nothing.
func TestDelegatedLocksCostNoRequest(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		hook := &commandCount{}
		client := s.Client()
		client.AddHook(hook)
		d := newDelegate(t, s, client, 30*time.Second)
		d.delegated(t, rwlock.Write, "n")
		before := hook.n.Load()
		for range 1000 {
			for _, mode := range []rwlock.Mode{rwlock.Read, rwlock.Write} {
				require.NoError(t, d.lock(t, mode, "n").Unlock(t.Context()))
			}
		}
		require.LessOrEqual(t, hook.n.Load()-before, int64(20), "of 2,000 pairs")
	})
}

// A commandCount counts commands.
type commandCount struct {
	redis.Hook
	n atomic.Int64
}

func (c *commandCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commandCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// D2, D4, D6: RWLocks that use a name in turns, with delegations or without, exclude each other, and tokens
// grow; nobody waits for a lease.
func TestDelegatesTakeTurns(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		var all []*delegate
		for range 3 {
			all = append(all, newDelegate(t, s, s.Client(), 30*time.Second))
		}
		plain, err := rwlock.New(s.Client(), rwlock.WithPrefix(s.Prefix))
		require.NoError(t, err)
		defer plain.Close()
		var readers, writers, last, local atomic.Int64
		var longest atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for k := range 60 {
					mode := rwlock.Read
					if (i+k)%4 == 0 {
						mode = rwlock.Write
					}
					start := time.Now()
					var h *rwlock.Hold
					if i < 6 {
						h = all[i/2].lock(t, mode, "n")
					} else {
						h = (&delegate{RWLock: plain}).lock(t, mode, "n")
					}
					longest.Store(max(longest.Load(), int64(time.Since(start))))
					if mode == rwlock.Write {
						if writers.Add(1) != 1 || readers.Load() != 0 {
							t.Error("a writer is not alone")
						}
						if before := last.Swap(h.Token()); before >= h.Token() {
							t.Errorf("token %d after %d", h.Token(), before)
						}
						writers.Add(-1)
					} else {
						readers.Add(1)
						if writers.Load() != 0 {
							t.Error("a reader beside a writer")
						}
						if h.Token() < last.Load() {
							t.Errorf("a reader's token %d after %d", h.Token(), last.Load())
						}
						readers.Add(-1)
					}
					require.NoError(t, h.Unlock(t.Context()))
				}
			})
		}
		wg.Wait()
		for _, d := range all {
			local.Add(d.local.Load())
		}
		require.Less(t, time.Duration(longest.Load()), 10*time.Second, "nobody waits for the end of a lease")
	})
}

// D8: a waiter behind an idle delegation has it recalled, and is let in soon.
func TestWaiterHasADelegationReturned(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		idle, other := newDelegate(t, s, s.Client(), 30*time.Second), newDelegate(t, s, s.Client(), 30*time.Second)
		for _, mode := range []rwlock.Mode{rwlock.Read, rwlock.Write} {
			name := fmt.Sprint("n", mode)
			idle.delegated(t, mode, name)
			start := time.Now()
			require.NoError(t, other.lock(t, rwlock.Write, name).Unlock(t.Context()))
			require.Less(t, time.Since(start), 5*time.Second, "a third of the lease is ten seconds")
		}
		require.Eventually(t, func() bool { return idle.returned.Load() == 2 }, 10*time.Second, time.Millisecond)
	})
}

// D10: after a loss of the server's data, the holds under a delegation are lost by its next renewal.
func TestDelegationLostWithTheData(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		client := s.Client()
		d := newDelegate(t, s, client, delegationLease)
		d.delegated(t, rwlock.Write, "n")
		h := d.lock(t, rwlock.Write, "n")
		keys, err := client.Keys(t.Context(), s.Prefix+"*{n}*").Result()
		require.NoError(t, err)
		require.NotEmpty(t, keys)
		require.NoError(t, client.Del(t.Context(), keys...).Err())
		select {
		case <-h.Context().Done():
			require.ErrorIs(t, context.Cause(h.Context()), rwlock.ErrLost)
		case <-time.After(10 * delegationLease):
			t.Fatal("the loss is not told")
		}
		require.ErrorIs(t, h.Unlock(t.Context()), rwlock.ErrLost)
	})
}

// ForceUnlock reaches those who have a subscription at once: holds under delegations, and others.
func TestForceUnlockIsToldAtOnce(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		d := newDelegate(t, s, s.Client(), 10*time.Minute, rwlock.WithLease(time.Hour))
		other, err := rwlock.New(s.Client(), rwlock.WithPrefix(s.Prefix))
		require.NoError(t, err)
		defer other.Close()
		d.delegated(t, rwlock.Write, "n")
		under := d.lock(t, rwlock.Write, "n")
		plain, err := d.Lock(t.Context(), "m")
		require.NoError(t, err)
		for i, h := range []*rwlock.Hold{under, plain} {
			by := []*rwlock.RWLock{other, d.RWLock}[i]
			require.NoError(t, by.ForceUnlock(t.Context(), h.Name()))
			select {
			case <-h.Context().Done():
				require.ErrorIs(t, context.Cause(h.Context()), rwlock.ErrLost)
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: the loss is not told", h.Name())
			}
			require.ErrorIs(t, h.Unlock(t.Context()), rwlock.ErrLost)
		}
	})
}

// Close and Shutdown return what is delegated: others get it at once.
func TestCloseReturnsDelegations(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		other, err := rwlock.New(s.Client(), rwlock.WithPrefix(s.Prefix))
		require.NoError(t, err)
		defer other.Close()
		for i, end := range []func(*rwlock.RWLock) error{
			(*rwlock.RWLock).Close, func(rw *rwlock.RWLock) error { return rw.Shutdown(t.Context()) }} {
			d := newDelegate(t, s, s.Client(), 30*time.Second)
			for k := range 10 {
				d.delegated(t, rwlock.Write, fmt.Sprint(i, k))
			}
			require.NoError(t, end(d.RWLock))
			for k := range 10 {
				h, err := other.TryLock(t.Context(), fmt.Sprint(i, k))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(t.Context()))
			}
		}
	})
}

// Re-entry, downgrade and the errors of misuse are under a delegation what they are without.
func TestOwnersUnderADelegation(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		d := newDelegate(t, s, s.Client(), 30*time.Second)
		d.delegated(t, rwlock.Write, "n")
		h := d.lock(t, rwlock.Write, "n")
		again, err := d.Lock(h.Context(), "n")
		require.NoError(t, err)
		require.Equal(t, h.Token(), again.Token())
		read, err := d.RLock(h.Context(), "n")
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
		_, err = d.TryRLock(t.Context(), "n")
		var blocked *rwlock.BlockedError
		require.ErrorAs(t, err, &blocked)
		require.True(t, blocked.Ours)
		require.Equal(t, again.Owner(), blocked.Holder)
		require.NoError(t, again.Unlock(t.Context()))
		other, err := d.TryRLock(t.Context(), "n")
		require.NoError(t, err, "the writer has downgraded")
		_, err = d.Lock(rwlock.WithOwner(t.Context(), other.Owner()), "n")
		require.ErrorIs(t, err, rwlock.ErrUpgrade)
		require.NoError(t, read.Unlock(t.Context()))
		require.NoError(t, other.Extend(t.Context(), time.Minute))
		require.Greater(t, time.Until(other.Deadline()), 50*time.Second)
		require.NoError(t, other.Unlock(t.Context()))
		require.ErrorIs(t, other.Unlock(t.Context()), rwlock.ErrNotHeld)
		require.Positive(t, d.local.Load())
	})
}

// Inspect says what is delegated, in any process.
func TestInspectShowsDelegations(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		d := newDelegate(t, s, s.Client(), 30*time.Second, rwlock.WithLabel("its label"))
		d.delegated(t, rwlock.Write, "n")
		other, err := rwlock.New(s.Client(), rwlock.WithPrefix(s.Prefix))
		require.NoError(t, err)
		defer other.Close()
		state, err := other.Inspect(t.Context(), "n")
		require.NoError(t, err)
		require.Len(t, state.Holders, 1)
		holder := state.Holders[0]
		require.True(t, holder.Delegated)
		require.Equal(t, rwlock.Write, holder.Mode)
		require.Equal(t, "its label", holder.Label)
		require.True(t, strings.HasSuffix(holder.Owner.String(), ":0"))

		h := d.lock(t, rwlock.Write, "n")
		own := rwlock.WithOwner(t.Context(), h.Owner())
		again, err := d.Lock(own, "n")
		require.NoError(t, err)
		read, err := d.RLock(own, "n")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() {
			_, err := d.Lock(ctx, "n")
			waiting <- err
		}()
		require.Eventually(t, func() bool {
			state, err = d.Inspect(t.Context(), "n")
			require.NoError(t, err)
			return len(state.Waiters) == 1
		}, 20*time.Second, time.Millisecond)
		require.False(t, state.Waiters[0].Since.IsZero())
		require.Equal(t, rwlock.Write, state.Mode)
		require.Equal(t, h.Token(), state.Token)
		require.Len(t, state.Holders, 2)
		for i, mode := range []rwlock.Mode{rwlock.Write, rwlock.Read} {
			require.Equal(t, h.Owner(), state.Holders[i].Owner)
			require.Equal(t, mode, state.Holders[i].Mode)
			require.Equal(t, 2-i, state.Holders[i].Count)
			require.True(t, state.Holders[i].Delegated)
			require.Equal(t, "its label", state.Holders[i].Label)
		}
		cancel()
		require.ErrorIs(t, <-waiting, context.Canceled)
		for _, h := range []*rwlock.Hold{read, again, h} {
			require.NoError(t, h.Unlock(t.Context()))
		}
	})
}

// A delegation whose lease would be longer than that of holds has that of holds: a crash costs no more.
func TestDelegationIsNotLongerThanHolds(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		d := newDelegate(t, s, s.Client(), time.Hour, rwlock.WithLease(30*time.Second))
		d.delegated(t, rwlock.Write, "n")
		state, err := d.Inspect(t.Context(), "n")
		require.NoError(t, err)
		require.Len(t, state.Holders, 1)
		require.LessOrEqual(t, state.Holders[0].Lease, 30*time.Second)
	})
}

// The option is checked.
func TestDelegationOption(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	_, err := rwlock.New(client, rwlock.WithDelegation(99*time.Millisecond))
	require.ErrorContains(t, err, "lease")
	_, err = rwlock.NewQuorum([]redis.UniversalClient{client, client, client},
		rwlock.WithDelegation(time.Second))
	require.Error(t, err)
}

// While servers fail over, or a slot moves, holds under a delegation whose lease is longer stay, tokens grow,
// and others still have the delegation recalled.
func TestDelegationsOutliveAFailover(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const lease = 15 * time.Second
	slot := testredis.Slot("n")
	master := slot * 3 / 16384
	for name, strike := range map[string]func(c *testredis.Cluster){
		"failover": func(c *testredis.Cluster) {
			c.Nodes[master].AwaitReplicas(c.Nodes[master+3])
			require.NoError(t, c.Nodes[master+3].Client().Do(t.Context(), "CLUSTER", "FAILOVER").Err())
			c.Nodes[master+3].AwaitRole("master")
		},
		"slot move": func(c *testredis.Cluster) {
			from, to := c.Nodes[master], c.Nodes[(master+1)%3]
			c.BeginMove(slot, from, to)
			time.Sleep(100 * time.Millisecond)
			c.EndMove(slot, from, to)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testredis.StartReplicatedCluster(t, 3)
			outlives(t, cluster.Client(), cluster.Client(), lease, func() { strike(cluster) })
		})
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testredis.StartSentinels(t)
		outlives(t, s.Client(), s.Client(), lease, func() { s.Failover() })
	})
}

// outlives has a lock delegated while something happens to the servers that loses none of its data.
func outlives(t *testing.T, one, two redis.UniversalClient, lease time.Duration, strike func()) {
	d := newDelegate(t, testredis.Backend{Prefix: "p"}, one, lease)
	other := newDelegate(t, testredis.Backend{Prefix: "p"}, two, lease)
	d.delegated(t, rwlock.Write, "n")
	h := d.lock(t, rwlock.Write, "n")
	waiting := make(chan *rwlock.Hold, 1)
	strike()
	require.NoError(t, h.Context().Err())
	require.NoError(t, h.Unlock(t.Context()))
	next := d.lock(t, rwlock.Write, "n")
	require.Greater(t, next.Token(), h.Token())
	go func() { waiting <- other.lock(t, rwlock.Write, "n") }()
	select {
	case <-waiting:
		t.Error("two hold the lock")
	case <-time.After(time.Second):
	}
	require.NoError(t, next.Unlock(t.Context()))
	last := <-waiting
	require.Greater(t, last.Token(), next.Token())
	require.NoError(t, last.Unlock(t.Context()))
	require.Eventually(t, func() bool { return d.returned.Load() > 0 }, 10*time.Second, time.Millisecond)
}
