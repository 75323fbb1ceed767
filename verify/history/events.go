package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// An Event is what a worker reports, at the time when it happens.
type Event struct {
	At    int64 // ns
	What  What
	Owner int    `json:",omitempty"`
	Hold  int    `json:",omitempty"` // numbers the process's lock calls
	Name  string `json:",omitempty"`
	Write bool   `json:",omitempty"`
	Token int64  `json:",omitempty"`
	Error string `json:",omitempty"`
	For   int64  `json:",omitempty"` // ns
	UUID  string `json:",omitempty"`
	Role  string `json:",omitempty"` // of the job that the call is part of

	Process int `json:"-"`
}

// What an event is about.
type What string

// The events.
const (
	Starts What = "starts" // the process is ready
	Asks   What = "asks"   // a lock call begins
	Local  What = "local"  // the owner's call is granted from memory, since the lock is delegated to the process
	Has    What = "has"    // it returns a hold
	Fails  What = "fails"  // it returns an error
	Quits  What = "quits"  // it returns an error, as it had little time, was cancelled, or only tried
	Loses  What = "loses"  // the hold's context is cancelled by a loss
	Leaves What = "leaves" // Unlock begins; the holder relied on the hold until then
	Left   What = "left"   // Unlock has returned
	Stalls What = "stalls" // the process finds that it did not run for a while
	Killed What = "killed" // the process is about to be killed; reported by who does it
	Broken What = "broken" // a promise was broken within the process
)

// A Span is a time in which a process did not run.
type Span struct{ From, To int64 }

// Known is what is known beside the events.
type Known struct {
	Pauses map[int][]Span // by process
	Losses []Span         // during each, the server lost data, or its clock jumped

	// Delegation is the lease of delegations. A process may grant locks from memory for as long after a loss,
	// until it renews its delegation, and a release under it says nothing of the loss.
	Delegation time.Duration
}

// wakes is how long after a pause a process may take to notice what it slept through.
const wakes = int64(500 * time.Millisecond)

// returns is how long after a grant from memory the call may return.
const returns = 100 * time.Millisecond

// A key names a lock call.
type key struct{ process, hold int }

func (e Event) key() key { return key{e.Process, e.Hold} }

// An owner is an owner of a process, and a lock that it wants or has.
type owner struct {
	process, owner int
	name           string
}

func (e Event) owner() owner { return owner{e.Process, e.Owner, e.Name} }

// A tried is a hold, or the attempt to get one.
type tried struct {
	ask                Event
	has, leaving, gone bool
	local              bool // it was granted from memory, or within a hold that was
	unsure             bool // it is left out
	leavesAt           int64
	lossObserved       bool
}

func inOrder(events []Event) []Event {
	return slices.SortedStableFunc(slices.Values(events), func(a, b Event) int {
		return cmp.Compare(a.At, b.At)
	})
}

// A Call is what became of a lock call. Times are zero for what has not happened.
type Call struct {
	Event          // its Asks, with the token and the last error
	Answered int64 // when it returned
	Granted  bool  // it returned a hold
	Quit     bool  // it did not, and was not to
	Relied   int64 // until when the holder relied on the hold
	Gone     int64 // when the process knew that the hold was lost
}

// Calls returns what became of all lock calls, in the order in which they returned.
func Calls(events []Event) (calls []Call) {
	at := map[key]int{}
	open := map[key]Event{}
	for _, e := range inOrder(events) {
		k := e.key()
		i, answered := at[k]
		switch {
		case e.Hold == 0:
		case e.What == Asks:
			open[k] = e
		case e.What == Has || e.What == Fails || e.What == Quits:
			c := Call{Event: open[k], Answered: e.At, Granted: e.What == Has, Quit: e.What == Quits}
			c.Token, c.Error = e.Token, e.Error
			at[k] = len(calls)
			calls = append(calls, c)
		case !answered:
		case e.What == Loses:
			calls[i].Gone = e.At
		case e.What == Leaves:
			calls[i].Relied = e.At
		case e.What == Left && e.Error == "lost":
			calls[i].Gone = cmp.Or(calls[i].Gone, e.At)
		case e.What == Left:
			calls[i].Error = e.Error
		}
	}
	return calls
}

