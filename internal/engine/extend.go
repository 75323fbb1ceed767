package engine

import (
	"slices"
	"time"
)

// An Extension is a call that has a hold last longer.
type Extension struct {
	Tag any // the caller's own

	hold     *Hold
	until    time.Time
	sequence uint64 // of the request that asks for it
	over     bool
	err      error
}

// Over reports whether the call has come to an end, and with what error.
func (x *Extension) Over() (bool, error) { return x.over, x.err }

// Extend makes a hold last for d from now, or until its MaxHold ends it. It never shortens the hold.
func (e *Engine) Extend(now time.Time, h *Hold, d time.Duration, x *Extension) {
	x.hold, x.until = h, now.Add(d)
	if h.state == Live && !now.Before(h.Deadline()) {
		e.lapse(now, h) // Tick was about to find out
	}
	switch h.state {
	case Live:
	case Lapsed:
		e.extended(x, h.err)
		return
	default:
		e.extended(x, ErrNotHeld)
		return
	}
	if !h.end.IsZero() {
		x.until = earlier(x.until, h.end)
	}
	c := h.claim
	n := c.count()
	n.extensions = append(n.extensions, x)
	e.extendAll(c)
	if !x.over {
		x.sequence = e.renumber(c)
		e.tell(now, c)
	}
	e.schedule(now, c)
}

// GiveUpExtension ends a call of Extend that has given up. The hold lasts as long as before, or as long as
// the call wanted.
func (e *Engine) GiveUpExtension(x *Extension, err error) {
	if !x.over {
		e.endExtensions(x.hold.claim, func(other *Extension) bool { return other == x }, err)
	}
}

// extendAll ends the calls of Extend that have succeeded: the claim can be relied on for long enough.
func (e *Engine) extendAll(c *claim) {
	e.endExtensions(c, func(x *Extension) bool {
		if c.deadline.Before(x.until) {
			return false
		}
		x.hold.deadline = later(x.hold.deadline, x.until)
		return true
	}, nil)
}

// endExtensions ends some of the calls of Extend.
func (e *Engine) endExtensions(c *claim, which func(*Extension) bool, err error) {
	if c.counting == nil {
		return
	}
	c.extensions = slices.DeleteFunc(c.extensions, func(x *Extension) bool {
		if which(x) {
			e.extended(x, err)
			return true
		}
		return false
	})
}

func (e *Engine) extended(x *Extension, err error) {
	x.over, x.err = true, err
	e.out.Extended = append(e.out.Extended, x)
}
