package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// An action is one step of the system.
type action struct {
	do     verb
	owner  uint8
	write  bool
	try    bool
	of     hold // the claim
	flight int  // the request
	fate   fate
}

type verb uint8

const (
	ask verb = iota
	enterAgain
	release
	heartbeat
	renewal
	giveUp
	arrive // a request under way reaches the server
	fail   // the process stops waiting for a request under way
	hear   // of having been let in, by a message
	crash  // of a process
	drop   // of all holds, by force
	pass   // of time
	resend // of a release, by the other script, when the first is not answered
	expire // of what sole says of those that have gone
)

// A fate is what becomes of a request. Each but the first costs a fault.
type fate uint8

const (
	arrives   fate = iota // it runs, and the reply comes
	twice                 // it runs, and the reply comes; it is to run once more, late
	replyLost             // it runs; the reply is lost, so that it is sent again
	late                  // it is still under way
)

var allFates = []fate{arrives, twice, replyLost, late}

// cost is how many faults an action takes. To ask anew before the last claim of the owner has ended takes a release that
// is late, which is one.
func (x *system) cost(a action) uint8 {
	n := uint8(0)
	if a.fate != arrives {
		n++
	}
	if a.do == resend && x.flights[a.flight].ended == 0 {
		n++ // it is late
	}
	if a.do == ask && slices.ContainsFunc(x.claims, func(c claim) bool { return c.of.owner == a.owner && c.state == ending }) {
		n++
	}
	return n
}

// explorer knows what all systems have in common.
type explorer struct {
	*machine
	setup
	flaw error // of the run in the last action
}

// start is the system before anything that matters has happened.
func (e *explorer) start() *system {
	x := &system{s: &server{counter: -1}, owners: make([]owner, len(e.layout))}
	x.budget = budget{e.faults, e.crashes, e.forces}
	for o := range x.owners {
		x.owners[o].asks = e.asks
	}
	if e.before {
		p := e.layout[0]
		last := hold{0, 1}
		x.freed[p] = freed{true, last}
		x.slots = []freeSlot{{slot{p, 1}, int16(last.number)}}
		x.s.done = []done{{slot{p, 1}, int16(last.number)}}
		x.s.sole = sole{mode: soleFree, of: last}
	}
	return x
}

// actions lists all that can happen next.
func (e *explorer) actions(x *system) []action {
	var list []action
	with := func(a action, fates ...fate) {
		if len(fates) == 0 {
			fates = allFates
		}
		for _, a.fate = range fates {
			if x.cost(a) <= x.faults {
				list = append(list, a)
			}
		}
	}
	for o, w := range x.owners {
		if w.crashed {
			continue
		}
		o := uint8(o)
		reads, writes := x.current(o, false), x.current(o, true)
		if w.asks > 0 {
			// A reader may not ask to write, and one call of an owner waits for the other.
			if writes < 0 && reads < 0 {
				with(action{do: ask, owner: o, write: true})
				with(action{do: ask, owner: o, write: true, try: true})
			}
			if reads < 0 && (writes < 0 || x.claims[writes].state == held) {
				with(action{do: ask, owner: o})
				with(action{do: ask, owner: o, try: true})
			}
		}
		if x.crashes > 0 {
			list = append(list, action{do: crash, owner: o})
		}
		if x.forces > 0 {
			with(action{do: drop, owner: o})
		}
	}
	for _, c := range x.claims {
		a := action{owner: c.of.owner, of: c.of}
		switch c.state {
		case waiting:
			if c.known && !c.try && !x.awaits(c.of, lock, rlock) {
				a.do = heartbeat
				with(a)
			}
			a.do, a.fate = giveUp, arrives
			list = append(list, a)
			if c.message != noToken {
				a.do = hear
				list = append(list, a)
			}
		case held:
			if c.age > 0 && !x.awaits(c.of, renew) {
				a.do = renewal
				with(a)
			}
			if c.count == 1 && e.reenter && !x.awaits(c.of, reenter) {
				a.do = enterAgain
				with(a)
			}
			a.do = release
			if c.count == 1 {
				a.fate = arrives
				list = append(list, a)
			} else if !x.awaits(c.of, reenter) {
				with(a)
			}
		}
	}
	for i, f := range x.flights {
		a := action{do: arrive, owner: f.of.owner, of: f.of, flight: i}
		if !f.waited {
			list = append(list, a)
			continue
		}
		with(a, arrives, twice, replyLost)
		if f.kind == soleUnlock {
			if a.do, a.fate = resend, arrives; !x.awaits(f.of, unlock, runlock) && x.cost(a) <= x.faults {
				list = append(list, a)
			}
		} else if f.kind != unlock && f.kind != runlock && f.kind != force {
			a.do = fail
			list = append(list, a)
		}
	}
	// What sole says of those that have gone is remembered for longer than a process tries to release what it had. It
	// matters to whoever finds nobody there, and to requests that are late.
	if s := x.s; s.sole.mode == solePast && x.claim(s.sole.of) == nil && x.claim(s.sole.before) == nil &&
		(s.writerTTL+s.queueTTL+s.readersTTL == 0 || x.refers(s.sole.of) || x.refers(s.sole.before)) {
		list = append(list, action{do: expire})
	}
	return append(list, action{do: pass})
}

