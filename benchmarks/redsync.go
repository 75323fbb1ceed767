package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var redsyncContender = &Contender{
	Name:     "redsync",
	About:    "github.com/go-redsync/redsync: a mutex that polls, every 50 to 250 ms by default, on one server here",
	Commands: []string{"set", "evalsha"},
	Polls:    true,
	Over:     openRedsync,
}

func openRedsync(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
	var pools []redsyncredis.Pool
	for _, client := range clients {
		pools = append(pools, goredis.NewPool(client))
	}
	return &redsyncLocker{redsync: redsync.New(pools...), lease: o.Lease}, nil
}

type redsyncLocker struct {
	mutex
	noClose
	redsync *redsync.Redsync
	lease   time.Duration
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
