package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const leftOut = " => left out" // follows a statement that a mutant does not have

var (
	condition  = regexp.MustCompile(`^(\s*(?:else)?if )(.*)( then\b.*)$`)
	comparison = regexp.MustCompile(` (<|>|<=|>=|==|~=) `)
	literal    = regexp.MustCompile(`(^|[ ,(])(\d+)([ ,)]|$)`)
	expression = regexp.MustCompile(`[^=~<>]= |\breturn `) // what one begins after
	connective = regexp.MustCompile(` (and|or) `)
	bracket    = regexp.MustCompile(`'(\()0'`)
	// A statement that stands alone on its line, and can be left out.
	statement = regexp.MustCompile(`^\s*((redis\.)?p?call\(.*\)|[a-z_.]+\(.*\)|[a-z_]+(\[[^=]*\])?(, [a-z_]+(\[[^=]*\])?)* = .*|return)$`)
	answer    = regexp.MustCompile(`^\s*return (-?\d)$`)
	extremum  = regexp.MustCompile(`math\.(max|min|floor|ceil)\(`)
)

// A mutant is a script, or a part of scripts, with one thing changed.
type mutant struct {
	file   string // relative to the root of the repository, with slashes
	line   int
	before string // the line, trimmed
	after  string // the line, trimmed; leftOut behind what it was if a statement is left out
	text   string // of the file
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d\n    %s\n  → %s", m.file, m.line, m.before, m.after)
}

// mutants makes every mutant of the scripts of a repository that decide anything: inspect.lua only reads.
func mutants(root string) (all []mutant, err error) {
	dir := os.DirFS(root)
	err = fs.WalkDir(dir, "lua", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(file) != ".lua" || path.Base(file) == "inspect.lua" {
			return err
		}
		text, err := fs.ReadFile(dir, file)
		all = append(all, mutateLua(file, string(text))...)
		return err
	})
	return all, err
}

// mutateLua makes every mutant of a script, or of a part of scripts.
func mutateLua(file, text string) []mutant {
	var all []mutant
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		code, comment := line, ""
		if at := strings.Index(line, "--"); at >= 0 {
			code, comment = line[:at], " "+line[at:]
		}
		code = strings.TrimRight(code, " ")
		seen := map[string]bool{code: true}
		for _, changed := range changeLua(code) {
			if seen[changed] {
				continue
			}
			seen[changed] = true
			with := slices.Clone(lines)
			with[i] = changed + comment
			after := strings.TrimSpace(changed)
			if after == "do end" {
				after = strings.TrimSpace(line) + leftOut
			}
			all = append(all, mutant{
				file: file, line: i + 1, before: strings.TrimSpace(line), after: after, text: strings.Join(with, "\n")})
		}
	}
	return all
}

// changeLua returns what a line of code can be turned into.
func changeLua(code string) []string {
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
	simple := false // a condition of one part, which it is enough to turn round
	// Conditions: the other way round, and without each of their parts.
	before, expr, after := "", code, ""
	if m := condition.FindStringSubmatch(code); m != nil {
		before, expr, after = m[1], m[2], m[3]
		simple = !connective.MatchString(expr)
		out = append(out, before+"not ("+expr+")"+after)
	}
	for _, part := range without(expr) {
		if balanced(part) {
			out = append(out, before+part+after)
		}
	}
	// Comparisons: off by one, or the other way round.
	replaceEach(comparison, 1, func(op string) []string {
		if simple && (op == "==" || op == "~=") {
			return nil
		}
		return []string{map[string]string{"<": "<=", ">": ">=", "<=": "<", ">=": ">", "==": "~=", "~=": "=="}[op]}
	})
	increment := func(n string) []string {
		v, err := strconv.Atoi(n)
		if err != nil || v >= 1000 { // a limit or a time of which the last one makes no difference
			return nil
		}
		return []string{strconv.Itoa(v + 1)}
	}
	replaceEach(literal, 2, increment)
	replaceEach(bracket, 1, func(string) []string { return []string{""} })
	replaceEach(extremum, 1, func(f string) []string {
		return []string{map[string]string{"max": "min", "min": "max", "floor": "ceil", "ceil": "floor"}[f]}
	})
	// Statements: left out.
	if statement.MatchString(code) && balanced(code) {
		out = append(out, code[:len(code)-len(strings.TrimLeft(code, " "))]+"do end")
	}
	replaceEach(answer, 1, increment)
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
	return strings.Count(code, "(")+strings.Count(code, "{")+strings.Count(code, "[") ==
		strings.Count(code, ")")+strings.Count(code, "}")+strings.Count(code, "]")
}
