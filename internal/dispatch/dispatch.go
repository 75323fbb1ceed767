// Package dispatch sends requests through a go-redis client, and subscribes to channels. It does not know
// what the requests and messages mean.
//
// The client does not interrupt a command when its context ends. So the dispatcher's own goroutines send the
// requests. Requests that arrive while a batch is in flight are sent as the next batch.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
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
	urgent   []*protocol.Request // renewals that are sent again
	late     []*protocol.Request // that others overtake
	overtook int                 // how many batches in a row did
	running  int                 // goroutines that send
	roused   bool                // one of them is about to check the queue
	active   time.Time           // when one was last started, or came back from the server
	trip     time.Duration       // the shortest of the last exchanges of one request
	callers  callers
	closed   bool
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
	switch c := client.(type) {
	case *redis.Client:
		poolSize, readTimeout = c.Options().PoolSize, c.Options().ReadTimeout
		d.bound(poolSize)
		d.listener.follow = watched(c)
		d.callers.client = c.WithTimeout(callerTimeout)
	case *redis.ClusterClient:
		d.cluster = newCluster(c, calls, d.listener)
	case *redis.AutoPipeliner:
		d.listener.follow = true
		d.piped = true // its queues mix the commands for all nodes of a cluster, and send one batch after the other
		if d.single {
			d.bound(poolSize)
		}
	default:
		d.listener.follow = true
	}
	d.confirms = newDispatcher(client, calls)
	d.confirms.single = d.single
	d.confirms.waits(poolSize, readTimeout)
	return d
}

// newDispatcher returns a dispatcher that sends each request by itself. Requests for several servers must not
// wait for the slowest of them, so only the requests for one server are sent together.
func newDispatcher(client redis.UniversalClient, calls Calls) *Dispatcher {
	return &Dispatcher{client: client, calls: calls, workers: 1 << 20, most: 1 << 20, listener: new(listener)}
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
	var refused error
	switch {
	case d.closed:
		refused = net.ErrClosed
	case d.queued() >= mostQueued:
		refused = errFull
	}
	if refused != nil {
		d.mu.Unlock()
		d.calls.fail(refused, requests...)
		return
	}
	for _, r := range requests {
		switch {
		case r.Replicas > 0 && d.confirms != nil:
			d.confirms.Send(r)
		case r.Again && r.Script == lua.Renew:
			d.urgent = append(d.urgent, r)
		case r.Late && d.queued() >= someLate:
			d.late = append(d.late, r)
		default:
			d.queue = append(d.queue, r)
		}
	}
	d.rouse()
	d.mu.Unlock()
}

// rouse has a goroutine send what is queued, unless one is about to, or enough are in flight.
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
		d.working.Go(d.work)
	}
}

// work sends batches until nothing is queued.
func (d *Dispatcher) work() {
	d.mu.Lock()
	for crowded := false; ; {
		if crowded || d.trip > far && d.running > 1 { // goroutines that are ready to run may have requests to add
			d.mu.Unlock()
			runtime.Gosched()
			d.mu.Lock()
		}
		if d.queued() == 0 {
			break
		}
		x := &exchange{requests: d.take()}
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
		if !crowded && d.callers.client != nil && x.begun.Sub(d.callers.checked) > trust/2 {
			x.checks = true
			d.callers.checked, d.callers.may = x.begun, false
		}
		if d.of != nil {
			d.flying[x] = struct{}{}
			d.of.arm()
		}
		d.mu.Unlock()
		d.exchange(x)
		d.mu.Lock()
	}
	d.roused = false
	d.running--
	d.mu.Unlock()
}

// queued returns how many requests wait to be sent.
func (d *Dispatcher) queued() int { return len(d.queue) + len(d.urgent) + len(d.late) }

