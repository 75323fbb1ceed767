package tests

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// The whole of the API works by way of every sort of client of one server.
func TestEverySortOfClient(t *testing.T) {
	t.Parallel()
	sorts := map[string]func(o *redis.Options){
		"plain":           func(*redis.Options) {},
		"resp2":           func(o *redis.Options) { o.Protocol = 2 },
		"one connection":  func(o *redis.Options) { o.PoolSize = 1 },
		"another DB":      func(o *redis.Options) { o.DB = 3 },
		"context timeout": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"no retries":      func(o *redis.Options) { o.MaxRetries = -1 },
		"no read timeout": func(o *redis.Options) { o.ReadTimeout = -1 },
		"cache":           func(o *redis.Options) { o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{} },
	}
	for name, opt := range sorts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			useAll(t, newLockOn(t, testredis.Shared(t).Client(opt), rwlock.WithPrefix(t.Name())), "a")
		})
	}
	t.Run("autopipeline", func(t *testing.T) {
		t.Parallel()
		ap, err := testredis.Shared(t).Client().AutoPipeline()
		require.NoError(t, err)
		useAll(t, newLockOn(t, ap, rwlock.WithPrefix(t.Name())), "a")
	})
	t.Run("tls", func(t *testing.T) {
		t.Parallel()
		addr, config := testredis.StartTLS(t)
		useAll(t, newLockOn(t, testredis.NewClient(t, addr, func(o *redis.Options) { o.TLSConfig = config })), "a")
		stranger := testredis.NewClient(t, addr, func(o *redis.Options) { o.TLSConfig = &tls.Config{} })
		_, err := newLockOn(t, stranger).TryLock(t.Context(), "a")
		require.ErrorContains(t, err, "certificate")
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		useAll(t, newLockOn(t, testredis.StartSentinels(t).Client()), "a")
	})
}

// clusterSorts are the sorts of clients of a cluster. There is none with a client-side cache:
// redis.ClusterOptions of go-redis 9.23 has no setting for it, and redis.UniversalOptions has it for a client
// of one server alone.
var clusterSorts = map[string]func(o *redis.ClusterOptions){
	"resp2":           func(o *redis.ClusterOptions) { o.Protocol = 2 },
	"one connection":  func(o *redis.ClusterOptions) { o.PoolSize = 1 },
	"context timeout": func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = true },
	"no redirects":    func(o *redis.ClusterOptions) { o.MaxRedirects = -1 },
	"no read timeout": func(o *redis.ClusterOptions) { o.ReadTimeout = -1 },
	"read only":       func(o *redis.ClusterOptions) { o.ReadOnly = true },
	"retries":         func(o *redis.ClusterOptions) { o.MaxRetries = 3 },
	"route by latency": func(o *redis.ClusterOptions) {
		// The client measures the latency of a node while it still makes the client for it: a data race of
		// its own.
		o.RouteByLatency = !raceDetector()
	},
	"route randomly": func(o *redis.ClusterOptions) { o.RouteRandomly = true },
}

// The whole of the API works by way of every sort of client of a cluster, and only masters are asked.
func TestEverySortOfClusterClient(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartReplicatedCluster(t, 3)
	for name, opt := range clusterSorts {
		t.Run(name, func(t *testing.T) {
			rw := newLockOn(t, cluster.Client(opt), rwlock.WithPrefix(t.Name()))
			for i := range 6 {
				useAll(t, rw, fmt.Sprint("name ", i))
			}
		})
	}
	for _, replica := range cluster.Nodes[3:] {
		stats, err := replica.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		require.NotContains(t, stats, "cmdstat_eval")
	}
}

// The whole of the API works on a cluster by way of TLS alone, and a client that does not trust the
// certificate is told.
func TestClusterWithTLS(t *testing.T) {
	t.Parallel()
	addrs, config := testredis.StartTLSCluster(t, 3)
	open := func(config *tls.Config) *rwlock.RWLock {
		// By default it dials five times, and says only after two and a half seconds why that failed.
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, TLSConfig: config, DialerRetries: 1})
		t.Cleanup(func() { _ = c.Close() })
		return newLockOn(t, c)
	}
	rw := open(config)
	for i := range 6 {
		useAll(t, rw, fmt.Sprint("name ", i))
	}
	_, err := open(&tls.Config{}).TryLock(t.Context(), "a")
	require.ErrorContains(t, err, "certificate")
}

