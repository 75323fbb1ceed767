package protocol_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// everything returns what a script can see of a lock, but for the times to live.
func (b *bench) everything() []any {
	b.t.Helper()
	ctx := b.t.Context()
	hash, err := b.c.HGetAll(ctx, b.keys.Lock.(string)).Result()
	require.NoError(b.t, err)
	all := []any{hash}
	for _, key := range []any{b.keys.Leases, b.keys.Queue} {
		members, err := b.c.ZRangeWithScores(ctx, key.(string), 0, -1).Result()
		require.NoError(b.t, err)
		all = append(all, members)
	}
	return all
}

// A script that is told the hash in the place of an ordered set either does without it, and then leaves that
// as it is, or fails and changes nothing: so a lock can be used while a cluster moves its slot and its other
// keys cannot be reached.
func TestHashStandsInForOrderedSets(t *testing.T) {
	t.Parallel()
	requests := func(b *bench, there []*party) []protocol.Request {
		list := []protocol.Request{{Script: lua.Force, Claim: b.writer().Claim},
			{Script: lua.Serve, Claim: b.reader().Claim}}
		for _, p := range append(there, b.writer(), b.reader()) {
			list = append(list, p.asks(), p.releases(), p.renews(1), p.renews(2), p.downgrades())
		}
		return list
	}
	c := testredis.Shared(t).Client()
	n := 0
	for _, state := range []string{"", "w -0", "w", "w w r r", "r", "r r", "r r w r"} { // see build
		t.Run("after "+state, func(t *testing.T) {
			works := 0
			for _, standIn := range []string{"leases", "queue", "both"} {
				for i := 0; ; i++ {
					n++
					b := newBench(t, c, fmt.Sprint("standin-", t.Name()), fmt.Sprint(n))
					list := requests(b, b.build(nil, state))
					if i == len(list) {
						break
					}
					before, keys := b.everything(), b.keys
					if standIn != "queue" {
						b.keys.Leases = b.keys.Lock
					}
					if standIn != "leases" {
						b.keys.Queue = b.keys.Lock
					}
					_, err := b.send(list[i])
					what := fmt.Sprintf("%s for %v, the hash for %s: %v", list[i].Script.Name, list[i].Claim.ID, standIn,
						err)
					b.keys = keys
					after := b.everything()
					if err != nil {
						require.ErrorContains(t, err, "WRONGTYPE", what)
						require.Equal(t, before, after, what)
						continue
					}
					works++
					if standIn != "queue" {
						require.Equal(t, before[1], after[1], what)
					}
					if standIn != "leases" {
						require.Equal(t, before[2], after[2], what)
					}
				}
			}
			require.NotZero(t, works)
		})
	}
}

// To renew a hold needs the hash alone, whoever waits: it lives though a cluster has moved a part of its
// lock's slot.
func TestHoldIsRenewedFromTheHashAlone(t *testing.T) {
	eachMode(t, func(t *testing.T, b *bench, p *party) {
		b.build(p, "me w r")
		b.keys.Leases, b.keys.Queue = b.keys.Lock, b.keys.Lock
		require.Equal(t, protocol.Done, b.run(protocol.Request{Script: lua.Renew, Claim: p.Claim}).Code)
	})
}
