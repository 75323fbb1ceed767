package tests

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/client"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// The whole of the API works by way of every sort of client of one server.
func TestEverySortOfClient(t *testing.T) {
	plain := func(opt func(o *redis.Options)) func(t *testing.T) redis.UniversalClient {
		return func(t *testing.T) redis.UniversalClient { return testredis.Shared(t).Client(opt) }
	}
	each(t, map[string]func(t *testing.T) redis.UniversalClient{
		"plain":           plain(func(*redis.Options) {}),
		"resp2":           plain(func(o *redis.Options) { o.Protocol = 2 }),
		"one connection":  plain(func(o *redis.Options) { o.PoolSize = 1 }),
		"another DB":      plain(func(o *redis.Options) { o.DB = 3 }),
		"context timeout": plain(func(o *redis.Options) { o.ContextTimeoutEnabled = true }),
		"no retries":      plain(func(o *redis.Options) { o.MaxRetries = -1 }),
		"no read timeout": plain(func(o *redis.Options) { o.ReadTimeout = -1 }),
		"cache":           plain(func(o *redis.Options) { o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{} }),
		"wrapped": func(t *testing.T) redis.UniversalClient {
			return struct{ redis.UniversalClient }{testredis.Shared(t).Client()}
		},
		"sentinel": func(t *testing.T) redis.UniversalClient { return testredis.StartSentinels(t).Client() },
		"tls": func(t *testing.T) redis.UniversalClient {
			addr, config := testredis.StartTLS(t)
			stranger := testredis.NewClient(t, addr, func(o *redis.Options) { o.TLSConfig = &tls.Config{} })
			require.ErrorContains(t, errOf(newLockOn(t, stranger).TryLock(t.Context(), "a")), "certificate")
			return testredis.NewClient(t, addr, func(o *redis.Options) { o.TLSConfig = config })
		},
	}, func(t *testing.T, client func(t *testing.T) redis.UniversalClient) {
		useAll(t, newLockOn(t, client(t), rwlock.WithPrefix(t.Name())), "a")
	})
}

