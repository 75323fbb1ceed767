// Package order keeps items in order: a Timeline by the times when they are due, a List as they were added.
// Both link the items themselves, so that any of them is found and removed without a search.
package order

import (
	"container/heap"
	"iter"
	"slices"
	"time"
)

// A Place is where an item is in a Timeline. It is embedded in the item.
type Place struct {
	Tie uint64 // orders items that are due at the same time

	at    time.Time
	index int // in the heap, from 1; 0 if it is in none
}

func (p *Place) place() *Place { return p }

// Due returns when the item is due, if it is in a Timeline.
func (p *Place) Due() time.Time { return p.at }

// Placed reports whether the item is in a Timeline.
func (p *Place) Placed() bool { return p.index > 0 }

// A Timeline has items in the order in which they are due. The zero Timeline is empty.
type Timeline[T interface{ place() *Place }] struct{ items byTime[T] }

// most is how many items a Timeline keeps memory for once it is empty.
const most = 1024

// Len returns the number of items.
func (t *Timeline[T]) Len() int { return len(t.items) }

// Next returns when the first item is due, and whether there is one.
func (t *Timeline[T]) Next() (at time.Time, ok bool) {
	if len(t.items) == 0 {
		return time.Time{}, false
	}
	return t.items[0].place().at, true
}

// First returns the first item. There must be one.
func (t *Timeline[T]) First() T { return t.items[0] }

// All returns the items in no order.
func (t *Timeline[T]) All() []T { return slices.Clone(t.items) }

// Set adds an item, or moves it, so that it is due at a time.
func (t *Timeline[T]) Set(item T, at time.Time) {
	p := item.place()
	p.at = at
	if p.index == 0 {
		heap.Push(&t.items, item)
	} else {
		heap.Fix(&t.items, p.index-1)
	}
}

// Remove removes an item, unless it is not there.
func (t *Timeline[T]) Remove(item T) {
	p := item.place()
	if p.index == 0 {
		return
	}
	heap.Remove(&t.items, p.index-1)
	if len(t.items) == 0 && cap(t.items) > most {
		t.items = nil
	}
}

type byTime[T interface{ place() *Place }] []T

func (h byTime[T]) Len() int { return len(h) }

func (h byTime[T]) Less(i, j int) bool {
	a, b := h[i].place(), h[j].place()
	if a.at.Equal(b.at) {
		return a.Tie < b.Tie
	}
	return a.at.Before(b.at)
}

func (h byTime[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place().index, h[j].place().index = i+1, j+1
}

func (h *byTime[T]) Push(x any) {
	item := x.(T)
	*h = append(*h, item)
	item.place().index = len(*h)
}

func (h *byTime[T]) Pop() any {
	old := *h
	last := len(old) - 1
	item := old[last]
	clear(old[last:])
	*h = old[:last]
	item.place().index = 0
	return item
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
