// Command benchmarks measures rwlock beside other distributed locks over Redis, all against servers that it
// starts itself, and writes what it found, with charts, to performance.md.
//
//	cd benchmarks && go run .                    # everything, about 40 minutes
//	cd benchmarks && go run . -quick             # everything, briefly; only prints, unless given -out
//	cd benchmarks && go run . -only 'pair|crowd' # some workloads, likewise
//	cd benchmarks && go run . -draw              # only draws the charts, from the tables of performance.md
//
// Contenders take turns round by round, so that what disturbs the machine for a while disturbs all alike. The
// figures are medians over the rounds; a ratio is the median of the ratios of each round.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// main runs everything as one test: servers are started as for tests, and a turn that fails is a subtest that
// does not stop the others.
func main() {
	beChild()
	quick := flag.Bool("quick", false, "one round, a shorter one, and a shorter lease where one is watched")
	only := flag.String("only", "", "run only the workloads whose name matches this regular expression")
	out := flag.String("out", "", "directory of the performance.md and the pictures that are renewed "+
		"(default the current one; none for a partial or quick run)")
	onlyDraw := flag.Bool("draw", false, "measure nothing: draw the charts from the tables of performance.md")
	flag.Parse()
	if *onlyDraw {
		if err := drawCharts(cmp.Or(*out, ".")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if *out == "" && !*quick && *only == "" {
		*out = "."
	}
	testing.Main(regexp.MatchString, []testing.InternalTest{{Name: "benchmarks", F: func(t *testing.T) {
		measure(t, *quick, *only, *out)
	}}}, nil, nil)
}

// measure measures and reports.
func measure(t *testing.T, quick bool, only, out string) {
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := regexp.Compile(only)
	require.NoError(t, err, "-only")
	less := time.Duration(1)
	if quick {
		less = 4
	}
	r := newRunner(t, less, os.Stdout)
	server := r.servers(ctx, t, &Workload{}, 0)[0]
	here := describeMachine(server.info(ctx, t, "server")["redis_version"])
	fmt.Println(here.text())
	r.run(ctx, slices.DeleteFunc(slices.Clone(workloads), func(w *Workload) bool {
		return !chosen.MatchString(w.Name)
	}))
	require.NoError(t, context.Cause(ctx))
	all := tables(r.results)
	for _, name := range []string{"targets", "targets, delegated", "targets, quorum"} {
		fmt.Printf("%s\n%s\n", name, all[name].text())
	}
	if out != "" {
		if only == "" {
			all["machine"] = here
		}
		require.NoError(t, renew(out, all))
		require.NoError(t, drawCharts(out))
	}
}
