// Package otelrwlock reports what an [rwlock.RWLock] does to OpenTelemetry, as metrics and spans.
//
//	telemetry, err := otelrwlock.New()
//	if err != nil {
//		return err
//	}
//	rw, err := rwlock.New(client, telemetry.Options()...)
//
// # Metrics
//
// Each has the attribute mode, which is "read" or "write", but for those of quorums. Times are in seconds.
//
//	rwlock.acquire.duration   histogram  how long lock calls took, by outcome, and by path if they got the lock
//	rwlock.hold.duration      histogram  how long holds lasted
//	rwlock.hold.count         gauge      how many holds there are
//	rwlock.wait.count         gauge      how many lock calls have not returned yet
//	rwlock.hold.oldest        gauge      the age of the oldest hold; 0 if there is none
//	rwlock.lease.remaining    gauge      for how long all holds that are renewed can be relied on without a renewal; not reported without any
//	rwlock.hold.lost          counter    holds that ended before they were released, by reason
//	rwlock.renewal.failures   counter    renewals that failed, and were tried again
//	rwlock.wakeup.missed      counter    waits that ended with a heartbeat because no message arrived
//	rwlock.delegation.recall.duration  histogram  how long others waited until a lock that was delegated here was returned
//	rwlock.quorum.servers     gauge      how many servers a quorum has; of several quorums, the one that lacks most
//	rwlock.quorum.voting      gauge      how many of them vote, as far as the process knows
//
// The outcome of a call is "acquired", "locked" (a Try call would have had to wait), "timeout", "canceled",
// "closed", "upgrade", "lost", "owner", "deadlock", "not_replicated", "no_majority" or "error". The path is
// the text of an [rwlock.Path], the reason that of an [rwlock.Reason]. Gauges are read when the metrics are
// collected, with [rwlock.RWLock.Snapshot].
//
// # Spans
//
// A lock call has the span rwlock.acquire, and a hold the span rwlock.hold. Both are children of the span in
// the context of the call. The context of the hold carries the latter, so that the spans of work under the
// lock are its children. If the client is instrumented with redisotel, the span of a command is a child of
// the call's or the hold's that it was sent for; commands for several calls can share a pipeline, whose span
// is a child of the first call's.
//
// The status of a span is an error if the call failed or the hold was lost, but not if a Try call did not get
// the lock or the context of a call was cancelled. Spans have the name of the lock as the attribute
// rwlock.name, and rwlock.mode, rwlock.owner, rwlock.outcome, rwlock.path, rwlock.token or rwlock.reason
// where these are known. Bytes of a name that are not UTF-8 are replaced by U+FFFD.
package otelrwlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-7e8842f7/rwlock"
)

// scope is the name of the instrumentation.
const scope = "github.com/seed-7e8842f7/rwlock/otelrwlock"

// An Option configures an observer. New returns an error if an option is invalid.
type Option func(*config) error

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	names   bool
}

// WithMeterProvider sets the provider for metrics. The default is the global provider of package otel.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("the meter provider is nil")
		}
		c.meters = p
		return nil
	}
}

// WithTracerProvider sets the provider for spans. The default is the global provider of package otel.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("the tracer provider is nil")
		}
		c.tracers = p
		return nil
	}
}

// WithLockNames adds the name of the lock to each metric, as the attribute lock. Each name is then a separate
// time series in each metric, so use it only for few names. Without it, metrics are totals over all names.
// Spans always have the name.
func WithLockNames() Option {
	return func(c *config) error {
		c.names = true
		return nil
	}
}

// New returns a Telemetry. One Telemetry may serve several RWLocks of a process; its metrics are then totals
// over them. Use only one for each pair of providers, because the gauges of two would overwrite each other.
//
// New returns an error if an option is nil or invalid, or if a provider refuses an instrument.
func New(opts ...Option) (*Telemetry, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("otelrwlock: nil option")
		}
		if err := opt(&c); err != nil {
			return nil, fmt.Errorf("otelrwlock: %w", err)
		}
	}
	o := &Telemetry{names: c.names, tracer: c.tracers.Tracer(scope), locks: make(map[*rwlock.RWLock]bool)}
	if err := o.instrument(c.meters.Meter(scope)); err != nil {
		return nil, fmt.Errorf("otelrwlock: %w", err)
	}
	return o, nil
}

// Options returns the options for [rwlock.New] and [rwlock.NewQuorum]: an observer, a tracer and a monitor.
func (o *Telemetry) Options() []rwlock.Option {
	return []rwlock.Option{rwlock.WithObserver(o), rwlock.WithTracer(o), rwlock.WithMonitor(o)}
}

// A Telemetry records what RWLocks do. It is made by New.
type Telemetry struct {
	names  bool
	tracer trace.Tracer
	instruments

	mu    sync.Mutex
	locks map[*rwlock.RWLock]bool // that are open
}

// Observe records an event.
func (o *Telemetry) Observe(e rwlock.Event) {
	if e.Context == nil {
		e.Context = context.Background()
	}
	if e.Dropped > 0 {
		otel.Handle(fmt.Errorf("otelrwlock: %d events were dropped: there are more than can be recorded",
			e.Dropped))
	}
	o.count(e)
	traceEvent(e)
}

// outcomes are those of calls that failed.
var outcomes = []struct {
	err  error
	text string
}{
	{rwlock.ErrLocked, "locked"},
	{rwlock.ErrNoMajority, "no_majority"}, // before what ended the wait for one
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
	{rwlock.ErrClosed, "closed"},
	{rwlock.ErrUpgrade, "upgrade"},
	{rwlock.ErrLost, "lost"},
	{rwlock.ErrOwner, "owner"},
	{rwlock.ErrDeadlock, "deadlock"},
	{rwlock.ErrNotReplicated, "not_replicated"},
}

// outcomeOf returns what became of a lock call.
func outcomeOf(e rwlock.Event) string {
	if e.Kind == rwlock.EventAcquired {
		return "acquired"
	}
	network := (*net.OpError)(nil) // its timeout matches that of a context; it may be why there is no majority
	if errors.As(e.Err, &network) && !errors.Is(e.Err, rwlock.ErrNoMajority) {
		return "error"
	}
	for _, o := range outcomes {
		if errors.Is(e.Err, o.err) {
			return o.text
		}
	}
	return "error"
}

// lost reports whether a hold that ended for that reason was lost.
func lost(r rwlock.Reason) bool { return r != rwlock.ReasonReleased && r != rwlock.ReasonClosed }

// text returns a name in a form that every exporter accepts: some refuse a whole batch because of one byte
// that is not UTF-8.
func text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }
