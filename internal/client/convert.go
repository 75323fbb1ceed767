package client

import (
	"context"
	"errors"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Downgrade replaces a write hold by a read hold, which has its context and lasts as long. Downgrade returns
// the read hold, or nil if nothing has changed: the hold was a read hold already, or the downgrade failed.
func (h *Hold) Downgrade(ctx context.Context) (read *Hold, err error) {
	return h.convert(ctx, (*Hold).downgrade)
}

// convert makes attempts until none has failed because another call has just converted the hold.
func (h *Hold) convert(ctx context.Context,
	try func(*Hold, context.Context) (current, next *Hold, err error)) (next *Hold, err error) {
	for {
		if h, next, err = try(h, ctx); err != engine.ErrNotHeld || h.next.Load() == nil {
			return next, err
		}
	}
}

// downgrade makes one attempt at Downgrade. It also returns the hold that it has tried to replace.
func (h *Hold) downgrade(ctx context.Context) (current, read *Hold, err error) {
	c := h.client
	w := wait{ctx: ctx, start: time.Now()}
	var known bool
	c.do(func(now time.Time) { h, known, err = h.convertible(now, protocol.Read) })
	switch {
	case known:
		return h, nil, err
	case w.look() != nil:
		return h, nil, w.over(w.ended)
	}
	until := time.Now().Add(endTimeout)
	read = h.likeness(ctx, protocol.Read)
	read.work.Store(h.work.Load())
	ctx = forRelease(ctx)
	c.mu.Lock()
	now := c.now()
	if known, err = c.engine.Downgrade(now, &h.Hold, &read.Hold); read.State() == engine.Failed {
		read.traced()
		c.run(c.unlock(now), nil)
		return h, nil, err
	}
	h.next.Store(read)
	known, err = h.ends(now, known, err)
	c.run(c.unlock(now), ctx)
	if !known {
		err = h.answered(ctx, until)
	}
	return h, read, err
}

// convertible returns the current hold, and true if it has that mode already or cannot be relied on: then the
// error says so. Client.mu is locked.
func (h *Hold) convertible(now time.Time, to protocol.Mode) (current *Hold, known bool, err error) {
	switch h = h.Current(); {
	case h.released || h.State() > engine.Lapsed:
		return h, true, engine.ErrNotHeld
	case h.State() == engine.Lapsed:
		return h, true, h.Err()
	case !now.Before(h.Hold.Deadline()):
		return h, true, engine.ErrLost
	}
	return h, h.Mode == to, nil
}

// likeness returns another hold for the user's handle.
func (h *Hold) likeness(ctx context.Context, m protocol.Mode) *Hold {
	c := h.client
	c.mu.RLock() // for parent, which Trace sets
	other := &Hold{client: c, from: h.from, parent: h.parent}
	c.mu.RUnlock()
	other.Tag = other
	if c.config.Trace != nil {
		other.trace = &trace{call: c.config.Trace(ctx, h.Name, m)}
	}
	return other
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

// TryUpgrade replaces a read hold by a write hold, which has its context and lasts as long. It returns the
// write hold, or nil if nothing has changed: the hold was a write hold already, or it stays a read hold.
func (h *Hold) TryUpgrade(ctx context.Context) (write *Hold, err error) {
	return h.convert(ctx, (*Hold).tryUpgrade)
}

// tryUpgrade makes one attempt at TryUpgrade. It also returns the hold that it has tried to replace.
func (h *Hold) tryUpgrade(ctx context.Context) (current, write *Hold, err error) {
	c := h.client
	w := wait{ctx: ctx, start: time.Now()}
	var known bool
	c.do(func(now time.Time) { h, known, err = h.convertible(now, protocol.Write) })
	switch {
	case known:
		return h, nil, err
	case c.converts() != nil:
		return h, nil, c.converts()
	case c.config.Replicas > 0:
		return h, nil, errReplicas // which would have to confirm it, or have it undone
	case w.look() != nil:
		return h, nil, w.over(w.ended)
	}
	up := h.likeness(ctx, protocol.Write)
	upgraded := make(chan struct{})
	up.instead, up.upgraded = h, upgraded
	c.do(func(now time.Time) { c.engine.TryUpgrade(now, &h.Hold, &up.Hold) })
	var gaveUp error
	select { // and not with await, since others may convert or release the new hold already
	case <-upgraded:
	case <-ctx.Done():
		gaveUp = ctx.Err()
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
		return h, nil, w.explain(up, up.Err())
	}
	return h, up, nil
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
	if h.released {
		c.mu.Unlock()
		return t, engine.ErrNotHeld
	}
	t = protocol.NewTicket(h.Name, h.Mode, h.Owner)
	known, err := c.engine.Detach(now, &h.Hold, t, lease)
	if known {
		c.flush()
		return t, err
	}
	h.released, h.detached, h.ended = true, true, c.signals.Get().(chan struct{})
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