// The whole of the API works by way of every sort of client of a cluster, for locks on all nodes at the same
// time, and only masters are asked. Once the client is closed, a call says so at once. There is no sort with
// a client-side cache: redis.ClusterOptions of go-redis 9.23 has no setting for it, and
// redis.UniversalOptions has it for a client of one server alone.
func TestEverySortOfClusterClient(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartReplicatedCluster(t, 3, "--cluster-node-timeout", "60000")
	for name, opt := range map[string]func(o *redis.ClusterOptions){
		"plain":           func(*redis.ClusterOptions) {},
		"wrapped":         func(*redis.ClusterOptions) {},
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
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.Client(opt)
			client := redis.UniversalClient(c)
			if name == "wrapped" { // so that nothing shows that it is for a cluster
				client = struct{ redis.UniversalClient }{c}
			}
			rw := newLockOn(t, client, rwlock.WithPrefix(t.Name()))
			together(3, func(i int) { useAll(t, rw, cluster.On(i, "name")) })
			for i, node := range cluster.Nodes[:3] {
				keys, err := node.Client().Keys(t.Context(), t.Name()+":*").Result()
				require.NoError(t, err)
				require.NotEmpty(t, keys, "keys on node %d", i)
			}
			require.NoError(t, c.Close())
			start := time.Now()
			require.ErrorIs(t, errOf(rw.Lock(newOwner(), "n")), redis.ErrClosed)
			require.Less(t, time.Since(start), 3*time.Second)
		})
	}
	for _, replica := range cluster.Nodes[3:] {
		stats, err := replica.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		require.NotContains(t, stats, "cmdstat_eval")
	}
	rw := newLockOn(t, cluster.Client())
	for i := range 6 { // labels are on all nodes, too
		label := fmt.Sprint("worker ", i)
		other := newLockOn(t, cluster.Client(), rwlock.WithLabel(label))
		h := take(t, newOwner(), other, write, "labelled")
		eventually(t, func() bool { return inspect(t, rw, "labelled").Holders[0].Label == label }, "a label")
		unlock(t, h)
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
	for i := range 3 {
		useAll(t, rw, fmt.Sprint("name ", i))
	}
	require.ErrorContains(t, errOf(open(&tls.Config{}).TryLock(t.Context(), "a")), "certificate")
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
			return newLockOn(t, cluster.Client(func(o *redis.ClusterOptions) {
				o.ReadOnly, o.ReadTimeout = readOnly, readTimeout
			}))
		}
		for i := range 6 {
			rw := open(2 * hang)
			ctx := lasting(t, 100*time.Millisecond)
			frozen := cluster.On(0, "frozen")
			for what, first := range map[string]func() error{
				"MaxWait": func() error {
					return errOf(rw.Lock(t.Context(), frozen, rwlock.MaxWait(100*time.Millisecond)))
				},
				"context": func() error { return errOf(rw.Lock(ctx, frozen)) },
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
	"evalsha_ro": "Inspect falls back", "eval_ro": "likewise",
	"publish":   "others hear of grants by their heartbeats",
	"subscribe": "likewise", "ping": "a subscription that is silent is taken for dead",
	"set": "Inspect shows no labels", "mget": "likewise", "del": "a label stays for some minutes",
}

// grant makes a user of the server with the documented rights, but for one.
func grant(t *testing.T, s *testredis.Server, user, without string, more ...string) {
	t.Helper()
	rules, commands := documentedRights(t)
	args := append([]any{"ACL", "SETUSER", user}, rules...)
	for _, command := range append(more, commands...) {
		if command != without && !(strings.HasSuffix(command, "_ro") && s.Before7()) {
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
		// by which go-redis introduces itself; a refusal makes no difference
		if strings.HasPrefix(entry.Object, "client") {
			continue
		}
		require.NotEqual(t, user, entry.Username, "%+v", entry)
	}
}

// manySlots is how often to use a name so that its hash has many slots: some of the scripts' commands are for
// such.
const manySlots = 12

// useEverything has the scripts run every command that they have. It returns all that failed in the round in
// which something did: a call may fail for what another one, which was refused a right, has left undone.
func useEverything(t *testing.T, rounds int, rw, other *rwlock.RWLock, name string) (err error) {
	t.Helper()
	ctx := lasting(t, hang)
	note := func(e error) { err = errors.Join(err, e) }
	for i := range rounds {
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
			note(h.Downgrade(ctx))
			beside, e := rw.RLock(ctx, name)
			note(e)
			_, e = rw.Inspect(ctx, name)
			note(e)
			note(rw.ForceUnlock(ctx, name))
			_, _ = beside.Unlock(ctx), h.Unlock(ctx)
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
	s := testredis.Start(t)
	lockAs := func(t *testing.T, s *testredis.Server, without string) (rw, other *rwlock.RWLock, said *records) {
		t.Helper()
		user := "without-" + without
		grant(t, s, user, without)
		said = &records{}
		as := func(o *redis.Options) { o.Username, o.Password = user, "secret" }
		opts := []rwlock.Option{
			rwlock.WithLogger(said.logger()), rwlock.WithLease(5 * time.Second), rwlock.WithLabel(t.Name())}
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
	require.NoError(t, useEverything(t, manySlots, rw, other, "all rights"))
	labelled(t, rw, other, "a label")
	require.NoError(t, rw.Close())
	require.NotContains(t, strings.ToLower(fmt.Sprint(said.items())), "permission")
	requireNothingDenied(t, s, "without-nothing")
	_, rights := documentedRights(t)
	eachOf(t, rights, func(t *testing.T, right string) {
		s := s
		if right == "eval" {
			s = testredis.Start(t) // which has not got the scripts
		}
		rw, other, said := lockAs(t, s, right)
		err := useEverything(t, manySlots, rw, other, "without "+right)
		if spare[right] != "" {
			require.NoError(t, err)
			return
		}
		err = errors.Join(err, rw.Close(), other.Close())
		require.Regexp(t, "(?i)\\b"+right+"\\b", fmt.Sprint(err, said.items()))
	})
}

// On a cluster, a user also needs the rights that the client needs for it, and to wait for replicas.
func TestRightsThatAreNeededOnACluster(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartReplicatedCluster(t, 3, "--cluster-node-timeout", "60000")
	rights := []string{"cluster|slots", "asking", "wait"}
	if !cluster.Nodes[0].Before7() {
		rights = append(rights, "spublish", "ssubscribe", "sunsubscribe")
	}
	for _, s := range cluster.Nodes {
		grant(t, s, "locks", "", rights...)
	}
	said := &records{}
	lock := func() *rwlock.RWLock {
		c := cluster.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = "locks", "secret" })
		return newLockOn(t, c, rwlock.WithLogger(said.logger()), rwlock.WithReplicas(1, 20*time.Second),
			rwlock.WithLabel(t.Name()))
	}
	rw, other := lock(), lock()
	for i := range 3 {
		require.NoError(t, useEverything(t, 2, rw, other, cluster.On(i, "name")))
	}
	labelled(t, rw, other, "a label")
	require.NoError(t, rw.Close())
	require.NotContains(t, strings.ToLower(fmt.Sprint(said.items())), "permission")
	for _, s := range cluster.Nodes {
		requireNothingDenied(t, s, "locks")
	}
}

// onEach returns a hook that calls fn with each command before it is sent.
func onEach(fn func(cmd redis.Cmder)) redis.Hook {
	return sending(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		for _, cmd := range cmds {
			fn(cmd)
		}
		return send()
	})
}

// tenant gives a client a part of the keys: it is put in front of each key of a script, in the arguments
// themselves.
func tenant(prefix string) redis.Hook {
	return onEach(func(cmd redis.Cmder) {
		args := cmd.Args()
		switch strings.ToLower(text(args[0])) {
		case "set", "del", "mget": // of labels
			args[1] = prefix + text(args[1])
		}
		if len(args) < 3 || !strings.HasPrefix(strings.ToLower(text(args[0])), "eval") {
			return
		}
		n, _ := strconv.Atoi(text(args[2]))
		for i := range n {
			args[3+i] = prefix + text(args[3+i])
		}
	})
}

// A hook that edits the arguments of a command edits each request once, though the server does not know its
// script and is sent the text: two clients with that hook exclude each other, and all keys are the hook's.
func TestHookThatEditsArgumentsEditsThemOnce(t *testing.T) {
	const mine = "tenant:"
	inBubbleAndAlone(t, func(w *world) {
		ctx, admin := context.Background(), w.dial()
		newTenant := func() *rwlock.RWLock {
			c := w.dial()
			c.AddHook(tenant(mine))
			return newLockOn(w, c, rwlock.WithPrefix(w.prefix))
		}
		a, b := newTenant(), newTenant()
		forget := func() { require.NoError(w, admin.ScriptFlush(ctx).Err()) }
		requireMine := func() {
			keys, err := admin.Keys(ctx, "*").Result()
			require.NoError(w, err)
			for _, key := range keys {
				require.True(w, strings.HasPrefix(key, mine), key)
				require.Equal(w, 1, strings.Count(key, mine), key)
			}
		}

		for _, mode := range bothModes {
			forget()
			h := take(w, newOwner(), a, mode, mode.String())
			require.ErrorIs(w, errOf(b.TryLock(newOwner(), mode.String())), rwlock.ErrLocked)
			requireMine()
			for _, call := range []func(){
				func() { unlock(w, take(w, h.Context(), a, mode, mode.String())) },
				func() { require.Equal(w, mode, inspect(w, a, mode.String()).Mode) },
				func() { unlock(w, h) },
				func() { require.NoError(w, a.ForceUnlock(ctx, mode.String())) },
			} {
				forget()
				call()
				requireMine()
			}
			require.Equal(w, rwlock.None, inspect(w, b, mode.String()).Mode)
		}
	})
}

// A handler hands each record to a function.
type handler struct {
	slog.Handler
	handle func(slog.Record)
}

func newLogger(handle func(slog.Record)) *slog.Logger {
	return slog.New(handler{slog.DiscardHandler, handle})
}

// textOf returns what a record says.
func textOf(r slog.Record) string {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	return text
}

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.handle(r)
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h handler) WithGroup(string) slog.Handler      { return h }

