package protocol_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A poller is one server of a quorum, as a client asks it.
type poller struct {
	*bench
	mark string
	id   string // that the server has said last
}

// eachPoller runs fn on servers of each kind that were never asked for their marks.
func eachPoller(t *testing.T, fn func(t *testing.T, p *poller)) {
	t.Parallel()
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		fn(t, &poller{bench: newBench(t, s.Client(), s.Prefix, "l"), mark: protocol.MarkOf(s.Prefix)})
	})
}

// asks runs the script of the mark.
func (p *poller) asks(args ...string) protocol.Mark {
	p.t.Helper()
	r := protocol.Request{Script: lua.Mark, VoteArgs: &protocol.VoteArgs{Mark: p.mark, Args: args}}
	raw, err := p.c.Do(p.t.Context(), r.Argv([]any{"EVALSHA", r.Script.SHA})...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		raw, err = p.c.Do(p.t.Context(), append(r.Argv([]any{"EVAL", r.Script.Source}), "volatile")...).Result()
	}
	require.NoError(p.t, err)
	m, err := protocol.DecodeMark(raw)
	require.NoError(p.t, err)
	p.id = m.ID
	return m
}

// started has the server vote, in generation g.
func (p *poller) started() {
	p.t.Helper()
	p.asks("start", "60000", p.asks("see", "0", "me").ID, "g")
}

// votes returns a request for a vote.
func (p *poller) votes(of *party, generation string, wanted int64) protocol.Request {
	q := of.asks()
	q.Script = lua.Vote
	q.VoteArgs = &protocol.VoteArgs{Mark: p.mark, Generation: generation, Wanted: protocol.TokenArg(wanted),
		ID: p.id}
	return q
}

func (p *poller) vote(of *party, wanted int64) protocol.Reply {
	p.t.Helper()
	return p.run(p.votes(of, "g", wanted))
}

const someToken = 1_763_763_763_763_763

// What a vote and the mark are in Redis, and what is sent for them, is a contract as that of a lock is.
func TestVotesArePinned(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		w := p.named(protocol.Write, "layout-01AA")
		q := p.votes(w, "g", someToken)
		q.Keys, q.Channels, q.Lease = protocol.KeysOf("p", "l"), "p:wake:", protocol.NewLease(30*time.Second)
		q.VoteArgs.Mark = protocol.MarkOf("p")
		require.Equal(t, []any{
			"4", "p:{l}", "p:{l}:leases", "p:{l}:queue", "p:mark", w.ID, w.Number, w.Slot, "30000", "p:wake:",
			"240000", "wait", "g", "1763763763763763", p.id,
		}, q.Argv(nil))
		require.LessOrEqual(t, len(q.Argv(nil))+2, protocol.MaxArgs)

		require.EqualValues(t, someToken, p.vote(w, someToken).Vote)
		fields := p.c.HGetAll(t.Context(), p.keys.Lock.(string)).Val()
		require.Equal(t, "layout-01AA:000000000000001 1763763763763763 1763763763763763", fields["vote"])
		require.Equal(t, w.ID, fields["owner"])
		mark := p.c.HGetAll(t.Context(), p.mark).Val()
		require.Regexp(t, `^\d{16}:me$`, mark["id"])
		require.Regexp(t, `^\d{10}$`, mark["turned"])
		require.Regexp(t, `^\d{13}$`, mark["since"])
		require.Regexp(t, `^([0-9a-f]{40})?$`, mark["run"])
		require.Regexp(t, `^(\d{10})?$`, mark["saved"])
		for _, field := range []string{"id", "turned", "since", "run", "saved"} {
			delete(mark, field)
		}
		require.Equal(t, map[string]string{"generation": "g", "longest": "60000", "top": "1763763763773763",
			"old": ""}, mark)
	})
}

