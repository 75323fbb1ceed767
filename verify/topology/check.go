package topology

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Result is what came of a fault.
type Result struct {
	Fault string
	Lease time.Duration

	Mended      time.Duration // what the servers took; this and all others count from the fault
	First       time.Duration // the first grant to a call that came after the fault
	Last        time.Duration // the last grant to those that waited when the fault struck
	Calls       int
	Failed      []string // calls and releases that failed, and waiters that got nothing
	Late        int      // releases that the servers did not answer in the time for which Unlock waits, and that went on
	Lost        int      // holds that were lost
	Uncaused    []string // those among them that need not have been
	Overlaps    []string // two live holds of which one writes
	Tokens      []string // grants whose token is not greater than that of an earlier one: these get past a fence
	Handover    time.Duration
	SlowestTurn time.Duration // both from two seconds after the mending on
	Elsewhere   time.Duration // the slowest handover in another place, from the fault on
}

// settled is how long after the servers have mended a fault all is to be as before.
const settled = 2 * time.Second

// releases is for how long Unlock waits for an answer, or for a lease if that is shorter.
const releases = 5 * time.Second

// struck is what is known of a fault.
type struck struct {
	fault  Fault
	lease  time.Duration
	at     time.Time // when it was about to strike
	begun  time.Time // when it had struck
	mended time.Time
}

// judge looks at what the processes have seen.
func judge(records []Record, s struck) Result {
	r := Result{Fault: s.fault.Name, Lease: s.lease, Mended: s.mended.Sub(s.at)}
	at, mended := s.at.UnixNano(), s.mended.UnixNano()
	holds := make(map[string][]Record)
	waiting := 0
	for _, c := range records {
		switch {
		case c.Err == "":
		case c.From != 0 && r.Mended > releases:
			r.Late++
		default:
			r.Failed = append(r.Failed, fmt.Sprintf("%s %s of process %d, after %v: %s",
				c.Role, c.Name, c.Process, time.Duration(c.To-max(c.Asked, c.From)), c.Err))
		}
		if c.Role == ending {
			continue
		}
		r.Calls++
		if c.From == 0 {
			continue
		}
		holds[c.Name] = append(holds[c.Name], c)
		since := time.Duration(c.From - at)
		switch c.Role {
		case queue:
			waiting++
			r.Last = max(r.Last, since)
		case probe:
			if c.Place == focus && c.Asked >= s.begun.UnixNano() && (r.First == 0 || since < r.First) {
				r.First = since
			}
		}
		if c.Lost {
			r.Lost++
			if !s.cause(c) {
				r.Uncaused = append(r.Uncaused, fmt.Sprintf("%s %s of process %d, granted %v and lost %v after the fault",
					c.Role, c.Name, c.Process, since, time.Duration(c.To-at)))
			}
		}
	}
	if n := waiters - waiting; n != 0 {
		r.Failed = append(r.Failed, fmt.Sprintf("%d waiters got nothing", n))
	}
	var turns []time.Duration
	for _, list := range holds {
		slices.SortFunc(list, func(a, b Record) int { return cmp.Compare(a.From, b.From) })
		r.Overlaps = append(r.Overlaps, overlaps(list)...)
		r.Tokens = append(r.Tokens, disorder(list)...)
		if list[0].Role != handover {
			continue
		}
		for i, c := range list[1:] {
			before := list[i]
			turn := time.Duration(c.From - before.To)
			switch {
			case c.Process == before.Process || c.Asked > before.To || before.Lost || before.Err != "":
			case c.Place == focus && before.To >= mended+settled.Nanoseconds():
				turns = append(turns, turn)
			case c.Place != focus && before.To >= at:
				r.Elsewhere = max(r.Elsewhere, turn)
			}
		}
	}
	if slices.Sort(turns); len(turns) > 0 {
		r.Handover, r.SlowestTurn = turns[len(turns)/2], turns[len(turns)-1]
	}
	return r
}

// cause reports whether a hold may have been lost: its lease is not longer than the fault, or the servers
// lost it.
func (s struck) cause(c Record) bool {
	from, mended := time.Unix(0, c.From), s.mended
	switch {
	case s.fault.Focus == victim && s.lease <= mended.Sub(s.at)+settled && !from.After(mended):
	case s.fault.Clock != 0 && !from.After(mended):
	case s.fault.Loses > 0 && from.After(s.at.Add(-s.fault.Loses)) && from.Before(mended.Add(settled)):
	default:
		return false
	}
	return true
}

// overlaps returns the pairs of holds, in the order of their grants, that were relied on at one time though
// one of them writes.
func overlaps(holds []Record) (found []string) {
	var live []Record
	for _, c := range holds {
		live = slices.DeleteFunc(live, func(l Record) bool { return l.To <= c.From })
		for _, l := range live {
			if l.Write || c.Write {
				found = append(found, fmt.Sprintf("%s: %v, by process %d and %d, tokens %d and %d", c.Name,
					time.Duration(min(l.To, c.To)-c.From), l.Process, c.Process, l.Token, c.Token))
			}
		}
		live = append(live, c)
	}
	return found
}

// disorder returns the holds, in the order of their grants, that a fence would not tell from an earlier one
// that was over.
func disorder(holds []Record) (found []string) {
	for i, c := range holds {
		for _, before := range holds[max(0, i-200):i] {
			over := before.To <= c.From
			switch {
			case !before.Write && !c.Write:
			case over && c.Write && c.Token <= before.Token, over && c.Token < before.Token, c.Write && before.Write && c.Token == before.Token:
				found = append(found, fmt.Sprintf("%s: token %d of process %d came after %d of %d", c.Name, c.Token, c.Process, before.Token, before.Process))
			}
		}
	}
	return found
}

// Misses returns where the result is short of what it should be.
func (r Result) Misses(f Fault) (list []string) {
	miss := func(is bool, format string, args ...any) {
		if is {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	miss(r.First == 0, "no grant after the fault")
	miss(r.First > r.Mended+time.Second, "the first grant came %v after the mending", r.First-r.Mended)
	miss(r.Last > r.Mended+settled, "the last waiter got its grant %v after the mending", r.Last-r.Mended)
	miss(r.Handover == 0 || r.Handover > 100*time.Millisecond, "handovers take %v", r.Handover)
	miss(r.SlowestTurn > time.Second, "a handover took %v", r.SlowestTurn)
	return append(list, r.Broken(f)...)
}

// Broken returns the promises that were broken, whatever the speed.
func (r Result) Broken(f Fault) (list []string) {
	list = append(list, r.Failed...)
	for _, l := range r.Uncaused {
		list = append(list, "lost without cause: "+l)
	}
	if f.Loses == 0 && f.Clock == 0 {
		for _, o := range r.Overlaps {
			list = append(list, "overlap: "+o)
		}
	}
	for _, t := range r.Tokens {
		list = append(list, "past the fence: "+t)
	}
	return list
}

// Head is the head of a table of results.
const Head = `| what happens | lease | mended after | first grant | last waiter | calls | failed | late releases | lost | without cause | overlaps | past the fence | handover then | slowest | elsewhere |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// String returns a row of the table.
func (r Result) String() string {
	return fmt.Sprintf("| %s | %v | %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %s | %s | %s |", r.Fault, r.Lease,
		seconds(r.Mended), seconds(r.First), seconds(r.Last), r.Calls, len(r.Failed), r.Late, r.Lost, len(r.Uncaused),
		len(r.Overlaps), len(r.Tokens), millis(r.Handover), millis(r.SlowestTurn), millis(r.Elsewhere))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
func millis(d time.Duration) string  { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
