package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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
	Tickets          bank.Handed
	Upgraded         int // read holds
	Operations       int // of the history

	Calls      int
	Failed     []string // calls that failed
	Unreleased []string // releases that failed
	Lost       int      // holds
	Causeless  []string // those among them that need not have been

	// from when the fault had struck, or was over if too many servers failed, to a lock's next grant
	First time.Duration
}

// measure looks at what the workers have reported.
func (r *result) measure(calls []*history.Call, events []history.Event, strikes []*strike) {
	type grant struct {
		strike *strike
		name   string
	}
	had := map[grant]bool{}
	for _, c := range calls {
		r.Calls++
		for _, s := range strikes {
			since := s.begun
			if r.of.beyond {
				since = s.over
			}
			answered := time.Unix(0, c.Answered)
			g := grant{s, c.Name}
			if c.Granted && !had[g] && c.At >= s.begun.UnixNano() && !answered.Before(since) {
				had[g] = true
				r.First = max(r.First, answered.Sub(since))
			}
		}
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
			caused := slices.ContainsFunc(strikes, func(s *strike) bool { return r.of.cause(c, s) })
			if !caused && still(events, c, r.of.plan.Lease) <= r.of.plan.Lease/3 {
				r.Causeless = append(r.Causeless, what)
			}
		}
	}
}

// cause reports whether a hold may have been lost because of a fault.
func (f fault) cause(c *history.Call, s *strike) bool {
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
		s.torn && c.Gone >= s.begun.UnixNano() ||
		f.plan.ahead != 0 && !granted.After(over) ||
		f.loses > 0 && granted.After(s.at.Add(-f.loses)) && granted.Before(over.Add(settled))
}

// still returns for how long the holder's process stood still in the lease before a loss.
func still(events []history.Event, c *history.Call, lease time.Duration) (d time.Duration) {
	for _, e := range events {
		if e.What == history.Stalls && e.Process == c.Process && e.At > c.Gone-int64(lease) && e.At <= c.Gone {
			d += time.Duration(e.For)
		}
	}
	return d
}

// check logs the result, and fails the test if it is short of what it should be.
func (r result) check(tb testing.TB) {
	tb.Helper()
	tb.Logf("%+v", r.counts)
	f := r.of
	assert.Empty(tb, r.Broken)
	assert.NotZero(tb, r.Operations, "of the history")
	if f.plan.jobs || f.plan.servers > 1 {
		assert.Empty(tb, r.Causeless, "lost without cause")
	}
	if f.plan.jobs {
		assert.Empty(tb, r.Failed, "calls that failed")
		assert.Empty(tb, r.Unreleased, "releases that failed")
		assert.NotZero(tb, r.first, "a grant after the fault")
		// By itself, the client asks for the map once a minute.
		assert.LessOrEqual(tb, r.first, r.mended+10*time.Second, "the first grant")
		assert.NotZero(tb, r.handover, "handovers afterwards")
		return
	}
	if f.exact {
		assert.Zero(tb, r.Unfenced.Violations, "without a fence")
	}
	assert.Zero(tb, r.Fenced.Violations, "behind the fence")
	assert.NotZero(tb, min(r.Fenced.Writes, r.Unfenced.Writes), "money that was moved")
	assert.Zero(tb, r.Tickets.Twice, "tickets that were used twice")
	if f.name == "none" && f.plan.Hand > 0 {
		assert.NotZero(tb, min(r.Tickets.Attached, r.Tickets.Discarded), "tickets")
	}
	if f.plan.servers > 1 {
		assert.NotZero(tb, r.First, "a grant after the fault")
		assert.True(tb, len(r.Failed) <= r.Lost || f.beyond, "calls failed: %v", r.Failed)
	}
}

// votersHead is the head of a table of faults of servers that vote.
const votersHead = `
| what happens to f servers | servers | first grant | calls | failed | lost | without cause | ` +
	`violations, no fence | behind the fence | operations | one lock? |
|---|---|---|---|---|---|---|---|---|---|---|
`

