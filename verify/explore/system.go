package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A system is a server, the processes that use it, and what may still go wrong.
type system struct {
	sites []site // one for each name
	procs []*node
	budget
}

// A site is where the server has the lock of a name.
type site struct {
	s   *server
	raw *raw // where nothing is normalized
}

type budget struct {
	faults, crashes, forces, stalls, undos, extends, closes uint8

	ticks  uint8 // that may pass, or unlimited
	faulty bool  // something has gone wrong, by which a hold may be lost
}

const unlimited = 255

// left writes a budget as bytes, of which a larger one never allows less.
func (b *budget) left() [9]byte {
	return [...]byte{b.faults, b.crashes, b.forces, b.stalls, b.undos, b.extends, b.closes, b.ticks,
		bit(!b.faulty)}
}

// An action is one step of a system.
type action struct {
	do   verb
	proc uint8
	a    int16
	event
	how how
}

// how is what becomes of a request that is sent. Each but the first costs a fault.
type how uint8

const (
	arrives   how = iota // it runs, and the reply comes
	twice                // it runs, and the reply comes; it is to run once more, late
	replyLost            // it runs; the reply is lost, so that it is sent again, and runs late
	late                 // it is slow
	replyLate            // it runs, and the reply is slow
	// it runs, and the reply comes, as do messages; then the server forgets it. That costs an undo
	undone
)

// Actions that are not events of a process.
const (
	run     verb = 100 + iota // a: flight
	deliver                   // a: flight that has replied
	again                     // a: copy
	expire                    // of the keys
)

// explorer knows what all systems have in common.
type explorer struct {
	*machine
	setup
	seeds
	owners    []int // of each process
	lease     []time.Duration
	normalize bool
	ids       ids // of all processes
	nodes     map[fingerprint]*node
	changes   map[happening]*change
	renamed   map[renamed]*node
	worked    int            // how many changes were worked out
	served    map[fair]uint8 // how many ticks until all is over, if nothing else happens: see fair
	flaw      error          // in the last action
	tracing   bool
	since     []string // what followed from the last action, if tracing
	visit     func(*system)
	exact     bool // systems that differ in what may still go wrong are all visited: see seen

	// Mistakes made on purpose, to see that they are found.
	mute    func(*engine.Request) bool             // whether a request is not sent
	alter   func(*engine.Hold)                     // changes what a call asks for
	shorten bool                                   // a call of Extend asks for half
	lazy    bool                                   // an engine is not told that it is closed
	behind  bool                                   // an overdue engine takes a reply for one of before
	deafen  func(*engine.Request, *protocol.Reply) // changes what an engine hears
}

// start is the system before anything has happened.
func (e *explorer) start() *system {
	x := &system{budget: budget{faults: e.faults, crashes: e.crashes, forces: e.forces, stalls: e.stalls,
		undos:   e.undos,
		extends: e.extends, closes: e.closes, ticks: e.ticks}}
	for range e.names {
		at := site{s: newServer()}
		if !e.normalize {
			at.raw = &raw{now: now}
		}
		x.sites = append(x.sites, at)
	}
	for i := range e.owners {
		x.procs = append(x.procs, e.newProcess(i))
	}
	return x
}

func (x *system) clone() *system {
	c := *x
	c.sites, c.procs = slices.Clone(x.sites), slices.Clone(x.procs)
	return &c
}