// The first call ever of a client for a cluster is bounded by MaxWait and by its context, and a call for a
// lock at a healthy node gets it, though a node that the client is told of is frozen. One that may read from
// replicas asks any node what all commands are, and waits for the answer.
func TestFirstCallWithAFrozenNode(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	cluster.Nodes[0].Pause()
	t.Cleanup(cluster.Nodes[0].Resume)
	for sort, readOnly := range map[string]bool{"plain": false, "read only": true} {
		open := func(readTimeout time.Duration) *rwlock.RWLock {
			return newLockOn(t, cluster.Client(func(o *redis.ClusterOptions) { o.ReadOnly, o.ReadTimeout = readOnly, readTimeout }))
		}
		for i := range 6 {
			rw := open(2 * hang)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			frozen := cluster.On(0, "frozen")
			for what, first := range map[string]func() error{
				"MaxWait": func() error { _, err := rw.Lock(t.Context(), frozen, rwlock.MaxWait(100*time.Millisecond)); return err },
				"context": func() error { _, err := rw.Lock(ctx, frozen); return err },
			} {
				start := time.Now()
				require.ErrorIs(t, first(), context.DeadlineExceeded)
				require.Less(t, time.Since(start), hang, "%s, a wait that %s bounds", sort, what)
			}
			if readOnly {
				rw = open(3 * time.Second)
			}
			unlock(t, take(t, newOwner(), rw, write, cluster.On(1, fmt.Sprint("name", i))))
		}
	}
	cluster.Nodes[0].Resume()
}

// documentedRights returns what docs/operations.md has a user be granted, and of that the commands, beside
// the keys and channels.
func documentedRights(t *testing.T) (setUser []any, commands []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(page), "ACL SETUSER locks ")
	block, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	for _, rule := range strings.Fields(block) {
		if command, ok := strings.CutPrefix(rule, "+"); ok {
			commands = append(commands, command)
		} else {
			setUser = append(setUser, rule)
		}
	}
	return setUser, commands
}

// spare are rights that locks work without, but for what is said of them.
var spare = map[string]string{
	"evalsha_ro": "Inspect falls back", "eval_ro": "likewise", "publish": "others hear of grants by their heartbeats",
	"subscribe": "likewise", "ping": "a subscription that is silent is taken for dead",
	"set": "Inspect shows no labels", "mget": "likewise", "del": "a label stays for some minutes",
}

// grant makes a user of the server with the documented rights, but for one.
func grant(t *testing.T, s *testredis.Server, user, without string, more ...string) {
	t.Helper()
	rules, commands := documentedRights(t)
	args := append([]any{"ACL", "SETUSER", user}, rules...)
	for _, command := range append(more, commands...) {
		if command != without {
			args = append(args, "+"+command)
		}
	}
	require.NoError(t, s.Client().Do(t.Context(), args...).Err())
}

// requireNothingDenied checks that the server has refused nothing to a user.
func requireNothingDenied(t *testing.T, s *testredis.Server, user string) {
	t.Helper()
	denied, err := s.Client().ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	for _, entry := range denied {
		require.NotEqual(t, user, entry.Username, "%+v", entry)
	}
}

