package main

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A system is the server's state and what every process knows and has under way.
type system struct {
	s       *server
	owners  []owner
	slots   []freeSlot // of the processes, those used last at the end
	claims  []claim
	flights []flight
	freed   [4]freed // of each process
	budget
	abandoned bool // a claim was left to its lease, so that something of it may stay behind for so long
}

// budget is how much more may happen.
type budget struct {
	faults  uint8 // requests that are late, run twice, or lose their reply
	crashes uint8
	forces  uint8
}

type owner struct {
	asks    uint8 // claims that it may still begin
	crashed bool
}

// A freeSlot is one that no claim uses, and what done says for it.
type freeSlot struct {
	slot slot
	last int16
}

// freed is what a process knows of sole, once it has released the lock: that it said of that hold of its that it was the
// last; of none, where it can no longer say so.
type freed struct {
	known bool
	of    hold
}

type state uint8

const (
	waiting state = iota
	held
	ending
)

// token is what a claim was told.
type token uint8

const (
	noToken token = iota
	oldToken
	lastToken // no writer was let in since
)

// A claim is what a process knows of one, as in the library's claim.
type claim struct {
	of      hold
	slot    slot
	last    int16 // what done said before it
	write   bool
	try     bool
	state   state
	known   bool  // the server has answered
	age     int8  // ticks since the last request was sent that made the server keep the claim, as far as is known
	count   uint8 // holds
	again   bool  // it was entered again
	told    bool  // the server has said that sole tells of it, when it was let in by an ask
	sole    bool  // sole said of it all there was when it was let in, and nothing but its end has been sent since
	token   token
	message token // on its way: the claim was let in
	dropped bool  // by force: nothing can be relied on, before that is known
	tooLate bool  // dropped before it was released
	ending  int8  // ticks since the end began
}

// A flight is a request that is under way: one whose reply the process waits for, or one that it has forgotten.
type flight struct {
	request
	age    int8 // ticks since it was sent
	waited bool
	ended  model.Ending // how the claim has ended at the server
}

func (x *system) clone() *system {
	c := *x
	c.owners, c.slots = slices.Clone(x.owners), slices.Clone(x.slots)
	c.claims, c.flights = slices.Clone(x.claims), slices.Clone(x.flights)
	return &c
}

func (x *system) claim(of hold) *claim {
	for i := range x.claims {
		if x.claims[i].of == of {
			return &x.claims[i]
		}
	}
	return nil
}

// current returns the index of the claim by which an owner holds or waits in a mode, or -1.
func (x *system) current(o uint8, write bool) int {
	return slices.IndexFunc(x.claims, func(c claim) bool { return c.of.owner == o && c.write == write && c.state != ending })
}

func (x *system) awaits(of hold, kinds ...kind) bool {
	return slices.ContainsFunc(x.flights, func(f flight) bool { return f.waited && f.of == of && slices.Contains(kinds, f.kind) })
}

// forget makes the process wait no longer for the replies of a claim's requests.
func (x *system) forget(of hold, kinds ...kind) {
	for i := range x.flights {
		f := &x.flights[i]
		if f.of == of && slices.Contains(kinds, f.kind) {
			f.waited = false
			f.age = 0
		}
	}
}

// A renaming folds states that differ in names alone: it makes numbers and slots small, and permutes owners.
type renaming struct {
	owner  []uint8     // old to new
	number [][64]uint8 // of each old owner, old to new
	slot   map[slot]uint8
	news   map[hold][]uint8 // old holds to the numbers of their recounts, in order
}

func (r *renaming) hold(h hold) hold {
	if h.number == 0 {
		return hold{}
	}
	return hold{r.owner[h.owner], r.number[h.owner][h.number]}
}

// recount makes the number of a recount a rank among those of its hold.
func (r *renaming) recount(of hold, n uint8) uint8 {
	return uint8(slices.Index(r.news[of], n) + 1)
}

// recounts collects the numbers of recounts of each hold.
func (x *system) recounts() map[hold][]uint8 {
	var all map[hold][]uint8
	add := func(of hold, n uint8) {
		if n == 0 {
			return
		}
		if all == nil {
			all = map[hold][]uint8{}
		}
		all[of] = append(all[of], n)
	}
	add(x.s.count.of, x.s.count.news)
	for _, c := range x.s.readers {
		add(c.of, c.news)
	}
	for _, f := range x.flights {
		add(f.of, f.news)
	}
	for of, list := range all {
		slices.Sort(list)
		all[of] = slices.Compact(list)
	}
	return all
}

