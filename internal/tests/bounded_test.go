package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// bound is for how long Unlock and Close may wait for a server that does not answer, and a little.
const bound = 6 * time.Second

// readTimeouts are the read timeouts that clients have: the client's default, none, and a long one.
var readTimeouts = map[string]time.Duration{"default": 0, "none": -1, "long": 30 * time.Second}

// A host can freeze: what it is sent is swallowed. It can go out of reach: then whoever dials it waits in
// vain, too. And its connections can end.
type host struct {
	mu           sync.Mutex
	frozen, gone bool
	conns        []*hosted
}

// hosted is a connection to a host.
type hosted struct {
	net.Conn
	host *host
	over atomic.Bool
}

// dialTimeout is for how long clients try to dial by default.
const dialTimeout = 5 * time.Second

func (h *host) into(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if _, gone := h.state(); gone {
			timeout := time.NewTimer(dialTimeout)
			defer timeout.Stop()
			select {
			case <-ctx.Done():
			case <-timeout.C:
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ETIMEDOUT}
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		conn := &hosted{Conn: c, host: h}
		h.conns = append(h.conns, conn)
		return conn, nil
	}
}

func (h *host) state() (frozen, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.frozen, h.gone
}

// set freezes the host, has it go, or brings it back.
func (h *host) set(frozen, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frozen, h.gone = frozen, gone
}

// endConns ends the connections.
func (h *host) endConns() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.over.Store(true)
		_ = c.Close()
	}
	h.conns = nil
}

func (c *hosted) Write(b []byte) (int, error) {
	if frozen, gone := c.host.state(); frozen || gone {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *hosted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.over.Load() {
		err = io.EOF
	}
	return n, err
}

// The client sets deadlines also on a connection that has ended.
func (c *hosted) SetDeadline(t time.Time) error      { return c.ignore(c.Conn.SetDeadline(t)) }
func (c *hosted) SetReadDeadline(t time.Time) error  { return c.ignore(c.Conn.SetReadDeadline(t)) }
func (c *hosted) SetWriteDeadline(t time.Time) error { return c.ignore(c.Conn.SetWriteDeadline(t)) }

func (c *hosted) ignore(err error) error {
	if c.over.Load() {
		return nil
	}
	return err
}

// outages are the ways in which a server stops to answer.
var outages = map[string]func(*host){
	"frozen":       func(h *host) { h.set(true, false) },
	"out of reach": func(h *host) { h.set(false, true) },
	"cut off": func(h *host) {
		h.set(false, true)
		h.endConns()
	},
}

// underOutage returns an RWLock, and what begins and ends an outage of its server. It need not close without
// an error.
func (w *world) underOutage(outage string, readTimeout time.Duration) (rw *rwlock.RWLock, begin, end func()) {
	w.Helper()
	h := &host{}
	rw = w.newLockWith(readTimeout, h.into)
	w.Cleanup(func() {
		h.set(false, false)
		h.endConns() // on which somebody may wait for ever
	})
	return rw, func() { outages[outage](h) }, func() { h.set(false, false) }
}

// newLockWith returns an RWLock over a client with that read timeout. It need not close without an error.
func (w *world) newLockWith(readTimeout time.Duration, opts ...func(*redis.Options)) *rwlock.RWLock {
	w.Helper()
	c := w.dial(append([]func(*redis.Options){func(o *redis.Options) { o.ReadTimeout = readTimeout }}, opts...)...)
	rw, err := rwlock.New(c, w.options(nil)...)
	require.NoError(w, err)
	w.Cleanup(func() { _ = rw.Close() })
	return rw
}

// eachOutage runs fn in bubbles, for each outage and each read timeout.
func eachOutage(t *testing.T, fn func(w *world, rw *rwlock.RWLock, begin, end func())) {
	t.Helper()
	t.Parallel()
	for outage := range outages {
		for name, readTimeout := range readTimeouts {
			t.Run(fmt.Sprintf("%s, read timeout %s", outage, name), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(w *world) {
					rw, begin, end := w.underOutage(outage, readTimeout)
					fn(w, rw, begin, end)
				})
			})
		}
	}
}

// returnsIn ends the test if fn has not returned after d.
func (w *world) returnsIn(d time.Duration, what string, fn func()) {
	w.Helper()
	start, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(d):
		w.Fatalf("%s has not returned after %v", what, time.Since(start))
	}
}

