package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// The benchmarks measure a real server where there is one, and miniredis, which counts nothing, where there is not. Beside
// what needs no waiting stands the floor: as many scripts that do nothing, with the same KEYS and ARGV.

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
	micros  float64            // on them
	calls   float64            // of commands, by scripts
	by      map[string]float64 // calls of each command, whoever made them
	bytes   float64            // received and sent
	cpu     float64            // seconds
}

// read returns what the server has spent so far; nothing for one that does not count.
func (g *gauge) read(tb testing.TB) cost {
	tb.Helper()
	c := cost{by: map[string]float64{}}
	if !g.real {
		return c
	}
	text, err := g.asks.Info(context.Background(), "commandstats", "stats", "cpu").Result()
	require.NoError(tb, err)
	for line := range strings.Lines(text) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseFloat(value, 64)
		switch field {
		case "total_net_input_bytes", "total_net_output_bytes":
			c.bytes += n
		case "used_cpu_user", "used_cpu_sys":
			c.cpu += n
		}
		command, ok := strings.CutPrefix(field, "cmdstat_")
		if !ok {
			continue
		}
		var calls, micros float64
		_, err := fmt.Sscanf(value, "calls=%g,usec=%g", &calls, &micros)
		require.NoError(tb, err, line)
		c.by[command] = calls
		switch name, _, _ := strings.Cut(command, "|"); name {
		case "eval", "evalsha", "evalsha_ro":
			c.scripts += calls
			c.micros += micros
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
	return cost{
		scripts: c.scripts - before.scripts, micros: c.micros - before.micros, calls: c.calls - before.calls,
		by: by, bytes: c.bytes - before.bytes, cpu: c.cpu - before.cpu,
	}
}

// of returns what fn costs the server.
func (g *gauge) of(tb testing.TB, fn func()) cost {
	tb.Helper()
	asked := g.read(tb)
	before := g.read(tb)
	fn()
	spent := g.read(tb).minus(before)
	spent.bytes -= before.bytes - asked.bytes // the question itself
	return spent
}

// measure reports what fn, which does something b.N times, costs client and server.
func (g *gauge) measure(b *testing.B, fn func()) cost {
	b.Helper()
	b.ReportAllocs()
	spent := g.of(b, func() {
		b.ResetTimer()
		fn()
		b.StopTimer()
	})
	if g.real {
		n := float64(b.N)
		b.ReportMetric(spent.micros/n, "server-µs/op")
		b.ReportMetric(spent.calls/n, "redis.calls/op")
		b.ReportMetric(spent.bytes/n, "net-B/op")
	}
	return spent
}

func (g *gauge) loop(b *testing.B, op func() error) {
	b.Helper()
	require.NoError(b, op()) // loads the scripts
	g.measure(b, func() {
		for b.Loop() {
			if err := op(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// compare measures a workload, and its floor.
func (g *gauge) compare(b *testing.B, prepare prepare) {
	b.Run("rwlock", func(b *testing.B) { g.loop(b, prepare(b, newLockOn(b, g.client(b)))) })
	b.Run("floor", func(b *testing.B) { g.loop(b, g.floor(b, g.client(b), prepare)) })
}

// floor returns what does nothing at the server, but with the same KEYS and ARGV as a workload, made beforehand.
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

// together has goroutines do op b.N times between them. It returns how often each did, and the longest of the times that
// op returns.
func (g *gauge) together(b *testing.B, goroutines int, op func(i int) (time.Duration, error)) ([]float64, time.Duration) {
	b.Helper()
	turns := make([]float64, goroutines)
	waits, errs := make([]time.Duration, goroutines), make([]error, goroutines)
	_, errs[0] = op(0) // loads the scripts
	g.measure(b, func() {
		var begun atomic.Int64
		var group sync.WaitGroup
		for i := range goroutines {
			group.Go(func() {
				for errs[i] == nil && begun.Add(1) <= int64(b.N) {
					var wait time.Duration
					wait, errs[i] = op(i)
					waits[i] = max(waits[i], wait)
					turns[i]++
				}
			})
		}
		group.Wait()
	})
	require.NoError(b, errors.Join(errs...))
	return turns, slices.Max(waits)
}

// contend has goroutines lock one name, and reports how fairly they got it.
func (g *gauge) contend(b *testing.B, goroutines int, mode func() rwlock.Mode) {
	b.Helper()
	rw, ctx := newLockOn(b, g.client(b)), context.Background()
	turns, longest := g.together(b, goroutines, func(int) (time.Duration, error) {
		start := time.Now()
		h, err := acquire(ctx, rw, mode(), b.Name())
		if err != nil {
			return 0, err
		}
		return time.Since(start), h.Unlock(ctx)
	})
	reportLongest(b, longest)
	b.ReportMetric(jain(turns), "jain")
}

// jain is Jain's fairness index: 1 if all got the same, 1/n if one of n got everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	return sum * sum / (float64(len(shares)) * squares)
}

func BenchmarkUncontended(b *testing.B) {
	g := newGauge(b)
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) { g.compare(b, w.prepare) })
	}
}

func BenchmarkReadAmongReaders(b *testing.B) {
	g := newGauge(b)
	for _, readers := range []int{0, 10, 100, 1_000, 10_000} {
		b.Run(strconv.Itoa(readers), func(b *testing.B) {
			if readers > 100 && !g.real {
				b.Skip("takes long on miniredis")
			}
			g.loop(b, amongReaders(readers)(b, newLockOn(b, g.client(b))))
		})
	}
	b.Run("floor", func(b *testing.B) { g.loop(b, g.floor(b, g.client(b), pairOf(read))) })
}

func BenchmarkHandover(b *testing.B) {
	g := newGauge(b)
	for _, goroutines := range []int{2, 16, 64, 256} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			g.contend(b, goroutines, func() rwlock.Mode { return write })
		})
	}
}

