package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A process is an engine, the owners that use it, and what of the network concerns it. It changes by events,
// each of which makes another process of it.
type process struct {
	Now     time.Time
	Lease   time.Duration
	Engine  *engine.Engine
	Holds   []*engine.Hold     // calls that have not ended, and what they have brought that is not released
	Flights []*flight          // requests that the engine waits for
	Copies  []protocol.Request // requests in flight that it does not wait for
	Inbox   []protocol.Message // about to be heard
	Delayed []protocol.Message
	Sub     subscription
	Asks    []uint8 // of each owner, how many calls it may still make
	Fates   []fate
	Closing closing
	Crashed bool
	Asleep  bool // it stands still, and does nothing when it should
	Overdue bool // it goes on after a while: replies, messages and calls may come before what is due

	Extending []*extending
	Detaching []detaching
	Pledges   []pledge
	// Abandoned says that a claim may be kept by the server that nobody knows of any more, for a lease.
	Abandoned bool
}

// closing is how far a process has come with closing its engine.
type closing uint8

const (
	open closing = iota
	draining
	closed
)

// An extending is a call of Extend that has not ended.
type extending struct {
	X     *engine.Extension
	Hold  *engine.Hold
	Until time.Time // at least, if the call succeeds
}

// A pledge is what a caller may expect of a hold that it has.
type pledge struct {
	Hold  *engine.Hold
	Until time.Time // it was extended until then, at least; or zero
	End   time.Time // by MaxHold; or zero
}

// A flight is a request that an engine waits for.
type flight struct {
	R     *engine.Request
	Stage stage
	Reply protocol.Reply
}

type stage uint8

const (
	due     stage = iota // about to run
	slow                 // to run at any time
	replied              // it has run, and its reply is on the way
)

type subscription uint8

const (
	none    subscription = iota
	opening              // about to stand
	lost                 // to stand at any time
	stands
)

// A fate is what has become of a claim on the server, as far as it matters to requests that are in flight.
type fate struct {
	number  uint64
	Ended   model.Ending
	Dropped bool      // by force, while it had the lock
	Until   time.Time // if so, it is not relied on for longer than this
	Anew    bool      // it got the lock once more after that
	Late    bool      // the server has forgotten that it granted the lock; the process may still learn of it
	Short   time.Time // until then it may rely on a lease that the server has forgotten; or zero
}

// excused reports whether a hold may be found to be gone before its deadline.
func (f fate) excused(now time.Time) bool { return f.Dropped || now.Before(f.Short) }

// An event is what happens to a process.
type event struct {
	do         verb
	a          int16 // which owner, hold, flight, copy or message; or the number of a claim
	name       uint8
	write, try bool
	ended      model.Ending
	ticket     claimName
	reply      *protocol.Reply
	message    *protocol.Message
}

type verb uint8

const (
	acquire       verb = iota // a: owner, or call
	giveUp                    // a: hold
	release                   // a: hold
	force                     // the engine sends ForceUnlock
	extend                    // a: hold
	downgrade                 // a: hold
	upgrade                   // a: hold
	detach                    // a: hold
	discard                   // ticket
	stopDetaching             // a: detaching
	stopExtending             // a: extending
	drain                     // Shutdown begins
	shut                      // Close, or the end of Shutdown
	reply                     // a: flight; reply, or the one that was on the way
	fail                      // a: flight; from now on it is a copy
	keep                      // a: flight that ran, and is to run once more: a copy is on the way, too
	slowDown                  // a: flight; it will run later
	holdReply                 // a: flight that ran; its reply is slow
	loseReply                 // a: flight that ran
	ran                       // a: copy
	send                      // message, which arrives
	hear                      // the first message in the inbox
	hearLater                 // it is delayed
	hearTwice                 // it is heard, and once more later
	miss                      // it is lost
	hearDelayed               // a: message
	stand                     // the subscription
	standLater                // it takes longer
	drop                      // the subscription breaks
	pass                      // time
	crash
	sleep
	wake
	catchUp // it does what is overdue
	note    // a: number of a claim; how it has ended on the server
	unnote  // a: number of a claim; how it has ended on a server that has forgotten what it did last
	dropped // a: number; by force
	anew    // a: number; it has the lock
	// What a server comes to that takes over from another, and has not heard of its last run.
	ungranted // a: number; it does not have the lock any more
	shortened // a: number; its lease is that of before
	// In a quorum.
	doDue     // what is due
	reconnect // a: server
	cut       // a: server, which cannot be reached
	mend      // a: server, which can be reached again
)

