package otelrwlock

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-7e8842f7/rwlock"
)

// TraceCall begins the span of a lock call.
func (o *Telemetry) TraceCall(ctx context.Context, name string, mode rwlock.Mode) context.Context {
	return o.begin(ctx, callSpan, attribute.String("rwlock.name", text(name)),
		attribute.String("rwlock.mode", mode.String()))
}

// TraceHold begins the span of a hold.
func (o *Telemetry) TraceHold(ctx context.Context, h *rwlock.Hold) context.Context {
	return o.begin(ctx, holdSpan, attribute.String("rwlock.name", text(h.Name())),
		attribute.String("rwlock.mode", h.Mode().String()),
		attribute.String("rwlock.owner", h.Owner().String()), attribute.Int64("rwlock.token", h.Token()))
}

// What spans are about. They are their names, too.
const (
	callSpan = "rwlock.acquire"
	holdSpan = "rwlock.hold"
)

// A span is a span of this package. The context of an event may contain other spans, such as that of an outer
// hold.
type span struct {
	trace.Span
	about string
}

type spanKey struct{}

func (o *Telemetry) begin(ctx context.Context, about string, attrs ...attribute.KeyValue) context.Context {
	ctx, s := o.tracer.Start(ctx, about, trace.WithAttributes(attrs...))
	return context.WithValue(ctx, spanKey{}, span{s, about})
}

// traceEvent records an event in its span, with the time of the event, since it is reported later.
func traceEvent(e rwlock.Event) {
	s, ok := e.Context.Value(spanKey{}).(span)
	if !ok || s.about != aboutOf(e.Kind) {
		return
	}
	switch e.Kind {
	case rwlock.EventWaiting, rwlock.EventWoken:
		s.AddEvent(e.Kind.String(), trace.WithTimestamp(e.Time))
	case rwlock.EventRenewalFailed:
		s.AddEvent(e.Kind.String(), trace.WithTimestamp(e.Time),
			trace.WithAttributes(attribute.String("error", e.Err.Error())))
	case rwlock.EventAcquired:
		s.SetAttributes(attribute.String("rwlock.outcome", outcomeOf(e)),
			attribute.String("rwlock.path", e.Path.String()),
			attribute.String("rwlock.owner", e.Owner.String()), attribute.Int64("rwlock.token", e.Token))
		s.End(trace.WithTimestamp(e.Time))
	case rwlock.EventRefused:
		s.refuse(e)
		s.End(trace.WithTimestamp(e.Time))
	case rwlock.EventEnded:
		s.SetAttributes(attribute.String("rwlock.reason", e.Reason.String()))
		if lost(e.Reason) {
			s.SetStatus(codes.Error, "the hold was lost: "+e.Reason.String())
		}
		s.End(trace.WithTimestamp(e.Time))
	}
}

// refuse sets the status of a failed call. A Try call that did not get the lock, and a cancelled call, are
// not errors.
func (s span) refuse(e rwlock.Event) {
	outcome := outcomeOf(e)
	s.SetAttributes(attribute.String("rwlock.outcome", outcome),
		attribute.String("rwlock.owner", e.Owner.String()))
	if outcome != "locked" && outcome != "canceled" {
		s.SetStatus(codes.Error, e.Err.Error())
	}
}

// aboutOf returns which span the events of a kind belong to.
func aboutOf(k rwlock.EventKind) string {
	switch k {
	case rwlock.EventEnded, rwlock.EventRenewed, rwlock.EventRenewalFailed:
		return holdSpan
	}
	return callSpan
}
