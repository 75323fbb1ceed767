package faults

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
)

// A node is a server and what the rig breaks it with.
type node struct {
	rig     *rig
	server  *testredis.Server
	proxies []*faultproxy.Proxy // in front of the server: each is used by some of the workers
	admin   *redis.Client       // goes to the server directly
	clock   *clock.Clock        // nil if it is the machine's
}

// serve starts the servers. It returns clients that go there directly.
func (r *rig) serve() (direct []redis.UniversalClient) {
	r.tb.Helper()
	switch {
	case r.watched:
		r.sentinels = testredis.StartSentinels(r.tb)
		r.Sentinel = testredis.MasterName
		for _, s := range r.sentinels.Sentinels {
			r.Addrs = append(r.Addrs, s.Addr())
		}
		r.reach(&node{server: r.sentinels.Master})
		direct = append(direct, r.sentinels.Client())
	case r.clusters:
		r.Cluster = true
		r.cluster = testredis.StartReplicatedClusterWith(r.tb, masters, func(i int, conf *testredis.Config) {
			conf.Args = append(conf.Args, r.args...)
			if r.ahead != 0 && i == masters { // the first master's replica
				ahead := clock.New(r.tb)
				r.must(ahead.Move(r.ahead))
				conf.Env = ahead.Env
			}
		})
		for _, s := range r.cluster.Nodes {
			r.reach(&node{server: s})
		}
		direct = append(direct, r.cluster.Client())
	default:
		for range max(r.servers, 1) {
			n := &node{}
			conf := testredis.Config{Args: append(testredis.WithDebug(), r.args...)}
			if r.plan.clock {
				n.clock = clock.New(r.tb)
				conf.Env = n.clock.Env
			}
			n.server = testredis.StartWith(r.tb, conf)
			r.reach(n)
			direct = append(direct, n.server.Client())
		}
	}
	r.node, r.broken = r.nodes[0], r.nodes[:1]
	return direct
}

// reach adds a server, and puts proxies before it.
func (r *rig) reach(n *node) {
	r.tb.Helper()
	n.rig, n.admin = r, n.server.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	for i := 0; i < r.sides && !r.jobs; i++ {
		n.proxies = append(n.proxies, faultproxy.New(r.tb, n.server.Addr()))
	}
	r.nodes = append(r.nodes, n)
}

// at returns the address at which workers of one side reach the server.
func (n *node) at(side int) string {
	if len(n.proxies) == 0 {
		return n.server.Addr()
	}
	return n.proxies[side].Addr()
}

// do sends a command to the server.
func (n *node) do(args ...any) {
	n.rig.tb.Helper()
	n.rig.must(n.admin.Do(context.Background(), args...).Err())
}

// loses runs do, and notes that the server loses data, or time, meanwhile. One of several that vote may lose
// its data: the others make up for it.
func (n *node) loses(do func()) {
	if n.rig.servers > 1 {
		do()
	} else {
		n.rig.lossy(do)
	}
}

// cut holds back what goes through the proxies in these directions, until it is called again.
func (n *node) cut(dirs faultproxy.Direction) {
	for _, p := range n.proxies {
		p.Blackhole(dirs)
	}
}

// disconnect closes all connections of workers.
func (n *node) disconnect() {
	for _, p := range n.proxies {
		p.CloseAll()
	}
}

// flushAll removes the server's data.
func (n *node) flushAll() {
	n.rig.tb.Helper()
	n.loses(func() { n.do("FLUSHALL") })
}

// What may begin on a server, and end.
func nothing(*node)   {}
func freeze(n *node)  { n.server.Pause() }
func thaw(n *node)    { n.server.Resume() }
func join(n *node)    { n.cut(faultproxy.None) }
func fill(n *node)    { n.do("CONFIG", "SET", "maxmemory", "1") }
func empty(n *node)   { n.do("CONFIG", "SET", "maxmemory", "0") }
func killed(n *node)  { n.server.Kill() }
func restart(n *node) { n.server.Restart() }

// killedEmpty kills the server, and removes what it has persisted.
func killedEmpty(n *node) {
	n.loses(func() {
		n.server.Kill()
		n.server.Erase()
	})
}

// delayed has everything arrive d later, each way.
func delayed(d time.Duration) func(*node) {
	return func(n *node) {
		for _, p := range n.proxies {
			p.Latency(d)
		}
	}
}

// stepped moves the server's clock. Forward, it ends every lease early; back, it ends none. A hold over
// several servers that had a bare majority is over then, too, as its holder finds out when it renews it.
func stepped(d time.Duration) func(*node) {
	return func(n *node) {
		n.rig.tb.Helper()
		var at time.Time
		move := func() {
			n.rig.must(n.clock.Move(d))
			var err error
			at, err = n.admin.Time(context.Background()).Result()
			n.rig.must(err)
		}
		if d > 0 {
			n.rig.lossy(move)
		} else {
			move()
		}
		if off := time.Until(at) - n.clock.Offset(); off.Abs() > 5*time.Second {
			n.rig.tb.Fatalf("the server's clock is off by %v", off)
		}
	}
}
