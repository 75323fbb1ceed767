package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that has not carried out the release of an owner's last hold yet, and has voted for its next one,
// has two of the owner's votes. Together they are one server's.
func TestTwoVotesOfOneServerAreNoMajority(t *testing.T) {
	vote := func(number uint64, lease time.Duration, count int) Holder {
		return Holder{Known: Known{Mode: Read, Instance: "i", Number: number, Owner: Owner{Handle: 1}},
			Lease: lease, Count: count}
	}
	none, both := &State{Mode: None}, &State{Mode: Read,
		Holders: []Holder{vote(4, time.Second, 1), vote(7, time.Minute, 2)}}
	later := &State{Mode: Read, Holders: []Holder{vote(8, time.Hour, 2)}}

	require.Empty(t, Join([]*State{none, both, none}, 0).Holders)
	for _, states := range [][]*State{{none, both, later}, {later, none, both}} {
		joined := Join(states, 0).Holders
		require.Len(t, joined, 1)
		require.Equal(t, time.Minute, joined[0].Lease, "of the next hold")
		require.Equal(t, 2, joined[0].Count)
	}
}

// Claims wait elsewhere than at their home if it refuses to vote for them.
func TestQueueIsTheLongestIfTheHomeDoesNotVote(t *testing.T) {
	known := func(number uint64) Known {
		return Known{Mode: Write, Instance: "i", Number: number, Owner: Owner{Handle: number}}
	}
	state := func(holder uint64, waiters ...uint64) *State {
		s := &State{}
		if holder != 0 {
			s.Holders = []Holder{{Known: known(holder)}}
		}
		for _, n := range waiters {
			s.Waiters = append(s.Waiters, Waiter{Known: known(n)})
		}
		return s
	}
	for _, c := range []struct {
		states []*State
		home   int
		want   []uint64
	}{
		{[]*State{state(0), state(9, 1), state(9, 1, 2)}, 0, []uint64{1, 2}},
		{[]*State{state(0, 1), state(9, 1), state(9, 1, 2)}, 0, []uint64{1}},
		// 8 was released, and 9 has the lock: the third is late
		{[]*State{state(9), state(9, 1), state(8, 9)}, 0, nil},
		{[]*State{state(0), state(7), state(8, 9)}, 0, nil},
		{[]*State{state(9, 1, 2), nil, state(9, 1)}, 1, []uint64{1, 2}},
		{[]*State{state(9, 1), state(9, 1, 2), state(9)}, -1, []uint64{1, 2}},
	} {
		var got []uint64
		for _, w := range Join(c.states, c.home).Waiters {
			got = append(got, w.Known.Number)
		}
		require.Equal(t, c.want, got)
	}
}

// A process that withdraws a claim, and whose owner waits again, waits once: with the later claim.
func TestOwnerWaitsOnceThoughAnEarlierClaimIsBeingWithdrawn(t *testing.T) {
	waiter := func(number, owner uint64) Waiter {
		return Waiter{Known: Known{Mode: Write, Instance: "i", Number: number, Owner: Owner{Handle: owner}}}
	}
	queue := &State{Waiters: []Waiter{waiter(1, 1), waiter(2, 2), waiter(3, 1)}}
	require.Equal(t, queue.Waiters[1:], Join([]*State{queue, {}, {}}, 0).Waiters)
	queue.Holders = []Holder{{Known: waiter(1, 1).Known}} // it was the next
	queue.Waiters = queue.Waiters[1:]
	require.Equal(t, queue.Waiters, Join([]*State{queue, {}, {}}, 0).Waiters)
}
