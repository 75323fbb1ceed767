package sim

import (
	"context"
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
	start time.Time
	limits

	mu         sync.Mutex
	log        []string
	violations []string
	locks      map[string]*watched
	Tally
}

// limits are the bounds that a referee holds the library to; they depend on what goes wrong in the world.
type limits struct {
	notice  time.Duration // from a loss of data until all holders know of it
	steady  bool          // nothing happens that a hold which is renewed could be lost by
	slack   time.Duration // from a call until its request is surely at the server; 0: no bound is known
	gap     time.Duration // the longest that a lock lies free while somebody waits, after a release
	lapse   time.Duration // the same after the loss of a hold
	overrun int           // the most writers that enter while a reader waits
}

// Tally counts what happened in a world.
type Tally struct {
	Calls, Holds, Reentries, Lost, GaveUp, Faults int
	Simulated                                     time.Duration
	Sole                                          Sole
}

func (t *Tally) add(o Tally) {
	t.Calls += o.Calls
	t.Holds += o.Holds
	t.Reentries += o.Reentries
	t.Lost += o.Lost
	t.GaveUp += o.GaveUp
	t.Faults += o.Faults
	t.Simulated += o.Simulated
	t.Sole.add(o.Sole)
}

// A watched lock is what the referee knows of one name.
type watched struct {
	stays    []*stay
	waiters  map[*waiter]bool
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
	hold  *rwlock.Hold
	ctx   context.Context
	since time.Time
	ended bool
}

// A waiter is a lock call that is under way.
type waiter struct {
	host    *host
	who     string
	name    string
	mode    rwlock.Mode
	asked   time.Time
	try     bool
	noRenew bool
	ctx     context.Context
	overrun int // writers that entered meanwhile
}

func newReferee(names []string, l limits) *referee {
	r := &referee{start: time.Now(), limits: l, locks: map[string]*watched{}}
	for _, name := range names {
		r.locks[name] = &watched{waiters: map[*waiter]bool{}, account: bank.New(true)}
	}
	return r
}

// note adds a line to the world's log. It is called with mu held.
func (r *referee) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf("%12.6fs ", time.Since(r.start).Seconds())+fmt.Sprintf(format, args...))
}

func (r *referee) Note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(format, args...)
}

func (r *referee) violation(format string, args ...any) {
	r.note("VIOLATION "+format, args...)
	r.violations = append(r.violations, r.log[len(r.log)-1])
}

// Violation is violation, for callers that do not hold mu.
func (r *referee) Violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violation(format, args...)
}

// Report returns the violations and the end of the log, or "".
func (r *referee) Report() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.violations) == 0 {
		return ""
	}
	return strings.Join(r.violations, "\n") + "\n\nlog:\n" + strings.Join(r.log[max(0, len(r.log)-400):], "\n")
}

// asks notes that a call begins.
func (r *referee) asks(u *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u.asked = time.Now()
	r.Calls++
	r.locks[u.name].waiters[u] = true
	r.note("%s asks %v %q try=%v", u.who, u.mode, u.name, u.try)
}

// gives notes that a call has ended without the lock.
func (r *referee) gives(u *waiter, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.locks[u.name].waiters, u)
	r.GaveUp++
	r.note("%s gives up %v %q: %v", u.who, u.mode, u.name, err)
}

// believed reports whether the holder has reason to believe in its hold.
func (s *stay) believed() bool {
	return !s.ended && s.ctx.Err() == nil && !s.host.isDead()
}

func (h *host) isDead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

// enters notes that a call has the lock, and checks whether it may.
func (r *referee) enters(u *waiter, h *rwlock.Hold) *stay {
	now := time.Now()
	s := &stay{waiter: u, hold: h, ctx: h.Context(), since: now}
	r.mu.Lock()
	defer r.mu.Unlock()
	lk := r.locks[u.name]
	delete(lk.waiters, u)
	r.Holds++
	r.note("%s enters %v %q token %d", u.who, u.mode, u.name, h.Token())
	if s.ctx.Err() != nil {
		r.note("%s: but it is lost already", u.who)
	}

	alone := r.checkExclusion(lk, s)
	r.checkToken(lk, s)
	r.checkTurn(lk, u, alone)
	r.watch(lk, s)
	return s
}

