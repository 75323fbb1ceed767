package quorum

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

func TestMajorityWinsInOneRoundTrip(t *testing.T) {
	r, h := asking(t)
	asked := r.now
	require.Len(t, r.sent, 3)
	r.votes(0)
	require.Equal(t, engine.Wanted, h.State())
	r.now = r.now.Add(time.Second)
	r.votes(2)
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, someToken, h.Token())
	require.True(t, h.Deadline().Before(asked.Add(lease)), "votes count from before their requests were sent")
}

// A claim that has to wait for a hold of its own client asks the home alone.
func TestClaimBehindAHoldOfTheSameClientAsksTheHomeAlone(t *testing.T) {
	r, held := holding(t)
	asks := func(mode protocol.Mode, try bool) (sent []int) {
		r.sent = nil
		r.acquire(mode, try)
		for _, q := range r.sent {
			sent = append(sent, q.Server)
		}
		return sent
	}
	for _, mode := range []protocol.Mode{protocol.Read, protocol.Write} {
		for _, try := range []bool{true, false} {
			require.Equal(t, []int{0}, asks(mode, try))
		}
	}
	r.release(held)
	require.Equal(t, []int{0, 1, 2}, asks(protocol.Write, true))
}

func TestClaimThatWaitsAtItsHomeGivesBackOtherVotes(t *testing.T) {
	r, h := asking(t)
	r.votes(1)
	r.replies(0, lua.Vote, waits(time.Minute))
	require.Equal(t, engine.Wanted, h.State())
	require.Equal(t, 1, r.sends(1, lua.Unlock), "the vote")
	require.Equal(t, 1, r.sends(2, lua.Unlock), "the request")
	require.Zero(t, r.sends(0, lua.Unlock))
}

// waitsThenVotes has a server let a claim wait, and vote for it later.
func (r *rig) waitsThenVotes(i int) {
	r.t.Helper()
	r.replies(i, lua.Vote, waits(time.Minute))
	r.hear(i)
}

// letIn returns a rig with a claim that has waited at its home, and was let in there.
func letIn(t *testing.T) (*rig, *engine.Hold) {
	r, h := asking(t)
	r.replies(1, lua.Vote, waits(time.Minute))
	r.replies(2, lua.Vote, waits(time.Minute))
	r.waitsThenVotes(0)
	return r, h
}

func TestClaimThatIsLetInWaitsInTheQueuesOfTheOthers(t *testing.T) {
	r, h := letIn(t)
	r.waitsThenVotes(1)
	r.waitsThenVotes(2)
	r.votes(0, 1, 2) // messages do not tell the token
	require.Equal(t, engine.Live, h.State())
}

// Where the claim waits at the others, it asks again when a lease may be over, though no message has come.
func TestClaimThatIsLetInAsksTheOthersAgain(t *testing.T) {
	r, _ := letIn(t)
	r.votes(0)
	for _, i := range []int{1, 2} {
		r.replies(i, lua.Vote, waits(100*time.Millisecond))
	}
	require.Zero(t, r.sends(1, lua.Vote))
	r.pass(200 * time.Millisecond)
	require.Equal(t, 1, r.sends(1, lua.Vote))
}

// A request for a vote that fails may have run, or may run yet: the vote is given back.
func TestVoteWhoseRequestFailedIsGivenBack(t *testing.T) {
	r, _ := asking(t)
	r.fail(r.next(2, lua.Vote))
	require.Equal(t, 1, r.sends(2, lua.Unlock))
}

// The replies to two requests for one vote may come in any order, and the servers may have run the requests
// in any order. If one of them got the vote, it counts or is given back.
func TestNoVoteIsForgottenThatWasAskedForTwice(t *testing.T) {
	for _, voted := range []int{0, 1} {
		for _, first := range []int{0, 1} {
			t.Run(fmt.Sprintf("request %d is voted for, reply %d is the first", voted, first), func(t *testing.T) {
				r, _ := asking(t)
				r.answers = r.healthy(1, 2)
				for r.sends(1, lua.Vote) < 2 {
					r.pass(10 * time.Millisecond)
					r.answer()
				}
				r.answers = nil
				var asked [2]*Request
				for i := range asked {
					asked[i] = r.next(1, lua.Vote)
					require.True(t, asked[i].Try)
					require.Equal(t, asked[0].number, asked[i].number)
				}
				for _, i := range []int{first, 1 - first} {
					r.reply(asked[i], map[bool]any{true: r.vote(someToken), false: waits(time.Minute)}[i == voted])
				}
				v := asked[0].bid.votes[1]
				given := slices.ContainsFunc(r.sent, func(q *Request) bool {
					return q.Script == lua.Unlock && q.Claim.ID == asked[0].Claim.ID
				})
				require.True(t, given || v.number == asked[0].number && v.state == cast)
			})
		}
	}
}

// A vote ends a lease after the request for it was sent. So a hold never lasts longer than that, though the
// engine has sent a heartbeat since.
func TestOldVotesDoNotLastLonger(t *testing.T) {
	// asksAgain returns a claim that its home has let in, after the engine's first heartbeat. Server 1 has not
	// answered a request from before the heartbeat.
	asksAgain := func(t *testing.T) (r *rig, h *engine.Hold, old *Request, sent time.Time) {
		r, h = asking(t)
		r.replies(1, lua.Vote, waits(time.Minute))
		r.replies(2, lua.Vote, waits(time.Minute))
		r.replies(0, lua.Vote, waits(20*time.Millisecond)) // and the engine asks again then
		r.hear(0)
		r.votes(0)
		old, sent = r.next(1, lua.Vote), r.now
		r.replies(2, lua.Vote, waits(time.Minute))
		for r.sends(0, lua.Vote) == 0 {
			r.pass(time.Millisecond)
			require.Less(t, r.now.Sub(sent), shortestPatience)
		}
		return r, h, old, sent
	}
	t.Run("the heartbeat has no answer", func(t *testing.T) {
		r, h, old, sent := asksAgain(t)
		r.reply(old, r.vote(someToken))
		require.Equal(t, engine.Live, h.State())
		require.False(t, h.Deadline().After(engine.Deadline(sent, lease)))
	})
	t.Run("the heartbeat was answered: the claim waits", func(t *testing.T) {
		r, h, old, sent := asksAgain(t)
		r.votes(0)
		r.pass(sent.Add(shortestCollecting + time.Millisecond).Sub(r.now))
		r.replies(2, lua.Vote, waits(time.Minute))
		r.reply(old, r.vote(someToken))
		require.Equal(t, engine.Wanted, h.State(), "the engine relies on a lease from the heartbeat on")
		r.votes(1)
		require.Equal(t, engine.Live, h.State())
	})
}

