package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// The tests of this package leave no goroutine behind.
func TestMain(m *testing.M) {
	if os.Getenv(processEnv) != "" {
		playProcess()
		return
	}
	logging.Disable()                              // go-redis reports each connection that a test breaks
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests lose many holds, and log them by t.Log: see logger
	flag.Parse()
	if testing.Short() { // all is in this process, and time is a fake
		_ = os.Setenv("RWLOCK_REDIS_SERVER", os.DevNull)
		_ = os.Unsetenv("RWLOCK_REQUIRE_REDIS")
	}
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		// Most tests wait for the end of some lease, most of their time.
		_ = f.Value.Set(strconv.Itoa(max(runtime.GOMAXPROCS(0), 8)))
	}
	code := m.Run()
	testredis.StopShared()
	if code == 0 {
		err := goleak.Find()
		for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); {
			err = goleak.Find() // a client that was closed while it could not connect tries again a second later
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const (
	// hang is more than anything takes on a real clock, however slow the machine. What is promised in less is
	// measured in bubbles, and on a quiet machine by verify/times.
	hang = time.Minute
	tick = 5 * time.Millisecond
)

// A world is a server, and the time that a test spends there.
type world struct {
	*testing.T
	fake   bool          // time is a fake: it passes only when all goroutines wait, and then at once
	real   bool          // the server is a real one
	lease  time.Duration // a lease whose end a test can wait for, and that a busy machine renews in time
	slack  time.Duration // what a promise of 200 ms may take
	prompt time.Duration // what happens at once may take
	while  time.Duration // for how long to watch that nothing happens
	prefix string
	dial   func(opts ...func(*redis.Options)) *redis.Client
	keys   func() []string
	quorum []func(opts ...func(*redis.Options)) *redis.Client // dials each of several servers; or nil

	failures int32 // so far
}

// mostFailures is how many failures of a test are printed: a crowd fails as one.
const mostFailures = 2

// Errorf is that of the test, for the first failures.
func (w *world) Errorf(format string, args ...any) {
	w.Helper()
	if atomic.AddInt32(&w.failures, 1) > mostFailures {
		w.Fail()
		return
	}
	w.T.Errorf(format, args...)
}

// Error is like Errorf.
func (w *world) Error(args ...any) {
	w.Helper()
	w.Errorf("%s", fmt.Sprintln(args...))
}

// everywhere runs fn on a miniredis in a bubble, where hours cost nothing and times are exact, and on
// servers.
func everywhere(t *testing.T, fn func(w *world)) {
	t.Helper()
	bubbled(t, fn)
	if testing.Short() {
		return
	}
	t.Run("quorum of servers", func(t *testing.T) {
		t.Parallel()
		fn(onServer(t, testredis.Voters(t)...))
	})
	onServers(t, fn)
}

// undisturbed is everywhere without the quorum of servers. A client passes over a server that leaves a
// request without an answer for a quarter of a second. On a busy machine clients therefore disagree on the
// home of a name now and then: waiters change servers, and lose their order. verify/times asks for it on a
// quiet one. And a client that trusts a server again asks it for votes that it lacks.
func undisturbed(t *testing.T, fn func(w *world)) {
	t.Helper()
	bubbled(t, fn)
	onServers(t, fn)
}

// bubbled is everywhere without the servers.
func bubbled(t *testing.T, fn func(w *world)) {
	t.Helper()
	each(t, map[string]int{"bubble": 1, "quorum": 3}, func(t *testing.T, servers int) { inMemory(t, servers, fn) })
}

func inBubble(t *testing.T, fn func(w *world)) {
	t.Helper()
	inMemory(t, 1, fn)
}

// inMemory runs fn in a bubble, on miniredis: on one, or over several that are a quorum.
func inMemory(t *testing.T, servers int, fn func(w *world)) {
	t.Helper()
	parallel(t)
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			T: t, fake: true, prefix: "rwlock", lease: 30 * time.Second, slack: 200 * time.Millisecond,
			while: 2 * time.Minute,
		}
		var all []func() []string
		for range servers {
			m := testredis.Mem(t)
			all = append(all, m.Keys)
			dial := func(opts ...func(*redis.Options)) *redis.Client { return testredis.MemClient(t, m, opts...) }
			w.add(dial, servers)
		}
		w.keys = func() []string { return ofLocks(union(all)) }
		t.Cleanup(func() {
			if t.Skipped() {
				return
			}
			time.Sleep(time.Hour)
			w.requireClean()
			time.Sleep(48 * time.Hour)
			for _, key := range union(all) {
				require.True(t, strings.HasSuffix(key, ":mark"), "key %q does not expire", key)
			}
		})
		fn(w)
	})
}

