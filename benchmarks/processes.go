package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// These variables tell a process what to be in place of the command, as JSON.
const (
	relayerRole  = "RWLOCK_BENCHMARKS_RELAYER"
	labourerRole = "RWLOCK_BENCHMARKS_LABOURER"
)

// playRole does what this process was started for, if it was started by startChild, and ends it.
func playRole() {
	roles := map[string]interface{ run() error }{relayerRole: &relayer{}, labourerRole: &labourer{}}
	for role, is := range roles {
		if text, ok := os.LookupEnv(role); ok {
			exit(errors.Join(json.Unmarshal([]byte(text), is), is.run()))
		}
	}
}

// exit ends the process.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is another process of this program, which ends when its standard input does.
type child struct {
	cmd *exec.Cmd
	io.Reader
	io.WriteCloser
}

// startChild starts a process that has a role.
func startChild(ctx context.Context, role string, is any) (*child, error) {
	text, err := json.Marshal(is)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self)}
	c.cmd.Env, c.cmd.Stderr = append(os.Environ(), role+"="+string(text)), os.Stderr
	if c.WriteCloser, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.Reader, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// Stop ends the process, in good order if that does not take long.
func (c *child) Stop() {
	_ = c.Close()
	limit := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer limit.Stop()
	_ = c.cmd.Wait()
}

// A labourer is a process that has a contender of its own, and does loads: processes that share locks are
// what a distributed lock is for.
type labourer struct {
	Contender string
	Options   Options
	Seed      uint64

	contender *Contender
	locker    Locker
}

// run serves until the standard input ends, which it does with the parent.
func (w *labourer) run() (err error) {
	redis.SetLogger(silent{})
	all := append(slices.Clone(contenders), oursByPublish)
	i := slices.IndexFunc(all, func(c *Contender) bool { return c.Name == w.Contender })
	if i < 0 {
		return fmt.Errorf("no contender %q", w.Contender)
	}
	w.contender = all[i]
	if w.locker, err = w.contender.Open(context.Background(), w.Options); err != nil {
		return err
	}
	defer closing(w.locker, &err)
	server := rpc.NewServer()
	if err := server.RegisterName("Labourer", w); err != nil {
		return err
	}
	server.ServeConn(&child{Reader: os.Stdin, WriteCloser: os.Stdout})
	return nil
}

// Do does a load, when another process asks for it.
func (w *labourer) Do(j Load, d *Done) (err error) {
	*d, err = j.do(context.Background(), w.contender, w.locker, w.Seed)
	return err
}

// workers are running labourers, that lock together.
type workers []*worker

type worker struct {
	*child
	client *rpc.Client
}

// do has w do a load, and returns when it is done.
func (w *worker) do(j Load) (d Done, err error) {
	if err = w.client.Call("Labourer.Do", j, &d); err != nil {
		err = fmt.Errorf("a worker: %w", err)
	}
	return d, err
}

// startWorkers starts n processes with the contender of this turn, and has each load its scripts, by a pair
// on a name of its own.
func (e *Env) startWorkers(ctx context.Context, n int, autoPipeline bool) (_ workers, err error) {
	all := make(workers, n)
	defer func() {
		if err != nil {
			all.Stop()
		}
	}()
	for i := range all {
		c, err := startChild(ctx, labourerRole, labourer{Contender: e.Contender.Name, Seed: uint64(i),
			Options: Options{Addrs: e.addrs, Cluster: e.Cluster, Lease: usualLease, AutoPipeline: autoPipeline}})
		if err != nil {
			return all, fmt.Errorf("starting a worker: %w", err)
		}
		all[i] = &worker{c, rpc.NewClient(c)}
	}
	_, err = all.do(func(i int) Load {
		return Load{Goroutines: 1, Draw: sweep, From: 1_000_000_000 + i}
	})
	return all, err
}

// do has each do its load at the same time.
func (all workers) do(loadOf func(i int) Load) (sum Done, err error) {
	results := make([]Done, len(all))
	var group errgroup.Group
	for i, w := range all {
		group.Go(func() (err error) {
			results[i], err = w.do(loadOf(i))
			return err
		})
	}
	err = group.Wait()
	for _, d := range results {
		sum.add(d)
	}
	return sum, err
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

// processes measures four processes, of 16 goroutines each, that draw from the same names, or each from as
// many of its own. The parameter says how many percent of the operations read.
func processes(names int, own bool) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		all, err := e.startWorkers(ctx, 4, false)
		if err != nil {
			return nil, err
		}
		defer all.Stop()
		draw := func(span time.Duration) (Done, error) {
			return all.do(func(i int) Load {
				j := Load{Goroutines: 16, To: names, Reads: e.Param, Span: span}
				if own {
					j.From, j.To = i*names, (i+1)*names
				}
				return j
			})
		}
		span := e.span(time.Second)
		if e.Cluster { // where a message may take 40 ms
			span = max(span, 400*time.Millisecond)
		}
		if _, err := draw(span / 4); err != nil { // opens connections
			return nil, err
		}
		before, err := e.bytesBetween(ctx)
		if err != nil {
			return nil, err
		}
		var d Done
		usage, err := e.usage(ctx, func() (err error) {
			d, err = draw(span)
			return err
		})
		if err != nil {
			return nil, err
		}
		after, err := e.bytesBetween(ctx)
		m := d.metrics(usage)
		m[Between] = (after - before) / d.pairs()
		return m, err
	}
}

