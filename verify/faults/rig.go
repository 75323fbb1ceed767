// Package faults injects faults into real servers and real processes while those move money under locks, and
// counts what becomes of the money.
package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// Plan is how a rig is set up.
type Plan struct {
	Procs    int      // worker processes
	Servers  int      // 0 for 1; several are a quorum
	Sides    int      // proxies before each server, to break what some of the workers see; 0 for 1
	Args     []string // of the servers
	Env      []string // of the servers
	Names    int      // locks; 0 for 2
	Careless bool     // workers go on with holds that they have lost
	Pool     int      // connections that a worker has
	Hog      bool     // something else in the worker takes all connections, every now and then
	Broken   bool     // workers use a lock without exclusion
	Clock    bool     // the rig sets the servers' clocks
	Hasty    int      // per cent of the calls that end early
	Reads    int      // per cent; 0 for 50
	Lease    time.Duration
	Seed     uint64
}

// Lease is that of a rig whose plan names none. One per cent of it, and 2 ms, is what a holder keeps away
// from its end.
const Lease = 1500 * time.Millisecond

// A Rig is one server or several, proxies in front of them, a bank, and worker processes, all at work.
type Rig struct {
	*Node  // the first
	Nodes  []*Node
	tb     testing.TB
	plan   Plan
	bank   *bank.Server
	probe  *rwlock.RWLock
	names  []string
	socket string
	rng    *rand.Rand

	mu      sync.Mutex
	workers map[int]*Worker
	byUUID  map[string]*Worker
	nextID  int
	owners  int
	events  []history.Event
	known   history.Known
	strikes []Strike
	last    map[string]time.Time // when somebody last got a lock
	asked   map[[2]int]history.Event
	changed chan struct{} // closed at each event
	Summary
}

// Summary is what came of a run.
type Summary struct {
	Acquired, Failed      int
	Quit                  int // calls that had little time, were cancelled, or only tried
	LongestRead           time.Duration
	LongestWrite          time.Duration
	Faults                map[string]int
	Lost                  int
	Fenced, Unfenced      bank.Counts
	Histories, HistoryOps int
	Broken                []string
	Processes             int
	HandoverAfterCrash    time.Duration // the longest
}

// A Worker is a worker process.
type Worker struct {
	rig    *Rig
	id     int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{}
	uuid   string
	killed bool
	stops  time.Time
}

// NewRig starts everything; it ends with the test.
func NewRig(tb testing.TB, plan Plan) *Rig {
	tb.Helper()
	plan.Procs = or(plan.Procs, 4)
	plan.Names = or(plan.Names, 2)
	plan.Reads = or(plan.Reads, 50)
	plan.Lease = or(plan.Lease, Lease)
	plan.Servers = or(plan.Servers, 1)
	plan.Sides = or(plan.Sides, 1)
	r := &Rig{
		tb: tb, plan: plan,
		rng:     rand.New(rand.NewPCG(plan.Seed, 7)),
		workers: map[int]*Worker{}, byUUID: map[string]*Worker{},
		known:   history.Known{Pauses: map[int][]history.Span{}},
		last:    map[string]time.Time{},
		asked:   map[[2]int]history.Event{},
		changed: make(chan struct{}),
	}
	r.Faults = map[string]int{}
	r.owners = 1
	dir, err := os.MkdirTemp("", "rig")
	r.must(err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	var direct []redis.UniversalClient
	for range plan.Servers {
		n := r.serve(dir)
		r.Nodes = append(r.Nodes, n)
		direct = append(direct, n.Server.Client())
	}
	r.Node = r.Nodes[0]
	r.socket = filepath.Join(dir, "s")
	r.bank, err = bank.Serve(r.socket)
	r.must(err)
	tb.Cleanup(r.bank.Close)
	r.probe, err = history.Over(direct, rwlock.WithLease(plan.Lease))
	r.must(err)
	tb.Cleanup(func() { _ = r.probe.Close() })
	r.Rename()
	for range plan.Procs {
		r.Spawn()
	}
	tb.Cleanup(func() {
		for _, w := range r.Workers() {
			w.Kill()
		}
	})
	return r
}

func or[T comparable](a, b T) T {
	var zero T
	if a == zero {
		return b
	}
	return a
}

func (r *Rig) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

// Rename has the workers that start from now on use locks that nobody has used.
func (r *Rig) Rename() {
	r.names = nil
	for i := range r.plan.Names {
		r.names = append(r.names, fmt.Sprintf("lock %d.%d", r.nextID, i))
	}
}

// Some returns n of the servers, at random.
func (r *Rig) Some(n int) []*Node {
	nodes := slices.Clone(r.Nodes)
	r.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes[:n]
}

// Names returns the locks that the workers use.
func (r *Rig) Names() []string { return slices.Clone(r.names) }

// RWLock returns what a worker of one side has, closed when the test ends.
func (r *Rig) RWLock(side int) *rwlock.RWLock {
	r.tb.Helper()
	var clients []redis.UniversalClient
	for _, n := range r.Nodes {
		clients = append(clients, n.Proxies[side].Client())
	}
	rw, err := history.Over(clients, rwlock.WithLease(r.plan.Lease))
	r.must(err)
	r.tb.Cleanup(func() { _ = rw.Close() })
	return rw
}

// Await waits until ok, and fails the test after d.
func (r *Rig) Await(d time.Duration, what string, ok func() bool) {
	r.tb.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); !ok(); <-tick.C {
		if time.Now().After(end) {
			r.tb.Fatalf("%v passed, and not: %s", d, what)
		}
	}
}

