package verify

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A step is a run of a script.
type step struct {
	protocol.Request
	name string
}

// writer and reader are claims of an owner, each on a slot of its own.
func writer(owner int) protocol.Claim { return claimOf(owner, owner, owner, model.Write) }
func reader(owner int) protocol.Claim { return claimOf(owner, owner, owner, model.Read) }

// within is a read claim of an owner that may have a write claim.
func within(owner int) protocol.Claim { return claimOf(owner, owner+10, owner+10, model.Read) }

func askFor(c protocol.Claim, ms int64, try bool) step {
	q := protocol.Request{Script: lua.Lock, Claim: c, Lease: lease(ms), Try: try}
	if c.ID.(string)[0] == 'r' {
		q.Script = lua.RLock
	}
	return step{q, fmt.Sprintf("asks to %s for %d ms (try: %v)", c.ID, ms, try)}
}

func askUnder(owner int) step {
	s := askFor(within(owner), 10_000, false)
	s.Writer, s.name = writer(owner).ID, s.name+" under its writer"
	return s
}

func release(c protocol.Claim, token int64) step {
	q := protocol.Request{Script: lua.Unlock, Claim: c}
	if c.ID.(string)[0] == 'r' {
		q.Script = lua.RUnlock
	}
	if token > 0 {
		q.Record = protocol.Released(c, token)
	}
	return step{q, fmt.Sprintf("releases %s (of late: %v)", c.ID, token > 0)}
}

func renew(c protocol.Claim) step {
	return step{protocol.Request{Script: lua.Renew, Claim: c, Lease: lease(30_000)},
		fmt.Sprintf("renews %s", c.ID)}
}

func reenter(c protocol.Claim, shorten bool) step {
	q := protocol.Request{Script: lua.Reenter, Claim: c, Lease: lease(30_000), Count: 2, Sequence: 9,
		Shorten: shorten}
	return step{q, fmt.Sprintf("re-enters %s (to shorten: %v)", c.ID, shorten)}
}

var (
	force = step{protocol.Request{Script: lua.Force, Claim: claimOf(0, 99, 99, model.Write)}, "forces"}
	serve = step{protocol.Request{Script: lua.Serve, Claim: claimOf(0, 98, 98, model.Write)}, "serves"}
)

const began = 1_700_000_000_000_000 // µs

// situations returns states of a lock, as the steps that lead there, and what may be run in them.
func situations() (states map[string][]step, runs []step) {
	w := func(owner int) step { return askFor(writer(owner), 10_000, false) }
	r := func(owner int) step { return askFor(reader(owner), 10_000, false) }
	states = map[string][]step{
		"nothing":                      nil,
		"free":                         {w(1), release(writer(1), began)},
		"a writer":                     {w(1)},
		"a writer, entered twice":      {w(1), reenter(writer(1), false)},
		"a writer that reads":          {w(1), askUnder(1)},
		"a writer that reads, waiters": {w(1), askUnder(1), w(2), r(3)},
		"a writer that read":           {w(1), askUnder(1), w(2), release(writer(1), 0)},
		"a writer and waiters":         {w(1), w(2), r(3)},
		"a writer and a reader":        {w(1), r(3), w(2)},
		"a writer and readers":         {w(1), r(2), r(3)},
		"a writer and a writer":        {w(1), w(2)},
		"a writer and writers":         {w(1), w(2), w(3)},
		"a reader":                     {r(1)},
		"readers":                      {r(1), r(2)},
		"readers, entered twice":       {r(1), r(2), reenter(reader(1), false)},
		"no more readers":              {r(1), r(2), release(reader(1), began), release(reader(2), began)},
		"a reader and waiters":         {r(1), w(2), r(3)},
		"readers and waiters":          {r(1), r(4), w(2), r(3)},
		"readers and a writer":         {r(1), r(4), w(2)},
	}
	for owner := 1; owner <= 5; owner++ {
		for _, c := range []protocol.Claim{writer(owner), reader(owner)} {
			if owner == 5 { // nobody has heard of it
				runs = append(runs, askFor(c, 10_000, false), askFor(c, 10_000, true), askFor(c, 90_000_000, false),
					release(c, 0))
			} else if owner != 4 {
				runs = append(runs, askFor(c, 10_000, false), release(c, 0), release(c, began), renew(c),
					reenter(c, false), reenter(c, true))
			}
		}
	}
	runs = append(runs, askUnder(1), release(within(1), 0), release(within(1), began), renew(within(1)), force,
		serve)
	return states, runs
}

