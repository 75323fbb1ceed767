package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A plan is how a mint is set up. Its config says what all workers have in common.
type plan struct {
	config
	procs   int      // worker processes; 0 for 4
	servers int      // 0 for 1; several are a quorum
	cluster bool     // instead of servers, a cluster of three masters with a replica each
	sides   int      // proxies before each server, to break what some of the workers see; 0 for 1
	args    []string // of the servers
	names   int      // locks; 0 for 2
	clock   bool     // the rig sets the servers' clocks
}

// usual is the lease of a plan that names none. One per cent of it, and 2 ms, is what a holder keeps away
// from its end.
const usual = 1500 * time.Millisecond

// A mint is one server or several, proxies in front of them, a bank, and worker processes that move money
// there, all at work.
type mint struct {
	*rig
	*node   // the first
	nodes   []*node
	cluster *testredis.Cluster
	plan    plan
	lease   time.Duration
	bank    *bank.Server
	witness *rwlock.RWLock
	names   []string
	broken  []*node // by the fault in flight
}

// newMint starts everything; it ends with the test.
func newMint(tb testing.TB, p plan) *mint {
	tb.Helper()
	for _, d := range []struct {
		of        *int
		otherwise int
	}{{&p.procs, 4}, {&p.names, 2}, {&p.Reads, 50}, {&p.servers, 1}, {&p.sides, 1}} {
		if *d.of == 0 {
			*d.of = d.otherwise
		}
	}
	m := &mint{rig: newRig(tb, p.Seed), plan: p, lease: usual}
	dir, err := os.MkdirTemp("", "rig") // a socket's path has to be short
	m.must(err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	var direct []redis.UniversalClient
	if p.cluster {
		m.cluster = testredis.StartReplicatedCluster(tb, masters)
		for _, s := range m.cluster.Nodes {
			m.nodes = append(m.nodes, m.reach(&node{mint: m, server: s}))
		}
		direct = append(direct, m.cluster.Client())
	}
	for range p.servers {
		if !p.cluster {
			n := m.serve(dir)
			m.nodes = append(m.nodes, n)
			direct = append(direct, n.server.Client())
		}
	}
	m.node, m.broken = m.nodes[0], m.nodes[:1]
	m.plan.Bank = filepath.Join(dir, "s")
	m.bank, err = bank.Serve(m.plan.Bank)
	m.must(err)
	tb.Cleanup(m.bank.Close)
	m.witness, err = over(direct, rwlock.WithLease(m.lease))
	m.must(err)
	tb.Cleanup(func() { _ = m.witness.Close() })
	for i := range p.names {
		name := fmt.Sprint("lock ", i)
		if p.cluster {
			name = m.cluster.On(i%masters, name)
		}
		m.names = append(m.names, name)
	}
	for range p.procs {
		m.spawn()
	}
	return m
}

// spawn starts a worker.
func (m *mint) spawn() *process {
	m.tb.Helper()
	c, id := m.plan.config, m.Processes+1
	c.Names, c.Lease, c.Hold, c.Wait = m.names, m.lease, m.lease/75, 8*m.lease
	c.Owners, c.First = 3, 3*id
	c.Seed += uint64(id)
	c.Process, c.Cluster, c.Via = id, m.plan.cluster, map[string]string{}
	for _, n := range m.nodes {
		proxy := n.proxies[id%m.plan.sides].Addr()
		c.Addrs, c.Via[n.server.Addr()] = append(c.Addrs, proxy), proxy
	}
	return m.start(c)
}

// client returns what a worker of one side has, closed when the test ends.
func (m *mint) client(side int) *rwlock.RWLock {
	m.tb.Helper()
	var clients []redis.UniversalClient
	for _, n := range m.nodes {
		clients = append(clients, n.proxies[side].Client())
	}
	rw, err := over(clients, rwlock.WithLease(m.lease))
	m.must(err)
	m.tb.Cleanup(func() { _ = rw.Close() })
	return rw
}

// some returns n of the servers, at random.
func (m *mint) some(n int) []*node {
	nodes := slices.Clone(m.nodes)
	m.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes[:n]
}

// work lets the workers get n more holds.
func (m *mint) work(n int) {
	m.tb.Helper()
	m.mu.Lock()
	n += m.Acquired
	m.mu.Unlock()
	m.await(30*time.Second+20*m.lease, "the workers work", func() bool { return m.Acquired >= n })
}

// progress waits until someone has got each lock again, and returns how long that took. A lock that is
// delegated may be used by one process only: after a lease, it is enough that nobody waits for it.
func (m *mint) progress(within time.Duration) time.Duration {
	m.tb.Helper()
	start := time.Now()
	return m.await(within, "every lock is had again", func() bool {
		return !slices.ContainsFunc(m.names, func(name string) bool {
			rests := m.plan.Delegate > 0 && time.Since(start) > m.lease && !m.wanted(name)
			return m.last[name].Before(start) && !rests
		})
	})
}

// wanted reports whether a process that runs waits for a lock. It is called with mu held.
func (m *mint) wanted(name string) bool {
	for k, e := range m.asked {
		if p := m.procs[k[0]-1]; e.Name == name && !p.killed && p.stops.IsZero() {
			return true
		}
	}
	return false
}

// endWorkers ends the workers in good order.
func (m *mint) endWorkers() { m.end(30*time.Second + 20*m.lease) }

// finish ends the workers, checks the locks, the money and the history, and returns the summary.
func (m *mint) finish() summary {
	m.tb.Helper()
	m.endWorkers()
	ctx := context.Background()
	for _, name := range m.names {
		start := time.Now()
		h, err := m.witness.Lock(ctx, name, rwlock.MaxWait(m.lease+time.Second))
		if err != nil {
			m.breach("nobody uses %q, and yet after %v: %v", name, time.Since(start), err)
		} else if err := h.Unlock(ctx); err != nil {
			m.breach("unlocking %q: %v", name, err)
		}
	}
	for _, n := range m.nodes {
		it := n.admin.Scan(ctx, 0, "rwlock:*", 1000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			if ttl, err := n.admin.PTTL(ctx, key).Result(); err == nil && ttl == -1 && key != mark {
				m.breach("key %q has no time to live", key)
			}
		}
	}
	m.check()
	return m.summary
}

// mark is the key by which a server of a quorum knows whether it has lost its data.
const mark = "rwlock:mark"

// check has porcupine look at the history, and takes stock of the money. The workers must have ended.
func (m *mint) check() {
	events, _ := m.seen()
	m.known.Delegation = m.plan.Delegate
	ops, broken, unsure := history.Assemble(events, m.known)
	m.Broken, m.Unsure = append(m.Broken, broken...), unsure
	if err := history.Check(ops); err != nil {
		m.Broken = append(m.Broken, err.Error())
	}
	m.HistoryOps += len(ops)
	m.Fenced, m.Unfenced = m.bank.Counts()
}

// A role is a place that a process can have in a lock.
type role int

// The roles.
const (
	holder role = iota
	writeHolder
	lastReader
	firstWaiter
	middleWaiter
)

// freeze stops a process that has the role, and returns it and the lock.
func (m *mint) freeze(role role) (*process, string) {
	m.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		name := m.names[m.rng.IntN(len(m.names))]
		p := m.who(ctx, name, role)
		if p == nil {
			continue
		}
		p.stop()
		if m.who(ctx, name, role) == p {
			return p, name
		}
		p.cont()
	}
	m.tb.Fatalf("nobody has role %d", role)
	return nil, ""
}