// recalls measures how long a writer waits behind four processes that read one name without a pause, each
// goroutine for a millisecond at a time; and beside it, how long a handover takes meanwhile.
func recalls(ctx context.Context, e *Env, l Locker) (_ Metrics, err error) {
	other, err := e.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer closing(other, &err)
	all, err := e.startWorkers(ctx, 4, false)
	if err != nil {
		return nil, err
	}
	defer all.Stop()
	var readers, writer Done
	var handovers []time.Duration
	span := e.span(4 * time.Second)
	usage, err := e.usage(ctx, func() error {
		var group errgroup.Group
		group.Go(func() (err error) {
			readers, err = all.do(func(int) Load {
				return Load{Goroutines: 16, Reads: 100, Span: span, Hold: time.Millisecond}
			})
			return err
		})
		group.Go(func() error {
			for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				took, err := handOver(ctx, l, other, newName())
				if err == nil {
					err = Load{}.once(ctx, ctx, l.Lock, nameOf(0), &writer)
				}
				if err != nil {
					return err
				}
				handovers = append(handovers, took)
			}
			return nil
		})
		return group.Wait()
	})
	waits := inMillis(writer.Waits)
	return Metrics{
		WaitP99:     quantile(waits, 0.99),
		WaitP50:     median(waits),
		HandoverP99: quantile(inMillis(handovers), 0.99),
		LongestHold: quantile(inMillis(readers.Holds), 1),
		Rate:        readers.pairs() / span.Seconds(),
		Requests:    usage.Requests / readers.pairs(),
	}, err
}

// handOver returns how long after its release another gets a lock that waits for it.
func handOver(ctx context.Context, from, to Locker, name string) (time.Duration, error) {
	h, err := from.Lock(ctx, name)
	if err != nil {
		return 0, err
	}
	var group errgroup.Group
	var got time.Time
	group.Go(func() error {
		h, err := to.Lock(ctx, name)
		got = time.Now()
		if err != nil {
			return err
		}
		return h.Unlock(ctx)
	})
	time.Sleep(10 * time.Millisecond) // it waits by now
	start := time.Now()
	err = errors.Join(h.Unlock(ctx), group.Wait())
	return got.Sub(start), err
}

// turns measures what a pair costs the server on names that processes take in turns, strictly one after the
// other, beside the first pair of a name. A process takes many names at a time, in large pipelines. So many
// percent of the pairs read.
func turns(reads int) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		names, rounds := 2000, 4
		if e.Less > 1 {
			names, rounds = 1000, 2
		}
		all, err := e.startWorkers(ctx, e.Param, true)
		if err != nil {
			return nil, err
		}
		defer all.Stop()
		unused := names
		take := func(w *worker, from int) (Usage, error) {
			return e.usage(ctx, func() error {
				_, err := w.do(Load{Goroutines: 256, Draw: sweep, From: from, To: from + names, Reads: reads})
				return err
			})
		}
		takeNew := func(w *worker) (Usage, error) {
			unused += names
			return take(w, unused-names)
		}
		// The names from 0 on are taken in turns. Each process has had them before the first turn that
		// counts.
		for _, w := range all {
			if _, err := take(w, 0); err != nil {
				return nil, err
			}
		}
		var first, again Usage
		for round := range rounds {
			for _, w := range all {
				// What a process does first after a pause comes in smaller pipelines, so that does not count.
				if _, err := takeNew(w); err != nil {
					return nil, err
				}
				for i := range 2 { // new names once before the turn, once after it
					var u Usage
					total := &again
					if i == round%2 {
						total = &first
						u, err = takeNew(w)
					} else {
						u, err = take(w, 0)
					}
					if err != nil {
						return nil, err
					}
					total.add(u)
				}
			}
		}
		pairs := float64(rounds * len(all) * names)
		return Metrics{
			AgainstFirst: again.Micros / first.Micros,
			ServerTime:   again.Micros / pairs,
			FirstPair:    first.Micros / pairs,
			Requests:     again.Requests / pairs,
			Calls:        again.Calls / pairs,
		}, nil
	}
}
