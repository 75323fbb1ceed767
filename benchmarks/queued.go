package main

import (
	"context"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// queued measures what a handover costs the server, the release that hands over and the request that queues
// up again, when the requests of many locks arrive in one pipeline. Each lock has always the same number of
// waiters. The bare mutex, which has no queue, is the yardstick: its pairs are of as many names as a pipeline
// has requests.
func queued(ctx context.Context, e *Env) Metrics {
	const locks = 32
	rounds := e.rounds(80)
	if e.Contender == bare {
		return e.replay(ctx, e.recordRounds(ctx, Write, rounds/2, 2*locks, false))
	}
	recorded, channels := e.recordHandovers(ctx, rounds, locks, e.Param)
	// The server publishes to someone.
	listener := testredis.NewClient(e.T, e.Server.Addr()).Subscribe(ctx, channels...)
	defer listener.Close()
	for range channels {
		_, err := listener.Receive(ctx)
		require.NoError(e, err, "subscribing")
	}
	listener.Channel()
	return e.replay(ctx, recorded)
}

// recordHandovers has the contender hand over a number of locks, each with as many waiters, a number of
// times. It returns what is sent for that, in one pipeline for the setup and one for each time that all are
// handed over, and the channels that it listens on.
func (e *Env) recordHandovers(ctx context.Context, rounds, locks, waiters int) (pipelines [][]sent,
	channels []string) {
	l, t := e.record(ctx)
	defer e.closing(l)
	var calls errgroup.Group
	waiting, cancel := context.WithCancel(ctx)
	granted := make([]chan Hold, locks+1)
	for g := range granted {
		granted[g] = make(chan Hold, waiters+1)
	}
	// queueUp begins a call, and returns when the server has answered its request. One is on its way at a
	// time: what is recorded is in the order in which it ran.
	queueUp := func(g int) {
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
		require.NoError(e, t.wait(ctx, n))
	}
	next := func(g int) (h Hold) {
		select {
		case h = <-granted[g]:
		case <-ctx.Done():
			e.FailNow() // the turn says why
		}
		return h
	}

	// A waiter that stays keeps the subscription open. It asks again once that stands.
	queueUp(locks)
	queueUp(locks)
	require.NoError(e, t.wait(ctx, 3))
	channels, err := e.Server.client.PubSubChannels(ctx, "*").Result()
	require.NoError(e, err)
	t.take()

	holds := make([]Hold, locks)
	for g := range holds {
		for range 1 + waiters {
			queueUp(g)
		}
		holds[g] = next(g)
	}
	pipelines = append(pipelines, t.take())
	for range rounds {
		for g := range holds {
			require.NoError(e, holds[g].Unlock(ctx))
			holds[g] = next(g)
			queueUp(g)
		}
		pipelines = append(pipelines, t.take())
	}
	cancel()
	require.NoError(e, calls.Wait())
	return pipelines, channels
}
