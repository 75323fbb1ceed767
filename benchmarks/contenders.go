package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Contender is one way to lock. To add one, write its Over and list it in contenders.
type Contender struct {
	Name  string
	About string // one line for the report

	// Commands are those that its client sends, as opposed to those that its scripts call.
	Commands []string

	Polls bool // while it waits
	Reads bool // knows a read mode; where others read, the mutex of one that does not stands in

	// Over opens it over a go-redis client for each server, or, with Own, over its own.
	Over func(ctx context.Context, clients []redis.UniversalClient, o Options) (Locker, error)
	Own  bool

	User string // as whom its client logs in to a cluster; the password is the same
}

// contenders are all that take part, in the order of their turns and of the tables. A workload names those it
// is for.
var contenders = []*Contender{ours, delegated, classic, redislockContender, redsyncContender,
	rueidislockContender, bare, floor}

// Options say how to open a contender.
type Options struct {
	Addrs   []string // of the servers
	Cluster bool     // they are one
	Lease   time.Duration
	// on go-redis's AutoPipeline in place of its plain client, where the contender uses go-redis
	AutoPipeline bool
	Connections  int        // if set, how many go-redis opens at the start, and no more than them
	Hook         redis.Hook // if set, the first go-redis client has it
	Floor        map[Mode]pairShape
}

// Open opens c with go-redis clients that have default settings beside what o asks for.
func (c *Contender) Open(ctx context.Context, o Options) (_ Locker, err error) {
	var l opened
	switch {
	case c.Own:
	case o.Cluster:
		l.clients = append(l.clients, redis.NewClusterClient(&redis.ClusterOptions{Addrs: o.Addrs,
			Username: c.User, Password: c.User}))
	default:
		for _, addr := range o.Addrs {
			l.clients = append(l.clients, redis.NewClient(&redis.Options{Addr: addr, PoolSize: o.Connections,
				MinIdleConns: o.Connections}))
		}
		if o.Hook != nil {
			l.clients[0].AddHook(o.Hook)
		}
	}
	over := slices.Clone(l.clients)
	for i, client := range over {
		if plain, ok := client.(*redis.Client); ok && o.AutoPipeline && err == nil {
			over[i], err = plain.AutoPipeline()
		}
	}
	if err == nil {
		l.Locker, err = c.Over(ctx, over, o)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", c.Name, err), l.closeClients())
	}
	return &l, nil
}

// opened is a contender with its clients.
type opened struct {
	Locker
	clients []redis.UniversalClient
}

// Close closes both.
func (o *opened) Close() error { return errors.Join(o.Locker.Close(), o.closeClients()) }

func (o *opened) closeClients() (err error) {
	for _, client := range o.clients {
		err = errors.Join(err, client.Close())
	}
	return err
}

// noClose is embedded by contenders that need no closing beside their clients'.
type noClose struct{}

// Close does nothing.
func (noClose) Close() error { return nil }

// Locker is an opened contender. The wrappers that make a library one add no allocation to what is measured.
type Locker interface {
	Lock(ctx context.Context, name string) (Hold, error)
	TryLock(ctx context.Context, name string) (Hold, error) // errHeld at once
	RLock(ctx context.Context, name string) (Hold, error)   // errors.ErrUnsupported without a read mode
	Close() error
}

// Hold is a lock taken.
type Hold interface {
	Unlock(ctx context.Context) error
}

// errHeld is what TryLock returns for a lock that someone holds.
var errHeld = errors.New("held by another owner")

// Mode is how a lock is taken.
type Mode string

const (
	Read  Mode = "read"
	Write Mode = "write"
)

// A lockFunc waits for a lock.
type lockFunc = func(ctx context.Context, name string) (Hold, error)

// lockIn returns l's method that waits for a lock in mode.
func lockIn(l Locker, mode Mode) lockFunc {
	if mode == Read {
		return l.RLock
	}
	return l.Lock
}

// lockIn returns l's method that waits for a lock in mode, in the only mode there is if c knows no other.
func (c *Contender) lockIn(l Locker, mode Mode) lockFunc {
	if !c.Reads {
		mode = Write
	}
	return lockIn(l, mode)
}

// mutex is embedded by contenders without a read mode.
type mutex struct{}

func (mutex) RLock(context.Context, string) (Hold, error) {
	return nil, fmt.Errorf("no read mode: %w", errors.ErrUnsupported)
}

// poll calls try every interval until it gets the lock or ctx ends.
func poll(ctx context.Context, interval time.Duration, try func() (Hold, error)) (Hold, error) {
	h, err := try()
	if !errors.Is(err, errHeld) {
		return h, err
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
		if h, err := try(); !errors.Is(err, errHeld) {
			return h, err
		}
	}
}

// closing closes l and adds what goes wrong to *err.
func closing(l Locker, err *error) {
	*err = errors.Join(*err, l.Close())
}
