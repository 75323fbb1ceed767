package quorum

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// started returns the generation that a client starts on servers with these ids, in no time.
func started(t *testing.T, ids ...int) string {
	r := makeRig(t)
	start := r.now
	for i, id := range ids {
		r.servers[i].id = idOf(id)
	}
	h := r.acquire(protocol.Write, false)
	r.replyAll(r.serve)
	require.Equal(t, engine.Live, h.State())
	require.Equal(t, start, r.now)
	generation := r.servers[0].generation
	require.NotEmpty(t, generation)
	require.Equal(t, generation, r.servers[1].generation)
	require.Equal(t, generation, r.servers[2].generation)
	return generation
}

// Clients that find new servers at the same time start the same generation, in whatever order they name them;
// and another after one of them has lost its data.
func TestGenerationFollowsFromTheIDsOfTheServers(t *testing.T) {
	t.Parallel()
	require.Equal(t, started(t, 0, 1, 2), started(t, 2, 0, 1))
	require.NotEqual(t, started(t, 0, 1, 2), started(t, 0, 1, 3))
}

// A client that asks the servers for their marks while another client starts them does not wait for its next
// look at those that were not started yet: it would be overtaken by all that lock meanwhile.
func TestServersThatAreBeingStartedAreAskedAgainAtOnce(t *testing.T) {
	r := newRig(t)
	h := r.acquire(protocol.Write, false)
	start := r.now
	r.serves(0, lua.Mark)
	r.serves(2, lua.Mark)
	r.generation("g", 1, 2)
	r.servers[1].top, r.servers[2].top = "7", "7"
	r.serves(1, lua.Mark) // it has voted since
	r.serves(0, lua.Mark) // it is started last
	require.Zero(t, r.sends(0, lua.Mark), "it is not asked again and again")
	r.serves(2, lua.Mark)
	r.serves(1, lua.Vote)
	r.serves(2, lua.Vote)
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
			r.generation("g", 0)
			r.servers[0].top = top
			r.acquire(protocol.Write, false)
			asked := 0
			for ; len(r.sent) > 0 && asked < 100; asked++ {
				r.answerFirst()
			}
			require.Equal(t, 3+2, asked)
			require.Empty(t, r.servers[1].generation)
		})
	}
}

// The first call of a client does not fail while the mark that completes a majority is in flight, whatever
// became of another server.
func TestFirstTryWaitsForTheMarksOfAMajority(t *testing.T) {
	for _, rests := range []bool{true, false} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("a server rests %v, or cannot be reached, early %v", rests, early), func(t *testing.T) {
				r := newRig(t)
				r.generation("g", 0, 1)
				r.servers[2].rests = rests
				other := func() {
					if rests {
						r.serves(2, lua.Mark)
					} else {
						r.fail(r.next(2, lua.Mark))
					}
				}
				h := r.acquire(protocol.Write, true)
				if early {
					other()
				}
				r.serves(0, lua.Mark)
				if !early {
					other()
				}
				require.NoError(t, h.Err())
				r.serves(1, lua.Mark)
				r.votes(0, 1)
				require.Equal(t, engine.Live, h.State())
			})
		}
	}
}

// While too few servers answer, calls that end meanwhile say so.
func TestServersThatRestAreNoMajority(t *testing.T) {
	r := newRig(t)
	r.generation("g", 0)
	r.servers[2].rests = true
	r.acquire(protocol.Write, false)
	r.serves(0, lua.Mark)
	r.serves(2, lua.Mark)
	require.NoError(t, r.quorum.Trouble())
	r.pass(2 * shortestPatience)
	require.ErrorIs(t, r.quorum.Trouble(), ErrNoMajority)
}

