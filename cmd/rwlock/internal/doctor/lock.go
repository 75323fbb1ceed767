package doctor

import (
	"context"
	"fmt"
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
		return []Finding{{Check: "rights", Status: Failed, Detail: err.Error()}}
	}
	defer func() { _ = a.Close() }()
	b, err := open()
	if err != nil {
		return []Finding{{Check: "rights", Status: Failed, Detail: err.Error()}}
	}
	defer func() { _ = b.Close() }()
	name := "rwlock-doctor:" + uuid.NewString()
	defer client.Del(ctx, prefix+":{"+name+"}") // nobody uses it again
	list := []Finding{rights(ctx, a, name, prefix), channels(ctx, client, prefix)}
	if list[0].Status == OK {
		list = append(list, Scripts(ctx, client, prefix)...)
	}
	if list[0].Status == OK && list[1].Status == OK {
		list = append(list, handover(ctx, a, b, name))
	}
	return list
}

// rights runs each of the scripts.
func rights(ctx context.Context, rw *rwlock.RWLock, name, prefix string) Finding {
	f := Finding{Check: "rights", Status: OK, Detail: "lock, extend, inspect, unlock and force-unlock work"}
	if err := useLock(ctx, rw, name); err != nil {
		f.Status, f.Detail = Failed, strings.TrimPrefix(err.Error(), "rwlock: ")
		f.Advice = fmt.Sprintf("allow this user: ~%[1]s:* &%[1]s:wake:* +@read +@write +@scripting +@pubsub +time",
			prefix)
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
		f.Advice = fmt.Sprintf("waiters would learn of a grant up to a third of a lease late: allow this user &%s:wake:* and +@pubsub", prefix)
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
func handover(ctx context.Context, a, b *rwlock.RWLock, name string) Finding {
	f := Finding{Check: "handover", Status: OK}
	var all []time.Duration
	for range 5 {
		took, err := handOver(ctx, a, b, name)
		if err != nil {
			f.Status, f.Detail = Failed, strings.TrimPrefix(err.Error(), "rwlock: ")
			return f
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
	for {
		s, err := a.Inspect(ctx, name)
		if err != nil || len(s.Waiters) > 0 {
			break
		}
	}
	start := time.Now()
	if err := held.Unlock(ctx); err != nil {
		return 0, err
	}
	r := <-got
	return r.at.Sub(start), r.err
}
