package main

import (
	"fmt"
	"slices"
	"time"

	library "github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// An entry is a key's value.
type entry struct {
	hash map[string]string
	set  map[string]float64
	end  int64 // µs of the server's clock; 0 for never
}

// A ranScript is what a run of a script comes to.
type ranScript struct {
	keys      map[string]entry // that the server has then
	reply     any
	published [][2]string
}

// A redisServer runs scripts at a moment at which its clock stands still.
type redisServer struct{ *script.Server }

func newRedisServer() (redisServer, error) {
	sources := map[string]string{}
	for _, s := range slices.Concat(library.All, library.Quorum) {
		sources[s.Name] = s.Source
	}
	s, err := script.NewServer(sources)
	if err == nil {
		s.Unlucky = true
	}
	return redisServer{s}, err
}

// execute runs a script on what a server has at a moment of its clock, in µs.
func (r redisServer) execute(before map[string]entry, at int64, name string, keys, argv []string) (
	o ranScript, err error) {
	m := r.Mini
	m.FlushAll()
	m.SetTime(time.UnixMicro(at))
	for key, e := range before {
		if e.end != 0 && e.end <= at {
			continue
		}
		for f, v := range e.hash {
			m.HSet(key, f, v)
		}
		for member, score := range e.set {
			_, _ = m.ZAdd(key, score, member)
		}
		if e.end != 0 {
			m.SetTTL(key, time.Duration(e.end-at)*time.Microsecond)
		}
	}
	if o.reply, err = r.Run(name, keys, argv); err != nil {
		return o, fmt.Errorf("%s.lua fails: %w", name, err)
	}
	o.keys, o.published = map[string]entry{}, r.Published
	for _, key := range m.Keys() {
		var e entry
		if m.Type(key) == "zset" {
			e.set, err = m.SortedSet(key)
		} else {
			var fields []string
			fields, err = m.HKeys(key)
			e.hash = map[string]string{}
			for _, f := range fields {
				e.hash[f] = m.HGet(key, f)
			}
		}
		if err != nil {
			return o, err
		}
		if ttl := m.TTL(key); ttl > 0 {
			e.end = at + ttl.Microseconds()
		}
		o.keys[key] = e
	}
	return o, nil
}