// collectInVain has the other servers keep a claim that is let in waiting until it retreats.
func (r *rig) collectInVain() {
	r.t.Helper()
	r.answers = func(q *Request) any {
		switch {
		case q.Script == lua.Unlock:
			return nil
		case q.Server == 0:
			return r.vote(someToken)
		}
		return waits(time.Minute)
	}
	for range 10_000 {
		if r.sends(1, lua.Unlock) > 0 {
			return
		}
		r.answer()
		r.pass(20 * time.Millisecond)
	}
	r.t.Fatal("it does not retreat")
}

func TestEveryThirdRetreatGivesBackTheVoteOfTheHome(t *testing.T) {
	r, _ := letIn(t)
	for retreat := 1; retreat <= 6; retreat++ {
		r.collectInVain()
		require.Equal(t, 1, r.sends(1, lua.Unlock))
		require.Equal(t, 1, r.sends(2, lua.Unlock))
		require.Equal(t, retreat%3 == 0, r.sends(0, lua.Unlock) == 1, "retreat %d", retreat)
		r.replyAll(r.only(lua.Unlock))
	}
}

func TestPatienceGrowsFromRetreatToRetreat(t *testing.T) {
	r := newVotingRig(t)
	b := &bid{q: r.quorum, lease: protocol.NewLease(lease)}
	for range 4 {
		most := 2 * longestCollecting << b.attempts
		require.Less(t, b.collectingTime(), most)
		b.attempts++
		require.GreaterOrEqual(t, b.collectingTime(), most, "attempt %d", b.attempts)
	}
}

func TestLargestTokenIsWrittenBackBeforeTheCallReturns(t *testing.T) {
	r, h := asking(t)
	const larger = someToken + 5
	r.votes(0)
	r.replies(1, lua.Vote, r.vote(larger))
	require.Equal(t, engine.Wanted, h.State())
	again := r.next(0, lua.Vote)
	require.Equal(t, protocol.TokenArg(larger), again.VoteArgs.Wanted)
	r.reply(again, r.vote(larger))
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, larger, h.Token())
}

func TestHoldIsLostIfAMajorityDoesNotRenewIt(t *testing.T) {
	r, h := holding(t)
	deadline := h.Deadline()
	r.answers = func(q *Request) any {
		if q.Script == lua.Renew && q.Server != 0 {
			return errSilence
		}
		return r.serve(q)
	}
	r.pass(deadline.Sub(r.now) - time.Second)
	require.Equal(t, engine.Live, h.State())
	r.pass(time.Second)
	require.Equal(t, engine.Lapsed, h.State())
	require.ErrorIs(t, h.Err(), engine.ErrLost)
}

func TestHoldIsLostAtOnceIfAMajorityHasNoVoteForIt(t *testing.T) {
	r, h := holding(t)
	r.pass(lease / 3)
	r.replies(1, lua.Renew, gone)
	require.Equal(t, engine.Live, h.State())
	r.replies(2, lua.Renew, gone)
	require.Equal(t, engine.Lapsed, h.State())
}

func TestVoteThatIsWonBackDoesNotCountInTheSameRound(t *testing.T) {
	r, h := shortOfAVote(t)
	r.pass(lease / 3)
	r.votes(2)
	r.serves(0, lua.Renew)
	require.Equal(t, engine.Live, h.State())
	r.replies(1, lua.Renew, gone)
	require.Equal(t, engine.Lapsed, h.State(), "another may have had the lock in between")
}

func TestVoteThatIsWonBackCountsInTheNextRound(t *testing.T) {
	r, h := holding(t)
	r.pass(lease / 3)
	r.serves(0, lua.Renew)
	r.serves(1, lua.Renew)
	r.replies(2, lua.Renew, gone)
	r.replies(2, lua.Unlock, gone)
	r.pass(lease / 3)
	r.votes(2)
	r.serves(0, lua.Renew)
	r.serves(1, lua.Renew)
	r.pass(lease / 3)
	r.serves(2, lua.Renew)
	r.replies(1, lua.Renew, gone)
	r.serves(0, lua.Renew)
	require.Equal(t, engine.Live, h.State())
}

func TestRenewalThatWaitsForVotesSaysSo(t *testing.T) {
	r, _ := shortOfAVote(t)
	r.pass(lease / 3)
	r.fail(r.next(1, lua.Renew))
	r.serves(0, lua.Renew)
	last := r.events[len(r.events)-1]
	require.Equal(t, engine.RenewalFailed, last.Kind)
	require.NotErrorIs(t, last.Err, ErrNoMajority, "two of three answer")
	require.ErrorContains(t, last.Err, errSilence.Error())
}

func TestReleaseIsDoneWithAMajorityAndTheHome(t *testing.T) {
	r, h := holding(t)
	r.release(h)
	r.serves(1, lua.Unlock)
	r.serves(2, lua.Unlock)
	require.False(t, r.engine.Idle(), "the next claim asks at the home")
	r.serves(0, lua.Unlock)
	require.True(t, r.engine.Idle())
}

