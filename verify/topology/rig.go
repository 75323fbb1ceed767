// Package topology has client processes work on a cluster, or on servers that sentinels watch, while
// something happens to the servers, and checks what the processes have seen.
package topology

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
)

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
)

// A rig is servers, and processes that use them.
type rig struct {
	tb        testing.TB
	fault     Fault
	lease     time.Duration
	cluster   *testredis.Cluster
	sentinels *testredis.Sentinels
	victim    int // the place among the masters of the one to which something happens
	prefix    string
	procs     []*process
	probe     *rwlock.RWLock

	at       time.Time // when the fault was about to strike
	begun    time.Time // when it had struck
	mendedAt time.Time

	mu      sync.Mutex
	records []Record
}

type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	ready  chan struct{}
	exited chan struct{}
}

// Run has the fault happen once, to servers and processes of its own.
func (f Fault) Run(tb testing.TB, lease time.Duration) Result {
	tb.Helper()
	r := &rig{tb: tb, fault: f, lease: lease, prefix: "rwlock"}
	config := r.serve()
	for i := range processes {
		config.Process = i
		r.spawn(config)
	}
	for _, p := range r.procs {
		r.await(p.ready, "a process starts")
	}
	if f.Subscription {
		r.victim = r.subscribed()
	}
	for i, p := range r.procs {
		r.tell(p, r.places(i))
	}
	r.queued()
	r.wait(2 * time.Second)
	f.Inject(r)
	if r.mendedAt.IsZero() {
		tb.Fatal("the fault is not mended")
	}
	// Until then every hold whose lease is not renewed is lost, and handovers have been at work again for a
	// while.
	end := r.at.Add(lease + time.Second)
	if e := r.mendedAt.Add(settled + 3*time.Second); e.After(end) {
		end = e
	}
	r.wait(time.Until(end))
	r.served(time.Now().Add(15 * time.Second))
	for _, p := range r.procs {
		r.tell(p, "stop")
	}
	for _, p := range r.procs {
		r.await(p.exited, "a process ends")
	}
	return judge(r.records, struck{f, lease, r.at, r.begun, r.mendedAt})
}

// serve starts the servers, and returns how processes reach them.
func (r *rig) serve() config {
	c := config{Lease: r.lease}
	if r.fault.Sentinel {
		r.sentinels = testredis.StartSentinels(r.tb)
		c.Sentinel = testredis.MasterName
		for _, s := range r.sentinels.Sentinels {
			c.Addrs = append(c.Addrs, s.Addr())
		}
	} else {
		r.cluster = testredis.StartReplicatedClusterWith(r.tb, masters, func(node int, conf *testredis.Config) {
			conf.Args = append(conf.Args, "--cluster-require-full-coverage", "no")
			if r.fault.Clock != 0 && node == masters { // the first master's replica
				ahead, err := clock.New(r.tb.TempDir())
				r.must(err)
				r.must(ahead.Move(r.fault.Clock))
				conf.Env = ahead.Env
			}
		})
		for _, s := range r.cluster.Nodes {
			c.Addrs = append(c.Addrs, s.Addr())
		}
	}
	if r.fault.OneSlot {
		r.prefix = "{" + nameIn(0, moving, "tag") + "}"
	}
	c.Prefix = r.prefix
	rdb := (&client{config: c}).dial()
	r.tb.Cleanup(func() { _ = rdb.Close() })
	var err error
	r.probe, err = rwlock.New(rdb, rwlock.WithPrefix(r.prefix))
	r.must(err)
	r.tb.Cleanup(func() { _ = r.probe.Close() })
	return c
}

// spawn starts a client process.
func (r *rig) spawn(c config) {
	self, err := os.Executable()
	r.must(err)
	text, err := json.Marshal(c)
	r.must(err)
	p := &process{cmd: exec.Command(self), ready: make(chan struct{}), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), variable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	stdout, err := p.cmd.StdoutPipe()
	r.must(err)
	p.stdin, err = p.cmd.StdinPipe()
	r.must(err)
	r.must(p.cmd.Start())
	r.procs = append(r.procs, p)
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var record Record
			if json.Unmarshal(lines.Bytes(), &record) != nil {
				continue
			}
			if record.Role == ready {
				close(p.ready)
				continue
			}
			r.mu.Lock()
			r.records = append(r.records, record)
			r.mu.Unlock()
		}
		_ = p.cmd.Wait()
	}()
	r.tb.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	})
}

