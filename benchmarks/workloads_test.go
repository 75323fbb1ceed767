package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestMain lets the test binary be the proxy, which a workload starts as another process of the same binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "proxy" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestWorkloads runs every workload for a moment, and reports.
func TestWorkloads(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	binary := os.Getenv("RWLOCK_REDIS_SERVER")
	if binary == "" {
		binary = "redis-server"
	}
	if _, err := exec.LookPath(binary); err != nil {
		t.Skip(err)
	}
	server, err := startServer(t.Context(), binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	shapes, err := recordPairs(t.Context(), server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{server: server, shapes: shapes, quick: true, once: true, out: &progress{w: io.Discard}}
	if err := r.run(t.Context(), regexp.MustCompile("")); err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads {
		for _, param := range w.params() {
			for _, c := range w.Contenders {
				for _, metric := range w.Columns {
					if v := r.results.median(cell{w.Name, param, c.Name}, metric); !(v >= 0) {
						t.Errorf("%s, %s: %s = %v", w.label(param), c.Name, metric, v)
					}
				}
			}
		}
	}

	dir := t.TempDir()
	path := filepath.Join(dir, "performance.md")
	const mine = "\n\n## Mine\n"
	if err := os.WriteFile(path, []byte("old\n"+byHand+mine), 0o644); err != nil {
		t.Fatal(err)
	}
	rep := &report{results: r.results, machine: describeMachine(server.Version), shapes: shapes, command: "go test"}
	if err := rep.write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?s)^# Performance.*## Targets.*## Machine.*## All figures.*` + regexp.QuoteMeta(byHand+mine) + `$`).Match(text) {
		t.Errorf("the report lacks a part:\n%s", text)
	}
	for _, c := range charts {
		if info, err := os.Stat(filepath.Join(dir, "performance", c.file+".svg")); err != nil || info.Size() == 0 {
			t.Errorf("no chart %s: %v", c.file, err)
		}
	}
}
