package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// runner takes the contenders through the workloads.
type runner struct {
	t       *testing.T    // has the servers, and a subtest for each turn
	single  []*Server     // as many as were needed
	cluster []*Server     // if it was needed
	less    time.Duration // see Env; in a run that is not full there is one round of everything
	out     io.Writer
	results Results
}

func newRunner(t *testing.T, less time.Duration, out io.Writer) *runner {
	logging.Disable() // errors come back from the calls
	return &runner{t: t, less: less, out: out, results: Results{}}
}

// turnLimit bounds one turn of one contender.
const turnLimit = time.Minute

// run takes turns until ctx ends, and prints a table after each workload. A turn that fails leaves a gap in
// the results and does not stop the others.
func (r *runner) run(ctx context.Context, chosen []*Workload) {
	for _, w := range chosen {
		start, rounds := time.Now(), w.Rounds
		if r.less > 1 {
			rounds = 1
		}
		for range rounds {
			for _, param := range w.params() {
				for _, c := range w.Contenders {
					var m Metrics
					turn := w.label(param) + ", " + c.Name
					if !r.t.Run(turn, func(t *testing.T) { m = r.turn(ctx, t, w, param, c) }) {
						fmt.Fprintln(r.out, "failed:", turn)
						m = nil
					}
					if ctx.Err() != nil {
						return
					}
					at := cell{w.Name, param, c.Name}
					r.results[at] = append(r.results[at], m)
				}
			}
		}
		fmt.Fprintf(r.out, "%s  (%v)\n%s\n", w.Name, time.Since(start).Round(time.Second),
			w.table(r.results).text())
	}
}

// servers returns those that a workload runs on, empty. It starts those that there are not yet.
func (r *runner) servers(ctx context.Context, t *testing.T, w *Workload, param int) []*Server {
	n := 1
	if w.Quorum {
		n = param
	}
	for len(r.single) < n {
		r.single = append(r.single, newServer(testredis.Start(r.t, serverArgs...)))
	}
	servers := r.single[:n]
	if w.Cluster {
		if r.cluster == nil {
			r.cluster = startCluster(ctx, r.t)
		}
		servers = r.cluster
	}
	for _, s := range servers {
		require.NoError(t, s.client.FlushAll(ctx).Err())
	}
	return servers
}

// turn runs one contender at one workload.
func (r *runner) turn(ctx context.Context, t *testing.T, w *Workload, param int, c *Contender) Metrics {
	servers := r.servers(ctx, t, w, param)
	ctx, cancel := context.WithCancelCause(ctx) // no deadline: some contenders take it for the lock's
	limit := time.AfterFunc(turnLimit, func() { cancel(fmt.Errorf("took more than %v", turnLimit)) })
	t.Cleanup(func() {
		limit.Stop()
		assert.NoError(t, context.Cause(ctx))
		cancel(nil)
	})
	e := &Env{T: t, Servers: servers, Server: servers[0], Contender: c, Param: param,
		Watch: w.Watch / r.less, Less: r.less}
	e.Options = Options{Cluster: w.Cluster, Lease: cmp.Or(w.Lease, usualLease), AutoPipeline: w.AutoPipeline}
	if w.Watch > 0 && r.less > 1 {
		e.Lease = 3 * time.Second
	}
	for _, s := range servers {
		addr := s.Addr()
		if w.Far != nil {
			addr = e.startProxy(ctx, addr, w.Far(param))
		}
		e.Addrs = append(e.Addrs, addr)
	}
	if !w.Alone {
		e.Locker = e.Open(ctx, e.Options)
		defer e.closing(e.Locker)
	}
	return w.Run(ctx, e)
}
