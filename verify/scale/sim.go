// Package scale simulates more than any machine of this project has: thousands of processes, each with the
// library's engine, and a cluster of masters that run the library's scripts, under a clock of its own.
// docs/scale.md compares what comes out with what it predicts.
package scale

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	scripts "github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A Plan is what to simulate.
type Plan struct {
	Masters, Processes int
	Duration           time.Duration
	Think              time.Duration // of a process, on average, between two pairs
	Work               time.Duration // under a lock, on average
	Names, Hot         int           // how many names there are, and how many of them are hot
	HotShare           float64       // of all pairs
	Keepers            int           // processes that keep a hold of their own for as long as they live
	Trip               time.Duration // from a process to a master, or back
	Cost               func(script string, told int) time.Duration
	Lease              time.Duration
	FailAt, FailFor    time.Duration // when a master fails, and for how long
	// when processes begin to be started again, one after the other, for RestartIn
	RestartAt time.Duration
	RestartIn time.Duration
}

// A Report is what came out.
type Report struct {
	Pairs, HotPairs, Failed int
	Scripts                 map[string]int
	Messages                int
	Busy                    []time.Duration // of each master
	Waits, HotWaits         []time.Duration // from call to grant, before anything fails
	HotAfter                []time.Duration // since then
	Outage                  []time.Duration // of calls at the failed master
	Lost                    int             // holds of processes that had not crashed
	Flaws                   []string        // broken promises
}

// Quantile returns the wait that a part of a list does not exceed.
func Quantile(list []time.Duration, part float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	return list[min(int(part*float64(len(list))), len(list)-1)]
}

// Mean returns the mean wait.
func Mean(list []time.Duration) (mean time.Duration) {
	for _, d := range list {
		mean += d / time.Duration(len(list))
	}
	return mean
}

// An event is something that happens.
type event struct {
	order.Place
	do func()
}

type sim struct {
	Plan
	Report

	rng       *rand.Rand
	now       time.Time
	start     time.Time
	events    order.Timeline[*event]
	number    uint64 // of events so far
	masters   []*master
	processes []*process
	listeners map[string]*process // by instance
	locks     map[string]*lock
	ending    bool
}

// Simulate lives through a plan.
func Simulate(plan Plan, seed uint64) (*Report, error) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &sim{
		Plan: plan, Report: Report{Scripts: map[string]int{}, Busy: make([]time.Duration, plan.Masters)},
		rng: rand.New(rand.NewPCG(seed, 1)), now: start, start: start,
		listeners: map[string]*process{}, locks: map[string]*lock{},
	}
	for i := range plan.Masters {
		m, err := newMaster(s, i)
		if err != nil {
			return nil, err
		}
		s.masters = append(s.masters, m)
	}
	for i := range plan.Processes {
		p := &process{sim: s, index: i}
		s.processes = append(s.processes, p)
		s.after(s.upTo(plan.Think), p.begin)
		if plan.RestartIn > 0 {
			s.after(plan.RestartAt+plan.RestartIn*time.Duration(i)/time.Duration(plan.Processes), p.restart)
		}
	}
	failing := s.masters[plan.Masters/3]
	s.after(plan.FailAt, failing.fail)
	s.after(plan.FailAt+plan.FailFor, failing.recover)
	s.run(start.Add(plan.Duration))
	s.ending = true
	for _, p := range s.processes {
		p.stop()
	}
	s.run(s.now.Add(2 * plan.Lease))
	for _, p := range s.processes {
		if p.engine != nil && !p.engine.Idle() {
			s.flaw("process %d has something left to do after Close", p.index)
		}
	}
	for _, m := range s.masters {
		m.script.Mini.SetTime(s.now.Add(10 * time.Minute))
		if n := len(m.script.Mini.Keys()); n > 0 {
			s.flaw("master %d keeps %d keys", m.index, n)
		}
		m.script.Mini.Close()
	}
	return &s.Report, nil
}

func (s *sim) after(d time.Duration, do func()) { s.events.Set(s.event(do), s.now.Add(max(d, 0))) }

// event returns an event that is yet to be set: after those that were made before it, if they happen at the
// same time.
func (s *sim) event(do func()) *event {
	s.number++
	return &event{Place: order.Place{Tie: s.number}, do: do}
}

func (s *sim) run(end time.Time) {
	for at, ok := s.events.Next(); ok && !at.After(end); at, ok = s.events.Next() {
		e := s.events.First()
		s.events.Remove(e)
		s.now = at
		e.do()
	}
	s.now = end
}

func (s *sim) flaw(format string, args ...any) {
	if len(s.Flaws) < 20 {
		s.Flaws = append(s.Flaws, fmt.Sprintf("%v: ", s.now.Sub(s.start))+fmt.Sprintf(format, args...))
	}
}

func (s *sim) about(mean time.Duration) time.Duration {
	return time.Duration(s.rng.ExpFloat64() * float64(mean))
}

func (s *sim) upTo(most time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(most)))
}

