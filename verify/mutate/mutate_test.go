package main

import (
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
		{"", `^lua/unlock\.lua.*\n.*\n.*→ if not \(holder ~= claim\) then`, slow, 200 * time.Millisecond, hangs},
	} {
		t.Run(c.by, func(t *testing.T) {
			t.Parallel()
			o := options{root: root(), pkg: c.pkg, match: regexp.MustCompile(c.match), limit: c.limit, killers: []killer{c.killer}}
			all, err := choose(o)
			if err != nil {
				t.Fatal(err)
			}
			if len(all) != 1 {
				t.Fatalf("%d mutants: %v", len(all), all)
			}
			w, err := newWorker(o, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if by, output := w.try(all[0]); by != c.by {
				t.Errorf("killed by %s: %s", by, output)
			}
			all[0].text += "\nelse {"
			if by, output := w.try(all[0]); by != invalid {
				t.Errorf("killed by %s, though it does not compile: %s", by, output)
			}
			text, err := os.ReadFile(filepath.Join(w.at, all[0].file))
			original, err2 := os.ReadFile(filepath.Join(root(), all[0].file))
			if err != nil || err2 != nil || string(text) != string(original) {
				t.Errorf("the copy is not as it was: %v %v", err, err2)
			}
		})
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
