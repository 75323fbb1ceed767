package client

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Downgrade replaces a write hold by a read hold, which has its context and lasts as long. Downgrade returns
// the read hold, or nil if nothing has changed: the hold was a read hold already, or the downgrade failed.
func (h *Hold) Downgrade(ctx context.Context) (read *Hold, err error) {
	c := h.client
	w := wait{ctx: ctx, start: time.Now()}
	var known bool
	c.do(func(now time.Time) { known, err = h.downgradable(now) })
	switch {
	case known:
		return nil, err
	case ctx.Err() != nil:
		return nil, w.over(ctx.Err())
	}
	until := time.Now().Add(endTimeout)
	read = &Hold{client: c, from: h.from, parent: h.parent}
	read.Tag = read
	if c.config.Trace != nil {
		read.trace = &trace{call: c.config.Trace(ctx, h.Name, protocol.Read)}
	}
	read.work.Store(h.work.Load())
	c.mu.Lock()
	now := c.now()
	if known, err = c.engine.Downgrade(now, &h.Hold, &read.Hold); read.State() == engine.Failed {
		read.traced()
		c.run(c.unlock(now), nil)
		return nil, err
	}
	h.next.Store(read)
	known, err = h.ends(now, known, err)
	ctx = forRelease(ctx)
	c.run(c.unlock(now), ctx)
	if !known {
		err = h.answered(ctx, until)
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
