package quorum

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// How many servers vote is reported once when the number falls, and once when it rises again.
func TestNumberOfServersThatVoteIsReported(t *testing.T) {
	r := newVotingRig(t)
	require.Equal(t, 3, r.quorum.Voting())
	r.answers = r.healthy(1)
	r.fail(r.probe(1))
	r.answer()
	require.Equal(t, 2, r.quorum.Voting())
	r.pass(fallen - 1)
	require.Empty(t, r.logged, "it may be back")
	r.pass(time.Minute)
	require.Equal(t, []string{"2 of 3 servers of the quorum vote: client 1: i/o timeout"}, r.logged)
	healthy := r.healthy(1)
	r.answers = func(q *Request) any {
		if q.Server == 2 {
			return nil
		}
		return healthy(q)
	}
	r.fail(r.probe(2))
	r.pass(fallen)
	require.Len(t, r.logged, 2)
	require.Equal(t, "1 of 3 servers of the quorum vote: client 1: i/o timeout; client 2: i/o timeout", r.logged[1])

	r.answers = r.healthy(-1)
	r.answer()
	r.pass(time.Minute)
	require.Equal(t, 3, r.quorum.Voting())
	require.Equal(t, "3 of 3 servers of the quorum vote: <nil>", r.logged[len(r.logged)-1])
	require.Len(t, r.logged, 3)
	var voting []int
	for _, e := range r.events {
		if e.Kind == engine.Voting {
			require.Equal(t, 3, e.Servers)
			voting = append(voting, e.Voting)
		}
	}
	require.Equal(t, []int{2, 1, 3}, voting)
}

// A server that answers late again and again is reported once.
func TestServerThatComesAndGoesIsReportedOnce(t *testing.T) {
	r := newVotingRig(t)
	for range 20 {
		r.answers = r.healthy(0)
		r.fail(r.probe(0))
		r.pass(2 * fallen)
		r.answers = r.healthy(-1)
		r.answer()
		r.pass(2 * probeSlowly)
		require.Equal(t, 3, r.quorum.Voting())
	}
	require.Len(t, r.logged, 1)
	r.pass(risen)
	require.Len(t, r.logged, 2)
}

// A server that is slow for a moment is not reported, nor is one before it was asked.
func TestShortDelayIsNotReported(t *testing.T) {
	r := newRig(t)
	require.Equal(t, 3, r.quorum.Voting())
	r.known()
	for range 20 {
		r.answers = r.healthy(2)
		r.acquire(protocol.Write, true)
		r.pass(2 * shortestPatience)
		require.Equal(t, 2, r.quorum.Voting())
		r.answers = r.healthy(-1)
		r.answer()
		r.pass(2 * probeSlowly)
	}
	require.Empty(t, r.logged)
}

// While a server does not vote, it is asked for its mark though no call is made, so that its return is known.
func TestReturnOfAServerIsFoundWithoutACall(t *testing.T) {
	r := newVotingRig(t)
	r.answers = r.healthy(1)
	r.fail(r.probe(1))
	r.pass(time.Hour)
	r.answers = r.healthy(-1)
	r.answer()
	r.pass(2 * probeSlowly)
	require.Equal(t, 3, r.quorum.Voting())
	r.pass(time.Minute)
	_, due := r.quorum.Next()
	require.False(t, due, "there is nothing to do")
}