func TestReleaseIsDoneIfTheServersThatAnswerHaveNoMoreVotes(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("the third server has refused its vote: %v", refused), func(t *testing.T) {
			r, h := asking(t)
			if refused {
				r.replies(2, lua.Vote, waits(time.Second))
			}
			r.votes(0, 1)
			require.Equal(t, engine.Live, h.State())
			r.release(h)
			r.replies(2, lua.Unlock, gone) // its vote never came
			r.serves(1, lua.Unlock)
			r.fail(r.next(0, lua.Unlock))
			require.Equal(t, engine.Finished, h.State())
			require.NoError(t, h.Err())
		})
	}
}

// A vote that could not be given back is given back when its server answers again, after a pause.
func TestVoteIsGivenBackWhenItsServerAnswersAgain(t *testing.T) {
	r, h := holding(t)
	r.release(h)
	r.serves(0, lua.Unlock)
	r.serves(1, lua.Unlock)
	r.fail(r.next(2, lua.Unlock))
	require.Equal(t, engine.Finished, h.State())
	failed := r.now
	r.answers = r.only(lua.Mark)
	for r.sends(2, lua.Unlock) == 0 {
		require.Less(t, r.now.Sub(failed), 2*pause)
		r.pass(10 * time.Millisecond)
	}
	require.GreaterOrEqual(t, r.now.Sub(failed), pause)
}

// So is a vote that no release has waited for.
func TestVoteForARefusedTryIsGivenBackWhenItsServerAnswersAgain(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, true)
	r.votes(1)
	r.replies(0, lua.Vote, waits(time.Minute))
	require.ErrorIs(t, h.Err(), engine.ErrLocked)
	given := r.next(1, lua.Unlock)
	r.fail(given)
	r.answers = r.only(lua.Mark)
	r.pass(2 * pause)
	require.Equal(t, given.Claim.ID, r.next(1, lua.Unlock).Claim.ID)
}

func TestRenewalDoesNotWaitForTheSlowestServer(t *testing.T) {
	r, h := holding(t)
	deadline := h.Deadline()
	r.pass(lease / 3)
	r.serves(0, lua.Renew)
	r.serves(2, lua.Renew)
	require.True(t, h.Deadline().After(deadline))
}

// A server that answers a vote with an error that does not pass, as for want of memory, is one of the f that
// may fail: each claim does without it, and whoever has to wait does so in the queue of the next home.
func TestClaimDoesWithoutAServerThatRefusesToVote(t *testing.T) {
	refuse := func(r *rig, i int) { r.refuse(r.next(i, lua.Vote)) }
	for k := range 3 {
		t.Run(fmt.Sprintf("it would be the home after %d others", k), func(t *testing.T) {
			r, h := asking(t)
			refuse(r, k)
			r.votes(slices.Delete([]int{0, 1, 2}, k, k+1)...)
			require.Equal(t, engine.Live, h.State())
		})
	}
	t.Run("a try that the next home refuses", func(t *testing.T) {
		r := newVotingRig(t)
		h := r.acquire(protocol.Write, true)
		refuse(r, 0)
		r.replies(1, lua.Vote, waits(time.Minute))
		require.Equal(t, engine.Failed, h.State())
		require.NotErrorIs(t, h.Err(), full)
	})
	t.Run("a claim waits at the next home, and keeps its place", func(t *testing.T) {
		r, h := asking(t)
		refuse(r, 0)
		r.replies(1, lua.Vote, waits(time.Second))
		r.replies(2, lua.Vote, waits(time.Second))
		queued := r.next(1, lua.Vote)
		require.False(t, queued.Try)
		r.reply(queued, waits(time.Minute))
		r.replyAll(r.serve) // what is given back, as it may have been voted
		for range 3 {
			for len(r.sent) == 0 {
				at, _ := r.quorum.Next()
				r.pass(at.Sub(r.now))
			}
			q := r.next(1, lua.Vote)
			require.Equal(t, queued.Claim, q.Claim)
			r.reply(q, waits(time.Minute))
			require.Empty(t, r.sent)
		}
		require.Equal(t, engine.Wanted, h.State())
	})
	t.Run("while another does not answer for a moment", func(t *testing.T) {
		r, h := asking(t)
		slow := true
		r.answers = func(q *Request) any {
			switch {
			case q.Server == 1 && slow:
				return nil
			case q.Server == 0 && q.Script == lua.Vote:
				return full
			}
			return r.serve(q)
		}
		r.answer()
		r.pass(2 * shortestPatience)
		require.Equal(t, engine.Wanted, h.State(), "%v", h.Err())
		slow = false
		r.answer()
		r.pass(time.Second)
		require.Equal(t, engine.Live, h.State(), "%v", h.Err())
	})
	t.Run("two of them are too many, and are asked again by the next call", func(t *testing.T) {
		r, h := asking(t)
		refuse(r, 1)
		require.Equal(t, engine.Wanted, h.State())
		refuse(r, 2)
		require.Equal(t, engine.Failed, h.State())
		require.ErrorIs(t, h.Err(), full)
		r.sent = nil
		r.acquire(protocol.Write, false)
		r.next(0, lua.Vote)
	})
}

// A re-entry that one server refuses does not fail while another cannot be reached: with that one, a majority
// may count it. Two refusals are too many.
func TestReentryDoesWithoutAServerThatRefuses(t *testing.T) {
	for state, refuse := range map[engine.HoldState][]int{engine.Live: {0}, engine.Failed: {0, 2}} {
		t.Run(fmt.Sprint(refuse), func(t *testing.T) {
			r, outer := holding(t)
			unreachable := true
			r.answers = func(q *Request) any {
				switch {
				case q.Server == 1 && unreachable:
					return errSilence
				case slices.Contains(refuse, q.Server) && q.Script == lua.Renew:
					return full
				}
				return r.serve(q)
			}
			inner := r.again(outer, protocol.Write, 2*lease)
			r.answer()
			r.pass(2 * shortestPatience)
			if state == engine.Live {
				require.Equal(t, engine.Entering, inner.State(), "%v", inner.Err())
			}
			unreachable = false
			r.answer()
			r.pass(time.Second)
			require.Equal(t, state, inner.State(), "%v", inner.Err())
			if state == engine.Failed {
				require.ErrorIs(t, inner.Err(), full)
			}
		})
	}
}

