package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
)

// A Node is a server and what the rig breaks it with.
type Node struct {
	rig     *Rig
	Server  *testredis.Server
	Proxy   *faultproxy.Proxy   // the first of Proxies
	Proxies []*faultproxy.Proxy // in front of the server: each is used by some of the workers
	Admin   *redis.Client       // goes to the server directly
	clock   *clock.Clock        // nil if it is the machine's
}

// serve starts a server that keeps what else it needs in dir.
func (r *Rig) serve(dir string) *Node {
	r.tb.Helper()
	n := &Node{rig: r}
	env := r.plan.Env
	if r.plan.Clock {
		dir = filepath.Join(dir, fmt.Sprint("clock", len(r.Nodes)))
		r.must(os.Mkdir(dir, 0o700))
		var err error
		n.clock, err = clock.New(dir)
		r.must(err)
		env = append(env[:len(env):len(env)], n.clock.Env...)
	}
	n.Server = testredis.StartWith(r.tb, testredis.Config{
		Args: append([]string{"--enable-debug-command", "yes"}, r.plan.Args...), Env: env,
	})
	for range r.plan.Sides {
		n.Proxies = append(n.Proxies, faultproxy.New(r.tb, n.Server.Addr()))
	}
	n.Proxy = n.Proxies[0]
	n.Admin = n.Server.Client(patient)
	return n
}

// lossy notes that the server loses data, or time. One of several may lose its data: the others make up for
// it.
func (n *Node) lossy() {
	if len(n.rig.Nodes) == 1 {
		n.rig.Lossy()
	}
}

// Cut holds back what goes through the proxies in these directions, until it is called again.
func (n *Node) Cut(dirs faultproxy.Direction) {
	for _, p := range n.Proxies {
		p.Blackhole(dirs)
	}
}

// Delay has everything arrive d later, each way.
func (n *Node) Delay(d time.Duration) {
	for _, p := range n.Proxies {
		p.Latency(d)
	}
}

// FlushAll removes the server's data.
func (n *Node) FlushAll() {
	n.rig.tb.Helper()
	n.lossy()
	n.rig.must(n.Admin.FlushAll(context.Background()).Err())
}

// Kill kills the server. If it is to lose its data, nothing is left of what it has persisted.
func (n *Node) Kill(lossy bool) {
	n.rig.tb.Helper()
	if lossy {
		n.lossy()
	}
	n.Server.Kill()
	if lossy {
		n.Server.Erase()
		n.lossy()
	}
}

// Restart starts the server again.
func (n *Node) Restart() {
	n.rig.tb.Helper()
	n.Server.Restart()
}

// Step moves the server's clock. Forward, it ends every lease early; back, it ends none.
func (n *Node) Step(d time.Duration) {
	r := n.rig
	r.tb.Helper()
	if d > 0 {
		n.lossy()
	}
	r.must(n.clock.Move(d))
	at, err := n.Admin.Time(context.Background()).Result()
	r.must(err)
	if off := time.Until(at) - n.clock.Offset(); off.Abs() > 5*time.Second {
		r.tb.Fatalf("the server's clock is off by %v", off)
	}
	if d > 0 {
		n.lossy()
	}
}

func (n *Node) freeze(d time.Duration) {
	n.Server.Pause()
	n.rig.pass(d)
	n.Server.Resume()
}

// restart kills the server and starts it again.
func (n *Node) restart(lossy bool) {
	n.rig.tb.Helper()
	n.Kill(lossy)
	n.Restart()
	if lossy {
		n.lossy()
	}
}

// Config changes a parameter of the server.
func (n *Node) Config(name, value string) {
	n.rig.tb.Helper()
	n.rig.must(n.Admin.ConfigSet(context.Background(), name, value).Err())
}

func (n *Node) blackhole(dirs faultproxy.Direction, halves int) {
	n.Cut(dirs)
	n.rig.pass(time.Duration(halves) * n.rig.plan.Lease / 2)
	n.Cut(faultproxy.None)
}

// rule has the proxy do something to the next ten scripts.
func (n *Node) rule(act func(*faultproxy.Rule) *faultproxy.Rule) {
	n.rig.tb.Helper()
	rule := act(n.Proxy.On(faultproxy.IsCommand("EVALSHA")).Times(10).Silent())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	n.rig.must(rule.WaitHits(ctx, 3))
}

// patient has the administrator's client wait for slow answers.
func patient(o *redis.Options) { o.ReadTimeout = time.Minute }
