package tests

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// While a node is frozen, locks on other nodes are as fast as ever, many of them too, and their holds are
// renewed.
func TestFrozenNodeHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	for _, sort := range []string{"plain", "wrapped"} {
		// What waits for the frozen node waits for long.
		client := cluster.Client(func(o *redis.ClusterOptions) { o.ReadTimeout = 2 * hang })
		c := redis.UniversalClient(client)
		if sort == "wrapped" {
			c = struct{ redis.UniversalClient }{client}
		}
		rw := newLockOn(t, c, rwlock.WithLease(10*time.Second))
		var held []*rwlock.Hold
		for i := range 60 {
			held = append(held, take(t, newOwner(), rw, bothModes[i%2],
				cluster.On(1+i%2, fmt.Sprint(sort, " held", i))))
		}
		cluster.Nodes[0].Pause()
		frozen := time.Now()
		stuck, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				_, err := rw.Lock(rwlock.WithOwner(stuck, rwlock.NewOwner()),
					cluster.On(0, fmt.Sprint(sort, " stuck", i)))
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		var slowest time.Duration
		renewed := func(h *rwlock.Hold) bool { return h.Deadline().After(frozen.Add(10 * time.Second)) }
		for i := 0; slices.ContainsFunc(held, func(h *rwlock.Hold) bool { return !renewed(h) }); i++ {
			name := cluster.On(1+i%2, fmt.Sprint(sort, " free", i))
			start := time.Now()
			unlock(t, take(t, newOwner(), rw, bothModes[i%2], name))
			slowest = max(slowest, time.Since(start))
		}
		t.Logf("the slowest pair took %v", slowest)
		require.Less(t, slowest, hang)
		cancel()
		wg.Wait()
		cluster.Nodes[0].Resume()
		unlock(t, held...)
	}
}

// Inspect shows a lock at a healthy node without its holder's label while the node that has the label is
// frozen.
func TestInspectWithoutALabelOutOfReach(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	patient := func(o *redis.ClusterOptions) { o.ReadTimeout = 2 * hang }
	rw := newLockOn(t, cluster.Client(patient))
	labels := func() int {
		keys, err := cluster.Nodes[0].Client().Keys(t.Context(), "rwlock:label:*").Result()
		require.NoError(t, err)
		return len(keys)
	}
	name := cluster.On(1, "name")
	state := func() rwlock.State { return inspect(t, rw, name) }
	for n := labels(); n == 0; n = labels() {
		h := take(t, newOwner(), newLockOn(t, cluster.Client(patient)), read, name)
		eventually(t, func() bool { return state().Holders[0].Label != "" }, "a label")
		if labels() == 0 {
			unlock(t, h)
		}
	}
	cluster.Nodes[0].Pause()
	defer cluster.Nodes[0].Resume()
	start := time.Now()
	require.Len(t, state().Holders, 1)
	require.Empty(t, state().Holders[0].Label)
	require.Less(t, time.Since(start), hang)
}

// Close does not wait for a master that was replaced while nothing was in flight to it, though the client has
// not heard of that: here the one that has the RWLock's label.
func TestCloseAfterAFailover(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartReplicatedCluster(t, 3, "--cluster-require-full-coverage", "no")
	slow := func(o *redis.ClusterOptions) { o.DialerRetryTimeout = 300 * time.Millisecond }
	var there *rwlock.RWLock // whose label is at the first master
	for there == nil {
		before := cluster.Nodes[0].Client().DBSize(t.Context()).Val()
		rw := newLockOn(t, cluster.Client(slow))
		unlock(t, take(t, newOwner(), rw, write, cluster.On(1, "name")))
		if cluster.Nodes[0].Client().DBSize(t.Context()).Val() > before {
			there = rw
		}
	}
	cluster.Nodes[0].Kill()
	cluster.Nodes[3].AwaitRole("master")
	require.NoError(t, there.Close())
}

// A movingSlot is one that moves from a node of a cluster to another.
type movingSlot struct {
	cluster  *testredis.Cluster
	tag      string // a name in the slot
	number   int
	from, to *testredis.Server
}

func newMovingSlot(t *testing.T) movingSlot {
	testredis.Need(t)
	return newMovingSlotOf(t, testredis.StartCluster(t, 3))
}

func newMovingSlotOf(t *testing.T, cluster *testredis.Cluster) movingSlot {
	tag := cluster.On(0, t.Name())
	return movingSlot{cluster, tag, testredis.Slot(tag), cluster.Nodes[0], cluster.Nodes[1]}
}