// It fails at once if what is in flight cannot complete a majority. The error names the servers that do not
// vote, and no other.
func TestFirstTryFailsWithoutAMajority(t *testing.T) {
	r := newRig(t)
	r.generation("g", 1)
	r.servers[2].rests = true
	h := r.acquire(protocol.Write, true)
	r.fail(r.next(0, lua.Mark))
	r.serves(1, lua.Mark)
	require.NoError(t, h.Err())
	r.serves(2, lua.Mark)
	require.ErrorIs(t, h.Err(), ErrNoMajority)
	require.ErrorContains(t, h.Err(), "1 of 3 vote, 2 are needed: client 0: ")
	require.ErrorContains(t, h.Err(), "; client 2: it rests")
	require.NotContains(t, h.Err().Error(), "client 1")
}

func TestServerThatHasLostItsMarkRestsBeforeItVotes(t *testing.T) {
	r := newRig(t)
	r.generation("g", 0, 1)
	start, h, lost := r.now, r.acquire(protocol.Write, false), &r.servers[2]
	r.replyAll(r.serve)
	require.Equal(t, engine.Live, h.State())
	slow := 0
	r.answers = func(q *Request) any {
		if q.Script == lua.Mark && q.Server == 1 && slow < 3 {
			slow++
			return nil
		}
		if rest := lost.did["rest"]; rest.times > 0 && !r.now.Before(rest.at.Add(longestInUse)) {
			r.servers[0].top, r.servers[1].top = "9", "11"
		}
		return r.serve(q)
	}
	r.pass(2 * longestInUse)
	rest, admit := lost.did["rest"], lost.did["admit"]
	require.Equal(t, []string{"rest", "0", idOf(2), ""}, rest.args[:4])
	require.False(t, rest.at.Before(start.Add(shortestStart)), "until then, another client may be starting it")
	require.Equal(t, []string{"admit", "60000", idOf(2), "g", "11"}, admit.args, "the tokens of marks read after the rest")
	require.False(t, admit.at.Before(rest.at.Add(longestInUse)))
	require.True(t, admit.at.Before(rest.at.Add(longestInUse+longestInUse/100+5*time.Second)))
	require.False(t, lost.did["vote"].at.Before(admit.at), "the renewal asks for its vote")
	require.Equal(t, 1, lost.did["vote"].times)
	require.Equal(t, engine.Live, h.State())
}

func TestClientFindsThatAServerWasReplacedByAskingForItsVote(t *testing.T) {
	const changed = 2
	r, _ := asking(t)
	r.servers[changed].id = "1763763769000000:x"
	r.serves(changed, lua.Vote)
	r.serves(changed, lua.Mark)
	r.acquire(protocol.Write, false)
	require.Equal(t, "1763763769000000:x", r.next(changed, lua.Vote).VoteArgs.ID)
}

func TestServersThatFailWhileTheyStartAreAskedAgain(t *testing.T) {
	r := newRig(t)
	h := r.acquire(protocol.Write, false)
	for i := range 3 {
		r.serves(i, lua.Mark)
	}
	r.serves(0, lua.Mark)
	r.fail(r.next(1, lua.Mark))
	r.fail(r.next(2, lua.Mark))
	r.answers = r.serve
	r.pass(10 * time.Second)
	require.Equal(t, engine.Live, h.State())
	require.NotEmpty(t, r.servers[0].generation)
	require.Equal(t, r.servers[0].generation, r.servers[1].generation)
	require.Equal(t, r.servers[0].generation, r.servers[2].generation)
}

// Servers that did not answer for a while may answer again one after the other. A client that did not wait
// for the last of them would start the others without it, and they would all rest.
func TestServersThatAreFirstReachedAfterAnOutageAreStartedTogether(t *testing.T) {
	for _, outage := range []any{errSilence, nil} {
		t.Run(fmt.Sprint(outage), func(t *testing.T) {
			r := newRig(t)
			h := r.begin(&engine.Hold{Name: name, Mode: protocol.Write})
			r.answers = func(*Request) any { return outage }
			r.pass(10 * time.Second)
			r.answers = r.healthy(2)
			r.answer()
			r.pass(pause)
			r.answers = r.serve
			r.answer()
			r.pass(shortestStart)
			require.Equal(t, engine.Live, h.State())
			for i := range 3 {
				require.Zero(t, r.servers[i].did["rest"])
			}
		})
	}
}

