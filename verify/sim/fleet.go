package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock"
)

// A plan is for more than any machine of this project has: thousands of processes, and a cluster.
// docs/scale.md compares what comes of it with what it predicts.
type plan struct {
	masters, processes int
	duration           time.Duration
	think              time.Duration // of a process, on average, between two pairs
	work               time.Duration // under a lock, on average
	cold, hot          int           // how many names there are of either kind
	hotShare           float64       // of all pairs
	keepers            int           // processes that keep a hold of their own for as long as they live
	trip               time.Duration // from a process to a master, or back, on average
	cost               func(script string, told int) time.Duration
	lease              time.Duration
	failAt, failFor    time.Duration // when a master fails, and for how long
	// when processes begin to be started again, one after the other, for restartIn
	restartAt, restartIn time.Duration
}

// failing returns the index of the master that fails.
func (p plan) failing() int { return p.masters / 3 }

// away is how long a process is not there that is started again.
const away = 5 * time.Second

// A fleet is the world of a plan.
type fleet struct {
	*world
	plan
	pairs, failed   int
	waits, hotWaits []time.Duration // from call to grant, before anything fails
	hotAfter        []time.Duration // since then
	outage          []time.Duration // of calls at the failed master
}

func simulateFleet(p plan, seed uint64) *fleet {
	l := &loop{at: genesis}
	weather := Weather{Latency: p.trip * 8 / 5} // see chance.delay
	f := &fleet{plan: p, world: newWorld(l, seed, []Climate{{Name: "fleet", Weather: weather, Closes: true}}, "")}
	f.world.lease, f.longest, f.steady = p.lease, p.lease, true
	f.names = nil
	for i := range p.hot {
		f.names = append(f.names, fmt.Sprint("hot:", i))
	}
	f.run(l, p.masters, f.live)
	for _, n := range f.nodes {
		if !n.killed && !n.below.Idle() {
			f.violation("close: %s has something left to do", n.engine.Channel())
		}
	}
	return f
}

func (f *fleet) live() {
	for _, s := range f.servers {
		s.cost = f.cost
	}
	for i := range f.processes {
		h := &host{id: i}
		f.hosts = append(f.hosts, h)
		f.spawn(func() {
			f.sleep(upTo(f.rng, f.think))
			f.begin(h)
			f.sleep(f.restartAt + f.restartIn*time.Duration(h.id)/time.Duration(f.processes) - f.now().Sub(f.start))
			f.replace(h)
		})
	}
	failing := f.servers[f.failing()]
	f.sleep(f.failAt)
	f.stop(failing)
	f.sleep(f.failFor)
	failing.down = false
	f.sleep(f.duration - f.now().Sub(f.start))
	f.over.Store(true)
	f.end()
}

// begin begins a process.
func (f *fleet) begin(h *host) {
	h.become(f.process(f.climate))
	k := &worker{world: f.world, h: h, who: fmt.Sprint(h.id), rng: rand.New(rand.NewPCG(f.rng.Uint64(), 3))}
	if h.id < f.keepers {
		f.spawn(func() {
			k.enter()
			k.acquire(call{name: fmt.Sprint("kept:", h.id), mode: rwlock.Write})
		})
	}
	f.spawn(func() {
		k.enter()
		for k.sleep(k.about(f.think)); f.runs(k); k.sleep(k.about(f.think)) {
			f.pair(k)
		}
	})
}

// runs reports whether a worker's process is to go on.
func (f *fleet) runs(k *worker) bool { return k.p == k.h.process() && !f.over.Load() }

// replace starts a process again: every second one is closed before, the others crash.
func (f *fleet) replace(h *host) {
	p := h.process()
	h.become(nil)
	if h.id%2 == 0 {
		f.close(p)
	} else {
		f.crash(p)
	}
	f.sleep(away)
	f.begin(h)
}

// about draws a time that has a mean, and no memory.
func (k *worker) about(mean time.Duration) time.Duration {
	return time.Duration(k.rng.ExpFloat64() * float64(mean))
}

// pair locks and unlocks once.
func (f *fleet) pair(k *worker) {
	c := call{name: fmt.Sprint("cold:", k.rng.IntN(f.cold)), mode: k.mode()}
	hot := k.rng.Float64() < f.hotShare
	if hot {
		c.name, c.mode = f.names[k.rng.IntN(f.hot)], rwlock.Write
	}
	begun, failed := f.now(), f.start.Add(f.failAt)
	s := k.acquire(c)
	if s == nil {
		if f.runs(k) {
			f.failed++
		}
		return
	}
	wait := f.now().Sub(begun)
	switch {
	case f.master(c.name) == f.failing() && begun.Before(failed.Add(f.failFor)) && f.now().After(failed):
		f.outage = append(f.outage, wait)
	case hot && !begun.Before(failed):
		f.hotAfter = append(f.hotAfter, wait)
	case hot:
		f.hotWaits = append(f.hotWaits, wait)
	case begun.Before(failed):
		f.waits = append(f.waits, wait)
	}
	f.pairs++
	s.hold.linger(k.about(f.work))
	k.unlock(s)
}

// quantile returns the wait that a part of a list does not exceed.
func quantile(list []time.Duration, part float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	return list[min(int(part*float64(len(list))), len(list)-1)]
}

func mean(list []time.Duration) (mean time.Duration) {
	for _, d := range list {
		mean += d / time.Duration(len(list))
	}
	return mean
}
