package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
	scripts "github.com/seed-7e8842f7/rwlock/lua"
)

// A Parliament is a world of three or five servers that vote. Of its servers, a minority may be down, frozen
// or without their data at a time, links between single processes and servers may break in either direction,
// and no two clocks agree.
type Parliament struct {
	*loop
	*referee
	seed    uint64
	rng     *rand.Rand
	lease   time.Duration
	names   []string
	members []*member
	clients []*client
	latency time.Duration
	loss    int // of 1,000 frames
	busy    int // workers
	calm    bool
	apart   bool // each client misses another server

	stays     map[string][]*visit
	lastWrite map[string]int64
	lastRead  map[string]int64
	Scripts   map[string]int // how often each ran
}

// A member is a server.
type member struct {
	*server
	offset time.Duration
	ppm    int64
	life   int  // how often it was started
	down   bool // it refuses connections
	frozen bool
	gate   []func() // what has come meanwhile
}

func (m *member) clock(at time.Time) time.Time {
	d := at.Sub(genesis)
	return at.Add(m.offset + d/1_000_000*time.Duration(m.ppm))
}

// A path is between a client and a server.
type path struct {
	up, down bool // broken, in one direction
	sub      *hearing
	wait     time.Duration
}

type hearing struct{ stands bool }

// A client is a process.
type client struct {
	p       *Parliament
	id      int
	ppm     int64
	engine  *engine.Engine
	quorum  *quorum.Quorum
	links   []path
	armed   time.Time
	handles uint64
	listens bool
	process uuid.UUID
}

// A visit is an owner's hold, or a call.
type visit struct {
	c     *client
	hold  engine.Hold
	task  *task
	lost  bool
	left  bool
	owner engine.Owner
}

// SimulateQuorum lives through the world of one seed. Its report is empty if no promise is broken there.
func SimulateQuorum(seed uint64) (p *Parliament, report string) {
	rng := rand.New(rand.NewPCG(seed, 7))
	p = &Parliament{
		loop: &loop{at: genesis}, seed: seed, rng: rng, lease: []time.Duration{time.Second, 3 * time.Second,
			30 * time.Second}[rng.IntN(3)],
		names: []string{"a", "b"}[:1+rng.IntN(2)], latency: time.Duration(100+rng.IntN(20_000)) * time.Microsecond,
		stays: map[string][]*visit{}, lastWrite: map[string]int64{}, lastRead: map[string]int64{},
		Scripts: map[string]int{},
	}
	p.referee = newReferee(p.loop.now, p.names, limits{})
	if rng.IntN(2) == 0 {
		p.loss = rng.IntN(50)
	}
	for range []int{3, 3, 5}[rng.IntN(3)] {
		s := servers.Get().(*server)
		defer servers.Put(s)
		s.reset(genesis, rng.Uint64())
		m := &member{server: s, offset: time.Duration(rng.Int64N(int64(10*time.Hour))) - 5*time.Hour,
			ppm: rng.Int64N(10_000) - 5_000}
		if rng.IntN(3) == 0 {
			m.offset /= 1_000_000
		}
		p.members = append(p.members, m)
	}
	for i := range 2 + rng.IntN(3) {
		c := &client{p: p, id: i, ppm: rng.Int64N(10_000) - 5_000, links: make([]path, len(p.members)),
			process: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i))}
		instance := fmt.Sprintf("instance%03d", i)
		c.engine = engine.New(engine.Config{Prefix: prefix, Instance: instance, Lease: p.lease})
		c.quorum = quorum.New(quorum.Config{Servers: len(p.members), Prefix: prefix, Instance: instance}, c.engine)
		p.clients = append(p.clients, c)
	}
	if p.apart = rng.IntN(4) == 0; p.apart {
		for _, c := range p.clients {
			c.links[c.misses()] = path{up: true, down: true}
		}
	}
	defer p.loop.close()
	g := &loopGroup{loop: p.loop}
	for _, c := range p.clients {
		for range 1 + rng.IntN(3) {
			p.busy++
			r := rand.New(rand.NewPCG(rng.Uint64(), 8))
			p.spawn(g, func() { c.work(r) })
		}
	}
	p.spawn(g, p.trouble)
	limit := genesis.Add(2000*p.lease + 2*time.Hour)
	if !p.loop.run(func() bool { return p.busy == 0 || p.at.After(limit) || len(p.violations) > 0 }) {
		p.Violation("there is no end to what happens at one moment")
	} else if p.busy > 0 && len(p.violations) == 0 {
		p.Violation("a call never ends: %s", p.dump())
	}
	if report = p.Report(); report != "" {
		report = fmt.Sprintf("seed %d, %d servers, lease %v, latency %v, loss %d: %s", seed, len(p.members),
			p.lease, p.latency,
			p.loss, report)
	}
	return p, report
}

