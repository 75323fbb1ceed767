// Package sim runs several processes under a fake clock, over a network that stalls, breaks, repeats and
// forgets. Hours pass in milliseconds. What a process is, is the library's own code: its engine, which
// decides all there is to decide, on a loop where one thing happens at a time, so that a world follows from
// its seed; or a whole RWLock with its go-redis client, in a testing/synctest bubble. Either way the scripts
// run on miniredis, workers lock and unlock, and a referee watches.
package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A stage is where a world takes place.
type stage interface {
	now() time.Time
	sleep(d time.Duration)
	newGroup() group

	// newProcess returns an RWLock with a client of its own. Its network has the weather of a climate.
	newProcess(seed uint64, c Climate) process
	minis() []*miniredis.Miniredis
	troubles(rng *rand.Rand) []func() // of servers that vote
	run(script string)                // of an administrator
	step(d time.Duration)
	copy() (becomes func()) // of the server's data, for a replica that takes over
	mute()
}

// A group is tasks that someone waits for.
type group interface {
	spawn(fn func())
	wait(d time.Duration) bool // until all have ended, but not longer
}

// A process is one RWLock with its client and its network.
type process interface {
	adopt() // whoever calls it is part of the process from now on
	newOwner() any
	acquire(c call) (hold, error)
	force(name string, within time.Duration) error
	inspect(name string) (busy bool, says string)
	close() error
	settled() error // whether it keeps nothing in memory, once it is closed and all holds are released

	stall()  // holds back everything that it sends and gets
	resume() // ends that
	cut()    // breaks all connections; new ones work
	deafen() // its subscription brings nothing any more
	freeze() // it stands still
	thaw()   // ends that
	calm()   // ends all trouble
	die()    // for good
	bury()   // frees what a process has, at the end

	dead() bool
	awake() bool // it runs, and has done what was due while it did not
	ran(since time.Time) bool
}

// A call is a lock call.
type call struct {
	name    string
	mode    rwlock.Mode
	try     bool
	lease   time.Duration // 0 for the RWLock's
	noRenew bool
	owner   any           // nil for a new one
	limit   time.Duration // 0 for none; less if its time is over before it begins
	maxWait bool          // the limit is one of the wait, not a context's
}

// A hold is what a call returns.
type hold interface {
	token() int64
	owner() any
	good() bool                       // its context is not cancelled
	lent() bool                       // it is under a delegation, or may be
	whenLost(fn func(cause error))    // unless it is released before
	linger(d time.Duration)           // for d, or until it is lost
	unlock(limit time.Duration) error // as call.limit
	forget()                          // without unlock
}

// A world is one run of the simulation.
type world struct {
	stage
	*referee
	seed    uint64
	climate Climate
	rng     *rand.Rand
	names   []string
	lease   time.Duration
	longest time.Duration // of all leases
	hosts   []*host
	all     []process
	owners  []any // that processes share
	over    atomic.Bool
	closing group
	dirty   atomic.Bool // a process was not closed in good order
}

// A host has a process, and another when that is closed.
type host struct {
	id int
	mu sync.Mutex
	process
}

func (h *host) current() process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.process
}

const (
	prefix = "rwlock"         // the library's default
	mark   = prefix + ":mark" // what a server that votes knows of the others
)

func newWorld(st func(w *world) stage, seed uint64, climates []Climate, name string) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		seed:    seed,
		climate: climates[rng.IntN(len(climates))],
		rng:     rng,
		names:   []string{"a", "b{}%"}[:1+rng.IntN(2)],
		lease:   leases[rng.IntN(len(leases))],
	}
	if w.climate.Crowd && rng.IntN(10) > 0 {
		w.climate = climates[0] // a crowd takes as long as a hundred others
	}
	for _, c := range climates {
		if c.Name == name {
			w.climate = c
		}
	}
	hosts := 2 + rng.IntN(3)
	if w.climate.Crowd {
		w.names, w.lease, hosts = w.names[:1], max(w.lease, 5*time.Second), 3
	}
	w.longest = 2 * w.lease
	w.stage = st(w)
	w.referee = newReferee(w.now, w.names, w.climate.limits(w.longest))
	if w.climate.Mute {
		w.mute()
	}
	for i := range hosts {
		w.hosts = append(w.hosts, &host{id: i, process: w.process(w.climate)})
	}
	if w.climate.Shared {
		for range 3 {
			w.owners = append(w.owners, w.hosts[0].newOwner())
		}
	}
	return w
}

