package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// classic is the design that every text book has: the writer's owner and its reentrancy count in two keys,
// the readers' counts in a hash under one lease, and polling. It knows no queue, no fencing token and no
// renewal.
var classic = &Contender{
	Name:  "classic",
	Polls: true,
	Reads: true,
	Over: func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		keys := func(name string) []string {
			return []string{name + ":writer", name + ":count", name + ":readers"}
		}
		return Locker{
			Lock:  scripted(clients[0], o.Lease, classicLock, classicUnlock, keys),
			RLock: scripted(clients[0], o.Lease, classicRLock, classicRUnlock, keys),
		}, nil
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

// bare is the least that is called a lock: SET NX PX, and a deletion if the value is still one's own.
var bare = &Contender{
	Name:  "bare",
	Polls: true,
	Over: func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		keys := func(name string) []string { return []string{name} }
		return Locker{Lock: scripted(clients[0], o.Lease, bareLock, bareUnlock, keys)}, nil
	},
}

var (
	bareLock = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0`)

	bareUnlock = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
)

// owners counts the owners of the scripted contenders. Each process begins at a number of its own.
var owners atomic.Int64

// scripted returns what takes a lock by one script, and releases it by another. It polls while it waits. Each
// call is of a new owner.
func scripted(client redis.UniversalClient, lease time.Duration, lock, unlock *redis.Script,
	keys func(name string) []string) lockFunc {
	return func(ctx context.Context, name string) (Hold, error) {
		owner, ok := ctx.Value(ownerKey{}).(string)
		if !ok {
			owner = "owner:" + strconv.FormatInt(owners.Add(1), 10)
		}
		h := &scriptedHold{client, unlock, keys(name), owner}
		var ticks <-chan time.Time
		for {
			n, err := lock.Run(ctx, client, h.keys, h.owner, lease.Milliseconds()).Int()
			if err != nil {
				return nil, err
			}
			if n == 1 {
				return h, nil
			}
			if ticks == nil {
				ticks = time.Tick(pollInterval)
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-ticks:
			}
		}
	}
}

type scriptedHold struct {
	client redis.UniversalClient
	unlock *redis.Script
	keys   []string
	owner  string
}

// ownerKey is the context key of the owner that locks again.
type ownerKey struct{}

// Context returns a context with which the owner of the hold locks again.
func (h *scriptedHold) Context() context.Context {
	return context.WithValue(context.Background(), ownerKey{}, h.owner)
}

func (h *scriptedHold) Unlock(ctx context.Context) error {
	switch n, err := h.unlock.Run(ctx, h.client, h.keys, h.owner).Int(); {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("unlocking %q: not held any more", h.keys[0])
	}
	return nil
}
