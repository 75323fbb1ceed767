package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A table is the stage of engines: a loop, the server, and nodes that have an engine each.
type table struct {
	*loop
	*server
	w      *world
	nodes  []*node
	offset time.Duration // by which the server's clock is ahead
	ran    int           // scripts
}

// The first moment of every world.
var genesis = time.Date(2030, 1, 1, 0, 0, 0, 654_321_000, time.UTC)

var servers = sync.Pool{New: func() any {
	s, err := newServer()
	if err != nil {
		panic(err)
	}
	return s
}}

// Simulate lives through the world of one seed, with engines. Its report is empty if no promise is broken
// there.
func Simulate(seed uint64, climate string) (tally Tally, report string) {
	w := simulate(seed, climate)
	if report = w.Report(); report != "" {
		report = w.String() + ":\n" + report
	}
	return w.Tally, report
}

func simulate(seed uint64, climate string) *world {
	s := servers.Get().(*server)
	defer servers.Put(s)
	s.reset(genesis, seed)
	t := &table{loop: &loop{at: genesis}, server: s}
	w := newWorld(func(w *world) stage { t.w = w; return t }, seed, of(func(c Climate) bool { return !c.whole }),
		climate)
	defer t.loop.close()
	done := false
	t.spawn(&loopGroup{loop: t.loop}, func() {
		w.live()
		done = true
	})
	if !t.loop.run(func() bool { return done }) {
		w.Violation("there is no end to what happens at one moment")
	} else if !done {
		w.Violation("nothing happens any more")
	}
	w.Requests = t.ran
	return w
}

// of returns the climates that fit.
func of(fits func(Climate) bool) []Climate {
	return slices.DeleteFunc(slices.Clone(Climates), func(c Climate) bool { return !fits(c) })
}

func (t *table) mini() *miniredis.Miniredis {
	t.server.Mini.SetTime(t.serverTime())
	return t.server.Mini
}

func (t *table) serverTime() time.Time { return t.at.Add(t.offset) }

// run is for whole RWLocks: an engine knows nothing of how a script is called.
func (t *table) run(string) {}

func (t *table) step(d time.Duration) { t.offset += d }

func (t *table) copy() func() {
	c := t.server.copy(t.serverTime())
	return func() { t.server.become(t.serverTime(), c) }
}

func (t *table) mute() { t.server.Mute = true }

// execute runs a script, and sends out what it publishes.
func (t *table) execute(r *protocol.Request) (any, error) {
	t.ran++
	if r.Script == lua.Force { // it may come late
		for _, name := range t.w.names {
			if protocol.KeysOf(prefix, name).Lock == r.Keys.Lock {
				t.w.declare(name)
			}
		}
	}
	reply, err := t.server.run(t.serverTime(), r)
	if err != nil {
		t.w.Violation("server: %s fails: %v; it has %s", r.Script.Name, err, t.server.Mini.Dump())
	}
	for _, m := range t.Published {
		for _, n := range t.nodes {
			if n.engine.Channel() == m[0] {
				n.wire.publish(m[1])
			}
		}
	}
	t.check(r)
	return reply, err
}

// check looks at what a script has left, now and then.
func (t *table) check(r *protocol.Request) {
	if t.ran%checkEach != 0 || t.w.climate.Crowd && t.ran%(32*checkEach) != 0 {
		return
	}
	for _, key := range []any{r.Keys.Lock, r.Keys.Leases, r.Keys.Queue} {
		if key := key.(string); t.server.Mini.Exists(key) && t.server.Mini.TTL(key) <= 0 {
			t.w.Violation("server: %s leaves %q without a time to live", r.Script.Name, key)
		}
	}
	s, err := t.server.inspectKeys(t.serverTime(), r.Keys)
	if err != nil {
		t.w.Violation("server: after %s: %v", r.Script.Name, err)
		return
	}
	for i, a := range s.Holders {
		for _, b := range s.Holders[:i] {
			same := a.Instance == b.Instance && a.Owner == b.Owner
			if (a.Known.Mode == protocol.Write || b.Known.Mode == protocol.Write) && !same {
				t.w.Violation("server: after %s, %v and %v hold the lock", r.Script.Name, a, b)
			}
		}
	}
}

