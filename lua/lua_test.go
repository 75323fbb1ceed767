package lua_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testredis.StopShared()
	os.Exit(code)
}

// places returns where the files say a text, as <file>:<line>.
func places(t *testing.T, text string) (list []string) {
	t.Helper()
	for _, pattern := range []string{"*.lua", "shared/*.lua"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			for i, line := range strings.Split(string(b), "\n") {
				if strings.Contains(line, text) {
					list = append(list, "lua/"+filepath.ToSlash(file)+":"+strconv.Itoa(i+1))
				}
			}
		}
	}
	return list
}

// An error inside a script says in which file it is, and where, on every server.
func TestExplainNamesTheFileAndLine(t *testing.T) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		c := s.Client()
		argv := []any{
			"w:instance-1_:1:000000000000001:AAAAAAAAAAAAAAAAAAAAAA:1", "000000000000001", "instance-1_:1",
			"30000", "wake:", "240000", "wait", "2w:instance-1_:2:000000000000002:AAAAAAAAAAAAAAAAAAAAAA:1",
		}
		for _, other := range []string{"", ":leases", ":queue"} {
			for _, script := range lua.All {
				s.Flush(t.Context())
				require.NoError(t, c.RPush(t.Context(), s.Prefix+other, "x").Err())
				_, err := c.Eval(t.Context(), script.Source, []string{s.Prefix, s.Prefix + ":leases",
					s.Prefix + ":queue"}, argv...).Result()
				if err == nil {
					require.NotEmpty(t, other, "%s does not look at the lock", script.Name)
					continue
				}
				said := script.Explain(err.Error())
				require.Contains(t, said, "WRONGTYPE")
				require.NotContains(t, said, "user_script")
				var named bool
				for _, place := range places(t, "call(") {
					named = named || strings.Contains(said+" ", place+".") || strings.Contains(said, place+":")
				}
				require.True(t, named, "%s: %s", script.Name, said)
			}
		}
	})
}

// The places are those of the files that the composed text is made of.
func TestExplainCountsLines(t *testing.T) {
	t.Parallel()
	at := places(t, "call('HMGET', LOCK, 'owner', 'lease', 'fence', 'count', 'pending'") // in shared/state.lua alone
	require.Len(t, at, 1)
	const text = "call('HMGET', KEYS[1], 'owner', 'lease', 'fence', 'count', 'pending'"
	for _, script := range []*lua.Script{lua.Lock, lua.Unlock, lua.Renew,
		lua.Serve, lua.Force} {
		before, _, found := strings.Cut(script.Source, text)
		require.True(t, found, script.Name)
		n := strconv.Itoa(strings.Count(before, "\n") + 1)
		for said, want := range map[string]string{
			"ERR user_script:" + n + ": x script: 6c4c25, on @user_script:" + n + ".": "ERR " + at[0] +
				": x script: 6c4c25, on " + at[0] + ".",
			"ERR Error compiling script (new function): :" + n +
				": x stack traceback:\n\t[G]: in function 'call'\n\t:" + n +
				": in main chunk": "ERR Error compiling script (new function): " +
				at[0] + ": x stack traceback:\n\t[G]: in function 'call'\n\t" + at[0] + ": in main chunk",
			"ERR Error compiling script (new function): :0: x":     "ERR Error compiling script (new function): :0: x",
			"ERR Error compiling script (new function): :99999: x": "ERR Error compiling script (new function): :99999: x",
			"ERR user_script:0: x":                                 "ERR user_script:0: x",
			"ERR user_script:99999999999999999999: x":              "ERR user_script:99999999999999999999: x",
			"NOPERM No permissions to access the 'p:{a :" + n +
				": b}' key": "NOPERM No permissions to access the 'p:{a :" + n + ": b}' key",
			"OOM command not allowed when used memory > 'maxmemory'.": "OOM command not allowed when used memory > 'maxmemory'.",
		} {
			require.Equal(t, want, script.Explain(said), script.Name)
		}
	}
}

// What the command prints is what the server runs.
func TestPrint(t *testing.T) {
	t.Parallel()
	printed := filepath.Join(t.TempDir(), "print")
	out, err := exec.Command("go", "build", "-o", printed, "./print").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, script := range lua.Scripts {
		out, err := exec.Command(printed, script.Name).Output()
		require.NoError(t, err)
		require.Equal(t, script.Source, string(out), script.Name)
		require.NotContains(t, script.Source, "#include", script.Name)
	}
	out, err = exec.Command(printed, "no such script").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "usage: print SCRIPT")
	require.Contains(t, string(out), "unlock")
}