// addrs returns where the workers of one side find the servers.
func (r *Rig) addrs(side int) (addrs []string) {
	for _, n := range r.Nodes {
		addrs = append(addrs, n.Proxies[side].Addr())
	}
	return addrs
}

// Spawn starts a worker process.
func (r *Rig) Spawn() *Worker {
	r.tb.Helper()
	r.mu.Lock()
	r.nextID++
	w := &Worker{rig: r, id: r.nextID, exited: make(chan struct{})}
	c := history.Config{
		Addrs: r.addrs(w.id % r.plan.Sides), Bank: r.socket, Names: r.names, Lease: r.plan.Lease, First: r.owners, Owners: 3,
		Reads: r.plan.Reads, Hold: r.plan.Lease / 75, Wait: 8 * r.plan.Lease, Careless: r.plan.Careless, Pool: r.plan.Pool, Hog: r.plan.Hog, Broken: r.plan.Broken, Hasty: r.plan.Hasty,
		Seed: r.plan.Seed + uint64(w.id),
	}
	r.owners += c.Owners
	r.Processes++
	r.workers[w.id] = w
	r.mu.Unlock()

	self, err := os.Executable()
	r.must(err)
	w.cmd = exec.Command(self)
	w.cmd.Env = append(os.Environ(), c.Env(), "GOMAXPROCS=2", "GOGC=400")
	w.cmd.Stderr = os.Stderr
	stdout, err := w.cmd.StdoutPipe()
	r.must(err)
	w.stdin, err = w.cmd.StdinPipe()
	r.must(err)
	r.must(w.cmd.Start())
	go func() {
		defer close(w.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var e history.Event
			if json.Unmarshal(lines.Bytes(), &e) == nil { // a killed process may leave half a line
				r.take(w, e)
			}
		}
		_ = w.cmd.Wait()
	}()
	r.await(10*time.Second, "a worker starts", func() bool { return w.uuid != "" })
	return w
}

