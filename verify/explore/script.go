package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	library "github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A redisServer runs scripts at a moment at which its clock stands still.
type redisServer struct {
	*script.Server
}

// scripts are the sources by their names.
type scripts map[string]string

// embedded returns the scripts of the library.
func embedded() scripts {
	all := scripts{}
	for _, s := range library.All {
		all[s.Name] = s.Source
	}
	return all
}

// scriptsIn returns the scripts of a directory.
func scriptsIn(dir string) (scripts, error) {
	all := scripts{}
	for _, s := range library.All {
		composed, err := library.Compose(os.DirFS(dir), s.Name)
		if err != nil {
			return nil, err
		}
		all[s.Name] = composed.Source
	}
	return all, nil
}

func newRedisServer(sources scripts) (*redisServer, error) {
	s, err := script.NewServer(sources)
	if err != nil {
		return nil, err
	}
	s.Unlucky = true
	return &redisServer{s}, nil
}

// execute runs a script on what Redis has, and returns what it has then, the reply and what was published.
func (r *redisServer) execute(before *raw, name string, keys, argv []string) (*raw, any, [][2]string, error) {
	m := r.Mini
	m.FlushAll()
	m.SetTime(time.UnixMicro(before.now))
	for f, v := range before.hash {
		m.HSet(keyNames[0], f, v)
	}
	for i, set := range []map[string]float64{before.leases, before.queue} {
		for member, score := range set {
			_, _ = m.ZAdd(keyNames[i+1], score, member)
		}
	}
	for i, ttl := range before.ttl {
		if ttl > 0 && m.Exists(keyNames[i]) {
			m.SetTTL(keyNames[i], time.Duration(ttl)*time.Millisecond)
		}
	}
	reply, err := r.run(name, keys, argv)
	if err != nil {
		return nil, nil, nil, err
	}
	after := &raw{now: before.now, undone: before.undone}
	for _, key := range m.Keys() {
		i := slices.Index(keyNames, key)
		if i < 0 {
			return nil, nil, nil, fmt.Errorf("%s.lua leaves a key that is not the lock's: %s", name, key)
		}
		after.ttl[i] = m.TTL(key).Milliseconds()
		switch i {
		case 0:
			after.hash = map[string]string{}
			fields, err := m.HKeys(key)
			if err != nil {
				return nil, nil, nil, err
			}
			for _, f := range fields {
				after.hash[f] = m.HGet(key, f)
			}
		case 1:
			after.leases, err = m.SortedSet(key)
		case 2:
			after.queue, err = m.SortedSet(key)
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	return after, reply, r.Published, nil
}

// run runs a script on what the server holds.
func (r *redisServer) run(name string, keys, argv []string) (any, error) {
	reply, err := r.Run(name, keys, argv)
	if err != nil {
		return nil, fmt.Errorf("%s.lua fails: %w", name, err)
	}
	return reply, nil
}
