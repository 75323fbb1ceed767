// Command benchmarks measures rwlock beside other distributed locks over Redis, all against servers that it
// starts itself, and writes what it found, with charts, to docs/performance.md.
//
//	cd benchmarks && go run .                    # everything, about 40 minutes
//	cd benchmarks && go run . -quick             # everything, briefly; only prints, unless given -out
//	cd benchmarks && go run . -only 'pair|crowd' # some workloads, likewise
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
	"slices"
	"syscall"
	"time"
)

func main() {
	beChild()
	quick := flag.Bool("quick", false, "one round, a shorter one, and a shorter lease where one is watched")
	only := flag.String("only", "", "run only the workloads whose name matches this regular expression")
	out := flag.String("out", "", "directory of the performance.md and the pictures that are renewed "+
		"(default ../docs; none for a partial or quick run)")
	flag.Parse()
	if *out == "" && !*quick && *only == "" {
		*out = filepath.Join("..", "docs")
	}
	exit(measure(*quick, *only, *out))
}

// measure measures and reports.
func measure(quick bool, only, out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	lab := &lab{}
	defer lab.stop()
	less := time.Duration(1)
	if quick {
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
	fmt.Println(here.text())
	err = r.run(ctx, slices.DeleteFunc(slices.Clone(workloads), func(w *Workload) bool {
		return !chosen.MatchString(w.Name)
	}))
	if ctx.Err() != nil {
		return err
	}
	all := tables(r.results)
	for _, name := range []string{"targets", "targets, delegated", "targets, quorum"} {
		fmt.Printf("%s\n%s\n", name, all[name].text())
	}
	if out != "" {
		if only == "" {
			all["machine"] = here
		}
		err = errors.Join(err, renew(out, all), drawCharts(r.results, filepath.Join(out, "performance")))
	}
	return err
}