func BenchmarkMixed(b *testing.B) {
	g := newGauge(b)
	for _, percent := range []int{1, 10, 50} {
		b.Run(fmt.Sprintf("%d%% writers", percent), func(b *testing.B) {
			g.contend(b, 64, func() rwlock.Mode { return modeOf(100 - percent) })
		})
	}
}

func BenchmarkDistinctNames(b *testing.B) {
	g := newGauge(b)
	for _, kind := range []string{"client", "autopipeline"} {
		dial := func(b *testing.B) redis.UniversalClient {
			c := g.client(b)
			if kind == "client" {
				return c
			}
			auto, err := c.AutoPipeline()
			require.NoError(b, err)
			b.Cleanup(func() { _ = auto.Close() })
			return auto
		}
		for _, goroutines := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("%s/%d/rwlock", kind, goroutines), func(b *testing.B) {
				rw, names := newLockOn(b, dial(b)), make([]string, goroutines)
				for i := range names {
					names[i] = fmt.Sprint(b.Name(), i)
				}
				g.together(b, goroutines, func(i int) (time.Duration, error) {
					return 0, pair(context.Background(), rw, write, names[i])
				})
			})
			b.Run(fmt.Sprintf("%s/%d/floor", kind, goroutines), func(b *testing.B) {
				op := g.floor(b, dial(b), pairOf(write))
				g.together(b, goroutines, func(int) (time.Duration, error) { return 0, op() })
			})
		}
	}
}

// patience is the timeout of a benchmark's contexts that have one. It is much longer than any wait.
const patience = 30 * time.Second

// patientPair locks and unlocks name with a context that has a timeout, and returns how long the lock call took.
func patientPair(rw *rwlock.RWLock, mode rwlock.Mode, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	start := time.Now()
	h, err := acquire(ctx, rw, mode, name)
	if err != nil {
		return 0, err
	}
	return time.Since(start), h.Unlock(ctx)
}

// newNames locks and unlocks a new name each time, as a service does that locks each order once.
func newNames(tb testing.TB, rw *rwlock.RWLock) func() error {
	var used atomic.Int64
	return func() error {
		_, err := patientPair(rw, write, tb.Name()+strconv.FormatInt(used.Add(1), 10))
		return err
	}
}

// BenchmarkEachNameOnce never locks a name twice.
func BenchmarkEachNameOnce(b *testing.B) {
	g := newGauge(b)
	for _, goroutines := range []int{1, 64} {
		run := func(name string, prepare func(b *testing.B) func() error) {
			b.Run(fmt.Sprintf("%d/%s", goroutines, name), func(b *testing.B) {
				op := prepare(b)
				g.together(b, goroutines, func(int) (time.Duration, error) { return 0, op() })
			})
		}
		run("rwlock", func(b *testing.B) func() error { return newNames(b, newLockOn(b, g.client(b))) })
		run("floor", func(b *testing.B) func() error { return g.floor(b, g.client(b), newNames) })
	}
}

// BenchmarkZipfNames draws from many names, a few of them much more often than the others: every seventh time the first.
func BenchmarkZipfNames(b *testing.B) {
	const goroutines, items, exponent = 64, 100_000, 1.1
	g := newGauge(b)
	for _, reads := range []int{0, 90} {
		b.Run(fmt.Sprintf("%d%% reads", reads), func(b *testing.B) {
			rw, ranks := newLockOn(b, g.client(b)), make([]*rand.Zipf, goroutines)
			for i := range ranks {
				ranks[i] = rand.NewZipf(rand.New(rand.NewPCG(uint64(i), 1)), exponent, 1, items-1)
			}
			_, longest := g.together(b, goroutines, func(i int) (time.Duration, error) {
				return patientPair(rw, modeOf(reads), b.Name()+strconv.FormatUint(ranks[i].Uint64(), 10))
			})
			reportLongest(b, longest)
		})
	}
}

