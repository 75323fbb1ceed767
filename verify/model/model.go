// Package model is the specification of the lock: one name, its holds, its queue, its leases and a clock,
// with nothing of how a server keeps them. What the scripts do is held against it.
//
// An operation takes the lock from one state to the next, all at once. It returns what the caller is told,
// and leaves in Entered who was let in by it.
package model

import (
	"math"
	"slices"
)

// Mode is how a claim holds the lock, or wants to.
type Mode int

// The modes.
const (
	Read Mode = iota + 1
	Write
)

// A Claim is one hold of an owner, from the request for it to its end. Its number tells it from the owner's
// others.
type Claim struct{ Owner, Number int }

// A Hold is a claim that has the lock until a moment in ms, unless it is renewed.
type Hold struct {
	Claim
	Mode  Mode
	Until int64
	Token int64 // as of when it entered
	Count int   // how many holds the owner has, by its last renewal
}

// A Waiter is a claim that stands in line until a moment in ms, unless it is heard of again. One that is dead
// is in nobody's way. It may be forgotten at any time; until then it keeps its place.
type Waiter struct {
	Claim
	Mode  Mode
	Until int64
	Owed  bool // a reader that waited when a write hold ended: it goes before the next writer
}

// Ending is how a claim ended.
type Ending int

// The endings.
const (
	Lost      Ending = iota + 1 // it held the lock until its lease ended, or until it was dropped by force
	Withdrawn                   // it held nothing when it was given up
	Released                    // it held the lock until it was released
)

// A Lock is one moment of a lock.
type Lock struct {
	Now     int64 // µs
	Token   int64 // the last one handed out; 0 if none is known
	Holds   []Hold
	Queue   []Waiter // in order of arrival
	Ended   map[Claim]Ending
	Entered []Claim // by the last operation
	Over    []Hold  // whose leases ran out, and that nobody has followed

	// Unserved is the state without whom the last operation let in, where that may wait: a read hold was
	// released that another one outlasts.
	Unserved *Lock
}

// Answer is what a request for the lock comes to.
type Answer int

// The answers.
const (
	Granted Answer = iota + 1
	Blocked        // it waits now; or, of a try, it has ended
	Refused        // its claim has ended
)

// Outcome is what a release comes to.
type Outcome int

// The outcomes.
const (
	NotThere Outcome = iota
	ReleasedNow
	ReleasedBefore
	Either // NotThere or ReleasedNow: its lease had run out, but nobody had followed. NoteReleased notes which
)

func (l *Lock) ms() int64 { return l.Now / 1000 }

// Advance moves the clock to a moment in µs. Holds whose lease is over are gone, and their claims have ended:
// promise 6 has a claim granted the lock once.
func (l *Lock) Advance(now int64) {
	l.Now = now
	over := func(h Hold) bool { return h.Until <= l.ms() }
	for _, h := range l.Holds {
		if over(h) {
			l.Over = append(l.Over, h)
			l.Ended[h.Claim] = Lost
		}
	}
	l.end(over)
}

// end ends holds. When a write hold ends, every reader that waits is owed the next phase.
func (l *Lock) end(which func(Hold) bool) {
	for _, h := range l.Holds {
		if which(h) && h.Mode == Write {
			for i := range l.Queue {
				l.Queue[i].Owed = l.Queue[i].Mode == Read
			}
		}
	}
	l.Holds = slices.DeleteFunc(l.Holds, which)
}

// Hold returns the live hold of a claim, or nil.
func (l *Lock) Hold(c Claim) *Hold {
	for i := range l.Holds {
		if l.Holds[i].Claim == c {
			return &l.Holds[i]
		}
	}
	return nil
}

// Writer returns the live write hold, or nil.
func (l *Lock) Writer() *Hold {
	for i := range l.Holds {
		if l.Holds[i].Mode == Write {
			return &l.Holds[i]
		}
	}
	return nil
}

func (l *Lock) place(c Claim) int {
	return slices.IndexFunc(l.Queue, func(w Waiter) bool { return w.Claim == c })
}

func (l *Lock) dequeue(c Claim) {
	l.Queue = slices.DeleteFunc(l.Queue, func(w Waiter) bool { return w.Claim == c })
}

// Lives reports whether a waiter has been heard of within its lease.
func (l *Lock) Lives(w Waiter) bool { return w.Until > l.ms() }

