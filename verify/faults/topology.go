package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A nodesFault is something that happens to servers of a cluster, or to those that sentinels watch.
type nodesFault struct {
	name string

	sentinel     bool          // to a master that sentinels watch; or else to one of a cluster
	focus        string        // the locks that are looked at: those of the victim, or of others
	subscription bool          // the victim is a node that a process has subscribed at
	oneSlot      bool          // all locks are in one slot
	clock        time.Duration // by how much that of the replica is ahead
	loses        time.Duration // writes of so long before it may be lost; or a master goes on that was replaced

	// inject does it. It calls strike once, and heals when the servers have mended the fault.
	inject func(d *deployment)
}

const (
	processes = 2
	waiters   = 2 * processes * perQueue
	masters   = 3
	// moving is how many slots of the first master are moved by the faults that move slots: those of its
	// locks.
	moving = 1000
	// victim and others are shards; focus and elsewhere are places. Where nothing happens to the focus, its
	// shard is one of the others.
	victim, others   = "victim", "others"
	focus, elsewhere = "focus", "elsewhere"
	kept             = 4                // how many locks of each mode and place a process holds all the time
	frozen           = 10 * time.Second // for how long a master is
	half             = 20 * time.Second // for how long a slot is half moved
	// lag is how much of the last writes a replica may miss that takes over without being told how far the
	// master is.
	lag = 2 * time.Second
)

// nodesFaults returns every fault.
func nodesFaults() []nodesFault {
	sub := func(name string, inject func(*deployment)) nodesFault {
		return nodesFault{name: "subscription's node " + name, focus: others, subscription: true, inject: inject}
	}
	list := []nodesFault{
		{name: "nothing", inject: func(d *deployment) { d.strike(func() {}); d.heals() }},
		{name: "CLUSTER FAILOVER", inject: failsOver()},
		{name: "CLUSTER FAILOVER FORCE", loses: lag, inject: failsOver("FORCE")},
		{name: "CLUSTER FAILOVER TAKEOVER", loses: lag, inject: failsOver("TAKEOVER")},
		{name: "master killed", loses: lag, inject: (*deployment).kill},
		{name: "master frozen for 10 s", loses: lag, inject: (*deployment).freeze},
		sub("killed", (*deployment).kill), sub("frozen for 10 s", (*deployment).freeze),
		sub("failed over", failsOver()),
		sub("removed, del-node", func(d *deployment) {
			d.remove(func(s *testredis.Server) { d.manage("del-node", d.replica().Addr(), s.ID()) })
		}),
		sub("removed, RESET + FORGET", func(d *deployment) { d.remove(d.forget) }),
		{name: "reshard under load", inject: func(d *deployment) {
			d.strike(func() {})
			nodes := d.cluster.Nodes
			d.manage("reshard", nodes[0].Addr(), "--cluster-from", nodes[0].ID(), "--cluster-to", nodes[1].ID(),
				"--cluster-slots", strconv.Itoa(moving), "--cluster-yes")
			d.heals()
		}},
		{name: "slot half moved for 20 s, finished", oneSlot: true, inject: func(d *deployment) {
			slot := d.halfMove()
			d.cluster.EndMove(slot, d.cluster.Nodes[0], d.cluster.Nodes[1])
			d.heals()
		}},
		{name: "slot half moved for 20 s, --cluster fix", oneSlot: true, inject: func(d *deployment) {
			d.halfMove()
			d.fix()
			d.heals()
		}},
		{name: "master killed, replica's clock 20 s ahead", loses: lag, clock: 20 * time.Second,
			inject: (*deployment).kill},
		{name: "master killed, replica's clock 20 s behind", loses: lag, clock: -20 * time.Second,
			inject: (*deployment).kill},
		{name: "master killed, replica missed the last second", loses: lag, inject: (*deployment).killAhead},
		{name: "SENTINEL FAILOVER", sentinel: true, loses: lag, inject: func(d *deployment) {
			d.strike(func() { d.do(d.sentinels.Sentinels[0], "SENTINEL", "FAILOVER", testredis.MasterName) })
			d.takeOver()
		}},
		{name: "Sentinel: master killed", sentinel: true, loses: lag, inject: (*deployment).kill},
		{name: "Sentinel: master frozen for 10 s", sentinel: true, loses: lag, inject: (*deployment).freeze},
	}
	for i := range list {
		if list[i].focus == "" {
			list[i].focus = victim
		}
	}
	return list
}

func failsOver(how ...any) func(*deployment) {
	return func(d *deployment) {
		d.strike(func() { d.do(d.replica(), append([]any{"CLUSTER", "FAILOVER"}, how...)...) })
		d.takeOver()
	}
}

func (d *deployment) kill() {
	d.strike(d.master().Kill)
	d.takeOver()
}

func (d *deployment) freeze() {
	d.strike(d.master().Pause)
	d.takeOver()
	time.Sleep(time.Until(d.at.Add(frozen)))
	d.master().Resume()
}

