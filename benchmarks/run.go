package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// silent is a go-redis logger that drops what it is told: errors come back from the calls.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// runner takes the contenders through the workloads.
type runner struct {
	tb      testing.TB    // starts the servers
	single  []*Server     // as many as were needed
	cluster []*Server     // if it was needed
	less    time.Duration // see Env; in a run that is not full there is one round of everything
	first   bool          // at the first of its settings only
	out     io.Writer
	results Results
}

func newRunner(tb testing.TB, less time.Duration, out io.Writer) *runner {
	redis.SetLogger(silent{})
	return &runner{tb: tb, less: less, out: out, results: Results{}}
}

// turnLimit bounds one turn of one contender.
const turnLimit = time.Minute

// run takes turns, prints a table after each workload, and returns what went wrong in any turn. A turn that
// fails leaves a gap in the results and does not stop the others.
func (r *runner) run(ctx context.Context, chosen []*Workload) error {
	var failures error
	for _, w := range chosen {
		start, rounds := time.Now(), w.Rounds
		if r.less > 1 {
			rounds = 1
		}
		for range rounds {
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
					at := cell{w.Name, param, c.Name}
					r.results[at] = append(r.results[at], m)
				}
			}
		}
		fmt.Fprintf(r.out, "%s  (%v)\n%s\n", w.Name, time.Since(start).Round(time.Second),
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

// servers returns those that a workload runs on, empty. It starts those that there are not yet.
func (r *runner) servers(ctx context.Context, w *Workload, param int) (servers []*Server, err error) {
	n := 1
	if w.Quorum {
		n = param
	}
	for len(r.single) < n {
		r.single = append(r.single, newServer(testredis.Start(r.tb, serverArgs...)))
	}
	servers = r.single[:n]
	if w.Cluster {
		if r.cluster == nil {
			r.cluster, err = startCluster(ctx, r.tb)
		}
		servers = r.cluster
	}
	for _, s := range servers {
		err = errors.Join(err, s.Clear(ctx))
	}
	return servers, err
}

// turn runs one contender at one workload.
func (r *runner) turn(ctx context.Context, w *Workload, param int, c *Contender) (m Metrics, err error) {
	servers, err := r.servers(ctx, w, param)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx) // no deadline: some contenders take it for the lock's
	defer cancel(nil)
	limit := time.AfterFunc(turnLimit, func() { cancel(fmt.Errorf("took more than %v", turnLimit)) })
	defer limit.Stop()
	defer func() {
		if err != nil {
			m, err = nil, errors.Join(context.Cause(ctx), err)
		}
	}()
	e := &Env{Servers: servers, Server: servers[0], Contender: c, Param: param, Watch: w.Watch / r.less,
		Less:    r.less,
		Options: Options{Cluster: w.Cluster, Lease: cmp.Or(w.Lease, usualLease), AutoPipeline: w.AutoPipeline}}
	if w.Watch > 0 && r.less > 1 {
		e.Lease = 3 * time.Second
	}
	for _, s := range servers {
		addr := s.Addr()
		if w.Far != nil {
			var proxy *child
			if proxy, addr, err = startProxy(ctx, addr, w.Far(param)); err != nil {
				return nil, err
			}
			defer proxy.Stop()
		}
		e.Addrs = append(e.Addrs, addr)
	}
	if !w.Alone {
		if e.Locker, err = e.Open(ctx); err != nil {
			return nil, err
		}
		defer closing(e.Locker, &err)
	}
	return w.Run(ctx, e)
}
