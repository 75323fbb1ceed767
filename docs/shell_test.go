package docs

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A shellCommand is a command in a shell block of a document, and the directory that the block has changed
// to.
type shellCommand struct{ where, dir, text string }

// shellCommands returns the commands of a document. A loop, or what && continues on the next line, is one
// command.
func shellCommands(t *testing.T, file string) (list []shellCommand) {
	t.Helper()
	for _, b := range blocksOf(t, file, "sh") {
		dir, text := ".", ""
		for line := range strings.Lines(b.text) {
			line, _, _ = strings.Cut(line, " #")
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			text = strings.TrimSpace(text + "\n" + line)
			if strings.HasSuffix(line, "&&") || strings.Count(text, "\nfor ") != strings.Count(text, "\ndone") {
				continue
			}
			if m := regexp.MustCompile(`^cd (\S+)$`).FindStringSubmatch(text); m != nil {
				dir = m[1]
			} else {
				list = append(list, shellCommand{b.where, dir, text})
			}
			text = ""
		}
	}
	return list
}

// How the commands of the documents are shown to work. A command is a regular expression for the whole of it.
var shownBy = []struct {
	command string
	run     string // what this test runs instead; "same" for the command itself
	step    string // of .ci/run, or of the workflow that runs on every change
	test    string // that does
	why     string // it is not run
}{
	{command: `go run \./lua/print lock`, run: "same"},
	{command: `go run \./examples/quickstart`, test: "TestQuickstart"},
	{command: `cd examples/prometheus && go run \.`, test: "TestScrape"},
	{command: `go test -run '\^\$' -bench Observed \.`,
		run: `go test -run '^$' -bench Observed -benchtime 1x .`},
	{command: `cd otelrwlock && go test -run '\^\$' -bench Reported \.`, step: "in_module otelrwlock go test"},
	{command: `\(?cd benchmarks && go run \.( -only quorum -out \.| -draw)?\)?`,
		test: "TestDocumentedCommandsRun"},
	{command: `(?s)tmp=.*git worktree add .*`, why: "it measures for half an hour, in a work tree of its own"},
	{command: `go run golang\.org/x/perf/cmd/benchstat@.*`,
		why: "it reads what the comparison of two commits has measured"},
	{command: `git worktree remove .*`, why: "it ends the comparison of two commits"},

	{command: `go test \./\.\.\.`, step: "go test -race -count=1 -p 1 -parallel 8 -timeout 25m"},
	{command: `RWLOCK_REQUIRE_REDIS=1 go test -race \./\.\.\.`,
		step: "go test -race -count=1 -p 1 -parallel 8 -timeout 25m"},
	{command: `bash \.ci/rehearse`, step: "run: bash .ci/rehearse"},
	{command: `bash \.ci/release (prepare|tag) v0\.1\.0`,
		step: "run: bash .ci/rehearse"},
	{command: `go install github\.com/\S+/cmd/rwlock@\S+( && rwlock version)?`,
		step: "run: bash .ci/rehearse"},
	{command: `bash \.ci/run`, step: "Checks all that a change has to pass"},
	{command: `RWLOCK_REDIS_SERVER=\S+ (go test \./\.\.\.|bash \.ci/run)`,
		why: "it needs another server; the workflow's matrix runs some"},
	{command: `\(cd verify && RWLOCK_REQUIRE_REDIS=1 go test \./\.\.\.\)`,
		step: "step 'verification' in_module verify"},
	{command: `\(cd benchmarks && go test -short \./\.\.\.\)`,
		step: "in_module benchmarks go test -count=1 -short ./..."},
	{command: `\(cd cmd/rwlock && go test \./\.\.\.\)`, step: "in_module cmd/rwlock go test"},
	{command: `\(cd otelrwlock && go test \./\.\.\.\)`, step: "in_module otelrwlock go test"},
	{command: `\(cd examples/prometheus && go test \./\.\.\.\)`, step: "in_module examples/prometheus go test"},
	{command: `\(cd rwlockdebug/browsertest && go test \./\.\.\.\)`,
		step: "in_module rwlockdebug/browsertest go test"},
	{command: `\(cd rwlockdebug/browsertest && go test \. -args -picture .*\)`,
		why: "it writes the picture that the page shows"},
	{command: `\(cd cmd/rwlock && go test -run 'Documented\|Picture' \. -args -update\)`,
		why: "it writes what TestDocumentedCommands compares"},
	{command: `go test -run '[^']+' \./internal/tests( && .*)?`,
		test: "TestDocsCommandsRunTheTestsOfTheirSection"},

	{command: `go get github\.com/\S+`, why: "it downloads the library, which this is"},
	{command: `git clone https://\S+ && cd rwlock && go -C cmd/rwlock install \.`, test: "TestScripts"},
	{command: `(\[ "\$UNDER_LOCK" = "\$PPID" \] \|\| UNDER_LOCK=\$\$ exec )?rwlock ((exec|watch) .*|doctor)`,
		test: "TestScripts"},
}

