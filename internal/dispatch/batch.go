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

// A batch has the requests of a lane that are in flight together.
type batch struct {
	lane      *lane
	node      *redis.Client // the client for its master, or nil
	all       []*waiting
	requests  []*waiting // of them, those that are still wanted
	begun     time.Time
	answered  bool // by a server
	confirmed int  // how many replicas have what was written, if the requests ask for that
}

// A run is a command of a batch. It stands for one request, or is a run of lua/renewals.lua for several.
type run struct {
	*redis.Cmd
	invocation
	of []*waiting
}

// send sends the batch, and again what has to be invoked in another way. It returns the results.
func (b *batch) send() (results []Result) {
	d := b.lane.d
	if b.requests = b.all; b.lane.wait > 0 {
		b.requests = slices.DeleteFunc(slices.Clone(b.all), func(x *waiting) bool {
			return !d.calls.Wanted(x.request)
		})
		b.confirmed = math.MaxInt
	}
	runs, later := b.runs()
	for ctx := b.context(); len(runs) > 0 && b.begins(); {
		for i := range runs {
			runs[i].Cmd = redis.NewCmd(ctx, runs[i].args(ctx, d)...)
		}
		b.exchange(ctx, runs)
		var again []run
		for _, x := range runs {
			err := x.Err()
			codes, _ := x.Val().([]any)
			switch {
			case err != nil && (x.next(err) || d.cluster.client != nil && x.retry(err)):
				again = append(again, x)
			case len(x.of) == 1 || !isAnswer(err):
				if err != nil {
					err = cmp.Or(x.moved, err)
				}
				for _, of := range x.of {
					results = b.add(results, of, x.Val(), err)
				}
			default:
				for i, of := range x.of {
					if i < len(codes) && codes[i] != undecided {
						results = b.add(results, of, codes[i], nil)
					} else {
						again = append(again, run{of: x.of[i : i+1]})
					}
				}
			}
		}
		runs, later = append(again, later...), nil
	}
	return results
}

// undecided is the reply of lua/renewals.lua for a claim that only its own script can renew.
var undecided any = int64(2)

// runs returns the runs for the batch's requests, and those that are sent after them. One server renews many
// holds by one run, which is longer than batchBytes and therefore sent by itself.
func (b *batch) runs() (runs, later []run) {
	d := b.lane.d
	// not by a replica
	first := invocation{write: d.cluster.client != nil && d.cluster.client.Options().ReadOnly}
	var shared []*waiting
	runs = make([]run, 0, len(b.requests))
	for i, x := range b.requests {
		if d.oneServer && b.lane.kind.renews() && x.request.Shares() {
			shared = append(shared, x)
		} else {
			runs = append(runs, run{invocation: first, of: b.requests[i : i+1]})
		}
	}
	if len(shared) > 0 {
		return []run{{invocation: first, of: shared}}, runs
	}
	return runs, nil
}

// add adds the result of a request, which is the result of its earlier copies, too.
func (b *batch) add(results []Result, x *waiting, reply any, err error) []Result {
	result := Result{Request: x.request, Reply: reply, Confirmed: b.confirmed}
	if err != nil {
		result.Err = b.lane.d.failure(x.request, err)
	}
	results = append(results, result)
	for _, result.Request = range x.earlier {
		results = append(results, result)
	}
	return results
}

// begins notes that commands are sent now, and reports whether the requests are still a matter of this batch:
// their master may have been replaced.
func (b *batch) begins() bool {
	b.lane.d.mu.Lock()
	defer b.lane.d.mu.Unlock()
	b.begun = time.Now()
	_, wanted := b.lane.flying[b]
	return wanted
}

// exchange sends the commands of runs.
func (b *batch) exchange(ctx context.Context, runs []run) {
	d := b.lane.d
	cmds := make([]*redis.Cmd, len(runs))
	for i, x := range runs {
		cmds[i] = x.Cmd
	}
	switch {
	case !d.oneServer && isClosed(d.client): // the client would look for another node, with pauses
		setErr(cmds, redis.ErrClosed)
	case b.lane.wait > 0:
		b.replicate(ctx, cmds)
	case len(cmds) > 1 || d.cluster.client != nil || runs[0].text:
		// The text of a script is sent over a connection for pipelines, which has larger buffers. Before a
		// single command, the client of a cluster asks some node for the list of all commands, and that
		// node may be frozen.
		d.pipeline(ctx, d.client, cmds)
	default:
		_ = d.client.Process(ctx, cmds[0])
	}
	b.answered = isAnswer(cmds[0].Err())
}