// A guarded context has code of its user's run when a context that was made from it is cancelled.
type guarded struct {
	context.Context
	done  chan struct{}
	leave func()
}

func (g guarded) Done() <-chan struct{}        { return g.done }
func (g guarded) AfterFunc(func()) func() bool { return func() bool { g.leave(); return true } }

// brake is a hook that holds up what is sent about some locks.
func brake(names string, hold func()) redis.Hook {
	return onEach(func(cmd redis.Cmder) {
		if slices.ContainsFunc(cmd.Args(), func(arg any) bool { return strings.Contains(text(arg), names) }) {
			hold()
		}
	})
}

// codePlaces are where a user's code may run when a hold is lost. Each returns an RWLock, and the context to
// take that hold with.
var codePlaces = map[string]func(w *world, code func(*rwlock.RWLock)) (rw *rwlock.RWLock,
	ctx context.Context){
	"logger": func(w *world, code func(*rwlock.RWLock)) (rw *rwlock.RWLock, ctx context.Context) {
		rw = w.newLock(rwlock.WithLogger(newLogger(func(slog.Record) { code(rw) })))
		return rw, newOwner()
	},
	"context": func(w *world, code func(*rwlock.RWLock)) (rw *rwlock.RWLock, ctx context.Context) {
		rw = w.newLock()
		return rw, guarded{newOwner(), make(chan struct{}), func() { code(rw) }}
	},
}

