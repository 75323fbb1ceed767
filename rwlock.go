package rwlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/dispatch"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// Mode is the mode in which a lock is held or requested.
type Mode int

// The modes of a lock, a hold and a waiter.
const (
	None  Mode = iota // nobody holds the lock
	Read              // any number of owners may hold the lock
	Write             // one owner holds the lock
)

// String returns "none", "read" or "write".
func (m Mode) String() string {
	switch m {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return "none"
}

// closeTimeout bounds how long Unlock and Close wait for a server that does not answer.
const closeTimeout = engine.EndTimeout

// lateTimeout bounds how long Close waits for requests that are about no hold, such as the one that removes
// the label: a server that does not answer need not know that they are of no use any more.
const lateTimeout = 500 * time.Millisecond

// An RWLock provides reentrant read-write locks by name. It is safe for concurrent use. A process needs one
// RWLock for each server or prefix, and closes it with Close. Two RWLocks are different clients to the
// server: they exclude each other even in one process and for the same Owner.
type RWLock struct {
	lease    time.Duration
	strict   bool
	servers  servers
	dispatch []*dispatch.Dispatcher // one for each server
	apart    bool                   // keys may be on different servers, behind one dispatcher
	reporter reporter[engine.Record]
	observer reporter[Event]
	observed bool
	tracer   Tracer // or nil
	detach   func() // of a Monitor; or nil
	prefix   string
	instance string
	cancels  sync.WaitGroup // of contexts
	ends     signal         // Close was called
	drained  signal         // nothing is held or waited for, and no call begins any more: by Close or Shutdown
	idle     signal         // nothing is to be released either, after Close
	over     signal         // Close has come to an end
	effects  sync.Pool      // of *effects, empty
	timeouts sync.Pool      // of *time.Timer, stopped

	quitters quitters // calls that have returned

	mu      sync.RWMutex // guards what follows
	engine  *engine.Engine
	label   label
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

// New returns an RWLock that uses client, which may stand for one server, a Sentinel group or a cluster. The
// caller closes client, after it has closed the RWLock. New returns an error if client is nil, or is a
// redis.Ring or a type around one, or if an option is invalid. It does not use the network.
func New(client redis.UniversalClient, opts ...Option) (*RWLock, error) {
	if isNil(client) {
		return nil, errors.New("rwlock: new: the client is nil")
	}
	if isRing(client) {
		return nil, errors.New("rwlock: new: a ring is not supported: a message published on one of its servers does not reach the others")
	}
	c, err := configure(opts)
	if err != nil {
		return nil, fmt.Errorf("rwlock: new: %w", err)
	}
	if _, shown := client.(*redis.ClusterClient); c.replicas > 0 && !shown && !dispatch.OneServer(client) {
		return nil, fmt.Errorf("rwlock: new: WithReplicas on a cluster needs a *redis.ClusterClient: "+
			"a %T does not tell which connection a request uses", client)
	}
	rw := build(c)
	rw.servers, rw.apart = &oneServer{Layer: rw.engine, rw: rw}, !dispatch.OneServer(client)
	rw.dispatch = []*dispatch.Dispatcher{dispatch.New(client, dispatch.Calls{Receive: rw.received, Changed: rw.rerouted, Wanted: rw.wanted})}
	rw.attach(c.monitor)
	return rw, nil
}

// configure returns what the options say.
func configure(opts []Option) (config, error) {
	c := config{lease: defaultLease, prefix: defaultPrefix}
	for _, opt := range opts {
		if opt == nil {
			return c, errors.New("nil option")
		}
		if err := opt(&c); err != nil {
			return c, err
		}
	}
	if c.label == "" {
		c.label = defaultLabel()
	}
	return c, nil
}

// build returns an RWLock that has no server yet.
func build(c config) *RWLock {
	rw := &RWLock{lease: c.lease, strict: c.strict, prefix: c.prefix, instance: protocol.NewInstance(),
		ends: newSignal(), drained: newSignal(), idle: newSignal(), over: newSignal()}
	rw.label = newLabel(c.label, protocol.LabelKey(c.prefix, rw.instance), c.lease)
	rw.engine = engine.New(engine.Config{Prefix: c.prefix, Instance: rw.instance, Lease: c.lease, Observe: c.observer != nil,
		Replicas: c.replicas, Confirm: c.confirm})
	rw.reporter.handle = func(r engine.Record, dropped int) { log(c.logger, c.label, r, dropped) }
	rw.observer.handle = func(e Event, dropped int) {
		e.Dropped = dropped
		c.observer.Observe(e)
	}
	rw.observed = c.observer != nil
	rw.tracer = c.tracer
	return rw
}

// attach lets a Monitor look at the RWLock, which is complete.
func (rw *RWLock) attach(m Monitor) {
	if m != nil {
		rw.detach = m.Attach(rw)
	}
}

// Close releases every hold, ends every waiting call with ErrClosed, and stops all goroutines. It cancels the
// contexts of the holds with the cause ErrClosed. Calls after Close return ErrClosed. A second Close waits
// for the first and returns nil. To wait for the holds instead, use [RWLock.Shutdown].
//
// Close waits for the server for at most five seconds. If some holds could not be released by then, it
// returns an error, and those holds end with their leases. It waits for at most half a second for a request
// that is not about a hold, such as the one that removes the label. The goroutine that sends it ends when the
// client gives the request up, or is closed.
func (rw *RWLock) Close() error {
	if err := rw.made(); err != nil {
		return fmt.Errorf("rwlock: close: %w", err)
	}
	return rw.close(false, nil)
}

// close is Close. If nothing is held, it does not wait for what was lost, waits for at most half a second for
// what the server was never heard to have, and also for the rest once hurry is closed.
func (rw *RWLock) close(drained bool, hurry <-chan struct{}) error {
	start := time.Now()
	timeout, late := time.NewTimer(closeTimeout), time.NewTimer(lateTimeout)
	defer timeout.Stop()
	defer late.Stop()
	rw.mu.Lock()
	if rw.closed {
		rw.mu.Unlock()
		<-rw.over.Done()
		return nil
	}
	defer rw.over.give()
	rw.closed, rw.closing = true, true
	rw.engine.Close(time.Now())
	if drained {
		rw.engine.AbandonLost(time.Now())
	} else {
		late.Stop()
	}
	rw.flush()
	rw.dropLabel()
	rw.ends.give()

	for over := false; rw.idle.Err() == nil && !over; {
		select {
		case <-rw.idle.Done():
		case <-hurry:
			hurry = nil
			timeout.Reset(lateTimeout)
		case <-late.C:
			rw.mu.Lock()
			rw.engine.AbandonUnheard()
			rw.flush()
		case <-timeout.C:
			over = true
			timeout.Reset(0)
		}
	}
	err := rw.unreleased()
	rw.mu.Lock()
	rw.stopped = true
	if rw.timer != nil {
		rw.timer.Stop()
	}
	rw.mu.Unlock()
	stopped, cancelled := make(chan struct{}), make(chan struct{})
	var dispatched []<-chan struct{}
	for _, d := range rw.dispatch {
		dispatched = append(dispatched, d.Close())
	}
	go func() {
		for _, done := range dispatched {
			<-done
		}
		close(stopped)
	}()
	late.Reset(lateTimeout)
	select {
	case <-stopped:
	case <-late.C:
	case <-timeout.C:
		timeout.Reset(0)
	}
	go func() {
		rw.cancels.Wait()
		close(cancelled)
	}()
	timeout.Reset(max(closeTimeout-time.Since(start), lateTimeout))
	for _, ended := range []<-chan struct{}{cancelled, rw.reporter.close(), rw.observer.close()} {
		select {
		case <-ended:
		case <-timeout.C:
			timeout.Reset(0)
			if err == nil {
				err = errors.New("rwlock: close: a logger, an observer or what runs when a context ends does not return")
			}
		}
	}
	if rw.detach != nil {
		rw.detach()
	}
	return err
}

// unreleased says that Close could not release everything, and why. It returns nil if there is nothing left
// to release.
func (rw *RWLock) unreleased() error {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	n, err := rw.engine.Unreleased()
	switch {
	case n == 0:
		return nil
	case err == nil:
		err = errors.New("the server does not answer")
	}
	return fmt.Errorf("rwlock: close: %d holds end with their leases: %w", n, err)
}

// isRing reports whether a client is a redis.Ring, or a type around one. The options are invalid, so no other
// client makes an AutoPipeliner.
func isRing(client redis.UniversalClient) bool {
	_, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{MaxBatchSize: -1})
	return errors.Is(err, redis.ErrRingAutoPipelineUnsupported)
}

func isNil(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case nil:
		return true
	case *redis.Client:
		return c == nil
	case *redis.ClusterClient:
		return c == nil
	case *redis.Ring:
		return c == nil
	case *redis.AutoPipeliner:
		return c == nil
	}
	return false
}
