// Package dispatch sends requests through a go-redis client, and subscribes to channels. It does not know
// what the requests and messages mean.
//
// The client does not interrupt a command when its context ends. So the dispatcher's own goroutines send the
// requests. Requests that arrive while a batch is in flight are sent as the next batch.
package dispatch

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

const (
	// lanes is how many batches are usually in flight at a time.
	lanes = 8
	// One more batch is sent if none has come back for this long: all may be on dead connections, or wait for
	// one server of several.
	patience = 10 * time.Millisecond
	// A few connections are left for other users of the client.
	spare = 2
	// This many more goroutines may send renewals that are sent again.
	extra = 16
	// Late requests are overtaken only if this many requests wait, and by this many batches in a row.
	someLate     = 64
	mostOvertake = 3
	// A server that answers each command before it reads the next, over a connection that buffers nothing, as
	// miniredis in memory does, takes in this much before it answers; with more, both sides would wait for
	// the other to read.
	batchBytes = 4096
	// The longer a round trip takes, the more requests arrive meanwhile. A batch for a server far away has up
	// to batchBytes for each near of the round trip. Such a server is not in memory.
	near      = 500 * time.Microsecond
	far       = 2 * near
	mostBytes = 1 << 16
	// A batch of so few requests is small: they are not divided.
	small = 16
	// mostRenewals is how many holds one run of a script renews, which takes less than a millisecond.
	mostRenewals = 64
	// mostQueued is how many requests may wait to be sent. While a server does not answer, the engine repeats
	// its requests.
	mostQueued = 1 << 16
	// WAIT occupies a connection until the replicas have answered. So at most a quarter of the connections
	// wait. If the client has fewer than four, each WAIT is short. One WAIT confirms many requests.
	waiters   = 4
	longWait  = time.Second
	shortWait = 100 * time.Millisecond
)

var errFull = fmt.Errorf("%d requests wait to be sent", mostQueued)

// A Result is the reply to a request, or the error with which it failed.
type Result struct {
	Request *protocol.Request
	Reply   any
	Err     error

	Confirmed int // how many replicas have what the request wrote, if it asks for that
}

// Calls are the functions that a dispatcher calls, from its own goroutines. They must not block.
type Calls struct {
	Receive func([]Result)
	Changed func() // other servers are the masters of a cluster than before
	// reports whether a request that replicas are to confirm is still to be sent
	Wanted func(*protocol.Request) bool
}

// fail has requests fail.
func (c Calls) fail(err error, requests ...*protocol.Request) {
	results := make([]Result, len(requests))
	for i, r := range requests {
		results[i] = Result{Request: r, Err: err}
	}
	c.Receive(results)
}

// A Dispatcher sends requests, and delivers their results.
type Dispatcher struct {
	client  redis.UniversalClient
	calls   Calls
	workers int // how many batches are usually in flight at a time
	most    int // how many may be, if many requests wait or the server does not answer
	batch   int // the most bytes of a batch to a server nearby, unless one request has more
	// the longest WAIT, of a dispatcher for what replicas are to confirm; or 0
	wait time.Duration

	mu       sync.Mutex
	queue    []*protocol.Request
	renewals []*protocol.Request // that one script is to run together
	urgent   []*protocol.Request // renewals that are sent again
	late     []*protocol.Request // that others overtake
	overtook int                 // how many batches in a row did
	running  int                 // goroutines that send
	parked   int                 // goroutines that wait for something to send
	wake     sync.Cond           // wakes them
	flight   int                 // requests in flight
	roused   bool                // one of them is about to check the queue
	active   time.Time           // when one was last started, or came back from the server
	trip     time.Duration       // the shortest of the last exchanges of one request
	callers  callers
	closed   bool
	retired  bool           // of a lane of a cluster: it was dropped
	working  sync.WaitGroup // goroutines that send, or have the client ask for the map of a cluster

	confirms *Dispatcher            // for what replicas are to confirm; or nil
	single   bool                   // the client is for one server
	piped    bool                   // a request is sent in a pipeline even if it is alone
	cluster  *cluster               // that requests are handed to; nil if the client is for one server
	of       *cluster               // of a lane of a cluster
	node     string                 // the master's address, of a lane of a cluster
	flying   map[*exchange]struct{} // of a lane of a cluster: what is in flight
	first    form                   // that is tried
	old      atomic.Bool            // the server turned out to be older than Redis 6.2
	apart    atomic.Bool            // the server refused a script for locks of several slots
	// for a client that is for a cluster, and does not show it
	remaps   int       // requests for the map in flight
	remapped time.Time // when the last was begun

	listener *listener // of a lane: its cluster's
}