func newRedisRig(t *testing.T, few bool) *rig {
	testredis.Need(t)
	r := newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), few)
	r.reset(t)
	return r
}

// build leads to a state.
func (r *rig) build(t testing.TB, steps []step) {
	r.reset(t)
	for _, s := range steps {
		r.run(t, &s.Request)
		r.setClock(t, r.now+1)
	}
}

// attempt runs a script that may fail.
func (r *rig) attempt(s step) (protocol.Reply, error) {
	raw, err := r.try(&s.Request)
	r.client.Del(ctx, "{told}")
	if err != nil {
		return protocol.Reply{}, err
	}
	return protocol.Decode(s.Script, raw)
}

// glance reads the lock as an operator does, whatever has been lost of it.
func (r *rig) glance(t testing.TB) protocol.State {
	raw, err := r.try(&protocol.Request{Script: lua.Inspect})
	if err != nil {
		t.Fatal(err)
	}
	s, err := protocol.DecodeState(raw)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func has(s protocol.State, c protocol.Claim) *protocol.Holder {
	for i := range s.Holders {
		if id(s.Holders[i].Known) == c.ID {
			return &s.Holders[i]
		}
	}
	return nil
}

func waits(s protocol.State, c protocol.Claim) bool {
	return slices.ContainsFunc(s.Waiters, func(w protocol.Waiter) bool { return id(w.Known) == c.ID })
}

// exclusive checks that nobody holds the lock beside a writer, but for the writer's owner.
func exclusive(t testing.TB, s protocol.State, after string) {
	for _, w := range s.Holders {
		for _, h := range s.Holders {
			if w.Known.Mode == protocol.Write && h.Known != w.Known &&
				(h.Known.Mode == protocol.Write || h.Owner != w.Owner) {
				t.Errorf("%s: %s writes, and %s has the lock, too", after, id(w.Known), id(h.Known))
			}
		}
	}
}

func (r *rig) every() []string {
	return []string{r.keys.Lock.(string), r.keys.Leases.(string), r.keys.Queue.(string)}
}

// Whatever key of a lock the server has evicted, no script fails; those that the server still knows do not
// hold the lock twice; whoever enters gets a token that is no less than the time; and all of it ends.
func TestLostKeys(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	states, runs := situations()
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, run := range runs {
			for i, key := range r.every() {
				r.build(t, states[state])
				r.setClock(t, r.now+400_000)
				if r.client.Del(ctx, key).Val() == 0 {
					continue
				}
				what := fmt.Sprintf("%s, without key %d, %s", state, i, run.name)
				before := r.glance(t)
				reply, err := r.attempt(run)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				after := r.glance(t)
				exclusive(t, after, what)
				if reply.Token > 0 && has(after, run.Claim) == nil {
					t.Errorf("%s: it is told that it has the lock, and has not", what)
				}
				if reply.Token > 0 && !reply.Before && has(before, run.Claim) == nil && run.Writer == nil &&
					reply.Token < r.now {
					t.Errorf("%s: its token is %d, and the time is %d", what, reply.Token, r.now)
				}
				r.ttls(t)
				r.ends(t, what)
			}
		}
	}
}

// ends checks that the lock becomes free as leases run out, and leaves nothing behind.
func (r *rig) ends(t testing.TB, what string) {
	r.pass(t, 31_000)
	s := askFor(writer(7), 1000, true)
	reply, err := r.attempt(s)
	for steps := 0; err == nil && reply.Token == 0 && steps < 5; steps++ {
		if strings.Contains(what, "90000000 ms") {
			return
		}
		r.pass(t, 31_000) // those that waited had their turn
		s.Claim = claimOf(7, 8+steps, 8+steps, model.Write)
		reply, err = r.attempt(s)
	}
	if err != nil || reply.Token == 0 {
		t.Errorf("%s: a minute and more later, it is not free: %v, %v", what, r.fields(t), err)
	}
	r.pass(t, 300_000)
	if n := r.client.Exists(ctx, r.every()...).Val(); n > 0 {
		t.Errorf("%s: %d keys are left: %v", what, n, r.ttls(t))
	}
}

