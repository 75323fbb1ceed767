package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/faults"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A Result is what came of a fault.
type Result struct {
	Fault    string
	Servers  int
	First    time.Duration // from when the fault had struck, or was over if too many failed, to a lock's next grant; the longest of all
	Longest  time.Duration // that a call took while the fault lasted, whatever it came to
	Usual    time.Duration // that a call took at other times
	Calls    int
	Lost     int // holds
	Uncaused int // of them, those that need not have been lost
	faults.Summary
}

// measure looks at what the workers have reported.
func (f Fault) measure(events []history.Event, strikes []faults.Strike) Result {
	r := Result{Fault: f.Name}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	type key struct{ process, hold int }
	asked, granted, lost := map[key]int64{}, map[key]int64{}, map[key]bool{}
	stalls := map[int][]history.Event{}
	first := make([]map[string]bool, len(strikes)) // by name: there was a grant after the strike
	for i := range first {
		first[i] = map[string]bool{}
	}
	for _, e := range events {
		k := key{e.Process, e.Hold}
		switch e.What {
		case history.Stalls:
			stalls[e.Process] = append(stalls[e.Process], e)
		case history.Asks:
			r.Calls++
			asked[k] = e.At
		case history.Has, history.Fails, history.Quits:
			from := asked[k]
			granted[k] = e.At
			longest := &r.Usual
			for i, s := range strikes {
				at, over := s.At.UnixNano(), s.Over.UnixNano()
				if from <= over && e.At >= at {
					longest = &r.Longest
				}
				since := at
				if f.Beyond {
					since = over
				}
				if !first[i][e.Name] && e.What == history.Has && from >= at && e.At >= since {
					first[i][e.Name] = true
					r.First = max(r.First, time.Duration(e.At-since))
				}
			}
			*longest = max(*longest, time.Duration(e.At-from))
		case history.Loses, history.Left:
			if lost[k] || e.What == history.Left && e.Error != "lost" {
				continue
			}
			lost[k] = true
			r.Lost++
			if !f.cause(e, granted[k], strikes) && !stalled(e, stalls[e.Process]) {
				r.Uncaused++
			}
		}
	}
	return r
}

// cause reports whether a hold may have been lost because too many servers failed, or ended it early; or
// because it was granted so shortly before that a majority had voted for it, and the others had not yet been
// asked again.
func (f Fault) cause(e history.Event, granted int64, strikes []faults.Strike) bool {
	return slices.ContainsFunc(strikes, func(s faults.Strike) bool {
		at := s.At.UnixNano()
		young := granted <= at && granted >= s.At.Add(-heal).UnixNano()
		return (f.Beyond || f.Early || f.Parted || young) && e.At >= at && e.At <= s.Over.Add(Lease).UnixNano()
	})
}

// stalled reports whether the holder's process stood still for a good part of the lease before a loss.
func stalled(e history.Event, stalls []history.Event) bool {
	var still time.Duration
	for _, s := range stalls {
		if s.At > e.At-int64(Lease) {
			still += time.Duration(s.For)
		}
	}
	return still > Lease/3
}

// Misses returns where the result is short of what it should be.
func (r Result) Misses(f Fault) (list []string) {
	miss := func(is bool, format string, args ...any) {
		if is {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	miss(r.First == 0 && r.Acquired > 0, "no grant after the fault")
	miss(r.Failed > r.Lost && !f.Beyond, "%d calls failed", r.Failed)
	miss(r.Uncaused > 0, "%d holds lost without cause", r.Uncaused)
	miss(r.Unfenced.Violations > 0 && !f.Early, "%d violations without a fence", r.Unfenced.Violations)
	miss(r.Fenced.Violations > 0, "%d violations behind the fence", r.Fenced.Violations)
	miss(r.Fenced.Writes == 0 || r.Unfenced.Writes == 0, "no money was moved")
	return append(list, r.Broken...)
}

// Head is the head of a table of results.
const Head = `| what happens to f servers | servers | first grant | longest call then | at other times | calls | failed | lost | without cause | violations, no fence | behind the fence | operations | one lock? |
|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// String returns a row of the table.
func (r Result) String() string {
	fits := "yes"
	if slices.ContainsFunc(r.Broken, func(b string) bool { return strings.Contains(b, "a history of") }) {
		fits = "no"
	}
	return fmt.Sprintf("| %s | %d | %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %s |", r.Fault, r.Servers, millis(r.First), millis(r.Longest),
		millis(r.Usual), r.Calls, r.Failed, r.Lost, r.Uncaused, r.Unfenced.Violations, r.Fenced.Violations, r.HistoryOps, fits)
}

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
