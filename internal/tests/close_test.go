package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// Close releases what is held, ends waiting calls with ErrClosed and lets others in at once; a second Close
// does nothing, and all calls afterwards say ErrClosed.
func TestClose(t *testing.T) {
	everywhere(t, func(w *world) {
		ctx := context.Background()
		rw, other := w.newLock(rwlock.WithLease(4*w.lease)), w.newLock()
		owner := newOwner()
		wr, inner := take(w, owner, rw, write, "w"), take(w, owner, rw, write, "w")
		r, own := take(w, newOwner(), rw, read, "r"), take(w, owner, rw, read, "w")
		short := take(w, newOwner(), rw, read, "short", rwlock.Lease(w.lease), rwlock.NoRenew())
		w.lostWhen(short)
		foreign := take(w, newOwner(), other, write, "foreign")
		ended := []*call{w.enqueue(newOwner(), rw, write, "foreign"), w.enqueue(newOwner(), rw, read, "foreign"),
			w.enqueue(newOwner(), rw, write, "r")}
		follow := []*call{w.enqueue(newOwner(), other, write, "w"), w.enqueue(newOwner(), other, write, "r")}
		time.Sleep(3 * w.lease / 2) // renewals and heartbeats are in flight

		start := time.Now()
		require.NoError(w, rw.Close())
		w.within(w.prompt, start, time.Now())
		for _, c := range ended {
			require.ErrorIs(w, errOf(c.wait()), rwlock.ErrClosed)
			w.within(w.prompt, start, c.at)
		}
		for _, c := range follow {
			c.granted()
			w.within(w.prompt, start, c.at)
		}
		for _, h := range []*rwlock.Hold{wr, inner, r, own} {
			require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrClosed)
			require.ErrorIs(w, h.Unlock(ctx), rwlock.ErrClosed)
			require.ErrorIs(w, h.Unlock(ctx), rwlock.ErrNotHeld)
		}
		require.ErrorIs(w, short.Unlock(ctx), rwlock.ErrLost)

		require.NoError(w, rw.Close())
		require.ErrorIs(w, errOf(rw.Lock(owner, "w")), rwlock.ErrClosed)
		require.ErrorIs(w, errOf(rw.TryAll(ctx, nil)), rwlock.ErrClosed)
		require.ErrorIs(w, rw.WithAll(ctx, nil, nothingWithAll), rwlock.ErrClosed)
		for name, call := range everyCall {
			require.ErrorIs(w, call(ctx, rw), rwlock.ErrClosed, name)
			require.ErrorContains(w, call(ctx, rw), "rwlock: ", name)
		}
		require.Empty(w, rw.Snapshot().Holds)
		require.Empty(w, rw.Snapshot().Waits)
		unlock(w, foreign, follow[0].hold, follow[1].hold)
		w.requireClean()
	})
}

// Calls that race Close or Shutdown get the lock, which Close then releases and Shutdown waits for, or
// ErrClosed; many may close at a time. Nothing is lost, and nothing stays.
func TestCloseRacesCalls(t *testing.T) {
	onServers(t, func(w *world) {
		for i := range 15 {
			shutdown := i%3 == 0
			rw := w.newLock()
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					for {
						h, err := acquire(newOwner(), rw, bothModes[i%2], "n")
						if err == nil && shutdown {
							unlock(w, take(w, h.Context(), rw, read, "n"))
							require.NoError(w, h.Context().Err())
						}
						if err == nil {
							err = h.Unlock(context.Background())
						}
						if errors.Is(err, rwlock.ErrClosed) {
							return
						}
						require.NoError(w, err)
						time.Sleep(10 * time.Microsecond)
					}
				})
			}
			time.Sleep(time.Duration(1+i%5) * time.Millisecond)
			for range 3 {
				wg.Go(func() {
					if shutdown {
						require.NoError(w, rw.Shutdown(context.Background()))
					} else {
						require.NoError(w, rw.Close())
					}
				})
			}
			wg.Wait()
			require.NoError(w, rw.Close())
			w.requireClean()
		}
	})
}

