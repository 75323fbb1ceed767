// Package client runs an engine: it has the mutex that guards it, the goroutines that send and receive for
// it, its timer, and the calls of user code. Package rwlock is its public API.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
)

const (
	// endTimeout bounds how long Unlock and Close wait for a server that does not answer.
	endTimeout = engine.EndTimeout
	// lateTimeout limits how long Close waits for requests that are not about a hold, such as the one that
	// removes the label. They are not important enough to wait longer for a server that does not answer.
	lateTimeout = 500 * time.Millisecond
)

// Config is what a Client is made of.
type Config struct {
	Prefix   string
	Label    string
	Process  uuid.UUID // of the owners
	Lease    time.Duration
	Strict   bool          // only the goroutine that took a hold may re-enter
	Replicas int           // how many are to confirm a hold; for at most Confirm they are waited for
	Confirm  time.Duration // see Replicas
	Logger   *slog.Logger  // nil for the default one
	Observe  []func(Event) // each is called for one event at a time
	Delegate time.Duration // the lease of delegations; 0 for none
	// Trace returns the context of a call, each time that the call begins. It may be nil. Otherwise holds
	// have a context of their own, too: see Hold.Trace.
	Trace func(ctx context.Context, name string, mode protocol.Mode) context.Context
	// Blocked returns the error that says who is in the way of a call.
	Blocked func(h *engine.Hold, o protocol.Obstacle, label string, ours bool) error
}

// A Client runs one engine over one server, or over a quorum of several.
type Client struct {
	Closed func() // called at the end of Close; or nil. It is set before anything else is called

	config   Config
	dispatch []*dispatch.Dispatcher // one for each server
	apart    bool                   // keys may be on different servers, behind one dispatcher
	log      reporter[engine.Record]
	observe  []*reporter[Event]
	instance string
	cancels  sync.WaitGroup // of contexts
	ends     signal         // Close was called
	drained  signal         // nothing is held or waited for, and no call begins any more: by Close or Shutdown
	idle     signal         // nothing is to be released either, after Close
	over     signal         // Close has come to an end
	effects  sync.Pool      // of *effects, empty
	timeouts sync.Pool      // of *time.Timer, stopped
	signals  sync.Pool      // of chan struct{}, empty: see Hold.ended

	abandoned abandonedCalls // calls that have returned

	mu      sync.RWMutex // guards what follows
	engine  *engine.Engine
	local   *delegation.Layer // or nil
	lowest  engine.Layer
	quorum  *quorum.Quorum // or nil
	servers servers
	clock   clock
	label   label
	others  map[string]otherClient // that calls have found in their way, by instance
	timer   *time.Timer
	armed   time.Time // when the timer fires; zero if it does not
	stopped bool      // the timer is not armed any more
	closed  bool
	closing bool // by Close or Shutdown
}

// A signal is given once; more often makes no difference.
type signal struct {
	context.Context // until then
	give            context.CancelFunc
}

func newSignal() signal {
	ctx, cancel := context.WithCancel(context.Background())
	return signal{ctx, cancel}
}

// New returns a Client over one server, a Sentinel group or a cluster; or over several servers, which vote.
func New(config Config, clients []redis.UniversalClient) *Client {
	c := &Client{config: config, instance: protocol.NewInstance(), apart: !dispatch.OneServer(clients[0]),
		ends: newSignal(), drained: newSignal(), idle: newSignal(), over: newSignal()}
	c.signals.New = func() any { return make(chan struct{}, 1) }
	c.timeouts.New = func() any { return time.NewTimer(endTimeout) }
	c.label = label{text: config.Label, key: protocol.LabelKey(config.Prefix, c.instance),
		ttl: min(max(labelTime, 2*config.Lease), mostLabelTime)}
	c.log.handle = func(r engine.Record, dropped int) { write(config.Logger, config.Label, r, dropped) }
	c.log.panicked = func(err error) {
		defer func() { _ = recover() }() // it may be the same logger
		slog.Default().Error("rwlock: the logger has panicked", "label", config.Label, "error", err)
	}
	for _, observe := range config.Observe {
		c.observe = append(c.observe, &reporter[Event]{
			handle: func(e Event, dropped int) {
				e.Dropped = dropped
				observe(e)
			},
			panicked: func(err error) {
				c.log.report(engine.Record{Message: "an observer has panicked", Err: err})
			},
		})
	}

	c.engine = engine.New(engine.Config{Prefix: config.Prefix, Instance: c.instance, Lease: config.Lease,
		Observe: len(config.Observe) > 0, Replicas: config.Replicas, Confirm: config.Confirm, Sharded: c.apart})
	c.lowest = c.engine
	if config.Delegate > 0 && config.Replicas == 0 {
		c.local = delegation.New(delegation.Config{Instance: c.instance,
			Owner: protocol.Owner{Process: config.Process},
			Lease: config.Delegate, Hold: config.Lease, Observe: len(config.Observe) > 0}, c.engine)
		c.lowest = c.local
	}
	c.servers = singleServer{c.lowest}
	if n := len(clients); n > 1 {
		c.quorum = quorum.New(quorum.Config{Servers: n, Prefix: config.Prefix, Instance: c.instance}, c.engine)
		c.servers = c.quorum
	}
	c.timer = time.AfterFunc(time.Hour, c.tick)
	c.timer.Stop()
	changed := func() { c.do(c.lowest.Resume) }
	for _, client := range clients {
		c.dispatch = append(c.dispatch,
			dispatch.New(client, dispatch.Calls{Receive: c.received, Changed: changed, Wanted: c.wanted}))
	}
	return c
}

