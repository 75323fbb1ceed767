package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
		h.endConns() // on which someone may wait for ever
	})
	return rw, func() { outages[outage](h) }, func() { h.set(false, false) }
}

// newLockWith returns an RWLock over a client with that read timeout. It need not close without an error.
func (w *world) newLockWith(readTimeout time.Duration, opts ...func(*redis.Options)) *rwlock.RWLock {
	w.Helper()
	c := w.dial(append([]func(*redis.Options){func(o *redis.Options) { o.ReadTimeout = readTimeout }},
		opts...)...)
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
// so do the calls that were in flight, with an error.
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
					"Lock": func() error { return errOf(rw.Lock(aSecond(w), "n")) },
					"RLock": func() error {
						return errOf(
							rw.RLock(newOwner(), "n", rwlock.MaxWait(time.Second)))
					},
					"Lock, which re-enters": func() error {
						return errOf(
							rw.Lock(again, "held", rwlock.MaxWait(time.Second)))
					},
					"Extend": func() error { return held.Extend(aSecond(w), time.Hour) },
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

// When the end of a wait races the grant, the call returns the lock, or an error and the lock goes on: it is
// never owned by nobody, and never by an owner who was told that he has it not.
func TestCancelRacesGrant(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rounds := 3_000
		if !w.real {
			rounds = 500
		}
		const lanes = 4
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		var wg sync.WaitGroup
		for lane := range lanes {
			wg.Go(func() {
				for i := range rounds / lanes {
					modes := [2]rwlock.Mode{write, []rwlock.Mode{read, write}[i%2]}
					if err := raceCancel(rws[0], rws[rand.IntN(2)], modes, fmt.Sprint("n", lane)); err != nil {
						w.Errorf("round %d, %v: %v", i, modes, err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

func raceCancel(a, b *rwlock.RWLock, modes [2]rwlock.Mode, name string) error {
	h, err := acquire(newOwner(), a, modes[0], name)
	if err != nil {
		return err
	}
	owner := rwlock.NewOwner()
	ctx, cancel := context.WithCancel(rwlock.WithOwner(context.Background(), owner))
	defer cancel()
	type result struct {
		hold *rwlock.Hold
		err  error
	}
	got := make(chan result)
	go func() {
		h, err := acquire(ctx, b, modes[1], name)
		got <- result{h, err}
	}()
	go func() {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		cancel()
	}()
	time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
	if err := h.Unlock(context.Background()); err != nil {
		return err
	}
	r := <-got
	for end := time.Now().Add(hang); ; {
		s, err := b.Inspect(context.Background(), name)
		switch {
		case err != nil:
			return err
		case r.err == nil:
			if len(s.Holders) != 1 || s.Holders[0].Owner != owner {
				return fmt.Errorf("the lock was granted, but %+v", s)
			}
			return r.hold.Unlock(context.Background())
		case !errors.Is(r.err, context.Canceled):
			return r.err
		case s.Mode == rwlock.None && len(s.Waiters) == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("orphan: %+v", s)
		}
	}
}

// A call whose context ended before it was granted the lock returns the context's error, and the lock goes
// on.
func TestContextThatEndedBeforeTheGrant(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rw := w.newLock()
		for i := range 100 {
			h := take(w, newOwner(), rw, write, "n")
			ctx, cancel := context.WithCancel(newOwner())
			waiting := w.enqueue(ctx, rw, bothModes[i%2], "n")
			cancel()
			unlock(w, h)
			_, err := waiting.wait()
			require.ErrorIs(w, err, context.Canceled)
		}
		waitFree(w, rw, "n")
	})
}

// Many calls that give up together, while the lock is released, all return an error that says why, and leave
// nothing behind: the lock goes to whoever waits on.
func TestManyGiveUpTogether(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			for _, release := range []bool{false, true} {
				h := take(w, newOwner(), rw, write, "n")
				ctx, cancel := context.WithCancelCause(context.Background())
				cause := errors.New("the cause")
				var crowd sync.WaitGroup
				for range 100 {
					crowd.Go(func() {
						got, err := acquire(ctx, rw, mode, "n")
						if err == nil { // before the end of the context
							_ = got.Unlock(context.Background())
						} else if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
							w.Error(err)
						}
					})
				}
				waitQueued(w, rw, "n", 100)
				last := w.enqueue(newOwner(), rw, write, "n")
				if release {
					go cancel(cause)
					unlock(w, h)
				} else {
					cancel(cause)
				}
				crowd.Wait()
				require.LessOrEqual(w, len(rw.Snapshot().Waits), 1)
				if !release {
					unlock(w, h)
				}
				unlock(w, last.granted())
				waitFree(w, rw, "n")
			}
		}
	})
}

// A drowsy context has its user notice its end late.
type drowsy struct{ context.Context }

func (drowsy) Done() <-chan struct{} { return nil }

// So it is if the goroutine of the call runs only after the grant.
func TestEndOfTheContextIsNoticedAfterTheGrant(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			h := take(w, newOwner(), rw, write, "n")
			ctx, cancel := context.WithCancelCause(newOwner())
			waiting := w.enqueue(drowsy{ctx}, rw, mode, "n")
			cause := errors.New("the cause")
			cancel(cause)
			unlock(w, h)
			_, err := waiting.wait()
			require.ErrorIs(w, err, context.Canceled)
			require.ErrorIs(w, err, cause)
			requireNotBlocked(w.T, err)
			waitFree(w, rw, "n")
		}
	})
}