// actions lists all that can happen next.
func (e *explorer) actions(x *system) []action {
	var list []action
	add := func(i int, ev event, hows ...how) {
		if len(hows) == 0 {
			hows = []how{arrives}
		}
		for _, h := range hows {
			if h == arrives || h == undone && x.undos > 0 || h != undone && x.faults > 0 {
				list = append(list, action{do: ev.do, proc: uint8(i), a: ev.a, event: ev, how: h})
			}
		}
	}
	faulty := func(i int, ev event) {
		if x.faults > 0 {
			list = append(list, action{do: ev.do, proc: uint8(i), a: ev.a, event: ev, how: late})
		}
	}
	// What is about to happen happens first, each process's in order.
	for i, n := range x.procs {
		p := n.p
		if !n.urgent {
			continue
		}
		if p.Overdue {
			add(i, event{do: catchUp})
		}
		switch ev := p.next(i).event; ev.do {
		case hear:
			add(i, ev)
			faulty(i, event{do: hearLater})
			faulty(i, event{do: hearTwice})
			faulty(i, event{do: miss})
		case stand:
			add(i, ev)
			faulty(i, event{do: standLater})
		default:
			add(i, ev, arrives, twice, replyLost, late, replyLate, undone)
		}
	}
	if len(list) > 0 {
		return list
	}
	for i, n := range x.procs {
		p := n.p
		for k := range p.Copies {
			add(i, event{do: again, a: int16(k)})
		}
		if p.Crashed {
			continue
		}
		if p.Asleep {
			for k, f := range p.Flights {
				if f.Stage != replied {
					add(i, event{do: run, a: int16(k)})
				}
			}
			add(i, event{do: wake})
			continue
		}
		if p.Overdue {
			add(i, event{do: catchUp})
		}
		if x.stalls > 0 && len(p.Engine.Views()) > 0 { // or else it has nothing to do
			add(i, event{do: sleep})
		}
		e.calls(x, p, func(ev event) { add(i, ev) })
		for k, f := range p.Flights {
			if f.Stage == replied {
				add(i, event{do: deliver, a: int16(k)})
			} else {
				add(i, event{do: run, a: int16(k)}, arrives, twice, replyLost, replyLate, undone)
			}
			add(i, event{do: fail, a: int16(k)})
		}
		for k := range p.Delayed {
			add(i, event{do: hearDelayed, a: int16(k)})
		}
		switch p.Sub {
		case lost:
			add(i, event{do: stand})
		case stands:
			faulty(i, event{do: drop})
		}
		if x.crashes > 0 {
			add(i, event{do: crash})
		}
		if x.forces > 0 {
			for k := range x.sites {
				add(i, event{do: force, name: uint8(k)})
			}
		}
		if x.closes > 0 && p.Closing == open {
			add(i, event{do: drain})
		}
		if x.closes > 0 && p.Closing == open || p.Closing == draining {
			add(i, event{do: shut})
		}
	}
	overdue := func(n *node) bool { return n.p.Overdue && !n.p.Asleep }
	if x.ticks > 0 && !slices.ContainsFunc(x.procs, overdue) {
		list = append(list, action{do: pass})
	}
	if e.normalize && x.ticks == unlimited && x.used() && x.over() && x.idle() {
		list = append(list, action{do: expire})
	}
	return list
}

// latest returns the last token that was handed out, for whatever lock: it is a time.
func (x *system) latest() (token int64) {
	for _, at := range x.sites {
		token = max(token, at.s.fence, at.s.floor)
	}
	return token
}

// used reports whether the server has anything of a lock.
func (x *system) used() bool {
	return slices.ContainsFunc(x.sites, func(at site) bool { return at.s.hash })
}

// idle reports whether nobody holds a lock or waits for it, as the server sees it.
func (x *system) idle() bool {
	return !slices.ContainsFunc(x.sites, func(at site) bool { return !at.s.idle(x.now()) })
}

// over reports whether no process has anything to do with the lock, and nothing is in flight.
func (x *system) over() bool {
	for _, n := range x.procs {
		p := n.p
		if len(p.Flights)+len(p.Copies)+len(p.Delayed) > 0 || !p.Crashed && len(p.Engine.Views()) > 0 {
			return false
		}
	}
	return true
}

// calls lists what the owners of a process can do.
func (e *explorer) calls(x *system, p *process, each func(event)) {
	for o := range p.Asks {
		if p.Asks[o] == 0 || p.busy(owner(uint8(o)).Handle) && !e.reenter {
			continue
		}
		most := 1
		if e.reenter {
			most = 2
		}
		for k := range x.sites {
			reads, writes := 0, 0
			for _, h := range p.Holds {
				switch {
				case h.Owner != owner(uint8(o)) || h.Name != names[k]:
				case h.Mode == engine.Mode(protocol.Write):
					writes++
				default:
					reads++
				}
			}
			ask := event{do: acquire, a: int16(o), name: uint8(k)}
			try := ask
			try.try = true
			if reads < most {
				each(ask)
				each(try)
			}
			if writes < most && (reads == 0 || writes > 0) {
				ask.write, try.write = true, true
				each(ask)
				each(try)
			}
		}
	}
	for k, h := range p.Holds {
		switch h.State() {
		case engine.Wanted, engine.Entering:
			each(event{do: giveUp, a: int16(k)})
		case engine.Live, engine.Lapsed:
			if e.waitsFor(p, h) {
				continue
			}
			each(event{do: release, a: int16(k)})
			if x.extends > 0 && h.State() == engine.Live {
				each(event{do: extend, a: int16(k)})
			}
		}
	}
	for k := range p.Extending {
		each(event{do: stopExtending, a: int16(k)})
	}
}