// inOrder reports whether waiters keep their order: see undisturbed.
func (w *world) inOrder() bool { return !w.real || w.quorum == nil }

// add adds a server, one of so many.
func (w *world) add(dial func(opts ...func(*redis.Options)) *redis.Client, servers int) {
	if w.dial == nil {
		w.dial = dial
	}
	if servers > 1 {
		w.quorum = append(w.quorum, dial)
	}
}

// union returns what is in any of the lists.
func union(lists []func() []string) (all []string) {
	for _, list := range lists {
		all = append(all, list()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// onServers runs fn on a real server, or on a miniredis if there is none, by TCP and a real clock.
func onServers(t *testing.T, fn func(w *world)) {
	t.Helper()
	parallel(t)
	if testing.Short() {
		t.Skip("-short: no server")
	}
	testredis.One(t, func(t *testing.T, b testredis.Backend) { fn(onServer(t, b)) })
}

// onServer returns the world of a server, or of several that are a quorum.
func onServer(t *testing.T, servers ...testredis.Backend) *world {
	w := &world{
		T: t, real: servers[0].Real(), prefix: servers[0].Prefix,
		lease: 3 * time.Second, slack: hang, prompt: hang, while: 30 * time.Millisecond,
	}
	var all []func() []string
	for _, b := range servers {
		all = append(all, func() []string { return b.Keys(context.Background()) })
		w.add(b.Client, len(servers))
	}
	w.keys = func() []string { return ofLocks(union(all)) }
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		var left []string
		eventually(t, func() bool {
			left = slices.DeleteFunc(w.leftovers(), w.ended)
			return len(left) == 0
		}, "keys of locks that are over: %q", &left)
		for _, b := range servers {
			if w.quorum == nil {
				b.RequireTTLs(t)
				continue
			}
			for _, key := range ofLocks(b.Keys(context.Background())) {
				ttl := b.Client().PTTL(context.Background(), key).Val()
				require.NotEqual(t, time.Duration(-1), ttl, "key %q has no time to live", key)
			}
		}
	})
	return w
}

// ofLocks returns the keys that are no labels, and no marks of servers.
func ofLocks(keys []string) []string {
	return slices.DeleteFunc(keys, func(key string) bool {
		return strings.Contains(key, ":label:") || strings.HasSuffix(key, ":mark")
	})
}

// leftovers returns the keys that do not outlive the leases. What does is one hash for a name, which says
// that nobody has the lock.
func (w *world) leftovers() []string {
	w.settle(10 * time.Millisecond)
	var keys []string
	for _, key := range w.keys() {
		if strings.HasSuffix(key, "}:leases") || strings.HasSuffix(key, "}:queue") || w.inUse(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// inUse reports whether a lock's hash says that someone holds the lock or waits for it.
func (w *world) inUse(key string) bool {
	for _, dial := range w.servers() {
		state, err := w.stateAt(dial(), key)
		if err != nil {
			return !strings.Contains(err.Error(), "WRONGTYPE") // which a test has put there
		}
		if state.Mode != protocol.None || len(state.Waiters) > 0 {
			return true
		}
	}
	return false
}

// stateAt returns what a server knows of the lock whose hash is key.
func (w *world) stateAt(server *redis.Client, key string) (protocol.State, error) {
	reply, err := server.Eval(context.Background(), lua.Inspect.Source,
		[]string{key, key + ":leases", key + ":queue"}).Result()
	if err != nil {
		return protocol.State{}, err
	}
	state, err := protocol.DecodeState(reply)
	require.NoError(w, err)
	return state, nil
}

// servers returns what dials each of the servers.
func (w *world) servers() []func(opts ...func(*redis.Options)) *redis.Client {
	if w.quorum != nil {
		return w.quorum
	}
	return []func(opts ...func(*redis.Options)) *redis.Client{w.dial}
}

// ended reports whether a key has only leases that are over. One of a process that has died stays, for as
// long as the key lives, on a server of a quorum that nobody asks again: the next holder needs a majority.
func (w *world) ended(key string) bool {
	now := fmt.Sprint(time.Now().UnixMilli())
	return w.quorum != nil && strings.HasSuffix(key, "}:leases") && !slices.ContainsFunc(w.servers(),
		func(dial func(opts ...func(*redis.Options)) *redis.Client) bool {
			return dial().ZCount(context.Background(), key, now, "+inf").Val() > 0
		})
}

// settle gives the servers of a quorum time to run what calls did not wait for: Unlock returns when a
// majority has answered.
func (w *world) settle(d time.Duration) {
	if w.quorum != nil {
		time.Sleep(d)
	}
}

// requireHolders requires that n owners hold a lock. Over a quorum there may seem to be one more for a
// moment: Unlock returns when a majority has answered, and the late votes of two holds that one owner had in
// turn look like one hold.
func (w *world) requireHolders(rw *rwlock.RWLock, name string, n int) {
	w.Helper()
	if w.quorum != nil {
		eventually(w, func() bool { return len(inspect(w, rw, name).Holders) == n }, "%d holders of %q", n, name)
		return
	}
	require.Len(w, inspect(w, rw, name).Holders, n, name)
}

// removeKeys has the server lose all that it knows.
func (w *world) removeKeys() {
	w.Helper()
	w.settle(100 * time.Millisecond) // or what comes late would find that its tombstone is gone
	for _, dial := range w.servers() {
		c := dial()
		for _, key := range w.keys() {
			require.NoError(w, c.Del(context.Background(), key).Err())
		}
	}
}

func (w *world) requireClean() {
	w.Helper()
	left := w.leftovers()
	if !w.fake {
		eventually(w, func() bool { left = w.leftovers(); return len(left) == 0 }, "clean: %q", &left)
	}
	require.Empty(w, left, "keys of locks that are over")
}

// logger returns a logger whose first records are shown with the test, if that fails. More would hide why it
// does.
func logger(t testing.TB) *slog.Logger {
	var mu sync.Mutex
	left := 3
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		left = 0 // t panics if it is used any more
	})
	return newLogger(func(r slog.Record) {
		mu.Lock()
		defer mu.Unlock()
		if left > 0 {
			left--
			t.Log(textOf(r))
		}
	})
}

// options are those that the RWLocks of a test begin with.
func (w *world) options(opts []rwlock.Option) []rwlock.Option {
	return append([]rwlock.Option{rwlock.WithPrefix(w.prefix), rwlock.WithLogger(logger(w))}, opts...)
}

// newLock returns an RWLock with a client of its own, closed when the test ends.
func (w *world) newLock(opts ...rwlock.Option) *rwlock.RWLock {
	w.Helper()
	return w.newLockVia(func(*redis.Client) {}, opts...)
}

// newLockVia is newLock with clients that are changed before.
func (w *world) newLockVia(change func(*redis.Client), opts ...rwlock.Option) *rwlock.RWLock {
	w.Helper()
	rw := w.newLockOver(change, opts)
	w.Cleanup(func() { require.NoError(w, rw.Close()) })
	return rw
}

// open returns an RWLock with clients of its own, which need not close without an error.
func (w *world) open(opts []rwlock.Option, with ...func(*redis.Options)) *rwlock.RWLock {
	w.Helper()
	rw := w.newLockOver(func(*redis.Client) {}, opts, with...)
	w.Cleanup(func() { _ = rw.Close() })
	return rw
}

func (w *world) newLockOver(change func(*redis.Client), opts []rwlock.Option,
	with ...func(*redis.Options)) *rwlock.RWLock {
	w.Helper()
	var clients []redis.UniversalClient
	for _, dial := range w.servers() {
		c := dial(with...)
		change(c)
		clients = append(clients, c)
	}
	rw, err := rwlock.New(clients[0], w.options(opts)...)
	if w.quorum != nil {
		rw, err = rwlock.NewQuorum(clients, w.options(opts)...)
	}
	require.NoError(w, err)
	return rw
}

// newLockOn returns an RWLock over c, closed when the test ends.
func newLockOn(t testing.TB, c redis.UniversalClient, opts ...rwlock.Option) *rwlock.RWLock {
	t.Helper()
	rw, err := rwlock.New(c, append([]rwlock.Option{rwlock.WithLogger(logger(t))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rw.Close()) })
	return rw
}

// newMortal returns an RWLock that can die, as all of a process does: the wire is all that connects it.
func (w *world) newMortal(opts ...rwlock.Option) (*rwlock.RWLock, *wire) {
	w.Helper()
	wire := &wire{}
	rw := w.open(opts, wire.into, withoutRetries)
	w.Cleanup(wire.mend) // so that Close need not wait for a server that does not answer
	return rw, wire
}

// withoutRetries has the client fail with what it meets first.
func withoutRetries(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }

// A wire connects a client with its server.
type wire struct {
	mu    sync.Mutex
	state wireState
	conns []*wireConn
}

type wireState int

const (
	whole  wireState = iota
	frozen           // what is sent is swallowed
	gone             // and whoever dials waits in vain
	cut              // nobody can dial
)

var errCut = errors.New("the wire is cut")

func (w *wire) into(o *redis.Options) {
	dial := o.Dialer
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if w.is(gone) {
			timeout := time.NewTimer(5 * time.Second) // as clients do by default
			defer timeout.Stop()
			select {
			case <-ctx.Done():
			case <-timeout.C:
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ETIMEDOUT}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.state == cut {
			return nil, errCut
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn := &wireConn{Conn: c, wire: w}
		w.conns = append(w.conns, conn)
		return conn, nil
	}
}

func (w *wire) is(s wireState) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state == s
}

func (w *wire) set(s wireState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = s
}

func (w *wire) freeze() { w.set(frozen) }

func (w *wire) mend() { w.set(whole) }

// cut ends all connections, and lets no other be made.
func (w *wire) cut() {
	w.set(cut)
	w.endConns()
}

func (w *wire) endConns() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.over.Store(true)
		_ = c.Close()
	}
	w.conns = nil
}

