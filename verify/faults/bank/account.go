// Package bank is the resource that the locks of the verification suites guard: two balances whose sum never
// changes. It notices when a holder that should have been alone was not.
package bank

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Total is what the two balances add up to.
const Total = 1000

// Fresh is how old a holder's look at its hold may be. It is less than the margin that the library keeps to
// the end of a lease of a second.
const Fresh = 10 * time.Millisecond

// ErrRefused is what a fenced account answers a holder whose token is out of date.
var ErrRefused = errors.New("token out of date")

// An Account is two balances under one lock. The zero Account is empty; use New.
type Account struct {
	fenced bool

	mu       sync.Mutex
	balances [2]int64
	total    int64 // what the balances add up to, unless a lock fails
	version  int64 // grows with each write
	tardy    int64 // the version after the last write that was late
	written  int64 // the largest token of a writer
	read     int64 // the largest token of a reader
	Counts
}

// Counts is what became of the accesses to an account.
type Counts struct {
	Reads, Writes int64
	Refused       int64 // by the fence
	Violations    int64 // by holders that had reason to believe in their hold
	// violations by holders that had not looked at their hold for too long, or knew better, and what came of
	// their writes
	Late int64
}

// Add adds up counts.
func (c *Counts) Add(o Counts) {
	c.Reads, c.Writes, c.Refused = c.Reads+o.Reads, c.Writes+o.Writes, c.Refused+o.Refused
	c.Violations, c.Late = c.Violations+o.Violations, c.Late+o.Late
}

// New returns an account; a fenced one refuses tokens that are out of date.
func New(fenced bool) *Account {
	return &Account{fenced: fenced, balances: [2]int64{Total, 0}, total: Total, version: 1}
}

// An Access is what a holder says with each step.
type Access struct {
	Token  int64
	Write  bool      // the hold is a write hold
	Seen   int64     // the version that the holder met at its first step; 0 if this is that
	Looked time.Time // when the holder made sure of its hold; zero for immediately before
	Late   bool      // the holder did not make sure of its hold immediately before
}

// Get returns one of the balances, and the version of both that the holder met at its first step.
func (a *Account) Get(x Access, which int) (balance, seen int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.admit(x); err != nil {
		return 0, 0, err
	}
	a.Reads++
	if x.Seen == 0 {
		x.Seen = a.version
	}
	return a.balances[which&1], x.Seen, nil
}

// Put sets both balances.
func (a *Account) Put(x Access, balances [2]int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	late, err := a.admit(x)
	if err != nil {
		return err
	}
	a.Writes++
	a.balances = balances
	a.version++
	if late {
		a.tardy, a.total = a.version, balances[0]+balances[1]
	}
	return nil
}

// admit applies the fence, and notes whether someone wrote since the holder's first step. A read hold's
// token is not less than any earlier writer's and less than any later one's: so a writer is out of date as
// soon as a reader has shown a token that is not less than its own. Without a fence, admit reports whether
// the access is late, or follows a write that was: whoever has the lock meets what a late holder has written.
func (a *Account) admit(x Access) (late bool, err error) {
	if a.fenced && (x.Token < a.written || x.Write && x.Token <= a.read) {
		a.Refused++
		return false, fmt.Errorf("%w: %d, after writer %d and reader %d", ErrRefused, x.Token, a.written, a.read)
	}
	if x.Write {
		a.written = max(a.written, x.Token)
	} else {
		a.read = max(a.read, x.Token)
	}
	// Now that the account is locked, so that nothing can come in between: the processes of holders, and this
	// one, may stand still.
	stale := !x.Looked.IsZero() && time.Since(x.Looked) > Fresh
	late = (x.Late || stale) && !a.fenced
	if x.Seen != 0 && x.Seen != a.version {
		if late = late || x.Seen < a.tardy; late {
			a.Late++
		} else {
			a.Violations++
		}
	}
	return late, nil
}

// State returns the counts. Money that is gone, or came out of nothing, is a violation.
func (a *Account) State() Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.Counts
	if a.balances[0]+a.balances[1] != a.total {
		c.Violations++
	}
	return c
}
