package client

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// mostAbandoned is the number of abandoned calls that are reported to the engine at a time, which takes less
// than a millisecond.
const mostAbandoned = 32

// abandonedCalls are calls that gave up and have returned. They are reported to the engine a few at a time,
// so that thousands of calls that give up together neither wait for each other nor delay anything else. When
// each reported itself, 4,000 of them took 100 to 250 ms to return beside other work, in place of 40 to 90
// ms.
type abandonedCalls struct {
	mu   sync.Mutex
	list []*Hold
	busy atomic.Bool // a goroutine reports them to the engine
}

// abandon returns the error of a call that err has ended, and queues the call for the report to the engine.
// It returns nil if the call has ended otherwise. Since the call is the only one of its owner, nothing else
// can depend on it.
func (c *Client) abandon(w *wait, held *Hold, err error) error {
	c.mu.RLock()
	if held.State() != engine.Wanted || c.closing {
		c.mu.RUnlock()
		return nil
	}
	held.gaveUp = err
	fails := w.explain(held, err)
	c.mu.RUnlock()
	q := &c.abandoned
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, held)
	if q.busy.CompareAndSwap(false, true) {
		go c.reportAbandoned()
	}
	return fails
}

// reportAbandoned reports the calls that gave up to the engine, until there are none left.
func (c *Client) reportAbandoned() {
	q := &c.abandoned
	for known := 0; ; runtime.Gosched() { // calls that return go first
		q.mu.Lock()
		if n := len(q.list); n > known {
			known = n
			q.mu.Unlock()
			continue
		}
		list := q.list
		q.list, known = nil, 0
		q.busy.Store(len(list) > 0)
		q.mu.Unlock()
		if len(list) == 0 {
			return
		}
		for some := range slices.Chunk(list, mostAbandoned) {
			c.mu.Lock()
			now := time.Now()
			for _, held := range some {
				c.drop(now, held, held.gaveUp)
			}
			c.flush()
			runtime.Gosched()
		}
	}
}