// again notes that an owner has re-entered.
func (r *referee) again(u *waiter, h *rwlock.Hold) *stay {
	s := &stay{waiter: u, hold: h, ctx: h.Context(), since: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Reentries++
	r.note("%s re-enters %v %q token %d", u.who, u.mode, u.name, h.Token())
	r.checkExclusion(r.locks[u.name], s)
	r.watch(r.locks[u.name], s)
	return s
}

func (r *referee) watch(lk *watched, s *stay) {
	lk.stays = append(lk.stays, s)
	context.AfterFunc(s.ctx, func() { r.ends(s, true) })
}

// checkExclusion checks that nobody else is there whose hold excludes this one; it reports whether nobody is there at all.
func (r *referee) checkExclusion(lk *watched, s *stay) bool {
	u, h, alone := s.waiter, s.hold, true
	for _, other := range lk.stays {
		if !other.believed() {
			continue
		}
		alone = false
		if (other.mode == rwlock.Write || u.mode == rwlock.Write) && !(other.host == u.host && other.hold.Owner() == h.Owner()) &&
			s.ctx.Err() == nil && !r.excused(lk, other) && !r.excused(lk, s) {
			r.violation("exclusion: %s has %v %q (token %d) while %s has %v (token %d)",
				u.who, u.mode, u.name, h.Token(), other.who, other.mode, other.hold.Token())
		}
	}
	return alone
}

// excused reports whether a hold was asked for before a loss of data that its holder need not know of yet: it hears of that
// by the next renewal, if there is one.
func (r *referee) excused(lk *watched, s *stay) bool {
	return !lk.lossAt.IsZero() && !s.asked.After(lk.lossAt) && (s.noRenew || time.Since(lk.lossAt) <= r.notice)
}

// unsettled reports whether somebody who lost a hold with the data may still believe in it.
func (r *referee) unsettled(lk *watched) bool {
	for _, s := range lk.stays {
		if s.believed() && r.excused(lk, s) {
			return true
		}
	}
	return false
}

func (r *referee) checkToken(lk *watched, s *stay) {
	t := s.hold.Token()
	if s.mode == rwlock.Write {
		// A read hold that was lost in a loss of data may have a token from before it.
		if t <= lk.lastWrit || t <= lk.lastRead {
			r.violation("tokens: %s writes %q with token %d after writer %d and reader %d", s.who, s.name, t, lk.lastWrit, lk.lastRead)
		}
		lk.lastWrit = t
		return
	}
	if t < lk.lastWrit && s.ctx.Err() == nil && !r.excused(lk, s) {
		r.violation("tokens: %s reads %q with token %d after writer %d", s.who, s.name, t, lk.lastWrit)
	}
	if s.ctx.Err() == nil && !r.excused(lk, s) {
		lk.lastRead = max(lk.lastRead, t)
	}
}

// checkTurn checks that it was the caller's turn, and that it did not have to wait for nothing.
func (r *referee) checkTurn(lk *watched, u *waiter, alone bool) {
	if r.slack == 0 {
		return
	}
	now := time.Now()
	if from := later(lk.freeFrom, u.asked); alone && !u.try {
		bound := r.gap
		if lk.lapsed {
			bound = r.lapse
		}
		if gap := now.Sub(from); gap > bound {
			r.violation("handover: %q lay free for %v while %s waited to %v", u.name, gap, u.who, u.mode)
		}
	}
	for v := range lk.waiters {
		waits := !v.try && v.asked.Add(r.slack).Before(u.asked) && v.ctx.Err() == nil
		switch {
		case v.host == u.host && v.who == u.who:
		case waits && u.mode == rwlock.Write && v.mode == rwlock.Write:
			r.violation("order: %s (asked %v) writes %q before %s (asked %v)",
				u.who, u.asked.Sub(r.start), u.name, v.who, v.asked.Sub(r.start))
		case waits && u.mode == rwlock.Read && v.mode == rwlock.Write && u.try:
			r.violation("try: %s reads %q before %s, who waits", u.who, u.name, v.who)
		}
		if u.mode == rwlock.Write && v.mode == rwlock.Read && !v.try && v.ctx.Err() == nil && lk.written.Sub(v.asked) > r.slack {
			r.violation("phases: %s writes %q, though %s waited to read when the last writer left", u.who, u.name, v.who)
		}
		if u.mode == rwlock.Write && v.mode == rwlock.Read && !v.try && now.Sub(v.asked) > r.slack {
			if v.overrun++; v.overrun > r.overrun && v.ctx.Err() == nil {
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
	believed := s.ctx.Err() == nil
	r.ends(s, false)
	return believed
}

func (r *referee) ends(s *stay, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	lk := r.locks[s.name]
	lk.freeFrom, lk.lapsed = time.Now(), lost
	lk.stays = slices.DeleteFunc(lk.stays, func(other *stay) bool { return other == s })
	writes := func(other *stay) bool { return other.mode == rwlock.Write }
	if writes(s) && !slices.ContainsFunc(lk.stays, writes) {
		lk.written = time.Now()
	}
	if lost {
		r.Lost++
		cause := context.Cause(s.ctx)
		r.note("%s loses %v %q: %v", s.who, s.mode, s.name, cause)
		if r.steady && !s.noRenew && errors.Is(cause, rwlock.ErrLost) && !s.host.isDead() {
			r.violation("loss: %s loses %v %q, though nothing was the matter", s.who, s.mode, s.name)
		}
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
	r.locks[name].lossAt = time.Now()
}

// touch uses the resource that the lock guards, the way a careful holder does.
func (r *referee) touch(s *stay, seen int64) int64 {
	r.mu.Lock()
	lk := r.locks[s.name]
	good := s.believed() && !r.excused(lk, s) && !r.unsettled(lk)
	r.mu.Unlock()
	x := bank.Access{Token: s.hold.Token(), Write: s.mode == rwlock.Write, Seen: seen}
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
