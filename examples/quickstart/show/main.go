//go:build unix && !aix && !solaris

// Show is what the quickstart runs.
//
// Seven processes share one file, a ledger of accounts. Some move money from one account to another, some
// check that no money appeared or vanished. They work without a lock, then with one; then one of them is
// killed while it holds the lock, and one is paused until it has lost it.
//
// To see how the library is used, read worker.go; what a resource must do for its part is in ledger.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

const (
	writers = 4
	readers = 3

	lease    = time.Second     // how long the lock outlives a process that is not heard from
	patience = 5 * time.Second // with everything that should happen soon
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run() error {
	logging.Disable() // go-redis would report each failed dial, and returns it as well
	if description := os.Getenv(jobVar); description != "" {
		return work(description)
	}
	url := flag.String("redis", "", "`URL` of a Redis server; without it, one is embedded")
	n := flag.Int("servers", 1, "how many servers to embed: `1`, or an odd number for a quorum")
	flag.Parse()
	if *n < 1 || *n%2 == 0 || *url != "" && *n != 1 {
		return errors.New("-servers is 1 or an odd number, and goes without -redis")
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not done within two minutes"))
	defer cancel()

	urls := []string{*url}
	var (
		servers   []*miniredis.Miniredis
		addresses []string
	)
	if *url == "" {
		urls = nil
		for range *n {
			server := miniredis.NewMiniRedis()
			server.ClockTTL(true)
			if err := server.StartAddr("127.0.0.1:0"); err != nil {
				return err
			}
			defer server.Close()
			servers = append(servers, server)
			addresses = append(addresses, server.Addr())
			urls = append(urls, "redis://"+server.Addr())
		}
		say("Redis is embedded, on %s", strings.Join(addresses, ", "))
	} else if err := ping(ctx, *url); err != nil {
		return err
	}

	dir, err := os.MkdirTemp("", "quickstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	show := []*act{
		{title: "no lock", play: withoutLock, compared: true, unlocked: true},
		{title: "lock", play: withLock, compared: true},
		{title: "one killed", play: oneKilled},
		{title: "one paused", play: onePaused},
	}
	if len(servers) > 1 {
		show = append(show, &act{title: "server stopped", play: func(c *crew) error {
			return serverStopped(c, servers[0])
		}})
	}
	for _, a := range show {
		if err := a.perform(ctx, urls, ledger{filepath.Join(dir, "ledger")}); err != nil {
			return err
		}
	}
	return report(show)
}

func ping(ctx context.Context, url string) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	say("Redis is %s", options.Addr)
	return nil
}

// act is one part of the show: the crew at work on a fresh ledger, and what came of it.
type act struct {
	title    string
	play     func(*crew) error
	compared bool // the show says how many transfers the ledger has of those that were made
	unlocked bool
	tally
}

func (a *act) perform(ctx context.Context, urls []string, l ledger) error {
	if err := l.create(); err != nil {
		return err
	}
	c, err := hire(ctx, job{Servers: urls, Ledger: l.path, Unlocked: a.unlocked})
	if err == nil {
		err = a.play(c)
	}
	c.dismiss()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		c.problem("%v", err)
	}
	end, err := l.read()
	if err != nil {
		return err
	}
	// Every transfer has added one to the ledger's own count. One that is missing there was overwritten by
	// someone who had not seen it.
	c.lost = c.writes - int(end.Transfers)
	if a.compared {
		say("%d transfers were made, and the ledger has %d", c.writes, end.Transfers)
	}
	if end.sum() != total {
		c.problem("the accounts add up to %d, not to %d", end.sum(), total)
	}
	a.tally = c.tally
	return nil
}

func withoutLock(c *crew) error {
	headline("%d writers and %d readers share a ledger, without a lock; each transfer sleeps for %v", writers, readers,
		think+4*moment)
	return c.goOn(2 * time.Second)
}

func withLock(c *crew) error {
	headline("the same under a lock: WithLock to write, WithRLock to read")
	if err := c.goOn(2 * time.Second); err != nil {
		return err
	}
	say("%d transfers and %d reads so far, %d broken", c.writes, c.reads, c.broken)
	return c.goOn(2 * time.Second)
}

func oneKilled(c *crew) error {
	headline("a process dies while it holds the lock")
	if err := c.goOn(500 * time.Millisecond); err != nil {
		return err
	}
	held, err := c.dawdle("writer-2")
	if err != nil {
		return err
	}
	if err := c.signal(held.Worker, syscall.SIGKILL); err != nil {
		return err
	}
	say("%s holds the write lock, with token %d, and is killed (SIGKILL)", held.Worker, held.Token)
	if err := takeover(c, held); err != nil {
		return err
	}
	return c.goOn(time.Second)
}

func onePaused(c *crew) error {
	headline("a process stands still for longer than its lease")
	if err := c.goOn(500 * time.Millisecond); err != nil {
		return err
	}
	held, err := c.dawdle("writer-3")
	if err != nil {
		return err
	}
	if err := c.signal(held.Worker, syscall.SIGSTOP); err != nil {
		return err
	}
	say("%s holds the write lock, with token %d, and is paused (SIGSTOP)", held.Worker, held.Token)
	if err := takeover(c, held); err != nil {
		return err
	}
	if err := c.goOn(lease / 2); err != nil {
		return err
	}

	if err := c.signal(held.Worker, syscall.SIGCONT); err != nil {
		return err
	}
	say("%s goes on (SIGCONT), and writes although it has lost the lock", held.Worker)
	if _, err := c.await(held.Worker, lost); err != nil {
		return err
	}
	if e, err := c.await(held.Worker, refused, wrote); err != nil {
		return err
	} else if e.Kind == wrote {
		return fmt.Errorf("the ledger took the stale token %d", e.Token)
	}
	again, err := c.await(held.Worker, wrote)
	if err != nil {
		return err
	}
	say("%s gets the lock again, and writes with token %d", again.Worker, again.Token)
	return nil
}

func serverStopped(c *crew, server *miniredis.Miniredis) error {
	headline("one of the servers is stopped while the ledger is in use")
	if err := c.goOn(500 * time.Millisecond); err != nil {
		return err
	}
	before, address := c.writes, server.Addr()
	server.Close()
	for c.writes < before+100 {
		if _, err := c.watch(patience, func(e event) bool { return e.Kind == wrote }); err != nil {
			return fmt.Errorf("nobody writes any more: %w", err)
		}
	}
	say("%s is gone, the others are a majority: %d more transfers", address, c.writes-before)
	return nil
}

// takeover waits until someone writes in place of the one that held the lock, and takes the time.
func takeover(c *crew, held event) error {
	since := time.Now()
	next, err := c.watch(patience, func(e event) bool { return e.Kind == wrote && e.Token > held.Token })
	if err != nil {
		return fmt.Errorf("nobody took over from %s: %w", held.Worker, err)
	}
	c.recovery = time.Since(since)
	say("%s writes with token %d, %s later: the lease of %v had run out", next.Worker, next.Token,
		seconds(c.recovery), lease)
	if c.recovery > 2*lease {
		c.problem("it took %s to go on without %s", seconds(c.recovery), held.Worker)
	}
	return nil
}
