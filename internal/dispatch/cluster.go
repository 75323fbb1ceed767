package dispatch

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// reloadEvery is how often the client requests the map of the cluster while requests get no answer. By
	// itself, the client does so once a minute, and when a server redirects it.
	reloadEvery = 250 * time.Millisecond
	// troubled is for how long that goes on after a request has failed: longer than it takes until it is sent
	// again.
	troubled = 2 * time.Second
	// slow is how long a request may be in flight before the map is requested.
	slow = 500 * time.Millisecond
	// mostReloads is the number of requests for the map at a time. A frozen node answers none, so other nodes
	// are asked meanwhile.
	mostReloads = 8
	// A node that was removed from the cluster, and that the client does not know to be, answers with an
	// empty map. It takes so many in a row to be believed.
	emptyMaps = 10
	// A lane that is unused for this long is dropped: its master may be gone.
	laneIdle = 10 * time.Second
)

// A cluster has a lane for each master, so that no request waits for another's server.
type cluster struct {
	client   *redis.ClusterClient
	calls    Calls
	listener *listener   // gets each new map
	armed    atomic.Bool // the timer will fire

	mu       sync.Mutex
	lanes    map[destination]*lane
	loaded   bool                     // the client has a map
	masters  map[string]*redis.Client // of the last map, by their addresses
	stranger bool                     // a request went to a master that is not in the map
	failing  time.Time                // when a request last failed that another server might have answered
	early    []*protocol.Request      // handed over before the client had a map
	reloads  int                      // in flight
	reloaded time.Time                // when the last was begun
	timer    *time.Timer
	sweeper  *time.Timer
	closed   bool
	stopped  bool // no lane sends any more

	working sync.WaitGroup // goroutines that reload the map, or wait for the end of a lane
}

// A lane sends the requests for one master.
type lane struct {
	*Dispatcher
	used time.Time // when it last got a request
}

// A destination is what a lane is for.
type destination struct {
	master   string // its address
	confirms bool   // its replicas are to confirm what is sent
}

func newCluster(client *redis.ClusterClient, calls Calls, l *listener) *cluster {
	c := &cluster{client: client, calls: calls, listener: l, lanes: make(map[destination]*lane)}
	c.timer = time.AfterFunc(time.Hour, c.tick)
	c.timer.Stop()
	c.sweeper = time.AfterFunc(time.Hour, c.sweep)
	c.sweeper.Stop()
	return c
}

// send hands each request to the lane of the master that has its lock.
func (c *cluster) send(requests []*protocol.Request) {
	c.mu.Lock()
	loaded, closed := c.loaded, c.closed
	if !loaded && !closed && isClosed(c.client) {
		c.mu.Unlock()
		c.calls.fail(protocol.ClientClosed(redis.ErrClosed), requests...)
		return
	}
	if !loaded && !closed {
		c.early = append(c.early, requests...)
		c.reload()
		c.arm()
	}
	c.mu.Unlock()
	switch {
	case loaded:
		for _, r := range requests {
			if lane, err := c.lane(r); err == nil {
				lane.Send(r)
			} else {
				c.calls.fail(err, r)
			}
		}
	case closed:
		c.calls.fail(errLate, requests...)
	}
}

// master returns the address of the master that has a request's lock, by the client's map.
func (c *cluster) master(r *protocol.Request) (string, error) {
	node, err := c.client.MasterForKey(context.Background(), r.Keys.Lock.(string))
	if err != nil {
		return "", err
	}
	return node.Options().Addr, nil
}