// An actor is the node of a process, and an effect what becomes of one.
type (
	actor  = node[process]
	effect = change[process]
)

// mostProcesses bounds the processes that are remembered: each takes about 6 KB, with what happens to it.
const mostProcesses = 300_000

var (
	errGaveUp  = errors.New("gave up")
	errNetwork = errors.New("the network")
)

func (e *explorer) newProcess(i int) *actor {
	p := &process{Now: epoch, Lease: e.lease[i], Asks: make([]uint8, e.owners[i]-'0')}
	for o := range p.Asks {
		p.Asks[o] = e.asks
	}
	p.Engine = engine.New(engine.Config{Prefix: prefix, Instance: nobody, Lease: e.lease[i], AtOnce: 1})
	return e.node(p)
}

// look takes a look at a process.
func (e *explorer) look(n *actor) {
	p := n.p
	n.urgent = !p.Asleep && (len(p.Inbox) > 0 || p.Sub == opening ||
		slices.ContainsFunc(p.Flights, func(f *flight) bool { return f.Stage == due }))
	if !p.Crashed {
		n.views = p.Engine.Views()
	}
	if !e.plain {
		p.references(n)
	}
}

// play has an event happen to a process.
func (e *explorer) play(p *process, ev event, c *effect) {
	past := p.past()
	p.happen(ev, e, c)
	for _, h := range past {
		if h.State() == engine.Live && p.Now.Before(h.Deadline()) {
			c.flaw = cmp.Or(c.flaw, errors.New("a hold whose deadline had come may be relied on again"))
		}
	}
	if !e.plain {
		p.normalizeAll(e.names > 1)
	}
}

// tidy frees memory.
func (e *explorer) tidy() bool {
	tidied := e.cast.tidy()
	if tidied {
		clear(e.renamed)
		clear(e.wired)
	}
	return tidied
}

// past returns the live holds whose deadline has come.
func (p *process) past() (list []*engine.Hold) {
	if !p.Overdue {
		return nil
	}
	for _, h := range p.Holds {
		if h.State() == engine.Live && !p.Now.Before(h.Deadline()) {
			list = append(list, h)
		}
	}
	return list
}

