package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// pollInterval is how often the contenders that poll at a fixed rate ask again. None of them has a default.
const pollInterval = 10 * time.Millisecond

var redislockContender = &Contender{
	Name:     "redislock",
	About:    "github.com/bsm/redislock: a mutex that polls, every 10 ms here",
	Commands: []string{"evalsha"},
	Polls:    true,
	Over: func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		return &redislockLocker{client: redislock.New(clients[0]), lease: o.Lease}, nil
	},
}

type redislockLocker struct {
	mutex
	noClose
	client *redislock.Client
	lease  time.Duration
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
