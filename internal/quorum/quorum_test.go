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
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	require.Len(t, r.sent, 3)
	r.votes(order[0])
	require.Equal(t, engine.Wanted, h.State())
	r.votes(order[1])
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, someToken, h.Token())
}

func TestHoldLastsAsLongAsTheMajorityOfItsVotes(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	asked := r.now
	order := r.inOrder()
	r.votes(order[0])
	r.now = r.now.Add(time.Second)
	r.votes(order[2])
	require.Equal(t, engine.Live, h.State())
	require.True(t, h.Deadline().Before(asked.Add(lease)), "votes count from before their requests were sent")
}

// A claim that has to wait for a hold of its own client asks the home alone.
func TestClaimBehindAHoldOfTheSameClientAsksTheHomeAlone(t *testing.T) {
	r := newVotingRig(t)
	order := r.inOrder()
	sends := func(want ...int) {
		t.Helper()
		for k, i := range order {
			require.Equal(t, want[k], r.sends(i, lua.Vote)+r.sends(i, lua.RVote))
		}
		r.sent = nil
	}
	held := r.held()
	for _, mode := range []protocol.Mode{protocol.Read, protocol.Write} {
		for _, try := range []bool{true, false} {
			r.acquire(mode, try)
			sends(1, 0, 0)
		}
	}
	r.release(held)
	r.sent = nil
	r.acquire(protocol.Write, true)
	sends(1, 1, 1)
}

func TestClaimThatWaitsAtItsHomeGivesBackOtherVotes(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	r.votes(order[1])
	r.reply(r.next(order[0], lua.Vote), waits(time.Minute))
	require.Equal(t, engine.Wanted, h.State())
	require.Equal(t, 1, r.sends(order[1], lua.Unlock), "the vote")
	require.Equal(t, 1, r.sends(order[2], lua.Unlock), "the request")
	require.Zero(t, r.sends(order[0], lua.Unlock))
}

// letIn has a claim wait at its home, and then lets it in there.
func (r *rig) letIn() (h *engine.Hold, order []int) {
	h = r.acquire(protocol.Write, false)
	order = r.inOrder()
	r.reply(r.next(order[1], lua.Vote), waits(time.Minute))
	r.reply(r.next(order[2], lua.Vote), waits(time.Minute))
	q := r.next(order[0], lua.Vote)
	r.reply(q, waits(time.Minute))
	r.do(func() { r.quorum.Heard(r.now, order[0], fmt.Sprintf("%d 0 %d", someToken, q.number)) })
	return h, order
}

func TestClaimThatIsLetInWaitsInTheQueuesOfTheOthers(t *testing.T) {
	r := newVotingRig(t)
	h, order := r.letIn()
	for _, i := range order[1:] {
		q := r.next(i, lua.Vote)
		require.False(t, q.Try, "both have had a try wait")
		r.reply(q, waits(time.Minute))
		r.do(func() { r.quorum.Heard(r.now, i, fmt.Sprintf("%d 0 %d", someToken, q.number)) })
	}
	for _, i := range order {
		r.reply(r.next(i, lua.Vote), r.vote(someToken)) // of which messages do not tell the token
	}
	require.Equal(t, engine.Live, h.State())
}

// Where the claim waits at the others, it asks again when a lease may be over, though no message has come.
func TestClaimThatIsLetInAsksTheOthersAgain(t *testing.T) {
	r := newVotingRig(t)
	_, order := r.letIn()
	r.votes(order[0])
	for _, i := range order[1:] {
		r.reply(r.next(i, lua.Vote), waits(100*time.Millisecond))
	}
	require.Zero(t, r.sends(order[1], lua.Vote))
	r.pass(200 * time.Millisecond)
	require.Equal(t, 1, r.sends(order[1], lua.Vote))
}

// A request for a vote that fails may have run, or may run yet: the vote is given back.
func TestVoteWhoseRequestFailedIsGivenBack(t *testing.T) {
	r := newVotingRig(t)
	r.acquire(protocol.Write, false)
	r.fail(r.next(2, lua.Vote))
	require.Equal(t, 1, r.sends(2, lua.Unlock))
}

// collectInVain has the other servers keep a claim that is let in waiting until it retreats.
func (r *rig) collectInVain(order []int) {
	r.t.Helper()
	r.answers = func(q *Request) any {
		switch {
		case q.Script == lua.Unlock:
			return nil
		case q.Server == order[0]:
			return r.vote(someToken)
		}
		return waits(time.Minute)
	}
	for range 10_000 {
		if r.sends(order[1], lua.Unlock) > 0 {
			return
		}
		r.answer()
		r.pass(20 * time.Millisecond)
	}
	r.t.Fatal("it does not retreat")
}

func TestEveryThirdRetreatGivesBackTheVoteOfTheHome(t *testing.T) {
	r := newVotingRig(t)
	_, order := r.letIn()
	for retreat := 1; retreat <= 6; retreat++ {
		r.collectInVain(order)
		require.Equal(t, 1, r.sends(order[1], lua.Unlock))
		require.Equal(t, 1, r.sends(order[2], lua.Unlock))
		home := 0
		if retreat%3 == 0 {
			home = 1
		}
		require.Equal(t, home, r.sends(order[0], lua.Unlock), "retreat %d", retreat)
		for _, i := range order {
			for r.sends(i, lua.Unlock) > 0 {
				r.reply(r.next(i, lua.Unlock), done)
			}
		}
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
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	const larger = someToken + 5
	r.votes(order[0])
	r.reply(r.next(order[1], lua.Vote), r.vote(larger))
	require.Equal(t, engine.Wanted, h.State())
	again := r.next(order[0], lua.Vote)
	require.Equal(t, protocol.TokenArg(larger), again.VoteArgs.Wanted)
	r.reply(again, r.vote(larger))
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, larger, h.Token())
}

