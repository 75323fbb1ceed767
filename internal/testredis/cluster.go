package testredis

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const slots = 16384

// Cluster is a running Redis Cluster of masters.
type Cluster struct {
	Nodes []*Server
	tb    testing.TB
}

// StartCluster starts a cluster of n masters for this test; each has an equal share of the slots.
func StartCluster(tb testing.TB, n int, args ...string) *Cluster {
	tb.Helper()
	ctx := context.Background()
	cluster := &Cluster{tb: tb}
	for i := range n {
		s := Start(tb, append([]string{"--cluster-enabled", "yes"}, args...)...)
		cluster.Nodes = append(cluster.Nodes, s)
		c := s.Client()
		err := c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err()
		if err == nil {
			err = c.ClusterAddSlotsRange(ctx, i*slots/n, (i+1)*slots/n-1).Err()
		}
		if err == nil && i > 0 {
			err = c.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", cluster.Nodes[0].port).Err()
		}
		if err != nil {
			tb.Fatalf("set up cluster node %d: %v", i, err)
		}
	}
	for i, s := range cluster.Nodes {
		c := s.Client()
		err := poll(startTimeout, func() error {
			info, err := c.ClusterInfo(ctx).Result()
			for _, line := range []string{"cluster_state:ok", fmt.Sprintf("cluster_size:%d", n)} {
				if err == nil && !strings.Contains(info, line+"\r\n") {
					err = fmt.Errorf("no %s in %q", line, info)
				}
			}
			return err
		})
		if err != nil {
			tb.Fatalf("await cluster node %d: %v", i, err)
		}
	}
	return cluster
}

// Client returns a new client of the cluster, closed when the test ends.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	c.tb.Helper()
	o := &redis.ClusterOptions{MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}}
	for _, s := range c.Nodes {
		o.Addrs = append(o.Addrs, s.Addr())
	}
	for _, opt := range opts {
		opt(o)
	}
	client := redis.NewClusterClient(o)
	c.tb.Cleanup(func() { _ = client.Close() })
	return client
}
