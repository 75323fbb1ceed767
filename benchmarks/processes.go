package main

import (
	"context"
	"errors"
	"net/rpc"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// workers are other processes that lock together.
type workers []*rpc.Client

// startWorkers starts n processes with the contender of this turn, and has each load its scripts, by a pair
// on a name of its own.
func (e *Env) startWorkers(ctx context.Context, n int) (all workers) {
	for i := range n {
		c := e.startChild(ctx)
		require.NoError(e, c.Call("Labourer.Open", Labour{e.Contender.Name, e.Options, uint64(i)}, new(bool)))
		all = append(all, c)
	}
	_, err := all.do(func(i int) Load {
		return Load{Goroutines: 1, Draw: sweep, From: 1_000_000_000 + i}
	})
	require.NoError(e, err)
	return all
}

// do has each do its load at the same time.
func (all workers) do(loadOf func(i int) Load) (sum Done, err error) {
	results := make([]Done, len(all))
	var group errgroup.Group
	for i, w := range all {
		group.Go(func() error { return w.Call("Labourer.Do", loadOf(i), &results[i]) })
	}
	err = group.Wait()
	for _, d := range results {
		sum.add(d)
	}
	return sum, err
}

// processes measures four processes, of 16 goroutines each, that draw from the same names, or each from as
// many of its own. The parameter says how many percent of the operations read.
func processes(names int, own bool, span time.Duration) measured {
	return func(ctx context.Context, e *Env) Metrics {
		return e.share(ctx, 4, func(i int) Load {
			j := Load{Goroutines: 16, To: names, Reads: e.Param, Span: e.span(span)}
			if own {
				j.From, j.To = i*names, (i+1)*names
			}
			return j
		})
	}
}

// share measures n processes. They work for as long again before the measurement, since a process first opens
// connections, and asks for each name.
func (e *Env) share(ctx context.Context, n int, loadOf func(i int) Load) Metrics {
	all := e.startWorkers(ctx, n)
	draw := func() Done {
		d, err := all.do(loadOf)
		require.NoError(e, err)
		return d
	}
	draw()
	before := e.bytesBetween(ctx)
	var d Done
	usage := e.usage(ctx, func() { d = draw() })
	m := d.metrics(usage)
	m[Between] = (e.bytesBetween(ctx) - before) / d.pairs()
	return m
}

// recalls measures how long a writer waits behind four processes that read one name without a pause, each
// goroutine for a millisecond at a time; and beside it, how long a handover takes meanwhile.
func recalls(ctx context.Context, e *Env) Metrics {
	other := e.Open(ctx, e.Options)
	defer e.closing(other)
	all := e.startWorkers(ctx, 4)
	var readers, writer Done
	var handovers []float64
	span := e.span(4 * time.Second)
	usage := e.usage(ctx, func() {
		var group errgroup.Group
		group.Go(func() (err error) {
			readers, err = all.do(func(int) Load {
				return Load{Goroutines: 16, Reads: 100, Span: span, Hold: time.Millisecond}
			})
			return err
		})
		group.Go(func() error {
			for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				took, err := handOver(ctx, e.Lock, other.Lock, newName())
				if err == nil {
					err = Load{}.once(ctx, ctx, e.Lock, nameOf(0), &writer)
				}
				if err != nil {
					return err
				}
				handovers = append(handovers, millis(took))
			}
			return nil
		})
		require.NoError(e, group.Wait())
	})
	return Metrics{
		WaitP99:     quantile(writer.Waits, 0.99),
		WaitP50:     median(writer.Waits),
		HandoverP99: quantile(handovers, 0.99),
		LongestHold: quantile(readers.Holds, 1),
		Rate:        readers.pairs() / span.Seconds(),
		Requests:    usage[Requests] / readers.pairs(),
	}
}

// handOver returns how long after its release another gets a lock that waits for it.
func handOver(ctx context.Context, from, to lockFunc, name string) (time.Duration, error) {
	h, err := from(ctx, name)
	if err != nil {
		return 0, err
	}
	var group errgroup.Group
	var got time.Time
	group.Go(func() error {
		h, err := to(ctx, name)
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
func turns(reads int) measured {
	return func(ctx context.Context, e *Env) Metrics {
		names, rounds := 2000, 4
		if e.Less > 1 {
			names, rounds = 1000, 2
		}
		all := e.startWorkers(ctx, e.Param)
		take := func(w *rpc.Client, from int, total Metrics) {
			total.add(e.usage(ctx, func() {
				j := Load{Goroutines: 256, Draw: sweep, From: from, To: from + names, Reads: reads}
				require.NoError(e, w.Call("Labourer.Do", j, &Done{}))
			}), 1)
		}
		unused := names
		takeNew := func(w *rpc.Client, total Metrics) {
			take(w, unused, total)
			unused += names
		}
		// The names from 0 on are taken in turns. Each process has had them before the first turn that
		// counts.
		for _, w := range all {
			take(w, 0, Metrics{})
		}
		first, again := Metrics{}, Metrics{}
		for round := range rounds {
			for _, w := range all {
				// What a process does first after a pause comes in smaller pipelines, so that does not count.
				takeNew(w, Metrics{})
				if round%2 == 0 { // new names once before the turn, once after it
					takeNew(w, first)
					take(w, 0, again)
				} else {
					take(w, 0, again)
					takeNew(w, first)
				}
			}
		}
		pairs := float64(rounds * len(all) * names)
		m := again.per(pairs)
		m[FirstPair] = first[ServerTime] / pairs
		m[AgainstFirst] = again[ServerTime] / first[ServerTime]
		return m
	}
}