func TestFirstStartWorksAtOnce(t *testing.T) {
	r := newRig(t)
	start := r.now
	h := r.acquire(protocol.Write, false)
	for i := range 3 {
		r.reply(r.next(i, lua.Mark), markOf(i, "", false, ""))
	}
	var generation any
	for i := range 3 {
		q := r.next(i, lua.Mark)
		require.Equal(t, "start", q.VoteArgs.Args[0])
		if generation == nil {
			generation = q.VoteArgs.Args[3]
		}
		require.Equal(t, generation, q.VoteArgs.Args[3])
		r.reply(q, markOf(i, generation.(string), false, ""))
	}
	for _, i := range r.inOrder() {
		q := r.next(i, lua.Vote)
		require.Equal(t, generation, q.VoteArgs.Generation)
		r.reply(q, r.vote(someToken))
	}
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, start, r.now)
}

// A client that asks the servers for their marks while another client starts them does not wait for its next
// look at those that were not started yet: it would be overtaken by all that lock meanwhile.
func TestServersThatAreBeingStartedAreAskedAgainAtOnce(t *testing.T) {
	r := newRig(t)
	h := r.acquire(protocol.Write, false)
	for _, i := range []int{0, 2} {
		r.reply(r.next(i, lua.Mark), markOf(i, "", false, ""))
	}
	start := r.now
	r.reply(r.next(1, lua.Mark), markOf(1, "g", false, "7")) // it has voted since
	r.reply(r.next(0, lua.Mark), markOf(0, "", false, ""))   // it is started last
	require.Zero(t, r.sends(0, lua.Mark), "it is not asked again and again")
	r.reply(r.next(2, lua.Mark), markOf(2, "g", false, "7"))
	for _, i := range []int{1, 2} {
		r.reply(r.next(i, lua.Vote), r.vote(someToken))
	}
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, start, r.now)
}

// Servers that stay without a generation are asked again once, though the clock stands still: one server that
// was started by a client that has died, or before the others lost their data, is no reason to ask them for
// ever. Nor is it one to start them, whether or not it has voted: they may have lost their data.
func TestServersThatAreNotStartedAreAskedAgainOnce(t *testing.T) {
	for _, top := range []string{"", "7"} {
		t.Run("the other has voted with "+top, func(t *testing.T) {
			r := newRig(t)
			r.acquire(protocol.Write, false)
			asked := 0
			for len(r.sent) > 0 && asked < 100 {
				asked++
				i := r.sent[0].Server
				r.reply(r.next(i, lua.Mark), markOf(i, []string{"g", "", ""}[i], false, []string{top, "", ""}[i]))
			}
			require.Equal(t, 3+2, asked)
		})
	}
}

// The first call of a client does not fail while the mark that completes a majority is in flight, whatever
// became of another server.
func TestFirstTryWaitsForTheMarksOfAMajority(t *testing.T) {
	for what, of := range map[string]func(r *rig, q *Request){
		"a server rests":             func(r *rig, q *Request) { r.reply(q, markOf(2, "", true, "")) },
		"a server cannot be reached": func(r *rig, q *Request) { r.fail(q) },
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, early %v", what, early), func(t *testing.T) {
				r := newRig(t)
				h := r.acquire(protocol.Write, true)
				if early {
					of(r, r.next(2, lua.Mark))
				}
				r.reply(r.next(0, lua.Mark), markOf(0, "g", false, "5"))
				if !early {
					of(r, r.next(2, lua.Mark))
				}
				require.NoError(t, h.Err())
				r.reply(r.next(1, lua.Mark), markOf(1, "g", false, "7"))
				for _, i := range []int{0, 1} {
					r.reply(r.next(i, lua.Vote), r.vote(someToken))
				}
				require.Equal(t, engine.Live, h.State())
			})
		}
	}
}

// While too few servers answer, calls that end meanwhile say so.
func TestServersThatRestAreNoMajority(t *testing.T) {
	r := newRig(t)
	r.acquire(protocol.Write, false)
	r.reply(r.next(0, lua.Mark), markOf(0, "g", false, "5"))
	r.reply(r.next(2, lua.Mark), markOf(2, "", true, ""))
	require.NoError(t, r.quorum.Trouble())
	r.pass(2 * shortestPatience)
	require.ErrorIs(t, r.quorum.Trouble(), ErrNoMajority)
}

// It fails at once if what is in flight cannot complete a majority.
func TestFirstTryFailsWithoutAMajority(t *testing.T) {
	r := newRig(t)
	h := r.acquire(protocol.Write, true)
	r.fail(r.next(0, lua.Mark))
	r.reply(r.next(1, lua.Mark), markOf(1, "g", false, "7"))
	require.NoError(t, h.Err())
	r.reply(r.next(2, lua.Mark), markOf(2, "", true, ""))
	require.ErrorIs(t, h.Err(), ErrNoMajority)
}