// busy reports whether a call of an owner is in flight.
func (p *process) busy(handle uint64) bool {
	return slices.ContainsFunc(p.Holds, func(h *engine.Hold) bool {
		return h.Owner.Handle == handle && h.State() < engine.Failed
	})
}

// waitsFor reports whether a hold is not released before a call of its owner for another name has ended.
// Where there are several names, an owner is one goroutine: so that deadlocks come about. Those of several
// processes are not looked for, so that there it may release nonetheless.
func (e *explorer) waitsFor(p *process, h *engine.Hold) bool {
	return e.names > 1 && len(e.owners) == 1 && p.busy(h.Owner.Handle)
}

// take returns the system after an action, and after what follows from it when nothing else can happen; and
// the first thing that is wrong with it.
func (e *explorer) take(x *system, a action) (*system, error) {
	e.flaw, e.since = nil, e.since[:0]
	x, err := e.take1(x, a)
	for err == nil {
		next, ok := x.only()
		if !ok {
			break
		}
		if e.tracing {
			e.since = append(e.since, e.describe(x, next))
		}
		x, err = e.take1(x, next)
	}
	if err == nil {
		x.forgetFaults()
	}
	return x, err
}

// only returns the action that has to follow, if there is one.
func (x *system) only() (action, bool) {
	which := -1
	for i, n := range x.procs {
		switch {
		case !n.urgent:
		case which >= 0 || x.faults > 0 || x.undos > 0 || n.p.Overdue:
			return action{}, false
		default:
			which = i
		}
	}
	if which < 0 {
		return action{}, false
	}
	return x.procs[which].p.next(which), true
}

// next returns the first thing that is about to happen to a process.
func (p *process) next(i int) action {
	ev := event{do: hear}
	switch {
	case len(p.Inbox) > 0:
	case p.Sub == opening:
		ev.do = stand
	default:
		ev.do = run
		ev.a = int16(slices.IndexFunc(p.Flights, func(f *flight) bool { return f.Stage == due }))
	}
	return action{do: ev.do, proc: uint8(i), a: ev.a, event: ev}
}

func (e *explorer) take1(x *system, a action) (*system, error) {
	x = x.clone()
	i := int(a.proc)
	switch a.how {
	case arrives:
	case undone:
		x.undos--
		x.faulty = true
	default:
		x.faults--
		x.faulty = true
	}
	var err error
	switch a.do {
	case run:
		err = e.run1(x, i, a.a, a.how)
	case deliver:
		e.tell(x, i, event{do: reply, a: a.a})
	case again:
		r := &x.procs[i].p.Copies[a.a]
		var res *result
		if res, err = e.execute1(x, i, r, false); err == nil {
			e.tell(x, i, event{do: ran, a: a.a})
			e.ran(x, i, r, res)
		}
	case pass:
		if x.ticks != unlimited && x.ticks > 0 {
			x.ticks--
		}
		err = e.later(x)
		for k := range x.procs {
			e.tell(x, k, event{do: pass})
		}
	case expire:
		for k := range x.sites {
			x.sites[k].s = newServer()
		}
	default:
		switch a.do {
		case crash:
			x.crashes--
			x.faulty = true
		case sleep:
			x.stalls--
			x.faulty = true
		case force:
			x.forces--
		case extend:
			x.extends--
		case drain, shut:
			if x.procs[i].p.Closing == open {
				x.closes--
			}
		}
		e.tell(x, i, a.event)
	}
	if err == nil {
		err = e.verify(x)
	}
	return x, err
}

// tell has an event happen to a process.
func (e *explorer) tell(x *system, i int, ev event) {
	c := e.happen(x.procs[i], ev)
	x.procs[i] = c.to
	e.flaw = cmp.Or(e.flaw, c.flaw)
	// It is not e.lease[i] that counts: canonical sorts the processes.
	if c.lost && !x.faulty && !e.noRenew && c.to.p.Lease > tick {
		e.flaw = cmp.Or(e.flaw, errors.New("a hold is lost, or a call ends, though nothing went wrong"))
	}
}

