package rwlock_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// NewQuorum refuses what is no quorum, and says why.
func TestNewQuorumRefusesBadInput(t *testing.T) {
	t.Parallel()
	client := func() redis.UniversalClient { return testredis.NewClient(t, "127.0.0.1:1") }
	one, cluster := client(), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _, _ = cluster.Close(), ring.Close() })
	for text, clients := range map[string][]redis.UniversalClient{
		"0 clients":                    nil,
		"1 clients":                    {client()},
		"2 clients":                    {client(), client()},
		"4 clients":                    {client(), client(), client(), client()},
		"client 1 is nil":              {client(), nil, client()},
		"clients 0 and 2 are the same": {one, client(), one},
		"ClusterClient":                {client(), client(), cluster},
		"Ring":                         {ring, client(), client()},
	} {
		rw, err := rwlock.NewQuorum(clients)
		require.Nil(t, rw)
		require.ErrorContains(t, err, "rwlock: new quorum: ")
		require.ErrorContains(t, err, text)
	}
	_, err := rwlock.NewQuorum([]redis.UniversalClient{client(), client(), client()}, rwlock.WithLease(time.Millisecond))
	require.ErrorContains(t, err, "lease")
}

// Two clients of one server are found when a lock is first used.
func TestQuorumFindsAServerThatIsThereTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		twice, once := testredis.Mem(t), testredis.Mem(t)
		rw, err := rwlock.NewQuorum([]redis.UniversalClient{
			testredis.MemClient(t, twice), testredis.MemClient(t, once), testredis.MemClient(t, twice)})
		require.NoError(t, err)
		for range 2 {
			_, err = rw.TryLock(context.Background(), "n")
			require.ErrorContains(t, err, "clients 0 and 2 of the quorum are of the same server")
		}
		require.NoError(t, rw.Close())
	})
}

// A lock over three servers works while two of them do, and a call says how many answer when one alone is left.
func TestQuorumOutlivesAMinority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var plugs []*plug
		var clients []redis.UniversalClient
		for range 3 {
			p := &plug{conns: map[net.Conn]bool{}}
			plugs = append(plugs, p)
			clients = append(clients, testredis.MemClient(t, testredis.Mem(t), p.into))
		}
		rw, err := rwlock.NewQuorum(clients)
		require.NoError(t, err)
		ctx := context.Background()
		held, err := rw.Lock(ctx, "held")
		require.NoError(t, err)

		plugs[1].pull()
		time.Sleep(5 * time.Minute)
		require.NoError(t, held.Context().Err())
		for _, name := range []string{"a", "b", "c", "d"} { // that have one home or another
			h, err := rw.Lock(ctx, name, rwlock.MaxWait(hang))
			require.NoError(t, err)
			require.NoError(t, h.Unlock(ctx))
		}

		plugs[2].pull()
		_, err = rw.TryLock(ctx, "a")
		require.ErrorIs(t, err, rwlock.ErrNoMajority)
		require.ErrorContains(t, err, "1 of 3 vote, 2 are needed")
		<-held.Context().Done()
		require.ErrorIs(t, context.Cause(held.Context()), rwlock.ErrLost)

		plugs[1].mend()
		h, err := rw.Lock(ctx, "a", rwlock.MaxWait(hang))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
		require.ErrorIs(t, held.Unlock(ctx), rwlock.ErrLost)
		plugs[2].mend()
		require.NoError(t, rw.Close())
	})
}
