package protocol_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// eachDowngrade runs fn for a write hold and the claim that it is to be downgraded to, on servers of each
// kind.
func eachDowngrade(t *testing.T, steps string,
	fn func(t *testing.T, b *bench, w, r *party, others []*party)) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		b := newBench(t, s.Client(), s.Prefix, steps)
		r := b.reader()
		others := b.build(r, "w "+steps)
		fn(t, b, others[0], r, others[1:])
	})
}

func (b *bench) state() protocol.State {
	b.t.Helper()
	return *b.run(protocol.Request{Script: lua.Inspect}).State
}

// One step ends the claim that writes, and grants the other one its token. The readers that wait are owed the
// phase, and the writers wait on.
func TestDowngradeLetsInWhoWaitsToRead(t *testing.T) {
	eachDowngrade(t, "w r r w r after", func(t *testing.T, b *bench, w, r *party, others []*party) {
		q := r.downgrades()
		q.Count = 3
		reply := b.run(q)
		require.Equal(t, protocol.Done, reply.Code)
		require.False(t, reply.More)
		s := b.state()
		require.Equal(t, protocol.Read, s.Mode)
		var holders, waiters []any
		for _, h := range s.Holders {
			holders = append(holders, h.Owner)
			if h.Owner == r.owner {
				require.Equal(t, 3, h.Count)
				require.Equal(t, w.token, h.Since)
			}
		}
		for _, h := range s.Waiters {
			waiters = append(waiters, h.Owner)
		}
		require.ElementsMatch(t, []any{r.owner, others[1].owner, others[2].owner, others[4].owner}, holders)
		require.Equal(t, []any{others[0].owner, others[3].owner}, waiters)

		again := r.ask()
		require.Equal(t, w.token, again.Token)
		require.True(t, again.Before)
		for _, i := range []int{1, 2, 4} {
			require.Greater(t, others[i].ask().Token, w.token)
		}
		late := b.reader()
		require.Zero(t, late.ask().Token, "a writer waits, and the phase is over")
		for _, of := range []*party{r, others[1], others[2], others[4]} {
			require.Zero(t, others[0].ask().Token)
			of.entered = true
			require.Equal(t, protocol.Done, of.release().Code)
		}
		require.Greater(t, others[0].ask().Token, w.token)
	})
}

// A downgrade that runs again renews the claim that reads, and one that comes late changes nothing: after the
// end of either claim, when the slot is in use again, or when others hold the lock.
func TestDowngradeThatComesLate(t *testing.T) {
	for steps, code := range map[string]int{
		"down": protocol.DoneBefore, "w down": protocol.DoneBefore, "r down": protocol.DoneBefore,
		"-0": protocol.NotThere, "r -0": protocol.NotThere, "die r": protocol.NotThere, "force": protocol.NotThere,
		"-me": protocol.NotThere, "-me -0": protocol.NotThere, "down -me": protocol.NotThere, "down -me w": protocol.NotThere,
		"down die w": protocol.NotThere, "down force": protocol.NotThere, "w down -me": protocol.NotThere,
		"down -me next": protocol.NotThere, "r down -me": protocol.NotThere, "lock leases queue": protocol.NotThere,
	} {
		t.Run(steps, func(t *testing.T) {
			eachDowngrade(t, "after "+steps, func(t *testing.T, b *bench, _, r *party, _ []*party) {
				before := b.look()
				require.Equal(t, code, b.run(r.downgrades()).Code)
				requireSame(t, before, b.look(), "late")
			})
		})
	}
}

// The lease of the claim that reads counts from the downgrade, and its keys live for as long as it needs.
func TestLeaseOfADowngradedHold(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, benchLease, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			eachDowngrade(t, "r w after", func(t *testing.T, b *bench, _, r *party, _ []*party) {
				b.lease = lease
				require.Equal(t, protocol.Done, b.run(r.downgrades()).Code)
				b.look()
				i := slices.IndexFunc(b.state().Holders, func(h protocol.Holder) bool { return h.Owner == r.owner })
				left := b.state().Holders[i].Lease
				require.LessOrEqual(t, left, lease)
				require.Greater(t, left, lease-500*time.Millisecond)
				b.lease = lease / 2
				require.Equal(t, protocol.DoneBefore, b.run(r.downgrades()).Code)
				require.Greater(t, b.state().Holders[i].Lease, lease-500*time.Millisecond, "it shortens no lease")
			})
		})
	}
}

// A crowd that waits is let in step by step.
func TestDowngradeBesideACrowd(t *testing.T) {
	eachDowngrade(t, "crowd after", func(t *testing.T, b *bench, _, r *party, _ []*party) {
		require.True(t, b.run(r.downgrades()).More)
		require.True(t, b.run(r.downgrades()).More, "the reply to the first is lost")
		require.False(t, b.run(requests["serve"](r)).More)
		require.Len(t, b.state().Holders, 301)
	})
}
