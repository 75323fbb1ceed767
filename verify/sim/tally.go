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
	Calls, Holds, Reentries, Lost, GaveUp, Faults int
	Requests                                      int // scripts that ran
	Simulated                                     time.Duration
	// events of the engines, by kind, path and cause
	Seen map[string]int
}

// Add adds what happened in another.
func (t *Tally) Add(o Tally) {
	t.Calls += o.Calls
	t.Holds += o.Holds
	t.Reentries += o.Reentries
	t.Lost += o.Lost
	t.GaveUp += o.GaveUp
	t.Faults += o.Faults
	t.Requests += o.Requests
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
	s := fmt.Sprintf("%v simulated, %d calls, %d holds, %d re-entries, %d holds lost, %d calls given up, %d faults",
		t.Simulated.Round(time.Minute), t.Calls, t.Holds, t.Reentries, t.Lost, t.GaveUp, t.Faults)
	if t.Requests > 0 {
		s += fmt.Sprintf(", %d requests", t.Requests)
	}
	var seen []string
	for _, what := range slices.Sorted(maps.Keys(t.Seen)) {
		seen = append(seen, fmt.Sprintf("%s %d", what, t.Seen[what]))
	}
	if len(seen) > 0 {
		s += "; " + strings.Join(seen, ", ")
	}
	return s
}

var kinds = map[engine.EventKind]string{
	engine.Acquired: "acquired", engine.Refused: "refused", engine.Queueing: "queueing", engine.Ended: "ended",
	engine.Renewed:       "renewed",
	engine.RenewalFailed: "renewal failed", engine.Woken: "woken", engine.Withdrawn: "withdrawn",
	engine.Delegated: "delegated", engine.Returned: "returned",
}

var paths = map[engine.Path]string{
	engine.AtOnce: "at once", engine.ByReentry: "by re-entry", engine.ByReply: "by reply",
	engine.ByMessage:   "by message",
	engine.ByHeartbeat: "by heartbeat", engine.ByDelegation: "by delegation",
}

var causes = map[engine.Cause]string{
	engine.Released: "released", engine.Expired: "expired", engine.Gone: "gone", engine.Closed: "closed",
	engine.Forgotten: "forgotten",
}

func describe(e engine.Event) string {
	switch e.Kind {
	case engine.Acquired:
		return "acquired " + paths[e.Path]
	case engine.Ended:
		return "ended " + causes[e.Cause]
	}
	return kinds[e.Kind]
}

// Everything is all that an engine can have to tell.
func Everything() []string {
	var list []string
	for kind, s := range kinds {
		switch kind {
		case engine.Acquired:
			for _, path := range paths {
				list = append(list, s+" "+path)
			}
		case engine.Ended:
			for _, cause := range causes {
				list = append(list, s+" "+cause)
			}
		default:
			list = append(list, s)
		}
	}
	slices.Sort(list)
	return list
}