// run1 runs a request that an engine waits for.
func (e *explorer) run1(x *system, i int, k int16, how how) error {
	if how == late {
		e.tell(x, i, event{do: slowDown, a: k})
		return nil
	}
	f := x.procs[i].p.Flights[k]
	_, waited := f.R.View()
	res, err := e.execute1(x, i, &f.R.Request, waited)
	if err != nil {
		return err
	}
	if err := e.releasedInTime(x, i, f, res); err != nil {
		return err
	}
	if f.R.ReleasesStale() && !x.sites[siteOf(&f.R.Request)].s.undone {
		e.flaw = cmp.Or(e.flaw, errors.New("a claim is released once more that has not come back"))
	}
	if how == twice {
		e.tell(x, i, event{do: keep, a: k})
	}
	q, _ := e.request(i, &f.R.Request)
	of, ended, before := siteOf(&f.R.Request), x.procs[i].p.knownFate(uint64(q.of.number)).Ended, x.clone()
	e.ran(x, i, &f.R.Request, res)
	if x.procs[i].p.Asleep {
		how = replyLate
	}
	switch how {
	case replyLost:
		e.tell(x, i, event{do: slowDown, a: k})
	case replyLate:
		e.tell(x, i, event{do: holdReply, a: k, reply: res.reply})
	default:
		e.tell(x, i, event{do: reply, a: k, reply: res.reply})
	}
	if how == undone {
		e.tell(x, i, event{do: unnote, a: int16(q.of.number), ended: ended})
		return e.undo(x, before.sites[of], of)
	}
	return nil
}

// undo has the server forget the last run on a lock: it has what it had before. What that run granted is
// gone. If it made the lease of a hold or of a waiter last longer, that lease is as before; if the waiter is
// granted the lock, the grant ends with it. A server that replicates without waiting promises no more (I10):
// clients may rely on what it has lost until their deadlines.
func (e *explorer) undo(x *system, before site, of int) error {
	at := &x.sites[of]
	had, err := before.s.abstract(before.now())
	if err != nil {
		return err
	}
	has, err := at.s.abstract(at.now())
	if err != nil {
		return err
	}
	before.set(true)
	if at.raw == nil {
		before.s.floor = max(at.s.fence, at.s.floor)
	} else {
		before.raw.now = at.raw.now
	}
	*at = before
	tell := func(c model.Claim, do verb) {
		if n := x.procs[c.Owner>>4]; !n.p.Crashed {
			e.tell(x, c.Owner>>4, event{do: do, a: int16(c.Number)})
		}
	}
	for _, h := range has.Holds {
		switch old := had.Hold(h.Claim); {
		case old == nil:
			tell(h.Claim, ungranted)
		case old.Until < h.Until:
			tell(h.Claim, shortened)
		}
	}
	for _, w := range has.Queue {
		shorter := func(old model.Waiter) bool { return old.Claim == w.Claim && old.Until < w.Until }
		if slices.ContainsFunc(had.Queue, shorter) {
			tell(w.Claim, shortened)
		}
	}
	return nil
}

// set notes whether the server has forgotten something that it did.
func (at *site) set(undone bool) {
	at.s = at.s.clone()
	at.s.undone = undone
	if at.raw != nil {
		r := *at.raw
		r.undone = undone
		at.raw = &r
	}
}

// execute1 runs a request on the server.
func (e *explorer) execute1(x *system, i int, r *protocol.Request, waited bool) (*result, error) {
	q, text := e.request(i, r)
	ended := x.procs[i].p.knownFate(uint64(q.of.number)).Ended
	var res *result
	if at := x.sites[siteOf(r)]; e.normalize {
		if len(x.sites) > 1 {
			at.s = at.s.clone()
			at.s.floor = x.latest()
		}
		res = e.run(e.intern(at.s), q, text, ended, waited)
	} else {
		before := *at.raw
		if !e.stands {
			before.now++
		}
		res = e.executeRaw(&before, q, ended, waited, same)
	}
	e.flaw = cmp.Or(e.flaw, res.flaw)
	return res, res.err
}

// ran notes what a run did.
func (e *explorer) ran(x *system, i int, r *protocol.Request, res *result) {
	at := &x.sites[siteOf(r)]
	at.s = res.server
	if !e.normalize {
		at.raw = res.raw
		for k := range x.sites { // they have one clock
			if x.sites[k].raw.now < at.raw.now {
				other := *x.sites[k].raw
				other.now = at.raw.now
				x.sites[k].raw = &other
			}
		}
	}
	q, _ := e.request(i, r)
	for _, c := range res.lost {
		e.tell(x, int(c.inst), event{do: note, a: int16(c.number), ended: model.Lost})
	}
	for _, c := range res.dropped {
		if n := x.procs[c.inst]; !n.p.Crashed {
			e.tell(x, int(c.inst), event{do: dropped, a: int16(c.number)})
		}
	}
	for _, c := range res.entered {
		if x.procs[c.inst].p.knownFate(uint64(c.number)).Dropped {
			e.tell(x, int(c.inst), event{do: anew, a: int16(c.number)})
		}
	}
	if res.ended != x.procs[i].p.knownFate(uint64(q.of.number)).Ended {
		e.tell(x, i, event{do: note, a: int16(q.of.number), ended: res.ended})
	}
	for _, s := range res.sent {
		e.tell(x, s.to, event{do: send, message: s.message})
	}
}

