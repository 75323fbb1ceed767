// Command mutate changes the lock's scripts, one small thing at a time, and runs tests until one fails. A
// change that no test notices is a rule that nothing holds the scripts to.
//
//	go run ./mutate -sample 200
//
// The tests run in a copy of the repository, and read the scripts from there when they start.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	match := flag.String("match", "", "only changes whose description matches")
	list := flag.Bool("list", false, "list the changes, and run nothing")
	sample := flag.Int("sample", 0, "only so many changes, taken by chance")
	seed := flag.Uint64("seed", 1, "of the sample")
	limit := flag.Duration("limit", 5*time.Minute, "for how long the tests of a change may run")
	flag.Parse()
	all, err := choose(root(), *match, *sample, *seed)
	for i := 0; *list && i < len(all); i++ {
		fmt.Println(all[i])
	}
	if err == nil && !*list {
		err = run(all, *limit)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// root is the directory of the library.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// choose makes the mutants whose descriptions match: all, or as many as the sample takes.
func choose(root, match string, sample int, seed uint64) ([]mutant, error) {
	re, err := regexp.Compile(match)
	if err != nil {
		return nil, err
	}
	all, err := mutants(root)
	all = slices.DeleteFunc(all, func(m mutant) bool { return !re.MatchString(m.String()) })
	if sample > 0 && sample < len(all) {
		r := rand.New(rand.NewPCG(seed, 0))
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:sample]
	}
	return all, err
}

// A killer is a package of tests, and which of them fail on mutants. They are built once.
type killer struct {
	name, dir, args string
	quorum          bool // it looks at several servers alone; the others do at one
}

// killers are in the order of how long they take. Of what runs on every server, the real one suffices.
var killers = []killer{
	{name: "traces", dir: "verify/explore", args: `-test.run TestTraces$`},
	{name: "steps", dir: "verify", args: `-test.skip ^(TestDifferential|TestKeysOfAnotherType|TestLostKeys|TestSlotsOfThePastAreSwept|TestDocumented|TestProtocolIsPinned)`},
	{name: "vectors", dir: "verify", args: `-test.run ProtocolIsPinned -test.skip /miniredis`},
	{name: "protocol", dir: "internal/protocol", args: `-test.skip /miniredis`},
	{name: "differential", dir: "verify", args: `-test.run Differential -test.skip /miniredis -rapid.checks 40 -rapid.nofailfile -rapid.shrinktime 1ms`},
	{name: "costs", dir: "internal/tests", args: `-test.run ^Test(Calls|Cost|Memory|Name|WrongType)`},
	{name: "situations", dir: "verify", args: `-test.run ^(TestKeysOfAnotherType|TestLostKeys|TestSlotsOfThePastAreSwept) -test.skip /miniredis`},
	{name: "quorum", dir: "internal/tests", args: `-test.run Quorum|Server(That|Rests|s)|First`, quorum: true},
	{name: "sim", dir: "verify/sim", args: `-test.run OverAQuorum -quorums 40`, quorum: true},
}

// run tries mutants, and prints what becomes of them.
func run(all []mutant, limit time.Duration) error {
	temp, failed := os.MkdirTemp("", "mutate")
	defer os.RemoveAll(temp)
	w, err := newWorkshop(root(), temp)
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	if by, output := w.kill(killers, 10*limit); by != survived {
		return fmt.Errorf("%s: fails without any change:\n%s", by, output)
	}
	count := map[string]int{}
	for _, m := range all {
		by := equivalent
		if reason := reasons()[[2]string{m.file, m.after}]; reason != "" {
			fmt.Printf("equivalent %s\n    since %s\n", m, reason)
		} else if by, err = w.try(m, limit); err != nil {
			return err
		}
		if count[by]++; by == survived {
			fmt.Println("SURVIVED", m)
		}
	}
	fmt.Println(len(all), "changes:", count)
	if count[survived] > 0 {
		return errors.New("there are survivors")
	}
	return nil
}

const (
	survived   = "survived"
	equivalent = "equivalent"
	invalid    = "no Lua"
	hangs      = "time limit"
)

var embedded = regexp.MustCompile(`//go:embed .*\nvar files embed\.FS\n`)

// A workshop is the folder of a copy of the repository, with the tests built.
type workshop string

// newWorkshop copies the repository, and has the copy read its scripts when they are needed.
func newWorkshop(root, at string) (workshop, error) {
	if out, err := exec.Command("cp", "-r", root+"/.", at).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cp: %w: %s", err, out)
	}
	path := filepath.Join(at, "lua", "lua.go")
	text, err := os.ReadFile(path)
	if err != nil || !embedded.Match(text) {
		return "", fmt.Errorf("%s embeds the scripts in some other way: %w", path, err)
	}
	code := embedded.ReplaceAllString(string(text), "var files = os.DirFS(os.Getenv(\"RWLOCK_LUA\"))\n")
	if err := os.WriteFile(path, []byte(strings.Replace(code, `"embed"`, `"os"`, 1)), 0o644); err != nil {
		return "", err
	}
	w := workshop(at)
	for _, k := range killers {
		if out, err := w.command(context.Background(), k.dir, "go", "test", "-c", "-o", w.binary(k),
			".").CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", k.name, err, out)
		}
	}
	return w, nil
}

func (w workshop) binary(k killer) string {
	return filepath.Join(string(w), strings.ReplaceAll(k.dir, "/", "-")+".test")
}

func (w workshop) command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(string(w), dir)
	cmd.Env = append(os.Environ(), "RWLOCK_LUA="+filepath.Join(string(w), "lua"))
	cmd.WaitDelay = time.Second
	return cmd
}

// try returns what killed a mutant, or survived.
func (w workshop) try(m mutant, limit time.Duration) (by string, err error) {
	path := filepath.Join(string(w), filepath.FromSlash(m.file))
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(m.text), 0o644)
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, text, 0o644)) }()
	if checkLua(string(w)) != nil {
		return invalid, nil
	}
	by, _ = w.kill(slices.DeleteFunc(slices.Clone(killers), func(k killer) bool {
		return k.quorum != strings.HasPrefix(m.file, "lua/quorum/") && k.name != "protocol" && k.name != "vectors"
	}), limit)
	return by, nil
}

// kill runs tests one after the other, within a time, and returns the name of the first that fails, and what
// it says. Tests also fail by chance on a machine that has other things to do, so that one counts that fails
// twice.
func (w workshop) kill(list []killer, limit time.Duration) (by, output string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, k := range list {
		for fails := 1; ; fails++ {
			args := append([]string{"-test.failfast"}, strings.Fields(k.args)...)
			out, err := w.command(ctx, k.dir, w.binary(k), args...).CombinedOutput()
			if ctx.Err() != nil {
				return hangs, string(out)
			}
			if err == nil {
				break
			}
			if fails == 2 {
				return k.name, string(out)
			}
		}
	}
	return survived, ""
}

//go:embed equivalent.txt
var equivalents string

// reasons says why some mutants are as good as the original, by their files and what they make of a line.
func reasons() map[[2]string]string {
	all, file, why := map[[2]string]string{}, "", ""
	for line := range strings.Lines(equivalents) {
		if after, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t"); indented {
			all[[2]string{file, after}] = why
		} else {
			file, why, _ = strings.Cut(after, ": ")
		}
	}
	return all
}