type wireConn struct {
	net.Conn
	wire *wire
	over atomic.Bool
}

func (c *wireConn) Write(b []byte) (int, error) {
	if c.wire.is(frozen) || c.wire.is(gone) {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.over.Load() {
		err = io.EOF
	}
	return n, err
}

// The client sets deadlines also on a connection that has ended.
func (c *wireConn) SetDeadline(t time.Time) error { return c.ignore(c.Conn.SetDeadline(t)) }

func (c *wireConn) SetReadDeadline(t time.Time) error { return c.ignore(c.Conn.SetReadDeadline(t)) }

func (c *wireConn) SetWriteDeadline(t time.Time) error { return c.ignore(c.Conn.SetWriteDeadline(t)) }

func (c *wireConn) ignore(err error) error {
	if c.over.Load() {
		return nil
	}
	return err
}

// A sending is a hook of a client: it is given the commands that are sent together, and what sends them.
type sending func(ctx context.Context, cmds []redis.Cmder, send func() error) error

func (sending) DialHook(next redis.DialHook) redis.DialHook { return next }

func (fn sending) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return fn(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (fn sending) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return fn(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// each runs fn for each case, as parallel subtests by these names.
func each[C any](t *testing.T, cases map[string]C, fn func(t *testing.T, c C)) {
	t.Helper()
	parallel(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, c)
		})
	}
}