// Close returns in bounded time on a server that does not answer, in whatever state it finds the RWLock, and
// so do the calls that were under way, with an error.
func TestCloseIsBoundedInEveryState(t *testing.T) {
	t.Parallel()
	states := map[string]func(w *world, rw *rwlock.RWLock, begin func()) []*call{
		"never used": func(_ *world, _ *rwlock.RWLock, begin func()) []*call {
			begin()
			return nil
		},
		"used": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			unlock(w, take(w, newOwner(), rw, write, "n"), take(w, newOwner(), rw, read, "r"))
			begin()
			return nil
		},
		"held": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			h := take(w, newOwner(), rw, write, "n")
			take(w, h.Context(), rw, write, "n")
			take(w, newOwner(), rw, read, "r")
			begin()
			return nil
		},
		"waiting": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			take(w, newOwner(), w.newLock(), write, "n")
			calls := []*call{w.enqueue(newOwner(), rw, write, "n"), w.enqueue(newOwner(), rw, read, "n")}
			begin()
			return calls
		},
		"somebody has waited": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			w.haveWaited(rw)
			begin()
			return nil
		},
		"lock calls under way": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			begin()
			var calls []*call
			for i := range 10 {
				calls = append(calls, w.launch(newOwner(), rw, bothModes[i%2], fmt.Sprint(i)))
			}
			time.Sleep(time.Second)
			return calls
		},
		"lock calls given up": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			begin()
			_, err := rw.Lock(newOwner(), "n", rwlock.MaxWait(time.Second))
			require.Error(w, err)
			return nil
		},
		"releases under way": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			w.haveWaited(rw)
			a, b := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, read, "b")
			begin()
			calls := []*call{{w: w, done: make(chan struct{})}}
			go func() {
				defer close(calls[0].done)
				calls[0].err = a.Unlock(context.Background())
			}()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			require.Error(w, b.Unlock(ctx))
			return calls
		},
		"renewals under way": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			w.haveWaited(rw)
			take(w, newOwner(), rw, write, "n")
			take(w, newOwner(), rw, read, "r")
			begin()
			time.Sleep(w.lease * 2 / 5)
			return nil
		},
		"lost": func(w *world, rw *rwlock.RWLock, begin func()) []*call {
			w.haveWaited(rw)
			h := take(w, newOwner(), rw, write, "n")
			begin()
			w.lostWhen(h)
			return nil
		},
	}
	for name, build := range states {
		t.Run(name, func(t *testing.T) {
			eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
				calls := build(w, rw, begin)
				w.returnsIn(bound, "Close", func() { _ = rw.Close() })
				for _, c := range calls {
					w.returnsIn(bound, "a call", func() { <-c.done })
					require.Error(w, c.err)
				}
			})
		})
	}
}

// haveWaited has one call wait for a lock, get it and release it.
func (w *world) haveWaited(rw *rwlock.RWLock) {
	w.Helper()
	h := take(w, newOwner(), w.newLock(), write, "waited")
	c := w.enqueue(newOwner(), rw, write, "waited")
	unlock(w, h)
	unlock(w, c.granted())
}

// Close is bounded on a server that is stopped in its tracks, whatever the client's read timeout.
func TestCloseIsBoundedOnAFrozenServer(t *testing.T) {
	t.Parallel()
	for name, readTimeout := range readTimeouts {
		t.Run("read timeout "+name, func(t *testing.T) {
			t.Parallel()
			w, s := alone(t)
			rw := w.newLockWith(readTimeout)
			w.haveWaited(rw)
			take(w, newOwner(), rw, write, "n")
			s.Pause()
			w.Cleanup(s.Resume)
			var err error
			w.returnsIn(bound+w.slack, "Close", func() { err = rw.Close() })
			require.Error(w, err)
		})
	}
}

// Unlock returns in bounded time on a server that does not answer, whatever its context and the client's read
// timeout.
func TestUnlockIsBoundedWhateverItsContext(t *testing.T) {
	t.Parallel()
	for name, newContext := range map[string]func() (context.Context, context.CancelFunc){
		"background": func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"long": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), time.Hour)
		},
		"done": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
				ctx, cancel := newContext()
				defer cancel()
				var holds []*rwlock.Hold
				for _, mode := range bothModes {
					outer := take(w, newOwner(), rw, mode, mode.String())
					holds = append(holds, take(w, outer.Context(), rw, mode, mode.String()), outer)
				}
				begin()
				for _, h := range holds {
					var err error
					w.returnsIn(bound, "Unlock", func() { err = h.Unlock(ctx) })
					require.Error(w, err)
				}
			})
		})
	}
}

// Without a limit of its own, a lock call is tried again for a lease on a server that does not answer, and
// then fails.
func TestLockCallIsBoundedByALease(t *testing.T) {
	t.Parallel()
	for name, used := range map[string]bool{"fresh": false, "used": true} {
		t.Run(name, func(t *testing.T) {
			eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
				if used {
					w.haveWaited(rw)
				}
				begin()
				start := time.Now()
				for _, c := range []*call{w.launch(newOwner(), rw, write, "n"), w.launch(newOwner(), rw, read, "r")} {
					w.returnsIn(time.Until(start.Add(w.lease+time.Second)), "a lock call", func() { <-c.done })
					require.Error(w, c.err)
					require.NotErrorIs(w, c.err, rwlock.ErrClosed)
				}
			})
		})
	}
}

