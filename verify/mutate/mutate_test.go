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
