// Package dispatch sends requests through a go-redis client, and subscribes to channels. It does not know
// what the requests and messages mean.
//
// send.go decides when a request is sent and by which goroutine, batch.go sends a batch of requests,
// cluster.go follows the map of a cluster, and subscription.go keeps the subscriptions.
package dispatch

import (
	"cmp"
	"context"
	"errors"
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
	// usualBatches is how many batches of a lane are usually in flight. One more is sent if none has come back
	// for patience: all of them may be on dead connections, or blocked by a hook.
	usualBatches = 8
	patience     = 10 * time.Millisecond
	// spareConnections are left for other users of the client. Renewals may use extraRenewals more than that.
	spareConnections = 2
	extraRenewals    = 16
	// batchBytes is what a server takes in before it answers, though its connection buffers nothing and it
	// answers each command before it reads the next, as miniredis in memory does. With more, both sides would
	// wait for the other to read.
	batchBytes = 4096
	// sharedRenewals is how many holds one run of a script renews, which takes less than a millisecond.
	sharedRenewals = 64
	// suspectShare is the part of a batch that travels together the next time, if it had no answer although
	// later batches were answered.
	suspectShare = 8
	// blockedAfter is for how long a batch has had no answer when it counts as blocked by a hook, if later ones
	// were answered.
	blockedAfter = 2 * time.Second
	// mostQueued is how many requests of a lane may wait to be sent.
	mostQueued = 1 << 16
	// mostCopies is how many copies of one request may wait beside it: one that has no answer is sent again.
	mostCopies = 16
	// WAIT occupies a connection until the replicas have answered. So at most a quarter of the connections
	// wait. If the client has fewer than four, each WAIT is short. One WAIT confirms many requests.
	mostWaiting = 4
	longWait    = time.Second
	shortWait   = 100 * time.Millisecond
	// callerTimeout is how long a caller that sends its own request waits for the reply. With what a busy
	// program adds, the caller still returns within 50 ms of its context's end. A lane is prompt if its last
	// answer took at most promptReply. A busy program makes replies late: a shorter limit would keep callers
	// from sending for ever once one has waited in vain.
	callerTimeout = 30 * time.Millisecond
	promptReply   = 20 * time.Millisecond
	// checkEvery is how often the dispatcher looks for requests that have had no answer for slowReply. After
	// probeAfter, idle connections may be dead, too. They are probed, at most once per probeEvery, and dropped
	// if they do not answer within probeTimeout.
	checkEvery   = 250 * time.Millisecond
	slowReply    = 500 * time.Millisecond
	probeAfter   = time.Second
	probeEvery   = 2 * time.Second
	probeTimeout = time.Second
)

var (
	errFull   = fmt.Errorf("%d requests wait to be sent", mostQueued)
	errCopies = fmt.Errorf("%d copies of the request wait to be sent", mostCopies)
	errHook   = errors.New("a hook of the client has ended the goroutine that sent it")
)

// A Result is the reply to a request, or the error with which it failed.
type Result struct {
	Request   *protocol.Request
	Reply     any
	Err       error
	Confirmed int // how many replicas have what the request wrote, if it asks for that
}

// Calls are the functions that a dispatcher calls. They must not block.
type Calls struct {
	Receive func([]Result)
	Changed func() // other servers are the masters of a cluster than before
	// Wanted reports whether a request that replicas are to confirm is still to be sent.
	Wanted func(*protocol.Request) bool
}

// A Dispatcher sends requests, and delivers their results.
type Dispatcher struct {
	client        redis.UniversalClient
	calls         Calls
	oneServer     bool // the client is for one server
	unseen        bool // the client is for several servers, and does not show which
	poolSize      int
	readTimeout   time.Duration
	node          *redis.Client // the client, if it is one for a server
	callers       *redis.Conn   // what callers send by, or nil
	subscriptions subscriptions
	crossSlot     atomic.Bool // the server refused a script for locks of several slots

	mu      sync.Mutex
	lanes   map[destination]*lane
	cluster cluster
	closed  bool
	armed   bool        // the timer will fire
	timer   *time.Timer // of check
	working sync.WaitGroup
}

// A destination is what a lane is for: a kind of request, and the address of the master that gets them. The
// address is "" if the client finds the server.
type destination struct {
	master string
	kind   kind
}

// kind says which requests of one master wait for each other. Renewals have a lane of their own. So they
// wait neither for a crowd of other requests, nor for requests that a hook blocks, nor for replicas. What
// nobody waits for has one, so that it delays nobody: withdrawals, and renewals that only say how many holds
// there are.
type kind uint8

