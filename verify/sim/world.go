// Package sim runs several processes under a fake clock, over a network that stalls, breaks, repeats and
// forgets. Hours pass in milliseconds. A process is the library's engine, which decides all there is to
// decide. One thing happens at a time, so a world follows from its seed. The scripts run on miniredis.
// Workers lock and unlock, and a referee watches.
package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// tasks are waited for.
type tasks struct {
	*loop
	left int
}

func (t *tasks) add(fn func()) {
	t.left++
	t.spawn(func() {
		defer func() { t.left-- }()
		fn()
	})
}

// end waits until all have ended, but not beyond a time, and reports whether they have.
func (t *tasks) end(by time.Time) bool {
	for t.left > 0 && t.now().Before(by) {
		t.sleep(20 * time.Millisecond)
	}
	return t.left == 0
}

// A call is a lock call.
type call struct {
	name    string
	mode    rwlock.Mode
	try     bool
	lease   time.Duration // 0 for the RWLock's
	noRenew bool
	owner   engine.Owner  // zero for a new one
	limit   time.Duration // 0 for none; less if its time is over before it begins
}

// A world is one run of the simulation.
type world struct {
	*loop
	*referee
	servers []*server

	seed    uint64
	climate Climate
	rng     *rand.Rand
	names   []string
	lease   time.Duration
	longest time.Duration // of all leases
	hosts   []*host
	all     []*node
	over    bool
	closing tasks
	dirty   bool // a process was not closed in good order

	nodes map[string]*node // by channel
}

// A host has a process, and another when that is closed.
type host struct {
	id int
	p  *node
}

const (
	prefix = "rwlock"         // the library's default
	mark   = prefix + ":mark" // what a server that votes knows of the others
)

// newWorld returns a world without servers and processes, with one of the climates: that of a name, or any.
func newWorld(seed uint64, climates []Climate, name string) *world {
	rng, l := rand.New(rand.NewPCG(seed, 1)), &loop{at: genesis}
	w := &world{
		loop: l, seed: seed, climate: climates[rng.IntN(len(climates))], rng: rng,
		names: []string{"a", "b{}%"}[:1+rng.IntN(2)], lease: leases[rng.IntN(len(leases))],
		nodes: map[string]*node{}, closing: tasks{loop: l},
	}
	if w.climate.Crowd && rng.IntN(10) > 0 {
		w.climate = climates[0] // a crowd takes as long as a hundred others
	}
	if i := slices.IndexFunc(climates, func(c Climate) bool { return c.Name == name }); i >= 0 {
		w.climate = climates[i]
	}
	if w.climate.Crowd {
		w.names, w.lease = w.names[:1], max(w.lease, 5*time.Second)
	}
	w.longest = 2 * w.lease
	w.referee = &referee{journal: newJournal(l.now), limits: w.climate.limits(w.longest),
		locks: map[string]*watched{}}
	return w
}

func (w *world) process(c Climate) *node {
	p := w.newNode(w.rng.Uint64(), c)
	w.all = append(w.all, p)
	return p
}

// fork returns another source of randomness.
func (w *world) fork() *rand.Rand { return rand.New(rand.NewPCG(w.rng.Uint64(), 3)) }

func (w *world) String() string {
	return fmt.Sprintf("seed %d, %s, lease %v, %d processes", w.seed, w.climate.Name, w.lease, len(w.hosts))
}

// minis are the servers, which know what time it is.
func (w *world) minis() (all []*miniredis.Miniredis) {
	for _, s := range w.servers {
		s.tick()
		all = append(all, s.Mini)
	}
	return all
}

// dump returns what the servers have.
func (w *world) dump() (all string) {
	for _, m := range w.minis() {
		all += m.Dump() + "\n"
	}
	return all
}