func (p *process) happen(ev event, e *explorer, c *effect) {
	switch ev.do {
	case acquire:
		h := &engine.Hold{Name: names[ev.name], Owner: owner(uint8(ev.a)), Mode: engine.Mode(protocol.Read),
			Try:   ev.try,
			Lease: p.Lease, NoRenew: e.noRenew, Bounded: e.bounded, NewOwner: e.names == 1,
			MaxHold: time.Duration(e.maxHold) * tick}
		if ev.write {
			h.Mode = engine.Mode(protocol.Write)
		}
		if ev.ticket.isTicket() {
			t := ev.ticket.asTicket()
			h.Ticket = &t
		}
		if p.Asks[ev.a] != unlimited {
			p.Asks[ev.a]--
		}
		p.Holds = append(p.Holds, h)
		p.Engine.Acquire(p.Now, h)
		if p.Closing == closed {
			p.woken(e, h, c) // it is over at once
		}
	case giveUp:
		p.Engine.GiveUp(p.Now, p.Holds[ev.a], errGaveUp)
	case release:
		h := p.Holds[ev.a]
		if known, _ := p.Engine.Release(p.Now, h); known {
			takeOut(&p.Holds, ev.a)
		}
	case force:
		_ = p.Engine.Force(p.Now, names[ev.name], 0, nil)
	case extend:
		p.extend(p.Holds[ev.a])
	case downgrade:
		h, read := p.Holds[ev.a], &engine.Hold{}
		known, _ := p.Engine.Downgrade(p.Now, h, read)
		if read.State() == engine.Failed {
			break
		}
		if p.Holds = append(p.Holds, read); known {
			takeOut(&p.Holds, ev.a)
		}
		for _, g := range p.Pledges {
			if g.Hold == h {
				p.Pledges = append(p.Pledges, pledge{read, g.Until, g.End})
			}
		}
	case upgrade:
		up := &engine.Hold{}
		p.Holds = append(p.Holds, up)
		p.Engine.TryUpgrade(p.Now, p.Holds[ev.a], up)
	case detach:
		p.detach(p.Holds[ev.a], ev.ticket)
	case stopDetaching:
		p.Engine.GiveUpDetach(p.Now, p.Detaching[ev.a].Hold, errGaveUp)
	case discard:
		_ = p.Engine.Discard(p.Now, ev.ticket.asTicket(), nil)
	case stopExtending:
		p.Engine.GiveUpExtension(p.Extending[ev.a].X, errGaveUp)
	case drain:
		p.Closing = draining
		p.Engine.Drain(p.Now)
	case shut:
		p.Closing = closed
		p.Engine.Close(p.Now)
	case reply:
		f := takeOut(&p.Flights, ev.a)
		r := f.Reply
		if ev.reply != nil {
			r = *ev.reply
			r.Message.Granted, r.Message.AskAgain = slices.Clone(r.Message.Granted), slices.Clone(r.Message.AskAgain)
		}
		p.Engine.Replied(p.Now, f.R, r, nil)
	case fail:
		f := takeOut(&p.Flights, ev.a)
		if f.Stage != replied {
			p.Copies = append(p.Copies, f.R.Request)
		}
		p.Engine.Replied(p.Now, f.R, protocol.Reply{}, errNetwork)
	case keep:
		p.Copies = append(p.Copies, p.Flights[ev.a].R.Request)
	case slowDown:
		p.Flights[ev.a].Stage = slow
	case holdReply:
		p.Flights[ev.a].Stage, p.Flights[ev.a].Reply = replied, *ev.reply
	case ran:
		takeOut(&p.Copies, ev.a)
	case send:
		if p.Sub == stands && !p.Crashed {
			p.Inbox = append(p.Inbox, *ev.message)
		}
	case hear, hearLater, hearTwice, miss:
		m := p.Inbox[0]
		p.Inbox = p.Inbox[1:]
		if ev.do == hearLater || ev.do == hearTwice {
			p.Delayed = append(p.Delayed, m)
		}
		if ev.do == hear || ev.do == hearTwice {
			p.Engine.Heard(p.Now, messageText(m))
		}
	case hearDelayed:
		p.Engine.Heard(p.Now, messageText(takeOut(&p.Delayed, ev.a)))
	case stand:
		p.Sub = stands
		p.Engine.Subscribed(p.Now)
	case standLater:
		p.Sub = lost
	case drop:
		p.Sub = lost
		p.Inbox = nil
		p.Engine.Unsubscribed(p.Now, errNetwork)
	case pass:
		if p.Crashed {
			p.Abandoned = true
			break
		}
		if !e.plain {
			lookThrough(p, func(m meaning, _ *shape, q unsafe.Pointer) {
				if t := (*time.Time)(q); m == moment && !t.IsZero() {
					*t = t.Add(-tick)
				}
			})
			p.Now = epoch
		} else {
			p.Now = p.Now.Add(tick)
		}
		if p.Overdue = p.Asleep; !p.Asleep {
			p.tick(c)
		}
	case crash:
		for _, f := range p.Flights {
			if f.Stage != replied {
				p.Copies = append(p.Copies, f.R.Request)
			}
		}
		*p = process{Now: p.Now, Lease: p.Lease, Copies: p.Copies, Asks: make([]uint8, len(p.Asks)), Fates: p.Fates,
			Crashed: true, Abandoned: true}
	case sleep:
		p.Asleep = true
	case wake:
		p.Asleep = false
	case catchUp:
		p.Overdue = false
		p.tick(c)
	case note:
		f := p.fate(uint64(ev.a))
		f.Ended = max(f.Ended, ev.ended)
	case unnote:
		p.fate(uint64(ev.a)).Ended = ev.ended
	case dropped, ungranted:
		f := p.fate(uint64(ev.a))
		v := p.view(f.number)
		f.Dropped, f.Anew = true, false
		f.Until = order.Later(p.Now.Add(p.Lease), v.Deadline) // it may have been extended
		f.Late = f.Late || ev.do == ungranted && v.Number != 0 && v.State <= engine.Queued
	case shortened:
		f := p.fate(uint64(ev.a))
		f.Short = order.Later(p.Now.Add(p.Lease), p.view(f.number).Deadline)
	case anew:
		f := p.fate(uint64(ev.a))
		f.Anew = f.Anew || f.Dropped
		if v := p.view(f.number); f.Dropped && v.Number != 0 && v.State <= engine.Queued {
			// It does not know yet that it had the lock.
			f.Dropped, f.Late, f.Until = false, false, time.Time{}
		}
	}
	if !p.Crashed && !p.Asleep {
		p.inherits()
		p.settle(e, c)
		p.hearsLate()
		p.keepsPledges(c)
		p.closes(c)
	}
}

