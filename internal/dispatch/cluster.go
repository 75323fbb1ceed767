package dispatch

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

const (
	// reloadEvery is how often the client requests the map of the cluster while requests get no answer, and for
	// troubleTime after one has failed: longer than it takes until it is sent again. By itself, the client does
	// so once a minute, and when a server redirects it.
	reloadEvery = checkEvery
	troubleTime = 2 * time.Second
	// mostReloads is the number of requests for the map at a time. A frozen node answers none, so other nodes
	// are asked meanwhile.
	mostReloads = 8
	// A node that was removed from the cluster answers with an empty map, and the client may still ask it.
	// So only emptyMaps in a row are believed.
	emptyMaps = 10
)

// errNoMap is the end of requests that were handed over before there was a map, when the dispatcher is
// closed.
var errNoMap = fmt.Errorf("no node of the cluster has answered: %w", net.ErrClosed)

// A cluster is what a dispatcher knows of the map of a cluster. Dispatcher.mu guards it.
type cluster struct {
	client   *redis.ClusterClient     // nil if the client is not for a cluster
	masters  map[string]*redis.Client // of the last map, by their addresses; nil before there is one
	unrouted []*protocol.Request      // handed over before that
	failed   time.Time                // when something last showed that the map may be wrong
	reloads  int                      // in flight
	reloaded time.Time                // when the last was begun
}

// master returns the client for the master that has a request's lock, by the client's map.
func (c *cluster) master(r *protocol.Request) (*redis.Client, error) {
	return c.client.MasterForKey(context.Background(), r.Keys.Lock.(string))
}

// troubled reports whether another map may be needed.
func (c *cluster) troubled() bool {
	return len(c.unrouted) > 0 || !c.failed.IsZero() && time.Since(c.failed) < troubleTime
}

// hold keeps a request until there is a map. d.mu must be locked.
func (d *Dispatcher) hold(r *protocol.Request) error {
	switch {
	case isClosed(d.client):
		return protocol.ClientClosed(redis.ErrClosed)
	case len(d.cluster.unrouted) >= mostQueued:
		return errFull
	}
	d.cluster.unrouted = append(d.cluster.unrouted, r)
	d.reloadMap()
	d.arm()
	return nil
}

// suspectMap has the map reloaded now, and for a while unless another one comes. d.mu must be locked.
func (d *Dispatcher) suspectMap() {
	d.cluster.failed = time.Now()
	d.reloadMap()
	d.arm()
}

// mapFailed takes the error of a request: its server may be gone, or cut off from the others.
func (d *Dispatcher) mapFailed(err error) {
	if d.cluster.client == nil || !protocol.Passing(err) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !isAnswer(err) || redis.HasErrorPrefix(err, "CLUSTERDOWN") || redis.HasErrorPrefix(err, "READONLY") {
		d.suspectMap()
	} else {
		d.reloadMap()
	}
}

// reloadMap has the client request the map of the cluster from some node. d.mu must be locked.
func (d *Dispatcher) reloadMap() {
	c := &d.cluster
	if c.client == nil || c.reloads >= mostReloads || time.Since(c.reloaded) < reloadEvery || d.ends() {
		return
	}
	c.reloads++
	c.reloaded = time.Now()
	d.working.Go(func() {
		masters, err := c.load()
		d.mu.Lock()
		c.reloads--
		changed := false
		if err == nil && (c.masters == nil || len(masters) > 0) {
			if !maps.EqualFunc(c.masters, masters, func(_, _ *redis.Client) bool { return true }) {
				changed = len(c.masters) > 0
				c.failed = time.Time{}
			}
			c.masters = masters
		}
		unrouted := c.unrouted
		c.unrouted = nil
		var failed []Result
		if len(masters) > 0 {
			failed = d.redistribute()
		}
		d.mu.Unlock()
		d.receive(failed)
		if err != nil {
			if isClosed(c.client) {
				err = protocol.ClientClosed(err)
			}
			d.fail(err, unrouted...)
			return
		}
		d.Send(unrouted...)
		if len(masters) > 0 {
			d.subscriptions.mapped()
		}
		if changed {
			d.calls.Changed()
		}
	})
}

// load has the client ask a node for the map, and returns the masters by their addresses. The client's
// ReloadState does not help: it asks no second node while the first one does not answer.
func (c *cluster) load() (masters map[string]*redis.Client, err error) {
	var mu sync.Mutex
	masters = make(map[string]*redis.Client)
	for range emptyMaps {
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

// redistribute moves requests to the lanes of the masters that have their locks by now, and drops the lanes
// of former masters. Requests in flight to a former master fail, since it may never answer; their results are
// returned. If only some of a batch have moved, its master has other slots, and redirects these requests.
// d.mu must be locked.
func (d *Dispatcher) redistribute() (failed []Result) {
	for to, l := range maps.Clone(d.lanes) {
		replaced := fmt.Errorf("the server at %s was replaced", to.master)
		stays := func(x waiting) bool {
			master, err := d.cluster.master(x.request)
			return err != nil || master.Options().Addr == to.master
		}
		for b := range l.flying {
			if !slices.ContainsFunc(b.all, stays) {
				delete(l.flying, b)
				for _, x := range b.all {
					for _, r := range append(x.earlier, x.request) {
						failed = append(failed, Result{Request: r, Err: replaced})
					}
				}
			}
		}
		for _, q := range []*queue{&l.repeats, &l.first} {
			list := q.list
			*q = queue{}
			for _, x := range list {
				if next, err := d.lane(x.request); err == nil && !stays(x) {
					next.first.push(identityOf(x.request), x)
					next.start()
				} else {
					q.push(identityOf(x.request), x)
				}
			}
		}
		if d.cluster.masters[to.master] == nil {
			delete(d.lanes, to) // it still sends what it has
		}
	}
	return failed
}

// reloadIfOld has the map reloaded unless that began recently: a node that was removed from the cluster
// may go on answering.
func (d *Dispatcher) reloadIfOld() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.cluster.reloaded) >= silence {
		d.reloadMap()
	}
}
