package otelrwlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/otelrwlock"
)

func TestMain(m *testing.M) {
	logging.Disable()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // losses are told to it
	goleak.VerifyTestMain(m)
}

var ctx = context.Background()

// A world is a server in a bubble, where times are exact, and what an observer reports.
type world struct {
	*testing.T
	server   *miniredis.Miniredis
	reader   *sdkmetric.ManualReader
	spans    *tracetest.SpanRecorder
	tracers  *sdktrace.TracerProvider
	observer *otelrwlock.Telemetry
}

func inBubble(t *testing.T, fn func(w *world), opts ...otelrwlock.Option) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, server: testredis.Mem(t), reader: sdkmetric.NewManualReader(),
			spans: tracetest.NewSpanRecorder()}
		w.tracers = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans))
		opts = append(opts, otelrwlock.WithMeterProvider(
			sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader))),
			otelrwlock.WithTracerProvider(w.tracers))
		var err error
		w.observer, err = otelrwlock.New(opts...)
		require.NoError(t, err)
		fn(w)
	})
}

func (w *world) client() *redis.Client { return testredis.MemClient(w, w.server) }

// newLock returns an RWLock that is observed.
func (w *world) newLock(opts ...rwlock.Option) *rwlock.RWLock {
	w.Helper()
	return w.lockOn(w.client(), append(opts, w.observer.Options()...)...)
}

func (w *world) lockOn(c *redis.Client, opts ...rwlock.Option) *rwlock.RWLock {
	w.Helper()
	rw, err := rwlock.New(c, opts...)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, rw.Close()) })
	return rw
}

func (w *world) lock(ctx context.Context, rw *rwlock.RWLock, name string,
	opts ...rwlock.LockOption) *rwlock.Hold {
	w.Helper()
	h, err := rw.Lock(ctx, name, opts...)
	require.NoError(w, err)
	return h
}

func (w *world) unlock(holds ...*rwlock.Hold) {
	w.Helper()
	for _, h := range holds {
		require.NoError(w, h.Unlock(ctx))
	}
}

// lose waits until a hold is lost.
func (w *world) lose(h *rwlock.Hold) {
	w.Helper()
	<-h.Context().Done()
	require.ErrorIs(w, h.Unlock(ctx), rwlock.ErrLost)
}

// collect returns all points: "name{key=value,…}" → value. That of a histogram is "count: sum".
func (w *world) collect() map[string]string {
	w.Helper()
	synctest.Wait() // events are recorded on a goroutine of their own
	return collect(w, w.reader)
}

func collect(t testing.TB, reader sdkmetric.Reader) map[string]string {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &rm))
	points := map[string]string{}
	add := func(name string, attrs attribute.Set, value string) {
		points[name+"{"+attrs.Encoded(attribute.DefaultEncoder())+"}"] = value
	}
	for _, scope := range rm.ScopeMetrics {
		require.Equal(t, "github.com/seed-7e8842f7/rwlock/otelrwlock", scope.Scope.Name)
		for _, m := range scope.Metrics {
			require.NotEmpty(t, m.Description)
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, fmt.Sprintf("%d: %.3g", p.Count, p.Sum))
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, fmt.Sprint(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, fmt.Sprint(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, fmt.Sprintf("%.3g", p.Value))
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return points
}

// only returns the points of some metrics.
func only(points map[string]string, metrics ...string) map[string]string {
	maps.DeleteFunc(points, func(point, _ string) bool {
		name, _, _ := strings.Cut(point, "{")
		return !slices.Contains(metrics, name)
	})
	return points
}

var (
	gauges   = []string{"rwlock.hold.count", "rwlock.wait.count", "rwlock.hold.oldest", "rwlock.lease.remaining"}
	counters = []string{"rwlock.hold.lost", "rwlock.renewal.failures", "rwlock.wakeup.missed"}
)

// The duration of each call is recorded with its mode and its outcome, and with the path by which it got the
// lock; that of each hold with its mode.
func TestDurationsOfCallsAndHolds(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		h := w.lock(ctx, rw, "a")
		w.unlock(w.lock(h.Context(), rw, "a"))
		_, err := rw.TryLock(ctx, "a")
		require.ErrorIs(w, err, rwlock.ErrLocked)
		_, err = rw.RLock(ctx, "a", rwlock.MaxWait(3*time.Second))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		cancelled, cancel := context.WithCancel(ctx)
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := rw.RLock(cancelled, "a")
			require.ErrorIs(w, err, context.Canceled)
		})
		calls.Go(func() {
			r, err := rw.RLock(ctx, "a")
			require.NoError(w, err)
			w.unlock(r)
		})
		time.Sleep(time.Second)
		cancel()
		time.Sleep(time.Second)
		w.unlock(h)
		calls.Wait()
		r, err := rw.RLock(ctx, "a")
		require.NoError(w, err)
		_, err = rw.Lock(r.Context(), "a")
		require.ErrorIs(w, err, rwlock.ErrUpgrade)
		w.unlock(r)
		require.NoError(w, rw.Close())
		require.Equal(w, map[string]string{
			"rwlock.acquire.duration{mode=write,outcome=acquired,path=direct}":  "1: 0",
			"rwlock.acquire.duration{mode=write,outcome=acquired,path=reentry}": "1: 0",
			"rwlock.acquire.duration{mode=write,outcome=locked}":                "1: 0",
			"rwlock.acquire.duration{mode=write,outcome=upgrade}":               "1: 0",
			"rwlock.acquire.duration{mode=read,outcome=timeout}":                "1: 3",
			"rwlock.acquire.duration{mode=read,outcome=canceled}":               "1: 1",
			"rwlock.acquire.duration{mode=read,outcome=acquired,path=local}":    "1: 2",
			"rwlock.acquire.duration{mode=read,outcome=acquired,path=direct}":   "1: 0",
			"rwlock.hold.duration{mode=write}":                                  "2: 5",
			"rwlock.hold.duration{mode=read}":                                   "2: 0",
		}, only(w.collect(), "rwlock.acquire.duration", "rwlock.hold.duration"))
	})
}