// lock returns an RWLock with all its locks in the slot, since its prefix has a hash tag.
func (s movingSlot) lock(t *testing.T, lease time.Duration, opts ...rwlock.Option) *rwlock.RWLock {
	opts = append(opts, rwlock.WithPrefix("{"+s.tag+"}"), rwlock.WithLease(lease))
	return newLockOn(t, s.cluster.Client(), opts...)
}

func (s movingSlot) begin()              { s.cluster.BeginMove(s.number, s.from, s.to) }
func (s movingSlot) move(keys ...string) { s.cluster.MoveKeys(s.number, s.from, s.to, keys...) }
func (s movingSlot) end()                { s.cluster.EndMove(s.number, s.from, s.to) }

// While a slot is half moved, some of whose keys are on one node and some at another, locks in it are taken,
// renewed and released, wherever their hashes are; a lock that others wait for stays on the node where all of
// its keys are.
func TestHalfMovedSlot(t *testing.T) {
	t.Parallel()
	w, slot := &world{T: t}, newMovingSlot(t)
	rw := slot.lock(t, 9*time.Second)
	name := func(what string, m rwlock.Mode) string { return what + " for " + m.String() }
	key := func(name string) string { return "{" + slot.tag + "}:{" + name + "}" }
	var held []*rwlock.Hold
	for _, m := range bothModes {
		for _, what := range []string{"used", "used and moved"} {
			unlock(t, take(t, newOwner(), rw, m, name(what, m)))
		}
		for _, what := range []string{"held", "held and moved", "waited for"} {
			held = append(held, take(t, newOwner(), rw, m, name(what, m)))
		}
	}
	waiting := w.enqueue(newOwner(), rw, write, name("waited for", write))

	slot.begin()
	moved := time.Now()
	for _, m := range bothModes {
		slot.move(key(name("used and moved", m)), key(name("held and moved", m)))
	}
	for _, m := range bothModes {
		for _, what := range []string{"new", "used", "used and moved"} {
			h := take(t, newOwner(), rw, m, name(what, m))
			require.Equal(t, m, inspect(t, rw, h.Name()).Mode)
			unlock(t, take(t, h.Context(), rw, m, h.Name()), h)
		}
	}
	for _, h := range held {
		eventually(t, func() bool { return h.Deadline().After(moved.Add(9 * time.Second)) }, "a renewal of %q",
			h.Name())
	}
	unlock(t, held...)
	unlock(t, waiting.granted())
	slot.end()
	for _, h := range held {
		unlock(t, take(t, newOwner(), rw, write, h.Name()))
	}
}

// While a slot moves, its node refuses a script that looks for a key which is gone. The last reader and the
// last waiter leave a lock nevertheless, all of whose keys were there, and the last reader can be handed on.
func TestLastOneLeavesALockThatIsToMove(t *testing.T) {
	t.Parallel()
	w, slot := &world{T: t}, newMovingSlot(t)
	rw := slot.lock(t, time.Minute)
	readers := func(name string) []*rwlock.Hold {
		return []*rwlock.Hold{take(t, newOwner(), rw, read, name), take(t, newOwner(), rw, read, name)}
	}
	left, forced, stays := readers("left"), readers("forced"), readers("stays")
	next, afterForce := w.enqueue(newOwner(), rw, write, "left"), w.enqueue(newOwner(), rw, write, "forced")
	ctx, giveUp := context.WithCancel(newOwner())
	gaveUp := w.enqueue(ctx, rw, write, "stays")
	owner := newOwner()
	both := []*rwlock.Hold{take(t, owner, rw, write, "both"), take(t, owner, rw, read, "both")}
	afterBoth := w.enqueue(newOwner(), rw, write, "both")
	handsOn := map[string]*rwlock.Hold{}
	for _, name := range []string{"detached", "attached"} {
		list := readers(name)
		handsOn[name] = list[0]
		for _, mode := range []rwlock.Mode{write, read} {
			w.enqueue(newOwner(), rw, mode, name).releases()
		}
		unlock(t, list[1])
	}
	ticket := detach(w, handsOn["attached"], time.Minute)

	slot.begin()
	unlock(t, left...)
	unlock(t, next.granted())
	giveUp()
	require.ErrorIs(t, errOf(gaveUp.wait()), context.Canceled)
	unlock(t, stays...)
	require.NoError(t, rw.ForceUnlock(t.Context(), "forced"))
	for _, h := range forced {
		w.isLost(h)
	}
	unlock(t, afterForce.granted())
	unlock(t, both[1], both[0])
	unlock(t, afterBoth.granted())
	attached, err := rw.Attach(t.Context(), ticket)
	require.NoError(t, err)
	unlock(t, attached)
	require.NoError(t, rw.Discard(t.Context(), detach(w, handsOn["detached"], time.Minute)))
	slot.move()
	slot.end()
	for name := range handsOn {
		waitFree(t, rw, name)
	}
}

