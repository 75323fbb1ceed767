package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// TestDocumentedCommandsRun holds that the commands that write the report do so, and that -quorum leaves the
// rest of it alone. They run with one workload, briefly.
func TestDocumentedCommandsRun(t *testing.T) {
	testredis.Need(t)
	path := filepath.Join("..", "docs", "performance.md")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		if out, err := exec.Command("go", append([]string{"run", "."},
			append(args, "-quick", "-out", dir)...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, "performance.md"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	if text := run("-only", "^read-pair$"); !strings.Contains(text, "### Uncontended read pair\n") {
		t.Errorf("the report lacks what was measured:\n%s", text)
	}

	if err := os.WriteFile(filepath.Join(dir, "performance.md"), before, 0o644); err != nil {
		t.Fatal(err)
	}
	after := run("-quorum", "-only", "^quorum-read-pair$")
	if section := quorumSection.FindString(after); strings.Count(section, "### ") != 1 {
		t.Fatalf("the section on quorums is not what was measured:\n%s", after)
	}
	if quorumSection.ReplaceAllString(string(before), "") != quorumSection.ReplaceAllString(after, "") {
		t.Error("more than the section on quorums has changed")
	}
}