// A numbered is a number of a process that something refers to, and the slot it is used with: 0 if none.
type numbered struct{ process, slot, n uint8 }

// numbers collects all numbers; name gives slots their names.
func (x *system) numbers(l layout, name func(slot) uint8) []numbered {
	list := make([]numbered, 0, 16)
	add := func(p, s, n uint8) {
		if n == 0 {
			return
		}
		for i := range list {
			if list[i].process == p && list[i].n == n {
				list[i].slot = max(list[i].slot, s)
				return
			}
		}
		list = append(list, numbered{p, s, n})
	}
	used := func(s slot, v int16) {
		if s != (slot{}) {
			add(s.process, name(s), uint8(max(v, -v)))
		}
	}
	for _, c := range x.claims {
		used(c.slot, int16(c.of.number))
		used(c.slot, c.last)
	}
	for _, f := range x.flights {
		used(f.slot, int16(f.of.number))
		used(f.slot, f.last)
		add(l[f.of.owner], 0, f.in)
		add(l[f.of.owner], 0, f.of.number)
		add(l[f.after.owner], 0, f.after.number)
	}
	for _, f := range x.freed {
		add(l[f.of.owner], 0, f.of.number)
	}
	for _, f := range x.slots {
		used(f.slot, f.last)
	}
	for _, d := range x.s.done {
		used(d.slot, d.value)
	}
	left := func(h hold) { add(l[h.owner], 0, h.number) }
	left(x.s.writer)
	left(x.s.count.of)
	left(x.s.sole.of)
	left(x.s.sole.before)
	for _, w := range x.s.waiters {
		left(w.of)
	}
	for _, c := range x.s.readers {
		left(c.of)
	}
	return list
}

// next returns a number that is larger than any of a process that anything refers to.
func (x *system) next(l layout, p uint8) uint8 {
	largest := uint8(0)
	for _, n := range x.numbers(l, func(slot) uint8 { return 0 }) {
		if n.process == p {
			largest = max(largest, n.n)
		}
	}
	return largest + 1
}

// refers reports whether a process knows of a claim, or a request of it is under way.
func (x *system) refers(of hold) bool {
	return x.claim(of) != nil || slices.ContainsFunc(x.flights, func(f flight) bool { return f.of == of })
}

// asks reports whether an owner of a process may still ask.
func (x *system) asks(l layout, p uint8) bool {
	for o, w := range x.owners {
		if l[o] == p && w.asks > 0 {
			return true
		}
	}
	return false
}

// trimSole forgets what makes no difference of sole: what others expect it to say, if it says something else and so will
// never say that again; what a process knows that will not ask any more; and of a hold, what nothing refers to.
func (x *system) trimSole(l layout, terms []int8) {
	s := x.s.sole
	fits := false
	for p := range x.freed {
		f := &x.freed[p]
		if !x.asks(l, uint8(p)) {
			*f = freed{}
		}
		if s.mode != soleFree || f.of != s.of {
			f.of = hold{}
		}
		fits = fits || f.of.number != 0
	}
	for i := range x.flights {
		f := &x.flights[i]
		if !s.fits(f.request) {
			f.after = hold{}
		}
		fits = fits || f.after.number != 0
	}
	compared := func() bool {
		c := x.claim(s.of)
		return c != nil && c.sole || slices.ContainsFunc(x.flights, func(f flight) bool {
			return f.of == s.of && (f.kind == soleLock || f.kind == soleUnlock)
		})
	}
	// since keeps what is left, and whether the token is old, where that matters.
	since := func(to int32) {
		if s.follows && s.since < soleAge {
			return
		}
		s.lease, s.since = s.left()+to, to
	}
	if s.follows && !x.refers(s.before) {
		s.before = hold{}
	}
	switch {
	case s.holds() && s.left() == 0 && !x.refers(s.of):
		s.mode, s.of, s.lease = soleWrite, hold{}, 0
		s = s.clip()
	case s.holds() && !compared():
		if s.follows {
			since(soleAge)
		} else {
			since(0)
		}
	case s.holds() && s.lease != int32(terms[s.of.owner])*tickMS:
		since(10 * tickMS) // more than any lease: it was renewed
	case (s.mode == soleFree || s.mode == solePast) && !fits && !x.refers(s.of):
		s.of = hold{}
	}
	if s != x.s.sole {
		x.s = x.s.clone()
		x.s.sole = s
	}
}