// A hold that has the votes of a majority alone, one of which is that of a server that is out of memory now,
// asks for the vote that it lacks when its owner locks again.
func TestLockingAgainAsksForTheVotesThatTheHoldLacks(t *testing.T) {
	for _, answers := range []bool{true, false} {
		t.Run(fmt.Sprint(answers), func(t *testing.T) {
			r := newVotingRig(t)
			w := r.acquire(protocol.Write, false)
			r.refuse(r.next(2, lua.Vote)) // it is full
			r.answers = func(q *Request) any {
				if q.Server == 1 && q.Script == lua.Renew || q.Server == 2 && q.Script == lua.Vote {
					return nil // the former will be, too
				}
				return r.serve(q)
			}
			r.answer()
			require.Equal(t, engine.Live, w.State())
			r.pass(time.Second)

			h := r.again(w, protocol.Write, 2*lease)
			r.answer()
			r.refuse(r.next(1, lua.Renew))
			r.answer()
			late := r.next(2, lua.Vote)
			if answers {
				r.reply(late, r.vote(someToken))
			} else {
				r.refuse(late)
			}
			r.answer()
			for range 100 {
				if r.sends(1, lua.Renew) > 0 {
					r.refuse(r.next(1, lua.Renew))
				}
				r.pass(5 * time.Millisecond)
				r.answer()
			}
			if answers {
				require.Equal(t, engine.Live, h.State())
			} else {
				require.Equal(t, engine.Failed, h.State())
				require.ErrorIs(t, h.Err(), full)
			}
			require.Equal(t, engine.Live, w.State())
		})
	}
}

// The others were asked without waiting. One of them becomes the home, and the call joins its queue there.
func TestCallQueuesAtTheNextHomeThoughItHadRefusedToVote(t *testing.T) {
	for what, leave := range map[string]func(r *rig, home *Request){
		"the home is silent":                          func(r *rig, _ *Request) { r.pass(shortestPatience) },
		"the home votes only for leases of less time": func(r *rig, home *Request) { r.reply(home, unmarked) },
	} {
		t.Run(what, func(t *testing.T) {
			r, h := asking(t)
			for _, i := range []int{1, 2} {
				r.replies(i, lua.Vote, waits(time.Minute))
			}
			leave(r, r.next(0, lua.Vote))
			q := r.next(1, lua.Vote)
			require.False(t, q.Try)
			r.reply(q, waits(time.Minute))
			require.Equal(t, engine.Wanted, h.State())
			r.do(func() { r.quorum.Heard(r.now, 1, fmt.Sprintf("%d 0 %d", someToken, q.number)) })
			r.votes(2, 1)
			require.Equal(t, engine.Live, h.State())
		})
	}
}

// A server is silent if it takes twice as long as a majority does. One answer that was late changes little,
// and one that was not shows how near the servers are.
func TestPatienceFollowsWhatAMajorityTakes(t *testing.T) {
	r := newVotingRig(t)
	q := r.quorum
	trip := func(i int, d time.Duration) { q.noteTrip(q.servers[i], d) }
	require.Equal(t, shortestPatience, q.patience)
	for range 100 {
		trip(0, time.Second)
	}
	require.Equal(t, shortestPatience, q.patience, "one server is far away, or overloaded")
	trip(1, time.Hour)
	require.Less(t, q.patience, 3*shortestPatience, "one answer was late")
	for range 100 {
		trip(1, time.Second)
	}
	require.Greater(t, q.patience, 1900*time.Millisecond, "a majority is far away")
	require.LessOrEqual(t, q.patience, 2*time.Second)
	trip(1, time.Millisecond)
	require.Equal(t, shortestPatience, q.patience, "it is not")
}

// The next home may have voted before it is the home, while the engine waits for no answer.
func TestGrantByTheNextHomeSaysHowItBecameKnown(t *testing.T) {
	r, h := asking(t)
	r.votes(1)
	r.fail(r.next(0, lua.Vote))
	r.fail(r.next(2, lua.Vote))
	r.do(func() { r.quorum.Unsubscribed(r.now, 2, nil) })
	r.serves(2, lua.Mark)
	require.Equal(t, engine.Wanted, h.State())
	r.votes(2)
	require.Equal(t, engine.Live, h.State())
	acquired := r.events[len(r.events)-1]
	require.Equal(t, engine.Acquired, acquired.Kind)
	require.Equal(t, engine.ByHeartbeat, acquired.Path)
}

func TestWaitersSendHeartbeatsToTheHomeAlone(t *testing.T) {
	r := newVotingRig(t)
	const waiters = 1000
	home, others := 0, 0
	r.queue(waiters)
	r.answers = func(q *Request) any {
		if q.Server == 0 {
			home++
		} else {
			others++
		}
		return r.crowded(q)
	}
	r.pass(lease)
	require.GreaterOrEqual(t, home, 2*waiters)
	require.LessOrEqual(t, home, 3*waiters+waiters/10)
	require.Zero(t, others)
}

// The script that notes a release without a look at the clock must not be used if the server may know of
// several holds.
func TestRecordOfAReleaseIsLeftOutOnceItIsReentered(t *testing.T) {
	for what, c := range map[string]struct {
		before  func(r *rig, h *engine.Hold)
		records bool
	}{
		"soon":            {func(*rig, *engine.Hold) {}, true},
		"once re-entered": {func(r *rig, h *engine.Hold) { r.reenter(h) }, false},
		"a minute later": {func(r *rig, _ *engine.Hold) {
			r.answers = r.serve
			r.pass(time.Minute)
			r.answers = nil
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			r, h := holding(t)
			c.before(r, h)
			r.release(h)
			for i := range 3 {
				require.Equal(t, c.records, r.next(i, lua.Unlock).Record != "")
			}
		})
	}
}

