package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// write writes performance.md, and its charts in the folder performance beside it. What was written by hand
// stays.
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
	p("This page compares rwlock with other locks over Redis. One command measured all of them in one run, on one machine, against one " +
		"server; the contenders took turns round by round. Figures are medians over the rounds. A ratio (×) is the median of the ratios " +
		"of each round.")
	p("```sh\n%s\n```", r.command)

	p("## What a user sees")
	p("The [contenders](#contenders) are described below. The bare mutex and the floor are not libraries: the one is the least that is " +
		"called a lock, and the other shows what client and server could do at most.")
	for _, scene := range scenes {
		t := scene.table(r.results)
		if len(t.rows) == 0 {
			continue
		}
		p("### %s", scene.title)
		p("%s", scene.text)
		if slices.Contains(drawn, scene.chart) {
			p("%s", scene.chart.markdown())
		}
		p("%s", strings.TrimSpace(t.markdown()))
	}

	if t := targetsTable(targets, r.results, ours); len(t.rows) > 0 {
		p("## Targets")
		p("Each target is checked in the same run. The last column has the same figure for the other contenders.")
		p("%s", strings.TrimSpace(t.markdown()))
	}
	if t := targetsTable(delegatedTargets, r.results, delegated); len(t.rows) > 0 {
		p("### With delegations")
		p("These are the targets of an RWLock that locks are delegated to, with a lease of three seconds.")
		p("%s", strings.TrimSpace(t.markdown()))
	}

	p("## Machine")
	m := r.machine
	fmt.Fprintf(&s, "| | |\n|---|---|\n| cores | %d |\n| CPU | %s |\n| kernel | %s |\n| Go | %s |\n| Redis | %s, on loopback, without persistence |\n",
		m.Cores, m.CPU, m.Kernel, m.Go, m.Redis)
	for _, module := range moduleVersions("github.com/redis/go-redis/v9", "github.com/bsm/redislock",
		"github.com/go-redsync/redsync/v4", "github.com/redis/rueidis") {
		name, version, _ := strings.Cut(module, " ")
		fmt.Fprintf(&s, "| %s | %s |\n", name, version)
	}
	p("")
	p("The clients and the server share the cores. A contender whose client needs less leaves more to the server.")

	p("## Contenders")
	for _, c := range contenders {
		fmt.Fprintf(&s, "- **%s**: %s\n", c.Name, c.About)
	}
	p("")
	first, again := r.shapes.first, r.shapes.again
	p("The floor carries what rwlock sends: for a name's first write pair %v, then %v, and for the next one %v, then %v; for a name's first "+
		"read pair %v, then %v, and for the next one %v, then %v.",
		first[Write].acquire, first[Write].release, again[Write].acquire, again[Write].release,
		first[Read].acquire, first[Read].release, again[Read].acquire, again[Read].release)

	var more []string
	for _, c := range charts {
		if slices.Contains(drawn, c) {
			more = append(more, c.markdown())
		}
	}
	if len(more) > 0 {
		p("## Charts")
		p("%s", strings.Join(more, "\n\n"))
	}

	s.WriteString(r.quorum())
	p("## All figures")
	s.WriteString(r.figures(workloads))
	return s.String()
}

// figures returns what was measured of some workloads.
func (r *report) figures(workloads []*Workload) string {
	var s strings.Builder
	for _, w := range workloads {
		if t := w.table(r.results); len(t.rows) > 0 {
			fmt.Fprintf(&s, "### %s\n\n%s\n\n%s\n", w.Title, w.About, t.markdown())
		}
	}
	return s.String()
}

// quorumEnd is the line in performance.md that ends the section on quorums.
const quorumEnd = "<!-- The end of what go run . -quorum renews. -->"

// quorum returns the section on quorums; it is empty if nothing was measured of them.
func (r *report) quorum() string {
	figures := r.figures(quorumWorkloads)
	if figures == "" {
		return ""
	}
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n\n", args...) }
	p("%s", quorumTitle)
	p("[NewQuorum](quorum.md) and redsync over the same three and the same five servers, all on this machine, which the clients and the " +
		"servers share. The contenders took turns round by round here, too. This section alone is renewed by")
	p("```sh\ncd benchmarks && go run . -quorum\n```")
	for _, c := range overMany {
		fmt.Fprintf(&s, "- **%s**: %s\n", c.Name, c.About)
	}
	p("")
	p("%s", strings.TrimSpace(targetsTable(quorumTargets, r.results, ours).markdown()))
	s.WriteString(figures)
	p("%s", quorumEnd)
	return s.String()
}

const quorumTitle = "## Over a quorum"

// renewQuorum renews the section on quorums, and leaves the rest of performance.md as it is.
func (r *report) renewQuorum(dir string) error {
	path := filepath.Join(dir, "performance.md")
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("renewing the section on quorums: %w", err)
	}
	before, after, found := strings.Cut(string(old), quorumTitle+"\n")
	if found {
		_, after, found = strings.Cut(after, quorumEnd+"\n\n")
	}
	if !found {
		return fmt.Errorf("renewing the section on quorums: there is none in %s", path)
	}
	if err := os.WriteFile(path, []byte(before+r.quorum()+after), 0o644); err != nil {
		return fmt.Errorf("renewing the section on quorums: %w", err)
	}
	return nil
}
