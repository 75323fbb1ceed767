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
	lane        *lane
	all         []waiting
	requests    []waiting // of them, those that are to be sent one by one
	shared      bool      // renewals, for one run of a script
	begun       time.Time
	answered    bool // by a server
	confirmed   int  // how many replicas have what was written, if the requests ask for that
	cmds        []*redis.Cmd
	invocations []invocation
}

// send sends the batch, and again what has to be invoked in another way. It returns the results.
func (b *batch) send() (results []Result) {
	d := b.lane.d
	if b.lane.wait > 0 {
		b.requests = slices.DeleteFunc(slices.Clone(b.all), func(x waiting) bool {
			return !d.calls.Wanted(x.request)
		})
		b.confirmed = math.MaxInt
	}
	if len(b.requests) == 0 {
		return nil
	}
	ctx := b.context()
	if b.shared {
		results = b.renewTogether(ctx)
	}
	// not by a replica
	first := invocation{write: d.cluster.client != nil && d.cluster.client.Options().ReadOnly}
	for _, x := range b.requests {
		b.cmds = append(b.cmds, redis.NewCmd(ctx, args(x.request, first)...))
		b.invocations = append(b.invocations, first)
	}
	for cmds := b.cmds; len(cmds) > 0 && b.begins(); cmds = b.again(ctx) {
		b.run(ctx, cmds)
	}
	b.answered = b.answered || len(b.cmds) > 0 && isAnswer(b.cmds[0].Err())
	for i, x := range b.requests {
		err := b.cmds[i].Err()
		if err != nil {
			err = cmp.Or(b.invocations[i].moved, err)
		}
		results = b.add(results, x, b.cmds[i].Val(), err)
	}
	return results
}

// add adds the result of a request, which is the result of its earlier copies, too.
func (b *batch) add(results []Result, x waiting, reply any, err error) []Result {
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

// renewTogether renews many holds by one run of a script, and returns the results. The requests that remain
// in the batch have to be sent one by one: those that the script does not decide, or all if the server
// refuses the script. A conversion remains, too: the script would only renew its new claim.
func (b *batch) renewTogether(ctx context.Context) (results []Result) {
	var cmd *redis.Cmd
	var list []*protocol.Request
	var shared, left []waiting
	for _, x := range b.requests {
		if x.request.Shares() {
			shared, list = append(shared, x), append(list, x.request)
		} else {
			left = append(left, x)
		}
	}
	if len(shared) < 2 {
		return nil
	}
	run := func(command string, script any) {
		argv := append(make([]any, 0, 3+5*len(list)), command, script)
		cmd = redis.NewCmd(ctx, protocol.RenewalArgv(argv, list)...)
		b.run(ctx, []*redis.Cmd{cmd})
	}
	run("evalsha", sums[lua.Renewals])
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		run("eval", lua.Renewals.Source)
	}
	codes, _ := cmd.Val().([]any)
	err := cmd.Err()
	b.answered = isAnswer(err)
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		b.lane.d.crossSlot.Store(true)
	}
	for i, x := range shared {
		switch {
		case !b.answered:
			results = b.add(results, x, nil, err)
		case i < len(codes) && codes[i] != undecided:
			results = b.add(results, x, codes[i], nil)
		default:
			left = append(left, x)
		}
	}
	b.requests = left
	return results
}

// undecided is the reply of lua/renewals.lua for a claim that only its own script can renew.
var undecided any = int64(2)

// again returns the commands that are to be sent once more, invoked in another way.
func (b *batch) again(ctx context.Context) (cmds []*redis.Cmd) {
	d := b.lane.d
	for i, x := range b.requests {
		err, w := b.cmds[i].Err(), &b.invocations[i]
		if err == nil || !w.next(x.request, err) && (d.cluster.client == nil || !w.retry(err)) {
			continue
		}
		argv := args(x.request, *w)
		if w.text && slices.Contains(lua.Quorum, x.request.Script) {
			argv = append(argv, d.durable(ctx))
		}
		b.cmds[i] = redis.NewCmd(ctx, argv...)
		cmds = append(cmds, b.cmds[i])
	}
	return cmds
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

// run sends some of the batch's commands.
func (b *batch) run(ctx context.Context, cmds []*redis.Cmd) {
	d := b.lane.d
	switch {
	case !d.oneServer && isClosed(d.client): // the client would look for another node, with pauses
		setErr(cmds, redis.ErrClosed)
	case b.lane.wait > 0:
		b.replicate(ctx, cmds)
	case len(cmds) > 1 || d.cluster.client != nil || len(b.invocations) > 0 && b.invocations[0].text:
		// The text of a script is sent over a connection for pipelines, which has larger buffers. Before a
		// single command, the client of a cluster asks some node for the list of all commands, and that
		// node may be frozen.
		d.pipeline(ctx, d.client, cmds)
	default:
		_ = d.client.Process(ctx, cmds[0])
	}
}

// replicate sends commands, and on the same connection asks how many replicas have what they wrote. The
// client of a cluster does not say which connection it uses, so its client for the master is used, without
// the hooks of the former. That one does not follow a slot that moves, so replicate does.
func (b *batch) replicate(ctx context.Context, cmds []*redis.Cmd) {
	d, client := b.lane.d, b.lane.d.client
	if b.lane.node != nil {
		client = b.lane.node
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

// args returns the arguments of a request, made again each time that it is sent: the client's hooks may
// change them.
func args(r *protocol.Request, w invocation) []any {
	list := make([]any, 0, protocol.MaxArgs)
	if r.Script == nil {
		for _, arg := range r.Command {
			list = append(list, arg)
		}
		return list
	}
	command, script := "evalsha", sums[r.Script]
	if w.text {
		command, script = "eval", r.Script.Source
	}
	if r.Script == lua.Inspect && !w.write {
		command += "_ro"
	}
	list = append(list, command, script)
	keys := len(list) + 1
	list = r.Argv(list)
	for i, use := range substitutes[w.keys] {
		list[keys+1+i] = list[keys+use] // a place is only taken by the key itself, or by the first
	}
	return list
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
func (w *invocation) next(r *protocol.Request, err error) bool {
	switch {
	case r.Script == lua.Inspect && !w.write && lacksReadOnly(err):
		w.write = true
		return true
	case !w.text && redis.HasErrorPrefix(err, "NOSCRIPT"):
		w.text = true
		return true
	case w.keys+1 < len(substitutes) && (redis.IsTryAgainError(err) ||
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