// A call whose context is done already returns its error, and asks the server nothing.
func TestDoneContext(t *testing.T) {
	everywhere(t, func(w *world) {
		sent := &counter{}
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(onEach(sent.count)) })
		cause := errors.New("the cause")
		cancelled, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		expired, cancelExpired := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancelExpired()
		for ctx, want := range map[context.Context]error{cancelled: context.Canceled,
			expired: context.DeadlineExceeded} {
			for _, err := range []error{
				errOf(rw.Lock(ctx, "n")), errOf(rw.RLock(ctx, "n")), errOf(rw.TryLock(ctx, "n")),
				errOf(rw.TryRLock(ctx, "n")),
				rw.WithLock(ctx, "n", nil), rw.WithRLock(ctx, "n", nil), errOf(rw.Inspect(ctx, "n")),
				rw.ForceUnlock(ctx, "n"),
			} {
				require.ErrorIs(w, err, want)
				require.ErrorContains(w, err, `"n"`)
			}
		}
		require.ErrorIs(w, errOf(rw.Lock(cancelled, "n")), cause)
		require.Zero(w, sent.Load())
	})
}

// Whatever ends a wait, the error matches it, comes at once, and leaves nothing behind; the next call gets
// the lock.
func TestEndOfAWait(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, u := w.newLock(), w.lease/10
		cause := errors.New("the cause")
		for _, mode := range []rwlock.Mode{read, write} {
			for _, c := range []struct {
				name string
				want error
				ctx  func() (context.Context, context.CancelFunc)
				opts []rwlock.LockOption
			}{
				{"MaxWait", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) {
					return newOwner(), func() {}
				}, []rwlock.LockOption{rwlock.MaxWait(u)}},
				{"deadline", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) {
					return context.WithTimeout(newOwner(), u)
				}, nil},
				{"cancel", context.Canceled, func() (context.Context, context.CancelFunc) {
					ctx, cancel := context.WithCancel(newOwner())
					return ctx, context.CancelFunc(func() { time.AfterFunc(u, cancel) })
				}, nil},
				{"cause", cause, func() (context.Context, context.CancelFunc) {
					ctx, cancel := context.WithCancelCause(newOwner())
					return ctx, func() { time.AfterFunc(u, func() { cancel(cause) }) }
				}, nil},
				{"MaxWait before deadline", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) {
					return context.WithTimeout(newOwner(), time.Hour)
				}, []rwlock.LockOption{rwlock.MaxWait(u)}},
			} {
				h := take(w, newOwner(), rw, write, "n")
				ctx, cancel := c.ctx()
				start := time.Now()
				waiter := w.launch(ctx, rw, mode, "n", c.opts...)
				if c.name == "cancel" || c.name == "cause" {
					cancel()
				}
				_, err := waiter.wait()
				require.ErrorIs(w, err, c.want, c.name)
				w.within(u+w.prompt, start, waiter.at)
				require.False(w, waiter.at.Before(start.Add(u)))
				eventually(w, func() bool { return len(inspect(w, rw, "n").Waiters) == 0 }, "nothing left of %s", c.name)
				unlock(w, h)
				if c.want != cause {
					cancel()
				}
				waitFree(w, rw, "n")
			}
		}
	})
}

// MaxWait bounds the wait alone: neither the hold nor its context ends with it.
func TestMaxWaitDoesNotBoundTheHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range []rwlock.Mode{read, write} {
			var h *rwlock.Hold
			eventually(w, func() bool { // the first time, unless the machine is busy
				var err error
				h, err = acquire(newOwner(), rw, mode, "n", rwlock.MaxWait(100*time.Millisecond))
				return err == nil
			}, "the lock")
			time.Sleep(150*time.Millisecond + w.while)
			require.NoError(w, h.Context().Err())
			unlock(w, h)
		}
	})
}

