package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
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
	l := &floorLocker{clients: clients}
	l.read, l.write = &floorHold{l, o.Floor[Read]}, &floorHold{l, o.Floor[Write]}
	for _, client := range clients {
		var err error
		if l.sha, err = client.ScriptLoad(ctx, `return 1`).Result(); err != nil {
			return nil, fmt.Errorf("loading the floor's script: %w", err)
		}
	}
	return l, nil
}

type floorLocker struct {
	noClose
	clients     []redis.UniversalClient
	sha         string
	read, write *floorHold
}

type floorHold struct {
	*floorLocker
	pairShape
}

func (l *floorLocker) Lock(ctx context.Context, _ string) (Hold, error) {
	return l.write, l.send(ctx, l.write.acquire)
}

func (l *floorLocker) RLock(ctx context.Context, _ string) (Hold, error) {
	return l.read, l.send(ctx, l.read.acquire)
}

func (l *floorLocker) TryLock(ctx context.Context, _ string) (Hold, error) {
	if err := l.send(ctx, l.write.acquire); err != nil {
		return nil, err
	}
	return nil, errHeld
}

func (h *floorHold) Unlock(ctx context.Context) error { return h.send(ctx, h.release) }

// send sends the same to every server at the same time, to the first from the caller's own goroutine.
func (l *floorLocker) send(ctx context.Context, s script) error {
	if len(l.clients) == 1 {
		return l.clients[0].EvalSha(ctx, l.sha, s.keys, s.args...).Err()
	}
	var group errgroup.Group
	for _, client := range l.clients[1:] {
		group.Go(func() error { return client.EvalSha(ctx, l.sha, s.keys, s.args...).Err() })
	}
	err := l.clients[0].EvalSha(ctx, l.sha, s.keys, s.args...).Err()
	return errors.Join(err, group.Wait())
}

// pairShape is what a contender sends for one uncontended pair.
type pairShape struct {
	acquire, release script
}

func (s pairShape) String() string { return fmt.Sprintf("%v, then %v", s.acquire, s.release) }

// script is what one EVALSHA carries beside the script itself.
type script struct {
	keys []string
	args []any
}

func (s script) String() string { return fmt.Sprintf("%d KEYS and %d ARGV", len(s.keys), len(s.args)) }

// scriptOf returns the keys and arguments of an EVALSHA.
func scriptOf(evalsha *sent) (s script, err error) {
	keys, err := strconv.Atoi(fmt.Sprint(evalsha.args[2]))
	if err != nil || 3+keys > len(evalsha.args) {
		return s, fmt.Errorf("recording: %v is no script", evalsha.args)
	}
	for _, key := range evalsha.args[3 : 3+keys] {
		s.keys = append(s.keys, fmt.Sprint(key))
	}
	s.args = evalsha.args[3+keys:]
	return s, nil
}

// shapes are what ours sends for one pair of each mode: for a name's first pair, and for the next one.
type shapes struct{ first, again map[Mode]pairShape }

// recordPairs returns what ours sends to one server, or to the first of several.
func recordPairs(ctx context.Context, addrs ...string) (_ shapes, err error) {
	t := &tape{names: []string{"evalsha"}}
	l, err := ours.Open(ctx, Options{Addrs: addrs, Lease: usualLease, Hook: t})
	if err != nil {
		return shapes{}, err
	}
	defer closing(l, &err)
	record := func(mode Mode, name string) (shape pairShape, err error) {
		t.take()
		if err := pair(ctx, lockIn(l, mode), name)(); err != nil {
			return shape, err
		}
		// To one of several servers the last may be on its way still.
		limit, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := t.wait(limit, 2); err != nil {
			return shape, fmt.Errorf("the client sent %d scripts: %w", t.count(), err)
		}
		sent := t.take()
		if shape.acquire, err = scriptOf(sent[0]); err == nil {
			shape.release, err = scriptOf(sent[len(sent)-1])
		}
		return shape, err
	}
	all := shapes{map[Mode]pairShape{}, map[Mode]pairShape{}}
	for _, mode := range []Mode{Write, Read} {
		name := fmt.Sprintf("name, %v", mode)
		_, err := record(mode, "loads the scripts, "+name)
		for _, of := range []map[Mode]pairShape{all.first, all.again} {
			if err == nil {
				of[mode], err = record(mode, name)
			}
		}
		if err != nil {
			return all, fmt.Errorf("recording a %s pair: %w", mode, err)
		}
	}
	return all, nil
}
