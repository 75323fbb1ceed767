package quorum

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// Whatever servers there are, the names of a family, such as those that end in a number, have homes that are
// spread evenly.
func TestHomesAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	families := map[string][2]int{"n%d": {0, 10}, "orders:%d": {1000, 2000}, "a%d:lock": {0, 300}, "%036d": {0, 300}}
	for _, servers := range []int{3, 5} {
		for family, of := range families {
			names, largest := of[1]-of[0], 0
			for set := range 200 {
				homes := make([]int, servers)
				for n := of[0]; n < of[1]; n++ {
					key := protocol.KeysOf("rwlock", fmt.Sprintf(family, n)).Lock.(string)
					best, home := uint64(0), 0
					for i := range servers {
						id := fmt.Sprintf("%d:aBcDeFgHiJ-%02d:%d", 1_763_763_763_000_000+int64(set)*1_000_003+int64(i)*17, set%7, 1+i)
						if w := weigh(id, key); w.hash > best {
							best, home = w.hash, i
						}
					}
					homes[home]++
					largest = max(largest, homes[home])
				}
			}
			// The largest of so many random shares is about four standard deviations above the mean.
			mean := float64(names) / float64(servers)
			require.Less(t, float64(largest), min(mean+5*math.Sqrt(mean), float64(names)), "%s over %d servers", family, servers)
		}
	}
}

// Clients of all versions agree on the order of homes.
func TestOrderOfHomesIsPinned(t *testing.T) {
	t.Parallel()
	require.Equal(t, weight{"1763763763000000:me:1", 0xbc34dad36f0f5095}, weigh("1763763763000000:me:1", "rwlock:{n}"))
}

// A message about the vote of one server that comes over the subscription of another, whose address leads to
// the first for a while, is no vote of the other.
func TestMessageAboutAnotherServersVoteIsNoVote(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	home := r.next(order[0], lua.Vote)
	r.reply(home, waits(time.Second))
	message := fmt.Sprintf("%d 0 %d", someToken, home.number)
	r.do(func() { r.quorum.Heard(r.now, order[0], message) })
	r.do(func() { r.quorum.Heard(r.now, order[1], message) })
	require.Equal(t, engine.Wanted, h.State())
	for i, v := range r.quorum.ballots[home.ballot.claim].votes {
		require.Equal(t, i == order[0], v.state == cast)
	}
}

// No two servers have a slot in common, so that a request that reaches the wrong one ends none of its votes.
func TestSlotsOfServersDiffer(t *testing.T) {
	r := newVotingRig(t)
	seen := map[any]bool{}
	for range 3 {
		r.acquire(protocol.Read, false)
	}
	for _, q := range r.sent {
		require.False(t, seen[q.Claim.Slot])
		seen[q.Claim.Slot] = true
	}
	require.Len(t, seen, 9)
}
