package main

import (
	"fmt"
	"os"
	"strings"
)

// A trace is a start and what happens from there, in words, and not normalized: so that an owner, a claim or
// a request has one name throughout.
type trace struct {
	setup setup
	steps []string
}

func (t trace) String() string { return t.setup.text + "\n" + strings.Join(t.steps, "\n") + "\n" }

func (t *trace) add(step string) { t.steps = append(t.steps, step) }

// loadTrace reads a trace, but for what followed from the steps, which is indented.
func loadTrace(file string) (t trace, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, " ") {
			t.steps = append(t.steps, line)
		}
	}
	if len(t.steps) == 0 {
		return t, fmt.Errorf("%s has no set-up", file)
	}
	if t.setup, err = parseSetup(t.steps[0]); err != nil {
		return t, fmt.Errorf("%s: %w", file, err)
	}
	t.steps = t.steps[1:]
	return t, nil
}
