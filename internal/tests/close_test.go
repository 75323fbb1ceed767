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
		ended := []*call{w.enqueue(newOwner(), rw, write, "foreign"), w.enqueue(newOwner(), rw, read, "foreign"), w.enqueue(newOwner(), rw, write, "r")}
		follow := []*call{w.enqueue(newOwner(), other, write, "w"), w.enqueue(newOwner(), other, write, "r")}
		time.Sleep(w.lease) // renewals and heartbeats are under way

		start := time.Now()
		require.NoError(w, rw.Close())
		w.within(w.prompt, start, time.Now())
		for _, c := range ended {
			_, err := c.wait()
			require.ErrorIs(w, err, rwlock.ErrClosed)
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
		for _, err := range []error{
			errOf(rw.Lock(ctx, "n")), errOf(rw.RLock(ctx, "n")), errOf(rw.TryLock(ctx, "n")), errOf(rw.TryRLock(ctx, "n")),
			errOf(rw.Lock(owner, "w")), rw.WithLock(ctx, "n", nil), rw.WithRLock(ctx, "n", nil),
			errOf(rw.Inspect(ctx, "n")), rw.ForceUnlock(ctx, "n"),
		} {
			require.ErrorIs(w, err, rwlock.ErrClosed)
			require.ErrorContains(w, err, "rwlock: ")
		}
		unlock(w, foreign, follow[0].hold, follow[1].hold)
		w.requireClean()
	})
}

// Calls that race Close get the lock, which Close then releases, or ErrClosed; many may close at a time.
func TestCloseRacesCalls(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		for range 10 {
			rw := w.newLock()
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					for {
						h, err := acquire(newOwner(), rw, []rwlock.Mode{read, write}[i%2], "n")
						if err == nil {
							err = h.Unlock(context.Background())
						}
						if errors.Is(err, rwlock.ErrClosed) {
							return
						}
						if err != nil {
							w.Error(err)
							return
						}
						time.Sleep(10 * time.Microsecond)
					}
				})
			}
			time.Sleep(time.Millisecond)
			for range 3 {
				wg.Go(func() {
					if err := rw.Close(); err != nil {
						w.Error(err)
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
		_, err := waiter.wait()
		require.ErrorIs(t, err, rwlock.ErrClosed)
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
				clients = append(clients, servers[len(servers)-1].Client(func(o *redis.Options) { o.ReadTimeout = 2 * hang }))
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

// A Close, or Shutdown, while another one is under way returns when that does: the client may be closed then.
func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	bubbled(t, func(w *world) {
		mortal, plug := w.newMortal()
		take(w, newOwner(), mortal, write, "n")
		plug.pull()
		start := time.Now()
		first := make(chan time.Duration, 1)
		go func() {
			if err := mortal.Close(); err == nil {
				w.Error("nothing was released, and Close says nothing")
			}
			first <- time.Since(start)
		}()
		time.Sleep(time.Second)
		require.NoError(w, mortal.Close())
		second := time.Since(start)
		require.Greater(w, second, time.Second)
		require.Equal(w, <-first, second)
		require.NoError(w, mortal.Shutdown(context.Background()))
	})
}

// Close is bounded in time, and says so, if the server cannot be reached; calls that wait still end at once.
func TestCloseWithoutServer(t *testing.T) {
	bubbled(t, func(w *world) {
		mortal, plug := w.newMortal()
		h := take(w, newOwner(), mortal, write, "n")
		waiter := w.enqueue(newOwner(), mortal, write, "n")
		plug.pull()
		start := time.Now()
		require.Error(w, mortal.Close())
		w.within(10*time.Second, start, time.Now())
		_, err := waiter.wait()
		require.ErrorIs(w, err, rwlock.ErrClosed)
		w.within(0, start, waiter.at)
		require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrClosed)
	})
}
