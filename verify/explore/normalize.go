package main

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// This file makes engines equal that will do the same from now on. What it changes is private to the engine,
// so the following structs point to fields of the engine's structs. A field has the name that it has there,
// or is found by the path in its tag.

type engineFields struct {
	config              *engine.Config
	heap                *[]dueClaim `at:"timeline.heap"`
	index               *[]int32    `at:"timeline.index"`
	sweeps              *[]struct{} // only its length is read
	locks               *map[string]unsafe.Pointer
	locksMax, claimsMax *int
	renewalTook         *time.Duration
	listening           *time.Time
}

// A dueClaim is an entry of the engine's timeline.
type dueClaim struct {
	at     time.Time
	claim  unsafe.Pointer
	number int32
}

type lockFields struct {
	first *unsafe.Pointer `at:"held.first"`
	last  *unsafe.Pointer `at:"held.last"`
}

type claimFields struct {
	state                           *engine.State
	mode                            *engine.Mode
	slot, failures, counted         *int
	number, since, Tie              *uint64
	place                           *int32 `at:"Place.number"`
	next, wanted, before, after     *unsafe.Pointer
	caller, last                    **engine.Hold
	holds                           *[]*engine.Hold
	longest, kept                   *time.Duration
	sent, granted, retry, recountAt *time.Time
	err                             *error
	token                           *int64
	quickEnd                        *bool
}

type wantedFields struct {
	answered, askAgain, prompted, resumed *time.Time
	obstacle                              *protocol.Obstacle
}

type holdFields struct {
	state                         *engine.HoldState
	path                          *engine.Path
	err, trouble                  *error
	claim, confirmation           *unsafe.Pointer
	instead                       **engine.Hold
	tries                         *int
	since, deadline, end, entered *time.Time
}

type requestFields struct {
	claim *unsafe.Pointer
	slot  *int
}

var (
	claimType = fieldAt(reflect.TypeFor[engine.Hold](), "claim").Type.Elem()
	engineOf  = fieldsOf[engineFields](reflect.TypeFor[engine.Engine]())
	lockOf    = fieldsOf[lockFields](fieldAt(claimType, "lock").Type.Elem())
	claimOf   = fieldsOf[claimFields](claimType)
	wantedOf  = fieldsOf[wantedFields](fieldAt(claimType, "wanted").Type.Elem())
	holdOf    = fieldsOf[holdFields](reflect.TypeFor[engine.Hold]())
	requestOf = fieldsOf[requestFields](reflect.TypeFor[engine.Request]())
)

// fieldAt returns the field of a struct that is at a path, with its offset in the struct.
func fieldAt(t reflect.Type, path string) (f reflect.StructField) {
	offset := uintptr(0)
	for name := range strings.SplitSeq(path, ".") {
		found, ok := t.FieldByName(name)
		if !ok {
			panic(fmt.Sprintf("normalize.go looks for %s in %v", path, t))
		}
		for _, i := range found.Index { // the path through embedded structs
			f = t.Field(i)
			offset, t = offset+f.Offset, f.Type
		}
	}
	f.Offset = offset
	return f
}

// fieldsOf returns a function that points the fields of an F to those of the struct at an address.
func fieldsOf[F any](of reflect.Type) func(unsafe.Pointer) F {
	var offsets []uintptr
	for i := range reflect.TypeFor[F]().NumField() {
		to := reflect.TypeFor[F]().Field(i)
		f := fieldAt(of, cmp.Or(to.Tag.Get("at"), to.Name))
		is, was := to.Type.Elem(), f.Type
		if is.Size() != was.Size() || is != was && is.Kind() != was.Kind() && was.Kind() != reflect.Pointer {
			panic(fmt.Sprintf("normalize.go takes %s in %v for a %v", f.Name, of, is))
		}
		offsets = append(offsets, f.Offset)
	}
	return func(p unsafe.Pointer) (to F) {
		addresses := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&to)), len(offsets))
		for i, offset := range offsets {
			addresses[i] = unsafe.Add(p, offset)
		}
		return to
	}
}

// upgrade returns the claim that is to write in place of one that reads, or that is a ticket's; or nil.
func (c claimFields) upgrade() unsafe.Pointer {
	if *c.next != nil && *claimOf(*c.next).mode >= *c.mode {
		return *c.next
	}
	return nil
}

// coarsen moves all times at which an engine has something due to the next of the moments now, now + tick,
// now + 2 ticks, and so on. The engine then does not conclude that its process was paused, although the time
// is only reported at these moments.
func coarsen(e *engine.Engine, now time.Time) {
	up := func(t *time.Time) {
		if t.After(now) {
			*t = now.Add((t.Sub(now) + tick - 1) / tick * tick)
		}
	}
	f := engineOf(unsafe.Pointer(e))
	for i := range *f.heap {
		d := &(*f.heap)[i]
		up(&d.at)
		c := claimOf(d.claim)
		up(c.retry)
		if next := c.upgrade(); next != nil { // which is due in its place
			up(claimOf(next).retry)
		}
		if *c.wanted != nil {
			up(wantedOf(*c.wanted).askAgain)
		}
		up(c.recountAt)
	}
	slices.SortFunc(*f.heap, func(a, b dueClaim) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(*claimOf(a.claim).Tie, *claimOf(b.claim).Tie))
	})
	for i := range *f.heap { // so that timelines of equal claims are equal in memory
		d := &(*f.heap)[i]
		d.number = int32(i + 1)
		*claimOf(d.claim).place, (*f.index)[i] = d.number, int32(i)
	}
}

// These are as in the engine. TestNormalizingIsSound fails if they are less than there.
const (
	renewAfter  = 3
	quickEndFor = 45 * time.Second
)

