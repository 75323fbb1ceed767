package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// masters is how many there are in a cluster.
const masters = 6

// oursByPublish is ours as if the servers were older than Redis 7: by PUBLISH, the nodes of a cluster pass
// each grant on to all others.
var oursByPublish = func() *Contender {
	c := ourContender("rwlock, PUBLISH")
	c.User = "global"
	return c
}()

// startCluster starts servers that are one cluster.
func startCluster(ctx context.Context, t *testing.T) (servers []*Server) {
	for _, node := range testredis.StartCluster(t, masters, serverArgs...).Nodes {
		s := newServer(node)
		servers = append(servers, s)
		require.NoError(t, s.client.Do(ctx, "ACL", "SETUSER", oursByPublish.User, "on", ">"+oursByPublish.User,
			"~*", "&*", "+@all", "-ssubscribe", "-spublish").Err())
	}
	return servers
}

// handovers measures so many processes, of 64 goroutines in all, that draw from 12 names of a cluster.
func handovers(ctx context.Context, e *Env) Metrics {
	return e.share(ctx, e.Param, func(int) Load {
		span := max(e.span(time.Second), 400*time.Millisecond) // a message may take 40 ms
		return Load{Goroutines: 64 / e.Param, To: 12, Span: span}
	})
}

// bytesBetween returns how many bytes the nodes of the cluster have sent to each other: what their processes
// have written, as far as the system says so, less what they have sent to clients.
func (e *Env) bytesBetween(ctx context.Context) (all float64) {
	if !e.Cluster {
		return math.NaN()
	}
	for _, s := range e.Servers {
		var read, written float64
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.PID()))
		if err != nil {
			return math.NaN()
		}
		_, err = fmt.Sscanf(string(text), "rchar: %g\nwchar: %g", &read, &written)
		require.NoError(e, err, "reading what a server has written")
		all += written - parsed(s.info(ctx, e.T, "stats")["total_net_output_bytes"])
	}
	return all
}
