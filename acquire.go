package rwlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// acquire is the one path on which both modes try, wait and give up.
func (rw *RWLock) acquire(ctx context.Context, op string, mode Mode, name string, try bool, opts []LockOption) (*Hold, error) {
	if err := checkName(name); err != nil {
		return nil, wrap(op, name, err)
	}
	req, err := rw.request(opts)
	if err != nil {
		return nil, wrap(op, name, err)
	}
	w := wait{ctx: ctx, start: time.Now()}
	if req.maxWait > 0 {
		timer := time.NewTimer(req.maxWait)
		defer timer.Stop()
		w.expired = timer.C
	}
	h, err := rw.acquireFor(&w, mode, name, try, req)
	if err != nil {
		return nil, wrap(op, name, err)
	}
	return h, nil
}

// A wait is what can end a lock call before it has the lock.
type wait struct {
	ctx     context.Context
	start   time.Time
	expired <-chan time.Time // of MaxWait
}

// over returns what the call fails with once signal was not what ended the wait.
func (w *wait) over(err error) error {
	if cause := context.Cause(w.ctx); cause != nil && errors.Is(err, w.ctx.Err()) && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("%w after %v", err, time.Since(w.start).Round(time.Millisecond))
}

// until waits for ready, and returns nil, or what ended the wait before.
func (w *wait) until(ready, closed <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-w.ctx.Done():
		return w.over(w.ctx.Err())
	case <-w.expired:
		return w.over(context.DeadlineExceeded)
	case <-closed:
		return ErrClosed
	}
}

func (rw *RWLock) acquireFor(w *wait, mode Mode, name string, try bool, req request) (*Hold, error) {
	owner, ok := OwnerFromContext(w.ctx)
	if !ok {
		owner = NewOwner()
	}
	if err := w.ctx.Err(); err != nil {
		return nil, w.over(err)
	}
	for tries := 1; ; {
		rw.mu.Lock()
		if rw.closed {
			rw.mu.Unlock()
			return nil, ErrClosed
		}
		lk := rw.use(name)
		own := lk.ownership(owner)
		if mine := *own.claim(mode); mine != nil {
			h, err := mine.reenter(w, req)
			rw.mu.Lock()
			lk.drop()
			rw.mu.Unlock()
			return h, err
		}
		if own.acquiring {
			acquired, err := own.wait(), ErrLocked
			lk.drop()
			rw.mu.Unlock()
			if !try {
				err = w.until(acquired, rw.done)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		var err error
		switch {
		case own.read != nil && own.read.lost, own.write != nil && own.write.lost:
			err = ErrLost
		case own.read != nil:
			err = ErrUpgrade
		}
		if err != nil {
			lk.drop()
			rw.mu.Unlock()
			return nil, err
		}
		own.acquiring = true
		h, err := own.acquire(w, mode, try, req)
		rw.mu.Lock()
		own.endAcquiring()
		lk.drop()
		rw.mu.Unlock()
		if !errors.Is(err, errAgain) || tries == mostTries {
			return h, err
		}
		tries++
	}
}

// wait returns a channel that is closed when the owner's call in progress has ended.
func (own *ownership) wait() <-chan struct{} {
	if own.acquired == nil {
		own.acquired = make(chan struct{})
	}
	return own.acquired
}

// errAgain says that the claim came to nothing, though nobody is in its way: its lease ended before the process noticed
// the grant, or the server took it for one that had ended, as one does that forgot its last writes in a failover.
var errAgain = errors.New("the server keeps refusing the request")

const mostTries = 10

// acquire claims the lock for an owner that has no claim in that mode. It is called with RWLock.mu held, and returns
// without it.
func (own *ownership) acquire(w *wait, mode Mode, try bool, req request) (*Hold, error) {
	rw := own.lk.rw
	c := own.newClaim(mode, req.lease, try)
	first := c.first()
	c.schedule()
	rw.mu.Unlock()
	if w.ctx.Done() == nil && w.expired == nil {
		rw.pipe.sendHere(context.Background(), first)
	} else {
		rw.pipe.send(first)
	}

	gaveUp := w.until(c.ready, rw.done)
	if gaveUp != nil {
		defer c.unsignal()
	}
	var b batch
	defer rw.run(&b)
	rw.mu.Lock()
	defer rw.mu.Unlock()
	switch {
	case c.state == waiting:
		// Whatever ended the wait came first. Should the server grant the claim in this very moment, it is told to pass
		// it on.
		c.fail(gaveUp, &b)
		if c.queued {
			return nil, fmt.Errorf("%w: %v", gaveUp, c.obstacle)
		}
		return nil, gaveUp
	case c.state == held && time.Now().Before(c.deadline) && !rw.closed:
		*own.claim(mode) = c
		return c.newHold(w.ctx, req, c.queued), nil
	case c.state == held:
		// The process slept through the lease of what it was granted.
		c.end(&b)
		if rw.closed {
			return nil, ErrClosed
		}
		return nil, errAgain
	case errors.Is(c.err, ErrLocked) && c.obstacle.claim != "":
		return nil, fmt.Errorf("%w: %v", ErrLocked, c.obstacle)
	case c.err == nil:
		return nil, errAgain
	}
	return nil, c.err
}

// reenter adds a hold to a claim that its owner has. It is called with RWLock.mu held, and returns without it.
func (c *claim) reenter(w *wait, req request) (*Hold, error) {
	rw := c.rw()
	if c.lost || c.state != held {
		rw.mu.Unlock()
		return nil, ErrLost
	}
	h := c.newHold(w.ctx, req, false)
	r := c.recount(req.lease)
	rw.mu.Unlock()
	rw.pipe.send(r.call)

	err := w.until(r.ready, rw.done)
	if err == nil {
		err = r.err
	}
	var b batch
	defer rw.run(&b)
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if err == nil && !r.exists {
		err = ErrLost
		if c.state == held {
			c.lose(&b)
		}
	}
	if err == nil {
		c.keptFor(h, r.call.sent, req)
		if h.over {
			err = h.cause
		}
	}
	if err != nil {
		// The request may yet run, so the count is set right, or the claim ended if this was its last hold.
		h.stop()
		c.leave(h.holding, &b)
		return nil, err
	}
	return h, nil
}

// A recount sets the number of a claim's holds at the server. The number is absolute and the request numbered, so that
// it may run twice, or late.
type recount struct {
	claim  *claim
	call   *call
	ready  chan struct{}
	exists bool
	err    error
}

func (c *claim) recount(lease time.Duration) *recount {
	c.counted, c.sole.says = true, nil
	r := &recount{claim: c, ready: make(chan struct{})}
	r.call = c.own.lk.newCall(reenterScript, r, c.slot.key,
		c.id, c.mode.String(), len(c.holds), lastNumber.Add(1), milliseconds(lease))
	r.call.sent = time.Now()
	return r
}

func (r *recount) replied(k *call) {
	if r.err = k.err; r.err == nil {
		r.exists, r.err = existsAnswer(k.reply)
	}
	if r.err != nil {
		rw := r.claim.rw()
		rw.mu.Lock()
		r.claim.miscounted = true
		rw.mu.Unlock()
	}
	close(r.ready)
}