func TestServerThatRefusesToChangeItsMarkIsNotAskedWithoutAPause(t *testing.T) {
	r := newRig(t)
	r.acquire(protocol.Write, false)
	asked := 0
	r.answers = func(q *Request) any {
		asked++
		if q.VoteArgs.Args[0] == "start" {
			return nonsense
		}
		return r.serve(q)
	}
	r.answer()
	r.pass(time.Second)
	require.Less(t, asked, 50)
}

// A client that starts the servers one after the other, as it misses one, goes on without one that refuses.
func TestServerThatRefusesToStartHoldsUpNoOther(t *testing.T) {
	r := newRig(t)
	r.quorum = New(Config{Servers: 5, Prefix: "p", Instance: "instance-01"}, r.engine)
	healthy := r.healthy(4)
	r.answers = func(q *Request) any {
		if q.Script == lua.Mark && q.VoteArgs.Args[0] == "start" && q.Server == 0 { // its id is the first
			return full
		}
		return healthy(q)
	}
	h := r.acquire(protocol.Write, false)
	r.answer()
	r.pass(3 * time.Second)
	require.Equal(t, engine.Live, h.State())
}

// A server rests for the longest lease that it may have voted for, which a majority has to know before it is
// voted for.
func TestNoVoteIsAskedForBeforeAMajorityKnowsTheLease(t *testing.T) {
	r := newVotingRig(t)
	r.acquireFor(time.Hour)
	for i := range 2 {
		require.Zero(t, r.sends(0, lua.Vote)+r.sends(1, lua.Vote)+r.sends(2, lua.Vote), "%d servers know the lease",
			i)
		r.serves(i, lua.Mark)
		require.Equal(t, []string{"see", "3600000"}, r.servers[i].did["see"].args[:2])
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
		if q.Script == lua.Mark {
			said[q.VoteArgs.Args[1]]++
		}
		return r.serve(q)
	}
	r.use(r.acquireFor(time.Hour))
	require.Equal(t, map[any]int{"3600000": 3}, said)
	for end := r.now.Add(time.Hour); r.now.Before(end); r.pass(time.Second) {
		r.use(r.acquireFor(lease))
	}
	require.Equal(t, 3, said["3600000"], "it was asked for once")
	require.InDelta(t, 3*(time.Hour-(time.Hour+inUse)/4)/((lease+inUse)/4), said["30000"], 3)

	r.pass(time.Hour)
	h := r.acquireFor(lease)
	require.Equal(t, []int{0, 0, 0}, []int{r.sends(0, lua.Vote), r.sends(1, lua.Vote), r.sends(2, lua.Vote)},
		"the servers may have forgotten it")
	r.use(h)
}

// A client that finds a server at rest does not know for how long it has rested, whatever the server's clock
// shows: it waits for the longest lease in use itself. What the server may have forgotten is what the others'
// marks say that are read after that.
func TestClientAdmitsAServerThatItHasSeenAtRestItself(t *testing.T) {
	r := newRig(t)
	r.generation("g", 0, 1)
	resting := &r.servers[2]
	resting.rests = true
	r.acquire(protocol.Write, false)
	r.serves(0, lua.Mark)
	r.serves(1, lua.Mark)
	r.pass(time.Millisecond)
	r.serves(2, lua.Mark)
	found := r.now
	r.answers = r.serve
	r.answer()
	r.pass(longestInUse)
	require.Zero(t, resting.did["admit"])
	r.servers[0].top, r.servers[1].top = "9", "9"
	r.pass(5 * time.Second)
	require.Equal(t, []string{"admit", "60000", idOf(2), "g", "9"}, resting.did["admit"].args)
	require.True(t, resting.did["admit"].at.After(found.Add(longestInUse)))
}

