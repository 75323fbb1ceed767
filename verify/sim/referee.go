package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
)

// A referee watches all processes of a world, by the one clock that they share.
type referee struct {
	*journal
	limits
	locks map[string]*watched
}

// A watched lock is what the referee knows of one name.
type watched struct {
	stays    []*stay
	waiters  []*waiter
	lossAt   time.Time // the last declared loss of data
	lastWrit int64     // token of the last write hold
	lastRead int64     // the largest token of a read hold
	freeFrom time.Time // when the last of the stays ended
	lapsed   bool      // it ended with a loss
	written  time.Time // when the last write phase ended
}

// A stay is one owner's hold, from the return of the lock call until the Unlock or the loss.
type stay struct {
	*waiter
	hold  *grip
	since time.Time // of one that re-enters a hold, which may be one that is not renewed
	fades bool      // it was not renewed
	ended bool
}

// A waiter is a lock call that is in flight.
type waiter struct {
	call
	on      *node
	who     string
	asked   time.Time
	over    func() bool // whether the call has been told to end
	overrun int         // writers that entered meanwhile
}

func (u *waiter) writes() bool { return u.mode == rwlock.Write }

// lock returns what is known of a name.
func (r *referee) lock(name string) *watched {
	if r.locks[name] == nil {
		r.locks[name] = &watched{}
	}
	return r.locks[name]
}

// asks notes that a call begins.
func (r *referee) asks(u *waiter) {
	u.asked = r.clock()
	lk := r.lock(u.name)
	lk.waiters = append(lk.waiters, u)
	r.see("calls", 1)
	r.note("%s asks %v %q try=%v renew=%v", u.who, u.mode, u.name, u.try, !u.noRenew)
}

func (lk *watched) forget(u *waiter) {
	lk.waiters = slices.DeleteFunc(lk.waiters, func(v *waiter) bool { return v == u })
}

// gives notes that a call has ended without the lock.
func (r *referee) gives(u *waiter, err error) {
	r.lock(u.name).forget(u)
	r.see("calls given up", 1)
	r.note("%s gives up %v %q: %v", u.who, u.mode, u.name, err)
}

// believed reports whether the holder has reason to believe in its hold.
func (s *stay) believed() bool { return !s.ended && !s.hold.over && s.on.awake() }

// enters notes that a call has the lock, or that its owner has re-entered, and checks whether it may.
func (r *referee) enters(u *waiter, h *grip, again bool) *stay {
	s := &stay{waiter: u, hold: h}
	lk := r.lock(u.name)
	lk.forget(u)
	r.note("%s enters %v %q token %d, again %v, lost %v", u.who, u.mode, u.name, h.Token(), again, h.over)
	if again { // that is as good as the hold that it re-enters, and the server is not asked
		s.since, s.fades = r.clock(), true
		for _, outer := range lk.stays {
			if outer.on == u.on && outer.hold.Owner == h.Owner {
				u.asked = order.Earlier(u.asked, outer.asked)
				s.fades = s.fades && outer.noRenew
			}
		}
	}
	alone := r.checkExclusion(lk, s)
	if again {
		r.see("re-entries", 1)
	} else {
		r.see("holds", 1)
		r.checkToken(lk, s)
		r.checkTurn(lk, u, alone)
	}
	lk.stays = append(lk.stays, s)
	h.whenLost(func(cause error) { r.ends(s, true, cause) })
	return s
}

// checkExclusion checks that nobody else is there whose hold excludes this one; it reports whether nobody is
// there at all.
func (r *referee) checkExclusion(lk *watched, s *stay) bool {
	alone := true
	for _, other := range lk.stays {
		if other == s || !other.believed() {
			continue
		}
		alone = false
		if (other.writes() || s.writes()) && !(other.on == s.on && other.hold.Owner == s.hold.Owner) &&
			r.relied(lk, s) && !r.excused(lk, other) {
			r.violation("exclusion: %s has %v %q (token %d) while %s has %v (token %d)",
				s.who, s.mode, s.name, s.hold.Token(), other.who, other.mode, other.hold.Token())
		}
	}
	return alone
}

// excused reports whether a hold was asked for before a loss of data that its holder need not know of yet: it
// hears of that by the next renewal, if there is one. A delegation that was lost is used until its renewal.
func (r *referee) excused(lk *watched, s *stay) bool {
	return !lk.lossAt.IsZero() && (!s.asked.After(lk.lossAt) || s.hold.under) &&
		(s.noRenew || r.clock().Sub(order.Later(lk.lossAt, s.since)) <= r.notice)
}

// relied reports whether the holder can rely on its hold.
func (r *referee) relied(lk *watched, s *stay) bool { return s.believed() && !r.excused(lk, s) }

