package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

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
	{"write re-entry", reentryOf(write), 2, 8},
	{"read re-entry", reentryOf(read), 2, 8},
	{"try write on held", tryOnHeld(write), 1, 5},
	{"try read on held", tryOnHeld(read), 1, 5},
	{"read pair among others", amongReaders(10), 2, 8},
}

func pairOf(mode rwlock.Mode) prepare {
	return func(tb testing.TB, rw *rwlock.RWLock) func() error {
		return func() error { return pair(context.Background(), rw, mode, tb.Name()) }
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
		takeMany(tb, n, func(int) (*rwlock.Hold, error) {
			return rw.RLock(newOwner(), tb.Name(), rwlock.NoRenew(), rwlock.Lease(time.Hour))
		})
		return pairOf(read)(tb, rw)
	}
}

// takeMany takes n locks, some at a time, and keeps them until the test ends.
func takeMany(tb testing.TB, n int, take func(i int) (*rwlock.Hold, error)) {
	tb.Helper()
	holds, errs := make([]*rwlock.Hold, n), make([]error, 64)
	var group sync.WaitGroup
	for g := range errs {
		group.Go(func() {
			for i := g; i < n && errs[g] == nil; i += len(errs) {
				holds[i], errs[g] = take(i)
			}
		})
	}
	group.Wait()
	require.NoError(tb, errors.Join(errs...))
	tb.Cleanup(func() { runtime.KeepAlive(holds) })
}

// A gauge is a server of a test's own, and reads what it has counted.
type gauge struct {
	addr string
	real bool
	asks *redis.Client
}

func newGauge(tb testing.TB) *gauge {
	tb.Helper()
	if testredis.Available() {
		return gaugeOn(tb, testredis.Start(tb))
	}
	m, err := miniredis.Run()
	require.NoError(tb, err)
	m.ClockTTL(true)
	tb.Cleanup(m.Close)
	return &gauge{addr: m.Addr(), asks: testredis.NewClient(tb, m.Addr())}
}

func gaugeOn(tb testing.TB, s *testredis.Server) *gauge {
	return &gauge{addr: s.Addr(), real: true, asks: testredis.NewClient(tb, s.Addr())}
}

func (g *gauge) client(tb testing.TB, hooks ...redis.Hook) *redis.Client {
	c := testredis.NewClient(tb, g.addr)
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

// read returns what the server has spent so far; nothing for one that does not count.
func (g *gauge) read(tb testing.TB) cost {
	tb.Helper()
	c := cost{by: map[string]float64{}}
	if !g.real {
		return c
	}
	text, err := g.asks.Info(context.Background(), "commandstats").Result()
	require.NoError(tb, err)
	for line := range strings.Lines(text) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		command, ok := strings.CutPrefix(field, "cmdstat_")
		if !ok {
			continue
		}
		var calls float64
		_, err := fmt.Sscanf(value, "calls=%g", &calls)
		require.NoError(tb, err, line)
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

// floor returns what does nothing at the server, but with the same KEYS and ARGV as a workload, made
// beforehand.
func (g *gauge) floor(tb testing.TB, c redis.UniversalClient, prepare prepare) func() error {
	tb.Helper()
	rec := &recorder{}
	op := prepare(tb, newLockOn(tb, g.client(tb, rec)))
	require.NoError(tb, op()) // loads the scripts
	scripts := rec.record(func() { require.NoError(tb, op()) })
	sha, err := g.asks.ScriptLoad(context.Background(), "return 1").Result()
	require.NoError(tb, err)
	return func() error {
		for _, s := range scripts {
			if err := c.EvalSha(context.Background(), sha, s.keys, s.args...).Err(); err != nil {
				return err
			}
		}
		return nil
	}
}

// A recorder is a hook that keeps the scripts a client sends.
type recorder struct {
	mu      sync.Mutex
	on      bool
	scripts []sentScript
}

type sentScript struct {
	keys []string
	args []any
}

// record returns the scripts that are sent while fn runs.
func (r *recorder) record(fn func()) []sentScript {
	r.turn(true)
	fn()
	r.turn(false)
	return r.scripts
}

func (r *recorder) turn(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on = on
}

func (r *recorder) note(cmd redis.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if args := cmd.Args(); r.on && cmd.Name() == "evalsha" {
		n, _ := strconv.Atoi(fmt.Sprint(args[2]))
		var s sentScript
		for _, key := range args[3 : 3+n] {
			s.keys = append(s.keys, text(key))
		}
		for _, arg := range args[3+n:] {
			s.args = append(s.args, text(arg))
		}
		r.scripts = append(r.scripts, s)
	}
}

// text returns what an argument is on the wire; the sender may use a slice of its own again.
func text(arg any) string {
	if b, ok := arg.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(arg)
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.note(cmd)
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			r.note(cmd)
		}
		return next(ctx, cmds)
	}
}
