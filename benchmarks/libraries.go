package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/seed-7e8842f7/rwlock"
)

var ours = &Contender{
	Name:     "rwlock",
	About:    "this library: a reentrant read-write lock with a fair queue, per-hold leases that renew themselves, and fencing tokens",
	Commands: []string{"evalsha"},
	Reads:    true,
	Over:     openOurs(),
}

// delegated is ours where locks stay with the process that uses them.
var delegated = func() *Contender {
	c := variant(ours, "rwlock, delegated", "with `WithDelegation(3*time.Second)`")
	c.Over = openOurs(rwlock.WithDelegation(3 * time.Second))
	return c
}()

// variant returns a copy of a contender, to be opened in another way.
func variant(c *Contender, name, about string) *Contender {
	other := *c
	other.Name, other.About = name, about
	return &other
}

// openOurs opens ours with a logger that drops what it is told: one workload loses its holds on purpose.
func openOurs(more ...rwlock.Option) func(context.Context, []redis.UniversalClient, Options) (Locker, error) {
	return func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		opts := append([]rwlock.Option{rwlock.WithLease(o.Lease), rwlock.WithLogger(slog.New(slog.DiscardHandler))},
			more...)
		if len(clients) > 1 {
			rw, err := rwlock.NewQuorum(clients, opts...)
			return &ourLocker{rw}, err
		}
		rw, err := rwlock.New(clients[0], opts...)
		return &ourLocker{rw}, err
	}
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
