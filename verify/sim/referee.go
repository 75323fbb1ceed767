package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
)

// A referee watches all processes of a world, by the one clock that they share.
type referee struct {
	clock func() time.Time
	start time.Time
	limits

	mu         sync.Mutex
	log        []line
	violations []string
	locks      map[string]*watched
	Tally
}

// mostLines of the log are kept.
const mostLines = 100_000

// A line of the log is put into words when someone reads it.
type line struct {
	at     time.Time
	format string
	args   []any
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
	account  *bank.Account
}

// A stay is one owner's hold in one mode, from the return of the lock call until the Unlock or the loss.
type stay struct {
	*waiter
	hold  hold
	ended bool
}

// A waiter is a lock call that is in flight.
type waiter struct {
	call
	on      process
	who     string
	asked   time.Time
	over    func() bool // whether the call has been told to end
	overrun int         // writers that entered meanwhile
}

func newReferee(clock func() time.Time, l limits) *referee {
	return &referee{clock: clock, start: clock(), limits: l, locks: map[string]*watched{}}
}

// lock returns what is known of a name. It is called with mu held.
func (r *referee) lock(name string) *watched {
	if r.locks[name] == nil {
		r.locks[name] = &watched{account: bank.New(true)}
	}
	return r.locks[name]
}

// note adds a line to the world's log. It is called with mu held.
func (r *referee) note(format string, args ...any) {
	if len(r.log) == mostLines {
		r.log = slices.Clone(r.log[mostLines/2:])
	}
	r.log = append(r.log, line{r.clock(), format, args})
}

func (r *referee) Note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(format, args...)
}

func (r *referee) violation(format string, args ...any) {
	r.note("VIOLATION "+format, args...)
	r.violations = append(r.violations, r.text(r.log[len(r.log)-1]))
}

// Violation is violation, for callers that do not hold mu.
func (r *referee) Violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violation(format, args...)
}

func (r *referee) text(l line) string {
	return fmt.Sprintf("%12.6fs ", l.at.Sub(r.start).Seconds()) + fmt.Sprintf(l.format, l.args...)
}

// Log returns the last lines of the log.
func (r *referee) Log(lines int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, l := range r.log[max(0, len(r.log)-lines):] {
		b.WriteString(r.text(l) + "\n")
	}
	return b.String()
}

// Report returns the violations and the end of the log, or "".
func (r *referee) Report() string {
	if len(r.violations) == 0 {
		return ""
	}
	return strings.Join(r.violations, "\n") + "\n\nlog:\n" + r.Log(400)
}

// asks notes that a call begins.
func (r *referee) asks(u *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u.asked = r.clock()
	r.see("calls", 1)
	lk := r.lock(u.name)
	lk.waiters = append(lk.waiters, u)
	r.note("%s asks %v %q try=%v", u.who, u.mode, u.name, u.try)
}

func (lk *watched) forget(u *waiter) {
	lk.waiters = slices.DeleteFunc(lk.waiters, func(v *waiter) bool { return v == u })
}

// gives notes that a call has ended without the lock.
func (r *referee) gives(u *waiter, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lock(u.name).forget(u)
	r.see("calls given up", 1)
	r.note("%s gives up %v %q: %v", u.who, u.mode, u.name, err)
}

// believed reports whether the holder has reason to believe in its hold.
func (s *stay) believed() bool { return !s.ended && s.hold.good() && s.on.awake() }

// believes is believed, for callers that do not hold mu.
func (r *referee) believes(s *stay) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.believed()
}

// enters notes that a call has the lock, and checks whether it may.
func (r *referee) enters(u *waiter, h hold) *stay {
	s := &stay{waiter: u, hold: h}
	r.mu.Lock()
	defer r.mu.Unlock()
	lk := r.lock(u.name)
	lk.forget(u)
	r.see("holds", 1)
	r.note("%s enters %v %q token %d", u.who, u.mode, u.name, h.token())
	if !h.good() {
		r.note("%s: but it is lost already", u.who)
	}

	alone := r.checkExclusion(lk, s)
	r.checkToken(lk, s)
	r.checkTurn(lk, u, alone)
	r.watch(lk, s)
	return s
}

// again notes that an owner has re-entered.
func (r *referee) again(u *waiter, h hold) *stay {
	s := &stay{waiter: u, hold: h}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.see("re-entries", 1)
	r.note("%s re-enters %v %q token %d", u.who, u.mode, u.name, h.token())
	r.checkExclusion(r.lock(u.name), s)
	r.watch(r.lock(u.name), s)
	return s
}

func (r *referee) watch(lk *watched, s *stay) {
	lk.stays = append(lk.stays, s)
	s.hold.whenLost(func(cause error) { r.ends(s, true, cause) })
}

// checkExclusion checks that nobody else is there whose hold excludes this one; it reports whether nobody is
// there at all.
func (r *referee) checkExclusion(lk *watched, s *stay) bool {
	u, h, alone := s.waiter, s.hold, true
	for _, other := range lk.stays {
		if !other.believed() {
			continue
		}
		alone = false
		if (other.mode == rwlock.Write || u.mode == rwlock.Write) &&
			!(other.on == u.on && other.hold.owner() == h.owner()) &&
			s.hold.good() && s.on.awake() && !r.excused(lk, other) && !r.excused(lk, s) {
			r.violation("exclusion: %s has %v %q (token %d) while %s has %v (token %d)",
				u.who, u.mode, u.name, h.token(), other.who, other.mode, other.hold.token())
		}
	}
	return alone
}

// excused reports whether a hold was asked for before a loss of data that its holder need not know of yet: it
// hears of that by the next renewal, if there is one. A delegation that was lost is used until its renewal.
func (r *referee) excused(lk *watched, s *stay) bool {
	return !lk.lossAt.IsZero() && (!s.asked.After(lk.lossAt) || s.hold.lent()) &&
		(s.noRenew || r.clock().Sub(lk.lossAt) <= r.notice)
}

