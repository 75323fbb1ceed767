package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// classic is the design that every text book has: the writer's owner and its reentrancy count in two keys,
// the readers' counts in a hash under one lease, and polling. It knows no queue, no fencing token and no
// renewal.
var classic = &Contender{
	Name:     "classic",
	About:    "the plain scripts of the classic read-write lock: owner key, counter, hash of readers; polls every 10 ms",
	Commands: []string{"evalsha"},
	Polls:    true,
	Reads:    true,
	Open: func(_ context.Context, o Options) (Locker, error) {
		client, closeClient, err := o.client()
		if err != nil {
			return nil, err
		}
		return &classicLocker{client: client, lease: o.Lease.Milliseconds(), close: closeClient}, nil
	},
}

// KEYS are writer, count and readers; ARGV are the owner and the lease in ms.
var (
	classicLock = redis.NewScript(`
local writer = redis.call('GET', KEYS[1])
if writer == ARGV[1] then
  redis.call('INCR', KEYS[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return 1
end
if writer or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
return 1`)

	classicUnlock = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('DECR', KEYS[2]) < 1 then redis.call('DEL', KEYS[1], KEYS[2]) end
return 1`)

	classicRLock = redis.NewScript(`
local writer = redis.call('GET', KEYS[1])
if writer and writer ~= ARGV[1] then return 0 end
redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1`)

	classicRUnlock = redis.NewScript(`
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[3], ARGV[1], -1) < 1 then redis.call('HDEL', KEYS[3], ARGV[1]) end
return 1`)
)

type classicLocker struct {
	client redis.UniversalClient
	lease  int64
	owners atomic.Int64
	close  func() error
}

type classicHold struct {
	client redis.UniversalClient
	unlock *redis.Script
	keys   []string
	owner  string
}

func (l *classicLocker) Lock(ctx context.Context, name string) (Hold, error) {
	return poll(ctx, pollInterval, l.try(ctx, name, classicLock, classicUnlock))
}

func (l *classicLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	return l.try(ctx, name, classicLock, classicUnlock)()
}

func (l *classicLocker) RLock(ctx context.Context, name string) (Hold, error) {
	return poll(ctx, pollInterval, l.try(ctx, name, classicRLock, classicRUnlock))
}

// try returns what asks for the lock once, always for the same new owner.
func (l *classicLocker) try(ctx context.Context, name string, lock, unlock *redis.Script) func() (Hold, error) {
	h := &classicHold{
		client: l.client,
		unlock: unlock,
		keys:   []string{name + ":writer", name + ":count", name + ":readers"},
		owner:  "owner:" + strconv.FormatInt(l.owners.Add(1), 10),
	}
	return func() (Hold, error) {
		switch n, err := lock.Run(ctx, l.client, h.keys, h.owner, l.lease).Int(); {
		case err != nil:
			return nil, err
		case n == 0:
			return nil, errHeld
		}
		return h, nil
	}
}

func (h *classicHold) Unlock(ctx context.Context) error {
	switch n, err := h.unlock.Run(ctx, h.client, h.keys, h.owner).Int(); {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("unlocking %q: not held any more", h.keys[0])
	}
	return nil
}

func (l *classicLocker) Close() error { return l.close() }