// Close releases every hold, ends every waiting call with ErrClosed, and stops all goroutines. A second call
// waits for the first. It returns an error if some holds could not be released in time.
func (c *Client) Close() error { return c.close(false, nil) }

// IsClosed reports whether Close has begun.
func (c *Client) IsClosed() bool { return c.ends.Err() != nil }

// Shutdown ends every waiting call with ErrClosed, waits until every hold was released, and closes the
// Client. If ctx ends first, it closes the Client immediately, and why is the error of that wait. err is
// the error of Close.
func (c *Client) Shutdown(ctx context.Context) (why, err error) {
	w := wait{ctx: ctx, start: time.Now()}
	c.do(func(now time.Time) {
		c.closing = true
		c.engine.Drain(now)
	})
	select {
	case <-c.drained.Done():
	case <-c.ends.Done(): // someone calls Close
	case <-ctx.Done():
		c.mu.Lock()
		drained, holds := c.engine.Drained(), c.engine.Holds()
		c.mu.Unlock()
		if !drained {
			why = fmt.Errorf("%w: %d holds were not released", w.over(w.look()), holds)
		}
	}
	if why != nil {
		return why, c.close(false, nil)
	}
	if err = c.close(true, ctx.Done()); err != nil && w.look() != nil {
		why = w.over(w.ended)
	}
	return why, err
}

// close is Close. If nothing is held, it does not wait for lost holds. It then waits for at most half a
// second for what the server never confirmed, and for everything else too once hurry is closed.
func (c *Client) close(drained bool, hurry <-chan struct{}) error {
	start := time.Now()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.over.Done()
		return nil
	}
	defer c.over.give()
	c.closed, c.closing = true, true
	now := c.now()
	c.engine.Close(now)
	if c.local != nil {
		c.local.Close(now)
	}
	if drained {
		c.engine.Abandon(now, false)
	}
	c.flush()
	c.dropLabel()
	c.ends.give()

	end := c.awaitIdle(start.Add(endTimeout), drained, hurry)
	err := c.unreleased()
	c.mu.Lock()
	c.stopped = true
	c.timer.Stop()
	c.mu.Unlock()
	var stopped []<-chan struct{}
	for _, d := range c.dispatch {
		stopped = append(stopped, d.Close())
	}
	within(min(time.Until(end), lateTimeout), stopped...)
	cancelled := make(chan struct{})
	go func() {
		c.cancels.Wait()
		close(cancelled)
	}()
	end = time.Now().Add(max(endTimeout-time.Since(start), lateTimeout))
	ended := []<-chan struct{}{cancelled}
	for _, r := range c.observe {
		ended = append(ended, r.close())
	}
	ok := within(time.Until(end), ended...) && within(time.Until(end), c.log.close())
	if !ok && err == nil {
		err = errors.New("a logger, an observer or what runs when a context ends does not return")
	}
	if c.Closed != nil {
		c.Closed()
	}
	return err
}

// awaitIdle waits until nothing is to be released any more, or until end. It returns end, which hurry makes
// earlier.
func (c *Client) awaitIdle(end time.Time, drained bool, hurry <-chan struct{}) time.Time {
	timeout := time.After(time.Until(end))
	var late <-chan time.Time
	if drained {
		late = time.After(lateTimeout)
	}
	for {
		select {
		case <-c.idle.Done():
			return end
		case <-hurry:
			hurry, end, timeout = nil, time.Now().Add(lateTimeout), time.After(lateTimeout)
		case <-late:
			c.do(func(now time.Time) { c.engine.Abandon(now, true) })
		case <-timeout:
			return end
		}
	}
}

// within waits for some channels to be closed, for d at most, and reports whether all were.
func within(d time.Duration, all ...<-chan struct{}) bool {
	timeout := time.After(d)
	for _, ended := range all {
		select {
		case <-ended:
		case <-timeout:
			return false
		}
	}
	return true
}

// unreleased returns an error which says what Close could not release, and why, or nil if nothing is left.
func (c *Client) unreleased() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	holds, places, err := c.engine.Unreleased()
	if c.local != nil {
		n, why := c.local.Unreturned()
		holds, err = holds+n, cmp.Or(err, why)
	}
	if err == nil {
		err = errors.New("the server does not answer")
	}
	switch {
	case holds == 0 && places == 0:
		return nil
	case places == 0:
		return fmt.Errorf("%d holds end with their leases: %w", holds, err)
	}
	return fmt.Errorf("%d holds and %d places in queues end with their leases: %w", holds, places, err)
}
