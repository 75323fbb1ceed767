package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// queued measures what a handover costs the server, the release that hands over and the request that queues
// up again, when the requests of many locks arrive in one pipeline. Each lock has always the same number of
// waiters. The bare mutex, which has no queue, is the yardstick: its pairs are of as many names as a pipeline
// has requests.
func queued(ctx context.Context, e *Env) (_ Metrics, err error) {
	const locks = 32
	rounds := e.rounds(80)
	if e.Contender == bare {
		recorded, err := recordRounds(ctx, e, Write, rounds/2, 2*locks, false)
		if err != nil {
			return nil, err
		}
		return replay(ctx, e, recorded, 2)
	}
	recorded, channels, err := recordHandovers(ctx, e, rounds, locks, e.Param)
	if err != nil {
		return nil, err
	}
	// The server publishes to someone.
	client := redis.NewClient(&redis.Options{Addr: e.Server.Addr()})
	defer func() { err = errors.Join(err, client.Close()) }()
	listener := client.Subscribe(ctx, channels...)
	defer func() { err = errors.Join(err, listener.Close()) }()
	for range channels {
		if _, err := listener.Receive(ctx); err != nil {
			return nil, fmt.Errorf("subscribing: %w", err)
		}
	}
	listener.Channel()
	return replay(ctx, e, recorded, 2)
}

// recordHandovers has the contender hand over a number of locks, each with as many waiters, a number of
// times. It returns what is sent for that, in one pipeline for the setup and one for each time that all are
// handed over, and the channels that it listens on.
func recordHandovers(ctx context.Context, e *Env, rounds, locks, waiters int) (pipelines [][]*sent,
	channels []string, err error) {
	t := &tape{names: e.Contender.Commands}
	l, err := e.Open(ctx, func(o *Options) { o.Hook = t })
	if err != nil {
		return nil, nil, err
	}
	defer closing(l, &err)
	var calls errgroup.Group
	defer func() { err = errors.Join(err, calls.Wait()) }()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()

	granted := make([]chan Hold, locks+1)
	for g := range granted {
		granted[g] = make(chan Hold, waiters+1)
	}
	// queueUp begins a call, and returns when the server has answered its request. One is on its way at a
	// time: what is recorded is in the order in which it ran.
	queueUp := func(g int) error {
		n := t.count() + 1
		calls.Go(func() error {
			h, err := l.Lock(waiting, nameOf(g))
			if err == nil {
				granted[g] <- h
			} else if waiting.Err() == nil {
				return err
			}
			return nil
		})
		return t.wait(ctx, n)
	}
	next := func(g int) (h Hold, err error) {
		select {
		case h = <-granted[g]:
		case <-ctx.Done():
			err = ctx.Err()
		}
		return h, err
	}

	if err := pair(ctx, l.Lock, "loads the scripts")(); err != nil {
		return nil, nil, err
	}
	// A waiter that stays keeps the subscription open. It asks again once that stands.
	t.take()
	if err := errors.Join(queueUp(locks), queueUp(locks), t.wait(ctx, 3)); err != nil {
		return nil, nil, err
	}
	if channels, err = e.Server.client.PubSubChannels(ctx, "*").Result(); err != nil {
		return nil, nil, fmt.Errorf("asking for the channels: %w", err)
	}
	t.take()

	holds := make([]Hold, locks)
	for g := range holds {
		for range 1 + waiters {
			if err := queueUp(g); err != nil {
				return nil, nil, err
			}
		}
		if holds[g], err = next(g); err != nil {
			return nil, nil, err
		}
	}
	pipelines = append(pipelines, t.take())
	for range rounds {
		for g := range holds {
			if err := holds[g].Unlock(ctx); err != nil {
				return nil, nil, err
			}
			if holds[g], err = next(g); err != nil {
				return nil, nil, err
			}
			if err := queueUp(g); err != nil {
				return nil, nil, err
			}
		}
		pipelines = append(pipelines, t.take())
	}
	return pipelines, channels, nil
}
