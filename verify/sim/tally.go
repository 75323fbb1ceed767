package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// Tally counts what happened in a world.
type Tally struct {
	Simulated time.Duration
	Seen      map[string]int // calls, holds, faults and so on; events of engines, by kind, path and cause
}

// Add adds what happened in another.
func (t *Tally) Add(o Tally) {
	t.Simulated += o.Simulated
	for what, n := range o.Seen {
		t.see(what, n)
	}
}

func (t *Tally) see(what string, n int) {
	if t.Seen == nil {
		t.Seen = map[string]int{}
	}
	t.Seen[what] += n
}

func (t *Tally) String() string {
	list := []string{fmt.Sprint(t.Simulated.Round(time.Minute), " simulated")}
	for _, what := range slices.Sorted(maps.Keys(t.Seen)) {
		list = append(list, fmt.Sprint(t.Seen[what], " ", what))
	}
	return strings.Join(list, ", ")
}

func describe(e engine.Event) string {
	switch e.Kind {
	case engine.Acquired:
		return fmt.Sprint("acquired: ", e.Path)
	case engine.Ended:
		return fmt.Sprint("ended: ", e.Cause)
	}
	return e.Kind.String()
}

// Everything is all that an engine over one server can have to tell.
func Everything() (list []string) {
	for kind := engine.Acquired; kind <= engine.Returned; kind++ {
		switch kind {
		case engine.Acquired:
			for path := engine.AtOnce; path <= engine.ByDelegation; path++ {
				list = append(list, describe(engine.Event{Kind: kind, Path: path}))
			}
		case engine.Ended:
			for cause := engine.Released; cause <= engine.Forgotten; cause++ {
				list = append(list, describe(engine.Event{Kind: kind, Cause: cause}))
			}
		case engine.Voting: // only where several servers vote
		default:
			list = append(list, kind.String())
		}
	}
	return list
}
