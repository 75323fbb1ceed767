package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A result is what came of a fault, or of several.
type result struct {
	of fault
	counts
	times // of jobs
}

// counts are what is logged of each run.
type counts struct {
	Processes int
	Faults    map[string]int // how often each happened
	Broken    []string       // promises
	Acquired  int            // holds
	Local     int            // of them, those that were granted from memory
	Unsure    int            // of these, those that are left out of the history

	Fenced, Unfenced bank.Counts
	Operations       int // of the history

	Calls      int
	Failed     []string // calls that failed
	Unreleased []string // releases that failed
	Lost       int      // holds
	Causeless  []string // those among them that need not have been

	// from when the fault had struck, or was over if too many servers failed, to a lock's next grant
	First   time.Duration
	Longest time.Duration // that a call took while the fault lasted, whatever it came to
	Usual   time.Duration // that a call took at other times
}

// measure looks at what the workers have reported.
func (r *result) measure(events []history.Event, strikes []strike) {
	f, stood := r.of, stallsOf(events)
	type grant struct {
		strike int
		name   string
	}
	had := map[grant]bool{}
	for _, c := range history.Calls(events) {
		r.Calls++
		longest := &r.Usual
		for i, s := range strikes {
			at, over := s.begun.UnixNano(), s.over.UnixNano()
			if c.At <= over && c.Answered >= at {
				longest = &r.Longest
			}
			since := at
			if f.beyond {
				since = over
			}
			if g := (grant{i, c.Name}); !had[g] && c.Granted && c.At >= at && c.Answered >= since {
				had[g] = true
				r.First = max(r.First, time.Duration(c.Answered-since))
			}
		}
		*longest = max(*longest, time.Duration(c.Answered-c.At))
		what := fmt.Sprintf("%s %q of process %d, answered after %v", c.Role, c.Name, c.Process,
			time.Duration(c.Answered-c.At))
		switch {
		case c.Error == "" || c.Quit:
		case c.Granted:
			r.Unreleased = append(r.Unreleased, what+": "+c.Error)
		default:
			r.Failed = append(r.Failed, what+": "+c.Error)
		}
		if c.Gone != 0 {
			r.Lost++
			if !slices.ContainsFunc(strikes, func(s strike) bool { return f.cause(c, s) }) &&
				!stood.cost(c, f.plan.Lease) {
				r.Causeless = append(r.Causeless, what)
			}
		}
	}
}

// cause reports whether a hold may have been lost because of a fault.
func (f fault) cause(c history.Call, s strike) bool {
	granted, over := time.Unix(0, c.Answered), s.over
	if !f.plan.jobs {
		// Too many servers failed, or ended it early; or it was granted so shortly before that a majority had
		// voted for it, and the others had not yet been asked again.
		young := !granted.After(s.begun) && !granted.Before(s.begun.Add(-heal))
		return (f.beyond || !f.exact || f.parted || young) &&
			c.Gone >= s.begun.UnixNano() && c.Gone <= over.Add(usual).UnixNano()
	}
	// Its lease is not longer than the fault, or the servers lost it.
	return !f.subscription && f.plan.Lease <= over.Sub(s.at)+settled && !granted.After(over) ||
		s.again && !granted.Before(over) ||
		f.plan.ahead != 0 && !granted.After(over) ||
		f.loses > 0 && granted.After(s.at.Add(-f.loses)) && granted.Before(over.Add(settled))
}

// stalls are when processes stood still.
type stalls map[int][]history.Event

func stallsOf(events []history.Event) stalls {
	of := stalls{}
	for _, e := range events {
		if e.What == history.Stalls {
			of[e.Process] = append(of[e.Process], e)
		}
	}
	return of
}

// cost reports whether the holder's process stood still for a good part of the lease before a loss.
func (of stalls) cost(c history.Call, lease time.Duration) bool {
	var still time.Duration
	for _, s := range of[c.Process] {
		if s.At > c.Gone-int64(lease) && s.At <= c.Gone {
			still += time.Duration(s.For)
		}
	}
	return still > lease/3
}

