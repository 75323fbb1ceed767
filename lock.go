package rwlock

import "time"

// A lock is what an RWLock knows of one name. RWLock.mu guards it.
type lock struct {
	rw      *RWLock
	name    string
	keys    [numKeys]any // strings; boxed once
	refs    int          // claims that have not ended, and calls in progress
	slots   []*slot      // free ones
	last    last
	fence   time.Time // when the fence's time to live was last set by a call of this process, not before
	owners  map[Owner]*ownership
	waiting map[*claim]struct{}
	steps   int    // in a row that were not enough
	scout   *claim // the waiter that asks again when what is in the way might end
}

// An ownership is what one owner has of a lock.
type ownership struct {
	lk          *lock
	owner       Owner
	read, write *claim        // held, or lost and not yet released; or nil
	acquiring   bool          // the owner holds nothing, or is a writer that asks to read, and a call is on its way
	acquired    chan struct{} // closed when that call has ended, if somebody waits for that
}

// idleLocks is how many names an RWLock remembers that it does not use: it saves building their keys again.
const idleLocks = 1024

// use returns the lock of name for a call, which must drop it.
func (rw *RWLock) use(name string) *lock {
	lk := rw.locks[name]
	if lk == nil {
		lk = &lock{rw: rw, name: name, owners: make(map[Owner]*ownership), waiting: make(map[*claim]struct{})}
		base := keyBase(rw.prefix, name)
		for i, suffix := range keySuffixes {
			lk.keys[i] = base + suffix
		}
		rw.locks[name] = lk
	}
	lk.refs++
	return lk
}

func (lk *lock) drop() {
	lk.refs--
	if lk.refs == 0 && len(lk.owners) == 0 && len(lk.rw.locks) > idleLocks {
		delete(lk.rw.locks, lk.name)
	}
}

func (lk *lock) takeSlot() *slot {
	if n := len(lk.slots); n > 0 {
		s := lk.slots[n-1]
		lk.slots = lk.slots[:n-1]
		return s
	}
	return newSlot(lk.keys[keyDone].(string))
}

func (lk *lock) ownership(o Owner) *ownership {
	own := lk.owners[o]
	if own == nil {
		own = &ownership{lk: lk, owner: o}
		lk.owners[o] = own
	}
	return own
}

// settle forgets an owner that has nothing of the lock.
func (own *ownership) settle() {
	if own.read == nil && own.write == nil && !own.acquiring && own.lk.owners[own.owner] == own {
		delete(own.lk.owners, own.owner)
	}
}

// endAcquiring lets the owner's other calls go on.
func (own *ownership) endAcquiring() {
	own.acquiring = false
	if own.acquired != nil {
		close(own.acquired)
		own.acquired = nil
	}
	own.settle()
}

func (own *ownership) claim(m Mode) **claim {
	if m == Write {
		return &own.write
	}
	return &own.read
}

// serve delivers what a step at the server granted to waiters of this process, and asks for the next step if that one
// was not enough.
func (lk *lock) serve(a answer, b *batch) {
	if unknown := lk.rw.deliver(a.wake); len(unknown.claims) > 0 {
		b.others = append(b.others, unknown)
	}
	switch {
	case !a.more:
		lk.steps = 0
	case lk.steps < mostSteps && !lk.rw.closed:
		lk.steps++
		b.calls = append(b.calls, lk.newCall(serveScript, lk, lk.keys[keyDone], processID, lk.rw.boxedWakes))
	}
}

// replied takes the reply of serve.lua. If it failed, the waiters' own heartbeats go on from there.
func (lk *lock) replied(c *call) {
	a, err := releaseAnswer(c.reply)
	if c.err != nil || err != nil {
		return
	}
	var b batch
	lk.rw.mu.Lock()
	lk.serve(a, &b)
	lk.rw.mu.Unlock()
	lk.rw.run(&b)
}

// mostSteps bounds how often a server is believed that says that there is more to do. What is left then is left to the
// waiters' heartbeats.
const mostSteps = 1000

// askAgain makes every waiter of the lock ask for news at once.
func (lk *lock) askAgain() {
	for c := range lk.waiting {
		c.askNow()
	}
}

// close ends all that the lock's owners have or wait for.
func (lk *lock) close(b *batch) {
	for c := range lk.waiting {
		c.fail(ErrClosed, b)
	}
	for _, own := range lk.owners {
		for _, c := range []*claim{own.read, own.write} {
			if c != nil && c.state == held {
				c.close(b)
			}
		}
	}
}
