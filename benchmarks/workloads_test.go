package main

import (
	"io"
	"os"
	"slices"
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
	chosen := slices.Clone(workloads)
	for i, w := range chosen {
		if testing.Short() {
			first := *w
			first.Params = w.Params[:min(len(w.Params), 1)]
			chosen[i] = &first
		}
	}
	r.run(t.Context(), chosen)
	for _, w := range chosen {
		for _, param := range w.params() {
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