// A server that has lost its data again rests again, whole.
func TestServerThatLosesItsDataAtRestRestsAgain(t *testing.T) {
	r := newVotingRig(t)
	h, lost := r.acquire(protocol.Write, false), &r.servers[2]
	r.answers = r.serve
	r.answer()
	require.Equal(t, engine.Live, h.State())
	for n := range 2 {
		lost.loses(fmt.Sprintf("1763763769000000:%d", n))
		r.pass(50 * time.Second)
		require.True(t, lost.rests)
		require.Zero(t, lost.did["admit"])
	}
	r.pass(time.Minute)
	require.GreaterOrEqual(t, lost.did["admit"].at.Sub(lost.did["rest"].at), longestInUse)
	require.Equal(t, lost.id, lost.did["admit"].args[2])
}

// A server that an idle client has found at rest is admitted all the same: no call may come to see to that in
// time.
func TestServerIsAdmittedThoughNoCallComes(t *testing.T) {
	r := newVotingRig(t)
	r.answers = r.serve
	r.use(r.acquire(protocol.Write, false))
	lost := &r.servers[2]
	lost.loses("1763763769000000:x")
	r.do(func() { r.quorum.readMark(r.now, r.quorum.servers[2]) }) // for whatever reason
	r.answer()
	r.pass(longestInUse + 5*time.Second)
	require.Equal(t, "g", lost.generation)
	r.pass(risen)
	_, due := r.quorum.Next()
	require.False(t, due, "nothing is left to do")
}

func TestVotesOfAServerThatHasLostItsDataDoNotCount(t *testing.T) {
	r, h := asking(t)
	const lost = 1
	r.votes(lost)
	r.acquire(protocol.Write, false)
	r.servers[lost].loses(idOf(7))
	r.serves(lost, lua.Vote)
	r.serves(lost, lua.Mark)
	r.votes(0)
	require.Equal(t, engine.Wanted, h.State())
	r.votes(2)
	require.Equal(t, engine.Live, h.State())
}

// A client that misses a server has another one rest, and admits it, by what was found after it had asked,
// each time: not by what was told before, nor by what was found on the servers of another generation.
func TestNewsAreNotOlderThanTheQuestion(t *testing.T) {
	r := newRig(t)
	r.generation("g", 2)
	lost, other := &r.servers[1], &r.servers[2]
	lost.longest, other.longest, other.top = 0, time.Second, "5"
	r.answers = r.healthy(0)
	tells := func(n int64, generation string, top int) {
		other.told = fmt.Sprintf("%d %s 10000 %d", n, generation, top)
	}
	r.acquire(protocol.Write, false)
	r.answer()
	r.pass(5 * time.Second)
	require.EqualValues(t, 1, other.asked)
	tells(0, "g", 5)
	r.pass(2 * time.Second)
	require.False(t, lost.rests, "it was told before")
	tells(1, "other", 6)
	r.pass(2 * time.Second)
	require.False(t, lost.rests, "it is of another generation")
	tells(1, "g", 7)
	r.pass(2 * time.Second)
	require.True(t, lost.rests)
	rests := r.now
	r.pass(7 * time.Second) // the longest lease is of 10 s
	require.Zero(t, lost.did["admit"])
	r.pass(5 * time.Second)
	require.Greater(t, other.asked, int64(1), "it asks again once the server has rested")
	require.Zero(t, lost.did["admit"], "what it was told is from before")
	tells(other.asked, "g", 9)
	r.pass(2 * time.Second)
	require.Equal(t, []string{"admit", "10000", idOf(1), "g", "9"}, lost.did["admit"].args)
	require.GreaterOrEqual(t, r.now.Sub(rests), 10*time.Second)
}

// A client that misses a server looks for questions at the others, and answers each once, by what a majority
// says that it reads afterwards.
func TestQuestionsAreAnswered(t *testing.T) {
	r := newVotingRig(t)
	r.servers[1].top, r.servers[2].top = "7", "7"
	seen := func() [2]int { return [2]int{r.servers[1].did["see"].times, r.servers[2].did["see"].times} }
	before := seen()
	r.answers = r.healthy(0)
	r.pass(time.Minute)
	require.Equal(t, before, seen(), "it misses no server")
	r.do(func() { r.quorum.suspect(r.now, r.quorum.servers[0]) })
	r.pass(time.Minute)
	require.Equal(t, [2]int{before[0] + 31, before[1] + 31}, seen())
	asked := &r.servers[2]
	require.Zero(t, asked.did["tell"])
	asked.asked = 3
	r.pass(time.Minute)
	require.Equal(t, 1, asked.did["tell"].times)
	require.Equal(t, []string{"tell", "0", idOf(2), "3", "g", "60000", "7"}, asked.did["tell"].args)
}