// live has everything happen.
func (w *world) live() {
	hosts := 2 + w.rng.IntN(3)
	if w.climate.Crowd {
		hosts = 3
	}
	for i := range hosts {
		w.hosts = append(w.hosts, &host{id: i})
		w.hosts[i].p = w.process(w.climate)
	}
	workers := tasks{loop: w.loop}
	var shared [3]engine.Owner
	for i := range shared {
		shared[i] = w.hosts[0].p.newOwner()
	}
	for _, h := range w.hosts {
		n := 1 + w.rng.IntN(len(shared))
		if w.climate.Crowd {
			n = 90 + w.rng.IntN(40)
		}
		for j := range n {
			k := &worker{world: w, h: h, who: fmt.Sprintf("%d.%d", h.id, j), rng: w.fork()}
			if w.climate.Shared && h.id < 2 {
				k.owner = shared[j]
			}
			workers.add(k.run)
		}
	}
	rng := w.fork()
	trouble := tasks{loop: w.loop}
	trouble.add(func() { w.trouble(rng) })
	if !workers.end(w.now().Add(400*w.longest + 2*time.Hour)) {
		w.violation("a call never ends; the server has %s", w.dump())
		return
	}
	w.over = true
	trouble.end(w.now().Add(time.Hour))
	w.end()
}

// close closes a process, and checks how that goes.
func (w *world) close(p *node) {
	start := w.now()
	err := p.close()
	if took := w.now().Sub(start); took > unlockBound && p.ran(start) {
		w.violation("bounded: Close took %v: %v", took, err)
	}
	if err != nil || p.killed {
		w.dirty = true
	}
	if err != nil && w.climate.Strict && !p.killed {
		w.violation("close: %v", err)
	}
}

// end closes all, and checks that nothing remains.
func (w *world) end() {
	for _, p := range w.all {
		p.calm()
	}
	for _, h := range w.hosts {
		w.closing.add(func() { w.close(h.p) })
	}
	w.closing.end(w.now().Add(time.Hour))
	from := w.now()
	w.see("seconds simulated", int(from.Sub(w.start)/time.Second))
	w.note("all closed")

	probe := w.newNode(w.rng.Uint64(), Climate{Votes: w.climate.Votes})
	if c := w.climate; c.Late > 0 && !c.Votes && !c.Flushes && !w.dirty && w.lease >= time.Second {
		w.audit()
		from = w.now()
	}
	patience := w.longest + 200*time.Millisecond
	if w.climate.Votes {
		// Servers that have lost their data vote again once all leases would be over, and servers that were never
		// started wait for silent ones first.
		patience = 3*patience + 2*time.Second
	}
	for _, name := range w.names {
		h, err := probe.acquire(call{name: name, mode: rwlock.Write,
			limit: patience - w.now().Sub(from)})
		if err != nil {
			w.violation("orphan: nobody uses %q, and yet: %v; the server has %s", name, err, w.dump())
			continue
		}
		if took := w.now().Sub(from); w.climate.Strict && !w.climate.Crashes && !w.climate.Forgets &&
			took > 50*time.Millisecond {
			w.violation("orphan: all have released %q, and yet it took %v to lock", name, took)
		}
		if err := h.unlock(0); err != nil {
			w.violation("orphan: probe: %v", err)
		}
	}
	if err := probe.close(); err != nil {
		w.violation("close: probe: %v", err)
	}
	for _, m := range w.minis() {
		for _, key := range m.Keys() {
			if m.TTL(key) <= 0 && key != mark {
				w.violation("orphan: key %q has no time to live", key)
			}
		}
	}
	// What comes late may set the time to live again.
	w.sleep(w.longest + 4*time.Minute + long)
	for _, m := range w.minis() {
		if m.Del(mark); len(m.Keys()) > 0 {
			w.violation("orphan: keys remain: %q", m.Keys())
		}
	}
	for _, n := range w.nodes {
		if err := n.settled(); err != nil {
			w.violation("memory: %v", err)
		}
	}
}

// audit waits for requests that come late, and checks that they are refused: whoever sent them has withdrawn.
func (w *world) audit() {
	for end := w.now().Add(long); w.now().Before(end); w.sleep(w.lease * 9 / 10) {
		for _, name := range w.names {
			s, err := w.servers[0].inspect(protocol.KeysOf(prefix, name))
			if err != nil || len(s.Holders)+len(s.Waiters) > 0 {
				w.violation("orphan: all have released %q, and yet it has %+v, %v", name, s, err)
				return
			}
		}
	}
}
