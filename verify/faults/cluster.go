package faults

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// clusterFaults returns what happens to processes over a cluster, and to a master of it.
func clusterFaults() []fault {
	list := slices.DeleteFunc(faults(), func(f fault) bool {
		ofProcesses := strings.HasPrefix(f.name, "SIG") || f.name == "none" || f.name == "ForceUnlock"
		return !ofProcesses || f.plan.locks != 0 || strings.Contains(f.name, "ticket")
	})
	list = append(list,
		fault{name: "a master is cut off past a lease", exact: true, inject: cuts(faultproxy.Both, 3)},
		fault{name: "a master is cut off for less than a lease", exact: true, inject: cuts(faultproxy.Both, 1)},
		fault{name: "replies of a master are dropped past a lease", exact: true,
			inject: cuts(faultproxy.Replies, 3)},
		fault{name: "connections to a master are cut", exact: true, inject: during(0, (*node).disconnect, nothing)},
		fault{name: "FLUSHALL of a master", inject: during(0, (*node).flushAll, nothing)},
		fault{name: "a slot is moved", exact: true, inject: (*rig).moveSlot},
		fault{name: "CLUSTER FAILOVER", exact: true, inject: comesBack(failsOver())},
		fault{name: "a master is killed", inject: comesBack((*rig).killMaster)},
	)
	for i, f := range list {
		list[i].plan.clusters = true
		list[i].inject = func(r *rig) {
			r.victim = r.masterOf(r.someLock())
			r.broken = []*node{r.target()}
			f.inject(r)
		}
	}
	return list
}

func (r *rig) someLock() string { return r.Names[r.rng.IntN(len(r.Names))] }

// masterOf returns the place of the master that has a lock.
func (r *rig) masterOf(name string) int {
	r.tb.Helper()
	var addr string
	r.poll(time.Minute, "the cluster has a master for the lock", func() (ok bool) {
		c := r.cluster.Client()
		defer func() { _ = c.Close() }()
		client, err := c.MasterForKey(context.Background(), name)
		if err != nil || client.Ping(context.Background()).Err() != nil {
			return false
		}
		addr = client.Options().Addr
		return true
	})
	return slices.IndexFunc(r.nodes, func(n *node) bool { return n.server.Addr() == addr })
}

// comesBack has the former master come back as a replica of the one that has taken over.
func comesBack(fails func(*rig)) func(*rig) {
	return func(r *rig) {
		r.lossy(func() { fails(r) })
		former := r.target()
		if former.admin.Ping(context.Background()).Err() != nil {
			former.server.Restart()
		}
		former.server.AwaitRole("slave")
		r.replica().server.AwaitReplicas(former.server)
	}
}

// moveSlot moves the slot of a lock to another master.
func (r *rig) moveSlot() {
	r.tb.Helper()
	name := r.someLock()
	from := r.nodes[r.masterOf(name)]
	to := from
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