func TestServerThatHasLostItsMarkRestsBeforeItVotes(t *testing.T) {
	r := newRig(t)
	h := r.acquire(protocol.Write, false)
	r.reply(r.next(0, lua.Mark), markOf(0, "g", false, "5"))
	r.reply(r.next(1, lua.Mark), markOf(1, "g", false, "7"))
	r.reply(r.next(2, lua.Mark), markOf(2, "", false, ""))
	for _, i := range []int{0, 1} {
		r.reply(r.next(i, lua.Vote), r.vote(someToken))
	}
	require.Equal(t, engine.Live, h.State())

	start := r.now
	var rests, admitted, voted time.Time
	slow := 0
	r.answers = func(q *Request) any {
		switch {
		case q.Script == lua.Mark && q.Server == 2 && q.VoteArgs.Args[0] == "rest":
			require.Equal(t, []any{"rest", "0", "1763763763000000:2", ""}, q.VoteArgs.Args[:4])
			rests = r.now
		case q.Script == lua.Mark && q.Server == 2 && q.VoteArgs.Args[0] == "admit":
			require.Equal(t, []any{"admit", "60000", "1763763763000000:2", "g", "11"}, q.VoteArgs.Args,
				"the tokens of marks read after the rest")
			admitted = r.now
		case q.Script == lua.Renew:
			return done
		case q.Script == lua.Mark && q.Server == 1 && slow < 3:
			slow++
			return nil
		case q.Script == lua.Mark && q.Server < 2 && (rests.IsZero() || r.now.Before(rests.Add(longestInUse))):
			return markOf(q.Server, "g", false, "8")
		case q.Script == lua.Mark && q.Server < 2:
			return markOf(q.Server, "g", false, []string{"9", "11"}[q.Server])
		case q.Script == lua.Vote && q.Server == 2:
			voted = r.now
			return r.vote(someToken)
		}
		if !admitted.IsZero() {
			return markOf(2, "g", false, "11")
		}
		return markOf(2, "", !rests.IsZero(), "")
	}
	r.pass(2 * longestInUse)
	require.False(t, rests.Before(start.Add(shortestStart)), "until then, another client may be starting it")
	require.False(t, admitted.Before(rests.Add(longestInUse)))
	require.True(t, admitted.Before(rests.Add(longestInUse+longestInUse/100+5*time.Second)))
	require.False(t, voted.Before(admitted), "the renewal asks for its vote")
	require.Equal(t, engine.Live, h.State())
}

func TestHoldIsLostIfAMajorityDoesNotRenewIt(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	deadline, order := h.Deadline(), r.inOrder()
	for r.now.Before(deadline.Add(-time.Second)) {
		r.pass(100 * time.Millisecond)
		for r.sends(order[0], lua.Renew) > 0 {
			r.reply(r.next(order[0], lua.Renew), done)
		}
		for _, i := range order[1:] {
			for r.sends(i, lua.Renew) > 0 {
				r.fail(r.next(i, lua.Renew))
			}
		}
	}
	require.Equal(t, engine.Live, h.State())
	r.pass(time.Second)
	require.Equal(t, engine.Lapsed, h.State())
	require.ErrorIs(t, h.Err(), engine.ErrLost)
}

func TestHoldIsLostAtOnceIfAMajorityHasNoVoteForIt(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	r.pass(lease / 3)
	order := r.inOrder()
	r.reply(r.next(order[1], lua.Renew), gone)
	require.Equal(t, engine.Live, h.State())
	r.reply(r.next(order[2], lua.Renew), gone)
	require.Equal(t, engine.Lapsed, h.State())
}

func TestVoteThatIsWonBackDoesNotCountInTheSameRound(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	r.votes(order[0])
	r.reply(r.next(order[2], lua.Vote), waits(time.Second))
	r.votes(order[1])
	require.Equal(t, engine.Live, h.State())
	r.pass(lease / 3)
	r.votes(order[2])
	r.reply(r.next(order[0], lua.Renew), done)
	require.Equal(t, engine.Live, h.State())
	r.reply(r.next(order[1], lua.Renew), gone)
	require.Equal(t, engine.Lapsed, h.State(), "another may have had the lock in between")
}

func TestVoteThatIsWonBackCountsInTheNextRound(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	order := r.inOrder()
	r.pass(lease / 3)
	r.reply(r.next(order[0], lua.Renew), done)
	r.reply(r.next(order[1], lua.Renew), done)
	r.reply(r.next(order[2], lua.Renew), gone)
	r.reply(r.next(order[2], lua.Unlock), gone)
	r.reply(r.next(order[2], lua.Mark), markOf(order[2], "g", false, "")) // it has not lost all of its data
	r.pass(lease / 3)
	r.votes(order[2])
	r.reply(r.next(order[0], lua.Renew), done)
	r.reply(r.next(order[1], lua.Renew), done)
	r.pass(lease / 3)
	r.reply(r.next(order[2], lua.Renew), done)
	r.reply(r.next(order[1], lua.Renew), gone)
	r.reply(r.next(order[0], lua.Renew), done)
	require.Equal(t, engine.Live, h.State())
}

func TestReleaseIsDoneWithAMajorityAndTheHome(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	order := r.inOrder()
	r.release(h)
	r.reply(r.next(order[1], lua.Unlock), done)
	r.reply(r.next(order[2], lua.Unlock), done)
	require.False(t, r.engine.Idle(), "the next claim asks at the home")
	r.reply(r.next(order[0], lua.Unlock), done)
	require.True(t, r.engine.Idle())
}

func TestReleaseIsDoneIfTheServersThatAnswerHaveNoMoreVotes(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("the third server has refused its vote: %v", refused), func(t *testing.T) {
			r := newVotingRig(t)
			h := r.acquire(protocol.Write, false)
			order := r.inOrder()
			if refused {
				r.reply(r.next(order[2], lua.Vote), waits(time.Second))
			}
			r.votes(order[:2]...)
			require.Equal(t, engine.Live, h.State())
			r.release(h)
			r.reply(r.next(order[2], lua.Unlock), gone) // its vote never came
			r.reply(r.next(order[1], lua.Unlock), done)
			r.fail(r.next(order[0], lua.Unlock))
			require.Equal(t, engine.Finished, h.State())
			require.NoError(t, h.Err())
		})
	}
}

