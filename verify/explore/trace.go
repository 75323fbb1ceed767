package main

import (
	"bufio"
	"bytes"
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
