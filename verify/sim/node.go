package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// A node is a process that is no more than an engine, and what a process does for it.
type node struct {
	*loop
	w         *world
	engine    *engine.Engine
	delegates *delegation.Layer // below it, or nil
	base      base
	wires     []*wire // to each server
	listens   []*wire // that subscriptions are on: to each server that votes, or to one
	retries   int     // of its client, which sends again what has failed
	rng       *rand.Rand
	process   uuid.UUID
	apart     bool  // it misses one of the servers
	ppm       int64 // by so many millionths its clock is fast

	handles uint64
	armed   time.Time // when the timer fires, by its clock
	stopped bool      // the timer is not armed any more
	killed  bool
	frozen  bool
	thawed  time.Time
	backlog []func()
	stalled bool     // its network
	gate    []func() // what is held back there
	holds   []*grip
}

// A base is what is below the layers of a node: a quorum, or a server. i is the index of a server.
type base interface {
	Flush(now time.Time, to *quorum.Effects)
	Subscribed(now time.Time, i int)
	Unsubscribed(now time.Time, i int, err error)
	Heard(now time.Time, i int, message string)
	Tick(now time.Time)
	Next() (time.Time, bool)
	Idle() bool
}

// A single is one server.
type single struct {
	engine.Layer // the lowest
}

func (s single) Subscribed(now time.Time, _ int)              { s.Layer.Subscribed(now) }
func (s single) Unsubscribed(now time.Time, _ int, err error) { s.Layer.Unsubscribed(now, err) }
func (s single) Heard(now time.Time, _ int, message string)   { s.Layer.Heard(now, message) }

func (s single) Flush(now time.Time, to *quorum.Effects) {
	s.Layer.Flush(now, &to.Effects)
	for _, r := range to.Send {
		r.Layer, r.From = s.Layer, r
		to.Requests = append(to.Requests, &quorum.Request{Request: r.Request})
	}
}

func (w *world) newNode(seed uint64, c Climate) *node {
	rng := rand.New(rand.NewPCG(seed, 2))
	n := &node{loop: w.loop, w: w, rng: rng, process: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, len(w.nodes)))}
	if c.Shared {
		n.process = uuid.Nil
	}
	if c.Drift {
		n.ppm = rng.Int64N(20_000) - 10_000
	}
	if c.Latency == 0 {
		c.Latency = time.Duration(20+rng.IntN(980)) * time.Microsecond
	}
	if c.Votes {
		c.Latency *= time.Duration(1 + rng.IntN(20))
		n.ppm, n.apart = rng.Int64N(10_000)-5_000, c.Apart
	}
	n.retries = 3 * rng.IntN(2)
	for _, s := range w.servers {
		n.wires = append(n.wires, &wire{n: n, server: s, chance: chance{rng, c.Weather}})
	}
	if n.listens = n.wires; !c.Votes {
		n.listens = n.wires[:1]
	}
	instance := fmt.Sprintf("instance%04d", len(w.nodes))
	n.engine = engine.New(engine.Config{Prefix: prefix, Instance: instance, Lease: w.lease, Observe: true})
	n.base = single{n.engine}
	switch {
	case c.Delegates:
		n.delegates = delegation.New(delegation.Config{
			Instance: instance, Owner: protocol.Owner{Process: n.process},
			Lease: delegationLease(rng, w.lease), Hold: w.lease, Observe: true, Eager: rng.IntN(2) == 0,
		}, n.engine)
		n.base = single{n.delegates}
	case c.Votes:
		n.base = quorum.New(quorum.Config{Servers: len(w.servers), Prefix: prefix, Instance: instance}, n.engine)
		n.mend()
	}
	w.nodes[n.engine.Channel()] = n
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
func (n *node) clock() time.Time { return fast(n.at, n.ppm) }

// do does something that changes the engine, and then what that wants done.
func (n *node) do(fn func(now time.Time)) {
	fn(n.clock())
	var fx quorum.Effects
	n.base.Flush(n.clock(), &fx)
	for _, r := range fx.Requests {
		n.wires[r.Server].send(&r.Request, n.retries)
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
			if e.Path == 0 {
				n.w.violation("events: %s does not say how a call got %q", n.engine.Channel(), e.Name)
			}
			g.under = e.Path == engine.ByDelegation || e.Path == engine.ByReentry && g.joins()
		}
		n.w.see(describe(e), 1)
	}
	if fx.Listen {
		for _, w := range n.listens {
			w.listen()
		}
	}
	n.arm()
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