var fateNames = []string{"", ", and will again", ", the reply is lost", ", and is slow"}

// describe says what an action is, by the names of the system that it is taken in.
func (e *explorer) describe(x *system, a action) string {
	who := string(rune('A' + a.owner))
	mode := "read"
	if c := x.claim(a.of); c != nil && c.write {
		mode = "write"
	}
	claim := fmt.Sprintf("%s %s claim %d", who, mode, a.of.number)
	switch a.do {
	case ask:
		s := who
		if a.try {
			s += " tries to"
		} else {
			s += " asks to"
		}
		if a.write {
			return s + " write" + fateNames[a.fate]
		}
		return s + " read" + fateNames[a.fate]
	case enterAgain:
		return claim + " is entered again" + fateNames[a.fate]
	case release:
		return claim + " is released" + fateNames[a.fate]
	case heartbeat:
		return claim + " sends a heartbeat" + fateNames[a.fate]
	case renewal:
		return claim + " is renewed" + fateNames[a.fate]
	case giveUp:
		return claim + " is given up"
	case arrive, fail:
		f := x.flights[a.flight]
		s := fmt.Sprintf("%s's %s of claim %d", who, f.kind, f.of.number)
		if !f.waited {
			s += ", forgotten,"
		}
		if f.last != 0 {
			s += fmt.Sprintf(" (after %d)", f.last)
		}
		if f.news != 0 {
			s += fmt.Sprintf(" (request %d)", f.news)
		}
		if a.do == fail {
			return s + " fails"
		}
		return s + " runs" + fateNames[a.fate]
	case hear:
		return claim + " gets its message"
	case crash:
		return "the process of " + who + " dies"
	case drop:
		return who + " drops all holds" + fateNames[a.fate]
	case resend:
		return claim + " is released once more"
	case expire:
		return "it is forgotten who had the lock"
	}
	return "time passes"
}