// Each command in the documents is run by this test, by a step of .ci/run or by a test, or is listed with the
// reason why not; and what is listed is documented. Of each command in verify, it does less: see doesLess.
func TestDocsCommandsAreShown(t *testing.T) {
	t.Parallel()
	ci, err := os.ReadFile(".ci/run")
	require.NoError(t, err)
	workflow, err := os.ReadFile(".github/workflows/ci.yml")
	require.NoError(t, err)
	ci = append(ci, workflow...)
	tests, _ := testsIn(t)
	used, programs, less := map[string]bool{}, t.TempDir(), 0
	for _, file := range documentsIn(t) {
		for _, c := range shellCommands(t, file) {
			if c.dir == "verify" {
				less++
				doesLess(t, c.text, programs)
				continue
			}
			found := false
			for _, s := range shownBy {
				if !regexp.MustCompile(`^(?:` + s.command + `)$`).MatchString(c.text) {
					continue
				}
				found, used[s.command] = true, true
				switch {
				case s.run == "same":
					runs(t, c.text)
				case s.run != "":
					runs(t, s.run)
				case s.step != "":
					require.Contains(t, string(ci), s.step, c.text)
				case s.test != "":
					require.True(t, tests[s.test], "%s: no test %s", c.text, s.test)
				default:
					require.NotEmpty(t, s.why)
				}
			}
			require.True(t, found, "%s: nothing shows that this works: %s", c.where, c.text)
		}
	}
	for _, s := range shownBy {
		require.True(t, used[s.command], "no document has %s", s.command)
	}
	require.Greater(t, less, 20)
}

var (
	word      = regexp.MustCompile(`'([^']*)'|\S+`)
	ofTheTool = regexp.MustCompile(`^-(v|timeout|parallel|fuzztime)$`) // the flags that go test takes itself
)

// doesLess does less of a command in verify: it explores a few states, simulates a few worlds, or lists the
// tests that would run. So their flags exist, and so do they. programs has what was built.
func doesLess(t *testing.T, command, programs string) {
	var words []string
	for _, w := range word.FindAllStringSubmatch(command, -1) {
		words = append(words, cmp.Or(w[1], w[0]))
	}
	for strings.Contains(words[0], "=") { // a variable of the environment
		words = words[1:]
	}
	require.Equal(t, "go", words[0])
	folder, tests, args := ".", ".", []string(nil)
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
	build, dir := "go test -c", folder
	switch {
	case words[1] == "run":
		build, dir, args = "go build", ".", append([]string{"-states", "2000"}, args...)
	case folder == "./sim":
		args = append(args, "-test.run=Promises", "-seeds", "2", "-quorums", "1")
	default:
		args = append(args, "-test.list="+tests)
	}
	program := filepath.Join(programs, filepath.Base(folder)+words[1])
	if !exists(program) {
		runs(t, "cd verify && "+build+" -o "+program+" "+folder)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = filepath.Join("verify", dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", command, out)
	require.Regexp(t, `(?m)^(Test|Fuzz|PASS|owners|\d+ states)`, string(out), command)
}
