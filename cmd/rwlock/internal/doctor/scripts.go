package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Scripts checks what the locks need of scripts: that a script runs alone, that Lua calculates as in Redis,
// and that a message from a script arrives.
func Scripts(ctx context.Context, client redis.UniversalClient, prefix string) []Finding {
	return []Finding{isolation(ctx, client, prefix), arithmetic(ctx, client, prefix),
		announcement(ctx, client, prefix)}
}

// keyOfDoctor returns a key that nobody uses, and that the user of a lock may use.
func keyOfDoctor(prefix string) string {
	return prefix + ":{rwlock-doctor:" + uuid.NewString() + "}:count"
}

// runsOfIsolation is how often each of two connections runs the script that counts.
const runsOfIsolation = 100

// increment adds one to a number, with time for others between reading and writing it.
const increment = `
local n = tonumber(redis.call('GET', KEYS[1]) or '0')
for _ = 1, 100 do redis.call('EXISTS', KEYS[1]) end
redis.call('SET', KEYS[1], string.format('%d', n + 1), 'PX', '60000')
return n + 1`

// isolation runs scripts that count over two connections. If one runs while another does, counts are lost.
func isolation(ctx context.Context, client redis.UniversalClient, prefix string) Finding {
	f := Finding{Check: "isolation", Status: OK, Detail: "a script sees no other at work"}
	key := keyOfDoctor(prefix)
	defer client.Del(ctx, key)
	errs := make([]error, 2)
	var g sync.WaitGroup
	for i := range errs {
		g.Go(func() {
			for n := 0; n < runsOfIsolation && errs[i] == nil; n++ {
				errs[i] = client.Eval(ctx, increment, []string{key}).Err()
			}
		})
	}
	g.Wait()
	counted, err := client.Get(ctx, key).Int()
	if err := cmp.Or(errs[0], errs[1], err); err != nil {
		return couldNotRun(f, err)
	}
	if counted != 2*runsOfIsolation {
		f.Status = Failed
		f.Detail = fmt.Sprintf("scripts run at the same time: %d of %d counts were lost", 2*runsOfIsolation-counted,
			2*runsOfIsolation)
		f.Advice = "two writers can have a lock: make the server run scripts one at a time, or use another; " +
			"see docs/servers.md"
	}
	return f
}

// couldNotRun reports that a check found nothing. The check of locks reports what a user may not do.
func couldNotRun(f Finding, err error) Finding {
	if errors.Is(err, redis.Nil) {
		return failed(f.Check, err, "")
	}
	f.Status, f.Detail = Unknown, strings.TrimSpace(err.Error())
	return f
}

// sums are calculations that the scripts rely on, with their results in Redis, whose Lua is 5.1. Whole
// numbers are printed without a point, times in µs are exact, and a numeric string counts as a number.
const sums = `
local us = tonumber('1763763763763763')
return table.concat({10 / 2 .. '', string.format('%.0f', us + 1), string.format('%d', 3 * 1.0), '10' + 1 .. '',
  math.ceil(7 / 2) .. '', tostring('10' < '9'), 2 ^ 3 .. ''}, ' ')`

const sumsOfRedis = "5 1763763763763764 3 11 4 true 8"

func arithmetic(ctx context.Context, client redis.UniversalClient, prefix string) Finding {
	f := Finding{Check: "arithmetic", Status: OK, Detail: "Lua calculates as in Redis"}
	got, err := client.Eval(ctx, sums, []string{keyOfDoctor(prefix)}).Text()
	if err != nil {
		return couldNotRun(f, err)
	}
	if got != sumsOfRedis {
		f.Status, f.Detail = Warning, fmt.Sprintf("Lua calculates %q, Redis %q", got, sumsOfRedis)
		f.Advice = "the locks have not been tested with this version of Lua: run the library's tests against " +
			"this server; see docs/servers.md"
	}
	return f
}

// announcement has a script send a message, as a release does.
func announcement(ctx context.Context, client redis.UniversalClient, prefix string) Finding {
	f := Finding{Check: "publish", Status: OK, Detail: "a message of a script arrives"}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	channel := prefix + ":wake:doctor-" + uuid.NewString()
	sub := client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		return couldNotRun(f, err)
	}
	err := client.Eval(ctx, "return redis.call('PUBLISH', ARGV[1], 'hello')", []string{keyOfDoctor(prefix)},
		channel).Err()
	if err == nil {
		_, err = sub.ReceiveMessage(ctx)
	}
	if err != nil {
		f.Status, f.Detail = Failed, err.Error()
		f.Advice = "waiters would learn of a grant up to a third of a lease late: the server has to allow PUBLISH in scripts"
	}
	return f
}

// replication fails if several servers take writes of the same keys: each would grant a lock that another has
// granted.
func replication(i info) (Finding, bool) {
	active := ""
	switch {
	case i.get("replication", "role") == "active-replica":
		active = "active-replica"
	case strings.Contains(fmt.Sprint(i["modules"]), "crdt"):
		active = "active-active database"
	}
	return Finding{Check: "replication", Status: Failed,
			Detail: active + ": several servers take writes of the same keys",
			Advice: "two writers can have a lock: use a server that has one master for each key; see docs/servers.md"},
		active != ""
}
