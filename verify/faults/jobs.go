package faults

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

const (
	// perQueue is how many calls of each process wait for a lock of the queue.
	perQueue = 10
	// patience bounds the wait of each call: nothing that the servers mend takes as long.
	patience = 2 * time.Minute
	pause    = 5 * time.Millisecond
	// firstNew is the number of the first owner that makes one call alone. The histories' model has owners as
	// runes, and the surrogates before are none.
	firstNew = 0xe000
)

// The roles that a job can have.
const (
	held     = "held"     // for as long as the process works
	queue    = "queue"    // behind a writer that unlocks as soon as the fault has struck
	probe    = "probe"    // by one process alone, again and again
	handover = "handover" // by both processes in turns, one of which writes
	// The same, on a node to which nothing happens, nor to those of the other jobs.
	elsewhere = "elsewhere"
)

// A job is something to do with a lock.
type job struct {
	Role, Name string
	Write      bool
}

// subscribe has a call wait, so that the process subscribes to its messages.
func (w *worker) subscribe() {
	name := fmt.Sprint("warm up ", w.Process)
	ctx := context.Background()
	h, err := w.rw.Lock(ctx, name)
	if err == nil {
		if _, err = w.rw.Lock(ctx, name, rwlock.MaxWait(time.Second)); errors.Is(err, context.DeadlineExceeded) {
			err = h.Unlock(ctx)
		}
	}
	if err != nil {
		log.Fatal("a lock that is held: ", err)
	}
}

// start begins a job. A lock that is held all the time is taken before it returns.
func (w *worker) start(j job) {
	e := history.Event{Role: j.Role, Name: j.Name, Write: j.Write}
	switch j.Role {
	case held:
		w.keep(e, w.ctx.Done())
	case queue:
		if w.Process == 1 {
			first := e
			first.Role, first.Write = held, true
			w.keep(first, w.struck)
		}
		for range perQueue {
			w.wg.Go(func() { w.once(e) })
		}
	default:
		rest := pause
		if j.Role != probe {
			rest, e.Write = 0, e.Write || w.Process == 1
		}
		w.wg.Go(func() {
			for w.ctx.Err() == nil {
				w.once(e)
				w.rest(rest)
			}
		})
	}
}

// keep takes a lock, and keeps it until done.
func (w *worker) keep(e history.Event, done <-chan struct{}) {
	if h := w.ask(e); h != nil {
		w.wg.Go(func() { w.release(h, done) })
	}
}

// once takes a lock, keeps it for a moment, and releases it.
func (w *worker) once(e history.Event) {
	if h := w.ask(e); h != nil {
		ctx, cancel := context.WithTimeout(w.ctx, pause)
		defer cancel()
		w.release(h, ctx.Done())
	} else {
		w.rest(pause)
	}
}

// ask takes a lock for a new owner. It returns nil if that failed, or the process was told to end.
func (w *worker) ask(e history.Event) *hold {
	return w.take(e, w.call(rwlock.WithOwner(w.ctx, rwlock.NewOwner()), e.Write, patience))
}

// release keeps a hold until done, or until it is lost, and releases it.
func (w *worker) release(h *hold, done <-chan struct{}) {
	select {
	case <-done:
	case <-h.ctx.Done():
	}
	relied := time.Now()
	if d := h.Deadline(); errors.Is(context.Cause(h.ctx), rwlock.ErrLost) && d.Before(relied) {
		relied = d // this goroutine did not run at once
	}
	w.unlock(h, relied)
}
