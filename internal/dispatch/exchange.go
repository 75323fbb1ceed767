package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// How a dispatcher's goroutines send a batch of requests, again in other forms if necessary.

// An exchange is a batch of requests in flight.
type exchange struct {
	requests  []*protocol.Request
	cmds      []*redis.Cmd
	forms     []form
	results   []Result // once they are delivered
	confirmed int      // how many replicas have what was written, if the requests ask for that
	begun     time.Time
	together  bool // renewals, for one run of a script
	checks    bool // whether callers may send
	alone     bool // no hook has handled it
}

// exchange sends a batch, and delivers the results.
func (d *Dispatcher) exchange(x *exchange) {
	ctx := contextOf(x.requests)
	results := x.results
	if x.together {
		results = d.renewTogether(ctx, x)
	}
	for _, r := range x.requests {
		x.cmds, x.forms = append(x.cmds, redis.NewCmd(ctx, args(r, d.first)...)), append(x.forms, d.first)
	}
	if d.wait > 0 {
		x.confirmed = math.MaxInt
	}
	for cmds := x.cmds; len(cmds) > 0; cmds = d.again(ctx, x) {
		d.run(ctx, x, cmds)
	}
	answered := len(results) > 0 && results[0].Err == nil || len(x.cmds) > 0 && isAnswer(x.cmds[0].Err())
	d.mu.Lock()
	// The goroutines that the results wake may queue requests. This goroutine checks the queue again after
	// they have had their turn, and sends these.
	d.active = time.Now()
	d.roused = true
	if took := d.active.Sub(x.begun); len(x.cmds) == 1 && !x.together && answered && d.wait == 0 {
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
	if answered && d.listener.lost.Load() {
		d.listener.answered(d.node)
	}
	for i, cmd := range x.cmds {
		result := Result{Request: x.requests[i], Reply: cmd.Val(), Confirmed: x.confirmed}
		if err := cmd.Err(); err != nil {
			result.Err = d.failure(x.requests[i], cmp.Or(x.forms[i].moved, err))
		}
		results = append(results, result)
	}
	x.results = results
	d.calls.Receive(results)
}

// reset empties the exchange and keeps its memory.
func (x *exchange) reset() {
	clear(x.requests)
	clear(x.cmds)
	clear(x.forms)
	clear(x.results)
	*x = exchange{requests: x.requests[:0], cmds: x.cmds[:0], forms: x.forms[:0], results: x.results[:0]}
}

// renewTogether renews many holds by one run of a script, and returns the results. The requests that remain
// in the exchange have to be sent one by one: those that the script does not decide, or all if the server
// refuses the script.
func (d *Dispatcher) renewTogether(ctx context.Context, x *exchange) (results []Result) {
	results = x.results
	var cmd *redis.Cmd
	run := func(command string, script any) {
		list := append(make([]any, 0, 3+5*len(x.requests)), command, script)
		cmd = redis.NewCmd(ctx, protocol.RenewalArgv(list, x.requests)...)
		d.run(ctx, x, []*redis.Cmd{cmd})
	}
	run("evalsha", sums[lua.Renewals])
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		run("eval", lua.Renewals.Source)
	}
	codes, _ := cmd.Val().([]any)
	err := cmd.Err()
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		d.apart.Store(true)
	}
	left := x.requests[:0]
	for i, r := range x.requests {
		switch {
		case !isAnswer(err):
			results = append(results, Result{Request: r, Err: d.failure(r, err)})
		case i < len(codes) && codes[i] != undecided:
			results = append(results, Result{Request: r, Reply: codes[i]})
		default:
			left = append(left, r)
		}
	}
	clear(x.requests[len(left):])
	x.requests = left
	return results
}

// undecided is the reply of lua/renewals.lua for a claim that only its own script can renew.
var undecided any = int64(2)

// again returns the commands that are to be sent once more, in another form.
func (d *Dispatcher) again(ctx context.Context, x *exchange) (cmds []*redis.Cmd) {
	for i, r := range x.requests {
		err, form := x.cmds[i].Err(), &x.forms[i]
		if err == nil ||
			!form.next(r, err) && (d.of == nil || !d.flies(x) || !form.retry(err) || d.clientClosed(err)) {
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

// failure returns the error of a request that has failed, as its sender gets it.
func (d *Dispatcher) failure(r *protocol.Request, err error) error {
	err = protocol.Advise(explain(r, err))
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
	case probe != nil:
		d.pipeline(ctx, d.client, append(slices.Clip(cmds), probe))
		old := probe.Err() != nil && strings.Contains(probe.Err().Error(), "unknown command")
		d.old.Store(old)
		for i, r := range x.requests {
			if old && acquires(r) {
				x.cmds[i].SetErr(probe.Err()) // what it was granted is withdrawn
			}
		}
	case x.checks:
		x.checks, x.alone = false, d.processAlone(ctx, cmds[0])
	case len(cmds) > 1 || d.piped:
		d.pipeline(ctx, d.client, cmds)
	default:
		_ = d.client.Process(ctx, cmds[0])
	}
}

// versionProbe returns a command that servers before Redis 6.2 do not know, to go with a request for a lock
// that the server has not run the script of before, or nil. The first lock on a name needs no such command,
// and others could not wait for it. A round trip of its own would take too long if the server is far away.
func (d *Dispatcher) versionProbe(ctx context.Context, x *exchange) *redis.Cmd {
	old := d.old.Load()
	for i, r := range x.requests {
		if acquires(r) && (old || x.forms[i].text) {
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

// Refusal returns the error with which a client refuses to make an AutoPipeliner of invalid options. A closed
// client, a ring, and a type around one have errors of their own.
func Refusal(client redis.UniversalClient) error {
	_, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{MaxBatchSize: -1})
	return err
}

func isClosed(client redis.UniversalClient) bool { return errors.Is(Refusal(client), redis.ErrClosed) }

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

// lacksReadOnly says that a server has no EVALSHA_RO, or refuses TIME there, as miniredis does; or that the
// user may not use it.
func lacksReadOnly(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unknown command") || strings.Contains(text, "read-only scripts") ||
		strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "_ro'")
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