// eachOf is each for cases whose texts are their names.
func eachOf[C any](t *testing.T, cases []C, fn func(t *testing.T, c C)) {
	t.Helper()
	named := map[string]C{}
	for _, c := range cases {
		named[fmt.Sprint(c)] = c
	}
	each(t, named, fn)
}

// madeParallel are the tests that parallel was called for.
var madeParallel sync.Map

// parallel makes a test parallel, once. Subtests are made so by what runs them.
func parallel(t *testing.T) {
	if _, already := madeParallel.LoadOrStore(t, true); !already && !strings.Contains(t.Name(), "/") {
		t.Parallel()
	}
}

// together runs fn for all numbers below n, at the same time.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// eventually waits until cond holds. It asks ever more rarely, as asking may be what a busy machine is busy
// with.
func eventually(t testing.TB, cond func() bool, what string, args ...any) {
	t.Helper()
	pause := tick
	for end := time.Now().Add(hang); !cond(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: "+what, append([]any{hang}, args...)...)
		}
		pause = min(pause*5/4, 20*tick)
	}
}

// inspect returns the state of a lock. Servers that are not ready at the moment, as in a cluster that heals,
// are asked again.
func inspect(t testing.TB, rw *rwlock.RWLock, name string) (s rwlock.State) {
	t.Helper()
	var err error
	eventually(t, func() bool {
		s, err = rw.Inspect(context.Background(), name)
		return err == nil || !protocol.Passing(err)
	}, "an answer about %q", name)
	require.NoError(t, err)
	return s
}

