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
	"strconv"
	"strings"
	"time"
)

// A killer is a command that fails on a mutant. The root of the copy is in the environment as ROOT, the directory of the
// scripts, which are read when they are needed if it is they that are mutated, as RWLOCK_LUA, and what names the tests that run in
// bubbles as BUBBLES; those that run there over several servers as QUORUM.
type killer struct {
	name    string
	dir     string         // of the repository, to run in
	prepare string         // a command that runs once, without any mutation
	but     *regexp.Regexp // files whose mutants it cannot kill; or nil
	command string
}

// tries reports whether it may kill mutants of a file.
func (k killer) tries(file string) bool { return k.but == nil || !k.but.MatchString(file) }

// They are built once: those of the scripts read the scripts when they start, and those of a package have all its mutants. Of what runs on every server, the real one suffices.
var (
	traces = killer{
		name: "traces", dir: "verify/explore", prepare: `go test -c -o "$ROOT/explore.test" .`, but: several,
		command: `"$ROOT/explore.test" -test.failfast -test.run 'TestTraces$'`,
	}
	steps = killer{
		name: "steps", dir: "verify", but: several, prepare: `go test -c -o "$ROOT/verify.test" .`,
		command: `"$ROOT/verify.test" -test.failfast -test.skip '^(TestDifferential|` + slow + `|` + unrelated + `)'`,
	}
	differential = killer{
		name: "differential", dir: "verify", but: several,
		command: `"$ROOT/verify.test" -test.failfast -test.run Differential -test.skip /miniredis -rapid.checks 40 ` + brief,
	}
	protocolTests = killer{
		name: "protocol", dir: "internal/protocol", prepare: `go test -c -o "$ROOT/protocol.test" .`,
		command: `"$ROOT/protocol.test" -test.failfast -test.skip /miniredis`,
	}
	situationTests = killer{
		name: "situations", dir: "verify", but: several,
		command: `"$ROOT/verify.test" -test.failfast -test.run '^(TestDifferential|` + slow + `)' -test.skip /miniredis ` + brief,
	}
	bubbleTests = killer{
		name: "bubbles", dir: "internal/tests",
		command: `"$ROOT/root.test" -test.failfast -test.run "$BUBBLES"`,
	}
	// What something costs, and what is only to be seen at a server.
	costTests = killer{
		name: "costs", dir: "internal/tests", prepare: `go test -c -o "$ROOT/root.test" .`, but: several,
		command: `"$ROOT/root.test" -test.failfast -test.run '^Test(Calls|Cost|Memory|Name|WrongType)'`,
	}
)

const (
	slow      = "TestKeysOfAnotherType|TestLostKeys|TestSlotsOfThePastAreSwept" // they run many scripts in many situations
	unrelated = "TestDocumentedCommandsRun"                                     // it runs the suites
	brief     = "-rapid.nofailfile -rapid.shrinktime 1ms"
)

// Those of what servers do that vote.
var (
	quorumExplore = killer{
		name: "explore", dir: "verify/explore", prepare: `go test -c -o "$ROOT/explore.test" .`, but: single,
		command: `"$ROOT/explore.test" -test.failfast -quorumtime 20s -test.run 'TestExploreQuorum$/^(W_R_passes|W_w_passes|W_W_gives|W_cold)'`,
	}
	quorumSim = killer{
		name: "sim", dir: "verify/sim", prepare: `go test -c -o "$ROOT/sim.test" .`, but: single,
		command: `"$ROOT/sim.test" -test.failfast -test.run OverAQuorum -quorums 40`,
	}
	quorumTests = killer{
		name: "behaviour", dir: "internal/tests", prepare: `go test -c -o "$ROOT/root.test" .`, but: single,
		command: `"$ROOT/root.test" -test.failfast -test.run "$QUORUM" -test.skip 'Observer|MaxHold' && "$ROOT/root.test" -test.failfast -test.run 'Quorum|Server(That|Rests|s)|TooFew|FirstStart'`,
	}
)

// Scripts of a lock on one server, and what servers have that vote.
var (
	single  = regexp.MustCompile(`^lua/(shared/)?\w+\.lua$`)
	several = regexp.MustCompile(`^(lua|internal)/quorum/`)
)

// killersOf returns the default killers, the quickest first.
func killersOf(pkg string) []killer {
	if pkg == "" {
		return []killer{traces, steps, protocolTests, differential, costTests, situationTests, quorumExplore, quorumSim, quorumTests}
	}
	own := killer{
		name: filepath.Base(pkg), dir: pkg, prepare: `go test -vet=off -c -o "$ROOT/own.test" .`,
		command: `"$ROOT/own.test" -test.failfast -test.timeout 2m`,
	}
	if several.MatchString(pkg + "/") {
		return []killer{own, quorumExplore, quorumSim, quorumTests}
	}
	return []killer{own, bubbleTests, costTests}
}

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	inBubble = regexp.MustCompile(`\b(everywhere|bubbled|inBubble)\(t, `)
)

