package faults

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// A nodesResult is what came of a fault. Times but those of handovers count from the fault.
type nodesResult struct {
	fault string
	lease time.Duration

	mended      time.Duration // what the servers took
	first       time.Duration // the first grant to a call that came after the fault
	last        time.Duration // the last grant to those that waited when the fault struck
	calls       int
	failed      []string // calls and releases that failed, and waiters that got nothing
	late        int      // releases that were not answered in the time for which Unlock waits, and that went on
	lost        int      // holds that were lost
	causeless   []string // those among them that need not have been
	overlaps    []string // two live holds of which one writes
	tokens      []string // grants whose token is not greater than that of an earlier one: these get past a fence
	handover    time.Duration
	slowestTurn time.Duration // both from two seconds after the mending on
	elsewhere   time.Duration // the slowest handover in another place, from the fault on
}

// settled is how long after the servers have mended a fault all is to be as before.
const settled = 2 * time.Second

// releases is for how long Unlock waits for an answer, or for a lease if that is shorter.
const releases = 5 * time.Second

// struck is what is known of a fault.
type struck struct {
	fault  nodesFault
	lease  time.Duration
	at     time.Time // when it was about to strike
	begun  time.Time // when it had struck
	mended time.Time
	again  bool // the sentinels replaced the new master, too, as they do at times
}

// judge looks at what the processes have seen; place says where the lock of each name is.
func judge(events []history.Event, place map[string]string, s struck, broken []string) nodesResult {
	r := nodesResult{fault: s.fault.name, lease: s.lease, mended: s.mended.Sub(s.at), failed: broken}
	for _, e := range events {
		if e.What == history.Broken {
			r.failed = append(r.failed, e.Error)
		}
	}
	at, mended := s.at.UnixNano(), s.mended.UnixNano()
	holds := make(map[string][]history.Call)
	waiting, stood := 0, stallsOf(events)
	for _, c := range history.Calls(events) {
		switch {
		case c.Quit:
			continue
		case c.Error == "":
		case c.Granted && r.mended > releases:
			r.late++
		default:
			r.failed = append(r.failed, fmt.Sprintf("%s %s of process %d, answered after %v: %s",
				c.Role, c.Name, c.Process, time.Duration(c.Answered-c.At), c.Error))
		}
		r.calls++
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
		if c.Gone != 0 {
			r.lost++
			if !s.cause(c) && !stood.cost(c, s.lease) {
				r.causeless = append(r.causeless, fmt.Sprintf(
					"%s %s of process %d, granted %v and lost %v after the fault",
					c.Role, c.Name, c.Process, since, time.Duration(c.Relied-at)))
			}
		}
	}
	if n := waiters - waiting; n != 0 {
		r.failed = append(r.failed, fmt.Sprintf("%d waiters got nothing", n))
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
	return r
}

// cause reports whether a hold may have been lost: its lease is not longer than the fault, or the servers
// lost it.
func (s struck) cause(c history.Call) bool {
	from, mended := time.Unix(0, c.Answered), s.mended
	return s.fault.focus == victim && s.lease <= mended.Sub(s.at)+settled && !from.After(mended) ||
		s.again && !from.Before(mended) ||
		s.fault.clock != 0 && !from.After(mended) ||
		s.fault.loses > 0 && from.After(s.at.Add(-s.fault.loses)) && from.Before(mended.Add(settled))
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

// misses returns where the result is short of what it should be.
func (r nodesResult) misses(f nodesFault) []string {
	var list misses
	list.add(r.first == 0, "no grant after the fault")
	list.add(r.first > r.mended+time.Second, "the first grant came %v after the mending", r.first-r.mended)
	list.add(r.last > r.mended+settled, "the last waiter got its grant %v after the mending", r.last-r.mended)
	list.add(r.handover == 0 || r.handover > 100*time.Millisecond, "handovers take %v", r.handover)
	list.add(r.slowestTurn > time.Second, "a handover took %v", r.slowestTurn)
	return append(list, r.broken(f)...)
}

// broken returns the promises that were broken, whatever the speed.
func (r nodesResult) broken(f nodesFault) []string {
	list := misses(r.failed)
	for _, l := range r.causeless {
		list.add(true, "lost without cause: %s", l)
	}
	for _, o := range r.overlaps {
		list.add(f.loses == 0 && f.clock == 0, "overlap: %s", o)
	}
	for _, t := range r.tokens {
		list.add(true, "past the fence: %s", t)
	}
	return list
}

// nodesHead is the head of a table of results.
const nodesHead = `
| what happens | lease | mended after | first grant | last waiter | calls | failed | late releases | lost | ` +
	`without cause | overlaps | past the fence | handover then | slowest | elsewhere |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|`

// String returns a row of the table.
func (r nodesResult) String() string {
	s := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	ms := func(d time.Duration) string {
		if d == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("| %s | %v | %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %s | %s | %s |",
		r.fault, r.lease, s(r.mended), s(r.first), s(r.last), r.calls, len(r.failed), r.late, r.lost,
		len(r.causeless), len(r.overlaps), len(r.tokens), ms(r.handover), ms(r.slowestTurn), ms(r.elsewhere))
}
