// Package sim runs the client under a fake clock: several simulated processes on miniredis, in one testing/synctest
// bubble, over a network that stalls, breaks, repeats and forgets. Hours pass in milliseconds. All that happens follows
// from a seed, but for the order of what happens at the same moment.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A Climate is what may go wrong in a world.
type Climate struct {
	Name string
	Weather
	Stalls  bool // hosts stall, for up to two leases
	Cuts    bool // all of a host's connections break at once
	Scripts bool // SCRIPT FLUSH
	Flushes bool // FLUSHALL
	Evicts  bool // single keys of a lock disappear
	Crashes bool // hosts die
	Forces  bool // ForceUnlock
	Dozes   bool // holders sleep past their lease and go on
	Strict  bool // nothing keeps a request from the server for long: turns can be checked
	Shared  bool // two RWLocks of one process
}

// Climates are the worlds that a seed chooses from.
var Climates = []Climate{
	{Name: "calm", Strict: true},
	{Name: "scripts", Strict: true, Scripts: true},
	{Name: "dozes", Strict: true, Dozes: true},
	{Name: "crashes", Strict: true, Crashes: true},
	{Name: "wakeups", Strict: true, Weather: Weather{Swallow: 300, Twice: 200, Tardy: 200}},
	{Name: "shared", Strict: true, Shared: true},
	{Name: "lossy", Weather: Weather{Cut: 10, Late: 15, Drop: 15, Half: 10, Slow: 5, Swallow: 100, Twice: 50, Tardy: 50}},
	{Name: "stalls", Stalls: true, Cuts: true, Dozes: true},
	{Name: "flushes", Flushes: true, Scripts: true},
	{Name: "evictions", Evicts: true},
	{Name: "forced", Forces: true},
	{Name: "storm", Weather: Weather{Cut: 5, Late: 10, Drop: 10, Half: 5, Slow: 3, Swallow: 100, Twice: 50, Tardy: 50},
		Stalls: true, Cuts: true, Scripts: true, Flushes: true, Evicts: true, Crashes: true, Dozes: true, Forces: true},
}

const (
	// long is how late a request or a reply may come. Withdrawals are remembered for two minutes.
	long = time.Minute

	maxLatency  = time.Millisecond
	maxWaitSlop = time.Millisecond                     // how late a call may return after its context's end: the clock is exact
	unlockBound = 5*time.Second + 600*time.Millisecond // the client's last pause between two tries included
)

var leases = []time.Duration{150 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}

// A world is one run of the simulation.
type world struct {
	*referee
	climate Climate
	rng     *rand.Rand
	server  *miniredis.Miniredis
	sole    *sole
	names   []string
	lease   time.Duration
	longest time.Duration // of all leases
	hosts   []*process
	over    chan struct{} // closed when the workers are done
	wg      sync.WaitGroup

	keepMu sync.Mutex
	keep   []*rwlock.Hold // a Hold must not be collected: its clean-up runs outside the bubble
}

// A process is one RWLock with its client and its network.
type process struct {
	*host
	id     int
	client *redis.Client
	rw     *rwlock.RWLock
}

// Run lives through the world of one seed, in a bubble of its own, and fails the test if a promise is broken there.
func Run(t *testing.T, seed uint64, climate string) (tally Tally) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, climate)
		w.run(t)
		if report := w.Report(); report != "" {
			t.Errorf("seed %d, %s, lease %v, %d processes:\n%s", seed, w.climate.Name, w.lease, len(w.hosts), report)
		}
		tally = w.Tally
		tally.Sole = w.sole.Sole
	})
	return tally
}

func newWorld(t *testing.T, seed uint64, climate string) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		climate: Climates[rng.IntN(len(Climates))],
		rng:     rng,
		server:  testredis.Mem(t),
		names:   []string{"a", "b{}%"}[:1+rng.IntN(2)],
		lease:   leases[rng.IntN(len(leases))],
		over:    make(chan struct{}),
	}
	w.sole = watchSole(t, w.server)
	for _, c := range Climates {
		if c.Name == climate {
			w.climate = c
		}
	}
	w.longest = 2 * w.lease
	w.referee = newReferee(w.names, w.limits())
	for i := range 2 + rng.IntN(3) {
		w.hosts = append(w.hosts, w.newProcess(t, i))
	}
	return w
}

