// Command replay replays the vectors of the protocol on a server, in a database that it empties:
//
//	go run ./vectors/replay -addr localhost:6379 -db 9
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/verify/vectors"
)

func main() {
	addr := flag.String("addr", "localhost:6379", "the server")
	db := flag.Int("db", 9, "its database, which is emptied")
	flag.Parse()
	if err := run(context.Background(), redis.NewClient(&redis.Options{Addr: *addr, DB: *db})); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *redis.Client) error {
	steps, err := vectors.All()
	if err != nil {
		return err
	}
	p, err := vectors.NewPlayer(ctx, c)
	if err != nil {
		return err
	}
	stories := map[string]bool{}
	for _, s := range steps {
		if err := p.Replay(ctx, s); err != nil {
			return err
		}
		stories[s.Story] = true
	}
	fmt.Printf("%d steps of %d stories: as they are to be\n", len(steps), len(stories))
	return c.FlushDB(ctx).Err()
}
