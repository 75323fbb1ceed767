package main

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

// TestMain lets the test binary be what a workload starts as another process of the same binary.
func TestMain(m *testing.M) {
	playRole()
	os.Exit(m.Run())
}

// TestWorkloads runs every workload for a moment; with -short, only at the first of its settings.
func TestWorkloads(t *testing.T) {
	binary := os.Getenv("RWLOCK_REDIS_SERVER")
	if binary == "" {
		binary = "redis-server"
	}
	if _, err := exec.LookPath(binary); err != nil {
		t.Skip(err)
	}
	r := newRunner(binary, io.Discard)
	r.less, r.once, r.first = 20, true, testing.Short()
	t.Cleanup(r.stop)
	if err := r.run(t.Context(), allWorkloads()); err != nil {
		t.Fatal(err)
	}
	for _, w := range allWorkloads() {
		for _, param := range r.paramsOf(w) {
			for _, c := range w.Contenders {
				for _, metric := range w.Columns {
					if v := r.results.median(cell{w.Name, param, c.Name}, metric); !(v >= 0) &&
						(metric != HeldReading || c.Reads) && (metric != Mutex || c == ours) {
						t.Errorf("%s, %s: %s = %v", w.label(param), c.Name, metric, v)
					}
				}
			}
		}
	}
}