func (w *world) limits() limits {
	c, margin := w.climate, w.longest/100+2*time.Millisecond
	l := limits{notice: w.longest, overrun: 1}
	if c.Weather == (Weather{}) && !c.Stalls && !c.Cuts && !c.Crashes {
		l.notice = w.longest/3 + 50*time.Millisecond
	}
	if c.Strict {
		l.slack = 25 * maxLatency
		l.steady = !c.Dozes
		l.gap = 25 * maxLatency
		l.lapse = margin + 225*time.Millisecond
		if c.Crashes || c.Dozes {
			l.gap = w.longest + 225*time.Millisecond // the queue may have a dead waiter in front, or a dead holder
			l.lapse = l.gap
		}
		if c.Weather != (Weather{}) {
			l.gap = w.longest/3 + 225*time.Millisecond
			l.lapse += l.gap
			l.overrun = 2
		}
	}
	return l
}

func (w *world) newProcess(t *testing.T, i int) *process {
	p := &process{id: i, host: &host{
		server: w.server,
		all:    []byte(rwlock.NewOwner().String()[:36]),
		own:    fmt.Appendf(nil, "00000000-0000-4000-8000-%012d", i),
		long:   long,
		rng:    rand.New(rand.NewPCG(w.rng.Uint64(), 2)),
		links:  map[*link]struct{}{},
	}}
	if w.climate.Shared && i < 2 {
		p.own = p.all
	}
	p.weather = w.climate.Weather
	p.weather.Latency = time.Duration(20+w.rng.IntN(980)) * time.Microsecond
	p.client = testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) {
		o.Dialer = p.dial
		o.DisableIdentity = true
		o.DialerRetries = 1 // it waits between them under a mutex
		o.Protocol = 2 + i%2
	})
	rw, err := rwlock.New(p.client, rwlock.WithLease(w.lease))
	if err != nil {
		t.Fatal(err)
	}
	p.rw = rw
	return p
}

func (w *world) run(t *testing.T) {
	for _, p := range w.hosts {
		for j := range 1 + w.rng.IntN(3) {
			k := &worker{world: w, p: p, who: fmt.Sprintf("%d.%d", p.id, j), rng: rand.New(rand.NewPCG(w.rng.Uint64(), 3))}
			w.wg.Go(k.run)
		}
	}
	ended := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(ended)
	}()
	trouble := make(chan struct{})
	go func() {
		defer close(trouble)
		w.trouble(rand.New(rand.NewPCG(w.rng.Uint64(), 4)))
	}()
	select {
	case <-ended:
	case <-time.After(400*w.longest + 2*time.Hour):
		w.Violation("a call never ends; the server has %s", w.server.Dump())
	}
	close(w.over)
	<-trouble
	for _, p := range w.hosts {
		p.calm()
	}
	w.end(t, ended)
}

// end closes all, and checks that nothing remains.
func (w *world) end(t *testing.T, ended chan struct{}) {
	var closing sync.WaitGroup
	var dirty atomic.Bool
	for _, p := range w.hosts {
		closing.Go(func() {
			start := time.Now()
			err := p.rw.Close()
			if took := time.Since(start); took > unlockBound {
				w.Violation("bounded: Close took %v: %v", took, err)
			}
			if err != nil || p.isDead() {
				dirty.Store(true)
			}
			if err != nil && w.climate.Strict && !p.isDead() {
				w.Violation("close: process %d: %v", p.id, err)
			}
		})
	}
	closing.Wait()
	<-ended
	from := time.Now()
	w.Simulated = from.Sub(w.start)
	w.Note("all closed")

	direct := testredis.MemClient(t, w.server, func(o *redis.Options) { o.DisableIdentity = true })
	probe, err := rwlock.New(direct, rwlock.WithLease(w.lease))
	if err != nil {
		t.Fatal(err)
	}
	if c := w.climate; c.Late > 0 && !c.Flushes && !dirty.Load() && w.lease >= time.Second {
		w.audit(probe)
		from = time.Now()
	}
	for _, name := range w.names {
		h, err := probe.Lock(context.Background(), name, rwlock.MaxWait(w.longest+200*time.Millisecond-time.Since(from)))
		if err != nil {
			w.Violation("orphan: nobody uses %q, and yet: %v; the server has %s", name, err, w.server.Dump())
			continue
		}
		if took := time.Since(from); w.climate.Strict && !w.climate.Crashes && took > 50*time.Millisecond {
			w.Violation("orphan: all have released %q, and yet it took %v to lock", name, took)
		}
		if err := h.Unlock(context.Background()); err != nil {
			w.Violation("orphan: probe: %v", err)
		}
	}
	if err := probe.Close(); err != nil {
		w.Violation("close: probe: %v", err)
	}
	for _, p := range w.hosts {
		p.die()
		_ = p.client.Close()
		p.wg.Wait()
	}
	for _, key := range w.server.Keys() {
		if w.server.TTL(key) <= 0 {
			w.Violation("orphan: key %q has no time to live", key)
		}
	}
	time.Sleep(49 * time.Hour)
	if keys := w.server.Keys(); len(keys) > 0 {
		w.Violation("orphan: keys remain: %q", keys)
	}
	w.keep = nil
}