// trim forgets what makes no difference: free slots of which no request is under way, but for the one that each process
// takes next, and what is done for slots that nothing refers to.
func (x *system) trim(l layout, terms []int8) {
	x.trimSole(l, terms)
	underWay := func(s slot) bool {
		return slices.ContainsFunc(x.flights, func(f flight) bool { return f.slot == s })
	}
	top := map[uint8]bool{}
	for i := len(x.slots) - 1; i >= 0; i-- {
		s := x.slots[i].slot
		if top[s.process] && !underWay(s) {
			x.slots = append(x.slots[:i:i], x.slots[i+1:]...)
		}
		top[s.process] = true
	}
	used := func(d done) bool {
		return underWay(d.slot) || slices.ContainsFunc(x.claims, func(c claim) bool { return c.slot == d.slot }) ||
			slices.ContainsFunc(x.slots, func(f freeSlot) bool { return f.slot == d.slot })
	}
	for _, d := range x.s.done {
		if !used(d) {
			x.s = x.s.clone()
			x.s.done = slices.DeleteFunc(x.s.done, func(d done) bool { return !used(d) })
			return
		}
	}
}

// rename returns the system under other names.
func (x *system) rename(l layout, r *renaming) *system {
	y := x.clone()
	inverse := make([]owner, len(x.owners))
	for o, w := range x.owners {
		inverse[r.owner[o]] = w
	}
	y.owners = inverse
	process := func(p uint8) uint8 { return l[r.owner[slices.Index(l, p)]] }
	numberOf := func(p uint8, v int16) int16 {
		n := int16(r.number[slices.Index(l, p)][max(v, -v)])
		if v < 0 {
			return -n
		}
		return n
	}
	slotOf := func(s slot) slot {
		if s == (slot{}) {
			return s
		}
		return slot{process(s.process), r.slot[s]}
	}
	for i := range y.claims {
		c := &y.claims[i]
		c.last = numberOf(c.slot.process, c.last)
		c.slot, c.of = slotOf(c.slot), r.hold(c.of)
	}
	slices.SortFunc(y.claims, func(a, b claim) int { return compareHolds(a.of, b.of) })
	for i := range y.flights {
		f := &y.flights[i]
		f.last = numberOf(f.slot.process, f.last)
		f.in, f.news = r.number[f.of.owner][f.in], r.recount(f.of, f.news)
		f.slot, f.of, f.after = slotOf(f.slot), r.hold(f.of), r.hold(f.after)
	}
	for _, p := range l {
		f := x.freed[p]
		y.freed[process(p)] = freed{f.known, r.hold(f.of)}
	}
	slices.SortFunc(y.flights, compareFlights)
	y.flights = slices.Compact(y.flights) // run twice is run at any number of times
	for i := range y.slots {
		f := &y.slots[i]
		f.last = numberOf(f.slot.process, f.last)
		f.slot = slotOf(f.slot)
	}
	slices.SortStableFunc(y.slots, func(a, b freeSlot) int { return cmp.Compare(a.slot.process, b.slot.process) })

	s := x.s.clone()
	s.writer = r.hold(s.writer)
	news := func(c *count) {
		if c.of.number != 0 {
			c.news = r.recount(c.of, c.news)
			c.of = r.hold(c.of)
		}
	}
	news(&s.count)
	s.sole.of, s.sole.before = r.hold(s.sole.of), r.hold(s.sole.before)
	for i := range s.queue {
		s.queue[i].of = r.hold(s.queue[i].of)
	}
	for i := range s.waiters {
		s.waiters[i].of = r.hold(s.waiters[i].of)
	}
	for i := range s.readers {
		news(&s.readers[i])
	}
	for i := range s.leases {
		s.leases[i].of = r.hold(s.leases[i].of)
	}
	for i := range s.done {
		d := &s.done[i]
		d.value = numberOf(d.slot.process, d.value)
		d.slot = slotOf(d.slot)
	}
	s.sort()
	y.s = s
	return y
}

func compareFlights(a, b flight) int {
	return slices.Compare(a.appendKey(nil), b.appendKey(nil))
}