// replicate sends commands, and on the same connection asks how many replicas have what they wrote. The
// client of a cluster does not say which connection it uses, so its client for the master is used, without
// the hooks of the former. That one does not follow a slot that moves, so replicate does.
func (b *batch) replicate(ctx context.Context, cmds []*redis.Cmd) {
	d, client := b.lane.d, b.lane.d.client
	if b.node != nil {
		client = b.node
	}
	b.confirm(ctx, client, cmds, cmds)
	moving := make(map[string][]*redis.Cmd) // by the address of the master that imports their slot
	for _, cmd := range cmds {
		if addr, asks := redis.IsAskError(cmd.Err()); asks {
			moving[addr] = append(moving[addr], cmd)
		}
	}
	for addr, cmds := range moving {
		d.mu.Lock()
		node := d.cluster.masters[addr]
		d.mu.Unlock()
		if node != nil {
			var sent []*redis.Cmd
			for _, cmd := range cmds {
				sent = append(sent, redis.NewCmd(ctx, "asking"), cmd)
			}
			b.confirm(ctx, node, cmds, sent)
		}
	}
}

// confirm sends commands, and what goes in front of them, and then WAIT.
func (b *batch) confirm(ctx context.Context, client redis.UniversalClient, cmds, sent []*redis.Cmd) {
	replicas, most := 0, time.Millisecond // 0 would be for ever
	for _, x := range b.requests {
		replicas, most = max(replicas, x.request.Replicas), max(most, x.request.Confirm)
	}
	wait := redis.NewCmd(ctx, "wait", replicas, min(most, b.lane.wait).Milliseconds())
	b.lane.d.pipeline(ctx, client, append(slices.Clip(sent), wait))
	confirmed, err := wait.Int()
	if err != nil {
		setErr(slices.DeleteFunc(slices.Clone(cmds), func(cmd *redis.Cmd) bool { return cmd.Err() != nil }), err)
	}
	// Commands that were sent again came after all others: what was confirmed then covers these.
	b.confirmed = min(b.confirmed, confirmed)
}

