// Command benchmarks measures rwlock beside other distributed locks over Redis, all against servers that it
// starts itself, and writes what it found, with charts, to docs/performance.md.
//
//	cd benchmarks && go run .                    # everything, about 25 minutes
//	cd benchmarks && go run . -quick             # everything, briefly; prints, but writes no report unless given -out
//	cd benchmarks && go run . -only 'pair|crowd' # some workloads, likewise
//	cd benchmarks && go run . -quorum            # those over a quorum, three minutes; renews that section of the report
//
// Contenders take turns round by round, so that what disturbs the machine for a while disturbs all alike. The
// figures are medians over the rounds; a ratio is the median of the ratios of each round.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// flags are those of the command.
type flags struct {
	quick, quorum     bool
	only, out, binary string
}

func main() {
	beChild()
	var f flags
	flag.BoolVar(&f.quick, "quick", false, "one round, a shorter one, and a shorter lease where one is watched")
	flag.StringVar(&f.only, "only", "", "run only the workloads whose name matches this regular expression")
	flag.BoolVar(&f.quorum, "quorum", false, "only the workloads over a quorum of servers, and only that section of the report")
	flag.StringVar(&f.out, "out", "",
		"directory for performance.md and its charts (default ../docs; none for a partial or quick run)")
	flag.StringVar(&f.binary, "redis-server", "",
		"server to run, Redis or Valkey (default $RWLOCK_REDIS_SERVER, or redis-server)")
	flag.Parse()
	exit(f.run())
}

// run measures and reports.
func (f flags) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only, err := regexp.Compile(f.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if f.binary != "" {
		_ = os.Setenv("RWLOCK_REDIS_SERVER", f.binary)
	}
	lab := &lab{}
	defer lab.stop()
	less := time.Duration(1)
	if f.quick {
		less = 4
	}
	r := newRunner(lab, less, os.Stdout)
	servers, err := r.servers(ctx, &Workload{}, 0)
	if err != nil {
		return err
	}
	info, err := servers[0].info(ctx, "server")
	if err != nil {
		return err
	}
	here := describeMachine(info["redis_version"])
	fmt.Println(here)
	fmt.Println()

	var chosen []*Workload
	for _, w := range allWorkloads() {
		if only.MatchString(w.Name) && (w.Quorum || !f.quorum) {
			chosen = append(chosen, w)
		}
	}
	err = r.run(ctx, chosen)
	if ctx.Err() != nil {
		return err
	}
	for _, t := range []table{targetsTable(targets, r.results, ours),
		targetsTable(delegatedTargets, r.results, delegated), targetsTable(quorumTargets, r.results, ours)} {
		fmt.Print("\n", t.text())
	}

	out := f.out
	if out == "" && !f.quick && f.only == "" {
		out = filepath.Join("..", "docs")
	}
	if out != "" {
		rep := &report{results: r.results, machine: here,
			command: "cd benchmarks && go run ." + f.String()}
		if e := rep.write(out, f.quorum); e != nil {
			return errors.Join(err, e)
		}
		fmt.Println("\nWritten to", filepath.Join(out, "performance.md"))
	}
	return err
}

// String returns the flags that led to the figures.
func (f flags) String() (s string) {
	if f.quick {
		s += " -quick"
	}
	if f.quorum {
		s += " -quorum"
	}
	if f.only != "" {
		s += fmt.Sprintf(" -only '%s'", f.only)
	}
	return s
}