// ofVoters returns a row of the table.
func (r result) ofVoters() string {
	fits := "yes"
	if slices.ContainsFunc(r.Broken, func(b string) bool { return strings.Contains(b, "a history of") }) {
		fits = "no"
	}
	return fmt.Sprintf("| %s | %d | %d ms | %d | %d | %d | %d | %d | %d | %d | %s |", r.of.name, r.of.plan.servers,
		r.First.Milliseconds(), r.Calls, len(r.Failed), r.Lost, len(r.Causeless), r.Unfenced.Violations,
		r.Fenced.Violations, r.Operations, fits)
}

// times are what came of a fault while workers had jobs. They count from the fault, but for those of
// handovers.
type times struct {
	mended      time.Duration // what the servers took
	first       time.Duration // the first grant to a call that came after the fault
	last        time.Duration // the last grant to those that waited when the fault struck
	late        int           // releases that were not answered while Unlock waits, and that went on
	handover    time.Duration
	slowestTurn time.Duration // both from two seconds after the mending on
	elsewhere   time.Duration // the slowest handover on another node, from the fault on
}

// settled is how long after the servers have mended a fault all is to be as before.
const settled = 2 * time.Second

// releases is for how long Unlock waits for an answer, or for a lease if that is shorter.
const releases = 5 * time.Second

// time looks at when workers had their locks.
func (r *result) time(calls []*history.Call, s *strike) {
	r.mended = s.over.Sub(s.at)
	at := s.at.UnixNano()
	var turns []time.Duration
	before := map[string]*history.Call{}
	for _, c := range calls {
		if !c.Granted {
			continue
		}
		since := time.Duration(c.Answered - at)
		switch c.Role {
		case queue:
			r.last = max(r.last, since)
		case probe:
			if c.At >= s.begun.UnixNano() && (r.first == 0 || since < r.first) {
				r.first = since
			}
		case handover, elsewhere:
			b := before[c.Name]
			before[c.Name] = c
			if b == nil || c.Process == b.Process || c.At > b.Relied || b.Gone != 0 || b.Error != "" {
				continue
			}
			turn := time.Duration(c.Answered - b.Relied)
			switch {
			case c.Role == handover && b.Relied >= s.over.Add(settled).UnixNano():
				turns = append(turns, turn)
			case c.Role == elsewhere && b.Relied >= at:
				r.elsewhere = max(r.elsewhere, turn)
			}
		}
	}
	if r.mended > releases {
		r.late, r.Unreleased = len(r.Unreleased), nil
	}
	if slices.Sort(turns); len(turns) > 0 {
		r.handover, r.slowestTurn = turns[len(turns)/2], turns[len(turns)-1]
	}
}

// checkSpeed fails the test if something took too long while workers had jobs, on a machine that is quiet.
func (r result) checkSpeed(tb testing.TB) {
	tb.Helper()
	assert.LessOrEqual(tb, r.first, r.mended+time.Second, "the first grant")
	// A release that the servers lost leaves the lock taken until its lease ends.
	assert.LessOrEqual(tb, r.last, r.mended+r.of.plan.Lease+settled, "the last waiter's grant")
	assert.LessOrEqual(tb, r.handover, 100*time.Millisecond, "the median of handovers")
	assert.LessOrEqual(tb, r.slowestTurn, time.Second, "a handover")
}

// jobsHead is the head of a table of faults of a cluster, or of servers that sentinels watch.
const jobsHead = `
| what happens | lease | mended after | first grant | last waiter | calls | failed | late releases | lost | ` +
	`without cause | handover then | slowest | elsewhere |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
`

// ofJobs returns a row of the table.
func (r result) ofJobs() string {
	s := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	ms := func(d time.Duration) string {
		if d == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("| %s | %v | %s | %s | %s | %d | %d | %d | %d | %d | %s | %s | %s |",
		r.of.name, r.of.plan.Lease, s(r.mended), s(r.first), s(r.last), r.Calls,
		len(r.Failed)+len(r.Unreleased), r.late, r.Lost, len(r.Causeless),
		ms(r.handover), ms(r.slowestTurn), ms(r.elsewhere))
}
