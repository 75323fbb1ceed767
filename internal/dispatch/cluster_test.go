package dispatch

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The client that an AutoPipeliner sends through can be had, for a server and for a cluster.
func TestUnderneathAutoPipeliner(t *testing.T) {
	t.Parallel()
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _, _ = single.Close(), cluster.Close() }()
	for _, c := range []interface {
		redis.UniversalClient
		AutoPipeline() (*redis.AutoPipeliner, error)
	}{single, cluster} {
		ap, err := c.AutoPipeline()
		require.NoError(t, err)
		require.Same(t, c, underneath(ap))
		require.Same(t, c, underneath(c))
	}
}

// A map without a master, as a node answers that was removed from the cluster, is not taken for the cluster's.
func TestEmptyMapIsNotBelieved(t *testing.T) {
	t.Parallel()
	asked := 0
	const addr = "192.0.2.1:1" // of documents: nobody is asked
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{addr},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			if asked++; asked < emptyMaps {
				return nil, nil
			}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	defer func() { _ = client.Close() }()
	masters, err := newCluster(client, nil, nil).load()
	require.NoError(t, err)
	require.Len(t, masters, 1)
	require.Contains(t, masters, addr)
}