// contents returns what the keys hold, of whatever type they are.
func (r *rig) contents() map[string]string {
	all := map[string]string{}
	for _, key := range r.every() {
		switch kind := r.client.Type(ctx, key).Val(); kind {
		case "hash":
			for f, v := range r.client.HGetAll(ctx, key).Val() {
				all[key+" "+f] = v
			}
		case "zset":
			all[key] = fmt.Sprint(r.client.ZRangeWithScores(ctx, key, 0, -1).Val())
		default:
			all[key] = kind
		}
	}
	return all
}

// A script that meets a key of another type fails, and has changed nothing by then; or it has no use for the
// key, and leaves it.
func TestKeysOfAnotherType(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	states, runs := situations()
	failed := 0
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, late := range []int64{0, 11_000} { // while leases run, and after
			for _, run := range runs {
				for i, key := range r.every() {
					r.build(t, states[state])
					r.setClock(t, r.now+late*1000)
					r.client.Del(ctx, key)
					r.client.RPush(ctx, key, "x")
					what := fmt.Sprintf("%s, %d ms later, with another type in key %d, %s", state, late, i, run.name)
					before := r.contents()
					_, err := r.attempt(run)
					after := r.contents()
					switch {
					case after[key] != "list":
						t.Errorf("%s: it is replaced by a %s", what, after[key])
					case err == nil && i == 0:
						t.Errorf("%s: it did not fail", what)
					case err != nil && !strings.HasPrefix(err.Error(), "WRONGTYPE"):
						t.Errorf("%s: %v", what, err)
					case err != nil && !maps.Equal(before, after):
						t.Errorf("%s: it failed (%v), and changed\n%v to\n%v", what, err, before, after)
					case err != nil:
						failed++
					}
				}
			}
		}
	}
	if failed < 1000 {
		t.Errorf("only %d runs failed", failed)
	}
}

// A server that is out of memory renews what is held, has it re-entered and releases it, lets in who is next,
// and lets waiters go: all of it as a server that has memory does. It does not take anybody new, and then
// changes nothing.
func TestFullServer(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	states, runs := situations()
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, run := range runs {
			if run.Record != nil && strings.Contains(state, "twice") {
				continue // no client sends it
			}
			try := func(memory string) (before, after map[string]string, reply protocol.Reply, err error) {
				r.build(t, states[state])
				r.setClock(t, r.now+400_000)
				before = r.contents()
				r.client.ConfigSet(ctx, "maxmemory", memory)
				reply, err = r.attempt(run)
				r.client.ConfigSet(ctx, "maxmemory", "0")
				return before, r.contents(), reply, err
			}
			_, wanted, answer, err := try("0")
			if err != nil {
				t.Fatalf("%s, %s: %v", state, run.name, err)
			}
			before, after, reply, err := try("1")
			asks := run.Script == lua.Lock || run.Script == lua.RLock
			fresh := asks && !strings.Contains(fmt.Sprint(before), run.Claim.ID.(string))
			switch {
			case err == nil && fresh && (reply.Token > 0 || !run.Try) && !reply.Refused && state != "no more readers":
				t.Errorf("%s, %s: it is taken: %+v", state, run.name, reply) // that state has readers to clear away
			case err == nil && maps.Equal(after, wanted) && reflect.DeepEqual(reply, answer):
			case err == nil:
				t.Errorf("%s, %s: %+v, not %+v; %v, not %v", state, run.name, reply, answer, after, wanted)
			case !strings.HasPrefix(err.Error(), "OOM") || !fresh:
				t.Errorf("%s, %s: %v", state, run.name, err)
			case !maps.Equal(before, after):
				t.Errorf("%s, %s: %v became %v", state, run.name, before, after)
			}
			r.ttls(t)
		}
	}
}