func (p *Parliament) dump() string {
	var b strings.Builder
	for i, m := range p.members {
		fmt.Fprintf(&b, "\nserver %d, %v: %s", i, m.clock(p.at), m.Mini.Dump())
	}
	for _, c := range p.clients {
		fmt.Fprintf(&b, "\nclient %d: %v", c.id, c.quorum.Describe())
	}
	return b.String()
}

func (c *client) clock() time.Time { return c.local(c.p.at) }

func (c *client) local(at time.Time) time.Time {
	return at.Add(at.Sub(genesis) / 1_000_000 * time.Duration(c.ppm))
}

func (c *client) global(local time.Time) time.Time {
	at := genesis.Add(time.Duration(float64(local.Sub(genesis)) / (1 + float64(c.ppm)/1e6))).Add(
		-2 * time.Microsecond)
	for c.local(at).Before(local) {
		at = at.Add(time.Microsecond)
	}
	return at
}

// do has something happen in the process, and does what follows from it.
func (c *client) do(fn func(now time.Time)) {
	now := c.clock()
	fn(now)
	var fx quorum.Effects
	c.quorum.Flush(now, &fx)
	for _, r := range fx.Requests {
		c.send(r, 1+c.p.rng.IntN(2))
	}
	for _, h := range fx.Cancel {
		v := h.Tag.(*visit)
		v.lost = true
		c.p.Lost++
		c.p.Note("client %d loses %v of %v", c.id, h.Name, v.owner.Handle)
		c.p.leave(v)
		v.wake()
	}
	for _, h := range fx.Wake {
		h.Tag.(*visit).wake()
	}
	if fx.Listen && !c.listens {
		c.listens = true
		for i := range c.links {
			c.subscribe(i)
		}
	}
	at, ok := c.quorum.Next()
	if !ok || !c.armed.IsZero() && !at.Before(c.armed) {
		return
	}
	c.armed = at
	c.p.when(later(c.global(at).Add(time.Duration(c.p.rng.Int64N(int64(500*time.Microsecond)))), c.p.at),
		func() {
			if c.armed.Equal(at) {
				c.armed = time.Time{}
				c.do(c.quorum.Tick)
			}
		})
}

func (p *Parliament) delay() time.Duration {
	return p.latency/4 + time.Duration(p.rng.Int64N(int64(p.latency)))
}

func (p *Parliament) loses() bool { return !p.calm && p.rng.IntN(1000) < p.loss }

// send sends a request, and again if it fails, as the client of the server does. Some arrive long after they
// were given up.
func (c *client) send(r *quorum.Request, tries int) {
	p, m, l := c.p, c.p.members[r.Server], &c.links[r.Server]
	life, over := m.life, false
	end := func(raw any, err error) {
		if over {
			return
		}
		over = true
		if err != nil && tries > 1 {
			p.after(8*time.Millisecond+time.Duration(p.rng.Int64N(int64(500*time.Millisecond))),
				func() { c.send(r, tries-1) })
			return
		}
		c.do(func(now time.Time) { c.quorum.Replied(now, r, raw, err) })
	}
	arrive := func() {
		if m.life != life || m.down {
			p.after(p.delay(), func() { end(nil, errBroken) })
			return
		}
		raw, err := m.execute(p, r)
		if l.down || p.loses() {
			return
		}
		p.after(p.delay(), func() {
			if m.life == life {
				end(raw, err)
			} else {
				end(nil, errBroken)
			}
		})
	}
	p.after(readTimeout, func() { end(nil, errSilence) })
	reach := func() {
		if m.frozen {
			m.gate = append(m.gate, arrive)
			return
		}
		arrive()
	}
	switch {
	case l.up || p.loses():
		if p.rng.IntN(2) == 0 {
			p.after(time.Duration(p.rng.Int64N(int64(time.Minute))), reach) // it was on its way
		}
	default:
		p.after(p.delay(), reach)
		if p.loses() {
			p.after(time.Duration(p.rng.Int64N(int64(time.Minute))), reach) // twice
		}
	}
}