// New returns a dispatcher over client.
func New(client redis.UniversalClient, calls Calls) *Dispatcher {
	d := newDispatcher(client, calls)
	d.single = OneServer(client)
	poolSize, readTimeout := 10*runtime.GOMAXPROCS(0), time.Duration(0) // the client's default
	d.listener.follow = true
	switch c := client.(type) {
	case *redis.Client:
		poolSize, readTimeout = c.Options().PoolSize, c.Options().ReadTimeout
		d.bound(poolSize)
		d.listener.follow = c.Options().Addr == "FailoverClient" // only this name shows that it is for Sentinel
		d.callers = callersOf(c)
	case *redis.ClusterClient:
		d.listener.follow = false
		d.cluster = newCluster(c, calls, d.listener)
	case *redis.AutoPipeliner:
		d.piped = true // its queues mix the commands for all nodes of a cluster, and send one batch after the other
		if d.single {
			d.bound(poolSize)
		}
	}
	d.confirms = newDispatcher(client, calls)
	d.confirms.single = d.single
	d.confirms.waits(poolSize, readTimeout)
	return d
}

// newDispatcher returns a dispatcher that sends each request by itself. Requests for several servers must not
// wait for the slowest of them, so only the requests for one server are sent together.
func newDispatcher(client redis.UniversalClient, calls Calls) *Dispatcher {
	d := &Dispatcher{client: client, calls: calls, workers: 1 << 20, most: 1 << 20, listener: new(listener)}
	d.wake.L = &d.mu
	return d
}

// OneServer reports whether a client is for one server. The Watch of such a client needs no key, and calls
// the function without using the network; that of a cluster fails.
func OneServer(client redis.UniversalClient) (one bool) {
	_ = client.Watch(context.Background(), func(*redis.Tx) error { one = true; return nil })
	return one
}

// bound makes a dispatcher one that sends to one server, to which the client has so many connections.
func (d *Dispatcher) bound(poolSize int) {
	d.workers, d.most, d.batch = lanes, max(lanes, poolSize-spare), batchBytes
}

// waits makes a dispatcher one that sends, to one server, what replicas are to confirm. The client reads a
// reply for that long.
func (d *Dispatcher) waits(poolSize int, readTimeout time.Duration) {
	d.workers = min(max(poolSize/waiters, 1), waiters)
	d.most, d.batch, d.wait = d.workers, mostBytes, longWait
	if poolSize < waiters {
		d.wait = shortWait
	}
	if readTimeout > 0 {
		d.wait = min(d.wait, readTimeout/2)
	}
}

// Send queues requests, and returns immediately. Their results are received even after Close.
func (d *Dispatcher) Send(requests ...*protocol.Request) {
	if d.cluster != nil {
		d.cluster.send(requests)
		return
	}
	d.mu.Lock()
	if full := d.queued() >= mostQueued; full || d.closed {
		err := errFull
		if d.closed {
			err = net.ErrClosed
		}
		d.mu.Unlock()
		d.calls.fail(err, requests...)
		return
	}
	for _, r := range requests {
		switch {
		case r.Replicas > 0 && d.confirms != nil:
			d.confirms.Send(r)
		case r.Again && r.Script == lua.Renew:
			d.urgent = append(d.urgent, r)
		case r.Shares() && !r.Again && d.single && !d.apart.Load():
			d.renewals = append(d.renewals, r)
		case r.Late && d.queued() >= someLate:
			d.late = append(d.late, r)
		default:
			d.queue = append(d.queue, r)
		}
	}
	d.rouse()
	d.mu.Unlock()
}

// sums are the scripts' sums, boxed once.
var sums = func() map[*lua.Script]any {
	sums := make(map[*lua.Script]any)
	for _, s := range lua.Scripts {
		sums[s] = s.SHA
	}
	return sums
}()

// args returns the arguments of a request, made again each time that it is sent: the client's hooks may
// change them.
func args(r *protocol.Request, w form) []any {
	if r.Script == nil {
		return slices.Clone(r.Command)
	}
	list := append(make([]any, 0, protocol.MaxArgs), "evalsha", sums[r.Script])
	if w.text {
		list[0], list[1] = "eval", r.Script.Source
	}
	if r.Script == lua.Inspect && !w.write {
		list[0] = list[0].(string) + "_ro"
	}
	keys := len(list) + 1
	list = r.Argv(list)
	for i, use := range keyForms[w.keys] {
		list[keys+1+i] = list[keys+use] // a place is only taken by the key itself, or by the first
	}
	return list
}

// rouse has a goroutine send what is queued, unless one is about to, or enough are in flight. d.mu must be
// locked.
func (d *Dispatcher) rouse() {
	if d.roused || d.queued() == 0 {
		return
	}
	most := d.workers
	switch {
	case d.running < most:
	case len(d.urgent) > 0:
		most = d.most + extra
	case time.Since(d.active) > patience:
		most = d.most
	}
	if d.running < most {
		d.active = time.Now()
		d.roused = true
		d.running++
		if d.parked > 0 {
			d.parked--
			d.wake.Signal()
		} else {
			d.working.Go(d.work)
		}
	}
}

