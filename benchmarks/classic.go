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
	Over: scripted(scripts{classicLock, classicUnlock, classicRLock, classicRUnlock, func(name string) []string {
		return []string{name + ":writer", name + ":count", name + ":readers"}
	}}),
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
	Name:     "bare",
	About:    "SET NX PX and compare-and-delete, each run as a script; where others read, it takes the same mutex",
	Commands: []string{"evalsha"},
	Polls:    true,
	Over: scripted(scripts{bareLock, bareUnlock, bareLock, bareUnlock, func(name string) []string {
		return []string{name}
	}}),
}

var (
	bareLock = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0`)

	bareUnlock = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
)

// scripts are a lock that is taken and released by one script each; keys are those of a name.
type scripts struct {
	lock, unlock, rlock, runlock *redis.Script
	keys                         func(name string) []string
}

// scripted returns what opens such a lock, which polls while it waits.
func scripted(s scripts) func(context.Context, []redis.UniversalClient, Options) (Locker, error) {
	return func(_ context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
		return &scriptedLocker{scripts: s, client: clients[0], lease: o.Lease.Milliseconds()}, nil
	}
}

type scriptedLocker struct {
	scripts
	noClose
	client redis.UniversalClient
	lease  int64
	owners atomic.Int64
}

type scriptedHold struct {
	client redis.UniversalClient
	unlock *redis.Script
	keys   []string
	owner  string
}

func (l *scriptedLocker) Lock(ctx context.Context, name string) (Hold, error) {
	return poll(ctx, pollInterval, l.try(ctx, name, l.lock, l.unlock))
}

func (l *scriptedLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	return l.try(ctx, name, l.lock, l.unlock)()
}

func (l *scriptedLocker) RLock(ctx context.Context, name string) (Hold, error) {
	return poll(ctx, pollInterval, l.try(ctx, name, l.rlock, l.runlock))
}

// try returns what asks for the lock once, always for the same new owner.
func (l *scriptedLocker) try(ctx context.Context, name string, lock, unlock *redis.Script) func() (Hold, error) {
	h := &scriptedHold{
		client: l.client, unlock: unlock, keys: l.keys(name),
		owner: "owner:" + strconv.FormatInt(l.owners.Add(1), 10),
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

func (h *scriptedHold) Unlock(ctx context.Context) error {
	switch n, err := h.unlock.Run(ctx, h.client, h.keys, h.owner).Int(); {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("unlocking %q: not held any more", h.keys[0])
	}
	return nil
}