// Close while renewals, a withdrawal and heartbeats are on their way leaves nothing behind.
func TestCloseWithRequestsInFlight(t *testing.T) {
	t.Parallel()
	testredis.One(t, func(t *testing.T, b testredis.Backend) {
		w := onServer(t, b)
		p := faultproxy.New(t, b.Addr())
		rw := newLockOn(t, p.Client(), rwlock.WithPrefix(b.Prefix), rwlock.WithLease(4*w.lease))
		h := take(t, newOwner(), rw, write, "n")
		waiter := w.enqueue(newOwner(), rw, read, "n")
		for range 10 {
			defer runtime.KeepAlive(take(t, newOwner(), rw, read, "r"))
		}
		gate := make(chan struct{})
		onTheWay := p.On(faultproxy.IsCommand("EVALSHA")).DelayReply(gate)
		require.NoError(t, onTheWay.WaitHit(t.Context()))
		closed := make(chan error)
		go func() { closed <- rw.Close() }()
		require.ErrorIs(t, errOf(waiter.wait()), rwlock.ErrClosed)
		close(gate)
		require.NoError(t, <-closed)
		require.ErrorIs(t, context.Cause(h.Context()), rwlock.ErrClosed)
		w.requireClean()
	})
}

// A Close, or Shutdown, while another one is in flight returns when that does: the client may be closed then.
// If the server cannot be reached, Close is bounded in time, and says so if it releases nothing; calls that
// wait end at once.
func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	bubbled(t, func(w *world) {
		mortal, wire := w.newMortal()
		h := take(w, newOwner(), mortal, write, "n")
		waiter := w.enqueue(newOwner(), mortal, write, "n")
		wire.cut()
		start := time.Now()
		first := w.start(mortal.Close)
		require.ErrorIs(w, errOf(waiter.wait()), rwlock.ErrClosed)
		w.within(0, start, waiter.at)
		require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrClosed)
		time.Sleep(time.Second)
		require.NoError(w, mortal.Close())
		require.Greater(w, time.Since(start), time.Second)
		require.Error(w, errOf(first.wait()), "nothing was released")
		require.Equal(w, time.Now(), first.at)
		w.within(10*time.Second, start, first.at)
		require.NoError(w, mortal.Shutdown(context.Background()))

		// Where no server was ever there, nothing can have been left behind.
		mortal, wire = w.newMortal()
		wire.cut()
		for _, mode := range bothModes {
			require.Error(w, errOf(acquire(lasting(w, 100*time.Millisecond), mortal, mode, "n")))
			require.Error(w, errOf(try(soon(w), mortal, mode, "n")))
		}
		start = time.Now()
		require.NoError(w, mortal.Close())
		w.within(2*time.Second, start, time.Now())
	})
}

// shutDown calls Shutdown, and returns when new calls are refused.
func (w *world) shutDown(ctx context.Context, rw *rwlock.RWLock) *call {
	c := w.start(func() error { return rw.Shutdown(ctx) })
	eventually(w, func() bool {
		h, err := rw.TryLock(newOwner(), "probe")
		if err == nil {
			unlock(w, h)
		}
		return err != nil
	}, "Shutdown")
	return c
}