// work sends batches, and waits for more. A goroutine that waits keeps its stack, and the memory of its
// batches.
func (d *Dispatcher) work() {
	d.mu.Lock()
	var x exchange
	for crowded := false; ; {
		if distant := d.trip > far; crowded || distant && d.running > 1 {
			d.mu.Unlock()
			yield(distant)
			d.mu.Lock()
		}
		if d.queued() == 0 {
			if !d.park() {
				d.mu.Unlock()
				return
			}
			crowded = false
			continue
		}
		d.take(&x)
		if d.wait > 0 {
			d.mu.Unlock()
			x.requests = slices.DeleteFunc(x.requests, func(r *protocol.Request) bool { return !d.calls.Wanted(r) })
			d.mu.Lock()
			if len(x.requests) == 0 {
				continue
			}
		}
		d.roused = false
		d.rouse()
		x.begun = time.Now()
		crowded = len(x.requests) > 1 || d.running > 1
		if !crowded && d.callers.of != nil && x.begun.Sub(d.callers.checked) > trust/2 {
			x.checks = true
			d.callers.checked, d.callers.may = x.begun, false
		}
		if d.of != nil {
			d.flying[&x] = struct{}{}
			d.of.arm()
		}
		n := len(x.requests)
		d.flight += n
		d.mu.Unlock()
		d.exchange(&x)
		x.reset()
		d.mu.Lock()
		d.flight -= n
	}
}

// park has a goroutine wait until rouse or unpark wakes it. It returns false if the goroutine has to end: few
// are kept, and none once the dispatcher is closed.
func (d *Dispatcher) park() bool {
	d.roused = false
	d.running--
	if d.parked == lanes || d.closed || d.retired {
		return false
	}
	d.parked++
	d.wake.Wait() // whatever wakes it counts it as running
	return true
}

// unpark wakes all parked goroutines, so that they end.
func (d *Dispatcher) unpark() {
	d.running += d.parked
	d.parked = 0
	d.wake.Broadcast()
}

// yield lets the goroutines that are ready to run have their turn: they may have requests to add to the next
// batch. Gosched is not enough if the server is distant: an idle processor may go on with this goroutine at
// once, and what others add later would wait long for the batch after that. So this goroutine waits for one
// that is last in the queue of its processor. A goroutine is last there once another one has been started.
func yield(distant bool) {
	if !distant {
		runtime.Gosched()
		return
	}
	turn := make(chan struct{})
	go close(turn)
	go func() {}()
	<-turn
}

// queued returns how many requests wait to be sent.
func (d *Dispatcher) queued() int {
	return len(d.queue) + len(d.renewals) + len(d.urgent) + len(d.late)
}

// take moves the requests of the next batch from their queue to x, which has none. A renewal that is sent
// again is the first, and has a batch of its own: other requests of its batch may have delayed it. Then come
// other renewals, and late requests come last, but have a turn after every few batches.
func (d *Dispatcher) take(x *exchange) {
	queue, n := &d.queue, 0
	switch {
	case len(d.urgent) > 0:
		queue, n = &d.urgent, 1
	case len(d.renewals) > 0:
		queue, n = &d.renewals, min(len(d.renewals), mostRenewals)
	case len(d.late) == 0:
	case len(d.queue) == 0, d.overtook == mostOvertake:
		queue, d.overtook = &d.late, 0
	default:
		d.overtook++
	}
	if n == 0 {
		n = d.fit(*queue)
	}
	x.requests, x.together = append(x.requests, (*queue)[:n]...), queue == &d.renewals && n > 1
	if *queue = slices.Delete(*queue, 0, n); len(*queue) == 0 && cap(*queue) > 1024 {
		*queue = nil
	}
}

// fit returns how many requests the next batch takes; one at least. In a large batch, the first requests wait
// long for the last. So no batch to a server far away takes much more than its share, unless it is small.
func (d *Dispatcher) fit(queue []*protocol.Request) (n int) {
	room := min(max(d.batch, int(time.Duration(d.batch)*d.trip/near)), mostBytes)
	if d.trip > far {
		share := (d.flight + len(queue)) / lanes
		queue = queue[:min(len(queue), max(share+share/4, small))]
	}
	for _, r := range queue {
		if room -= size(r); room < 0 {
			break
		}
		n++
	}
	return max(n, 1)
}

// size returns an upper bound of the request's size on the wire, in bytes.
func size(r *protocol.Request) int {
	n := 128
	for _, arg := range r.Command {
		n += 8 + len(arg.(string))
	}
	for _, s := range [...]any{r.Keys.Lock, r.Keys.Leases, r.Keys.Queue, r.Claim.ID, r.Claim.Number,
		r.Claim.Slot, r.Channels, r.Writer, r.Record} {
		if s, ok := s.(string); ok {
			n += 8 + len(s)
		}
	}
	return n
}

// Close sends what was handed over, and ends the subscription and all goroutines. The channel is closed when
// they have ended.
func (d *Dispatcher) Close() <-chan struct{} {
	var others []<-chan struct{}
	if d.of == nil {
		others = append(others, d.listener.close())
	}
	if d.cluster != nil {
		others = append(others, d.cluster.close())
	}
	if d.confirms != nil {
		others = append(others, d.confirms.Close())
	}
	d.mu.Lock()
	d.closed = true
	d.unpark()
	d.mu.Unlock()
	return after(func() {
		d.working.Wait()
		for _, other := range others {
			<-other
		}
	})
}

// after returns a channel that is closed when wait has returned.
func after(wait func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	return done
}