// normalize removes differences that do not affect what the engine does from now on. Durations in events and
// the texts of errors are such differences. The engine must have been coarsened and flushed. several says
// whether there may be locks of more than one name.
func (p *process) normalize(several bool) {
	e := engineOf(unsafe.Pointer(p.Engine))
	longest := e.config.Lease
	normalizeClaim := func(at unsafe.Pointer) {
		if at == nil {
			return
		}
		c := claimOf(at)
		longest = max(longest, *c.longest)
		for _, h := range *c.holds {
			normalizeHold(p.Now, h)
		}
		next := c.upgrade()
		p.normalizeClaim(at, c, e, several)
		if next != nil {
			p.normalizeClaim(next, claimOf(next), e, several)
		}
	}
	for _, d := range *e.heap {
		normalizeClaim(d.claim)
	}
	for _, f := range p.Flights {
		r := requestOf(unsafe.Pointer(f.R))
		normalizeClaim(*r.claim)
		if f.R.Script != lua.Force {
			*r.slot = -1
		}
	}
	for _, h := range p.Holds {
		normalizeClaim(*holdOf(unsafe.Pointer(h)).claim)
		normalizeHold(p.Now, h)
	}
	*e.renewalTook = min(*e.renewalTook, longest/renewAfter) // see renewalPatience in the engine
	for _, at := range *e.locks {
		lk := lockOf(at)
		lk.sortHeld()
	}
	*e.locksMax, *e.claimsMax = 0, 0
}

// asked reports whether a request of some sort for the lock was sent before a time and is in flight.
func (p *process) asked(before time.Time, of func(requestFields) bool) bool {
	return slices.ContainsFunc(p.Flights, func(f *flight) bool {
		return f.R.Asks() && f.R.Sent.Before(before) && of(requestOf(unsafe.Pointer(f.R)))
	})
}

// sortHeld links the claims that are held in the order of their numbers.
func (lk lockFields) sortHeld() {
	var held []unsafe.Pointer
	for at := *lk.first; at != nil; at = *claimOf(at).after {
		held = append(held, at)
	}
	slices.SortFunc(held, func(a, b unsafe.Pointer) int {
		return cmp.Compare(*claimOf(a).number, *claimOf(b).number)
	})
	before, link := unsafe.Pointer(nil), lk.first
	for _, at := range held {
		c := claimOf(at)
		*c.before, *link = before, at
		before, link = at, c.after
	}
	*lk.last, *link = before, nil
}

func normalizeHold(now time.Time, hold *engine.Hold) {
	h := holdOf(unsafe.Pointer(hold))
	*h.since, *h.trouble = time.Time{}, nil
	*h.path, *h.confirmation = 0, nil // the latter matters to calls that wait for replicas alone
	extended := engine.LeaseFor(h.deadline.Sub(now)) > hold.Lease
	if *h.state != engine.Live || !hold.NoRenew && !extended {
		*h.deadline = time.Time{}
	}
	if *h.state > engine.Live && (*h.state != engine.Releasing || !now.Before(*h.end)) {
		*h.end = time.Time{}
	}
	if *h.state > engine.Failed {
		*h.tries, hold.Try, hold.Bounded, hold.Ticket = 1, false, false, nil
	}
	if *h.state != engine.Wanted {
		*h.instead = nil
	}
	if *h.state != engine.Entering {
		*h.entered = time.Time{}
	}
}

func (p *process) normalizeClaim(at unsafe.Pointer, c claimFields, e engineFields, several bool) {
	if *c.state == engine.Over {
		number, last, next := *c.number, *c.last, *c.next
		reflect.NewAt(claimType, at).Elem().SetZero()
		*c.state, *c.slot = engine.Over, -1
		if *c.last = last; last != nil { // its release waits for the end of the next claim
			*c.number = number
		}
		if len(*e.sweeps) > 0 { // one may come to the next claim by this one
			*c.next = next
		}
		return
	}
	if !several {
		*c.since = 0 // over one name there is no deadlock
	}
	*c.err = nil
	most := 1 // only a claim that ends counts more failures than the first
	if *c.state == engine.Ending {
		most = 6
	}
	*c.failures = min(*c.failures, most)
	if p.Now.Sub(*c.granted) >= quickEndFor && !c.granted.IsZero() {
		*c.granted = p.Now.Add(-quickEndFor)
	}
	if *c.state >= engine.Held {
		*c.caller, *c.wanted = nil, nil
	} else {
		if h := *c.caller; h.State() == engine.Failed { // of TryUpgrade, which has given up
			normalizeHold(p.Now, h)
			*holdOf(unsafe.Pointer(h)).err = nil
		}
		p.normalizeWanted(at, c, *e.listening)
	}
	if *c.state == engine.Ending {
		*c.sent, *c.granted, *c.quickEnd, *c.token = time.Time{}, time.Time{}, false, min(*c.token, 1)
		*c.counted, *c.recountAt, *c.kept = 0, time.Time{}, 0
	}
	*c.kept = min(*c.kept, e.config.Lease) // which is what all calls ask for
}

func (p *process) normalizeWanted(at unsafe.Pointer, c claimFields, listening time.Time) {
	w := wantedOf(*c.wanted)
	*w.obstacle = protocol.Obstacle{}
	switch {
	case w.answered.IsZero():
	case listening.IsZero() || listening.Before(*w.answered):
		*w.answered = p.Now
	default:
		*w.answered = listening
	}
	if h := *c.caller; h.Bounded && !h.Try {
		*w.resumed = time.Time{}
	}
	if !p.asked(*w.prompted, func(r requestFields) bool { return *r.claim == at }) {
		*w.prompted = time.Time{}
	}
}