// execute runs a script, and sends out what it publishes.
func (m *member) execute(p *Parliament, r *quorum.Request) (any, error) {
	p.Scripts[r.Script.Name]++
	if r.Script == scripts.Mark {
		p.Scripts[fmt.Sprint(r.VoteArgs.Args[0])]++
	}
	raw, err := m.run(m.clock(p.at), &r.Request)
	if err != nil {
		p.Violation("server: %s fails: %v", r.Script.Name, err)
	}
	for _, msg := range m.Published {
		for _, c := range p.clients {
			if c.engine.Channel() == msg[0] {
				c.publish(m, msg[1])
			}
		}
	}
	if r.Script == scripts.Vote || r.Script == scripts.RVote || r.Script == scripts.Unlock ||
		r.Script == scripts.RUnlock {
		p.Note("server %d: %s %v: %v", r.Server, r.Script.Name, r.Claim.ID, raw)
	}
	return raw, err
}

func (c *client) publish(m *member, message string) {
	for i, other := range c.p.members {
		if l := &c.links[i]; other == m && l.sub != nil && l.sub.stands && !l.down && !c.p.loses() {
			s := l.sub
			c.p.after(c.p.delay(), func() {
				if l.sub == s {
					c.do(func(now time.Time) { c.quorum.Heard(now, i, message) })
				}
			})
		}
	}
}

func (c *client) subscribe(i int) {
	p, m, l := c.p, c.p.members[i], &c.links[i]
	s := &hearing{}
	l.sub = s
	life := m.life
	p.after(p.delay(), func() {
		if l.sub != s {
			return
		}
		if m.down || m.frozen || l.up || l.down || m.life != life {
			p.after(time.Second, func() {
				if l.sub == s {
					c.hangUp(i)
				}
			})
			return
		}
		s.stands = true
		l.wait = firstWait
		p.after(p.delay(), func() {
			if l.sub == s {
				c.do(func(now time.Time) { c.quorum.Subscribed(now, i) })
			}
		})
	})
}

func (c *client) hangUp(i int) {
	l := &c.links[i]
	if l.sub == nil {
		return
	}
	l.sub = nil
	c.do(func(now time.Time) { c.quorum.Unsubscribed(now, i, errBroken) })
	l.wait = min(max(2*l.wait, firstWait), lastWait)
	c.p.after(l.wait, func() {
		if l.sub == nil {
			c.subscribe(i)
		}
	})
}

func (v *visit) wake() {
	if v.task != nil {
		v.task.wake()
	}
}

func (v *visit) await(end time.Time, done func() bool) {
	v.task = v.c.p.current
	for !done() && (end.IsZero() || v.c.p.at.Before(end)) {
		v.c.p.park(end)
	}
	v.task = nil
}

func (c *client) upTo(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(d)))
}

// work locks and unlocks.
func (c *client) work(r *rand.Rand) {
	p := c.p
	defer func() { p.busy-- }()
	for range 6 + r.IntN(8) {
		p.sleep(c.upTo(r, p.lease))
		c.handles++
		v := c.enter(r, p.names[r.IntN(len(p.names))], engine.Owner{Process: c.process, Handle: c.handles}, nil)
		if v == nil {
			continue
		}
		stays := []*visit{v}
		for range r.IntN(3) {
			c.linger(r, v)
			if again := c.enter(r, v.hold.Name, v.owner, v); again != nil {
				stays = append(stays, again)
			}
		}
		c.linger(r, v)
		for _, i := range r.Perm(len(stays)) {
			c.leave(stays[i])
		}
	}
}

