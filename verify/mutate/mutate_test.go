package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	expected := []string{
		"if not (a == '' and (not b or b < now)) then",
		"if a == '' then",
		"if (not b or b < now) then",
		"if a ~= '' and (not b or b < now) then",
		"if a == '' and (not b or b <= now) then",
		"call('SET', KEYS[1], 2)",
		"call('SET', KEYS[1], 1)" + leftOut,
		"last = math.max(first or 1, second)",
		"last = math.min(first or 0, second)",
		"last = math.max(first or 0, second)" + leftOut,
		"return" + leftOut,
		"return 0",
	}
	var made []string
	for _, m := range all {
		made = append(made, m.after)
	}
	require.ElementsMatch(t, expected, made)
}

// Every change that is said to be equivalent is still made, and of one line: of another, the reason may not
// be true.
func TestEquivalentMutantsAreMade(t *testing.T) {
	all, err := mutants(root())
	require.NoError(t, err)
	made := map[[2]string][]string{}
	for _, m := range all {
		change := [2]string{m.file, m.after}
		if !slices.Contains(made[change], m.before) {
			made[change] = append(made[change], m.before)
		}
	}
	for change := range reasons() {
		require.Len(t, made[change], 1, "%v", change)
	}
}

// A mutant is killed by the tests that are to do so. One that is no Lua, and one that hangs, are told apart,
// and the copy is as before.
func TestMutantsAreKilled(t *testing.T) {
	all, err := choose(root(), `^lua/shared/end\.lua.*\n.*\n.*→ if not \(holder == claim\) then`, 0, 1)
	require.NoError(t, err)
	require.Len(t, all, 1)
	defer func(before []killer) { killers = before }(killers)
	killers = []killer{{name: "protocol", dir: "internal/protocol",
		args: "-test.skip /miniredis -test.run Release"}}
	w, err := newWorkshop(root(), t.TempDir())
	require.NoError(t, err)
	by, output := w.kill(killers, time.Minute)
	require.Equal(t, survived, by, "without a change: %s", output)
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
		by, err := w.try(c.mutant, c.limit)
		require.NoError(t, err)
		require.Equal(t, c.by, by)
	}
	by, output = w.kill(killers, time.Minute)
	require.Equal(t, survived, by, "after all changes: %s", output)
}
