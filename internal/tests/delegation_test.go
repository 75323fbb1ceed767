package tests

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// delegationLease is that of the delegations of tests in which it does not run out.
const delegationLease = 30 * time.Second

// A delegate is an RWLock to which locks are delegated, and what its observer was told.
type delegate struct {
	*rwlock.RWLock
	journal
}

// delegateOn returns a delegate that does not close, over a client.
func delegateOn(
	t testing.TB, client redis.UniversalClient, lease time.Duration, opts ...rwlock.Option,
) *delegate {
	t.Helper()
	d := &delegate{}
	opts = append(opts, rwlock.WithDelegation(lease), rwlock.WithObserver(&d.journal))
	d.RWLock = newLockOn(t, client, opts...)
	return d
}

// newDelegate returns a delegate, closed when the test ends.
func (w *world) newDelegate(lease time.Duration, opts ...rwlock.Option) *delegate {
	w.Helper()
	return delegateOn(w, w.dial(), lease, w.options(opts)...)
}

// granted returns how many holds it has granted from memory.
func (d *delegate) granted() (n int) {
	for _, e := range d.of(rwlock.EventAcquired) {
		if e.Path == rwlock.PathDelegated {
			n++
		}
	}
	return n
}

// getsDelegated has a name delegated.
func (d *delegate) getsDelegated(t testing.TB, mode rwlock.Mode, name string) {
	t.Helper()
	before := d.granted()
	eventually(t, func() bool {
		unlock(t, take(t, newOwner(), d.RWLock, mode, name))
		return d.granted() > before
	}, "a delegation of %q", name)
}

// While a lock is delegated, Lock and Unlock send nothing. The server confirms a hold that lasted longer
// than a round trip, which happens where the processors are busy. So the round with the fewest requests
// counts.
func TestDelegatedLocksCostNoRequest(t *testing.T) {
	onServers(t, func(w *world) {
		client, sent := w.dial(), &counter{}
		sent.over(client)
		d := delegateOn(w, client, delegationLease, w.options(nil)...)
		d.getsDelegated(w, write, "n")
		fewest := int64(math.MaxInt64)
		for round := 0; round < 30 && fewest > 20; round++ {
			before := sent.Load()
			for range 1000 {
				for _, mode := range bothModes {
					unlock(w, take(w, newOwner(), d.RWLock, mode, "n"))
				}
			}
			fewest = min(fewest, sent.Load()-before)
		}
		require.LessOrEqual(w, fewest, int64(20), "of 2,000 pairs")
	})
}

// D2, D4, D6: RWLocks that use a name in turns, with delegations or without, exclude each other, and tokens
// grow; nobody waits for a lease.
func TestDelegatesTakeTurns(t *testing.T) {
	onServers(t, func(w *world) {
		rws := []*rwlock.RWLock{w.newLock()}
		for range 3 {
			rws = append(rws, w.newDelegate(delegationLease).RWLock)
		}
		require.Less(w, w.takeTurns(60, rws...), 10*time.Second, "nobody waits for the end of a lease")
	})
}

// D8: a waiter behind an idle delegation has it recalled, and is let in soon.
func TestWaiterHasADelegationReturned(t *testing.T) {
	onServers(t, func(w *world) {
		idle, other := w.newDelegate(delegationLease), w.newDelegate(delegationLease)
		for i, mode := range bothModes {
			name := fmt.Sprint("n", mode)
			idle.getsDelegated(w, mode, name)
			start := time.Now()
			unlock(w, take(w, newOwner(), other.RWLock, write, name))
			require.Less(w, time.Since(start), 5*time.Second, "a third of the lease is ten seconds")
			idle.next(w, i+1, rwlock.EventReturned)
		}
	})
}

