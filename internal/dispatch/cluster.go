package dispatch

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
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
)

// A cluster has a lane, a dispatcher, for each master, so that no request waits for another's server.
type cluster struct {
	client   *redis.ClusterClient
	calls    Calls
	listener *listener   // gets each new map
	armed    atomic.Bool // the timer will fire

	mu       sync.Mutex
	lanes    map[destination]*Dispatcher
	masters  map[string]*redis.Client // of the last map, by their addresses; nil before there is one
	failing  time.Time                // when something last showed that the map may be wrong
	early    []*protocol.Request      // handed over before the client had a map
	reloads  int                      // in flight
	reloaded time.Time                // when the last was begun
	timer    *time.Timer
	closed   bool
	stopped  bool // no lane sends any more

	working sync.WaitGroup // goroutines that reload the map
}

// A destination is what a lane is for.
type destination struct {
	master   string // its address
	confirms bool   // its replicas are to confirm what is sent
}

func newCluster(client *redis.ClusterClient, calls Calls, l *listener) *cluster {
	c := &cluster{client: client, calls: calls, listener: l, lanes: make(map[destination]*Dispatcher)}
	c.timer = time.AfterFunc(time.Hour, c.tick)
	c.timer.Stop()
	return c
}

// send hands each request to the lane of the master that has its lock.
func (c *cluster) send(requests []*protocol.Request) {
	c.mu.Lock()
	var late error
	switch {
	case c.masters != nil:
	case c.closed:
		late = errLate
	case isClosed(c.client):
		late = protocol.ClientClosed(redis.ErrClosed)
	default:
		c.early, requests = append(c.early, requests...), nil
		c.reload()
		c.arm()
	}
	c.mu.Unlock()
	if late != nil {
		c.calls.fail(late, requests...)
		return
	}
	for _, r := range requests {
		if lane, err := c.lane(r); err == nil {
			lane.Send(r)
		} else {
			c.calls.fail(err, r)
		}
	}
}

// sendFrom has the lane of the master that has a request's lock do what SendFrom does.
func (c *cluster) sendFrom(ctx context.Context, r *protocol.Request) {
	c.mu.Lock()
	mapped := c.masters != nil // or else the client would ask for the map now
	c.mu.Unlock()
	if mapped {
		if lane, err := c.lane(r); err == nil {
			lane.SendFrom(ctx, r)
			return
		}
	}
	c.send([]*protocol.Request{r})
}

// master returns the client for the master that has a request's lock, by the client's map.
func (c *cluster) master(r *protocol.Request) (*redis.Client, error) {
	return c.client.MasterForKey(context.Background(), r.Keys.Lock.(string))
}

func (c *cluster) lane(r *protocol.Request) (*Dispatcher, error) {
	master, err := c.master(r)
	if err != nil {
		return nil, err
	}
	addr := master.Options().Addr
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.masters[addr] == nil {
		c.doubt()
	}
	to := destination{addr, r.Replicas > 0}
	lane := c.lanes[to]
	if lane == nil {
		lane = newDispatcher(c.client, c.calls)
		o := c.client.Options()
		if to.confirms {
			lane.waits(o.PoolSize, o.ReadTimeout)
		} else {
			lane.bound(o.PoolSize)
			lane.callers = callersOf(master)
		}
		lane.of, lane.node, lane.flying, lane.listener = c, addr, make(map[*exchange]struct{}), c.listener
		lane.first.write = o.ReadOnly // or else the client asks a replica
		// For a command alone, the client first asks some node for what all commands are, though that be
		// frozen.
		lane.piped = true
		if c.closed {
			lane.Close()
		}
		c.lanes[to] = lane
	}
	return lane, nil
}

// doubt has the map reloaded now, and for a while unless another one comes. c.mu must be locked.
func (c *cluster) doubt() {
	c.failing = time.Now()
	c.reload()
	c.arm()
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
	trouble := len(c.early) > 0 || time.Since(c.failing) < troubled
	busy := trouble
	for _, lane := range c.lanes {
		begun, some := lane.oldest()
		busy = busy || some
		trouble = trouble || some && time.Since(begun) >= slow
	}
	if trouble {
		c.reload()
	}
	if busy && !c.stopped {
		c.arm()
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
		c.doubt()
	} else {
		c.reload()
	}
}