// While a slot moves, replicas confirm what either node writes: those of the node itself.
func TestReplicasConfirmWhileASlotMoves(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	slot := newMovingSlotOf(t, testredis.StartReplicatedCluster(t, 3, "--cluster-node-timeout", "60000"))
	rw := slot.lock(t, time.Minute, rwlock.WithReplicas(1, hang))
	for _, m := range bothModes {
		stays, moves := take(t, newOwner(), rw, m, "stays"), take(t, newOwner(), rw, m, "moves")
		slot.begin()
		next := take(t, newOwner(), rw, m, "next")
		unlock(t, stays, take(t, newOwner(), rw, m, "passes"))
		slot.move()
		unlock(t, moves, take(t, newOwner(), rw, m, "moved"))
		slot.end()
		unlock(t, next, take(t, newOwner(), rw, m, "ended"))
		slot.from, slot.to = slot.to, slot.from
	}
}

// A slot whose owner is told that nothing is being moved, while keys are on another node, as redis-cli
// --cluster fix does for a moment, has its locks free: what was moved is out of reach. Their holders are
// notified at the next renewal, and a fence tells them from the next ones.
func TestLockThatAMoveHasLeftBehind(t *testing.T) {
	t.Parallel()
	slot := newMovingSlot(t)
	rw, other := slot.lock(t, 9*time.Second), slot.lock(t, 9*time.Second)
	h := take(t, newOwner(), rw, write, "name")
	slot.begin()
	slot.move()
	require.NoError(t, slot.from.Client().Do(t.Context(), "CLUSTER", "SETSLOT", slot.number, "STABLE").Err())
	next := take(t, newOwner(), other, write, "name")
	require.Greater(t, next.Token(), h.Token())
	require.True(t, (&world{T: t}).isLost(h).Before(h.Deadline()), "a renewal did not notice")
	require.NoError(t, next.Context().Err())
	unlock(t, next)
}

// When the node of a cluster that a subscription is at goes away, is frozen, or is removed from the cluster
// and goes on answering, waiters hear of their grants again soon, from another node, and sooner than by a
// heartbeat.
func TestSubscriptionMovesToAnotherNode(t *testing.T) {
	testredis.Need(t)
	faults := map[string]func(c *testredis.Cluster, s *testredis.Server){
		"killed": func(_ *testredis.Cluster, s *testredis.Server) { s.Kill() },
		"frozen": func(_ *testredis.Cluster, s *testredis.Server) { s.Pause() },
		"removed": func(c *testredis.Cluster, s *testredis.Server) {
			ctx := context.Background()
			id := s.ID()
			require.NoError(t, s.Client().FlushAll(ctx).Err())
			require.NoError(t, s.Client().ClusterResetHard(ctx).Err())
			for _, other := range c.Nodes {
				if other != s {
					require.NoError(t, other.Client().ClusterForget(ctx, id).Err())
				}
			}
		},
	}
	each(t, faults, func(t *testing.T, fault func(c *testredis.Cluster, s *testredis.Server)) {
		cluster := testredis.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
		const lease = 4 * time.Minute
		holder, waiter := onCluster(t, cluster, rwlock.WithLease(lease)),
			onCluster(t, cluster, rwlock.WithLease(lease))
		at := subscribed(t, cluster, holder, waiter)
		fault(cluster, cluster.Nodes[at])
		healthy := cluster.On((at+1)%3, "healthy")
		var took []time.Duration
		for range 4 {
			took = append(took, handover(t, holder, waiter, healthy))
		}
		t.Logf("handovers took %v", took)
		require.Less(t, slices.Max(took), lease/renewAfter-time.Second, "when a heartbeat would come")
	})
}

// The message of a grant may be lost with the master that sent it, though the grant has reached the replica
// that takes over. Waiters do not wait for their heartbeats then: they ask again once they know of the new
// master, wherever they subscribe.
func TestWaitersAskAgainAfterAFailover(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartReplicatedCluster(t, 3)
	const lease = 4 * time.Minute
	w := &world{T: t}
	holder, waiter := onCluster(t, cluster, rwlock.WithLease(lease)),
		onCluster(t, cluster, rwlock.WithLease(lease))
	at := subscribed(t, cluster, holder, waiter)
	shard := (at + 1) % 3
	name := cluster.On(shard, "name")
	h := take(t, newOwner(), holder, write, name)
	next := w.enqueue(newOwner(), waiter, write, name)
	// so that there is no message
	require.NoError(t, cluster.Nodes[shard].Client().Do(t.Context(), "ACL", "SETUSER", "default", "resetchannels").Err())
	unlock(t, h)
	start := time.Now()
	cluster.Nodes[shard+3].TakeOver()
	unlock(t, next.granted())
	require.Less(t, next.at.Sub(start), lease/renewAfter-time.Second, "when a heartbeat would come")
}

