package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// afters returns what mutants make of their lines, and how often.
func afters(all []mutant) map[string]int {
	n := map[string]int{}
	for _, m := range all {
		n[m.after]++
	}
	return n
}

func requireMutants(t *testing.T, all []mutant, expected ...string) {
	t.Helper()
	made := afters(all)
	for _, e := range expected {
		if made[e] == 0 {
			t.Errorf("not made: %s", e)
		}
		delete(made, e)
	}
	for after := range made {
		t.Errorf("made, and not expected: %s", after)
	}
}

// Of a small script, these mutants are made, and no others.
func TestMutantsOfScript(t *testing.T) {
	all := mutateLua("lua/sample.lua", `--#include clock.lua
local function f(id)
  if a == '' and (not b or b < now) then  -- if it is free
    call('SET', KEYS[1], 1)
    last = math.max(first or 0, second)
    return
  end
  return -1
end
`)
	requireMutants(t, all,
		"if not (a == '' and (not b or b < now)) then",
		"if a == '' then",
		"if (not b or b < now) then",
		"if a ~= '' and (not b or b < now) then",
		"if a == '' and (not b or b <= now) then",
		"call('SET', KEYS[1], 2)",
		"call('SET', KEYS[1], 1)"+leftOut,
		"last = math.max(first or 1, second)",
		"last = math.min(first or 0, second)",
		"last = math.max(first or 0, second)"+leftOut,
		"return"+leftOut,
		"return 0",
	)
}

// Of a small Go file, these mutants are made, and no others.
func TestMutantsOfGo(t *testing.T) {
	all, err := mutateGo("sample.go", `package sample

const most = 10

func f(a, b int) {
	if a < b && b != most {
		g(true)
		return
	}
	for a == b {
		a++
	}
	switch {
	case a >= 2:
		b = a
	}
	c := [3]int{}
	defer h(c)
}
`)
	if err != nil {
		t.Fatal(err)
	}
	requireMutants(t, all,
		"const most = 11",
		"if !(a < b && b != most) {",
		"if a < b {",
		"if b != most {",
		"if a <= b && b != most {",
		"if a < b && b == most {",
		"g(true)"+leftOut,
		"g(false)",
		"return"+leftOut,
		"for !(a == b) {",
		"a++"+leftOut,
		"case !(a >= 2):",
		"case a > 2:",
		"case a >= 3:",
		"b = a"+leftOut,
		"defer h(c)"+leftOut,
	)
	for _, m := range all {
		if m.line < 3 || m.text == "" || !strings.HasPrefix(m.text, "package sample") {
			t.Errorf("%s: %q", m, m.text)
		}
	}
}

// A sample of one seed is the same again, and as large as asked for.
func TestSample(t *testing.T) {
	o := options{root: root(), match: regexp.MustCompile(""), sample: 20, seed: 7}
	first, err := choose(o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := choose(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != 20 {
		t.Fatalf("%d mutants", len(first))
	}
	for i := range first {
		if first[i].String() != again[i].String() {
			t.Errorf("%s, then %s", first[i], again[i])
		}
	}
}

// Every mutant that is said to be equivalent is still made, and of one line: of another, the reason may not be true.
func TestEquivalentMutantsAreMade(t *testing.T) {
	packages := map[string]bool{}
	for _, e := range equivalences {
		packages[filepath.ToSlash(filepath.Dir(e.file))] = true
	}
	made := map[[2]string]map[string]bool{}
	note := func(all []mutant, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			change := [2]string{m.file, m.after}
			if made[change] == nil {
				made[change] = map[string]bool{}
			}
			made[change][m.before] = true
		}
	}
	note(luaMutants(root()))
	for dir := range packages {
		if strings.HasPrefix(dir, "internal/") {
			note(goMutants(root(), dir))
		}
	}
	for _, e := range equivalences {
		if lines := made[[2]string{e.file, e.after}]; len(lines) != 1 {
			t.Errorf("%s: %s: made of %d lines: %v", e.file, e.after, len(lines), lines)
		}
	}
}

// A mutant of a script and one of a package are killed, each by the tests that are to do so. One that does not compile, and one
// that hangs, are told apart.
func TestMutantsAreKilled(t *testing.T) {
	// It runs beside the copy, of which it needs the scripts alone, so that nothing is compiled anew.
	steps := killer{name: "steps",
		command: `cd "` + filepath.Join(root(), "verify") + `" && go test -vet=off -count=1 -run 'Differential/miniredis/few=false' -rapid.checks 20 -rapid.nofailfile -rapid.shrinktime 1ms .`}
	own := killersOf("internal/engine")[0]
	slow := killer{name: "slow", command: "sleep 60 | cat"}
	for _, c := range []struct {
		pkg, match string
		killer     killer
		limit      time.Duration
		by         string
	}{
		{"", `^lua/unlock\.lua.*\n.*\n.*→ if not \(holder ~= claim\) then`, steps, time.Minute, "steps"},
		{"internal/engine", `→ e\.claims-- => left out`, own, time.Minute, "engine"},
		{"internal/engine", `→ deafAfter = 251`, own, time.Minute, "engine"},
		{"", `^lua/unlock\.lua.*\n.*\n.*→ if not \(holder ~= claim\) then`, slow, 200 * time.Millisecond, hangs},
	} {
		t.Run(c.by+c.match, func(t *testing.T) {
			t.Parallel()
			o := options{root: root(), pkg: c.pkg, match: regexp.MustCompile(c.match), limit: c.limit, killers: []killer{c.killer}}
			all, err := choose(o)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) != 1 {
				t.Fatalf("%d mutants: %v", len(all), all)
			}
			text, err := os.ReadFile(filepath.Join(root(), all[0].file))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, mutant{file: all[0].file, text: string(text) + "\nelse {"})
			w, err := newWorker(o, all, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if other, err := w.another(t.TempDir()); err != nil {
				t.Fatal(err)
			} else if by, output := other.try(all[0]); by != c.by {
				t.Errorf("killed by %s: %s", by, output)
			}
			path := filepath.Join(w.at, all[0].file)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if by, output := w.try(all[1]); by != invalid {
				t.Errorf("killed by %s, though it does not compile: %s", by, output)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
				t.Errorf("the copy is not as it was: %v", err)
			}
		})
	}
}