// reenter has the owner of a hold lock again, and release that once the servers know of two holds.
func (r *rig) reenter(h *engine.Hold) {
	inner := r.again(h, protocol.Write, lease)
	require.Equal(r.t, engine.Live, inner.State())
	r.pass(lease / 10)
	r.replyAll(r.only(lua.Renew))
	r.release(inner)
	require.Equal(r.t, engine.Finished, inner.State())
}

// Each server knows the claim by the vote that it has cast, and the last of them by a vote that comes late.
func TestServersAreToldOfTheirOwnVotes(t *testing.T) {
	r, h := asking(t)
	asked := slices.Clone(r.sent)
	r.votes(0, 1)
	require.Equal(t, engine.Live, h.State())
	r.again(h, protocol.Write, lease)
	r.pass(lease / 10)
	for i := range 2 {
		r.reply(r.next(i, lua.Renew), done)
	}
	require.Zero(t, r.sends(2, lua.Renew))
	r.votes(2)
	r.pass(2 * lease / 3)
	for i := range 3 {
		q := r.next(i, lua.Renew)
		require.Equal(t, asked[i].Claim.ID, q.Claim.ID)
		require.Equal(t, 2, q.Count)
	}
}

// A hold that has the votes of a majority alone waits for the others at once. So it outlives the server that
// freezes next, though others have come for the vote meanwhile.
func TestHolderWaitsForTheVotesThatItLacks(t *testing.T) {
	for _, waited := range []bool{true, false} {
		t.Run(fmt.Sprintf("it waited there when it won: %v", waited), func(t *testing.T) {
			r, h := map[bool]func(*testing.T) (*rig, *engine.Hold){true: letIn, false: asking}[waited](t)
			r.replies(2, lua.Vote, waits(time.Minute)) // to a try, if it has not waited
			r.votes(1, 0)
			require.Equal(t, engine.Live, h.State())
			if !waited {
				r.replies(2, lua.Vote, waits(time.Minute))
			}
			require.Zero(t, r.sends(2, lua.Unlock), "it keeps its place")
			r.reenter(h)
			r.hear(2)
			r.answers = r.healthy(0)
			r.pass(10 * lease)
			require.Equal(t, engine.Live, h.State())
		})
	}
}

// A try for which the home has voted waits for a while for the votes of the others: another try may have
// them, and the home has refused that. Then it fails.
func TestTryThatHasTheVoteOfTheHomeGetsItsTime(t *testing.T) {
	for _, given := range []bool{true, false} {
		t.Run(fmt.Sprintf("another gives its votes back: %v", given), func(t *testing.T) {
			r := newVotingRig(t)
			h := r.acquire(protocol.Write, true)
			r.votes(0)
			for range 2 {
				for _, i := range []int{1, 2} {
					r.replies(i, lua.Vote, waits(time.Minute))
				}
			}
			require.Equal(t, engine.Wanted, h.State())
			if given {
				r.pass(shortestCollecting / 2)
				r.hear(1)
				r.votes(1)
				require.Equal(t, engine.Live, h.State())
				return
			}
			r.pass(2 * shortestCollecting)
			require.ErrorIs(t, h.Err(), engine.ErrLocked)
			require.Equal(t, 1, r.sends(0, lua.Unlock), "the vote of the home is given back")
		})
	}
}

// What was published before the subscription stood is gone.
func TestWaiterAsksAgainOnceTheSubscriptionStands(t *testing.T) {
	const home = 0
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("it stands before the server has answered: %v", early), func(t *testing.T) {
			r := newVotingRig(t)
			r.listens = false
			r.acquire(protocol.Write, false)
			q := r.next(home, lua.Vote)
			r.pass(time.Millisecond)
			stands := func() { r.do(func() { r.quorum.Subscribed(r.now, home) }) }
			if early {
				stands()
			}
			r.reply(q, waits(time.Minute))
			require.True(t, r.listens)
			if !early {
				require.Zero(t, r.sends(home, lua.Vote))
				stands()
			}
			r.pass(time.Millisecond)
			require.Equal(t, 1, r.sends(home, lua.Vote))
			r.replies(home, lua.Vote, waits(time.Minute))
			r.pass(time.Second)
			require.Zero(t, r.sends(home, lua.Vote), "once is enough")
		})
	}
}

// The reply to the first run of a release may have told whom it let in.
func TestWaitersAskAgainIfAReleaseHadRunBefore(t *testing.T) {
	const home = 0
	r, h := holding(t)
	r.acquire(protocol.Write, false)
	r.replies(home, lua.Vote, waits(time.Minute))
	require.Zero(t, r.sends(home, lua.Vote))
	r.release(h)
	r.replies(home, lua.Unlock, doneBefore)
	require.Equal(t, 1, r.sends(home, lua.Vote))
}

func TestReleaseThatAMajorityRefusesFailsWithWhatItSays(t *testing.T) {
	r, h := holding(t)
	r.release(h)
	r.replies(0, lua.Unlock, nonsense)
	require.Equal(t, engine.Releasing, h.State())
	r.replies(1, lua.Unlock, nonsense)
	require.ErrorIs(t, h.Err(), protocol.ErrReply)
}

