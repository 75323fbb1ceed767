// Package faults breaks real servers, networks and processes while processes use locks there, and checks
// what these have seen. The servers are a single one, several that vote, a cluster, or some that sentinels
// watch. The processes move money under the locks, or have jobs whose times are measured.
package faults

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A plan is how a rig is set up. Its config says what all workers have in common.
type plan struct {
	config
	procs    int           // worker processes; 0 for 4
	servers  int           // 0 for 1; several are a quorum
	clusters bool          // instead of servers, a cluster of three masters with a replica each
	watched  bool          // instead of servers, a master, two replicas, and three sentinels
	jobs     bool          // workers do jobs instead of moving money, and have no proxies before the servers
	sides    int           // proxies before each server, to break what some of the workers see; 0 for 1
	args     []string      // of the servers
	locks    int           // that guard money; 0 for 2
	clock    bool          // the rig sets the servers' clocks
	ahead    time.Duration // by how much the clock of the first master's replica is ahead
}

// fits reports whether what is planned can happen in a rig of another plan.
func (p plan) fits(o plan) bool {
	return p.clock == o.clock && slices.Equal(p.args, o.args) && p.servers == o.servers && p.Pool == o.Pool &&
		p.locks == o.locks && p.clusters == o.clusters
}

// usual is the lease of a plan that names none. One per cent of it, and 2 ms, is what a holder keeps away
// from its end.
const usual = 1500 * time.Millisecond

// masters is how many masters a cluster has.
const masters = 3

// A rig is servers, and worker processes that use locks there. It breaks something, and keeps what the
// workers report.
type rig struct {
	plan
	*node     // the first
	tb        testing.TB
	rng       *rand.Rand
	nodes     []*node
	broken    []*node // by the fault in flight
	cluster   *testredis.Cluster
	sentinels *testredis.Sentinels
	victim    int               // the place of the master to which something happens
	promoted  *testredis.Server // by sentinels, by themselves; or nil
	bank      *bank.Server
	witness   *rwlock.RWLock

	mu      sync.Mutex
	procs   []*process
	events  []history.Event
	known   history.Known
	strikes []*strike
	strike  *strike              // the last
	last    map[string]time.Time // when someone last got a lock
	asked   map[[2]int]history.Event
	served  int // jobs that waited in a queue
	result
}

// A strike is one time that a fault happened.
type strike struct {
	at    time.Time // when it was about to strike
	begun time.Time // when it had struck
	over  time.Time // when the servers had mended it
	again bool      // the sentinels replaced the new master, too, as they do at times
	torn  bool      // keys of a lock were left on two nodes
}

// newRig starts everything; it ends with the test.
func newRig(tb testing.TB, p plan) *rig {
	tb.Helper()
	p.procs, p.locks, p.Reads = cmp.Or(p.procs, 4), cmp.Or(p.locks, 2), cmp.Or(p.Reads, 50)
	p.sides, p.Lease, p.Prefix = cmp.Or(p.sides, 1), cmp.Or(p.Lease, usual), cmp.Or(p.Prefix, "rwlock")
	if p.Delegate > 0 || p.servers > 1 || p.jobs || p.Careless || p.Unlocked {
		p.Hand = 0 // what votes, or is delegated, cannot be handed on
	}
	r := &rig{
		plan: p, tb: tb, rng: rand.New(rand.NewPCG(p.Seed, 7)),
		known: history.Known{Pauses: map[int][]history.Span{}, Delegation: p.Delegate},
		last:  map[string]time.Time{}, asked: map[[2]int]history.Event{},
	}
	r.Faults = map[string]int{}
	tb.Cleanup(func() {
		for _, p := range r.living() {
			p.kill()
		}
	})
	r.witness = r.over(r.serve())
	if !p.jobs {
		dir, err := os.MkdirTemp("", "rig") // a socket's path has to be short
		r.must(err)
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		r.Bank = filepath.Join(dir, "s")
		r.bank, err = bank.Serve(r.Bank)
		r.must(err)
		tb.Cleanup(r.bank.Close)
		for i := range p.locks {
			name := fmt.Sprint("lock ", i)
			if p.clusters {
				name = r.cluster.On(i%masters, name)
			}
			r.Names = append(r.Names, name)
		}
	}
	for range p.procs {
		r.spawn()
	}
	return r
}

// over returns an RWLock over one client, or over several servers that vote, closed when the test ends.
func (r *rig) over(clients []redis.UniversalClient) *rwlock.RWLock {
	r.tb.Helper()
	rw, err := over(clients, rwlock.WithLease(r.Lease), rwlock.WithPrefix(r.Prefix))
	r.must(err)
	r.tb.Cleanup(func() { _ = rw.Close() })
	return rw
}

func (r *rig) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

// take notes an event of a process. It is called in the order of each process's events.
func (r *rig) take(p *process, e history.Event) {
	e.Process = p.id
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	k := [2]int{p.id, e.Hold}
	switch e.What {
	case history.Starts:
		p.uuid = e.UUID
	case history.Asks:
		r.asked[k] = e
	case history.Fails, history.Quits:
		delete(r.asked, k)
	case history.Has:
		delete(r.asked, k)
		r.Acquired++
		r.last[e.Name] = time.Unix(0, e.At)
		switch e.Role {
		case queue:
			r.served++
		case upgraded:
			r.Upgraded++
		}
	case history.Local:
		r.Local++
	}
}

