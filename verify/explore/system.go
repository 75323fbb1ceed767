package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A system is a server, the processes that use it, and what may still go wrong.
type system struct {
	sites   []*server // one for each name
	procs   []*actor
	tickets []ticket // in the order in which they were asked for
	demands
}

// An action is one step of a system.
type action struct {
	event
	proc uint8
	how  how
}

// how is what becomes of a request that is sent. Each but the first is a fault.
type how uint8

const (
	arrives   how = iota // it runs, and the reply comes
	twice                // it runs, and the reply comes; it is to run once more, late
	replyLost            // it runs; the reply is lost, so that it is sent again, and runs late
	late                 // it is slow
	replyLate            // it runs, and the reply is slow
	// it runs, and the reply comes, as do messages; then the server forgets it
	undone
)

// kindOfVerb and kindOfHow say of which kind the actions are that are not free.
var (
	kindOfVerb = [...]int{hearLater: mayDelay, standLater: mayDelay, slowDown: mayDelay, hearTwice: mayRepeat,
		miss: mayLose, drop: mayLose, crash: mayCrash, sleep: mayStall, force: mayForce, extend: mayExtend,
		downgrade: mayDowngrade, upgrade: mayUpgrade, detach: mayDetach,
		drain: mayClose, shut: mayClose, pass: mayPass, giveUp: mayGiveUp, cut: mayCut, restart: mayRestart}
	kindOfHow = [...]int{late: mayDelay, replyLate: mayDelay, twice: mayRepeat, replyLost: mayLose,
		undone: mayUndo}
)

// kind returns of which kind an action is, for the budget.
func (a action) kind() int {
	if a.how != arrives {
		return kindOfHow[a.how]
	}
	return kindOfVerb[a.do]
}

// A menu lists the actions that may still happen.
type menu struct {
	budget *budget
	list   []action
}

// add lists an event of a process, and then the ways in which it may go wrong.
func (m *menu) add(i int, ev event, wrong ...how) {
	a := action{ev, uint8(i), arrives}
	if *m.budget.left(a.kind()) > 0 {
		m.list = append(m.list, a)
	}
	for _, a.how = range wrong {
		if *m.budget.left(a.kind()) > 0 {
			m.list = append(m.list, a)
		}
	}
}

// Actions that are not events of a process.
const (
	run     verb = 100 + iota // a: flight
	deliver                   // a: flight that has replied
	again                     // a: copy
	expire                    // of the keys
	vanish                    // a: copy, which is lost
	restart                   // a: server, which has no data then
)

// explorer knows what all systems have in common.
type explorer struct {
	*machine
	*cast[process, event]
	plain   bool // nothing is normalized
	lease   []time.Duration
	renamed map[renamed]*actor
	flaw    error // in the last action
}

func newExplorer(s setup, plain bool) (*explorer, error) {
	m, err := newMachine(s)
	e := &explorer{machine: m, plain: plain, cast: newCast[process, event](mostProcesses),
		renamed: map[renamed]*actor{}}
	e.cast.play, e.cast.look = e.play, e.look
	for _, ticks := range s.leases {
		e.lease = append(e.lease, time.Duration(ticks-'0')*tick)
	}
	return e, err
}

// start is the system before anything has happened.
func (e *explorer) start() *system {
	x := &system{demands: demands{budget: e.budget}}
	for range e.names {
		s := newServer()
		if e.plain {
			s.raw = &raw{now: now}
		}
		x.sites = append(x.sites, s)
	}
	for i := range e.owners {
		x.procs = append(x.procs, e.newProcess(i))
	}
	return x
}

func (x *system) clone() *system {
	c := *x
	c.sites, c.procs, c.tickets = slices.Clone(x.sites), slices.Clone(x.procs), slices.Clone(x.tickets)
	return &c
}

// urgent lists what is about to happen, each process's in order: it happens before anything else.
func (x *system) urgent() *menu {
	m := &menu{budget: &x.budget}
	for i, n := range x.procs {
		if !n.urgent {
			continue
		}
		if n.p.Overdue {
			m.add(i, event{do: catchUp})
		}
		switch p := n.p; {
		case len(p.Inbox) > 0:
			for _, do := range []verb{hear, hearLater, hearTwice, miss} {
				m.add(i, event{do: do})
			}
		case p.Sub == opening:
			m.add(i, event{do: stand})
			m.add(i, event{do: standLater})
		default:
			k := slices.IndexFunc(p.Flights, func(f *flight) bool { return f.Stage == due })
			m.add(i, event{do: run, a: int16(k)}, twice, replyLost, late, replyLate, undone)
		}
	}
	return m
}

