package doctor

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

const (
	skewReads  = 5
	skewWarns  = 100 * time.Millisecond
	skewFails  = time.Second
	keepClocks = "keep the clocks of all of them together, with chrony or another NTP client"
)

// A Peer is one of several servers whose clocks are compared.
type Peer struct {
	Name   string
	Client *redis.Client
}

// Clocks compares the clocks of the masters of a cluster, or of the servers of a quorum. A lock depends on
// their rates, not on the times that they show. But of clocks that are far apart one is wrong, and is going
// to be set.
func Clocks(ctx context.Context, peers []Peer) Finding {
	f := Finding{Check: "clocks", Status: OK}
	read, unread := readClocks(ctx, peers)
	if len(unread) > 0 {
		f.Status, f.Detail = Unknown, unread[0]
		return f
	}
	slices.SortFunc(read, func(a, b peerClock) int { return int(a.ahead - b.ahead) })
	first, last := read[0], read[len(read)-1]
	skew := last.ahead - first.ahead
	f.Detail = fmt.Sprintf("%d servers, at most %s apart", len(read), milliseconds(skew))
	if skew > skewFails {
		f.Status, f.Detail = Failed, fmt.Sprintf("%s is %s ahead of %s", last.name, milliseconds(skew), first.name)
		f.Advice = "leases end early or late when a clock is set: " + keepClocks
	}
	return f
}

// replicaClocks compares the clocks of a master's replicas with the master's clock: a promoted replica
// continues the existing leases by its own clock.
func replicaClocks(ctx context.Context, c *redis.Client, i info) Finding {
	f := Finding{Check: "failover clock", Status: OK}
	peers := []Peer{{"the master", c}}
	for _, addr := range replicasIn(i) {
		o := c.Options()
		replica := redis.NewClient(&redis.Options{Addr: addr, Username: o.Username, Password: o.Password,
			TLSConfig:   o.TLSConfig,
			DialTimeout: 2 * time.Second, MaxRetries: -1, ContextTimeoutEnabled: true})
		defer replica.Close()
		peers = append(peers, Peer{"replica " + addr, replica})
	}
	read, unread := readClocks(ctx, peers)
	if len(unread) > 0 {
		f.Status, f.Detail = Unknown, strings.Join(unread, "; ")
		f.Advice = "run the doctor where the replicas can be reached: a clock that differs ends leases early or late after a failover"
		return f
	}
	slices.SortFunc(read[1:], func(a, b peerClock) int {
		return int((b.ahead - read[0].ahead).Abs() - (a.ahead - read[0].ahead).Abs())
	})
	worst, skew := read[1], read[1].ahead-read[0].ahead
	f.Detail = fmt.Sprintf("replicas at most %s from the master", milliseconds(skew))
	if skew.Abs() <= skewWarns {
		return f
	}
	f.Status = Warning
	if skew.Abs() > skewFails {
		f.Status = Failed
	}
	f.Detail = fmt.Sprintf("%s is %s ahead of the master", worst.name, milliseconds(skew))
	f.Advice = "after a failover to it, leases end so much too early, so that two may hold a lock: " + keepClocks
	if skew < 0 {
		f.Detail = fmt.Sprintf("%s is %s behind the master", worst.name, milliseconds(skew))
		f.Advice = "after a failover to it, a lock whose holder has died stays held so much longer: " + keepClocks
	}
	return f
}

// replicasIn returns the addresses of the replicas that INFO names, such as
// slave0:ip=10.0.0.2,port=6379,state=online.
func replicasIn(i info) (addrs []string) {
	for n := range int(i.number("replication", "connected_slaves")) {
		fields := map[string]string{}
		for field := range strings.SplitSeq(i.get("replication", fmt.Sprint("slave", n)), ",") {
			k, v, _ := strings.Cut(field, "=")
			fields[k] = v
		}
		if fields["ip"] != "" {
			addrs = append(addrs, net.JoinHostPort(fields["ip"], fields["port"]))
		}
	}
	return addrs
}

// A peerClock is by how much a server's clock is ahead of this machine's.
type peerClock struct {
	name  string
	ahead time.Duration
}

// readClocks reads the clocks of the peers, and says which it could not read.
func readClocks(ctx context.Context, peers []Peer) (read []peerClock, unread []string) {
	for _, p := range peers {
		ahead, err := readClock(ctx, p.Client)
		if err != nil {
			unread = append(unread, fmt.Sprintf("%s does not tell: %v", p.Name, err))
			continue
		}
		read = append(read, peerClock{p.Name, ahead})
	}
	return read, unread
}

// readClock returns by how much a server's clock is ahead of this machine's, by the quickest of some answers.
func readClock(ctx context.Context, c *redis.Client) (ahead time.Duration, err error) {
	quickest := time.Duration(math.MaxInt64)
	for range skewReads {
		asked := time.Now()
		server, err := c.Time(ctx).Result()
		if err != nil {
			return 0, err
		}
		if took := time.Since(asked); took < quickest {
			quickest, ahead = took, server.Sub(asked.Round(0).Add(took/2))
		}
	}
	return ahead, nil
}

// milliseconds formats a difference of clocks.
func milliseconds(d time.Duration) string {
	if d.Abs() < time.Millisecond {
		return "1ms" // the clocks are not read more exactly than that
	}
	return output.Duration(d.Abs().Round(time.Millisecond))
}
