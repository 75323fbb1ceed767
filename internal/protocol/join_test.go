package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that has not carried out the release of an owner's last hold yet, and has voted for its next one, has two of the owner's
// votes. Together they are one server's.
func TestTwoVotesOfOneServerAreNoMajority(t *testing.T) {
	vote := func(number uint64, lease time.Duration, count int) Holder {
		return Holder{Known: Known{Mode: Read, Instance: "i", Number: number, Owner: Owner{Handle: 1}}, Lease: lease, Count: count}
	}
	none, both := &State{Mode: None}, &State{Mode: Read, Holders: []Holder{vote(4, time.Second, 1), vote(7, time.Minute, 2)}}
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
func TestQueueIsTheLongestIfNobodyWaitsAtTheHome(t *testing.T) {
	waiter := func(number uint64) Waiter {
		return Waiter{Known: Known{Mode: Write, Instance: "i", Number: number, Owner: Owner{Handle: number}}}
	}
	none, one, two := &State{}, &State{Waiters: []Waiter{waiter(1)}}, &State{Waiters: []Waiter{waiter(1), waiter(2)}}
	require.Equal(t, two.Waiters, Join([]*State{none, one, two}, 0).Waiters)
	require.Equal(t, one.Waiters, Join([]*State{none, one, two}, 1).Waiters)
	require.Equal(t, two.Waiters, Join([]*State{two, nil, one}, 1).Waiters)
	require.Equal(t, two.Waiters, Join([]*State{one, two, none}, -1).Waiters)
	require.Empty(t, Join([]*State{none, none, nil}, 2).Waiters)
}