// A master runs one script at a time.
type master struct {
	sim    *sim
	index  int
	script *script.Server
	free   time.Time // when it has run all that has come so far
	down   bool
	fails  int
}

func newMaster(s *sim, index int) (*master, error) {
	sources := map[string]string{}
	for _, x := range scripts.All {
		sources[x.Name] = x.Source
	}
	server, err := script.NewServer(sources)
	if err != nil {
		return nil, err
	}
	server.Mini.ClockTTL(true)
	return &master{sim: s, index: index, script: server}, nil
}

var errDown = errors.New("the connection is refused")

// take takes a request that has arrived. What it costs depends on what it does, so it runs when it begins.
func (m *master) take(p *process, r *engine.Request) {
	s := m.sim
	if m.down {
		s.after(s.Trip, func() { p.replied(r, nil, errDown) })
		return
	}
	begin := m.free
	if begin.Before(s.now) {
		begin = s.now
	}
	m.free = begin.Add(s.Cost(r.Script.Name, 0))
	fails := m.fails
	s.after(begin.Sub(s.now), func() {
		if m.fails != fails {
			p.replied(r, nil, errDown)
			return
		}
		m.run(p, r)
	})
}

func (m *master) run(p *process, r *engine.Request) {
	s := m.sim
	m.script.Mini.SetTime(s.now)
	var texts []string
	for _, a := range r.Argv(nil) {
		texts = append(texts, a.(string))
	}
	reply, err := m.script.Run(r.Script.Name, texts[1:4], texts[4:])
	told := len(m.script.Published)
	cost := s.Cost(r.Script.Name, told)
	m.free = m.free.Add(cost - s.Cost(r.Script.Name, 0))
	s.Busy[m.index] += cost
	s.Scripts[r.Script.Name]++
	s.Messages += told
	s.after(cost+s.Trip, func() { p.replied(r, reply, err) })
	for _, x := range slices.Clone(m.script.Published) {
		instance := x[0][strings.LastIndex(x[0], ":")+1:]
		s.after(cost+s.Trip, func() {
			if to := s.listeners[instance]; to != nil && to.stands {
				to.do(func(e *engine.Engine) { e.Heard(s.now, x[1]) })
			}
		})
	}
}

func (m *master) fail() { m.down, m.fails = true, m.fails+1 }

// recover has a replica take over that knows all that the master knew. Whoever listens subscribes there.
func (m *master) recover() {
	s := m.sim
	m.down, m.free = false, s.now
	for _, p := range s.processes {
		if p.engine != nil {
			s.after(s.Trip+s.upTo(time.Second), func() {
				p.do(func(e *engine.Engine) {
					e.Resume(s.now)
					if p.stands {
						e.Subscribed(s.now)
					}
				})
			})
		}
	}
}

// A process has an engine, and one goroutine that locks and unlocks.
type process struct {
	sim      *sim
	index    int
	life     int
	instance string
	engine   *engine.Engine // or nil
	handle   uint64
	tick     *event
	stands   bool // the subscription
	kept     *call
	fx       engine.Effects
}

func (p *process) begin() {
	s := p.sim
	p.life++
	p.instance = fmt.Sprintf("%05d-%05d", p.index, p.life)
	p.engine = engine.New(engine.Config{Prefix: "rwlock", Instance: p.instance, Lease: s.Lease})
	p.tick = s.event(func() { p.do(func(e *engine.Engine) { e.Tick(s.now) }) })
	p.stands, p.kept = false, nil
	s.listeners[p.instance] = p
	if p.index < s.Keepers {
		p.kept = p.lock(fmt.Sprint("kept:", p.index), protocol.Write, func(*call) {})
	}
	p.think()
}

// away is how long a process is not there that is started again.
const away = 5 * time.Second

// restart ends a process, every second one without a word, and begins another in its place.
func (p *process) restart() {
	if p.index%2 == 0 {
		p.stop()
	} else {
		p.kill()
	}
	p.sim.after(away, func() { p.kill(); p.begin() })
}

func (p *process) stop() { p.do(func(e *engine.Engine) { e.Close(p.sim.now) }) }

func (p *process) kill() {
	delete(p.sim.listeners, p.instance)
	if p.engine = nil; p.tick.Placed() {
		p.sim.events.Remove(p.tick)
	}
}

func (p *process) think() {
	life := p.life
	p.sim.after(p.sim.about(p.sim.Think), func() {
		if p.engine != nil && p.life == life && !p.sim.ending {
			p.pair()
		}
	})
}

// pair locks and unlocks once.
func (p *process) pair() {
	s := p.sim
	name, mode, hot := fmt.Sprint("name:", s.rng.IntN(s.Names)), protocol.Write, s.rng.Float64() < s.HotShare
	if hot {
		name = fmt.Sprint("hot:", s.rng.IntN(s.Hot))
	} else if s.rng.IntN(2) == 0 {
		mode = protocol.Read
	}
	begun := s.now
	p.lock(name, mode, func(c *call) {
		wait := s.now.Sub(begun)
		switch failed := s.start.Add(s.FailAt); {
		case s.of(name).index == s.Masters/3 && begun.Before(failed.Add(s.FailFor)) && s.now.After(failed):
			s.Outage = append(s.Outage, wait)
		case hot && !begun.Before(failed):
			s.HotAfter = append(s.HotAfter, wait)
		case hot:
			s.HotWaits = append(s.HotWaits, wait)
		case begun.Before(failed):
			s.Waits = append(s.Waits, wait)
		}
		s.Pairs++
		if hot {
			s.HotPairs++
		}
		s.after(s.about(s.Work), c.unlock)
	})
}