// misses returns where the result of moving money is short of what it should be.
func (r result) misses() []string {
	f, list := r.of, misses(r.Broken)
	list.add(r.Unfenced.Violations > 0 && f.exact, "%d violations without a fence", r.Unfenced.Violations)
	list.add(r.Fenced.Violations > 0, "%d violations behind the fence", r.Fenced.Violations)
	list.add(r.Fenced.Writes == 0 || r.Unfenced.Writes == 0, "no money was moved")
	list.add(r.Operations == 0, "no history")
	if f.plan.servers > 1 {
		list.add(r.First == 0, "no grant after the fault")
		list.add(len(r.Failed) > r.Lost && !f.beyond, "%d calls failed: %v", len(r.Failed), r.Failed)
		list.add(len(r.Causeless) > 0, "lost without cause: %v", r.Causeless)
	}
	return list
}

// misses says where a result is short of what it should be.
type misses []string

func (list *misses) add(is bool, format string, args ...any) {
	if is {
		*list = append(*list, fmt.Sprintf(format, args...))
	}
}

// votersHead is the head of a table of faults of servers that vote.
const votersHead = `
| what happens to f servers | servers | first grant | longest call then | at other times | calls | failed | lost | ` +
	`without cause | violations, no fence | behind the fence | operations | one lock? |
|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// ofVoters returns a row of the table.
func (r result) ofVoters() string {
	fits := "yes"
	if slices.ContainsFunc(r.Broken, func(b string) bool { return strings.Contains(b, "a history of") }) {
		fits = "no"
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	return fmt.Sprintf("| %s | %d | %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %s |", r.of.name,
		r.of.plan.servers, ms(r.First), ms(r.Longest), ms(r.Usual), r.Calls, len(r.Failed), r.Lost,
		len(r.Causeless), r.Unfenced.Violations, r.Fenced.Violations, r.Operations, fits)
}

// times are what came of a fault while workers had jobs. They count from the fault, but for those of
// handovers.
type times struct {
	mended      time.Duration // what the servers took
	first       time.Duration // the first grant to a call that came after the fault
	last        time.Duration // the last grant to those that waited when the fault struck
	late        int           // releases that were not answered while Unlock waits, and that went on
	overlaps    []string      // two live holds of which one writes
	tokens      []string      // grants whose token is not greater than that of an earlier one, not fenced off
	handover    time.Duration
	slowestTurn time.Duration // both from two seconds after the mending on
	elsewhere   time.Duration // the slowest handover in another place, from the fault on
}

// settled is how long after the servers have mended a fault all is to be as before.
const settled = 2 * time.Second

// releases is for how long Unlock waits for an answer, or for a lease if that is shorter.
const releases = 5 * time.Second

// time looks at when workers had their locks; place says where the lock of each name is.
func (r *result) time(events []history.Event, s strike, place map[string]string) {
	r.mended = s.over.Sub(s.at)
	at, mended := s.at.UnixNano(), s.over.UnixNano()
	holds, waiting := make(map[string][]history.Call), 0
	for _, c := range history.Calls(events) {
		if !c.Granted {
			continue
		}
		holds[c.Name] = append(holds[c.Name], c)
		since := time.Duration(c.Answered - at)
		switch c.Role {
		case queue:
			waiting++
			r.last = max(r.last, since)
		case probe:
			if place[c.Name] == focus && c.At >= s.begun.UnixNano() && (r.first == 0 || since < r.first) {
				r.first = since
			}
		}
	}
	if r.mended > releases {
		r.late, r.Unreleased = len(r.Unreleased), nil
	}
	if n := waiters - waiting; n != 0 {
		r.Failed = append(r.Failed, fmt.Sprintf("%d waiters got nothing", n))
	}
	for _, e := range events {
		if e.What == history.Broken {
			r.Broken = append(r.Broken, e.Error)
		}
	}
	var turns []time.Duration
	for name, list := range holds {
		r.overlaps = append(r.overlaps, overlaps(list)...)
		r.tokens = append(r.tokens, disorder(list)...)
		if list[0].Role != handover {
			continue
		}
		for i, c := range list[1:] {
			before := list[i]
			turn := time.Duration(c.Answered - before.Relied)
			switch {
			case c.Process == before.Process || c.At > before.Relied || before.Gone != 0 || before.Error != "":
			case place[name] == focus && before.Relied >= mended+settled.Nanoseconds():
				turns = append(turns, turn)
			case place[name] != focus && before.Relied >= at:
				r.elsewhere = max(r.elsewhere, turn)
			}
		}
	}
	if slices.Sort(turns); len(turns) > 0 {
		r.handover, r.slowestTurn = turns[len(turns)/2], turns[len(turns)-1]
	}
}

// overlaps returns the pairs of holds, in the order of their grants, that were relied on at one time though
// one of them writes.
func overlaps(holds []history.Call) (found []string) {
	var live []history.Call
	for _, c := range holds {
		live = slices.DeleteFunc(live, func(l history.Call) bool { return l.Relied <= c.Answered })
		for _, l := range live {
			if l.Write || c.Write {
				found = append(found, fmt.Sprintf("%s: %v, by process %d and %d, tokens %d and %d", c.Name,
					time.Duration(min(l.Relied, c.Relied)-c.Answered), l.Process, c.Process, l.Token, c.Token))
			}
		}
		live = append(live, c)
	}
	return found
}

// disorder returns the holds, in the order of their grants, that a fence would not tell from an earlier one
// that was over.
func disorder(holds []history.Call) (found []string) {
	for i, c := range holds {
		for _, before := range holds[max(0, i-200):i] {
			over := before.Relied <= c.Answered
			switch {
			case !before.Write && !c.Write:
			case over && c.Write && c.Token <= before.Token, over && c.Token < before.Token,
				c.Write && before.Write && c.Token == before.Token:
				found = append(found, fmt.Sprintf("%s: token %d of process %d came after %d of %d",
					c.Name, c.Token, c.Process, before.Token, before.Process))
			}
		}
	}
	return found
}

// brokenJobs returns the promises that were broken, whatever the speed.
func (r result) brokenJobs() []string {
	list := misses(slices.Concat(r.Broken, r.Failed, r.Unreleased))
	list.add(len(r.Causeless) > 0, "lost without cause: %v", r.Causeless)
	list.add(len(r.overlaps) > 0 && r.of.loses == 0 && r.of.plan.ahead == 0, "overlaps: %v", r.overlaps)
	list.add(len(r.tokens) > 0, "past the fence: %v", r.tokens)
	list.add(r.first == 0, "no grant after the fault")
	// By itself, the client asks for the map once a minute.
	list.add(r.first > r.mended+10*time.Second, "the first grant came %v after the mending", r.first-r.mended)
	list.add(r.handover == 0, "no handovers afterwards")
	return list
}

// slowJobs returns what took too long, on a machine that is quiet.
func (r result) slowJobs() []string {
	var list misses
	list.add(r.first > r.mended+time.Second, "the first grant came %v after the mending", r.first-r.mended)
	list.add(r.last > r.mended+settled, "the last waiter got its grant %v after the mending", r.last-r.mended)
	list.add(r.handover > 100*time.Millisecond, "handovers take %v", r.handover)
	list.add(r.slowestTurn > time.Second, "a handover took %v", r.slowestTurn)
	return list
}

// jobsHead is the head of a table of faults of a cluster, or of servers that sentinels watch.
const jobsHead = `
| what happens | lease | mended after | first grant | last waiter | calls | failed | late releases | lost | ` +
	`without cause | overlaps | past the fence | handover then | slowest | elsewhere |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// ofJobs returns a row of the table.
func (r result) ofJobs() string {
	s := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	ms := func(d time.Duration) string {
		if d == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("| %s | %v | %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %s | %s | %s |",
		r.of.name, r.of.plan.Lease, s(r.mended), s(r.first), s(r.last), r.Calls,
		len(r.Failed)+len(r.Unreleased), r.late, r.Lost, len(r.Causeless), len(r.overlaps), len(r.tokens),
		ms(r.handover), ms(r.slowestTurn), ms(r.elsewhere))
}
