package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Contender is one way to lock. To add one, write its Open and list it in contenders.
type Contender struct {
	Name  string
	About string // one line for the report

	// Commands are those that its client sends, as opposed to those that its scripts call.
	Commands []string

	Polls bool // while it waits
	Reads bool // knows a read mode; where others read, the mutex of one that does not stands in

	Open func(ctx context.Context, o Options) (Locker, error)
}

// contenders are all that take part, in the order of their turns and of the tables. A workload names those it
// is for.
var contenders = []*Contender{ours, classic, redislockContender, redsyncContender, rueidislockContender, bare, floor}

// Options say how to open a contender.
type Options struct {
	Addr         string
	Addrs        []string // of all servers, if there are several
	Lease        time.Duration
	AutoPipeline bool       // on go-redis's AutoPipeline in place of its plain client, where the contender uses go-redis
	Connections  int        // if set, how many go-redis opens at the start, and no more than them
	Hook         redis.Hook // if set, go-redis's client has it
	Floor        map[Mode]pairShape
}

// client returns the go-redis client that o asks for, with default settings beside that, and what closes it.
func (o Options) client() (client redis.UniversalClient, closeClient func() error, err error) {
	plain := redis.NewClient(&redis.Options{Addr: o.Addr, PoolSize: o.Connections, MinIdleConns: o.Connections})
	if o.Hook != nil {
		plain.AddHook(o.Hook)
	}
	if !o.AutoPipeline {
		return plain, plain.Close, nil
	}
	auto, err := plain.AutoPipeline()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening the autopipeline: %w", err), plain.Close())
	}
	return auto, plain.Close, nil
}

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

// errHeld is what TryLock returns for a lock that somebody holds.
var errHeld = errors.New("held by another owner")

// Mode is how a lock is taken.
type Mode string

const (
	Read  Mode = "read"
	Write Mode = "write"
)

// lockIn returns l's method that waits for a lock in mode.
func lockIn(l Locker, mode Mode) func(context.Context, string) (Hold, error) {
	if mode == Read {
		return l.RLock
	}
	return l.Lock
}

// lockIn returns l's method that waits for a lock in mode, in the only mode there is if c knows no other.
func (c *Contender) lockIn(l Locker, mode Mode) func(context.Context, string) (Hold, error) {
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