// enter makes a claim a hold. A writer's token is more than any before it, and a reader's not less; both are
// the time, if that is more.
func (l *Lock) enter(c Claim, mode Mode, until int64) {
	if mode == Write {
		l.Token++
	}
	l.Token = max(l.Token, l.Now)
	l.Over = slices.DeleteFunc(l.Over, func(h Hold) bool {
		return h.Claim == c || h.Mode == Write || mode == Write
	})
	l.Holds = append(l.Holds, Hold{Claim: c, Mode: mode, Until: until, Token: l.Token, Count: 1})
	l.dequeue(c)
	l.Entered = append(l.Entered, c)
	if mode == Write {
		for i := range l.Queue {
			l.Queue[i].Owed = false // their phase has been
		}
	}
}

// serve lets in whoever can be: the readers, if no writer waits or they are owed it; then, when nobody is
// left inside, the first writer. A grant lasts for as long as the waiter's place in the queue would have.
func (l *Lock) serve() {
	if l.Writer() != nil {
		return
	}
	var writer *Waiter
	for _, w := range l.Queue {
		if w.Mode == Write && l.Lives(w) {
			writer = &w
			break
		}
	}
	for _, w := range slices.Clone(l.Queue) {
		if w.Mode == Read && l.Lives(w) && (writer == nil || w.Owed) {
			l.enter(w.Claim, Read, w.Until)
		}
	}
	if writer != nil && len(l.Holds) == 0 {
		l.enter(writer.Claim, Write, writer.Until)
	}
}

// Ask asks for the lock, or, sent again by a waiter, says that it lives. A claim that is met again keeps what
// it has. One that has ended is refused for ever, whether it was released, lost or withdrawn.
func (l *Lock) Ask(c Claim, mode Mode, lease int64, try bool) Answer {
	l.Entered = nil
	until := l.ms() + lease
	if l.Ended[c] != 0 {
		return Refused
	}
	if h := l.Hold(c); h != nil {
		h.Until = max(h.Until, until)
		return Granted
	}
	place := l.place(c)
	if place < 0 {
		l.serve() // whom time has let in comes before one who comes now
	}
	switch {
	case place >= 0:
		l.Queue[place].Until = until
	case !try || !l.crowded(mode):
		l.Queue = append(l.Queue, Waiter{Claim: c, Mode: mode, Until: until})
	}
	l.serve()
	if l.Hold(c) != nil {
		return Granted
	}
	if try {
		l.Ended[c] = Withdrawn
	}
	return Blocked
}

// crowded reports whether one that tries has someone in its way: a hold, or anyone who waits.
func (l *Lock) crowded(mode Mode) bool {
	return l.Writer() != nil || mode == Write && len(l.Holds) > 0 || slices.ContainsFunc(l.Queue, l.Lives)
}

// Release ends a claim, whatever it is: a hold, a waiter, or a request that has yet to come and will be
// refused.
func (l *Lock) Release(c Claim) Outcome {
	l.Entered = nil
	if h := l.Hold(c); h != nil {
		released := *h
		l.Ended[c] = Released
		l.end(func(h Hold) bool { return h.Claim == c })
		l.serveUnlessOutlasted(released)
		return ReleasedNow
	}
	before := l.Ended[c]
	switch before {
	case Released:
		return ReleasedBefore
	case Withdrawn:
		return NotThere
	}
	l.Ended[c] = Withdrawn
	l.dequeue(c)
	if i := slices.IndexFunc(l.Over, func(h Hold) bool { return h.Claim == c }); i >= 0 {
		released := l.Over[i]
		l.Over = slices.Delete(l.Over, i, i+1)
		l.serveUnlessOutlasted(released)
		return Either
	}
	if before == Lost {
		return NotThere
	}
	l.Unserved = nil
	l.serve()
	return NotThere
}

// serveUnlessOutlasted lets in whoever can be after a release, which may wait if another hold lasts longer:
// see Unserved.
func (l *Lock) serveUnlessOutlasted(released Hold) {
	l.Unserved = nil
	for _, h := range slices.Concat(l.Holds, l.Over) {
		if h.Until >= released.Until-Slack {
			l.Unserved = l.Clone()
		}
	}
	l.serve()
}

// NoteReleased notes that a claim whose release came to Either was told that it was released.
func (l *Lock) NoteReleased(c Claim) { l.Ended[c] = Released }

