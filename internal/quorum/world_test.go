package quorum

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A world is several processes and three servers, of which each keeps one lock for writers, in order of
// arrival. What a process sends to a server arrives in the order in which it was sent, and so do the replies.
type world struct {
	t         *testing.T
	now       time.Time
	rng       *rand.Rand
	trip      time.Duration // the most that a message takes one way
	processes []*process
	servers   [3]standIn
	events    []event // in order of time
	silent    bool    // a server that cannot be reached leaves requests without an answer
	busy      bool    // calls begin
}

// A process calls for the lock again and again.
type process struct {
	*rig
	index   int
	cut     [3]bool         // servers that it cannot reach
	arrives [3][2]time.Time // by server: when the last request arrives, and the last reply or message
	callers []*caller
	holds   int
	longest time.Duration // that a call took
}

type caller struct {
	hold  *engine.Hold
	begun time.Time
	until time.Time // the end of the hold; zero if the lock is not held
}

type event struct {
	at time.Time
	do func()
}

// A standIn is what a server would do.
type standIn struct {
	holder *place
	queue  []*place
	last   int64
}

type place struct {
	claim   string
	number  uint64
	process int
	token   int64
	until   time.Time
}

func newWorld(t *testing.T, seed uint64, trip time.Duration, processes, callers int) *world {
	w := &world{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), rng: rand.New(rand.NewPCG(seed, 0)),
		trip: trip}
	for i := range processes {
		instance := fmt.Sprintf("instance-%02d", i)
		r := &rig{t: t, now: w.now, token: someToken}
		r.engine = engine.New(engine.Config{Prefix: "p", Instance: instance, Lease: lease})
		r.quorum = New(Config{Servers: 3, Prefix: "p", Instance: instance}, r.engine)
		for k := range 3 {
			r.quorum.Subscribed(w.now, k)
		}
		p := &process{rig: r, index: i}
		for range callers {
			p.callers = append(p.callers, &caller{})
		}
		w.processes = append(w.processes, p)
	}
	return w
}

func (w *world) after(d time.Duration, do func()) time.Time { return w.at(w.now.Add(d), do) }

func (w *world) at(at time.Time, do func()) time.Time {
	i, _ := slices.BinarySearchFunc(w.events, at, func(e event, at time.Time) int {
		if e.at.After(at) {
			return 1
		}
		return -1
	})
	w.events = slices.Insert(w.events, i, event{at, do})
	return at
}

// along sends something along a way, on which nothing overtakes anything.
func (w *world) along(last *time.Time, do func()) {
	*last = w.at(later(*last, w.now.Add(time.Duration(1+w.rng.Int64N(int64(w.trip))))), do)
}

// run has time pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for {
		at := end
		if len(w.events) > 0 && w.events[0].at.Before(at) {
			at = w.events[0].at
		}
		due := -1
		for i, p := range w.processes {
			if t, ok := p.quorum.Next(); ok && t.Before(at) {
				at, due = t, i
			}
		}
		if !at.Before(end) {
			w.now = end
			return
		}
		w.now = later(w.now, at)
		for _, p := range w.processes {
			p.now = w.now
		}
		if due >= 0 {
			p := w.processes[due]
			p.do(func() { p.quorum.Tick(w.now) })
			w.settle(p)
			continue
		}
		e := w.events[0]
		w.events = w.events[1:]
		e.do()
	}
}

// goOn has all processes begin calls.
func (w *world) goOn() {
	for _, p := range w.processes {
		w.settle(p)
	}
}

// settle sends what a process has to send, and has its callers go on.
func (w *world) settle(p *process) {
	for again := true; again; {
		again = false
		for _, q := range p.sent {
			w.send(p, q)
		}
		p.sent = nil
		for _, c := range p.callers {
			switch {
			case c.hold == nil && !w.busy:
			case c.hold == nil || c.until.IsZero() && c.hold.State() != engine.Wanted && c.hold.State() != engine.Live:
				c.begun = w.now
				c.hold, again = p.call("n"), true
			case c.until.IsZero() && c.hold.State() == engine.Live:
				p.holds++
				p.longest = max(p.longest, w.now.Sub(c.begun))
				for _, other := range w.processes {
					for _, o := range other.callers {
						require.True(w.t, o == c || o.until.IsZero(), "two hold the lock")
					}
				}
				c.until = w.after(5*time.Millisecond, func() {
					p.do(func() { _, _ = p.engine.Release(w.now, c.hold) })
					c.hold, c.until = nil, time.Time{}
					w.settle(p)
				})
			}
		}
	}
}

