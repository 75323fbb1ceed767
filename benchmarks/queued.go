package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// queued measures what a handover costs the server, the release that hands over and the request that queues up again, when
// the requests of many locks arrive in one pipeline. Each lock has always the same number of waiters. The bare mutex, which
// has no queue, is the yardstick: its goroutines have a name each.
func queued(ctx context.Context, e *Env) (_ Metrics, err error) {
	const locks = 32
	l, err := e.Open(ctx, func(o *Options) { o.AutoPipeline = true })
	if err != nil {
		return nil, err
	}
	defer closing(l, &err)
	goroutines, name := locks*(e.Param+1), func(g int) string { return names[g%locks] }
	if e.Contender == bare {
		goroutines, name = 2*locks, func(g int) string { return names[g] }
	}
	if err := pair(ctx, l, Write, "loads the scripts")(); err != nil {
		return nil, err
	}
	before, err := e.requests(ctx)
	if err != nil {
		return nil, err
	}

	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		pairs atomic.Int64
		group errgroup.Group
	)
	for g := range goroutines {
		group.Go(func() error {
			for waiting.Err() == nil {
				h, err := l.Lock(waiting, name(g))
				if err != nil {
					if waiting.Err() != nil {
						return nil
					}
					return err
				}
				if err := h.Unlock(ctx); err != nil {
					return err
				}
				pairs.Add(1)
			}
			return nil
		})
	}
	var n int64
	var usage Usage
	err = e.settle(ctx, before+2*float64(goroutines)) // all have queued up
	if err == nil {
		usage, err = e.usage(ctx, func() error {
			n = pairs.Load()
			select {
			case <-ctx.Done():
			case <-time.After(e.span(400 * time.Millisecond)):
			}
			n = pairs.Load() - n
			return ctx.Err()
		})
	}
	cancel()
	if err = errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	return Metrics{
		ServerTime: usage.Micros / float64(n),
		Requests:   usage.Requests / float64(n),
		Calls:      usage.Calls / float64(n),
	}, nil
}
