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

// delegated has locks delegated to the processes of each fault, with a lease. The locks are so many that each
// process has one which it uses most, and there is one more that all read. A lease of 0 changes nothing.
func delegated(list []fault, lease time.Duration) []fault {
	list = slices.Clone(list)
	for i := range list {
		p := &list[i].plan
		p.Delegate = lease
		if lease > 0 && p.names == 0 {
			p.names = 5
		}
	}
	return list
}

// clusterFaults returns what happens to processes over a cluster, and to the cluster.
func clusterFaults() []fault {
	var list []fault
	for _, f := range faults() {
		if (strings.HasPrefix(f.name, "SIG") || f.name == "none" || f.name == "ForceUnlock") && f.plan.names == 0 {
			list = append(list, f)
		}
	}
	cut := func(dirs faultproxy.Direction, halves int) func(*mint) {
		return func(m *mint) {
			m.broken = []*node{m.master()}
			cuts(dirs, halves)(m)
		}
	}
	list = append(list,
		fault{name: "a master is cut off past a lease", exact: true, inject: cut(faultproxy.Both, 3)},
		fault{name: "a master is cut off for less than a lease", exact: true, inject: cut(faultproxy.Both, 1)},
		fault{name: "replies of a master are dropped past a lease", exact: true, inject: cut(faultproxy.Replies, 3)},
		fault{name: "connections to a master are cut", exact: true, inject: func(m *mint) {
			m.master().proxies[0].CloseAll()
		}},
		fault{name: "FLUSHALL of a master", inject: func(m *mint) { m.master().flushAll() }},
		fault{name: "a slot is moved", exact: true, inject: (*mint).moveSlot},
		fault{name: "CLUSTER FAILOVER", exact: true, inject: func(m *mint) {
			m.failover(func(_, replica *node) { replica.do("CLUSTER", "FAILOVER") })
		}},
		fault{name: "a master is killed", inject: func(m *mint) {
			m.failover(func(master, _ *node) { master.kill(false) })
		}},
	)
	for i := range list {
		list[i].plan.cluster = true
	}
	return list
}

// masterOf returns the master that has a lock.
func (m *mint) masterOf(name string) *node {
	m.tb.Helper()
	var client *redis.Client
	m.poll(time.Minute, "the cluster has a master for the lock", func() (ok bool) {
		c := m.cluster.Client()
		defer func() { _ = c.Close() }()
		var err error
		client, err = c.MasterForKey(context.Background(), name)
		return err == nil && client.Ping(context.Background()).Err() == nil
	})
	return m.nodes[slices.IndexFunc(m.nodes, func(n *node) bool {
		return n.server.Addr() == client.Options().Addr
	})]
}

// master returns the master of a lock, at random.
func (m *mint) master() *node {
	m.tb.Helper()
	return m.masterOf(m.names[m.rng.IntN(len(m.names))])
}

// failover has the replica of a master take over, and the master come back as its replica.
func (m *mint) failover(strike func(master, replica *node)) {
	m.tb.Helper()
	master := m.master()
	i := slices.Index(m.nodes, master)
	replica := m.nodes[(i+masters)%len(m.nodes)]
	m.lossy(func() {
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
func (m *mint) moveSlot() {
	m.tb.Helper()
	name := m.names[m.rng.IntN(len(m.names))]
	from, to := m.masterOf(name), m.master()
	for from == to {
		to = m.nodes[m.rng.IntN(len(m.nodes))]
		if role, err := to.admin.Do(context.Background(), "ROLE").Slice(); err != nil || role[0] != "master" {
			to = from
		}
	}
	slot := testredis.Slot(name)
	m.cluster.BeginMove(slot, from.server, to.server)
	time.Sleep(m.lease / 10)
	m.cluster.MoveKeys(slot, from.server, to.server)
	time.Sleep(m.lease / 10)
	m.cluster.EndMove(slot, from.server, to.server)
}