// A package with all its mutants does what it did, unless it is told which of them to be. Those that do not compile are left out.
func TestMutantsAreWoven(t *testing.T) {
	t.Parallel()
	const text = `package sample

const two = 2

func f(a int) int {
	b := a
	if a > two {
		return b
	}
	return a + 1
}

func g(p *int) {
	*p = 3
}
`
	dir := t.TempDir()
	for path, text := range map[string]string{"sample/sample.go": text, "lua/lua.go": "package lua\n", "go.mod": "module sample\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all, err := mutateGo("sample/sample.go", text)
	if err != nil {
		t.Fatal(err)
	}
	unused := mutant{file: "sample/sample.go", after: "unused", text: strings.Replace(text, "return b", "return a", 1)}
	unused.text = strings.Replace(unused.text, "b := a", "c := a", 1)
	all = append(all, unused)
	builds := 0
	err = weave(dir, "sample", all, func() string {
		if builds++; builds > 1 {
			return ""
		}
		written, err := os.ReadFile(filepath.Join(dir, "sample/sample.go"))
		if err != nil {
			t.Fatal(err)
		}
		before, _, found := strings.Cut(string(written), "c := a")
		if !found {
			t.Fatalf("not there:\n%s", written)
		}
		return fmt.Sprintf("./sample.go:%d:2: declared and not used: c\n", 1+strings.Count(before, "\n"))
	})
	if err != nil || builds != 2 {
		t.Fatal(builds, err)
	}
	written, err := os.ReadFile(filepath.Join(dir, "sample/sample.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		inside := strings.Contains(string(written), fmt.Sprintf("\ncase %d:\n", m.number))
		switch {
		case m.after == "unused" && (!m.broken || inside):
			t.Errorf("it is not left out: %+v", m)
		case m.after == "const two = 3" && (m.number != 0 || m.broken):
			t.Errorf("it is of no function: %+v", m)
		case m.after != "unused" && m.after != "const two = 3" && (!inside || m.broken):
			t.Errorf("it is not there: %+v", m)
		}
	}
	together, alone := woven(all)
	if len(together) != len(all)-1 || len(alone) != 1 {
		t.Errorf("%d are woven, %d are not", len(together), len(alone))
	}
	if err := weave(dir, "sample", all[:1], func() string { return "./other.go:1:1: no" }); err == nil {
		t.Error("what does not compile without mutants is woven")
	}
}

// The table counts what became of the mutants of each file.
func TestTable(t *testing.T) {
	table := newTable()
	for _, by := range []string{"protocol", "protocol", survived, equivalent} {
		table.add("lua/lock.lua", by)
	}
	const expected = "| file | mutants | killed by protocol | does not compile | equivalent | survived |\n" +
		"|---|---|---|---|---|---|\n| `lua/lock.lua` | 4 | 2 | 0 | 1 | 1 |\n| all | 4 | 2 | 0 | 1 | 1 |\n"
	if got := table.String(); got != expected {
		t.Errorf("%s", got)
	}
}
