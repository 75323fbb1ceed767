package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
		rw, other := w.newLock(rwlock.WithLease(2*w.lease)), w.newLock()
		owner := newOwner()
		wr, inner := take(w, owner, rw, write, "w"), take(w, owner, rw, write, "w")
		r, own := take(w, newOwner(), rw, read, "r"), take(w, owner, rw, read, "w")
		short := take(w, newOwner(), rw, read, "short", rwlock.NoRenew())
		w.lostWhen(short)
		foreign := take(w, newOwner(), other, write, "foreign")
		ended := []*call{w.enqueue(newOwner(), rw, write, "foreign"), w.enqueue(newOwner(), rw, read, "foreign"),
			w.enqueue(newOwner(), rw, write, "r")}
		follow := []*call{w.enqueue(newOwner(), other, write, "w"), w.enqueue(newOwner(), other, write, "r")}
		time.Sleep(w.lease) // renewals and heartbeats are in flight

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
	t.Parallel()
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

// With nothing to release, Close waits neither long for a server that has stopped answering to remove the
// label, nor is that an error.
func TestCloseDoesNotWaitLongForTheLabel(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var servers []*testredis.Server
			var clients []redis.UniversalClient
			for range n {
				servers = append(servers, testredis.Start(t))
				clients = append(clients, servers[len(servers)-1].Client(
					func(o *redis.Options) { o.ReadTimeout = 2 * hang }))
			}
			rw, err := rwlock.New(clients[0])
			if n > 1 {
				rw, err = rwlock.NewQuorum(clients)
			}
			require.NoError(t, err)
			unlock(t, take(t, newOwner(), rw, write, "n"))
			servers[0].Pause()
			defer servers[0].Resume()
			start := time.Now()
			require.NoError(t, rw.Close())
			require.Less(t, time.Since(start), hang, "the client's read timeout")
		})
	}
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
	everywhere(t, func(w *world) {
		w.ours("what Shutdown waits for")
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

// Shutdown of what nobody holds returns at once, though its context is done.
func TestShutdownWithoutHolds(t *testing.T) {
	everywhere(t, func(w *world) {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		for _, ctx := range []context.Context{context.Background(), done} {
			rw, start := w.newLock(), time.Now()
			require.NoError(w, rw.Shutdown(ctx))
			w.within(w.prompt, start, time.Now())
			require.ErrorIs(w, errOf(rw.Lock(newOwner(), "n")), rwlock.ErrClosed)
		}
	})
}

// When its context ends first, Shutdown closes at once: the holds are released, and end with ErrClosed.
func TestShutdownThatRunsOutOfTime(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what Shutdown waits for")
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
	everywhere(t, func(w *world) {
		w.ours("what the client says")
		var clients []*redis.Client
		rw := w.lockVia(func(c *redis.Client) { clients = append(clients, c) }, rwlock.WithLease(w.lease))
		requireClosedClient(w, rw, func() {
			for _, c := range clients {
				require.NoError(w, c.Close())
			}
		}, w.newLock())

		rw = w.lockVia(func(c *redis.Client) { require.NoError(w, c.Close()) })
		start := time.Now()
		require.ErrorIs(w, errOf(rw.Lock(newOwner(), "n")), redis.ErrClosed)
		require.ErrorIs(w, errOf(rw.Inspect(newOwner(), "n")), redis.ErrClosed)
		require.NoError(w, rw.Close())
		w.within(w.closed(), start, time.Now())
	})
}

// So it is with a client of a cluster, and with an AutoPipeliner.
func TestClosedClientOfACluster(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	cluster := testredis.StartCluster(t, 3)
	sorts := map[string]func(c *redis.ClusterClient) redis.UniversalClient{
		"plain": func(c *redis.ClusterClient) redis.UniversalClient { return c },
		"autopipeline": func(c *redis.ClusterClient) redis.UniversalClient {
			ap, err := c.AutoPipeline()
			require.NoError(t, err)
			return ap
		},
	}
	for name, sort := range sorts {
		t.Run(name, func(t *testing.T) {
			w := &world{T: t, prefix: name}
			c := cluster.Client()
			rw, err := rwlock.New(sort(c), w.options([]rwlock.Option{rwlock.WithLease(3 * time.Second)})...)
			require.NoError(t, err)
			requireClosedClient(w, rw, func() { require.NoError(t, c.Close()) },
				newLockOn(t, cluster.Client(), w.options(nil)...))
		})
	}
	c := cluster.Client()
	require.NoError(t, c.Close())
	rw := newLockOn(t, c)
	start := time.Now()
	for range 3 {
		require.ErrorIs(t, errOf(rw.Lock(newOwner(), "n")), redis.ErrClosed)
	}
	(&world{T: t}).within((&world{}).closed(), start, time.Now())
}

// closed returns how long calls may take that fail since the client was closed. They used to take five
// seconds, or for ever.
func (w *world) closed() time.Duration {
	if w.fake {
		return 100 * time.Millisecond
	}
	return 3 * time.Second
}

// requireClosedClient has calls in flight when the client of an RWLock is closed, and makes others after
// that. other is an RWLock of the same server.
func requireClosedClient(w *world, rw *rwlock.RWLock, closeClient func(), other *rwlock.RWLock) {
	ctx := context.Background()
	foreign := take(w, newOwner(), other, write, "foreign")
	a, b := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, read, "b")
	inner := take(w, a.Context(), rw, write, "a")
	waiting := []*call{w.enqueue(newOwner(), rw, write, "foreign"), w.enqueue(newOwner(), rw, read, "foreign")}
	time.Sleep(w.while)
	closeClient()

	for what, call := range map[string]func() error{
		"Lock":     func() error { return errOf(rw.Lock(newOwner(), "n")) },
		"RLock":    func() error { return errOf(rw.RLock(newOwner(), "n")) },
		"TryLock":  func() error { return errOf(rw.TryLock(newOwner(), "n")) },
		"re-entry": func() error { return errOf(rw.RLock(a.Context(), "a")) },
		"WithLock": func() error {
			return rw.WithLock(newOwner(), "n", func(context.Context, *rwlock.Hold) error { return nil })
		},
		"Extend":      func() error { return b.Extend(ctx, time.Hour) },
		"inner":       func() error { return inner.Unlock(ctx) },
		"Inspect":     func() error { return errOf(rw.Inspect(ctx, "n")) },
		"ForceUnlock": func() error { return rw.ForceUnlock(ctx, "n") },
	} {
		start := time.Now()
		err := call()
		require.ErrorIs(w, err, redis.ErrClosed, what)
		require.NotErrorIs(w, err, context.DeadlineExceeded, what)
		w.within(w.closed(), start, time.Now())
	}
	start := time.Now()
	require.ErrorIs(w, b.Unlock(ctx), redis.ErrClosed)
	w.within(w.closed(), start, time.Now())
	for _, c := range waiting {
		require.ErrorIs(w, errOf(c.wait()), redis.ErrClosed)
	}

	start = time.Now()
	err := rw.Close()
	w.within(w.closed(), start, time.Now())
	if after := a.Unlock(ctx); w.fake || !errors.Is(after, rwlock.ErrLost) { // or else the machine is busy
		require.ErrorIs(w, after, rwlock.ErrClosed)
		requireError(w, err, redis.ErrClosed, "holds end with their leases")
	}
	unlock(w, foreign)
	for _, name := range []string{"a", "b", "n", "foreign"} {
		unlock(w, take(w, newOwner(), other, write, name)) // which removes what is left
	}
}

// Over a quorum, a client that was closed stands for a server that has failed: the others suffice, as long as
// they are a majority.
func TestClosedClientOfAQuorum(t *testing.T) {
	t.Parallel()
	t.Run("quorum", func(t *testing.T) {
		inQuorum(t, func(w *world) {
			var clients []*redis.Client
			rw := w.lockVia(func(c *redis.Client) { clients = append(clients, c) })
			held := take(w, newOwner(), rw, write, "held")
			require.NoError(w, clients[0].Close())
			for range 10 {
				for _, mode := range bothModes {
					unlock(w, take(w, newOwner(), rw, mode, "n"))
				}
			}
			time.Sleep(10 * w.lease)
			require.NoError(w, held.Context().Err())
			unlock(w, held)
			require.NoError(w, clients[1].Close())
			start := time.Now()
			err := errOf(rw.Lock(newOwner(), "n"))
			requireError(w, err, redis.ErrClosed, rwlock.ErrNoMajority)
			require.NoError(w, rw.Close())
			w.within(w.closed(), start, time.Now())
		})
	})
}