// useEverything has the scripts run every command that they have.
func useEverything(t *testing.T, rw, other *rwlock.RWLock, name string) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	note := func(e error) {
		if err == nil {
			err = e
		}
	}
	for i := range 12 { // some of the scripts' commands are for hashes with many slots
		readers := make([]*rwlock.Hold, 3)
		for k := range readers {
			var e error
			readers[k], e = rw.RLock(ctx, name)
			note(e)
		}
		if err != nil {
			return err
		}
		done := make(chan error, 3)
		for k := range 3 {
			go func() {
				h, e := acquire(ctx, []*rwlock.RWLock{rw, other}[i%2], bothModes[k%2], name)
				if e == nil {
					e = h.Unlock(ctx)
				}
				done <- e
			}()
		}
		for _, h := range readers {
			note(h.Extend(ctx, time.Minute))
			inner, e := rw.RLock(h.Context(), name)
			note(e)
			if e == nil {
				note(inner.Unlock(ctx))
			}
			note(h.Unlock(ctx))
		}
		for range 3 {
			note(<-done)
		}
		h, e := rw.Lock(ctx, name)
		note(e)
		if e == nil {
			inner, e := rw.RLock(h.Context(), name)
			note(e)
			_, e = rw.Inspect(ctx, name)
			note(e)
			note(rw.ForceUnlock(ctx, name))
			_, _ = inner.Unlock(ctx), h.Unlock(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// labelled checks that one RWLock sees the label of another, which is the name of the test.
func labelled(t *testing.T, rw, other *rwlock.RWLock, name string) {
	t.Helper()
	h := take(t, newOwner(), rw, write, name)
	eventually(t, func() bool { return inspect(t, other, name).Holders[0].Label == t.Name() }, "a label")
	unlock(t, h)
}

// A user who may do what is documented, and nothing else, may use the whole of the API. Without any of these
// rights there is an error, or a record in the log, that names it; or it works as well.
func TestRightsThatAreNeeded(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	lockAs := func(t *testing.T, s *testredis.Server, without string) (rw, other *rwlock.RWLock, said *records) {
		t.Helper()
		user := "without-" + without
		grant(t, s, user, without)
		said = &records{}
		as := func(o *redis.Options) { o.Username, o.Password = user, "secret" }
		opts := []rwlock.Option{
			rwlock.WithLogger(said.logger()), rwlock.WithLease(2 * time.Second), rwlock.WithLabel(t.Name())}
		rws := make([]*rwlock.RWLock, 2)
		for i := range rws {
			var err error
			rws[i], err = rwlock.New(s.Client(as), opts...)
			require.NoError(t, err)
			t.Cleanup(func() { _ = rws[i].Close() }) // may say what could not be released, and why
		}
		return rws[0], rws[1], said
	}
	rw, other, said := lockAs(t, s, "nothing")
	require.NoError(t, useEverything(t, rw, other, "all rights"))
	labelled(t, rw, other, "a label")
	require.NoError(t, rw.Close())
	require.NotContains(t, strings.ToLower(fmt.Sprint(said.list())), "permission")
	requireNothingDenied(t, s, "without-nothing")
	_, rights := documentedRights(t)
	for i, right := range slices.Sorted(maps.Keys(spare)) {
		t.Run("without "+right, func(t *testing.T) {
			t.Parallel()
			rw, other, _ := lockAs(t, s, right)
			require.NoError(t, useEverything(t, rw, other, fmt.Sprint("spare ", i)))
		})
	}
	for i, right := range rights {
		if spare[right] != "" {
			continue
		}
		t.Run("without "+right, func(t *testing.T) {
			t.Parallel()
			s := s
			if right == "eval" {
				s = testredis.Start(t) // which has not got the scripts
			}
			rw, other, said := lockAs(t, s, right)
			err := useEverything(t, rw, other, fmt.Sprint("needed ", i))
			_, closing := rw.Close(), other.Close()
			text := fmt.Sprint(err, said.list(), closing)
			require.Regexp(t, "(?i)\\b"+right+"\\b", text)
		})
	}
}

// On a cluster, a user also needs the rights that the client needs for it, and to wait for replicas.
func TestRightsThatAreNeededOnACluster(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartReplicatedCluster(t, 3)
	for _, s := range cluster.Nodes {
		grant(t, s, "locks", "", "cluster|slots", "asking", "wait", "get")
	}
	said := &records{}
	lock := func() *rwlock.RWLock {
		c := cluster.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = "locks", "secret" })
		return newLockOn(t, c, rwlock.WithLogger(said.logger()), rwlock.WithReplicas(1, 20*time.Second), rwlock.WithLabel(t.Name()))
	}
	rw, other := lock(), lock()
	for i := range 3 {
		require.NoError(t, useEverything(t, rw, other, cluster.On(i, "name")))
	}
	labelled(t, rw, other, "a label")
	require.NoError(t, rw.Close())
	require.NotContains(t, strings.ToLower(fmt.Sprint(said.list())), "permission")
	for _, s := range cluster.Nodes {
		requireNothingDenied(t, s, "locks")
	}
}