// waitQueued waits until n owners wait for the lock.
func waitQueued(t testing.TB, rw *rwlock.RWLock, name string, n int) {
	t.Helper()
	eventually(t, func() bool {
		s, err := rw.Inspect(context.Background(), name)
		return err == nil && len(s.Waiters) == n // a cluster may be down for a moment
	}, "%d waiters for %q", n, name)
}

// waitFree waits until nobody holds the lock or waits for it.
func waitFree(t testing.TB, rw *rwlock.RWLock, name string) {
	t.Helper()
	eventually(t, func() bool {
		s := inspect(t, rw, name)
		return s.Mode == rwlock.None && len(s.Waiters) == 0
	}, "%q free", name)
}

// waitWithdrawn waits until no claim waits for the lock. Calls that give up wait for no answer.
func waitWithdrawn(t testing.TB, rw *rwlock.RWLock, name string) {
	t.Helper()
	eventually(t, func() bool { return len(inspect(t, rw, name).Waiters) == 0 }, "nobody waits for %q", name)
}

// held returns what an owner holds of a lock in a mode, or the zero Holder.
func held(t testing.TB, rw *rwlock.RWLock, name string, o rwlock.Owner, mode rwlock.Mode) rwlock.Holder {
	t.Helper()
	for _, h := range inspect(t, rw, name).Holders {
		if h.Owner == o && h.Mode == mode {
			return h
		}
	}
	return rwlock.Holder{}
}

// waitCount waits until Inspect shows that an owner has so many holds.
func waitCount(t testing.TB, rw *rwlock.RWLock, name string, o rwlock.Owner, mode rwlock.Mode, count int) {
	t.Helper()
	eventually(t, func() bool { return held(t, rw, name, o, mode).Count == count }, "a count of %d", count)
}

// lockFunc is acquire or try.
type lockFunc func(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) (*rwlock.Hold, error)

// acquire calls RLock or Lock.
func acquire(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) (*rwlock.Hold, error) {
	if mode == rwlock.Write {
		return rw.Lock(ctx, name, opts...)
	}
	return rw.RLock(ctx, name, opts...)
}

// try calls TryRLock or TryLock. On a busy machine, real servers of a quorum may be silent for so long that a
// try does not wait for them: it is repeated.
func try(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) (h *rwlock.Hold, err error) {
	for end := time.Now().Add(hang); ; time.Sleep(tick) {
		h, err = tryOnce(ctx, rw, mode, name, opts...)
		if !errors.Is(err, rwlock.ErrNoMajority) || time.Now().After(end) {
			return h, err
		}
	}
}

func tryOnce(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) (*rwlock.Hold, error) {
	if mode == rwlock.Write {
		return rw.TryLock(ctx, name, opts...)
	}
	return rw.TryRLock(ctx, name, opts...)
}

// take has the lock, or ends the test.
func take(t testing.TB, ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) *rwlock.Hold {
	t.Helper()
	h, err := acquire(ctx, rw, mode, name, append([]rwlock.LockOption{rwlock.MaxWait(hang)}, opts...)...)
	require.NoError(t, err)
	return h
}

