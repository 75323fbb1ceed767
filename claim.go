package rwlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
)

// A claim is what the server knows an owner's hold by, from the request that asks for it until its end is known there:
// first waiting, then held, then ending. All the holds of one owner in one mode share a claim. RWLock.mu guards it.
type claim struct {
	own    *ownership
	mode   Mode
	slot   *slot
	id     string // <process uuid>:<handle>:<number>
	number string
	n      uint64        // the number
	lease  time.Duration // asked for
	try    bool
	state  state
	ready  chan struct{} // holds a signal when the waiting, or the first try to end the claim, is over
	err    error         // that ended it
	token  int64
	obstacle

	sole     sole
	noted    bool      // a request was sent for which the server has to take note of the claim's end
	known    bool      // the server has answered
	queued   bool      // the server has answered that the claim waits
	sent     time.Time // before the last request was sent that made the server keep the claim for a lease
	deadline time.Time // until when a hold may be relied on

	holds      []*holding // live
	one        [1]*holding
	unreleased int   // holds, lost ones included, that Unlock was not called for
	lost       bool  // and its owner has yet to release what it lost
	counted    bool  // the server may have a count of its holds
	miscounted bool  // and a wrong one
	outcome    int64 // of the first try to end it
	releaseErr error // likewise

	next     time.Time // when the timeline looks at it
	index    int       // in the timeline, from 1
	asked    time.Time // when the last request to keep or end it was sent; zero after its reply
	failures int       // of such requests, since the last that succeeded
	retry    time.Time // when to try again, after failures
	giveUp   time.Time // when an ending claim is left to its lease
}

type state int

const (
	waiting state = iota
	held
	ending
	ended
)

// A batch gathers, under RWLock.mu, what is to be done without it.
type batch struct {
	calls   []*call
	cancels []cancel
	logs    []func()
	others  []grants // to claims of other RWLocks of the process
}

type cancel struct {
	fn    context.CancelCauseFunc
	cause error
}

