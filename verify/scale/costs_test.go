package scale

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

var measure = flag.Bool("costs", false, "measure what operations cost on this machine")

// A meter reads what a server and this process have used so far.
type meter struct {
	server, client time.Duration // of processor
	in, out        float64       // bytes, as the server sees them
	scripts        float64
}

func read(t *testing.T, c *redis.Client) meter {
	t.Helper()
	text, err := c.Info(context.Background(), "cpu", "stats", "commandstats").Result()
	require.NoError(t, err)
	field := func(name string) float64 {
		_, rest, found := strings.Cut(text, name)
		if !found {
			return 0
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(rest[:strings.IndexAny(rest, "\r,")]), 64)
		require.NoError(t, err)
		return n
	}
	var use syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return meter{
		server:  time.Duration((field("used_cpu_sys:") + field("used_cpu_user:")) * 1e9),
		client:  time.Duration(use.Utime.Nano() + use.Stime.Nano()),
		in:      field("total_net_input_bytes:"),
		out:     field("total_net_output_bytes:"),
		scripts: field("cmdstat_evalsha:calls="),
	}
}

// TestCosts prints what an operation costs a server and a client, in processor time and bytes. The processor
// time of other programs does not count, so the machine need not be quiet.
func TestCosts(t *testing.T) {
	if !*measure {
		t.Skip("-costs is not given")
	}
	ctx := context.Background()
	s := testredis.Start(t)
	meters := s.Client()
	each := func(n int, fn func(i int)) {
		var next atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					fn(int(i))
				}
			})
		}
		all.Wait()
	}
	cost := func(what string, do func() (ops int)) {
		before := read(t, meters)
		ops := float64(do())
		after := read(t, meters)
		us := func(d time.Duration) float64 { return float64(d.Microseconds()) / ops }
		fmt.Printf("| %s | %.1f | %.1f | %.0f | %.0f | %.2f |\n", what, us(after.server-before.server),
			us(after.client-before.client),
			(after.in-before.in)/ops, (after.out-before.out)/ops, (after.scripts-before.scripts)/ops)
	}
	open := func(lease time.Duration) *rwlock.RWLock {
		rw, err := rwlock.New(s.Client(), rwlock.WithLease(lease))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rw.Close()) })
		return rw
	}
	lock := func(rw *rwlock.RWLock, name string) *rwlock.Hold {
		h, err := rw.Lock(ctx, name)
		require.NoError(t, err)
		return h
	}
	fmt.Println("| operation | server, µs | client, µs | bytes to the server | bytes from it | scripts |\n|---|---|---|---|---|---|")
	usual := open(30 * time.Second)
	pairs := func() int {
		const n = 100_000
		each(n, func(i int) { _ = lock(usual, fmt.Sprint("fresh:", i)).Unlock(ctx) })
		return n
	}
	cost("a pair on a fresh name, 64 goroutines", pairs)
	cost("a pair, one goroutine", func() int {
		for i := range 10_000 {
			_ = lock(usual, fmt.Sprint("alone:", i)).Unlock(ctx)
		}
		return 10_000
	})
	const many = 20_000
	short := open(6 * time.Second)
	holds := make([]*rwlock.Hold, many+1)
	each(many, func(i int) { holds[i] = lock(short, fmt.Sprint("held:", i)) })
	scripts := func(d time.Duration) func() int {
		return func() int {
			before := read(t, meters).scripts
			time.Sleep(d)
			return int(read(t, meters).scripts - before)
		}
	}
	cost("a renewal, 20,000 holds of one process", scripts(10*time.Second))
	each(many, func(i int) { _ = holds[i].Unlock(ctx) })
	holder := lock(usual, "waited for")
	waiting, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range many / 4 {
		all.Go(func() {
			if _, err := short.Lock(waiting, "waited for"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	time.Sleep(3 * time.Second)
	cost("a heartbeat, 5,000 waiters of one process", scripts(8*time.Second))
	cancel()
	all.Wait()
	require.NoError(t, holder.Unlock(ctx))
	cost("a handover between processes, 16 names, 4 RWLocks", func() int {
		var n atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(5 * time.Second)
		for range 4 {
			rw := open(30 * time.Second)
			for name := range 16 {
				all.Go(func() {
					for time.Now().Before(end) {
						_ = lock(rw, fmt.Sprint("turns:", name)).Unlock(ctx)
						n.Add(1)
					}
				})
			}
		}
		all.Wait()
		return int(n.Load())
	})
}
