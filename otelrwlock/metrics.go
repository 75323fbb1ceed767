package otelrwlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed-7e8842f7/rwlock"
)

// Uncontended calls take a round trip, and waits as long as they are allowed to.
var (
	acquireBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	holdBuckets    = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
)

type instruments struct {
	acquireDuration metric.Float64Histogram
	holdDuration    metric.Float64Histogram
	recallDuration  metric.Float64Histogram
	holdLost        metric.Int64Counter
	renewalFailures metric.Int64Counter
	wakeupMissed    metric.Int64Counter

	holdCount      metric.Int64ObservableUpDownCounter
	waitCount      metric.Int64ObservableUpDownCounter
	holdOldest     metric.Float64ObservableGauge
	leaseRemaining metric.Float64ObservableGauge
	quorumServers  metric.Int64ObservableGauge
	quorumVoting   metric.Int64ObservableGauge
}

// instrument makes the instruments.
func (o *Telemetry) instrument(m metric.Meter) error {
	var errs [13]error
	o.acquireDuration, errs[0] = m.Float64Histogram("rwlock.acquire.duration", metric.WithUnit("s"),
		metric.WithDescription("How long lock calls took."), metric.WithExplicitBucketBoundaries(acquireBuckets...))
	o.holdDuration, errs[1] = m.Float64Histogram("rwlock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("How long holds lasted."), metric.WithExplicitBucketBoundaries(holdBuckets...))
	o.holdLost, errs[2] = m.Int64Counter("rwlock.hold.lost", metric.WithUnit("{hold}"),
		metric.WithDescription("Holds that ended before they were released."))
	o.renewalFailures, errs[3] = m.Int64Counter("rwlock.renewal.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Renewals that failed, and were tried again."))
	o.wakeupMissed, errs[4] = m.Int64Counter("rwlock.wakeup.missed", metric.WithUnit("{wakeup}"),
		metric.WithDescription("Waits that ended with a heartbeat because no message arrived."))

	o.holdCount, errs[5] = m.Int64ObservableUpDownCounter("rwlock.hold.count", metric.WithUnit("{hold}"),
		metric.WithDescription("How many holds there are."))
	o.waitCount, errs[6] = m.Int64ObservableUpDownCounter("rwlock.wait.count", metric.WithUnit("{call}"),
		metric.WithDescription("How many lock calls have not returned yet."))
	o.holdOldest, errs[7] = m.Float64ObservableGauge("rwlock.hold.oldest", metric.WithUnit("s"),
		metric.WithDescription("The age of the oldest hold."))
	o.leaseRemaining, errs[8] = m.Float64ObservableGauge("rwlock.lease.remaining", metric.WithUnit("s"),
		metric.WithDescription("For how long all holds can be relied on without a renewal."))
	o.quorumServers, errs[9] = m.Int64ObservableGauge("rwlock.quorum.servers", metric.WithUnit("{server}"),
		metric.WithDescription("How many servers a quorum has."))
	o.quorumVoting, errs[10] = m.Int64ObservableGauge("rwlock.quorum.voting", metric.WithUnit("{server}"),
		metric.WithDescription("How many servers of a quorum vote."))
	o.recallDuration, errs[11] = m.Float64Histogram("rwlock.delegation.recall.duration", metric.WithUnit("s"),
		metric.WithDescription("How long others waited until a delegated lock was returned."),
		metric.WithExplicitBucketBoundaries(acquireBuckets...))
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	_, errs[12] = m.RegisterCallback(o.collect, o.holdCount, o.waitCount, o.holdOldest, o.leaseRemaining,
		o.quorumServers, o.quorumVoting)
	return errs[12]
}

// count records an event in the metrics. The event's context has the span, which may become an exemplar.
func (o *Telemetry) count(e rwlock.Event) {
	with := func(attrs ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributes(append(o.series(e.Mode, e.Name).attributes(o.names), attrs...)...)
	}
	switch e.Kind {
	case rwlock.EventAcquired:
		o.acquireDuration.Record(e.Context, e.Duration.Seconds(),
			with(attribute.String("outcome", outcomeOf(e)), attribute.String("path", e.Path.String())))
	case rwlock.EventRefused:
		o.acquireDuration.Record(e.Context, e.Duration.Seconds(), with(attribute.String("outcome", outcomeOf(e))))
	case rwlock.EventEnded:
		o.holdDuration.Record(e.Context, e.Duration.Seconds(), with())
		if lost(e.Reason) {
			o.holdLost.Add(e.Context, 1, with(attribute.String("reason", e.Reason.String())))
		}
	case rwlock.EventRenewalFailed:
		o.renewalFailures.Add(e.Context, 1, with())
	case rwlock.EventWoken:
		if e.Path == rwlock.PathHeartbeat {
			o.wakeupMissed.Add(e.Context, 1, with())
		}
	case rwlock.EventReturned:
		if e.Duration > 0 {
			o.recallDuration.Record(context.Background(), e.Duration.Seconds(), with())
		}
	}
}

