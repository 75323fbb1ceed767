package rwlock

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A pipe sends calls to the server on goroutines of its own, since the client does not give up a command when a context
// ends. Calls that come while others are on their way travel together.
type pipe struct {
	client  redis.UniversalClient
	workers int // the most goroutines that send at a time
	batch   int // the most bytes that travel together, unless one call has more

	mu      sync.Mutex
	wake    sync.Cond
	queue   []*call
	idle    int
	running int
	closed  bool
	stopped chan struct{} // closed when the last goroutine has stopped after close
}

func newPipe(client redis.UniversalClient) *pipe {
	p := &pipe{client: client, workers: 1 << 20, stopped: make(chan struct{})}
	// Calls for several servers must not wait for the slowest of them, and an AutoPipeliner puts commands together
	// itself.
	if _, ok := client.(*redis.Client); ok {
		p.workers, p.batch = pipeWorkers, pipeBatch
	}
	p.wake.L = &p.mu
	return p
}

const (
	pipeWorkers = 8
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
	for range min(len(calls), p.idle) {
		p.wake.Signal()
	}
	for range min(len(calls)-p.idle, p.workers-p.running) {
		p.running++
		go p.work()
	}
	p.mu.Unlock()
}

func (p *pipe) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.queue) == 0 {
			if p.closed {
				p.running--
				if p.running == 0 {
					close(p.stopped)
				}
				return
			}
			p.idle++
			p.wake.Wait()
			p.idle--
		}
		calls := p.take()
		p.mu.Unlock()
		p.exchange(calls)
		p.mu.Lock()
	}
}

// take returns the calls at the head of the queue that travel together.
func (p *pipe) take() []*call {
	n, size := 1, p.queue[0].size()
	for n < len(p.queue) {
		if size += p.queue[n].size(); size > p.batch {
			break
		}
		n++
	}
	calls := p.queue[:n:n]
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
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

func (p *pipe) exchange(calls []*call) {
	ctx := context.Background()
	cmds := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = redis.NewCmd(ctx, c.args...)
	}
	p.process(ctx, cmds)
	// A server that was restarted, or told to forget its scripts, gets the text again. In a pipeline nothing else
	// would see to that.
	var again []*redis.Cmd
	for i, c := range calls {
		err := cmds[i].Err()
		switch {
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			cmds[i] = redis.NewCmd(ctx, c.eval()...)
			again = append(again, cmds[i])
		case err != nil && c.args[0] == "evalsha_ro" && lacksReadOnly(err):
			c.args[0] = "evalsha"
			cmds[i] = redis.NewCmd(ctx, c.eval()...)
			again = append(again, cmds[i])
		}
	}
	if again != nil {
		p.process(ctx, again)
	}
	for i, c := range calls {
		c.reply, c.err = cmds[i].Result()
		c.replyTo.replied(c)
	}
}

// lacksReadOnly says that a server has no EVALSHA_RO, as Redis before 7.0, or one that refuses TIME, as miniredis.
func lacksReadOnly(err error) bool {
	return strings.Contains(err.Error(), "unknown command") || strings.Contains(err.Error(), "read-only scripts")
}

func (p *pipe) process(ctx context.Context, cmds []*redis.Cmd) {
	if len(cmds) == 1 {
		_ = p.client.Process(ctx, cmds[0])
		return
	}
	pipeline := p.client.Pipeline()
	for _, cmd := range cmds {
		_ = pipeline.Process(ctx, cmd)
	}
	_, _ = pipeline.Exec(ctx)
}