// await waits until ok, which is called with mu held, and fails the test after d.
func (r *rig) await(d time.Duration, what string, ok func() bool) {
	r.tb.Helper()
	r.poll(d, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return ok()
	})
}

// poll waits until ok, and fails the test after d.
func (r *rig) poll(d time.Duration, what string, ok func() bool) {
	r.tb.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.tb.Fatalf("%v passed, and not: %s", d, what)
		}
	}
}

// work lets the workers get n more holds.
func (r *rig) work(n int) {
	r.tb.Helper()
	r.mu.Lock()
	n += r.Acquired
	r.mu.Unlock()
	r.await(30*time.Second+20*r.Lease, "the workers work", func() bool { return r.Acquired >= n })
}

// progress waits until someone has got each lock again. After a lease, it is enough that nobody waits for it:
// it may be delegated to one process, or all may wait for another lock, whose holder takes its time.
func (r *rig) progress(within time.Duration) {
	r.tb.Helper()
	start := time.Now()
	r.await(within, "every lock is had again", func() bool {
		return !slices.ContainsFunc(r.Names, func(name string) bool {
			rests := time.Since(start) > r.Lease && !r.wanted(name)
			return r.last[name].Before(start) && !rests
		})
	})
}

// wanted reports whether a process that runs waits for a lock. It is called with mu held.
func (r *rig) wanted(name string) bool {
	for k, e := range r.asked {
		if p := r.procs[k[0]-1]; e.Name == name && !p.killed && p.stops.IsZero() {
			return true
		}
	}
	return false
}

// inject has the fault happen, and notes when.
func (r *rig) inject(f fault) {
	r.tb.Helper()
	now := time.Now()
	r.strike = &strike{at: now, begun: now}
	r.strikes = append(r.strikes, r.strike)
	r.Faults[f.name]++
	f.inject(r)
	if r.strike.over.IsZero() {
		r.strike.over = time.Now()
	}
}

// strikeNow has the fault in flight strike. Processes that have jobs release what they keep until then.
func (r *rig) strikeNow(fn func()) {
	r.tb.Helper()
	r.strike.at = time.Now()
	fn()
	r.strike.begun = time.Now()
	if r.jobs {
		for _, p := range r.procs {
			p.tell(order{Struck: true})
		}
	}
}

// lossy runs do, and notes that the server loses data, or time, meanwhile.
func (r *rig) lossy(do func()) {
	from := time.Now().UnixNano()
	do()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known.Losses = append(r.known.Losses, history.Span{From: from, To: time.Now().UnixNano()})
}

// endWorkers ends the workers in good order.
func (r *rig) endWorkers() {
	var wg sync.WaitGroup
	for _, p := range r.living() {
		wg.Go(func() {
			if err := p.end(30*time.Second + 20*r.Lease); err != nil {
				r.tb.Errorf("worker %d %v", p.id, err)
			}
		})
	}
	wg.Wait()
}

// finish ends the workers, and checks that nobody is in the way of a lock, and no key stays. Then it judges.
func (r *rig) finish(f fault) result {
	r.tb.Helper()
	r.endWorkers()
	ctx := context.Background()
	for _, name := range r.Names {
		start := time.Now()
		h, err := r.witness.Lock(ctx, name, rwlock.MaxWait(r.Lease+time.Second))
		if err != nil {
			r.tb.Errorf("nobody uses %q, and yet after %v: %v", name, time.Since(start), err)
		} else if err := h.Unlock(ctx); err != nil {
			r.tb.Errorf("unlocking %q: %v", name, err)
		}
	}
	for _, n := range r.nodes {
		it := n.admin.Scan(ctx, 0, "rwlock:*", 1000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			if ttl, err := n.admin.PTTL(ctx, key).Result(); err == nil && ttl == -1 && key != mark {
				r.tb.Errorf("key %q has no time to live", key)
			}
		}
	}
	return r.judge(f)
}

// mark is the key by which a server of a quorum knows whether it has lost its data.
const mark = "rwlock:mark"

// judge looks at the times of calls, has porcupine look at the history, and takes stock of the money. The
// workers must have ended.
func (r *rig) judge(f fault) result {
	r.of, r.of.plan = f, r.plan
	h := history.Assemble(r.events, r.known)
	r.measure(h.Calls, r.events, r.strikes)
	if f.plan.jobs {
		r.time(h.Calls, r.strike)
	} else {
		r.Fenced, r.Unfenced = r.bank.Counts()
		r.Tickets, _ = r.bank.Handed()
	}
	r.Broken, r.Unsure, r.Operations = append(r.Broken, h.Broken...), h.Unsure, len(h.Ops)
	if err := history.Check(h.Ops); err != nil {
		r.Broken = append(r.Broken, err.Error())
	}
	return r.result
}