// audit waits for requests that come late, and checks that they are refused: whoever sent them has withdrawn.
func (w *world) audit(probe *rwlock.RWLock) {
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(w.lease * 9 / 10) {
		for _, name := range w.names {
			s, err := probe.Inspect(context.Background(), name)
			if err != nil || len(s.Holders)+len(s.Waiters) > 0 {
				w.Violation("orphan: all have released %q, and yet it has %+v, %v", name, s, err)
				return
			}
		}
	}
}

// trouble makes the climate, until the workers are done.
func (w *world) trouble(rng *rand.Rand) {
	direct, err := w.server.Dial()
	if err != nil {
		panic(err)
	}
	admin := &session{direct}
	defer admin.close()
	var acts []func()
	add := func(on bool, act func()) {
		if on {
			acts = append(acts, act)
		}
	}
	c := w.climate
	some := func() *process { return w.hosts[rng.IntN(len(w.hosts))] }
	name := func() string { return w.names[rng.IntN(len(w.names))] }
	add(c.Stalls, func() {
		p := some()
		w.Note("process %d stalls", p.id)
		p.stall()
		w.sleep(time.Duration(rng.Int64N(int64(2 * w.lease))))
		w.Note("process %d goes on", p.id)
		p.resume()
	})
	add(c.Cuts, func() {
		p := some()
		w.Note("connections of process %d break", p.id)
		p.cut()
	})
	add(c.Scripts, func() {
		w.Note("SCRIPT FLUSH")
		admin.do("SCRIPT", "FLUSH")
	})
	add(c.Flushes, func() {
		for _, n := range w.names {
			w.declare(n)
		}
		w.Note("FLUSHALL")
		w.server.FlushAll()
	})
	add(c.Evicts, func() {
		n := name()
		if key := pick(rng, w.server.Keys(), n); key != "" {
			w.declare(n)
			w.Note("evict %q", key)
			w.server.Del(key)
		}
	})
	crashes := 0
	add(c.Crashes, func() {
		p := some()
		if crashes++; crashes < len(w.hosts) {
			w.Note("process %d dies", p.id)
			p.die()
		}
	})
	add(c.Forces, func() {
		p, n := some(), name()
		w.Note("process %d forces %q", p.id, n)
		w.declare(n)
		ctx, cancel := context.WithTimeout(context.Background(), w.lease)
		defer cancel()
		_ = p.rw.ForceUnlock(ctx, n)
		w.declare(n)
	})
	if len(acts) == 0 {
		return
	}
	for w.sleep(time.Duration(rng.Int64N(int64(3*w.lease))).Truncate(time.Microsecond) + 500*time.Nanosecond) {
		w.mu.Lock()
		w.Faults++
		w.mu.Unlock()
		acts[rng.IntN(len(acts))]()
	}
}

// sleep waits for d; it reports whether the workers are still at it.
func (w *world) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.over:
		return false
	}
}

// A worker is a goroutine that locks and unlocks, as one owner after the other.
type worker struct {
	*world
	p   *process
	who string
	rng *rand.Rand
}

func (k *worker) upTo(d time.Duration) time.Duration {
	return time.Duration(k.rng.Int64N(int64(d)))
}

func (k *worker) run() {
	for range 4 + k.rng.IntN(8) {
		pause := k.lease
		if k.rng.IntN(3) == 0 { // it finds the lock as it has left it, most often
			pause = 20 * maxLatency
		}
		time.Sleep(k.upTo(pause))
		if k.p.isDead() {
			return
		}
		k.round()
	}
}

