package docs

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// imports are the packages that the code in the documents uses. A program, which begins with "package", has
// imports of its own, from among these.
var imports = []string{
	"context", "database/sql", "errors", "fmt", "log", "log/slog", "net", "net/http", "os", "os/signal", "sync",
	"syscall", "testing",
	"testing/synctest", "time",
	"github.com/alicebob/miniredis/v2", "github.com/redis/go-redis/v9", "github.com/seed-7e8842f7/rwlock",
	"github.com/seed-7e8842f7/rwlock/rwlockdebug",
}

// surroundings declare what a fragment in the documents refers to and does not declare itself.
const surroundings = `
var (
	ctx    context.Context
	client *redis.Client
	rw     *rwlock.RWLock
	db     *sql.DB
	server *http.Server
	t      *testing.T
	err    error
)

type order struct{ ID, Status string }

func work(ctx context.Context) error                                     { return ctx.Err() }
func lead(ctx context.Context, token int64) error                        { return ctx.Err() }
func load(ctx context.Context, id string) (order, error)                 { return order{}, ctx.Err() }
func store(ctx context.Context, o order, token int64) error              { return ctx.Err() }
`

// A block is code in a document.
type block struct{ where, text string }

// blocksOf returns the blocks of a document in one language.
func blocksOf(t *testing.T, file, language string) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var open *block
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case open != nil && strings.HasPrefix(line, "```"):
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += line + "\n"
		case line == "```"+language:
			open = &block{where: fmt.Sprintf("%s:%d", file, i+2)}
		}
	}
	require.Nil(t, open, "%s: a block is not closed", file)
	return blocks
}

// source returns a block as a Go file: a program, a list of declarations, or the body of a function.
func (b block) source() string {
	line := "\n//line " + b.where + "\n"
	if strings.HasPrefix(b.text, "package ") {
		return line[1:] + b.text
	}
	head := "package p; import (\"" + strings.Join(imports, "\"; \"") + "\")"
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+b.text, 0); err == nil {
		return head + surroundings + line + b.text
	}
	return head + surroundings + "func _() error {" + line + b.text + "\nreturn nil }"
}

// exports returns an importer of what the imports need, with one run of the go command.
func exports(t *testing.T, fset *token.FileSet) types.Importer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, imports...)
	list, err := exec.CommandContext(ctx, "go", args...).Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(list)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	})
}

// Every Go block of the documents compiles. Variables that a fragment does not use, and its imports, do not
// count. Those that use otelrwlock are compiled there, as examples: see
// TestDocumentedCodeIsThatOfTheExamples.
func TestDocsCodeCompiles(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	imp, n := exports(t, fset), 0
	for _, file := range documentsIn(t) {
		for _, b := range blocksOf(t, file, "go") {
			if strings.Contains(b.text, "otelrwlock.") {
				continue
			}
			n++
			f, err := parser.ParseFile(fset, b.where, b.source(), parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			conf := types.Config{Importer: imp, Error: func(err error) {
				if e, ok := err.(types.Error); !ok || !e.Soft || strings.HasPrefix(b.text, "package ") {
					t.Error(err)
				}
			}}
			_, _ = conf.Check("p", fset, []*ast.File{f}, nil) // it has told t of its errors
		}
	}
	require.Greater(t, n, 3)
}

var (
	// changeDir and relative match what a command line changes to, and the packages and files of this
	// repository that it names.
	changeDir = regexp.MustCompile(`\bcd ([\w./-]+)`)
	relative  = regexp.MustCompile(`(?:^|[\s(])(?:bash )?(\.[\w./-]*/[\w./-]+)`)
	// ours matches the commands that work on this repository; others stand for a user's.
	ours = regexp.MustCompile(`^(?:\(?cd |bash |go )`)
	// quick matches the commands that this test runs: they take little time, and need no server.
	quick = regexp.MustCompile(`^go (?:run \./lua/print|doc) [\w. ]+$`)
	// link matches a link to a file of this repository, or to a heading.
	link = regexp.MustCompile(`\]\(([\w./-]*)(?:#([\w-]*))?\)`)
	// heading matches the heading of a section, and notInAnchors what its anchor lacks.
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchors = regexp.MustCompile(`\]\([^)]*\)|[^\p{L}\p{N}_ -]`)
)

// What the shell blocks of the documents name exists, and the quick commands succeed. .ci/run runs those that
// take long.
func TestDocsCommandsWork(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, file := range documentsIn(t) {
		for _, b := range blocksOf(t, file, "sh") {
			dir := "."
			for line := range strings.Lines(b.text) {
				line, _, _ = strings.Cut(line, " #")
				line = strings.TrimSpace(line)
				if m := changeDir.FindStringSubmatch(line); m != nil {
					dir = m[1]
				}
				if !ours.MatchString(line) {
					continue
				}
				for _, m := range relative.FindAllStringSubmatch(line, -1) {
					require.True(t, exists(m[1]) || exists(filepath.Join(dir, m[1])), "%s: %s names %s", b.where, line, m[1])
				}
				if quick.MatchString(line) {
					ran++
					runs(t, line)
				}
			}
		}
	}
	require.Positive(t, ran)
}

func exists(path string) bool {
	_, err := os.Stat(strings.TrimSuffix(path, "/..."))
	return err == nil
}

// runs ends the test if a command fails.
func runs(t *testing.T, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, out)
}

// Links from one file of the repository to another, and to headings, lead somewhere.
func TestDocsLinksWork(t *testing.T) {
	t.Parallel()
	toHeadings := 0
	for _, file := range documentsIn(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target := file
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			require.True(t, exists(target), "%s links to %s", file, target)
			if m[2] != "" {
				toHeadings++
				require.Contains(t, anchorsOf(t, target), m[2], "%s links to %s", file, target)
			}
		}
	}
	require.Greater(t, toHeadings, 30)
}

// Every picture is in a document.
func TestDocsShowEveryPicture(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, file := range documentsIn(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			shown[filepath.Join(filepath.Dir(file), m[1])] = true
		}
	}
	pictures := 0
	for _, pattern := range []string{"docs/*.svg", "docs/images/*", "benchmarks/performance/*"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			pictures++
			require.True(t, shown[file], "no document shows %s", file)
		}
	}
	require.Greater(t, pictures, 10)
}

// anchorsOf returns the anchors of a document's headings, as GitHub makes them.
func anchorsOf(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		anchor := notInAnchors.ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(anchor, " ", "-"))
	}
	return all
}

// The rights to write that a job of a workflow may ask for: those to publish what it has made.
var writes = map[string][]string{
	".github/workflows/release.yml":  {"contents", "packages"},
	".github/workflows/security.yml": {"security-events"},
}

// Workflows use actions by commit, since a tag can be moved. Their jobs may only read, but for those rights.
func TestWorkflowsArePinned(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(".github/workflows/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`uses: (\S+)`).FindAllStringSubmatch(string(text), -1) {
			require.Regexp(t, `^[\w/-]+@[0-9a-f]{40}$`, m[1], file)
		}
		require.Contains(t, string(text), "\npermissions:\n  contents: read\n", file)
		for _, m := range regexp.MustCompile(`(\S+): write`).FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, writes[file], m[1], file)
		}
	}
}
