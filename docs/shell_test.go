package docs

import (
	"os"
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
// reason why not; and what is listed is documented. The commands that work in verify are those of
// TestDocumentedCommandsRun there.
func TestDocsCommandsAreShown(t *testing.T) {
	t.Parallel()
	ci, err := os.ReadFile(".ci/run")
	require.NoError(t, err)
	workflow, err := os.ReadFile(".github/workflows/ci.yml")
	require.NoError(t, err)
	ci = append(ci, workflow...)
	tests, _ := testsIn(t)
	used := map[string]bool{}
	for _, file := range documentsIn(t) {
		for _, c := range shellCommands(t, file) {
			if c.dir == "verify" {
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
}