// keep is take for a hold that lasts until the test ends.
func (w *world) keep(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) *rwlock.Hold {
	w.Helper()
	h := take(w, ctx, rw, mode, name, opts...)
	w.Cleanup(func() { runtime.KeepAlive(h) }) // or it would be forgotten
	return h
}

// unlock releases holds. On a real clock, a busy machine may take more than the five seconds after which
// Unlock says that it goes on.
func unlock(t testing.TB, holds ...*rwlock.Hold) {
	t.Helper()
	w, _ := t.(*world)
	for _, h := range holds {
		err := h.Unlock(context.Background())
		if errors.Is(err, context.DeadlineExceeded) && (w == nil || !w.fake) {
			t.Log(err)
			continue
		}
		require.NoError(t, err)
	}
}

// newOwner returns a context of an owner of its own.
func newOwner() context.Context {
	return rwlock.WithOwner(context.Background(), rwlock.NewOwner())
}

// requireHeld requires that no hold was lost.
func requireHeld(t testing.TB, holds ...*rwlock.Hold) {
	t.Helper()
	for _, h := range holds {
		require.NoError(t, context.Cause(h.Context()), h.Name())
	}
}

// requireError requires that an error matches others, and contains texts.
func requireError(t testing.TB, err error, wants ...any) {
	t.Helper()
	for _, want := range wants {
		if target, ok := want.(error); ok {
			require.ErrorIs(t, err, target)
		} else {
			require.ErrorContains(t, err, want.(string))
		}
	}
}

// A call is a lock call that may have to wait, on a goroutine of its own.
type call struct {
	w    *world
	done chan struct{}
	hold *rwlock.Hold
	err  error
	at   time.Time // when it returned
}

// launch makes a lock call.
func (w *world) launch(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) *call {
	c := &call{w: w, done: make(chan struct{})}
	return c.start(func() (err error) {
		c.hold, err = acquire(ctx, rw, mode, name, opts...)
		return err
	})
}

// start makes a call of another kind.
func (w *world) start(fn func() error) *call {
	return (&call{w: w, done: make(chan struct{})}).start(fn)
}

func (c *call) start(fn func() error) *call {
	go func() {
		defer close(c.done)
		c.err = fn()
		c.at = time.Now()
	}()
	return c
}

// enqueue makes a lock call and waits until it is in the queue, behind the others that wait.
func (w *world) enqueue(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string,
	opts ...rwlock.LockOption) *call {
	w.Helper()
	owner, ok := rwlock.OwnerFromContext(ctx)
	if !ok {
		owner = rwlock.NewOwner()
		ctx = rwlock.WithOwner(ctx, owner)
	}
	own := func() (calls, answered int) {
		for _, wait := range rw.Snapshot().Waits {
			if wait.Name == name {
				calls++
				if wait.Blocked != nil {
					answered++
				}
			}
		}
		return calls, answered
	}
	before, _ := own()
	c := w.launch(ctx, rw, mode, name, opts...)
	eventually(w, func() bool {
		s, err := rw.Inspect(context.Background(), name)
		calls, answered := own()
		return err == nil && calls == before+1 && answered == calls &&
			slices.ContainsFunc(s.Waiters, func(waiter rwlock.Waiter) bool { return waiter.Owner == owner })
	}, "a place in the queue for %q", name)
	return c
}

// enqueueAll makes n such calls, each of an owner of its own.
func (w *world) enqueueAll(n int, rw *rwlock.RWLock, mode rwlock.Mode, name string) (calls []*call) {
	w.Helper()
	for range n {
		calls = append(calls, w.enqueue(newOwner(), rw, mode, name))
	}
	return calls
}

// finish releases what the calls get, one after the other.
func finish(calls ...*call) {
	for _, c := range calls {
		c.w.Helper()
		unlock(c.w, c.granted())
	}
}