// A node is a process that is no more than an engine, and what a process does for it.
type node struct {
	*table
	engine  *engine.Engine
	layer   engine.Layer // the engine, or what delegates locks to it
	wire    *wire
	process uuid.UUID
	ppm     int64 // by so many millionths its clock is fast

	handles uint64
	armed   time.Time // when the timer fires, by its clock
	stopped bool      // the timer is not armed any more
	killed  bool
	frozen  bool
	thawed  time.Time
	backlog []func()
	closing *task
	holds   []*grip
}

func (t *table) newProcess(seed uint64, c Climate) process {
	rng := rand.New(rand.NewPCG(seed, 2))
	n := &node{table: t, process: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, len(t.nodes)))}
	if c.Shared {
		n.process = uuid.Nil
	}
	if c.Drift {
		n.ppm = rng.Int64N(20_000) - 10_000
	}
	n.wire = &wire{n: n, chance: chance{rng, c.Weather}, retries: 3 * rng.IntN(2)}
	n.wire.weather.Latency = time.Duration(20+rng.IntN(980)) * time.Microsecond
	n.engine = engine.New(engine.Config{
		Prefix: prefix, Instance: fmt.Sprintf("instance%03d", len(t.nodes)), Lease: t.w.lease, Observe: true,
	})
	n.layer = n.engine
	if c.Delegates {
		n.layer = delegation.New(delegation.Config{
			Instance: fmt.Sprintf("instance%03d", len(t.nodes)), Owner: protocol.Owner{Process: n.process},
			Lease: delegationLease(rng, t.w.lease), Hold: t.w.lease, Observe: true, Eager: rng.IntN(2) == 0,
		}, n.engine)
	}
	t.nodes = append(t.nodes, n)
	return n
}

// delegationLease draws the lease of a process's delegations: that of holds, or a tenth of it.
func delegationLease(rng *rand.Rand, lease time.Duration) time.Duration {
	if rng.IntN(2) == 0 {
		return lease
	}
	return max(lease/10, 150*time.Millisecond)
}

// clock is the time by the process's own clock.
func (n *node) clock() time.Time { return n.local(n.at) }

func (n *node) local(at time.Time) time.Time {
	d := at.Sub(genesis)
	return at.Add(d/1_000_000*time.Duration(n.ppm) + d%1_000_000*time.Duration(n.ppm)/1_000_000)
}

// global returns the first moment at which the process's clock shows a time.
func (n *node) global(local time.Time) time.Time {
	d := local.Sub(genesis)
	at := genesis.Add(d - time.Duration(float64(d)*float64(n.ppm)/float64(1_000_000+n.ppm)) - 2*time.Microsecond)
	for n.local(at).Before(local) {
		at = at.Add(time.Microsecond)
	}
	return at
}

// do has the engine do something, and does what it wants done.
func (n *node) do(fn func(e *engine.Engine, now time.Time)) {
	fn(n.engine, n.clock())
	n.flush()
}

// hand hands something to the lowest layer, and does what is to be done.
func (n *node) hand(fn func(l engine.Layer, now time.Time)) {
	fn(n.layer, n.clock())
	n.flush()
}

func (n *node) flush() {
	var fx engine.Effects
	n.layer.Flush(n.clock(), &fx)
	for _, r := range fx.Send {
		n.wire.send(r)
	}
	for _, h := range fx.Cancel {
		h.Tag.(*grip).lose(h.Err())
	}
	for _, h := range fx.Wake {
		h.Tag.(*grip).wake()
	}
	for _, e := range fx.Events {
		if e.Kind == engine.Acquired {
			g := e.Hold.Tag.(*grip)
			g.under = e.Path == engine.ByDelegation || e.Path == engine.ByReentry && g.joins()
		}
		n.w.see(describe(e), 1)
	}
	if fx.Listen {
		n.wire.listen()
	}
	if fx.Relisten {
		n.w.Note("a subscription is given up for deaf")
		n.wire.relisten()
	}
	n.arm()
	if n.closing != nil && n.layer.Idle() {
		n.closing.wake()
	}
}