// Shutdown refuses new calls, ends waiting ones at once, and waits for the holds, which are renewed and may
// be re-entered.
func TestShutdownWaitsForTheHolds(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, other := w.newLock(rwlock.WithLease(w.lease)), w.newLock()
		wr, r := take(w, newOwner(), rw, write, "w"), take(w, newOwner(), rw, read, "r")
		waiting := []*call{w.enqueue(newOwner(), rw, read, "w"), w.enqueue(newOwner(), rw, write, "r")}
		behind := []*call{w.enqueue(newOwner(), other, write, "w"), w.enqueue(newOwner(), other, write, "r")}
		start := time.Now()
		down := w.shutDown(context.Background(), rw)
		for _, c := range waiting {
			require.ErrorIs(w, errOf(c.wait()), rwlock.ErrClosed)
			w.within(w.prompt, start, c.at)
		}
		time.Sleep(2 * w.lease)
		for name, call := range everyCall {
			if err := call(newOwner(), rw); name != "Inspect" && name != "ForceUnlock" {
				require.ErrorIs(w, err, rwlock.ErrClosed, name)
			}
		}
		require.NoError(w, wr.Context().Err())
		unlock(w, take(w, wr.Context(), rw, write, "w"), take(w, wr.Context(), rw, read, "w"),
			take(w, r.Context(), rw, read, "r"))
		require.ErrorIs(w, errOf(rw.Lock(r.Context(), "r")), rwlock.ErrUpgrade)
		require.ErrorIs(w, errOf(rw.Lock(r.Context(), "w")), rwlock.ErrClosed)
		require.NoError(w, wr.Extend(context.Background(), 2*w.lease))
		unlock(w, wr)
		unlock(w, behind[0].granted())
		require.ErrorIs(w, errOf(rw.Lock(rwlock.WithOwner(context.Background(), wr.Owner()), "w")),
			rwlock.ErrClosed)
		w.waits(down)
		unlock(w, r)
		require.NoError(w, errOf(down.wait()))
		unlock(w, behind[1].granted())
		require.ErrorIs(w, errOf(rw.Inspect(newOwner(), "n")), rwlock.ErrClosed)
		require.NoError(w, rw.Shutdown(context.Background()))
		require.NoError(w, rw.Close())
	})
}

// When its context ends first, Shutdown closes at once: the holds are released, and end with ErrClosed.
func TestShutdownThatRunsOutOfTime(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, other := w.newLock(), w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		next := w.enqueue(newOwner(), other, write, "n")
		start := time.Now()
		ctx := lasting(w, w.lease)
		err := rw.Shutdown(ctx)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.Regexp(w, `^rwlock: shutdown: context deadline exceeded after [0-9.]+s: 1 holds were not released$`,
			err.Error())
		w.within(w.lease+w.prompt, start, time.Now())
		require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrClosed)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrClosed)
		unlock(w, next.granted())
	})
}

// Shutdown waits neither for holds that were lost nor for those that end with their lease, longer than for
// that.
func TestShutdownDoesNotWaitForLostHolds(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		lost := take(w, newOwner(), rw, write, "lost", rwlock.NoRenew(), rwlock.Lease(time.Second))
		w.lostWhen(lost)
		start := time.Now()
		brief := take(w, newOwner(), rw, write, "brief", rwlock.NoRenew())
		require.NoError(w, rw.Shutdown(context.Background()))
		require.Equal(w, w.lease-margin(w.lease), time.Since(start))
		require.ErrorIs(w, brief.Unlock(context.Background()), rwlock.ErrLost)
		require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
	})
}

// Close ends a Shutdown that waits, and several may shut down at a time.
func TestCloseEndsShutdown(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := rw.Shutdown(context.Background()); err != nil {
					w.Error(err)
				}
			})
		}
		time.Sleep(time.Hour)
		require.NoError(w, h.Context().Err())
		require.NoError(w, rw.Close())
		wg.Wait()
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrClosed)
	})
}

