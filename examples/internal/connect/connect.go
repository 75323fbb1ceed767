// Package connect gives the examples a Redis server, and an RWLock.
package connect

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
)

// Main runs an example, and ends the process if it fails.
func Main(example func(ctx context.Context, client *redis.Client, rw *rwlock.RWLock) error) {
	ctx := context.Background()
	client, closeAll, err := Redis(ctx)
	if err != nil {
		log.Fatal(err)
	}
	rw, err := rwlock.New(client)
	if err == nil {
		err = example(ctx, client, rw)
		_ = rw.Close() // before the client: it releases what is still held
	}
	closeAll()
	if err != nil {
		log.Fatal(err)
	}
}

// Outcome returns the error's text, or "done".
func Outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "done"
}

// Redis returns a client of the server that the environment variable REDIS_URL names, or without it, of a
// server within this process; and a function that closes both.
func Redis(ctx context.Context) (client *redis.Client, closeAll func(), err error) {
	if url := os.Getenv("REDIS_URL"); url != "" {
		options, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		client = redis.NewClient(options)
		if err := client.Ping(ctx).Err(); err != nil {
			_ = client.Close()
			return nil, nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		return client, func() { _ = client.Close() }, nil
	}

	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // let keys expire by the clock, as a Redis server does
	if err := server.Start(); err != nil {
		return nil, nil, err
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() { _ = client.Close(); server.Close() }, nil
}
