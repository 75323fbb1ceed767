package main

import (
	"cmp"
	"math/bits"
	"slices"
)

// key is the same for systems that are equal but for what may still go wrong.
func (x *system) key() string {
	b := make([]byte, 0, 64)
	for _, n := range x.procs {
		b = append(b, byte(n.id), byte(n.id>>8), byte(n.id>>16), byte(n.id>>24))
	}
	for _, s := range x.sites {
		b = append(b, s.key()...)
	}
	for _, t := range x.tickets {
		b = append(b, t.claim.handle, bit(t.claim.write), bit(t.ready), t.discards, byte(t.ended))
	}
	return string(b)
}

// canonical returns the one system of all that differ in names alone, and its key.
func (e *explorer) canonical(x *system) (*system, string) {
	if e.plain {
		return x, x.key()
	}
	x = x.clone()
	for k := range x.sites {
		x.sites[k] = e.trim(x, x.sites[k])
	}
	x = e.renameAll(x)
	var best *system
	var bestKey string
	e.permutations(x, func(perm []int) {
		y := *x
		y.procs = make([]*actor, len(x.procs))
		for i, n := range x.procs {
			y.procs[perm[i]] = n
		}
		y.sites = slices.Clone(x.sites)
		for k, at := range x.sites {
			y.sites[k] = at.permute(perm)
		}
		if key := y.key(); best == nil || key < bestKey {
			best, bestKey = &y, key
		}
	})
	for k := range best.sites {
		best.sites[k] = e.intern(best.sites[k])
	}
	return best, bestKey
}

// trim returns the server without what makes no difference: what slots say that no request can come for any
// more, and the leases of records that are not in line.
func (e *explorer) trim(x *system, s *server) *server {
	s = s.clone()
	s.slots = slices.DeleteFunc(s.slots, func(r record) bool {
		at := func(m member) bool { return m.inst == r.inst && m.number == r.number }
		if at(member{claimName: s.holder}) || slices.ContainsFunc(slices.Concat(s.leases, s.queue), at) {
			return false
		}
		if r.isTicket() {
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
	known := func(n *actor) bool { return n.tokens>>(max(s.fence, firstToken)-firstToken+1) != 0 }
	if s.floor <= s.fence || len(x.sites) == 1 && !slices.ContainsFunc(x.procs, known) {
		s.floor = 0
	}
	return s
}

// renameAll gives the numbers and slots of each process, and the tokens, the least names that keep the order
// of numbers and tokens.
func (e *explorer) renameAll(x *system) *system {
	var numbers [4]uint64
	var slots [4]slots
	tokens := uint64(0)
	for i, n := range x.procs {
		numbers[i], slots[i] = n.numbers, n.slots
		tokens |= n.tokens
	}
	for _, at := range x.sites {
		at.claims(func(c *claimName) {
			if c.number > 0 && !c.isTicket() {
				numbers[c.inst] |= 1 << c.number
				slots[c.inst].use(int(c.slot), c.number)
			}
		})
		at.tokens(func(t *int64) {
			if *t != 0 {
				tokens |= 1 << (*t - firstToken)
			}
		})
	}
	dense := func(set uint64) bool { return set>>1&(set>>1+1) == 0 }
	changed := !dense(tokens)
	var names [4]slotNames
	for i, n := range x.procs {
		names[i] = slots[i].names()
		if len(x.sites) > 1 || !names[i].change(n) { // several locks have slots of their own each
			names[i] = sameSlots
		}
		if names[i] != sameSlots || !dense(numbers[i]) || !dense(tokens) && n.tokens != 0 ||
			n.last != uint64(bits.OnesCount64(numbers[i])) && !n.p.Crashed {
			x.procs[i] = e.rename(n, naming{numbers[i], tokens, names[i]})
			changed = true
		}
	}
	if !changed {
		return x
	}
	for k := range x.sites {
		s := x.sites[k].clone()
		x.sites[k] = s
		s.claims(func(c *claimName) {
			if c.number > 0 && !c.isTicket() {
				c.number = uint16(rank(numbers[c.inst], uint64(c.number)))
				c.slot = uint8(names[c.inst].name[c.slot])
			}
		})
		s.tokens(func(t *int64) {
			if *t != 0 {
				*t = firstToken + int64(rank(tokens, uint64(*t-firstToken)))
			}
		})
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
	s.claims(func(c *claimName) {
		if c.number > 0 && !c.isTicket() {
			c.inst = uint8(perm[c.inst])
		}
	})
	s.sort()
	return s
}

// permutations calls each with the orders of the processes of which one is canonical: by what they look like.
// Those that look alike may each have a place.
func (e *explorer) permutations(x *system, each func(perm []int)) {
	order := make([]int, len(x.procs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x.procs[a].id, x.procs[b].id) })
	perm := make([]int, len(order))
	var place func(k int)
	place = func(k int) {
		if k == len(order) {
			for to, i := range order {
				perm[i] = to
			}
			each(perm)
			return
		}
		for j := k; j < len(order) && x.procs[order[j]].id == x.procs[order[k]].id; j++ {
			order[k], order[j] = order[j], order[k]
			place(k + 1)
			order[k], order[j] = order[j], order[k]
		}
	}
	place(0)
}