const (
	ordinary kind = iota
	late
	renewals
	confirmed // by replicas
)

func kindOf(r *protocol.Request) kind {
	switch {
	case r.Replicas > 0:
		return confirmed
	case r.Late:
		return late
	case r.Script == lua.Renew, r.Script == lua.Delegate && r.Keep, r.Script == lua.Convert && r.Again:
		return renewals
	}
	return ordinary
}

// New returns a dispatcher over client.
func New(client redis.UniversalClient, calls Calls) *Dispatcher {
	d := &Dispatcher{client: client, calls: calls, oneServer: OneServer(client),
		poolSize: 10 * runtime.GOMAXPROCS(0), lanes: make(map[destination]*lane)}
	switch c := client.(type) {
	case *redis.Client:
		d.poolSize, d.readTimeout = c.Options().PoolSize, c.Options().ReadTimeout
		d.node, d.callers = c, callersOf(c)
	case *redis.ClusterClient:
		d.poolSize, d.readTimeout = c.Options().PoolSize, c.Options().ReadTimeout
		d.cluster.client = c
	default:
		d.unseen = !d.oneServer
	}
	d.subscriptions.d = d
	d.timer = time.AfterFunc(time.Hour, d.check)
	d.timer.Stop()
	return d
}

// OneServer reports whether a client is for one server. The Watch of such a client needs no key, and calls
// the function without using the network; that of a cluster fails.
func OneServer(client redis.UniversalClient) (one bool) {
	_ = client.Watch(context.Background(), func(*redis.Tx) error { one = true; return nil })
	return one
}

// Send queues requests, and returns immediately. Their results are received even after Close.
func (d *Dispatcher) Send(requests ...*protocol.Request) {
	var failed []Result
	d.mu.Lock()
	for _, r := range requests {
		if refused, err := d.queue(r); err != nil {
			failed = append(failed, Result{Request: refused, Err: err})
		}
	}
	d.mu.Unlock()
	d.receive(failed)
}

// queue adds a request to the lane of its master. With an error, it returns the request that is refused: this
// one, or an earlier copy of it. d.mu must be locked.
func (d *Dispatcher) queue(r *protocol.Request) (refused *protocol.Request, err error) {
	if d.closed {
		return r, net.ErrClosed
	}
	l, err := d.lane(r)
	switch {
	case err != nil:
		return r, err
	case l == nil:
		return r, d.hold(r)
	case l.queued() >= mostQueued:
		return r, errFull
	}
	if refused = l.push(r); refused != nil {
		err = errCopies
	}
	l.start()
	return refused, err
}

// lane returns the lane for a request, or nil before the client has the map of its cluster. d.mu must be
// locked.
func (d *Dispatcher) lane(r *protocol.Request) (*lane, error) {
	to, node := destination{kind: kindOf(r)}, d.node
	if d.cluster.client != nil {
		if d.cluster.masters == nil {
			return nil, nil
		}
		master, err := d.cluster.master(r)
		if err != nil {
			return nil, err
		}
		to.master, node = master.Options().Addr, master
		if d.cluster.masters[to.master] == nil {
			d.suspectMap()
		}
	}
	l := d.lanes[to]
	if l == nil {
		l = &lane{d: d, to: to, node: node, usual: usualBatches,
			most: max(usualBatches, d.poolSize-spareConnections), flying: make(map[*batch]struct{})}
		switch {
		case to.kind == confirmed:
			l.usual = min(max(d.poolSize/mostWaiting, 1), mostWaiting)
			l.most, l.wait = l.usual, longWait
			if d.poolSize < mostWaiting {
				l.wait = shortWait
			}
			if d.readTimeout > 0 {
				l.wait = min(l.wait, d.readTimeout/2)
			}
		case d.unseen: // no request is to wait for the server of another
			l.usual, l.most = mostQueued, mostQueued
		case to.kind == renewals:
			l.most += extraRenewals
			l.unanswered = make(map[identity]*batch)
		}
		d.lanes[to] = l
	}
	return l, nil
}

// A lane sends the requests of one kind to one master.
type lane struct {
	d           *Dispatcher
	to          destination
	node        *redis.Client // the client for the master, or nil
	usual, most int           // how many batches are in flight
	wait        time.Duration // the longest WAIT of what replicas are to confirm, or 0

	repeats, first queue // renewals that are sent again go first, unless a hook blocks some for ever
	repeated       bool  // the last batch was of repeats
	running        int   // goroutines that send, callers included
	starting       bool  // one of them is about to look at the queue
	active         time.Time
	flying         map[*batch]struct{}
	// of renewals: the batch in flight that has the last copy
	unanswered map[identity]*batch
	answered   time.Time // when the last batch was begun that was answered
	prompt     bool      // the last reply was
	probed     time.Time // when idle connections were
}