// inherits notes that what befell a claim that is being downgraded befell the one that reads, too. If that
// one is dropped, the release of the write hold may be told of a loss. If a claim is dropped that writes in
// place of one that reads, the latter is lost with it.
func (p *process) inherits() {
	if len(p.Fates) == 0 {
		return
	}
	for _, v := range p.Engine.Views() {
		if v.Next != 0 && p.view(v.Next).Mode > v.Mode {
			p.losesBoth(v.Number, v.Next)
		}
		if _, ok := ticketOf(v); !ok && v.Former != 0 && v.Mode == engine.Mode(protocol.Write) {
			p.losesBoth(v.Former, v.Number)
			continue
		}
		if was := p.knownFate(v.Former); v.Former != 0 && (was.Dropped || !was.Short.IsZero()) {
			f := p.fate(v.Number)
			f.Dropped, f.Anew = f.Dropped || was.Dropped, f.Anew || was.Anew
			f.Until, f.Short = order.Later(f.Until, was.Until), order.Later(f.Short, was.Short)
		} else if f := p.knownFate(v.Number); v.Former != 0 && f.Dropped {
			p.fate(v.Former).Short = f.Until
		}
	}
}

// losesBoth notes that a claim that reads is lost if the one that was to write in its place is dropped.
func (p *process) losesBoth(reads, writes uint64) {
	if was := p.knownFate(writes); was.Dropped && !was.Late {
		f := p.fate(reads)
		f.Dropped, f.Anew = true, was.Anew
		f.Until = order.Later(order.Later(f.Until, was.Until), p.view(reads).Deadline)
	}
}

// hearsLate notes that a process has learned of a grant that its server has forgotten. It may rely on that
// grant as on any other: no message says that the server has lost it. A server that replicates without
// waiting promises no more (I10). The next renewal finds out.
func (p *process) hearsLate() {
	for i := range p.Fates {
		f := &p.Fates[i]
		if !f.Late {
			continue
		}
		if v := p.view(f.number); v.Number != 0 && v.State == engine.Held {
			f.Late, f.Until = false, v.Deadline
		}
	}
}

// view returns a claim of the engine that has not ended, or zero.
func (p *process) view(number uint64) engine.View {
	for _, v := range p.Engine.Views() {
		if v.Number == number {
			return v
		}
	}
	return engine.View{}
}