func (m *mint) who(ctx context.Context, name string, role role) *process {
	s, err := m.witness.Inspect(ctx, name)
	if err != nil {
		return nil
	}
	owner := ""
	switch {
	case role == holder && len(s.Holders) > 0, role == writeHolder && s.Mode == rwlock.Write,
		role == lastReader && s.Mode == rwlock.Read && len(s.Holders) == 1:
		owner = s.Holders[0].Owner.String()
	case role == firstWaiter && len(s.Waiters) > 0:
		owner = s.Waiters[0].Owner.String()
	case role == middleWaiter && len(s.Waiters) > 2:
		owner = s.Waiters[len(s.Waiters)/2].Owner.String()
	}
	uuid, _, _ := strings.Cut(owner, ":")
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.byUUID[uuid]; p != nil && !p.killed {
		return p
	}
	return nil
}

// holds reports whether the process has the lock on the server.
func (m *mint) holds(p *process, name string) bool {
	s, err := m.witness.Inspect(context.Background(), name)
	return err == nil && slices.ContainsFunc(s.Holders, func(h rwlock.Holder) bool {
		return strings.HasPrefix(h.Owner.String(), p.uuid)
	})
}

// A node is a server and what the rig breaks it with.
type node struct {
	mint    *mint
	server  *testredis.Server
	proxies []*faultproxy.Proxy // in front of the server: each is used by some of the workers
	admin   *redis.Client       // goes to the server directly
	clock   *clock.Clock        // nil if it is the machine's
}

