// Package deadlock finds calls that wait for each other. It is pure: it has no goroutine, mutex, clock or
// network. It knows nothing of locks: its caller says which calls a call waits for.
package deadlock

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// ErrDeadlock is the error of a call that would wait for itself.
var ErrDeadlock = errors.New("deadlock")

const (
	mostVisits = 1000 // holds that one search looks at
	mostShown  = 64   // bytes of a name that an error shows
	mostParts  = 32   // owners that an error names
)

// A Call waits for a lock.
type Call interface {
	comparable
	Waits() (owner protocol.Owner, name string)
}

// Search returns an error that describes a shortest cycle through a call, or nil if there is none. Each call
// of the cycle waits for the owner of the next one.
//
// holds returns an item for each hold that blocks a call: the call with which the owner of the hold waits, or
// the zero C if the owner does not wait. A search looks at no more than 1,000 holds. A cycle that it has not
// found by then goes unnoticed.
func Search[C Call](from C, holds func(C) iter.Seq[C]) error {
	var none C
	visits, work, by := 0, []C{from}, map[C]C{} // by: the call that waits for the owner of a call
	for i := 0; i < len(work); i++ {
		for call := range holds(work[i]) {
			if visits++; visits > mostVisits {
				return nil
			}
			if call == from {
				return fmt.Errorf("%w: %s", ErrDeadlock, describe(from, work[i], by))
			}
			if _, known := by[call]; !known && call != none {
				by[call] = work[i]
				work = append(work, call)
			}
		}
	}
	return nil
}

// describe says who holds what and waits for what, in the order of the cycle.
func describe[C Call](first, last C, by map[C]C) string {
	cycle := []C{first}
	for call := last; call != first; call = by[call] {
		cycle = append(cycle, call)
	}
	slices.Reverse(cycle[1:])
	var parts []string
	_, held := last.Waits()
	for _, call := range cycle[:min(len(cycle), mostParts)] {
		owner, name := call.Waits()
		parts = append(parts, fmt.Sprintf("%s holds %s and waits for %s", owner, quote(held), quote(name)))
		held = name
	}
	if more := len(cycle) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// quote returns a name as an error shows it, on one line and not too long.
func quote(name string) string {
	if len(name) > mostShown {
		return fmt.Sprintf("%q…", name[:mostShown])
	}
	return fmt.Sprintf("%q", name)
}
