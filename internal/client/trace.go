package client

import (
	"context"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// An Event is what an observer gets.
type Event struct {
	engine.Event
	Time    time.Time
	Try     bool            // of Acquired and Refused
	Context context.Context // that was given to the lock call; or the tracer's
	Dropped int             // events before this one that were dropped
}

// A trace is what is kept of a lock call for the tracer.
type trace struct {
	call  context.Context // the tracer's for the call
	hold  bool            // Hold.parent is the tracer's for the hold
	known bool            // so it is, or there will be no hold
	ended []Event         // of the hold, until then
}

// report queues an event for each observer. Client.mu is locked, so that the order is right.
func (c *Client) report(event Event) {
	for _, r := range c.observe {
		r.report(event)
	}
}

// reportEvents queues the engine's events for the observers.
func (c *Client) reportEvents(events []engine.Event) {
	if len(events) == 0 {
		return
	}
	now := time.Now()
	for _, ev := range events {
		event := Event{Event: ev, Time: now}
		if ev.Hold == nil {
			c.report(event)
			continue
		}
		held := ev.Hold.Tag.(*Hold)
		event.Hold, event.Context = nil, held.parent // the queue keeps no holds
		event.Try = ev.Hold.Try && (event.Kind == engine.Acquired || event.Kind == engine.Refused)
		switch t := held.trace; event.Kind {
		case engine.Ended, engine.Renewed, engine.RenewalFailed:
			if t != nil && !t.known {
				t.ended = append(t.ended, event)
				continue
			}
			event.Context = held.context()
		case engine.Withdrawn: // which comes after the end of the call
		default:
			if t != nil {
				event.Context = t.call
			}
		}
		c.report(event)
	}
}

// Trace gives a hold the context that the tracer has for it.
func (h *Hold) Trace(ctx context.Context) {
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	h.parent, h.trace.hold = ctx, true
	h.traced()
}

// traced records that the hold has its context, or that there will be no hold, and queues the events that
// waited for that. Client.mu is locked.
func (h *Hold) traced() {
	if h.trace == nil {
		return
	}
	for _, event := range h.trace.ended {
		event.Context = h.context()
		h.client.report(event)
	}
	h.trace.known, h.trace.ended = true, nil
}

// context returns the context of what happens to the hold: the tracer's for the hold, or for the call if that
// has not returned the hold.
func (h *Hold) context() context.Context {
	if h.trace != nil && !h.trace.hold {
		return h.trace.call
	}
	return h.parent
}

// traceOf returns the context whose values a request is sent with.
func traceOf(r *engine.Request) context.Context {
	h := r.Hold()
	if h == nil {
		return nil
	}
	held := h.Tag.(*Hold)
	if r.Asks() {
		return held.trace.call
	}
	return held.context()
}