// founding returns a rig of so many servers, some of which are silent, and a call. The client has just begun
// to start the others, a majority: the request to the first of them is in flight.
func founding(t *testing.T, servers int, silent ...int) (*rig, *engine.Hold) {
	r := newRig(t)
	r.quorum = New(Config{Servers: servers, Prefix: "p", Instance: "instance-01"}, r.engine)
	h := r.acquire(protocol.Write, false)
	r.answers = func(q *Request) any {
		if slices.Contains(silent, q.Server) || q.VoteArgs.Args[0] == "start" {
			return nil
		}
		return r.serve(q)
	}
	r.answer()
	r.pass(shortestStart)
	require.Equal(t, "start", r.sent[len(r.sent)-1].VoteArgs.Args[0])
	r.answers = nil
	return r, h
}

// A server may be heard first after a client has begun to start the others without it. The client goes on
// with that: if it began another generation, some servers would be in one and some in the other, and all
// would rest.
func TestStartOfAMajorityIsFinishedThoughTheThirdServerAnswers(t *testing.T) {
	r, h := founding(t, 3, 0)
	r.serves(0, lua.Mark)
	r.answers = r.serve
	r.answer()
	r.pass(4 * pause)
	require.Equal(t, engine.Live, h.State())
	require.Zero(t, r.servers[1].did["rest"].times+r.servers[2].did["rest"].times)
}

// That is so, too, if the reply of the first takes longer than a server is waited for.
func TestStartIsFinishedThoughAReplyIsLate(t *testing.T) {
	r, h := founding(t, 5, 3, 4)
	start := r.next(0, lua.Mark)
	mark := r.serve(start)
	r.serves(3, lua.Mark)
	r.answers = func(q *Request) any {
		if q.Server == 0 || q.Server == 4 || q.VoteArgs.Args[0] == "start" {
			return nil
		}
		return r.serve(q)
	}
	r.pass(3 * shortestPatience)
	require.True(t, r.quorum.servers[0].suspected)
	r.reply(start, mark)
	r.answers = r.healthy(4)
	r.answer()
	r.pass(4 * pause)
	require.Equal(t, engine.Live, h.State())
}

// If one of the servers that are to be started together is gone, or refuses, another one takes its place:
// soon, or after its rest.
func TestStartThatCannotBeFinishedIsGivenUp(t *testing.T) {
	for what, c := range map[string]struct {
		servers int
		silent  []int         // at first
		after   time.Duration // for how long, once the start has begun
		fails   int           // a server
		refuses bool          // or else it is gone
	}{
		"the first is gone":         {servers: 3, silent: []int{0}, fails: 1},
		"the first is long gone":    {servers: 3, silent: []int{0}, fails: 1, after: pause},
		"the first refuses":         {servers: 3, silent: []int{0}, fails: 1, refuses: true},
		"the second refuses":        {servers: 3, silent: []int{0}, fails: 2, refuses: true},
		"the first of five is gone": {servers: 5, silent: []int{3, 4}, fails: 0},
		"the first of five refuses": {servers: 5, silent: []int{3, 4}, fails: 0, refuses: true},
	} {
		t.Run(what, func(t *testing.T) {
			r, h := founding(t, c.servers, c.silent...)
			answers, within := r.healthy(c.fails), foundingTime+2*pause
			if c.refuses {
				within = 2 * longestInUse
				answers = func(q *Request) any {
					if q.Server == c.fails && (q.Script != lua.Mark || q.VoteArgs.Args[0] != "see") {
						return full
					}
					return r.serve(q)
				}
			}
			r.answers = func(q *Request) any {
				if slices.Contains(c.silent, q.Server) {
					return nil
				}
				return answers(q)
			}
			r.pass(c.after)
			r.answers = answers
			r.answer()
			r.pass(within)
			require.Equal(t, engine.Live, h.State())
		})
	}
}

