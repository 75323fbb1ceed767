package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// floor is what no lock of two scripts can undercut: it sends the very keys and arguments that ours sends for
// an uncontended pair, made beforehand, to a script that does nothing.
var floor = &Contender{
	Name:  "floor",
	Reads: true,
	Over:  openFloor,
}

// openFloor opens the floor, over one server or several.
func openFloor(ctx context.Context, clients []redis.UniversalClient, o Options) (_ Locker, err error) {
	var sha string
	for _, client := range clients {
		if sha, err = client.ScriptLoad(ctx, `return 1`).Result(); err != nil {
			return Locker{}, fmt.Errorf("loading the floor's script: %w", err)
		}
	}
	t := &tape{sends: ours.sends}
	recorded, err := ours.Open(ctx, Options{Addrs: o.Addrs, Lease: o.Lease, Hook: t})
	if err != nil {
		return Locker{}, err
	}
	defer func() { err = errors.Join(err, recorded.Close()) }()
	shape := func(mode Mode) lockFunc {
		h := &floorHold{clients: clients, sha: sha}
		if err == nil {
			h.acquire, h.release, err = recordPair(ctx, t, recorded.in(mode), fmt.Sprintf("name, %v", mode))
		}
		return func(ctx context.Context, _ string) (Hold, error) { return h, h.send(ctx, h.acquire) }
	}
	return Locker{Lock: shape(Write), RLock: shape(Read)}, err
}

// floorHold is what the floor sends for one pair.
type floorHold struct {
	clients          []redis.UniversalClient
	sha              string
	acquire, release script
}

// script is what one EVALSHA carries beside the script itself.
type script struct {
	keys []string
	args []any
}

func (h *floorHold) Unlock(ctx context.Context) error { return h.send(ctx, h.release) }

// send sends the same to every server at the same time, to the first from the caller's own goroutine.
func (h *floorHold) send(ctx context.Context, s script) error {
	if len(h.clients) == 1 {
		return h.clients[0].EvalSha(ctx, h.sha, s.keys, s.args...).Err()
	}
	var group errgroup.Group
	for _, client := range h.clients[1:] {
		group.Go(func() error { return client.EvalSha(ctx, h.sha, s.keys, s.args...).Err() })
	}
	err := h.clients[0].EvalSha(ctx, h.sha, s.keys, s.args...).Err()
	return errors.Join(err, group.Wait())
}

// recordPair returns what is sent for a pair on a name that was used before, to the only server or to the
// first of several.
func recordPair(ctx context.Context, t *tape, lock lockFunc, name string) (_, _ script, err error) {
	for pairs, tries := 0, 0; tries < 5; tries++ { // a server that is slow to answer is passed over
		t.take()
		if err := pair(ctx, lock, name); err != nil {
			return script{}, script{}, err
		}
		// To one of several servers the last may be on its way still.
		limit, cancel := context.WithTimeout(ctx, time.Second)
		err = t.wait(limit, 2)
		cancel()
		if err == nil {
			pairs++
		}
		if pairs == 2 {
			sent := t.take()
			return scriptOf(sent[0]), scriptOf(sent[len(sent)-1]), nil
		}
	}
	return script{}, script{}, fmt.Errorf("recording a pair: %w", err)
}

// scriptOf returns the keys and arguments of an EVALSHA.
func scriptOf(evalsha sent) (s script) {
	n, _ := strconv.Atoi(evalsha.args[2].(string))
	for _, key := range evalsha.args[3 : 3+n] {
		s.keys = append(s.keys, key.(string))
	}
	s.args = evalsha.args[3+n:]
	return s
}
