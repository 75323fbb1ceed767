package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// A labourer locks as it is told on its standard input, with a contender of its own. It runs as another
// process, started by startWorkers: processes that share locks are what a distributed lock is for.
type labourer struct {
	Contender    string
	Addrs        []string // of the servers
	Cluster      bool
	Lease        time.Duration
	AutoPipeline bool
	Seed         uint64
}

// job is what a worker does at a time, on the names whose numbers are from From up to, but without, To.
type job struct {
	Goroutines int
	From, To   int
	Mode       Mode          // in which it locks each name once, if there is no Span
	Span       time.Duration // for so long it locks names drawn at random
	Reads      int           // of which so many percent for reading
	Hold       time.Duration // for so long it holds each of them
}

// done is what a worker did.
type done struct {
	Err     string
	Pairs   float64
	Elapsed time.Duration
	Waits   []time.Duration // of the lock calls, where names were drawn
	Longest time.Duration   // for so long a name was held at most, likewise
}

// run does one job after the other until its standard input ends, which it does with its parent.
func (w labourer) run() (err error) {
	redis.SetLogger(silent{})
	all := append(slices.Clone(contenders), oursByPublish)
	i := slices.IndexFunc(all, func(c *Contender) bool { return c.Name == w.Contender })
	if i < 0 {
		return fmt.Errorf("no contender %q", w.Contender)
	}
	c, ctx := all[i], context.Background()
	l, err := c.Open(ctx, Options{Addrs: w.Addrs, Cluster: w.Cluster, Lease: w.Lease,
		AutoPipeline: w.AutoPipeline})
	if err != nil {
		return fmt.Errorf("opening %s: %w", w.Contender, err)
	}
	defer closing(l, &err)
	for in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout); ; {
		var j job
		if err := in.Decode(&j); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a job: %w", err)
		}
		work := j.sweep
		if j.Span > 0 {
			work = j.draw
		}
		d, err := work(ctx, c, l, w.Seed)
		if err != nil {
			d.Err = err.Error()
		}
		if err := out.Encode(d); err != nil {
			return fmt.Errorf("telling of a job: %w", err)
		}
	}
}

// draw locks names drawn at random for a while.
func (j job) draw(ctx context.Context, c *Contender, l Locker, seed uint64) (done, error) {
	d := newDraws(c, l, j.Goroutines, j.Reads, seed)
	d.hold = j.Hold
	o, err := together(ctx, j.Goroutines, j.Span, func(waiting context.Context, g int) error {
		return d.pair(ctx, waiting, g, workerName(j.From+d.dice[g].IntN(j.To-j.From)))
	})
	return done{Pairs: o.n, Elapsed: o.elapsed, Waits: slices.Concat(d.waits...),
		Longest: slices.Max(d.longest)}, err
}

// sweep locks and unlocks each name once.
func (j job) sweep(ctx context.Context, c *Contender, l Locker, _ uint64) (done, error) {
	var (
		start = time.Now()
		lock  = c.lockIn(l, j.Mode)
		next  atomic.Int64
		group errgroup.Group
	)
	next.Store(int64(j.From))
	for range j.Goroutines {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < j.To; i = int(next.Add(1)) - 1 {
				if _, err := pairWithin(ctx, ctx, lock, workerName(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return done{Pairs: float64(j.To - j.From), Elapsed: time.Since(start)}, err
}

// workerName returns the name with number i, the same in every process.
func workerName(i int) string { return "name:" + strconv.Itoa(i) }

// worker is a running labourer.
type worker struct {
	*child
	jobs *gob.Encoder
	done *gob.Decoder
}

// workers are processes that lock together.
type workers []*worker

// startWorkers starts n processes with the contender of this turn, and has each load its scripts, by a pair
// on a name of its own.
func (e *Env) startWorkers(ctx context.Context, n int, autoPipeline bool) (_ workers, err error) {
	all := make(workers, n)
	defer func() {
		if err != nil {
			all.Stop()
		}
	}()
	var group errgroup.Group
	for i := range all {
		group.Go(func() (err error) {
			if all[i], err = e.startWorker(ctx, i, autoPipeline); err != nil {
				return err
			}
			own := 1_000_000_000 + i
			_, err = all[i].do(job{Goroutines: 1, From: own, To: own + 1, Mode: Write})
			return err
		})
	}
	return all, group.Wait()
}

func (e *Env) startWorker(ctx context.Context, i int, autoPipeline bool) (*worker, error) {
	c, err := startChild(ctx, labourer{e.Contender.Name, e.addrs, e.Cluster, usualLease, autoPipeline,
		uint64(i)})
	if err != nil {
		return nil, err
	}
	return &worker{c, gob.NewEncoder(c.stdin), gob.NewDecoder(c.stdout)}, nil
}

// do has w do a job, and returns when it is done.
func (w *worker) do(j job) (done, error) {
	var d done
	if err := w.jobs.Encode(j); err != nil {
		return d, fmt.Errorf("giving a worker a job: %w", err)
	}
	if err := w.done.Decode(&d); err != nil {
		return d, fmt.Errorf("waiting for a worker: %w", err)
	}
	if d.Err != "" {
		return d, fmt.Errorf("a worker: %s", d.Err)
	}
	return d, nil
}

// do has each do its job at the same time.
func (all workers) do(jobOf func(i int) job) ([]done, error) {
	results := make([]done, len(all))
	var group errgroup.Group
	for i, w := range all {
		group.Go(func() (err error) {
			results[i], err = w.do(jobOf(i))
			return err
		})
	}
	return results, group.Wait()
}

// Stop ends all, who close their contenders first.
func (all workers) Stop() {
	var group errgroup.Group
	for _, w := range all {
		if w != nil {
			group.Go(func() error { w.child.Stop(); return nil })
		}
	}
	_ = group.Wait()
}