// copies reports whether a request for a claim is in flight that the engine does not wait for.
func (p *process) copies(number uint64) bool {
	return slices.ContainsFunc(p.Copies, func(r protocol.Request) bool {
		return r.Claim.Number == fmt.Sprintf("%015d", number)
	})
}

// tick has the engine do what is due.
func (p *process) tick(c *effect) {
	before := len(p.Engine.Views())
	p.Engine.Tick(p.Now)
	if len(p.Engine.Views()) < before {
		p.Abandoned, c.lost = true, true // its end was tried for a lease
	}
}

// takeOut removes an item of a list, and returns it.
func takeOut[T any, I int | int16](list *[]T, i I) T {
	item := (*list)[i]
	*list = slices.Delete(*list, int(i), int(i)+1)
	return item
}

func (p *process) fate(n uint64) *fate {
	for i := range p.Fates {
		if p.Fates[i].number == n {
			return &p.Fates[i]
		}
	}
	p.Fates = append(p.Fates, fate{number: n})
	return &p.Fates[len(p.Fates)-1]
}

// knownFate returns what is known of a claim.
func (p *process) knownFate(n uint64) fate {
	for _, f := range p.Fates {
		if f.number == n {
			return f
		}
	}
	return fate{}
}

// settle does what the engine wants done, until there is nothing to do now.
func (p *process) settle(e *explorer, c *effect) {
	for i := 0; ; i++ {
		var fx engine.Effects
		p.Engine.Flush(p.Now, &fx)
		for _, r := range fx.Send {
			p.Flights = append(p.Flights, &flight{R: r})
		}
		for _, h := range fx.Cancel {
			p.cancelled(h, c)
		}
		for _, h := range fx.Wake {
			p.woken(e, h, c)
		}
		for _, x := range fx.Extended {
			p.extended(x, c)
		}
		if fx.Listen {
			p.Sub = opening
		}
		coarsen(p.Engine, p.Now)
		at, ok := p.Engine.Next()
		if !ok || at.After(p.Now) || p.Overdue && !p.Engine.Sweeping() {
			return
		}
		if i == 100 {
			c.flaw = cmp.Or(c.flaw, errors.New("an engine does not come to rest"))
			return
		}
		p.Engine.Tick(p.Now)
	}
}

// cancelled checks that a hold is not lost without a cause.
func (p *process) cancelled(h *engine.Hold, c *effect) {
	i := slices.IndexFunc(p.Pledges, func(g pledge) bool { return g.Hold == h })
	switch {
	case errors.Is(h.Err(), engine.ErrClosed) && p.Closing == closed:
	case i >= 0 && !p.Pledges[i].End.IsZero() && !p.Now.Before(p.Pledges[i].End):
	case i >= 0 && p.Now.Before(p.Pledges[i].Until) && !p.knownFate(h.ClaimNumber()).excused(p.Now):
		c.flaw = cmp.Or(c.flaw, errors.New("a hold that was extended ends before it should"))
	case !errors.Is(h.Err(), engine.ErrLost):
		c.flaw = cmp.Or(c.flaw, fmt.Errorf("a hold ends with %w", h.Err()))
	case !p.Now.Before(h.Deadline()):
		c.lost = true
	case !p.knownFate(h.ClaimNumber()).excused(p.Now):
		c.flaw = cmp.Or(c.flaw, errors.New("a hold is lost without a cause"))
	}
}

