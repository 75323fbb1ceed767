// Package doctor checks whether a server suits the locks.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

// A Status is the outcome of a check.
type Status string

// The outcomes.
const (
	OK      Status = "ok"
	Warning Status = "warn"
	Failed  Status = "fail"
	Unknown Status = "?" // the server does not tell
)

// A Finding is what a check has found.
type Finding struct {
	Server string `json:"server,omitempty"` // empty if it is about the locks as a whole
	Check  string `json:"check"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"` // what to do
}

// info is the reply to INFO: section, field, value.
type info map[string]map[string]string

func (i info) get(section, field string) string { return i[section][field] }

func (i info) number(section, field string) int64 {
	n, _ := strconv.ParseInt(i.get(section, field), 10, 64)
	return n
}

// Node checks one server and its configuration, or only finds that it does not answer. The findings call it
// server. votes is whether it is one of several servers that vote.
func Node(ctx context.Context, server string, c *redis.Client, votes bool) []Finding {
	latency := roundTrip(ctx, c)
	if latency.Status == Failed { // each further check would take as long to fail
		latency.Server = server
		return []Finding{latency}
	}
	all, err := c.InfoMap(ctx).Result()
	var list []Finding
	if err != nil {
		list = []Finding{latency, {Check: "info", Status: Unknown, Detail: err.Error(),
			Advice: "allow this user INFO, so that version, eviction, persistence and replicas can be checked"}}
	} else {
		i := lower(all)
		list = []Finding{latency, version(i), role(i), eviction(i), persistence(i), replicas(i)}
		if votes {
			list = []Finding{latency, version(i), role(i), eviction(i), memory(ctx, c, i), votingReplicas(i)}
		}
		if f, active := replication(i); active {
			list = append(list, f)
		}
		if len(replicasIn(i)) > 0 {
			list = append(list, replicaClocks(ctx, c, i))
		}
	}
	list = append(list, clock(ctx, c))
	for i := range list {
		list[i].Server = server
	}
	return list
}

// lower returns the reply with the names of its sections in lower case.
func lower(reply map[string]map[string]string) info {
	i := info{}
	for section, fields := range reply {
		i[strings.ToLower(section)] = fields
	}
	return i
}

func version(i info) Finding {
	f := Finding{Check: "version", Status: OK}
	name, number := "Redis", i.get("server", "redis_version")
	if v := i.get("server", "valkey_version"); v != "" {
		f.Detail = "Valkey " + v
		return f
	}
	f.Detail = name + " " + number
	major, rest, _ := strings.Cut(number, ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, _ := strconv.Atoi(major)
	mi, _ := strconv.Atoi(minor)
	if ma < 6 || ma == 6 && mi < 2 {
		f.Status, f.Advice = Failed, "the locks need Redis 6.2 or later, or Valkey"
	}
	return f
}

func role(i info) Finding {
	mode := cmp.Or(i.get("server", "redis_mode"), i.get("server", "server_mode")) // of Redis, and of Valkey
	f := Finding{Check: "role", Status: OK, Detail: i.get("replication", "role") + ", " + mode}
	if i.get("replication", "role") == "slave" {
		f.Status, f.Detail = Failed, "replica of "+i.get("replication", "master_host")
		f.Advice = "use the master, or redis+sentinel:// to find it"
	}
	return f
}

// eviction: a server that evicts keys also evicts locks, since each of their keys has a time to live.
func eviction(i info) Finding {
	policy, limit, used := i.get("memory", "maxmemory_policy"), i.number("memory", "maxmemory"),
		i.number("memory", "used_memory")
	f := Finding{Check: "eviction", Status: OK, Detail: fmt.Sprintf("%s, no limit", policy)}
	if limit > 0 {
		f.Detail = fmt.Sprintf("%s, %d %% of %d MiB used", policy, 100*used/limit, limit>>20)
	}
	switch {
	case policy != "noeviction" && limit > 0:
		f.Status, f.Advice = Failed, "locks may be evicted while they are held: set maxmemory-policy noeviction, or use a server of their own"
	case policy != "noeviction":
		f.Status, f.Advice = Warning, "as soon as maxmemory is set, locks may be evicted while they are held: set maxmemory-policy noeviction"
	case limit > 0 && used >= limit:
		f.Status, f.Advice = Failed, "the memory is full, so no lock can be taken: raise maxmemory, or remove other data"
	case limit > 0 && used > limit/10*9:
		f.Status, f.Advice = Warning, "when the memory is full, no lock can be taken: raise maxmemory"
	}
	return f
}

func persistence(i info) Finding {
	f := Finding{Check: "persistence", Status: OK}
	switch {
	case diskFails(i):
		return failedWrite
	case i.number("persistence", "aof_enabled") == 1:
		f.Detail = "append-only file"
	default:
		f.Status, f.Detail = Warning, "no append-only file"
		f.Advice = "after a restart the locks are free although processes may believe that they hold them: " +
			"set appendonly yes, or check fencing tokens"
	}
	return f
}

var failedWrite = Finding{Check: "persistence", Status: Failed, Detail: "the last write to disk failed",
	Advice: "the server may refuse all writes until that is mended: look into its log"}

func diskFails(i info) bool {
	return i.get("persistence", "aof_last_write_status") == "err" ||
		i.get("persistence", "rdb_last_bgsave_status") == "err"
}

func replicas(i info) Finding {
	n := i.number("replication", "connected_slaves")
	f := Finding{Check: "replicas", Status: OK, Detail: fmt.Sprintf("%d connected", n)}
	if n > 0 {
		f.Detail += "; a failover may lose the last writes, so check fencing tokens"
	} else {
		f.Status, f.Advice = Warning, "if the server is lost, no lock can be taken until it is back: add a replica and Sentinel"
	}
	return f
}

// roundTrip measures PING.
func roundTrip(ctx context.Context, c *redis.Client) Finding {
	f := Finding{Check: "round trip", Status: OK}
	var all []time.Duration
	for range 20 {
		start := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			f.Status, f.Detail = Failed, err.Error()
			return f
		}
		all = append(all, time.Since(start))
	}
	median, longest := medianAndLongest(all)
	f.Detail = fmt.Sprintf("%s, the longest of %d %s", output.Duration(median), len(all),
		output.Duration(longest))
	if median > 20*time.Millisecond {
		f.Status, f.Advice = Warning, "each lock and unlock takes a round trip: use a server that is nearer"
	}
	return f
}
