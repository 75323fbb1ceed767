package main

import (
	"path/filepath"
	"slices"
	"testing"

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

// A mutant is killed by the tests that are to do so. One that is equivalent survives, as the scripts do
// without a change. One that is no Lua, and one that hangs, are told apart.
func TestMutantsAreKilled(t *testing.T) {
	defer func(before []killer) { killers = before }(killers)
	killers = []killer{{name: "protocol", dir: "internal/protocol",
		args: "-test.skip /miniredis -test.run Release"}}
	tests, err := build(t.TempDir())
	require.NoError(t, err)
	by, output := tests.kill(killers, filepath.Join(root(), "lua"))
	require.Equal(t, survived, by, "without a change: %s", output)
	becomes := func(want, match, more string) {
		all, err := choose(root(), match, 0, 1)
		require.NoError(t, err)
		require.Len(t, all, 1)
		all[0].text += more
		by, err := tests.try(all[0])
		require.NoError(t, err)
		require.Equal(t, want, by, "%v", all[0])
	}
	const mutant = `^lua/shared/end\.lua.*\n.*\n.*→ if not \(holder == claim\) then`
	becomes("protocol", mutant, "")
	becomes(invalid, mutant, "\nelse {")
	becomes(survived, `^lua/shared/release\.lua.*\n.*\n.*→ if record >= ARGV\[2\] and`, "")
	killers[0].args += " -test.timeout=1ms"
	becomes(hangs, mutant, "")
}