// releasedInTime checks that a release is not told that there was no hold, if its process could rely on it.
func (e *explorer) releasedInTime(x *system, i int, f *flight, res *result) error {
	v, ok := f.R.View()
	if s := f.R.Script; s != lua.Unlock && s != lua.RUnlock || !ok || v.Token == 0 {
		return nil
	}
	p := x.procs[i].p
	if res.reply.Code == protocol.NotThere && p.Now.Before(v.Deadline) && !p.knownFate(v.Number).excused(p.Now) {
		return errors.New("a release in time is told that there was no hold")
	}
	return nil
}

// later lets a tick pass on the server.
func (e *explorer) later(x *system) error {
	for k := range x.sites {
		if err := x.sites[k].later(); err != nil {
			return err
		}
	}
	return nil
}

func (at *site) later() error {
	if at.raw != nil {
		at.raw = at.raw.later()
		s, err := at.raw.parse(same)
		at.s = s
		return err
	}
	expected, err := at.s.abstract(now)
	if err != nil {
		return err
	}
	expected.Advance(now + tickMS*1000)
	at.s = at.s.later()
	actual, err := at.s.abstract(now + tickMS*1000)
	if err != nil {
		return fmt.Errorf("after a tick: %w", err)
	}
	if err := model.Compare(expected, actual, 0); err != nil {
		return fmt.Errorf("after a tick: %w", err)
	}
	return nil
}

func (x *system) now() int64 { return x.sites[0].now() }

func (at *site) now() int64 {
	if at.raw != nil {
		return at.raw.now
	}
	return now
}

// verify checks a system between two steps.
func (e *explorer) verify(x *system) error {
	for k := range x.sites {
		if err := e.verifySite(x, k); err != nil {
			return err
		}
	}
	return nil
}

func (e *explorer) verifySite(x *system, k int) error {
	undone := x.sites[k].s.undone
	l, err := x.sites[k].s.abstract(x.now())
	if err != nil {
		return err
	}
	if err := exclusive(l); err != nil {
		return err
	}
	type relied struct {
		inst   int
		handle uint64
		write  bool
	}
	var all []relied
	known := map[model.Claim]bool{}
	for i, n := range x.procs {
		p := n.p
		if p.Crashed {
			continue
		}
		for _, v := range p.Engine.Views() {
			if v.Name != names[k] {
				continue
			}
			c := claimName{inst: uint8(i), handle: handleOf(v.Owner), number: uint16(v.Number)}.model()
			known[c] = true
			if f := p.knownFate(v.Number); f.excused(p.Now) || !p.Now.Before(v.Deadline) {
				if f.Dropped && !f.Anew && !f.Late && v.State == engine.Held && v.Deadline.After(f.Until) {
					return errors.New("a process goes on to rely on a hold that was dropped")
				}
				continue
			}
			write := v.Mode == engine.Mode(protocol.Write)
			h := l.Hold(c)
			switch v.State {
			case engine.Held:
				live := 0
				for _, h := range v.Holds {
					if h.State() == engine.Live && p.Now.Before(h.Deadline()) {
						live++
					}
				}
				if live == 0 {
					continue
				}
				all = append(all, relied{i, v.Owner.Handle, write})
				if h == nil || (h.Mode == model.Write) != write {
					return errors.New("a process relies on a hold that the server does not keep")
				}
				if h.Count != len(v.Holds) && !v.Telling && !x.counting(i, v.Number) && !undone {
					return fmt.Errorf("a hold's count is %d, not %d", h.Count, len(v.Holds))
				}
				if h.Token != v.Token {
					return fmt.Errorf("a hold's token is %d at the server, and %d in the process", h.Token, v.Token)
				}
			case engine.Queued:
				if h == nil && !queued(l, c) && !undone {
					return errors.New("a waiter has lost its place")
				}
			}
		}
	}
	for _, a := range all {
		for _, b := range all {
			if a.write && (a.inst != b.inst || a.handle != b.handle) {
				return errors.New("two owners rely on the lock, of which one writes")
			}
		}
	}
	if undone {
		return nil
	}
	return e.unknown(x, l, known)
}

// counting reports whether a request is in flight that sets the count of a claim.
func (x *system) counting(i int, n uint64) bool {
	number := fmt.Sprintf("%012d", n)
	for _, r := range x.procs[i].p.Copies {
		if r.Script == lua.Reenter && r.Claim.Number == number {
			return true
		}
	}
	return false
}

