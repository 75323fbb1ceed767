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

	// Forks says that a server that was replaced may go on during a loss: a release that succeeds there says
	// nothing of the loss.
	Forks bool

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

// A Call is what became of a lock call. Times are zero for what has not happened.
type Call struct {
	Event          // its Asks, with the token and the last error
	Answered int64 // when it returned
	Granted  bool  // it returned a hold
	Quit     bool  // it did not, and was not to
	Relied   int64 // until when the holder relied on the hold
	Gone     int64 // when the process knew that the hold was lost

	local  bool // it was granted from memory, or within a hold that was
	unsure bool // it is left out of the history
	over   bool // the history has the end of the hold, or leaves it out
}

// A History is what all processes have seen.
type History struct {
	Calls  []*Call // in the order in which they returned
	Ops    []Op
	Broken []string // what is wrong already

	// Unsure is how many holds are left out: those that a process granted from memory when it may have lost the
	// delegation, or the hold that was re-entered, and need not have known of it yet. Only the fence is sure to
	// exclude others then.
	Unsure int
}

// Assemble makes a history of the events of all processes.
func Assemble(events []Event, known Known) (h History) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	for _, e := range events {
		if e.What == Stalls {
			known.Pauses[e.Process] = append(known.Pauses[e.Process], Span{e.At - e.For, e.At})
		}
	}
	open, local := map[key]*Call{}, map[owner]bool{}
	// ended forgets a call. What its owner gets next is granted from memory only if the process says so again,
	// unless the owner has the lock still.
	ended := func(e Event) {
		delete(open, e.key())
		for _, c := range open {
			if c.Granted && c.owner() == e.owner() {
				return
			}
		}
		delete(local, e.owner())
	}
	op := func(c *Call, kind Kind, call, ret int64) {
		h.Ops = append(h.Ops, Op{c.Name, c.Owner, kind, c.Write, c.Token, call, ret})
	}
	// beside returns another hold that the owner of a call has, or nil. To take or release a hold beside
	// another asks the server nothing, and so says nothing of a loss, unless the last write hold is released.
	beside := func(c *Call) *Call {
		for _, other := range open {
			if other != c && other.Granted && other.owner() == c.owner() && (other.Write || !c.Write) {
				return other
			}
		}
		return nil
	}
	// lose ends all holds that an owner has of a lock in one mode: they share their fate.
	lose := func(c *Call, call, ret int64) {
		if c.Relied != 0 {
			call = c.Relied
		}
		op(c, Lose, known.earliest(c, call), ret)
		for _, other := range open {
			if other.Granted && other.Owner == c.Owner && other.Name == c.Name && other.Write == c.Write {
				other.over = true
			}
		}
	}
	// die ends the holds of a process, or of all.
	die := func(e Event, all bool) {
		for k, c := range open {
			if all || k.process == e.Process {
				if c.Granted && !c.over {
					lose(c, e.At, Forever)
				}
				delete(open, k)
			}
		}
	}
	for _, e := range events {
		c := open[e.key()]
		if c == nil && e.What != Asks && e.Hold != 0 {
			continue // after the process was declared dead
		}
		switch e.What {
		case Asks:
			open[e.key()] = &Call{Event: e}
		case Local:
			local[e.owner()] = true
		case Has, Fails, Quits:
			c.Answered, c.Granted, c.Quit, c.Token, c.Error = e.At, e.What == Has, e.What == Quits, e.Token, e.Error
			h.Calls = append(h.Calls, c)
			c.local = local[e.owner()]
			outer := beside(c)
			switch {
			case !c.Granted:
				ended(e)
			case c.local && known.mayLack(e.At), outer != nil && (outer.unsure || known.mayHaveLost(outer, e.At)):
				c.unsure, c.over = true, true
				h.Unsure++
			default:
				op(c, Acquire, c.At, e.At)
			}
		case Loses:
			if c.Gone = e.At; !c.over {
				lose(c, e.At, e.At)
			}
		case Leaves:
			c.Relied = e.At
		case Left:
			switch {
			case c.over && e.Error == "" && c.Gone != 0 && !c.unsure:
				says := fmt.Sprintf("owner %d: Unlock says nothing of the loss of %q", e.Owner, e.Name)
				h.Broken = append(h.Broken, says)
			case c.over:
			case e.Error == "" && (c.local || known.Forks || beside(c) != nil):
				op(c, Release, known.lost(c, c.Relied), e.At)
			case e.Error == "":
				op(c, Release, c.Relied, e.At)
			case e.Error == "lost":
				lose(c, c.Relied, e.At)
			default:
				op(c, Release, c.Relied, Forever)
			}
			if e.Error == "lost" {
				c.Gone = cmp.Or(c.Gone, e.At)
			} else {
				c.Error = e.Error
			}
			ended(e)
		case Killed:
			die(e, false)
		case Broken:
			h.Broken = append(h.Broken, fmt.Sprintf("process %d: %s", e.Process, e.Error))
		}
	}
	if len(events) > 0 {
		die(events[len(events)-1], true)
	}
	return h
}

// mayLack reports whether a process that grants a lock from memory may have lost the delegation, and need not
// know of it.
func (known Known) mayLack(at int64) bool {
	return slices.ContainsFunc(known.Losses, func(loss Span) bool {
		return loss.From <= at && at-loss.To <= int64(known.Delegation+returns)
	})
}

// mayHaveLost reports whether a hold may have been lost by a time, and its process need not know of it.
func (known Known) mayHaveLost(c *Call, at int64) bool {
	return slices.ContainsFunc(known.Losses, func(loss Span) bool { return loss.From <= at && c.At <= loss.To })
}

// earliest returns when a loss that was noticed at a time may have happened. A process that does not run
// notices late; so do all when the server forgets.
func (known Known) earliest(c *Call, noticed int64) int64 {
	at := noticed
	for _, p := range known.Pauses[c.Process] {
		if p.From <= noticed && noticed <= p.To+wakes {
			at = min(at, p.From)
		}
	}
	return max(known.lost(c, at), c.At)
}

// lost returns when the server may first have lost data after a hold was asked for, or at if it did not until
// then.
func (known Known) lost(c *Call, at int64) int64 {
	for _, loss := range known.Losses {
		if c.At <= loss.To {
			at = min(at, max(loss.From, c.At))
		}
	}
	return at
}