// Once the program has closed the client, every call returns an error that says so, and none tries again; a
// call that waits ends, too. Close does not wait for holds that nothing can release any more. An RWLock that
// has never used its client says the same.
func TestClosedClientIsAnErrorAtOnce(t *testing.T) {
	bubbled(t, func(w *world) {
		var clients []*redis.Client
		rw := w.newLockVia(func(c *redis.Client) { clients = append(clients, c) }, rwlock.WithLease(w.lease))
		ctx, other := context.Background(), w.newLock()
		foreign := take(w, newOwner(), other, write, "foreign")
		a, b := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, read, "b")
		inner := take(w, a.Context(), rw, write, "a")
		waiting := []*call{w.enqueue(newOwner(), rw, write, "foreign"), w.enqueue(newOwner(), rw, read, "foreign")}
		time.Sleep(w.while)
		for _, c := range clients {
			require.NoError(w, c.Close())
		}

		calls := maps.Clone(everyCall)
		calls["re-entry for longer"] = func(_ context.Context, rw *rwlock.RWLock) error {
			return errOf(rw.RLock(a.Context(), "a", rwlock.Lease(time.Hour)))
		}
		calls["Extend"] = func(ctx context.Context, _ *rwlock.RWLock) error { return b.Extend(ctx, time.Hour) }
		for what, call := range calls {
			start := time.Now()
			err := call(ctx, rw)
			require.ErrorIs(w, err, redis.ErrClosed, what)
			require.NotErrorIs(w, err, context.DeadlineExceeded, what)
			w.within(100*time.Millisecond, start, time.Now())
		}
		unlock(w, inner) // which asks nobody
		start := time.Now()
		require.ErrorIs(w, b.Unlock(ctx), redis.ErrClosed)
		w.within(100*time.Millisecond, start, time.Now())
		for _, c := range waiting {
			require.ErrorIs(w, errOf(c.wait()), redis.ErrClosed)
		}

		start = time.Now()
		err := rw.Close()
		w.within(100*time.Millisecond, start, time.Now())
		require.ErrorIs(w, a.Unlock(ctx), rwlock.ErrClosed)
		requireError(w, err, redis.ErrClosed, "holds end with their leases")
		unlock(w, foreign)
		for _, name := range []string{"a", "b", "n", "foreign"} {
			unlock(w, take(w, newOwner(), other, write, name)) // which removes what is left
		}

		rw = w.newLockVia(func(c *redis.Client) { require.NoError(w, c.Close()) })
		start = time.Now()
		require.ErrorIs(w, errOf(rw.Lock(newOwner(), "n")), redis.ErrClosed)
		require.ErrorIs(w, errOf(rw.Inspect(newOwner(), "n")), redis.ErrClosed)
		require.NoError(w, rw.Close())
		w.within(100*time.Millisecond, start, time.Now())
	})
}

// Over a quorum, a client that was closed stands for a server that has failed: the others suffice, as long as
// they are a majority.
func TestClosedClientOfAQuorum(t *testing.T) {
	inMemory(t, 3, func(w *world) {
		var clients []*redis.Client
		rw := w.newLockVia(func(c *redis.Client) { clients = append(clients, c) })
		held := take(w, newOwner(), rw, write, "held")
		require.NoError(w, clients[0].Close())
		for range 10 {
			for _, mode := range bothModes {
				unlock(w, take(w, newOwner(), rw, mode, "n"))
			}
		}
		time.Sleep(10 * w.lease)
		unlock(w, held)
		require.NoError(w, clients[1].Close())
		start := time.Now()
		requireError(w, errOf(rw.Lock(newOwner(), "n")), redis.ErrClosed, rwlock.ErrNoMajority)
		require.NoError(w, rw.Close())
		w.within(100*time.Millisecond, start, time.Now())
	})
}

// bound is for how long Unlock and Close may wait for a server that does not answer, and a little.
const bound = 6 * time.Second

// readTimeouts are the read timeouts that clients have: the client's default, none, and a long one.
var readTimeouts = map[string]time.Duration{"default": 0, "none": -1, "long": 30 * time.Second}

// outages are the ways in which a server stops to answer.
var outages = map[string]func(*wire){
	"frozen":       (*wire).freeze,
	"out of reach": func(w *wire) { w.set(gone) },
	"cut off": func(w *wire) {
		w.set(gone)
		w.endConns()
	},
}

// underOutage returns an RWLock, and what begins and ends an outage of so many of its servers. It need not
// close without an error.
func (w *world) underOutage(servers int, strike func(*wire), readTimeout time.Duration,
	opts ...rwlock.Option) (rw *rwlock.RWLock, begin, end func()) {
	w.Helper()
	wire := &wire{}
	dialed := 0
	rw = w.open(opts, func(o *redis.Options) {
		o.ReadTimeout = readTimeout
		if dialed++; dialed <= servers {
			wire.into(o)
		}
	})
	w.Cleanup(func() {
		wire.mend()
		wire.endConns() // on which someone may wait for ever
	})
	return rw, func() { strike(wire) }, wire.mend
}

// tooMany returns of how many servers an outage leaves no majority: of all, and of as few as can be.
func (w *world) tooMany() []int {
	all := len(w.servers())
	return slices.Compact([]int{all, all/2 + 1})
}