// It waits for every server that answers anybody: a request that ran later would drop later holds.
func TestForceUnlockIsOverWhenAllHaveAnsweredThatAnswer(t *testing.T) {
	force := func(t *testing.T) *rig {
		r := newVotingRig(t)
		r.do(func() { require.NoError(t, r.engine.Force(r.now, name, 0, "tag")) })
		return r
	}
	t.Run("all answer", func(t *testing.T) {
		r := force(t)
		for i := range 3 {
			require.Empty(t, r.outcomes)
			r.serves(i, lua.Force)
		}
		require.Equal(t, []engine.Answer{{Tag: "tag"}}, r.outcomes)
	})
	t.Run("one is silent", func(t *testing.T) {
		r := force(t)
		for i := range 2 {
			r.serves(i, lua.Force)
		}
		require.Empty(t, r.outcomes)
		r.pass(shortestPatience)
		require.Equal(t, []engine.Answer{{Tag: "tag"}}, r.outcomes)
	})
	t.Run("two are silent", func(t *testing.T) {
		r := force(t)
		r.serves(0, lua.Force)
		r.pass(shortestPatience)
		require.Empty(t, r.outcomes, "one of them may yet answer")
		r.fail(r.next(1, lua.Force))
		r.fail(r.next(2, lua.Force))
		require.Len(t, r.outcomes, 1)
		require.ErrorIs(t, r.outcomes[0].Err, ErrNoMajority)
	})
	t.Run("two refuse", func(t *testing.T) {
		r := force(t)
		r.replies(0, lua.Force, nonsense)
		r.serves(1, lua.Force)
		r.replies(2, lua.Force, nonsense)
		require.Len(t, r.outcomes, 1)
		require.ErrorIs(t, r.outcomes[0].Err, protocol.ErrReply)
	})
}

// Nobody knows whether a request that failed will run. Its slot is not used again, even after the name was
// forgotten.
func TestSlotIsNotUsedAgainUnlessItsEndIsConfirmed(t *testing.T) {
	for ends, begin := range map[*lua.Script]func(r *rig){
		lua.Unlock: func(r *rig) {
			h := r.acquire(protocol.Write, false)
			r.votes(0, 1, 2)
			r.release(h)
		},
		lua.Force: func(r *rig) { r.do(func() { require.NoError(r.t, r.engine.Force(r.now, name, 0, nil)) }) },
	} {
		t.Run(ends.Name, func(t *testing.T) {
			r := newVotingRig(t)
			var used [3][]any
			for k := range 3 {
				begin(r)
				for i := range 3 {
					q := r.next(i, ends)
					used[i] = append(used[i], q.Claim.Slot)
					if k == 0 && i == 0 {
						r.refuse(q)
					} else {
						r.reply(q, done)
					}
				}
				if k == 1 { // the name is forgotten
					r.answers = r.serve
					for i := range mostIdle + 1 {
						r.use(r.call(fmt.Sprint(i)))
					}
					r.answers = nil
					require.NotContains(t, r.quorum.locks, protocol.KeysOf("p", name).Lock)
				}
			}
			require.NotContains(t, used[0][1:], used[0][0])
			require.Equal(t, used[1][0], used[1][1])
			require.Equal(t, used[1][0], used[1][2])
		})
	}
}

func TestInspectSaysWhatAMajorityHas(t *testing.T) {
	r := newVotingRig(t)
	state := func(handle uint64) any {
		c := protocol.NewClaim(protocol.Write, "instance-02", 0, 7, protocol.Owner{Handle: handle})
		return []any{fmt.Sprint(someToken + 1), []any{"owner", c.ID, "lease", "30000", "fence",
			fmt.Sprint(someToken)}, []any{}, []any{}}
	}
	r.do(func() { require.NoError(t, r.engine.Inspect(r.now, name, "tag")) })
	r.replies(0, lua.Inspect, state(5))
	r.replies(1, lua.Inspect, state(6))
	require.Empty(t, r.outcomes)
	r.replies(2, lua.Inspect, state(6))
	require.Len(t, r.outcomes, 1)
	x := r.outcomes[0]
	require.NoError(t, x.Err)
	require.Equal(t, "tag", x.Tag)
	require.Len(t, x.State.Holders, 1)
	require.Equal(t, protocol.Owner{Handle: 6}, x.State.Holders[0].Owner)
}

// Whatever servers there are, the names of a family, such as those that end in a number, have homes that are
// spread evenly.
func TestHomesAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	families := map[string][2]int{"n%d": {0, 10}, "orders:%d": {1000, 2000}, "a%d:lock": {0, 300},
		"%036d": {0, 300}}
	for _, servers := range []int{3, 5} {
		for family, of := range families {
			names, largest := of[1]-of[0], 0
			for set := range 200 {
				homes := make([]int, servers)
				for n := of[0]; n < of[1]; n++ {
					key := protocol.KeysOf("rwlock", fmt.Sprintf(family, n)).Lock.(string)
					best, home := uint64(0), 0
					for i := range servers {
						id := fmt.Sprintf("%d:aBcDeFgHiJ-%02d:%d", 1_763_763_763_000_000+int64(set)*1_000_003+int64(i)*17,
							set%7, 1+i)
						if w := weigh(id, key); w > best {
							best, home = w, i
						}
					}
					homes[home]++
					largest = max(largest, homes[home])
				}
			}
			// The largest of so many random shares is about four standard deviations above the mean.
			mean := float64(names) / float64(servers)
			require.Less(t, float64(largest), min(mean+5*math.Sqrt(mean), float64(names)), "%s over %d servers",
				family, servers)
		}
	}
}

// Clients of all versions agree on the order of homes.
func TestOrderOfHomesIsPinned(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, uint64(0xbc34dad36f0f5095), weigh("1763763763000000:me:1", "rwlock:{n}"))
}