// The gauges show how many holds and waiting calls there are, how old the oldest hold is, and how long the
// shortest lease of those that are renewed still runs; over all RWLocks that the observer has, until they are
// closed.
func TestGauges(t *testing.T) {
	inBubble(t, func(w *world) {
		require.Empty(w, w.collect(), "there is no RWLock")
		one, two := w.newLock(), w.newLock(rwlock.WithLease(10*time.Second))
		none := map[string]string{
			"rwlock.hold.count{mode=read}": "0", "rwlock.hold.count{mode=write}": "0",
			"rwlock.wait.count{mode=read}": "0", "rwlock.wait.count{mode=write}": "0",
			"rwlock.hold.oldest{mode=read}": "0", "rwlock.hold.oldest{mode=write}": "0",
		}
		require.Equal(w, none, only(w.collect(), gauges...))
		h := w.lock(ctx, one, "a", rwlock.NoRenew())
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				r, err := two.RLock(ctx, "a")
				require.NoError(w, err)
				w.unlock(r)
			})
		}
		time.Sleep(5 * time.Second)
		brief := w.lock(ctx, two, "b", rwlock.NoRenew())
		time.Sleep(2 * time.Second)
		renewed := w.lock(ctx, one, "c", rwlock.Lease(time.Minute))
		time.Sleep(3 * time.Second)
		require.Equal(w, map[string]string{
			"rwlock.hold.count{mode=read}": "0", "rwlock.hold.count{mode=write}": "3",
			"rwlock.wait.count{mode=read}": "3", "rwlock.wait.count{mode=write}": "0",
			"rwlock.hold.oldest{mode=read}": "0", "rwlock.hold.oldest{mode=write}": "10",
			// a minute, less 3 s and the margin; the others are not renewed
			"rwlock.lease.remaining{mode=write}": "56.4",
		}, only(w.collect(), gauges...))
		w.unlock(brief, h, renewed)
		calls.Wait()
		require.Equal(w, none, only(w.collect(), gauges...))
		require.NoError(w, errors.Join(one.Close(), two.Close()))
		require.Empty(w, only(w.collect(), gauges...))
	})
}

// How many servers of a quorum vote is shown; of several quorums, that of the one that lacks most.
func TestServersOfAQuorum(t *testing.T) {
	inBubble(t, func(w *world) {
		shown := func(voting string) {
			w.Helper()
			require.Equal(w, map[string]string{"rwlock.quorum.servers{}": "3", "rwlock.quorum.voting{}": voting},
				only(w.collect(), "rwlock.quorum.servers", "rwlock.quorum.voting"))
		}
		w.newLock()
		require.Empty(w, only(w.collect(), "rwlock.quorum.servers", "rwlock.quorum.voting"),
			"one server is no quorum")
		for _, down := range []bool{false, true} {
			var clients []redis.UniversalClient
			for range 3 {
				clients = append(clients, w.client())
				w.server = testredis.Mem(w)
			}
			rw, err := rwlock.NewQuorum(clients, w.observer.Options()...)
			require.NoError(w, err)
			w.Cleanup(func() { _ = rw.Close() })
			shown("3")
			if down {
				require.NoError(w, clients[1].Close())
			}
			w.unlock(w.lock(ctx, rw, "a"))
		}
		time.Sleep(time.Minute)
		shown("2")
	})
}