// take returns the system after an action, and the first thing that is wrong with it.
func (e *explorer) take(x *system, a action) (*system, error) {
	x, e.flaw = x.clone(), nil
	x.faults -= x.cost(a)
	var err error
	switch a.do {
	case ask:
		x.owners[a.owner].asks--
		q := e.newClaim(x, a)
		if q.kind == soleLock && a.fate == late && !x.s.sole.fits(q) {
			// It will come to nothing whenever it runs, so it is what is sent next that is late.
			x.flights = append(x.flights, flight{request: q, waited: true})
			err = e.arrive(x, len(x.flights)-1, late)
			break
		}
		err = e.send(x, q, a.fate)
	case heartbeat:
		err = e.send(x, x.claim(a.of).ask(x), a.fate)
	case renewal:
		c := x.claim(a.of)
		c.sole = false
		err = e.send(x, request{kind: renew, of: c.of, slot: c.slot, write: c.write}, a.fate)
	case enterAgain:
		c := x.claim(a.of)
		c.count, c.again, c.sole = 2, true, false
		err = e.send(x, e.recount(x, a.of, false), a.fate)
	case release:
		if c := x.claim(a.of); c.count == 1 {
			c.tooLate = c.dropped
			e.end(x, c)
		} else {
			c.count = 1
			err = e.send(x, e.recount(x, a.of, true), a.fate)
		}
	case giveUp:
		e.end(x, x.claim(a.of))
	case arrive:
		err = e.arrive(x, a.flight, a.fate)
	case fail:
		e.fail(x, a.flight)
	case hear:
		c := x.claim(a.of)
		c.grant(c.message)
	case crash:
		x.crashes--
		e.crash(x, a.owner)
	case drop:
		x.forces--
		p := e.layout[a.owner]
		q := request{kind: force, of: hold{a.owner, x.next(e.layout, p)}}
		q.slot, _ = x.takeSlot(p)
		err = e.send(x, q, a.fate)
	case pass:
		err = e.pass(x)
	case resend:
		f := x.flights[a.flight]
		x.flights = append(x.flights, flight{request: x.claim(f.of).release(), waited: true, ended: f.ended})
	case expire:
		x.s = x.s.clone()
		x.s.sole = sole{}
	}
	if err == nil {
		err = e.verify(x)
	}
	return x, err
}

func (e *explorer) newClaim(x *system, a action) request {
	p := e.layout[a.owner]
	c := claim{of: hold{a.owner, x.next(e.layout, p)}, write: a.write, try: a.try, count: 1}
	c.slot, c.last = x.takeSlot(p)
	x.claims = append(x.claims, c)
	if f := x.freed[p]; f.known && x.current(a.owner, !a.write) < 0 {
		x.freed[p].known = false
		return request{kind: soleLock, of: c.of, write: c.write, try: c.try, after: f.of}
	}
	return c.ask(x)
}

// takeSlot takes the slot that was free for the shortest, or a new one.
func (x *system) takeSlot(p uint8) (slot, int16) {
	for i := len(x.slots) - 1; i >= 0; i-- {
		if f := x.slots[i]; f.slot.process == p {
			x.slots = append(x.slots[:i:i], x.slots[i+1:]...)
			return f.slot, f.last
		}
	}
	n := uint8(0)
	for _, c := range x.claims {
		if c.slot.process == p {
			n = max(n, c.slot.n)
		}
	}
	for _, f := range x.flights {
		if f.slot.process == p {
			n = max(n, f.slot.n)
		}
	}
	return slot{p, n + 1}, 0
}

// ask is the request of a claim.
func (c *claim) ask(x *system) request {
	q := request{kind: rlock, of: c.of, slot: c.slot, last: c.last, try: c.try, after: x.freed[c.slot.process].of}
	if c.write {
		q.kind, q.keep = lock, c.last != 0
	} else if i := x.current(c.of.owner, true); i >= 0 {
		q.in = x.claims[i].of.number
	}
	return q
}

func (e *explorer) recount(x *system, of hold, keep bool) request {
	c, news := x.claim(of), uint8(1)
	if known := x.recounts()[of]; len(known) > 0 {
		news = known[len(known)-1] + 1
	}
	return request{kind: reenter, of: of, slot: c.slot, write: c.write, n: c.count, keep: keep, news: news}
}

// end begins to end a claim.
func (e *explorer) end(x *system, c *claim) {
	c.state, c.ending, c.message = ending, 0, noToken
	c.known, c.try, c.count, c.token = false, false, 0, min(c.token, oldToken)
	x.forget(c.of, lock, rlock, renew, reenter, soleLock)
	q := c.release()
	if c.sole {
		q, c.sole = request{kind: soleUnlock, of: c.of, write: c.write}, false
	}
	x.flights = append(x.flights, flight{request: q, waited: true, ended: x.endingOf(c.of)})
}

// release is the request that ends a claim, whatever the server knows of it.
func (c *claim) release() request {
	q := request{kind: runlock, of: c.of, slot: c.slot, keep: c.last > 0, again: c.again}
	if c.write {
		q.kind = unlock
	}
	return q
}

// endingOf returns how a claim has ended at the server, as its requests that are under way know.
func (x *system) endingOf(of hold) model.Ending {
	for _, f := range x.flights {
		if f.of == of {
			return f.ended
		}
	}
	return 0
}