// unknown checks that whoever has the lock, or waits for it, is known to a process, or to a request that is
// in flight.
func (e *explorer) unknown(x *system, l *model.Lock, known map[model.Claim]bool) error {
	check := func(c model.Claim) error {
		i := c.Owner >> 4
		p := x.procs[i].p
		if known[c] || p.Abandoned || p.knownFate(uint64(c.Number)).Dropped {
			return nil
		}
		number := fmt.Sprintf("%012d", c.Number)
		for _, r := range p.Copies {
			if r.Claim.Number == number {
				return nil
			}
		}
		return fmt.Errorf("the server keeps a claim that nobody knows of")
	}
	for _, h := range l.Holds {
		if err := check(h.Claim); err != nil {
			return err
		}
	}
	for _, w := range l.Queue {
		if l.Lives(w) {
			if err := check(w.Claim); err != nil {
				return err
			}
		}
	}
	return nil
}

func queued(l *model.Lock, c model.Claim) bool {
	return slices.ContainsFunc(l.Queue, func(w model.Waiter) bool { return w.Claim == c && l.Lives(w) })
}

// key is the same for systems that are equal but for what may still go wrong.
func (x *system) key() string {
	b := make([]byte, 0, 64)
	for _, n := range x.procs {
		b = append(b, byte(n.id), byte(n.id>>8), byte(n.id>>16), byte(n.id>>24))
	}
	for _, at := range x.sites {
		if at.raw != nil {
			b = append(b, at.raw.key()...)
		} else {
			b = append(b, at.s.key()...)
		}
	}
	return string(b)
}

func (r *raw) key() string {
	return fmt.Sprint(r.now, r.undone, r.hash, r.leases, r.queue, r.ttl)
}

// canonical returns the one system of all that differ in names alone, and its key.
func (e *explorer) canonical(x *system) (*system, string) {
	if !e.normalize {
		return x, x.key()
	}
	x = x.clone()
	for k := range x.sites {
		x.sites[k].s = e.trim(x, x.sites[k].s)
	}
	x = e.renameAll(x)
	var best *system
	var bestKey string
	e.permutations(x, func(perm []int) {
		y := *x
		y.procs = make([]*node, len(x.procs))
		for i, n := range x.procs {
			y.procs[perm[i]] = n
		}
		y.sites = slices.Clone(x.sites)
		for k, at := range x.sites {
			y.sites[k].s = at.s.permute(perm)
		}
		if key := y.key(); best == nil || key < bestKey {
			best, bestKey = &y, key
		}
	})
	for k := range best.sites {
		best.sites[k].s = e.intern(best.sites[k].s)
	}
	return best, bestKey
}

// forgetFaults forgets that something has gone wrong when it can have no consequences any more.
func (x *system) forgetFaults() {
	for _, n := range x.procs {
		if n.p.Crashed || len(n.p.Flights)+len(n.p.Copies)+len(n.p.Delayed)+len(n.p.Holds) > 0 ||
			len(n.p.Engine.Views()) > 0 {
			return
		}
	}
	x.faulty = false
	for k := range x.sites {
		if at := &x.sites[k]; at.s.undone && at.s.idle(at.now()) && len(at.s.leases)+len(at.s.queue) == 0 {
			at.set(false)
		}
	}
}