// of returns the master that has a name. What matters is that names are spread evenly.
func (s *sim) of(name string) *master {
	return s.masters[crc32.ChecksumIEEE([]byte(name))%uint32(len(s.masters))]
}

// do does something with the engine, and then what the engine wants done.
func (p *process) do(fn func(e *engine.Engine)) {
	if p.engine == nil {
		return
	}
	s := p.sim
	fn(p.engine)
	p.engine.Flush(s.now, &p.fx)
	for _, r := range p.fx.Send {
		_, name, _ := strings.Cut(r.Keys.Lock.(string), "{")
		m := s.of(strings.TrimSuffix(name, "}"))
		s.after(s.Trip, func() { m.take(p, r) })
	}
	woken := slices.Clone(p.fx.Wake)
	if p.fx.Listen {
		life := p.life
		s.after(2*s.Trip, func() {
			if p.life == life {
				p.stands = true
				p.do(func(e *engine.Engine) { e.Subscribed(s.now) })
			}
		})
	}
	for _, h := range p.fx.Cancel {
		if errors.Is(h.Err(), engine.ErrLost) {
			s.Lost++
		}
	}
	p.fx.Reset()
	if at, ok := p.engine.Next(); ok {
		s.events.Set(p.tick, at)
	} else if p.tick.Placed() {
		s.events.Remove(p.tick)
	}
	for _, h := range woken {
		h.Tag.(*call).woken()
	}
}

func (p *process) replied(r *engine.Request, raw any, err error) {
	life := strings.HasPrefix(r.Claim.Slot.(string), p.instance)
	if p.engine == nil || !life {
		return
	}
	var reply protocol.Reply
	if err == nil {
		reply, err = protocol.Decode(r.Script, raw)
	}
	p.do(func(e *engine.Engine) { e.Replied(p.sim.now, r, reply, err) })
}

// A call is one acquisition.
type call struct {
	p       *process
	life    int
	hold    engine.Hold
	granted func(*call)
	has     bool
}

func (p *process) lock(name string, mode protocol.Mode, granted func(*call)) *call {
	p.handle++
	c := &call{p: p, life: p.life, granted: granted}
	c.hold = engine.Hold{
		Name: name, Owner: engine.Owner{Process: uuid.UUID{byte(p.index), byte(p.index >> 8), byte(p.life)},
			Handle: p.handle}, Mode: mode,
		Lease: p.sim.Lease, Bounded: true, NewOwner: true, Tag: c,
	}
	p.do(func(e *engine.Engine) { e.Acquire(p.sim.now, &c.hold) })
	return c
}

func (c *call) woken() {
	s := c.p.sim
	switch c.hold.State() {
	case engine.Live:
		if !c.has {
			c.has = true
			s.grant(c)
			c.granted(c)
		}
	case engine.Failed:
		if !errors.Is(c.hold.Err(), engine.ErrClosed) {
			s.Failed++
			c.p.think()
		}
	case engine.Finished:
		c.p.think()
	}
}

func (c *call) unlock() {
	s := c.p.sim
	if c.p.life != c.life || c.p.engine == nil {
		return
	}
	l := s.locks[c.hold.Name]
	l.holds = slices.DeleteFunc(l.holds, func(o *call) bool { return o == c })
	var known bool
	c.p.do(func(e *engine.Engine) { known, _ = e.Release(s.now, &c.hold) })
	if known {
		c.p.think()
	}
}

// live reports whether the hold may be relied on: that of a process which has crashed is, until its deadline.
func (c *call) live() bool {
	return c.hold.State() == engine.Live && c.p.sim.now.Before(c.hold.Deadline())
}

// A lock is what has been seen of one.
type lock struct {
	holds []*call
	token int64 // of the last writer
}

// grant checks that holds of one name exclude each other, and that tokens grow.
func (s *sim) grant(c *call) {
	name, writes, token := c.hold.Name, c.hold.Mode == protocol.Write, c.hold.Token()
	l := s.locks[name]
	if l == nil {
		l = &lock{}
		s.locks[name] = l
	}
	l.holds = slices.DeleteFunc(l.holds, func(o *call) bool { return !o.live() })
	for _, o := range l.holds {
		if writes || o.hold.Mode == protocol.Write {
			s.flaw("%s: %s was granted beside %s", name, c.hold.Owner, o.hold.Owner)
		}
	}
	if token < l.token || writes && token == l.token {
		s.flaw("%s: token %d after %d", name, token, l.token)
	}
	if l.holds = append(l.holds, c); writes {
		l.token = token
	}
}
