package testredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const slots = 16384

// NodeTimeout is the cluster-node-timeout of clusters that have replicas: a master that does not answer is
// replaced within some seconds.
const NodeTimeout = time.Second

// takeOverTime is more than a server takes to replace its master when it is told to, or to give that up.
const takeOverTime = 6 * time.Second

// Cluster is a running Redis Cluster.
type Cluster struct {
	Nodes   []*Server // the masters, then their replicas in the same order
	masters int
	tb      testing.TB
}

// StartCluster starts a cluster of n masters for this test; each has an equal share of the slots.
func StartCluster(tb testing.TB, n int, args ...string) *Cluster {
	tb.Helper()
	return startCluster(tb, n, n, func(_ int, conf *Config) { conf.Args = append(conf.Args, args...) })
}

// StartReplicatedCluster starts a cluster of n masters, with a replica each, for this test.
func StartReplicatedCluster(tb testing.TB, n int, args ...string) *Cluster {
	tb.Helper()
	return StartReplicatedClusterWith(tb, n, func(_ int,
		conf *Config) {
		conf.Args = append(conf.Args, args...)
	})
}

// StartReplicatedClusterWith is StartReplicatedCluster for nodes that differ: each is called with a node's
// place in Nodes and how it is to be started.
func StartReplicatedClusterWith(tb testing.TB, n int, each func(node int, conf *Config)) *Cluster {
	tb.Helper()
	timeout := strconv.FormatInt(NodeTimeout.Milliseconds(), 10)
	return startCluster(tb, n, 2*n, func(node int, conf *Config) {
		conf.Args = append(conf.Args,
			"--cluster-node-timeout", timeout, "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay",
			"0")
		each(node, conf)
	})
}

func startCluster(tb testing.TB, masters, nodes int, each func(node int, conf *Config)) *Cluster {
	tb.Helper()
	ctx := context.Background()
	cluster := &Cluster{masters: masters, tb: tb}
	for i := range nodes {
		conf := Config{Args: []string{"--cluster-enabled", "yes"}}
		each(i, &conf)
		s := StartWith(tb, conf)
		cluster.Nodes = append(cluster.Nodes, s)
		c := s.Client()
		err := c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err()
		if err == nil && i < masters {
			err = c.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err()
		}
		if err == nil && i > 0 {
			err = cluster.introduce(c)
		}
		if err != nil {
			tb.Fatalf("set up cluster node %d: %v", i, err)
		}
	}
	for i, s := range cluster.Nodes {
		cluster.await(s, func(c *redis.Client) error {
			info, err := c.ClusterInfo(ctx).Result()
			if line := fmt.Sprintf("cluster_known_nodes:%d", nodes); err == nil &&
				!strings.Contains(info, line+"\r\n") {
				err = fmt.Errorf("no %s in %q", line, info)
			}
			if err == nil && i >= masters {
				err = c.ClusterReplicate(ctx, cluster.Nodes[i-masters].ID()).Err()
			}
			return err
		})
	}
	for i, s := range cluster.Nodes {
		cluster.await(s, func(c *redis.Client) error {
			info, err := c.ClusterInfo(ctx).Result()
			for _, line := range []string{
				"cluster_state:ok", fmt.Sprintf("cluster_size:%d", masters), fmt.Sprintf("cluster_known_nodes:%d", nodes),
			} {
				if err == nil && !strings.Contains(info, line+"\r\n") {
					err = fmt.Errorf("no %s in %q", line, info)
				}
			}
			if err == nil && i >= masters {
				err = s.synced()
			}
			return err
		})
	}
	return cluster
}

// introduce makes a node known to the first, and so to all.
func (c *Cluster) introduce(node *redis.Client) error {
	first := c.Nodes[0]
	return node.Do(context.Background(), "CLUSTER", "MEET", "127.0.0.1",
		cmp.Or(first.conf.known, first.port)).Err()
}

// await waits until a node is ready. Nodes give up an introduction that takes long, as it may on a busy
// machine, so that all are repeated every few seconds: the node may be waiting to hear of another one.
func (c *Cluster) await(s *Server, ready func(*redis.Client) error) {
	c.tb.Helper()
	node, introduced := s.Client(), time.Now()
	err := poll(startTimeout, func() error {
		err := ready(node)
		if err != nil && time.Since(introduced) > 3*time.Second {
			introduced = time.Now()
			for _, other := range c.Nodes[1:] {
				err = errors.Join(err, c.introduce(other.Client()))
			}
		}
		return err
	})
	if err != nil {
		c.tb.Fatalf("await cluster node at %s: %v", s.Addr(), err)
	}
}