// D10: after a loss of the server's data, the holds under a delegation are lost by its next renewal.
// ForceUnlock reaches those who have a subscription at once: holds under delegations, and others. Whoever
// holds the lock while the server loses its data, and another locks it, learns of that from Unlock.
func TestHoldsUnderADelegationAreLost(t *testing.T) {
	onServers(t, func(w *world) {
		brief := w.newDelegate(3 * time.Second)
		brief.getsDelegated(w, write, "brief")
		long := w.newDelegate(10*time.Minute, rwlock.WithLease(time.Hour))
		long.getsDelegated(w, write, "long")
		forces := func(rw *rwlock.RWLock, name string) func() {
			return func() { require.NoError(w, rw.ForceUnlock(w.Context(), name)) }
		}
		for _, c := range []struct {
			name string
			rw   *rwlock.RWLock
			lose func()
		}{
			{"long", long.RWLock, forces(w.newLock(), "long")},
			{"plain", long.RWLock, forces(long.RWLock, "plain")},
			{"brief", brief.RWLock, w.removeKeys},
		} {
			h := take(w, newOwner(), c.rw, write, c.name)
			c.lose()
			w.isLost(h)
		}
		for _, mode := range bothModes { // Unlock tells of what nobody has noticed yet
			name := fmt.Sprint("n", mode)
			long.getsDelegated(w, mode, name)
			h := take(w, newOwner(), long.RWLock, mode, name)
			w.removeKeys()
			unlock(w, take(w, newOwner(), w.newLock(), write, name))
			require.ErrorIs(w, h.Unlock(w.Context()), rwlock.ErrLost)
		}
	})
}

// A try that meets only an idle delegation gets the lock, as if it were free. It is refused soon if somebody
// holds the lock under the delegation.
func TestTryMeetsADelegation(t *testing.T) {
	onServers(t, func(w *world) {
		d, other := w.newDelegate(delegationLease), w.newLock()
		for _, mode := range bothModes {
			name := fmt.Sprint("n", mode)
			d.getsDelegated(w, mode, name)
			h, err := other.TryLock(w.Context(), name)
			require.NoError(w, err)
			unlock(w, h)

			name = fmt.Sprint("m", mode)
			d.getsDelegated(w, mode, name)
			h = take(w, newOwner(), d.RWLock, mode, name)
			for range 3 {
				start := time.Now()
				require.ErrorIs(w, errOf(other.TryLock(w.Context(), name)), rwlock.ErrLocked)
				require.Less(w, time.Since(start), 4*time.Second, "it was not refused before its time was over")
			}
			unlock(w, h)
			h, err = other.TryLock(w.Context(), name)
			require.NoError(w, err)
			unlock(w, h)
		}
	})
}

// Close and Shutdown return what is delegated: others get it at once.
func TestCloseReturnsDelegations(t *testing.T) {
	onServers(t, func(w *world) {
		other := w.newLock()
		for i, end := range []func(*rwlock.RWLock) error{
			(*rwlock.RWLock).Close, func(rw *rwlock.RWLock) error { return rw.Shutdown(w.Context()) }} {
			d := w.newDelegate(delegationLease)
			for k := range 10 {
				d.getsDelegated(w, write, fmt.Sprint(i, k))
			}
			require.NoError(w, end(d.RWLock))
			for k := range 10 {
				h, err := other.TryLock(w.Context(), fmt.Sprint(i, k))
				require.NoError(w, err)
				unlock(w, h)
			}
		}
	})
}

// Re-entry, downgrade and the errors of misuse are under a delegation what they are without.
func TestOwnersUnderADelegation(t *testing.T) {
	onServers(t, func(w *world) {
		d := w.newDelegate(delegationLease)
		d.getsDelegated(w, write, "n")
		h := take(w, newOwner(), d.RWLock, write, "n")
		again, reads := take(w, h.Context(), d.RWLock, write, "n"), take(w, h.Context(), d.RWLock, read, "n")
		require.Equal(w, h.Token(), again.Token())
		unlock(w, h)
		var blocked *rwlock.BlockedError
		require.ErrorAs(w, errOf(d.TryRLock(newOwner(), "n")), &blocked)
		require.True(w, blocked.Ours)
		require.Equal(w, again.Owner(), blocked.Holder)
		unlock(w, again)
		other, err := d.TryRLock(newOwner(), "n")
		require.NoError(w, err, "the writer has downgraded")
		require.ErrorIs(w, errOf(d.Lock(other.Context(), "n")), rwlock.ErrUpgrade)
		unlock(w, reads)
		require.NoError(w, other.Extend(w.Context(), time.Minute))
		require.Greater(w, time.Until(other.Deadline()), 50*time.Second)
		unlock(w, other)
		require.ErrorIs(w, other.Unlock(w.Context()), rwlock.ErrNotHeld)
	})
}

