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
	var got []*Hold
	defer func() {
		if len(got) < len(calls) { // or if a hook of the client, or the context, panics or ends the goroutine
			ReleaseAll(ctx, got, err)
		}
	}()
	for some := range slices.Chunk(calls, together) {
		before := len(got)
		if failed, err = c.tryTogether(ctx, some, &got); err != nil {
			return nil, before + failed, err
		}
	}
	return got, 0, nil
}

// tryTogether is TryAll in one step. It adds what it gets to got, whether or not that is all.
func (c *Client) tryTogether(ctx context.Context, calls []Call, got *[]*Hold) (failed int, err error) {
	if len(calls) == 1 {
		h, err := c.Acquire(ctx, calls[0])
		if err == nil {
			*got = append(*got, h)
		}
		return 0, err
	}
	w := wait{ctx: ctx, start: time.Now()}
	tries, parts := make([]*Hold, len(calls)), make([]*engine.Hold, len(calls))
	for i := range calls {
		tries[i] = c.newHold(&w, &calls[i])
		tries[i].ended = c.signals.Get().(chan struct{})
		parts[i] = &tries[i].Hold
	}
	c.do(func(now time.Time) { c.engine.AcquireAll(now, parts) })
	waited := 0
	defer func() {
		for _, h := range tries[waited:] { // the context has panicked, or ended the goroutine
			c.forsake(h)
		}
	}()
	for i, h := range tries {
		fails := c.wait(&w, h)
		waited++
		if fails == nil {
			h, fails = c.result(&w, h, c.now())
		}
		if fails == engine.ErrAgain && err == nil { // it begins again alone
			h, fails = c.Acquire(ctx, calls[i])
		}
		switch {
		case fails == nil:
			*got = append(*got, h)
		case err == nil:
			failed, err = i, fails
		}
	}
	return failed, err
}