func (l *lane) queued() int { return l.repeats.len() + l.first.len() }

// push queues a request. A copy of it that is not sent yet takes its place, so a request is queued once. A
// renewal that has had no answer, although the server has answered what was sent later, travels with few
// others: a hook may block it, or one that it has travelled with. If there are too many copies, push returns
// the oldest, which is refused.
func (l *lane) push(r *protocol.Request) (refused *protocol.Request) {
	x, id := waiting{request: r}, identityOf(r)
	var old *waiting
	if r.Again {
		old = cmp.Or(l.first.copied(id), l.repeats.copied(id))
	}
	switch {
	case old != nil:
		if len(old.earlier) == mostCopies {
			refused = old.earlier[0]
			old.earlier = slices.Delete(old.earlier, 0, 1)
		}
		old.earlier, old.request = append(old.earlier, old.request), r
	case r.Again && l.to.kind == renewals:
		if b := l.unanswered[id]; b != nil && l.answeredSince(b.begun) {
			x.together = max(1, len(b.all)/suspectShare)
		}
		l.repeats.push(id, x)
	default:
		l.first.push(id, x)
	}
	return refused
}

// answeredSince reports whether the master has answered what was sent to it after a time, in any lane.
func (l *lane) answeredSince(at time.Time) bool {
	for k := range confirmed + 1 {
		if other := l.d.lanes[destination{l.to.master, k}]; other != nil && other.answered.After(at) {
			return true
		}
	}
	return false
}

// blocked reports whether a hook seems to block a batch: it has had no answer for blockedAfter, although the
// master has answered what was sent later.
func (l *lane) blocked() bool {
	for b := range l.flying {
		if time.Since(b.begun) > blockedAfter && l.answeredSince(b.begun) {
			return true
		}
	}
	return false
}

// start has a goroutine send what is queued, unless one is about to, or enough are in flight.
func (l *lane) start() {
	most := l.usual
	if time.Since(l.active) > patience {
		most = l.most
	}
	if l.starting || l.queued() == 0 || l.running >= most {
		return
	}
	l.active = time.Now()
	l.starting = true
	l.running++
	l.d.working.Go(l.work)
}

// work sends batches until nothing is queued.
func (l *lane) work() {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		l.starting = false
		b := l.take()
		if b == nil {
			l.running--
			return
		}
		l.start()
		if b.begun = time.Now(); l.unanswered != nil {
			for _, x := range b.all {
				l.unanswered[identityOf(x.request)] = b
			}
		}
		l.flying[b] = struct{}{}
		d.arm()
		l.send(b)
	}
}

// send sends a batch, and delivers the results. Dispatcher.mu is locked before and after, and not while the
// batch is sent.
func (l *lane) send(b *batch) {
	var results []Result
	sent := false
	defer func() {
		if !sent { // a hook has ended the goroutine, or panicked
			results = nil
			for _, x := range b.all {
				results = b.add(results, x, nil, errHook)
			}
		}
		l.d.mu.Lock()
		l.returned(b, results)
		if !sent {
			l.running--
			l.starting = false
			l.start()
		}
	}()
	l.d.mu.Unlock()
	results = b.send()
	sent = true
}

// returned delivers the results of a batch, unless its requests have failed and were sent elsewhere. The
// goroutines that they wake may queue requests, which this goroutine then sends.
func (l *lane) returned(b *batch, results []Result) {
	d := l.d
	for _, x := range b.all {
		if id := identityOf(x.request); l.unanswered[id] == b {
			delete(l.unanswered, id)
		}
	}
	l.active = time.Now()
	if b.answered {
		l.prompt = l.active.Sub(b.begun) <= promptReply
		if b.begun.After(l.answered) {
			l.answered = b.begun
		}
	}
	if _, wanted := l.flying[b]; !wanted {
		return
	}
	delete(l.flying, b)
	l.starting = true
	d.mu.Unlock()
	if b.answered {
		d.subscriptions.answered()
	}
	d.receive(results)
	d.mu.Lock()
}

