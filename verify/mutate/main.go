// Command mutate changes the lock's scripts, one small thing at a time, and runs tests until one fails. A
// change that no test notices is a rule that nothing holds the scripts to.
//
//	go run ./mutate -sample 60
//
// The tests are built once, and read the scripts when they start.
package main

import (
	_ "embed"
	"encoding/json"
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
)

func main() {
	match := flag.String("match", "", "only changes whose description matches")
	list := flag.Bool("list", false, "list the changes, and run nothing")
	sample := flag.Int("sample", 0, "only so many changes, taken by chance")
	seed := flag.Uint64("seed", 1, "of the sample")
	flag.Parse()
	all, err := choose(root(), *match, *sample, *seed)
	for i := 0; *list && i < len(all); i++ {
		fmt.Println(all[i])
	}
	if err == nil && !*list {
		err = run(all)
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

// A killer is tests of a package that fail on mutants.
type killer struct {
	name, dir, args string
	quorum          bool // it looks at several servers alone; the others do at one
}

// killers are in the order of how long they take. Of what runs on every server, the real one suffices.
var killers = []killer{
	{name: "traces", dir: "verify/explore", args: `-test.run TestTraces$`},
	{name: "steps", dir: "verify", args: `-test.skip ^(TestDifferential|TestKeysOfAnotherType|TestLostKeys|TestSlotsOfThePastAreSwept|TestDocumented|TestProtocolIsPinned)`},
	{name: "vectors", dir: "verify", args: `-test.run ProtocolIsPinned|ItsMark|NoMark -test.skip /miniredis`},
	{name: "protocol", dir: "internal/protocol", args: `-test.skip /miniredis`},
	{name: "differential", dir: "verify", args: `-test.run Differential -test.skip /miniredis -rapid.checks 40 -rapid.nofailfile -rapid.shrinktime 1ms`},
	{name: "costs", dir: "internal/tests", args: `-test.run ^Test(Calls|Cost|Memory|Name|WrongType)`},
	{name: "situations", dir: "verify", args: `-test.run ^(TestKeysOfAnotherType|TestLostKeys|TestSlotsOfThePastAreSwept) -test.skip /miniredis`},
	{name: "quorum", dir: "internal/tests", args: `-test.run Quorum|Server(That|Rests|s)|First`, quorum: true},
	{name: "sim", dir: "verify/sim", args: `-test.run OverAQuorum -quorums 40`, quorum: true},
}

// run tries mutants, and prints what becomes of them.
func run(all []mutant) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tests, err := build(dir)
	if err != nil {
		return err
	}
	if by, output := tests.kill(killers, filepath.Join(root(), "lua")); by != survived {
		return fmt.Errorf("%s: fails without any change:\n%s", by, output)
	}
	count := map[string]int{}
	for _, m := range all {
		by := equivalent
		if reason := reasons()[[2]string{m.file, m.after}]; reason != "" {
			fmt.Printf("equivalent %s\n    since %s\n", m, reason)
		} else if by, err = tests.try(m); err != nil {
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

// A folder has the tests, built to read the scripts from RWLOCK_LUA when they start.
type folder string

func build(dir string) (folder, error) {
	original := filepath.Join(root(), "lua", "lua.go")
	text, err := os.ReadFile(original)
	if err != nil || !embedded.Match(text) {
		return "", fmt.Errorf("%s embeds the scripts in some other way: %w", original, err)
	}
	code := embedded.ReplaceAllString(string(text), "var files = os.DirFS(os.Getenv(\"RWLOCK_LUA\"))\n")
	code = strings.Replace(code, `"embed"`, `"os"`, 1)
	changed, overlay := filepath.Join(dir, "lua.go"), filepath.Join(dir, "overlay.json")
	replaces, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err := errors.Join(err, os.WriteFile(changed, []byte(code), 0o600),
		os.WriteFile(overlay, replaces, 0o600)); err != nil {
		return "", err
	}
	f := folder(dir)
	for _, k := range killers {
		cmd := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", f.binary(k), "./"+k.dir)
		cmd.Dir = root()
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", k.name, err, out)
		}
	}
	return f, nil
}

func (f folder) binary(k killer) string {
	return filepath.Join(string(f), strings.ReplaceAll(k.dir, "/", "-")+".test")
}

// try returns what kills a mutant, or survived. One that is no Lua, and one that hangs, are told apart.
func (f folder) try(m mutant) (by string, err error) {
	dir, err := os.MkdirTemp(string(f), "scripts")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	err = os.CopyFS(filepath.Join(dir, "lua"), os.DirFS(filepath.Join(root(), "lua")))
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, filepath.FromSlash(m.file)), []byte(m.text), 0o600))
	if err != nil {
		return "", err
	}
	by, output := f.kill(slices.DeleteFunc(slices.Clone(killers), func(k killer) bool {
		return k.quorum != strings.HasPrefix(m.file, "lua/quorum/") && k.name != "protocol" && k.name != "vectors"
	}), filepath.Join(dir, "lua"))
	switch {
	case strings.Contains(output, "Error compiling script"):
		by = invalid
	case strings.Contains(output, "panic: test timed out"):
		by = hangs
	}
	return by, nil
}

// kill runs tests with scripts, one after the other, and returns the name of the first that fail, and what
// they say. Tests also fail by chance on a machine that has other things to do, so that those count that
// fail twice.
func (f folder) kill(list []killer, scripts string) (by, output string) {
	for _, k := range list {
		for fails := 1; ; fails++ {
			args := append([]string{"-test.failfast", "-test.timeout=5m"}, strings.Fields(k.args)...)
			cmd := exec.Command(f.binary(k), args...)
			cmd.Dir = filepath.Join(root(), k.dir)
			cmd.Env = append(os.Environ(), "RWLOCK_LUA="+scripts)
			out, err := cmd.CombinedOutput()
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
