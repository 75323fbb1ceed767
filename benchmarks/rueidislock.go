package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var rueidislockContender = &Contender{
	Name: "rueidislock",
	About: "github.com/redis/rueidis/rueidislock: a mutex of one key that waits for client-side caching to tell of a change, " +
		"on a client of its own that always pipelines",
	Commands: []string{"evalsha"},
	Own:      true,
	Over: func(_ context.Context, _ []redis.UniversalClient, o Options) (Locker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: o.Addrs, ForceSingleClient: true},
			KeyValidity:    o.Lease,
			KeyMajority:    1,
			NoLoopTracking: true,
			TryNextAfter:   time.Second, // a busy server may take longer than the default of 20 ms
		})
		if err != nil {
			return nil, fmt.Errorf("opening rueidislock: %w", err)
		}
		return rueidisLocker{locker: l}, nil
	},
}

type rueidisLocker struct {
	mutex
	locker rueidislock.Locker
}

type rueidisHold context.CancelFunc

func (h rueidisHold) Unlock(context.Context) error {
	h()
	return nil
}

func (l rueidisLocker) Lock(ctx context.Context, name string) (Hold, error) {
	_, cancel, err := l.locker.WithContext(ctx, name)
	return rueidisHold(cancel), err
}

func (l rueidisLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	_, cancel, err := l.locker.TryWithContext(ctx, name)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return nil, errHeld
	}
	return rueidisHold(cancel), err
}

func (l rueidisLocker) Close() error {
	l.locker.Close()
	return nil
}
