package client

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// mostQuit is how many calls that gave up the engine is told of at a time: that takes less than a
// millisecond.
const mostQuit = 32

// quitters are calls that gave up, and have returned: the engine is told of them a few at a time, so that
// thousands which give up together neither wait for each other nor hold up anything else.
type quitters struct {
	mu   sync.Mutex
	list []*Hold
	busy atomic.Bool // a goroutine tells the engine of them
}

// quit returns what a call fails with that err has ended, and has the engine told of it later. It returns nil
// if the call has come to an end otherwise. Nothing else can depend on what becomes of the call, since it is
// the only one of its owner.
func (c *Client) quit(w *wait, held *Hold, err error) error {
	c.mu.RLock()
	if held.hold.State() != engine.Wanted || c.closing {
		c.mu.RUnlock()
		return nil
	}
	held.gaveUp = err
	fails := w.explain(held, err)
	c.mu.RUnlock()
	q := &c.quitters
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, held)
	if q.busy.CompareAndSwap(false, true) {
		go c.tellQuitters()
	}
	return fails
}

// tellQuitters tells the engine of the calls that gave up, until there are none left.
func (c *Client) tellQuitters() {
	q := &c.quitters
	for {
		for n := 0; n != q.len(); runtime.Gosched() { // calls that return go first
			n = q.len()
		}
		q.mu.Lock()
		list := q.list
		q.list = nil
		q.busy.Store(len(list) > 0)
		q.mu.Unlock()
		if len(list) == 0 {
			return
		}
		for some := range slices.Chunk(list, mostQuit) {
			c.mu.Lock()
			now := time.Now()
			for _, held := range some {
				c.leave(now, held)
			}
			c.flush()
			runtime.Gosched()
		}
	}
}

func (q *quitters) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list)
}

// leave ends a call that its caller has left. If it has been granted the lock meanwhile, it passes it on.
// Client.mu is locked.
func (c *Client) leave(now time.Time, held *Hold) {
	if held.waits() {
		c.engine.GiveUp(now, &held.hold, held.gaveUp)
	}
	held.traced()
	_, _ = c.engine.Release(now, &held.hold)
}
