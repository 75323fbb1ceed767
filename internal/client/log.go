package client

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// mostReports limits how many reports wait for a slow logger or observer. Further reports are dropped.
const mostReports = 8192

// A reporter passes reports to user code, on a separate goroutine that runs while there are any. So user code
// that blocks, or calls the library, delays nothing else.
type reporter[T any] struct {
	handle func(report T, dropped int)

	mu      sync.Mutex
	queue   []queued[T]
	dropped int           // since the last that was queued
	busy    chan struct{} // closed when the goroutine has ended; nil if there is none
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
		go r.run(r.busy)
	}
}

func (r *reporter[T]) run(done chan struct{}) {
	defer close(done)
	var spare []queued[T]
	for {
		r.mu.Lock()
		queue := r.queue
		r.queue = spare
		if len(queue) == 0 {
			r.busy = nil
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for _, q := range queue {
			r.handle(q.report, q.dropped)
		}
		clear(queue)
		spare = queue[:0]
	}
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
	args := []any{"label", label}
	if rec.Name != "" { // or else it is about a server
		args = append([]any{"lock", rec.Name}, args...)
	}
	if rec.Owner != (engine.Owner{}) {
		args = append(args, "owner", rec.Owner.String(), "mode", rec.Mode.String())
	}
	if rec.Token != 0 {
		args = append(args, "token", rec.Token)
	}
	if rec.Hold != nil {
		if where := rec.Hold.Tag.(*Hold).Caller(); where.File != "" {
			args = append(args, "taken at", fmt.Sprintf("%s:%d", where.File, where.Line))
		}
	}
	if reason := rec.Cause.String(); rec.Cause != 0 && reason != "" {
		args = append(args, "reason", reason)
	}
	if dropped > 0 {
		args = append(args, "records dropped before", dropped)
	}
	if rec.Err != nil {
		args = append(args, "error", rec.Err.Error())
	}
	l.Warn("rwlock: "+rec.Message, args...)
}
