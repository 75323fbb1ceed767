package sim

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/resp"
)

// A bubble is the clock of a testing/synctest bubble, which whole RWLocks live in. What happens follows from
// the seed, but for the order of what happens at the same moment.
type bubble struct{}

func (bubble) now() time.Time        { return time.Now() }
func (bubble) sleep(d time.Duration) { time.Sleep(d) }
func (bubble) spawn(fn func())       { go fn() }

// simulateWhole lives through the world of one seed, with whole RWLocks, and fails the test if a promise is
// broken there.
func simulateWhole(t *testing.T, seed uint64, climate string) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(bubble{}, seed, of(func(c Climate) bool { return !c.engines && !c.Votes }), climate)
		w.slop = 51 * time.Millisecond // promised are 50
		w.servers = []*server{newServer()}
		t.Cleanup(func() {
			w.servers[0].Mini.Close()
			time.Sleep(2 * time.Second) // clients that cannot dial look once a second whether they are closed
		})
		w.newProcess = func(seed uint64, c Climate) process { return w.newWhole(t, seed, c) }
		w.live()
		if report := w.report(); report != "" {
			t.Errorf("%v:\n%s", w, report)
		}
		t.Logf("%v: %v", w, w.seen)
	})
}

// A whole is a process that is a whole RWLock.
type whole struct {
	*network
	w    *world
	rw   *rwlock.RWLock
	keep []*rwlock.Hold // a Hold must not be collected: its clean-up runs outside the bubble
}

func (w *world) newWhole(t *testing.T, seed uint64, c Climate) *whole {
	p := &whole{w: w, network: newNetwork(w.servers[0].Mini, chance{rand.New(rand.NewPCG(seed, 2)), c.Weather})}
	p.weather.Latency = time.Duration(20+p.rng.IntN(980)) * time.Microsecond
	protocol := 2 + p.rng.IntN(2)
	client := testredis.NewClient(t, "127.0.0.1:1", func(o *redis.Options) {
		o.Dialer = p.dial
		o.DisableIdentity = true
		o.DialerRetries = 1 // it waits between them under a mutex
		o.Protocol = protocol
	})
	opts := []rwlock.Option{rwlock.WithLease(w.lease), rwlock.WithLogger(slog.New(slog.DiscardHandler))}
	if c.Delegates {
		opts = append(opts, rwlock.WithDelegation(delegationLease(p.rng, w.lease)))
	}
	rw, err := rwlock.New(client, opts...)
	require.NoError(t, err)
	p.rw = rw
	t.Cleanup(func() {
		p.die()
		p.wg.Wait()
	})
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
	switch {
	case c.maxWait && c.limit > 0:
		opts = append(opts, rwlock.MaxWait(c.limit))
	case c.limit != 0: // what ends the call's context ends the hold's, without a loss
		limited, cancel := context.WithCancel(ctx)
		ctx = limited
		if c.limit < 0 {
			cancel()
		}
		defer time.AfterFunc(max(c.limit, 0), cancel).Stop()
	}
	lock := p.rw.Lock
	switch {
	case c.mode == rwlock.Read && c.try:
		lock = p.rw.TryRLock
	case c.mode == rwlock.Read:
		lock = p.rw.RLock
	case c.try:
		lock = p.rw.TryLock
	}
	h, err := lock(ctx, c.name, opts...)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep = append(p.keep, h)
	return &held{h, p.w.climate.Delegates}, nil
}

// A held is a hold of a whole RWLock.
type held struct {
	h         *rwlock.Hold
	delegates bool
}

func (h *held) token() int64 { return h.h.Token() }
func (h *held) owner() any   { return h.h.Owner() }
func (h *held) good() bool   { return h.h.Context().Err() == nil }
func (h *held) lent() bool   { return h.delegates }

func (h *held) whenLost(fn func(error)) {
	ctx := h.h.Context()
	context.AfterFunc(ctx, func() { fn(context.Cause(ctx)) })
}

func (h *held) linger(d time.Duration) {
	select {
	case <-h.h.Context().Done():
	case <-time.After(d):
	}
}

