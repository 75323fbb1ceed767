package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

var ours = &Contender{
	Name:     "rwlock",
	About:    "this library: a reentrant read-write lock with a fair queue, per-hold leases that renew themselves, and fencing tokens",
	Commands: []string{"evalsha"},
	Reads:    true,
	Open: func(_ context.Context, o Options) (Locker, error) {
		client, closeClient, err := o.client()
		if err != nil {
			return nil, err
		}
		return openOurs(client, o.Lease, closeClient)
	},
}

// openOurs opens ours with a logger that drops what it is told: one workload loses its holds on purpose.
func openOurs(client redis.UniversalClient, lease time.Duration, closeClient func() error) (Locker, error) {
	rw, err := rwlock.New(client, rwlock.WithLease(lease), rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening rwlock: %w", err), closeClient())
	}
	return &ourLocker{rw: rw, close: closeClient}, nil
}

type ourLocker struct {
	rw    *rwlock.RWLock
	close func() error
}

func (l *ourLocker) Lock(ctx context.Context, name string) (Hold, error) { return l.rw.Lock(ctx, name) }

func (l *ourLocker) RLock(ctx context.Context, name string) (Hold, error) {
	return l.rw.RLock(ctx, name)
}

func (l *ourLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	h, err := l.rw.TryLock(ctx, name)
	if errors.Is(err, rwlock.ErrLocked) {
		return nil, errHeld
	}
	return h, err
}

func (l *ourLocker) Close() error { return errors.Join(l.rw.Close(), l.close()) }
