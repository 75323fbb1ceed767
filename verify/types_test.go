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

// situations returns states of a lock, as the steps that lead there, and what may be run in them. What comes first goes
// into sole, and what comes later if the clock has gone on, unless one who left need not know of it yet, or the lease is
// too long for that.
func situations() (states map[string][]step, runs []step) {
	name := func(owner, number int) string { return fmt.Sprintf("%s:%d:%d", processID(owner), owner, number) }
	lock := func(owner int, how string) step {
		return step{"lock", owner, []any{name(owner, 1), "", 10_000, how, "wake:", "", ""}}
	}
	rlock := func(owner int, how string) step {
		return step{"rlock", owner, []any{name(owner, 1), "", 10_000, how, "wake:", "", ""}}
	}
	tick := step{script: "tick"}
	unlock := func(owner int) step { return step{"unlock", owner, []any{name(owner, 1), 1, "wake:", "", ""}} }
	runlock := func(owner int) step { return step{"runlock", owner, []any{name(owner, 1), 1, "wake:", "", ""}} }
	states = map[string][]step{
		"nothing":                    nil,
		"alone, to write":            {lock(1, "wait")},
		"alone, to read":             {rlock(1, "wait")},
		"alone, free":                {lock(1, "wait"), unlock(1)},
		"alone, taken over":          {lock(1, "wait"), unlock(1), tick, rlock(2, "wait")},
		"alone, taken over and free": {lock(1, "wait"), unlock(1), tick, rlock(2, "wait"), runlock(2)},
		"alone no longer":            {lock(1, "wait"), unlock(1), rlock(2, "wait"), runlock(2)},
		"not for long":               {lock(1, "wait"), unlock(1), tick, lock(2, "wait"), unlock(2), tick, rlock(3, "wait")},
		"a writer":                   {lock(2, "try"), unlock(2), lock(1, "wait")},
		"a writer with a long lease": {{"lock", 1, []any{name(1, 1), "", 90_000_000, "wait", "wake:", "", ""}}},
		"a writer and waiters":       {lock(1, "wait"), lock(2, "wait"), rlock(3, "wait")},
		"a writer and writers":       {lock(1, "wait"), lock(2, "wait"), lock(3, "wait")},
		"a reader":                   {lock(2, "try"), unlock(2), rlock(1, "wait")},
		"readers":                    {rlock(1, "wait"), rlock(2, "wait")},
		"readers, long since":        {lock(5, "wait"), unlock(5), rlock(1, "wait"), rlock(2, "wait")},
		"a reader and waiters":       {rlock(1, "wait"), lock(2, "wait"), rlock(3, "wait")},
		"readers and waiters":        {rlock(1, "wait"), rlock(4, "wait"), lock(2, "wait"), rlock(3, "wait")},
		"a writer, entered twice":    {lock(1, "wait"), {"reenter", 1, []any{name(1, 1), "write", 2, 9, 0}}},
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
	for _, script := range []string{"lock", "rlock"} { // of a process that knows of the first hold's end
		runs = append(runs, step{script, 4, []any{name(4, 1), "", 10_000, "wait", "wake:", "", name(1, 1)}})
	}
	runs = append(runs, step{"rlock", 1, []any{name(1, 2), "", 10_000, "wait", "wake:", name(1, 1), ""}})
	runs = append(runs, step{"force", 3, []any{processID(1), 7, "wake:"}}, step{"serve", 3, []any{processID(1), "wake:"}})
	const token = 1_700_000_000_000_000 // of the first hold
	for _, mode := range []string{"read", "write"} {
		mark := fmt.Sprintf(" %s 10000 %s", mode, name(1, 1))
		runs = append(runs,
			step{"solelock", 1, []any{fmt.Sprint(token, freeMark, name(1, 1)), " " + mode + " 10000 " + name(1, 2), "PX", 172_800_000}},
			step{"solelock", 1, []any{fmt.Sprint(token-1, freeMark, name(1, 9)), mark, "KEEPTTL"}}, // runs again
			step{"solelock", 2, []any{fmt.Sprint(token+1, freeMark, name(2, 1), " ", name(1, 1)), " " + mode + " 10000 " + name(2, 2) + " " + name(1, 1), "KEEPTTL"}},
			step{"soleunlock", 1, []any{fmt.Sprint(token) + mark, fmt.Sprint(token, freeMark, name(1, 1))}})
	}
	return states, runs
}

// hold is the name of what the step asks for, of a script that asks for something.
func (s step) hold() string {
	if s.script == "solelock" {
		return strings.Fields(s.argv[1].(string))[2]
	}
	return s.argv[0].(string)
}

func (s step) done() string { return fmt.Sprintf("{l}:done:%d", s.owner) }

// step runs a script, or lets the clock go on a little.
func (r *rig) step(t testing.TB, s step) {
	if s.script == "tick" {
		r.setClock(t, r.now+1)
		return
	}
	r.run(t, s.script, s.done(), s.argv...)
}

func newRedisRig(t *testing.T) *rig {
	testredis.Need(t)
	return newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), false)
}

