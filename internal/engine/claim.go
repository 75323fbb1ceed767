package engine

import (
	"fmt"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/deadlock"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// State is what a claim has come to.
type State uint8

// The states of a claim. A claim begins as Asking.
const (
	Asking State = iota // the first request is in flight
	Queued              // the server has said that it waits
	Held                // it was granted the lock
	Ending              // its release, or its withdrawal, is in flight
	Over                // the server knows its end, or will by the end of its lease
)

// change is what happens to a claim.
type change uint8

const (
	queues     change = iota // the server makes it wait
	grants                   // the server grants it the lock
	turnedAway               // the server refuses it, and keeps nothing of it
	gives                    // its call gives up, or fails
	leaves                   // its last hold is released, lost or closed
	ceases                   // the server knows its end
	expires                  // its end was tried for as long as the server may keep it
)

// transitions has the allowed transitions. All others are Asking, and make step panic.
var transitions = [...][expires + 1]State{
	Asking: {queues: Queued, grants: Held, turnedAway: Over, gives: Ending},
	Queued: {queues: Queued, grants: Held, turnedAway: Over, gives: Ending},
	Held:   {leaves: Ending},
	Ending: {ceases: Over, expires: Over},
	Over:   {},
}

// step is the only place where a claim changes its state.
func (e *Engine) step(c *claim, ch change) {
	to := transitions[c.state][ch]
	if to == Asking {
		panic("engine: a claim cannot go on that way")
	}
	if c.state <= Queued && to > Queued {
		delete(e.waiting, c.number)
		c.ownership.asking = nil
	}
	if c.state != to {
		switch Ending {
		case to:
			e.endings[c.number] = c
			e.endMax = max(e.endMax, len(e.endings))
		case c.state:
			delete(e.endings, c.number)
		}
		e.leaveState(c)
		c.state = to
		e.enterState(c)
	}
	if len(e.waiting) == 0 && e.waitMax > peak {
		e.waiting, e.waitMax = make(map[uint64]*claim), 0
	}
	if len(e.endings) == 0 && e.endMax > peak {
		e.endings, e.endMax = make(map[uint64]*claim), 0
	}
	if to == Over {
		e.timeline.Remove(c)
		if ch != expires { // or else nobody knows what the slot says on the server
			c.lock.free = append(c.lock.free, c.slot)
		}
		e.claims--
		e.drop(c.lock)
	}
}

// leaveState and enterState report to the graph of deadlocks. queued reports calls that wait.
func (e *Engine) leaveState(c *claim) {
	e.graph.Leave(c.node)
	if c.lock.writer == c {
		c.lock.writer = nil
	}
	if r := c.ownership.claim[protocol.Read]; c.state == Held && c.mode == protocol.Write && r != nil {
		e.graph.Hold(r.node, e.numbers) // a downgrade ends a write hold, and lets readers in
	}
}

func (e *Engine) enterState(c *claim) {
	if c.state == Held {
		e.recycle(c)
		e.graph.Hold(c.node, e.numbers)
		if c.mode == protocol.Write {
			c.lock.writer = c
		}
	}
}

// A claim is what the server knows of one owner's holds in one mode. It exists from the request for it until
// its end is confirmed.
type claim struct {
	ownership *ownership
	lock      *lock
	mode      Mode
	state     State
	// brief: the release may take the script's short path. The server granted the claim, the token is the time
	// of the grant, and no request has set a count or a longer lease
	brief    bool
	doubtful bool // its server may have been replaced since the grant: to be renewed immediately
	slot     int
	number   uint64
	wire     protocol.Claim
	node     *deadlock.Node
	caller   *Hold         // whose call asks for it
	lease    time.Duration // that it asks for, or is renewed for
	longest  time.Duration // that the server may keep it for
	lent     time.Duration // the lease of the delegation that it is granted under; 0 for none
	below    any           // what the layer below keeps of it

	sent     time.Time // before the last request was sent that made the server keep the claim for a lease
	deadline time.Time // until when it may be relied on

	attempt       // to ask, to renew or to end
	err     error // of the last one

	*wanted             // until the grant
	grant               // from then on
	*counting           // nil until its holds are counted for the first time
	giveUp    time.Time // when an Ending claim is left to its lease

	order.Place               // in the timeline
	vertex      deadlock.Node // memory for node
}

// wanted is what is known of a claim that waits.
type wanted struct {
	answered time.Time // when the server has answered last
	obstacle protocol.Obstacle
	floor    int64     // the last token when the server had it wait: a grant with a smaller one was lost before
	askAgain time.Time // when there is reason to ask again; zero for none before the heartbeat
	prompted time.Time // when a message last had it ask again
	resumed  time.Time // when the process was last seen to have stood still
}

// newWanted returns memory for a new claim. It prefers memory that recycle has taken back.
func (e *Engine) newWanted() *wanted {
	n := len(e.spareWanted)
	if n == 0 {
		return new(wanted)
	}
	w := e.spareWanted[n-1]
	e.spareWanted = e.spareWanted[:n-1]
	return w
}

// recycle takes back what was known of a claim while it waited.
func (e *Engine) recycle(c *claim) {
	if len(e.spareWanted) < mostSpare {
		*c.wanted = wanted{}
		e.spareWanted = append(e.spareWanted, c.wanted)
	}
	c.wanted = nil
}

// grant is what a claim that was granted the lock holds.
type grant struct {
	token   int64
	granted time.Time // not after the token was handed out

	holds []*Hold // live ones, and those of calls that re-enter
	one   [1]*Hold
	last  *Hold // whose release ends the claim; or nil
}

// counting is how far the server knows how many holds there are.
type counting struct {
	sequence   uint64      // of the last change that the server has to know; zero for none
	confirmed  uint64      // of the last that it has confirmed
	shortened  uint64      // of the last that may have shortened the lease
	sentCounts []sentCount // not confirmed
	recount    attempt
	leaving    []*Hold // released, while others remain: until the server has confirmed it
	extensions []*Extension
}

// count returns the claim's counting, which begins with the first change.
func (c *claim) count() *counting {
	if c.counting == nil {
		c.counting = new(counting)
	}
	return c.counting
}

// latest returns the number of the last change that the server has to know; 0 for none.
func (c *claim) latest() uint64 {
	if c.counting == nil {
		return 0
	}
	return c.sequence
}

// uncounted reports whether the server has yet to confirm a change.
func (c *claim) uncounted() bool { return c.counting != nil && c.confirmed < c.sequence }

// An attempt is a request that is repeated until the server has carried it out. It is zero then.
type attempt struct {
	asked    time.Time // when the request in flight was sent; zero if there is none
	failures int       // since the last that succeeded
	retry    time.Time // when to try again, after failures
}

func (a *attempt) fail(now time.Time, lease time.Duration) {
	a.asked = time.Time{}
	a.failures++
	a.retry = now.Add(min(firstRetry<<min(a.failures-1, 10), max(lease/resendAfter, firstRetry), lastRetry))
}

// resume ends a pause, and reports whether there was one.
func (a *attempt) resume(now time.Time) bool {
	pauses := a.failures > 0 && a.asked.IsZero()
	if pauses {
		a.failures, a.retry = 1, now
	}
	return pauses
}

// again returns when to send the next request if none has an answer by then.
func (a *attempt) again(lease time.Duration) time.Time {
	if !a.asked.IsZero() {
		return a.asked.Add(max(lease/resendAfter, firstRetry))
	}
	return a.retry
}

// request returns a request about the claim. It prefers memory that Recycle has taken back.
func (e *Engine) request(c *claim, k kind) *Request {
	var r *Request
	if n := len(e.spare); n > 0 {
		r = e.spare[n-1]
		e.spare[n-1] = nil
		e.spare = e.spare[:n-1]
	} else {
		r = new(Request)
	}
	r.Keys, r.Claim, r.Again = c.lock.keys, c.wire, !c.asked.IsZero() || c.failures > 0
	r.lock, r.claim, r.kind = c.lock, c, k
	return r
}

// A sentCount is a change of the number of holds that was sent to the server, and until when the claim can be
// relied on once the server has processed it.
type sentCount struct {
	sequence uint64
	until    time.Time
}

// unanswered is the error of a request without an answer in time. Its cause is the last failure.
func unanswered(cause error) error {
	if cause == nil {
		return ErrUnanswered
	}
	return fmt.Errorf("%w: %w", ErrUnanswered, cause)
}

func (e *Engine) record(message string, c *claim, h *Hold, err error) {
	e.out.Log = append(e.out.Log, Record{
		Message: message, Name: c.lock.name, Owner: c.ownership.owner, Mode: c.mode, Token: c.token, Hold: h,
		Err: err})
}

// schedule sets when Tick handles the claim next.
func (e *Engine) schedule(now time.Time, c *claim) {
	var at time.Time
	switch c.state {
	case Asking, Queued:
		at = c.askAt()
		if end := c.unanswered(); !end.IsZero() {
			at = earlier(at, end)
		}
	case Held:
		at = c.holdUntil(now)
	case Ending:
		at = earlier(c.giveUp, c.endAt())
	default:
		return
	}
	e.timeline.Set(c, at)
}

// due does what is due by now, or nearly, and schedules what comes next.
func (e *Engine) due(now time.Time, c *claim) {
	batchUntil := now.Add(c.lease / batchPart)
	switch c.state {
	case Asking, Queued:
		if end := c.unanswered(); !end.IsZero() && !now.Before(end) {
			if now.Sub(e.timeline.Due(c)) < max(c.lease/resendAfter, firstRetry) {
				e.withdraw(now, c, unanswered(c.err))
				return
			}
			c.resumed = now // the process stood still: the answer may be there already
		}
		if !c.askAt().After(batchUntil) {
			if !c.asked.IsZero() {
				c.failures++
			}
			e.sendAsk(now, c)
		}
	case Held:
		if e.expire(now, c); c.state != Held {
			return
		}
		if lease, at := c.renewAt(now); lease > 0 && !at.After(batchUntil) {
			e.renew(now, c)
		}
		if c.uncounted() && !c.recount.again(c.lease).After(now) {
			e.tell(now, c)
		}
	case Ending:
		if !now.Before(c.giveUp) {
			e.abandon(c)
			return
		}
		if !now.Before(c.endAt()) {
			if !c.asked.IsZero() {
				c.failures++
			}
			e.sendEnd(now, c)
		}
	}
	e.schedule(now, c)
}