// pass has something done that comes over the network, as soon as that does not stall. arrive has the process
// do it then.
func (n *node) pass(fn func()) {
	if n.stalled {
		n.gate = append(n.gate, fn)
		return
	}
	fn()
}

func (n *node) arrive(fn func()) { n.pass(func() { n.later(fn) }) }

// arm sets the timer, which fires a little late.
func (n *node) arm() {
	at, ok := n.base.Next()
	if !ok || n.stopped || !n.armed.IsZero() && !at.Before(n.armed) {
		return
	}
	n.armed = at
	late := time.Duration(n.rng.Int64N(int64(500 * time.Microsecond)))
	wait := float64(at.Sub(n.clock())) * 1_000_000 / float64(1_000_000+n.ppm)
	n.after(time.Duration(wait)+late, func() {
		if n.armed.Equal(at) { // it was not set again
			n.later(n.tick)
		}
	})
}

func (n *node) tick() {
	n.armed = time.Time{}
	if !n.stopped {
		n.do(n.base.Tick)
	}
}

func (n *node) newOwner() engine.Owner {
	n.handles++
	return engine.Owner{Process: n.process, Handle: n.handles}
}

// A grip is a hold, or a call.
type grip struct {
	n *node
	engine.Hold
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

var errNoAnswer = errors.New("no answer yet")

func (n *node) acquire(c call) (*grip, error) {
	if c.limit < 0 {
		return nil, context.Canceled
	}
	var end time.Time
	if c.limit > 0 {
		end = n.at.Add(c.limit)
	}
	if c.owner == (engine.Owner{}) {
		c.owner = n.newOwner()
	}
	if c.lease == 0 {
		c.lease = n.w.lease
	}
	lease := (c.lease + time.Millisecond - 1).Truncate(time.Millisecond)
	for tries := 1; ; tries++ {
		g := &grip{n: n}
		g.Hold = engine.Hold{
			Name: c.name, Owner: c.owner, Mode: engine.Mode(c.mode), Try: c.try, Lease: lease,
			NoRenew: c.noRenew, Bounded: c.limit > 0, Tag: g,
		}
		h := &g.Hold
		ended := func() bool { return h.State() != engine.Wanted && h.State() != engine.Entering }
		n.do(func(now time.Time) { n.engine.Acquire(now, h) })
		g.await(end, ended)
		if !ended() {
			n.do(func(now time.Time) { n.engine.GiveUp(now, h, context.Canceled) })
		}
		if h.State() == engine.Live && n.clock().Before(h.Deadline()) {
			n.holds = append(n.holds, g)
			return g, nil
		}
		err := h.Err()
		if h.State() != engine.Failed && err != rwlock.ErrClosed {
			err = engine.ErrAgain
		}
		n.do(func(now time.Time) { _, _ = n.engine.Release(now, h) })
		if err != engine.ErrAgain || tries == mostTries {
			return nil, err
		}
	}
}

// joins reports whether the owner has a hold under a delegation.
func (g *grip) joins() bool {
	return slices.ContainsFunc(g.n.holds, func(other *grip) bool {
		return other.under && !other.over && other.Name == g.Name && other.Owner == g.Owner
	})
}

func (g *grip) whenLost(fn func(error)) {
	g.lost = fn
	if g.over && !g.released {
		g.n.after(0, func() { fn(g.Err()) })
	}
}

func (g *grip) linger(d time.Duration) {
	g.await(g.n.at.Add(d), func() bool { return g.over })
}

func (g *grip) unlock(limit time.Duration) (err error) {
	if g.released {
		return rwlock.ErrNotHeld
	}
	h, end := &g.Hold, g.n.at.Add(engine.EndTimeout)
	if limit > 0 && limit < engine.EndTimeout {
		end = g.n.at.Add(limit)
	}
	g.released = true
	known := false
	g.n.do(func(now time.Time) { known, err = g.n.engine.Release(now, h) })
	return g.ended(end, known, err)
}

// ended waits for the end of a hold that is released, unless that is known.
func (g *grip) ended(end time.Time, known bool, err error) error {
	g.over = true
	if known {
		return err
	}
	g.await(end, func() bool { return g.State() == engine.Finished })
	if g.State() != engine.Finished {
		return errNoAnswer
	}
	return g.Err()
}

func (g *grip) downgrade() (read *grip, err error) {
	r, known := &grip{n: g.n}, false
	r.Tag = r
	g.n.do(func(now time.Time) { known, err = g.n.engine.Downgrade(now, &g.Hold, &r.Hold) })
	if r.State() == engine.Failed {
		return nil, err
	}
	g.released = true
	g.n.holds = append(g.n.holds, r)
	return r, g.ended(g.n.at.Add(engine.EndTimeout), known, err)
}

func (g *grip) forget() {
	g.released = true
	g.n.do(func(now time.Time) { g.n.engine.Forget(now, &g.Hold) })
}

func (n *node) force(name string) (err error) {
	n.do(func(now time.Time) { err = n.engine.Force(now, name, 0, nil) })
	return err
}

func (n *node) close() (err error) {
	if n.killed {
		return nil
	}
	for n.frozen {
		n.sleep(10 * time.Millisecond)
	}
	n.do(func(now time.Time) {
		n.engine.Close(now)
		if n.delegates != nil {
			n.delegates.Close(now)
		}
	})
	for end := n.at.Add(engine.EndTimeout); !n.base.Idle() && n.at.Before(end); {
		n.sleep(100 * time.Microsecond)
	}
	n.stopped = true
	n.each((*wire).unsubscribe)
	if !n.base.Idle() {
		holds, places, cause := n.engine.Unreleased()
		err = fmt.Errorf("%d holds and %d places in queues end with their leases: %v", holds, places, cause)
	}
	return err
}

func (n *node) each(fn func(*wire)) {
	for _, w := range n.wires {
		fn(w)
	}
}

// mend has a node reach all servers, or, where nodes are apart, all but one.
func (n *node) mend() {
	for i, w := range n.wires {
		misses := n.apart && i == int(n.process[0])%len(n.wires)
		w.upLost, w.downLost = misses, misses
		w.sub.lose(errBroken) // nothing can be relied on that came meanwhile
	}
}

func (n *node) cut()    { n.each((*wire).cut) }
func (n *node) deafen() { n.each((*wire).deafen) }
func (n *node) stall()  { n.stalled = true }

func (n *node) resume() {
	gate := n.gate
	n.stalled, n.gate = false, nil
	for _, fn := range gate {
		fn()
	}
}

// learn has a node learn, a moment later, that another server answers.
func (n *node) learn() {
	n.after(upTo(n.rng, 50*maxLatency), func() { n.arrive(func() { n.do(n.base.(single).Resume) }) })
}

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
	n.rng.Shuffle(len(backlog), func(i, j int) { backlog[i], backlog[j] = backlog[j], backlog[i] })
	for _, fn := range backlog {
		n.later(fn)
	}
	for _, t := range n.tasks {
		if t.on == n && t.again {
			t.wake()
		}
	}
}

func (n *node) calm() {
	n.thaw()
	n.resume()
	n.each(func(w *wire) {
		w.weather = Weather{Latency: w.weather.Latency}
		w.upLost, w.downLost = false, false
	})
}

func (n *node) die() {
	n.thaw()
	n.resume()
	n.killed = true
	n.each((*wire).unsubscribe)
	for _, t := range n.tasks {
		if t.on == n {
			t.kill()
		}
	}
}

// settled reports whether the engine has forgotten everything that is over.
func (n *node) settled() error {
	if n.killed || !n.base.Idle() || slices.ContainsFunc(n.holds, func(g *grip) bool { return !g.released }) {
		return nil // a worker does not release what it holds if it finds its process dead
	}
	if names := n.engine.InUse(); names > 0 {
		return fmt.Errorf("%s has %d names in use, though all is over", n.engine.Channel(), names)
	}
	return nil
}

func (n *node) awake() bool { return !n.killed && !n.frozen && n.thawed.Before(n.at) }

func (n *node) ran(since time.Time) bool { return !n.frozen && n.thawed.Before(since) }
