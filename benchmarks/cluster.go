package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"

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
func startCluster(ctx context.Context, tb testing.TB) (servers []*Server, err error) {
	for _, node := range testredis.StartCluster(tb, masters, serverArgs...).Nodes {
		s := newServer(node)
		servers = append(servers, s)
		if err := s.client.Do(ctx, "ACL", "SETUSER", oursByPublish.User, "on", ">"+oursByPublish.User, "~*", "&*",
			"+@all", "-ssubscribe", "-spublish").Err(); err != nil {
			return nil, fmt.Errorf("adding a user: %w", err)
		}
	}
	return servers, nil
}

// bytesBetween returns how many bytes the nodes of the cluster have sent to each other: what their processes
// have written, as far as the system says so, less what they have sent to clients.
func (e *Env) bytesBetween(ctx context.Context) (all float64, err error) {
	if !e.Cluster {
		return math.NaN(), nil
	}
	for _, s := range e.Servers {
		var read, written float64
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.PID()))
		if err != nil {
			return math.NaN(), nil
		}
		if _, err := fmt.Sscanf(string(text), "rchar: %g\nwchar: %g", &read, &written); err != nil {
			return 0, fmt.Errorf("reading what a server has written: %w", err)
		}
		fields, err := s.info(ctx, "stats")
		if err != nil {
			return 0, err
		}
		all += written - parsed(fields["total_net_output_bytes"])
	}
	return all, nil
}
