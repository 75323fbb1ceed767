package main

import (
	"context"
	"log/slog"
	"math"
	"time"

	bsm "github.com/bsm/redislock"
	redsynclib "github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	rueidislocklib "github.com/redis/rueidis/rueidislock"

	"github.com/seed-7e8842f7/rwlock"
)

var (
	ours = ourContender("rwlock")
	// Locks stay with the process that uses them.
	delegated = ourContender("rwlock, delegated", rwlock.WithDelegation(3*time.Second))
)

// ourContender returns this library, with a logger that drops what it is told: one workload loses its holds
// on purpose.
func ourContender(name string, more ...rwlock.Option) *Contender {
	over := func(_ context.Context, clients []redis.UniversalClient, o Options) (_ Locker, err error) {
		opts := append([]rwlock.Option{rwlock.WithLease(o.Lease), rwlock.WithLogger(slog.New(slog.DiscardHandler))},
			more...)
		var rw *rwlock.RWLock
		if len(clients) > 1 {
			rw, err = rwlock.NewQuorum(clients, opts...)
		} else {
			rw, err = rwlock.New(clients[0], opts...)
		}
		if err != nil {
			return Locker{}, err
		}
		return Locker{
			Lock:  func(ctx context.Context, name string) (Hold, error) { return rw.Lock(ctx, name) },
			RLock: func(ctx context.Context, name string) (Hold, error) { return rw.RLock(ctx, name) },
			rw:    rw,
			close: rw.Close,
		}, nil
	}
	return &Contender{Name: name, Reads: true, Over: over}
}

// pollInterval is how often the contenders that poll at a fixed rate ask again. None of them has a default.
const pollInterval = 10 * time.Millisecond

var redislock = &Contender{
	Name:  "redislock",
	Polls: true,
	Over: func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		client := bsm.New(clients[0])
		polls := &bsm.Options{RetryStrategy: bsm.LinearBackoff(pollInterval)}
		return Locker{Lock: func(ctx context.Context, name string) (Hold, error) {
			h, err := client.Obtain(ctx, name, o.Lease, polls)
			return redislockHold{h}, err
		}}, nil
	},
}

type redislockHold struct{ *bsm.Lock }

func (h redislockHold) Unlock(ctx context.Context) error { return h.Release(ctx) }

var redsync = &Contender{
	Name:      "redsync",
	AlsoSends: "set",
	Polls:     true,
	Over: func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		var pools []redsyncredis.Pool
		for _, client := range clients {
			pools = append(pools, goredis.NewPool(client))
		}
		rs := redsynclib.New(pools...)
		return Locker{Lock: func(ctx context.Context, name string) (Hold, error) {
			m := rs.NewMutex(name, redsynclib.WithExpiry(o.Lease), redsynclib.WithTries(math.MaxInt))
			return redsyncHold{m}, m.LockContext(ctx)
		}}, nil
	},
}

type redsyncHold struct{ *redsynclib.Mutex }

func (h redsyncHold) Unlock(ctx context.Context) error {
	_, err := h.UnlockContext(ctx)
	return err
}

var rueidislock = &Contender{
	Name: "rueidislock",
	Own:  true,
	Over: func(_ context.Context, _ []redis.UniversalClient, o Options) (Locker, error) {
		l, err := rueidislocklib.NewLocker(rueidislocklib.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: o.Addrs, ForceSingleClient: true},
			KeyValidity:    o.Lease,
			KeyMajority:    1,
			NoLoopTracking: true,
			TryNextAfter:   time.Second, // a busy server may take longer than the default of 20 ms
		})
		if err != nil {
			return Locker{}, err
		}
		return Locker{
			Lock: func(ctx context.Context, name string) (Hold, error) {
				_, cancel, err := l.WithContext(ctx, name)
				return rueidisHold(cancel), err
			},
			close: func() error { l.Close(); return nil },
		}, nil
	},
}

type rueidisHold context.CancelFunc

func (h rueidisHold) Unlock(context.Context) error {
	h()
	return nil
}