func (w *world) send(p *process, q *Request) {
	i := q.Server
	if p.cut[i] && w.silent {
		return
	}
	if p.cut[i] {
		w.after(time.Millisecond, func() {
			p.fail(q)
			w.settle(p)
		})
		return
	}
	w.along(&p.arrives[i][0], func() {
		raw := w.serve(p, i, q)
		w.along(&p.arrives[i][1], func() {
			p.reply(q, raw)
			w.settle(p)
		})
	})
}

// serve does what a server does with a request.
func (w *world) serve(p *process, i int, q *Request) any {
	s := &w.servers[i]
	id, _ := q.Claim.ID.(string)
	held := s.holder != nil && s.holder.claim == id
	switch {
	case q.Script == lua.Mark:
		return markOf(i, "g", false, "")
	case q.Script == lua.Vote:
		return s.vote(w, p, i, q)
	case q.Script == lua.Renew && held:
		s.holder.until = w.now.Add(lease)
		return done
	case q.Script == lua.Unlock && held:
		s.holder = nil
		s.grant(w, i)
		return done
	}
	s.queue = slices.DeleteFunc(s.queue, func(o *place) bool { return o.claim == id })
	return gone
}

func (s *standIn) vote(w *world, p *process, i int, q *Request) any {
	id := q.Claim.ID.(string)
	wanted, _ := strconv.ParseInt(q.VoteArgs.Wanted.(string), 10, 64)
	at := slices.IndexFunc(s.queue, func(o *place) bool { return o.claim == id })
	switch {
	case s.holder != nil && s.holder.claim == id:
		s.holder.until = w.now.Add(lease)
	case at >= 0:
		s.queue[at].until = w.now.Add(lease)
		return waits(lease / 3)
	case s.holder == nil || !q.Try:
		s.queue = append(s.queue, &place{claim: id, number: q.number, process: p.index, until: w.now.Add(lease)})
		if s.holder != nil {
			return waits(lease / 3)
		}
		s.grant(w, i)
	default:
		return waits(lease / 3)
	}
	s.holder.token = max(s.holder.token, wanted)
	s.last = max(s.last, s.holder.token)
	return p.vote(s.holder.token)
}

// grant lets in who is next, and tells its process.
func (s *standIn) grant(w *world, i int) {
	if len(s.queue) == 0 {
		return
	}
	h := s.queue[0]
	s.queue, s.holder = s.queue[1:], h
	s.last++
	h.token = s.last
	s.expire(w, i, h)
	if p := w.processes[h.process]; !p.cut[i] {
		w.along(&p.arrives[i][1], func() {
			p.do(func() { p.quorum.Heard(w.now, i, fmt.Sprintf("%d 0 %d", h.token, h.number)) })
			w.settle(p)
		})
	}
}

// expire ends a hold when its lease is over.
func (s *standIn) expire(w *world, i int, h *place) {
	w.at(h.until, func() {
		switch {
		case s.holder != h:
		case h.until.After(w.now):
			s.expire(w, i, h)
		default:
			s.holder = nil
			s.grant(w, i)
		}
	})
}

// Three processes of which each misses another server all get the lock, whether a server refuses connections
// or is silent, and whether they have the lock, or wait for it, when that begins. What a process can no
// longer give back ends with its lease.
func TestProcessesThatReachDifferentMajoritiesAllMakeProgress(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		for _, inUse := range []bool{false, true} {
			for _, callers := range []int{1, 3} {
				t.Run(fmt.Sprintf("silent %v, in use %v, %d callers", silent, inUse, callers), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, 1, 4*time.Millisecond, 3, callers)
					w.silent, w.busy = silent, true
					w.goOn()
					w.run(time.Second)
					if !inUse {
						w.busy = false
						w.run(time.Second)
						w.busy = true
					}
					for i, p := range w.processes {
						p.cut[i] = true
					}
					w.goOn()
					w.run(2 * lease)
					w.allMakeProgress(t)
				})
			}
		}
	}
}

// allMakeProgress lets a lease pass in which each process gets the lock, and none waits long for it.
func (w *world) allMakeProgress(t *testing.T) {
	for _, p := range w.processes {
		p.holds, p.longest = 0, 0
	}
	w.run(lease)
	all := 0
	for _, p := range w.processes {
		all += p.holds
	}
	for _, p := range w.processes {
		t.Log(p.holds, "holds, the longest call", p.longest)
		require.Greater(t, p.holds, all/10)
		require.Less(t, p.longest, 2*time.Second)
	}
}
