package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// Once the program has closed the client, every call returns an error that says so, and none tries again; a
// call that waits ends, too. Close does not wait for holds that nothing can release any more.
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
	})
}

// An RWLock that has never used its client says the same.
func TestClientThatWasClosedBefore(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what the client says")
		rw := w.lockVia(func(c *redis.Client) { require.NoError(w, c.Close()) })
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

// requireClosedClient has calls under way when the client of an RWLock is closed, and makes others after
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
		_, err := c.wait()
		require.ErrorIs(w, err, redis.ErrClosed)
	}

	start = time.Now()
	err := rw.Close()
	w.within(w.closed(), start, time.Now())
	if after := a.Unlock(ctx); w.fake || !errors.Is(after, rwlock.ErrLost) { // or else the machine is busy
		require.ErrorIs(w, after, rwlock.ErrClosed)
		require.ErrorIs(w, err, redis.ErrClosed)
		require.ErrorContains(w, err, "holds end with their leases")
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
			require.ErrorIs(w, err, redis.ErrClosed)
			require.ErrorIs(w, err, rwlock.ErrNoMajority)
			require.NoError(w, rw.Close())
			w.within(w.closed(), start, time.Now())
		})
	})
}
