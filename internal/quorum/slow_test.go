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

// A server that leaves a request without an answer is passed over, though it answers others.
func TestServerIsSlowWhenItsOldestRequestIs(t *testing.T) {
	const home = 0
	r, h := asking(t)
	stuck := r.next(home, lua.Vote)
	r.answers = r.serve
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
	const far = 0
	r := newVotingRig(t)
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
	r.answers = r.serve
	r.answer()
	r.pass(2 * pause)
	require.True(t, s.answers())
}

// A server that answers fewer requests than it is sent delays no call for long, and what waits for it is
// bounded.
func TestWhatWaitsForASlowServerIsBounded(t *testing.T) {
	const slow = 2
	r := newVotingRig(t)
	s := r.quorum.servers[slow]
	r.answers = r.healthy(slow)
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
		if k%10 == 0 && len(r.sent) > 0 {
			r.answerFirst()
		}
		require.LessOrEqual(t, s.flying.Len(), mostFlying+1)
		require.LessOrEqual(t, s.unsent.Len(), mostFlying, "releases of what it was asked for")
	}
}

// A server that has much to do, and does it, is not passed over: thousands that wait would go on to another
// one, which would then have as much to do.
func TestBusyServerIsNotSlow(t *testing.T) {
	const home, perSecond, waiters = 0, 1200, 3000
	r := newVotingRig(t)
	r.answers = func(q *Request) any {
		if q.Server == home {
			return nil
		}
		return r.crowded(q)
	}
	for range waiters {
		r.acquire(protocol.Write, false)
		r.answer()
	}
	for k := range 5 * waiters {
		r.pass(time.Second / perSecond)
		if len(r.sent) > 0 {
			r.replies(home, r.sent[0].Script, r.crowded(r.sent[0]))
			r.answer()
		}
		require.True(t, r.quorum.servers[home].answers(), k)
	}
}

// A request for a vote that was not sent yet is not sent once the vote is not wanted any more.
func TestVoteThatWasNotSentIsNotGivenBack(t *testing.T) {
	const last = 2
	r := newVotingRig(t)
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
	const last = 2
	r, h := holding(t)
	s := r.quorum.servers[last]
	r.answers = r.healthy(last)
	r.pass(20 * lease)
	r.reenter(h)
	inner := r.again(h, protocol.Write, lease)
	r.answer()
	require.Equal(t, engine.Live, inner.State())
	require.LessOrEqual(t, s.flying.Len(), mostConfirming+2, "renewals, and a mark")
	count := 0
	r.answers = func(q *Request) any {
		if q.Script == lua.Renew {
			count = q.Count
		}
		return r.serve(q)
	}
	r.answer()
	r.pass(2 * lease / 3)
	require.Equal(t, 2, count)
}

func TestQuorumIsPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t, "internal/engine", "internal/order", "internal/protocol", "lua")
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
			r.replyAll(r.crowded)
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
			h := r.call(name)
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
	r.answers = r.serve
	r.use(r.call("other"))
	for range 3 * mostIdle {
		r.use(r.call("busy"))
	}
	require.Contains(t, r.quorum.locks, protocol.KeysOf("p", "other").Lock)
	for i := range mostIdle {
		r.use(r.call(fmt.Sprint(i)))
	}
	require.NotContains(t, r.quorum.locks, protocol.KeysOf("p", "other").Lock)
	require.Len(t, r.quorum.locks, mostIdle)
}

// While a mark is read, a renewal waits, and says then how many holds there are.
func TestRenewalWaitsForTheMarks(t *testing.T) {
	const changed = 0
	r, h := holding(t)
	renewal, _ := r.engine.Next()
	r.pass(renewal.Sub(r.now) - 100*time.Millisecond)
	r.acquire(protocol.Write, false)
	r.replies(changed, lua.Vote, unmarked)
	r.again(h, protocol.Write, lease)
	r.pass(100 * time.Millisecond)
	for i := range 3 {
		require.Zero(t, r.sends(i, lua.Renew), "the mark is not known")
	}
	r.serves(changed, lua.Mark)
	for i := range 3 {
		require.Equal(t, 1, r.sends(i, lua.Renew))
		require.Equal(t, 2, r.next(i, lua.Renew).Count)
	}
}