// A hold that ends before it was released is counted with the reason; one that is closed or released is not.
// The counters begin at zero.
func TestLossesAreCounted(t *testing.T) {
	inBubble(t, func(w *world) {
		require.Empty(w, w.collect())
		rw := w.newLock()
		want := map[string]string{
			"rwlock.hold.lost{mode=read,reason=expired}": "0", "rwlock.hold.lost{mode=write,reason=expired}": "0",
			"rwlock.hold.lost{mode=read,reason=gone}": "0", "rwlock.hold.lost{mode=write,reason=gone}": "0",
			"rwlock.hold.lost{mode=read,reason=forgotten}": "0", "rwlock.hold.lost{mode=write,reason=forgotten}": "0",
			"rwlock.renewal.failures{mode=read}": "0", "rwlock.renewal.failures{mode=write}": "0",
			"rwlock.wakeup.missed{mode=read}": "0", "rwlock.wakeup.missed{mode=write}": "0",
		}
		require.Equal(w, want, only(w.collect(), counters...))
		h := w.lock(ctx, rw, "gone")
		require.NoError(w, rw.ForceUnlock(ctx, "gone"))
		w.lose(h)
		w.lose(w.lock(ctx, rw, "expired", rwlock.NoRenew()))
		w.unlock(w.lock(ctx, rw, "released"))
		h = w.lock(ctx, rw, "closed")
		require.NoError(w, rw.Close())
		require.ErrorIs(w, h.Unlock(ctx), rwlock.ErrClosed)
		want["rwlock.hold.lost{mode=write,reason=gone}"] = "1"
		want["rwlock.hold.lost{mode=write,reason=expired}"] = "1"
		require.Equal(w, want, only(w.collect(), counters...))
	})
}

// Renewals that fail are counted, while the hold can still be relied on.
func TestFailedRenewalsAreCounted(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		h := w.lock(ctx, rw, "a")
		w.server.SetError("LOADING the data set")
		time.Sleep(20 * time.Second)
		require.NoError(w, h.Context().Err())
		w.server.SetError("")
		require.Regexp(w, "^[1-9]", w.collect()["rwlock.renewal.failures{mode=write}"])
		w.unlock(h)
	})
}

// Events of each kind, as the observer may be told of them in any order, are counted where they belong.
func TestEventsAreCounted(t *testing.T) {
	inBubble(t, func(w *world) {
		for kind := rwlock.EventAcquired; kind <= rwlock.EventReturned+1; kind++ { // one more than there are
			w.observer.Observe(rwlock.Event{Kind: kind, Name: "a", Mode: rwlock.Read, Duration: time.Second,
				Err:  errors.New("x"),
				Path: rwlock.PathHeartbeat, Reason: rwlock.ReasonForgotten})
		}
		w.observer.Observe(rwlock.Event{Kind: rwlock.EventWoken})
		w.observer.Observe(rwlock.Event{Kind: rwlock.EventReturned, Mode: rwlock.Write}) // nobody waited for it
		require.Equal(w, map[string]string{
			"rwlock.acquire.duration{mode=read,outcome=acquired,path=heartbeat}": "1: 1",
			"rwlock.acquire.duration{mode=read,outcome=error}":                   "1: 1",
			"rwlock.hold.duration{mode=read}":                                    "1: 1",
			"rwlock.hold.lost{mode=read,reason=forgotten}":                       "1",
			"rwlock.renewal.failures{mode=read}":                                 "1",
			"rwlock.wakeup.missed{mode=read}":                                    "1",
			"rwlock.delegation.recall.duration{mode=read}":                       "1: 1",
		}, w.collect())
	})
}

