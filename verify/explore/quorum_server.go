package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	library "github.com/seed-7e8842f7/rwlock/lua"
)

// A store is what one server of a quorum has. Stores are equal only if they are the same.
type store struct {
	id   int
	text string // names the keys and what they have
	keys map[string]entry
}

// An entry is a key's value.
type entry struct {
	hash map[string]string
	set  map[string]float64
	end  int64 // µs of the server's clock; 0 for never
}

// An answer is what a run of a script on a store comes to.
type answer struct {
	store     *store
	reply     any
	published [][2]string
	err       error
}

// A rack runs requests on stores, and remembers all runs.
type rack struct {
	plain  bool // nothing is normalized, and all is done again
	redis  *redisServer
	stores map[string]*store
	runs   map[string]*answer
}

// quorumScripts returns the scripts that a quorum uses.
func quorumScripts() scripts {
	all := embedded()
	for _, s := range library.Quorum {
		all[s.Name] = s.Source
	}
	return all
}

func newRack(sources scripts) (*rack, error) {
	redis, err := newRedisServer(sources)
	return &rack{redis: redis, stores: map[string]*store{}, runs: map[string]*answer{}}, err
}

// intern returns the one store that has these keys.
func (k *rack) intern(keys map[string]entry) *store {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		e := keys[name]
		fmt.Fprintf(&b, "%s %d", name, e.end)
		for _, f := range slices.Sorted(maps.Keys(e.hash)) {
			fmt.Fprintf(&b, " %q=%q", f, e.hash[f])
		}
		for _, m := range slices.Sorted(maps.Keys(e.set)) {
			fmt.Fprintf(&b, " %q:%s", m, strconv.FormatFloat(e.set[m], 'f', -1, 64))
		}
		b.WriteByte('\n')
	}
	key := b.String()
	if s, ok := k.stores[key]; ok {
		return s
	}
	s := &store{id: len(k.stores), text: key, keys: keys}
	k.stores[key] = s
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
	if a, ok := k.runs[key]; ok && !k.plain {
		return a
	}
	keys, _ := strconv.Atoi(texts[0])
	a := k.execute(s, r.Script.Name, texts[1:1+keys], texts[1+keys:], at.UnixMicro())
	k.runs[key] = a
	return a
}

func (k *rack) execute(s *store, script string, keys, argv []string, at int64) *answer {
	m := k.redis.Mini
	m.FlushAll()
	m.SetTime(time.UnixMicro(at))
	for name, e := range s.keys {
		if e.end != 0 && e.end <= at {
			continue
		}
		for f, v := range e.hash {
			m.HSet(name, f, v)
		}
		for member, score := range e.set {
			_, _ = m.ZAdd(name, score, member)
		}
		if e.end != 0 {
			m.SetTTL(name, time.Duration(e.end-at)*time.Microsecond)
		}
	}
	reply, err := k.redis.run(script, keys, argv)
	if err != nil {
		return &answer{err: err}
	}
	after := map[string]entry{}
	for _, name := range m.Keys() {
		var e entry
		if m.Type(name) == "zset" {
			e.set, _ = m.SortedSet(name)
		} else {
			fields, _ := m.HKeys(name)
			e.hash = map[string]string{}
			for _, f := range fields {
				e.hash[f] = m.HGet(name, f)
			}
		}
		switch ttl := m.TTL(name); {
		case ttl > 0:
			e.end = at + ttl.Microseconds()
		case name != protocol.MarkOf(prefix):
			return &answer{err: fmt.Errorf("%s.lua leaves %s without a time to live", script, name)}
		}
		after[name] = e
	}
	return &answer{store: k.intern(after), reply: reply, published: k.redis.Published}
}
