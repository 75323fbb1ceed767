package engine

import (
	"container/heap"
	"slices"
	"time"
)

// A timeline has all claims that have not ended, by when they are to be looked at.
type timeline struct{ claims claimHeap }

// Next returns when Tick is due, and whether it is at all.
func (e *Engine) Next() (time.Time, bool) {
	at, ok := e.timeline.next()
	if e.deaf.number != 0 && (!ok || e.deaf.at.Before(at)) {
		return e.deaf.at, true
	}
	return at, ok
}

// Tick does what is due: it sends renewals, heartbeats and what failed before, and ends what can no longer be
// relied on, whether or not the server answers.
func (e *Engine) Tick(now time.Time) {
	if e.deaf.number != 0 && !now.Before(e.deaf.at) {
		e.deaf = deafness{}
		if !e.listening.IsZero() {
			e.listening = time.Time{}
			e.out.Relisten = true
		}
	}
	for {
		t := &e.timeline
		if len(t.claims) == 0 {
			return
		}
		c := t.claims[0]
		late := !c.next.After(now)
		if !late && (len(e.out.Send) == 0 || c.next.After(now.Add(c.lease/alongPart))) {
			return
		}
		before := c.next
		e.due(now, c)
		switch {
		case c.place == 0:
		case !late && c.next.Equal(before):
			return // the next thing is an end, which is not to come early
		case !c.next.After(now):
			t.set(c, now.Add(time.Millisecond)) // once a tick is enough
		}
	}
}

func (t *timeline) next() (time.Time, bool) {
	if len(t.claims) == 0 {
		return time.Time{}, false
	}
	return t.claims[0].next, true
}

// snapshot returns the claims, which then may be changed.
func (t *timeline) snapshot() []*claim { return slices.Clone(t.claims) }

func (t *timeline) set(c *claim, at time.Time) {
	c.next = at
	if c.place == 0 {
		heap.Push(&t.claims, c)
	} else {
		heap.Fix(&t.claims, c.place-1)
	}
}

func (t *timeline) remove(c *claim) {
	if c.place == 0 {
		return
	}
	heap.Remove(&t.claims, c.place-1)
	if len(t.claims) == 0 && cap(t.claims) > peak {
		t.claims = nil
	}
}

// claimHeap is a heap of claims by next; each knows its place, from 1.
type claimHeap []*claim

func (h claimHeap) Len() int { return len(h) }

func (h claimHeap) Less(i, j int) bool {
	if h[i].next.Equal(h[j].next) {
		return h[i].number < h[j].number
	}
	return h[i].next.Before(h[j].next)
}

func (h claimHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *claimHeap) Push(x any) {
	c := x.(*claim)
	*h = append(*h, c)
	c.place = len(*h)
}

func (h *claimHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.place = 0
	return c
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
