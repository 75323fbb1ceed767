package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A trace is a start and what happens from there, in words, and not normalized: so that an owner, a claim or
// a request has one name throughout.
type trace struct {
	setup setup
	steps []string
}

func (t trace) String() string { return t.setup.text + "\n" + strings.Join(t.steps, "\n") + "\n" }

// add appends a step, and what followed from it.
func (t *trace) add(step string, follows []string) {
	t.steps = append(t.steps, step)
	for _, s := range follows {
		t.steps = append(t.steps, "  "+s)
	}
}

// save writes a bug's trace into a directory, named by what is wrong.
func (b bug) save(dir string) (string, error) {
	name := kindOf(errors.New(strings.ReplaceAll(b.what, " ", "x")))
	name = strings.Trim(strings.ReplaceAll(name, "x", "-"), "-")
	file := filepath.Join(dir, name[:min(len(name), 60)]+".trace")
	return file, os.WriteFile(file, []byte("# "+b.what+"\n"+b.trace.String()), 0o644)
}

// loadTrace reads what save has written, but for what followed from the steps.
func loadTrace(file string) (t trace, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, " "):
		case t.setup.text == "":
			if t.setup, err = parseSetup(line); err != nil {
				return t, fmt.Errorf("%s: %w", file, err)
			}
		default:
			t.steps = append(t.steps, line)
		}
	}
	return t, nil
}