// take moves the requests of the next batch from the queue. A renewal that is sent again is the first, and
// has a batch of its own: other requests of its batch may have delayed it. Late requests come last, but have
// a turn after every few batches.
func (d *Dispatcher) take() []*protocol.Request {
	queue, room := &d.queue, min(max(d.batch, int(time.Duration(d.batch)*d.trip/near)), mostBytes)
	switch {
	case len(d.urgent) > 0:
		queue, room = &d.urgent, 0
	case len(d.late) == 0:
	case len(d.queue) == 0, d.overtook == mostOvertake:
		queue, d.overtook = &d.late, 0
	default:
		d.overtook++
	}
	n := 1
	for bytes := size((*queue)[0]); n < len(*queue); n++ {
		if bytes += size((*queue)[n]); bytes > room {
			break
		}
	}
	batch := slices.Clone((*queue)[:n])
	if *queue = slices.Delete(*queue, 0, n); len(*queue) == 0 && cap(*queue) > 1024 {
		*queue = nil
	}
	return batch
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

// An exchange is a batch of requests in flight.
type exchange struct {
	requests  []*protocol.Request
	cmds      []*redis.Cmd
	forms     []form
	confirmed int // how many replicas have what was written, if the requests ask for that
	begun     time.Time
	checks    bool // whether callers may send
	alone     bool // no hook has handled it
}

// exchange sends a batch, and delivers the results.
func (d *Dispatcher) exchange(x *exchange) {
	ctx := contextOf(x.requests)
	for _, r := range x.requests {
		x.cmds, x.forms = append(x.cmds, redis.NewCmd(ctx, args(r, d.first)...)), append(x.forms, d.first)
	}
	if d.wait > 0 {
		x.confirmed = math.MaxInt
	}
	for cmds := x.cmds; len(cmds) > 0; cmds = d.again(ctx, x) {
		d.run(ctx, x, cmds)
	}
	answered := isAnswer(x.cmds[0].Err())
	d.mu.Lock()
	// The goroutines that the results wake may queue requests. This goroutine checks the queue again after
	// they have had their turn, and sends these.
	d.active = time.Now()
	d.roused = true
	if took := d.active.Sub(x.begun); len(x.cmds) == 1 && answered && d.wait == 0 {
		if d.trip = min(took, d.trip+d.trip/64); d.trip == 0 {
			d.trip = took
		}
		d.callers.may = d.callers.may || x.alone && took < prompt
	}
	_, wanted := d.flying[x]
	delete(d.flying, x)
	d.mu.Unlock()
	if d.of != nil && !wanted {
		return // its requests have failed, and were sent elsewhere
	}
	if answered {
		d.listener.answered(d.node)
	}
	results := make([]Result, len(x.cmds))
	for i, cmd := range x.cmds {
		results[i] = Result{x.requests[i], cmd.Val(), d.failure(x, i), x.confirmed}
	}
	d.calls.Receive(results)
}

// again returns the commands that are to be sent once more, in another form.
func (d *Dispatcher) again(ctx context.Context, x *exchange) (cmds []*redis.Cmd) {
	for i, r := range x.requests {
		err, form := x.cmds[i].Err(), &x.forms[i]
		if !form.next(r, err) && (d.of == nil || !d.flies(x) || !form.retry(err) || d.clientClosed(err)) {
			continue
		}
		list := args(r, *form)
		if form.text && slices.Contains(lua.Quorum, r.Script) {
			list = append(list, d.durable(ctx))
		}
		x.cmds[i] = redis.NewCmd(ctx, list...)
		cmds = append(cmds, x.cmds[i])
	}
	return cmds
}

// failure returns the error of a request, as its sender gets it.
func (d *Dispatcher) failure(x *exchange, i int) error {
	err := x.cmds[i].Err()
	if err == nil {
		return nil
	}
	err = protocol.Advise(explain(x.requests[i], x.forms[i].failure(err)))
	switch {
	case d.clientClosed(err):
		if !errors.Is(err, redis.ErrClosed) { // it was in flight
			err = fmt.Errorf("%w: %w", redis.ErrClosed, err)
		}
		return protocol.ClientClosed(err)
	case d.single:
		return protocol.OneNode(err)
	case d.of != nil:
		d.of.failed(err)
	case protocol.Passing(err):
		d.remap()
	}
	return err
}

// run sends some of an exchange's commands.
func (d *Dispatcher) run(ctx context.Context, x *exchange, cmds []*redis.Cmd) {
	if !d.single && isClosed(d.client) { // the client would look for another node, with pauses
		setErr(cmds, redis.ErrClosed)
		return
	}
	probe := d.versionProbe(ctx, x)
	switch {
	case d.wait > 0:
		d.replicate(ctx, x, cmds)
	case probe == nil:
		d.process(ctx, x, cmds)
	default:
		d.process(ctx, x, append(slices.Clip(cmds), probe))
		old := probe.Err() != nil && strings.Contains(probe.Err().Error(), "unknown command")
		d.old.Store(old)
		for i, r := range x.requests {
			if old && acquires(r) {
				x.cmds[i].SetErr(probe.Err()) // what it was granted is withdrawn
			}
		}
	}
}

// versionProbe returns a command that servers before Redis 6.2 do not know, to go with a request for a lock
// that the server has not run the script of before, or nil. The first lock on a name needs no such command,
// and others could not wait for it. A round trip of its own would take too long if the server is far away.
func (d *Dispatcher) versionProbe(ctx context.Context, x *exchange) *redis.Cmd {
	old := d.old.Load()
	for i, r := range x.requests {
		if (old || x.forms[i].text) && acquires(r) {
			return redis.NewCmd(ctx, "hrandfield", r.Keys.Lock)
		}
	}
	return nil
}

func acquires(r *protocol.Request) bool {
	return r.Script == lua.Lock || r.Script == lua.RLock || r.Script == lua.Vote || r.Script == lua.RVote
}

// durable returns "durable" if the server confirms nothing that it could forget, or "": see
// lua/quorum/run.lua.
func (d *Dispatcher) durable(ctx context.Context) any {
	says, err := d.client.ConfigGet(ctx, "append*").Result()
	if err == nil && says["appendonly"] == "yes" && says["appendfsync"] == "always" {
		return "durable"
	}
	return ""
}

// flies reports whether the requests of a lane's exchange are still a matter of that lane.
func (d *Dispatcher) flies(x *exchange) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, wanted := d.flying[x]
	return wanted
}