// Assemble makes a history of the events of all processes, and returns what is wrong with them already. It
// leaves out the holds that a process has granted from memory when it may have lost the delegation and need
// not have known of it yet: only the fence is sure to exclude others then. unsure is how many these are.
func Assemble(events []Event, known Known) (ops []Op, broken []string, unsure int) {
	events = inOrder(events)
	for _, e := range events {
		if e.What == Stalls {
			known.Pauses[e.Process] = append(known.Pauses[e.Process], Span{e.At - e.For, e.At})
		}
	}
	open, local := map[key]*tried{}, map[owner]bool{}
	// ended forgets a call. What its owner gets next is granted from memory only if the process says so again,
	// unless the owner has the lock still.
	ended := func(e Event) {
		delete(open, e.key())
		for _, t := range open {
			if t.has && t.ask.owner() == e.owner() {
				return
			}
		}
		delete(local, e.owner())
	}
	op := func(t *tried, kind Kind, call, ret int64) {
		ops = append(ops, Op{t.ask.Name, t.ask.Owner, kind, t.ask.Write, t.ask.Token, call, ret})
	}
	// lose ends all holds that an owner has of a lock in one mode: they share their fate.
	lose := func(t *tried, call, ret int64) {
		op(t, Lose, known.earliest(t, call), ret)
		for _, other := range open {
			if other.has && other.ask.Owner == t.ask.Owner && other.ask.Name == t.ask.Name &&
				other.ask.Write == t.ask.Write {
				other.gone = true
			}
		}
	}
	end := int64(0)
	for _, e := range events {
		end = e.At
		t := open[e.key()]
		if t == nil && e.What != Asks && e.Hold != 0 {
			continue // after the process was declared dead
		}
		switch e.What {
		case Asks:
			open[e.key()] = &tried{ask: e}
		case Fails, Quits:
			ended(e)
		case Local:
			local[e.owner()] = true
		case Has:
			t.has, t.ask.Token, t.local = true, e.Token, local[e.owner()]
			if t.local && known.mayLack(e.At) {
				t.unsure, t.gone = true, true
				unsure++
			} else {
				op(t, Acquire, t.ask.At, e.At)
			}
		case Loses:
			if !t.gone {
				lose(t, e.At, e.At)
			}
			t.lossObserved = !t.unsure
		case Leaves:
			t.leaving, t.leavesAt = true, e.At
		case Left:
			switch {
			case t.gone && e.Error == "" && t.lossObserved:
				broken = append(broken, fmt.Sprintf("owner %d: Unlock says nothing of the loss of %q", e.Owner, e.Name))
			case t.gone:
			case e.Error == "" && t.local:
				op(t, Release, known.lost(t, t.leavesAt), e.At)
			case e.Error == "":
				op(t, Release, t.leavesAt, e.At)
			case e.Error == "lost":
				lose(t, t.leavesAt, e.At)
			default:
				op(t, Release, t.leavesAt, Forever)
			}
			ended(e)
		case Killed:
			for k, t := range open {
				if k.process != e.Process {
					continue
				}
				if t.has && !t.gone {
					if t.leaving {
						lose(t, t.leavesAt, Forever)
					} else {
						lose(t, e.At, Forever)
					}
				}
				delete(open, k)
			}
		case Broken:
			broken = append(broken, fmt.Sprintf("process %d: %s", e.Process, e.Error))
		}
	}
	for _, t := range open {
		if t.has && !t.gone {
			lose(t, end, Forever)
		}
	}
	return ops, broken, unsure
}

// mayLack reports whether a process that grants a lock from memory may have lost the delegation, and need not
// know of it.
func (known Known) mayLack(at int64) bool {
	return slices.ContainsFunc(known.Losses, func(loss Span) bool {
		return loss.From <= at && at-loss.To <= int64(known.Delegation+returns)
	})
}

// earliest returns when a loss that was noticed at a time may have happened. A process that does not run
// notices late; so do all when the server forgets.
func (known Known) earliest(t *tried, noticed int64) int64 {
	at := noticed
	for _, p := range known.Pauses[t.ask.Process] {
		if p.From <= noticed && noticed <= p.To+wakes {
			at = min(at, p.From)
		}
	}
	return max(known.lost(t, at), t.ask.At)
}

// lost returns when the server may first have lost data after a hold was asked for, or at if it did not until
// then.
func (known Known) lost(t *tried, at int64) int64 {
	for _, loss := range known.Losses {
		if t.ask.At <= loss.To {
			at = min(at, max(loss.From, t.ask.At))
		}
	}
	return at
}
