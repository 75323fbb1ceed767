package testredis

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is how sentinels name the master that they watch.
const MasterName = "main"

// failoverTimeout is when a sentinel gives up a failover.
const failoverTimeout = 5 * time.Second

// Sentinels are a master, its replicas, and sentinels that watch them.
type Sentinels struct {
	Master    *Server
	Replicas  []*Server
	Sentinels []*Server
	tb        testing.TB
}

// StartReplicated starts a master with n replicas for this test.
func StartReplicated(tb testing.TB, n int, args ...string) (master *Server, replicas []*Server) {
	tb.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	master = Start(tb, args...)
	for range n {
		replicas = append(replicas, Start(tb, append([]string{"--replicaof", "127.0.0.1",
			strconv.Itoa(master.port)}, args...)...))
	}
	for _, r := range replicas {
		if err := poll(startTimeout, r.synced); err != nil {
			tb.Fatalf("await a replica: %v", err)
		}
	}
	return master, replicas
}

// StartSentinels starts a master with two replicas and three sentinels for this test. A master that does not
// answer is replaced within some seconds.
func StartSentinels(tb testing.TB, args ...string) *Sentinels {
	tb.Helper()
	ctx := context.Background()
	s := &Sentinels{tb: tb}
	s.Master, s.Replicas = StartReplicated(tb, 2, args...)
	watch := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\n", MasterName, s.Master.port) +
		"sentinel down-after-milliseconds " + MasterName + " 1000\n" +
		fmt.Sprintf("sentinel failover-timeout %s %d\n", MasterName, failoverTimeout.Milliseconds())
	for range 3 {
		s.Sentinels = append(s.Sentinels, StartWith(tb, Config{File: watch, Args: []string{"--sentinel"}}))
	}
	for _, node := range s.Sentinels {
		c := node.sentinel()
		err := poll(startTimeout, func() error {
			state, err := c.Master(ctx, MasterName).Result()
			if err == nil && (state["num-slaves"] != "2" || state["num-other-sentinels"] != "2") {
				err = fmt.Errorf("the sentinel knows of %s replicas and %s other sentinels", state["num-slaves"],
					state["num-other-sentinels"])
			}
			return err
		})
		if err != nil {
			tb.Fatalf("await a sentinel: %v", err)
		}
	}
	return s
}

func (s *Server) sentinel() *redis.SentinelClient {
	c := redis.NewSentinelClient(&redis.Options{Addr: s.Addr(), DisableIdentity: true})
	s.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Client returns a new client that follows the master, closed when the test ends.
func (s *Sentinels) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	s.tb.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName}
	for _, node := range s.Sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, node.Addr())
	}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewFailoverClient(o)
	s.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Failover has the sentinels make a replica the master, though there is one, and returns it.
func (s *Sentinels) Failover() *Server {
	s.tb.Helper()
	ctx := context.Background()
	c := s.Sentinels[0].sentinel()
	before, err := c.GetMasterAddrByName(ctx, MasterName).Result()
	if err != nil {
		s.tb.Fatalf("sentinel: %v", err)
	}
	var after *Server
	var refused error
	var asked time.Time
	err = poll(3*startTimeout, func() error {
		addr, err := c.GetMasterAddrByName(ctx, MasterName).Result()
		if err == nil && addr[1] == before[1] {
			// The sentinel may give up. Asked too soon, it would replace the new master by a replica that lacks data.
			if time.Since(asked) > 2*failoverTimeout {
				if refused = c.Failover(ctx, MasterName).Err(); refused == nil {
					asked = time.Now()
				}
			}
			err = fmt.Errorf("the master is still at %s: %v", addr, refused)
		}
		for _, node := range append([]*Server{s.Master}, s.Replicas...) {
			if err == nil && strconv.Itoa(node.port) == addr[1] {
				after = node
			}
		}
		return err
	})
	if err != nil {
		s.tb.Fatalf("sentinel failover: %v", err)
	}
	after.AwaitRole("master")
	return after
}

// AwaitFailover waits until the sentinels have made a replica the master by themselves, and returns it.
func (s *Sentinels) AwaitFailover() *Server {
	s.tb.Helper()
	c := s.Sentinels[0].sentinel()
	var after *Server
	err := poll(3*startTimeout, func() error {
		addr, err := c.GetMasterAddrByName(context.Background(), MasterName).Result()
		for _, node := range s.Replicas {
			if err == nil && strconv.Itoa(node.port) == addr[1] {
				after = node
			}
		}
		if err == nil && after == nil {
			err = fmt.Errorf("the master is still at %s", addr)
		}
		return err
	})
	if err != nil {
		s.tb.Fatalf("await a failover by sentinels: %v", err)
	}
	after.AwaitRole("master")
	return after
}