// contextOf returns the context for a batch. Its end does not interrupt the batch.
func contextOf(requests []*protocol.Request) context.Context {
	for _, r := range requests {
		if ctx, ok := r.Trace.(context.Context); ok {
			return context.WithoutCancel(ctx)
		}
	}
	return context.Background()
}

// replicate sends commands, and on the same connection asks how many replicas have what they wrote. A
// ClusterClient does not say which connection it uses, so its client for the master is used, without the
// hooks of the ClusterClient.
func (d *Dispatcher) replicate(ctx context.Context, x *exchange, cmds []*redis.Cmd) {
	client := d.client
	if d.of != nil {
		node, err := d.of.client.MasterForKey(ctx, x.requests[0].Keys.Lock.(string))
		if err != nil {
			setErr(cmds, err)
			return
		}
		client = node
	}
	replicas, most := 0, time.Millisecond // 0 would be for ever
	for _, r := range x.requests {
		replicas, most = max(replicas, r.Replicas), max(most, r.Confirm)
	}
	wait := redis.NewCmd(ctx, "wait", replicas, min(most, d.wait).Milliseconds())
	d.pipeline(ctx, client, append(slices.Clip(cmds), wait))
	confirmed, err := wait.Int()
	if err != nil {
		setErr(slices.DeleteFunc(slices.Clone(cmds), func(cmd *redis.Cmd) bool { return cmd.Err() != nil }), err)
	}
	// Commands that were sent again came after all others: what was confirmed then covers these.
	x.confirmed = min(x.confirmed, confirmed)
}

// clientClosed reports whether a request failed with err because the client was closed. That of a cluster
// also closes its clients for nodes that have left the cluster.
func (d *Dispatcher) clientClosed(err error) bool {
	if isAnswer(err) {
		return false
	}
	_, ok := d.client.(*redis.AutoPipeliner) // it may be closed, and its client not
	return ok && d.single && errors.Is(err, redis.ErrClosed) || isClosed(d.client)
}

// isClosed reports whether a client was closed. A closed one says so before it looks at the options, and the
// others refuse these.
func isClosed(client redis.UniversalClient) bool {
	_, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{MaxBatchSize: -1})
	return errors.Is(err, redis.ErrClosed)
}

func (d *Dispatcher) process(ctx context.Context, x *exchange, cmds []*redis.Cmd) {
	switch {
	case len(cmds) > 1 || d.piped:
		d.pipeline(ctx, d.client, cmds)
	case x.checks:
		x.checks, x.alone = false, d.processAlone(ctx, cmds[0])
	default:
		_ = d.client.Process(ctx, cmds[0])
	}
}

