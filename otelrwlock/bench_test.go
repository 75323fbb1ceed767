package otelrwlock_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/otelrwlock"
)

// What it costs a pair of calls, which one process makes again and again at a real server, to be reported.
func BenchmarkReported(b *testing.B) {
	testredis.Need(b)
	server := testredis.Start(b)
	meters := otelrwlock.WithMeterProvider(sdkmetric.NewMeterProvider(
		sdkmetric.WithReader(sdkmetric.NewManualReader())))
	noSpans := otelrwlock.WithTracerProvider(tracenoop.NewTracerProvider())
	spans := otelrwlock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(discard{})))
	for _, c := range []struct {
		name string
		opts []otelrwlock.Option
	}{{"not", nil}, {"metrics", []otelrwlock.Option{meters, noSpans}},
		{"metrics and spans", []otelrwlock.Option{meters, spans}}} {
		b.Run(c.name, func(b *testing.B) {
			var opts []rwlock.Option
			if c.opts != nil {
				observer, err := otelrwlock.New(c.opts...)
				require.NoError(b, err)
				opts = append(opts, observer.Options()...)
			}
			rw, err := rwlock.New(server.Client(), opts...)
			require.NoError(b, err)
			defer rw.Close()
			b.ReportAllocs()
			for b.Loop() {
				h, err := rw.Lock(ctx, "a")
				require.NoError(b, err)
				require.NoError(b, h.Unlock(ctx))
			}
		})
	}
}

// discard is a processor that does nothing with spans.
type discard struct{}

func (discard) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (discard) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (discard) Shutdown(context.Context) error                  { return nil }
func (discard) ForceFlush(context.Context) error                { return nil }
