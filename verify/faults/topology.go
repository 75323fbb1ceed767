package faults

import (
	"context"
	"fmt"
	"net"
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
	kept   = 4                // how many locks of each mode and node a process holds all the time
	frozen = 10 * time.Second // for how long a master is
	half   = 20 * time.Second // for how long a slot is half moved
	// lag is how much of the last writes a replica may miss that takes over without being told how far the
	// master is.
	lag = 2 * time.Second
)

// topologyFaults returns what happens to servers of a cluster, or to those that sentinels watch, while
// workers have jobs.
func topologyFaults() []fault {
	list := []fault{
		{name: "nothing", inject: func(r *rig) { r.strikeNow(func() {}) }},
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
			r.strikeNow(func() {})
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
			r.manage("fix", r.cluster.Nodes[0].Addr())
		}},
		{name: "master killed, replica's clock 20 s ahead", plan: plan{ahead: 20 * time.Second}, loses: lag,
			inject: (*rig).killMaster},
		{name: "master killed, replica's clock 20 s behind", plan: plan{ahead: -20 * time.Second}, loses: lag,
			inject: (*rig).killSyncedMaster},
		{name: "master killed, replica missed the last second", loses: lag, inject: func(r *rig) {
			r.replica().server.Pause() // it does not read while its link is cut
			r.target().do("CLIENT", "KILL", "TYPE", "replica")
			time.Sleep(time.Second)
			r.strikeNow(r.target().server.Kill)
			r.replica().server.Resume()
			r.takeOver()
		}},
		{name: "SENTINEL FAILOVER", plan: plan{watched: true}, loses: lag, inject: func(r *rig) {
			r.strikeNow(func() {
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
			f.plan.Prefix = "{" + movable("tag") + "}"
		}
	}
	return list
}

func failsOver(how ...any) func(*rig) {
	return func(r *rig) {
		r.strikeNow(func() { r.replica().do(append([]any{"CLUSTER", "FAILOVER"}, how...)...) })
		r.takeOver()
	}
}

func (r *rig) killMaster() {
	r.strikeNow(r.target().server.Kill)
	r.takeOver()
}

// killSyncedMaster kills a master when its replica has all writes. A replica whose clock is behind, and that
// missed a grant, could give a smaller token.
func (r *rig) killSyncedMaster() {
	r.strikeNow(func() {
		r.target().do("CLIENT", "PAUSE", time.Minute.Milliseconds(), "WRITE")
		r.target().server.AwaitReplicas(r.replica().server)
		r.target().server.Kill()
	})
	r.takeOver()
}

func (r *rig) freezeMaster() {
	r.strikeNow(r.target().server.Pause)
	r.takeOver()
	time.Sleep(time.Until(r.strike.at.Add(frozen)))
	r.target().server.Resume()
}

// removes makes the victim a replica, and has it removed.
func removes(how func(*rig, *node)) func(*rig) {
	return func(r *rig) {
		r.strikeNow(func() {
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
	r.strikeNow(func() {
		r.cluster.BeginMove(slot, from, to)
		keys, err := r.admin.ClusterGetKeysInSlot(context.Background(), slot, 1000).Result()
		r.must(err)
		for i := 0; i < len(keys); i += 2 {
			r.cluster.MoveKeys(slot, from, to, keys[i])
		}
	})
	time.Sleep(time.Until(r.strike.at.Add(half)))
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
	for i, p := range r.procs { // the first holds what is waited for
		jobs := r.jobsOf(i)
		p.tell(order{Jobs: jobs})
		for _, j := range jobs {
			r.poll(time.Minute, "all waiters wait for "+j.Name, func() bool {
				s, err := r.witness.Inspect(context.Background(), j.Name)
				return j.Role != queue || err == nil && len(s.Waiters) == (i+1)*perQueue
			})
		}
	}
	time.Sleep(2 * time.Second)
	r.inject(f)
	s := r.strike
	// Until then every hold whose lease is not renewed is lost, and handovers have been at work again for a
	// while.
	time.Sleep(max(time.Until(s.at.Add(lease+time.Second)), time.Until(s.over.Add(settled+3*time.Second))))
	r.await(15*time.Second, "all waiters had their turn", func() bool { return r.served == waiters })
	r.endWorkers()
	s.again = r.replaced()
	if f.loses > 0 {
		loss := history.Span{From: s.at.Add(-f.loses).UnixNano(), To: s.over.Add(settled).UnixNano()}
		if s.again {
			loss.To = now()
		}
		r.known.Losses, r.known.Forks = []history.Span{loss}, true
	}
	return r.judge(f)
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

// jobsOf returns what a process does.
func (r *rig) jobsOf(process int) (jobs []job) {
	shard := r.victim
	if r.of.subscription {
		shard = (r.victim + 1) % masters // nothing happens to the locks that are looked at
	}
	other := (shard + 1) % masters
	if other == r.victim {
		other = (other + 1) % masters
	}
	own := fmt.Sprint(" of ", process)
	add := func(at int, role, what string, n int, reads, writes string) {
		for i := range n {
			jobs = append(jobs,
				job{role, r.name(at, fmt.Sprint(what, " ", i, " for reading", reads)), false},
				job{role, r.name(at, fmt.Sprint(what, " ", i, " for writing", writes)), true})
		}
	}
	add(shard, held, "held", kept, "", own)
	add(shard, queue, "queue", 1, "", "")
	add(shard, probe, "probe", 2, own, own)
	add(shard, handover, "turns", 1, "", "")
	if r.clusters && !r.of.oneSlot {
		add(other, held, "held there", kept, "", own)
		add(other, elsewhere, "turns there", 1, "", "")
	}
	return jobs
}

// name returns a name whose lock is on a master; if at the first, among the slots that may be moved.
func (r *rig) name(at int, base string) string {
	switch {
	case r.watched || r.of.oneSlot:
		return base
	case at == 0:
		return movable(base)
	}
	return r.cluster.On(at, base)
}

func movable(base string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint(base, "-", i); testredis.Slot(name) < moving {
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

// target returns the master to which something happens, and replica its replica. They change places when the
// replica takes over and the master comes back.
func (r *rig) target() *node  { return r.nodes[r.victim] }
func (r *rig) replica() *node { return r.nodes[(r.victim+masters)%len(r.nodes)] }

// takeOver waits until a replica is the master, for the other nodes too: then the fault is mended.
func (r *rig) takeOver() {
	r.tb.Helper()
	if r.watched {
		r.promoted = r.sentinels.AwaitFailover()
	} else {
		r.replica().server.AwaitRole("master")
	}
	r.strike.over = time.Now()
}

// manage has redis-cli manage the cluster. When that fixes a slot, it has the slot's owner forget where keys
// are before it has brought them back, and stops where a lock was taken on the owner meanwhile.
func (r *rig) manage(args ...string) {
	r.tb.Helper()
	out, err := exec.Command("redis-cli", append([]string{"--cluster"}, args...)...).CombinedOutput()
	switch {
	case err != nil && args[0] == "fix" && strings.Contains(string(out), "Target key exists"):
		r.tb.Log("redis-cli --cluster fix stopped at a key that both nodes have")
		r.strike.torn = true
	case err != nil:
		r.tb.Fatalf("redis-cli --cluster %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
