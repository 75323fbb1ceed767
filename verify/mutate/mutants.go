package main

import (
	"fmt"
	"strings"
)

// A mutant is a file with one thing changed.
type mutant struct {
	file   string // relative to the root of the repository, with slashes
	line   int
	before string // the line, trimmed
	after  string // the line, trimmed; leftOut behind what it was if a statement is left out
	text   string // of the file
	number int    // by which a package that has all its mutants knows it; or 0
	broken bool   // it does not compile
}

// leftOut follows a statement that a mutant does not have.
const leftOut = " => left out"

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d\n    %s\n  → %s", m.file, m.line, m.before, m.after)
}

// A mutation replaces the bytes of a file from one place to another.
type mutation struct {
	from, to int
	with     string
	drops    bool
}

// apply makes the mutant of a file.
func (c mutation) apply(file, text string) mutant {
	start := strings.LastIndexByte(text[:c.from], '\n') + 1
	end := len(text)
	if i := strings.IndexByte(text[c.from:], '\n'); i >= 0 {
		end = c.from + i
	}
	m := mutant{
		file: file, line: 1 + strings.Count(text[:c.from], "\n"), before: strings.TrimSpace(text[start:end]),
		text: text[:c.from] + c.with + text[c.to:],
	}
	if c.drops {
		m.after = m.before + leftOut
		return m
	}
	rest := ""
	if c.to < end {
		rest = text[c.to:end]
	}
	m.after = strings.TrimSpace(text[start:c.from] + c.with + rest)
	return m
}
