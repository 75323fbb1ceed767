package topology

import (
	"context"
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
)

// A Fault is something that happens to servers.
type Fault struct {
	Name string

	Sentinel     bool          // to a master that sentinels watch; or else to one of a cluster
	Focus        string        // the locks that are looked at: those of the victim, or of others
	Subscription bool          // the victim is a node that a process has subscribed at
	OneSlot      bool          // all locks are in one slot
	Clock        time.Duration // by how much that of the replica is ahead
	Loses        time.Duration // writes of so long before it may be lost; or a master goes on that was replaced

	// Inject does it. It calls strike once, and mended when the servers have mended the fault.
	Inject func(r *rig)
}

// freeze is for how long a frozen master is, which then resumes.
const freeze = 10 * time.Second

// half is for how long a slot is half moved.
const half = 20 * time.Second

// lag is how much of the last writes a replica may miss that takes over without being told how far the master
// is.
const lag = 2 * time.Second

// Needs returns why a fault cannot be had on this machine, or "".
func (f Fault) Needs() string {
	if f.Clock != 0 {
		return clock.Missing()
	}
	return ""
}

// All returns every fault.
func All() []Fault {
	list := []Fault{
		{Name: "nothing", Inject: func(r *rig) { r.strike(func() {}); r.mended() }},
		{Name: "CLUSTER FAILOVER", Inject: func(r *rig) { r.failOver() }},
		{Name: "CLUSTER FAILOVER FORCE", Loses: lag, Inject: func(r *rig) { r.failOver("FORCE") }},
		{Name: "CLUSTER FAILOVER TAKEOVER", Loses: lag, Inject: func(r *rig) { r.failOver("TAKEOVER") }},
		{Name: "master killed", Loses: lag, Inject: (*rig).kill},
		{Name: "master frozen for 10 s", Loses: lag, Inject: (*rig).freeze},
		{Name: "subscription's node killed", Focus: others, Subscription: true, Inject: (*rig).kill},
		{Name: "subscription's node frozen for 10 s", Focus: others, Subscription: true, Inject: (*rig).freeze},
		{Name: "subscription's node failed over", Focus: others, Subscription: true, Inject: func(r *rig) { r.failOver() }},
		{Name: "subscription's node removed, del-node", Focus: others, Subscription: true, Inject: func(r *rig) { r.remove(r.deleteNode) }},
		{Name: "subscription's node removed, RESET + FORGET", Focus: others, Subscription: true, Inject: func(r *rig) { r.remove(r.forget) }},
		{Name: "reshard under load", Inject: func(r *rig) {
			r.strike(func() {})
			nodes := r.cluster.Nodes
			r.manage("reshard", nodes[0].Addr(), "--cluster-from", nodes[0].ID(), "--cluster-to", nodes[1].ID(),
				"--cluster-slots", strconv.Itoa(moving), "--cluster-yes")
			r.mended()
		}},
		{Name: "slot half moved for 20 s, finished", OneSlot: true, Inject: func(r *rig) {
			slot := r.halfMove()
			r.cluster.EndMove(slot, r.cluster.Nodes[0], r.cluster.Nodes[1])
			r.mended()
		}},
		{Name: "slot half moved for 20 s, --cluster fix", OneSlot: true, Inject: func(r *rig) {
			r.halfMove()
			r.fix()
			r.mended()
		}},
		{Name: "master killed, replica's clock 20 s ahead", Loses: lag, Clock: 20 * time.Second, Inject: (*rig).kill},
		{Name: "master killed, replica's clock 20 s behind", Loses: lag, Clock: -20 * time.Second, Inject: (*rig).kill},
		{Name: "master killed, replica missed the last second", Loses: lag, Inject: (*rig).killAhead},
		{Name: "SENTINEL FAILOVER", Sentinel: true, Loses: lag, Inject: func(r *rig) {
			r.strike(func() { r.do(r.sentinels.Sentinels[0], "SENTINEL", "FAILOVER", testredis.MasterName) })
			r.takeOver()
		}},
		{Name: "Sentinel: master killed", Sentinel: true, Loses: lag, Inject: (*rig).kill},
		{Name: "Sentinel: master frozen for 10 s", Sentinel: true, Loses: lag, Inject: (*rig).freeze},
	}
	for i := range list {
		if list[i].Focus == "" {
			list[i].Focus = victim
		}
	}
	return list
}

func (r *rig) failOver(how ...any) {
	r.strike(func() { r.do(r.replica(), append([]any{"CLUSTER", "FAILOVER"}, how...)...) })
	r.takeOver()
}

func (r *rig) kill() {
	r.strike(r.master().Kill)
	r.takeOver()
}

func (r *rig) freeze() {
	r.strike(r.master().Pause)
	r.takeOver()
	r.wait(time.Until(r.at.Add(freeze)))
	r.master().Resume()
}

// killAhead kills a master whose replica has missed its last writes: the link was cut while the replica did
// not read.
func (r *rig) killAhead() {
	r.replica().Pause()
	r.do(r.master(), "CLIENT", "KILL", "TYPE", "replica")
	r.wait(time.Second)
	r.strike(r.master().Kill)
	r.replica().Resume()
	r.takeOver()
}

// remove makes the victim a replica, and has it removed.
func (r *rig) remove(how func(s *testredis.Server)) {
	r.strike(func() {
		r.do(r.replica(), "CLUSTER", "FAILOVER")
		r.replica().AwaitRole("master")
		r.master().AwaitRole("slave")
		how(r.master())
	})
	r.mended()
}

func (r *rig) deleteNode(s *testredis.Server) { r.manage("del-node", r.replica().Addr(), s.ID()) }

func (r *rig) forget(s *testredis.Server) {
	id := s.ID()
	r.do(s, "CLUSTER", "RESET", "HARD")
	for _, other := range r.cluster.Nodes {
		if other != s {
			r.do(other, "CLUSTER", "FORGET", id)
		}
	}
}

// halfMove moves every other key of the slot that has all locks, and waits.
func (r *rig) halfMove() (slot int) {
	slot = testredis.Slot(r.prefix[1 : len(r.prefix)-1])
	from, to := r.cluster.Nodes[0], r.cluster.Nodes[1]
	r.strike(func() {
		r.cluster.BeginMove(slot, from, to)
		keys, err := from.Client().ClusterGetKeysInSlot(context.Background(), slot, 1000).Result()
		r.must(err)
		for i := 0; i < len(keys); i += 2 {
			r.cluster.MoveKeys(slot, from, to, keys[i])
		}
	})
	r.wait(time.Until(r.at.Add(half)))
	return slot
}
