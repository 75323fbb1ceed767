package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

var ours = &Contender{
	Name:     "rwlock",
	About:    "this library: a reentrant read-write lock with a fair queue, per-hold leases that renew themselves, and fencing tokens",
	Commands: []string{"evalsha"},
	Reads:    true,
	Over:     openOurs,
}

// openOurs opens ours with a logger that drops what it is told: one workload loses its holds on purpose.
func openOurs(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
	opts := []rwlock.Option{rwlock.WithLease(o.Lease), rwlock.WithLogger(slog.New(slog.DiscardHandler))}
	if len(clients) > 1 {
		rw, err := rwlock.NewQuorum(clients, opts...)
		return &ourLocker{rw}, err
	}
	rw, err := rwlock.New(clients[0], opts...)
	return &ourLocker{rw}, err
}

type ourLocker struct{ rw *rwlock.RWLock }

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

func (l *ourLocker) Close() error { return l.rw.Close() }