func (w *world) process(c Climate) process {
	p := w.newProcess(w.rng.Uint64(), c)
	w.all = append(w.all, p)
	return p
}

func (w *world) String() string {
	return fmt.Sprintf("seed %d, %s, lease %v, %d processes", w.seed, w.climate.Name, w.lease, len(w.hosts))
}

// mini is the only server.
func (w *world) mini() *miniredis.Miniredis { return w.minis()[0] }

// dump returns what the servers have.
func (w *world) dump() (all string) {
	for _, m := range w.minis() {
		all += m.Dump() + "\n"
	}
	return all
}

// live has everything happen.
func (w *world) live() {
	workers, trouble := w.newGroup(), w.newGroup()
	w.closing = w.newGroup()
	for _, h := range w.hosts {
		n := 1 + w.rng.IntN(3)
		if w.climate.Crowd {
			n = 90 + w.rng.IntN(40)
		}
		for j := range n {
			k := &worker{world: w, h: h, who: fmt.Sprintf("%d.%d", h.id, j),
				rng: rand.New(rand.NewPCG(w.rng.Uint64(), 3))}
			if w.climate.Shared && h.id < 2 {
				k.owner = w.owners[j]
			}
			workers.spawn(k.run)
		}
	}
	rng := rand.New(rand.NewPCG(w.rng.Uint64(), 4))
	trouble.spawn(func() { w.trouble(rng) })
	if !workers.wait(400*w.longest + 2*time.Hour) {
		w.Violation("a call never ends; the server has %s", w.dump())
		return
	}
	w.over.Store(true)
	trouble.wait(time.Duration(1 << 62))
	for _, p := range w.all {
		p.calm()
	}
	w.end()
}

// close closes a process, and checks how that goes.
func (w *world) close(p process) {
	start := w.now()
	err := p.close()
	if took := w.now().Sub(start); took > unlockBound && p.ran(start) {
		w.Violation("bounded: Close took %v: %v", took, err)
	}
	if err != nil || p.dead() {
		w.dirty.Store(true)
	}
	if err != nil && w.climate.Strict && !p.dead() {
		w.Violation("close: %v", err)
	}
}

// end closes all, and checks that nothing remains.
func (w *world) end() {
	for _, h := range w.hosts {
		w.closing.spawn(func() { w.close(h.process) })
	}
	w.closing.wait(time.Hour)
	from := w.now()
	w.Simulated = from.Sub(w.start)
	w.Note("all closed")

	probe := w.newProcess(w.rng.Uint64(), Climate{Votes: w.climate.Votes})
	if c := w.climate; c.Late > 0 && !c.Votes && !c.Flushes && !w.dirty.Load() && w.lease >= time.Second {
		w.audit(probe)
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
			limit: patience - w.now().Sub(from), maxWait: true})
		if err != nil {
			w.Violation("orphan: nobody uses %q, and yet: %v; the server has %s", name, err, w.dump())
			continue
		}
		if took := w.now().Sub(from); w.climate.Strict && !w.climate.Crashes && !w.climate.Forgets &&
			took > 50*time.Millisecond {
			w.Violation("orphan: all have released %q, and yet it took %v to lock", name, took)
		}
		if err := h.unlock(0); err != nil {
			w.Violation("orphan: probe: %v", err)
		}
	}
	if err := probe.close(); err != nil {
		w.Violation("close: probe: %v", err)
	}
	for _, m := range w.minis() {
		for _, key := range m.Keys() {
			if m.TTL(key) <= 0 && key != mark {
				w.Violation("orphan: key %q has no time to live", key)
			}
		}
	}
	processes := append(w.all, probe)
	for _, p := range processes {
		p.bury()
	}
	// What comes late may set the time to live again.
	w.sleep(w.longest + 4*time.Minute + long)
	for _, m := range w.minis() {
		if m.Del(mark); len(m.Keys()) > 0 {
			w.Violation("orphan: keys remain: %q", m.Keys())
		}
	}
	for _, p := range processes {
		if err := p.settled(); err != nil {
			w.Violation("memory: %v", err)
		}
	}
}

// audit waits for requests that come late, and checks that they are refused: whoever sent them has withdrawn.
func (w *world) audit(probe process) {
	for end := w.now().Add(long); w.now().Before(end); w.sleep(w.lease * 9 / 10) {
		for _, name := range w.names {
			if busy, says := probe.inspect(name); busy {
				w.Violation("orphan: all have released %q, and yet it has %s", name, says)
				return
			}
		}
	}
}

