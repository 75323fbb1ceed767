// Package testredis gives tests a Redis to talk to: real servers on free loopback ports, miniredis over TCP,
// miniredis in memory for synctest bubbles, and one suite that runs on both kinds.
package testredis

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// NewClient returns a client of the server at addr, closed when the test ends. It skips the handshake for
// maintenance notifications, which only Redis Enterprise sends.
func NewClient(tb testing.TB, addr string, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	o := &redis.Options{
		Addr:                     addr,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewClient(o)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Backend is a server to run a test on. The test has it for itself below Prefix.
type Backend struct {
	Prefix string // what the test's keys start with
	tb     testing.TB
	addr   string
	real   bool
}

// Each runs fn on miniredis and on a real server, as parallel subtests.
func Each(t *testing.T, fn func(t *testing.T, s Backend)) {
	t.Helper()
	onMiniredis(t, fn)
	onReal(t, fn)
}

// One runs fn on a real server, or on miniredis if there is no server binary and none is required, as a
// parallel subtest.
func One(t *testing.T, fn func(t *testing.T, s Backend)) {
	t.Helper()
	if Available() || required() {
		onReal(t, fn)
	} else {
		onMiniredis(t, fn)
	}
}

func onMiniredis(t *testing.T, fn func(t *testing.T, s Backend)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		m, err := miniredis.Run()
		if err != nil {
			t.Fatalf("miniredis: %v", err)
		}
		m.ClockTTL(true)
		t.Cleanup(m.Close)
		fn(t, Backend{Prefix: newPrefix(), tb: t, addr: m.Addr()})
	})
}

func onReal(t *testing.T, fn func(t *testing.T, s Backend)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		fn(t, Backend{Prefix: newPrefix(), tb: t, addr: Shared(t).Addr(), real: true})
	})
}

// Voters returns three servers that are a quorum, as backends with one prefix.
func Voters(t *testing.T) (servers []Backend) {
	t.Helper()
	prefix := newPrefix()
	for _, s := range SharedVoters(t) {
		servers = append(servers, Backend{Prefix: prefix, tb: t, addr: s.Addr(), real: true})
	}
	return servers
}

// newPrefix returns a prefix of fixed length, so that none is the start of another.
func newPrefix() string { return "test-" + strings.ToLower(rand.Text()) }

// Addr returns the server's TCP address.
func (b Backend) Addr() string { return b.addr }

// Real reports whether the server is a real one.
func (b Backend) Real() bool { return b.real }

// Client returns a new client, closed when the test ends.
func (b Backend) Client(opts ...func(*redis.Options)) *redis.Client {
	b.tb.Helper()
	return NewClient(b.tb, b.addr, opts...)
}

// Keys returns the keys that start with Prefix.
func (b Backend) Keys(ctx context.Context) []string {
	b.tb.Helper()
	c, end := b.once()
	defer end()
	return b.keys(ctx, c)
}

// Flush removes the keys that start with Prefix.
func (b Backend) Flush(ctx context.Context) {
	b.tb.Helper()
	c, end := b.once()
	defer end()
	for _, key := range b.keys(ctx, c) {
		if err := c.Del(ctx, key).Err(); err != nil {
			b.tb.Errorf("delete %q: %v", key, err)
		}
	}
}

// RequireTTLs ends the test if one of the keys that start with Prefix has no time to live.
func (b Backend) RequireTTLs(t testing.TB) {
	t.Helper()
	c, end := b.once()
	defer end()
	ctx := context.Background()
	for _, key := range b.keys(ctx, c) {
		ttl, err := c.PTTL(ctx, key).Result()
		if err != nil {
			t.Fatalf("pttl %q: %v", key, err)
		}
		if ttl == -1 { // -2: it has just expired
			t.Fatalf("key %q has no time to live", key)
		}
	}
}

// once returns a client for a few commands, and what closes it.
func (b Backend) once() (*redis.Client, func()) {
	c := redis.NewClient(&redis.Options{
		Addr:                     b.addr,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return c, func() { _ = c.Close() }
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

func (b Backend) keys(ctx context.Context, c *redis.Client) []string {
	b.tb.Helper()
	seen := map[string]bool{}
	var keys []string
	it := c.Scan(ctx, 0, globEscaper.Replace(b.Prefix)+"*", 1000).Iterator()
	for it.Next(ctx) {
		if key := it.Val(); !seen[key] { // SCAN may repeat a key
			seen[key] = true
			keys = append(keys, key)
		}
	}
	if err := it.Err(); err != nil {
		b.tb.Errorf("scan: %v", err)
	}
	return keys
}

// poll calls ok every few milliseconds until it returns nil, for at most d; it returns the last error.
func poll(d time.Duration, ok func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); ; <-tick.C {
		err := ok()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