// woken checks what a call, or a release, has come to, and forgets it if it is over.
func (p *process) woken(e *explorer, h *engine.Hold, c *effect) {
	flaw := func(text string) {
		c.flaw = cmp.Or(c.flaw, fmt.Errorf("%s: %w", text, cmp.Or(h.Err(), errors.New("no error"))))
	}
	f, err := p.knownFate(h.ClaimNumber()), h.Err()
	before := *holdOf(unsafe.Pointer(h)).instead // of a call of TryUpgrade
	switch h.State() {
	case engine.Live:
		if before != nil {
			p.upgraded(before, h, c)
			return
		}
		if e.maxHold > 0 {
			p.pledge(h).End = p.Now.Add(time.Duration(e.maxHold) * tick)
		}
		return
	case engine.Failed:
		switch {
		case errors.Is(err, engine.ErrClosed) && p.Closing > open:
		case errors.Is(err, engine.ErrDeadlock) && p.stuck(h, false):
		case errors.Is(err, errGaveUp):
		case errors.Is(err, engine.ErrUpgrade) && h.Mode == engine.Mode(protocol.Write) && p.reads(h):
		case errors.Is(err, engine.ErrLocked) && h.Try, errors.Is(err, errNetwork) && h.Try:
		case errors.Is(err, engine.ErrUnanswered) && (h.Try || !h.Bounded):
			c.lost = true
		case errors.Is(err, engine.ErrLost) && (f.excused(p.Now) || p.lapsed(h.Owner)),
			errors.Is(err, engine.ErrLost) && h.ClaimNumber() != 0 && !p.Now.Before(h.Deadline()):
		case h.Ticket != nil && errors.Is(err, engine.ErrLost): // as the server says, which the model agrees with
		case h.Ticket != nil && strings.Contains(err.Error(), "or waits for it, already") && p.has(h):
		case before != nil && errors.Is(err, engine.ErrNotHeld) && before.State() >= engine.Releasing:
		case before != nil && strings.Contains(err.Error(), "not answered yet") && p.converts(h.Owner, h.Name):
		default:
			flaw("a call ends for no reason")
		}
	case engine.Finished:
		ticket := p.detached(h)
		switch {
		case ticket > 0 && err == nil:
			c.ticket = ticket
		case ticket > 0 && errors.Is(err, errGaveUp):
		case err == nil && f.Dropped && !f.Anew:
			flaw("a release says that the hold was good to the end, but it was dropped before")
		case err == nil:
		case errors.Is(err, engine.ErrUnanswered):
			c.lost = true
		case errors.Is(err, engine.ErrLost) && (f.excused(p.Now) || !p.Now.Before(h.Deadline())):
		default:
			flaw("a release fails for no reason")
		}
	default:
		flaw(fmt.Sprintf("a hold wakes in state %d", h.State()))
		return
	}
	p.Holds = slices.DeleteFunc(p.Holds, func(o *engine.Hold) bool { return o == h })
}

// upgraded has a write hold take the place of a read hold.
func (p *process) upgraded(h, up *engine.Hold, c *effect) {
	if h.State() != engine.Finished || h.Err() != nil {
		c.flaw = cmp.Or(c.flaw, errors.New("a hold is upgraded that has ended"))
	}
	p.Holds = slices.DeleteFunc(p.Holds, func(o *engine.Hold) bool { return o == h })
	for i := range p.Pledges {
		if p.Pledges[i].Hold == h {
			p.Pledges[i].Hold = up
		}
	}
	for _, x := range p.Extending {
		if x.Hold == h {
			x.Hold = up
		}
	}
}

// converts reports whether a conversion of what an owner holds is not answered.
func (p *process) converts(o engine.Owner, name string) bool {
	return slices.ContainsFunc(p.Engine.Views(), func(v engine.View) bool {
		return v.Owner == o && v.Name == name && (v.Former != 0 || v.Next != 0)
	})
}

// has reports whether the owner of a call has a hold, or another call.
func (p *process) has(call *engine.Hold) bool {
	return slices.ContainsFunc(p.Holds, func(h *engine.Hold) bool {
		return h != call && h.Owner == call.Owner && h.Name == call.Name && h.State() <= engine.Live
	})
}

func (p *process) lapsed(o engine.Owner) bool {
	return slices.ContainsFunc(p.Holds, func(h *engine.Hold) bool {
		return h.Owner == o && h.State() == engine.Lapsed
	})
}

