package dispatch

import (
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