// A message about the vote of one server that comes over the subscription of another, whose address leads to
// the first for a while, is no vote of the other.
func TestMessageAboutAnotherServersVoteIsNoVote(t *testing.T) {
	r, h := asking(t)
	home := r.next(0, lua.Vote)
	r.reply(home, waits(time.Second))
	for i := range 2 {
		r.do(func() { r.quorum.Heard(r.now, i, fmt.Sprintf("%d 0 %d", someToken, home.number)) })
	}
	require.Equal(t, engine.Wanted, h.State())
	for i, v := range home.bid.votes {
		require.Equal(t, i == 0, v.state == cast)
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
	r.answers = r.healthy(1, 2)
	r.fail(r.probe(2))
	r.pass(fallen)
	require.Len(t, r.logged, 2)
	require.Equal(t, "1 of 3 servers of the quorum vote: client 1: i/o timeout; client 2: i/o timeout",
		r.logged[1])

	r.answers = r.serve
	r.answer()
	r.pass(time.Minute)
	require.Equal(t, 3, r.quorum.Voting())
	require.Equal(t, "3 of 3 servers of the quorum vote: <nil>", r.logged[len(r.logged)-1])
	require.Len(t, r.logged, 3)
	_, due := r.quorum.Next()
	require.False(t, due, "there is nothing to do, and no call was needed for this")
	var voting []int
	for _, e := range r.events {
		if e.Kind == engine.Voting {
			require.Equal(t, 3, e.Servers)
			voting = append(voting, e.Voting)
		}
	}
	require.Equal(t, []int{2, 1, 3}, voting)
}

// A server that answers late again and again is reported once, and one that is slow for a moment is not.
func TestServerThatComesAndGoesIsReportedOnce(t *testing.T) {
	for late, reports := range map[time.Duration]int{2 * fallen: 1, fallen / 2: 0} {
		t.Run(late.String(), func(t *testing.T) {
			r := newRig(t)
			require.Equal(t, 3, r.quorum.Voting(), "none was asked yet")
			r.known()
			for range 20 {
				r.answers = r.healthy(0)
				r.fail(r.probe(0))
				require.Equal(t, 2, r.quorum.Voting())
				r.pass(late)
				r.answers = r.serve
				r.answer()
				r.pass(2 * pause)
				require.Equal(t, 3, r.quorum.Voting())
			}
			require.Len(t, r.logged, reports)
			r.pass(risen)
			require.Len(t, r.logged, 2*reports)
		})
	}
}

// A vote is given back for as long as its server may keep it: for the longest lease that any request has set,
// even if the hold that wanted the lease has ended.
func TestVoteIsGivenBackForTheLongestLeaseThatWasSet(t *testing.T) {
	r, outer := holding(t)
	inner := &engine.Hold{Name: name, Owner: outer.Owner, Mode: protocol.Write, Lease: time.Hour, Bounded: true}
	r.do(func() { r.engine.Acquire(r.now, inner) })
	r.replyAll(r.serve)
	require.Equal(t, engine.Live, inner.State())
	r.release(inner)
	r.replyAll(r.serve)
	r.release(outer)
	r.answers = func(*Request) any { return errSilence }
	r.answer()
	r.pass(10 * time.Minute)
	released := 0
	r.answers = func(q *Request) any {
		if q.Script == lua.Unlock {
			released++
		}
		return r.serve(q)
	}
	r.pass(time.Minute)
	require.Equal(t, 3, released)
}

// A process that stands still during a release, for however long, does not take the hold for lost: the
// servers may have released it long ago.
func TestReleaseOverAPauseIsNoLoss(t *testing.T) {
	for _, pause := range []time.Duration{lease + lease/2, 2*lease + time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			r, h := holding(t)
			r.release(h)
			r.now = r.now.Add(pause)
			r.do(func() { r.quorum.Tick(r.now) })
			r.replyAll(r.serve)
			require.Equal(t, engine.Finished, h.State())
			require.NoError(t, h.Err())
		})
	}
}

// A hold is renewed as soon as one server says that its vote was dropped by force.
func TestHoldIsRenewedWhenAVoteWasDropped(t *testing.T) {
	r, h := holding(t)
	number := r.voteOf(1)
	r.do(func() { r.quorum.Heard(r.now, 0, fmt.Sprintf("!%015d", number)) })
	require.Empty(t, r.sent, "another server's number")
	r.do(func() { r.quorum.Heard(r.now, 1, fmt.Sprintf("!%015d", number)) })
	for i, reply := range []any{done, gone, done} {
		r.reply(r.next(i, lua.Renew), reply)
	}
	require.Equal(t, engine.Live, h.State())
	r.do(func() { r.quorum.Heard(r.now, 0, fmt.Sprintf("!%015d", r.voteOf(0))) })
	require.Zero(t, r.sends(1, lua.Vote), "the votes of others are about to be dropped")
	r.reply(r.next(0, lua.Renew), gone)
	r.reply(r.next(2, lua.Renew), done)
	require.Equal(t, engine.Lapsed, h.State())
}

// voteOf returns the number of the only vote of a server.
func (r *rig) voteOf(i int) (number uint64) {
	for _, b := range r.quorum.voters {
		number = b.votes[i].number
	}
	return number
}

// Servers have forgotten more of the leases in use when the machine has been asleep: they are told again
// before they vote.
func TestLeaseIsToldAgainAfterASleep(t *testing.T) {
	for _, slept := range []time.Duration{0, 2 * time.Hour} {
		r := makeRig(t)
		r.answers = r.serve
		r.use(r.acquireFor(10 * time.Minute))
		r.answers = nil
		r.do(func() { r.quorum.Slept(r.now, slept) })
		r.acquireFor(10 * time.Minute)
		require.Equal(t, slept == 0, r.sends(0, lua.Vote) > 0)
		require.Equal(t, slept > 0, r.sends(0, lua.Mark) > 0)
	}
}

// Votes are given back in slices.
func TestManyVotesAreGivenBackInSlices(t *testing.T) {
	r := newVotingRig(t)
	s := r.quorum.servers[0]
	for range 3 * atOnce {
		lk := r.quorum.use(protocol.KeysOf("p", name))
		s.owed.PushBack(&Request{Server: 0, lock: lk, after: r.now, giveUp: r.now.Add(time.Hour),
			Request: protocol.Request{Script: lua.Unlock, Keys: lk.keys}})
	}
	for left := 2 * atOnce; left >= 0; left -= atOnce {
		r.do(func() { r.quorum.Tick(r.now) })
		require.Equal(t, left, s.owed.Len())
		if left > 0 {
			at, _ := r.quorum.Next()
			require.False(t, at.After(r.now), "the others are due")
		}
	}
}

