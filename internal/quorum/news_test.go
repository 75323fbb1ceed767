package quorum

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A client that misses a server has another one rest, and admits it, by what was found after it had asked,
// each time: not by what was told before, nor by what was found on the servers of another generation.
func TestNewsAreNotOlderThanTheQuestion(t *testing.T) {
	r := newRig(t)
	asked, told, mark := int64(0), "", markWith("1763763763000000:1", "", false, 0, "").([]any)
	var admits []any
	r.answers = func(q *Request) any {
		switch {
		case q.Script != lua.Mark || q.Server == 0: // it is silent
			return nil
		case q.Server == 1:
			switch q.VoteArgs.Args[0] {
			case "rest":
				mark[2] = int64(1)
			case "admit":
				admits = q.VoteArgs.Args
				mark[1], mark[2] = admits[3], int64(0)
			}
			return slices.Clone(mark)
		case q.VoteArgs.Args[0] == "ask":
			asked++
		}
		return append(markWith("1763763763000000:2", "g", false, time.Second, "5").([]any)[:7], asked, told)
	}
	tells := func(n int64, generation string, top int) { told = fmt.Sprintf("%d %s 10000 %d", n, generation, top) }
	r.acquire(protocol.Write, false)
	r.answer()
	r.pass(5 * time.Second)
	require.EqualValues(t, 1, asked)
	tells(0, "g", 5)
	r.pass(2 * time.Second)
	require.Zero(t, mark[2], "it was told before")
	tells(1, "other", 6)
	r.pass(2 * time.Second)
	require.Zero(t, mark[2], "it is of another generation")
	tells(1, "g", 7)
	r.pass(2 * time.Second)
	require.EqualValues(t, 1, mark[2], "it rests")
	rests := r.now
	r.pass(7 * time.Second) // the longest lease is of 10 s
	require.Nil(t, admits)
	r.pass(5 * time.Second)
	require.Greater(t, asked, int64(1), "it asks again once the server has rested")
	require.Nil(t, admits, "what it was told is from before")
	tells(asked, "g", 9)
	r.pass(2 * time.Second)
	require.Equal(t, []any{"admit", "10000", "1763763763000000:1", "g", "9"}, admits)
	require.GreaterOrEqual(t, r.now.Sub(rests), 10*time.Second)
}

// A client that misses a server looks for questions at the others, and answers each once, by what a majority
// says that it reads afterwards.
func TestQuestionsAreAnswered(t *testing.T) {
	r := newVotingRig(t)
	asked, told, told2, reads := int64(0), "", 0, [3]int{}
	r.answers = func(q *Request) any {
		switch {
		case q.Script != lua.Mark:
			return done
		case q.Server == 0:
			return nil // it is silent
		case q.VoteArgs.Args[0] == "tell":
			require.Equal(t, []any{"tell", "0", "1763763763000000:2", "3", "g", "60000", "7"}, q.VoteArgs.Args)
			told, told2 = "3 g 60000 7", told2+1
		default:
			reads[q.Server]++
		}
		reply := markOf(q.Server, "g", false, "7").([]any)
		if q.Server == 2 {
			reply = append(reply[:7], asked, told)
		}
		return reply
	}
	r.pass(time.Minute)
	require.Zero(t, reads, "it misses no server")
	s := r.quorum.servers[0]
	r.do(func() { r.quorum.suspect(r.now, s) })
	r.pass(time.Minute)
	require.Zero(t, told2)
	require.Equal(t, [3]int{0, 31, 31}, reads)
	asked = 3
	r.pass(time.Minute)
	require.Equal(t, 1, told2)
}

// A client that starts the servers one after the other, as it misses one, goes on without one that refuses.
func TestServerThatRefusesToStartHoldsUpNoOther(t *testing.T) {
	r := newRig(t)
	r.quorum = New(Config{Servers: 5, Prefix: "p", Instance: "instance-01"}, r.engine)
	var generation [5]string
	r.answers = func(q *Request) any {
		switch {
		case q.Server == 4: // it is silent
			return nil
		case q.Script != lua.Mark:
			return r.vote(someToken)
		case q.VoteArgs.Args[0] == "start" && q.Server == 0: // its id is the first
			return full
		case q.VoteArgs.Args[0] == "start":
			generation[q.Server] = q.VoteArgs.Args[3].(string)
		}
		return markOf(q.Server, generation[q.Server], false, "")
	}
	h := r.acquire(protocol.Write, false)
	r.answer()
	r.pass(3 * time.Second)
	require.Equal(t, engine.Live, h.State())
}
