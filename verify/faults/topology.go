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

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

const (
	processes = 2
	waiters   = 2 * processes * perQueue
	// moving is how many slots of the first master are moved by the faults that move slots: those of its
	// locks.
	moving = 1000
	// The locks that are looked at, and others. If the fault happens to the node that a process has subscribed
	// at, they are on other nodes.
	focus, elsewhere = "focus", "elsewhere"
	kept             = 4                // how many locks of each mode and place a process holds all the time
	frozen           = 10 * time.Second // for how long a master is
	half             = 20 * time.Second // for how long a slot is half moved
	// lag is how much of the last writes a replica may miss that takes over without being told how far the
	// master is.
	lag = 2 * time.Second
)

// topologyFaults returns what happens to servers of a cluster, or to those that sentinels watch, while
// workers have jobs.
func topologyFaults() []fault {
	list := []fault{
		{name: "nothing", inject: func(r *rig) { r.strike(func() {}) }},
		{name: "CLUSTER FAILOVER", inject: failsOver()},
		{name: "CLUSTER FAILOVER FORCE", loses: lag, inject: failsOver("FORCE")},
		{name: "CLUSTER FAILOVER TAKEOVER", loses: lag, inject: failsOver("TAKEOVER")},
		{name: "master killed", loses: lag, inject: (*rig).killMaster},
		{name: "master frozen for 10 s", loses: lag, inject: (*rig).freezeMaster},
		{name: "subscription's node killed", subscription: true, inject: (*rig).killMaster},
		{name: "subscription's node frozen for 10 s", subscription: true, inject: (*rig).freezeMaster},
		{name: "subscription's node failed over", subscription: true, inject: failsOver()},
		{name: "subscription's node removed, del-node", subscription: true,
			inject: removes(func(r *rig, n *node) { r.manage("del-node", r.replica().server.Addr(), n.server.ID()) })},
		{name: "subscription's node removed, RESET + FORGET", subscription: true, inject: removes((*rig).forget)},
		{name: "reshard under load", inject: func(r *rig) {
			r.strike(func() {})
			nodes := r.cluster.Nodes
			r.manage("reshard", nodes[0].Addr(), "--cluster-from", nodes[0].ID(), "--cluster-to", nodes[1].ID(),
				"--cluster-slots", strconv.Itoa(moving), "--cluster-yes")
		}},
		{name: "slot half moved for 20 s, finished", oneSlot: true, inject: func(r *rig) {
			slot := r.halfMove()
			r.cluster.EndMove(slot, r.cluster.Nodes[0], r.cluster.Nodes[1])
		}},
		{name: "slot half moved for 20 s, --cluster fix", oneSlot: true, inject: func(r *rig) {
			r.halfMove()
			r.fix()
		}},
		{name: "master killed, replica's clock 20 s ahead", plan: plan{ahead: 20 * time.Second}, loses: lag,
			inject: (*rig).killMaster},
		{name: "master killed, replica's clock 20 s behind", plan: plan{ahead: -20 * time.Second}, loses: lag,
			inject: (*rig).killMaster},
		{name: "master killed, replica missed the last second", loses: lag, inject: func(r *rig) {
			r.replica().server.Pause() // it does not read while its link is cut
			r.target().do("CLIENT", "KILL", "TYPE", "replica")
			time.Sleep(time.Second)
			r.strike(r.target().server.Kill)
			r.replica().server.Resume()
			r.takeOver()
		}},
		{name: "SENTINEL FAILOVER", plan: plan{watched: true}, loses: lag, inject: func(r *rig) {
			r.strike(func() {
				sentinel := r.sentinels.Sentinels[0].Client()
				r.must(sentinel.Do(context.Background(), "SENTINEL", "FAILOVER", testredis.MasterName).Err())
			})
			r.takeOver()
		}},
		{name: "Sentinel: master killed", plan: plan{watched: true}, loses: lag, inject: (*rig).killMaster},
		{name: "Sentinel: master frozen for 10 s", plan: plan{watched: true}, loses: lag,
			inject: (*rig).freezeMaster},
	}
	for i := range list {
		f := &list[i]
		f.plan.jobs, f.plan.procs, f.plan.clusters = true, processes, !f.plan.watched
		if f.plan.clusters {
			f.plan.args = []string{"--cluster-require-full-coverage", "no"}
		}
		if f.oneSlot {
			f.plan.Prefix = "{" + nameIn(0, moving, "tag") + "}"
		}
	}
	return list
}

