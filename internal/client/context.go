package client

import (
	"context"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A work is the context for work under a hold. The Client keeps it until the hold ends. It does not refer to
// the user's handle, so the handle may become unreachable although the context is registered with its parent.
type work struct {
	context.Context
	cancel context.CancelCauseFunc
}

// Context returns the context for work under the hold. The first call makes it, from what carry returns.
func (h *Hold) Context(carry func(context.Context, protocol.Owner) context.Context) context.Context {
	if w := h.work.Load(); w != nil {
		return w.Context
	}
	// The methods of the parent are code of the user, so Client.mu is not locked.
	w := &work{}
	w.Context, w.cancel = context.WithCancelCause(carry(h.parent, h.Owner))
	h.client.mu.Lock()
	first := h.work.CompareAndSwap(nil, w)
	ended, cause := h.State() != engine.Live, h.Err()
	h.client.mu.Unlock()
	if ended || !first {
		w.cancel(cause)
	}
	return h.work.Load().Context
}

// end cancels the context, if there is one.
func (h *Hold) end(cause error) {
	if w := h.work.Load(); w != nil {
		w.cancel(cause)
	}
}
