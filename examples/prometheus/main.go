// Prometheus serves the metrics of locks, while workers contend for one of them.
//
//	cd examples/prometheus && go run .
//	curl http://localhost:8080/metrics
//
// dashboard.json is a Grafana dashboard for them.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
	"github.com/seed-7e8842f7/rwlock/otelrwlock"
	"github.com/seed-7e8842f7/rwlock/rwlockdebug"
)

// observed returns an RWLock, and what serves its metrics to Prometheus.
func observed(client redis.UniversalClient) (*rwlock.RWLock, http.Handler, error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(),
		exporter.WithoutTargetInfo())
	if err != nil {
		return nil, nil, err
	}
	telemetry, err := otelrwlock.New(otelrwlock.WithMeterProvider(
		metric.NewMeterProvider(metric.WithReader(reader))))
	if err != nil {
		return nil, nil, err
	}
	rw, err := rwlock.New(client, telemetry.Options()...)
	return rw, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}

// contend has readers and writers work under one lock until ctx ends.
func contend(ctx context.Context, rw *rwlock.RWLock, name string) {
	var workers sync.WaitGroup
	for i := range 8 {
		lock := rw.RLock
		if i%4 == 0 {
			lock = rw.Lock
		}
		workers.Go(func() {
			for h, err := lock(ctx, name); err == nil; h, err = lock(ctx, name) {
				time.Sleep(rand.N(20 * time.Millisecond))
				_ = h.Unlock(ctx)
			}
		})
	}
	workers.Wait()
}

func main() {
	connect.Main(func(ctx context.Context, client *redis.Client, _ *rwlock.RWLock) error {
		rw, metrics, err := observed(client)
		if err != nil {
			return err
		}
		defer rw.Close()
		go contend(ctx, rw, "orders:42")
		http.Handle("/metrics", metrics)
		http.Handle("/debug/rwlock", rwlockdebug.Handler(rw))
		fmt.Println("http://localhost:8080/metrics, http://localhost:8080/debug/rwlock")
		return http.ListenAndServe("localhost:8080", nil)
	})
}
