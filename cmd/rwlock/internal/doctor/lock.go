package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

// Lock checks with a lock of its own whether this user may use locks, and whether notifications arrive.
func Lock(ctx context.Context, client redis.UniversalClient, open func() (*rwlock.RWLock, error),
	prefix string) []Finding {
	a, err := open()
	if err != nil {
		return []Finding{failed("locks", err, prefix)}
	}
	defer func() { _ = a.Close() }()
	b, err := open()
	if err != nil {
		return []Finding{failed("locks", err, prefix)}
	}
	defer func() { _ = b.Close() }()
	name := "rwlock-doctor:" + uuid.NewString()
	defer client.Del(ctx, prefix+":{"+name+"}") // nobody uses it again
	list := []Finding{locks(ctx, a, name, prefix), channels(ctx, client, prefix)}
	if list[0].Status == OK {
		list = append(list, Scripts(ctx, client, prefix)...)
	}
	if list[0].Status == OK && list[1].Status == OK {
		list = append(list, handover(ctx, a, b, name, prefix))
	}
	return list
}

// checkTime is how long a check with a lock may take.
const checkTime = 5 * time.Second

// locks runs each of the scripts.
func locks(ctx context.Context, rw *rwlock.RWLock, name, prefix string) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if err := useLock(ctx, rw, name); err != nil {
		return failed("locks", err, prefix)
	}
	return Finding{Check: "locks", Status: OK, Detail: "lock, extend, inspect, unlock and force-unlock work"}
}

// vanished is what to do about a key that is gone too early.
const vanished = "the server evicts keys, or another program deletes them: set maxmemory-policy noeviction, or use a " +
	"server of its own"

// rights are those that docs/operations.md lists. The checks need two more.
const rights = "+evalsha +eval +evalsha_ro +eval_ro +subscribe +ping +publish +time +hget +hmget +hgetall +hset " +
	"+hsetnx +hdel +hlen +hrandfield +zadd +zrem +zcard +zcount +zscore +zrank +zrange +zrangebyscore +zrevrange " +
	"+pexpire +pttl +unlink +set +mget +del"

// failed returns the finding of a check that an error has ended, with what to do about that error.
func failed(check string, err error, prefix string) Finding {
	f := Finding{Check: check, Status: Failed, Detail: strings.TrimPrefix(err.Error(), "rwlock: ")}
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(f.Detail, text) })
	}
	switch {
	case errors.Is(err, redis.Nil):
		f.Detail, f.Advice = "a key that was just set is gone", vanished
	case errors.Is(err, rwlock.ErrLost), errors.Is(err, errNotExclusive):
		f.Advice = vanished
	case has("NOPERM", "can't run this command", "can't access"):
		f.Advice = fmt.Sprintf("allow this user: ~%[1]s:* &%[1]s:wake:* %[2]s +get +exists", prefix, rights)
	case has("OOM"):
		f.Advice = "the server's memory is full: raise maxmemory, or remove other data"
	case has("MISCONF"):
		f.Advice = "the server cannot save its data: look into its log, and at its disk"
	case has("READONLY"):
		f.Advice = "the server is a replica: use the master, or redis+sentinel:// to find it"
	case has("NOREPLICAS"):
		f.Advice = "too few replicas are connected: look at them, or at min-replicas-to-write"
	case has("WRONGTYPE"):
		f.Advice = "another program uses the keys: give the locks another prefix"
	case has("INCOMPATIBLE"):
		f.Advice = "another version of the library uses these locks: give this one another prefix"
	case errors.Is(err, context.DeadlineExceeded):
		f.Advice = "the server answers too late: look at its load, its SLOWLOG and the network"
	}
	return f
}

func useLock(ctx context.Context, rw *rwlock.RWLock, name string) error {
	if err := rw.WithRLock(ctx, name, func(ctx context.Context, h *rwlock.Hold) error {
		return nil
	}); err != nil {
		return err
	}
	err := rw.WithLock(ctx, name, func(ctx context.Context, h *rwlock.Hold) error {
		return h.Extend(ctx, time.Minute)
	})
	if err != nil {
		return err
	}
	if _, err := rw.Inspect(ctx, name); err != nil {
		return err
	}
	return rw.ForceUnlock(ctx, name)
}

// channels sends a message as the scripts do, on a channel such as they use.
func channels(ctx context.Context, client redis.UniversalClient, prefix string) Finding {
	f := Finding{Check: "channels", Status: OK, Detail: "a message arrives"}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := message(ctx, client, prefix+":wake:doctor-"+uuid.NewString()); err != nil {
		f.Status, f.Detail = Failed, err.Error()
		f.Advice = "waiters would learn of a grant up to a third of a lease late: "
		if strings.Contains(f.Detail, "NOPERM") {
			f.Advice += fmt.Sprintf("allow this user &%s:wake:* and +@pubsub", prefix)
		} else {
			f.Advice += "look for a proxy between here and the server that drops messages"
		}
	}
	return f
}

func message(ctx context.Context, client redis.UniversalClient, channel string) error {
	sub := client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := client.Publish(ctx, channel, "").Err(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if _, err := sub.ReceiveMessage(ctx); err != nil {
		return fmt.Errorf("no message: %w", err)
	}
	return nil
}

// handover has one RWLock wait for another, and measures how soon it has the lock.
func handover(ctx context.Context, a, b *rwlock.RWLock, name, prefix string) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	f := Finding{Check: "handover", Status: OK}
	var all []time.Duration
	for range 5 {
		took, err := handOver(ctx, a, b, name)
		if err != nil {
			return failed("handover", err, prefix)
		}
		all = append(all, took)
	}
	median, longest := medianAndLongest(all)
	f.Detail = fmt.Sprintf("%s from unlock to the next holder, the longest of %d %s", output.Duration(median),
		len(all), output.Duration(longest))
	if median > time.Second {
		f.Status, f.Advice = Warning, "notifications do not arrive; a proxy between here and the server may drop them"
	}
	return f
}

var errNotExclusive = errors.New("a second owner got the lock while it was held")

func handOver(ctx context.Context, a, b *rwlock.RWLock, name string) (time.Duration, error) {
	held, err := a.Lock(ctx, name)
	if err != nil {
		return 0, err
	}
	type result struct {
		at  time.Time
		err error
	}
	got := make(chan result, 1)
	go func() {
		h, err := b.Lock(ctx, name)
		at := time.Now()
		if err == nil {
			err = h.Unlock(ctx)
		}
		got <- result{at, err}
	}()
	for waiting := false; !waiting; {
		select {
		case r := <-got:
			_ = held.Unlock(ctx)
			return 0, cmp.Or(r.err, errNotExclusive)
		default:
		}
		s, err := a.Inspect(ctx, name)
		if err != nil {
			return 0, err
		}
		waiting = len(s.Waiters) > 0
	}
	start := time.Now()
	if err := held.Unlock(ctx); err != nil {
		return 0, err
	}
	r := <-got
	return r.at.Sub(start), r.err
}