var lockKeys = []string{"writer", "queue", "fence", "readers", "leases", "waiters", "count", "sole"}

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
					r.step(t, s)
				}
				r.setClock(t, r.now+400_000)
				r.client.Del(ctx, "{l}:"+key)
				t.Run(fmt.Sprintf("%s without %s, %s %v", state, key, run.script, run.argv), func(t *testing.T) { r.afterLoss(t, run) })
			}
		}
	}
}

// afterLoss runs a script on a lock that has lost a key.
func (r *rig) afterLoss(t *testing.T, run step) {
	before := r.state(t)
	reply, err := r.try(run.script, run.done(), run.argv...)
	if err != nil {
		t.Fatal(err)
	}
	after := r.state(t)
	token, granted := reply.(string)
	token, _, _ = strings.Cut(token, " sole ")
	if granted && after.Hold(claimOf(run.hold())) == nil {
		t.Errorf("answered %s, but there is no such hold", token)
	}
	for _, h := range after.Holds {
		if h.Mode == model.Write && before.Hold(h.Claim) == nil && after.Token < r.now {
			t.Errorf("%v enters with token %d", h.Claim, after.Token)
		}
		if granted && id(h.Claim) == run.hold() && token != fmt.Sprint(h.Token) {
			t.Errorf("answered %s, not %d", token, h.Token)
		}
	}
	r.ttls(t)
}

// What sole says and no version wrote is in nobody's way.
func TestUnreadableSole(t *testing.T) {
	r := newRedisRig(t)
	_, runs := situations()
	for _, run := range runs {
		r.reset(t)
		r.client.Set(ctx, "{l}:sole", "what nobody wrote", time.Minute)
		if reply, err := r.try(run.script, run.done(), run.argv...); err != nil {
			t.Errorf("%s %v: %v", run.script, run.argv, err)
		} else if token, ok := reply.(string); run.script == "lock" && (!ok || strings.Contains(token, "sole")) {
			t.Errorf("%s %v answers %v", run.script, run.argv, reply)
		}
	}
}

// A server that is out of memory still renews what is held, and releases it.
func TestFullServer(t *testing.T) {
	r := newRedisRig(t)
	states, _ := situations()
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, release := range []bool{false, true} {
			r.reset(t)
			for _, s := range states[state] {
				r.step(t, s)
			}
			r.setClock(t, r.now+400_000)
			for _, h := range r.state(t).Holds {
				s := step{"renew", h.Owner, []any{id(h.Claim), "read", 30_000}}
				if h.Mode == model.Write {
					s.argv[1] = "write"
				}
				if release {
					s = step{map[string]string{"read": "runlock", "write": "unlock"}[s.argv[1].(string)], h.Owner, []any{id(h.Claim), h.Number, "wake:", "", "counted"}}
				}
				r.client.ConfigSet(ctx, "maxmemory", "1")
				reply, err := r.try(s.script, s.done(), s.argv...)
				r.client.ConfigSet(ctx, "maxmemory", "0")
				if err != nil {
					t.Errorf("%s, %s %v: %v", state, s.script, s.argv, err)
					continue
				}
				after := r.state(t).Hold(h.Claim)
				switch {
				case release && after != nil:
					t.Errorf("%s, %s %v answers %v, but it is held", state, s.script, s.argv, reply)
				case !release && (after == nil || after.Until < r.now/1000+30_000-slack):
					t.Errorf("%s, %s %v answers %v, but what is left is %v", state, s.script, s.argv, reply, after)
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
	// What was handed out and what has ended may be noted all the same, and a hold may be handed over from one key to another.
	dump := func() map[string]string {
		all := map[string]string{}
		for _, key := range r.client.Keys(ctx, "{l}*").Val() {
			text, err := r.client.Get(ctx, key).Result()
			f := strings.Fields(text)
			switch {
			case key == "{l}:fence", strings.HasPrefix(key, "{l}:done"):
			case key == "{l}:sole" && len(f) > 3 && f[1] == "write" && f[2] != "0":
				all["writer"] = f[3]
			case key == "{l}:writer" && err == nil:
				all["writer"] = text
			case key == "{l}:sole" && len(f) > 3 && f[1] == "read" && f[2] != "0":
				all["readers"] = fmt.Sprint(map[string]string{f[3]: f[0]})
			case key == "{l}:sole" && err == nil: // nobody holds it
			case r.client.Type(ctx, key).Val() == "hash": // in whatever order the server keeps it
				all[strings.TrimPrefix(key, "{l}:")] = fmt.Sprint(r.client.HGetAll(ctx, key).Val())
			default:
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
						r.step(t, s)
					}
					if late > 0 { // all but the queue is over, if that waits
						r.client.Del(ctx, "{l}:writer", "{l}:count", "{l}:readers", "{l}:leases")
						if sole := r.sole(t); sole != "" {
							r.client.Set(ctx, "{l}:sole", strings.Replace(sole, " 10000 ", " 0 ", 1), time.Hour)
						}
					}
					r.setClock(t, r.now+1)
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