// take removes the requests of the next batch from the queue. It returns nil if there is none.
func (l *lane) take() *batch {
	q := &l.repeats
	if q.len() == 0 || l.repeated && l.first.len() > 0 && l.blocked() {
		q = &l.first
	}
	l.repeated = q == &l.repeats
	b := &batch{lane: l}
	b.shared = l.to.kind == renewals && l.d.oneServer && !l.d.crossSlot.Load()
	room, most := batchBytes, mostQueued
	switch {
	case b.shared:
		room, most = batchBytes*sharedRenewals, sharedRenewals
	case l.wait > 0: // no server in memory has replicas
		room = batchBytes * sharedRenewals
	case l.d.unseen:
		most = 1
	}
	for q.len() > 0 && len(b.requests) < most {
		x := q.list[0]
		if room -= size(x.request); room < 0 && len(b.requests) > 0 {
			break
		}
		if x.together > 0 {
			most = min(most, max(x.together, len(b.requests)))
			if len(b.requests) == most {
				break
			}
		}
		b.requests = append(b.requests, q.pop())
	}
	b.all = b.requests
	if b.all == nil {
		return nil
	}
	return b
}

// A queue has the requests that wait to be sent, and finds the copy of a request among them.
type queue struct {
	list   []waiting
	popped int // how many were in front of them
	places map[identity]int
}

// A waiting is a request that is not sent yet. Its earlier copies, which were not sent either, get its
// result.
type waiting struct {
	request  *protocol.Request
	earlier  []*protocol.Request
	together int // how many may be in its batch; 0 for any number
}

// An identity is the same for all copies of a request. Renewals for other leases are no copies: the reply to
// one says nothing of the lease of another.
type identity struct {
	script *lua.Script
	lock   any
	claim  string
	lease  time.Duration
}

func identityOf(r *protocol.Request) identity {
	return identity{r.Script, r.Keys.Lock, r.Claim.ID, r.Lease.Duration}
}

func (q *queue) len() int { return len(q.list) }

func (q *queue) push(id identity, x waiting) {
	if q.places == nil {
		q.places = make(map[identity]int)
	}
	q.places[id] = q.popped + len(q.list)
	q.list = append(q.list, x)
}

// copied returns the request of which another is a copy, or nil.
func (q *queue) copied(id identity) *waiting {
	if place, ok := q.places[id]; ok {
		return &q.list[place-q.popped]
	}
	return nil
}

func (q *queue) pop() waiting {
	x := q.list[0]
	q.list[0] = waiting{}
	if id := identityOf(x.request); q.places[id] == q.popped {
		delete(q.places, id)
	}
	q.popped++
	if q.list = q.list[1:]; len(q.list) == 0 {
		*q = queue{}
	}
	return x
}

// callersOf returns a Conn that sends the commands of callers. It runs the hooks that the client has now,
// and hands the command to a copy of the client with a short timeout: the client does not give up a
// command when a context ends. The copy shares the client's connections, and has no hooks. The Conn itself
// never uses a connection.
func callersOf(client *redis.Client) *redis.Conn {
	conn := client.Conn()
	conn.AddHook(innermost{client.WithTimeout(callerTimeout)})
	return conn
}

type innermost struct{ client *redis.Client }

func (innermost) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h innermost) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c, ok := cmd.(*redis.Cmd); ok { // and not a command that a hook sends beside it
			cmd = noRetry{c}
		}
		own := noWaits.Get().(*noWait)
		defer noWaits.Put(own)
		*own = noWait{Context: ctx}
		return h.client.Process(own, cmd)
	}
}

func (innermost) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A noWait is a context that ends as soon as a client has to wait for a connection, or to open one. The
// client looks at Done first, and again only if there is no idle connection.
type noWait struct {
	context.Context
	looked bool
}

// noWaits and single have memory for callers.
var (
	noWaits = sync.Pool{New: func() any { return new(noWait) }}
	single  = sync.Pool{New: func() any { return new([1]Result) }}
)

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done returns a channel that is closed, except the first time.
func (c *noWait) Done() <-chan struct{} {
	if !c.looked {
		c.looked = true
		return nil
	}
	return ended
}

func (c *noWait) Err() error {
	if !c.looked {
		return nil
	}
	return context.DeadlineExceeded
}

// SendFrom sends a request from the goroutine of its caller, if nothing else of its lane is in flight, the
// server answers promptly, and the client has an idle connection. Otherwise it does what Send does. It takes
// little longer than callerTimeout, unless a hook blocks.
func (d *Dispatcher) SendFrom(r *protocol.Request) {
	l := d.caller(r)
	if l == nil {
		d.Send(r)
		return
	}
	defer d.working.Done()
	ctx := contextOf(r)
	cmd := redis.NewCmd(ctx, args(r, invocation{})...)
	if err := l.process(ctx, cmd); err != nil {
		d.Send(r) // to run it twice does no harm
	} else {
		d.subscriptions.answered()
		results := single.Get().(*[1]Result)
		results[0] = Result{Request: r, Reply: cmd.Val()}
		d.calls.Receive(results[:])
		results[0] = Result{}
		single.Put(results)
	}
}