// pipeline sends commands in one pipeline.
func (d *Dispatcher) pipeline(ctx context.Context, client redis.UniversalClient, cmds []*redis.Cmd) {
	pipeline := client.Pipeline()
	for _, cmd := range cmds {
		if d.oneServer {
			_ = pipeline.Process(ctx, cmd)
		} else {
			_ = pipeline.Process(ctx, noRetry{cmd})
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

// A noRetry is a command that the client does not send again by itself, unless a server redirects it. If
// the first command of a pipeline to a cluster fails, the client would send all of them again. It may be
// sending some of them to another node at that moment, and two goroutines would then write one reply.
type noRetry struct{ *redis.Cmd }

// NoRetry tells the client.
func (noRetry) NoRetry() bool { return true }

func setErr(cmds []*redis.Cmd, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// context returns the context that the batch is sent with: that of the first request that has its own.
func (b *batch) context() context.Context {
	for _, x := range b.requests {
		if x.request.Trace != nil {
			return contextOf(x.request)
		}
	}
	return context.Background()
}

// contextOf returns the context that a request is sent with. Its end does not interrupt the request.
func contextOf(r *protocol.Request) context.Context {
	if r.Trace != nil {
		return context.WithoutCancel(r.Trace)
	}
	return context.Background()
}

// sums are the scripts' sums, converted once.
var sums = func() map[*lua.Script]any {
	sums := make(map[*lua.Script]any)
	for _, s := range lua.Scripts {
		sums[s] = s.SHA
	}
	return sums
}()

// args returns the arguments of a run, made again each time that it is sent: the client's hooks may change
// them.
func (x *run) args(ctx context.Context, d *Dispatcher) []any {
	if r := x.of[0].request; len(x.of) == 1 {
		list := args(r, x.invocation)
		if x.text && slices.Contains(lua.Quorum, r.Script) {
			list = append(list, d.durable(ctx))
		}
		return list
	}
	list := make([]*protocol.Request, len(x.of))
	for i, of := range x.of {
		list[i] = of.request
	}
	return protocol.RenewalArgv(x.script(lua.Renewals, 3+6*len(list)), list)
}

// args returns the arguments of a request.
func args(r *protocol.Request, w invocation) []any {
	if r.Script == nil {
		list := make([]any, len(r.Command))
		for i, arg := range r.Command {
			list[i] = arg
		}
		return list
	}
	list := r.Argv(w.script(r.Script, protocol.MaxArgs))
	for i, use := range substitutes[w.keys] {
		list[4+i] = list[3+use] // a place is only taken by the key itself, or by the first
	}
	return list
}

// script returns the command that runs a script, with room for its keys and arguments.
func (w invocation) script(s *lua.Script, room int) []any {
	command, script := "evalsha", sums[s]
	if w.text {
		command, script = "eval", s.Source
	}
	if s == lua.Inspect && !w.write {
		command += "_ro"
	}
	return append(make([]any, 0, room), command, script)
}

// size returns an upper bound of the request's size on the wire, in bytes.
func size(r *protocol.Request) int {
	n := 128
	for _, arg := range r.Command {
		n += 8 + len(arg)
	}
	for _, s := range [...]string{r.Claim.ID, r.Claim.Number, r.Claim.Slot, r.Channels, r.Former, r.Record} {
		n += 8 + len(s)
	}
	for _, key := range [...]any{r.Keys.Lock, r.Keys.Leases, r.Keys.Queue} {
		key, _ := key.(string)
		n += 8 + len(key)
	}
	return n
}

// An invocation is how a script is run.
type invocation struct {
	text  bool  // with its text: a server that was restarted, or whose scripts were flushed, does not have it
	write bool  // by a command for scripts that write, though it only reads
	again bool  // once more
	keys  int   // which keys the request names: see substitutes
	moved error // why it does not name all
}

// substitutes are the keys that a script is run with, by their places among those that it has. A cluster that
// moves a slot refuses a script if some of its keys are on one node and some at another, or nowhere: most
// locks have only one or two of theirs. So the key that is always there takes the place of others. A script
// that turns out to need one of those fails, since the key has another type, and has changed nothing.
var substitutes = [...][2]int{{1, 2}, {0, 2}, {1, 0}, {0, 0}}

// next changes the invocation after err, and reports whether there is another one. For a pipeline, the client
// does not do that.
func (x *run) next(err error) bool {
	switch {
	case x.of[0].request.Script == lua.Inspect && !x.write && lacksReadOnly(err):
		x.write = true
		return true
	case !x.text && redis.HasErrorPrefix(err, "NOSCRIPT"):
		x.text = true
		return true
	case len(x.of) == 1 && x.keys+1 < len(substitutes) && (redis.IsTryAgainError(err) ||
		x.keys > 0 && strings.Contains(err.Error(), "WRONGTYPE")):
		if x.moved == nil {
			x.moved = err
		}
		x.keys++
		return true
	}
	return false
}

// retry reports whether to send a request once more that no server has answered, as the client does with all
// but pipelines to a cluster.
func (w *invocation) retry(err error) bool {
	if w.again || isAnswer(err) {
		return false
	}
	w.again = true
	return true
}

// lacksReadOnly says that a server has no EVALSHA_RO, or refuses TIME there, as miniredis does; or that the
// user may not use it.
func lacksReadOnly(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unknown command") || strings.Contains(text, "read-only scripts") ||
		strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "_ro'")
}

// durable returns "durable" if the server confirms nothing that it could forget, or "volatile": see
// lua/quorum/run.lua.
func (d *Dispatcher) durable(ctx context.Context) string {
	says, err := d.client.ConfigGet(ctx, "append*").Result()
	if err == nil && says["appendonly"] == "yes" && says["appendfsync"] == "always" {
		return "durable"
	}
	return "volatile"
}

// failure returns the error of a request that has failed, as its sender gets it.
func (d *Dispatcher) failure(r *protocol.Request, err error) error {
	err = protocol.Advise(explain(r, err))
	switch {
	case !isAnswer(err) && isClosed(d.client):
		if !errors.Is(err, redis.ErrClosed) { // it was in flight
			err = fmt.Errorf("%w: %w", redis.ErrClosed, err)
		}
		return protocol.ClientClosed(err)
	case d.oneServer:
		return protocol.OneNode(err)
	}
	d.mapFailed(err)
	return err
}

// isAnswer reports whether a server has answered a command that has ended with err.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	var answer redis.Error
	return errors.As(err, &answer)
}

// Refusal returns the error with which a client refuses to make an AutoPipeliner of invalid options. A closed
// client, a ring, and a type around one have errors of their own.
func Refusal(client redis.UniversalClient) error {
	_, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{MaxBatchSize: -1})
	return err
}

// isClosed reports whether the program has closed the client. The error of a request does not show it: a
// client of a cluster also closes its clients for nodes that have left.
func isClosed(client redis.UniversalClient) bool { return errors.Is(Refusal(client), redis.ErrClosed) }

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