// Inspect asks no server that does not answer: what it asks would wait there.
func TestInspectAsksNoServerThatIsSilent(t *testing.T) {
	r, h := asking(t)
	r.answers = r.healthy(0)
	r.answer()
	r.pass(time.Second)
	require.Equal(t, engine.Live, h.State())
	r.do(func() { _ = r.engine.Inspect(r.now, name, "tag") })
	require.Zero(t, r.sends(0, lua.Inspect))
	r.answer()
	require.Len(t, r.outcomes, 1, "it does not wait for that server")
	require.NoError(t, r.outcomes[0].Err)

	r.answers = nil
	r.do(func() { _ = r.engine.Inspect(r.now, name, "tag") })
	r.serves(1, lua.Inspect)
	require.Zero(t, r.sends(0, lua.Inspect))
	r.refuse(r.next(2, lua.Inspect))
	require.Len(t, r.outcomes, 1, "the others are not enough any more")
	r.serves(0, lua.Inspect)
	require.Len(t, r.outcomes, 2)
	require.NoError(t, r.outcomes[1].Err)
}

// A hold asks again for a vote that it waits for, with each renewal: the message that grants it may be lost.
func TestRenewalAsksWhereTheHoldWaits(t *testing.T) {
	r, h := shortOfAVote(t)
	for _, reply := range []any{waits(time.Hour), r.vote(someToken)} {
		r.pass(lease / 3)
		r.reply(r.next(2, lua.Vote), reply)
		for i := range 2 {
			r.reply(r.next(i, lua.Renew), done)
		}
	}
	r.pass(lease / 3)
	for i, reply := range []any{gone, done, done} { // the first server has lost its data
		r.reply(r.next(i, lua.Renew), reply)
	}
	require.Equal(t, engine.Live, h.State())
}

// A claim waits in a server's queue as soon as the vote of another cannot be expected any more.
func TestVoteOfASilentServerIsNotExpected(t *testing.T) {
	r, h := asking(t)
	r.votes(0)
	r.replies(2, lua.Vote, waits(time.Hour)) // the vote before is about to be given back
	r.pass(shortestPatience)
	require.True(t, r.quorum.servers[1].suspected)
	r.reply(r.next(2, lua.Vote), r.vote(someToken))
	require.Equal(t, engine.Live, h.State())
}

// A call without a limit does not give up while all servers answer, however short its lease, and whether it
// collects votes or pauses.
func TestWaiterThatCollectsIsAnswered(t *testing.T) {
	for _, lease := range []time.Duration{100 * time.Millisecond, time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			r := newVotingRig(t)
			r.answers = func(q *Request) any {
				if q.Script == lua.Vote && q.Server != 0 {
					return waits(time.Hour)
				}
				return r.serve(q)
			}
			h := &engine.Hold{Owner: protocol.Owner{Handle: 100}, NewOwner: true, Name: name, Mode: protocol.Write,
				Lease: lease}
			r.do(func() { r.engine.Acquire(r.now, h) })
			r.answer()
			r.pass(time.Minute)
			require.Equal(t, engine.Wanted, h.State(), "%v", h.Err())
		})
	}
}

// A call that begins to wait at the home gives back its other votes, and those requests go behind what calls
// wait for. A crowd sends thousands of them.
func TestWaiterGivesBackLate(t *testing.T) {
	const home = 0
	r, _ := asking(t)
	r.replies(home, lua.Vote, waits(time.Minute))
	require.True(t, r.next(1, lua.Unlock).Late)
	require.True(t, r.next(2, lua.Unlock).Late)
}

// A vote that this client's own ForceUnlock may have dropped, or another's, whose message is lost, does not
// count until the server has confirmed it.
func TestVoteInDoubtDoesNotCount(t *testing.T) {
	for why, doubt := range map[string]func(*rig){
		"own ForceUnlock": func(r *rig) {
			r.do(func() { require.NoError(t, r.engine.Force(r.now, name, 0, "tag")) })
			for i := range 3 {
				r.serves(i, lua.Force)
			}
		},
		"lost messages": func(r *rig) {
			for i := range 3 {
				r.do(func() { r.quorum.Subscribed(r.now, i) })
			}
		},
	} {
		t.Run(why, func(t *testing.T) {
			r, h := asking(t)
			r.votes(0)
			doubt(r)
			r.votes(2) // this request was sent before
			require.Equal(t, engine.Wanted, h.State())
			r.votes(2)
			require.Equal(t, engine.Wanted, h.State())
			r.votes(0)
			require.Equal(t, engine.Live, h.State())
		})
	}
}

// A vote that was dropped by force before the claim has the lock does not count, whether the message comes
// before the reply that says that the server has voted, or after it.
func TestDroppedVoteDoesNotCountBeforeTheGrant(t *testing.T) {
	for _, overtakes := range []bool{false, true} {
		t.Run(fmt.Sprintf("the message overtakes the reply: %v", overtakes), func(t *testing.T) {
			r, h := asking(t)
			vote := r.next(0, lua.Vote)
			drop := func() { r.do(func() { r.quorum.Heard(r.now, 0, fmt.Sprintf("!%015d", vote.number)) }) }
			if overtakes {
				drop()
			}
			r.reply(vote, r.vote(someToken))
			if !overtakes {
				drop()
			}
			r.votes(1)
			require.Equal(t, engine.Wanted, h.State())
			r.replies(0, lua.Unlock, gone)
			r.votes(0)
			require.Equal(t, engine.Live, h.State())
		})
	}
}