// trim returns the server without what makes no difference: what slots say that no request can come for any
// more, and the leases of records that are not in line.
func (e *explorer) trim(x *system, s *server) *server {
	s = s.clone()
	s.slots = slices.DeleteFunc(s.slots, func(r record) bool {
		at := func(m member) bool { return m.inst == r.inst && m.number == r.number }
		if s.holder.number == r.number && s.holder.inst == r.inst || slices.ContainsFunc(s.leases, at) ||
			slices.ContainsFunc(s.queue, at) {
			return false
		}
		// A number is of one slot.
		return x.procs[r.inst].numbers&(1<<(r.number+1)-1) == 0
	})
	for i := range s.slots {
		if r := &s.slots[i]; r.what == 'w' && !s.waits(*r) {
			r.left = 0
		}
	}
	if s.holder.number == 0 {
		s.lease, s.implicit, s.left = false, false, 0
	}
	if !s.plus || len(s.queue) == 0 {
		s.pending, s.owed, s.ticket = -1, -1, -1
	}
	// Of tickets, the order counts.
	var all []int32
	for _, m := range s.queue {
		all = append(all, m.at)
	}
	if s.owed >= 0 {
		all = append(all, s.owed)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	place := func(at int32) int32 { k, _ := slices.BinarySearch(all, at); return int32(k + 1) }
	for i := range s.queue {
		s.queue[i].at = place(s.queue[i].at)
	}
	if s.owed >= 0 {
		s.owed = place(s.owed)
	}
	if s.ticket >= 0 {
		s.ticket = int32(len(all)) // the last that was given out is not less than any
	}
	if len(x.sites) > 1 {
		s.floor = x.latest()
	}
	known := func(n *node) bool { return n.tokens>>(max(s.fence, firstToken)-firstToken+1) != 0 }
	if s.floor <= s.fence || len(x.sites) == 1 && !slices.ContainsFunc(x.procs, known) {
		s.floor = 0
	}
	return s
}

// renameAll gives the numbers and slots of each process, and the tokens, the least names that keep the order
// of numbers and tokens.
func (e *explorer) renameAll(x *system) *system {
	var numbers [8]uint64
	var slots [8]slots
	tokens := uint64(0)
	for i, n := range x.procs {
		numbers[i], slots[i] = n.numbers, n.slots
		tokens |= n.tokens
	}
	use := func(c claimName) {
		if c.number > 0 {
			numbers[c.inst] |= 1 << c.number
			slots[c.inst].use(int(c.slot), c.number)
		}
	}
	useToken := func(t int64) {
		if t != 0 {
			tokens |= 1 << (t - firstToken)
		}
	}
	for _, at := range x.sites {
		s := at.s
		use(s.holder)
		if s.seq > 0 {
			numbers[s.holder.inst] |= 1 << s.seq
		}
		useToken(s.fence)
		useToken(s.floor)
		for _, r := range s.slots {
			use(claimName{inst: r.inst, slot: r.slot, number: r.number})
			if r.seq > 0 {
				numbers[r.inst] |= 1 << r.seq
			}
			useToken(r.token)
		}
		for _, list := range [...][]member{s.leases, s.queue} {
			for _, m := range list {
				use(m.claimName)
			}
		}
	}
	dense := func(set uint64) bool { return set>>1&(set>>1+1) == 0 }
	allTokens := dense(tokens)
	changed := !allTokens
	var names [8]slotNames
	for i, n := range x.procs {
		names[i] = slots[i].names()
		if len(x.sites) > 1 || !names[i].change(n) { // several locks have slots of their own each
			names[i] = sameSlots
		}
		if names[i] != sameSlots || !dense(numbers[i]) || !allTokens && n.tokens != 0 ||
			n.last != uint64(bits.OnesCount64(numbers[i])) && !n.p.Crashed {
			x.procs[i] = e.rename(n, naming{numbers[i], tokens, names[i]})
			changed = true
		}
	}
	if !changed {
		return x
	}
	number := func(inst uint8, n *uint16) {
		if *n > 0 {
			*n = uint16(rank(numbers[inst], uint64(*n)))
		}
	}
	name := func(c *claimName) {
		if c.number > 0 {
			number(c.inst, &c.number)
			c.slot = uint8(names[c.inst].name[c.slot])
		}
	}
	nameToken := func(t *int64) {
		if *t != 0 {
			*t = firstToken + int64(rank(tokens, uint64(*t-firstToken)))
		}
	}
	for k := range x.sites {
		s := x.sites[k].s.clone()
		x.sites[k].s = s
		number(s.holder.inst, &s.seq)
		name(&s.holder)
		nameToken(&s.fence)
		nameToken(&s.floor)
		for i := range s.slots {
			r := &s.slots[i]
			number(r.inst, &r.number)
			number(r.inst, &r.seq)
			nameToken(&r.token)
			r.slot = uint8(names[r.inst].name[r.slot])
		}
		for _, list := range [...][]member{s.leases, s.queue} {
			for i := range list {
				name(&list[i].claimName)
			}
		}
		s.sort()
	}
	return x
}

// permute returns the state in which each engine has the place perm gives it.
func (s *server) permute(perm []int) *server {
	if slices.IsSorted(perm) {
		return s
	}
	s = s.clone()
	to := func(inst *uint8) { *inst = uint8(perm[*inst]) }
	if s.holder.number > 0 {
		to(&s.holder.inst)
	}
	for i := range s.slots {
		to(&s.slots[i].inst)
	}
	for _, list := range [...][]member{s.leases, s.queue} {
		for i := range list {
			to(&list[i].inst)
		}
	}
	s.sort()
	return s
}

// permutations calls each with the orders of the processes of which one is canonical: by what they look like.
func (e *explorer) permutations(x *system, each func(perm []int)) {
	order := make([]int, len(x.procs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x.procs[a].id, x.procs[b].id) })
	perm := make([]int, len(order))
	var place func(k int)
	used := make([]bool, len(order))
	place = func(k int) {
		if k == len(order) {
			each(perm)
			return
		}
		for _, i := range order {
			// Those that look alike may each have the place.
			if !used[i] && x.procs[i].id == x.procs[order[k]].id {
				used[i] = true
				perm[i] = k
				place(k + 1)
				used[i] = false
			}
		}
	}
	place(0)
}

