// Command mutate changes the lock's scripts, and the guards of its client, one small thing at a time, and runs tests until
// one fails. A change that no test notices is a rule that nothing holds the code to.
//
//	go run ./mutate            # the scripts
//	go run ./mutate -guards    # the client
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A killer is a command that fails on a mutant. $LUA in its arguments is the directory of the mutated scripts, which is
// in the environment as RWLOCK_LUA.
type killer struct {
	name string
	args []string
	dir  string
}

func main() {
	dir := flag.String("lua", "../lua", "the directory of the scripts")
	only := flag.String("only", "", "only mutants whose description matches")
	list := flag.Bool("list", false, "list the mutants, and run nothing")
	parallel := flag.Int("parallel", 1, "mutants that are tried at a time")
	clients := flag.Bool("guards", false, "mutate the client instead of the scripts")
	verbose := flag.Bool("v", false, "tell what killed each mutant")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err == nil {
		if *clients {
			err = runGuards(match)
		} else {
			err = runScripts(*dir, match, *list, *parallel, *verbose)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

var errSurvivors = errors.New("there are survivors")

func runScripts(dir string, match *regexp.Regexp, list bool, parallel int, verbose bool) error {
	all, err := mutants(dir)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	var chosen []mutant
	for _, m := range all {
		if match.MatchString(m.String()) {
			chosen = append(chosen, m)
		}
	}
	if list {
		for _, m := range chosen {
			fmt.Println(m)
		}
		fmt.Println(len(chosen), "mutants")
		return nil
	}
	killers, err := buildKillers(temp)
	if err != nil {
		return err
	}
	// What is not mutated must live.
	sane := filepath.Join(temp, "sane")
	if err := copyScripts(dir, sane); err != nil {
		return err
	}
	if by, output := try(killers, sane); by != "" {
		return fmt.Errorf("%s fails without any mutation:\n%s", by, output)
	}

	t := newTable()
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan mutant)
	for range max(parallel, 1) {
		wg.Go(func() {
			for m := range work {
				by := "equivalent"
				if m.reason() == "" {
					at, err := os.MkdirTemp(temp, "lua")
					if err == nil {
						err = copyScripts(dir, at)
					}
					if err == nil {
						err = os.WriteFile(filepath.Join(at, m.file), []byte(m.text), 0o644)
					}
					if err != nil {
						by = err.Error()
					} else {
						by, _ = try(killers, at)
					}
					_ = os.RemoveAll(at)
				}
				mu.Lock()
				t.add(m.file, by)
				switch {
				case by == "":
					fmt.Println("SURVIVED", m)
				case verbose:
					fmt.Printf("%-12s %s\n", by, m)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range chosen {
		work <- m
	}
	close(work)
	wg.Wait()
	fmt.Println()
	fmt.Print(t)
	if t.survived > 0 {
		return errSurvivors
	}
	return nil
}

// buildKillers builds what kills, the quickest first.
func buildKillers(temp string) ([]killer, error) {
	explore, test := filepath.Join(temp, "explore"), filepath.Join(temp, "verify.test")
	traces, traced := filepath.Join(temp, "traces.test"), filepath.Join(root(), "verify", "explore")
	for _, args := range [][]string{
		{"build", "-o", explore, "./explore"},
		{"test", "-c", "-o", test, "."},
		{"test", "-c", "-o", traces, "./explore"},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %v: %w\n%s", args, err, out)
		}
	}
	exploring := func(args string) killer {
		return killer{"explore", append([]string{explore, "-q", "-lua", "$LUA", "-bugs", "1"}, strings.Fields(args)...), ""}
	}
	return []killer{
		exploring("-processes AB -asks 1 -faults 0 -crashes 0 -reenter"),
		exploring("-processes AAB -asks 1 -faults 0 -crashes 0"),
		exploring("-processes AB -asks 1 -faults 0 -crashes 0 -forces 1"),
		exploring("-processes ABC -leases 123 -asks 1 -faults 0 -crashes 0"),
		exploring("-processes AB -asks 1 -faults 1 -crashes 0 -reenter"),
		exploring("-processes AA -asks 1 -faults 1 -crashes 0 -reenter -before"),
		exploring("-processes AB -asks 1 -faults 1 -crashes 0 -before"),
		{"traces", []string{traces, "-test.run", "Traces"}, traced},
		{"steps", []string{test, "-test.run", "Steps|ShortLease|OwnWriter|Millisecond|SeemOver"}, ""},
		{"keys", []string{test, "-test.run", "AnotherType|LostKeys|FullServer|Unreadable"}, ""},
		{"differential", []string{test, "-test.run", "Differential", "-rapid.nofailfile", "-rapid.shrinktime", "1ms"}, ""},
		exploring("-processes AB -asks 2 -faults 0 -crashes 0"),
		exploring("-processes AB -asks 2 -faults 0 -crashes 0 -before"),
	}, nil
}

// try runs the killers one after the other, and returns the name of the first that fails, and what it says; "" if none
// does.
func try(killers []killer, lua string) (string, string) {
	for _, k := range killers {
		args := append([]string(nil), k.args...)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "$LUA", lua)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = k.dir
		cmd.Env = append(os.Environ(), "RWLOCK_LUA="+lua)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			return k.name, string(out)
		}
	}
	return "", ""
}

func copyScripts(from, to string) error {
	return os.CopyFS(to, os.DirFS(from))
}

// A table counts what became of mutants, file by file.
type table struct {
	order    []string
	rows     map[string]*row
	survived int
}

type row struct{ made, killed, equivalent, survived int }

func newTable() *table { return &table{rows: map[string]*row{}} }

func (t *table) add(file, by string) {
	r := t.rows[file]
	if r == nil {
		r = &row{}
		t.rows[file] = r
		t.order = append(t.order, file)
	}
	r.made++
	switch by {
	case "equivalent":
		r.equivalent++
	case "":
		r.survived++
		t.survived++
	default:
		r.killed++
	}
}

func (t *table) String() string {
	var b bytes.Buffer
	line := "%-20s %6v %7v %11v %9v\n"
	fmt.Fprintf(&b, line, "", "made", "killed", "equivalent", "survived")
	var sum row
	for _, f := range t.order {
		r := t.rows[f]
		fmt.Fprintf(&b, line, f, r.made, r.killed, r.equivalent, r.survived)
		sum.made += r.made
		sum.killed += r.killed
		sum.equivalent += r.equivalent
		sum.survived += r.survived
	}
	fmt.Fprintf(&b, line, "all", sum.made, sum.killed, sum.equivalent, sum.survived)
	return b.String()
}

// root is the directory of the library.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
