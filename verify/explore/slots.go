package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// A slot is a field of the lock's hash. Which one a claim has makes no difference, but for what the field
// says of claims before it.

const mostSlots = 8 // of a process

// slots are those that a process refers to.
type slots struct {
	newest [mostSlots]uint16 // of each slot, the largest number of a claim that there is of it; or 0
	free   []int             // the last is the next to be taken
	count  int               // that there are, as the engine knows
}

func (s *slots) use(slot int, number uint16) {
	if slot >= mostSlots {
		panic("too many slots")
	}
	s.newest[slot] = max(s.newest[slot], number)
}

// slotOf returns the slot of a claim, and its number.
func slotOf(id string) (slot int, number uint16) {
	parts := strings.Split(id, ":")
	slot, err1 := strconv.Atoi(parts[2])
	n, err2 := strconv.ParseUint(parts[3], 10, 16)
	if err1 != nil || err2 != nil {
		panic("no claim: " + id)
	}
	return slot, uint16(n)
}

// slotNames gives slots other names, from 0. Those that there is nothing about any more have none: -1.
type slotNames struct {
	name  [mostSlots]int8
	count int8
}

var sameSlots = func() (n slotNames) {
	for i := range n.name {
		n.name[i] = int8(i)
	}
	n.count = mostSlots
	return n
}()

// names names slots by their newest claims; then those that are free and empty, in the order in which they
// are to be taken. An empty one that is to be taken when no other is left is as good as a new one, and has no
// name.
func (s *slots) names() (to slotNames) {
	var order [mostSlots]int
	n := 0
	for slot, newest := range s.newest {
		to.name[slot] = -1
		if newest > 0 {
			order[n] = slot
			n++
		}
	}
	slices.SortFunc(order[:n], func(a, b int) int { return cmp.Compare(s.newest[a], s.newest[b]) })
	bottom := true
	for _, slot := range s.free {
		empty := s.newest[slot] == 0
		bottom = bottom && empty
		if empty && !bottom {
			order[n] = slot
			n++
		}
	}
	for i, slot := range order[:n] {
		to.name[slot] = int8(i)
	}
	to.count = int8(n)
	return to
}

// change reports whether the names differ from those that a process has.
func (to *slotNames) change(n *node) bool {
	if int(to.count) != n.slots.count && !n.p.Crashed {
		return true
	}
	for slot, name := range to.name {
		if name >= 0 && int(name) != slot {
			return true
		}
	}
	return false
}

// rename gives a field of a process its other name.
func (to *slotNames) rename(m meaning, q unsafe.Pointer) {
	if *to == sameSlots {
		return
	}
	switch m {
	case slotNumber:
		if slot := (*int)(q); *slot >= 0 {
			*slot = int(to.name[*slot])
		}
	case slotCount:
		*(*int)(q) = int(to.count)
	case slotList:
		var list []int
		for _, slot := range *(*[]int)(q) {
			if to.name[slot] >= 0 {
				list = append(list, int(to.name[slot]))
			}
		}
		*(*[]int)(q) = list
	case slotText:
		if text, _ := (*(*any)(q)).(string); text != "" {
			instance, slot, _ := strings.Cut(text, ":")
			*(*any)(q) = instance + ":" + to.text(slot)
		}
	case claimID:
		if id, _ := (*(*any)(q)).(string); id != "" {
			parts := strings.Split(id, ":")
			parts[2] = to.text(parts[2])
			*(*any)(q) = strings.Join(parts, ":")
		}
	}
}

func (to *slotNames) text(slot string) string {
	k, err := strconv.Atoi(slot)
	if err != nil {
		panic(err)
	}
	return strconv.Itoa(int(to.name[k]))
}
