package engine

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A View is what a claim that has not ended has come to, for code that watches an engine from outside.
type View struct {
	Name      string
	Number    uint64
	Wire      protocol.Claim // zero until something of it is sent
	Owner     Owner
	Mode      Mode
	State     State
	Token     int64     // 0 if it was never granted the lock
	Deadline  time.Time // until when it may be relied on, or, waiting, until when the server keeps its place
	Holds     []*Hold
	Former    uint64 // the number of the one that it is converted from, unanswered; or 0
	Next      uint64 // the number of the one that it is converted to, unanswered; or 0
	Delegated bool   // it was granted under a delegation
}

// Views returns all claims that have not ended.
func (e *Engine) Views() (list []View) {
	for _, c := range e.timeline.All() {
		list = append(list, c.view())
		for _, other := range []*claim{c.former, c.next} {
			if other != nil && other.state != Over && !other.Placed() {
				list = append(list, other.view())
			}
		}
	}
	return list
}

func (c *claim) view() View {
	v := View{Name: c.lock.name, Number: c.number, Wire: c.wire, Owner: c.ownership.owner, Token: c.token,
		State: c.state, Mode: c.mode, Deadline: c.deadline, Holds: c.holds, Delegated: c.delegation > 0}
	if c.former != nil {
		v.Former = c.former.number
	}
	if c.next != nil {
		v.Next = c.next.number
	}
	return v
}

// View returns the claim that a request is about, and whether there is one that has not ended.
func (r *Request) View() (View, bool) {
	if r.claim == nil || r.claim.state == Over {
		return View{}, false
	}
	return r.claim.view(), true
}

// ClaimNumber returns the number of a hold's claim, or of the last claim that a call has asked for, or 0.
func (h *Hold) ClaimNumber() uint64 {
	if h.claim == nil {
		return 0
	}
	return h.claim.number
}

// Sweeping reports whether work for many claims is left for later calls of Tick, which do nothing else then.
func (e *Engine) Sweeping() bool { return len(e.sweeps) > 0 }