func failsOver(how ...any) func(*rig) {
	return func(r *rig) {
		r.strike(func() { r.replica().do(append([]any{"CLUSTER", "FAILOVER"}, how...)...) })
		r.takeOver()
	}
}

func (r *rig) killMaster() {
	r.strike(r.target().server.Kill)
	r.takeOver()
}

func (r *rig) freezeMaster() {
	r.strike(r.target().server.Pause)
	r.takeOver()
	time.Sleep(time.Until(r.strikes[0].at.Add(frozen)))
	r.target().server.Resume()
}

// removes makes the victim a replica, and has it removed.
func removes(how func(*rig, *node)) func(*rig) {
	return func(r *rig) {
		r.strike(func() {
			r.replica().do("CLUSTER", "FAILOVER")
			r.replica().server.AwaitRole("master")
			r.target().server.AwaitRole("slave")
			how(r, r.target())
		})
	}
}

func (r *rig) forget(n *node) {
	id := n.server.ID()
	n.do("CLUSTER", "RESET", "HARD")
	for _, other := range r.nodes {
		if other != n {
			other.do("CLUSTER", "FORGET", id)
		}
	}
}

// halfMove moves every other key of the slot that has all locks, and waits.
func (r *rig) halfMove() (slot int) {
	slot = testredis.Slot(r.Prefix[1 : len(r.Prefix)-1])
	from, to := r.cluster.Nodes[0], r.cluster.Nodes[1]
	r.strike(func() {
		r.cluster.BeginMove(slot, from, to)
		keys, err := r.admin.ClusterGetKeysInSlot(context.Background(), slot, 1000).Result()
		r.must(err)
		for i := 0; i < len(keys); i += 2 {
			r.cluster.MoveKeys(slot, from, to, keys[i])
		}
	})
	time.Sleep(time.Until(r.strikes[0].at.Add(half)))
	return slot
}