// A server votes only for those that know its mark.
func TestVotesNeedTheMark(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		w := p.writer()
		require.True(t, p.run(p.votes(w, "", someToken)).Unmarked, "a server that was never asked for its mark")
		id := p.asks("see", "0", "me").ID
		require.True(t, p.run(p.votes(w, "g", someToken)).Unmarked)
		p.asks("start", "0", "another server", "g")
		require.True(t, p.run(p.votes(w, "g", someToken)).Unmarked, "the request was for another")
		p.asks("start", "0", id, "g")
		require.True(t, p.run(p.votes(w, "other", someToken)).Unmarked)
		p.id = "before it lost its data"
		require.True(t, p.vote(w, someToken).Unmarked)
		p.id = id
		require.EqualValues(t, someToken, p.vote(w, someToken).Vote)
	})
}

// A server remembers the longest lease that clients said is in use for twice that lease and ten minutes, at
// least, and not much longer.
func TestLeasesInUseAreRememberedWhileTheyMayBe(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		see := func(lease time.Duration) time.Duration {
			return p.asks("see", fmt.Sprint(lease.Milliseconds()), "me").Longest
		}
		pass := func(d time.Duration) { // by moving into the past what has a time
			since, err := p.c.HGet(t.Context(), p.mark, "since").Int64()
			require.NoError(t, err)
			p.c.HSet(t.Context(), p.mark, "since", since-d.Milliseconds())
		}
		require.Equal(t, time.Minute, see(0))
		require.Equal(t, time.Minute, see(30*time.Second))
		require.Equal(t, 2*time.Hour, see(2*time.Hour))
		pass(4*time.Hour + 9*time.Minute)
		require.Equal(t, 2*time.Hour, see(2*time.Hour), "said again")
		pass(2 * time.Minute)
		require.Equal(t, 2*time.Hour, see(30*time.Second))
		pass(4*time.Hour + 9*time.Minute)
		require.Equal(t, 2*time.Hour, see(40*time.Second), "that was said again not so long ago")
		pass(2 * time.Minute)
		require.Equal(t, 40*time.Second, see(0))
		pass(12 * time.Minute)
		require.Equal(t, 30*time.Second, see(30*time.Second))
		require.Equal(t, 2*time.Hour, see(2*time.Hour))
		pass(4*time.Hour + 11*time.Minute)
		require.Equal(t, 2*time.Hour, see(30*time.Second))
		pass(4*time.Hour + 11*time.Minute)
		require.Equal(t, 30*time.Second, see(0), "that was said when the longer one was forgotten")
	})
}

// The tokens of a server's votes for writers grow, whatever tokens are wanted, and those of readers fit in
// between.
func TestTokensOfVotesGrow(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		take := func(of *party, wanted int64) int64 {
			t.Helper()
			r := p.vote(of, wanted)
			require.Equal(t, r.Vote, p.vote(of, wanted).Vote, "the request runs again")
			require.Equal(t, protocol.Done, p.run(of.releases()).Code)
			return r.Vote
		}
		require.EqualValues(t, someToken, take(p.writer(), someToken))
		require.EqualValues(t, someToken+1, take(p.writer(), someToken))
		require.EqualValues(t, someToken+2, take(p.writer(), 0))
		require.EqualValues(t, someToken+2, take(p.reader(), someToken),
			"a reader has that of the writer before it")
		require.EqualValues(t, someToken+9, take(p.reader(), someToken+9))
		require.EqualValues(t, someToken+10, take(p.writer(), someToken+5),
			"a writer's is larger than that of a reader before it")
		require.EqualValues(t, someToken+20, take(p.reader(), someToken+20))
		require.EqualValues(t, someToken+15, take(p.reader(), someToken+15))
		require.EqualValues(t, someToken+21, take(p.writer(), someToken+16),
			"it is larger than that of any reader before it")
	})
}

// A token that is asked for again is written back: the largest of all servers becomes each one's.
func TestTokenIsWrittenBack(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		w := p.writer()
		require.EqualValues(t, someToken, p.vote(w, someToken).Vote)
		require.EqualValues(t, someToken+7, p.vote(w, someToken+7).Vote)
		p.run(w.releases())
		require.EqualValues(t, someToken+7, p.vote(p.reader(), someToken+1).Vote,
			"a reader's is no smaller than the writer's before it")
	})
}

