//go:build !race

package rwlock_test

import "github.com/redis/go-redis/v9"

// The client measures the latency of a node while it still makes the client for it: a data race of its own.
func init() {
	clusterSorts["route by latency"] = func(o *redis.ClusterOptions) { o.RouteByLatency = true }
}
