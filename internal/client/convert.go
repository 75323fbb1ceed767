package client

import (
	"context"
	"errors"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Convert replaces a hold by one in that mode, which has its context and lasts as long. Convert returns that,
// or nil if nothing has changed: the hold had the mode already, or the conversion failed.
func (h *Hold) Convert(ctx context.Context, to protocol.Mode) (next *Hold, err error) {
	for { // again if another call has just converted the hold
		if h, next, err = h.convert(ctx, to); err != engine.ErrNotHeld || h.next.Load() == nil {
			return next, err
		}
	}
}

// convert makes one attempt at Convert. It also returns the hold that it has tried to replace.
func (h *Hold) convert(ctx context.Context, to protocol.Mode) (current, next *Hold, err error) {
	c := h.client
	w := wait{ctx: ctx, start: time.Now()}
	var known bool
	c.do(func(now time.Time) { h, known, err = h.convertible(now, to) })
	up := to == protocol.Write
	switch {
	case known:
		return h, nil, err
	case up && c.converts() != nil:
		return h, nil, c.converts()
	case up && c.config.Replicas > 0:
		return h, nil, errReplicas // which would have to confirm it, or have it undone
	case w.look() != nil:
		return h, nil, w.over(w.ended)
	}
	next = c.newHold(&w, &Call{Name: h.Name, Mode: to, From: h.from})
	c.mu.RLock() // Trace sets it
	next.parent = h.parent
	c.mu.RUnlock()
	if up {
		next, err = h.upgrade(&w, next)
	} else {
		next, err = h.downgrade(ctx, next)
	}
	return h, next, err
}

// downgrade has a read hold take the place of a write hold. It returns nil in its place if that failed.
func (h *Hold) downgrade(ctx context.Context, read *Hold) (*Hold, error) {
	c, until := h.client, time.Now().Add(endTimeout)
	ctx = forRelease(ctx)
	read.work.Store(h.work.Load())
	c.mu.Lock()
	now := c.now()
	known, err := c.engine.Downgrade(now, &h.Hold, &read.Hold)
	if read.State() == engine.Failed {
		read.traced()
		c.flush()
		return nil, err
	}
	h.next.Store(read)
	known, err = h.ends(now, known, err)
	c.run(c.unlock(now), ctx)
	if !known {
		err = h.answered(ctx, until)
	}
	return read, err
}

// upgrade has a write hold take the place of a read hold. It returns nil in its place if that failed.
func (h *Hold) upgrade(w *wait, up *Hold) (*Hold, error) {
	c, upgraded := h.client, make(chan struct{})
	up.instead, up.upgraded = h, upgraded
	c.do(func(now time.Time) { c.engine.TryUpgrade(now, &h.Hold, &up.Hold) })
	var gaveUp error
	select { // and not with await, since others may convert or release the new hold already
	case <-upgraded:
	case <-w.ctx.Done():
		gaveUp = w.ctx.Err()
	case <-c.ends.Done():
		gaveUp = engine.ErrClosed
	}
	w.look()
	c.mu.Lock()
	defer c.flush()
	if gaveUp != nil && up.State() == engine.Wanted {
		c.engine.GiveUp(c.now(), &up.Hold, gaveUp)
	}
	if up.State() == engine.Failed {
		up.traced()
		return nil, w.explain(up, up.Err())
	}
	return up, nil
}

// convertible returns the current hold, and true if it has that mode already or cannot be relied on: then the
// error says so. Client.mu is locked.
func (h *Hold) convertible(now time.Time, to protocol.Mode) (current *Hold, known bool, err error) {
	switch h = h.Current(); {
	case h.State() > engine.Lapsed:
		return h, true, engine.ErrNotHeld
	case h.State() == engine.Lapsed:
		return h, true, h.Err()
	case !now.Before(h.Hold.Deadline()):
		return h, true, engine.ErrLost
	}
	return h, h.Mode == to, nil
}

var (
	errQuorum      = errors.New("not over a quorum")
	errDelegations = errors.New("not with delegations")
	errReplicas    = errors.New("not with confirmation by replicas")
)

// converts returns an error if holds of this Client cannot be handed on. A majority would have to vote for
// a claim of nobody; and the holds under a delegation are not the server's.
func (c *Client) converts() error {
	switch {
	case len(c.dispatch) > 1:
		return errQuorum
	case c.local != nil:
		return errDelegations
	}
	return nil
}

// Detach hands the hold to a ticket, whose lease begins then. If it returns an error, the hold is released,
// or it is as it was if the error is of before that.
func (h *Hold) Detach(ctx context.Context, lease time.Duration) (t protocol.Ticket, err error) {
	c := h.client
	w := wait{ctx: ctx, start: time.Now()}
	switch {
	case c.converts() != nil:
		return t, c.converts()
	case w.look() != nil:
		return t, w.over(w.ended)
	}
	c.mu.Lock()
	now := c.now()
	h = h.Current()
	t = protocol.NewTicket(h.Name, h.Mode, h.Owner)
	known, err := c.engine.Detach(now, &h.Hold, t, lease)
	if known {
		c.flush()
		return t, err
	}
	h.ended = c.signals.Get().(chan struct{})
	lasts := min(h.Hold.Deadline().Sub(now), engine.Deadline(now, lease).Sub(now))
	c.flush()
	// ctx may be the hold's own context, so that ends only after the wait. Until then nobody has the ticket.
	defer h.end(engine.ErrDetached)
	defer time.AfterFunc(lasts, func() { h.end(engine.ErrDetached) }).Stop()
	gaveUp := h.await(ctx, nil, c.over.Done()) // Close waits for the answer
	w.look()
	c.mu.Lock()
	defer c.flush()
	h.awaited()
	if gaveUp != nil {
		c.engine.GiveUpDetach(c.now(), &h.Hold, &causedError{w.over(gaveUp), engine.ErrUnanswered})
	}
	return t, h.Err()
}

// Discard ends the hold of a ticket.
func (c *Client) Discard(ctx context.Context, t protocol.Ticket) error {
	if len(c.dispatch) > 1 {
		return errQuorum
	}
	_, err := c.request(ctx, t.Name, func(now time.Time, name string, tag any) error {
		return c.engine.Discard(now, t, tag)
	})
	return err
}