// runJobs has the fault happen once, to servers and processes of its own.
func (f fault) runJobs(tb testing.TB, lease time.Duration) result {
	tb.Helper()
	f.plan.Lease = lease
	r := newRig(tb, f.plan)
	r.of = f
	if f.subscription {
		r.victim = r.subscribed()
	}
	places, queues := map[string]string{}, []string(nil)
	for i, p := range r.procs {
		var o order
		for place, jobs := range r.places(i) {
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
		r.poll(time.Minute, "all waiters wait for "+name, func() bool {
			s, err := r.witness.Inspect(context.Background(), name)
			return err == nil && len(s.Waiters) == processes*perQueue
		})
	}
	time.Sleep(2 * time.Second)
	f.inject(r)
	s := &r.strikes[0]
	if s.over.IsZero() {
		r.struckOver()
	}
	// Until then every hold whose lease is not renewed is lost, and handovers have been at work again for a
	// while.
	time.Sleep(max(time.Until(s.at.Add(lease+time.Second)), time.Until(s.over.Add(settled+3*time.Second))))
	for late := time.Now().Add(15 * time.Second); r.served() < waiters && time.Now().Before(late); {
		time.Sleep(50 * time.Millisecond)
	}
	r.endWorkers()
	s.again = r.replaced()
	r.measure(r.seen(), r.strikes)
	r.time(r.seen(), *s, places)
	return r.result
}

// replaced reports whether a sentinel has another master than the one that was promoted.
func (r *rig) replaced() bool {
	return r.promoted != nil && slices.ContainsFunc(r.sentinels.Sentinels, func(s *testredis.Server) bool {
		addr, err := s.Client().Do(context.Background(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME",
			testredis.MasterName).StringSlice()
		r.must(err)
		return net.JoinHostPort(addr[0], addr[1]) != r.promoted.Addr()
	})
}

// places returns what a process does where.
func (r *rig) places(process int) map[string][]job {
	shard := r.victim
	if r.of.subscription {
		shard = (r.victim + 1) % masters // nothing happens to the locks that are looked at
	}
	other := (shard + 1) % masters
	if other == r.victim {
		other = (other + 1) % masters
	}
	own := fmt.Sprint(" of ", process)
	all := map[string][]job{}
	add := func(place string, at int, role, what string, n int, reads, writes string) {
		for i := range n {
			all[place] = append(all[place],
				job{role, r.name(at, fmt.Sprint(what, " ", i, " for reading", reads)), false},
				job{role, r.name(at, fmt.Sprint(what, " ", i, " for writing", writes)), true})
		}
	}
	add(focus, shard, held, "held", kept, "", own)
	add(focus, shard, queue, "queue", 1, "", "")
	add(focus, shard, probe, "probe", 2, own, own)
	add(focus, shard, handover, "turns", 1, "", "")
	if r.clusters && !r.of.oneSlot {
		add(elsewhere, other, held, "held there", kept, "", own)
		add(elsewhere, other, handover, "turns there", 1, "", "")
	}
	return all
}

// name returns a name whose lock is on a master; if at the first, among the slots that may be moved.
func (r *rig) name(at int, base string) string {
	switch {
	case r.watched || r.of.oneSlot:
		return base
	case at == 0:
		return nameIn(0, moving, base)
	}
	return r.cluster.On(at, base)
}

func nameIn(from, to int, base string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint(base, "-", i); testredis.Slot(name) >= from && testredis.Slot(name) < to {
			return name
		}
	}
}

// subscribed returns the place of a master that a process has subscribed at.
func (r *rig) subscribed() int {
	i := slices.IndexFunc(r.nodes[:masters], func(n *node) bool {
		channels, err := n.admin.PubSubChannels(context.Background(), r.Prefix+":wake:*").Result()
		r.must(err)
		return len(channels) > 0
	})
	if i < 0 {
		r.tb.Fatal("no process has subscribed")
	}
	return i
}

// served returns how many waiters have had their turn.
func (r *rig) served() (n int) {
	for _, c := range history.Calls(r.seen()) {
		if c.Role == queue {
			n++
		}
	}
	return n
}

// strike makes the fault begin. The processes release what others wait for at that moment.
func (r *rig) strike(fn func()) {
	r.strikesNow(r.of.name)
	fn()
	r.strikesNow("")
	for _, p := range r.procs {
		p.tell(order{Struck: true})
	}
}

// target and replica return the nodes of the shard to which something happens.
func (r *rig) target() *node  { return r.nodes[r.victim] }
func (r *rig) replica() *node { return r.nodes[masters+r.victim] }

// takeOver waits until a replica is the master, for the other nodes too: then the fault is mended.
func (r *rig) takeOver() {
	r.tb.Helper()
	if r.watched {
		r.promoted = r.sentinels.AwaitFailover()
	} else {
		r.replica().server.AwaitRole("master")
	}
	r.struckOver()
}

// manage has redis-cli manage the cluster.
func (r *rig) manage(args ...string) {
	r.tb.Helper()
	if out, err := redisCLI(args...); err != nil {
		r.tb.Fatalf("redis-cli --cluster %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// fix has redis-cli repair the cluster. It has the owner of a slot forget where keys are before it has
// brought them back, and stops where a lock was taken at the owner meanwhile.
func (r *rig) fix() {
	r.tb.Helper()
	out, err := redisCLI("fix", r.cluster.Nodes[0].Addr())
	switch {
	case err != nil && strings.Contains(out, "Target key exists"):
		fmt.Fprintln(os.Stderr, "redis-cli --cluster fix stopped at a key that both nodes have")
	case err != nil:
		r.tb.Fatalf("redis-cli --cluster fix: %v: %s", err, out)
	}
}

func redisCLI(args ...string) (output string, err error) {
	out, err := exec.Command("redis-cli", append([]string{"--cluster"}, args...)...).CombinedOutput()
	return string(out), err
}