func (c *cluster) lane(r *protocol.Request) (*lane, error) {
	addr, err := c.master(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.masters[addr] == nil {
		c.stranger = true
		c.arm()
	}
	to := destination{addr, r.Replicas > 0}
	l := c.lanes[to]
	if l == nil {
		l = &lane{Dispatcher: newDispatcher(c.client, c.calls)}
		if o := c.client.Options(); to.confirms {
			l.waits(o.PoolSize, o.ReadTimeout)
		} else {
			l.bound(o.PoolSize)
		}
		// For a command alone, the client first asks some node for what all commands are, though that be
		// frozen.
		l.of, l.node, l.flying, l.piped = c, addr, make(map[*exchange]struct{}), true
		l.first.write = c.client.Options().ReadOnly // or else the client asks a replica
		if c.closed {
			l.Close()
		}
		if len(c.lanes) == 0 {
			c.sweeper.Reset(laneIdle)
		}
		c.lanes[to] = l
	}
	l.used = time.Now()
	return l, nil
}

// arm has tick called soon. c.mu need not be locked.
func (c *cluster) arm() {
	if c.armed.CompareAndSwap(false, true) {
		c.timer.Reset(reloadEvery)
	}
}

// tick has the map reloaded while a request stays without an answer; and once the client knows of a master
// that has taken over, since a server that redirects a request tells the client alone.
func (c *cluster) tick() {
	c.armed.Store(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	busy := len(c.early) > 0 || c.stranger || time.Since(c.failing) < troubled
	trouble := busy
	for _, lane := range c.lanes {
		oldest, some := lane.oldest()
		busy = busy || some
		trouble = trouble || some && time.Since(oldest) >= slow
	}
	if trouble {
		c.reload()
	}
	if busy && !c.stopped {
		c.arm()
	}
}

// sweep drops the unused lanes.
func (c *cluster) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	for to, lane := range c.lanes {
		if time.Since(lane.used) >= laneIdle && lane.rests() {
			stopped := lane.Close()
			c.working.Go(func() { <-stopped })
			delete(c.lanes, to)
		}
	}
	if len(c.lanes) > 0 {
		c.sweeper.Reset(laneIdle)
	}
}

// failed takes the error of a request. Its server may be gone, or cut off from the others.
func (c *cluster) failed(err error) {
	if !protocol.Passing(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isAnswer(err) || redis.HasErrorPrefix(err, "CLUSTERDOWN") || redis.HasErrorPrefix(err, "READONLY") {
		c.failing = time.Now()
		c.arm()
	}
	c.reload()
}

// reload has the client request the map of the cluster from some node. It works after close, too: requests in
// flight may be for a master that was replaced. c.mu must be locked.
func (c *cluster) reload() {
	if c.stopped || c.reloads >= mostReloads || time.Since(c.reloaded) < reloadEvery {
		return
	}
	c.reloads++
	c.reloaded, c.stranger = time.Now(), false
	c.working.Go(func() {
		masters, err := c.load()
		c.mu.Lock()
		c.reloads--
		c.loaded = c.loaded || err == nil
		changed := false
		if err == nil && len(masters) > 0 {
			changed = c.masters != nil && !maps.EqualFunc(c.masters, masters, func(_, _ *redis.Client) bool {
				return true
			})
			c.masters = masters
		}
		if changed {
			c.failing = time.Time{}
		}
		early := c.early
		c.early = nil
		lanes := maps.Clone(c.lanes)
		c.mu.Unlock()
		if err != nil {
			if isClosed(c.client) {
				err = protocol.ClientClosed(err)
			}
			c.calls.fail(err, early...)
			return
		}
		c.send(early)
		if len(masters) == 0 {
			return
		}
		c.listener.mapped(masters)
		for to, lane := range lanes {
			c.send(lane.leave(func(r *protocol.Request) bool {
				now, err := c.master(r)
				return err == nil && now != to.master
			}, fmt.Errorf("the server at %s was replaced", to.master)))
		}
		if changed {
			c.calls.Changed()
		}
	})
}

// load has the client ask for the map, and returns the masters by their addresses. While the client has an
// empty map it sends each request to any node.
func (c *cluster) load() (masters map[string]*redis.Client, err error) {
	var mu sync.Mutex
	masters = make(map[string]*redis.Client)
	for range emptyMaps {
		// ReloadState asks no second node while the first one does not answer. This is called for each master
		// of a map that has just been asked for.
		err = c.client.ForEachMaster(context.Background(), func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			masters[node.Options().Addr] = node
			return nil
		})
		if err != nil || len(masters) > 0 {
			break
		}
	}
	return masters, err
}

// listen returns the masters of the client's map, if it has one; if not, it has the map reloaded for a while.
func (c *cluster) listen() map[string]*redis.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.masters == nil {
		c.failing = time.Now()
		c.reload()
		c.arm()
	}
	return c.masters
}