// serve starts a server that keeps what else it needs in dir.
func (m *mint) serve(dir string) *node {
	m.tb.Helper()
	n := &node{mint: m}
	conf := testredis.Config{Args: append(testredis.WithDebug(), m.plan.args...)}
	if m.plan.clock {
		dir = filepath.Join(dir, fmt.Sprint("clock", len(m.nodes)))
		m.must(os.Mkdir(dir, 0o700))
		var err error
		n.clock, err = clock.New(dir)
		m.must(err)
		conf.Env = n.clock.Env
	}
	n.server = testredis.StartWith(m.tb, conf)
	return m.reach(n)
}

// reach puts proxies before a server.
func (m *mint) reach(n *node) *node {
	m.tb.Helper()
	for range m.plan.sides {
		n.proxies = append(n.proxies, faultproxy.New(m.tb, n.server.Addr()))
	}
	n.admin = n.server.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	return n
}

// do sends a command to the server.
func (n *node) do(args ...any) {
	n.mint.tb.Helper()
	n.mint.must(n.admin.Do(context.Background(), args...).Err())
}

// loses runs do, and notes that the server loses data, or time, meanwhile. One of several that vote may lose
// its data: the others make up for it.
func (n *node) loses(do func()) {
	if len(n.mint.nodes) == 1 || n.mint.cluster != nil {
		n.mint.lossy(do)
		return
	}
	do()
}

// cut holds back what goes through the proxies in these directions, until it is called again.
func (n *node) cut(dirs faultproxy.Direction) {
	for _, p := range n.proxies {
		p.Blackhole(dirs)
	}
}

// delay has everything arrive d later, each way.
func (n *node) delay(d time.Duration) {
	for _, p := range n.proxies {
		p.Latency(d)
	}
}

// flushAll removes the server's data.
func (n *node) flushAll() {
	n.mint.tb.Helper()
	n.loses(func() { n.do("FLUSHALL") })
}

// kill kills the server. If it is to lose its data, nothing is left of what it has persisted.
func (n *node) kill(lossy bool) {
	n.mint.tb.Helper()
	if !lossy {
		n.server.Kill()
		return
	}
	n.loses(func() {
		n.server.Kill()
		n.server.Erase()
	})
}

// restart kills the server and starts it again.
func (n *node) restart(lossy bool) {
	n.mint.tb.Helper()
	n.kill(lossy)
	n.server.Restart()
}

// step moves the server's clock. Forward, it ends every lease early; back, it ends none.
func (n *node) step(d time.Duration) {
	n.mint.tb.Helper()
	var at time.Time
	move := func() {
		n.mint.must(n.clock.Move(d))
		var err error
		at, err = n.admin.Time(context.Background()).Result()
		n.mint.must(err)
	}
	if d > 0 {
		n.loses(move)
	} else {
		move()
	}
	if off := time.Until(at) - n.clock.Offset(); off.Abs() > 5*time.Second {
		n.mint.tb.Fatalf("the server's clock is off by %v", off)
	}
}

// limit sets how much memory the server may use, in bytes; 0 for as much as it likes.
func (n *node) limit(bytes string) { n.do("CONFIG", "SET", "maxmemory", bytes) }