// unsettled reports whether someone who lost a hold with the data may still believe in it.
func (r *referee) unsettled(lk *watched) bool {
	for _, s := range lk.stays {
		if s.believed() && r.excused(lk, s) {
			return true
		}
	}
	return false
}

func (r *referee) checkToken(lk *watched, s *stay) {
	t := s.hold.token()
	if s.hold.lent() && r.excused(lk, s) {
		return
	}
	if s.mode == rwlock.Write {
		// A read hold that was lost in a loss of data may have a token from before it.
		if t <= lk.lastWrit || t <= lk.lastRead {
			r.violation("tokens: %s writes %q with token %d after writer %d and reader %d", s.who, s.name, t,
				lk.lastWrit, lk.lastRead)
		}
		lk.lastWrit = t
		return
	}
	sound := s.hold.good() && s.on.awake() && !r.excused(lk, s)
	if t < lk.lastWrit && sound {
		r.violation("tokens: %s reads %q with token %d after writer %d", s.who, s.name, t, lk.lastWrit)
	}
	if sound {
		lk.lastRead = max(lk.lastRead, t)
	}
}

// checkTurn checks that it was the caller's turn, and that it did not have to wait for nothing.
func (r *referee) checkTurn(lk *watched, u *waiter, alone bool) {
	if r.slack == 0 {
		return
	}
	now := r.clock()
	if from := later(lk.freeFrom, u.asked); alone && !u.try {
		bound := r.gap
		if lk.lapsed {
			bound = r.lapse
		}
		if gap := now.Sub(from); gap > bound {
			r.violation("handover: %q lay free for %v while %s waited to %v", u.name, gap, u.who, u.mode)
		}
	}
	for _, v := range lk.waiters {
		waits := !(r.unordered && v.on != u.on) && !v.try && v.asked.Add(r.slack).Before(u.asked) && !v.over()
		switch {
		case v.on.dead():
			continue
		case v.who == u.who:
		case waits && u.mode == rwlock.Write && v.mode == rwlock.Write:
			r.violation("order: %s (asked %v) writes %q before %s (asked %v)",
				u.who, u.asked.Sub(r.start), u.name, v.who, v.asked.Sub(r.start))
		case waits && u.mode == rwlock.Read && v.mode == rwlock.Write && u.try:
			r.violation("try: %s reads %q before %s, who waits", u.who, u.name, v.who)
		}
		if r.unordered {
			continue
		}
		if u.mode == rwlock.Write && v.mode == rwlock.Read && !v.try && !v.over() &&
			lk.written.Sub(v.asked) > r.slack {
			r.violation("phases: %s writes %q, though %s waited to read when the last writer left", u.who, u.name,
				v.who)
		}
		if u.mode == rwlock.Write && v.mode == rwlock.Read && !v.try && now.Sub(v.asked) > r.slack {
			if v.overrun++; v.overrun > r.overrun && !v.over() {
				r.violation("starvation: %d writers entered %q while %s waited to read", v.overrun, u.name, v.who)
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leaves notes that the holder is about to release the hold; it reports whether it believed in it.
func (r *referee) leaves(s *stay) bool {
	believed := s.hold.good()
	r.ends(s, false, nil)
	return believed
}

func (r *referee) ends(s *stay, lost bool, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	lk := r.lock(s.name)
	lk.freeFrom, lk.lapsed = r.clock(), lost
	lk.stays = slices.DeleteFunc(lk.stays, func(other *stay) bool { return other == s })
	writes := func(other *stay) bool { return other.mode == rwlock.Write }
	if writes(s) && !slices.ContainsFunc(lk.stays, writes) {
		lk.written = r.clock()
	}
	if lost {
		r.see("holds lost", 1)
		r.note("%s loses %v %q: %v", s.who, s.mode, s.name, cause)
		if r.steady && !s.noRenew && errors.Is(cause, rwlock.ErrLost) && !s.on.dead() {
			r.violation("loss: %s loses %v %q, though nothing was the matter", s.who, s.mode, s.name)
		}
	}
}

// dies notes that a process takes its holds to its end.
func (r *referee) dies(p process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lk := range r.locks {
		for _, s := range lk.stays {
			if s.on == p {
				s.ended = true
				lk.freeFrom, lk.lapsed = r.clock(), true
			}
		}
		lk.stays = slices.DeleteFunc(lk.stays, func(s *stay) bool { return s.ended })
	}
}

// left checks what Unlock said.
func (r *referee) left(s *stay, believed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("%s left %v %q: %v", s.who, s.mode, s.name, err)
	if err == nil && !believed {
		r.violation("loss: Unlock of %s says nothing of the loss of %v %q", s.who, s.mode, s.name)
	}
}

// declare notes a loss of data.
func (r *referee) declare(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lock(name).lossAt = r.clock()
}

// touch uses the resource that the lock guards, the way a careful holder does.
func (r *referee) touch(s *stay, seen int64) int64 {
	r.mu.Lock()
	lk := r.lock(s.name)
	good := s.believed() && !r.excused(lk, s) && !r.unsettled(lk)
	r.mu.Unlock()
	x := bank.Access{Token: s.hold.token(), Write: s.mode == rwlock.Write, Seen: seen}
	_, version, err := lk.account.Get(x, 0)
	if err == nil && x.Write && seen != 0 {
		if err = lk.account.Put(x, [2]int64{bank.Total - version%7, version % 7}); err == nil {
			version++
		}
	}
	if err != nil && good {
		r.Violation("fence: the resource refuses %s, who holds %v %q: %v", s.who, s.mode, s.name, err)
	}
	return version
}
