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
		if w.over {
			return
		}
		w.see("faults", 1)
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
	// strike has something happen to a (*node).
	strike := func(what string, do func(*node)) (h *host, p *node) {
		h = some()
		p = h.p
		w.note("process %d %s", h.id, what)
		do(p)
		return h, p
	}
	halt := func(what string, begin, end func(*node)) func() func() {
		return func() func() {
			h, p := strike("stands still"+what, begin)
			return func() {
				w.note("process %d goes on%s", h.id, what)
				end(p)
			}
		}
	}
	lasting(c.Stalls, 2*w.lease, halt(", as its network does", (*node).stall, (*node).resume))
	lasting(c.Freezes, 2*w.lease, halt("", (*node).freeze, (*node).thaw))
	add(c.Cuts, func() { strike("has its connections broken", (*node).cut) })
	add(c.Deafness, func() { strike("becomes deaf", (*node).deafen) })
	crashes := 0
	add(c.Crashes, func() {
		if crashes++; crashes < len(w.hosts) {
			strike("dies", w.crash)
		}
	})
	add(c.Closes, func() {
		h := some()
		p := h.p
		if p.killed {
			return
		}
		w.note("process %d closes", h.id)
		h.p = w.process(c)
		w.closing.add(func() { w.close(p) })
	})

	only := w.servers[0]
	name := func() string { return w.names[rng.IntN(len(w.names))] }
	add(c.Forces, func() {
		n := name()
		w.declare(n)
		strike("forces "+n, func(p *node) { w.note("forced: %v", p.force(n)) })
		w.declare(n)
	})
	add(c.Flushes, func() {
		w.declare(w.names...)
		w.note("FLUSHALL")
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
			w.note("evict %q", key)
			only.Mini.Del(key)
		}
	})
	add(c.Failovers, func() {
		only.copy()
		lag := upTo(rng, 50*maxLatency)
		w.sleep(lag)
		w.declare(w.names...)
		w.note("a replica takes over that is %v behind", lag)
		only.failOver()
		for _, h := range w.hosts {
			h.p.learn()
		}
	})
	add(c.Steps, func() {
		to := upTo(rng, time.Minute) - 30*time.Second // of the true time
		if to > only.offset {
			w.declare(w.names...)
		}
		w.note("the server's clock is set by %v", to-only.offset)
		only.offset = to
	})

	// What happens to servers that vote happens to no more than a minority at a time.
	few := func() (some []*server) {
		for _, i := range rng.Perm(len(w.servers))[:1+rng.IntN(len(w.servers)/2)] {
			some = append(some, w.servers[i])
		}
		return some
	}
	each := func(some []*server, what string, do func(*server)) {
		for _, s := range some {
			w.note("server %d %s", s.index, what)
			do(s)
		}
	}
	lasting(c.Restarts, 3*w.lease, func() func() {
		some := few()
		each(some, "stops, and keeps its data", w.stop)
		return func() { each(some, "is up", func(s *server) { s.down = false }) }
	})
	add(c.Empties, func() {
		if !w.allVote() {
			return
		}
		some := few()
		if rng.IntN(2) > 0 { // or else its clients do not notice
			each(some, "is restarted", w.cut)
		}
		each(some, "has lost its data", func(s *server) { s.Mini.FlushAll() })
	})
	lasting(c.Pauses, 3*w.lease, func() func() {
		some := few()
		each(some, "stands still", func(s *server) { s.frozen = true })
		return func() {
			each(some, "goes on", func(s *server) {
				s.frozen = false
				s.serve()
			})
		}
	})
	lasting(c.Partitions, 3*w.lease, func() func() {
		n := some().p
		up, down := rng.IntN(3) > 0, rng.IntN(3) > 0
		for _, i := range rng.Perm(len(n.wires))[:1+rng.IntN(len(n.wires)-1)] {
			w.note("%s and server %d: lost to it %v, from it %v", n.engine.Channel(), i, up, down)
			n.wires[i].upLost, n.wires[i].downLost = up, down
		}
		return n.mend
	})
	return acts
}

// crash ends a process without a word.
func (w *world) crash(p *node) {
	w.dies(p)
	p.die()
}

// cut breaks all connections to a server, and stop has it refuse others.
func (w *world) cut(s *server) {
	s.queue = nil
	for _, p := range w.all {
		p.wires[s.index].cut()
	}
}

func (w *world) stop(s *server) {
	w.cut(s)
	s.down = true
}

// allVote reports whether all servers vote: then a minority of them may lose its data.
func (w *world) allVote() bool {
	generations := map[string]bool{}
	for _, m := range w.minis() {
		generations[m.HGet(mark, "generation")] = true
	}
	return len(generations) == 1 && !generations[""]
}