// bubbles returns a pattern of the names of the behaviour tests that run in a bubble, where time costs nothing.
func bubbles(root string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, "internal/tests/*_test.go"))
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
	return "^(" + strings.Join(names, "|") + ")$", nil
}

const (
	survived   = "survived"
	equivalent = "equivalent"
	invalid    = "does not compile"
	hangs      = "time limit"
)

// A worker tries mutants in a copy of the repository.
type worker struct {
	options
	at      string // the copy
	scripts string // the root of a copy of the scripts
	env     []string
}

// newWorker makes the copy and builds the killers. The mutants of a package get numbers there.
func newWorker(o options, all []mutant, at string) (*worker, error) {
	w := &worker{options: o, at: at, scripts: at}
	if w.killers == nil {
		w.killers = slices.DeleteFunc(killersOf(o.pkg), func(k killer) bool {
			return !slices.ContainsFunc(all, func(m mutant) bool { return k.tries(m.file) })
		})
	}
	if err := copyRepository(o.root, at); err != nil {
		return nil, err
	}
	run, err := bubbles(at)
	if err != nil {
		return nil, err
	}
	w.env = append(os.Environ(), "ROOT="+at, "BUBBLES="+run+"/^bubble$", "QUORUM="+run+"/^quorum$", "GOWORK=off")
	if o.pkg == "" {
		err = unembed(at)
	} else {
		err = weave(at, o.pkg, all, func() string {
			out, err := w.shell(context.Background(), o.pkg, "go build -gcflags=-e .")
			if err != nil {
				return out
			}
			return ""
		})
	}
	if err != nil {
		return nil, err
	}
	out, err := w.build(context.Background())
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return w, nil
}

// another returns a worker in the same copy. If it is the scripts that are mutated, it has its own.
func (w *worker) another(scripts string) (*worker, error) {
	if w.pkg != "" {
		return w, nil
	}
	other := *w
	other.scripts = scripts
	return &other, copyRepository(filepath.Join(w.at, "lua"), filepath.Join(scripts, "lua"))
}

// build builds what the killers need.
func (w *worker) build(ctx context.Context) (output string, err error) {
	for _, k := range w.killers {
		if k.prepare == "" {
			continue
		}
		if out, err := w.shell(ctx, k.dir, k.prepare); err != nil {
			return out, err
		}
	}
	return "", nil
}

var embedded = regexp.MustCompile(`//go:embed .*\nvar files embed\.FS\n`)

// unembed has a copy of the repository read its scripts when they are needed, so that to mutate one is not to compile anything.
func unembed(at string) error {
	path := filepath.Join(at, "lua", "lua.go")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !embedded.Match(text) {
		return fmt.Errorf("%s embeds the scripts in some other way", path)
	}
	changed := strings.Replace(string(embedded.ReplaceAll(text, []byte("var files = os.DirFS(os.Getenv(\"RWLOCK_LUA\"))\n"))), `"embed"`, `"os"`, 1)
	return os.WriteFile(path, []byte(changed), 0o644)
}

// try returns what killed a mutant, and what that says; or survived.
func (w *worker) try(m mutant) (by, output string) {
	switch {
	case m.broken:
		return invalid, ""
	case m.number > 0:
		return w.kill(m.file, w.limit, chosenBy+"="+strconv.Itoa(m.number))
	}
	path := filepath.Join(w.scripts, filepath.FromSlash(m.file))
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(m.text), 0o644)
	}
	if err != nil {
		return err.Error(), ""
	}
	defer os.WriteFile(path, text, 0o644)
	if w.pkg == "" {
		if err := checkLua(w.scripts); err != nil {
			return invalid, err.Error()
		}
	} else if out, err := w.build(context.Background()); err != nil {
		return invalid, out
	}
	return w.kill(m.file, w.limit)
}

// kill runs the killers of mutants of a file one after the other, within a time, and returns the name of the first that fails, and what it
// says. Without a file, it runs all.
func (w *worker) kill(file string, limit time.Duration, env ...string) (by, output string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, k := range w.killers {
		if !k.tries(file) {
			continue
		}
		out, err := w.shell(ctx, k.dir, k.command, env...)
		if err != nil && ctx.Err() == nil { // on a machine that has other things to do, tests also fail by chance
			out, err = w.shell(ctx, k.dir, k.command, env...)
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
func (w *worker) shell(ctx context.Context, dir, command string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = filepath.Join(w.at, dir)
	cmd.Env = append(append(slices.Clone(w.env), "RWLOCK_LUA="+filepath.Join(w.scripts, "lua")), env...)
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