func (r *referee) checkToken(lk *watched, s *stay) {
	t := s.hold.Token()
	switch {
	case r.excused(lk, s) && (s.hold.under || r.dated && t < lk.lossAt.UnixMicro()):
		// A late message may tell of a grant from before a loss of data. Fences refuse its token.
	case s.writes():
		// A read hold that was lost in a loss of data may have a token from before it.
		if t <= lk.lastWrit || t <= lk.lastRead {
			r.violation("tokens: %s writes %q with token %d after writer %d and reader %d", s.who, s.name, t,
				lk.lastWrit, lk.lastRead)
		}
		lk.lastWrit = t
	case r.relied(lk, s):
		if t < lk.lastWrit {
			r.violation("tokens: %s reads %q with token %d after writer %d", s.who, s.name, t, lk.lastWrit)
		}
		lk.lastRead = max(lk.lastRead, t)
	}
}

// checkTurn checks that it was the caller's turn, and that it did not have to wait for nothing.
func (r *referee) checkTurn(lk *watched, u *waiter, alone bool) {
	if r.slack == 0 {
		return
	}
	now := r.clock()
	if from := order.Later(lk.freeFrom, u.asked); alone && !u.try {
		bound := r.gap
		if lk.lapsed {
			bound = r.lapse
		}
		if gap := now.Sub(from); gap > bound {
			r.violation("handover: %q lay free for %v while %s waited to %v", u.name, gap, u.who, u.mode)
		}
	}
	for _, v := range lk.waiters {
		if v.on.killed || v.try {
			continue
		}
		over := v.over()
		if v.writes() && v.who != u.who && !over && !(r.unordered && v.on != u.on) &&
			v.asked.Add(r.slack).Before(u.asked) && (u.writes() || u.try) {
			r.violation("order: %s (asked %v) has %v %q before %s (asked %v) writes",
				u.who, u.asked.Sub(r.start), u.mode, u.name, v.who, v.asked.Sub(r.start))
		}
		if v.writes() || !u.writes() || r.unordered {
			continue
		}
		if lk.written.Sub(v.asked) > r.slack && !over {
			r.violation("phases: %s writes %q, though %s waited to read when the last writer left", u.who, u.name,
				v.who)
		}
		if now.Sub(v.asked) > r.slack {
			if v.overrun++; v.overrun > r.overrun && !over {
				r.violation("starvation: %d writers entered %q while %s waited to read", v.overrun, u.name, v.who)
			}
		}
	}
}

// ends notes that the holder is about to release the hold, or has lost it.
func (r *referee) ends(s *stay, lost bool, cause error) {
	if s.ended {
		return
	}
	s.ended = true
	lk := r.lock(s.name)
	lk.freeFrom, lk.lapsed = r.clock(), lost
	lk.stays = slices.DeleteFunc(lk.stays, func(other *stay) bool { return other == s })
	if s.writes() && !slices.ContainsFunc(lk.stays, (*stay).writes) {
		lk.written = r.clock()
	}
	if lost {
		r.see("holds lost", 1)
		r.note("%s loses %v %q: %v", s.who, s.mode, s.name, cause)
		// If what it has re-entered is not renewed, and about to end, the first renewal comes too late.
		late := s.fades && r.clock().Sub(s.since) < r.slack
		if r.steady && !s.noRenew && !late && errors.Is(cause, rwlock.ErrLost) && !s.on.killed {
			r.violation("loss: %s loses %v %q, though nothing was the matter", s.who, s.mode, s.name)
		}
	}
}

// dies notes that a process takes its holds to its end.
func (r *referee) dies(p *node) {
	for _, lk := range r.locks {
		lk.stays = slices.DeleteFunc(lk.stays, func(s *stay) bool {
			if s.ended = s.on == p; s.ended {
				lk.freeFrom, lk.lapsed = r.clock(), true
			}
			return s.ended
		})
	}
}

// left checks what Unlock said.
func (r *referee) left(s *stay, believed bool, err error) {
	r.note("%s left %v %q: %v", s.who, s.mode, s.name, err)
	if err == nil && !believed {
		r.violation("loss: Unlock of %s says nothing of the loss of %v %q", s.who, s.mode, s.name)
	}
}

// declare notes a loss of data of these names.
func (r *referee) declare(names ...string) {
	for _, name := range names {
		r.lock(name).lossAt = r.clock()
	}
}

// uses checks that a holder which relies on its hold may use what the lock guards: nobody else does, and a
// fence there would let it pass.
func (r *referee) uses(s *stay) {
	lk, t := r.lock(s.name), s.hold.Token()
	unsettled := func(s *stay) bool { return s.believed() && r.excused(lk, s) }
	if !r.relied(lk, s) || slices.ContainsFunc(lk.stays, unsettled) {
		return
	}
	r.checkExclusion(lk, s)
	if t < lk.lastWrit || s.writes() && t <= lk.lastRead {
		r.violation("fence: %s, who holds %v %q, has token %d, after writer %d and reader %d", s.who, s.mode,
			s.name, t, lk.lastWrit, lk.lastRead)
	}
}

// A journal has what happened in a world.
type journal struct {
	clock func() time.Time
	start time.Time

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
	j.violations = append(j.violations, line)
}

func (j *journal) see(what string, n int) {
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