// actions lists all that can happen next.
func (e *explorer) actions(x *system) []action {
	m := x.urgent()
	if len(m.list) > 0 {
		return m.list
	}
	for i, n := range x.procs {
		p := n.p
		for k := range p.Copies {
			m.add(i, event{do: again, a: int16(k)})
		}
		if p.Crashed {
			continue
		}
		if p.Asleep {
			for k, f := range p.Flights {
				if f.Stage != replied {
					m.add(i, event{do: run, a: int16(k)})
				}
			}
			m.add(i, event{do: wake})
			continue
		}
		if p.Overdue {
			m.add(i, event{do: catchUp})
		}
		if len(n.views) > 0 { // or else it has nothing to do
			m.add(i, event{do: sleep})
		}
		e.calls(x, p, func(ev event) { m.add(i, ev) })
		for k, f := range p.Flights {
			if f.Stage == replied {
				m.add(i, event{do: deliver, a: int16(k)})
			} else {
				m.add(i, event{do: run, a: int16(k)}, twice, replyLost, replyLate, undone)
			}
			m.add(i, event{do: fail, a: int16(k)})
		}
		for k := range p.Delayed {
			m.add(i, event{do: hearDelayed, a: int16(k)})
		}
		switch p.Sub {
		case lost:
			m.add(i, event{do: stand})
		case stands:
			m.add(i, event{do: drop})
		}
		m.add(i, event{do: crash})
		for k := range x.sites {
			m.add(i, event{do: force, name: uint8(k)})
		}
		switch p.Closing {
		case open:
			m.add(i, event{do: drain})
			m.add(i, event{do: shut})
		case draining: // what began before costs nothing
			m.list = append(m.list, action{event: event{do: shut}, proc: uint8(i)})
		}
	}
	overdue := func(n *actor) bool { return n.p.Overdue && !n.p.Asleep }
	if !slices.ContainsFunc(x.procs, overdue) {
		m.add(0, event{do: pass})
	}
	used := slices.ContainsFunc(x.sites, func(s *server) bool { return s.hash })
	over := !slices.ContainsFunc(x.procs, func(n *actor) bool { return !over(n) })
	if !e.plain && x.budget[mayPass] == unlimited && used && over && x.idle() {
		m.add(0, event{do: expire})
	}
	return m.list
}

// latest returns the last token that was handed out, for whatever lock: it is a time.
func (x *system) latest() (token int64) {
	for _, at := range x.sites {
		token = max(token, at.fence, at.floor)
	}
	return token
}

// idle reports whether nobody holds a lock or waits for it, as the server sees it.
func (x *system) idle() bool {
	return !slices.ContainsFunc(x.sites, func(s *server) bool { return !s.idle() })
}

// over reports whether a process has nothing to do with the lock, and nothing is in flight.
func over(n *actor) bool {
	return len(n.p.Flights)+len(n.p.Copies)+len(n.p.Delayed)+len(n.views) == 0
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
			for _, try := range []bool{false, true} {
				if reads < most {
					each(event{do: acquire, a: int16(o), name: uint8(k), try: try})
				}
			}
			for _, try := range []bool{false, true} {
				if writes < most && (reads == 0 || writes > 0) {
					each(event{do: acquire, a: int16(o), name: uint8(k), write: true, try: try})
				}
			}
		}
	}
	for k, h := range p.Holds {
		switch h.State() {
		case engine.Wanted, engine.Entering:
			each(event{do: giveUp, a: int16(k)})
		case engine.Live, engine.Lapsed:
			// Where there are several names, an owner is one goroutine, and releases nothing before its call for
			// another name has ended: so that deadlocks come about. Those of several processes are not looked
			// for, so that there it may release nonetheless.
			if e.names > 1 && len(e.owners) == 1 && p.busy(h.Owner.Handle) {
				continue
			}
			each(event{do: release, a: int16(k)})
			if h.State() == engine.Live {
				each(event{do: extend, a: int16(k)})
				if h.Mode == engine.Mode(protocol.Write) {
					each(event{do: downgrade, a: int16(k)})
				} else {
					each(event{do: upgrade, a: int16(k)})
				}
			}
		}
	}
	for k := range p.Extending {
		each(event{do: stopExtending, a: int16(k)})
	}
	e.ticketCalls(x, p, each)
}

