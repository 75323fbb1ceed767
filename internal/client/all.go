package client

import (
	"context"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// mostTogether is how many locks one step takes.
const mostTogether = 200

// TryAll tries to get locks with different names, all or none: in steps of many if one server has all, and
// otherwise one after the other. It returns the holds, or the error of a call that has failed, and which one.
func (c *Client) TryAll(ctx context.Context, calls []Call) (holds []*Hold, failed int, err error) {
	w := wait{ctx: ctx, start: time.Now()}
	if err := w.look(); err != nil {
		return nil, 0, w.over(err)
	}
	together := 1
	if len(c.dispatch) == 1 && !c.apart && c.local == nil {
		together = mostTogether
	}
	for some := range slices.Chunk(calls, together) {
		got, i, err := c.tryTogether(ctx, some)
		if err != nil {
			ReleaseAll(ctx, holds, err)
			return nil, len(holds) + i, err
		}
		holds = append(holds, got...)
	}
	return holds, 0, nil
}

// tryTogether is TryAll in one step.
func (c *Client) tryTogether(ctx context.Context, calls []Call) (holds []*Hold, failed int, err error) {
	if len(calls) == 1 {
		h, err := c.Acquire(ctx, calls[0])
		return []*Hold{h}, 0, err
	}
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
		ReleaseAll(ctx, holds, err)
		return nil, failed, err
	}
	return holds, 0, nil
}
