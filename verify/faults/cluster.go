package faults

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// clusterFaults returns what happens to processes over a cluster, and to the cluster.
func clusterFaults() []fault {
	var list []fault
	for _, f := range faults() {
		if (strings.HasPrefix(f.name, "SIG") || f.name == "none" || f.name == "ForceUnlock") && f.plan.locks == 0 {
			list = append(list, f)
		}
	}
	cut := func(dirs faultproxy.Direction, halves int) func(*rig) {
		return func(r *rig) {
			r.broken = []*node{r.someMaster()}
			cuts(dirs, halves)(r)
		}
	}
	list = append(list,
		fault{name: "a master is cut off past a lease", exact: true, inject: cut(faultproxy.Both, 3)},
		fault{name: "a master is cut off for less than a lease", exact: true, inject: cut(faultproxy.Both, 1)},
		fault{name: "replies of a master are dropped past a lease", exact: true, inject: cut(faultproxy.Replies, 3)},
		fault{name: "connections to a master are cut", exact: true, inject: func(r *rig) {
			r.someMaster().disconnect()
		}},
		fault{name: "FLUSHALL of a master", inject: func(r *rig) { r.someMaster().flushAll() }},
		fault{name: "a slot is moved", exact: true, inject: (*rig).moveSlot},
		fault{name: "CLUSTER FAILOVER", exact: true, inject: func(r *rig) {
			r.failover(func(_, replica *node) { replica.do("CLUSTER", "FAILOVER") })
		}},
		fault{name: "a master is killed", inject: func(r *rig) {
			r.failover(func(master, _ *node) { master.kill(false) })
		}},
	)
	for i := range list {
		list[i].plan.clusters = true
	}
	return list
}

// masterOf returns the master that has a lock.
func (r *rig) masterOf(name string) *node {
	r.tb.Helper()
	var client *redis.Client
	r.poll(time.Minute, "the cluster has a master for the lock", func() (ok bool) {
		c := r.cluster.Client()
		defer func() { _ = c.Close() }()
		var err error
		client, err = c.MasterForKey(context.Background(), name)
		return err == nil && client.Ping(context.Background()).Err() == nil
	})
	return r.nodes[slices.IndexFunc(r.nodes, func(n *node) bool {
		return n.server.Addr() == client.Options().Addr
	})]
}

// someMaster returns the master of a lock, at random.
func (r *rig) someMaster() *node {
	r.tb.Helper()
	return r.masterOf(r.Names[r.rng.IntN(len(r.Names))])
}

// failover has the replica of a master take over, and the master come back as its replica.
func (r *rig) failover(strike func(master, replica *node)) {
	r.tb.Helper()
	master := r.someMaster()
	i := slices.Index(r.nodes, master)
	replica := r.nodes[(i+masters)%len(r.nodes)]
	r.lossy(func() {
		strike(master, replica)
		replica.server.AwaitRole("master")
	})
	if master.admin.Ping(context.Background()).Err() != nil {
		master.server.Restart()
	}
	master.server.AwaitRole("slave")
	replica.server.AwaitReplicas(master.server)
}

// moveSlot moves the slot of a lock to another master.
func (r *rig) moveSlot() {
	r.tb.Helper()
	name := r.Names[r.rng.IntN(len(r.Names))]
	from, to := r.masterOf(name), r.someMaster()
	for from == to {
		to = r.nodes[r.rng.IntN(len(r.nodes))]
		if role, err := to.admin.Do(context.Background(), "ROLE").Slice(); err != nil || role[0] != "master" {
			to = from
		}
	}
	slot := testredis.Slot(name)
	r.cluster.BeginMove(slot, from.server, to.server)
	time.Sleep(r.Lease / 10)
	r.cluster.MoveKeys(slot, from.server, to.server)
	time.Sleep(r.Lease / 10)
	r.cluster.EndMove(slot, from.server, to.server)
}
