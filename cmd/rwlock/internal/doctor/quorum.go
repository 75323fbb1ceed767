package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// memory checks what a server of a quorum has after a restart: it must be everything, or nothing.
func memory(ctx context.Context, c *redis.Client, i info) Finding {
	if diskFails(i) {
		return failedWrite
	}
	f := Finding{Check: "persistence", Status: OK}
	config, err := c.ConfigGet(ctx, "append*").Result()
	if err == nil {
		var save map[string]string
		save, err = c.ConfigGet(ctx, "save").Result()
		config["save"] = save["save"]
	}
	const advice = "after a restart it comes back with old data, and rests like a server without: " +
		`set save "" and appendonly no, or appendonly yes and appendfsync always`
	switch {
	case err != nil:
		f.Status, f.Detail = Unknown, err.Error()
		f.Advice = "allow this user CONFIG GET: without it, a server that keeps all of its data rests after a restart"
	case config["appendonly"] == "yes" && config["appendfsync"] == "always":
		f.Detail = "append-only file, appendfsync always: it votes right after a restart"
	case config["appendonly"] == "yes":
		f.Status, f.Detail, f.Advice = Warning, "append-only file, appendfsync "+config["appendfsync"], advice
	case config["save"] != "":
		f.Status, f.Detail, f.Advice = Warning, "snapshots, save "+config["save"], advice
	default:
		f.Detail = "none: after a restart it rests for the longest lease in use"
	}
	return f
}

// votingReplicas checks that nothing can take over from a server of a quorum.
func votingReplicas(i info) Finding {
	n := i.number("replication", "connected_slaves")
	f := Finding{Check: "replicas", Status: OK, Detail: fmt.Sprintf("%d connected", n)}
	if n > 0 {
		f.Status = Warning
		f.Advice = "a replica that takes over may lack the last votes: promote none, neither by hand nor with Sentinel"
	}
	return f
}

// Quorum checks servers that vote together: whether they are different servers, and which of them vote.
func Quorum(ctx context.Context, peers []Peer, prefix string) Finding {
	f := Finding{Check: "quorum", Status: OK}
	runs, generations := map[string]string{}, map[string]int{}
	of, answered := make([]string, len(peers)), 0
	for n, p := range peers {
		all, err := p.Client.InfoMap(ctx, "server").Result()
		if err == nil {
			of[n], err = p.Client.HGet(ctx, prefix+":mark", "generation").Result()
		}
		if err != nil && err != redis.Nil {
			continue // it does not vote
		}
		answered++
		run := lower(all).get("server", "run_id")
		if other, ok := runs[run]; ok && run != "" {
			f.Status, f.Detail = Failed, fmt.Sprintf("%s and %s are the same server", other, p.Name)
			f.Advice = "give each server once: two databases of a server are one server"
			return f
		}
		runs[run] = p.Name
		generations[of[n]]++
	}
	best := ""
	for g, n := range generations {
		if g != "" && (best == "" || n > generations[best]) {
			best = g
		}
	}
	switch {
	case answered == 0:
		f.Status, f.Detail = Unknown, "no server tells"
		return f
	case best == "":
		f.Detail = "not used yet: the servers start to vote when a lock is used"
		return f
	}
	var without []string
	for n, p := range peers {
		if of[n] != best {
			without = append(without, p.Name)
		}
	}
	f.Detail = fmt.Sprintf("%d of %d vote", generations[best], len(peers))
	if len(without) > 0 {
		f.Status = Warning
		f.Detail += ", but not " + strings.Join(without, ", ")
		f.Advice = "it does not answer; or it lost its data or is new, and is let in by a process that uses the locks for the longest lease: " +
			"until then it counts as one that has failed"
	}
	if generations[best] <= len(peers)/2 {
		f.Status = Failed
	}
	return f
}