// onCluster returns an RWLock whose Close may fail: a request to a node that is gone may still be on its way.
func onCluster(t *testing.T, cluster *testredis.Cluster, opts ...rwlock.Option) *rwlock.RWLock {
	t.Helper()
	rw, err := rwlock.New(cluster.Client(), append([]rwlock.Option{rwlock.WithLogger(logger(t))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rw.Close() })
	return rw
}

// subscribed hands a lock over to the waiter, and returns the place of the master at which it subscribes.
func subscribed(t *testing.T, cluster *testredis.Cluster, holder, waiter *rwlock.RWLock) (at int) {
	t.Helper()
	handover(t, holder, waiter, cluster.On(0, "first"))
	eventually(t, func() bool {
		at = slices.IndexFunc(cluster.Nodes, func(s *testredis.Server) bool {
			return len(channels(t, s.Client(), "rwlock")) > 0
		})
		return at >= 0
	}, "a subscription")
	return at
}

// handover hands a lock over, and returns how long that took.
func handover(t *testing.T, holder, waiter *rwlock.RWLock, name string) time.Duration {
	t.Helper()
	h := take(t, newOwner(), holder, write, name)
	next := (&world{T: t}).enqueue(newOwner(), waiter, write, name)
	start := time.Now()
	unlock(t, h)
	unlock(t, next.granted())
	return next.at.Sub(start)
}

// renewAfter is the part of a lease after which a waiter's heartbeat comes.
const renewAfter = 3

// A master that sentinels replace goes on for ten seconds, and answers, but tells of no grant any more. The
// subscription moves to the new one long before the sentinels close it, or a heartbeat brings a grant, and
// waiters ask again.
func TestSubscriptionFollowsTheSentinels(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	const lease = time.Minute
	s := testredis.StartSentinels(t)
	w := &world{T: t}
	rw := newLockOn(t, s.Client(), rwlock.WithLease(lease))
	waiter := newLockOn(t, s.Client(), rwlock.WithLease(lease))
	handover(t, rw, waiter, "first")
	eventually(t, func() bool { // a busy machine may need several tries
		name := rand.Text()
		h := take(t, newOwner(), rw, write, name)
		next := w.enqueue(newOwner(), waiter, write, name)
		s.Master.AwaitReplicas(s.Replicas...)
		master := s.Failover()
		eventually(t, func() bool {
			name := rand.Text()
			if h, err := rw.TryLock(t.Context(), name); err == nil {
				_ = h.Unlock(t.Context()) // it may have been lost with the former master
			}
			return master.Client().Exists(t.Context(), "rwlock:{"+name+"}").Val() == 1
		}, "a request to the new master")
		start := time.Now()
		unlock(t, h)
		unlock(t, next.granted())
		require.Len(t, channels(t, master.Client(), "rwlock"), 1)
		s.Master, s.Replicas = master, slices.DeleteFunc(append(s.Replicas, s.Master),
			func(r *testredis.Server) bool { return r == master })
		return next.at.Sub(start) < 7*time.Second
	}, "a subscription that has moved in time")
}

// Where a name is handed over again and again, its node alone is told of it: no message goes to the others,
// wherever its slot moves to. Servers before Redis 7 have no messages for one node, and tell all.
func TestHandoversCostTheOtherNodesNothing(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartCluster(t, 3)
	lease := rwlock.WithLease(4 * time.Minute)
	one, other := onCluster(t, cluster, lease), onCluster(t, cluster, lease)
	name := cluster.On(0, "name")
	next := func() {
		handover(t, one, other, name)
		one, other = other, one
	}
	published := func() (n int) {
		for _, s := range cluster.Nodes {
			info, err := s.Client().InfoMap(t.Context(), "commandstats").Result()
			require.NoError(t, err)
			var calls int
			if _, err := fmt.Sscanf(info["Commandstats"]["cmdstat_publish"], "calls=%d", &calls); err == nil {
				n += calls
			}
		}
		return n
	}
	sharded := func(what string) {
		eventually(t, func() bool {
			before := published()
			for range 6 {
				next()
			}
			if cluster.Nodes[0].Before7() {
				return published() >= before+6
			}
			return published() == before
		}, "%s: no message to all nodes, or, before Redis 7, one for each", what)
	}
	sharded("at first")
	slot := testredis.Slot(name)
	from, to := cluster.Nodes[0], cluster.Nodes[1]
	cluster.BeginMove(slot, from, to)
	cluster.EndMove(slot, from, to)
	sharded("after the slot has moved")
}
