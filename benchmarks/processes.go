package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// processes measures four processes, of 16 goroutines each, that draw from the same names, or each from as
// many of its own. The parameter says how many percent of the operations read.
func processes(names int, own bool) func(context.Context, *Env) (Metrics, error) {
	return func(ctx context.Context, e *Env) (Metrics, error) {
		all, err := e.startWorkers(ctx, 4, false)
		if err != nil {
			return nil, err
		}
		defer all.Stop()
		draw := func(span time.Duration) ([]done, error) {
			return all.do(func(i int) job {
				j := job{Goroutines: 16, To: names, Reads: e.Param, Span: span}
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
		between, err := e.bytesBetween(ctx)
		if err != nil {
			return nil, err
		}
		var results []done
		usage, err := e.usage(ctx, func() (err error) {
			results, err = draw(span)
			return err
		})
		if err != nil {
			return nil, err
		}
		after, err := e.bytesBetween(ctx)
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
			Between:    (after - between) / pairs,
		}, err
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
	var results []done
	var waits, handovers []time.Duration
	span, fresh := e.span(4*time.Second), newNames()
	usage, err := e.usage(ctx, func() error {
		var group errgroup.Group
		group.Go(func() (err error) {
			results, err = all.do(func(int) job {
				return job{Goroutines: 16, To: 1, Reads: 100, Span: span, Hold: time.Millisecond}
			})
			return err
		})
		group.Go(func() error {
			for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				took, err := handOver(ctx, l, other, fresh(0))
				if err != nil {
					return err
				}
				wait, err := pairWithin(ctx, ctx, l.Lock, workerName(0))
				if err != nil {
					return err
				}
				waits, handovers = append(waits, wait), append(handovers, took)
			}
			return nil
		})
		return group.Wait()
	})
	if err != nil {
		return nil, err
	}
	var pairs float64
	var longest time.Duration
	for _, d := range results {
		pairs += d.Pairs
		longest = max(longest, d.Longest)
	}
	return Metrics{
		WaitP99:     quantile(inMillis(waits), 0.99),
		WaitP50:     median(inMillis(waits)),
		HandoverP99: quantile(inMillis(handovers), 0.99),
		LongestHold: millis(longest),
		Rate:        pairs / span.Seconds(),
		Requests:    usage.Requests / pairs,
	}, nil
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