// Client returns a new client of the cluster, closed when the test ends.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	c.tb.Helper()
	o := &redis.ClusterOptions{
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
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

// On returns a name that starts with what is given, and whose slot a master had when the cluster started.
func (c *Cluster) On(master int, name string) string {
	for i := 0; ; i++ {
		candidate := fmt.Sprint(name, "-", i)
		if Slot(candidate)*c.masters/slots == master {
			return candidate
		}
	}
}

// Slot returns the slot of a cluster that a hash tag belongs to: its CRC16, as the specification of Redis
// Cluster has it.
func Slot(tag string) int {
	var crc uint16
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}

// ID returns the name of a node of a cluster.
func (s *Server) ID() string {
	s.tb.Helper()
	id, err := s.Client().ClusterMyID(context.Background()).Result()
	if err != nil {
		s.tb.Fatalf("cluster myid: %v", err)
	}
	return id
}

// synced returns an error until the server is a replica that has all that its master has.
func (s *Server) synced() error {
	info, err := s.Client().InfoMap(context.Background(), "replication").Result()
	if err == nil && info["Replication"]["master_link_status"] != "up" {
		err = errors.New("the replica has no link to its master")
	}
	return err
}

// AwaitReplicas waits until replicas have all that the server has written so far.
func (s *Server) AwaitReplicas(replicas ...*Server) {
	s.tb.Helper()
	offset := func(s *Server, field string) (n int64, err error) {
		info, err := s.Client().InfoMap(context.Background(), "replication").Result()
		if err == nil {
			n, err = strconv.ParseInt(info["Replication"][field], 10, 64)
		}
		return n, err
	}
	written, err := offset(s, "master_repl_offset")
	for _, r := range replicas {
		if err == nil {
			err = poll(startTimeout, func() error {
				n, err := offset(r, "slave_repl_offset")
				if err == nil && n < written {
					err = fmt.Errorf("the replica has %d of %d bytes", n, written)
				}
				return err
			})
		}
	}
	if err != nil {
		s.tb.Fatalf("await replicas: %v", err)
	}
}

// AwaitRole waits until the server is a "master" or a "slave".
func (s *Server) AwaitRole(role string) {
	s.tb.Helper()
	c := s.Client()
	err := poll(startTimeout, func() error {
		info, err := c.InfoMap(context.Background(), "replication").Result()
		if err == nil && info["Replication"]["role"] != role {
			err = fmt.Errorf("the server is a %s", info["Replication"]["role"])
		}
		return err
	})
	if err != nil {
		s.tb.Fatalf("await the role of a %s: %v", role, err)
	}
}

// TakeOver has a replica replace its master. It asks again if that fails, as it may on a slow machine.
func (s *Server) TakeOver() {
	s.tb.Helper()
	c := s.Client()
	var asked time.Time
	err := poll(startTimeout, func() error {
		info, err := c.InfoMap(context.Background(), "replication").Result()
		if err != nil || info["Replication"]["role"] == "master" {
			return err
		}
		if time.Since(asked) > takeOverTime {
			asked = time.Now()
			_ = c.ClusterFailover(context.Background())
		}
		return errors.New("the server is a replica")
	})
	if err != nil {
		s.tb.Fatalf("take over: %v", err)
	}
}

// BeginMove begins to move a slot from one node to another. From now on, the first node redirects requests
// for keys that it does not have to the second.
func (c *Cluster) BeginMove(slot int, from, to *Server) {
	c.tb.Helper()
	c.do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.ID())
	c.do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.ID())
}

// MoveKeys moves keys of a slot that is being moved, all that there are if none are named.
func (c *Cluster) MoveKeys(slot int, from, to *Server, keys ...string) {
	c.tb.Helper()
	if len(keys) == 0 {
		var err error
		if keys, err = from.Client().ClusterGetKeysInSlot(context.Background(), slot, 1000).Result(); err != nil {
			c.tb.Fatalf("cluster getkeysinslot: %v", err)
		}
	}
	for _, key := range keys {
		c.do(from, "MIGRATE", "127.0.0.1", to.port, key, 0, 5000)
	}
}

// EndMove moves what there still is of the slot, and tells all nodes where it is.
func (c *Cluster) EndMove(slot int, from, to *Server) {
	c.tb.Helper()
	c.MoveKeys(slot, from, to)
	id := to.ID()
	for _, s := range []*Server{to, from} {
		c.do(s, "CLUSTER", "SETSLOT", slot, "NODE", id)
	}
}

func (c *Cluster) do(s *Server, args ...any) {
	c.tb.Helper()
	if err := s.Client().Do(context.Background(), args...).Err(); err != nil {
		c.tb.Fatalf("%v: %v", args, err)
	}
}