var verbs = map[verb]string{
	giveUp: "gives up", hear: "hears", hearLater: "will hear later", hearTwice: "hears, and will again",
	miss:  "never hears",
	stand: "the subscription stands", standLater: "the subscription takes its time",
	drop: "the subscription breaks",
}

var hows = []string{"", ", and will again", "; the reply is lost, so it will again", "",
	"; the reply is slow", ", and the server forgets it"}

// describe says what an action is, by the names of the system that it is taken in.
func (e *explorer) describe(x *system, a action) string {
	engineName := string(rune('A' + a.proc))
	p := x.procs[a.proc].p
	ownerName := func(o protocol.Owner) string {
		if len(p.Asks) == 1 {
			return engineName
		}
		return engineName + string(rune('a'+handleOf(o)))
	}
	modes := []string{"", "read", "write"}
	holdName := func(h *engine.Hold) string {
		s := fmt.Sprintf("%s's %s", ownerName(h.Owner), modes[h.Mode])
		if n := h.ClaimNumber(); n != 0 {
			s += fmt.Sprintf(" %d", n)
		}
		if k := slices.Index(p.Holds, h); slices.ContainsFunc(p.Holds[:k], func(o *engine.Hold) bool {
			return o.Owner == h.Owner && o.Mode == h.Mode && o.ClaimNumber() == h.ClaimNumber()
		}) {
			s += " (inner)"
		}
		if e.names > 1 {
			s += " of " + h.Name
		}
		return s
	}
	requestName := func(r *protocol.Request) string {
		q, _ := e.request(int(a.proc), r)
		s := fmt.Sprintf("%s's %s %d", engineName, r.Script.Name, q.of.number)
		if r.Script == lua.Reenter {
			s += fmt.Sprintf(" (count %d, request %d)", q.count, q.seq)
		}
		return s
	}
	messageName := func(m protocol.Message) string {
		var parts []string
		for _, n := range m.Granted {
			parts = append(parts, fmt.Sprintf("%d has the lock", n))
		}
		for _, n := range m.AskAgain {
			parts = append(parts, fmt.Sprintf("%d is to look", n))
		}
		for _, n := range m.Dropped {
			parts = append(parts, fmt.Sprintf("%d was dropped", n))
		}
		return strings.Join(parts, ", ")
	}
	switch a.do {
	case acquire:
		s := ownerName(owner(uint8(a.a)))
		how := " asks to "
		if a.try {
			how = " tries to "
		}
		s += how + map[bool]string{true: "write", false: "read"}[a.write]
		if e.names > 1 {
			s += " " + names[a.name]
		}
		return s
	case giveUp:
		return holdName(p.Holds[a.a]) + " is given up"
	case release:
		return holdName(p.Holds[a.a]) + " is released"
	case force:
		if e.names > 1 {
			return engineName + " drops all holds of " + names[a.name]
		}
		return engineName + " drops all holds"
	case extend:
		return holdName(p.Holds[a.a]) + " is extended"
	case stopExtending:
		return holdName(p.Extending[a.a].Hold) + " is not extended any more"
	case drain:
		return engineName + " shuts down"
	case shut:
		return engineName + " is closed"
	case run:
		f := p.Flights[a.a]
		if a.how == late {
			return requestName(&f.R.Request) + " is slow"
		}
		return requestName(&f.R.Request) + " runs" + hows[a.how]
	case deliver:
		return requestName(&p.Flights[a.a].R.Request) + " is answered"
	case fail:
		return requestName(&p.Flights[a.a].R.Request) + " fails"
	case again:
		return requestName(&p.Copies[a.a]) + ", late, runs"
	case hear, hearLater, hearTwice, miss:
		return engineName + " " + verbs[a.do] + " that " + messageName(p.Inbox[0])
	case hearDelayed:
		return engineName + " hears, late, that " + messageName(p.Delayed[a.a])
	case stand, standLater, drop:
		return engineName + ": " + verbs[a.do]
	case crash:
		return engineName + " dies"
	case sleep:
		return engineName + " stands still"
	case wake:
		return engineName + " goes on"
	case catchUp:
		return engineName + " does what is due"
	case expire:
		return "the keys expire"
	}
	return "time passes"
}
