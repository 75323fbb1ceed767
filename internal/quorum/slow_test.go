package quorum

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/puretest"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// healthy is what a server that works answers, unless it is the one that is left out.
func (r *rig) healthy(but int) func(*Request) any {
	return func(q *Request) any {
		switch {
		case q.Server == but:
			return nil
		case q.Script == lua.Mark:
			return markOf(q.Server, "g", false, "")
		case q.Script == lua.Vote || q.Script == lua.RVote:
			return r.vote(someToken)
		}
		return done
	}
}

// answerFirst answers the oldest request that has no answer.
func (r *rig) answerFirst() {
	q := r.sent[0]
	r.sent = r.sent[1:]
	r.reply(q, r.healthy(-1)(q))
	r.answer()
}

// A server that leaves a request without an answer is passed over, though it answers others.
func TestServerIsSlowWhenItsOldestRequestIs(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	home := r.inOrder()[0]
	stuck := r.next(home, lua.Vote)
	r.answers = r.healthy(-1)
	r.answer()
	require.Equal(t, engine.Wanted, h.State())
	for end := r.now.Add(shortestPatience); r.now.Before(end); {
		r.pass(10 * time.Millisecond)
		r.reply(r.probe(home), nonsense)
		r.answer()
	}
	require.Equal(t, engine.Live, h.State())

	require.False(t, r.quorum.servers[home].answers())
	r.reply(stuck, r.vote(someToken))
	r.answer()
	r.pass(pause)
	require.True(t, r.quorum.servers[home].answers(), "it has answered all that is old")
}

// A server that takes longer to answer than others do is passed over until it answers in time.
func TestServerThatAnswersLateIsPassedOver(t *testing.T) {
	r := newVotingRig(t)
	far := r.inOrder()[0]
	s := r.quorum.servers[far]
	r.answers = r.healthy(far)
	for k := range 1000 {
		if k%10 == 0 {
			r.acquire(protocol.Read, false)
		}
		r.pass(10 * time.Millisecond)
		for len(r.sent) > 0 && r.now.Sub(r.sent[0].sent) >= shortestPatience+50*time.Millisecond {
			r.answerFirst()
		}
		if k > 30 {
			require.False(t, s.answers())
		}
	}
	r.answers = r.healthy(-1)
	r.answer()
	r.pass(2 * pause)
	require.True(t, s.answers())
}

// A server that answers fewer requests than it is sent delays no call for long, and what waits for it is
// bounded.
func TestWhatWaitsForASlowServerIsBounded(t *testing.T) {
	r := newVotingRig(t)
	slow := r.inOrder()[2]
	s := r.quorum.servers[slow]
	r.answers = r.healthy(slow)
	answerOne := func() {
		if len(r.sent) > 0 {
			r.answerFirst()
		}
	}
	const perSecond = 2000
	for k := range 10 * perSecond {
		h := r.call(fmt.Sprint(k % 50))
		r.answer()
		r.pass(time.Second / perSecond)
		for h.State() != engine.Live {
			require.Less(t, r.now.Sub(h.Since()), 2*shortestPatience)
			r.pass(10 * time.Millisecond)
		}
		r.release(h)
		r.answer()
		if k%10 == 0 {
			answerOne()
		}
		require.LessOrEqual(t, s.flying.Len(), mostFlying+1)
		require.LessOrEqual(t, s.unsent.Len(), mostFlying, "releases of what it was asked for")
	}
}

// A server that has much to do, and does it, is not passed over: thousands that wait would go on to another
// one, which would then have as much to do.
func TestBusyServerIsNotSlow(t *testing.T) {
	r := newVotingRig(t)
	home := r.inOrder()[0]
	s := r.quorum.servers[home]
	others := r.healthy(home)
	r.answers = func(q *Request) any {
		if q.Script == lua.Vote && q.Server != home {
			return waits(time.Hour)
		}
		return others(q)
	}
	const perSecond, waiters = 1200, 3000
	for range waiters {
		r.acquire(protocol.Write, false)
		r.answer()
	}
	for k := range 5 * waiters {
		r.pass(time.Second / perSecond)
		if i := slices.IndexFunc(r.sent, func(q *Request) bool { return q.Server == home }); i >= 0 {
			q := r.sent[i]
			r.sent = slices.Delete(r.sent, i, i+1)
			r.reply(q, waits(time.Hour))
			r.answer()
		}
		require.True(t, s.answers(), k)
	}
}

// A request for a vote that was not sent yet is not sent once the vote is not wanted any more.
func TestVoteThatWasNotSentIsNotGivenBack(t *testing.T) {
	r := newVotingRig(t)
	last := r.inOrder()[2]
	s := r.quorum.servers[last]
	r.answers = r.healthy(last)
	for s.flying.Len() < mostFlying {
		r.probe(last)
		r.answer()
	}
	h := r.acquire(protocol.Write, false)
	r.answer()
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, 1, s.unsent.Len())
	r.release(h)
	r.answer()
	require.Zero(t, s.unsent.Len())
	require.Equal(t, engine.Finished, h.State())
}

// A server that does not answer is sent a few renewals of a hold, and no more; once it answers it learns how
// many holds there are.
func TestSilentServerIsNotSentEveryRenewal(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	last := r.inOrder()[2]
	s := r.quorum.servers[last]
	r.answers = r.healthy(last)
	r.pass(20 * lease)
	r.reenter(h)
	inner := r.again(h, protocol.Write)
	r.answer()
	require.Equal(t, engine.Live, inner.State())
	require.LessOrEqual(t, s.flying.Len(), mostConfirming+2, "renewals, and a mark")
	r.answers = r.healthy(-1)
	var counts []int
	answers := r.answers
	r.answers = func(q *Request) any {
		if q.Script == lua.Reenter {
			counts = append(counts, q.Count)
		}
		return answers(q)
	}
	r.answer()
	r.pass(2 * pause)
	require.Equal(t, 2, counts[len(counts)-1])
}

func TestQuorumIsPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t, "internal/engine", "internal/order", "internal/protocol", "lua")
}

// call begins a call of a new owner for a name.
func (r *rig) call(name string) *engine.Hold {
	return r.begin(&engine.Hold{Name: name, Mode: protocol.Write})
}

// replyAll answers all that was sent, and what is sent because of that.
func (r *rig) replyAll(reply func(*Request) any) {
	r.answers = reply
	r.answer()
	r.answers = nil
}

// A renewal, and a call with its release, take no longer while thousands of holds are being renewed and
// thousands of calls wait.
func TestNothingTakesLongerAmongManyHoldsAndWaiters(t *testing.T) {
	t.Parallel()
	yes := func(q *Request) any {
		if q.Script == lua.Vote {
			return "1763763763000000 1763763763000000"
		}
		return done
	}
	among := func(many int) time.Duration {
		r := makeRig(t).known()
		for i := range many {
			r.call(fmt.Sprint("held ", i))
			r.replyAll(yes)
		}
		for i := range many {
			r.call(fmt.Sprint("busy ", i%10))
			r.replyAll(func(q *Request) any {
				if q.Script == lua.Unlock {
					return done
				}
				return waits(time.Hour)
			})
		}
		r.now = r.now.Add(lease / 3)
		for at, ok := r.quorum.Next(); ok && !at.After(r.now); at, ok = r.quorum.Next() {
			r.do(func() { r.quorum.Tick(r.now) })
		}
		require.GreaterOrEqual(t, len(r.quorum.servers[0].open()), many, "all holds are being renewed")
		next := func() { _, _ = r.quorum.Next() }
		renewal := fastest(func() {
			for range 3 {
				q := r.sent[0]
				r.sent = r.sent[1:]
				r.reply(q, done)
				next()
			}
		})
		r.replyAll(yes)
		pair := fastest(func() {
			h := r.call("n")
			r.replyAll(yes)
			require.Equal(t, engine.Live, h.State())
			r.release(h)
			r.replyAll(yes)
			next()
		})
		return renewal + pair
	}
	few, many := among(50), among(10_000)
	t.Log(few, many)
	require.Less(t, many, 8*few)
}

// fastest returns the shortest time that a function takes.
func fastest(fn func()) time.Duration {
	shortest := time.Hour
	for range 50 {
		start := time.Now()
		fn()
		shortest = min(shortest, time.Since(start))
	}
	return shortest
}

// open returns what a server has not answered, and what waits for that.
func (s *server) open() []*Request {
	return slices.Concat(slices.Collect(s.flying.All()), slices.Collect(s.unsent.All()))
}

// A busy name takes one place among those that are remembered, however often it is used.
func TestNamesThatWereUsedLastAreRemembered(t *testing.T) {
	r := newVotingRig(t)
	r.answers = r.healthy(-1)
	use := func(name string) {
		h := r.call(name)
		r.answer()
		r.release(h)
		r.answer()
	}
	use("other")
	for range 3 * mostIdle {
		use("busy")
	}
	require.Contains(t, r.quorum.locks, protocol.KeysOf("p", "other").Lock)
	for i := range mostIdle {
		use(fmt.Sprint(i))
	}
	require.NotContains(t, r.quorum.locks, protocol.KeysOf("p", "other").Lock)
	require.Len(t, r.quorum.locks, mostIdle)
}

// While a mark is read, a renewal does not take the place of a call that re-enters.
func TestEachKindOfRequestWaitsForTheMarks(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	renewal, _ := r.engine.Next()
	r.pass(renewal.Sub(r.now) - 100*time.Millisecond)
	r.acquire(protocol.Write, false)
	changed := r.inOrder()[0]
	r.reply(r.next(changed, lua.Vote), int64(-2))
	r.again(h, protocol.Write)
	r.pass(100 * time.Millisecond)
	for i := range 3 {
		require.Zero(t, r.sends(i, lua.Reenter)+r.sends(i, lua.Renew), "the mark is not known")
	}
	r.reply(r.next(changed, lua.Mark), markOf(changed, "g", false, ""))
	for i := range 3 {
		require.Equal(t, 1, r.sends(i, lua.Reenter))
		require.Equal(t, 1, r.sends(i, lua.Renew))
	}
}

// Thousands of waiters go on to another server in slices, so that nothing else waits for all of them.
func TestWaitersGoOnInSlices(t *testing.T) {
	const many = 3 * atOnce
	r := newVotingRig(t)
	order := r.inOrder()
	for range many {
		r.acquire(protocol.Write, false)
		r.replyAll(func(q *Request) any {
			if q.Script == lua.Unlock {
				return done
			}
			return waits(time.Hour)
		})
	}
	r.fail(r.probe(order[0]))
	moved := 0
	for range many {
		n := 0
		for _, q := range r.quorum.servers[order[1]].open() {
			if q.Script == lua.Vote {
				n++
			}
		}
		require.LessOrEqual(t, n-moved, atOnce)
		if moved = n; moved == many {
			break
		}
		at, ok := r.quorum.Next()
		require.True(t, ok)
		require.False(t, at.After(r.now))
		r.do(func() { r.quorum.Tick(r.now) })
	}
	require.Equal(t, many, moved)
}

// probe has a server asked for something.
func (r *rig) probe(i int) *Request {
	r.do(func() { _ = r.engine.Inspect(r.now, "other", nil) })
	return r.next(i, lua.Inspect)
}
