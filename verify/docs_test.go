package verify_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	verifyBlock = regexp.MustCompile("(?m)^```sh\ncd verify\n((?:.+\n)+?)```$")
	word        = regexp.MustCompile(`'([^']*)'|\S+`)
	ofTheTool   = regexp.MustCompile(`^-(v|timeout|parallel|fuzztime)$`) // the flags that go test takes itself
)

// Each command that the documents have for this module works: a set-up is explored, for a while, and where
// tests are run, the flags exist, and so do the tests.
func TestDocumentedCommandsRun(t *testing.T) {
	t.Parallel()
	var files []string
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	}))
	programs := t.TempDir()
	built := map[string]string{} // by what makes them
	program := func(t *testing.T, build string, folder string) string {
		made := build + folder
		if built[made] == "" {
			built[made] = filepath.Join(programs, fmt.Sprint(len(built)))
			words := append(strings.Fields(build), "-o", built[made], folder)
			out, err := exec.CommandContext(t.Context(), "go", words...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		return built[made]
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, block := range verifyBlock.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(block[1]) {
				n++
				command, _, _ := strings.Cut(line, " #")
				t.Run(strings.TrimSpace(command), func(t *testing.T) { run(t, command, program) })
			}
		}
	}
	require.Greater(t, n, 20)
}

// run does less of a command: it explores a few states, simulates a few worlds, or lists the tests that would
// run. program returns what a command of the go tool makes of a folder.
func run(t *testing.T, command string, program func(t *testing.T, build, folder string) string) {
	var words []string
	for _, w := range word.FindAllStringSubmatch(command, -1) {
		words = append(words, cmp.Or(w[1], w[0]))
	}
	for strings.Contains(words[0], "=") { // a variable of the environment
		words = words[1:]
	}
	require.Equal(t, "go", words[0])
	folder, build, tests, args := ".", "test -c", ".", []string(nil)
	for i := 2; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-run" || w == "-fuzz":
			i++
			tests, _, _ = strings.Cut(words[i], "/")
		case strings.HasPrefix(w, "."):
			folder = strings.TrimSuffix(w, "/...")
		case ofTheTool.MatchString(w):
			args = append(args, "-test."+w[1:])
		default:
			args = append(args, w)
		}
	}
	dir := folder
	switch {
	case words[1] == "run":
		build, dir, args = "build", ".", append([]string{"-states", "2000"}, args...)
	case folder == "./sim":
		args = append(args, "-test.run=Promises", "-seeds", "2", "-quorums", "1")
	default:
		args = append(args, "-test.list="+tests)
	}
	cmd := exec.CommandContext(t.Context(), program(t, build, folder), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?m)^(Test|Fuzz|PASS|owners|\d+ states)`, string(out))
}
