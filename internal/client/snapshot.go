package client

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// Inspect returns the state of a lock, and the known labels of its holders and waiters, by instance.
func (c *Client) Inspect(ctx context.Context, name string) (protocol.State, map[string]string, error) {
	w := wait{ctx: ctx, start: time.Now()}
	if err := ctx.Err(); err != nil {
		return protocol.State{}, nil, w.over(err)
	}
	if c.ends.Err() != nil {
		return protocol.State{}, nil, engine.ErrClosed
	}
	done := make(chan *quorum.Inspection, 1)
	c.mu.Lock()
	c.servers.Inspect(time.Now(), name, done)
	c.flush()
	select {
	case x := <-done:
		if x.Err != nil {
			return protocol.State{}, nil, x.Err
		}
		c.addOwn(name, &x.State)
		return x.State, c.labelsOf(ctx, x.State), nil
	case <-ctx.Done():
		return protocol.State{}, nil, c.unanswered(&w, nil)
	case <-c.ends.Done():
		return protocol.State{}, nil, engine.ErrClosed
	}
}

// addOwn adds to the state of a lock what only this Client knows: who holds the lock and waits for it under
// its delegation, and since when its calls wait.
func (c *Client) addOwn(name string, s *protocol.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local != nil {
		c.local.Reveal(time.Now(), name, s)
	}
	for i, w := range s.Waiters {
		if w.Instance == c.instance {
			s.Waiters[i].Since = c.engine.AsksSince(name, w.Owner)
		}
	}
}

// Force ends every hold on a name.
func (c *Client) Force(ctx context.Context, name string) error {
	w := wait{ctx: ctx, start: time.Now()}
	if err := ctx.Err(); err != nil {
		return w.over(err)
	}
	done := make(chan error, 1)
	c.mu.Lock()
	if err := c.engine.Force(time.Now(), name, done); err != nil {
		c.mu.Unlock()
		return err
	}
	c.flush()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return c.unanswered(&w, nil)
	case <-c.ends.Done():
		return engine.ErrClosed
	}
}

// Snapshot shows every hold that can be relied on, and every call that waits, with what is in its way or nil.
// The Tag of each is its Hold; the rest must be read while it is shown. Snapshot returns the time, how many
// servers a quorum has, and how many of them vote.
func (c *Client) Snapshot(show func(h *engine.Hold, blocked error)) (now time.Time, servers, voting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = time.Now()
	for _, h := range c.engine.Current() {
		held := h.Tag.(*Hold)
		switch {
		case held.gaveUp != nil: // it has returned
		case h.State() == engine.Wanted:
			show(h, held.blocked())
		case h.State() == engine.Entering || now.Before(h.Deadline()):
			show(h, nil)
		}
	}
	servers, voting = c.servers.Voting()
	return now, servers, voting
}
