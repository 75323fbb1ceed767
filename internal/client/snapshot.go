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

// A Snapshot is what the Client knows of itself, at one moment.
type Snapshot struct {
	Time            time.Time
	Servers, Voting int // of a quorum
}

// A Local is a hold or a call of this process. Read the engine's part only while it is shown.
type Local struct {
	*engine.Hold
	Call    *Hold
	Waits   bool
	Blocked error // what is in the way of one that waits, or nil
}

// Snapshot shows every hold that can be relied on, and every call that waits.
func (c *Client) Snapshot(show func(Local)) Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Snapshot{Time: time.Now()}
	s.Servers, s.Voting = c.servers.Voting()
	for _, h := range c.engine.Current() {
		held := h.Tag.(*Hold)
		switch {
		case held.gaveUp != nil: // it has returned
		case held.waits():
			l := Local{Hold: h, Call: held, Waits: true}
			if h.State() == engine.Wanted {
				l.Blocked = held.blocked()
			}
			show(l)
		case s.Time.Before(h.Deadline()):
			show(Local{Hold: h, Call: held})
		}
	}
	return s
}
