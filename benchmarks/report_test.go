package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// everything returns results of a run in which every metric of every workload came out as 1.
func everything() Results {
	r := Results{}
	for _, w := range allWorkloads() {
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

// TestReport holds that the report has all its parts, and keeps what was written by hand.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "performance.md")
	const mine = "\n\n## Mine\n"
	if err := os.WriteFile(path, []byte("old\n"+byHand+mine), 0o644); err != nil {
		t.Fatal(err)
	}
	rep := &report{results: everything(), machine: describeMachine("7"), command: "go test"}
	if err := rep.write(dir, false); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parts := `(?s)^# Performance.*## What a user sees.*## Targets.*## Machine.*## Contenders.*## Charts.*## Over a quorum.*## All figures.*`
	if !regexp.MustCompile(parts + regexp.QuoteMeta(byHand+mine) + `$`).Match(text) {
		t.Errorf("the report lacks a part:\n%s", text)
	}
	for _, c := range allCharts() {
		if info, err := os.Stat(filepath.Join(dir, "performance", c.file+".svg")); err != nil || info.Size() == 0 {
			t.Errorf("no chart %s: %v", c.file, err)
		}
		if strings.Count(string(text), c.markdown()) != 1 {
			t.Errorf("the report does not show the chart %s once", c.file)
		}
	}
}

// TestFiguresAreMeasured holds that what a target or a scene looks at is what a workload measures.
func TestFiguresAreMeasured(t *testing.T) {
	r := everything()
	for c, targets := range map[*Contender][]Target{ours: slices.Concat(targets, quorumTargets),
		delegated: delegatedTargets} {
		for _, target := range targets {
			if got, limit := target.Of(r, c.Name), target.Limit(r); math.IsNaN(got) || math.IsNaN(limit) {
				t.Errorf("target %q: got %v, limit %v", target.What, got, limit)
			}
		}
	}
	for _, s := range scenes {
		for _, col := range s.columns {
			if math.IsNaN(col.of(r, ours.Name)) {
				t.Errorf("%s: no figure %q", s.title, col.head)
			}
		}
	}
}
