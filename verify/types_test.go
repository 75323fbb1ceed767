package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

type step struct {
	script string
	owner  int
	argv   []any
}

// situations returns states of a lock, as the steps that lead there, and what may be run in them.
func situations() (states map[string][]step, runs []step) {
	name := func(owner, number int) string { return fmt.Sprintf("%s:%d:%d", processID(owner), owner, number) }
	lock := func(owner int, how string) step {
		return step{"lock", owner, []any{name(owner, 1), "", 10_000, how, "wake:", ""}}
	}
	rlock := func(owner int, how string) step {
		return step{"rlock", owner, []any{name(owner, 1), "", 10_000, how, "wake:", ""}}
	}
	states = map[string][]step{
		"nothing":                 nil,
		"a writer":                {lock(1, "wait")},
		"a writer and waiters":    {lock(1, "wait"), lock(2, "wait"), rlock(3, "wait")},
		"a writer and writers":    {lock(1, "wait"), lock(2, "wait"), lock(3, "wait")},
		"a reader":                {lock(2, "try"), {"unlock", 2, []any{name(2, 1), 1, "wake:", "", ""}}, rlock(1, "wait")},
		"readers":                 {rlock(1, "wait"), rlock(2, "wait")},
		"a reader and waiters":    {rlock(1, "wait"), lock(2, "wait"), rlock(3, "wait")},
		"readers and waiters":     {rlock(1, "wait"), rlock(4, "wait"), lock(2, "wait"), rlock(3, "wait")},
		"a writer, entered twice": {lock(1, "wait"), {"reenter", 1, []any{name(1, 1), "write", 2, 9, 0}}},
	}
	for owner := 1; owner <= 3; owner++ {
		for _, how := range []string{"wait", "try"} {
			runs = append(runs, lock(owner, how), rlock(owner, how))
		}
		for _, script := range []string{"unlock", "runlock"} {
			runs = append(runs, step{script, owner, []any{name(owner, 1), 1, "wake:", "", "counted"}})
		}
		for _, mode := range []string{"read", "write"} {
			runs = append(runs, step{"renew", owner, []any{name(owner, 1), mode, 30_000}},
				step{"reenter", owner, []any{name(owner, 1), mode, 2, 10, 30_000}})
		}
	}
	runs = append(runs, lock(5, "wait"), rlock(5, "wait"))
	runs = append(runs, step{"rlock", 1, []any{name(1, 2), "", 10_000, "wait", "wake:", name(1, 1)}})
	runs = append(runs, step{"force", 3, []any{processID(1), 7, "wake:"}}, step{"serve", 3, []any{processID(1), "wake:"}})
	return states, runs
}

func (s step) done() string { return fmt.Sprintf("{l}:done:%d", s.owner) }

func newRedisRig(t *testing.T) *rig {
	testredis.Need(t)
	return newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), false)
}

var lockKeys = []string{"writer", "queue", "fence", "readers", "leases", "waiters", "count"}

// Whatever key of a lock the server has evicted, or lost, no script fails; whoever enters gets a token that is at least as
// large as the time, and what remains has a time to live.
func TestLostKeys(t *testing.T) {
	r := newRedisRig(t)
	states, runs := situations()
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, run := range runs {
			for _, key := range lockKeys {
				r.reset(t)
				for _, s := range states[state] {
					r.run(t, s.script, s.done(), s.argv...)
				}
				r.setClock(t, r.now+400_000)
				r.client.Del(ctx, "{l}:"+key)
				before := r.state(t)
				what := fmt.Sprintf("%s without %s, %s %v", state, key, run.script, run.argv)
				reply, err := r.try(run.script, run.done(), run.argv...)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				after := r.state(t)
				token, granted := reply.(string)
				if granted && after.Hold(claimOf(run.argv[0].(string))) == nil {
					t.Errorf("%s: answered %s, but there is no such hold", what, token)
				}
				for _, h := range after.Holds {
					if h.Mode == model.Write && before.Hold(h.Claim) == nil && after.Token < r.now {
						t.Errorf("%s: %v enters with token %d", what, h.Claim, after.Token)
					}
					if granted && id(h.Claim) == run.argv[0] && token != fmt.Sprint(h.Token) {
						t.Errorf("%s: answered %s, not %d", what, token, h.Token)
					}
				}
				for _, k := range r.client.Keys(ctx, "{l}*").Val() {
					ttl := r.client.PTTL(ctx, k).Val()
					if least := map[string]time.Duration{"{l}:fence": 47 * time.Hour}[k]; ttl <= least {
						t.Errorf("%s: %s lives for %v", what, k, ttl)
					}
				}
			}
		}
	}
}

// A script that meets a key of another type fails, and has changed nothing by then; but for a release, which does what it
// can where the lock is in use.
func TestKeysOfAnotherType(t *testing.T) {
	r := newRedisRig(t)
	states, runs := situations()
	// What was handed out and what has ended may be noted all the same.
	dump := func() map[string]string {
		all := map[string]string{}
		for _, key := range r.client.Keys(ctx, "{l}*").Val() {
			if key != "{l}:fence" && !strings.HasPrefix(key, "{l}:done") {
				all[key] = r.client.Dump(ctx, key).Val()
			}
		}
		return all
	}
	failed := 0
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, late := range []int64{0, 15_000} {
			for _, run := range runs {
				for _, key := range lockKeys {
					if err := r.client.FlushDB(ctx).Err(); err != nil {
						t.Fatal(err)
					}
					r.setClock(t, 1_700_000_000_000_000)
					for _, s := range states[state] {
						r.run(t, s.script, s.done(), s.argv...)
					}
					if late > 0 { // all but the queue is over, if that waits
						r.client.Del(ctx, "{l}:writer", "{l}:count", "{l}:readers", "{l}:leases")
					}
					r.client.Del(ctx, "{l}:"+key)
					r.client.RPush(ctx, "{l}:"+key, "x")
					before := dump()
					releases := len(states[state]) > 0 && (run.script == "unlock" || run.script == "runlock")
					if _, err := r.try(run.script, run.done(), run.argv...); err == nil || releases {
						if kind := r.client.Type(ctx, "{l}:"+key).Val(); kind != "list" {
							t.Errorf("%s, %s %v with another type in %s: it is replaced by a %s", state, run.script, run.argv, key, kind)
						}
						continue
					}
					failed++
					if after := dump(); !maps.Equal(before, after) {
						var changed []string
						for _, k := range slices.Sorted(maps.Keys(before)) {
							if before[k] != after[k] {
								changed = append(changed, k)
							}
						}
						for k := range after {
							if _, ok := before[k]; !ok {
								changed = append(changed, "new "+k)
							}
						}
						t.Errorf("%s (later: %v), %s %v with another type in %s: it failed, and changed %v",
							state, late > 0, run.script, run.argv, key, changed)
					}
				}
			}
		}
	}
	t.Log(failed, "runs failed")
}
