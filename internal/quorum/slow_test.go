package quorum

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
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

	require.False(t, r.quorum.servers[home].answers(r.quorum))
	r.reply(stuck, r.vote(someToken))
	r.answer()
	r.pass(probeSlowly)
	require.True(t, r.quorum.servers[home].answers(r.quorum), "it has answered all that is old")
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
			require.False(t, s.answers(r.quorum))
		}
	}
	r.answers = r.healthy(-1)
	r.answer()
	r.pass(2 * probeSlowly)
	require.True(t, s.answers(r.quorum))
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
			require.Less(t, r.now.Sub(h.Begun()), 2*shortestPatience)
			r.pass(10 * time.Millisecond)
		}
		r.do(func() { _, _ = r.engine.Release(r.now, h) })
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
		require.True(t, s.answers(r.quorum), k)
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
	r.do(func() { _, _ = r.engine.Release(r.now, h) })
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
	inner := &engine.Hold{Name: "n", Owner: h.Owner, Mode: protocol.Write, Lease: lease, Bounded: true}
	r.do(func() { r.engine.Acquire(r.now, inner) })
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
	require.Equal(t, 2, counts[len(counts)-1])
}