// eachOutage runs fn in bubbles, for each outage and each read timeout.
func eachOutage(t *testing.T, fn func(w *world, rw *rwlock.RWLock, begin, end func())) {
	t.Helper()
	each(t, outages, func(t *testing.T, strike func(*wire)) {
		each(t, readTimeouts, func(t *testing.T, readTimeout time.Duration) {
			inBubble(t, func(w *world) {
				rw, begin, end := w.underOutage(1, strike, readTimeout)
				fn(w, rw, begin, end)
			})
		})
	})
}

// returnsIn ends the test if fn has not returned after d.
func (w *world) returnsIn(d time.Duration, what string, fn func()) {
	w.Helper()
	done := w.start(func() error { fn(); return nil })
	select {
	case <-done.done:
	case <-time.After(d):
		w.Fatalf("%s has not returned after %v", what, d)
	}
}

// Close returns in bounded time on a server that does not answer, in whatever state it finds the RWLock; the
// lock calls that were in flight end at once with ErrClosed, and other calls with it. Shutdown returns at
// once when nothing is held, though the server does not answer: neither what has become of lost holds and of
// calls that failed matters, nor, for longer than Close waits or ctx lasts, a release that has no answer.
func TestCloseIsBoundedInEveryState(t *testing.T) {
	t.Parallel()
	type inFlight struct{ locks, releases []*call }
	const (
		holds    = iota // which Shutdown would wait for
		holdsNot        // anything
		idle            // so that there is nothing that Close could fail to do
		releases        // what may not be released, or withdrawn: Close and Shutdown say so
	)
	states := map[string]struct {
		kind  int
		build func(w *world, rw *rwlock.RWLock, begin func()) inFlight
	}{
		"never used": {idle, func(_ *world, _ *rwlock.RWLock, begin func()) (calls inFlight) {
			begin()
			return calls
		}},
		"used": {idle, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			w.haveWaited(rw)
			unlock(w, take(w, newOwner(), rw, write, "n"), take(w, newOwner(), rw, read, "r"))
			begin()
			return calls
		}},
		"held": {holds, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			h := w.keep(newOwner(), rw, write, "n")
			w.keep(h.Context(), rw, write, "n")
			w.keep(newOwner(), rw, read, "r")
			begin()
			return calls
		}},
		"waiting": {releases, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			w.keep(newOwner(), w.newLock(), write, "n")
			calls.locks = []*call{w.enqueue(newOwner(), rw, write, "n"), w.enqueue(newOwner(), rw, read, "n")}
			begin()
			return calls
		}},
		"lock calls in flight": {holdsNot, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			begin()
			for i := range 10 {
				calls.locks = append(calls.locks, w.launch(newOwner(), rw, bothModes[i%2], fmt.Sprint(i)))
			}
			time.Sleep(time.Second)
			return calls
		}},
		"lock calls given up": {holdsNot, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			begin()
			require.Error(w, errOf(rw.Lock(newOwner(), "n", rwlock.MaxWait(time.Second))))
			return calls
		}},
		"releases in flight": {releases, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			w.haveWaited(rw)
			a, b := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, read, "b")
			begin()
			calls.releases = []*call{w.start(func() error { return a.Unlock(context.Background()) })}
			require.ErrorIs(w, b.Unlock(lasting(w, time.Second)), context.DeadlineExceeded)
			return calls
		}},
		"a release given up": {releases, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			h := take(w, newOwner(), rw, write, "n", rwlock.Lease(quiet))
			begin()
			w.returnsIn(bound, "Unlock", func() { require.Error(w, h.Unlock(context.Background())) })
			return calls
		}},
		"renewals in flight": {holds, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			w.haveWaited(rw)
			w.keep(newOwner(), rw, write, "n")
			w.keep(newOwner(), rw, read, "r")
			begin()
			time.Sleep(w.lease * 2 / 5)
			return calls
		}},
		"lost": {holdsNot, func(w *world, rw *rwlock.RWLock, begin func()) (calls inFlight) {
			w.haveWaited(rw)
			h, other := take(w, newOwner(), rw, write, "n"), take(w, newOwner(), rw, write, "m")
			begin()
			w.isLost(h)
			w.lostWhen(other)
			return calls
		}},
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
				calls := state.build(w, rw, begin)
				closed := w.start(rw.Close)
				for _, c := range calls.locks {
					w.returnsIn(time.Second, "a lock call", func() { <-c.done })
					require.ErrorIs(w, c.err, rwlock.ErrClosed)
				}
				w.returnsIn(bound, "Close", func() { <-closed.done })
				switch state.kind {
				case releases:
					require.Error(w, closed.err)
				case idle:
					require.NoError(w, closed.err)
				}
				for _, c := range calls.releases {
					w.returnsIn(time.Second, "Unlock", func() { <-c.done })
					require.Error(w, c.err)
				}
			})
			if state.kind == holds {
				return
			}
			t.Run("shutdown", func(t *testing.T) {
				eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
					state.build(w, rw, begin)
					start := time.Now()
					patience := 3 * time.Second
					if state.kind == idle {
						patience = -time.Second // its context is done
					}
					err := rw.Shutdown(lasting(w, patience))
					if state.kind == releases {
						requireError(w, err, context.DeadlineExceeded, "end with their leases")
						w.within(4*time.Second, start, time.Now())
					} else {
						require.NoError(w, err)
						w.within(time.Second, start, time.Now())
					}
				})
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

