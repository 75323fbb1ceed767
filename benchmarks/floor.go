package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// bare is the least that is called a lock: SET NX PX, and a deletion if the value is still one's own.
var bare = &Contender{
	Name:     "bare",
	About:    "SET NX PX and compare-and-delete, each run as a script; where others read, it takes the same mutex",
	Commands: []string{"evalsha"},
	Polls:    true,
	Open: func(_ context.Context, o Options) (Locker, error) {
		client, closeClient, err := o.client()
		if err != nil {
			return nil, err
		}
		return &bareLocker{client: client, lease: o.Lease.Milliseconds(), close: closeClient}, nil
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

type bareLocker struct {
	client redis.UniversalClient
	lease  int64
	owners atomic.Int64
	close  func() error
}

type bareHold struct {
	client redis.UniversalClient
	keys   []string
	owner  string
}

func (l *bareLocker) Lock(ctx context.Context, name string) (Hold, error) {
	return poll(ctx, pollInterval, func() (Hold, error) { return l.TryLock(ctx, name) })
}

func (l *bareLocker) RLock(ctx context.Context, name string) (Hold, error) {
	return l.Lock(ctx, name)
}

func (l *bareLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	h := &bareHold{client: l.client, keys: []string{name}, owner: "owner:" + strconv.FormatInt(l.owners.Add(1), 10)}
	switch n, err := bareLock.Run(ctx, l.client, h.keys, h.owner, l.lease).Int(); {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, errHeld
	}
	return h, nil
}

func (h *bareHold) Unlock(ctx context.Context) error {
	switch n, err := bareUnlock.Run(ctx, h.client, h.keys, h.owner).Int(); {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("unlocking %q: not held any more", h.keys[0])
	}
	return nil
}

func (l *bareLocker) Close() error { return l.close() }

// floor is what no lock of two scripts can undercut: it sends the very keys and arguments that ours sends for
// an uncontended pair, made beforehand, to a script that does nothing.
var floor = &Contender{
	Name:     "floor",
	About:    "two EVALSHA of `return 1` with the same KEYS and ARGV as ours; excludes nobody",
	Commands: []string{"evalsha"},
	Reads:    true,
	Open: func(ctx context.Context, o Options) (Locker, error) {
		client, closeClient, err := o.client()
		if err != nil {
			return nil, err
		}
		l, err := newFloor(ctx, client, o.Floor)
		if err != nil {
			return nil, errors.Join(err, closeClient())
		}
		l.close = closeClient
		return l, nil
	},
}

// newFloor returns the floor over one server.
func newFloor(ctx context.Context, client redis.UniversalClient, shapes map[Mode]pairShape) (l *floorLocker, err error) {
	l = &floorLocker{client: client}
	l.read, l.write = &floorHold{l, shapes[Read]}, &floorHold{l, shapes[Write]}
	if l.sha, err = client.ScriptLoad(ctx, `return 1`).Result(); err != nil {
		return nil, fmt.Errorf("loading the floor's script: %w", err)
	}
	return l, nil
}

type floorLocker struct {
	client      redis.UniversalClient
	sha         string
	read, write *floorHold
	close       func() error
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
func (l *floorLocker) Close() error                                      { return l.close() }

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
	clients, closeClients := Options{Addrs: addrs}.clients()
	t := newTape("evalsha")
	clients[0].AddHook(t)
	var l Locker
	if len(clients) == 1 {
		l, err = openOurs(clients[0], usualLease, closeClients)
	} else {
		l, err = openQuorum(clients, usualLease, closeClients)
	}
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
