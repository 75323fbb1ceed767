package main

import (
	"cmp"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// references notes the numbers, tokens and slots in a process.
func (p *process) references(n *actor) {
	set := func(v uint64) uint64 {
		if v >= 64 {
			panic("a number that is too large")
		}
		if v > 0 {
			n.numbers |= 1 << v
		}
		return v
	}
	use := func(slot int, of uint64) int {
		if of > 0 {
			n.slots.use(slot, uint16(of))
		} else {
			n.slots.kept |= 1 << slot
		}
		return slot
	}
	lookThrough(p, func(m meaning, s *shape, q unsafe.Pointer) {
		switch m {
		case counter:
			n.last = *(*uint64)(q)
		case token:
			if t := *(*int64)(q); t > 1 {
				n.tokens |= 1 << (t - firstToken)
			}
		case slotCount:
			n.slots.count = *(*int)(q)
		case slotList:
			n.slots.free = *(*[]int)(q)
		default:
			rename(m, s, q, set, use)
		}
	})
}

// A naming gives numbers and tokens other names, in the same order: that of a bit is how many are before it.
type naming struct {
	numbers, tokens uint64
	slots           slotNames
}

func rank(set, n uint64) uint64 { return uint64(bits.OnesCount64(set&(1<<n-1))) + 1 }

type renamed struct {
	id int // of the node
	by naming
}

// rename returns a process under other names.
func (e *explorer) rename(n *actor, by naming) *actor {
	key := renamed{n.id, by}
	if to, ok := e.renamed[key]; ok {
		return to
	}
	slot := func(k int, _ uint64) int { return int(by.slots.name[k]) }
	p := deepCopy(n.p, false)
	lookThrough(p, func(m meaning, s *shape, q unsafe.Pointer) {
		switch m {
		case counter:
			*(*uint64)(q) = uint64(bits.OnesCount64(by.numbers))
		case token:
			if t := (*int64)(q); *t > 1 {
				*t = firstToken + int64(rank(by.tokens, uint64(*t-firstToken)))
			}
		case slotCount:
			if by.slots != sameSlots {
				*(*int)(q) = int(by.slots.count)
			}
		case slotList:
			var list []int
			for _, k := range *(*[]int)(q) {
				if by.slots.name[k] >= 0 {
					list = append(list, slot(k, 0))
				}
			}
			*(*[]int)(q) = list
		default:
			rename(m, s, q, func(n uint64) uint64 { return rank(by.numbers, n) }, slot)
		}
	})
	to := e.node(p)
	e.renamed[key] = to
	return to
}

// rename gives the numbers and the slots in a field other names. slot gets the number of the claim that it is
// the slot of, too, where the field has it.
func rename(m meaning, s *shape, q unsafe.Pointer, numbers func(uint64) uint64,
	slot func(k int, of uint64) int) {
	switch m {
	case number:
		switch s.kind {
		case reflect.Uint64:
			if n := (*uint64)(q); *n > 0 {
				*n = numbers(*n)
			}
		case reflect.Slice:
			for i, list := 0, *(*[]uint64)(q); i < len(list); i++ {
				list[i] = numbers(list[i])
			}
		case reflect.Map:
			v := reflect.NewAt(s.typ, q).Elem()
			own := reflect.MakeMapWithSize(s.typ, v.Len())
			for it := v.MapRange(); it.Next(); {
				own.SetMapIndex(reflect.ValueOf(numbers(it.Key().Uint())), it.Value())
			}
			v.Set(own)
		}
	case slotNumber:
		if k := (*int)(q); *k >= 0 {
			*k = slot(*k, 0)
		}
	case claimID, numText, slotText:
		text := *(*string)(q)
		if text == "" {
			return
		}
		switch parts := strings.Split(text, ":"); m {
		case claimID:
			if parts[1] != nobody { // a ticket's
				return
			}
			n := parse(parts[3])
			text = fmt.Sprintf("%s:%s:%d:%015d:%s", parts[0], parts[1], slot(int(parse(parts[2])), n), numbers(n),
				strings.Join(parts[4:], ":"))
		case numText:
			if parse(text[:15]) == ticketNumber {
				return
			}
			text = fmt.Sprintf("%015d%s", numbers(parse(text[:15])), text[15:])
		case slotText:
			if parts[0] != nobody {
				return
			}
			text = fmt.Sprintf("%s:%d", parts[0], slot(int(parse(parts[1])), 0))
		}
		*(*string)(q) = text
	}
}

func sameSlot(k int, _ uint64) int { return k }

func parse(number string) uint64 {
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// A slot is a field of the lock's hash. Which one a claim has makes no difference, but for what the field
// says of claims before it.

const mostSlots = 8 // of a process

// slots are those that a process refers to.
type slots struct {
	newest [mostSlots]uint16 // of each slot, the largest number of a claim that there is of it; or 0
	free   []int             // the last is the next to be taken
	kept   uint8             // a bit for each that is taken, if only by a claim with a ticket's name
	count  int               // that there are, as the engine knows
}

func (s *slots) use(slot int, number uint16) {
	if slot >= mostSlots {
		panic("too many slots")
	}
	s.newest[slot] = max(s.newest[slot], number)
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
	for slot, newest := range s.newest {
		if newest == 0 && s.kept>>slot&1 != 0 && !slices.Contains(s.free, slot) {
			order[n] = slot
			n++
		}
	}
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
func (to *slotNames) change(n *actor) bool {
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
