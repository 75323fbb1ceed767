package protocol

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State is the state of a lock at one moment, by the server's clock. Holds and waiters whose leases have
// ended are left out.
type State struct {
	Mode    Mode
	Holders []Holder
	Waiters []Waiter // in the order in which they will be served
	Token   int64
}

// A Holder is a claim that holds a lock.
type Holder struct {
	Known
	Count int
	Lease time.Duration // what is left
	Full  time.Duration // the whole lease; 0 if the server does not keep it, as for one of several readers
	Since int64         // when the lock was granted, µs of the server's clock; 0 if that is not known
	Under bool          // it holds the lock under a delegation: the server does not know it
}

// A Waiter is a claim that waits for a lock.
type Waiter struct {
	Known
	Lease time.Duration // what is left
	Full  time.Duration // the whole lease
	Since time.Time     // when its call began, if it is of this process: the server does not say
}

// DecodeState reads the reply of Inspect.
func DecodeState(reply any) (State, error) {
	e := elementsOf(reply, 4)
	now, err := strconv.ParseInt(e.text(0), 10, 64)
	d, leases, queue := decoder{now, make(map[string]string)}, e.pairs(2), e.pairs(3)
	for _, p := range e.pairs(1) {
		d.fields[p[0]] = p[1]
	}
	if !e.ok || err != nil {
		return State{}, badReply(reply)
	}
	if o := d.fields["owner"]; o != "" {
		if version := o[:len(o)-len(strings.TrimLeft(o, "0123456789"))]; version != "2" {
			return State{}, &IncompatibleError{cmp.Or(version, "1")}
		}
	}
	var s State
	fence := d.fields["fence"]
	if vote := strings.Fields(d.fields["vote"]); len(vote) > 1 {
		fence = vote[1]
	}
	s.Token, _ = strconv.ParseInt(fence, 10, 64)
	owner, more := strings.CutSuffix(d.fields["owner"], " +")
	if k, err := ParseClaim(owner); err == nil {
		lease, since, counted := strings.Cut(d.fields["lease"], " ")
		if !counted {
			since = d.fields["fence"]
		}
		granted := d.fields["fence"]
		if _, f := d.slot(owner, "held"); f != nil {
			granted = f[1] // of a write delegation, whose renewals move fence
		}
		if left, full := d.left(since, lease); left > 0 {
			s.Holders = append(s.Holders, Holder{Known: k, Count: countOf(d.fields["count"]), Lease: left, Full: full,
				Since: d.time(granted)})
		}
	}
	if owner == "2shared" {
		for _, p := range leases {
			k, f := d.slot(p[0], "held")
			deadline, _ := strconv.ParseFloat(p[1], 64)
			left := time.Duration(min(deadline*1000-float64(d.now),
				float64(maxAgain.Microseconds()))) * time.Microsecond
			if f != nil && left > 0 {
				s.Holders = append(s.Holders, Holder{Known: k, Count: countOf(f[3]), Lease: left, Since: d.time(f[1])})
			}
		}
	}
	for _, h := range s.Holders {
		s.Mode = max(s.Mode, h.Known.Mode)
	}
	if more {
		// Even if nobody has noticed the end of a write hold, the readers are owed the next phase.
		s.Waiters = d.waiters(queue, strings.HasPrefix(owner, "2w:"))
	}
	return s, nil
}

// A decoder knows the hash of a lock.
type decoder struct {
	now    int64 // µs
	fields map[string]string
}

// waiters returns the live waiters in the order in which they will be served: the readers that are owed the
// next phase, a writer, the other readers, the other writers.
func (d *decoder) waiters(queue [][2]string, written bool) []Waiter {
	owed := math.Inf(-1)
	if written {
		owed = math.Inf(1)
	} else if o, err := strconv.ParseFloat(d.fields["owed"], 64); err == nil {
		owed = o
	}
	var phases [4][]Waiter
	for _, p := range queue {
		k, f := d.slot(p[0], "waits")
		if len(f) != 4 {
			continue
		}
		w := Waiter{Known: k}
		w.Lease, w.Full = d.left(f[1], f[3])
		place, _ := strconv.ParseFloat(p[1], 64)
		phase := 0
		switch {
		case w.Lease <= 0:
			continue
		case k.Mode == Write && len(phases[1]) == 0:
			phase = 1
		case k.Mode == Write:
			phase = 3
		case place+readersFirst > owed:
			phase = 2
		}
		phases[phase] = append(phases[phase], w)
	}
	return slices.Concat(phases[:]...)
}

// slot returns the claim of that name, and the words of its slot: "<number> <µs> <state> …". It returns no
// words if the slot is not about the claim in that state.
func (d *decoder) slot(id, state string) (Known, []string) {
	k, err := ParseClaim(id)
	f := strings.Fields(d.fields[k.Slot])
	if err != nil || len(f) < 4 || f[2] != state {
		return k, nil
	}
	if n, err := strconv.ParseUint(f[0], 10, 64); err != nil || n != k.Number {
		return k, nil
	}
	return k, f
}

// readersFirst is the difference between a reader's ticket and its place in the queue.
const readersFirst = 1e12

// left returns the rest of a lease, and the whole of it. The lease is in ms, and began at a time in µs.
func (d *decoder) left(since, lease string) (left, full time.Duration) {
	from, _ := strconv.ParseInt(since, 10, 64)
	ms, _ := strconv.ParseInt(lease, 10, 64)
	most := maxAgain.Microseconds()
	return time.Duration(min(from+ms*1000-d.now, most)) * time.Microsecond,
		time.Duration(min(ms*1000, most)) * time.Microsecond
}

// time returns the time of a grant. That is the grant's token, unless the server's clock was set back and
// tokens are ahead of it. Several grants within a microsecond are ahead by that many.
func (d *decoder) time(token string) int64 {
	if n, err := strconv.ParseInt(token, 10, 64); err == nil && n <= d.now+time.Second.Microseconds() {
		return min(n, d.now)
	}
	return 0
}

// countOf reads a number of holds, or "" for one.
func countOf(s string) int {
	n, _ := strconv.Atoi(s)
	return max(n, 1)
}

// pairs returns the elements of a list two by two.
func (e *elements) pairs(i int) [][2]string {
	list, ok := e.list[i].([]any)
	e.ok = e.ok && ok && len(list)%2 == 0
	p := make([][2]string, len(list)/2)
	for i := range 2 * len(p) {
		p[i/2][i%2], ok = list[i].(string)
		e.ok = e.ok && ok
	}
	return p
}

// An IncompatibleError says that a lock was written by a version of the library that this one does not
// understand.
type IncompatibleError struct {
	Protocol string // that of the other version
}

func (e *IncompatibleError) Error() string {
	return "the lock was written by another version of rwlock, protocol " + e.Protocol
}
