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
func (l *scriptedLocker) try(ctx context.Context, name string, lock, unlock *redis.Script) func() (Hold,
	error) {
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

// floor is what no lock of two scripts can undercut: it sends the very keys and arguments that ours sends for
// an uncontended pair, made beforehand, to a script that does nothing.
var floor = &Contender{
	Name:     "floor",
	About:    "two EVALSHA of `return 1` with the same KEYS and ARGV as ours; excludes nobody",
	Commands: []string{"evalsha"},
	Reads:    true,
	Over:     openFloor,
}

// openFloor opens the floor, over one server or several.
func openFloor(ctx context.Context, clients []redis.UniversalClient, o Options) (Locker, error) {
	each := make([]*floorLocker, len(clients))
	for i, client := range clients {
		l := &floorLocker{client: client}
		l.read, l.write = &floorHold{l, o.Floor[Read]}, &floorHold{l, o.Floor[Write]}
		var err error
		if l.sha, err = client.ScriptLoad(ctx, `return 1`).Result(); err != nil {
			return nil, fmt.Errorf("loading the floor's script: %w", err)
		}
		each[i] = l
	}
	if len(each) > 1 {
		return &manyFloor{each: each}, nil
	}
	return each[0], nil
}

type floorLocker struct {
	noClose
	client      redis.UniversalClient
	sha         string
	read, write *floorHold
}

type floorHold struct {
	*floorLocker
	pairShape
}

func (l *floorLocker) Lock(ctx context.Context, _ string) (Hold, error) { return l.write.lock(ctx) }
func (l *floorLocker) TryLock(ctx context.Context, _ string) (Hold, error) {
	return l.write.tryLock(ctx)
}
func (l *floorLocker) RLock(ctx context.Context, _ string) (Hold, error) { return l.read.lock(ctx) }

func (l *floorLocker) hold(mode Mode) *floorHold {
	if mode == Read {
		return l.read
	}
	return l.write
}

func (h *floorHold) lock(ctx context.Context) (Hold, error) {
	return h, h.client.EvalSha(ctx, h.sha, h.acquire.keys, h.acquire.args...).Err()
}

func (h *floorHold) tryLock(ctx context.Context) (Hold, error) {
	if _, err := h.lock(ctx); err != nil {
		return nil, err
	}
	return nil, errHeld
}

func (h *floorHold) Unlock(ctx context.Context) error {
	return h.client.EvalSha(ctx, h.sha, h.release.keys, h.release.args...).Err()
}

// pairShape is what a contender sends for one uncontended pair.
type pairShape struct {
	acquire, release script
}

// script is what one EVALSHA carries beside the script itself.
type script struct {
	keys []string
	args []any
}

func (s script) String() string { return fmt.Sprintf("%d KEYS and %d ARGV", len(s.keys), len(s.args)) }

// scriptOf returns the keys and arguments of an EVALSHA.
func scriptOf(evalsha *sent) (script, error) {
	if len(evalsha.args) < 3 {
		return script{}, fmt.Errorf("recording: %v is no script", evalsha.args)
	}
	numKeys, err := strconv.Atoi(fmt.Sprint(evalsha.args[2]))
	if err != nil || numKeys < 0 || 3+numKeys > len(evalsha.args) {
		return script{}, fmt.Errorf("recording: %v is no script", evalsha.args)
	}
	s := script{args: evalsha.args[3+numKeys:]}
	for _, key := range evalsha.args[3 : 3+numKeys] {
		s.keys = append(s.keys, fmt.Sprint(key))
	}
	return s, nil
}

// shapes are what ours sends for one pair of each mode: for a name's first pair, and for the next one.
type shapes struct{ first, again map[Mode]pairShape }

// recordPairs returns what ours sends to one server, or to the first of several.
func recordPairs(ctx context.Context, addrs ...string) (all shapes, err error) {
	t := newTape("evalsha")
	l, err := ours.Open(ctx, Options{Addrs: addrs, Lease: usualLease, Hook: t})
	if err != nil {
		return all, err
	}
	defer func() {
		if closed := l.Close(); err == nil && closed != nil {
			err = fmt.Errorf("closing after the recording: %w", closed)
		}
	}()
	record := func(mode Mode, name string) (pairShape, error) {
		t.take()
		h, err := lockIn(l, mode)(ctx, name)
		if err == nil {
			err = h.Unlock(ctx)
		}
		if err != nil {
			return pairShape{}, fmt.Errorf("recording a %s pair: %w", mode, err)
		}
		// To one of several servers the last may be on its way still.
		for deadline := time.Now().Add(time.Second); t.count() < 2 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		scripts := t.take()
		if len(scripts) < 2 {
			return pairShape{}, fmt.Errorf("recording a %s pair: the client sent %d scripts", mode, len(scripts))
		}
		acquire, err := scriptOf(scripts[0])
		if err != nil {
			return pairShape{}, err
		}
		release, err := scriptOf(scripts[len(scripts)-1])
		return pairShape{acquire, release}, err
	}
	all = shapes{map[Mode]pairShape{}, map[Mode]pairShape{}}
	for _, mode := range []Mode{Write, Read} {
		if _, err = record(mode, fmt.Sprintf("loads the scripts, %v", mode)); err != nil {
			return all, err
		}
		name := fmt.Sprintf("name, %v", mode)
		if all.first[mode], err = record(mode, name); err != nil {
			return all, err
		}
		if all.again[mode], err = record(mode, name); err != nil {
			return all, err
		}
	}
	return all, nil
}
