package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests see the repository from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// documentsIn returns all documents of the repository.
func documentsIn(t *testing.T) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			all = append(all, path)
		}
		return err
	}))
	return all
}

var (
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	errorVar  = regexp.MustCompile(`(?m)^\t(Err\w+) = `)
	testName  = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	testRun   = regexp.MustCompile(`(?m)^go test -run '([^']+)' \./internal/tests(?: |$)`)
	codeQuote = regexp.MustCompile("`[^`\n]+`")
	goBlock   = regexp.MustCompile("(?ms)^```go\n.*?^```$")
)

// testsIn returns the tests, fuzz targets, benchmarks and examples of all modules. behaviour has those of
// internal/tests.
func testsIn(t *testing.T) (all, behaviour map[string]bool) {
	t.Helper()
	all, behaviour = map[string]bool{}, map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			all[m[1]] = true
			if filepath.Dir(path) == "internal/tests" {
				behaviour[m[1]] = true
			}
		}
		return err
	}))
	return all, behaviour
}

// Every test that a document names exists.
func TestDocsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	all, _ := testsIn(t)
	named := 0
	for _, file := range documentsIn(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range testName.FindAllString(goBlock.ReplaceAllString(string(text), ""), -1) {
			named++
			if !all[name] {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
	require.Greater(t, named, 100)
}

// Each error that callers can distinguish is in the list of errors, and has an HTTP status.
func TestTroubleshootingHasEachError(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	text, err := os.ReadFile("docs/troubleshooting.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n## Errors\n")
	require.True(t, found)
	list, rest, found := strings.Cut(rest, "\n## Which HTTP status fits\n")
	require.True(t, found)
	statuses, _, _ := strings.Cut(rest, "\n## ")
	errs := errorVar.FindAllStringSubmatch(string(code), -1)
	require.NotEmpty(t, errs)
	for _, name := range errs {
		row := regexp.MustCompile("(?m)^\\|[^|]*`" + name[1] + "`")
		require.Regexp(t, row, list)
		require.Regexp(t, row, statuses)
	}
}

// The command at the end of each section of verify/verification.md runs all tests of internal/tests that the
// section names, and nothing in it matches no test.
func TestDocsCommandsRunTheTestsOfTheirSection(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("verify/verification.md")
	require.NoError(t, err)
	_, behaviour := testsIn(t)
	commands := 0
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		command := testRun.FindStringSubmatch(section)
		if command == nil {
			continue
		}
		commands++
		run := regexp.MustCompile(command[1])
		for _, quote := range codeQuote.FindAllString(section, -1) {
			name := strings.Trim(quote, "`")
			if behaviour[name] && name != "TestMain" && !run.MatchString(name) {
				t.Errorf("%s: the command does not run %s", title, name)
			}
		}
		for _, alternative := range alternatives(command[1]) {
			part, found := regexp.MustCompile(alternative), false
			for name := range behaviour {
				found = found || strings.HasPrefix(name, "Test") && part.MatchString(name)
			}
			if !found {
				t.Errorf("%s: no test matches %q", title, alternative)
			}
		}
	}
	require.Greater(t, commands, 8)
}

// alternatives splits a regular expression at the bars that are in no parentheses.
func alternatives(pattern string) (list []string) {
	depth, start := 0, 0
	for i, c := range pattern {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				list = append(list, pattern[start:i])
				start = i + 1
			}
		}
	}
	return append(list, pattern[start:])
}

// The pages for users name no tests: verify/verification.md does, for each section of the guide but the
// checklist at its end. Those on the design and the protocol may.
func TestDocsTellTestsFromTexts(t *testing.T) {
	t.Parallel()
	verification, err := os.ReadFile("verify/verification.md")
	require.NoError(t, err)
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.Greater(t, len(pages), 10)
	for _, file := range pages {
		if file == "docs/design.md" || file == "docs/protocol.md" {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotRegexp(t, testName, goBlock.ReplaceAllString(string(text), ""), file)
	}
	guide, err := os.ReadFile("docs/guide.md")
	require.NoError(t, err)
	sections := regexp.MustCompile(`(?m)^## \d+\. (.*)$`).FindAllStringSubmatch(string(guide), -1)
	require.Greater(t, len(sections), 10)
	for _, section := range sections[:len(sections)-1] {
		_, row, found := strings.Cut(string(verification), "\n| "+section[1]+" | ")
		require.True(t, found, "verify/verification.md has no tests for the section %q of the guide", section[1])
		row, _, _ = strings.Cut(row, "\n")
		require.Regexp(t, testName, row, section[1])
	}
}

// layoutFile matches a file or a folder in the layout table.
var layoutFile = regexp.MustCompile(`^[\w./]+(?:\.go|/)$`)

// Every path in the layout table of CONTRIBUTING.md exists. So do the files that it describes, in the folder
// of their row or from the root.
func TestDocsLayoutNamesFilesThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("CONTRIBUTING.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| path | contents |\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[1:] {
		columns := strings.Split(row, "|")
		folder := ""
		for _, quote := range codeQuote.FindAllString(columns[1], -1) {
			folder = strings.Trim(quote, "`")
			require.True(t, exists(folder), folder)
		}
		for _, quote := range codeQuote.FindAllString(columns[2], -1) {
			if file := strings.Trim(quote, "`"); layoutFile.MatchString(file) {
				require.True(t, exists(file) || exists(filepath.Join(folder, file)), "%s in %s", file, folder)
			}
		}
	}
}