// round takes a lock, does something under it, and releases it.
func (k *worker) round() {
	ctx := context.Background()
	if k.rng.IntN(3) == 0 {
		ctx = rwlock.WithOwner(ctx, rwlock.NewOwner())
	}
	s := k.acquire(ctx, k.names[k.rng.IntN(len(k.names))], k.mode())
	if s == nil {
		return
	}
	stays := []*stay{s}
	seen := k.touch(s, 0)
	for range k.rng.IntN(4) {
		k.pause(s)
		if k.p.isDead() {
			return
		}
		switch k.rng.IntN(3) {
		case 0:
			seen = k.touch(s, seen)
		case 1:
			if again := k.reenter(stays); again != nil {
				stays = append(stays, again)
			}
		case 2:
			if n := len(stays); n > 1 {
				i := k.rng.IntN(n)
				k.unlock(stays[i])
				if stays = append(stays[:i], stays[i+1:]...); i == 0 {
					s, seen = stays[0], k.touch(stays[0], 0)
				}
			}
		}
	}
	k.pause(s)
	if k.p.isDead() {
		return
	}
	k.touch(s, seen)
	for _, i := range k.rng.Perm(len(stays)) {
		k.unlock(stays[i])
	}
}

// pause holds the lock for a while: carefully, until the hold is lost, or like one that sleeps.
func (k *worker) pause(s *stay) {
	d := k.upTo(k.lease / 2)
	if k.rng.IntN(5) == 0 {
		d = k.upTo(3 * k.lease)
	}
	if k.climate.Dozes && k.rng.IntN(4) == 0 {
		time.Sleep(d)
		return
	}
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

func (k *worker) mode() rwlock.Mode {
	if k.rng.IntN(2) == 0 {
		return rwlock.Read
	}
	return rwlock.Write
}

// acquire makes one outermost lock call of a random kind, and tells the referee.
func (k *worker) acquire(ctx context.Context, name string, mode rwlock.Mode) *stay {
	try := k.rng.IntN(6) == 0
	var opts []rwlock.LockOption
	if k.rng.IntN(4) == 0 {
		opts = append(opts, rwlock.Lease(max(100*time.Millisecond, k.upTo(k.longest))))
	}
	noRenew := k.rng.IntN(6) == 0
	if noRenew {
		opts = append(opts, rwlock.NoRenew())
	}
	call, end, limit := k.bounded(ctx, &opts)
	u := &waiter{host: k.p.host, who: k.who, name: name, mode: mode, try: try, noRenew: noRenew, ctx: call}
	k.asks(u)
	var h *rwlock.Hold
	var err error
	switch {
	case mode == rwlock.Write && try:
		h, err = k.p.rw.TryLock(call, name, opts...)
	case mode == rwlock.Write:
		h, err = k.p.rw.Lock(call, name, opts...)
	case try:
		h, err = k.p.rw.TryRLock(call, name, opts...)
	default:
		h, err = k.p.rw.RLock(call, name, opts...)
	}
	if limit != nil {
		limit.Stop() // what ends the call's context ends the hold's, without a loss
	}
	k.prompt(end, "lock", err)
	if err != nil {
		k.gives(u, err)
		k.expected(err, end)
		return nil
	}
	k.hang(h)
	return k.enters(u, h)
}

// bounded limits a call in one of several ways, or not at all; it returns when the limit ends, and the timer that ends it.
func (k *worker) bounded(ctx context.Context, opts *[]rwlock.LockOption) (context.Context, time.Time, *time.Timer) {
	d := k.upTo(4*k.lease) + time.Microsecond
	end := time.Now().Add(d)
	switch k.rng.IntN(6) {
	case 0:
		*opts = append(*opts, rwlock.MaxWait(d))
		return ctx, end, nil
	case 1, 2:
		c, cancel := context.WithCancel(ctx)
		return c, end, time.AfterFunc(d, cancel)
	case 3:
		if k.rng.IntN(3) == 0 {
			c, cancel := context.WithCancel(ctx)
			cancel()
			return c, time.Now(), nil
		}
		d = k.upTo(20 * maxLatency) // likely to meet the request or its reply on the way
		c, cancel := context.WithCancel(ctx)
		return c, time.Now().Add(d), time.AfterFunc(d, cancel)
	}
	return ctx, time.Time{}, nil
}

// prompt checks that a call did not outlive its limit.
func (k *worker) prompt(end time.Time, op string, err error) {
	if late := time.Since(end); !end.IsZero() && late > maxWaitSlop && err != nil {
		k.Violation("prompt: %s: %s returns %v after its end: %v", k.who, op, late, err)
	}
}

// expected checks that a lock call failed for a reason that exists.
func (k *worker) expected(err error, end time.Time) {
	switch {
	case errors.Is(err, rwlock.ErrLocked), k.p.isDead():
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		if end.IsZero() && k.climate.Strict {
			k.Violation("errors: %s had no limit: %v", k.who, err)
		}
	case errors.Is(err, rwlock.ErrClosed), errors.Is(err, rwlock.ErrLost), errors.Is(err, rwlock.ErrUpgrade), errors.Is(err, rwlock.ErrNotHeld):
		k.Violation("errors: %s: an outermost call fails with %v", k.who, err)
	default:
		if k.climate.Strict {
			k.Violation("errors: %s: %v", k.who, err)
		}
	}
}

// reenter locks again, in a random mode, what the owner has.
func (k *worker) reenter(stays []*stay) *stay {
	first, mode := stays[0], k.mode()
	live, writes := false, false
	for _, s := range stays {
		live = live || s.believed()
		writes = writes || s.mode == rwlock.Write
	}
	ctx := rwlock.WithOwner(context.Background(), first.hold.Owner())
	u := &waiter{host: k.p.host, who: k.who, name: first.name, mode: mode, asked: time.Now(), ctx: ctx}
	var h *rwlock.Hold
	var err error
	if mode == rwlock.Write {
		h, err = k.p.rw.Lock(ctx, first.name)
	} else {
		h, err = k.p.rw.RLock(ctx, first.name)
	}
	took := time.Since(u.asked)
	if live && k.climate.Strict && took > 25*maxLatency && !k.p.isDead() {
		k.Violation("re-entry: %s waited %v", k.who, took)
	}
	upgrade := mode == rwlock.Write && !writes
	if err != nil {
		k.Note("%s cannot re-enter %v %q: %v", k.who, mode, u.name, err)
		switch {
		case upgrade && live && !errors.Is(err, rwlock.ErrUpgrade) && !errors.Is(err, rwlock.ErrLost):
			k.Violation("re-entry: %s: upgrade: %v", k.who, err)
		case !upgrade && live && first.believed() && k.climate.Strict && !k.p.isDead():
			k.Violation("re-entry: %s holds %v %q and cannot enter to %v: %v", k.who, first.mode, u.name, mode, err)
		}
		return nil
	}
	k.hang(h)
	again := k.again(u, h)
	if upgrade {
		k.Violation("re-entry: %s upgraded %q", k.who, u.name)
	}
	if !live {
		k.Violation("re-entry: %s re-entered %q, which it had lost", k.who, u.name)
	}
	for _, s := range stays {
		if s.mode == mode && h.Token() != s.hold.Token() {
			k.Violation("re-entry: %s has token %d inside %d", k.who, h.Token(), s.hold.Token())
		}
	}
	return again
}

// unlock releases a hold, within the time that Unlock has.
func (k *worker) unlock(s *stay) {
	ctx, end := context.Background(), time.Now().Add(unlockBound)
	switch k.rng.IntN(4) {
	case 0:
		c, cancel := context.WithCancel(ctx)
		cancel()
		ctx = c
	case 1:
		d := k.upTo(time.Second) + time.Microsecond
		c, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		ctx, end = c, time.Now().Add(d)
	}
	believed := k.leaves(s)
	err := s.hold.Unlock(ctx)
	k.left(s, believed, err)
	if late := time.Since(end); late > maxWaitSlop {
		k.Violation("prompt: %s: unlock returns %v after its end: %v", k.who, late, err)
	}
	if s.ctx.Err() == nil {
		k.Violation("loss: %s unlocked %q, and its context lives", k.who, s.name)
	}
	if k.rng.IntN(8) == 0 {
		if again := s.hold.Unlock(context.Background()); !errors.Is(again, rwlock.ErrNotHeld) {
			k.Violation("errors: %s: a second Unlock says %v", k.who, again)
		}
	}
}

// hang on to a hold until the end.
func (k *worker) hang(h *rwlock.Hold) {
	k.keepMu.Lock()
	defer k.keepMu.Unlock()
	k.keep = append(k.keep, h)
}