// killAhead kills a master whose replica has missed its last writes: the link was cut while the replica did
// not read.
func (d *deployment) killAhead() {
	d.replica().Pause()
	d.do(d.master(), "CLIENT", "KILL", "TYPE", "replica")
	time.Sleep(time.Second)
	d.strike(d.master().Kill)
	d.replica().Resume()
	d.takeOver()
}

// remove makes the victim a replica, and has it removed.
func (d *deployment) remove(how func(s *testredis.Server)) {
	d.strike(func() {
		d.do(d.replica(), "CLUSTER", "FAILOVER")
		d.replica().AwaitRole("master")
		d.master().AwaitRole("slave")
		how(d.master())
	})
	d.heals()
}

func (d *deployment) forget(s *testredis.Server) {
	id := s.ID()
	d.do(s, "CLUSTER", "RESET", "HARD")
	for _, other := range d.cluster.Nodes {
		if other != s {
			d.do(other, "CLUSTER", "FORGET", id)
		}
	}
}

// halfMove moves every other key of the slot that has all locks, and waits.
func (d *deployment) halfMove() (slot int) {
	slot = testredis.Slot(d.prefix[1 : len(d.prefix)-1])
	from, to := d.cluster.Nodes[0], d.cluster.Nodes[1]
	d.strike(func() {
		d.cluster.BeginMove(slot, from, to)
		keys, err := from.Client().ClusterGetKeysInSlot(context.Background(), slot, 1000).Result()
		d.must(err)
		for i := 0; i < len(keys); i += 2 {
			d.cluster.MoveKeys(slot, from, to, keys[i])
		}
	})
	time.Sleep(time.Until(d.at.Add(half)))
	return slot
}

// A deployment is servers, and processes that use them.
type deployment struct {
	*rig
	struck
	cluster   *testredis.Cluster
	sentinels *testredis.Sentinels
	victim    int // the place among the masters of the one to which something happens
	prefix    string
	witness   *rwlock.RWLock
	promoted  *testredis.Server // by sentinels, by themselves; or nil
}

// run has the fault happen once, to servers and processes of its own.
func (f nodesFault) run(tb testing.TB, lease time.Duration) nodesResult {
	tb.Helper()
	d := &deployment{rig: newRig(tb, 1), struck: struck{fault: f, lease: lease}, prefix: "rwlock"}
	c := d.serve()
	for c.Process = range processes {
		d.start(c)
	}
	if f.subscription {
		d.victim = d.subscribed()
	}
	places, queues := map[string]string{}, []string(nil)
	for i, p := range d.procs {
		var o order
		for place, jobs := range d.places(i) {
			for _, j := range jobs {
				if places[j.Name] = place; j.Role == queue && i == 0 {
					queues = append(queues, j.Name)
				}
			}
			o.Jobs = append(o.Jobs, jobs...)
		}
		p.tell(o)
	}
	for _, name := range queues {
		d.poll(time.Minute, "all waiters wait for "+name, func() bool {
			s, err := d.witness.Inspect(context.Background(), name)
			return err == nil && len(s.Waiters) == processes*perQueue
		})
	}
	time.Sleep(2 * time.Second)
	f.inject(d)
	if d.mended.IsZero() {
		tb.Fatal("the fault is not mended")
	}
	// Until then every hold whose lease is not renewed is lost, and handovers have been at work again for a
	// while.
	end := d.at.Add(lease + time.Second)
	if e := d.mended.Add(settled + 3*time.Second); e.After(end) {
		end = e
	}
	time.Sleep(time.Until(end))
	for late := time.Now().Add(15 * time.Second); d.served() < waiters && time.Now().Before(late); {
		time.Sleep(50 * time.Millisecond)
	}
	d.end(time.Minute)
	events, _ := d.seen()
	d.again = d.replaced()
	return judge(events, places, d.struck, d.Broken)
}