// Without a limit of its own, a lock call is tried again for a lease on a server that does not answer, and
// then fails with what the client said last. A Try fails soon, whatever its context and the client's read
// timeout.
func TestLockCallIsBoundedByALease(t *testing.T) {
	each(t, map[string]bool{"fresh": false, "used": true}, func(t *testing.T, used bool) {
		eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
			if used {
				w.haveWaited(rw)
			}
			begin()
			for _, mode := range bothModes {
				var err error
				w.returnsIn(w.lease/2, "a try", func() { _, err = try(newOwner(), rw, mode, "n") })
				require.Error(w, err)
				require.NotErrorIs(w, err, rwlock.ErrLocked)
			}
			start := time.Now()
			for _, c := range []*call{w.launch(newOwner(), rw, write, "n"), w.launch(newOwner(), rw, read, "r")} {
				w.returnsIn(time.Until(start.Add(w.lease+time.Second)), "a lock call", func() { <-c.done })
				require.Error(w, c.err)
				require.NotErrorIs(w, c.err, rwlock.ErrClosed)
			}
		})
	})
}

// A lock call outlasts an outage that ends before its context, its MaxWait or, without either, one lease. An
// outage of less than a lease costs nothing: holds are renewed when it is over, and a waiter gets the lock.
func TestLockCallOutlastsAnOutage(t *testing.T) {
	each(t, outages, func(t *testing.T, strike func(*wire)) {
		bubbled(t, func(w *world) {
			long, other := lasting(w, 10*time.Minute), w.newLock()
			for _, servers := range w.tooMany() {
				for i, c := range []struct {
					ctx  context.Context
					opts []rwlock.LockOption
					out  time.Duration
				}{
					{context.Background(), nil, w.lease * 3 / 5},
					{long, nil, 3 * w.lease / 2},
					{context.Background(), []rwlock.LockOption{rwlock.MaxWait(2 * time.Minute)}, 2 * w.lease},
				} {
					mode := bothModes[(i+servers)%2]
					rw, begin, end := w.underOutage(servers, strike, 0)
					var holds []*rwlock.Hold
					var next []*call
					if c.out < w.lease { // or else it is a client that has no connection yet
						holds = append(holds, take(w, newOwner(), rw, write, "w"), take(w, newOwner(), rw, read, "r"),
							take(w, newOwner(), other, write, "a"))
						next = append(next, w.enqueue(newOwner(), rw, mode, "a"))
					}
					begin()
					waiting := w.launch(c.ctx, rw, mode, "n", c.opts...)
					time.Sleep(c.out)
					end()
					unlock(w, waiting.granted())
					unlock(w, holds...)
					finish(next...)
				}
			}
		})
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

// A call whose context ended before it was granted the lock returns the context's error, though its goroutine
// learns of that only after the grant, and the lock goes on.
func TestEndOfTheContextIsNoticedAfterTheGrant(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		cause := errors.New("the cause")
		for i := range 20 {
			for _, late := range []bool{false, true} {
				h := take(w, newOwner(), rw, write, "n")
				ctx, cancel := context.WithCancelCause(newOwner())
				calls := ctx
				if late {
					calls = lateContext{ctx}
				}
				waiting := w.enqueue(calls, rw, bothModes[i%2], "n")
				cancel(cause)
				unlock(w, h)
				_, err := waiting.wait()
				requireError(w, err, context.Canceled, cause)
				if late {
					requireNotBlocked(w.T, err)
				}
				waitFree(w, rw, "n")
			}
		}
	})
}

// A lateContext has its user notice its end late.
type lateContext struct{ context.Context }

func (lateContext) Done() <-chan struct{} { return nil }

// A call whose context is done already returns its error, and asks the server nothing.
func TestDoneContext(t *testing.T) {
	everywhere(t, func(w *world) {
		sent := &counter{}
		rw := w.newLockVia(sent.over)
		cause := errors.New("the cause")
		cancelled, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		expired, cancelExpired := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancelExpired()
		for name, call := range everyCall {
			require.ErrorIs(w, call(expired, rw), context.DeadlineExceeded, name)
			err := call(cancelled, rw)
			require.ErrorIs(w, err, context.Canceled, name)
			require.ErrorContains(w, err, `"n"`, name)
		}
		require.ErrorIs(w, errOf(rw.Lock(cancelled, "n")), cause)
		require.Zero(w, sent.Load())
	})
}

// Whatever ends a wait, the error matches it, comes at once, and leaves nothing behind; the next call gets
// the lock. MaxWait bounds the wait alone: neither the hold nor its context ends with it.
func TestEndOfAWait(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, u, cause := w.newLock(), w.lease/10, errors.New("the cause")
		for _, mode := range bothModes {
			for _, c := range []struct {
				name string
				want error
				ctx  func() context.Context
				opts []rwlock.LockOption
			}{
				{"MaxWait", context.DeadlineExceeded, func() context.Context { return lasting(w, time.Hour) },
					[]rwlock.LockOption{rwlock.MaxWait(u)}},
				{"deadline", context.DeadlineExceeded, func() context.Context { return lasting(w, u) }, nil},
				{"cancel", context.Canceled, func() context.Context {
					ctx, cancel := context.WithCancel(newOwner())
					time.AfterFunc(u, cancel)
					return ctx
				}, nil},
				{"cause", cause, func() context.Context {
					ctx, cancel := context.WithCancelCause(newOwner())
					time.AfterFunc(u, func() { cancel(cause) })
					return ctx
				}, nil},
			} {
				h := take(w, newOwner(), rw, write, "n")
				start := time.Now()
				waiter := w.launch(c.ctx(), rw, mode, "n", c.opts...)
				require.ErrorIs(w, errOf(waiter.wait()), c.want, c.name)
				w.within(u+w.prompt, start, waiter.at)
				require.False(w, waiter.at.Before(start.Add(u)))
				waitQueued(w, rw, "n", 0)
				unlock(w, h)
				waitFree(w, rw, "n")
			}
			waiting := w.launch(newOwner(), rw, mode, "n", rwlock.MaxWait(w.lease))
			h := waiting.granted()
			time.Sleep(w.lease + w.while)
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
		for text, opts := range map[string][]rwlock.Option{
			"nil option": {nil}, "prefix": {rwlock.WithPrefix("")}, "the tracer is nil": {rwlock.WithTracer(nil)},
			"the monitor is nil":  {rwlock.WithMonitor(nil)},
			"the observer is nil": {rwlock.WithObserver(nil), rwlock.WithObserver(rwlock.ObserverFunc(nil))},
			"lease ": {rwlock.WithLease(99 * time.Millisecond), rwlock.WithLease(0), rwlock.WithLease(-time.Second),
				rwlock.WithLease(century)},
			"the label is empty": {rwlock.WithLabel("")}, "257 bytes": {rwlock.WithLabel(strings.Repeat("x", 257))},
			"not printable": {rwlock.WithLabel("a\nb"), rwlock.WithLabel("\x1b[2J")}, "UTF-8": {rwlock.WithLabel("\xff")},
		} {
			for _, opt := range opts {
				rw, err := rwlock.New(c, opt)
				require.Nil(w, rw)
				requireError(w, err, "rwlock: new: ", text)
			}
		}
		rw := w.newLockVia(sent.over, rwlock.WithLogger(nil),
			rwlock.WithLease(100*time.Millisecond), rwlock.WithLabel(strings.Repeat("🔒", 64)))
		bad := map[string][]rwlock.LockOption{
			"nil option": {nil}, "max wait 0s": {rwlock.MaxWait(0)}, "max wait -1s": {rwlock.MaxWait(-time.Second)},
		}
		for _, d := range []time.Duration{99 * time.Millisecond, 0, -time.Second, century} {
			bad["lease "+d.String()] = []rwlock.LockOption{rwlock.Lease(d)}
			bad["max hold "+d.String()] = []rwlock.LockOption{rwlock.MaxHold(d)}
		}
		refused := func(text string, opts ...rwlock.LockOption) {
			for _, mode := range bothModes {
				for _, lock := range []lockFunc{acquire, try} {
					h, err := lock(newOwner(), rw, mode, "n", opts...)
					require.Nil(w, h)
					require.Regexp(w, `^rwlock: (try)?r?lock "n": .*`+text, err.Error())
				}
			}
		}
		for text, opts := range bad {
			for _, opt := range opts {
				refused(text, opt)
			}
		}
		require.Zero(w, sent.Load())
	})
}

