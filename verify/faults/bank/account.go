// Package bank is the resource that the locks of the verification suites guard: two balances whose sum never changes. It
// notices when a holder that should have been alone was not.
package bank

import (
	"errors"
	"fmt"
	"sync"
)

// Total is what the two balances add up to.
const Total = 1000

// ErrRefused is what a fenced account answers a holder whose token is out of date.
var ErrRefused = errors.New("token out of date")

// An Account is two balances under one lock. The zero Account is empty; use New.
type Account struct {
	fenced bool

	mu       sync.Mutex
	balances [2]int64
	version  int64 // grows with each write
	written  int64 // the largest token of a writer
	read     int64 // the largest token of a reader
	Counts
}

// Counts is what became of the accesses to an account.
type Counts struct {
	Reads, Writes int64
	Refused       int64 // by the fence
	Violations    int64 // by holders that had reason to believe in their hold
	Late          int64 // violations by holders that had not looked at their hold for too long, or knew better
}

// New returns an account; a fenced one refuses tokens that are out of date.
func New(fenced bool) *Account {
	return &Account{fenced: fenced, balances: [2]int64{Total, 0}, version: 1}
}

// An Access is what a holder says with each step.
type Access struct {
	Token int64
	Write bool  // the hold is a write hold
	Seen  int64 // the version that the holder met at its first step; 0 if this is that
	Late  bool  // the holder did not make sure of its hold immediately before
}

// Get returns one of the balances and the version of both.
func (a *Account) Get(x Access, which int) (balance, version int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.admit(x); err != nil {
		return 0, 0, err
	}
	a.Reads++
	return a.balances[which&1], a.version, nil
}

// Put sets both balances.
func (a *Account) Put(x Access, balances [2]int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.admit(x); err != nil {
		return err
	}
	a.Writes++
	a.balances = balances
	a.version++
	return nil
}

// admit applies the fence, and notes whether somebody wrote since the holder's first step. A read hold's token is not less
// than any earlier writer's and less than any later one's: so a writer is out of date as soon as a reader has shown a token
// that is not less than its own.
func (a *Account) admit(x Access) error {
	if a.fenced && (x.Token < a.written || x.Write && x.Token <= a.read) {
		a.Refused++
		return fmt.Errorf("%w: %d, after writer %d and reader %d", ErrRefused, x.Token, a.written, a.read)
	}
	if x.Write {
		a.written = max(a.written, x.Token)
	} else {
		a.read = max(a.read, x.Token)
	}
	if x.Seen != 0 && x.Seen != a.version {
		if x.Late && !a.fenced {
			a.Late++
		} else {
			a.Violations++
		}
	}
	return nil
}

// State returns the counts, the balances' sum and whether it is what it should be.
func (a *Account) State() (c Counts, sum int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Counts, a.balances[0] + a.balances[1]
}