// codeDeeds are what it may do there.
var codeDeeds = map[string]func(rw *rwlock.RWLock){
	"blocks": func(*rwlock.RWLock) { time.Sleep(8 * time.Second) },
	"calls Inspect": func(rw *rwlock.RWLock) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = rw.Inspect(ctx, "kept 0")
	},
	"locks": func(rw *rwlock.RWLock) {
		h, err := rw.Lock(newOwner(), "kept 0", rwlock.MaxWait(8*time.Second))
		if err == nil {
			_ = h.Unlock(context.Background())
		}
	},
}

// A watch says when code of the user's is to run, and how often it has begun to.
type watch struct {
	armed atomic.Bool
	ran   atomic.Int32
}

// eachUserCode runs fn in bubbles for all code of the user's.
func eachUserCode(t *testing.T, fn func(w *world, rw *rwlock.RWLock, ctx context.Context, code *watch)) {
	t.Helper()
	parallel(t)
	for where, build := range codePlaces {
		for what, code := range codeDeeds {
			t.Run(where+" "+what, func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(w *world) {
					var on watch
					rw, ctx := build(w, func(rw *rwlock.RWLock) {
						if on.armed.Load() {
							on.ran.Add(1)
							code(rw)
						}
					})
					fn(w, rw, ctx, &on)
				})
			})
		}
	}
}

// However long the user's code takes that runs when a hold is lost, and whatever it calls, the other holds
// are renewed, and the loss of another hold is noticed at its deadline.
func TestUserCodeDelaysNoRenewalAndNoNoticeOfALoss(t *testing.T) {
	losses := map[string]func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold{
		"that the server tells of": func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold {
			h := take(w, ctx, rw, write, "lost", rwlock.Lease(3*time.Second))
			require.NoError(w, w.newLock().ForceUnlock(context.Background(), "lost"))
			return h
		},
		"at its deadline": func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold {
			return take(w, ctx, rw, write, "lost", rwlock.Lease(time.Second), rwlock.NoRenew())
		},
	}
	each(t, losses, func(t *testing.T, lose func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold) {
		eachUserCode(t, func(w *world, rw *rwlock.RWLock, ctx context.Context, code *watch) {
			var kept []*rwlock.Hold
			for i := range 4 {
				kept = append(kept, take(w, newOwner(), rw, bothModes[i%2], fmt.Sprint("kept ", i),
					rwlock.Lease(3*time.Second)))
			}
			time.Sleep(400 * time.Millisecond) // so that the renewals do not all travel together
			start := time.Now()
			second := take(w, newOwner(), rw, write, "lost as well", rwlock.Lease(2*time.Second), rwlock.NoRenew())
			h := lose(w, rw, ctx)
			require.NoError(w, h.Context().Err())
			code.armed.Store(true)
			w.lostWhen(h)
			require.Equal(w, 2*time.Second-margin(2*time.Second), w.lostWhen(second).Sub(start))
			time.Sleep(30 * time.Second)
			require.Positive(w, code.ran.Load())
			requireHeld(w, kept...)
			unlock(w, kept...)
			for _, h := range []*rwlock.Hold{h, second} {
				w.returnsIn(bound+8*time.Second, "Unlock", func() { _ = h.Unlock(context.Background()) })
			}
		})
	})
}

