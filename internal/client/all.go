package client

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// TryAll tries to get locks with different names, all or none: in one step if one server has all, and
// otherwise one after the other. It returns the holds, or the error of a call that has failed, and which one.
func (c *Client) TryAll(ctx context.Context, calls []Call) (holds []*Hold, failed int, err error) {
	if err := ctx.Err(); err != nil {
		w := wait{ctx: ctx, start: time.Now()}
		return nil, 0, w.over(err)
	}
	if len(calls) > 1 && len(c.dispatch) == 1 && !c.apart && c.local == nil {
		if holds, failed, err = c.tryTogether(ctx, calls); err != engine.ErrAgain {
			return holds, failed, err
		}
	}
	for i, call := range calls {
		h, err := c.Acquire(ctx, call)
		if err != nil {
			UnlockAll(ctx, holds)
			return nil, i, err
		}
		holds = append(holds, h)
	}
	return holds, 0, nil
}

// tryTogether is TryAll in one step. It fails with ErrAgain if the server has more to look at than one step
// does: then each lock is asked for alone.
func (c *Client) tryTogether(ctx context.Context, calls []Call) (holds []*Hold, failed int, err error) {
	w := wait{ctx: ctx, start: time.Now()}
	tries, parts := make([]*Hold, len(calls)), make([]*engine.Hold, len(calls))
	for i := range calls {
		tries[i] = c.newHold(&w, &calls[i])
		tries[i].ended = c.signals.Get().(chan struct{})
		parts[i] = &tries[i].Hold
	}
	c.do(func(now time.Time) { c.engine.AcquireAll(now, parts) })
	for i, h := range tries {
		fails := c.wait(&w, h)
		if fails == nil {
			h, fails = c.result(&w, h, c.now())
		}
		switch {
		case fails == nil:
			holds = append(holds, h)
		case err == nil || err == engine.ErrAgain:
			failed, err = i, fails
		}
	}
	if err != nil {
		UnlockAll(ctx, holds)
		return nil, failed, err
	}
	return holds, 0, nil
}
