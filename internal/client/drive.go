package client

import (
	"context"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// effects are what is to be done for the engine, once Client.mu is unlocked.
type effects struct {
	engine.Effects
	send        [][]*protocol.Request // to each server
	resubscribe []int                 // servers whose subscriptions are to be closed and opened again
	cancels     []cancel
}

type cancel struct {
	fn    func(cause error)
	cause error
}

// do calls f while Client.mu is locked, and then does what the engine wants done.
func (c *Client) do(f func(now time.Time)) {
	c.mu.Lock()
	f(time.Now())
	c.flush()
}

// flush unlocks Client.mu, and does what the engine wants done.
func (c *Client) flush() { c.run(c.unlock(time.Now()), nil) }

// unlock unlocks Client.mu, and returns what the engine wants done.
func (c *Client) unlock(now time.Time) *effects {
	fx := c.effects.Get().(*effects)
	if !c.label.known && !c.closed && !c.bottom.Idle() {
		c.sendLabel(fx)
	}
	c.collect(now, fx)
	if len(fx.Blockers) > 0 {
		fx.Blockers = c.unknown(now, fx.Blockers)
	}
	if c.config.Observe != nil {
		c.observe(fx.Events)
	}
	for _, h := range fx.Cancel {
		if held := h.Tag.(*Hold); held.done != nil {
			fx.cancels = append(fx.cancels, cancel{held.end, h.Err()})
		}
	}
	for _, h := range fx.Wake {
		select {
		case h.Tag.(*Hold).ended <- struct{}{}:
		default: // nobody waits, or the signal was given
		}
	}
	for _, x := range fx.Extended {
		_, err := x.Over()
		x.Tag.(chan error) <- err
	}
	for _, answer := range fx.Answers {
		answer.Tag.(chan engine.Answer) <- answer
	}
	c.arm()
	if c.closing && c.engine.Drained() {
		c.drained.give()
	}
	if c.closed && c.bottom.Idle() {
		c.idle.give()
	}
	c.mu.Unlock()
	return fx
}

// collect takes the engine's effects, and the requests for each server. Client.mu is locked.
func (c *Client) collect(now time.Time, fx *effects) {
	if c.quorum != nil {
		c.votes.Reset()
		c.quorum.Flush(now, &c.votes)
		fx.Effects, c.votes.Effects = c.votes.Effects, fx.Effects
		for _, r := range c.votes.Requests {
			if c.config.Trace != nil && r.For != nil {
				r.Trace = traceOf(r.For)
			}
			fx.send[r.Server] = append(fx.send[r.Server], &r.Request)
		}
		return
	}
	c.lowest.Flush(now, &fx.Effects)
	for _, r := range fx.Send {
		r.Layer, r.From = c.lowest, r
		if c.config.Trace != nil {
			r.Trace = traceOf(r)
		}
		fx.send[0] = append(fx.send[0], &r.Request)
	}
	if fx.Relisten {
		fx.resubscribe = append(fx.resubscribe, 0)
	}
}

// run carries out the engine's effects. User code, which may run when a context is cancelled or a record is
// logged, runs on other goroutines, so it delays no renewal. If ctx is not nil, the caller is about to wait
// until ctx ends. It then may send a single request itself, after everything else.
func (c *Client) run(fx *effects, ctx context.Context) {
	var own *protocol.Request
	for i, requests := range fx.send {
		switch {
		case ctx != nil && len(requests) == 1 && len(fx.send) == 1:
			own = requests[0]
		case len(requests) > 0:
			c.dispatch[i].Send(requests...)
		}
		clear(requests)
		fx.send[i] = requests[:0]
	}
	for _, x := range fx.cancels {
		c.cancels.Go(func() { x.fn(x.cause) })
	}
	for _, rec := range fx.Log {
		c.log.report(rec)
	}
	if fx.Listen {
		for i, d := range c.dispatch {
			d.Listen(c.engine.Channel(), c.listener(i))
		}
	}
	if len(fx.Shards) > 0 {
		c.dispatch[0].ListenIn(fx.Shards)
	}
	for _, i := range fx.resubscribe {
		c.dispatch[i].Relisten()
	}
	if len(fx.Blockers) > 0 {
		c.readLabels(fx.Blockers)
	}
	clear(fx.cancels)
	fx.cancels, fx.resubscribe = fx.cancels[:0], fx.resubscribe[:0]
	fx.Effects.Reset()
	c.effects.Put(fx)
	if own != nil {
		c.dispatch[0].SendFrom(ctx, own)
	}
}

// atOnce is the number of answers that are processed while the mutex is locked, which takes less than a
// millisecond.
const atOnce = 64

// received takes what a server has answered.
func (c *Client) received(results []dispatch.Result) {
	for some := range slices.Chunk(results, atOnce) {
		c.mu.Lock()
		now := time.Now()
		for _, result := range some {
			if r := result.Request; r.From != nil { // or else nobody waits for the answer
				r.From.Received(now, r, result.Reply, result.Confirmed, result.Err)
			}
		}
		c.flush()
	}
}

// wanted reports whether a request that replicas are to confirm is still to be sent.
func (c *Client) wanted(r *protocol.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.From.(*engine.Request).Wanted()
}

// tick has the engine do what is due.
func (c *Client) tick() {
	c.do(func(now time.Time) {
		c.armed = time.Time{}
		if !c.stopped {
			c.bottom.Tick(now)
		}
	})
}

// arm sets the timer to when the engine has something due. A timer that fires too early does no harm, and is
// cheaper than one timer for each hold.
func (c *Client) arm() {
	at, ok := c.bottom.Next()
	if !ok || c.stopped || !c.armed.IsZero() && !at.Before(c.armed) {
		return
	}
	c.armed = at
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(at), c.tick)
	} else {
		c.timer.Reset(time.Until(at))
	}
}

// listener returns what passes to the engine what the subscription to a server brings.
func (c *Client) listener(server int) *dispatch.Listener {
	subscribed, unsubscribed, heard := c.lowest.Subscribed, c.lowest.Unsubscribed, c.lowest.Heard
	if q := c.quorum; q != nil {
		subscribed = func(now time.Time) { q.Subscribed(now, server) }
		unsubscribed = func(now time.Time, err error) { q.Unsubscribed(now, server, err) }
		heard = func(now time.Time, message string) { q.Heard(now, server, message) }
	}
	return &dispatch.Listener{
		Subscribed:   func() { c.do(subscribed) },
		Unsubscribed: func(err error) { c.do(func(now time.Time) { unsubscribed(now, err) }) },
		Heard:        func(message string) { c.do(func(now time.Time) { heard(now, message) }) },
		Awaited: func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.lowest.Waiting()
		},
	}
}
