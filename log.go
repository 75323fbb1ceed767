package rwlock

import (
	"log/slog"
	"sync"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// mostRecords bounds how many records wait for a logger that is slow. Others are left out.
const mostRecords = 1024

// A reporter writes the log, on a goroutine of its own while there is something to write: a logger that blocks, or calls the
// RWLock, holds nothing else up.
type reporter struct {
	logger *slog.Logger // nil for slog.Default()

	mu      sync.Mutex
	records []engine.Record
	busy    chan struct{} // closed when the goroutine has ended; nil if there is none
}

func (r *reporter) report(records []engine.Record) {
	if len(records) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range records {
		if len(r.records) < mostRecords {
			r.records = append(r.records, rec)
		}
	}
	if r.busy == nil {
		r.busy = make(chan struct{})
		go r.write(r.busy)
	}
}

func (r *reporter) write(done chan struct{}) {
	defer close(done)
	for {
		r.mu.Lock()
		records := r.records
		r.records = nil
		if len(records) == 0 {
			r.busy = nil
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for _, rec := range records {
			r.log(rec)
		}
	}
}

func (r *reporter) log(rec engine.Record) {
	l := r.logger
	if l == nil {
		l = slog.Default()
	}
	args := []any{"lock", rec.Name}
	if rec.Owner != (engine.Owner{}) {
		args = append(args, "owner", rec.Owner.String(), "mode", Mode(rec.Mode).String())
	}
	if rec.Token != 0 {
		args = append(args, "token", rec.Token)
	}
	if rec.Hold != nil {
		if where := rec.Hold.Tag.(*holding).where(); where != "" {
			args = append(args, "taken at", where)
		}
	}
	if rec.Err != nil {
		args = append(args, "error", rec.Err.Error())
	}
	l.Warn("rwlock: "+rec.Message, args...)
}

// close returns a channel that is closed when what there is to write has been written.
func (r *reporter) close() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy != nil {
		return r.busy
	}
	done := make(chan struct{})
	close(done)
	return done
}
