package faults

import (
	"context"
	"errors"
	"net/rpc"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/faults/bank"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

// upgraded is the role of a write hold that an upgrade has made.
const upgraded = "upgraded"

// plans looks at both accounts, and returns what to put there.
func (o *owner) plans(h *hold) (rest []bank.Request) {
	for _, fenced := range []bool{true, false} {
		q, ok := o.count(h, fenced)
		if !ok {
			return nil
		}
		rest = append(rest, q)
	}
	return rest
}

// put does the rest of an operation under a write hold. It relies on what another hold has seen: nobody may
// have written since.
func (o *owner) put(h *hold, rest []bank.Request) {
	for _, q := range rest {
		q.Token, q.Write = h.Event.Token, true
		if !o.good(h, &q.Access) {
			return
		}
		_ = o.client.Call(bank.Method, q, new(bank.Reply))
		o.think(h)
	}
}

// handOn begins an operation, and hands the hold and the rest of the operation to another process. The ticket
// lasts for a third of a lease: if nobody uses it, the others go on after that.
func (o *owner) handOn(h *hold) {
	rest := o.plans(h)
	if o.worker.ctx.Err() != nil { // so are the others about to end
		o.put(h, rest)
		rest = nil
	}
	if rest == nil {
		o.unlock(h, time.Now())
		return
	}
	job := bank.Job{Process: o.Process, Rest: rest}
	o.leave(h, time.Now(), func(ctx context.Context) error {
		ticket, err := h.Detach(ctx, o.Lease/3)
		if err != nil {
			if end := h.Unlock(ctx); !errors.Is(end, rwlock.ErrNotHeld) { // it is still this process's
				return end
			}
			return err
		}
		text, err := ticket.MarshalText()
		job.Ticket = string(text)
		return err
	})
	if job.Ticket != "" {
		_ = o.client.Call("Bank.Give", job, new(struct{}))
	}
}

// heir does the rest of what other processes have begun, until the process is told to end. It discards some.
func (w *worker) heir() {
	o := w.newOwner(owners * (w.Process + 1))
	defer func() { _ = o.client.Close() }()
	for n := 0; w.ctx.Err() == nil; {
		var job bank.Job
		take := o.client.Go("Bank.Take", w.Process, &job, make(chan *rpc.Call, 1))
		select {
		case <-take.Done:
			if take.Error == nil && job.Ticket != "" {
				o.inherit(job, n%4 == 1)
				n++
			}
		case <-w.ctx.Done():
		}
	}
}

func (o *owner) inherit(job bank.Job, discards bool) {
	var ticket rwlock.Ticket
	if err := ticket.UnmarshalText([]byte(job.Ticket)); err != nil {
		o.report(history.Broken, history.Event{Error: err.Error()})
		return
	}
	used := bank.Use{Ticket: job.Ticket}
	if discards {
		ctx, cancel := context.WithTimeout(context.Background(), o.Lease)
		defer cancel()
		if o.rw.Discard(ctx, ticket) == nil {
			_ = o.client.Call("Bank.Use", used, new(struct{}))
		}
		return
	}
	c := o.call(rwlock.WithOwner(context.Background(), rwlock.NewOwner()), true, 8*o.Lease)
	c.hasty = true
	c.lock = func(ctx context.Context, _ string, opts ...rwlock.LockOption) (*rwlock.Hold, error) {
		return o.rw.Attach(ctx, ticket, opts...)
	}
	h := o.take(history.Event{Name: ticket.Name(), Write: true}, c)
	if h == nil {
		return
	}
	used.Attached = true
	_ = o.client.Call("Bank.Use", used, new(struct{}))
	o.put(h, job.Rest)
	o.unlock(h, time.Now())
}

// upgrade reads, decides what to write, and writes if it can go on without a release. It returns what is to
// be released. In the history, the read hold is released, and a write hold taken, within the call.
func (o *owner) upgrade(h *hold) *hold {
	rest := o.plans(h)
	if rest == nil {
		return h
	}
	e, start := h.Event, time.Now()
	e.Role, e.Write, e.Hold, e.Token = upgraded, true, int(o.holds.Add(1)), 0
	o.report(history.Asks, e)
	ctx, cancel := context.WithTimeout(o.ctx, tries)
	defer cancel()
	if err := h.TryUpgrade(ctx); err != nil {
		e.Error = err.Error()
		o.report(history.Quits, e)
		if errors.Is(err, rwlock.ErrNotHeld) {
			o.report(history.Broken, history.Event{Error: e.Error})
		}
		return h
	}
	read := h.Event
	read.At = start.UnixNano()
	o.report(history.Leaves, read)
	e.Token = h.Hold.Token()
	o.report(history.Has, e)
	read.At = 0
	o.report(history.Left, read)
	h = o.watch(e, h.Hold)
	o.put(h, rest)
	return h
}
