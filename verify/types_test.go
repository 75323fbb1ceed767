package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
		">w1/10", "-r1@11", "=r1@11/30", "force", "serve",
	}
	for _, c := range []string{"w1", "r1", "w2", "r2", "w3", "r3"} {
		runs = append(runs, c+"/10", "-"+c, "-"+c+"!", "="+c+"/30", "&"+c+"/30", "&"+c+"!/30")
	}
	for _, state := range []string{
		"", "w1/10", "r1/10", "w1/10 -w1!", "r1/10 r2/10 -r1! -r2!",
		"w1/10 &w1/30", "w1/10 w2/10", "w1/10 r3/10 w2/10", "w1/10 r2/10 r3/10", "w1/10 w2/10 r3/10",
		"w1/10 w2/10 w3/10", "w1/30 w2/10 r3/30 r4/30",
		"w1/10 >w1/10", "w1/10 >w1/10 w2/10 r3/10", "w1/10 w2/10 r3/10 >w1/10",
		"r1/10 r2/10", "r1/10 r2/10 &r1/30", "r1/10 w2/10 r3/10", "r1/10 r4/10 w2/10", "r1/10 r4/10 w2/10 r3/10",
	} {
		for _, run := range runs {
			fn(state, run)
		}
	}
}

// newRedisRig returns a rig on a server of its own, for a test that runs beside others.
func newRedisRig(t *testing.T, few bool) *rig {
	t.Parallel()
	testredis.Need(t)
	r := newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), few)
	r.reset(t)
	return r
}

// attempt makes a call that may fail.
func (r *rig) attempt(q *protocol.Request) (reply protocol.Reply, err error) {
	raw, err := r.try(q)
	r.client.Del(ctx, "{told}")
	if err == nil {
		reply, err = protocol.Decode(q.Script, raw)
	}
	return reply, err
}

// is reports whether a claim of a server is that claim, and has whether that is held.
func is(k protocol.Known, c protocol.Claim) bool {
	known, err := protocol.ParseClaim(c.ID)
	return err == nil && known == k
}

func has(s protocol.State, c protocol.Claim) bool {
	return slices.ContainsFunc(s.Holders, func(h protocol.Holder) bool { return is(h.Known, c) })
}

// Whatever key of a lock the server has evicted, no script fails; those that the server still knows do not
// hold the lock twice; whoever enters gets a token that is no less than the time; and all of it ends.
func TestLostKeys(t *testing.T) {
	r := newRedisRig(t, false)
	situations(func(state, run string) {
		for i, key := range r.keysOf() {
			r.reset(t)
			r.play(t, state)
			r.setClock(t, r.now+400_000)
			if r.client.Del(ctx, key).Val() == 0 {
				continue
			}
			what := fmt.Sprintf("%s, without key %d, %s", state, i, run)
			before, q := r.glance(t), r.requests(t, run)[0]
			reply, err := r.attempt(q)
			require.NoError(t, err, what)
			after := r.glance(t)
			for _, w := range after.Holders {
				for _, h := range after.Holders {
					require.False(t, w.Known.Mode == protocol.Write && h.Known != w.Known,
						"%s: %v writes, and %v has the lock, too", what, w.Known, h.Known)
				}
			}
			if reply.Token > 0 {
				require.True(t, has(after, q.Claim), "%s: it is told that it has the lock, and has not", what)
				if !reply.Before && !has(before, q.Claim) && q.Script != lua.Convert { // whose token is of before
					require.GreaterOrEqual(t, reply.Token, r.now, what)
				}
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
	require.NoError(t, err, what)
	require.NotZero(t, reply.Token, "%s: a minute and more later, it is not free", what)
	r.pass(t, 300_000)
	require.Empty(t, r.ttls(t), "%s: keys are left", what)
}

// A script that meets a key of another type fails, and has changed nothing by then; or it has no use for the
// key, and leaves it. force, which is to make room, always fails.
func TestKeysOfAnotherType(t *testing.T) {
	r := newRedisRig(t, false)
	failed := 0
	situations(func(state, run string) {
		for _, late := range []int64{0, 11_000} { // while leases run, and after
			for i, key := range r.keysOf() {
				r.reset(t)
				r.play(t, state)
				r.setClock(t, r.now+late*1000)
				r.client.Del(ctx, key)
				r.client.RPush(ctx, key, "x")
				what := fmt.Sprintf("%s, %d ms later, with another type in key %d, %s", state, late, i, run)
				before := r.contents()
				_, err := r.attempt(r.requests(t, run)[0])
				require.Equal(t, "list", r.client.Type(ctx, key).Val(), "%s: it is replaced", what)
				if err == nil {
					require.True(t, i > 0 && run != "force", "%s: it did not fail", what)
					continue
				}
				require.ErrorContains(t, err, "WRONGTYPE", what)
				require.Equal(t, before, r.contents(), "%s: it failed, and changed", what)
				failed++
			}
		}
	})
	require.Greater(t, failed, 1000)
}

// A server that is out of memory renews what is held, has it re-entered and releases it, lets in who is next,
// and lets waiters go: all of it as a server that has memory does. It does not take anybody new, and then
// changes nothing.
func TestFullServer(t *testing.T) {
	r := newRedisRig(t, false)
	situations(func(state, run string) {
		if strings.HasSuffix(run, "!") && strings.Contains(state, "&") {
			return // no client sends it
		}
		what := fmt.Sprintf("%s, %s", state, run)
		var q *protocol.Request
		try := func(memory string) (before, after contents, reply protocol.Reply, err error) {
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
		require.NoError(t, err, what)
		before, after, reply, err := try("1")
		asks := q.Script == lua.Lock
		fresh := asks && !strings.Contains(fmt.Sprint(before), q.Claim.ID)
		if err != nil {
			require.ErrorContains(t, err, "OOM", what)
			require.True(t, fresh, "%s: %v", what, err)
			require.Equal(t, before, after, what)
		} else {
			readersToClear := strings.HasSuffix(state, "-r1! -r2!")
			require.False(t, fresh && (reply.Token > 0 || !q.Try) && !reply.Refused && !readersToClear,
				"%s: it is taken: %+v", what, reply)
			require.Equal(t, wanted, after, what)
			require.Equal(t, answer, reply, what)
		}
		r.ttls(t)
	})
}
