package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A store is what one server of a quorum has. Stores are equal only if they are the same.
type store struct {
	id   int
	text string // names the keys and what they have
	keys map[string]entry
}

// An answer is what a run of a script on a store comes to.
type answer struct {
	ranScript
	store *store
	err   error
}

// A rack runs requests on stores, and remembers all runs.
type rack struct {
	forgets bool // all is done again
	redis   redisServer
	stores  map[string]*store
	runs    map[string]*answer
}

func newRack(d *edit, forgets bool) (*rack, error) {
	redis, err := newRedisServer(d)
	return &rack{forgets, redis, map[string]*store{}, map[string]*answer{}}, err
}

// intern returns the one store that has these keys.
func (k *rack) intern(keys map[string]entry) *store {
	text := fmt.Sprintf("%#v", keys)
	s, ok := k.stores[text]
	if !ok {
		s = &store{len(k.stores), text, keys}
		k.stores[text] = s
	}
	return s
}

// run runs a request on a server at a moment of its clock.
func (k *rack) run(s *store, r *protocol.Request, at time.Time) *answer {
	args := r.Argv(nil)
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = a.(string)
	}
	key := fmt.Sprintf("%d %d %s %q", s.id, at.UnixMicro(), r.Script.Name, texts)
	if a, ok := k.runs[key]; ok && !k.forgets {
		return a
	}
	keys, _ := strconv.Atoi(texts[0])
	a := &answer{}
	a.ranScript, a.err = k.redis.execute(s.keys, at.UnixMicro(), r.Script.Name, texts[1:1+keys], texts[1+keys:])
	for name, e := range a.keys {
		if e.end == 0 && name != protocol.MarkOf(prefix) {
			a.err = fmt.Errorf("%s.lua leaves %s without a time to live", r.Script.Name, name)
		}
	}
	a.store = k.intern(a.keys)
	k.runs[key] = a
	return a
}
