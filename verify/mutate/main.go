// Command mutate changes the lock's scripts, or a package of its client, one small thing at a time, and runs tests until one
// fails. A change that no test notices is a rule that nothing holds the code to.
//
//	go run ./mutate                          # the scripts
//	go run ./mutate -go internal/engine      # a package
//	go run ./mutate -go internal/protocol -killer 'own: go test -count=1 ./internal/protocol'
//
// The tests run in a copy of the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// An options is what is asked for.
type options struct {
	root     string // of the repository
	pkg      string // to mutate; "" for the scripts
	match    *regexp.Regexp
	list     bool
	sample   int // how many mutants to take by chance; 0 for all
	seed     uint64
	parallel int
	limit    time.Duration
	killers  []killer
	verbose  bool
}

func main() {
	o := options{root: root()}
	flag.StringVar(&o.pkg, "go", "", "mutate the Go package in this directory of the repository, instead of the scripts")
	match := flag.String("match", "", "only mutants whose description matches")
	flag.BoolVar(&o.list, "list", false, "list the mutants, and run nothing")
	flag.IntVar(&o.sample, "sample", 0, "only so many mutants, taken by chance")
	flag.Uint64Var(&o.seed, "seed", 1, "of the sample")
	flag.IntVar(&o.parallel, "parallel", 1, "mutants that are tried at a time")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "for how long a mutant may run: one that hangs is killed")
	flag.BoolVar(&o.verbose, "v", false, "tell what killed each mutant")
	flag.Func("killer", "\"name: command\" that fails on a mutant, in the root of the repository; may be repeated; instead of the default",
		func(s string) error {
			name, command, ok := strings.Cut(s, ": ")
			if !ok {
				return errors.New("there is no name")
			}
			o.killers = append(o.killers, killer{name: name, command: command})
			return nil
		})
	flag.Parse()
	var err error
	if o.match, err = regexp.Compile(*match); err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

var errSurvivors = errors.New("there are survivors")

// choose makes the mutants that are asked for.
func choose(o options) ([]mutant, error) {
	var all []mutant
	var err error
	if o.pkg != "" {
		all, err = goMutants(o.root, o.pkg)
	} else {
		all, err = luaMutants(o.root)
	}
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return !o.match.MatchString(m.String()) })
	if o.sample > 0 && o.sample < len(all) {
		r := rand.New(rand.NewPCG(o.seed, 0))
		// The order is left to chance, too: what an interrupted run has tried is a sample as well.
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:o.sample]
	}
	return all, nil
}

func run(o options) error {
	chosen, err := choose(o)
	if err != nil {
		return err
	}
	if o.list {
		for _, m := range chosen {
			fmt.Println(m)
		}
		fmt.Println(len(chosen), "mutants")
		return nil
	}
	temp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	w, err := newWorker(o, chosen, filepath.Join(temp, "copy"))
	if err != nil {
		return err
	}
	workers := []*worker{w}
	for i := range o.parallel - 1 {
		other, err := w.another(filepath.Join(temp, fmt.Sprint("scripts", i)))
		if err != nil {
			return err
		}
		workers = append(workers, other)
	}
	// What is not mutated must live. Its first run compiles what others then find.
	if by, output := workers[0].kill("", 10*o.limit); by != survived {
		return fmt.Errorf("%s: fails without any mutation:\n%s", by, output)
	}

	// An interrupt ends the run with what is known by then.
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := newTable()
	together, alone := chosen, []mutant(nil)
	if o.pkg != "" {
		together, alone = woven(chosen)
	}
	tryAll(interrupted, together, workers, t)
	tryAll(interrupted, alone, workers[:1], t)
	fmt.Println()
	fmt.Print(t)
	if t.sum().by[survived] > 0 {
		return errSurvivors
	}
	return nil
}

// tryAll tries mutants until ctx ends, and notes what becomes of them.
func tryAll(ctx context.Context, all []mutant, workers []*worker, t *table) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan mutant)
	for _, w := range workers {
		wg.Go(func() {
			for m := range work {
				by, reason := equivalent, m.reason()
				began, output := time.Now(), ""
				if reason == "" {
					by, output = w.try(m)
				}
				mu.Lock()
				t.add(m.file, by)
				switch {
				case by == survived:
					fmt.Println("SURVIVED", m)
				case by == equivalent:
					fmt.Printf("equivalent %s\n    since %s\n", m, reason)
				case w.verbose:
					fmt.Printf("%s %s (%v): %s\n", by, failed(output), time.Since(began).Round(time.Millisecond), m)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range all {
		select {
		case work <- m:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failed returns the name of the test that failed, the innermost one, or "" if the output of a killer names none.
func failed(output string) string {
	name := ""
	for _, m := range failure.FindAllStringSubmatch(output, -1) {
		if name == "" || strings.HasPrefix(m[1], name+"/") {
			name = m[1]
		}
	}
	return name
}

// root is the directory of the library.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