// A series is what an observer tells apart in every metric.
type series struct {
	mode rwlock.Mode
	name string // "" unless names are asked for
}

func (o *Telemetry) series(mode rwlock.Mode, name string) series {
	if !o.names {
		name = ""
	}
	return series{mode, name}
}

func (s series) attributes(names bool) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attribute.String("mode", s.mode.String())}
	if names {
		attrs = append(attrs, attribute.String("lock", text(s.name)))
	}
	return attrs
}

// Attach has the gauges show what rw holds and waits for, until it is closed.
func (o *Telemetry) Attach(rw *rwlock.RWLock) (detach func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.locks[rw] = true
	if !o.names {
		o.startCounters()
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.locks, rw)
	}
}

// startCounters makes the counters start at zero. If they started at one, a rate would not show the first
// loss.
func (o *Telemetry) startCounters() {
	ctx := context.Background()
	for _, mode := range []rwlock.Mode{rwlock.Read, rwlock.Write} {
		with := metric.WithAttributes(series{mode: mode}.attributes(false)...)
		o.renewalFailures.Add(ctx, 0, with)
		o.wakeupMissed.Add(ctx, 0, with)
		for r := rwlock.ReasonReleased; r.String() != ""; r++ {
			if lost(r) {
				o.holdLost.Add(ctx, 0, with, metric.WithAttributes(attribute.String("reason", r.String())))
			}
		}
	}
}

// A level is what the gauges show of a series.
type level struct {
	holds, waits int64
	oldest       time.Duration
	renewed      int64         // of the holds
	lease        time.Duration // the shortest, if any is renewed
}

// collect has the gauges read. They say nothing when no RWLock is open.
func (o *Telemetry) collect(_ context.Context, to metric.Observer) error {
	levels, quorum := o.levels()
	for s, l := range levels {
		with := metric.WithAttributes(s.attributes(o.names)...)
		to.ObserveInt64(o.holdCount, l.holds, with)
		to.ObserveInt64(o.waitCount, l.waits, with)
		to.ObserveFloat64(o.holdOldest, l.oldest.Seconds(), with)
		if l.renewed > 0 {
			to.ObserveFloat64(o.leaseRemaining, l.lease.Seconds(), with)
		}
	}
	if quorum.Servers > 0 {
		to.ObserveInt64(o.quorumServers, int64(quorum.Servers))
		to.ObserveInt64(o.quorumVoting, int64(quorum.Voting))
	}
	return nil
}

// levels adds up the snapshots of all RWLocks. It also returns the snapshot of the quorum with most servers
// missing.
func (o *Telemetry) levels() (levels map[series]*level, quorum rwlock.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	levels = make(map[series]*level)
	at := func(s series) *level {
		if levels[s] == nil {
			levels[s] = new(level)
		}
		return levels[s]
	}
	for rw := range o.locks {
		if !o.names { // the series go on while there is nothing to show
			at(series{mode: rwlock.Read})
			at(series{mode: rwlock.Write})
		}
		snapshot := rw.Snapshot()
		if quorum.Servers == 0 || snapshot.Servers-snapshot.Voting > quorum.Servers-quorum.Voting {
			quorum = snapshot
		}
		for _, h := range snapshot.Holds {
			l := at(o.series(h.Mode, h.Name))
			if lease := h.Deadline.Sub(snapshot.Time); h.Renewed {
				if l.renewed == 0 || lease < l.lease {
					l.lease = lease
				}
				l.renewed++
			}
			l.holds++
			l.oldest = max(l.oldest, snapshot.Time.Sub(h.Since))
		}
		for _, w := range snapshot.Waits {
			at(o.series(w.Mode, w.Name)).waits++
		}
	}
	return levels, quorum
}