// busy reports whether a call of an owner is in flight.
func (p *process) busy(handle uint64) bool {
	return slices.ContainsFunc(p.Holds, func(h *engine.Hold) bool {
		return h.Owner.Handle == handle && h.State() < engine.Failed
	})
}

func (e *explorer) take(x *system, a action, t *trace) (*system, error) {
	e.flaw = nil
	x, err := e.takeOne(x, a)
	for next, ok := x.only(); ok && err == nil; next, ok = x.only() {
		if t != nil {
			t.add("  " + e.describe(x, next))
		}
		x, err = e.takeOne(x, next)
	}
	if err == nil {
		x.forgetFaults()
	}
	return x, cmp.Or(err, e.flaw)
}

// only returns the action that has to follow, if there is one.
func (x *system) only() (action, bool) {
	if x.budget[mayFault]+x.budget[mayDelay]+x.budget[mayRepeat]+x.budget[mayLose]+x.budget[mayUndo] == 0 {
		if list := x.urgent().list; len(list) == 1 {
			return list[0], true
		}
	}
	return action{}, false
}

func (e *explorer) takeOne(x *system, a action) (*system, error) {
	x = x.clone()
	i := int(a.proc)
	if kind := a.kind(); a.do != shut || x.procs[i].p.Closing == open {
		x.budget.spend(kind)
		harmless := []int{free, mayForce, mayExtend, mayDowngrade, mayUpgrade, mayDetach, mayClose, mayGiveUp,
			mayPass}
		x.faulty = x.faulty || !slices.Contains(harmless, kind)
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
		err = e.later(x)
		for k := range x.procs {
			e.tell(x, k, event{do: pass})
		}
	case expire:
		for k := range x.sites {
			x.sites[k] = newServer()
		}
	default:
		x.noteTicket(a.event)
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
	if c.ticket > 0 {
		x.tickets[c.ticket-1].ready = true
	}
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
	if how == twice {
		e.tell(x, i, event{do: keep, a: k})
	}
	q := e.request(i, &f.R.Request)
	of, before := siteOf(&f.R.Request), x.sites[siteOf(&f.R.Request)]
	fates := x.clone()
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
		for _, c := range []claimName{q.of, q.former} {
			switch ended := fates.ended(i, c); {
			case c.isTicket():
				x.tickets[c.ticket()].ended = ended
			case c.number > 0:
				e.tell(x, i, event{do: unnote, a: int16(c.number), ended: ended})
			}
		}
		return e.undo(x, before, of)
	}
	return nil
}

