package client

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Downgrade turns a write hold into a read hold: the owner gets a read hold under it, and then releases it.
// The read hold has the context of the write hold, and lasts as long. Downgrade returns the read hold. It
// returns nil if nothing has changed: the hold was a read hold already, or the downgrade failed.
func (h *Hold) Downgrade(ctx context.Context) (read *Hold, err error) {
	c := h.client
	w := wait{ctx: ctx, start: time.Now()}
	call := Call{Name: h.Name, Mode: protocol.Read, Owner: h.Owner, From: h.from, Caller: h.Hold.Caller,
		NoRenew: h.NoRenew}
	var deadline time.Time
	known := false
	c.do(func(now time.Time) {
		if known, err = h.downgradable(now); !known {
			deadline = h.Hold.Deadline()
			call.Lease, call.MaxHold = h.Bounds(now)
		}
	})
	switch {
	case known:
		return nil, err
	case ctx.Err() != nil:
		return nil, w.over(ctx.Err())
	}
	if read, err = c.Acquire(ctx, call); err != nil {
		return nil, err
	}
	if left := time.Until(deadline); !h.NoRenew && deadline.After(read.Deadline()) { // it was extended
		err = read.Extend(ctx, left)
	}
	until := time.Now().Add(endTimeout)
	c.mu.Lock()
	now := c.now()
	if known, ended := h.downgradable(now); known || err != nil {
		read.traced()
		_, _ = c.engine.Release(now, &read.Hold) // of what the caller does not get
		c.flush()
		if known {
			err = ended
		}
		return nil, err
	}
	read.parent = h.parent
	read.work.Store(h.work.Load())
	h.next.Store(read)
	known, err = h.letGo(now)
	ctx = forRelease(ctx)
	c.run(c.unlock(now), ctx)
	if !known {
		err = h.answered(ctx, until)
	}
	if err == engine.ErrLost {
		c.do(func(now time.Time) { c.engine.LoseHold(now, &read.Hold) })
	}
	return read, err
}

// downgradable returns false for a write hold that can be relied on, and otherwise what Downgrade returns.
// Client.mu is locked.
func (h *Hold) downgradable(now time.Time) (known bool, err error) {
	switch h = h.Current(); {
	case h.released || h.State() > engine.Lapsed:
		return true, engine.ErrNotHeld
	case h.State() == engine.Lapsed:
		return true, h.Err()
	case !now.Before(h.Hold.Deadline()):
		return true, engine.ErrLost
	}
	return h.Mode == protocol.Read, nil
}