// later does something in the process as soon as that runs.
func (n *node) later(fn func()) {
	switch {
	case n.killed:
	case n.frozen:
		n.backlog = append(n.backlog, fn)
	default:
		fn()
	}
}

// arm sets the timer, which fires a little late.
func (n *node) arm() {
	at, ok := n.layer.Next()
	if !ok || n.stopped || !n.armed.IsZero() && !at.Before(n.armed) {
		return
	}
	n.armed = at
	late := time.Duration(n.wire.rng.Int64N(int64(500 * time.Microsecond)))
	n.when(later(n.global(at).Add(late), n.at), func() {
		if n.armed.Equal(at) { // it was not set again
			n.later(n.tick)
		}
	})
}

func (n *node) tick() {
	n.armed = time.Time{}
	if !n.stopped {
		n.hand(engine.Layer.Tick)
	}
}

func (n *node) adopt() { n.current.on = n }

func (n *node) newOwner() any {
	n.handles++
	return engine.Owner{Process: n.process, Handle: n.handles}
}

// A grip is a hold, or a call.
type grip struct {
	n        *node
	hold     engine.Hold
	waits    *task
	over     bool // released, or lost
	under    bool // it is under a delegation
	released bool
	lost     func(error)
}

func (g *grip) wake() {
	if g.waits != nil {
		g.waits.wake()
	}
}

func (g *grip) lose(cause error) {
	g.over = true
	if g.lost != nil {
		g.lost(cause)
	}
	g.wake()
}

// await waits until the hold has come to what is asked for, but not beyond a time, unless that is zero.
func (g *grip) await(end time.Time, done func() bool) {
	g.waits = g.n.current
	for !done() && (end.IsZero() || g.n.at.Before(end)) {
		g.n.park(end)
	}
	g.waits = nil
}

const mostTries = 10 // as of rwlock.RWLock

func (n *node) acquire(c call) (hold, error) {
	if c.limit < 0 {
		return nil, context.Canceled
	}
	var end time.Time
	if c.limit > 0 {
		end = n.at.Add(c.limit)
	}
	if c.owner == nil {
		c.owner = n.newOwner()
	}
	if c.lease == 0 {
		c.lease = n.w.lease
	}
	lease := (c.lease + time.Millisecond - 1).Truncate(time.Millisecond)
	for tries := 1; ; tries++ {
		g := &grip{n: n}
		g.hold = engine.Hold{
			Name: c.name, Owner: c.owner.(engine.Owner), Mode: engine.Mode(c.mode), Try: c.try, Lease: lease,
			NoRenew: c.noRenew,
			Bounded: c.limit > 0, Tag: g,
		}
		h := &g.hold
		ended := func() bool { return h.State() != engine.Wanted && h.State() != engine.Entering }
		n.do(func(e *engine.Engine, now time.Time) { e.Acquire(now, h) })
		g.await(end, ended)
		if !ended() {
			n.do(func(e *engine.Engine, now time.Time) { e.GiveUp(now, h, context.Canceled) })
		}
		if h.State() == engine.Live && n.clock().Before(h.Deadline()) {
			n.holds = append(n.holds, g)
			return g, nil
		}
		err := h.Err()
		if h.State() != engine.Failed && err != rwlock.ErrClosed {
			err = engine.ErrAgain
		}
		n.do(func(e *engine.Engine, now time.Time) { _, _ = e.Release(now, h) })
		if err != engine.ErrAgain || tries == mostTries {
			return nil, err
		}
	}
}

func (g *grip) token() int64 { return g.hold.Token() }
func (g *grip) owner() any   { return g.hold.Owner }
func (g *grip) good() bool   { return !g.over }
func (g *grip) lent() bool   { return g.under }

// joins reports whether the owner has a hold under a delegation.
func (g *grip) joins() bool {
	return slices.ContainsFunc(g.n.holds, func(other *grip) bool {
		return other.under && !other.over && other.hold.Name == g.hold.Name && other.hold.Owner == g.hold.Owner
	})
}

func (g *grip) whenLost(fn func(error)) {
	g.lost = fn
	if g.over && !g.released {
		fn(g.hold.Err())
	}
}

func (g *grip) linger(d time.Duration) {
	g.await(g.n.at.Add(d), func() bool { return g.over })
}

