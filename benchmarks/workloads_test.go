package main

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// TestMain lets the test binary be what a workload starts as another process of the same binary.
func TestMain(m *testing.M) {
	beChild()
	os.Exit(m.Run())
}

// TestWorkloads runs every workload for a moment; with -short, only at the first of its settings.
func TestWorkloads(t *testing.T) {
	testredis.Need(t)
	r := newRunner(t, 20, io.Discard)
	r.first = testing.Short()
	r.run(t.Context(), workloads)
	for _, w := range workloads {
		for _, param := range r.paramsOf(w) {
			for _, c := range w.Contenders {
				for _, metric := range w.Columns {
					if metric == HeldReading && !c.Reads || metric == Mutex && c != ours {
						continue // NaN
					}
					v := r.results.median(cell{w.Name, param, c.Name}, metric)
					assert.True(t, v >= 0, "%s, %s: %s = %v", w.label(param), c.Name, metric, v)
				}
			}
		}
	}
}
