package times

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/internal/testredis/faultproxy"
)

// A topology is what an RWLock is over.
type topology string

const (
	oneServer  topology = "one server"
	clusterOf3 topology = "cluster of 3"
	quorumOf3  topology = "quorum of 3"
)

// A network leads to the servers of a test through proxies.
type network struct {
	where   topology
	servers []*testredis.Server
	proxies []*faultproxy.Proxy
	cluster *testredis.Cluster
}

// openNetwork starts servers, and a proxy for each.
func openNetwork(t *testing.T, where topology) *network {
	t.Helper()
	n := &network{where: where}
	switch where {
	case clusterOf3:
		n.cluster = testredis.StartCluster(t, 3)
		n.servers = n.cluster.Nodes
	case quorumOf3:
		n.servers = start(t, 3)
	default:
		n.servers = start(t, 1)
	}
	for _, server := range n.servers {
		n.proxies = append(n.proxies, faultproxy.New(t, server.Addr()))
	}
	return n
}

func (n *network) each(do func(*faultproxy.Proxy)) {
	for _, p := range n.proxies {
		do(p)
	}
}

// stall has nothing arrive for that time.
func (n *network) stall(d time.Duration) {
	n.each(func(p *faultproxy.Proxy) { p.Blackhole(faultproxy.Both) })
	time.Sleep(d)
	n.each(func(p *faultproxy.Proxy) { p.Blackhole(faultproxy.None) })
}

// lock returns an RWLock that is behind the proxies.
func (n *network) lock(t *testing.T, opts ...rwlock.Option) *rwlock.RWLock {
	t.Helper()
	through := map[string]string{}
	for i, p := range n.proxies {
		through[n.servers[i].Addr()] = p.Addr()
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, through[addr])
	}
	opts = append(opts, rwlock.WithLogger(slog.New(slog.DiscardHandler)))
	var clients []redis.UniversalClient
	if n.where == clusterOf3 {
		clients = append(clients, n.cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = dial }))
	} else {
		for _, s := range n.servers {
			clients = append(clients, s.Client(func(o *redis.Options) { o.Dialer = dial }))
		}
	}
	rw, err := rwlock.New(clients[0], opts...)
	if n.where == quorumOf3 {
		rw, err = rwlock.NewQuorum(clients, opts...)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = rw.Close() })
	return rw
}

// Connections that died in silence cost no hold, and a new lock waits for at most five seconds, however many
// there are in the pool: new connections work.
func TestConnectionsThatDieInSilence(t *testing.T) {
	testredis.Need(t)
	for _, pool := range []int{10, 100} {
		t.Run(fmt.Sprint("pool of ", pool), func(t *testing.T) {
			t.Parallel()
			const lease = 10 * time.Second
			proxy := faultproxy.New(t, testredis.Start(t).Addr())
			client := proxy.Client(func(o *redis.Options) { o.PoolSize = pool })
			rw, err := rwlock.New(client, rwlock.WithLease(lease))
			require.NoError(t, err)
			t.Cleanup(func() { _ = rw.Close() })
			held := lock(t, rw.Lock, "held")
			together(pool, pool, func(int) { client.BLPop(t.Context(), time.Second, "nothing") })
			require.EqualValues(t, pool, client.PoolStats().IdleConns)

			proxy.Forget()
			forgotten := time.Now()
			h := lock(t, rw.Lock, "new")
			require.Less(t, time.Since(forgotten), 5*time.Second, "a new lock")
			unlock(t, h)
			time.Sleep(time.Until(forgotten.Add(lease + time.Second)))
			require.NoError(t, context.Cause(held.Context()))
			unlock(t, held)
		})
	}
}