// Each error of a lock call that callers can distinguish is an outcome of its own. A call that waited in vain
// for a majority is counted as that, also if its time limit ended it.
func TestOutcomes(t *testing.T) {
	inBubble(t, func(w *world) {
		want := map[string]string{}
		_, timeout := (&net.Dialer{Deadline: time.Unix(1, 0)}).Dial("tcp", "127.0.0.1:1")
		require.ErrorIs(w, timeout, context.DeadlineExceeded)
		for outcome, err := range map[string]error{
			"locked": rwlock.ErrLocked, "timeout": context.DeadlineExceeded, "canceled": context.Canceled,
			"closed":  rwlock.ErrClosed,
			"upgrade": rwlock.ErrUpgrade, "lost": rwlock.ErrLost, "owner": rwlock.ErrOwner,
			"deadlock":       rwlock.ErrDeadlock,
			"not_replicated": rwlock.ErrNotReplicated, "error": timeout,
			"no_majority": fmt.Errorf("%w: %w: %w", context.DeadlineExceeded, rwlock.ErrNoMajority, timeout),
		} {
			w.observer.Observe(rwlock.Event{Kind: rwlock.EventRefused, Mode: rwlock.Write,
				Err: fmt.Errorf("call: %w", err)})
			want["rwlock.acquire.duration{mode=write,outcome="+outcome+"}"] = "1: 0"
		}
		require.Equal(w, want, w.collect())
	})
}

// With WithLockNames, each metric has the name of the lock. Bytes that no exporter takes are replaced.
func TestLockNames(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		a, b := w.lock(ctx, rw, "a"), w.lock(ctx, rw, "b\xff")
		time.Sleep(time.Second)
		points := w.collect()
		require.Equal(w, "1", points["rwlock.hold.oldest{lock=a,mode=write}"])
		require.Equal(w, "1", points["rwlock.hold.count{lock=b\uFFFD,mode=write}"])
		w.unlock(a, b)
		points = w.collect()
		require.Equal(w, "1: 1", points["rwlock.hold.duration{lock=b\uFFFD,mode=write}"])
		require.NotContains(w, points, "rwlock.hold.count{lock=a,mode=write}")
		for point := range points {
			require.Contains(w, point, "{lock=")
		}
	}, otelrwlock.WithLockNames())
}

// Without providers, the global ones are used. This test is not parallel: it sets them, and the handler of
// errors.
func TestGlobalProviders(t *testing.T) {
	meters, tracers := otel.GetMeterProvider(), otel.GetTracerProvider()
	defer func() {
		otel.SetMeterProvider(meters)
		otel.SetTracerProvider(tracers)
	}()
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	var handled []error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = append(handled, err) }))
	observer, err := otelrwlock.New()
	require.NoError(t, err)
	observer.Observe(rwlock.Event{Kind: rwlock.EventEnded, Mode: rwlock.Write, Dropped: 7})
	require.Contains(t, collect(t, reader), "rwlock.hold.duration{mode=write}")
	observer.TraceCall(ctx, "a", rwlock.Read)
	require.Len(t, spans.Started(), 1)
	require.Len(t, handled, 1)
	require.ErrorContains(t, handled[0], "7 events were dropped")
}

// Options that make no sense, and instruments that a provider refuses, are errors in words.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for want, opt := range map[string]otelrwlock.Option{
		"otelrwlock: nil option":                 nil,
		"otelrwlock: the meter provider is nil":  otelrwlock.WithMeterProvider(nil),
		"otelrwlock: the tracer provider is nil": otelrwlock.WithTracerProvider(nil),
		"otelrwlock: no such instrument":         otelrwlock.WithMeterProvider(refusing{}),
		"otelrwlock: no callback":                otelrwlock.WithMeterProvider(refusing{callbacks: true}),
	} {
		_, err := otelrwlock.New(opt)
		require.EqualError(t, err, want)
	}
}

// A refusing provider makes no histograms, or takes no callbacks.
type refusing struct {
	noop.MeterProvider
	callbacks bool
}

func (r refusing) Meter(string, ...metric.MeterOption) metric.Meter {
	return refusingMeter{callbacks: r.callbacks}
}

type refusingMeter struct {
	noop.Meter
	callbacks bool
}

func (m refusingMeter) Float64Histogram(name string,
	_ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	if m.callbacks || name != "rwlock.acquire.duration" {
		return noop.Float64Histogram{}, nil
	}
	return nil, errors.New("no such instrument")
}

func (m refusingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errors.New("no callback")
}

// named returns the ended spans of that name, the first that ended first.
func (w *world) named(name string) []sdktrace.ReadOnlySpan {
	synctest.Wait()
	return slices.DeleteFunc(slices.Clone(w.spans.Ended()), func(s sdktrace.ReadOnlySpan) bool {
		return s.Name() != name
	})
}