// A lock call that found no server for a lease says what the client said last.
func TestLockCallSaysWhyThereIsNoServer(t *testing.T) {
	bubbled(t, func(w *world) {
		h := &host{}
		h.set(false, true)
		rw := w.newLockWith(0, h.into, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
		for _, mode := range bothModes {
			start := time.Now()
			_, err := acquire(newOwner(), rw, mode, "n")
			require.ErrorIs(w, err, syscall.ETIMEDOUT)
			require.ErrorContains(w, err, `lock "n"`)
			require.GreaterOrEqual(w, time.Since(start), w.lease/2, "was not tried again")
			w.within(w.lease+time.Second, start, time.Now())
		}
	})
}

// A call that ends while nobody has answered says so, with what the client said last.
func TestUnansweredCallSaysSo(t *testing.T) {
	outages := map[string]func(w *world) (rw *rwlock.RWLock, begin func(), cause string){
		"frozen": func(w *world) (*rwlock.RWLock, func(), string) {
			rw, begin, _ := w.underOutage("frozen", 0)
			return rw, begin, ""
		},
		"cut off": func(w *world) (*rwlock.RWLock, func(), string) {
			rw, plug := w.newMortal()
			return rw, plug.pull, "the plug is pulled|closed pipe" // of a new connection, or of one that was there
		},
	}
	t.Parallel()
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				rw, begin, cause := outage(w)
				held := take(w, newOwner(), rw, write, "held")
				again := rwlock.WithOwner(context.Background(), held.Owner())
				begin()
				for name, call := range map[string]func() error{
					"Lock":                  func() error { return errOf(rw.Lock(aSecond(w), "n")) },
					"RLock":                 func() error { return errOf(rw.RLock(newOwner(), "n", rwlock.MaxWait(time.Second))) },
					"Lock, which re-enters": func() error { return errOf(rw.Lock(again, "held", rwlock.MaxWait(time.Second))) },
					"Extend":                func() error { return held.Extend(aSecond(w), time.Hour) },
				} {
					err := call()
					require.ErrorIs(w, err, context.DeadlineExceeded, name)
					require.ErrorContains(w, err, "after 1s: the server has not answered", name)
					require.Regexp(w, cause, err.Error(), name)
					requireNotBlocked(w.T, err)
				}
				if cause != "" {
					return // what is not tried again fails with the client's error
				}
				for name, err := range map[string]error{
					"Inspect": errOf(rw.Inspect(aSecond(w), "n")), "ForceUnlock": rw.ForceUnlock(aSecond(w), "n"),
				} {
					require.ErrorIs(w, err, context.DeadlineExceeded, name)
					require.ErrorContains(w, err, ": the server has not answered", name)
				}
			})
		})
	}
}

// aSecond returns a context that ends after a second.
func aSecond(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A lock call outlasts an outage that ends before its context, its MaxWait or, without either, one lease.
func TestLockCallOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	for outage := range outages {
		t.Run(outage, func(t *testing.T) {
			bubbled(t, func(w *world) {
				long, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				defer cancel()
				for _, mode := range bothModes {
					for _, c := range []struct {
						ctx  context.Context
						opts []rwlock.LockOption
						out  time.Duration
					}{
						{context.Background(), nil, w.lease * 3 / 5},
						{long, nil, 3 * w.lease / 2},
						{context.Background(), []rwlock.LockOption{rwlock.MaxWait(2 * time.Minute)}, 2 * w.lease},
					} {
						rw, begin, end := w.underOutage(outage, 0)
						begin()
						waiting := w.launch(c.ctx, rw, mode, "n", c.opts...)
						time.Sleep(c.out)
						end()
						unlock(w, waiting.granted())
					}
				}
			})
		})
	}
}

// A Try on a server that does not answer fails soon, whatever its context and the client's read timeout.
func TestTryFailsSoonWithoutAServer(t *testing.T) {
	eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
		begin()
		for _, mode := range bothModes {
			var err error
			w.returnsIn(w.lease/2, "a try", func() { _, err = try(newOwner(), rw, mode, "n") })
			require.Error(w, err)
			require.NotErrorIs(w, err, rwlock.ErrLocked)
		}
	})
}

// Close ends the lock calls and releases that wait for a server that does not answer, though nothing else
// does.
func TestCloseEndsCallsThatWaitForTheServer(t *testing.T) {
	eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
		h := take(w, newOwner(), rw, write, "held")
		begin()
		calls := []*call{w.launch(newOwner(), rw, write, "n"), w.launch(newOwner(), rw, read, "r")}
		released := make(chan struct{})
		go func() {
			defer close(released)
			_ = h.Unlock(context.Background())
		}()
		time.Sleep(time.Second)

		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = rw.Close()
		}()
		for _, c := range calls {
			w.returnsIn(time.Second, "a lock call", func() { <-c.done })
			require.ErrorIs(w, c.err, rwlock.ErrClosed)
		}
		w.returnsIn(bound, "Close", func() { <-closed })
		w.returnsIn(time.Second, "Unlock", func() { <-released })
	})
}

// Where no server was ever there, nothing can have been left behind: Close after calls that failed is quick,
// and has nothing to report.
func TestCloseAfterFailedCallsOnADeadServer(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, plug := w.newMortal()
		plug.pull()
		for _, mode := range bothModes {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_, err := acquire(ctx, rw, mode, "n")
			require.Error(w, err)
			_, err = try(soon(w), rw, mode, "n")
			require.Error(w, err)
		}
		start := time.Now()
		require.NoError(w, rw.Close())
		require.Less(w, time.Since(start), 2*time.Second)
	})
}