// A server that has forgotten a name gives no token that it, or another, gave for it before; nor if its clock
// was set back.
func TestForgottenNamesGiveNoSmallerTokens(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		token := int64(someToken)
		for _, turned := range []string{"1", "9999999999"} {
			w := p.writer()
			p.vote(w, token)
			p.run(w.releases())
			p.c.HSet(t.Context(), p.mark, "turned", turned) // a minute passes, or the clock is set back
			other := &poller{newBench(t, p.c, p.prefix, "other"), p.mark, p.id}
			other.vote(other.writer(), 0)
			p.c.Del(t.Context(), p.keys.Lock.(string))
			require.Greater(t, p.vote(p.writer(), 0).Vote, token)
			p.c.Del(t.Context(), p.keys.Lock.(string))
			token += 1_000_000
		}
	})
}

// A server leaves its generation only to rest, and under another id: it may have voted for someone.
func TestServerKeepsItsGeneration(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		id := p.id
		require.Equal(t, "g", p.asks("start", "0", id, "other").Generation)
		require.Equal(t, "g", p.asks("admit", "0", id, "other", protocol.TokenArg(someToken)).Generation)
		require.Equal(t, "g", p.asks("rest", "0", id, "other", "you").Generation, "it was seen with another")
		require.Equal(t, id, p.id)
		m := p.asks("rest", "0", id, "g", "you")
		require.Empty(t, m.Generation)
		require.True(t, m.Resting)
		require.NotEqual(t, id, m.ID)
		require.True(t, p.asks("admit", "0", id, "g", protocol.TokenArg(someToken)).Resting,
			"a request that comes late")
		require.False(t, p.asks("admit", "0", p.id, "g", protocol.TokenArg(someToken)).Resting)
	})
}

// A server whose mark names no run has not been restarted as far as anyone can tell: it goes on to vote
// when it tells its run. One whose mark names another run rests, unless it does not tell its run.
func TestServerThatWasRestartedRests(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		id, run := p.id, p.asks("see", "0", "me").Run
		for _, known := range []string{"", "another"} {
			p.c.HSet(t.Context(), p.mark, "run", known)
			m := p.asks("see", "0", "me")
			rests := known != "" && run != ""
			require.Equal(t, rests, m.Resting, "the mark names the run %q, and the server tells %q", known, run)
			require.Equal(t, rests, m.ID != id)
			require.Equal(t, cmp.Or(run, known), p.c.HGet(t.Context(), p.mark, "run").Val())
		}
	})
}

// A server that has lost its data votes again when it was admitted, and not before; and no smaller a token
// than it is told.
func TestServerThatLostItsDataRests(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		m := p.asks("see", "0", "me")
		require.Equal(t, m.ID, p.asks("see", "0", "you").ID)
		for range 2 {
			m = p.asks("rest", "0", m.ID, "", "me")
			require.True(t, m.Resting)
			require.Equal(t, m.ID, p.asks("see", "0", "you").ID)
		}
		require.Empty(t, p.asks("start", "0", m.ID, "g").Generation)
		require.True(t, p.run(p.votes(p.writer(), "", someToken)).Unmarked)
		require.Empty(t, p.asks("admit", "0", "before it lost its data", "g",
			protocol.TokenArg(someToken)).Generation)

		m = p.asks("admit", "0", m.ID, "g", protocol.TokenArg(someToken))
		require.Equal(t, "g", m.Generation)
		require.False(t, m.Resting)
		require.EqualValues(t, someToken, m.Top)
		require.EqualValues(t, someToken+1, p.vote(p.writer(), 0).Vote)
	})
}

// The mark has no time to live, whatever the lock's scripts do to their own keys: a mark that ran out would
// be taken for lost data.
func TestMarkStays(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		var holds []*party
		for _, of := range []*party{p.writer(), p.writer(), p.reader(), p.reader(), p.writer()} {
			p.vote(of, 0)
			holds = append(holds, of)
		}
		for _, of := range holds {
			p.run(protocol.Request{Script: lua.Renew, Claim: of.Claim})
			p.vote(of, 0)
			p.run(protocol.Request{Script: lua.Unlock, Claim: of.Claim})
		}
		require.Equal(t, time.Duration(-1), p.c.PTTL(t.Context(), p.mark).Val())
		p.c.Del(t.Context(), p.mark) // as the others end with their leases
	})
}