// wait returns what the call returned.
func (c *call) wait() (*rwlock.Hold, error) {
	c.w.Helper()
	limit := hang
	if c.w.fake {
		limit = 24 * time.Hour
	}
	select {
	case <-c.done:
	case <-time.After(limit):
		c.w.Fatalf("the call has not returned after %v", limit)
	}
	return c.hold, c.err
}

// granted returns the hold that the call waited for.
func (c *call) granted() *rwlock.Hold {
	c.w.Helper()
	h, err := c.wait()
	require.NoError(c.w, err)
	return h
}

// releases has the lock released as soon as the call has it.
func (c *call) releases() {
	go func() {
		if <-c.done; c.err == nil {
			_ = c.hold.Unlock(context.Background())
		}
	}()
}

// first waits until one of the calls has returned, and returns its index.
func (w *world) first(calls []*call) (i int) {
	w.Helper()
	eventually(w, func() bool {
		i = slices.IndexFunc(calls, (*call).returned)
		return i >= 0
	}, "the first of %d calls", len(calls))
	return i
}

// returned reports whether the call has returned.
func (c *call) returned() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// waits ends the test if one of the calls does not go on waiting.
func (w *world) waits(calls ...*call) {
	w.Helper()
	time.Sleep(w.while)
	for _, c := range calls {
		require.False(w, c.returned(), "did not wait: %v", c.err)
	}
}

// within ends the test if more than d has passed since start until at.
func (w *world) within(d time.Duration, start, at time.Time) {
	w.Helper()
	require.LessOrEqual(w, at.Sub(start), d)
}

// lostWhen returns when the hold's context was cancelled, which must be with ErrLost.
func (w *world) lostWhen(h *rwlock.Hold) time.Time {
	w.Helper()
	limit := hang
	if w.fake {
		limit = 24 * time.Hour
	}
	select {
	case <-h.Context().Done():
	case <-time.After(limit):
		w.Fatalf("the hold is not lost after %v", limit)
	}
	require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrLost)
	return time.Now()
}

// isLost is lostWhen, and releases the hold, which says that it was lost.
func (w *world) isLost(h *rwlock.Hold) time.Time {
	w.Helper()
	at := w.lostWhen(h)
	require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
	return at
}

// A workload is what one goroutine does again and again without waiting.
type workload struct {
	name    string
	prepare prepare

	// At most, per operation: the scripts that a client sends, and the commands that they call.
	scripts, calls float64
}

// prepare returns what to do, after what has to be done before.
type prepare = func(testing.TB, *rwlock.RWLock) (op func() error)

var workloads = []workload{
	{"write pair", pairOf(write), 2, 5},
	{"read pair", pairOf(read), 2, 5},
	{"first write pair", firstPairOf(write), 2, 6}, // which sets the time to live
	{"first read pair", firstPairOf(read), 2, 6},
	{"write re-entry", reentryOf(write), 0, 0},
	{"read re-entry", reentryOf(read), 0, 0},
	{"read under a write hold", readUnderWrite, 0, 0},
	{"write pair with a downgrade", downgraded, 3, 13},
	{"write extension", extensionOf(write), 1, 7}, // sent as a renewal is
	{"read extension", extensionOf(read), 1, 7},
	{"try write on held", tryOnHeld(write), 1, 5},
	{"try read on held", tryOnHeld(read), 1, 5},
	{"read pair among others", amongReaders(10), 2, 8},
}

func pairOf(mode rwlock.Mode) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		return func() error { return pair(context.Background(), rw, mode, tb.Name()) }
	}
}

func firstPairOf(mode rwlock.Mode) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		names := 0
		return func() error {
			names++
			return pair(context.Background(), rw, mode, fmt.Sprint(tb.Name(), names))
		}
	}
}

func pair(ctx context.Context, rw *rwlock.RWLock, mode rwlock.Mode, name string) error {
	h, err := acquire(ctx, rw, mode, name)
	if err != nil {
		return err
	}
	return h.Unlock(ctx)
}

func reentryOf(mode rwlock.Mode) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		outer := take(tb, newOwner(), rw, mode, tb.Name())
		return func() error { return pair(outer.Context(), rw, mode, outer.Name()) }
	}
}

