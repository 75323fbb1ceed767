package main

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// everything returns results of a run in which every metric of every workload came out as 1.
func everything() Results {
	r := Results{}
	for _, w := range workloads {
		for _, param := range w.params() {
			for _, c := range w.Contenders {
				m := Metrics{}
				for _, metric := range w.Columns {
					m[metric] = 1
				}
				r[cell{w.Name, param, c.Name}] = []Metrics{m}
			}
		}
	}
	return r
}

// copyOfReport returns a folder with docs/performance.md and nothing else, and what is written there.
func copyOfReport(t *testing.T) (dir string, read func() string) {
	dir = t.TempDir()
	path := filepath.Join(dir, "performance.md")
	text, err := os.ReadFile(filepath.Join("..", "docs", "performance.md"))
	if err := errors.Join(err, os.WriteFile(path, text, 0o644),
		os.Mkdir(filepath.Join(dir, "performance"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir, func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// TestReport holds that performance.md has a place for every table and picture, and that what was written by
// hand stays.
func TestReport(t *testing.T) {
	dir, read := copyOfReport(t)
	before, r := read(), everything()
	all := tables(r)
	all["machine"] = describeMachine("7")
	if err := errors.Join(renew(dir, all), drawCharts(r, filepath.Join(dir, "performance"))); err != nil {
		t.Fatal(err)
	}
	after := read()
	if place.ReplaceAllString(before, "$1") != place.ReplaceAllString(after, "$1") {
		t.Error("more than the tables has changed")
	}
	for name, table := range all {
		if strings.Count(after, "<!-- table: "+name+" -->\n\n"+table.markdown()) != 1 {
			t.Errorf("performance.md does not show the table %q once", name)
		}
	}
	if places := place.FindAllString(after, -1); len(places) != len(all) {
		t.Errorf("performance.md has places for %d tables, but there are %d", len(places), len(all))
	}
	for _, c := range allCharts() {
		if info, err := os.Stat(filepath.Join(dir, "performance", c.name+".svg")); err != nil || info.Size() == 0 {
			t.Errorf("no chart %s: %v", c.name, err)
		}
		if strings.Count(after, "!["+c.title+"](performance/"+c.name+".svg)") != 1 {
			t.Errorf("performance.md does not show the chart %s once", c.name)
		}
	}
}

// TestDocumentedCommandsRun holds that the command renews what it measured, and nothing else. It runs with
// one workload, briefly.
func TestDocumentedCommandsRun(t *testing.T) {
	testredis.Need(t)
	dir, read := copyOfReport(t)
	before := read()
	if out, err := exec.Command("go", "run", ".", "-quick", "-only", "^quorum-read-pair$", "-out",
		dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	was, is := place.FindAllString(before, -1), place.FindAllString(read(), -1)
	for i, old := range was {
		renewed := strings.Contains(old, "workload quorum-read-pair") || strings.Contains(old, "targets, quorum")
		if (old != is[i]) != renewed {
			t.Errorf("want a new table: %v, got:\n%s", renewed, is[i])
		}
	}
}

// TestFiguresAreMeasured holds that what a target or a scene looks at is what a workload measures.
func TestFiguresAreMeasured(t *testing.T) {
	r := everything()
	for c, targets := range map[*Contender][]Target{ours: slices.Concat(targets, quorumTargets),
		delegated: delegatedTargets} {
		for _, target := range targets {
			if got, limit := target.of(r, c.Name), target.Limit(r); math.IsNaN(got) || math.IsNaN(limit) {
				t.Errorf("target %q: got %v, limit %v", target.What, got, limit)
			}
		}
	}
	for _, s := range scenes {
		for _, col := range s.columns {
			if math.IsNaN(col.of(r, ours.Name)) {
				t.Errorf("%s: no figure %q", s.name, col.head)
			}
		}
	}
}