// names gives the other names for an order of the owners. Numbers are compared only with others of their slot, and keep
// their order there.
func (x *system) names(l layout, perm []uint8, news map[hold][]uint8) *renaming {
	r := &renaming{owner: slices.Clone(perm), slot: make(map[slot]uint8, 8), news: news}
	var next [4]uint8
	name := func(s slot) {
		if _, ok := r.slot[s]; !ok && s != (slot{}) {
			next[s.process]++
			r.slot[s] = next[s.process]
		}
	}
	claims := slices.Clone(x.claims)
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(perm[a.of.owner], perm[b.of.owner]), bytes.Compare(a.appendTo(nil), b.appendTo(nil)),
			cmp.Compare(a.of.number, b.of.number))
	})
	for _, c := range claims {
		name(c.slot)
	}
	for _, f := range x.slots {
		name(f.slot)
	}
	flights := slices.Clone(x.flights)
	slices.SortFunc(flights, func(a, b flight) int {
		return cmp.Or(cmp.Compare(perm[a.of.owner], perm[b.of.owner]), cmp.Compare(a.kind, b.kind), cmp.Compare(a.of.number, b.of.number))
	})
	for _, f := range flights {
		name(f.slot)
	}
	numbers := x.numbers(l, func(s slot) uint8 { return r.slot[s] })
	slices.SortFunc(numbers, func(a, b numbered) int {
		return cmp.Or(cmp.Compare(a.process, b.process), cmp.Compare(a.slot, b.slot), cmp.Compare(a.n, b.n))
	})
	var ranks [4][64]uint8
	rank := uint8(0)
	for i, n := range numbers {
		if i == 0 || numbers[i-1].process != n.process {
			rank = 0
		}
		rank++
		ranks[n.process][n.n] = rank
	}
	r.number = make([][64]uint8, len(l))
	for o, p := range l {
		r.number[o] = ranks[p]
	}
	return r
}

// canonical returns the one system of all that differ in names alone, and its key.
func (x *system) canonical(l layout, leases []int8) (*system, string) {
	x.trim(l, leases)
	news := x.recounts()
	looks := make([]string, len(l))
	for o := range l {
		looks[o] = x.looks(l, uint8(o))
	}
	var best *system
	var bestKey string
	permutations(len(l), func(perm []uint8) {
		for o := range l {
			// An owner may take the place of another if processes stay whole, and leases the same; and has to if it
			// looks less.
			if leases[perm[o]] != leases[o] {
				return
			}
			for other := range o {
				same := l[o] == l[other]
				if same != (l[perm[o]] == l[perm[other]]) {
					return
				}
				if (same || l.alone(o) && l.alone(other)) && leases[o] == leases[other] &&
					looks[o] != looks[other] && (looks[o] < looks[other]) != (perm[o] < perm[other]) {
					return
				}
			}
		}
		y := x.rename(l, x.names(l, perm, news))
		key := string(y.appendKey(make([]byte, 0, 256)))
		if best == nil || key < bestKey {
			best, bestKey = y, key
		}
	})
	return best, bestKey
}

// alone reports whether an owner has a process to itself.
func (l layout) alone(o int) bool {
	for other, p := range l {
		if p == l[o] && other != o {
			return false
		}
	}
	return true
}

// looks describes an owner without any names: what tells it from the others, and so gives it its place among them.
func (x *system) looks(l layout, o uint8) string {
	parts := make([]string, 0, 8)
	add := func(of hold, what ...byte) {
		if of.number != 0 && of.owner == o {
			parts = append(parts, string(what))
		}
	}
	s := x.s
	add(s.writer, 'w')
	add(s.sole.of, 's', byte(s.sole.mode), byte(s.sole.left()/tickMS))
	add(s.sole.before, 'b')
	for _, t := range s.queue {
		add(t.of, 'q', byte(t.rank))
	}
	for _, d := range s.waiters {
		add(d.of, 'd', byte(d.left/tickMS))
	}
	for _, c := range s.readers {
		add(c.of, 'r', c.n, bit(c.old))
	}
	for _, d := range s.leases {
		add(d.of, 'l', byte(d.left/tickMS))
	}
	for _, c := range x.claims {
		if c.of.owner == o {
			add(c.of, c.appendTo([]byte{'c'})...)
		}
	}
	for _, f := range x.flights {
		add(f.of, 'f', byte(f.kind), byte(f.age), bit(f.waited), byte(f.ended))
	}
	slices.Sort(parts)
	return string([]byte{x.owners[o].asks<<2 | bit(x.owners[o].crashed)<<1 | bit(x.freed[l[o]].known)}) + strings.Join(parts, " ")
}

