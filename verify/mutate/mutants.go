package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A mutant is a script, or a part of scripts, with one thing changed.
type mutant struct {
	file   string // relative to the directory of the scripts
	line   int
	before string // the line, trimmed
	after  string
	text   string // of the file
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d\n    %s\n  → %s", m.file, m.line, m.before, m.after)
}

var (
	condition  = regexp.MustCompile(`^(\s*(?:else)?if )(.*)( then\b.*)$`)
	comparison = regexp.MustCompile(` (<|>|<=|>=) `)
	literal    = regexp.MustCompile(`(^|[ ,(])(\d+)([ ,)]|$)`)
	expression = regexp.MustCompile(`[^=~<>]= |\breturn `) // what one begins after
	connective = regexp.MustCompile(` (and|or) `)
	// A statement that stands alone on its line, and can be left out.
	statement = regexp.MustCompile(`^\s*((redis\.)?p?call\(.*\)|[a-z_]+\(.*\)|(more|left|limit|token|ttl|last|leases|writer|hold) = .*|` +
		`leases, .* = .*|[a-z]+\[[^]]*\] = .*|table\.insert\(.*\)|return|[a-z]+, [a-z]+ = .*)$`)
	answer = regexp.MustCompile(`^(\s*return )(-?\d)$`)
)

// mutants makes every mutant of the scripts in dir.
func mutants(dir string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.lua"))
	if err != nil {
		return nil, err
	}
	shared, err := filepath.Glob(filepath.Join(dir, "shared", "*.lua"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, path := range append(files, shared...) {
		file, err := filepath.Rel(dir, path)
		if err != nil {
			return nil, err
		}
		if file == "inspect.lua" {
			continue // it decides nothing
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			code, comment := line, ""
			if at := strings.Index(line, "--"); at >= 0 {
				code, comment = line[:at], line[at:]
			}
			seen := map[string]bool{code: true}
			for _, changed := range change(strings.TrimRight(code, " ")) {
				if seen[changed] {
					continue
				}
				seen[changed] = true
				with := slices.Clone(lines)
				with[i] = changed + " " + comment
				all = append(all, mutant{file, i + 1, strings.TrimSpace(line), strings.TrimSpace(changed), strings.Join(with, "\n")})
			}
		}
	}
	return all, nil
}

// change returns what a line of code can be turned into.
func change(code string) []string {
	var out []string
	if strings.TrimSpace(code) == "" || strings.Contains(code, "local function") {
		return nil
	}
	replaceEach := func(re *regexp.Regexp, group int, with func(string) []string) {
		for _, m := range re.FindAllStringSubmatchIndex(code, -1) {
			for _, w := range with(code[m[2*group]:m[2*group+1]]) {
				out = append(out, code[:m[2*group]]+w+code[m[2*group+1]:])
			}
		}
	}
	// Conditions: the other way round, and without each of their parts.
	if m := condition.FindStringSubmatch(code); m != nil {
		out = append(out, m[1]+"not ("+m[2]+")"+m[3])
		for _, part := range without(m[2]) {
			out = append(out, m[1]+part+m[3])
		}
	} else {
		for _, part := range without(code) {
			if balanced(part) {
				out = append(out, part)
			}
		}
	}
	// Bounds: off by one.
	replaceEach(comparison, 1, func(op string) []string {
		return map[string][]string{"<": {"<="}, ">": {">="}, "<=": {"<"}, ">=": {">"}}[op]
	})
	replaceEach(literal, 2, func(n string) []string {
		v, err := strconv.Atoi(n)
		if err != nil || v >= 1000 { // a limit or a time of which the last one makes no difference
			return nil
		}
		return []string{strconv.Itoa(v + 1)}
	})
	replaceEach(regexp.MustCompile(`'(\()0'`), 1, func(string) []string { return []string{""} })
	replaceEach(regexp.MustCompile(`math\.(max|min)\(`), 1, func(f string) []string {
		return []string{map[string]string{"max": "min", "min": "max"}[f]}
	})
	// Statements: left out.
	if statement.MatchString(code) {
		out = append(out, code[:len(code)-len(strings.TrimLeft(code, " "))]+"do end")
	}
	// Answers.
	if m := answer.FindStringSubmatch(code); m != nil {
		n, _ := strconv.Atoi(m[2])
		out = append(out, m[1]+strconv.Itoa(n+1))
	}
	return out
}

// without returns an expression without each operand of its ands and ors that stand outside of brackets.
func without(code string) []string {
	var at [][]int
	for _, m := range connective.FindAllStringIndex(code, -1) {
		if balanced(code[:m[0]]) {
			at = append(at, m)
		}
	}
	var out []string
	for i, m := range at {
		end := len(code)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		out = append(out, code[:m[0]]+code[end:]) // the right operand
		if i == 0 {
			start := 0
			for _, m := range expression.FindAllStringIndex(code[:m[0]], -1) {
				start = m[1]
			}
			out = append(out, code[:start]+code[m[1]:])
		}
	}
	return out
}

func balanced(code string) bool {
	depth := 0
	for _, c := range code {
		switch c {
		case '(', '{', '[':
			depth++
		case ')', '}', ']':
			depth--
		}
	}
	return depth == 0
}
