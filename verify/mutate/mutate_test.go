package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every guard is still in the code.
func TestGuardsAreThere(t *testing.T) {
	for _, g := range guards {
		text, err := os.ReadFile(filepath.Join(root(), g.file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), g.code) {
			t.Errorf("%s: %s: the code has changed, and the guard is to be found anew", g.file, g.name)
		}
	}
}

// Every mutant that is said to be equivalent is still made, and of one line: of another, the reason may not be true.
func TestEquivalentMutantsAreMade(t *testing.T) {
	all, err := mutants(filepath.Join(root(), "lua"))
	if err != nil {
		t.Fatal(err)
	}
	made := map[[2]string]map[string]bool{}
	for _, m := range all {
		change := [2]string{m.file, m.change()}
		if made[change] == nil {
			made[change] = map[string]bool{}
		}
		made[change][m.before] = true
	}
	for _, e := range equivalences {
		if lines := made[[2]string{e.file, e.change}]; len(lines) != 1 {
			t.Errorf("%s: %s: made of %d lines: %v", e.file, e.change, len(lines), lines)
		}
	}
}
