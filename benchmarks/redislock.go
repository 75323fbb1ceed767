package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

// pollInterval is how often the contenders that poll at a fixed rate ask again. None of them has a default.
const pollInterval = 10 * time.Millisecond

var redislockContender = &Contender{
	Name:     "redislock",
	About:    "github.com/bsm/redislock: a mutex that polls, every 10 ms here",
	Commands: []string{"evalsha"},
	Polls:    true,
	Open: func(_ context.Context, o Options) (Locker, error) {
		client, closeClient, err := o.client()
		if err != nil {
			return nil, err
		}
		return &redislockLocker{client: redislock.New(client), lease: o.Lease, close: closeClient}, nil
	},
}

type redislockLocker struct {
	mutex
	client *redislock.Client
	lease  time.Duration
	close  func() error
}

type redislockHold struct{ *redislock.Lock }

func (h redislockHold) Unlock(ctx context.Context) error { return h.Release(ctx) }

var redislockPolls = &redislock.Options{RetryStrategy: redislock.LinearBackoff(pollInterval)}

func (l *redislockLocker) Lock(ctx context.Context, name string) (Hold, error) {
	h, err := l.client.Obtain(ctx, name, l.lease, redislockPolls)
	return redislockHold{h}, err
}

func (l *redislockLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	h, err := l.client.Obtain(ctx, name, l.lease, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errHeld
	}
	return redislockHold{h}, err
}

func (l *redislockLocker) Close() error { return l.close() }