// process sends a command of a caller's. A hook may panic, or end the caller's goroutine: the command then
// does not count as in flight any more, either.
func (l *lane) process(ctx context.Context, cmd *redis.Cmd) (err error) {
	defer func() {
		l.d.mu.Lock()
		defer l.d.mu.Unlock()
		l.running--
		l.active = time.Now()
		l.prompt = l.prompt && isAnswer(err)
		l.start()
	}()
	return l.d.callers.Process(ctx, cmd)
}

// caller returns the lane for a request that the caller has to send, or nil. It then counts as in flight.
func (d *Dispatcher) caller(r *protocol.Request) *lane {
	// A server that announces its maintenance makes the client's timeouts longer.
	if d.callers == nil || r.Replicas > 0 || d.node.GetMaintNotificationsManager() != nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lanes[destination{}]
	if l == nil || !l.prompt || l.running+l.queued() > 0 || d.closed {
		return nil
	}
	l.running++
	d.working.Add(1)
	return l
}

// arm has check called soon. d.mu must be locked.
func (d *Dispatcher) arm() {
	if !d.armed {
		d.armed = true
		d.timer.Reset(checkEvery)
	}
}

// check looks for requests that have been in flight for long: their server may have been replaced, or their
// connections may be dead, without a word. While a WAIT may last, its batch is not late.
func (d *Dispatcher) check() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	trouble, flying := d.cluster.troubled(), false
	for _, l := range d.lanes {
		for b := range l.flying {
			flying = true
			late := time.Since(b.begun) - l.wait
			trouble = trouble || late >= slowReply
			if late >= probeAfter && b.begun.After(l.answered) {
				d.probe(l)
			}
		}
	}
	if trouble {
		d.reloadMap()
	}
	if trouble || flying {
		d.arm()
	}
}

// probe sends a PING by each idle connection of the client for a lane's master, at the same time. The client
// drops those without an answer, so the next request does not wait for them one after the other.
func (d *Dispatcher) probe(l *lane) {
	if l.node == nil || time.Since(l.probed) < probeEvery {
		return
	}
	l.probed = time.Now()
	client := l.node.WithTimeout(probeTimeout)
	ping := func(send func(ctx context.Context, cmd redis.Cmder)) {
		d.working.Go(func() {
			ctx := &noWait{Context: context.Background()}
			send(ctx, noRetry{redis.NewCmd(ctx, "ping")})
		})
	}
	stats := client.PoolStats()
	for range stats.IdleConns {
		ping(func(ctx context.Context, cmd redis.Cmder) { _ = client.Process(ctx, cmd) })
	}
	if stats.PipelineStats == nil {
		return
	}
	for range stats.PipelineStats.IdleConns {
		ping(func(ctx context.Context, cmd redis.Cmder) {
			pipeline := client.Pipeline()
			_ = pipeline.Process(ctx, cmd)
			_, _ = pipeline.Exec(ctx)
		})
	}
}

// Close sends what was handed over, and ends the subscriptions and all goroutines. The channel is closed when
// they have ended.
func (d *Dispatcher) Close() <-chan struct{} {
	d.subscriptions.close()
	d.mu.Lock()
	d.closed = true
	unrouted := d.cluster.unrouted
	d.cluster.unrouted = nil
	d.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.fail(errNoMap, unrouted...)
		d.working.Wait()
		d.subscriptions.working.Wait()
		d.timer.Stop()
	}()
	return done
}

// ends reports whether Close may have stopped to wait for goroutines. d.mu must be locked.
func (d *Dispatcher) ends() bool {
	for _, l := range d.lanes {
		if len(l.flying) > 0 {
			return false
		}
	}
	return d.closed
}

// fail has requests fail.
func (d *Dispatcher) fail(err error, requests ...*protocol.Request) {
	results := make([]Result, len(requests))
	for i, r := range requests {
		results[i] = Result{Request: r, Err: err}
	}
	d.receive(results)
}

// receive delivers results, if there are any. d.mu must not be locked, since who receives them may send more.
func (d *Dispatcher) receive(results []Result) {
	if len(results) > 0 {
		d.calls.Receive(results)
	}
}
