package testredis_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A cluster's nodes have the names that it says, and a replica takes over from its master when that is
// killed.
func TestReplicatedClusterFailsOver(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartReplicatedCluster(t, 3)
	for i := range 3 {
		name := cluster.On(i, "name")
		slot, err := cluster.Nodes[0].Client().ClusterKeySlot(context.Background(), name).Result()
		require.NoError(t, err)
		require.Equal(t, int(slot), testredis.Slot(name))
		require.NoError(t, cluster.Nodes[i].Client().Set(context.Background(), name, 1, 0).Err())
	}
	cluster.Nodes[0].Kill()
	cluster.Nodes[3].AwaitRole("master")
}

// The sentinels make a replica the master, and clients follow.
func TestSentinelsFailOver(t *testing.T) {
	t.Parallel()
	s := testredis.StartSentinels(t)
	ctx, c := context.Background(), s.Client()
	require.NoError(t, c.Set(ctx, "key", 1, 0).Err())
	require.NotSame(t, s.Master, s.Failover())
	require.NoError(t, c.Set(ctx, "key", 2, 0).Err())
}