// A bad option is refused with an error that says what is wrong, and the server is asked nothing.
func TestBadOptions(t *testing.T) {
	everywhere(t, func(w *world) {
		c, sent := w.dial(), &counter{}
		const century = 100 * 365 * 24 * time.Hour
		for text, opt := range map[string]rwlock.Option{
			"lease 99ms": rwlock.WithLease(99 * time.Millisecond), "lease 0s": rwlock.WithLease(0),
			"lease -1s":                 rwlock.WithLease(-time.Second),
			"lease " + century.String(): rwlock.WithLease(century), "prefix": rwlock.WithPrefix(""), "nil option": nil,
		} {
			rw, err := rwlock.New(c, opt)
			require.Nil(w, rw)
			require.ErrorContains(w, err, "rwlock: new: ")
			require.ErrorContains(w, err, text)
		}
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(onEach(sent.count)) },
			rwlock.WithLease(100*time.Millisecond), rwlock.WithLogger(nil))
		for text, opt := range map[string]rwlock.LockOption{
			"lease 99ms": rwlock.Lease(99 * time.Millisecond), "lease 0s": rwlock.Lease(0),
			"lease -1s":                 rwlock.Lease(-time.Second),
			"lease " + century.String(): rwlock.Lease(century), "max wait 0s": rwlock.MaxWait(0),
			"max wait -1s": rwlock.MaxWait(-time.Second), "nil option": nil,
		} {
			for _, mode := range []rwlock.Mode{read, write} {
				for _, lock := range []lockFunc{acquire, try} {
					h, err := lock(newOwner(), rw, mode, "n", opt)
					require.Nil(w, h)
					require.Regexp(w, `^rwlock: (try)?r?lock "n": .*`+text, err.Error())
				}
			}
		}
		require.Zero(w, sent.Load())
	})
}

// A ring is refused, and so are types around one; around other clients they work.
func TestRingIsRefusedWhereverItIs(t *testing.T) {
	t.Parallel()
	type embedded struct{ *redis.Ring }
	type hidden struct{ redis.UniversalClient }
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for _, c := range []redis.UniversalClient{ring, embedded{ring}, hidden{ring}, &hidden{hidden{ring}}} {
		_, err := rwlock.New(c)
		require.ErrorContains(t, err, "a ring is not supported", "%T", c)
	}
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer c.Close()
	rw, err := rwlock.New(hidden{c})
	require.NoError(t, err)
	require.NoError(t, rw.Close())
}

// A release that meets an outage is tried again for as long as the server may keep the claim, which a
// re-entry may have made longer than the lease that it began with: the lock is free soon after the outage,
// not at the end of that lease.
func TestReleaseIsRetriedForAsLongAsTheServerKeepsTheClaim(t *testing.T) {
	t.Parallel()
	for _, outage := range []time.Duration{9 * time.Second, time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			bubbled(t, func(w *world) {
				rw, hole := w.overHole(rwlock.WithLease(5 * time.Second))
				other := w.newLock()
				for _, mode := range bothModes {
					outer := take(w, newOwner(), rw, mode, mode.String())
					inner := take(w, outer.Context(), rw, mode, mode.String(), rwlock.Lease(quiet))
					hole.open.Store(true)
					start := time.Now()
					var wg sync.WaitGroup
					for _, h := range []*rwlock.Hold{inner, outer} {
						wg.Go(func() {
							ctx, cancel := context.WithTimeout(context.Background(), time.Second)
							defer cancel()
							_ = h.Unlock(ctx) // may say that it goes on in the background
						})
						time.Sleep(time.Millisecond)
					}
					wg.Wait()
					time.Sleep(time.Until(start.Add(outage)))
					hole.open.Store(false)
					next := w.launch(newOwner(), other, write, mode.String())
					unlock(w, next.granted())
					w.within(30*time.Second, start.Add(outage), next.at)
				}
				// until the client gives up what was sent into the outage, or Close would wait for that
				time.Sleep(time.Minute)
			})
		})
	}
}

// Close says so if the server may keep a hold that could not be released, though Unlock was called for it.
func TestCloseSaysWhatItCouldNotRelease(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, begin, _ := w.underOutage("frozen", 0)
		h := take(w, newOwner(), rw, write, "n", rwlock.Lease(quiet))
		begin()
		w.returnsIn(bound, "Unlock", func() { _ = h.Unlock(context.Background()) })
		var err error
		w.returnsIn(bound, "Close", func() { err = rw.Close() })
		require.Error(w, err)
	})
}