// A server replies anything; what makes no sense is an error.
func TestVotesAndMarksThatMakeNoSense(t *testing.T) {
	t.Parallel()
	list := func(v ...any) any { return v }
	with := func(of []any, i int, v any) any { of = slices.Clone(of); of[i] = v; return of }
	vote := []any{"5", int64(0), "", "", int64(0), int64(0), "", "", "7"}
	bad := []any{nil, "5", "5 ", " 5", "5 x", "5 5 5", int64(-3), list(), redis.Nil, with(vote, 8, "x"),
		with(vote, 8, int64(5)), list("", int64(0), "", "", int64(0), int64(0), "", "", "x")}
	for _, reply := range bad {
		_, err := protocol.Decode(lua.Vote, reply)
		require.ErrorIs(t, err, protocol.ErrReply, "%v", reply)
	}
	mark := []any{"id", "", int64(0), int64(0), "", "1", "", int64(0), ""}
	bad = []any{nil, "5", list(), mark[:7], with(mark, 0, ""), with(mark, 1, nil), with(mark, 2, "0"),
		with(mark, 4, "x"), with(mark, 5, "x"), with(mark, 5, ""), with(mark, 6, nil), with(mark, 7, "0"),
		with(mark, 8, "1 g 5")}
	for _, reply := range bad {
		_, err := protocol.DecodeMark(reply)
		require.ErrorIs(t, err, protocol.ErrReply, "%v", reply)
	}
	m, err := protocol.DecodeMark(list("id", "g", int64(0), int64(60000), "5", "7", "run", int64(3),
		"2 h 1000 9"))
	require.NoError(t, err)
	require.Equal(t, protocol.Mark{ID: "id", Generation: "g", Longest: time.Minute, Top: 5, Now: 7, Run: "run",
		Asked:  3,
		Survey: protocol.Survey{Asked: 2, Generation: "h", Longest: time.Second, Top: 9}}, m)
}

// What clears slots away that have been at rest for long leaves the tokens alone, whatever the clocks of the
// servers show.
func TestSweepLeavesTokens(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		last := int64(0)
		for range 20 { // each new slot sweeps some fields, taken at random
			w := p.named(protocol.Write, "lowercase-1")
			r := p.vote(w, someToken)
			require.Greater(t, r.Vote, last)
			last = r.Vote
			p.run(protocol.Request{Script: lua.Unlock, Claim: w.Claim})
		}
	})
}

// What a client tells is there for those that have asked before it looked. Neither what was told late, nor
// what is for data that the server has lost, takes its place.
func TestWhatMarksSayIsPassedOn(t *testing.T) {
	eachPoller(t, func(t *testing.T, p *poller) {
		p.started()
		id := p.id
		require.Zero(t, p.asks("see", "0", "me").Asked)
		require.EqualValues(t, 1, p.asks("ask", "0", id).Asked)
		require.EqualValues(t, 2, p.asks("ask", "0", id).Asked)
		require.Equal(t, protocol.Survey{Asked: 2, Generation: "g", Longest: time.Second, Top: 5},
			p.asks("tell", "0", id, "2", "g", "1000", "5").Survey)
		require.EqualValues(t, 2, p.asks("tell", "0", id, "1", "h", "1000", "6").Survey.Asked, "it comes late")
		require.EqualValues(t, 2, p.asks("ask", "0", "another").Asked)
		require.EqualValues(t, 2, p.asks("tell", "0", "another", "3", "g", "1000", "5").Survey.Asked)
		m := p.asks("tell", "0", id, "10", "h", "2000", "7")
		require.Equal(t, protocol.Survey{Asked: 10, Generation: "h", Longest: 2 * time.Second, Top: 7}, m.Survey)
		require.Equal(t, "g", m.Generation)
	})
}
