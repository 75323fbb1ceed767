package client

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// mostReports limits how many reports wait for a slow logger or observer. Further reports are dropped.
const mostReports = 8192

// A reporter passes reports to user code, on a separate goroutine that runs while there are any. So user code
// that blocks, or calls the library, delays nothing else. If it panics, or ends its goroutine, the next
// reports are passed on all the same.
type reporter[T any] struct {
	handle   func(report T, dropped int)
	panicked func(err error) // told of each panic of handle

	mu      sync.Mutex
	queue   []queued[T]
	dropped int           // since the last that was queued
	busy    chan struct{} // closed when the goroutine is about to end; nil if there is none
}

// A queued report follows some that were dropped.
type queued[T any] struct {
	report  T
	dropped int
}

func (r *reporter[T]) report(report T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == mostReports {
		r.dropped++
		return
	}
	r.queue = append(r.queue, queued[T]{report, r.dropped})
	r.dropped = 0
	if r.busy == nil {
		r.busy = make(chan struct{})
		go r.run()
	}
}

func (r *reporter[T]) run() {
	over := false
	defer func() {
		if !over { // handle has panicked, or called runtime.Goexit, as a test's FailNow does
			go r.run()
		}
	}()
	defer func() {
		if v := recover(); v != nil {
			r.panicked(fmt.Errorf("%v\n%s", v, debug.Stack()))
		}
	}()
	for q, ok := r.next(); ok; q, ok = r.next() {
		r.handle(q.report, q.dropped)
	}
	over = true
}

// next takes the first report of the queue. If there is none, the goroutine is about to end.
func (r *reporter[T]) next() (q queued[T], ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		close(r.busy)
		r.queue, r.busy = nil, nil
		return q, false
	}
	q = r.queue[0]
	r.queue[0] = queued[T]{}
	r.queue = r.queue[1:]
	return q, true
}

// close returns a channel that is closed when all reports have been handled.
func (r *reporter[T]) close() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy != nil {
		return r.busy
	}
	done := make(chan struct{})
	close(done)
	return done
}

// write writes a record to the logger.
func write(l *slog.Logger, label string, rec engine.Record, dropped int) {
	if l == nil {
		l = slog.Default()
	}
	var args []any
	add := func(known bool, key string, value any) {
		if known {
			args = append(args, key, value)
		}
	}
	var taken slog.Source
	if rec.Hold != nil {
		taken = rec.Hold.Tag.(*Hold).Caller()
	}
	owned, reason := rec.Owner != (engine.Owner{}), rec.Cause.String()
	add(rec.Name != "", "lock", rec.Name) // or else it is about a server
	add(true, "label", label)
	add(owned, "owner", rec.Owner.String())
	add(owned, "mode", rec.Mode.String())
	add(rec.Token != 0, "token", rec.Token)
	add(taken.File != "", "taken at", fmt.Sprintf("%s:%d", taken.File, taken.Line))
	add(rec.Cause != 0 && reason != "", "reason", reason)
	add(dropped > 0, "records dropped before", dropped)
	add(rec.Err != nil, "error", fmt.Sprint(rec.Err))
	l.Warn("rwlock: "+rec.Message, args...)
}