// Thousands of waiters go on to another server in slices, so that nothing else waits for all of them.
func TestWaitersGoOnInSlices(t *testing.T) {
	const many = 3 * atOnce
	r := newVotingRig(t)
	r.queue(many)
	r.fail(r.probe(0))
	moved := 0
	for range many {
		n := 0
		for _, q := range r.quorum.servers[1].open() {
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

// A waiter whose heartbeat fails asks again soon: what is in its way may be over by then. Its server is not
// passed over if it has answered something else meanwhile.
func TestWaiterWhoseHeartbeatFailsAsksAgain(t *testing.T) {
	const home = 0
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	r.replies(home, lua.Vote, waits(100*time.Millisecond))
	r.replyAll(r.only(lua.Unlock))
	r.pass(110 * time.Millisecond)
	heartbeat := r.next(home, lua.Vote)
	r.now = r.now.Add(time.Millisecond)
	r.reply(r.probe(home), nonsense)
	r.fail(heartbeat)
	require.True(t, r.quorum.servers[home].answers())
	r.answers = r.healthy(1, 2)
	r.pass(pause)
	r.answers = r.serve
	r.answer()
	require.Equal(t, engine.Live, h.State())
}

// A process that has stood still suspects no server: the answers may be there already, and waiters would lose
// their places. That is so each time, and whatever is handled first. If a server does not answer then either,
// it is passed over, even if the process is late each time.
func TestProcessThatStoodStillSuspectsNobody(t *testing.T) {
	r := newVotingRig(t)
	var h *engine.Hold
	for first := range 4 {
		r.answers = nil
		h = r.acquire(protocol.Write, false)
		r.now = r.now.Add(2 * shortestPatience)
		if first < 3 {
			r.votes(first)
		}
		r.do(func() { r.quorum.Tick(r.now) })
		require.Equal(t, 3, count(r.quorum.servers, (*server).answers))
		r.replyAll(r.serve)
		require.Equal(t, engine.Live, h.State())
		if first < 3 {
			r.release(h)
			r.replyAll(r.serve)
			r.answers = r.serve
			r.pass(time.Minute)
		}
	}

	const dead = 0
	s := r.quorum.servers[dead]
	r.release(h)
	for _, late := range []time.Duration{2 * lateTick, 4 * shortestPatience} {
		r.answers = r.healthy()
		r.pass(time.Minute)
		r.replyAll(r.serve)
		require.True(t, s.answers())
		r.answers = r.healthy(dead)
		r.do(func() { _ = r.engine.Inspect(r.now, "other", nil) })
		r.answer()
		start := r.now
		for s.answers() && r.now.Sub(start) < time.Minute {
			at, _ := r.quorum.Next()
			r.now = at.Add(late)
			r.do(func() { r.quorum.Tick(r.now) })
			r.answer()
		}
		require.LessOrEqual(t, r.now.Sub(start), 2*(shortestPatience+late))
	}
}

// A server that is passed over makes another's mark due, as of long ago. A Tick that comes at once is on time
// all the same, and gives no server its time again.
func TestTickIsLateSinceTheLastEvent(t *testing.T) {
	r := newVotingRig(t)
	r.pass(10 * time.Second)
	inspect := func(silent ...int) {
		r.do(func() { _ = r.engine.Inspect(r.now, "other", nil) })
		r.replyAll(r.healthy(silent...))
	}
	inspect(1)
	r.pass(10 * time.Millisecond)
	inspect(1, 2)
	r.answers = r.healthy(1, 2)
	r.pass(shortestPatience)
	require.True(t, r.quorum.servers[1].suspected)
	require.True(t, r.quorum.servers[2].suspected)
}

// One event handles few bids, however many there are. The others follow.
func TestOneEventHandlesFewBids(t *testing.T) {
	const many, home = 4 * atOnce, 0
	// slices expects that a number grows to many, by no more than atOnce with each event.
	slices := func(r *rig, handled func() int) {
		n := 0
		for range many {
			require.LessOrEqual(r.t, handled()-n, atOnce)
			if n = handled(); n == many {
				return
			}
			at, ok := r.quorum.Next()
			require.True(r.t, ok)
			require.False(r.t, at.After(r.now))
			r.do(func() { r.quorum.Tick(r.now) })
		}
		require.Equal(r.t, many, n)
	}
	t.Run("releases that had run before", func(t *testing.T) {
		r := newVotingRig(t)
		var holds [10]*engine.Hold
		for i := range holds {
			holds[i] = r.call(fmt.Sprint(i))
			r.replyAll(r.serve)
		}
		r.queue(many)
		for _, h := range holds {
			r.release(h)
		}
		r.do(func() {
			for range holds {
				r.quorum.Replied(r.now, r.next(home, lua.Unlock), doneBefore, nil)
			}
		})
		slices(r, func() (asked int) {
			for _, q := range r.quorum.servers[home].open() {
				if q.Script == lua.Vote {
					asked++
				}
			}
			return asked
		})
	})
	t.Run("a server that has lost its data", func(t *testing.T) {
		r := newVotingRig(t)
		r.queue(many)
		r.servers[home].loses("new")
		r.do(func() { r.quorum.readMark(r.now, r.quorum.servers[home]) })
		r.serves(home, lua.Mark)
		slices(r, func() (forgotten int) {
			for b := range r.quorum.all.All() {
				if b.votes[home].state == absent {
					forgotten++
				}
			}
			return forgotten
		})
	})
	t.Run("releases that wait for a silent home", func(t *testing.T) {
		r := newVotingRig(t)
		var holds [many]*engine.Hold
		for i := range holds {
			holds[i] = r.acquire(protocol.Read, false)
			r.replyAll(r.serve)
		}
		silent := r.probe(home)
		for _, h := range holds {
			r.release(h)
			r.replyAll(r.healthy(home))
		}
		r.fail(silent)
		slices(r, func() (released int) {
			for _, h := range holds {
				if h.State() == engine.Finished {
					released++
				}
			}
			return released
		})
	})
}

// What is known of many claims takes no memory once they have ended.
func TestMapsShrink(t *testing.T) {
	r := newVotingRig(t)
	const many = 2000
	var holds [many]*engine.Hold
	for i := range holds {
		holds[i] = r.call(fmt.Sprint(i))
		r.replyAll(r.serve)
	}
	q := r.quorum
	require.GreaterOrEqual(t, min(q.locksMax, q.bidsMax, q.votersMax), many)
	for _, h := range holds {
		r.release(h)
		r.replyAll(r.serve)
	}
	require.LessOrEqual(t, max(q.locksMax, q.bidsMax, q.votersMax), mostIdle)
}
