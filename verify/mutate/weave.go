package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A loom puts all mutants of a package into it at once: each function begins with a switch that has the body of each of its mutants,
// and takes the one that the environment names by its number. So all of them are compiled together.
type loom struct {
	root, pkg string
	mutants   []mutant
	broken    map[int]bool // numbers of those that do not compile
}

// chosenBy is the variable of the environment that names a mutant.
const chosenBy = "RWLOCK_MUTANT"

// selector is a file of the package.
const selector = `package %s

import "github.com/seed-7e8842f7/rwlock/lua"

var chosenMutant = lua.ChosenMutant
`

// selected is a file of the package lua, which all others import.
const selected = `package lua

import (
	"os"
	"strconv"
)

var ChosenMutant, _ = strconv.Atoi(os.Getenv("` + chosenBy + `"))
`

// weave writes the package, and numbers the mutants in it, from 1. Those that are outside of functions have none. It builds what it has
// written, and leaves out those that do not compile.
func weave(root, pkg string, all []mutant, build func() string) error {
	l := loom{root: root, pkg: pkg, mutants: all, broken: map[int]bool{}}
	name := path.Base(pkg)
	if err := os.WriteFile(filepath.Join(root, pkg, "chosen_mutant.go"), fmt.Appendf(nil, selector, name), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "lua", "chosen_mutant.go"), []byte(selected), 0o644); err != nil {
		return err
	}
	original := map[string]string{}
	for i := range all {
		all[i].number = 0
		file := all[i].file
		if original[file] == "" {
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			if err != nil {
				return err
			}
			original[file] = string(text)
		}
	}
	for range 20 {
		places := map[string]map[int]int{} // of a file: which mutant has a line
		for file, text := range original {
			woven, lines, err := l.file(file, text)
			if err != nil {
				return err
			}
			places[path.Base(file)] = lines
			if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(file)), []byte(woven), 0o644); err != nil {
				return err
			}
		}
		out := build()
		if out == "" {
			return nil
		}
		found := false
		for _, m := range compilerError.FindAllStringSubmatch(out, -1) {
			line, _ := strconv.Atoi(m[2])
			if number := places[m[1]][line]; number > 0 && !l.broken[number] {
				l.broken[number], found = true, true
			}
		}
		if !found {
			return fmt.Errorf("%s does not compile with its mutants:\n%s", pkg, out)
		}
	}
	return fmt.Errorf("%s does not compile with its mutants", pkg)
}

var compilerError = regexp.MustCompile(`(?m)(\w+\.go):(\d+):\d+: `)

// file weaves the mutants of a file into its text. It returns which lines are of which mutant, too.
func (l *loom) file(file, text string) (string, map[int]int, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	lines := map[int]int{}
	line, done := 1, 0
	write := func(s string, number int) {
		for range strings.Count(s, "\n") + 1 {
			if number > 0 {
				lines[line] = number
			}
			line++
		}
		line-- // the last goes on
		b.WriteString(s)
	}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		from, to := set.Position(f.Body.Lbrace).Offset, set.Position(f.Body.Rbrace).Offset+1
		ending := "\npanic(0)\n"
		if f.Type.Results == nil {
			ending = "\nreturn\n"
		}
		write(text[done:from+1], 0)
		done = from + 1
		first := true
		for i := range l.mutants {
			m := &l.mutants[i]
			if at := firstDifference(text, m.text); m.file != file || at <= from || at >= to {
				continue
			}
			m.number = i + 1
			if m.broken = l.broken[m.number]; m.broken {
				continue
			}
			if first {
				write("\nswitch chosenMutant {\n", 0)
				first = false
			}
			write(fmt.Sprintf("case %d:\n", m.number), 0)
			write(m.text[from:to+len(m.text)-len(text)]+ending, m.number)
			write("\n", 0)
		}
		if !first {
			write("}\n", 0)
		}
	}
	write(text[done:], 0)
	return b.String(), lines, nil
}

func firstDifference(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// woven splits mutants into those that are in the package, and those that it has to be compiled for again.
func woven(all []mutant) (together, alone []mutant) {
	for _, m := range all {
		if m.number > 0 {
			together = append(together, m)
		} else {
			alone = append(alone, m)
		}
	}
	return together, alone
}