func (c *client) linger(r *rand.Rand, v *visit) {
	d := c.upTo(r, c.p.lease/2)
	if r.IntN(6) == 0 {
		d = c.upTo(r, 3*c.p.lease)
	}
	v.await(c.p.at.Add(d), func() bool { return v.lost })
}

// enter makes a lock call; inside is a hold of the same owner, or nil.
func (c *client) enter(r *rand.Rand, name string, o engine.Owner, inside *visit) *visit {
	p := c.p
	v := &visit{c: c, owner: o}
	v.hold = engine.Hold{Name: name, Owner: o, Mode: protocol.Read, Lease: p.lease, Tag: v}
	h := &v.hold
	if r.IntN(2) == 0 {
		h.Mode = protocol.Write
	}
	if inside == nil {
		h.Try, h.NoRenew = r.IntN(6) == 0, r.IntN(8) == 0
		if r.IntN(8) == 0 {
			h.Lease = 2 * p.lease
		}
	}
	var end time.Time
	if r.IntN(3) == 0 {
		end = p.at.Add(c.upTo(r, 4*p.lease))
	}
	h.Bounded = !end.IsZero()
	p.Note("client %d: %d asks %v %q try=%v", c.id, o.Handle, h.Mode, name, h.Try)
	ended := func() bool { return h.State() != engine.Wanted && h.State() != engine.Entering }
	c.do(func(now time.Time) { c.engine.Acquire(now, h) })
	v.await(end, ended)
	if !ended() {
		c.do(func(now time.Time) { c.engine.GiveUp(now, h, context.Canceled) })
	}
	if h.State() != engine.Live || !c.clock().Before(h.Deadline()) {
		p.Note("client %d: %d has not got %q: %v", c.id, o.Handle, name, h.Err())
		c.do(func(now time.Time) { _, _ = c.engine.Release(now, h) })
		p.GaveUp++
		return nil
	}
	p.enters(v, inside)
	return v
}

// enters checks that an owner may enter.
func (p *Parliament) enters(v *visit, inside *visit) {
	h := &v.hold
	name, token := h.Name, h.Token()
	p.Holds++
	p.Note("client %d: %d holds %v %q, token %d until %v", v.c.id, v.owner.Handle, h.Mode, name, token,
		v.c.global(h.Deadline()).Sub(genesis).Seconds())
	for _, other := range p.stays[name] {
		if other.owner != v.owner && (h.Mode == protocol.Write || other.hold.Mode == protocol.Write) {
			p.Violation("exclusion: %v of client %d enters %q in mode %v beside %v of client %d", v.owner.Handle,
				v.c.id, name, h.Mode, other.owner.Handle, other.c.id)
		}
	}
	p.stays[name] = append(p.stays[name], v)
	switch {
	case inside != nil && (inside.hold.Mode == h.Mode || inside.hold.Mode == protocol.Write):
		if token != inside.hold.Token() {
			p.Violation("tokens: re-entry has %d inside %d", token, inside.hold.Token())
		}
	case h.Mode == protocol.Write:
		if token <= p.lastWrite[name] || token <= p.lastRead[name] {
			p.Violation("tokens: a writer of %q has %d after a writer's %d and a reader's %d", name, token,
				p.lastWrite[name], p.lastRead[name])
		}
		p.lastWrite[name] = token
	default:
		if token < p.lastWrite[name] {
			p.Violation("tokens: a reader of %q has %d after a writer's %d", name, token, p.lastWrite[name])
		}
		p.lastRead[name] = max(p.lastRead[name], token)
	}
}

// leave notes that a hold ends.
func (p *Parliament) leave(v *visit) {
	if v.left {
		return
	}
	v.left = true
	list := p.stays[v.hold.Name]
	for i, other := range list {
		if other == v {
			p.stays[v.hold.Name] = append(list[:i:i], list[i+1:]...)
			return
		}
	}
}