// take notes an event of a worker. It is called in the order of each worker's events.
func (r *Rig) take(w *Worker, e history.Event) {
	e.Process = w.id
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	k := [2]int{w.id, e.Hold}
	switch e.What {
	case history.Starts:
		w.uuid = e.UUID
		r.byUUID[e.UUID] = w
	case history.Asks:
		r.asked[k] = e
	case history.Fails:
		r.Failed++
		delete(r.asked, k)
	case history.Quits:
		r.Quit++
		delete(r.asked, k)
	case history.Has:
		r.Acquired++
		r.last[e.Name] = time.Unix(0, e.At)
		longest := &r.LongestRead
		if e.Write {
			longest = &r.LongestWrite
		}
		*longest = max(*longest, time.Duration(e.At-r.asked[k].At))
		delete(r.asked, k)
	case history.Loses:
		r.Lost++
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until ok, which is called with mu held and looked at after each event, and fails the test after
// d.
func (r *Rig) await(d time.Duration, what string, ok func() bool) time.Duration {
	r.tb.Helper()
	start := time.Now()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		done, changed := ok(), r.changed
		r.mu.Unlock()
		if done {
			return time.Since(start)
		}
		select {
		case <-changed:
		case <-timeout.C:
			r.tb.Fatalf("%v passed, and not: %s", d, what)
		}
	}
}

// Work lets the workers get n more holds.
func (r *Rig) Work(n int) {
	r.tb.Helper()
	r.mu.Lock()
	n += r.Acquired
	r.mu.Unlock()
	r.await(30*time.Second+20*r.plan.Lease, "the workers work", func() bool { return r.Acquired >= n })
}

// Progress waits until somebody has got each lock anew; it returns how long that took.
func (r *Rig) Progress(within time.Duration) time.Duration {
	r.tb.Helper()
	start := time.Now()
	return r.await(within, "every lock is had again", func() bool {
		for _, name := range r.names {
			if r.last[name].Before(start) {
				return false
			}
		}
		return true
	})
}

// Lossy notes that the server loses data, or time, at this moment.
func (r *Rig) Lossy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known.Losses = append(r.known.Losses, time.Now().UnixNano())
}

// Workers returns the processes that live.
func (r *Rig) Workers() []*Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*Worker
	for _, w := range r.workers {
		if !w.killed {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *Worker) int { return a.id - b.id })
	return list
}

// Stop pauses the process.
func (w *Worker) Stop() {
	w.stops = time.Now()
	_ = w.cmd.Process.Signal(syscall.SIGSTOP)
}

// Cont ends a Stop.
func (w *Worker) Cont() {
	_ = w.cmd.Process.Signal(syscall.SIGCONT)
	w.rig.mu.Lock()
	defer w.rig.mu.Unlock()
	w.rig.known.Pauses[w.id] = append(w.rig.known.Pauses[w.id], history.Span{From: w.stops.UnixNano(), To: time.Now().UnixNano()})
}

// Kill kills the process, stopped or not.
func (w *Worker) Kill() {
	w.rig.mu.Lock()
	if w.killed {
		w.rig.mu.Unlock()
		return
	}
	w.killed = true
	at := time.Now()
	if w.stops.After(at.Add(-time.Minute)) && w.stopped() {
		at = w.stops
	}
	w.rig.mu.Unlock()
	_ = w.cmd.Process.Kill()
	<-w.exited
	// Whatever it reported, it did not outlive this.
	w.rig.take(w, history.Event{What: history.Killed, At: max(at.UnixNano(), w.lastEvent())})
}

// stopped reports whether the process is stopped. It is called with the rig's mu held.
func (w *Worker) stopped() bool {
	spans := w.rig.known.Pauses[w.id]
	return !w.stops.IsZero() && (len(spans) == 0 || spans[len(spans)-1].From != w.stops.UnixNano())
}

func (w *Worker) lastEvent() int64 {
	w.rig.mu.Lock()
	defer w.rig.mu.Unlock()
	for i := len(w.rig.events) - 1; i >= 0; i-- {
		if w.rig.events[i].Process == w.id {
			return w.rig.events[i].At
		}
	}
	return 0
}

// End asks the process to end in good order, and waits for that.
func (w *Worker) End() error {
	_ = w.stdin.Close()
	select {
	case <-w.exited:
	case <-time.After(30*time.Second + 20*w.rig.plan.Lease):
		// It says on its standard error where it hangs, unless it is stopped.
		_ = w.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-w.exited:
			return fmt.Errorf("worker %d does not end", w.id)
		case <-time.After(5 * time.Second):
			return fmt.Errorf("worker %d does not end, nor say why", w.id)
		}
	}
	w.rig.mu.Lock()
	w.killed = true
	w.rig.mu.Unlock()
	if !w.cmd.ProcessState.Success() {
		return fmt.Errorf("worker %d: %v", w.id, w.cmd.ProcessState)
	}
	return nil
}

