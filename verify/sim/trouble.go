package sim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// trouble makes the climate, until the workers are done.
func (w *world) trouble(rng *rand.Rand) {
	acts := w.acts(rng)
	for len(acts) > 0 {
		w.sleep(upTo(rng, 3*w.lease).Truncate(time.Microsecond) + 500*time.Nanosecond)
		if w.over.Load() {
			return
		}
		w.mu.Lock()
		w.see("faults", 1)
		w.mu.Unlock()
		acts[rng.IntN(len(acts))]()
	}
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// acts are what may happen.
func (w *world) acts(rng *rand.Rand) (acts []func()) {
	c := w.climate
	add := func(on bool, act func()) {
		if on {
			acts = append(acts, act)
		}
	}
	// lasting adds what begins, and ends after a while.
	lasting := func(on bool, most time.Duration, begin func() (end func())) {
		add(on, func() {
			end := begin()
			w.sleep(upTo(rng, most))
			end()
		})
	}

	some := func() *host { return w.hosts[rng.IntN(len(w.hosts))] }
	halt := func(what string, begin, end func(process)) func() func() {
		return func() func() {
			h := some()
			p := h.current()
			w.Note("%s %d stands still", what, h.id)
			begin(p)
			return func() {
				w.Note("%s %d goes on", what, h.id)
				end(p)
			}
		}
	}
	lasting(c.Stalls, 2*w.lease, halt("the network of process", process.stall, process.resume))
	lasting(c.Freezes, 2*w.lease, halt("process", process.freeze, process.thaw))
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
		h.process = w.process(c)
		h.mu.Unlock()
		w.closing = append(w.closing, w.spawn(func() { w.close(p) }))
	})

	only := w.servers[0]
	name := func() string { return w.names[rng.IntN(len(w.names))] }
	declareAll := func() {
		for _, n := range w.names {
			w.declare(n)
		}
	}
	// Tokens that were reserved for a delegation are ahead of the clock until its lease would have ended, if
	// it was dropped, or is back. If the server lost its data before, tokens would start again from the
	// clock.
	catchUp := func() {
		if c.Delegates {
			w.sleep(w.lease)
		}
	}
	add(c.Forces, func() {
		h, n := some(), name()
		w.Note("process %d forces %q", h.id, n)
		w.declare(n)
		err := h.current().force(n, w.lease)
		w.Note("process %d has forced %q: %v", h.id, n, err)
		w.declare(n)
		catchUp()
	})
	add(c.Scripts, func() {
		w.Note("SCRIPT FLUSH")
		only.command("SCRIPT", "FLUSH")
	})
	add(c.Flushes, func() {
		declareAll()
		w.Note("FLUSHALL")
		only.Mini.FlushAll()
	})
	add(c.Evicts, func() {
		n := name()
		tag := protocol.KeysOf(prefix, n).Lock.(string)
		only.tick()
		keys := slices.DeleteFunc(only.Mini.Keys(), func(key string) bool { return !strings.HasPrefix(key, tag) })
		if len(keys) > 0 {
			key := keys[rng.IntN(len(keys))]
			w.declare(n)
			w.Note("evict %q", key)
			only.Mini.Del(key)
		}
	})
	add(c.Failovers, func() {
		only.copy()
		lag := upTo(rng, 50*maxLatency)
		w.sleep(lag)
		declareAll()
		w.Note("a replica takes over that is %v behind", lag)
		only.failOver()
		catchUp()
	})
	add(c.Steps, func() {
		to := upTo(rng, time.Minute) - 30*time.Second // of the true time
		if to > only.offset {
			declareAll()
		}
		w.Note("the server's clock is set by %v", to-only.offset)
		only.offset = to
	})

	// What happens to servers that vote happens to no more than a minority at a time.
	few := func() (some []*server) {
		for _, i := range rng.Perm(len(w.servers))[:1+rng.IntN(len(w.servers)/2)] {
			some = append(some, w.servers[i])
		}
		return some
	}
	lasting(c.Restarts, 3*w.lease, func() func() { // with their data
		some := few()
		for _, s := range some {
			w.restart(s)
			s.down = true
		}
		return func() {
			for _, s := range some {
				w.Note("server %d is up", s.index)
				s.down = false
			}
		}
	})
	add(c.Empties, func() {
		if !w.allVote() {
			return
		}
		restarts := rng.IntN(2) > 0 // or else its clients do not notice
		for _, s := range few() {
			if restarts {
				w.restart(s)
			}
			w.Note("server %d has lost its data", s.index)
			s.Mini.FlushAll()
		}
	})
	lasting(c.Pauses, 3*w.lease, func() func() {
		some := few()
		for _, s := range some {
			w.Note("server %d stands still", s.index)
			s.frozen = true
		}
		return func() {
			for _, s := range some {
				w.Note("server %d goes on", s.index)
				s.frozen = false
				s.serve()
			}
		}
	})
	lasting(c.Partitions, 3*w.lease, func() func() {
		n := some().current().(*node)
		up, down := rng.IntN(3) > 0, rng.IntN(3) > 0
		for _, i := range rng.Perm(len(n.wires))[:1+rng.IntN(len(n.wires)-1)] {
			w.Note("%s and server %d: lost to it %v, from it %v", n.engine.Channel(), i, up, down)
			n.wires[i].upLost, n.wires[i].downLost = up, down
		}
		return n.mend
	})
	return acts
}

// restart breaks all connections to a server.
func (w *world) restart(s *server) {
	w.Note("server %d is restarted", s.index)
	s.queue = nil
	for _, p := range w.all {
		p.(*node).wires[s.index].cut()
	}
}

// allVote reports whether all servers vote: then a minority of them may lose its data.
func (w *world) allVote() bool {
	generation := ""
	for i, m := range w.minis() {
		g := m.HGet(mark, "generation")
		if g == "" || i > 0 && g != generation {
			return false
		}
		generation = g
	}
	return true
}
