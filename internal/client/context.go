package client

import (
	"context"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A scope is what a Hold knows of the context for work under it. Client.mu guards it.
type scope struct {
	parent context.Context // that was given to the lock call; or the tracer's for the hold

	// Of what Hold.Work returns, once it was called:
	work   weak.Pointer[Work]
	strong *Work           // the same, if the parent keeps it anyway
	done   <-chan struct{} // of work
	closed atomic.Bool     // done was closed without work
	detach func() bool     // from the parent, or nil
}

// A Work has the context that contexts for work under a hold are derived from. It refers to all of them, and
// each of them refers to the user's handle. So the Client does not refer to the Work, and neither does the
// parent context.
type Work struct {
	context.Context
	cancel context.CancelCauseFunc
	parent context.Context // that cancels it by scope.end; or nil
}

// Work returns the only Work of the hold. The user's handle stores it at place, which is nil before the first
// call.
func (h *Hold) Work(place **Work) *Work {
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	if *place == nil {
		*place = h.begin()
		if h.State() != engine.Live {
			h.end(h.Err())
		}
	}
	return *place
}

// begin makes the context. Client.mu is locked.
func (s *scope) begin() *Work {
	w, base := &Work{}, s.parent
	_, bounded := s.parent.Deadline()
	if !bounded && s.parent.Done() != nil {
		w.parent, base = s.parent, context.WithoutCancel(s.parent)
	}
	w.Context, w.cancel = context.WithCancelCause(base)
	s.work, s.done = weak.Make(w), w.Context.Done()
	switch parent := w.parent; {
	case bounded: // a timer keeps it, or what has one
		s.strong = w
	case parent != nil:
		s.detach = context.AfterFunc(parent, func() { s.cancel(context.Cause(parent)) })
	}
	return w
}

// end cancels what Work has returned, for good.
func (s *scope) end(cause error) {
	s.cancel(cause)
	if s.detach != nil {
		s.detach()
	}
}

func (s *scope) cancel(cause error) {
	if w := s.work.Value(); w != nil {
		w.cancel(cause)
	} else if s.closed.CompareAndSwap(false, true) {
		// The handle is unreachable, and so are all contexts derived from this one. But someone may still
		// wait for the channel.
		select {
		case <-s.done:
		default:
			close(*(*chan struct{})(unsafe.Pointer(&s.done))) // which nothing else can do any more
		}
	}
}

// Done, Err and Value report the end of the parent as soon as the parent has ended.

// Done is that of the context.
func (w *Work) Done() <-chan struct{} {
	w.follow()
	return w.Context.Done()
}

// Err is that of the context.
func (w *Work) Err() error {
	w.follow()
	return w.Context.Err()
}

// Value is that of the context.
func (w *Work) Value(key any) any {
	w.follow()
	return w.Context.Value(key)
}

// follow cancels a work whose parent has ended, which the parent is about to do.
func (w *Work) follow() {
	if w.parent != nil && w.parent.Err() != nil {
		w.cancel(context.Cause(w.parent))
	}
}
