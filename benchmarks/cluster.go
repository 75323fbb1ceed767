package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// masters is how many there are in a cluster.
const masters = 6

// oursByPublish is ours as if the servers were older than Redis 7: by PUBLISH, the nodes of a cluster pass
// each grant on to all others.
var oursByPublish = func() *Contender {
	c := variant(ours, "rwlock, PUBLISH", "as a user who may not use shard channels")
	c.User = "global"
	return c
}()

// asCluster returns servers that are one cluster, each with an equal share of the slots, and starts them
// unless they were.
func (r *runner) asCluster(ctx context.Context) ([]*Server, error) {
	if r.cluster != nil {
		return r.cluster, nil
	}
	const slots = 16384
	var servers []*Server
	for i := range masters {
		s, err := startServer(ctx, r.binary, "--cluster-enabled", "yes")
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
		r.cluster = servers // to be stopped, whatever comes
		host, port, _ := strings.Cut(servers[0].Addr, ":")
		for _, command := range [][]any{
			{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
			{"CLUSTER", "ADDSLOTSRANGE", i * slots / masters, (i+1)*slots/masters - 1},
			{"CLUSTER", "MEET", host, port},
			{"ACL", "SETUSER", oursByPublish.User, "on", ">" + oursByPublish.User, "~*", "&*", "+@all", "-ssubscribe", "-spublish"},
		} {
			if err := s.client.Do(ctx, command...).Err(); err != nil {
				return nil, fmt.Errorf("making a cluster: %v: %w", command, err)
			}
		}
	}
	for _, s := range servers {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			info, err := s.client.ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok\r\n") &&
				strings.Contains(info, fmt.Sprintf("cluster_size:%d\r\n", masters)) {
				break
			}
			if err != nil || time.Now().After(deadline) {
				return nil, fmt.Errorf("waiting for a cluster: %q, %w", info, err)
			}
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
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
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
