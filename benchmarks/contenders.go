package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

// Contender is one way to lock. To add one, write its Over and list it in contenders.
type Contender struct {
	Name string

	AlsoSends string // a command that its client sends beside EVALSHA
	Polls     bool   // while it waits
	Reads     bool   // knows a read mode; where others read, the mutex of one that does not stands in

	// Over opens it over a go-redis client for each server, or, with Own, over its own.
	Over func(ctx context.Context, clients []redis.UniversalClient, o Options) (Locker, error)
	Own  bool

	User string // as whom its client logs in to a cluster; the password is the same
}

// sends reports whether the client sends a command, as opposed to the scripts that call it.
func (c *Contender) sends(command string) bool { return command == "evalsha" || command == c.AlsoSends }

// contenders are all that take part, in the order of their turns and of the tables. A workload names those it
// is for.
var contenders = []*Contender{ours, delegated, classic, redislock, redsync,
	rueidislock, bare, floor}

// Options say how to open a contender.
type Options struct {
	Addrs   []string // of the servers
	Cluster bool     // they are one
	Lease   time.Duration
	// on go-redis's AutoPipeline in place of its plain client, where the contender uses go-redis. Ours makes its
	// own pipelines
	AutoPipeline bool
	Connections  int        // if set, how many go-redis opens at the start, and no more than them
	Hook         redis.Hook // if set, the first go-redis client has it
}

// Locker is an opened contender. What makes a library one adds no allocation to what is measured.
type Locker struct {
	Lock, RLock lockFunc       // without a read mode, the same
	rw          *rwlock.RWLock // where the contender is ours
	close       func() error
	clients     []redis.UniversalClient
}

// A lockFunc waits for a lock.
type lockFunc = func(ctx context.Context, name string) (Hold, error)

// Hold is a lock taken.
type Hold interface {
	Unlock(ctx context.Context) error
}

// Mode is how a lock is taken.
type Mode string

const (
	Read  Mode = "read"
	Write Mode = "write"
)

// in returns what waits for a lock in mode.
func (l *Locker) in(mode Mode) lockFunc {
	if mode == Read {
		return l.RLock
	}
	return l.Lock
}

// Open opens c with go-redis clients that have default settings beside what o asks for.
func (c *Contender) Open(ctx context.Context, o Options) (l *Locker, err error) {
	var clients []redis.UniversalClient
	switch {
	case c.Own:
	case o.Cluster:
		clients = append(clients, redis.NewClusterClient(&redis.ClusterOptions{Addrs: o.Addrs,
			Username: c.User, Password: c.User}))
	default:
		for _, addr := range o.Addrs {
			clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, PoolSize: o.Connections,
				MinIdleConns: o.Connections}))
		}
		if o.Hook != nil {
			clients[0].AddHook(o.Hook)
		}
	}
	over := slices.Clone(clients)
	for i, client := range over {
		if plain, ok := client.(*redis.Client); ok && o.AutoPipeline && c != ours && err == nil {
			over[i], err = plain.AutoPipeline()
		}
	}
	l = &Locker{}
	if err == nil {
		*l, err = c.Over(ctx, over, o)
	}
	l.clients = clients
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", c.Name, err), l.Close())
	}
	if !c.Reads {
		l.RLock = l.Lock
	}
	return l, nil
}

// Close closes a contender and its clients.
func (l *Locker) Close() (err error) {
	if l.close != nil {
		err = l.close()
	}
	for _, client := range l.clients {
		err = errors.Join(err, client.Close())
	}
	return err
}