// Inspect says what is delegated, in any process.
func TestInspectShowsDelegations(t *testing.T) {
	onServers(t, func(w *world) {
		d := w.newDelegate(delegationLease, rwlock.WithLabel("its label"))
		d.getsDelegated(w, write, "n")
		holders := inspect(w, w.newLock(), "n").Holders
		require.Len(w, holders, 1)
		require.True(w, holders[0].Delegated)
		require.Equal(w, write, holders[0].Mode)
		require.Equal(w, "its label", holders[0].Label)
		require.True(w, strings.HasSuffix(holders[0].Owner.String(), ":0"))

		h := take(w, newOwner(), d.RWLock, write, "n")
		again, reads := take(w, h.Context(), d.RWLock, write, "n"), take(w, h.Context(), d.RWLock, read, "n")
		ctx, cancel := context.WithCancel(newOwner())
		waiting := w.launch(ctx, d.RWLock, write, "n")
		waitQueued(w, d.RWLock, "n", 1)
		state := inspect(w, d.RWLock, "n")
		require.False(w, state.Waiters[0].Since.IsZero())
		require.Equal(w, write, state.Mode)
		require.Equal(w, h.Token(), state.Token)
		require.Len(w, state.Holders, 1)
		require.Equal(w, h.Owner(), state.Holders[0].Owner)
		require.Equal(w, write, state.Holders[0].Mode)
		require.Equal(w, 3, state.Holders[0].Count)
		require.True(w, state.Holders[0].Delegated)
		require.Equal(w, "its label", state.Holders[0].Label)
		cancel()
		require.ErrorIs(w, errOf(waiting.wait()), context.Canceled)
		unlock(w, reads, again, h)
	})
}

// A delegation whose lease would be longer than that of holds has that of holds: a crash costs no more. One
// that is too short, or of a quorum, is refused.
func TestLeaseOfADelegation(t *testing.T) {
	onServers(t, func(w *world) {
		d := w.newDelegate(time.Hour, rwlock.WithLease(30*time.Second))
		d.getsDelegated(w, write, "n")
		holders := inspect(w, d.RWLock, "n").Holders
		require.Len(w, holders, 1)
		require.LessOrEqual(w, holders[0].Lease, 30*time.Second)

		client := w.dial()
		require.ErrorContains(w, errOf(rwlock.New(client, rwlock.WithDelegation(99*time.Millisecond))), "lease")
		require.Error(w, errOf(rwlock.NewQuorum([]redis.UniversalClient{client, client, client},
			rwlock.WithDelegation(time.Second))))
	})
}

// While servers fail over, or a slot moves, holds under a delegation whose lease is longer stay, tokens grow,
// and others still have the delegation recalled.
func TestDelegationsOutliveAFailover(t *testing.T) {
	testredis.Need(t)
	master := testredis.Slot("n") * 3 / 16384
	each(t, map[string]func(c *testredis.Cluster){
		"failover": func(c *testredis.Cluster) {
			c.Nodes[master].AwaitReplicas(c.Nodes[master+3])
			require.NoError(t, c.Nodes[master+3].Client().Do(t.Context(), "CLUSTER", "FAILOVER").Err())
			c.Nodes[master+3].AwaitRole("master")
		},
		"slot move": func(c *testredis.Cluster) {
			from, to := c.Nodes[master], c.Nodes[(master+1)%3]
			c.BeginMove(testredis.Slot("n"), from, to)
			time.Sleep(100 * time.Millisecond)
			c.EndMove(testredis.Slot("n"), from, to)
		},
	}, func(t *testing.T, strike func(c *testredis.Cluster)) {
		cluster := testredis.StartReplicatedCluster(t, 3)
		outlives(t, cluster.Client(), cluster.Client(), func() { strike(cluster) })
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testredis.StartSentinels(t)
		outlives(t, s.Client(), s.Client(), func() {
			s.Master.AwaitReplicas(s.Replicas...)
			s.Failover()
			s.Master.AwaitRole("slave") // what is written to it until then is lost
		})
	})
}

// outlives has a lock delegated while something happens to the servers that loses none of its data.
func outlives(t *testing.T, one, two redis.UniversalClient, strike func()) {
	const lease = 15 * time.Second
	w, d, other := &world{T: t}, delegateOn(t, one, lease), delegateOn(t, two, lease)
	d.getsDelegated(t, write, "n")
	h := take(t, newOwner(), d.RWLock, write, "n")
	strike()
	require.NoError(t, h.Context().Err())
	unlock(t, h)
	next := take(t, newOwner(), d.RWLock, write, "n")
	require.Greater(t, next.Token(), h.Token())
	waiting := w.launch(newOwner(), other.RWLock, write, "n")
	time.Sleep(time.Second)
	w.waits(waiting)
	unlock(t, next)
	last := waiting.granted()
	require.Greater(t, last.Token(), next.Token())
	unlock(t, last)
	eventually(t, func() bool { return len(d.of(rwlock.EventReturned)) > 0 }, "the return of the delegation")
}
