package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A journal has what happened in a world.
type journal struct {
	clock func() time.Time
	start time.Time

	journalMu  sync.Mutex
	lines      []string // the last ones
	violations []string
	seen       tally
}

// A tally counts calls, holds, faults and so on, and events of engines, by kind, path and cause.
type tally map[string]int

func (t tally) add(o tally) {
	for what, n := range o {
		t[what] += n
	}
}

func newJournal(clock func() time.Time) *journal {
	return &journal{clock: clock, start: clock(), seen: tally{}}
}

// mostLines are kept.
const mostLines = 100_000

// note adds a line.
func (j *journal) note(format string, args ...any) string {
	j.journalMu.Lock()
	defer j.journalMu.Unlock()
	if len(j.lines) == mostLines {
		j.lines = slices.Delete(j.lines, 0, mostLines/2)
	}
	line := fmt.Sprintf("%12.6fs ", j.clock().Sub(j.start).Seconds()) + fmt.Sprintf(format, args...)
	j.lines = append(j.lines, line)
	return line
}

// violation notes that a promise is broken.
func (j *journal) violation(format string, args ...any) {
	line := j.note("VIOLATION "+format, args...)
	j.journalMu.Lock()
	defer j.journalMu.Unlock()
	j.violations = append(j.violations, line)
}

func (j *journal) see(what string, n int) {
	j.journalMu.Lock()
	defer j.journalMu.Unlock()
	j.seen[what] += n
}

// report returns the violations and the last lines, or "".
func (j *journal) report() string {
	if len(j.violations) == 0 {
		return ""
	}
	last := j.lines[max(0, len(j.lines)-400):]
	return strings.Join(slices.Concat(j.violations, []string{"", "log:"}, last), "\n")
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

// everything is all that an engine over one server can have to tell.
func everything() []string {
	all := map[string]bool{}
	for kind := engine.Acquired; kind <= engine.Returned; kind++ {
		for path := engine.AtOnce; path <= engine.ByDelegation; path++ {
			for cause := engine.Released; cause <= engine.Forgotten; cause++ {
				all[describe(engine.Event{Kind: kind, Path: path, Cause: cause})] = true
			}
		}
	}
	delete(all, engine.Voting.String())
	return slices.Collect(maps.Keys(all))
}
