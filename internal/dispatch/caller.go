package dispatch

import (
	"context"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// How the goroutine that calls Lock or Unlock sends its request itself.

const (
	// callerTimeout is how long a caller that sends its own request waits for the reply. With what a busy
	// program adds, the caller still returns within 50 ms of its context's end.
	callerTimeout = 30 * time.Millisecond
	// prompt is the longest exchange after which callers may send. A busy program makes exchanges longer: if
	// prompt were shorter, its callers would never send again after one had waited in vain.
	prompt = callerTimeout * 2 / 3
	// trust is how long callers may send after such an exchange.
	trust = time.Second
)

// A callers says whether the goroutines of callers may send. They use a copy of the client with a short
// timeout, since the client does not give up a command when a context ends. The copy shares the client's
// connections, but does not run its hooks. So an ordinary exchange shows from time to time that there is no
// hook, and that the server answers promptly.
type callers struct {
	of      *redis.Client // or nil, then callers do not send
	client  *redis.Client // the copy
	may     bool
	checked time.Time // when an exchange last showed whether they may
}

// callersOf returns callers who use a copy of a client, once an exchange has shown that they may.
func callersOf(client *redis.Client) callers {
	return callers{of: client, client: client.WithTimeout(callerTimeout)}
}

// connected reports whether a connection is open and not in use. Pipelines usually have their own.
func (c *callers) connected(piped bool) bool {
	stats := c.client.PoolStats()
	if piped && stats.PipelineStats != nil {
		return stats.PipelineStats.IdleConns > 0
	}
	return stats.IdleConns > 0
}

// SendFrom sends a request from the goroutine of its caller, which is about to wait for the result until ctx
// ends, if nothing else is in flight. Otherwise it does what Send does. It returns soon after ctx has ended.
func (d *Dispatcher) SendFrom(ctx context.Context, r *protocol.Request) {
	if d.cluster != nil {
		d.cluster.sendFrom(ctx, r)
		return
	}
	if !d.sendsFrom(r) {
		d.Send(r)
		return
	}
	cmd := redis.NewCmd(ctx, args(r, d.first)...)
	err := d.process(ctx, d.callers.client, once{cmd})
	if err != nil {
		d.Send(r) // to run it twice does no harm. Not later: the lane of a cluster that rests may be dropped.
	}
	d.mu.Lock()
	d.running--
	d.active = time.Now()
	d.callers.may = d.callers.may && err == nil
	d.rouse()
	d.mu.Unlock()
	d.working.Done()
	if err != nil {
		return
	}
	if d.listener.lost.Load() {
		d.listener.answered(d.node)
	}
	results := singles.Get().(*[1]Result)
	results[0] = Result{Request: r, Reply: cmd.Val()}
	d.calls.Receive(results[:])
	results[0] = Result{}
	singles.Put(results)
}

// singles are memory for the results of callers.
var singles = sync.Pool{New: func() any { return new([1]Result) }}

// sendsFrom reports whether the caller has to send a request. If so, the request counts as in flight.
func (d *Dispatcher) sendsFrom(r *protocol.Request) bool {
	if d.callers.of == nil || r.Replicas > 0 || r.Trace != nil || d.old.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !d.callers.may || now.Sub(d.callers.checked) > trust || d.closed || d.running+d.queued() > 0 {
		return false
	}
	// Connecting may take long. The connection of an exchange that has just ended is still open.
	if now.Sub(d.active) > patience && !d.callers.connected(d.piped) {
		return false
	}
	d.running++
	d.working.Add(1)
	return true
}

// process sends one command, in a pipeline if the dispatcher sends all that way.
func (d *Dispatcher) process(ctx context.Context, client redis.UniversalClient, cmd redis.Cmder) error {
	if !d.piped {
		return client.Process(ctx, cmd)
	}
	pipeline := client.Pipeline()
	_ = pipeline.Process(ctx, cmd)
	_, err := pipeline.Exec(ctx)
	return err
}

// processAlone sends a command, and reports whether callers.client would have done the same, but for its
// timeouts: no hook has handled the command, and no notice of the server's can make timeouts longer.
func (d *Dispatcher) processAlone(ctx context.Context, cmd *redis.Cmd) bool {
	w := &witness{Cmd: cmd, once: !d.single}
	if err := d.process(ctx, d.client, w); err != nil {
		cmd.SetErr(err)
	}
	return w.called && (w.passed || d.single) && !w.hooked && d.callers.of.GetMaintNotificationsManager() == nil
}

// A witness is a command that finds out whether the client handles it without hooks.
type witness struct {
	*redis.Cmd
	once   bool // the client must not send it again
	called bool // the client has handled it on the dispatcher's goroutine
	passed bool // the client has handled it on one of its own, as that for a cluster does afterwards
	hooked bool // something else than the client has handled it
}

// Args is called by whatever handles the command. It looks at the functions between the dispatcher's, or the
// start of a goroutine, and this one.
func (w *witness) Args() []any {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for client := true; client; {
		f, more := frames.Next()
		rest, ok := strings.CutPrefix(f.Function, clientPath)
		client = more && ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "/internal/"))
		switch {
		case client:
		case strings.HasPrefix(f.Function, dispatcherPath):
			w.called = true
		case f.Function == "runtime.goexit":
			w.passed = true
		default:
			w.hooked = true
		}
	}
	return w.Cmd.Args()
}

// NoRetry tells the client whether it must not send the command again.
func (w *witness) NoRetry() bool { return w.once }

// clientPath is the path of the client's package.
var clientPath = reflect.TypeFor[redis.Client]().PkgPath()

// dispatcherPath is what the names of the dispatcher's methods begin with.
var dispatcherPath = reflect.TypeFor[Dispatcher]().PkgPath() + ".(*Dispatcher)."