func permutations(n int, each func([]uint8)) {
	perm := make([]uint8, n)
	for i := range perm {
		perm[i] = uint8(i)
	}
	var place func(int)
	place = func(i int) {
		if i == n {
			each(perm)
			return
		}
		for j := i; j < n; j++ {
			perm[i], perm[j] = perm[j], perm[i]
			place(i + 1)
			perm[i], perm[j] = perm[j], perm[i]
		}
	}
	place(0)
}

// Keys: equal for equal states.

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func short(b []byte, n int16) []byte { return append(b, byte(n), byte(n>>8)) }
func long(b []byte, n int32) []byte {
	return append(b, byte(n), byte(n>>8), byte(n>>16))
}
func (h hold) appendKey(b []byte) []byte { return append(b, h.owner<<6|h.number) }

func (s *server) appendKey(b []byte) []byte {
	b = long(s.writer.appendKey(b), s.writerTTL)
	b = long(append(s.count.of.appendKey(b), s.count.n, s.count.news), s.countTTL)
	b = append(b, byte(len(s.queue)))
	for _, t := range s.queue {
		b = short(t.of.appendKey(b), t.rank)
	}
	b = append(long(b, s.queueTTL), byte(len(s.waiters)))
	for _, w := range s.waiters {
		b = long(w.of.appendKey(b), w.left)
	}
	b = short(short(b, s.owed), s.counter)
	b = append(long(b, s.waitersTTL), byte(len(s.readers)))
	for _, c := range s.readers {
		b = append(c.of.appendKey(b), c.n, c.news, bit(c.old))
	}
	b = append(long(b, s.readersTTL), byte(len(s.leases)))
	for _, d := range s.leases {
		b = long(d.of.appendKey(b), d.left)
	}
	b = append(long(b, s.leasesTTL), byte(s.fence), byte(len(s.done)))
	for _, d := range s.done {
		b = short(append(b, d.slot.process<<5|d.slot.n), d.value)
	}
	b = append(b, byte(s.sole.mode))
	if s.sole.mode != noSole {
		b = append(s.sole.before.appendKey(s.sole.of.appendKey(b)), bit(s.sole.follows))
		b = long(long(b, s.sole.lease), s.sole.since)
	}
	return b
}

func (q request) appendKey(b []byte) []byte {
	b = q.of.appendKey(append(b, byte(q.kind), q.slot.process<<5|q.slot.n))
	b = q.after.appendKey(b)
	return append(short(b, q.last), bit(q.try)|bit(q.write)<<1|bit(q.keep)<<2|bit(q.again)<<3, q.in, q.n, q.news)
}

func (f flight) appendKey(b []byte) []byte {
	return append(f.request.appendKey(b), byte(f.age), bit(f.waited), byte(f.ended))
}

// appendTo is all but the names.
func (c *claim) appendTo(b []byte) []byte {
	return append(b, bit(c.write)|bit(c.try)<<1|bit(c.known)<<2|bit(c.dropped)<<3|byte(c.state)<<4|bit(c.tooLate)<<6|bit(c.again)<<7,
		byte(c.age), c.count, byte(c.token)<<4|bit(c.sole)<<3|bit(c.told)<<2|byte(c.message), byte(c.ending))
}

func (x *system) appendKey(b []byte) []byte {
	b = x.s.appendKey(b)
	for _, o := range x.owners {
		b = append(b, o.asks<<1|bit(o.crashed))
	}
	for _, f := range x.freed {
		b = f.of.appendKey(append(b, bit(f.known)))
	}
	b = append(b, byte(len(x.slots)))
	for _, f := range x.slots {
		b = short(append(b, f.slot.process<<5|f.slot.n), f.last)
	}
	b = append(b, byte(len(x.claims)))
	for _, c := range x.claims {
		b = short(append(c.of.appendKey(b), c.slot.process<<5|c.slot.n), c.last)
		b = c.appendTo(b)
	}
	b = append(b, byte(len(x.flights)))
	for _, f := range x.flights {
		b = f.appendKey(b)
	}
	return append(b, x.faults, x.crashes, x.forces, bit(x.abandoned))
}
