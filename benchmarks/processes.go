package main

import (
	"context"
	"time"
)

// processes measures processes, of 16 goroutines each, that draw from the same names. So many percent of the
// operations read.
func processes(names, reads int) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		all, err := e.startWorkers(ctx, e.Param, false)
		if err != nil {
			return nil, err
		}
		defer all.Stop()
		// opens connections
		if _, err := all.do(job{Goroutines: 16, To: names, Reads: reads,
			Span: e.span(time.Second) / 4}); err != nil {
			return nil, err
		}
		var results []done
		usage, err := e.usage(ctx, func() (err error) {
			results, err = all.do(job{Goroutines: 16, To: names, Reads: reads, Span: e.span(time.Second)})
			return err
		})
		if err != nil {
			return nil, err
		}
		var rate, pairs float64
		var waits []float64
		for _, d := range results {
			rate += d.Pairs / d.Elapsed.Seconds()
			pairs += d.Pairs
			waits = append(waits, inMillis(d.Waits)...)
		}
		return Metrics{
			Rate:       rate,
			WaitP50:    median(waits),
			WaitP99:    quantile(waits, 0.99),
			ServerTime: usage.Micros / pairs,
			Requests:   usage.Requests / pairs,
		}, nil
	}
}

// turns measures what a pair costs the server on names that processes take in turns, strictly one after the
// other, beside the first pair of a name. A process takes many names at a time, in large pipelines.
func turns(mode Mode) func(context.Context, *Env) (Metrics, error) {
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
		sweep := func(w *worker, from int) (Usage, error) {
			return e.usage(ctx, func() error {
				_, err := w.do(job{Goroutines: 256, From: from, To: from + names, Mode: mode})
				return err
			})
		}
		// The names from 0 on are taken in turns. Each process has had them before the first turn that
		// counts.
		for _, w := range all {
			if _, err := sweep(w, 0); err != nil {
				return nil, err
			}
		}
		var first, again Usage
		unused := names
		for round := range rounds {
			for _, w := range all {
				// What a process does first after a pause comes in smaller pipelines, so that does not count.
				if _, err := sweep(w, unused); err != nil {
					return nil, err
				}
				unused += names
				for i := range 2 {
					from, total := 0, &again
					if i == round%2 { // once before the turn, once after it
						from, total = unused, &first
						unused += names
					}
					u, err := sweep(w, from)
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