// undo has the server forget the last run on a lock: it has what it had before. What that run granted is
// gone. If it made the lease of a hold or of a waiter last longer, that lease is as before; if the waiter is
// granted the lock, the grant ends with it. A server that replicates without waiting promises no more (I10):
// clients may rely on what it has lost until their deadlines.
func (e *explorer) undo(x *system, before *server, of int) error {
	after := x.sites[of]
	had, err := before.abstract()
	if err != nil {
		return err
	}
	has, err := after.abstract()
	if err != nil {
		return err
	}
	before = before.clone()
	before.undone = true
	if after.raw == nil {
		before.floor = max(after.fence, after.floor)
	} else {
		before.raw = &raw{after.raw.now, before.raw.keys}
	}
	x.sites[of] = before
	tell := func(c model.Claim, do verb) {
		if nameOf(c).isTicket() {
			return // nobody relies on it
		}
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

// execute1 runs a request on the server.
func (e *explorer) execute1(x *system, i int, r *protocol.Request, waited bool) (*result, error) {
	q := e.request(i, r)
	run := execution{q: q, ended: x.ended(i, q.of), waited: waited}
	run.s = x.sites[siteOf(r)]
	var res *result
	if e.plain {
		before := *run.s.raw
		if !e.stands {
			before.now++
		}
		res = e.executeRaw(&before, run, same)
	} else {
		if len(x.sites) > 1 {
			run.s = run.s.clone()
			run.s.floor = x.latest()
		}
		run.s = e.intern(run.s)
		res = e.run(run)
	}
	return res, res.err
}

// ran notes what a run did.
func (e *explorer) ran(x *system, i int, r *protocol.Request, res *result) {
	x.sites[siteOf(r)] = res.server
	if e.plain {
		for k, s := range x.sites { // they have one clock
			x.sites[k] = s.clone()
			x.sites[k].raw = &raw{max(s.raw.now, res.server.raw.now), s.raw.keys}
		}
	}
	q := e.request(i, r)
	for _, c := range res.lost {
		if c.isTicket() {
			x.tickets[c.ticket()].ended = max(x.tickets[c.ticket()].ended, model.Lost)
			continue
		}
		e.tell(x, int(c.inst), event{do: note, a: int16(c.number), ended: model.Lost})
		// A late upgrade that was refused may run once more on a server that has forgotten the refusal. The
		// process does not know the claim that the server has then. The next renewal finds out.
		if p := x.procs[i].p; res.server.undone && c.model() == q.former.model() && !p.Crashed &&
			p.view(uint64(q.of.number)).Number == 0 {
			e.tell(x, i, event{do: shortened, a: int16(c.number)})
		}
	}
	for _, c := range res.dropped {
		if c.isTicket() {
			e.ticketDropped(x, c)
			continue
		}
		if n := x.procs[c.inst]; !n.p.Crashed {
			e.tell(x, int(c.inst), event{do: dropped, a: int16(c.number)})
		}
	}
	for _, c := range res.entered {
		if !c.isTicket() && x.procs[c.inst].p.knownFate(uint64(c.number)).Dropped {
			e.tell(x, int(c.inst), event{do: anew, a: int16(c.number)})
		}
	}
	switch {
	case res.ended == x.ended(i, q.of):
	case q.of.isTicket():
		x.tickets[q.of.ticket()].ended = res.ended
	default:
		e.tell(x, i, event{do: note, a: int16(q.of.number), ended: res.ended})
	}
	for _, s := range res.sent {
		e.tell(x, s.to, event{do: send, message: s.message})
	}
}

// later lets a tick pass on the server.
func (e *explorer) later(x *system) error {
	for k, s := range x.sites {
		expected, err := s.abstract()
		if err != nil {
			return err
		}
		if x.sites[k], err = s.later(); err != nil {
			return err
		}
		if e.plain {
			continue
		}
		expected.Advance(now + tickMS*1000)
		actual, err := x.sites[k].abstractAt(now + tickMS*1000)
		if err == nil {
			err = model.Compare(expected, actual, 0)
		}
		if err != nil {
			return fmt.Errorf("after a tick: %w", err)
		}
	}
	return nil
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
	undone := x.sites[k].undone
	l, err := x.sites[k].abstract()
	if err != nil {
		return err
	}
	if err := exclusive("hold", l.Holds); err != nil {
		return err
	}
	var all []model.Hold // that are relied on
	known := map[model.Claim]bool{}
	for i, n := range x.procs {
		p := n.p
		if p.Crashed {
			continue
		}
		for _, v := range n.views {
			if v.Name != names[k] {
				continue
			}
			c := claimName{inst: uint8(i), handle: handleOf(v.Owner), number: uint16(v.Number)}.model()
			if t, ok := ticketOf(v); ok {
				c = t.model()
			}
			known[c] = true
			if f := p.knownFate(v.Number); f.excused(p.Now) || !p.Now.Before(v.Deadline) {
				if f.Dropped && !f.Anew && !f.Late && v.State == engine.Held && v.Deadline.After(f.Until) {
					return errors.New("a process goes on to rely on a hold that was dropped")
				}
				continue
			}
			mode := modeOf(v.Mode == engine.Mode(protocol.Write))
			h := l.Hold(c)
			if h == nil && v.Former != 0 {
				h = l.Hold(model.Claim{Owner: c.Owner, Number: int(v.Former)})
			}
			risen := h == nil && v.Next != 0 // the server may have upgraded it
			if risen {
				h = l.Hold(model.Claim{Owner: c.Owner, Number: int(v.Next)})
			}
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
				all = append(all, model.Hold{Claim: c, Mode: mode})
				if h == nil || h.Mode < mode {
					return errors.New("a process relies on a hold that the server does not keep")
				}
				if h.Token != v.Token && !(risen && h.Token > v.Token) {
					return fmt.Errorf("a hold's token is %d at the server, and %d in the process", h.Token, v.Token)
				}
			case engine.Queued:
				if h == nil && !queued(l, c) && !undone {
					return errors.New("a waiter has lost its place")
				}
			}
		}
	}
	for _, t := range x.tickets {
		c := t.claim.model()
		known[c] = known[c] || t.ready
		if h := l.Hold(c); h != nil && !undone {
			all = append(all, *h) // whoever takes it over relies on it from now on
		}
	}
	if err := exclusive("rely on", all); err != nil || undone {
		return err
	}
	return e.unknown(x, l, known)
}

// unknown checks that whoever has the lock, or waits for it, is known to a process, or to a request that is
// in flight.
func (e *explorer) unknown(x *system, l *model.Lock, known map[model.Claim]bool) error {
	var all []model.Claim
	for _, h := range l.Holds {
		all = append(all, h.Claim)
	}
	for _, w := range l.Queue {
		if l.Lives(w) {
			all = append(all, w.Claim)
		}
	}
	for _, c := range all {
		if nameOf(c).isTicket() {
			if !known[c] && !slices.ContainsFunc(x.procs, func(n *actor) bool { return n.p.Abandoned }) {
				return errors.New("the server keeps the hold of a ticket that nobody has")
			}
			continue
		}
		p, n := x.procs[c.Owner>>4].p, uint64(c.Number)
		if !known[c] && !p.Abandoned && !p.knownFate(n).Dropped && !p.copies(n) {
			return errors.New("the server keeps a claim that nobody knows of")
		}
	}
	return nil
}

func queued(l *model.Lock, c model.Claim) bool {
	return slices.ContainsFunc(l.Queue, func(w model.Waiter) bool { return w.Claim == c && l.Lives(w) })
}

// forgetFaults forgets that something has gone wrong when it can have no consequences any more.
func (x *system) forgetFaults() {
	for _, n := range x.procs {
		if n.p.Crashed || len(n.p.Holds) > 0 || !over(n) {
			return
		}
	}
	x.faulty = false
	for k := range x.sites {
		if s := x.sites[k]; s.undone && s.idle() && len(s.leases)+len(s.queue) == 0 {
			x.sites[k] = s.clone()
			x.sites[k].undone = false
		}
	}
}

// patience is how long a fair run may take. A lease has to end only if nobody is left who could release what
// the server keeps: the process has died, or has given it up, or does not know that the server has it again.
// Otherwise there is only a heartbeat to wait for. One tick each is for the look and for
// what is timed.
func (e *explorer) patience(x *system) time.Duration {
	longest := slices.Max(e.lease)
	left := slices.ContainsFunc(x.procs, func(n *actor) bool { return n.p.Crashed || n.p.Abandoned }) ||
		slices.ContainsFunc(x.sites, func(s *server) bool { return s.undone })
	// likewise if nobody takes over the hold of a ticket
	left = left || slices.ContainsFunc(x.tickets, func(t ticket) bool { return t.ended == 0 })
	if !left {
		longest = (longest + 2*tick) / (3 * tick) * tick
	}
	return longest + 2*tick
}

// rank says when an action comes in a fair run: whatever is in flight, then a release, and then a call that
// gives up since it is in a cycle that engines do not look for.
func (e *explorer) rank(x *system, a action) int {
	switch p := x.procs[a.proc].p; {
	case a.how != arrives:
	case slices.Contains([]verb{run, hear, stand, deliver, again, hearDelayed, wake, catchUp}, a.do):
		return 0
	case a.do == release &&
		!slices.ContainsFunc(p.Extending, func(c *extending) bool { return c.Hold == p.Holds[a.a] }):
		return 1
	case a.do == giveUp && e.names > 1 && p.stuck(p.Holds[a.a], true) && !p.stuck(p.Holds[a.a], false):
		return 2
	}
	return never
}

// rest is a tick, while a call or a hold is left.
func (e *explorer) rest(x *system) (time.Duration, bool) {
	return tick, slices.ContainsFunc(x.procs, func(n *actor) bool {
		return len(n.views) > 0 ||
			slices.ContainsFunc(n.p.Holds, func(h *engine.Hold) bool { return h.State() != engine.Lapsed })
	})
}

func (e *explorer) demands(x *system) demands { return x.demands }