// reload has the client request the map of the cluster from some node. It works after close, too: requests in
// flight may be for a master that was replaced. c.mu must be locked.
func (c *cluster) reload() {
	if c.stopped || c.reloads >= mostReloads || time.Since(c.reloaded) < reloadEvery {
		return
	}
	c.reloads++
	c.reloaded = time.Now()
	c.working.Go(func() {
		masters, err := c.load()
		c.mu.Lock()
		c.reloads--
		early, changed := c.early, false
		c.early = nil
		if err == nil && (c.masters == nil || len(masters) > 0) {
			if !maps.EqualFunc(c.masters, masters, func(_, _ *redis.Client) bool { return true }) {
				changed = len(c.masters) > 0
				c.failing = time.Time{}
			}
			c.masters = masters
		}
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
		c.redistribute(masters)
		if changed {
			c.calls.Changed()
		}
	})
}

// redistribute moves requests to the lanes of the masters that have their locks by now, and drops lanes of
// former masters. Requests in flight to a former master fail.
func (c *cluster) redistribute(masters map[string]*redis.Client) {
	c.mu.Lock()
	lanes := maps.Clone(c.lanes)
	c.mu.Unlock()
	for to, lane := range lanes {
		c.send(lane.leave(func(r *protocol.Request) bool {
			master, err := c.master(r)
			return err == nil && master.Options().Addr != to.master
		}, fmt.Errorf("the server at %s was replaced", to.master)))
		if masters[to.master] == nil && lane.retire() {
			c.mu.Lock()
			delete(c.lanes, to)
			c.mu.Unlock()
		}
	}
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

// listen returns the masters of the map, if there is one. If not, it has the map reloaded for a while.
func (c *cluster) listen() map[string]*redis.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.masters) == 0 {
		c.doubt()
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
	return after(func() {
		c.calls.fail(errLate, early...)
		for _, s := range stopped {
			<-s
		}
		c.mu.Lock()
		c.stopped = true
		c.timer.Stop()
		c.mu.Unlock()
		c.working.Wait()
	})
}

// oldest returns when the oldest exchange of a lane was begun, and whether there is one. While a WAIT in it
// may last, it is not old.
func (d *Dispatcher) oldest() (begun time.Time, some bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for x := range d.flying {
		if at := x.begun.Add(d.wait); !some || at.Before(begun) {
			begun, some = at, true
		}
	}
	return begun, some
}

// retire reports whether a lane has nothing to send, and nothing in flight. If so, no goroutine waits there
// from now on, since nobody will close the lane.
func (d *Dispatcher) retire() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queued()+d.running > 0 {
		return false
	}
	d.retired = true
	d.unpark()
	return true
}

// leave removes the requests that belong to another lane by now, and returns them. Requests in flight fail
// with err, since their server may never answer.
func (d *Dispatcher) leave(elsewhere func(*protocol.Request) bool, err error) []*protocol.Request {
	var left, failed []*protocol.Request
	take := func(r *protocol.Request) bool {
		gone := elsewhere(r)
		if gone {
			left = append(left, r)
		}
		return gone
	}
	d.mu.Lock()
	for _, queue := range []*[]*protocol.Request{&d.queue, &d.urgent, &d.late} {
		*queue = slices.DeleteFunc(*queue, take)
	}
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

// remap has the client ask for the map of a cluster that cannot be seen through it, such as an
// AutoPipeliner's, unless it was asked a moment ago. To count the keys of a cluster, the client first asks
// for the map and then all masters.
func (d *Dispatcher) remap() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.remaps >= mostReloads || time.Since(d.remapped) < reloadEvery {
		return
	}
	d.remaps++
	d.remapped = time.Now()
	d.working.Go(func() {
		_ = d.client.DBSize(context.Background()).Err()
		d.mu.Lock()
		d.remaps--
		d.mu.Unlock()
	})
}