// A client's hook that holds up the requests about some locks delays no renewal of the others, for one call
// or for many, however often their requests are repeated; on one server, though it never returns.
func TestHookThatBlocksDelaysNoRenewalOfOtherLocks(t *testing.T) {
	type test struct {
		servers, crowd     int
		lease, held, every time.Duration // for how long a request is held up, and how often a call begins
	}
	each(t, map[string]test{
		"one call":  {1, 1, 2 * time.Second, time.Hour, 0},
		"many":      {1, 30, 2 * time.Second, time.Hour, 0},
		"slow":      {1, 30, 30 * time.Second, 20 * time.Second, 970 * time.Millisecond},
		"of quorum": {3, 30, 30 * time.Second, 20 * time.Second, 970 * time.Millisecond},
	}, func(t *testing.T, c test) {
		inMemory(t, c.servers, func(w *world) {
			gate, open := context.WithCancel(context.Background())
			slow := brake("stuck", func() {
				select {
				case <-gate.Done():
				case <-time.After(c.held):
				}
			})
			rw := w.newLockVia(func(c *redis.Client) { c.AddHook(slow) }, rwlock.WithLease(c.lease))
			w.Cleanup(open)
			var kept []*rwlock.Hold
			for i := range 50 {
				kept = append(kept, take(w, newOwner(), rw, bothModes[i%2], fmt.Sprint("kept ", i)))
			}
			ctx, cancel := context.WithCancel(context.Background())
			var calls []*call
			for i := range c.crowd {
				calls = append(calls, w.launch(rwlock.WithOwner(ctx, rwlock.NewOwner()), rw, write,
					fmt.Sprint("stuck ", i)))
				time.Sleep(c.every)
			}
			time.Sleep(time.Minute) // those that get the lock renew it
			requireHeld(w, kept...)
			cancel()
			open()
			for _, c := range calls {
				if h, err := c.wait(); err == nil {
					_ = h.Unlock(ctx)
				} else {
					require.ErrorIs(w, err, context.Canceled)
				}
			}
			unlock(w, kept...)
		})
	})
}

// A hook that panics, or ends its goroutine, in a lock call leaves no lock behind that nobody releases, and no
// goroutine.
func TestHookThatPanicsInACall(t *testing.T) {
	wants := []rwlock.Want{need("a", write), need("n", write)}
	var many []rwlock.Want // so many that the last one is asked for alone
	for i := range 201 {
		many = append(many, need(fmt.Sprintf("%03d", i), write))
	}
	type way struct {
		fails func()
		call  func(*rwlock.RWLock) ([]*rwlock.Hold, error) // with a MaxWait, the caller never sends
		at    int64                                        // which of the commands that the caller sends fails
		first string                                       // lock
	}
	lock := func(rw *rwlock.RWLock) ([]*rwlock.Hold, error) {
		h, err := rw.Lock(newOwner(), "n")
		return []*rwlock.Hold{h}, err
	}
	all := func(rw *rwlock.RWLock) ([]*rwlock.Hold, error) {
		return nil, rw.WithAll(newOwner(), wants, func(context.Context, []*rwlock.Hold) error { return nil })
	}
	tryAll := func(rw *rwlock.RWLock) ([]*rwlock.Hold, error) { return rw.TryAll(newOwner(), many) }
	oh := func() { panic("oh") }
	each(t, map[string]way{
		"Lock, panic": {oh, lock, 1, "n"}, "Lock, Goexit": {runtime.Goexit, lock, 1, "n"},
		"WithAll, panic": {oh, all, 2, "a"}, "WithAll, Goexit": {runtime.Goexit, all, 2, "a"},
		"TryAll, panic": {oh, tryAll, 1, "000"}, "TryAll, Goexit": {runtime.Goexit, tryAll, 1, "000"},
	},
		func(t *testing.T, x way) {
			onServers(t, func(w *world) {
				var caller atomic.Uint64 // its goroutine
				var sent atomic.Int64
				said := &records{}
				rw := w.newLockVia(func(c *redis.Client) {
					c.AddHook(onEach(func(redis.Cmder) {
						if client.Goroutine() == caller.Load() && sent.Add(1) == x.at {
							x.fails()
						}
					}))
				}, rwlock.WithLogger(said.logger()))
				eventually(w, func() bool { // the library may send for the caller
					unlock(w, take(w, newOwner(), rw, write, "n"))
					returned, done := false, make(chan struct{})
					go func() {
						defer close(done)
						defer func() { _ = recover() }()
						sent.Store(0)
						caller.Store(client.Goroutine())
						defer caller.Store(0)
						holds, err := x.call(rw)
						returned = true
						caller.Store(0)
						require.NoError(w, err)
						unlock(w, holds...)
					}()
					<-done
					return !returned
				}, "a hook that fails")
				other := w.newLock()
				unlock(w, take(w, newOwner(), other, write, x.first))
				unlock(w, take(w, newOwner(), rw, write, x.first))
				waitFree(w, other, x.first)
				require.Empty(w, rw.Snapshot().Holds)
				require.Empty(w, said.items(), "nothing is forgotten")
			})
		})
}

