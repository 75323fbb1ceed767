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
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// flags are those of the command.
type flags struct {
	quick, quorum     bool
	only, out, binary string
}

func main() {
	playRole()
	var f flags
	flag.BoolVar(&f.quick, "quick", false, "fewer rounds, shorter ones, and a shorter lease where one is watched")
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
	r := newRunner(lab, os.Stdout)
	if f.quick {
		r.less = 4
	}
	servers, recorded, err := r.over(ctx, 1)
	if err != nil {
		return err
	}
	info, err := servers[0].info(ctx, "server")
	if err != nil {
		return err
	}
	here := describeMachine(info["redis_version"])
	fmt.Println(here)
	for _, mode := range []Mode{Write, Read} {
		fmt.Printf("A %s pair sends %v.\n", mode, recorded.again[mode])
	}
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
		rep := &report{results: r.results, machine: here, shapes: recorded,
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

// silent is a go-redis logger that drops what it is told: errors come back from the calls.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// runner takes the contenders through the workloads.
type runner struct {
	tb      testing.TB     // starts the servers
	servers []*Server      // as many as were needed
	cluster []*Server      // if it was needed
	shapes  map[int]shapes // what ours sends over so many servers
	less    time.Duration  // see Env
	once    bool           // a single round of everything
	first   bool           // at the first of its settings only
	out     io.Writer
	results *Results
}

func newRunner(tb testing.TB, out io.Writer) *runner {
	redis.SetLogger(silent{})
	return &runner{tb: tb, less: 1, out: out, shapes: map[int]shapes{}}
}

// turnLimit bounds one turn of one contender.
const turnLimit = time.Minute

// run takes turns, prints a table after each workload, and returns what went wrong in any turn. A turn that
// fails leaves a gap in the results and does not stop the others.
func (r *runner) run(ctx context.Context, chosen []*Workload) error {
	r.results = newResults()
	var failures error
	for _, w := range chosen {
		start := time.Now()
		for range r.roundsOf(w) {
			for _, param := range r.paramsOf(w) {
				for _, c := range w.Contenders {
					m, err := r.turn(ctx, w, param, c)
					if ctx.Err() != nil {
						return errors.Join(failures, errors.New("interrupted"))
					}
					if err != nil {
						err = fmt.Errorf("%s, %s: %w", w.label(param), c.Name, err)
						fmt.Fprintf(r.out, "failed: %v\n", err)
						failures = errors.Join(failures, err)
					}
					r.results.add(cell{w.Name, param, c.Name}, m)
				}
			}
		}
		fmt.Fprintf(r.out, "%s  (%v)\n%s\n", w.Title, time.Since(start).Round(time.Second),
			w.table(r.results).text())
	}
	return failures
}

func (r *runner) paramsOf(w *Workload) []int {
	if r.first {
		return w.params()[:1]
	}
	return w.params()
}

func (r *runner) roundsOf(w *Workload) int {
	switch {
	case r.once:
		return 1
	case r.less > 1:
		return (w.Rounds + 2) / 3
	}
	return w.Rounds
}

// over returns so many servers, and what ours sends to them. It starts those that there are not yet.
func (r *runner) over(ctx context.Context, n int) (_ []*Server, recorded shapes, err error) {
	for len(r.servers) < n {
		r.servers = append(r.servers, newServer(testredis.Start(r.tb, serverArgs...)))
	}
	servers := r.servers[:n]
	recorded, known := r.shapes[n]
	for try := 0; try < 5 && !known; try++ { // a server that is slow to answer is passed over
		if recorded, err = recordPairs(ctx, addrsOf(servers)...); err == nil {
			r.shapes[n], known = recorded, true
		}
	}
	return servers, recorded, err
}

func addrsOf(servers []*Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// turn runs one contender at one workload, on empty servers.
func (r *runner) turn(ctx context.Context, w *Workload, param int, c *Contender) (Metrics, error) {
	n := 1
	if w.Quorum {
		n = param
	}
	servers, recorded, err := r.over(ctx, n)
	if err == nil && w.Cluster {
		servers, err = r.asCluster(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		if err := s.Clear(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(turnLimit, func() { cancel(fmt.Errorf("took more than %v", turnLimit)) })
	defer limit.Stop()
	floor := recorded.again
	if w.First {
		floor = recorded.first
	}
	e := &Env{Server: servers[0], Servers: servers, Contender: c, Param: param, Cluster: w.Cluster, Less: r.less,
		Floor: floor, addrs: addrsOf(servers)}
	m, err := w.measure(ctx, e)
	if err != nil {
		return nil, errors.Join(context.Cause(ctx), err)
	}
	return m, nil
}
