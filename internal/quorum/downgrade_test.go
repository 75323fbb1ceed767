package quorum

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// downgrading returns a rig whose only hold was downgraded, which no server has answered yet, and the hold
// before it.
func downgrading(t *testing.T) (r *rig, w, read *engine.Hold) {
	r, w = holding(t)
	read = &engine.Hold{}
	r.do(func() { _, _ = r.engine.Downgrade(r.now, w, read) })
	return r, w, read
}

// A downgrade is done when a majority has carried it out. A server that has not answered is asked for the
// same again, where others are sent a renewal.
func TestDowngradeByAMajority(t *testing.T) {
	r, w, read := downgrading(t)
	for i := range 2 {
		require.Equal(t, engine.Releasing, w.State())
		q := r.next(i, lua.Convert)
		require.NotEqual(t, q.Former, q.Claim.ID)
		r.reply(q, done)
	}
	require.Equal(t, engine.Finished, w.State())
	require.NoError(t, w.Err())
	require.Equal(t, engine.Live, read.State())
	first := r.next(2, lua.Convert)
	r.pass(lease / 3)
	again := r.next(2, lua.Convert)
	require.Equal(t, [...]any{first.Claim, first.Former}, [...]any{again.Claim, again.Former})
	r.replies(0, lua.Renew, done)
	r.reply(again, doneBefore)
	r.reply(first, done)
	r.pass(lease / 3)
	for i := range 3 {
		r.replies(i, lua.Renew, done)
	}
	r.release(read)
	for i := range 3 {
		r.replies(i, lua.Unlock, done)
	}
	require.Equal(t, engine.Finished, read.State())
	require.NoError(t, read.Err())
	r.replyAll(func(*Request) any { return gone }) // copies
	require.Empty(t, r.quorum.bids)
	require.Empty(t, r.quorum.voters)
	require.True(t, r.quorum.Idle())
}

// A renewal or a downgrade that fails when the hold is over asks for no more votes.
func TestLateFailureAsksForNoVotes(t *testing.T) {
	for _, script := range []*lua.Script{lua.Convert, lua.Renew} {
		t.Run(script.Name, func(t *testing.T) {
			r := newVotingRig(t)
			h := r.acquire(protocol.Write, false)
			r.votes(0, 1)
			r.refuse(r.next(2, lua.Vote))
			r.pass(time.Second)
			for r.sends(2, lua.Vote) > 0 {
				r.refuse(r.next(2, lua.Vote))
			}
			read := h
			if script == lua.Convert {
				read = &engine.Hold{}
				r.do(func() { _, _ = r.engine.Downgrade(r.now, h, read) })
			} else {
				r.pass(lease / 3)
			}
			q := [...]*Request{r.next(0, script), r.next(1, script)}
			r.release(read)
			for r.sends(2, lua.Vote) > 0 {
				r.refuse(r.next(2, lua.Vote))
			}
			r.pass(pause)
			for _, q := range q {
				r.fail(q)
			}
			require.Zero(t, r.sends(2, lua.Vote))
		})
	}
}

// If a majority has neither claim, both holds are lost.
func TestDowngradeOfWhatAMajorityHasLost(t *testing.T) {
	r, w, read := downgrading(t)
	r.replies(0, lua.Convert, done)
	for i := 1; i < 3; i++ {
		r.replies(i, lua.Convert, gone)
	}
	r.replyAll(func(*Request) any { return gone })
	require.Equal(t, engine.Finished, w.State())
	require.Equal(t, engine.ErrLost, w.Err())
	require.Equal(t, engine.ErrLost, read.Err())
}

// A release while a downgrade is unanswered ends both claims at each server: the second only if the first was
// not there. It was no loss where either was.
func TestReleaseDuringADowngrade(t *testing.T) {
	for name, replies := range map[string][3][2]any{
		"none has run":      {{done}, {doneBefore}, {done}},
		"all have run":      {{gone, done}, {gone, doneBefore}, {gone, done}},
		"one has run":       {{gone, done}, {done}, {done}},
		"one has lost both": {{gone, gone}, {gone, done}, {done}},
	} {
		t.Run(name, func(t *testing.T) {
			r, w, read := downgrading(t)
			var writers [3]any
			for i := range writers {
				writers[i] = r.next(i, lua.Convert).Former
			}
			r.release(read)
			for i, reply := range replies {
				q := r.next(i, lua.Unlock)
				require.Equal(t, writers[i], q.Claim.ID)
				r.reply(q, reply[0])
				if reply[1] != nil {
					q = r.next(i, lua.Unlock)
					require.NotEqual(t, writers[i], q.Claim.ID)
					r.reply(q, reply[1])
				}
			}
			require.Empty(t, r.sent)
			for _, h := range []*engine.Hold{w, read} {
				require.Equal(t, engine.Finished, h.State(), fmt.Sprint(h.Mode))
				require.NoError(t, h.Err())
			}
			require.Empty(t, r.quorum.bids)
			require.True(t, r.quorum.Idle())
		})
	}
}

// What a server was asked for the write hold and has not granted is withdrawn, and asked for again to read.
func TestVoteThatADowngradedHoldLacks(t *testing.T) {
	r := newVotingRig(t)
	w := r.acquire(protocol.Write, false)
	r.votes(0, 1)
	lacking := r.next(2, lua.Vote)
	require.Equal(t, engine.Live, w.State())
	read := &engine.Hold{}
	r.do(func() { _, _ = r.engine.Downgrade(r.now, w, read) })
	q := r.next(2, lua.Unlock)
	require.Equal(t, lacking.Claim.ID, q.Claim.ID)
	r.reply(q, gone)
	r.replies(0, lua.Convert, done)
	r.replies(1, lua.Convert, done)
	require.NoError(t, w.Err())
	r.reply(lacking, r.vote(someToken)) // which counts for nothing
	r.pass(lease / 3)
	vote := r.next(2, lua.Vote)
	known, err := protocol.ParseClaim(vote.Claim.ID)
	require.NoError(t, err)
	require.Equal(t, protocol.Read, known.Mode)
}