// A vote that could not be given back is given back when its server answers again, after a pause.
func TestVoteIsGivenBackWhenItsServerAnswersAgain(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	order := r.inOrder()
	r.release(h)
	for _, i := range order[:2] {
		r.reply(r.next(i, lua.Unlock), done)
	}
	r.fail(r.next(order[2], lua.Unlock))
	require.Equal(t, engine.Finished, h.State())
	failed := r.now
	r.answers = func(q *Request) any {
		if q.Script == lua.Mark {
			return markOf(q.Server, "g", false, "")
		}
		return nil
	}
	for r.sends(order[2], lua.Unlock) == 0 {
		require.Less(t, r.now.Sub(failed), 2*pause)
		r.pass(10 * time.Millisecond)
	}
	require.GreaterOrEqual(t, r.now.Sub(failed), pause)
}

func TestRenewalDoesNotWaitForTheSlowestServer(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	deadline := h.Deadline()
	r.pass(lease / 3)
	order := r.inOrder()
	r.reply(r.next(order[0], lua.Renew), done)
	r.reply(r.next(order[2], lua.Renew), done)
	require.True(t, h.Deadline().After(deadline))
}

// A server that answers a vote with an error that does not pass, as for want of memory, is one of the f that
// may fail: each claim does without it, and whoever has to wait does so in the queue of the next home.
func TestClaimDoesWithoutAServerThatRefusesToVote(t *testing.T) {
	refuse := func(r *rig, i int) { r.refuse(r.next(i, lua.Vote)) }
	for k := range 3 {
		t.Run(fmt.Sprintf("it would be the home after %d others", k), func(t *testing.T) {
			r := newVotingRig(t)
			h := r.acquire(protocol.Write, false)
			order := r.inOrder()
			refuse(r, order[k])
			r.votes(slices.Delete(slices.Clone(order), k, k+1)...)
			require.Equal(t, engine.Live, h.State())
		})
	}
	t.Run("a try that the next home refuses", func(t *testing.T) {
		r := newVotingRig(t)
		h := r.acquire(protocol.Write, true)
		order := r.inOrder()
		refuse(r, order[0])
		r.reply(r.next(order[1], lua.Vote), waits(time.Minute))
		require.Equal(t, engine.Failed, h.State())
		require.NotErrorIs(t, h.Err(), full)
	})
	t.Run("a claim waits at the next home, and keeps its place", func(t *testing.T) {
		r := newVotingRig(t)
		h := r.acquire(protocol.Write, false)
		order := r.inOrder()
		refuse(r, order[0])
		r.reply(r.next(order[1], lua.Vote), waits(time.Second))
		r.reply(r.next(order[2], lua.Vote), waits(time.Second))
		queued := r.next(order[1], lua.Vote)
		require.False(t, queued.Try)
		r.reply(queued, waits(time.Minute))
		for len(r.sent) > 0 { // what is given back, as it may have been voted
			r.reply(r.next(r.sent[0].Server, lua.Unlock), done)
		}
		for range 3 {
			for len(r.sent) == 0 {
				at, _ := r.quorum.Next()
				r.pass(at.Sub(r.now))
			}
			q := r.next(order[1], lua.Vote)
			require.Equal(t, queued.Claim, q.Claim)
			r.reply(q, waits(time.Minute))
			require.Empty(t, r.sent)
		}
		require.Equal(t, engine.Wanted, h.State())
	})
	t.Run("two of them are too many, and are asked again by the next call", func(t *testing.T) {
		r := newVotingRig(t)
		h := r.acquire(protocol.Write, false)
		order := r.inOrder()
		refuse(r, order[1])
		require.Equal(t, engine.Wanted, h.State())
		refuse(r, order[2])
		require.Equal(t, engine.Failed, h.State())
		require.ErrorIs(t, h.Err(), full)
		r.sent = nil
		r.acquire(protocol.Write, false)
		r.next(order[0], lua.Vote)
	})
}