func (h *held) unlock(limit time.Duration) error {
	if limit == 0 {
		return h.h.Unlock(context.Background())
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.h.Unlock(ctx)
}

func (h *held) downgrade() (hold, error) {
	err := h.h.Downgrade(context.Background())
	if h.h.Mode() == rwlock.Write {
		return nil, err
	}
	return h, err
}

func (p *whole) force(name string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return p.rw.ForceUnlock(ctx, name)
}

func (p *whole) close() error { return p.rw.Close() }

func (p *whole) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

func (p *whole) awake() bool        { return !p.dead() }
func (p *whole) ran(time.Time) bool { return true }

// What follows is for engines alone.

func (p *whole) adopt()  {}
func (h *held) forget()  {}
func (p *whole) deafen() {}
func (p *whole) learn()  {}
func (p *whole) freeze() {}
func (p *whole) thaw()   {}

// A network is between a whole RWLock's client and the server.
type network struct {
	server *miniredis.Miniredis
	wg     sync.WaitGroup

	mu sync.Mutex // guards what follows
	chance
	flow    sync.Cond // of mu: data flows again
	stalled bool
	down    bool // for good
	links   map[*link]struct{}
}

func newNetwork(server *miniredis.Miniredis, c chance) *network {
	n := &network{server: server, chance: c, links: map[*link]struct{}{}}
	n.flow.L = &n.mu
	return n
}

var errUnreachable = errors.New("simulated network: unreachable")

// dial is the client's Dialer.
func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errUnreachable
	}
	server, err := n.server.Dial()
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	l := &link{network: n, client: inner, server: server}
	n.links[l] = struct{}{}
	up, down := l.queue(inner), l.queue(server)
	n.wg.Go(func() { l.requests(up) })
	n.wg.Go(func() { l.replies(down) })
	return client, nil
}

// change changes the network, and has everything that waits look at it again.
func (n *network) change(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn()
	n.flow.Broadcast()
}

// stall holds back everything that the process sends and gets, until resume.
func (n *network) stall()  { n.change(func() { n.stalled = !n.down }) }
func (n *network) resume() { n.change(func() { n.stalled = false }) }

// calm ends all trouble.
func (n *network) calm() {
	n.change(func() { n.stalled, n.weather = false, Weather{Latency: n.weather.Latency} })
}

// cut breaks all connections; new ones work.
func (n *network) cut() {
	n.change(func() {
		for l := range n.links {
			_ = l.client.Close()
		}
	})
}

// die breaks all connections for good.
func (n *network) die() {
	n.change(func() {
		n.stalled, n.down = false, true
		for l := range n.links {
			_ = l.client.Close()
			_ = l.server.Close()
		}
	})
}

// A link is one connection of a network. The client connects and subscribes, and sometimes waits, under a
// mutex, and a goroutine that waits for a mutex keeps the bubble's clock from going on. So nothing but
// messages takes time, or is held back, on a link that has not carried a script yet.
type link struct {
	*network
	client, server net.Conn
	busy           bool // has carried a script; guarded by mu
}

// A frame is a value on its way, and when it is there; zero for immediately.
type frame struct {
	*resp.Frame
	due time.Time
}

// queue returns the values that come from conn, in order.
func (l *link) queue(conn net.Conn) <-chan frame {
	frames := make(chan frame, 4096)
	l.wg.Go(func() {
		defer close(frames)
		r := bufio.NewReader(conn)
		var last time.Time
		for {
			raw, err := resp.Read(r)
			if err != nil {
				return
			}
			f := frame{Frame: raw}
			l.mu.Lock()
			l.busy = l.busy || raw.IsScript()
			if l.busy || raw.IsMessage() {
				last = later(time.Now().Add(l.delay()), last)
				f.due = last
			}
			l.mu.Unlock()
			frames <- f
		}
	})
	return frames
}

// arrive waits until the frame is there. It returns the one of some chances that it meets, and how long it
// may be late.
func (l *link) arrive(f frame, chances func(w Weather) []int) (fate int, late time.Duration) {
	time.Sleep(time.Until(f.due))
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled && !f.due.IsZero() {
		l.flow.Wait()
	}
	return l.draw(chances(l.weather)...), l.long()
}

// requests takes what the client sends to the server. What the client sent before it hung up arrives all the
// same.
func (l *link) requests(frames <-chan frame) {
	for f := range frames {
		fate, late := l.arrive(f, func(w Weather) []int { return []int{w.Cut, w.Late} })
		if fate > 0 {
			_ = l.client.Close()
		}
		if fate == 2 {
			time.Sleep(late)
		}
		if fate != 1 {
			_, _ = l.server.Write(f.Raw)
		}
	}
	_ = l.server.Close()
	l.change(func() { delete(l.links, l) })
}

// replies takes what the server sends to the client.
func (l *link) replies(frames <-chan frame) {
	write := func(raw []byte) { _, _ = l.client.Write(raw) } // the client may have gone
	for f := range frames {
		if f.IsMessage() {
			fate, late := l.arrive(f, func(w Weather) []int { return []int{w.Swallow, w.Twice, w.Tardy} })
			switch fate {
			case 2:
				write(f.Raw)
				fallthrough
			case 0:
				write(f.Raw)
			case 3:
				l.wg.Go(func() { // out of turn
					time.Sleep(late)
					write(f.Raw)
				})
			}
			continue
		}
		fate, late := l.arrive(f, func(w Weather) []int { return []int{w.Drop, w.Half, w.Slow} })
		switch {
		case fate == 1, fate == 3 && f.due.IsZero():
			_ = l.client.Close()
		case fate == 2:
			write(f.Raw[:len(f.Raw)/2])
			_ = l.client.Close()
		case fate == 3:
			time.Sleep(late)
		}
		write(f.Raw)
	}
	_ = l.client.Close()
}
