// Leader elects one of a group of processes. Whoever has the lock leads; the others wait for it, in order.
// When the leader resigns, the next one leads immediately. When it dies, the next one leads when its lease
// ends.
//
//	go run ./examples/leader
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// campaign stands for election until ctx ends. It calls lead whenever it is elected, and resigns when lead
// returns. The context of lead is cancelled when ctx ends or the leadership is lost. The lock is released
// after lead has returned, so nobody else leads while lead still cleans up after the end of ctx.
func campaign(ctx context.Context, rw *rwlock.RWLock, election string,
	lead func(ctx context.Context, h *rwlock.Hold) error) error {
	for {
		err := rw.WithLock(ctx, election, lead)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, rwlock.ErrClosed):
			return err
		case err != nil: // ErrLost, an error of lead, or the server does not answer
			log.Print(err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// standing returns the labels of the leader, "" if there is none, and of those who succeed it, in order.
func standing(ctx context.Context, rw *rwlock.RWLock, election string) (
	leader string, successors []string, err error) {
	state, err := rw.Inspect(ctx, election)
	if len(state.Holders) > 0 {
		leader = state.Holders[0].Label
	}
	for _, w := range state.Waiters {
		successors = append(successors, w.Label)
	}
	return leader, successors, err
}

// A journal is what leaders write to: a list in Redis. It refuses a leader whose successor has written.
type journal struct {
	client *redis.Client
	key    string
}

// The check and the write are one step: a token that is compared beforehand protects nothing.
var appendEntry = redis.NewScript(`
	local last = redis.call('LINDEX', KEYS[1], -1)
	if last and tonumber(last:match('^%d+')) > tonumber(ARGV[1]) then return 0 end
	return redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])`)

// write appends an entry. It returns an error that matches rwlock.ErrLost if a later leader has written.
func (j journal) write(ctx context.Context, token int64, entry string) error {
	length, err := appendEntry.Run(ctx, j.client, []string{j.key}, token, entry).Int()
	if err == nil && length == 0 {
		err = fmt.Errorf("journal: token %d is too old: %w", token, rwlock.ErrLost)
	}
	return err
}

// lead returns what a leader does in this example: it writes a few entries, and resigns.
func lead(name string, j journal) func(ctx context.Context, h *rwlock.Hold) error {
	return func(ctx context.Context, h *rwlock.Hold) error {
		// From the first write on, former leaders are refused. What is read after it is not changed by them.
		if err := j.write(ctx, h.Token(), name+" leads"); err != nil {
			return err
		}
		for i := range 3 {
			select {
			case <-ctx.Done(): // the leadership is lost, or the program ends
				return context.Cause(ctx)
			case <-time.After(100 * time.Millisecond):
			}
			if err := j.write(ctx, h.Token(), fmt.Sprint(name, " decides ", i+1)); err != nil {
				return err
			}
		}
		return nil
	}
}

// main has three candidates, each of which leads for a while.
func main() {
	connect.Main(func(ctx context.Context, client *redis.Client, onlooker *rwlock.RWLock) error {
		j := journal{client, "leader:journal"}
		defer client.Del(ctx, j.key)
		campaigns, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		var candidates sync.WaitGroup
		for i := range 3 {
			name := fmt.Sprint("web-", i+1)
			rw, err := rwlock.New(client, rwlock.WithLabel(name))
			if err != nil {
				return err
			}
			defer rw.Close()
			candidates.Go(func() { _ = campaign(campaigns, rw, "leader", lead(name, j)) })
		}
		time.Sleep(50 * time.Millisecond)
		leader, successors, err := standing(ctx, onlooker, "leader")
		fmt.Printf("%s leads; %s would succeed\n", leader, strings.Join(successors, ", then "))
		candidates.Wait()
		entries, readErr := client.LRange(ctx, j.key, 0, -1).Result()
		fmt.Println(strings.Join(entries, "\n"))
		return errors.Join(err, readErr)
	})
}