// A curious context asks the library something whenever it is asked for its error.
type curious struct {
	context.Context
	h *rwlock.Hold
}

func (c curious) Err() error {
	_ = c.h.Deadline()
	return c.Context.Err()
}

// A faulty context never says an error, though it may have ended, or panics once it has been asked so often.
type faulty struct {
	context.Context
	asks  *atomic.Int64 // or nil
	ended chan struct{}
}

func (c faulty) Done() <-chan struct{} {
	if c.asks != nil && c.asks.Add(-1) == 0 {
		panic("oh")
	}
	return c.ended
}

func (c faulty) Err() error {
	if c.asks != nil && c.asks.Add(-1) == 0 {
		panic("oh")
	}
	return nil
}

// A context that panics, and one that ends without an error, leave no lock behind that nobody releases.
func TestFaultyContextsLeaveNothing(t *testing.T) {
	onServers(t, func(w *world) {
		rw, other := w.newLock(), w.newLock()
		panics := func(call func()) (did bool) {
			defer func() { did = recover() != nil }()
			call()
			return false
		}
		wants := []rwlock.Want{need("a", write), need("b", read), need("c", write)}
		for n := int64(1); ; n++ {
			asks := new(atomic.Int64)
			asks.Store(n)
			if !panics(func() {
				holds, err := rw.TryAll(faulty{newOwner(), asks, nil}, wants)
				require.NoError(w, err)
				unlock(w, holds...)
			}) {
				require.Greater(w, n, int64(5))
				break
			}
			for _, want := range wants {
				waitFree(w, other, want.Name)
			}
		}
		require.Empty(w, rw.Snapshot().Holds)

		h, ended := take(w, newOwner(), other, write, "n"), make(chan struct{})
		close(ended)
		require.ErrorIs(w, errOf(rw.Lock(faulty{newOwner(), nil, ended}, "n")), context.Canceled)
		unlock(w, h)
		waitFree(w, other, "n")
	})
}

// Contexts are code of the user, which may call the library.
func TestContextThatCallsTheLibrary(t *testing.T) {
	onServers(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		outer, other := take(w, newOwner(), rw, write, "outer"), take(w, newOwner(), far, write, "n")
		ask := func(d time.Duration) curious { return curious{lasting(w, d), outer} }
		for _, c := range []*call{w.launch(ask(w.while), rw, read, "n"), w.launch(ask(hang), rw, read, "n",
			rwlock.MaxWait(w.while))} {
			require.ErrorIs(w, errOf(c.wait()), context.DeadlineExceeded)
		}
		ends := func(what string, call func() error) {
			require.NoError(w, errOf(w.start(call).wait()), what)
		}
		unlock(w, other)
		var h *rwlock.Hold
		ends("RLock", func() (err error) {
			h, err = rw.RLock(ask(hang), "n")
			return err
		})
		ends("TryUpgrade", func() error { return h.TryUpgrade(ask(hang)) })
		ends("Extend", func() error { return h.Extend(ask(hang), time.Hour) })
		ends("Downgrade", func() error { return h.Downgrade(ask(hang)) })
		ends("Detach", func() error { return errOf(h.Detach(ask(hang), w.lease)) })
		ends("Unlock", func() error { return outer.Unlock(ask(hang)) })
		ends("Shutdown", func() error { return rw.Shutdown(ask(hang)) })
	})
}