// leave releases a hold.
func (c *client) leave(v *visit) {
	h := &v.hold
	c.p.Note("client %d: %d releases %v %q", c.id, v.owner.Handle, h.Mode, h.Name)
	c.p.leave(v)
	known := false
	c.do(func(now time.Time) { known, _ = c.engine.Release(now, h) })
	if !known {
		v.await(c.p.at.Add(engine.EndTimeout), func() bool { return h.State() == engine.Finished })
	}
	c.p.Note("client %d: %d has released %q: %v", c.id, v.owner.Handle, h.Name, h.Err())
}

// whole reports whether all servers vote: then one of them may lose its data.
func (p *Parliament) whole() bool {
	generation := ""
	for i, m := range p.members {
		m.Mini.SetTime(m.clock(p.at))
		g := m.Mini.HGet(prefix+":mark", "generation")
		if g == "" || i > 0 && g != generation || m.down || m.frozen {
			return false
		}
		generation = g
	}
	return true
}

// trouble has servers and links fail, no more servers than a minority at a time.
func (p *Parliament) trouble() {
	r := p.rng
	kinds := r.IntN(32)
	for range 4 + r.IntN(12) {
		p.sleep(time.Duration(r.Int64N(int64(4 * p.lease))))
		if p.busy == 0 {
			break
		}
		p.Faults++
		f := len(p.members) / 2
		some := r.Perm(len(p.members))[:1+r.IntN(f)]
		for0 := time.Duration(r.Int64N(int64(3 * p.lease)))
		switch k := r.IntN(5); {
		case kinds&(1<<k) == 0:
		case k == 0: // restarted, with data
			for _, i := range some {
				p.Note("server %d is down", i)
				p.members[i].restart(p, i, false)
				p.members[i].down = true
			}
			p.sleep(for0)
			for _, i := range some {
				p.Note("server %d is up", i)
				p.members[i].down = false
			}
		case k == 1: // restarted, without data, once all have voted
			if p.whole() {
				for _, i := range some {
					p.Note("server %d loses its data", i)
					p.members[i].restart(p, i, true)
				}
			}
		case k == 2:
			for _, i := range some {
				p.Note("server %d stands still", i)
				p.members[i].frozen = true
			}
			p.sleep(for0)
			for _, i := range some {
				p.Note("server %d goes on", i)
				m := p.members[i]
				m.frozen = false
				gate := m.gate
				m.gate = nil
				for _, fn := range gate {
					fn()
				}
			}
		default: // links
			c := p.clients[r.IntN(len(p.clients))]
			one, way := r.IntN(2) == 0, r.IntN(2) == 0
			for _, i := range r.Perm(len(p.members))[:1+r.IntN(len(p.members)-1)] {
				p.Note("client %d and server %d: one way %v, up %v", c.id, i, one, way)
				c.links[i].up, c.links[i].down = !one || way, !one || !way
			}
			p.sleep(for0)
			c.mend()
		}
	}
	p.calm, p.apart = true, false
	for _, c := range p.clients {
		c.mend()
	}
	p.Note("no more trouble")
}

// mend has a client reach all servers, or, while clients are apart, all but one.
func (c *client) mend() {
	for i := range c.links {
		missed := c.p.apart && i == c.misses()
		c.links[i].up, c.links[i].down = missed, missed
		if c.links[i].sub != nil {
			c.hangUp(i) // nothing can be relied on that came meanwhile
		}
	}
	c.p.Note("client %d can reach all, apart: %v", c.id, c.p.apart)
}

// misses returns the server that a client cannot reach while clients are apart.
func (c *client) misses() int { return c.id % len(c.p.members) }

// restart breaks all connections to a server.
func (m *member) restart(p *Parliament, i int, empty bool) {
	m.life++
	if empty {
		m.Mini.FlushAll()
	}
	m.gate = nil
	for _, c := range p.clients {
		c.hangUp(i)
	}
}
