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
	client  *redis.Client // the copy, or nil
	may     bool
	checked time.Time // when an exchange last showed whether they may
}

// SendFrom sends a request from the goroutine of its caller, which is about to wait for the result until ctx
// ends, if nothing else is in flight. Otherwise it does what Send does. It returns soon after ctx has ended.
func (d *Dispatcher) SendFrom(ctx context.Context, r *protocol.Request) {
	if !d.sendsFrom(r) {
		d.Send(r)
		return
	}
	cmd := redis.NewCmd(ctx, args(r, d.first)...)
	err := d.callers.client.Process(ctx, once{cmd})
	d.mu.Lock()
	d.running--
	d.active = time.Now()
	d.callers.may = d.callers.may && err == nil
	d.rouse()
	d.mu.Unlock()
	d.working.Done()
	if err != nil {
		d.Send(r) // to run it twice does no harm
		return
	}
	d.listener.answered(d.node)
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
	if d.callers.client == nil || r.Replicas > 0 || r.Trace != nil || d.old.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !d.callers.may || now.Sub(d.callers.checked) > trust || d.closed || d.running+d.queued() > 0 {
		return false
	}
	// Connecting may take long. The connection of an exchange that has just ended is still open.
	if now.Sub(d.active) > patience && d.callers.client.PoolStats().IdleConns == 0 {
		return false
	}
	d.running++
	d.working.Add(1)
	return true
}

// processAlone sends a command, and reports whether a copy of the client would have done the same, but for
// its timeouts: no hook has handled the command, and no notice of the server's can make timeouts longer.
func (d *Dispatcher) processAlone(ctx context.Context, cmd *redis.Cmd) bool {
	w := &witness{Cmd: cmd}
	_ = d.client.Process(ctx, w)
	return w.alone && d.client.(*redis.Client).GetMaintNotificationsManager() == nil
}

// A witness is a command that finds out whether the client handles it without hooks.
type witness struct {
	*redis.Cmd
	alone bool
}

// Args is called by whatever handles the command. It notes whether that is the client alone, by the functions
// between the dispatcher's and this one.
func (w *witness) Args() []any {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for more, client := true, true; more && client; {
		var f runtime.Frame
		f, more = frames.Next()
		w.alone = strings.HasSuffix(f.Function, "/dispatch.(*Dispatcher).processAlone")
		rest, ok := strings.CutPrefix(f.Function, clientPath)
		client = ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "/internal/"))
	}
	return w.Cmd.Args()
}

// clientPath is the path of the client's package.
var clientPath = reflect.TypeFor[redis.Client]().PkgPath()
