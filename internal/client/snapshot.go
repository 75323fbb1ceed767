package client

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Inspect returns the state of a lock, and the known labels of its holders and waiters, by instance.
func (c *Client) Inspect(ctx context.Context, name string) (
	s protocol.State, labels map[string]string, err error) {
	answer, err := c.request(ctx, name, c.engine.Inspect)
	if err != nil {
		return s, nil, err
	}
	c.addOwn(name, answer)
	return *answer, c.labelsOf(ctx, *answer), nil
}

// Force ends every hold on a name; if a token is given, only while that is the last one.
func (c *Client) Force(ctx context.Context, name string, held int64) error {
	if held > 0 && len(c.dispatch) > 1 { // each server of which has tokens of its own
		return errQuorum
	}
	_, err := c.request(ctx, name, func(now time.Time, name string, tag any) error {
		return c.engine.Force(now, name, held, tag)
	})
	return err
}

// request has the engine send a request about a lock, and waits for the answer.
func (c *Client) request(ctx context.Context, name string,
	send func(now time.Time, name string, tag any) error) (*protocol.State, error) {
	w := wait{ctx: ctx, start: time.Now()}
	if err := w.look(); err != nil {
		return nil, w.over(err)
	}
	done := make(chan engine.Answer, 1)
	var err error
	c.do(func(now time.Time) { err = send(now, name, done) })
	if err != nil {
		return nil, err
	}
	select {
	case answer := <-done:
		return answer.State, answer.Err
	case <-ctx.Done():
		return nil, c.unanswered(&w, nil)
	case <-c.ends.Done():
		return nil, engine.ErrClosed
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

// Snapshot shows every hold that can be relied on, and every call that waits, with what is in its way or nil.
// The Tag of each is its Hold; the rest must be read while it is shown. Snapshot returns the time, how many
// servers a quorum has, and how many of them vote.
func (c *Client) Snapshot(show func(h *engine.Hold, blocked error)) (now time.Time, servers, voting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.now()
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
	if c.quorum != nil {
		servers, voting = len(c.dispatch), c.quorum.Voting()
	}
	return now, servers, voting
}
