package main

import (
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

// Every change that is said to be equivalent is still made, and of one line: of another, the reason may not
// be true.
func TestEquivalentMutantsAreMade(t *testing.T) {
	all, err := mutants(root())
	if err != nil {
		t.Fatal(err)
	}
	made := map[[2]string]map[string]bool{}
	for _, m := range all {
		change := [2]string{m.file, m.after}
		if made[change] == nil {
			made[change] = map[string]bool{}
		}
		made[change][m.before] = true
	}
	file := ""
	for line := range strings.Lines(equivalents) {
		after, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t")
		if !indented {
			file, _, _ = strings.Cut(after, ": ")
		} else if lines := made[[2]string{file, after}]; len(lines) != 1 {
			t.Errorf("%s: %s: made of %d lines: %v", file, after, len(lines), lines)
		}
	}
}

// A mutant is killed by the tests that are to do so. One that is no Lua, and one that hangs, are told apart,
// and the copy is as before.
func TestMutantsAreKilled(t *testing.T) {
	all, err := choose(root(), `^lua/unlock\.lua.*\n.*\n.*→ if not \(holder ~= claim\) then`, 0, 1)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	defer func(before []killer) { killers = before }(killers)
	killers = []killer{{name: "protocol", dir: "internal/protocol", args: "-test.skip /miniredis -test.run Release"}}
	w, err := newWorkshop(root(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if by, output := w.kill(killers, time.Minute); by != survived {
		t.Fatalf("%s without a change: %s", by, output)
	}
	broken := all[0]
	broken.text += "\nelse {"
	for _, c := range []struct {
		mutant
		limit time.Duration
		by    string
	}{
		{all[0], time.Minute, "protocol"},
		{broken, time.Minute, invalid},
		{all[0], time.Millisecond, hangs},
	} {
		if by, err := w.try(c.mutant, c.limit); by != c.by || err != nil {
			t.Errorf("%s, not %s: %v", by, c.by, err)
		}
	}
	if by, output := w.kill(killers, time.Minute); by != survived {
		t.Errorf("%s after all changes: %s", by, output)
	}
}