func (g *grip) unlock(limit time.Duration) (err error) {
	if g.released {
		return rwlock.ErrNotHeld
	}
	h, end := &g.hold, g.n.at.Add(engine.EndTimeout)
	if limit > 0 && limit < engine.EndTimeout {
		end = g.n.at.Add(limit)
	}
	g.released = true
	known := false
	g.n.do(func(e *engine.Engine, now time.Time) { known, err = e.Release(now, h) })
	g.over = true
	if known {
		return err
	}
	g.await(end, func() bool { return h.State() == engine.Finished })
	if h.State() != engine.Finished {
		return errNoAnswer
	}
	return h.Err()
}

func (g *grip) forget() {
	g.released = true
	g.n.do(func(e *engine.Engine, now time.Time) { e.Forget(now, &g.hold) })
}

func (n *node) force(name string, within time.Duration) (err error) {
	n.do(func(e *engine.Engine, now time.Time) { err = e.Force(now, name, nil) })
	return err
}

func (n *node) inspect(name string) (busy bool, says string) {
	s, err := n.server.inspectKeys(n.serverTime(), protocol.KeysOf(prefix, name))
	return err != nil || len(s.Holders)+len(s.Waiters) > 0, fmt.Sprintf("%+v, %v", s, err)
}

func (n *node) close() (err error) {
	if n.killed {
		return nil
	}
	for n.frozen {
		n.sleep(10 * time.Millisecond)
	}
	n.do(func(e *engine.Engine, now time.Time) {
		e.Close(now)
		if d, ok := n.layer.(*delegation.Layer); ok {
			d.Close(now)
		}
	})
	n.closing = n.current
	for end := n.at.Add(engine.EndTimeout); !n.layer.Idle() && n.at.Before(end); {
		n.park(end)
	}
	n.closing = nil
	n.stopped = true
	n.wire.unsubscribe()
	if !n.layer.Idle() {
		holds, places, cause := n.engine.Unreleased()
		err = fmt.Errorf("%d holds and %d places in queues end with their leases: %v", holds, places, cause)
	}
	return err
}

// settled reports whether the engine has forgotten everything that is over.
func (n *node) settled() error {
	if n.killed || !n.layer.Idle() {
		return nil
	}
	for _, g := range n.holds {
		if !g.released {
			return nil // by a worker that found its process dead
		}
	}
	if names := n.engine.InUse(); names > 0 {
		return fmt.Errorf("%s has %d names in use, though all is over", n.engine.Channel(), names)
	}
	return nil
}

func (n *node) stall()  { n.wire.stalled = true }
func (n *node) resume() { n.wire.resume() }
func (n *node) cut()    { n.wire.cut() }
func (n *node) deafen() { n.wire.deafen() }

func (n *node) freeze() { n.frozen = !n.killed }

// thaw has the process do, in any order, what there is to do since it stood still: its timer has fired, and
// replies and messages have come. Then its tasks go on.
func (n *node) thaw() {
	if !n.frozen {
		return
	}
	n.frozen, n.thawed = false, n.at
	backlog := n.backlog
	n.backlog = nil
	n.wire.rng.Shuffle(len(backlog), func(i, j int) { backlog[i], backlog[j] = backlog[j], backlog[i] })
	for _, fn := range backlog {
		n.later(fn)
	}
	for _, t := range n.tasks {
		if t.on == n && t.again {
			t.again = false
			t.wake()
		}
	}
}

func (n *node) calm() {
	n.thaw()
	n.wire.resume()
	n.wire.weather = Weather{Latency: n.wire.weather.Latency}
}

func (n *node) die() {
	n.thaw()
	n.wire.resume()
	n.killed = true
	n.wire.unsubscribe()
	for _, t := range n.tasks {
		if t.on == n {
			t.kill()
		}
	}
}

func (n *node) bury()       {}
func (n *node) dead() bool  { return n.killed }
func (n *node) awake() bool { return !n.killed && !n.frozen && n.thawed.Before(n.at) }

func (n *node) ran(since time.Time) bool { return !n.frozen && n.thawed.Before(since) }

// checkEach is of how many runs of a script one is looked at closely.
const checkEach = 4