// BenchmarkTakingTurns has two RWLocks share names. Each has a client of its own, as if it were in another process.
func BenchmarkTakingTurns(b *testing.B) {
	const goroutines, accounts = 32, 100
	g := newGauge(b)
	for _, reads := range []int{0, 90} {
		b.Run(fmt.Sprintf("%d%% reads", reads), func(b *testing.B) {
			locks := []*rwlock.RWLock{newLockOn(b, g.client(b)), newLockOn(b, g.client(b))}
			_, longest := g.together(b, goroutines, func(i int) (time.Duration, error) {
				return patientPair(locks[i%len(locks)], modeOf(reads), b.Name()+strconv.Itoa(rand.IntN(accounts)))
			})
			reportLongest(b, longest)
		})
	}
}

// modeOf draws the mode of an operation, so many percent of which read.
func modeOf(reads int) rwlock.Mode {
	if rand.IntN(100) < reads {
		return read
	}
	return write
}

func reportLongest(b *testing.B, wait time.Duration) {
	b.ReportMetric(float64(wait)/float64(time.Millisecond), "longest-wait-ms")
}

// BenchmarkCancellable measures what BenchmarkUncontended does, with contexts that can end.
func BenchmarkCancellable(b *testing.B) {
	g := newGauge(b)
	for _, mode := range []rwlock.Mode{write, read} {
		b.Run(fmt.Sprintf("%v/cancellation", mode), func(b *testing.B) {
			g.compare(b, func(tb testing.TB, rw *rwlock.RWLock) func() error {
				ctx, cancel := context.WithCancel(context.Background())
				tb.Cleanup(cancel)
				return func() error { return pair(ctx, rw, mode, tb.Name()) }
			})
		})
		b.Run(fmt.Sprintf("%v/timeout", mode), func(b *testing.B) {
			g.compare(b, func(tb testing.TB, rw *rwlock.RWLock) func() error {
				return func() error {
					_, err := patientPair(rw, mode, tb.Name())
					return err
				}
			})
		})
	}
}

// BenchmarkHeld and BenchmarkWaiting measure what it costs to stay alive: an operation is what happens within a lease. What
// is per second is as it would be with the usual lease, which is longer.
func BenchmarkHeld(b *testing.B) {
	g, sent := newGauge(b), &counter{}
	holds := 10_000
	if !g.real {
		holds = 100
	}
	b.Run(strconv.Itoa(holds), func(b *testing.B) {
		rw := newLockOn(b, g.client(b, sent), rwlock.WithLease(idleLease))
		takeMany(b, holds, func(i int) (*rwlock.Hold, error) { return rw.Lock(newOwner(), fmt.Sprint(b.Name(), i)) })
		g.idle(b, sent)
	})
}

func BenchmarkWaiting(b *testing.B) {
	g, sent := newGauge(b), &counter{}
	waiters := 1_000
	if !g.real {
		waiters = 100
	}
	b.Run(strconv.Itoa(waiters), func(b *testing.B) {
		rw := newLockOn(b, g.client(b, sent), rwlock.WithLease(idleLease))
		holder := take(b, newOwner(), rw, write, b.Name())
		ctx, cancel := context.WithCancel(context.Background())
		var group sync.WaitGroup
		for range waiters {
			group.Go(func() { _, _ = rw.Lock(ctx, b.Name()) })
		}
		waitQueued(b, rw, b.Name(), waiters)
		g.idle(b, sent)
		cancel()
		group.Wait()
		unlock(b, holder)
	})
}

const (
	idleLease  = 3 * time.Second
	usualLease = 30 * time.Second
)

// idle measures what is sent while nobody does anything.
func (g *gauge) idle(b *testing.B, sent *counter) {
	b.Helper()
	<-time.After(idleLease / 2) // what began together goes on together: count from between two such moments
	before, cpu, start := sent.Load(), cpuTime(), time.Now()
	spent := g.measure(b, func() {
		for b.Loop() {
			<-time.After(idleLease)
		}
	})
	usual := time.Since(start).Seconds() * float64(usualLease/idleLease)
	scripts := float64(sent.Load() - before)
	b.ReportMetric(scripts/usual, "scripts/s")
	if g.real {
		b.ReportMetric(100*spent.cpu/usual, "server-cpu-%")
		b.ReportMetric(100*(cpuTime()-cpu).Seconds()/usual, "client-cpu-%")
		b.ReportMetric(spent.micros/scripts, "server-µs/script")
	}
}

// cpuTime is what this process has spent.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What strict owners cost a pair.
func BenchmarkStrictOwners(b *testing.B) {
	g := newGauge(b)
	for name, opts := range map[string][]rwlock.Option{"off": nil, "on": {rwlock.WithStrictOwners()}} {
		b.Run(name, func(b *testing.B) { g.loop(b, pairOf(write)(b, newLockOn(b, g.client(b), opts...))) })
	}
}

// What it costs to be observed, and what it costs not to be.
func BenchmarkObserved(b *testing.B) {
	g := newGauge(b)
	for name, opts := range map[string][]rwlock.Option{"off": nil, "on": {rwlock.WithObserver(rwlock.ObserverFunc(func(rwlock.Event) {}))}} {
		b.Run(name, func(b *testing.B) { g.loop(b, pairOf(write)(b, newLockOn(b, g.client(b), opts...))) })
	}
}
