package main

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A cast has the processes that an exploration has reached, and what each event makes of each. P is what a
// process consists of, E what happens to it.
type cast[P any, E comparable] struct {
	seeds
	whole   bool // nothing is left out of what is compared, and each change is computed again
	most    int  // of processes that are remembered
	ids     map[fingerprint]int
	nodes   map[fingerprint]*node[P]
	changes map[happening[E]]*change[P]

	play func(*P, E, *change[P]) // has an event happen to a process
	look func(*node[P])          // takes a look at a process
}

// A node is a simulated process together with everything it has observed. Nodes of one id are equal.
type node[P any] struct {
	id int
	p  *P
	sight
}

// A sight is what is often asked of a process.
type sight struct {
	numbers uint64 // a bit for each that it refers to
	last    uint64 // that it has given out
	tokens  uint64 // a bit for each
	slots   slots
	urgent  bool
	views   []engine.View // of the engine's claims, unless it is dead
	next    time.Time     // when something is due; zero for never
}

type happening[E comparable] struct {
	id int // of the node
	ev E
}

// A change is what an event makes of a process.
type change[P any] struct {
	to      *node[P]
	granted uint32 // a bit for each call of a client of a quorum that has the lock now
	ticket  uint8  // that a hold was handed to, from 1; or 0
	lost    bool   // a hold was lost at its local deadline, or a call ended without an answer
	flaw    error  // something wrong
}

func newCast[P any, E comparable](most int) *cast[P, E] {
	return &cast[P, E]{seeds: newSeeds(), most: most, ids: map[fingerprint]int{},
		nodes: map[fingerprint]*node[P]{}, changes: map[happening[E]]*change[P]{}}
}

// node returns the one node of a process.
func (s *cast[P, E]) node(p *P) *node[P] {
	key := s.fingerprint(string(write(p, epoch, s.whole)))
	if n, ok := s.nodes[key]; ok {
		return n
	}
	id, known := s.ids[key]
	if !known {
		id = len(s.ids)
		s.ids[key] = id
	}
	n := &node[P]{id: id, p: p}
	s.look(n)
	s.nodes[key] = n
	return n
}

// happen returns what an event makes of a process.
func (s *cast[P, E]) happen(n *node[P], ev E) *change[P] {
	key := happening[E]{n.id, ev}
	if c, ok := s.changes[key]; ok && !s.whole {
		return c
	}
	p, c := deepCopy(n.p, s.whole), &change[P]{}
	s.play(p, ev, c)
	c.to = s.node(p)
	s.changes[key] = c
	return c
}

// tidy frees the memory of what happened, if there is much of it, and reports whether it did. That is
// computed again when it is needed: an equal process then has the same id.
func (s *cast[P, E]) tidy() bool {
	if len(s.nodes) <= s.most {
		return false
	}
	clear(s.nodes)
	clear(s.changes)
	return true
}