// reloadIfStale has the map reloaded if that was not begun of late, since a node may have been removed from
// it that goes on answering.
func (c *cluster) reloadIfStale(late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.reloaded) >= late {
		c.reload()
	}
}

// errLate is the end of requests that were handed over before there was a map, when the dispatcher is closed.
var errLate = fmt.Errorf("no node of the cluster has answered: %w", net.ErrClosed)

// close closes all lanes. The channel is closed when their goroutines have ended.
func (c *cluster) close() <-chan struct{} {
	c.mu.Lock()
	c.closed = true
	early := c.early
	c.early = nil
	stopped := make([]<-chan struct{}, 0, len(c.lanes))
	for _, lane := range c.lanes {
		stopped = append(stopped, lane.Close())
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.calls.fail(errLate, early...)
		for _, s := range stopped {
			<-s
		}
		c.mu.Lock()
		c.stopped = true
		c.timer.Stop()
		c.sweeper.Stop()
		c.mu.Unlock()
		c.working.Wait()
		close(done)
	}()
	return done
}

// oldest returns since when the oldest exchange of a lane is in flight, and whether there is one.
func (d *Dispatcher) oldest() (since time.Time, some bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for x := range d.flying {
		if begun := x.begun.Add(d.wait); !some || begun.Before(since) { // while a WAIT lasts, nothing is late
			since, some = begun, true
		}
	}
	return since, some
}

// rests reports whether a lane has nothing to send, and nothing in flight.
func (d *Dispatcher) rests() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queued()+d.running == 0
}

// leave removes the requests that belong to another lane by now, and returns them. Requests in flight fail
// with err, since their server may never answer.
func (d *Dispatcher) leave(elsewhere func(*protocol.Request) bool, err error) []*protocol.Request {
	var left, failed []*protocol.Request
	take := func(queue []*protocol.Request) (rest []*protocol.Request) {
		for _, r := range queue {
			if elsewhere(r) {
				left = append(left, r)
			} else {
				rest = append(rest, r)
			}
		}
		return rest
	}
	d.mu.Lock()
	d.queue, d.urgent, d.late = take(d.queue), take(d.urgent), take(d.late)
	for x := range d.flying {
		if elsewhere(x.requests[0]) {
			delete(d.flying, x)
			failed = append(failed, x.requests...)
		}
	}
	d.mu.Unlock()
	d.calls.fail(err, failed...)
	return left
}

// A once is a command that the client does not send again by itself, unless a server redirects it. Of a
// pipeline to a cluster, it sends all commands again if the first has failed, and does not notice that it is
// also about to send some to where they were redirected: then two goroutines write one reply.
type once struct{ *redis.Cmd }

// NoRetry tells the client.
func (once) NoRetry() bool { return true }

// A mapping has a client ask for the map of a cluster that cannot be seen through it, such as an
// AutoPipeliner's.
type mapping struct {
	mu        sync.Mutex
	asking    int // how many times
	asked     time.Time
	reloading sync.WaitGroup
}

// reload has the client ask for the map, unless it was asked a moment ago. To count the keys of a cluster,
// the client first asks for the map and then all masters.
func (m *mapping) reload(client redis.UniversalClient) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking >= mostReloads || time.Since(m.asked) < reloadEvery {
		return
	}
	m.asking++
	m.asked = time.Now()
	m.reloading.Go(func() {
		_ = client.DBSize(context.Background()).Err()
		m.mu.Lock()
		m.asking--
		m.mu.Unlock()
	})
}