func (rw *RWLock) run(b *batch) {
	for _, c := range b.cancels {
		c.fn(c.cause)
	}
	for _, log := range b.logs {
		log()
	}
	for _, g := range b.others {
		rw.passOn(g)
	}
	if len(b.calls) > 0 {
		rw.pipe.send(b.calls...)
	}
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// margin is what a client's deadline is short of the server's: clocks may drift apart by one percent.
func margin(lease time.Duration) time.Duration {
	return lease/100 + 2*time.Millisecond
}

func (own *ownership) newClaim(mode Mode, lease time.Duration, try bool) *claim {
	lk := own.lk
	n := lastNumber.Add(1)
	buf := make([]byte, 0, 128)
	buf = append(append(buf, ' '), mode.String()...)
	buf = strconv.AppendInt(append(buf, ' '), lease.Milliseconds(), 10)
	buf = append(buf, ' ')
	start := len(buf)
	buf = append(append(buf, own.owner.process...), ':')
	buf = append(strconv.AppendUint(buf, own.owner.handle, 10), ':')
	digits := len(buf)
	mark := string(strconv.AppendUint(buf, n, 10))
	c := &claim{
		own:    own,
		mode:   mode,
		slot:   lk.takeSlot(),
		id:     mark[start:],
		number: mark[digits:],
		sole:   sole{mark: mark, id: start},
		n:      n,
		lease:  lease,
		try:    try,
		ready:  make(chan struct{}, 1),
	}
	lk.refs++
	lk.rw.claims++
	// A message may overtake the reply, so the claim must be known before the request is sent.
	lk.rw.waiting[n] = c
	lk.waiting[c] = struct{}{}
	return c
}

func (c *claim) rw() *RWLock { return c.own.lk.rw }

// log reports what no return value tells.
func (c *claim) log(b *batch, msg string, args ...any) {
	if l := c.rw().logger; l != nil {
		args = append([]any{"lock", c.own.lk.name, "owner", c.own.owner, "mode", c.mode}, args...)
		b.logs = append(b.logs, func() { l.Warn("rwlock: "+msg, args...) })
	}
}

func (c *claim) leaseArg(d time.Duration) any {
	if rw := c.rw(); d == rw.lease {
		return rw.boxedLease
	}
	return milliseconds(d)
}

// ask is the request for the lock, and, sent again, the heartbeat of a waiter.
func (c *claim) ask() *call {
	rw := c.rw()
	c.noted = true
	how := boxedWait
	if c.try {
		how = boxedTry
	}
	lease := c.leaseArg(c.lease)
	var k *call
	if c.mode == Write {
		keep := keepArg(c.own.lk.fence, fenceSlack)
		k = c.own.lk.newCall(lockScript, c, c.slot.key, c.id, c.slot.last, lease, how, rw.boxedWakes, keep, c.own.lk.last.hold)
		k.keeps = keep == boxedKeep
	} else {
		write := boxedNone
		if w := c.own.write; w != nil {
			write = w.id
		}
		k = c.own.lk.newCall(rlockScript, c, c.slot.key, c.id, c.slot.last, lease, how, rw.boxedWakes, write, c.own.lk.last.hold)
	}
	k.sent = time.Now()
	if c.sent.IsZero() {
		c.sent = k.sent
	}
	return k
}

var boxedWait, boxedTry, boxedCounted any = "wait", "try", "counted"

func (c *claim) renewal(lease time.Duration) *call {
	c.sole.says = nil
	k := c.own.lk.newCall(renewScript, c, c.slot.key, c.id, c.mode.String(), c.leaseArg(lease))
	k.sent, k.lease = time.Now(), lease
	return k
}

func (c *claim) release() *call {
	if c.sole.says != nil {
		return c.soleRelease()
	}
	c.noted = true
	s := runlockScript
	if c.mode == Write {
		s = unlockScript
	}
	keep := keepArg(c.slot.fresh, doneSlack)
	counted := boxedNone
	if c.counted {
		counted = boxedCounted
	}
	k := c.own.lk.newCall(s, c, c.slot.key, c.id, c.number, c.rw().boxedWakes, keep, counted)
	k.keeps = keep == boxedKeep
	k.sent = time.Now()
	return k
}

// replied takes the reply of any request about the claim.
func (c *claim) replied(k *call) {
	var b batch
	rw := c.rw()
	rw.mu.Lock()
	switch k.script {
	case lockScript, rlockScript, soleLockScript:
		c.onAsked(k, &b)
	case renewScript:
		c.onRenewed(k, &b)
	default:
		c.onReleased(k, &b)
	}
	rw.mu.Unlock()
	rw.run(&b)
}

func (c *claim) onAsked(k *call, b *batch) {
	if k.script == soleLockScript && k.reply == any(int64(notSole)) {
		if c.state == waiting {
			b.calls = append(b.calls, c.ask())
		}
		return
	}
	a, err := answer{}, k.err
	if err == nil {
		a, err = acquireAnswer(k.reply)
	}
	c.own.lk.serve(a, b)
	if err == nil && c.state <= held {
		c.kept(k.sent, c.lease)
	}
	if c.state == held && a.token > 0 && a.token != c.token {
		c.lose(b) // it was dropped, and the request, coming late, took the lock anew
	}
	if c.state == held {
		c.schedule()
	}
	if c.state != waiting {
		return
	}
	switch {
	case err != nil && c.known && !errors.Is(err, errAgain):
		c.err = err
		c.failed()
		c.schedule()
	case err != nil:
		c.fail(err, b)
	case a.token > 0:
		switch {
		case a.sole || k.script == soleLockScript:
			c.entered(k, a)
		case k.script == lockScript && !k.keeps:
			c.own.lk.fence = k.sent
		}
		c.grant(a.token)
	default:
		c.known, c.queued = true, true
		c.obstacle = a.obstacle
		if c.try {
			c.slot.ended(c.number, false)
			c.own.lk.slots = append(c.own.lk.slots, c.slot)
			c.slot = nil
			c.fail(ErrLocked, b)
			return
		}
		c.rw().listen()
		c.schedule()
	}
}

// kept notes that the server keeps the claim for a lease from a moment not before sent.
func (c *claim) kept(sent time.Time, lease time.Duration) {
	c.asked, c.failures, c.err = time.Time{}, 0, nil
	if sent.After(c.sent) {
		c.sent = sent
	}
	if d := sent.Add(lease - margin(lease)); d.After(c.deadline) {
		c.deadline = d
	}
}

// failed notes that a request to keep or end the claim failed.
func (c *claim) failed() {
	c.asked = time.Time{}
	c.failures++
	d := min(firstRetry<<min(c.failures-1, 10), max(c.lease/resendAfter, firstRetry), lastRetry)
	c.retry = time.Now().Add(d)
}

// grant makes a waiting claim a held one. The server keeps it for a lease from the last request that it took note of,
// which is not before the last that this process knows it to have taken note of.
func (c *claim) grant(token int64) {
	if c.deadline.IsZero() { // a message overtook the first reply
		c.deadline = c.sent.Add(c.lease - margin(c.lease))
	}
	c.token = token
	c.leaveQueue(held)
	c.signal()
	c.schedule()
}

// fail ends a waiting claim with err, and withdraws it from the server.
func (c *claim) fail(err error, b *batch) {
	c.err = err
	c.leaveQueue(ending)
	c.signal()
	c.end(b)
}

func (c *claim) leaveQueue(to state) {
	lk := c.own.lk
	c.state = to
	delete(lk.rw.waiting, c.n)
	delete(lk.waiting, c)
	if lk.scout == c {
		lk.scout = nil
		for other := range lk.waiting {
			other.scoutAt(c.next)
			break
		}
	}
}

// unsignal takes back a signal that came when nobody waited for it any more.
func (c *claim) unsignal() {
	select {
	case <-c.ready:
	default:
	}
}

func (c *claim) signal() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// end starts to end the claim at the server, and goes on until it is known there or one more lease is over.
func (c *claim) end(b *batch) {
	c.state = ending
	if c.slot == nil { // a try that was refused has ended at the server
		c.vanish()
		return
	}
	now := time.Now()
	c.giveUp = now.Add(max(c.lease, closeTimeout))
	c.asked, c.failures = now, 0
	b.calls = append(b.calls, c.release())
	c.schedule()
}

func (c *claim) onReleased(k *call, b *batch) {
	a, err := answer{}, k.err
	if err == nil {
		a, err = releaseAnswer(k.reply)
	}
	lk := c.own.lk
	if k.script == soleUnlockScript && c.state == ending && (err == nil && a.code == notThere || answered(err)) {
		// Somebody has come since. Or the server is out of memory, which the other scripts for it work with.
		c.asked = time.Now()
		b.calls = append(b.calls, c.release())
		c.schedule()
		return
	}
	lk.serve(a, b)
	if a.code == releasedBefore {
		lk.askAgain() // the reply that named whom that run let in is lost
	}
	if c.state != ending {
		return
	}
	if err != nil {
		c.failed()
		c.releaseErr = err
		c.signal()
		c.schedule()
		return
	}
	c.outcome = a.code
	if k.script == soleUnlockScript || a.code == releasedSole {
		c.left(k)
	}
	if k.script != soleUnlockScript {
		c.slot.ended(c.number, a.code != notThere)
		if a.code == released && !k.keeps {
			c.slot.fresh = k.sent
		}
		lk.slots = append(lk.slots, c.slot)
	} else if !c.noted {
		lk.slots = append(lk.slots, c.slot) // as it was
	}
	c.signal()
	c.vanish()
}

// vanish forgets a claim that has ended.
func (c *claim) vanish() {
	rw := c.rw()
	c.state = ended
	rw.timeline.remove(c)
	rw.claims--
	if rw.claims == 0 && rw.empty != nil {
		close(rw.empty)
		rw.empty = nil
	}
	c.own.lk.drop()
}

func (c *claim) onRenewed(k *call, b *batch) {
	exists, err := false, k.err
	if err == nil {
		exists, err = existsAnswer(k.reply)
	}
	if c.state != held {
		return
	}
	switch {
	case err != nil:
		c.failed()
		c.log(b, "renewal failed", "error", err)
		c.schedule()
	case !exists:
		c.lose(b)
	default:
		c.kept(k.sent, k.lease)
		for _, h := range c.holds {
			if h.fresh {
				h.fresh, h.deadline = false, c.deadline
			}
		}
		if c.miscounted {
			c.miscounted = false
			b.calls = append(b.calls, c.recount(0).call)
		}
		c.schedule()
	}
}

// lose ends a held claim that can no longer be relied on.
func (c *claim) lose(b *batch) {
	for len(c.holds) > 0 {
		c.drop(c.holds[0], ErrLost, b)
	}
	c.endLost(b)
}

// lapse ends one hold of a claim, whose own lease is over.
func (c *claim) lapse(h *holding, b *batch) {
	c.drop(h, ErrLost, b)
	if len(c.holds) == 0 {
		c.endLost(b)
		return
	}
	b.calls = append(b.calls, c.recount(0).call)
}

// endLost ends a claim whose owner is yet to find out: it is told on every call, until it has released what it lost.
func (c *claim) endLost(b *batch) {
	c.log(b, "hold lost", "token", c.token)
	c.lost = true
	c.end(b)
	c.settle()
}

// drop takes a live hold off the claim.
func (c *claim) drop(h *holding, cause error, b *batch) {
	c.holds = slices.DeleteFunc(c.holds, func(other *holding) bool { return other == h })
	h.over, h.cause = true, cause
	if h.cancel != nil {
		b.cancels = append(b.cancels, cancel{h.cancel, cause})
	}
	if h.forgotten {
		c.unreleased--
	}
}

// leave takes off a hold that its owner has released. If the server has to be told of a new count, it returns that; if
// this was the last live hold, ready has a signal when the server has answered.
func (c *claim) leave(h *holding, b *batch) *recount {
	c.unreleased--
	if h.over {
		c.settle()
		return nil
	}
	c.drop(h, nil, b)
	if len(c.holds) > 0 {
		r := c.recount(0)
		b.calls = append(b.calls, r.call)
		c.schedule()
		return r
	}
	c.lost = c.unreleased > 0 // holds that lapsed, and were not released
	c.end(b)
	c.settle()
	return nil
}

// settle makes the owner free to ask anew, once it has released all it had.
func (c *claim) settle() {
	if p := c.own.claim(c.mode); c.unreleased == 0 && c.state != held && *p == c {
		*p = nil
		c.own.settle()
	}
}

// close ends a held claim for Close.
func (c *claim) close(b *batch) {
	for len(c.holds) > 0 {
		c.drop(c.holds[0], ErrClosed, b)
	}
	c.end(b)
}
