package rwlock

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A pipe sends calls to the server on goroutines of its own, since the client does not give up a command when a context
// ends. Calls that come while others are on their way travel together.
type pipe struct {
	client  redis.UniversalClient
	workers int  // the most goroutines that send at a time
	batch   int  // the most bytes that travel together, unless one call has more
	here    bool // a caller may send on its own goroutine

	mu      sync.Mutex
	wake    sync.Cond
	queue   []*call
	idle    int
	running int
	sending int  // exchanges under way
	roused  bool // a goroutine that waited, or a new one, is about to look at the queue

	returned time.Time // when a goroutine last came back from the server
	closed   bool
	stopped  chan struct{} // closed when the last goroutine has stopped after close
}

func newPipe(client redis.UniversalClient) *pipe {
	p := &pipe{client: client, workers: 1 << 20, stopped: make(chan struct{})}
	// Calls for several servers must not wait for the slowest of them.
	switch c := client.(type) {
	case *redis.Client:
		p.workers, p.batch = pipeWorkers, pipeBatch
		// A read that may take for ever is not for the caller's goroutine.
		timeout := c.Options().ReadTimeout
		p.here = 0 < timeout && timeout <= closeTimeout
	case *redis.AutoPipeliner:
		p.workers, p.batch = pipeWorkers, pipeBatch
	}
	p.wake.L = &p.mu
	return p
}

const (
	pipeWorkers  = 8
	pipePatience = 100 * time.Millisecond
	// A server that answers each command before it reads the next, over a connection that buffers nothing, as miniredis
	// in memory, takes in this much before it answers; with more, both sides would wait for the other to read.
	pipeBatch = 4096
)

// send hands calls to the pipe, and returns at once. Their repliers are told even if the pipe is closed.
func (p *pipe) send(calls ...*call) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		for _, c := range calls {
			c.err = ErrClosed
			c.replyTo.replied(c)
		}
		return
	}
	p.queue = append(p.queue, calls...)
	p.rouse()
	p.mu.Unlock()
}

// sendHere sends c on the caller's goroutine, and returns when its replier was told, if nothing else is on its way: that
// spares an uncontended call two changes of goroutine. It is for a caller that has nothing else to watch; ctx bounds the
// client's own retries.
func (p *pipe) sendHere(ctx context.Context, c *call) {
	p.mu.Lock()
	if !p.here || p.closed || p.sending > 0 || len(p.queue) > 0 {
		p.mu.Unlock()
		p.send(c)
		return
	}
	p.sending++
	p.mu.Unlock()
	p.exchange(ctx, []*call{c}, nil)
	p.mu.Lock()
	p.sending--
	p.mu.Unlock()
}

// rouse sees to it that a goroutine is about to send what is queued.
func (p *pipe) rouse() {
	switch {
	case p.roused || len(p.queue) == 0:
	case p.idle > 0:
		p.roused = true
		p.wake.Signal()
	case p.running < p.workers, time.Since(p.returned) > pipePatience:
		// If none has come back for a while, perhaps all wait for one server of several, or on connections that are
		// dead: so one more tries.
		p.returned = time.Now()
		p.roused = true
		p.running++
		go p.work()
	}
}

func (p *pipe) work() {
	var calls []*call
	for {
		// Goroutines that are ready to run may have calls to add.
		runtime.Gosched()
		p.mu.Lock()
		for len(p.queue) == 0 {
			p.roused = false
			if p.closed || p.running > p.workers {
				p.running--
				if p.closed && p.running == 0 {
					close(p.stopped)
				}
				p.mu.Unlock()
				return
			}
			p.idle++
			p.wake.Wait()
			p.idle--
		}
		calls = p.take(calls[:0])
		p.roused = false
		p.rouse()
		p.sending++
		p.mu.Unlock()
		p.exchange(context.Background(), calls, p.back)
	}
}

// back notes that a goroutine is back from the server, and about to look at the queue again, as soon as those that its
// replies have woken have had their turn: it will send what they have to send.
func (p *pipe) back() {
	p.mu.Lock()
	p.sending--
	p.returned = time.Now()
	p.roused = true
	p.mu.Unlock()
}

// take moves the calls at the head of the queue that travel together to calls.
func (p *pipe) take(calls []*call) []*call {
	n, size := 1, p.queue[0].size()
	for n < len(p.queue) {
		if size += p.queue[n].size(); size > p.batch {
			break
		}
		n++
	}
	calls = append(calls, p.queue[:n]...)
	rest := copy(p.queue, p.queue[n:])
	clear(p.queue[rest:])
	p.queue = p.queue[:rest]
	return calls
}

// close sends what was handed over, and then stops the goroutines. The channel is closed when they have stopped.
func (p *pipe) close() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.wake.Broadcast()
	if p.running == 0 {
		close(p.stopped)
	}
	return p.stopped
}

// exchange sends calls, and tells their repliers.
func (p *pipe) exchange(ctx context.Context, calls []*call, back func()) {
	for todo := calls; len(todo) > 0; {
		for _, c := range todo {
			c.cmd = redis.NewCmd(ctx, c.args...)
		}
		p.process(ctx, todo)
		var again []*call
		for _, c := range todo {
			if c.fallBack(c.cmd.Err()) {
				again = append(again, c)
			}
		}
		todo = again
	}
	if back != nil {
		back()
	}
	for _, c := range calls {
		c.reply, c.err = c.cmd.Result()
		c.replyTo.replied(c)
	}
}

func (p *pipe) process(ctx context.Context, calls []*call) {
	if len(calls) == 1 {
		_ = p.client.Process(ctx, calls[0].cmd)
		return
	}
	pipeline := p.client.Pipeline()
	for _, c := range calls {
		_ = pipeline.Process(ctx, c.cmd)
	}
	_, _ = pipeline.Exec(ctx)
}
