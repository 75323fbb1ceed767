package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A bubble is the stage of whole RWLocks, in a testing/synctest bubble. What happens follows from the seed,
// but for the order of what happens at the same moment.
type bubble struct {
	t      *testing.T
	w      *world
	server *miniredis.Miniredis
	admin  *redis.Client

	mu    sync.Mutex
	keep  []*rwlock.Hold // a Hold must not be collected: its clean-up runs outside the bubble
	count int
}

// SimulateWhole lives through the world of one seed, with whole RWLocks, and fails the test if a promise is
// broken there.
func SimulateWhole(t *testing.T, seed uint64, climate string) (tally Tally) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, server: testredis.Mem(t)}
		b.admin = testredis.MemClient(t, b.server, func(o *redis.Options) { o.DisableIdentity = true })
		w := newWorld(func(w *world) stage { b.w = w; return b }, seed,
			of(func(c Climate) bool { return !c.engines && !c.Votes }), climate)
		w.slop = 51 * time.Millisecond // promised are 50
		w.live()
		b.keep = nil
		if report := w.Report(); report != "" {
			t.Errorf("%v:\n%s", w, report)
		}
		tally = w.Tally
	})
	return tally
}

func (b *bubble) now() time.Time                { return time.Now() }
func (b *bubble) sleep(d time.Duration)         { time.Sleep(d) }
func (b *bubble) minis() []*miniredis.Miniredis { return []*miniredis.Miniredis{b.server} }

func (b *bubble) run(script string) { b.admin.ScriptFlush(context.Background()) }

// What follows is for engines alone.

func (b *bubble) step(time.Duration) {}
func (b *bubble) copy() func()       { return func() {} }
func (b *bubble) mute()              {}

func (b *bubble) troubles(*rand.Rand) []func() { return nil }

func (b *bubble) newGroup() group { return &waitGroup{} }

type waitGroup struct{ sync.WaitGroup }

func (g *waitGroup) spawn(fn func()) { g.Go(fn) }

func (g *waitGroup) wait(d time.Duration) bool {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-done:
		return true
	case <-timeout.C:
		return false
	}
}

// A whole is a process that is a whole RWLock.
type whole struct {
	*network
	b      *bubble
	client *redis.Client
	rw     *rwlock.RWLock
}

func (b *bubble) newProcess(seed uint64, c Climate) process {
	b.mu.Lock()
	b.count++
	protocol := 2 + b.count%2
	b.mu.Unlock()
	p := &whole{b: b, network: &network{
		server: b.server,
		chance: chance{rand.New(rand.NewPCG(seed, 2)), c.Weather},
		links:  map[*link]struct{}{},
	}}
	p.weather.Latency = time.Duration(20+p.rng.IntN(980)) * time.Microsecond
	p.client = testredis.NewClient(b.t, "127.0.0.1:1", func(o *redis.Options) {
		o.Dialer = p.dial
		o.DisableIdentity = true
		o.DialerRetries = 1 // it waits between them under a mutex
		o.Protocol = protocol
	})
	opts := []rwlock.Option{rwlock.WithLease(b.w.lease), rwlock.WithLogger(slog.New(slog.DiscardHandler))}
	if c.Delegates {
		opts = append(opts, rwlock.WithDelegation(delegationLease(p.rng, b.w.lease)))
	}
	rw, err := rwlock.New(p.client, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	p.rw = rw
	return p
}

func (p *whole) newOwner() any { return rwlock.NewOwner() }

func (p *whole) acquire(c call) (hold, error) {
	ctx := context.Background()
	if c.owner != nil {
		ctx = rwlock.WithOwner(ctx, c.owner.(rwlock.Owner))
	}
	var opts []rwlock.LockOption
	if c.lease != 0 {
		opts = append(opts, rwlock.Lease(c.lease))
	}
	if c.noRenew {
		opts = append(opts, rwlock.NoRenew())
	}
	if c.limit != 0 {
		if c.maxWait && c.limit > 0 {
			opts = append(opts, rwlock.MaxWait(c.limit))
		} else {
			limited, cancel := context.WithCancel(ctx)
			ctx = limited
			if c.limit < 0 {
				cancel()
			} else { // what ends the call's context ends the hold's, without a loss
				limit := time.AfterFunc(c.limit, cancel)
				defer limit.Stop()
			}
		}
	}
	lock := map[bool]func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold,
		error){true: p.rw.TryRLock, false: p.rw.RLock}
	if c.mode == rwlock.Write {
		lock = map[bool]func(context.Context, string, ...rwlock.LockOption) (*rwlock.Hold,
			error){true: p.rw.TryLock, false: p.rw.Lock}
	}
	h, err := lock[c.try](ctx, c.name, opts...)
	if err != nil {
		return nil, err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.b.keep = append(p.b.keep, h)
	return &held{h, h.Context(), p.b.w.climate.Delegates}, nil
}

// A held is a hold of a whole RWLock.
type held struct {
	h         *rwlock.Hold
	ctx       context.Context
	delegates bool
}

func (h *held) token() int64 { return h.h.Token() }
func (h *held) owner() any   { return h.h.Owner() }
func (h *held) good() bool   { return h.ctx.Err() == nil }
func (h *held) lent() bool   { return h.delegates }

func (h *held) whenLost(fn func(error)) {
	context.AfterFunc(h.ctx, func() { fn(context.Cause(h.ctx)) })
}

func (h *held) linger(d time.Duration) {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-timeout.C:
	case <-h.ctx.Done():
	}
}

func (h *held) unlock(limit time.Duration) error {
	ctx := context.Background()
	if limit != 0 {
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = limited
	}
	return h.h.Unlock(ctx)
}

func (p *whole) force(name string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return p.rw.ForceUnlock(ctx, name)
}

func (p *whole) inspect(name string) (busy bool, says string) {
	s, err := p.rw.Inspect(context.Background(), name)
	return err != nil || len(s.Holders)+len(s.Waiters) > 0, fmt.Sprintf("%+v, %v", s, err)
}

func (p *whole) close() error { return p.rw.Close() }

func (p *whole) calm() { p.clear() }
func (p *whole) die()  { p.end() }

func (p *whole) bury() {
	p.end()
	_ = p.client.Close()
	p.wg.Wait()
}

func (p *whole) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

func (p *whole) awake() bool        { return !p.dead() }
func (p *whole) ran(time.Time) bool { return true }

// What follows is for engines alone.

func (p *whole) adopt()         {}
func (h *held) forget()         {}
func (p *whole) deafen()        {}
func (p *whole) freeze()        {}
func (p *whole) thaw()          {}
func (p *whole) settled() error { return nil }
