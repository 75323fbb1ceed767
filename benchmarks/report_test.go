package main

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// copyOfReport returns a folder with performance.md and nothing else, and what is written there.
func copyOfReport(t *testing.T) (dir string, read func() string) {
	dir = t.TempDir()
	path := filepath.Join(dir, "performance.md")
	text, err := os.ReadFile("performance.md")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "performance"), 0o755))
	return dir, func() string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
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
	require.NoError(t, renew(dir, all))
	require.NoError(t, drawCharts(dir))
	again, err := readTables(dir)
	require.NoError(t, err)
	require.Equal(t, all, again)
	after := read()
	require.Equal(t, place.ReplaceAllString(before, "$1"), place.ReplaceAllString(after, "$1"), "beside the tables")
	for name, table := range all {
		assert.Equal(t, 1, strings.Count(after, "<!-- table: "+name+" -->\n\n"+table.markdown()), "table %q", name)
	}
	assert.Len(t, place.FindAllString(after, -1), len(all))
	for _, c := range allCharts() {
		assert.FileExists(t, filepath.Join(dir, "performance", c.name+".svg"))
		assert.Equal(t, 1, strings.Count(after, "!["+c.title+"](performance/"+c.name+".svg)"), "chart %q", c.name)
	}
}

// TestDocumentedCommandsRun holds that the command renews what it measured, and nothing else, and that -draw
// renews the pictures alone. It runs with one workload, briefly.
func TestDocumentedCommandsRun(t *testing.T) {
	testredis.Need(t)
	dir, read := copyOfReport(t)
	before := read()
	out, err := exec.Command("go", "run", ".", "-quick", "-only", "^quorum-read-pair$", "-out",
		dir).CombinedOutput()
	require.NoError(t, err, string(out))
	is := place.FindAllString(read(), -1)
	for i, was := range place.FindAllString(before, -1) {
		renewed := strings.Contains(was, "workload quorum-read-pair") || strings.Contains(was, "targets, quorum")
		assert.Equal(t, renewed, was != is[i], is[i])
	}

	was := read()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "performance", "order.svg")))
	out, err = exec.Command("go", "run", ".", "-draw", "-out", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, was, read())
	require.FileExists(t, filepath.Join(dir, "performance", "order.svg"))
}

// TestFiguresAreMeasured holds that what a target or a scene looks at is what a workload measures.
func TestFiguresAreMeasured(t *testing.T) {
	r := everything()
	for c, targets := range map[*Contender][]Target{ours: slices.Concat(targets, quorumTargets),
		delegated: delegatedTargets} {
		for _, target := range targets {
			assert.False(t, math.IsNaN(target.of(r, c.Name)), target.What)
			assert.False(t, math.IsNaN(target.Limit(r)), "the limit of %s", target.What)
		}
	}
	for _, s := range scenes {
		for _, col := range s.columns {
			assert.False(t, math.IsNaN(col.of(r, ours.Name)), "%s, %s", s.name, col.head)
		}
	}
}
