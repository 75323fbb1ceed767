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

// situations calls fn with states of a lock, each as the calls that lead there, and calls that may be made in
// them.
func situations(fn func(state, run string)) {
	runs := []string{
		"w5/10", "w5?/10", "w5/90000", "-w5", "r5/10", "r5?/10", "r5/90000", "-r5", // nobody has heard of it
		"r1<w1/10", "-r1<w1", "-r1<w1!", "=r1<w1/30", "force", "serve",
	}
	for _, c := range []string{"w1", "r1", "w2", "r2", "w3", "r3"} {
		runs = append(runs, c+"/10", "-"+c, "-"+c+"!", "="+c+"/30", "&"+c+"/30", "&"+c+"!/30")
	}
	for _, state := range []string{
		"", "w1/10", "r1/10", "w1/10 -w1!", "r1/10 r2/10 -r1! -r2!",
		"w1/10 &w1/30", "w1/10 w2/10", "w1/10 r3/10 w2/10", "w1/10 r2/10 r3/10", "w1/10 w2/10 r3/10",
		"w1/10 w2/10 w3/10",
		"w1/10 r1<w1/10", "w1/10 r1<w1/10 w2/10 r3/10", "w1/10 r1<w1/10 w2/10 -w1",
		"r1/10 r2/10", "r1/10 r2/10 &r1/30", "r1/10 w2/10 r3/10", "r1/10 r4/10 w2/10", "r1/10 r4/10 w2/10 r3/10",
	} {
		for _, run := range runs {
			fn(state, run)
		}
	}
}

func newRedisRig(t *testing.T, few bool) *rig {
	testredis.Need(t)
	r := newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), few)
	r.reset(t)
	return r
}

// attempt makes a call that may fail.
func (r *rig) attempt(q *protocol.Request) (protocol.Reply, error) {
	raw, err := r.try(q)
	r.client.Del(ctx, "{told}")
	if err != nil {
		return protocol.Reply{}, err
	}
	return protocol.Decode(q.Script, raw)
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
	situations(func(state, run string) {
		for i, key := range r.every() {
			r.reset(t)
			r.play(t, state)
			r.setClock(t, r.now+400_000)
			if r.client.Del(ctx, key).Val() == 0 {
				continue
			}
			what := fmt.Sprintf("%s, without key %d, %s", state, i, run)
			before, q := r.glance(t), r.requests(t, run)[0]
			reply, err := r.attempt(q)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			after := r.glance(t)
			exclusive(t, after, what)
			if reply.Token > 0 && has(after, q.Claim) == nil {
				t.Errorf("%s: it is told that it has the lock, and has not", what)
			}
			if reply.Token > 0 && !reply.Before && has(before, q.Claim) == nil && q.Writer == nil &&
				reply.Token < r.now {
				t.Errorf("%s: its token is %d, and the time is %d", what, reply.Token, r.now)
			}
			r.ttls(t)
			r.ends(t, what)
		}
	})
}

// ends checks that the lock becomes free as leases run out, and leaves nothing behind.
func (r *rig) ends(t testing.TB, what string) {
	r.pass(t, 31_000)
	q := r.requests(t, "w7?/1")[0]
	reply, err := r.attempt(q)
	for steps := 0; err == nil && reply.Token == 0 && steps < 5; steps++ {
		if strings.Contains(what, "/90000") {
			return
		}
		r.pass(t, 31_000) // those that waited had their turn
		q.Claim = claimOf(7, 8+steps, 8+steps, model.Write)
		reply, err = r.attempt(q)
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
	failed := 0
	situations(func(state, run string) {
		for _, late := range []int64{0, 11_000} { // while leases run, and after
			for i, key := range r.every() {
				r.reset(t)
				r.play(t, state)
				r.setClock(t, r.now+late*1000)
				r.client.Del(ctx, key)
				r.client.RPush(ctx, key, "x")
				what := fmt.Sprintf("%s, %d ms later, with another type in key %d, %s", state, late, i, run)
				before := r.contents()
				_, err := r.attempt(r.requests(t, run)[0])
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
	})
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
	situations(func(state, run string) {
		if strings.HasSuffix(run, "!") && strings.Contains(state, "&") {
			return // no client sends it
		}
		what := fmt.Sprintf("%s, %s", state, run)
		var q *protocol.Request
		try := func(memory string) (before, after map[string]string, reply protocol.Reply, err error) {
			r.reset(t)
			r.play(t, state)
			r.setClock(t, r.now+400_000)
			before, q = r.contents(), r.requests(t, run)[0]
			r.client.ConfigSet(ctx, "maxmemory", memory)
			reply, err = r.attempt(q)
			r.client.ConfigSet(ctx, "maxmemory", "0")
			return before, r.contents(), reply, err
		}
		_, wanted, answer, err := try("0")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		before, after, reply, err := try("1")
		asks := q.Script == lua.Lock || q.Script == lua.RLock
		fresh := asks && !strings.Contains(fmt.Sprint(before), q.Claim.ID.(string))
		readersToClear := strings.HasSuffix(state, "-r1! -r2!")
		switch {
		case err == nil && fresh && (reply.Token > 0 || !q.Try) && !reply.Refused && !readersToClear:
			t.Errorf("%s: it is taken: %+v", what, reply)
		case err == nil && maps.Equal(after, wanted) && reflect.DeepEqual(reply, answer):
		case err == nil:
			t.Errorf("%s: %+v, not %+v; %v, not %v", what, reply, answer, after, wanted)
		case !strings.HasPrefix(err.Error(), "OOM") || !fresh:
			t.Errorf("%s: %v", what, err)
		case !maps.Equal(before, after):
			t.Errorf("%s: %v became %v", what, before, after)
		}
		r.ttls(t)
	})
}