// A ring and an AutoPipeliner are refused, and so are types around one; around other clients they work.
func TestRingIsRefusedWhereverItIs(t *testing.T) {
	t.Parallel()
	type embedded struct{ *redis.Ring }
	type hidden struct{ redis.UniversalClient }
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for _, c := range []redis.UniversalClient{ring, embedded{ring}, hidden{ring}, &hidden{hidden{ring}}} {
		require.ErrorContains(t, errOf(rwlock.New(c)), "a ring is not supported", "%T", c)
	}
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer c.Close()
	ap, err := c.AutoPipeline()
	require.NoError(t, err)
	for _, c := range []redis.UniversalClient{ap, hidden{ap}, &hidden{hidden{ap}}} {
		require.ErrorContains(t, errOf(rwlock.New(c)), "pass the client that it is made from", "%T", c)
		_, err = rwlock.NewQuorum([]redis.UniversalClient{c, hidden{ap}, hidden{ap}})
		require.ErrorContains(t, err, "pass the client that it is made from", "%T", c)
	}
	rw, err := rwlock.New(hidden{c})
	require.NoError(t, err)
	require.NoError(t, rw.Close())
}

// A release that meets an outage is tried again for as long as the server may keep the claim, which a
// re-entry may have made longer than the lease that it began with: the lock is free soon after the outage,
// not at the end of that lease.
func TestReleaseIsRetriedForAsLongAsTheServerKeepsTheClaim(t *testing.T) {
	eachOf(t, []time.Duration{9 * time.Second, time.Minute}, func(t *testing.T, outage time.Duration) {
		bubbled(t, func(w *world) {
			for _, servers := range w.tooMany() {
				rw, begin, end := w.underOutage(servers, (*wire).freeze, 0, rwlock.WithLease(5*time.Second))
				other := w.newLock()
				for _, mode := range bothModes {
					outer := take(w, newOwner(), rw, mode, mode.String())
					inner := take(w, outer.Context(), rw, mode, mode.String(), rwlock.Lease(quiet))
					begin()
					start := time.Now()
					together(2, func(i int) { // the inner one first
						time.Sleep(time.Duration(i) * time.Millisecond)
						// may say that it goes on in the background
						_ = []*rwlock.Hold{inner, outer}[i].Unlock(lasting(w, time.Second))
					})
					time.Sleep(time.Until(start.Add(outage)))
					end()
					next := w.launch(newOwner(), other, write, mode.String())
					unlock(w, next.granted())
					w.within(30*time.Second, start.Add(outage), next.at)
				}
			}
			// until the client gives up what was sent into the outage, or Close would wait for that
			time.Sleep(time.Minute)
		})
	})
}