// Renew makes a claim live for at least another lease, notes how many holds its owner has, and reports
// whether the claim is there.
func (l *Lock) Renew(c Claim, count int, lease int64) bool {
	l.Entered = nil
	h := l.Hold(c)
	if h != nil {
		h.Until, h.Count = max(h.Until, l.ms()+lease), count
	}
	return h != nil
}

// Convert ends a hold, and has another claim hold the lock in its place, in one step. Run again, it renews
// that one. It does nothing if that one has ended, or the hold has. Who reads may write only if nobody else
// reads, and no writer waits; otherwise the new claim has ended. The token stays the same, but a new one is
// for who writes after reading, and for who takes over what was handed on.
func (l *Lock) Convert(from, to Claim, mode Mode, takesOver bool, count int, lease int64) Outcome {
	if l.Renew(to, count, lease) {
		return ReleasedBefore
	}
	h := l.Hold(from)
	if h == nil || l.Ended[to] != 0 {
		return NotThere
	}
	before := *h
	writerWaits := slices.ContainsFunc(l.Queue, func(w Waiter) bool { return w.Mode == Write && l.Lives(w) })
	if mode == Write && before.Mode == Read && (len(l.Holds) > 1 || writerWaits) {
		l.Ended[to] = Withdrawn
		return NotThere
	}
	if mode == before.Mode { // no phase has ended
		l.Holds = slices.DeleteFunc(l.Holds, func(h Hold) bool { return h.Claim == from })
	} else {
		l.end(func(h Hold) bool { return h.Claim == from })
	}
	l.Ended[from] = Lost // so that Unlock tells whether it has ended the hold itself
	token := before.Token
	if takesOver || mode > before.Mode {
		if mode == Write {
			l.Token++
		}
		l.Token = max(l.Token, l.Now)
		token = l.Token
	}
	l.Holds = append(l.Holds, Hold{Claim: to, Mode: mode, Until: l.ms() + lease, Token: token, Count: count})
	l.serve()
	return ReleasedNow
}

// Force ends all holds. It is a claim of its own, which is Released then: a second run of it does nothing.
func (l *Lock) Force(c Claim) Outcome {
	l.Entered = nil
	if l.Ended[c] == Released {
		return ReleasedBefore
	}
	l.Ended[c], l.Over = Released, nil
	for _, h := range l.Holds {
		l.Ended[h.Claim] = Lost
	}
	l.end(func(Hold) bool { return true })
	l.serve()
	return ReleasedNow
}

// Serve lets in whom time has let in.
func (l *Lock) Serve() {
	l.Entered = nil
	l.serve()
}

// Wakes returns how many ms from now a claim that waits has reason to ask again at the latest; or -1.
// Whatever ends before a live writer that it waits for directly is that one's to look after. A writer waits
// for the last writer before it. A reader waits for the first writer: it enters after that one has had the
// lock. The end of a writer behind the first lets in nobody.
func (l *Lock) Wakes(c Claim) int64 {
	var first, last *Waiter // of the writers in front
	for _, w := range l.Queue {
		switch {
		case w.Claim == c && first != nil && w.Mode == Write:
			return last.Until - l.ms()
		case w.Claim == c && first != nil && l.Writer() == nil:
			return first.Until - l.ms()
		case w.Mode == Write && l.Lives(w):
			last = &w
			if first == nil {
				first = last
			}
		}
	}
	return l.next(c)
}

// next returns in how many ms from now a claim that waits, and stays alive, can be let in although nobody
// else does anything; or -1.
func (l *Lock) next(c Claim) int64 {
	var ends []int64
	for _, h := range l.Holds {
		ends = append(ends, h.Until)
	}
	for _, w := range l.Queue {
		ends = append(ends, w.Until)
	}
	slices.Sort(ends)
	later := l.Clone()
	if place := later.place(c); place >= 0 {
		later.Queue[place].Until = math.MaxInt64
	}
	for _, end := range ends {
		later.Advance(max(end*1000, later.Now))
		if later.Serve(); later.Hold(c) != nil {
			return later.ms() - l.ms()
		}
	}
	return -1
}

// Clone returns a copy.
func (l *Lock) Clone() *Lock {
	c := *l
	c.Holds, c.Queue, c.Entered, c.Over = slices.Clone(l.Holds), slices.Clone(l.Queue), slices.Clone(l.Entered),
		slices.Clone(l.Over)
	c.Ended = make(map[Claim]Ending, len(l.Ended))
	for k, v := range l.Ended {
		c.Ended[k] = v
	}
	return &c
}