// trouble makes the climate, until the workers are done.
func (w *world) trouble(rng *rand.Rand) {
	acts := w.troubles(rng)
	add := func(on bool, act func()) {
		if on {
			acts = append(acts, act)
		}
	}
	c := w.climate
	some := func() *host { return w.hosts[rng.IntN(len(w.hosts))] }
	name := func() string { return w.names[rng.IntN(len(w.names))] }
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	declareAll := func() {
		for _, n := range w.names {
			w.declare(n)
		}
	}
	lasting := func(on bool, what string, begin, end func(process)) {
		add(on, func() {
			h := some()
			p := h.current()
			w.Note("%s %d stands still", what, h.id)
			begin(p)
			w.sleep(upTo(2 * w.lease))
			w.Note("%s %d goes on", what, h.id)
			end(p)
		})
	}
	lasting(c.Stalls, "the network of process", process.stall, process.resume)
	lasting(c.Freezes, "process", process.freeze, process.thaw)
	add(c.Cuts, func() {
		h := some()
		w.Note("connections of process %d break", h.id)
		h.current().cut()
	})
	add(c.Deafness, func() {
		h := some()
		w.Note("process %d becomes deaf", h.id)
		h.current().deafen()
	})
	add(c.Scripts, func() {
		w.Note("SCRIPT FLUSH")
		w.run("SCRIPT FLUSH")
	})
	add(c.Flushes, func() {
		declareAll()
		w.Note("FLUSHALL")
		w.mini().FlushAll()
	})
	add(c.Evicts, func() {
		n := name()
		if key := w.pick(rng, n); key != "" {
			w.declare(n)
			w.Note("evict %q", key)
			w.mini().Del(key)
		}
	})
	// Tokens that were reserved for a delegation are ahead of the clock until its lease would have ended, if
	// it was dropped, or is back. If the server lost its data before, tokens would start again from the
	// clock.
	catchUp := func() {
		if c.Delegates {
			w.sleep(w.lease)
		}
	}
	add(c.Failovers, func() {
		becomes := w.copy()
		lag := upTo(50 * maxLatency)
		w.sleep(lag)
		declareAll()
		w.Note("a replica takes over that is %v behind", lag)
		becomes()
		catchUp()
	})
	var ahead time.Duration // of the true time: the server's clock
	add(c.Steps, func() {
		to := upTo(time.Minute) - 30*time.Second
		if to > ahead {
			declareAll()
		}
		w.Note("the server's clock is set by %v", to-ahead)
		w.step(to - ahead)
		ahead = to
	})
	crashes := 0
	add(c.Crashes, func() {
		h := some()
		if crashes++; crashes < len(w.hosts) {
			w.Note("process %d dies", h.id)
			w.dies(h.current())
			h.current().die()
		}
	})
	add(c.Closes, func() {
		h := some()
		p := h.current()
		if p.dead() {
			return
		}
		w.Note("process %d closes", h.id)
		h.mu.Lock()
		h.process = w.process(w.climate)
		h.mu.Unlock()
		w.closing.spawn(func() { w.close(p) })
	})
	add(c.Forces, func() {
		h, n := some(), name()
		w.Note("process %d forces %q", h.id, n)
		w.declare(n)
		err := h.current().force(n, w.lease)
		w.Note("process %d has forced %q: %v", h.id, n, err)
		w.declare(n)
		catchUp()
	})
	if len(acts) == 0 {
		return
	}
	for {
		w.sleep(upTo(3*w.lease).Truncate(time.Microsecond) + 500*time.Nanosecond)
		if w.over.Load() {
			return
		}
		w.mu.Lock()
		w.see("faults", 1)
		w.mu.Unlock()
		acts[rng.IntN(len(acts))]()
	}
}

// pick chooses one of the keys of the lock of that name, or none.
func (w *world) pick(rng *rand.Rand, name string) string {
	tag := protocol.KeysOf(prefix, name).Lock.(string)
	keys := slices.DeleteFunc(w.mini().Keys(), func(key string) bool { return !strings.HasPrefix(key, tag) })
	if len(keys) == 0 {
		return ""
	}
	return keys[rng.IntN(len(keys))]
}

var errNoAnswer = errors.New("no answer yet")