// A hold that has the votes of a majority alone, one of which is that of a server that is out of memory now,
// asks for the vote that it lacks when its owner locks again.
func TestLockingAgainAsksForTheVotesThatTheHoldLacks(t *testing.T) {
	for _, mode := range []protocol.Mode{protocol.Read, protocol.Write} {
		for _, answers := range []bool{true, false} {
			t.Run(fmt.Sprint(mode, answers), func(t *testing.T) {
				r := newVotingRig(t)
				order := r.inOrder()
				w := r.acquire(protocol.Write, false)
				r.refuse(r.next(order[2], lua.Vote)) // it is full
				r.answers = func(q *Request) any {
					switch {
					case q.Server == order[1] && (q.Script == lua.Reenter || q.Script == lua.RVote):
						return nil // and this one will be
					case q.Server == order[2] && q.Script == lua.Vote:
						return nil
					}
					return r.healthy(-1)(q)
				}
				r.answer()
				require.Equal(t, engine.Live, w.State())
				r.pass(time.Second)

				h := r.again(w, mode)
				r.answer()
				script := map[protocol.Mode]*lua.Script{protocol.Read: lua.RVote, protocol.Write: lua.Reenter}[mode]
				r.refuse(r.next(order[1], script))
				r.answer()
				late := r.next(order[2], lua.Vote)
				if answers {
					r.reply(late, r.vote(someToken))
				} else {
					r.refuse(late)
				}
				r.answer()
				for range 100 {
					if r.sends(order[1], script) > 0 {
						r.refuse(r.next(order[1], script))
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
}

// The others were asked without waiting. One of them becomes the home, and the call joins its queue there.
func TestCallQueuesAtTheNextHomeThoughItHadRefusedToVote(t *testing.T) {
	for what, leave := range map[string]func(r *rig, home *Request){
		"the home is silent":                          func(r *rig, _ *Request) { r.pass(shortestPatience) },
		"the home votes only for leases of less time": func(r *rig, home *Request) { r.reply(home, int64(-2)) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newVotingRig(t)
			h := r.acquire(protocol.Write, false)
			order := r.inOrder()
			for _, i := range order[1:] {
				r.reply(r.next(i, lua.Vote), waits(time.Minute))
			}
			leave(r, r.next(order[0], lua.Vote))
			q := r.next(order[1], lua.Vote)
			require.False(t, q.Try)
			r.reply(q, waits(time.Minute))
			require.Equal(t, engine.Wanted, h.State())
			r.do(func() { r.quorum.Heard(r.now, order[1], fmt.Sprintf("%d 0 %d", someToken, q.number)) })
			r.votes(order[2], order[1])
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

func TestWaitersSendHeartbeatsToTheHomeAlone(t *testing.T) {
	r := newVotingRig(t)
	const waiters = 1000
	first := r.inOrder()[0]
	home, others := 0, 0
	r.answers = func(q *Request) any {
		if q.Server == first {
			home++
		} else {
			others++
		}
		if q.Script == lua.Unlock {
			return done
		}
		return waits(time.Hour)
	}
	for range waiters {
		r.acquire(protocol.Write, false)
		r.answer()
	}
	home, others = 0, 0
	r.pass(lease)
	require.GreaterOrEqual(t, home, 2*waiters)
	require.LessOrEqual(t, home, 3*waiters+waiters/10)
	require.Zero(t, others)
}

func TestClientFindsThatAServerWasReplacedByAskingForItsVote(t *testing.T) {
	r := newVotingRig(t)
	r.acquire(protocol.Write, false)
	changed := r.inOrder()[2]
	q := r.next(changed, lua.Vote)
	require.Equal(t, "1763763763000000:"+fmt.Sprint(changed), q.VoteArgs.ID)
	r.reply(q, int64(-2))
	r.reply(r.next(changed, lua.Mark), markWith("1763763769000000:x", "g", false, longestInUse, ""))
	r.acquire(protocol.Write, false)
	require.Equal(t, "1763763769000000:x", r.next(changed, lua.Vote).VoteArgs.ID)
}

// coldRig returns a rig with a call whose servers are new, and of which one has failed to start.
func coldRig(t *testing.T) (*rig, *engine.Hold) {
	r := newRig(t)
	h := r.acquire(protocol.Write, false)
	for i := range 3 {
		r.reply(r.next(i, lua.Mark), markOf(i, "", false, ""))
	}
	return r, h
}

func TestServersThatFailWhileTheyStartAreAskedAgain(t *testing.T) {
	r, h := coldRig(t)
	first, generation := r.next(0, lua.Mark), ""
	started := first.VoteArgs.Args[3].(string)
	r.reply(first, markOf(0, started, false, ""))
	r.fail(r.next(1, lua.Mark))
	r.fail(r.next(2, lua.Mark))
	r.answers = func(q *Request) any {
		switch {
		case q.Script != lua.Mark:
			return r.vote(someToken)
		case q.Server == 0:
			return markOf(0, started, false, "")
		case q.VoteArgs.Args[0] == "start":
			generation = q.VoteArgs.Args[3].(string)
		}
		return markOf(q.Server, generation, false, "")
	}
	r.pass(10 * time.Second)
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, started, generation)
}

func TestServerThatRefusesToChangeItsMarkIsNotAskedWithoutAPause(t *testing.T) {
	r, _ := coldRig(t)
	asked := 0
	r.answers = func(q *Request) any {
		asked++
		if q.VoteArgs.Args[0] == "start" {
			return markWith("", "", false, 0, "") // it has lost its data
		}
		return markOf(q.Server, "", false, "")
	}
	r.answer()
	r.pass(time.Second)
	require.Less(t, asked, 50)
}

// started returns the generation that a client starts on servers with these ids.
func started(t *testing.T, ids ...int) (generation any) {
	r := makeRig(t)
	r.acquire(protocol.Write, false)
	for i, id := range ids {
		r.reply(r.next(i, lua.Mark), markOf(id, "", false, ""))
	}
	for i := range ids {
		q := r.next(i, lua.Mark)
		require.Equal(t, "start", q.VoteArgs.Args[0])
		generation = q.VoteArgs.Args[3]
	}
	return generation
}

// Clients that find new servers at the same time start the same generation, in whatever order they name them;
// and another after one of them has lost its data.
func TestGenerationFollowsFromTheIDsOfTheServers(t *testing.T) {
	t.Parallel()
	require.Equal(t, started(t, 0, 1, 2), started(t, 2, 0, 1))
	require.NotEqual(t, started(t, 0, 1, 2), started(t, 0, 1, 3))
}

// A server rests for the longest lease that it may have voted for, which a majority has to know before it is
// voted for.
func TestNoVoteIsAskedForBeforeAMajorityKnowsTheLease(t *testing.T) {
	r := newVotingRig(t)
	r.acquireFor(time.Hour)
	for i := range 2 {
		require.Zero(t, r.sends(0, lua.Vote)+r.sends(1, lua.Vote)+r.sends(2, lua.Vote), "%d servers know the lease",
			i)
		q := r.next(i, lua.Mark)
		require.Equal(t, []any{"see", "3600000"}, q.VoteArgs.Args[:2])
		r.reply(q, markWith(fmt.Sprintf("1763763763000000:%d", i), "g", false, time.Hour, ""))
	}
	require.Equal(t, 1, r.sends(0, lua.Vote))
	require.Equal(t, 1, r.sends(1, lua.Vote))
}

// Servers forget leases that are not in use any more. A client that goes on to use one says so again before
// that, and no call waits for it; and only after that, if it has not used one for so long. It says no more
// than what was asked for meanwhile.
func TestLeasesThatAreInUseAreSaidAgain(t *testing.T) {
	r := newVotingRig(t)
	said := map[any]int{}
	r.answers = func(q *Request) any {
		switch q.Script {
		case lua.Mark:
			said[q.VoteArgs.Args[1]]++
			return markOf(q.Server, "g", false, "7")
		case lua.Vote:
			return r.vote(someToken)
		}
		return done
	}
	use := func(d time.Duration) {
		h := r.acquireFor(d)
		r.answer()
		require.Equal(t, engine.Live, h.State())
		r.release(h)
		r.answer()
	}
	use(time.Hour)
	require.Equal(t, map[any]int{"3600000": 3}, said)
	for end := r.now.Add(time.Hour); r.now.Before(end); r.pass(time.Second) {
		use(lease)
	}
	require.Equal(t, 3, said["3600000"], "it was asked for once")
	require.InDelta(t, 3*(time.Hour-(time.Hour+inUse)/4)/((lease+inUse)/4), said["30000"], 3)

	r.pass(time.Hour)
	h := r.acquireFor(lease)
	require.Equal(t, []int{0, 0, 0}, []int{r.sends(0, lua.Vote), r.sends(1, lua.Vote), r.sends(2, lua.Vote)},
		"the servers may have forgotten it")
	r.answer()
	require.Equal(t, engine.Live, h.State())
}

// A client that finds a server at rest does not know for how long it has rested, whatever the server's clock
// shows: it waits for the longest lease in use itself. What the server may have forgotten is what the others'
// marks say that are read after that.
func TestClientAdmitsAServerThatItHasSeenAtRestItself(t *testing.T) {
	r := newRig(t)
	r.acquire(protocol.Write, false)
	for i := range 2 {
		r.reply(r.next(i, lua.Mark), markOf(i, "g", false, "5"))
	}
	r.pass(time.Millisecond)
	r.reply(r.next(2, lua.Mark), markOf(2, "", true, ""))
	found := r.now
	top := "5"
	r.answers = func(q *Request) any {
		switch {
		case q.Script == lua.Vote:
			return waits(time.Hour)
		case q.Script != lua.Mark:
			return done
		case q.Server < 2:
			return markOf(q.Server, "g", false, top)
		case q.VoteArgs.Args[0] == "see":
			return markOf(2, "", true, "")
		}
		return nil
	}
	r.answer()
	for ; r.now.Before(found.Add(longestInUse)); r.pass(time.Second) {
		require.Empty(t, r.sent)
	}
	top = "9"
	r.pass(5 * time.Second)
	require.Equal(t, []any{"admit", "60000", "1763763763000000:2", "g", "9"}, r.next(2, lua.Mark).VoteArgs.Args)
}

// A server that has lost its data again rests again, whole.
func TestServerThatLosesItsDataAtRestRestsAgain(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	id, state, rests, admitted := "1763763763000000:2", "voting", time.Time{}, time.Time{}
	r.answers = func(q *Request) any {
		switch {
		case q.Script == lua.Vote && q.Server == 2 && (state != "voting" || q.VoteArgs.ID != id):
			return int64(-2)
		case q.Script == lua.Vote:
			return r.vote(someToken)
		case q.Script == lua.Mark && q.Server < 2:
			return markOf(q.Server, "g", false, "7")
		case q.Script == lua.Renew && q.Server == 2:
			return gone
		case q.Script != lua.Mark:
			return done
		case q.VoteArgs.Args[0] == "rest":
			state, rests = "resting", r.now
		case q.VoteArgs.Args[0] == "admit" && q.VoteArgs.Args[2] == id:
			state, admitted = "voting", r.now
		}
		if state == "voting" {
			return markWith(id, "g", false, longestInUse, "7")
		}
		return markWith(id, "", state == "resting", 0, "")
	}
	r.answer()
	require.Equal(t, engine.Live, h.State())
	for n := range 2 {
		id, state = fmt.Sprintf("1763763769000000:%d", n), "empty"
		r.pass(50 * time.Second)
		require.Equal(t, "resting", state)
		require.True(t, admitted.IsZero())
	}
	r.pass(time.Minute)
	require.Equal(t, "voting", state)
	require.GreaterOrEqual(t, admitted.Sub(rests), longestInUse)
}

// A server that an idle client has found at rest is admitted all the same: no call may come to see to that in
// time.
func TestServerIsAdmittedThoughNoCallComes(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	id, state := "1763763769000000:x", ""
	r.answers = func(q *Request) any {
		switch {
		case q.Script != lua.Mark:
			return done
		case q.Server < 2:
			return markOf(q.Server, "g", false, "7")
		case q.VoteArgs.Args[0] == "rest":
			state = "resting"
		case q.VoteArgs.Args[0] == "admit":
			state = "voting"
			return markWith(id, "g", false, longestInUse, "7")
		}
		return markWith(id, "", state == "resting", 0, "")
	}
	r.release(h)
	r.reply(r.next(2, lua.Unlock), done)
	r.answer()
	r.do(func() { r.quorum.readMark(r.now, r.quorum.servers[2]) }) // for whatever reason
	r.answer()
	r.pass(longestInUse + 5*time.Second)
	require.Equal(t, "voting", state)
	r.pass(risen)
	_, due := r.quorum.Next()
	require.False(t, due, "nothing is left to do")
}

func TestVotesOfAServerThatHasLostItsDataDoNotCount(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order, lost := r.inOrder(), r.inOrder()[1]
	r.votes(lost)
	r.acquire(protocol.Write, false)
	r.reply(r.next(lost, lua.Vote), int64(-2))
	r.reply(r.next(lost, lua.Mark), markOf(7, "", false, ""))
	r.votes(order[0])
	require.Equal(t, engine.Wanted, h.State())
	r.votes(order[2])
	require.Equal(t, engine.Live, h.State())
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
			r.answers = func(*Request) any { return done }
			r.pass(time.Minute)
			r.answers = nil
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			r := newVotingRig(t)
			h := r.held()
			c.before(r, h)
			r.release(h)
			for i := range 3 {
				require.Equal(t, c.records, r.next(i, lua.Unlock).Record != nil)
			}
		})
	}
}

// reenter has the owner of a hold lock again, and release that.
func (r *rig) reenter(h *engine.Hold) {
	inner := r.again(h, protocol.Write)
	r.confirmCounts()
	require.Equal(r.t, engine.Live, inner.State())
	r.release(inner)
	r.confirmCounts()
	require.Equal(r.t, engine.Finished, inner.State())
}

func (r *rig) confirmCounts() {
	for i := range 3 {
		if r.sends(i, lua.Reenter) > 0 {
			r.reply(r.next(i, lua.Reenter), done)
		}
	}
}

// Each server knows the claim by the vote that it has cast, and the last of them by a vote that comes late.
func TestServersAreToldOfTheirOwnVotes(t *testing.T) {
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	var asked [3]*Request
	for _, i := range order {
		asked[i] = r.next(i, lua.Vote)
	}
	for _, i := range order[:2] {
		r.reply(asked[i], r.vote(someToken))
	}
	require.Equal(t, engine.Live, h.State())
	r.again(h, protocol.Write)
	require.Zero(t, r.sends(order[2], lua.Reenter))
	r.reply(asked[order[2]], r.vote(someToken))
	for _, i := range order {
		q := r.next(i, lua.Reenter)
		require.Equal(t, asked[i].Claim.ID, q.Claim.ID)
		require.Equal(t, 2, q.Count)
		r.reply(q, done)
	}
	r.pass(lease / 3)
	for _, i := range order {
		require.Equal(t, asked[i].Claim.ID, r.next(i, lua.Renew).Claim.ID)
	}
}

// A hold that has the votes of a majority alone waits for the others at once. So it outlives the server that
// freezes next, though others have come for the vote meanwhile.
func TestHolderWaitsForTheVotesThatItLacks(t *testing.T) {
	for _, waited := range []bool{true, false} {
		t.Run(fmt.Sprintf("it waited there when it won: %v", waited), func(t *testing.T) {
			r := newVotingRig(t)
			h, order := (*engine.Hold)(nil), r.inOrder()
			if waited {
				h, _ = r.letIn()
				r.reply(r.next(order[2], lua.Vote), waits(time.Minute))
			} else {
				h = r.acquire(protocol.Write, false)
			}
			r.votes(order[1], order[0])
			require.Equal(t, engine.Live, h.State())
			if !waited {
				r.reply(r.next(order[2], lua.Vote), waits(time.Minute)) // to a try
				r.reply(r.next(order[2], lua.Vote), waits(time.Minute))
			}
			require.Zero(t, r.sends(order[2], lua.Unlock), "it keeps its place")
			r.reenter(h)
			r.hear(order[2])
			r.reply(r.next(order[2], lua.Reenter), done)
			r.answers = r.healthy(order[0])
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
			order := r.inOrder()
			r.votes(order[0])
			for range 2 {
				for _, i := range order[1:] {
					r.reply(r.next(i, lua.Vote), waits(time.Minute))
				}
			}
			require.Equal(t, engine.Wanted, h.State())
			if given {
				r.pass(shortestCollecting / 2)
				r.hear(order[1])
				r.votes(order[1])
				require.Equal(t, engine.Live, h.State())
				return
			}
			r.pass(2 * shortestCollecting)
			require.ErrorIs(t, h.Err(), engine.ErrLocked)
			require.Equal(t, 1, r.sends(order[0], lua.Unlock), "the vote of the home is given back")
		})
	}
}

// What was published before the subscription stood is gone.
func TestWaiterAsksAgainOnceTheSubscriptionStands(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("it stands before the server has answered: %v", early), func(t *testing.T) {
			r := newVotingRig(t)
			r.listens = false
			r.acquire(protocol.Write, false)
			home := r.inOrder()[0]
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
			r.reply(r.next(home, lua.Vote), waits(time.Minute))
			r.pass(time.Second)
			require.Zero(t, r.sends(home, lua.Vote), "once is enough")
		})
	}
}

// The reply to the first run of a release may have told whom it let in.
func TestWaitersAskAgainIfAReleaseHadRunBefore(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	home := r.inOrder()[0]
	r.acquire(protocol.Write, false)
	r.reply(r.next(home, lua.Vote), waits(time.Minute))
	require.Zero(t, r.sends(home, lua.Vote))
	r.release(h)
	r.reply(r.next(home, lua.Unlock), doneBefore)
	require.Equal(t, 1, r.sends(home, lua.Vote))
}

func TestReleaseThatAMajorityRefusesFailsWithWhatItSays(t *testing.T) {
	r := newVotingRig(t)
	h := r.held()
	order := r.inOrder()
	r.release(h)
	r.reply(r.next(order[0], lua.Unlock), nonsense)
	require.Equal(t, engine.Releasing, h.State())
	r.reply(r.next(order[1], lua.Unlock), nonsense)
	require.ErrorIs(t, h.Err(), protocol.ErrReply)
}

// It waits for every server that answers anybody: a request that ran later would drop later holds.
func TestForceUnlockIsOverWhenAllHaveAnsweredThatAnswer(t *testing.T) {
	force := func(t *testing.T) *rig {
		r := newVotingRig(t)
		r.do(func() { require.NoError(t, r.engine.Force(r.now, "n", "tag")) })
		return r
	}
	t.Run("all answer", func(t *testing.T) {
		r := force(t)
		for i := range 3 {
			require.Empty(t, r.outcomes)
			r.reply(r.next(i, lua.Force), done)
		}
		require.Equal(t, []engine.Answer{{Tag: "tag"}}, r.outcomes)
	})
	t.Run("one is silent", func(t *testing.T) {
		r := force(t)
		for i := range 2 {
			r.reply(r.next(i, lua.Force), done)
		}
		require.Empty(t, r.outcomes)
		r.pass(shortestPatience)
		require.Equal(t, []engine.Answer{{Tag: "tag"}}, r.outcomes)
	})
	t.Run("two are silent", func(t *testing.T) {
		r := force(t)
		r.reply(r.next(0, lua.Force), done)
		r.pass(shortestPatience)
		require.Empty(t, r.outcomes, "one of them may yet answer")
		r.fail(r.next(1, lua.Force))
		r.fail(r.next(2, lua.Force))
		require.Len(t, r.outcomes, 1)
		require.ErrorIs(t, r.outcomes[0].Err, ErrNoMajority)
	})
	t.Run("two refuse", func(t *testing.T) {
		r := force(t)
		r.reply(r.next(0, lua.Force), nonsense)
		r.reply(r.next(1, lua.Force), done)
		r.reply(r.next(2, lua.Force), nonsense)
		require.Len(t, r.outcomes, 1)
		require.ErrorIs(t, r.outcomes[0].Err, protocol.ErrReply)
	})
}

// Nobody knows whether a request that failed will run. Its slot is not used again, even after the name was
// forgotten.
func TestSlotIsNotUsedAgainUnlessItsEndIsConfirmed(t *testing.T) {
	for name, begin := range map[string]func(r *rig) (requests []*Request){
		"vote": func(r *rig) (votes []*Request) {
			h := r.held()
			r.release(h)
			for i := range 3 {
				votes = append(votes, r.next(i, lua.Unlock))
			}
			return votes
		},
		"ForceUnlock": func(r *rig) (forces []*Request) {
			r.do(func() { require.NoError(r.t, r.engine.Force(r.now, "n", nil)) })
			for i := range 3 {
				forces = append(forces, r.next(i, lua.Force))
			}
			return forces
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newVotingRig(t)
			var used [3][]any
			for k := range 3 {
				for i, q := range begin(r) {
					used[i] = append(used[i], q.Claim.Slot)
					if k == 0 && i == 0 {
						r.refuse(q)
					} else {
						r.reply(q, done)
					}
				}
				if k == 1 { // the name is forgotten
					r.answers = r.healthy(-1)
					for i := range mostIdle + 1 {
						h := r.call(fmt.Sprint(i))
						r.answer()
						r.release(h)
						r.answer()
					}
					r.answers = nil
					require.NotContains(t, r.quorum.locks, protocol.KeysOf("p", "n").Lock)
				}
			}
			require.NotContains(t, used[0][1:], used[0][0])
			require.Equal(t, used[1][0], used[1][1])
			require.Equal(t, used[1][0], used[1][2])
		})
	}
}

func TestInspectSaysWhatAMajorityHas(t *testing.T) {
	const name = "n"
	r := newVotingRig(t)
	state := func(handle uint64) any {
		c := protocol.NewClaim(protocol.Write, "instance-02", 0, 7, protocol.Owner{Handle: handle})
		return []any{fmt.Sprint(someToken + 1), []any{"owner", c.ID, "lease", "30000", "fence",
			fmt.Sprint(someToken)}, []any{}, []any{}}
	}
	r.do(func() { require.NoError(t, r.engine.Inspect(r.now, name, "tag")) })
	r.reply(r.next(0, lua.Inspect), state(5))
	r.reply(r.next(1, lua.Inspect), state(6))
	require.Empty(t, r.outcomes)
	r.reply(r.next(2, lua.Inspect), state(6))
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
	r := newVotingRig(t)
	h := r.acquire(protocol.Write, false)
	order := r.inOrder()
	home := r.next(order[0], lua.Vote)
	r.reply(home, waits(time.Second))
	message := fmt.Sprintf("%d 0 %d", someToken, home.number)
	r.do(func() { r.quorum.Heard(r.now, order[0], message) })
	r.do(func() { r.quorum.Heard(r.now, order[1], message) })
	require.Equal(t, engine.Wanted, h.State())
	for i, v := range r.quorum.bids[home.bid.claim].votes {
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
	require.Equal(t, "1 of 3 servers of the quorum vote: client 1: i/o timeout; client 2: i/o timeout",
		r.logged[1])

	r.answers = r.healthy(-1)
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
				r.answers = r.healthy(-1)
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