// reads reports whether the owner of a call has the lock for reading.
func (p *process) reads(call *engine.Hold) bool {
	return slices.ContainsFunc(p.Holds, func(h *engine.Hold) bool {
		return h.Owner == call.Owner && h.Name == call.Name && h.Mode == engine.Mode(protocol.Read) &&
			(h.State() == engine.Live || h.State() == engine.Entering)
	})
}

// stuck reports whether a call waits for another call of the process, which waits for another …, which waits
// for a hold of the owner of the first. If behind is set, a reader that waits behind a writer waits for the
// readers that hold the lock.
func (p *process) stuck(first *engine.Hold, behind bool) bool {
	writes := func(h *engine.Hold) bool { return h.Mode == engine.Mode(protocol.Write) }
	waits := func(h *engine.Hold) bool { return h.State() == engine.Wanted }
	calls := []*engine.Hold{first}
	for i := 0; i < len(calls); i++ {
		call := calls[i]
		blocked := writes(call) || behind && slices.ContainsFunc(p.Holds, func(h *engine.Hold) bool {
			return h.Name == call.Name && waits(h) && writes(h)
		})
		for _, hold := range p.Holds {
			if hold.State() != engine.Live || hold.Name != call.Name || hold.Owner == call.Owner ||
				!writes(hold) && !blocked {
				continue
			}
			if hold.Owner == first.Owner {
				return true
			}
			for _, next := range p.Holds {
				if next.Owner == hold.Owner && waits(next) && !slices.Contains(calls, next) {
					calls = append(calls, next)
				}
			}
		}
	}
	return false
}

// extend begins a call of Extend, for twice the lease.
func (p *process) extend(h *engine.Hold) {
	d := 2 * p.Lease
	x := &extending{X: &engine.Extension{}, Hold: h, Until: p.Now.Add(d)}
	if end := p.pledge(h).End; !end.IsZero() && end.Before(x.Until) {
		x.Until = end
	}
	p.Extending = append(p.Extending, x)
	p.Engine.Extend(p.Now, h, d, x.X)
}

// extended checks what a call of Extend has come to.
func (p *process) extended(x *engine.Extension, c *effect) {
	i := slices.IndexFunc(p.Extending, func(o *extending) bool { return o.X == x })
	call := takeOut(&p.Extending, i)
	_, err := x.Over()
	switch state := call.Hold.State(); {
	case err == nil:
		g := p.pledge(call.Hold)
		if call.Until.After(g.Until) {
			g.Until = call.Until
		}
	case errors.Is(err, errGaveUp):
	case errors.Is(err, engine.ErrLost) && state == engine.Lapsed:
	case errors.Is(err, engine.ErrLost) && p.knownFate(call.Hold.ClaimNumber()).excused(p.Now):
	case errors.Is(err, engine.ErrClosed) && p.Closing == closed:
	case errors.Is(err, engine.ErrNotHeld) && state >= engine.Releasing:
	default:
		c.flaw = cmp.Or(c.flaw, fmt.Errorf("a hold is not extended for no reason: %w", err))
	}
}

// pledge returns what is expected of a hold.
func (p *process) pledge(h *engine.Hold) *pledge {
	for i := range p.Pledges {
		if p.Pledges[i].Hold == h {
			return &p.Pledges[i]
		}
	}
	p.Pledges = append(p.Pledges, pledge{Hold: h})
	return &p.Pledges[len(p.Pledges)-1]
}

// closes checks that what is closed has no holds and no calls, and that one that is to be has no calls but
// upgrades, which wait for nobody.
func (p *process) closes(c *effect) {
	for _, h := range p.Holds {
		switch {
		case p.Closing == closed && (h.State() <= engine.Entering || h.State() == engine.Live),
			p.Closing == draining && h.State() == engine.Wanted && *holdOf(unsafe.Pointer(h)).instead == nil:
			c.flaw = cmp.Or(c.flaw, errors.New("a call or a hold goes on although its RWLock is closed"))
		}
	}
}