// pipeline sends commands in one batch.
func (d *Dispatcher) pipeline(ctx context.Context, client redis.UniversalClient, cmds []*redis.Cmd) {
	pipeline := client.Pipeline()
	for _, cmd := range cmds {
		if d.single {
			_ = pipeline.Process(ctx, cmd)
		} else {
			_ = pipeline.Process(ctx, once{cmd})
		}
	}
	_, err := pipeline.Exec(ctx)
	// A pipeline that gets no connection, for a wrong password say, does not tell its commands why. The error
	// of one that was sent is that of the first command which failed, and the others have their own replies.
	if err != nil && !slices.ContainsFunc(cmds, func(cmd *redis.Cmd) bool {
		return cmd.Err() != nil || cmd.Val() != nil
	}) {
		setErr(cmds, err)
	}
}

func setErr(cmds []*redis.Cmd, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// A form is how a script is run.
type form struct {
	text  bool  // with its text: a server that was restarted, or whose scripts were flushed, does not have it
	write bool  // by a command for scripts that write, though it only reads
	again bool  // once more
	keys  int   // which keys the request names: see keyForms
	moved error // why it does not name all
}

// keyForms are the keys that a script is run with, by their places among those that it has. A cluster that
// moves a slot refuses a script if some of its keys are on one node and some at another, or nowhere: most
// locks have only one or two of theirs. So the key that is always there takes the place of others. A script
// that turns out to need one of those fails, since the key has another type, and has changed nothing.
var keyForms = [...][2]int{{1, 2}, {0, 2}, {1, 0}, {0, 0}}

// next changes the form after err, and reports whether there is another one. For a pipeline, the client does
// not do that.
func (w *form) next(r *protocol.Request, err error) bool {
	switch {
	case err == nil:
	case r.Script == lua.Inspect && !w.write && lacksReadOnly(err):
		w.write = true
		return true
	case !w.text && redis.HasErrorPrefix(err, "NOSCRIPT"):
		w.text = true
		return true
	case w.keys+1 < len(keyForms) && (redis.IsTryAgainError(err) ||
		w.keys > 0 && strings.Contains(err.Error(), "WRONGTYPE")):
		if w.moved == nil {
			w.moved = err
		}
		w.keys++
		return true
	}
	return false
}

// retry reports whether to send a request once more that no server has answered, as the client does with all
// but pipelines to a cluster.
func (w *form) retry(err error) bool {
	if w.again || isAnswer(err) {
		return false
	}
	w.again = true
	return true
}

// isAnswer reports whether a server has answered a command that has ended with err.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	var answer redis.Error
	return errors.As(err, &answer)
}

// failure returns the error of a request whose last form failed with err.
func (w *form) failure(err error) error {
	if w.moved != nil {
		return w.moved
	}
	return err
}

// lacksReadOnly says that a server has no EVALSHA_RO, or refuses TIME there, as miniredis does; or that the
// user may not use it.
func lacksReadOnly(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unknown command") || strings.Contains(text, "read-only scripts") ||
		strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "_ro'")
}

// sums are the scripts' sums, boxed once.
var sums = func() map[*lua.Script]any {
	sums := make(map[*lua.Script]any)
	for _, s := range slices.Concat(lua.All, lua.Quorum) {
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
	list := make([]any, 0, protocol.MaxArgs)
	reads := r.Script == lua.Inspect && !w.write
	switch {
	case w.text && reads:
		list = append(list, "eval_ro", r.Script.Source)
	case w.text:
		list = append(list, "eval", r.Script.Source)
	case reads:
		list = append(list, "evalsha_ro", sums[r.Script])
	default:
		list = append(list, "evalsha", sums[r.Script])
	}
	keys := len(list) + 1
	list = r.Argv(list)
	for i, use := range keyForms[w.keys] {
		list[keys+1+i] = list[keys+use] // a place is only taken by the key itself, or by the first
	}
	return list
}

// explain has a server's error name the place in the script's own file.
func explain(r *protocol.Request, err error) error {
	if err == nil || r.Script == nil || !strings.Contains(err.Error(), "user_script:") {
		return err
	}
	return &scriptError{err, r.Script.Explain(err.Error())}
}

type scriptError struct {
	answer error
	text   string
}

func (e *scriptError) Error() string { return e.text }
func (e *scriptError) Unwrap() error { return e.answer }
func (e *scriptError) RedisError()   {}

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
	d.mu.Unlock()
	done := make(chan struct{})
	go func() {
		d.working.Wait()
		for _, other := range others {
			<-other
		}
		close(done)
	}()
	return done
}
