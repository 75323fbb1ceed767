package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// byHand is the line in performance.md below which the command changes nothing.
const byHand = "<!-- Everything above is written by the benchmarks command; what follows is written by hand and kept. -->"

// report is a run's outcome.
type report struct {
	results *Results
	machine machine
	shapes  shapes
	command string
}

// write writes performance.md, and its charts in the folder performance beside it. What was written by hand stays.
func (r *report) write(dir string) error {
	charts := filepath.Join(dir, "performance")
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	drawn, err := drawCharts(r.results, charts)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "performance.md")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("writing the report: %w", err)
	}
	_, kept, _ := strings.Cut(string(old), byHand)
	if kept == "" {
		kept = "\n"
	}
	if err := os.WriteFile(path, []byte(r.markdown(drawn)+byHand+kept), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// markdown returns the part of performance.md that the command writes.
func (r *report) markdown(drawn []*chart) string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n\n", args...) }

	p("# Performance")
	p("Measured in one run of one command against one server, contenders taking turns round by round. Figures are medians over the " +
		"rounds; a ratio (×) is the median of the ratios of each round.")
	p("```sh\n%s\n```", r.command)

	p("## Targets")
	p("%s", targetsTable(r.results).markdown())
	p("The other fair library is not among the contenders. In an earlier run it made %s handovers/s with 16 goroutines and %s with 256, "+
		"where the floor made %s pairs/s with 64; the target is that, in relation to the floor.",
		number(fair16), number(fair256), number(fairFloor))

	p("## Machine")
	m := r.machine
	fmt.Fprintf(&s, "| | |\n|---|---|\n| cores | %d |\n| CPU | %s |\n| kernel | %s |\n| Go | %s |\n| Redis | %s, on loopback, without persistence |\n",
		m.Cores, m.CPU, m.Kernel, m.Go, m.Redis)
	for _, module := range moduleVersions("github.com/redis/go-redis/v9", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "github.com/redis/rueidis") {
		name, version, _ := strings.Cut(module, " ")
		fmt.Fprintf(&s, "| %s | %s |\n", name, version)
	}
	p("")
	p("Client and server share the cores, so what one of them saves the other may use.")

	p("## Contenders")
	for _, c := range contenders {
		fmt.Fprintf(&s, "- **%s**: %s\n", c.Name, c.About)
	}
	p("")
	alone, shared := r.shapes.alone, r.shapes.shared
	p("A write pair of ours, and so the floor, carries %v, then %v; a read pair %v, then %v. Where several have to do with one name, "+
		"these are %v, then %v; and %v, then %v.",
		alone[Write].acquire, alone[Write].release, alone[Read].acquire, alone[Read].release,
		shared[Write].acquire, shared[Write].release, shared[Read].acquire, shared[Read].release)

	if len(drawn) > 0 {
		p("## Charts")
		for _, c := range drawn {
			p("![%s](performance/%s.svg)", c.title, c.file)
		}
	}

	p("## All figures")
	for _, w := range workloads {
		if t := w.table(r.results); len(t.rows) > 0 {
			p("### %s", w.Title)
			p("%s", w.About)
			p("%s", strings.TrimSpace(t.markdown()))
		}
	}
	return s.String()
}
