package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

// performance is the part of performance.md that the command writes.
//
//go:embed performance.md.tmpl
var performance string

// byHand is the line in performance.md below which the command changes nothing.
const byHand = "<!-- Everything above is written by the benchmarks command; what follows is written by hand and kept. -->"

// quorumSection is the section that -quorum renews.
var quorumSection = regexp.MustCompile(`(?s)## Over a quorum\n.*<!-- The end of what go run \. -quorum renews\. -->\n\n`)

// report is a run's outcome.
type report struct {
	results Results
	machine machine
	command string
}

// A shown is a part of the report that has a table.
type shown struct{ Title, About, Chart, Table string }

// write writes performance.md, and its charts in the folder performance beside it. What was written by hand
// stays; of a run with -quorum, all but the section on quorums does.
func (r *report) write(dir string, quorumAlone bool) error {
	path := filepath.Join(dir, "performance.md")
	old, err := os.ReadFile(path)
	if err != nil && (quorumAlone || !os.IsNotExist(err)) {
		return fmt.Errorf("writing the report: %w", err)
	}
	var text string
	if quorumAlone {
		section, err := r.execute("quorum", nil)
		if err != nil {
			return err
		}
		if !quorumSection.Match(old) {
			return fmt.Errorf("writing the report: there is no section on quorums in %s", path)
		}
		text = quorumSection.ReplaceAllLiteralString(string(old), section)
	} else {
		charts := filepath.Join(dir, "performance")
		if err := os.MkdirAll(charts, 0o755); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		drawn, err := drawCharts(r.results, charts)
		if err != nil {
			return err
		}
		if text, err = r.execute("", drawn); err != nil {
			return err
		}
		_, kept, _ := strings.Cut(string(old), byHand)
		text += byHand + cmp.Or(kept, "\n")
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// execute returns what a template of performance.md.tmpl makes of the results: the one of that name, or all.
func (r *report) execute(name string, drawn map[*chart]string) (string, error) {
	figures := func(workloads []*Workload) (list []shown) {
		for _, w := range workloads {
			if t := w.table(r.results); len(t.rows) > 0 {
				list = append(list, shown{Title: w.Title, About: w.About, Table: t.markdown()})
			}
		}
		return list
	}
	var seen []shown
	for _, s := range scenes {
		if t := s.table(r.results); len(t.rows) > 0 {
			seen = append(seen, shown{s.title, s.text, drawn[s.chart], t.markdown()})
		}
	}
	var more []string
	for _, c := range charts {
		if drawn[c] != "" {
			more = append(more, drawn[c])
		}
	}
	var text strings.Builder
	all, err := template.New("").Parse(performance)
	if err == nil {
		err = all.ExecuteTemplate(&text, name, map[string]any{
			"Command":          r.command,
			"Scenes":           seen,
			"Targets":          targetsTable(targets, r.results, ours).markdown(),
			"DelegatedTargets": targetsTable(delegatedTargets, r.results, delegated).markdown(),
			"Machine":          r.machine,
			"Contenders":       contenders,
			"Charts":           more,
			"Figures":          figures(workloads),
			"Quorum":           figures(quorumWorkloads),
			"OverMany":         overMany,
			"QuorumTargets":    targetsTable(quorumTargets, r.results, ours).markdown(),
		})
	}
	return text.String(), err
}