// What others have found counts although this client has known the missing server before.
func TestNewsCountThoughTheServerWasKnown(t *testing.T) {
	r := newVotingRig(t)
	lost, other := &r.servers[1], &r.servers[2]
	r.answers = r.healthy(0)
	h := r.acquire(protocol.Write, false)
	r.answer()
	r.pass(time.Second)
	require.Equal(t, engine.Live, h.State())
	lost.loses("new")
	r.release(h)
	r.acquire(protocol.Write, false)
	r.pass(5 * time.Second)
	require.EqualValues(t, 1, other.asked)
	passes := func(d time.Duration) {
		for end := r.now.Add(d); r.now.Before(end); r.pass(time.Second) {
			// Ten minutes: longer than any mark has said.
			other.told = fmt.Sprintf("%d g 600000 9000000000000000", other.asked)
		}
	}
	passes(10 * time.Minute)
	require.True(t, lost.rests)
	require.Zero(t, lost.did["admit"])
	passes(30 * time.Second)
	require.Equal(t, []string{"admit", "600000", "new", "g", "9000000000000000"}, lost.did["admit"].args)
}

// A server that rests is looked at meanwhile: it may lose its data again, or another client may admit it.
func TestServerThatRestsIsLookedAt(t *testing.T) {
	r := newVotingRig(t)
	s := &r.servers[2]
	s.loses("new")
	r.answers = r.serve
	r.use(r.acquire(protocol.Write, false))
	r.pass(5 * time.Second)
	require.True(t, s.rests)
	s.generation, s.rests = "g", false // another client has admitted it
	r.pass(questionsEvery + pause)
	require.True(t, r.quorum.servers[2].answers())
}

// A lease that was noted before the machine fell asleep is as old as that, whenever the answer is read.
func TestAnswerOfBeforeASleepIsOld(t *testing.T) {
	r := makeRig(t)
	r.generation("g", 0, 1, 2)
	r.acquireFor(10 * time.Minute)
	answers := r.sent
	r.sent = nil
	r.do(func() { r.quorum.Slept(r.now, 2*time.Hour) })
	for _, q := range answers {
		r.reply(q, r.serve(q))
	}
	require.Zero(t, r.sends(0, lua.Vote))
}

// A claim that has waited since before a server was admitted asks it for a token larger than all that the
// server may have forgotten: the token that the claim's home has given it may be smaller.
func TestTokenIsLargerThanWhatAnAdmittedServerHasForgotten(t *testing.T) {
	const lost, forgotten = 1, someToken + 1_000_000_000_000
	r, h := asking(t)
	r.votes(0)
	r.replies(2, lua.Vote, waits(time.Hour))
	r.servers[lost].loses("new")
	r.replies(lost, lua.Vote, unmarked)
	r.servers[0].top, r.servers[2].top = fmt.Sprint(forgotten), fmt.Sprint(forgotten)
	r.answers = func(q *Request) any {
		switch {
		case q.Script == lua.Mark && q.VoteArgs.Args[0] == "admit":
			r.servers[lost].top = q.VoteArgs.Args[4]
		case q.Script != lua.Vote:
		case q.Server == 2:
			return waits(time.Hour)
		default: // the server's data about the name is old
			return r.vote(max(someToken, tokenOf(t, q)))
		}
		return r.serve(q)
	}
	r.answer()
	r.pass(2 * longestInUse)
	require.Equal(t, engine.Live, h.State())
	require.Greater(t, h.Token(), forgotten)
}

func tokenOf(t *testing.T, q *Request) int64 {
	wanted, err := strconv.ParseInt(q.VoteArgs.Wanted, 10, 64)
	require.NoError(t, err)
	return wanted
}