// confirms checks that the replicas confirm what a call gets, that a call fails which they do not confirm,
// and that this leaves nothing. There are n of them.
func confirms(t *testing.T, c redis.UniversalClient, n int, freeze, thaw func()) {
	ctx := context.Background()
	w := &world{T: t}
	rw := newLockOn(t, c, rwlock.WithReplicas(n, 20*time.Second))
	more := newLockOn(t, c, rwlock.WithReplicas(n+1, 50*time.Millisecond))
	plain := newLockOn(t, c)
	name := "a lock of " + t.Name()
	for _, mode := range bothModes {
		h := take(t, newOwner(), rw, mode, name)
		unlock(t, take(t, h.Context(), rw, mode, name), h)
		for _, call := range []lockFunc{acquire, try} {
			requireError(t, errOf(call(ctx, more, mode, name)), rwlock.ErrNotReplicated, "of")
			waitFree(t, plain, name)
		}
		h = take(t, newOwner(), plain, write, name)
		waiting := w.enqueue(newOwner(), rw, mode, name)
		unlock(t, h)
		unlock(t, waiting.granted())
	}
	h := take(t, newOwner(), rw, write, "another of "+t.Name())
	freeze()
	_, err := rw.Lock(ctx, name, rwlock.MaxWait(300*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	few := newLockOn(t, c, rwlock.WithReplicas(n, 1500*time.Millisecond)) // more than one request waits
	require.ErrorIs(t, errOf(few.Lock(ctx, name)), rwlock.ErrNotReplicated)
	waiting := w.launch(newOwner(), rw, write, name)
	thaw()
	unlock(t, waiting.granted(), h)
}

// A call WithReplicas succeeds when so many replicas have its grant, and otherwise fails and gives the lock
// back: on a server, and on each master of a cluster.
func TestWithReplicas(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		master, replicas := testredis.StartReplicated(t, 2)
		confirms(t, master.Client(), 2, replicas[0].Pause, replicas[0].Resume)
	})
	t.Run("late", func(t *testing.T) { // by more than the lease, which is renewed meanwhile
		t.Parallel()
		const lease = 4 * time.Second
		master, replicas := testredis.StartReplicated(t, 1)
		rw := newLockOn(t, master.Client(), rwlock.WithReplicas(1, hang), rwlock.WithLease(lease))
		unlock(t, take(t, newOwner(), rw, write, "n"))
		replicas[0].Pause()
		time.AfterFunc(5*lease/2, replicas[0].Resume)
		w, calls := &world{T: t}, []*call(nil)
		for i := range 40 { // they share connections that wait
			opts := []rwlock.LockOption(nil)
			if i%4 == 0 {
				opts = append(opts, rwlock.NoRenew())
			}
			calls = append(calls, w.launch(newOwner(), rw, bothModes[i%2], fmt.Sprint("late ", i), opts...))
			time.Sleep(20 * time.Millisecond)
		}
		for i, c := range calls {
			if h := c.granted(); i%4 == 0 {
				_ = h.Unlock(context.Background()) // its lease may be over
			} else {
				unlock(t, h)
			}
		}
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := testredis.StartReplicatedCluster(t, 3, "--cluster-node-timeout", "60000")
		c := cluster.Client()
		each := func(do func(*testredis.Server)) func() {
			return func() {
				for _, s := range cluster.Nodes[3:] {
					do(s)
				}
			}
		}
		confirms(t, c, 1, each((*testredis.Server).Pause), each((*testredis.Server).Resume))
		rw := newLockOn(t, c, rwlock.WithReplicas(1, 20*time.Second))
		for i := range 3 {
			unlock(t, take(t, newOwner(), rw, write, cluster.On(i, "on each")))
		}
	})
}