// replaced reports whether a sentinel has another master than the one that was promoted.
func (d *deployment) replaced() bool {
	return d.promoted != nil && slices.ContainsFunc(d.sentinels.Sentinels, func(s *testredis.Server) bool {
		addr, err := s.Client().Do(context.Background(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME",
			testredis.MasterName).StringSlice()
		d.must(err)
		return net.JoinHostPort(addr[0], addr[1]) != d.promoted.Addr()
	})
}

// serve starts the servers, and returns how processes reach them.
func (d *deployment) serve() config {
	c := config{Lease: d.lease}
	if d.fault.sentinel {
		d.sentinels = testredis.StartSentinels(d.tb)
		c.Sentinel = testredis.MasterName
		for _, s := range d.sentinels.Sentinels {
			c.Addrs = append(c.Addrs, s.Addr())
		}
	} else {
		c.Cluster = true
		d.cluster = testredis.StartReplicatedClusterWith(d.tb, masters, func(node int, conf *testredis.Config) {
			conf.Args = append(conf.Args, "--cluster-require-full-coverage", "no")
			if d.fault.clock != 0 && node == masters { // the first master's replica
				ahead, err := clock.New(d.tb.TempDir())
				d.must(err)
				d.must(ahead.Move(d.fault.clock))
				conf.Env = ahead.Env
			}
		})
		for _, s := range d.cluster.Nodes {
			c.Addrs = append(c.Addrs, s.Addr())
		}
	}
	if d.fault.oneSlot {
		d.prefix = "{" + nameIn(0, moving, "tag") + "}"
	}
	c.Prefix = d.prefix
	clients := c.dial()
	d.tb.Cleanup(func() { _ = clients[0].Close() })
	var err error
	d.witness, err = over(clients, rwlock.WithPrefix(d.prefix))
	d.must(err)
	d.tb.Cleanup(func() { _ = d.witness.Close() })
	return c
}

// places returns what a process does where.
func (d *deployment) places(process int) map[string][]job {
	shard := d.victim
	if d.fault.focus == others {
		shard = (d.victim + 1) % masters
	}
	other := (shard + 1) % masters
	if other == d.victim {
		other = (other + 1) % masters
	}
	own := fmt.Sprint(" of ", process)
	all := map[string][]job{}
	add := func(place string, at int, role, what string, n int, reads, writes string) {
		for i := range n {
			all[place] = append(all[place],
				job{role, d.name(at, fmt.Sprint(what, " ", i, " for reading", reads)), false},
				job{role, d.name(at, fmt.Sprint(what, " ", i, " for writing", writes)), true})
		}
	}
	add(focus, shard, held, "held", kept, "", own)
	add(focus, shard, queue, "queue", 1, "", "")
	add(focus, shard, probe, "probe", 2, own, own)
	add(focus, shard, handover, "turns", 1, "", "")
	if d.cluster != nil && !d.fault.oneSlot {
		add(elsewhere, other, held, "held there", kept, "", own)
		add(elsewhere, other, handover, "turns there", 1, "", "")
	}
	return all
}

// name returns a name whose lock is on a master; if at the first, among the slots that may be moved.
func (d *deployment) name(at int, base string) string {
	switch {
	case d.cluster == nil || d.fault.oneSlot:
		return base
	case at == 0:
		return nameIn(0, moving, base)
	}
	return d.cluster.On(at, base)
}

func nameIn(from, to int, base string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint(base, "-", i); testredis.Slot(name) >= from && testredis.Slot(name) < to {
			return name
		}
	}
}

// subscribed returns the place of a master that a process has subscribed at.
func (d *deployment) subscribed() int {
	for i, s := range d.cluster.Nodes[:masters] {
		channels, err := s.Client().PubSubChannels(context.Background(), d.prefix+":wake:*").Result()
		d.must(err)
		if len(channels) > 0 {
			return i
		}
	}
	d.tb.Fatal("no process has subscribed")
	return 0
}

// served returns how many waiters have had their turn.
func (d *deployment) served() (n int) {
	events, _ := d.seen()
	for _, c := range history.Calls(events) {
		if c.Role == queue {
			n++
		}
	}
	return n
}

// strike makes the fault begin. The processes release what others wait for at that moment.
func (d *deployment) strike(fn func()) {
	d.at = time.Now()
	fn()
	d.begun = time.Now()
	for _, p := range d.procs {
		p.tell(order{Struck: true})
	}
}

// heals notes that the servers have mended the fault.
func (d *deployment) heals() { d.mended = time.Now() }

// master and replica return the nodes of the shard to which something happens.
func (d *deployment) master() *testredis.Server {
	if d.sentinels != nil {
		return d.sentinels.Master
	}
	return d.cluster.Nodes[d.victim]
}

func (d *deployment) replica() *testredis.Server { return d.cluster.Nodes[masters+d.victim] }

// do sends a command to a server.
func (d *deployment) do(s *testredis.Server, args ...any) {
	d.tb.Helper()
	if err := s.Client().Do(context.Background(), args...).Err(); err != nil {
		d.tb.Fatalf("%v: %v", args, err)
	}
}

// takeOver waits until the replica is the master, for the other nodes too.
func (d *deployment) takeOver() {
	d.tb.Helper()
	if d.sentinels != nil {
		d.promoted = d.sentinels.AwaitFailover()
	} else {
		d.replica().AwaitRole("master")
	}
	d.heals()
}

// manage has redis-cli manage the cluster.
func (d *deployment) manage(args ...string) {
	d.tb.Helper()
	if out, err := redisCLI(args...); err != nil {
		d.tb.Fatalf("redis-cli --cluster %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// fix has redis-cli repair the cluster. It has the owner of a slot forget where keys are before it has
// brought them back, and stops where a lock was taken at the owner meanwhile.
func (d *deployment) fix() {
	d.tb.Helper()
	out, err := redisCLI("fix", d.cluster.Nodes[0].Addr())
	switch {
	case err != nil && strings.Contains(out, "Target key exists"):
		fmt.Fprintln(os.Stderr, "redis-cli --cluster fix stopped at a key that both nodes have")
	case err != nil:
		d.tb.Fatalf("redis-cli --cluster fix: %v: %s", err, out)
	}
}

func redisCLI(args ...string) (output string, err error) {
	out, err := exec.Command("redis-cli", append([]string{"--cluster"}, args...)...).CombinedOutput()
	return string(out), err
}