// enterAnew notes that the server has let a waiting claim in: if it was dropped before, it counts no longer.
func (c *claim) enterAnew() {
	c.dropped = c.dropped && c.state != waiting
}

// grant makes a waiting claim a held one.
func (c *claim) grant(t token) {
	c.message = noToken
	if c.state == waiting {
		c.state, c.token = held, t
		c.known, c.try = true, false // they make no difference any more
	}
}

// send sends a request, and lets its fate come.
func (e *explorer) send(x *system, q request, f fate) error {
	x.flights = append(x.flights, flight{request: q, waited: true, ended: x.endingOf(q.of)})
	if f == late {
		return nil
	}
	return e.arrive(x, len(x.flights)-1, f)
}

// arrive runs a request that is under way.
func (e *explorer) arrive(x *system, i int, fate fate) error {
	f := x.flights[i]
	res := e.run(run{e.intern(x.s), f.request, f.ended, f.waited})
	if res.err != nil {
		return res.err
	}
	e.flaw = cmp.Or(e.flaw, res.flaw)
	if f.waited && (f.kind == soleLock && res.answer == model.Refused || f.kind == soleUnlock && res.outcome == model.NotThere) {
		x.flights = append(x.flights[:i:i], x.flights[i+1:]...)
		return e.insteadOf(x, f, fate)
	}
	switch {
	case !f.waited, fate == arrives:
		x.flights = append(x.flights[:i:i], x.flights[i+1:]...)
	case fate == twice:
		x.flights[i].waited, x.flights[i].age = false, 0
	}
	if err := e.releasedInTime(x, f, res); err != nil {
		return err
	}
	e.ran(x, f, res)
	for _, h := range res.sent {
		if c := x.claim(h); c != nil && c.state == waiting {
			c.enterAnew()
			c.message = lastToken
		}
	}
	if f.waited && fate != replyLost {
		if f.kind == force {
			x.slots = append(x.slots, freeSlot{f.slot, int16(f.of.number)})
		}
		for _, h := range res.told {
			if c := x.claim(h); c != nil {
				c.enterAnew()
				c.grant(lastToken)
			}
		}
		return e.reply(x, f, res)
	}
	return nil
}

// insteadOf sends what a process sends when sole says something else than it expected. The run before has changed nothing,
// nor will another of it, so that nothing is lost if nothing else happens in between, and the fate is that of the other.
func (e *explorer) insteadOf(x *system, f flight, fate fate) error {
	c := x.claim(f.of)
	q := c.release()
	switch {
	case f.kind == soleLock:
		q = c.ask(x)
	case x.awaits(c.of, unlock, runlock):
		return nil // it is sent already
	}
	x.flights = append(x.flights, flight{request: q, waited: true, ended: f.ended})
	if fate == late {
		return nil
	}
	return e.arrive(x, len(x.flights)-1, fate)
}

// ran notes what a run did at the server.
func (e *explorer) ran(x *system, f flight, res *result) {
	if f.kind == force && res.outcome == model.ReleasedNow {
		for i := range x.claims {
			x.claims[i].dropped = x.claims[i].dropped || e.holds(x.s, x.claims[i].of)
		}
	}
	x.s = res.server
	if res.fresh {
		for i := range x.claims {
			c := &x.claims[i]
			c.token, c.message = min(c.token, oldToken), min(c.message, oldToken)
		}
	}
	ended := f.ended
	switch {
	case f.kind == soleUnlock && res.outcome == model.ReleasedNow:
		ended = model.Released
	case f.kind == unlock || f.kind == runlock || f.kind == force:
		ended = max(ended, model.Withdrawn)
		if res.outcome == model.ReleasedNow {
			ended = model.Released
		}
	case f.try && res.answer == model.Blocked:
		ended = model.Withdrawn
	}
	for i := range x.flights {
		if x.flights[i].of == f.of {
			x.flights[i].ended = ended
		}
	}
}

