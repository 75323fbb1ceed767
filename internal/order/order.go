// Package order keeps items in order: a Timeline by the times when they are due, a List as they were added.
// Both link the items themselves, so that an item is found and removed without a search. Earlier and Later
// compare times, and Shrink is for maps.
package order

import (
	"iter"
	"maps"
	"time"
)

// A Place is where an item is in a Timeline. It is embedded in the item.
type Place struct {
	Tie uint64 // orders items that are due at the same time

	number int32 // in the Timeline, from 1; 0 if it is in none
}

func (p *Place) place() *Place { return p }

// Placed reports whether the item is in a Timeline.
func (p *Place) Placed() bool { return p.number > 0 }

// A Timeline has items in the order in which they are due. The zero Timeline is empty.
//
// A hundred thousand items do not fit into a processor's cache. So the heap has their times, and a table has
// their places in the heap: an item that moves touches no other.
type Timeline[T interface{ place() *Place }] struct {
	heap  []entry[T]
	index []int32 // in the heap, by the number of the item, less 1
}

// An entry is an item of the heap.
type entry[T interface{ place() *Place }] struct {
	at     time.Time
	item   T
	number int32
}

const (
	// most is how many items a Timeline keeps memory for once it is empty.
	most = 1024
	// children is the number of children of an item in the heap. With four instead of two, half as many items
	// move.
	children = 4
)

// Next returns when the first item is due, and whether there is one.
func (t *Timeline[T]) Next() (at time.Time, ok bool) {
	if len(t.heap) == 0 {
		return time.Time{}, false
	}
	return t.heap[0].at, true
}

// First returns the first item. There must be one.
func (t *Timeline[T]) First() T { return t.heap[0].item }

// Due returns when an item of the Timeline is due.
func (t *Timeline[T]) Due(item T) time.Time { return t.heap[t.index[item.place().number-1]].at }

// All returns the items in no order.
func (t *Timeline[T]) All() []T {
	list := make([]T, len(t.heap))
	for i, e := range t.heap {
		list[i] = e.item
	}
	return list
}

// renumber gives the item at i in the heap another number.
func (t *Timeline[T]) renumber(i int, number int32) {
	t.heap[i].number, t.heap[i].item.place().number = number, number
	t.index[number-1] = int32(i)
}

// Set adds an item, or moves it, so that it is due at a time.
func (t *Timeline[T]) Set(item T, at time.Time) {
	p := item.place()
	if p.number == 0 {
		t.index = append(t.index, int32(len(t.heap)))
		t.heap = append(t.heap, entry[T]{})
		p.number = int32(len(t.heap))
	}
	t.fix(int(t.index[p.number-1]), entry[T]{at, item, p.number})
}

// Remove removes an item, unless it is not there.
func (t *Timeline[T]) Remove(item T) {
	number := item.place().number
	if number == 0 {
		return
	}
	i, end := int(t.index[number-1]), len(t.heap)-1
	t.renumber(int(t.index[end]), number) // so that no number is missing
	item.place().number = 0
	last := t.heap[end]
	t.heap[end] = entry[T]{}
	t.heap, t.index = t.heap[:end], t.index[:end]
	switch {
	case i < end:
		t.fix(i, last)
	case end == 0 && cap(t.heap) > most:
		t.heap, t.index = nil, nil
	}
}

// fix puts e where there is room for it, at i, or above or below.
func (t *Timeline[T]) fix(i int, e entry[T]) {
	for i > 0 && e.before(&t.heap[(i-1)/children]) {
		t.put(i, &t.heap[(i-1)/children])
		i = (i - 1) / children
	}
	for {
		first := children*i + 1
		if first >= len(t.heap) {
			break
		}
		least := first
		for j := first + 1; j < min(first+children, len(t.heap)); j++ {
			if t.heap[j].before(&t.heap[least]) {
				least = j
			}
		}
		if !t.heap[least].before(&e) {
			break
		}
		t.put(i, &t.heap[least])
		i = least
	}
	t.put(i, &e)
}

func (t *Timeline[T]) put(i int, e *entry[T]) {
	t.heap[i] = *e
	t.index[e.number-1] = int32(i)
}

func (e *entry[T]) before(other *entry[T]) bool {
	if e.at.Equal(other.at) {
		return e.item.place().Tie < other.item.place().Tie
	}
	return e.at.Before(other.at)
}

// Earlier returns the earlier of two times. The zero time is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Shrink replaces a map that has had many entries, and has few now, since a map does not shrink by itself.
// most is how many it has had since it was made.
func Shrink[K comparable, V any](m *map[K]V, most *int) {
	const few, many = 64, 1024
	if len(*m) > few || *most <= many {
		return
	}
	small := make(map[K]V, len(*m)) // maps.Clone keeps what the old one has room for
	maps.Copy(small, *m)
	*m, *most = small, len(small)
}

// A Link is where an item is in a List. It is embedded in the item, which is in one List at a time.
type Link[T any] struct {
	before, after *T
}

func (l *Link[T]) link() *Link[T] { return l }

// A List has items in the order in which they were added. The zero List is empty.
type List[T any, P interface {
	*T
	link() *Link[T]
}] struct {
	first, last *T
	n           int
}

// Len returns the number of items.
func (l *List[T, P]) Len() int { return l.n }

// First returns the item that was added first, or nil.
func (l *List[T, P]) First() *T { return l.first }

// PushBack adds an item that is in no List.
func (l *List[T, P]) PushBack(item P) {
	item.link().before = l.last
	if l.last != nil {
		P(l.last).link().after = item
	} else {
		l.first = item
	}
	l.last = item
	l.n++
}

// Remove removes an item that is in the List.
func (l *List[T, P]) Remove(item P) {
	k := item.link()
	if k.before != nil {
		P(k.before).link().after = k.after
	} else {
		l.first = k.after
	}
	if k.after != nil {
		P(k.after).link().before = k.before
	} else {
		l.last = k.before
	}
	*k = Link[T]{}
	l.n--
}

// All returns the items in order. The one that was returned last may be removed meanwhile.
func (l *List[T, P]) All() iter.Seq[P] {
	return func(yield func(P) bool) {
		for item := l.first; item != nil; {
			next := P(item).link().after
			if !yield(item) {
				return
			}
			item = next
		}
	}
}