func readUnderWrite(tb testing.TB, rw *rwlock.RWLock) func() error {
	outer := take(tb, newOwner(), rw, write, tb.Name())
	return func() error { return pair(outer.Context(), rw, read, outer.Name()) }
}

func downgraded(tb testing.TB, rw *rwlock.RWLock) func() error {
	return func() error {
		h, err := rw.Lock(newOwner(), tb.Name())
		if err != nil {
			return err
		}
		return errors.Join(h.Downgrade(context.Background()), h.Unlock(context.Background()))
	}
}

func extensionOf(mode rwlock.Mode) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		h, d := take(tb, newOwner(), rw, mode, tb.Name()), time.Hour
		return func() error {
			d += time.Minute
			return h.Extend(context.Background(), d)
		}
	}
}

func tryOnHeld(mode rwlock.Mode) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		holder := take(tb, newOwner(), rw, write, tb.Name())
		return func() error {
			_, err := try(context.Background(), rw, mode, holder.Name())
			if errors.Is(err, rwlock.ErrLocked) {
				return nil
			}
			return fmt.Errorf("a try on a held lock: %w", err)
		}
	}
}

func amongReaders(n int) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		var holds []*rwlock.Hold
		for range n {
			holds = append(holds, take(tb, newOwner(), rw, read, tb.Name(), rwlock.NoRenew(), rwlock.Lease(time.Hour)))
		}
		tb.Cleanup(func() { runtime.KeepAlive(holds) }) // or they would be forgotten
		return pairOf(read)(tb, rw)
	}
}

// A gauge is a server of a test's own, and reads what it has counted.
type gauge struct {
	*testredis.Server
	asks *redis.Client
}

func newGauge(tb testing.TB) *gauge {
	tb.Helper()
	return gaugeOn(testredis.Start(tb))
}

func gaugeOn(s *testredis.Server) *gauge { return &gauge{s, s.Client()} }

func (g *gauge) client(hooks ...redis.Hook) *redis.Client {
	c := g.Client()
	for _, hook := range hooks {
		c.AddHook(hook)
	}
	return c
}

// cost is what a server has spent.
type cost struct {
	scripts float64            // that clients sent
	calls   float64            // of commands, by scripts
	by      map[string]float64 // calls of each command, whoever made them
}

// read returns what the server has spent so far.
func (g *gauge) read(tb testing.TB) cost {
	tb.Helper()
	c := cost{by: map[string]float64{}}
	text, err := g.asks.Info(context.Background(), "commandstats").Result()
	require.NoError(tb, err)
	for line := range strings.Lines(text) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		command, ok := strings.CutPrefix(field, "cmdstat_")
		if !ok {
			continue
		}
		var calls float64
		require.NoError(tb, errOf(fmt.Sscanf(value, "calls=%g", &calls)), line)
		c.by[command] = calls
		switch name, _, _ := strings.Cut(command, "|"); name {
		case "eval", "evalsha", "evalsha_ro":
			c.scripts += calls
		case "hello", "client", "info", "ping", "script", "subscribe": // no script calls them
		default:
			c.calls += calls
		}
	}
	return c
}

func (c cost) minus(before cost) cost {
	by := map[string]float64{}
	for command, calls := range c.by {
		by[command] = calls - before.by[command]
	}
	return cost{scripts: c.scripts - before.scripts, calls: c.calls - before.calls, by: by}
}

// of returns what fn costs the server.
func (g *gauge) of(tb testing.TB, fn func()) cost {
	tb.Helper()
	before := g.read(tb)
	fn()
	return g.read(tb).minus(before)
}

// text returns what an argument is on the wire; the sender may use a slice of its own again.
func text(arg any) string {
	if b, ok := arg.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(arg)
}

// scriptHash returns what EVALSHA names a script by.
func scriptHash(name string) string {
	for _, s := range lua.Scripts {
		if s.Name == name {
			return s.SHA
		}
	}
	panic("no script " + name)
}

// loadScripts makes the server know all scripts.
func loadScripts(t *testing.T, c redis.Cmdable) {
	t.Helper()
	for _, s := range lua.Scripts {
		require.NoError(t, c.ScriptLoad(context.Background(), s.Source).Err())
	}
}
