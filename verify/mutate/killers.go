package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A killer is a command that fails on a mutant. The root of the copy is in the environment as ROOT, the directory of the
// scripts as RWLOCK_LUA, and what a run of the tests in bubbles needs as BUBBLES.
type killer struct {
	name    string
	dir     string // of the repository, to run in
	prepare string // a command that runs once, without any mutation
	command string
}

// differential holds the scripts against the model. It reads them as they are when it runs, so it is built once.
var differential = killer{
	name: "differential", dir: "verify", prepare: `go test -c -o "$ROOT/verify.test" .`,
	command: `"$ROOT/verify.test" -test.failfast -test.run 'Differential' -rapid.checks 20 -rapid.nofailfile -rapid.shrinktime 1ms && ` +
		`"$ROOT/verify.test" -test.failfast -rapid.nofailfile -rapid.shrinktime 1ms`,
}

var (
	protocolTests = killer{name: "protocol", command: `go test -vet=off -count=1 -failfast ./internal/protocol`}
	bubbleTests   = killer{name: "bubbles", command: `go test -vet=off -count=1 -failfast -run "$BUBBLES" .`}
	// What something costs, and what is only to be seen at a server.
	costTests = killer{name: "costs", command: `go test -vet=off -count=1 -failfast -run '^Test(Calls|Cost|Memory|Name|WrongType)' .`}
)

// killersOf returns the default killers, the quickest first.
func killersOf(pkg string) []killer {
	if pkg == "" {
		return []killer{differential, protocolTests, bubbleTests, costTests}
	}
	own := killer{name: filepath.Base(pkg), command: "go test -vet=off -count=1 -failfast ./" + pkg}
	return []killer{own, bubbleTests, costTests}
}

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	inBubble = regexp.MustCompile(`\b(everywhere|bubbled|inBubble)\(t, `)
)

// bubbles returns what names the root tests that run in a bubble, where time costs nothing.
func bubbles(root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "*_test.go"))
	if err != nil {
		return "", err
	}
	var names []string
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		at := testFunc.FindAllSubmatchIndex(text, -1)
		for i, m := range at {
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			if inBubble.Match(text[m[0]:end]) {
				names = append(names, string(text[m[2]:m[3]]))
			}
		}
	}
	return "^(" + strings.Join(names, "|") + ")$/^bubble$", nil
}

const (
	survived   = "survived"
	equivalent = "equivalent"
	invalid    = "does not compile"
	hangs      = "time limit"
)

// chance is how tests in bubbles fail now and then without any mutation: go-redis shares its timers among them.
const chance = "synctest channel from outside bubble"

// A worker tries mutants in a copy of the repository.
type worker struct {
	options
	at  string
	env []string
}

func newWorker(o options, at string) (*worker, error) {
	w := &worker{options: o, at: at}
	if w.killers == nil {
		w.killers = killersOf(o.pkg)
	}
	if err := copyRepository(o.root, at); err != nil {
		return nil, err
	}
	run, err := bubbles(at)
	if err != nil {
		return nil, err
	}
	w.env = append(os.Environ(), "ROOT="+at, "RWLOCK_LUA="+filepath.Join(at, "lua"), "BUBBLES="+run, "GOWORK=off")
	for _, k := range w.killers {
		if k.prepare == "" {
			continue
		}
		if out, err := w.shell(context.Background(), k.dir, k.prepare); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", k.prepare, err, out)
		}
	}
	return w, nil
}

// try returns what killed a mutant, and what that says; or survived.
func (w *worker) try(m mutant) (by, output string) {
	path := filepath.Join(w.at, filepath.FromSlash(m.file))
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(m.text), 0o644)
	}
	if err != nil {
		return err.Error(), ""
	}
	defer os.WriteFile(path, text, 0o644)
	if w.pkg == "" {
		if err := checkLua(w.at); err != nil {
			return invalid, err.Error()
		}
	} else if out, err := w.shell(context.Background(), w.pkg, "go build ."); err != nil {
		return invalid, out
	}
	return w.kill(w.limit)
}

// kill runs the killers one after the other, within a time, and returns the name of the first that fails, and what it says.
func (w *worker) kill(limit time.Duration) (by, output string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, k := range w.killers {
		out, err := w.shell(ctx, k.dir, k.command)
		if err != nil && strings.Contains(out, chance) {
			out, err = w.shell(ctx, k.dir, k.command)
		}
		switch {
		case ctx.Err() != nil:
			return hangs, out
		case err != nil:
			return k.name, out
		}
	}
	return survived, ""
}

// shell runs a command in a directory of the copy. When the time is over, it ends all that the command has started.
func (w *worker) shell(ctx context.Context, dir, command string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = filepath.Join(w.at, dir)
	cmd.Env = w.env
	cmd.WaitDelay = time.Second
	together(cmd)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyRepository copies a repository, but for its history.
func copyRepository(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.Name() == ".git":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(target, text, info.Mode().Perm())
	})
}

// A table counts what became of mutants, file by file.
type table struct {
	order []string // of the files
	rows  map[string]*row
}

type row struct {
	made int
	by   map[string]int
}

func newTable() *table { return &table{rows: map[string]*row{}} }

func (t *table) add(file, by string) {
	r := t.rows[file]
	if r == nil {
		r = &row{by: map[string]int{}}
		t.rows[file] = r
		t.order = append(t.order, file)
		slices.Sort(t.order)
	}
	r.made++
	r.by[by]++
}

func (t *table) sum() *row {
	all := &row{by: map[string]int{}}
	for _, r := range t.rows {
		all.made += r.made
		for by, n := range r.by {
			all.by[by] += n
		}
	}
	return all
}

// String returns the table as Markdown.
func (t *table) String() string {
	sum := t.sum()
	var columns []string
	for by := range sum.by {
		if by != survived && by != equivalent && by != invalid {
			columns = append(columns, by)
		}
	}
	slices.Sort(columns)
	columns = append(columns, invalid, equivalent, survived)
	var b strings.Builder
	b.WriteString("| file | mutants |")
	for _, c := range columns {
		if c != invalid && c != equivalent && c != survived {
			c = "killed by " + c
		}
		b.WriteString(" " + c + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)+1) + "\n")
	line := func(name string, r *row) {
		fmt.Fprintf(&b, "| %s | %d |", name, r.made)
		for _, c := range columns {
			fmt.Fprintf(&b, " %d |", r.by[c])
		}
		b.WriteByte('\n')
	}
	for _, file := range t.order {
		line("`"+file+"`", t.rows[file])
	}
	line("all", sum)
	return b.String()
}
