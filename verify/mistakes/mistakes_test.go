// Package mistakes makes mistakes on purpose. Each file in patches has one: what is wrong, the suites that
// have to fail on it, and the change.
package mistakes

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var all = flag.Bool("all", false, "make every mistake, as every night")

// usual are the mistakes that are made on every change. Of the others, it is only checked that their patches
// apply.
var usual = []string{"delegation-returned-under-readers", "reply-of-a-former-master", "old-votes-count",
	"downgrade-of-a-lost-hold", "lost-hold-is-relied-on"}

var (
	// a package, the flags of its test, and what that says
	fails   = regexp.MustCompile(`(?m)^fails: (\S+)(.*)(?:\nsays: (.+))?$`)
	changes = regexp.MustCompile(`(?m)^\+\+\+ b/(\S+)$`) // a file
)

// Each suite that a mistake names fails on it.
func TestMistakesAreFound(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	patches, err := filepath.Glob(filepath.Join(root, "verify/mistakes/patches/*.patch"))
	require.NoError(t, err)
	for _, name := range usual {
		require.FileExists(t, filepath.Join("patches", name+".patch"))
	}
	for _, patch := range patches {
		name := strings.TrimSuffix(filepath.Base(patch), ".patch")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(patch)
			require.NoError(t, err)
			suites := fails.FindAllStringSubmatch(string(text), -1)
			require.NotEmpty(t, suites, "the patch names no test")
			// run runs a command, and returns what it prints.
			run := func(dir, name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				return string(out), err
			}

			// The changed files are copies, which the go command takes in place of the files of the repository.
			dir, replace := t.TempDir(), map[string]string{}
			for _, m := range changes.FindAllStringSubmatch(string(text), -1) {
				file, changed := filepath.Join(root, m[1]), filepath.Join(dir, m[1])
				replace[file] = changed
				before, err := os.ReadFile(file)
				require.NoError(t, err)
				require.NoError(t, os.MkdirAll(filepath.Dir(changed), 0o700))
				require.NoError(t, os.WriteFile(changed, before, 0o600))
			}
			out, err := run(dir, "git", "apply", patch)
			require.NoError(t, err, out)
			if !*all && !slices.Contains(usual, name) {
				return
			}
			overlay, err := json.Marshal(map[string]any{"Replace": replace})
			require.NoError(t, err)
			file := filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(file, overlay, 0o600))

			for _, suite := range suites {
				args := []string{"test", "-overlay", file, "-count=1", "-failfast", "-timeout=5m", "."}
				out, err := run(filepath.Join(root, suite[1]), "go", append(args, strings.Fields(suite[2])...)...)
				require.Error(t, err, "no test fails: %s", suite[0])
				require.Contains(t, out, "--- FAIL: ")
				require.Contains(t, out, suite[3], suite[0])
			}
		})
	}
}