// reply is what a process makes of a reply that it waits for.
func (e *explorer) reply(x *system, f flight, res *result) error {
	c := x.claim(f.of)
	switch f.kind {
	case force:
	case lock, rlock, soleLock:
		if res.answer != model.Refused {
			c.kept(f.age)
		}
		if c.state != waiting {
			return nil
		}
		switch res.answer {
		case model.Granted:
			c.enterAnew()
			c.grant(lastToken)
			c.sole, c.told = f.kind == soleLock, res.sole
		case model.Refused:
			if !c.try {
				return errors.New("a claim that was not given up is refused")
			}
			e.end(x, c)
		default:
			c.known = true
			if c.try {
				e.vanish(x, c.of, freeSlot{c.slot, -int16(c.of.number)})
			}
		}
	case renew, reenter:
		if c.state != held {
			return nil
		}
		if !res.exists {
			e.end(x, c)
			return nil
		}
		if !f.keep {
			c.kept(f.age)
		}
	case soleUnlock:
		x.freed[e.layout[c.of.owner]] = freed{true, c.of}
		if x.awaits(c.of, unlock, runlock) {
			e.vanish(x, c.of, freeSlot{}) // nobody knows what done will say
			return nil
		}
		e.vanish(x, c.of, freeSlot{c.slot, c.last})
	default:
		last := int16(c.of.number)
		if res.outcome == model.NotThere {
			last = -last
		}
		if res.sole {
			x.freed[e.layout[c.of.owner]] = freed{c.told, c.of}
		}
		e.vanish(x, c.of, freeSlot{c.slot, last})
	}
	return nil
}

// kept notes that the server keeps a claim for a lease from a moment so many ticks ago.
func (c *claim) kept(age int8) { c.age = min(c.age, age) }

// vanish forgets a claim.
func (e *explorer) vanish(x *system, of hold, free freeSlot) {
	for i := range x.claims {
		if x.claims[i].of == of {
			x.claims = append(x.claims[:i:i], x.claims[i+1:]...)
			break
		}
	}
	for i := range x.flights {
		if x.flights[i].of == of {
			x.flights[i].waited, x.flights[i].age = false, 0
		}
	}
	if free.slot.n != 0 {
		x.slots = append(x.slots, free)
	}
}

// fail makes a process stop waiting for a reply.
func (e *explorer) fail(x *system, i int) {
	f := x.flights[i]
	x.forget(f.of, f.kind)
	c := x.claim(f.of)
	switch {
	case f.kind == reenter && !f.keep && c.state == held:
		// What asked for the hold has failed. It is released, and the count set right, late.
		c.count--
		x.flights = append(x.flights, flight{request: e.recount(x, f.of, true), waited: true, ended: x.endingOf(c.of)})
	case (f.kind == lock || f.kind == rlock || f.kind == soleLock) && !c.known && c.state == waiting:
		e.end(x, c)
	}
}

func (e *explorer) crash(x *system, o uint8) {
	p := e.layout[o]
	x.freed[p] = freed{}
	for other := range x.owners {
		if e.layout[other] != p {
			continue
		}
		x.owners[other] = owner{crashed: true}
		for i := len(x.claims) - 1; i >= 0; i-- {
			if c := x.claims[i]; c.of.owner == uint8(other) {
				e.vanish(x, c.of, freeSlot{})
			}
		}
	}
	for i := len(x.slots) - 1; i >= 0; i-- {
		if x.slots[i].slot.process == p {
			x.slots = append(x.slots[:i:i], x.slots[i+1:]...)
		}
	}
	x.abandoned = true
}

