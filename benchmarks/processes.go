package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// workers are other processes that lock together.
type workers []*child

// startWorkers starts n processes with the contender of this turn, and has each load its scripts, by a pair
// on a name of its own.
func (e *Env) startWorkers(ctx context.Context, n int) (all workers, err error) {
	defer func() {
		if err != nil {
			all.Stop()
		}
	}()
	for i := range n {
		c, err := startChild(ctx)
		if err != nil {
			return all, err
		}
		all = append(all, c)
		if err := c.ask("Open", Labour{e.Contender.Name, e.Options, uint64(i)}, new(bool)); err != nil {
			return all, err
		}
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
		group.Go(func() error { return w.ask("Do", loadOf(i), &results[i]) })
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
		group.Go(func() error { w.Stop(); return nil })
	}
	_ = group.Wait()
}

// processes measures four processes, of 16 goroutines each, that draw from the same names, or each from as
// many of its own. They work for as long again before the measurement, since a process first opens
// connections, and asks for each name. The parameter says how many percent of the operations read.
func processes(names int, own bool, span time.Duration) measured {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		all, err := e.startWorkers(ctx, 4)
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
		span := e.span(span)
		if e.Cluster { // where a message may take 40 ms
			span = max(span, 400*time.Millisecond)
		}
		if _, err := draw(span); err != nil {
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
func recalls(ctx context.Context, e *Env) (_ Metrics, err error) {
	other, err := e.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer closing(other, &err)
	all, err := e.startWorkers(ctx, 4)
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
				took, err := handOver(ctx, e.Lock, other.Lock, newName())
				if err == nil {
					err = Load{}.once(ctx, ctx, e.Lock, nameOf(0), &writer)
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
		Requests:    usage[Requests] / readers.pairs(),
	}, err
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
	return func(ctx context.Context, e *Env) (Metrics, error) {
		names, rounds := 2000, 4
		if e.Less > 1 {
			names, rounds = 1000, 2
		}
		all, err := e.startWorkers(ctx, e.Param)
		if err != nil {
			return nil, err
		}
		defer all.Stop()
		take := func(w *child, from int, total Metrics) error {
			usage, err := e.usage(ctx, func() error {
				return w.ask("Do", Load{Goroutines: 256, Draw: sweep, From: from, To: from + names, Reads: reads}, &Done{})
			})
			total.add(usage, 1)
			return err
		}
		unused := names
		takeNew := func(w *child, total Metrics) error {
			unused += names
			return take(w, unused-names, total)
		}
		// The names from 0 on are taken in turns. Each process has had them before the first turn that
		// counts.
		for _, w := range all {
			if err := take(w, 0, Metrics{}); err != nil {
				return nil, err
			}
		}
		first, again := Metrics{}, Metrics{}
		for round := range rounds {
			for _, w := range all {
				// What a process does first after a pause comes in smaller pipelines, so that does not count.
				err := takeNew(w, Metrics{})
				if round%2 == 0 { // new names once before the turn, once after it
					err = errors.Join(err, takeNew(w, first), take(w, 0, again))
				} else {
					err = errors.Join(err, take(w, 0, again), takeNew(w, first))
				}
				if err != nil {
					return nil, err
				}
			}
		}
		pairs := float64(rounds * len(all) * names)
		m := again.per(pairs)
		m[FirstPair] = first[ServerTime] / pairs
		m[AgainstFirst] = again[ServerTime] / first[ServerTime]
		return m, nil
	}
}
