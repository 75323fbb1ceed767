// Cache keeps the results of slow queries. When an entry is missing, one process of all queries the database,
// and the others wait for it. What was read before the last write never gets into the cache, not even from a
// process that was paused in between.
//
//	go run ./examples/cache
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// put stores a token and, unless it is to drop the entry, a value; it refuses a token that is smaller than
// the last. The token of a read hold is smaller than those of all later writers, and no smaller than that of
// any earlier one.
var put = redis.NewScript(`
	if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token') or 0) then return 0 end
	redis.call('DEL', KEYS[1])
	redis.call('HSET', KEYS[1], 'token', unpack(ARGV))
	return redis.call('EXPIRE', KEYS[1], 3600)`)

type cache struct {
	client *redis.Client
	rw     *rwlock.RWLock
}

// get returns the entry of key. If there is none, it stores what query returns.
func (c cache) get(ctx context.Context, key string, query func(ctx context.Context) (string, error)) (string,
	error) {
	if value, err := c.cached(ctx, key); !errors.Is(err, redis.Nil) {
		return value, err // a hit takes no lock
	}
	// The guard lets one caller through at a time. It is another lock than that of the data, which many may
	// read.
	return rwlock.Do(ctx, c.rw, "refill:"+key, func(ctx context.Context, _ *rwlock.Hold) (string, error) {
		if value, err := c.cached(ctx, key); !errors.Is(err, redis.Nil) {
			return value, err // another caller was faster
		}
		return rwlock.RDo(ctx, c.rw, key, func(ctx context.Context, h *rwlock.Hold) (string, error) {
			value, err := query(ctx)
			if err != nil {
				return "", err
			}
			return value, put.Run(ctx, c.client, []string{"cache:" + key}, h.Token(), "value", value).Err()
		})
	})
}

func (c cache) cached(ctx context.Context, key string) (string, error) {
	return c.client.HGet(ctx, "cache:"+key, "value").Result()
}

// update changes the data of key and drops its entry. The entry is dropped first: if that fails, nothing has
// happened, and until update has finished, nobody can refill it.
func (c cache) update(ctx context.Context, key string, change func(ctx context.Context) error) error {
	return c.rw.WithLock(ctx, key, func(ctx context.Context, h *rwlock.Hold) error {
		if err := put.Run(ctx, c.client, []string{"cache:" + key}, h.Token()).Err(); err != nil {
			return err
		}
		return change(ctx)
	})
}

func main() { connect.Main(run) }

func run(ctx context.Context, client *redis.Client, rw *rwlock.RWLock) error {
	c := cache{client, rw}
	var queries atomic.Int64
	query := func(context.Context) (string, error) {
		time.Sleep(100 * time.Millisecond)
		return fmt.Sprint("the result of query ", queries.Add(1)), nil
	}
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() { _, _ = c.get(ctx, "prices", query) })
	}
	callers.Wait()
	value, err := c.get(ctx, "prices", query)
	fmt.Printf("51 calls got %q\n", value)
	return err
}