func (r *rig) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) await(done <-chan struct{}, what string) {
	r.tb.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		r.tb.Fatalf("not within a minute: %s", what)
	}
}

func (r *rig) wait(d time.Duration) { time.Sleep(d) }

// tell sends a process a line.
func (r *rig) tell(p *process, what any) {
	r.tb.Helper()
	text, err := json.Marshal(what)
	r.must(err)
	_, err = p.stdin.Write(append(text, '\n'))
	r.must(err)
}

// places returns what a process does where.
func (r *rig) places(process int) map[string]place {
	shard := r.victim
	if r.fault.Focus == others {
		shard = (r.victim + 1) % masters
	}
	other := (shard + 1) % masters
	if other == r.victim {
		other = (other + 1) % masters
	}
	own := fmt.Sprint(" of ", process)
	names := func(at int, what string, n int, reads, writes string) map[rwlock.Mode][]string {
		modes := make(map[rwlock.Mode][]string)
		for i := range n {
			modes[rwlock.Read] = append(modes[rwlock.Read], r.name(at, fmt.Sprint(what, " ", i, " for reading", reads)))
			modes[rwlock.Write] = append(modes[rwlock.Write], r.name(at, fmt.Sprint(what, " ", i, " for writing", writes)))
		}
		return modes
	}
	all := map[string]place{focus: {
		held: names(shard, "held", kept, "", own), queue: names(shard, "queue", 1, "", ""),
		probe: names(shard, "probe", 2, own, own), handover: names(shard, "turns", 1, "", ""),
	}}
	if r.cluster != nil && !r.fault.OneSlot {
		all[elsewhere] = place{held: names(other, "held there", kept, "", own), handover: names(other, "turns there", 1, "", "")}
	}
	return all
}

// name returns a name whose lock is at a master; if at the first, among the slots that may be moved.
func (r *rig) name(at int, base string) string {
	if r.cluster == nil || r.fault.OneSlot {
		return base
	}
	if at == 0 {
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
	for i, s := range r.cluster.Nodes[:masters] {
		channels, err := s.Client().PubSubChannels(context.Background(), r.prefix+":wake:*").Result()
		r.must(err)
		if len(channels) > 0 {
			return i
		}
	}
	r.tb.Fatal("no process has subscribed")
	return 0
}

// queued waits until all waiters wait.
func (r *rig) queued() {
	r.tb.Helper()
	for _, names := range r.places(0)[focus][queue] {
		for end := time.Now().Add(time.Minute); ; r.wait(10 * time.Millisecond) {
			s, err := r.probe.Inspect(context.Background(), names[0])
			r.must(err)
			if len(s.Waiters) == processes*perQueue {
				break
			}
			if time.Now().After(end) {
				r.tb.Fatalf("%d waiters for %q", len(s.Waiters), names[0])
			}
		}
	}
}

// served waits, but not for ever, until all waiters have had their turn.
func (r *rig) served(end time.Time) {
	for time.Now().Before(end) {
		n := 0
		r.mu.Lock()
		for _, c := range r.records {
			if c.Role == queue {
				n++
			}
		}
		r.mu.Unlock()
		if n == waiters {
			return
		}
		r.wait(50 * time.Millisecond)
	}
}

// strike makes the fault begin. The processes release what others wait for at that moment.
func (r *rig) strike(fn func()) {
	r.at = time.Now()
	fn()
	r.begun = time.Now()
	for _, p := range r.procs {
		r.tell(p, "struck")
	}
}

// mended notes that the servers have mended the fault.
func (r *rig) mended() { r.mendedAt = time.Now() }

// master and replica return the nodes of the shard to which something happens.
func (r *rig) master() *testredis.Server {
	if r.sentinels != nil {
		return r.sentinels.Master
	}
	return r.cluster.Nodes[r.victim]
}

func (r *rig) replica() *testredis.Server { return r.cluster.Nodes[masters+r.victim] }

// do sends a command to a server.
func (r *rig) do(s *testredis.Server, args ...any) {
	r.tb.Helper()
	if err := s.Client().Do(context.Background(), args...).Err(); err != nil {
		r.tb.Fatalf("%v: %v", args, err)
	}
}

// takeOver waits until the replica is the master, for the other nodes too.
func (r *rig) takeOver() {
	r.tb.Helper()
	if r.sentinels != nil {
		r.sentinels.AwaitFailover()
		r.mended()
		return
	}
	r.replica().AwaitRole("master")
	r.mended()
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