// keepsPledges checks that holds last for as long as their callers may expect, and forgets what is of the
// past.
func (p *process) keepsPledges(c *effect) {
	p.Pledges = slices.DeleteFunc(p.Pledges, func(g pledge) bool { return g.Hold.State() != engine.Live })
	for i := range p.Pledges {
		g := &p.Pledges[i]
		if !p.Now.Before(g.Until) {
			g.Until = time.Time{}
		}
		switch at := g.Hold.Deadline(); {
		case !g.End.IsZero() && at.After(g.End):
			c.flaw = cmp.Or(c.flaw, errors.New("a hold may be relied on for longer than its MaxHold"))
		case at.Before(g.Until) && !p.knownFate(g.Hold.ClaimNumber()).excused(p.Now):
			c.flaw = cmp.Or(c.flaw, errors.New("a hold may be relied on for less than it was extended for"))
		}
	}
	p.Pledges = slices.DeleteFunc(p.Pledges, func(g pledge) bool { return g.Until.IsZero() && g.End.IsZero() })
}

const oldest = 8 * tick // by then whatever is timed has happened

// normalizeAll changes what makes no difference.
func (p *process) normalizeAll(several bool) {
	if !p.Crashed {
		p.normalize(several)
	}
	lookThrough(p, func(m meaning, _ *shape, q unsafe.Pointer) {
		if t := (*time.Time)(q); m == moment && !t.IsZero() && p.Now.Sub(*t) > oldest {
			*t = p.Now.Add(-oldest)
		}
	})
	slices.SortStableFunc(p.Flights, func(a, b *flight) int {
		if a.Stage == due && b.Stage == due {
			return 0 // they are about to run in this order
		}
		return cmp.Or(cmp.Compare(a.Stage, b.Stage), compareRequests(&a.R.Request, &b.R.Request),
			a.R.Sent.Compare(b.R.Sent))
	})
	slices.SortStableFunc(p.Copies, func(a, b protocol.Request) int { return compareRequests(&a, &b) })
	p.Copies = slices.CompactFunc(p.Copies, func(a, b protocol.Request) bool {
		return compareRequests(&a, &b) == 0
	})
	byText := func(a, b protocol.Message) int { return strings.Compare(messageText(a), messageText(b)) }
	slices.SortFunc(p.Delayed, byText)
	p.Delayed = slices.CompactFunc(p.Delayed, func(a, b protocol.Message) bool { return byText(a, b) == 0 })

	if len(p.Fates) == 0 {
		return
	}
	known := map[uint64]bool{}
	fates := p.Fates
	p.Fates = nil
	lookThrough(p, func(m meaning, s *shape, q unsafe.Pointer) {
		rename(m, s, q, func(n uint64) uint64 { known[n] = true; return n }, sameSlot)
	})
	slices.SortFunc(fates, func(a, b fate) int { return cmp.Compare(a.number, b.number) })
	for _, f := range fates {
		if !p.Now.Before(f.Short) {
			f.Short = time.Time{}
		}
		if known[f.number] && (f.Ended != 0 || f.Dropped || f.Anew || !f.Short.IsZero()) {
			p.Fates = append(p.Fates, f)
		}
	}
}

// compareRequests sorts requests by what they say.
func compareRequests(a, b *protocol.Request) int {
	return cmp.Or(strings.Compare(a.Claim.Number, b.Claim.Number),
		strings.Compare(a.Script.Name, b.Script.Name),
		bytes.Compare(argText(a), argText(b)))
}

func argText(r *protocol.Request) []byte { return fmt.Append(nil, r.Argv(nil)...) }

// messageText is a message as it is published.
func messageText(m protocol.Message) string {
	var b strings.Builder
	if m.Token != 0 {
		fmt.Fprintf(&b, "%d %d", m.Token, bit(m.More))
		for _, n := range m.Granted {
			fmt.Fprintf(&b, " %d", n)
		}
	}
	for i, n := range m.AskAgain {
		if i == 0 {
			b.WriteString(",")
		} else {
			b.WriteString(" ")
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}
