package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

var redsyncContender = &Contender{
	Name:     "redsync",
	About:    "github.com/go-redsync/redsync: a mutex that polls, every 50 to 250 ms by default, on one server here",
	Commands: []string{"set", "evalsha"},
	Polls:    true,
	Open: func(_ context.Context, o Options) (Locker, error) {
		client, closeClient, err := o.client()
		if err != nil {
			return nil, err
		}
		return &redsyncLocker{redsync: redsync.New(goredis.NewPool(client)), lease: o.Lease, close: closeClient}, nil
	},
}

type redsyncLocker struct {
	mutex
	redsync *redsync.Redsync
	lease   time.Duration
	close   func() error
}

type redsyncHold struct{ *redsync.Mutex }

func (h redsyncHold) Unlock(ctx context.Context) error {
	_, err := h.UnlockContext(ctx)
	return err
}

func (l *redsyncLocker) Lock(ctx context.Context, name string) (Hold, error) {
	m := l.redsync.NewMutex(name, redsync.WithExpiry(l.lease), redsync.WithTries(math.MaxInt))
	return redsyncHold{m}, m.LockContext(ctx)
}

func (l *redsyncLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	m := l.redsync.NewMutex(name, redsync.WithExpiry(l.lease))
	err := m.TryLockContext(ctx)
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
		return nil, errHeld
	}
	return redsyncHold{m}, err
}

func (l *redsyncLocker) Close() error { return l.close() }
