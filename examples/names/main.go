// Names moves money between accounts, each of which has a lock of its own. WithAll takes several locks in one
// order, whoever asks, so transfers in opposite directions cannot deadlock. Locks that are taken one by one
// can.
//
//	go run ./examples/names
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// bank keeps the balances of accounts. Only the locks guard them.
type bank struct {
	rw       *rwlock.RWLock
	balances map[string]*int
}

// transfer moves amount from one account to another, if limit allows it. It changes the accounts and only
// reads the limit.
func (b *bank) transfer(ctx context.Context, from, to string, amount int) error {
	wants := []rwlock.Want{{Name: from, Mode: rwlock.Write}, {Name: to, Mode: rwlock.Write},
		{Name: "limit", Mode: rwlock.Read}}
	return b.rw.WithAll(ctx, wants, func(ctx context.Context, holds []*rwlock.Hold) error {
		if amount > *b.balances["limit"] {
			return errors.New("the amount is above the limit")
		}
		*b.balances[from] -= amount
		*b.balances[to] += amount
		return ctx.Err() // holds[i].Token() is the fencing token for wants[i]
	})
}

// oneByOne takes two locks in the order in which they come, and calls between when it has the first. If a
// call of the same RWLock does so in the other order, one of the two gets ErrDeadlock. It has released its
// first lock when oneByOne returns, and may retry.
func (b *bank) oneByOne(ctx context.Context, first, second string, between func()) error {
	return b.rw.WithLock(ctx, first, func(ctx context.Context, _ *rwlock.Hold) error {
		between()
		return b.rw.WithLock(ctx, second, func(context.Context, *rwlock.Hold) error { return nil })
	})
}

func main() { connect.Main(run) }

func run(ctx context.Context, _ *redis.Client, rw *rwlock.RWLock) error {
	b := &bank{rw, map[string]*int{"alice": new(100), "bob": new(100), "limit": new(50)}}
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		from, to := "alice", "bob"
		if i%2 == 1 {
			from, to = to, from
		}
		wg.Go(func() { errs[i] = b.transfer(ctx, from, to, 10+i) })
	}
	wg.Wait()
	fmt.Printf("alice has %d, bob has %d\n", *b.balances["alice"], *b.balances["bob"])
	if err := errors.Join(errs...); err != nil {
		return err
	}

	// Both have their first lock before either asks for its second.
	var bothHaveOne sync.WaitGroup
	bothHaveOne.Add(2)
	meet := func() { bothHaveOne.Done(); bothHaveOne.Wait() }
	var ab, ba error
	wg.Go(func() { ab = b.oneByOne(ctx, "alice", "bob", meet) })
	wg.Go(func() { ba = b.oneByOne(ctx, "bob", "alice", meet) })
	wg.Wait()
	fmt.Println("alice, then bob:", connect.Outcome(ab))
	fmt.Println("bob, then alice:", connect.Outcome(ba))
	return nil
}