// Finish ends the workers, checks the locks, the money and the history, and returns the summary.
func (r *Rig) Finish() Summary {
	r.tb.Helper()
	r.End()
	for _, name := range r.names {
		start := time.Now()
		h, err := r.probe.Lock(context.Background(), name, rwlock.MaxWait(r.plan.Lease+time.Second))
		if err != nil {
			r.Breach("nobody uses %q, and yet after %v: %v", name, time.Since(start), err)
			continue
		}
		if err := h.Unlock(context.Background()); err != nil {
			r.Breach("probe of %q: %v", name, err)
		}
	}
	r.checkTTLs()
	r.Check()
	return r.Summary
}

// End ends the workers.
func (r *Rig) End() {
	r.tb.Helper()
	var wg sync.WaitGroup
	for _, w := range r.Workers() {
		wg.Go(func() {
			if err := w.End(); err != nil {
				r.Breach("%v", err)
			}
		})
	}
	wg.Wait()
}

// Breach notes that a promise was broken.
func (r *Rig) Breach(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

// mark is the key by which a server of a quorum knows whether it has lost its data.
const mark = "rwlock:mark"

func (r *Rig) checkTTLs() {
	ctx := context.Background()
	for _, n := range r.Nodes {
		it := n.Admin.Scan(ctx, 0, "rwlock:*", 1000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			if ttl, err := n.Admin.PTTL(ctx, key).Result(); err == nil && ttl == -1 && key != mark {
				r.Breach("key %q has no time to live", key)
			}
		}
	}
}

// Check has porcupine look at the history so far, takes stock of the money, and forgets the events. The
// workers must have ended, or the next ones use other locks.
func (r *Rig) Check() {
	r.mu.Lock()
	events, known := r.events, r.known
	r.events = nil
	r.mu.Unlock()
	ops, broken := history.Assemble(events, known)
	broken = append(broken, history.Disorder(events)...)
	err := history.Check(ops)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Histories++
	r.HistoryOps += len(ops)
	r.Broken = append(r.Broken, broken...)
	if err != nil {
		r.Broken = append(r.Broken, err.Error())
	}
	r.Fenced, r.Unfenced = r.bank.Counts()
}

// A Role is a place that a process can have in a lock.
type Role int

// The roles.
const (
	Holder Role = iota
	WriteHolder
	LastReader
	FirstWaiter
	MiddleWaiter
)

// Freeze stops a process that has the role, and returns it and the lock.
func (r *Rig) Freeze(role Role) (*Worker, string) {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		name := r.names[r.rng.IntN(len(r.names))]
		w := r.who(ctx, name, role)
		if w == nil {
			continue
		}
		w.Stop()
		if r.who(ctx, name, role) == w {
			return w, name
		}
		w.Cont()
	}
	r.tb.Fatalf("nobody has role %d", role)
	return nil, ""
}

func (r *Rig) who(ctx context.Context, name string, role Role) *Worker {
	s, err := r.probe.Inspect(ctx, name)
	if err != nil {
		return nil
	}
	owner := ""
	switch {
	case role == Holder && len(s.Holders) > 0, role == WriteHolder && s.Mode == rwlock.Write,
		role == LastReader && s.Mode == rwlock.Read && len(s.Holders) == 1:
		owner = s.Holders[0].Owner
	case role == FirstWaiter && len(s.Waiters) > 0:
		owner = s.Waiters[0].Owner
	case role == MiddleWaiter && len(s.Waiters) > 2:
		owner = s.Waiters[len(s.Waiters)/2].Owner
	}
	uuid, _, _ := strings.Cut(owner, ":")
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.byUUID[uuid]; w != nil && !w.killed {
		return w
	}
	return nil
}

// Holds reports whether the process has the lock at the server.
func (r *Rig) Holds(w *Worker, name string) bool {
	s, err := r.probe.Inspect(context.Background(), name)
	return err == nil && slices.ContainsFunc(s.Holders, func(h rwlock.Holder) bool { return strings.HasPrefix(h.Owner, w.uuid) })
}
