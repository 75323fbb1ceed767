package client

import (
	"context"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

// servers are what answers the engine: the lowest layer over one server, or a quorum of several. The methods
// name the server that a message is from.
type servers interface {
	Heard(now time.Time, server int, message string)
	Subscribed(now time.Time, server int)
	Unsubscribed(now time.Time, server int, err error)
	Tick(now time.Time)
	Slept(now time.Time, d time.Duration)
	Next() (at time.Time, ok bool)
	Idle() bool     // nothing is held, waited for or to be released
	Waiting() bool  // a message may come that matters
	Trouble() error // too few servers of a quorum vote; or nil
}

// A singleServer is a layer over one server.
type singleServer struct{ engine.Layer }

func (o singleServer) Heard(now time.Time, _ int, message string)   { o.Layer.Heard(now, message) }
func (o singleServer) Subscribed(now time.Time, _ int)              { o.Layer.Subscribed(now) }
func (o singleServer) Unsubscribed(now time.Time, _ int, err error) { o.Layer.Unsubscribed(now, err) }
func (singleServer) Trouble() error                                 { return nil }

// effects are what is to be done for the engine, once Client.mu is unlocked.
type effects struct {
	quorum.Effects
	send [][]*protocol.Request // to each server
}

// collect takes what the engine wants done, and the requests for each server.
func (c *Client) collect(now time.Time, fx *effects) {
	if c.quorum != nil {
		c.quorum.Flush(now, &fx.Effects)
		for _, r := range fx.Requests {
			c.add(fx, r.Server, &r.Request, r.For)
		}
		return
	}
	c.lowest.Flush(now, &fx.Effects.Effects)
	for _, r := range fx.Send {
		r.Layer, r.From = c.lowest, r
		c.add(fx, 0, &r.Request, r)
	}
}

// add adds a request to a server. It is sent for a request of the engine, or of is nil.
func (c *Client) add(fx *effects, server int, r *protocol.Request, of *engine.Request) {
	if c.config.Trace != nil && of != nil {
		r.Trace = traceOf(of)
	}
	fx.send[server] = append(fx.send[server], r)
}

// do calls f while Client.mu is locked, and then does what the engine wants done.
func (c *Client) do(f func(now time.Time)) {
	c.mu.Lock()
	f(c.now())
	c.flush()
}

// flush unlocks Client.mu, and does what the engine wants done.
func (c *Client) flush() { c.run(c.unlock(c.now()), nil) }

// unlock unlocks Client.mu, and returns what the engine wants done.
func (c *Client) unlock(now time.Time) *effects {
	fx, ok := c.effects.Get().(*effects)
	if !ok {
		fx = &effects{send: make([][]*protocol.Request, len(c.dispatch))}
	}
	if !c.label.known && !c.closed && !c.servers.Idle() {
		c.sendLabel(fx)
	}
	c.collect(now, fx)
	if len(fx.Blockers) > 0 {
		fx.Blockers = c.unknown(now, fx.Blockers)
	}
	c.reportEvents(fx.Events)
	for _, h := range fx.Cancel {
		held, cause := h.Tag.(*Hold), h.Err()
		c.cancels.Go(func() { held.end(cause) })
	}
	for _, h := range fx.Wake {
		held := h.Tag.(*Hold)
		if held.upgraded != nil { // the call has ended, and nobody else knows the hold yet
			if h.State() == engine.Live {
				held.work.Store(held.instead.work.Load())
				held.instead.next.Store(held)
			}
			held.instead = nil
			close(held.upgraded)
			held.upgraded = nil
			continue
		}
		select {
		case held.ended <- struct{}{}:
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
	c.arm(now)
	if c.closing && c.engine.Drained() {
		c.drained.give()
	}
	if c.closed && c.servers.Idle() {
		c.idle.give()
	}
	c.mu.Unlock()
	return fx
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
	if len(fx.Blockers) > 0 {
		c.readLabels(slices.Clone(fx.Blockers))
	}
	fx.Effects.Reset()
	c.effects.Put(fx)
	if own != nil {
		c.dispatch[0].SendFrom(own)
	}
}

// atOnce is the number of answers that are processed while the mutex is locked, which takes less than a
// millisecond.
const atOnce = 64

// received takes what a server has answered.
func (c *Client) received(results []dispatch.Result) {
	for some := range slices.Chunk(results, atOnce) {
		c.mu.Lock()
		now := c.now()
		for _, result := range some {
			if r := result.Request; r.From != nil { // or else nobody waits for the answer
				r.From.Received(now, r, result.Reply, result.Confirmed, result.Err)
			}
		}
		c.run(c.unlock(now), nil)
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
			c.servers.Tick(now)
		}
	})
}

// arm sets the timer to when the engine has something due. A timer that fires too early does no harm, and is
// cheaper than one timer for each hold.
func (c *Client) arm(now time.Time) {
	at, ok := c.servers.Next()
	if look := now.Add(lookEvery); !c.servers.Idle() && (!ok || look.Before(at)) {
		at, ok = look, true
	}
	if !ok || c.stopped || !c.armed.IsZero() && !at.Before(c.armed) {
		return
	}
	c.armed = at
	c.timer.Reset(time.Until(at))
}

// listener returns the functions that pass on what a server's subscription brings.
func (c *Client) listener(server int) *dispatch.Listener {
	return &dispatch.Listener{
		Subscribed: func() { c.do(func(now time.Time) { c.servers.Subscribed(now, server) }) },
		Unsubscribed: func(err error) {
			c.do(func(now time.Time) { c.servers.Unsubscribed(now, server, err) })
		},
		Heard: func(message string) { c.do(func(now time.Time) { c.servers.Heard(now, server, message) }) },
		Awaited: func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.servers.Waiting()
		},
	}
}