// pass lets a tick pass, and the processes do what they do at the end of a lease.
func (e *explorer) pass(x *system) error {
	expected, err := x.s.abstract()
	if err != nil {
		return err
	}
	expected.Advance(now + tickMS*1000)
	x.s = x.s.tick(tickMS)
	actual, err := x.s.abstract()
	if err != nil {
		return fmt.Errorf("after a tick: %w", err)
	}
	rebase(expected)
	foldTokens(expected, expected.Token)
	foldTokens(actual, actual.Token)
	if expected.Token != 0 {
		actual.Token = expected.Token
	}
	if err := model.Compare(expected, actual, 0); err != nil {
		return fmt.Errorf("after a tick: %w", err)
	}
	for p := range x.freed {
		x.freed[p].known = false // somebody else may have come since
	}
	for i := range x.flights {
		if x.flights[i].waited {
			x.flights[i].age++
		}
	}
	for _, c := range append([]claim(nil), x.claims...) {
		p := x.claim(c.of)
		lease := e.terms[c.of.owner]
		p.age++
		if p.state == ending {
			if p.ending++; p.ending >= lease {
				x.abandoned = true
				for i := len(x.flights) - 1; i >= 0; i-- {
					if f := x.flights[i]; f.of == c.of && f.waited {
						x.flights = append(x.flights[:i:i], x.flights[i+1:]...)
					}
				}
				e.vanish(x, c.of, freeSlot{})
			}
			continue
		}
		if p.age >= lease {
			e.end(x, p)
		}
	}
	for i := range x.claims {
		x.claims[i].age = min(x.claims[i].age, e.terms[x.claims[i].of.owner])
	}
	for i := range x.flights {
		x.flights[i].age = min(x.flights[i].age, e.terms[x.flights[i].of.owner])
	}
	if x.s.idle() && len(x.flights) == 0 {
		x.abandoned = false
	}
	return nil
}

// rebase takes the clock of a model back to now.
func rebase(l *model.Lock) {
	d := (l.Now - now) / 1000
	l.Now = now
	for i := range l.Holds {
		l.Holds[i].Until -= d
	}
	for i := range l.Queue {
		l.Queue[i].Until -= d
	}
}

// holds reports whether a claim holds the lock, by the server's clock.
func (e *explorer) holds(s *server, of hold) bool {
	l, err := s.abstract()
	return err == nil && l.Hold(of.claim()) != nil
}

// releasedInTime checks what a release is told: not that the hold was lost if its process could rely on it, and not
// that it was held to the end if somebody else wrote in between.
func (e *explorer) releasedInTime(x *system, f flight, res *result) error {
	c := x.claim(f.of)
	if c == nil || !f.waited || f.kind != unlock && f.kind != runlock && f.kind != soleUnlock || c.token == noToken {
		return nil
	}
	if res.outcome == model.NotThere && c.age < e.terms[f.of.owner] && !c.dropped && c.ending <= 1 { // it waits no longer
		return errors.New("a release in time is told that there was no hold")
	}
	if res.outcome == model.ReleasedNow && c.tooLate {
		return errors.New("a release is told that the hold was good, but it was dropped before")
	}
	return nil
}

// verify checks a system between two steps.
func (e *explorer) verify(x *system) error {
	l, err := x.s.abstract()
	if err != nil {
		return err
	}
	for _, h := range l.Holds {
		for _, other := range l.Holds {
			if h.Owner != other.Owner && h.Mode == model.Write {
				return fmt.Errorf("two hold the lock, of which one writes")
			}
		}
	}
	for _, c := range x.claims {
		h := l.Hold(c.of.claim())
		switch {
		case c.dropped:
		case c.state == held:
			if h == nil || (h.Mode == model.Write) != c.write {
				return fmt.Errorf("a process relies on a hold that the server does not keep")
			}
			if h.Until <= l.Now/1000 {
				return fmt.Errorf("a process relies on a hold that is over")
			}
			if c.token == oldToken {
				return fmt.Errorf("a process relies on a hold, but a writer was let in later")
			}
			if h.Count != int(c.count) && !x.underWay(c.of, reenter) {
				return fmt.Errorf("a hold's count is %d, not %d", h.Count, c.count)
			}
		case c.state == waiting && c.known && !c.try:
			if h == nil && !queued(l, c.of) {
				return fmt.Errorf("a waiter has lost its place")
			}
		}
	}
	if len(x.claims) == 0 && len(x.flights) == 0 && !x.abandoned && !x.s.idle() {
		return errors.New("when all is over, something is left")
	}
	return nil
}

func (x *system) underWay(of hold, k kind) bool {
	return slices.ContainsFunc(x.flights, func(f flight) bool { return f.of == of && f.kind == k })
}

func queued(l *model.Lock, of hold) bool {
	for _, w := range l.Queue {
		if w.Claim == of.claim() && l.Lives(w) {
			return true
		}
	}
	return false
}
