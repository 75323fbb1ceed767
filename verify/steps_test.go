package verify

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

const began = 1_700_000_000_000_000 // µs

// writer is the write claim of an owner, on a slot of its own.
func writer(owner int) protocol.Claim { return claimOf(owner, owner, owner, model.Write) }

// A call is a word that stands for a request:
//
//	w1/30     writer 1 asks, for a lease of 30 s
//	w1?/30    it tries
//	r3-9/30   each of the readers 3 to 9 asks
//	>w1/30    writer 1 downgrades to reader r1@11
//	w4@1/30   writer 4 asks, with another number, on slot 1
//	-w1       writer 1 releases, or withdraws
//	-w1!      it releases with the time of its grant
//	=w1/30    it renews
//	&w1/30    it renews, and has two holds
//	d3/30     process 3 asks to have the lock delegated for reading
//	=d3/30    it renews the delegation, and
//	-d3       returns it; with @60 its number is 60, and not 50
//	force     everybody's holds are dropped
//	serve     the next step is taken
var call = regexp.MustCompile(`^([-=&>]?)([wrd])(\d+)(?:-(\d+))?(?:@(\d+))?(\?)?(!)?(?:/(\d+))?$`)

// requests returns the requests that a word stands for.
func (r *rig) requests(t testing.TB, word string) (list []*protocol.Request) {
	t.Helper()
	switch word {
	case "force":
		return []*protocol.Request{{Script: lua.Force, Claim: claimOf(0, 99, 99, model.Write)}}
	case "serve":
		return []*protocol.Request{{Script: lua.Serve, Claim: claimOf(0, 98, 98, model.Write)}}
	}
	m := call.FindStringSubmatch(word)
	require.NotNil(t, m, "what is %q?", word)
	does, kind, try, marked := m[1], m[2], m[6] != "", m[7] != ""
	number := func(text string) int { n, _ := strconv.Atoi(text); return n }
	first, at, ms := number(m[3]), number(m[5]), 1000*int64(number(m[8]))
	scripts := map[string]*lua.Script{"w": lua.Lock, "r": lua.Lock, "d": lua.Delegate, "-w": lua.Unlock,
		"-r": lua.Unlock, "-d": lua.Return, "=w": lua.Renew, "=r": lua.Renew, "=d": lua.Delegate,
		"&w": lua.Renew, "&r": lua.Renew, ">w": lua.Convert}
	for owner := first; owner <= max(first, number(m[4])); owner++ {
		q := &protocol.Request{Script: scripts[does+kind], Lease: lease(ms), Try: try}
		mode := map[string]model.Mode{"w": model.Write, "r": model.Read}[kind]
		switch {
		case kind == "d":
			q.Claim = protocol.NewClaim(protocol.Read, fmt.Sprintf("instance%03d", owner), 1_000_000,
				uint64(cmp.Or(at, 50)), protocol.Owner{})
			q.Keep = does == "="
		case does == ">":
			q.Claim, q.Former = claimOf(owner, owner+10, owner+10, model.Read), writer(owner).ID
		case at > 0:
			q.Claim = claimOf(owner, owner+10, at, mode)
		default:
			q.Claim = claimOf(owner, owner, owner, mode)
		}
		switch {
		case does == "&":
			q.Count = 2
		case marked:
			q.Record = protocol.Released(q.Claim, cmp.Or(r.tokens[q.Claim.ID], began))
		}
		list = append(list, q)
	}
	return list
}

// play makes the calls that a text names, and returns the last reply. "+10" lets 10 s pass, and "..." takes
// steps until none is left to take.
func (r *rig) play(t testing.TB, text string) (reply protocol.Reply) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		if seconds, passes := strings.CutPrefix(word, "+"); passes {
			n, err := strconv.Atoi(seconds)
			require.NoError(t, err)
			r.pass(t, int64(n)*1000)
			continue
		}
		again := word == "..."
		if again {
			word = "serve"
		}
		for _, q := range r.requests(t, word) {
			for more := true; more; more = again && reply.More {
				reply, _ = r.run(t, q)
			}
			if reply.Token > 0 {
				r.tokens[q.Claim.ID] = reply.Token
			}
			r.setClock(t, r.now+1)
		}
	}
	return reply
}

// outcome returns what a reply says, and who holds the lock and waits for it then, readers first:
// "2 ahead, more: r3 r4 | r5 w2". A request is told "held" if somebody holds the lock.
func (r *rig) outcome(t testing.TB, reply protocol.Reply) string {
	t.Helper()
	var text []string
	if reply.Token > 0 {
		text = append(text, "granted")
	}
	if reply.Ahead > 0 {
		text = append(text, fmt.Sprint(reply.Ahead, " ahead"))
	}
	if reply.Code == protocol.DoneBefore {
		text = append(text, "done before")
	}
	if reply.Claim != "" || reply.Mode != protocol.None || reply.Again > 0 {
		text = append(text, "held")
	}
	if reply.More {
		text = append(text, "more")
	}
	says := strings.Join(text, ", ") + ":"
	letter := map[model.Mode]string{model.Read: "r", model.Write: "w"}
	l := r.state(t)
	slices.SortFunc(l.Holds, func(a, b model.Hold) int { return a.Owner - b.Owner })
	for _, h := range l.Holds {
		says += fmt.Sprint(" ", letter[h.Mode], h.Owner)
	}
	says += " |"
	for _, w := range l.Queue {
		says += fmt.Sprint(" ", letter[w.Mode], w.Owner)
	}
	return says
}

// moves are calls, and what comes of them.
type moves [][2]string

// crowds are what takes more than one step, with steps of two readers.
var crowds = map[string]moves{
	"readers that are owed the next phase enter before the next writer, a late one does not": {
		{"w1/30 w2/30 r3-9/30 -w1", "more: r3 r4 | r5 r6 r7 r8 r9 w2"},
		{"r10/30", "1 ahead, held, more: r3 r4 r5 r6 | r7 r8 r9 r10 w2"},
		{"...", ": r3 r4 r5 r6 r7 r8 r9 | r10 w2"},
		{"-r3 -r4 -r5 -r6 -r7 -r8 -r9 ...", ": w2 | r10"},
	},
	"readers enter when the writer ahead withdraws, before one that comes between the steps": {
		{"r1/60 w2/60 r3-9/60 -w2", "more: r1 r3 r4 | r5 r6 r7 r8 r9"},
		{"w10/60", "3 ahead, held, more: r1 r3 r4 r5 r6 | r7 r8 r9 w10"},
		{"...", ": r1 r3 r4 r5 r6 r7 r8 r9 | w10"},
	},
	"a release that runs again between the steps says again that there are more": {
		{"w1/30 r2-7/30 -w1", "more: r2 r3 | r4 r5 r6 r7"},
		{"-w1", "done before, more: r2 r3 | r4 r5 r6 r7"},
		{"...", ": r2 r3 r4 r5 r6 r7 |"},
		{"-w1", "done before: r2 r3 r4 r5 r6 r7 |"},
	},
	"the first of a crowd that asks after the writer died is told that there are more": {
		{"w1/1 r2-7/60 +10 r2/60", "granted, more: r2 r3 | r4 r5 r6 r7"},
		{"...", ": r2 r3 r4 r5 r6 r7 |"},
	},
	"dead writers ahead of a writer are cleared away": {
		{"w1/60 w2-9/1 w10/60 +10 -w1", "more: | w4 w5 w6 w7 w8 w9 w10"},
		{"...", ": w10 |"},
	},
	"dead writers ahead of a reader are cleared away": {
		{"w1/60 w2-9/1 r10/60 +10 -w1", "more: | r10 w4 w5 w6 w7 w8 w9"},
		{"...", ": r10 |"},
	},
	"no reader overtakes a live writer behind dead ones": {
		{"r1/60 w2-9/1 w10/60 r11/60 +10 r12/60 ...", ": r1 | r11 r12 w10"},
		{"...", ": r1 | r11 r12 w10"},
	},
	"dead readers ahead of a writer are cleared away": {
		{"w1/60 r2-8/1 w9/60 +10 -w1 ...", ": w9 |"},
	},
	"between the steps, a writer is ahead only of readers that are not owed the phase": {
		{"w1/60 w2/60 r3-11/60 -w1 r11/60", "held, more: r3 r4 r5 r6 | r7 r8 r9 r10 r11 w2"},
		{"r12/60", "1 ahead, held, more: r3 r4 r5 r6 r7 r8 | r9 r10 r11 r12 w2"},
	},
	"between the steps, nobody is ahead of a reader if no writer waits": {
		{"w1/60 r3-11/60 -w1 r11/60", "held, more: r3 r4 r5 r6 | r7 r8 r9 r10 r11"},
		{"r12/60", "held, more: r3 r4 r5 r6 r7 r8 | r9 r10 r11 r12"},
	},
	"a writer that tries while a crowd of dead is cleared away is not told of a holder": {
		{"w1-9/1 +10 w10?/60", "6 ahead, more: | w4 w5 w6 w7 w8 w9"},
		{"r11/60", "1 ahead, more: | r11 w8 w9"},
	},
	"nor is a reader that tries": {
		{"w1-9/1 +10 r10?/60", "1 ahead, more: | w4 w5 w6 w7 w8 w9"},
		{"r11/60", "1 ahead, more: | r11 w8 w9"},
	},
	"nor is a writer that asks": {
		{"w1-9/1 +10 w10/60", "more: | w10"},
		{"r11/60", "held: w10 | r11"},
	},
	"nor is a reader that asks": {
		{"w1-9/1 +10 r10/60", "1 ahead, more: | r10 w6 w7 w8 w9"},
		{"r11/60", "more: | r10 r11"},
	},
}

func TestCrowds(t *testing.T) {
	r := newRedisRig(t, true)
	for name, moves := range crowds {
		r.reset(t)
		for _, move := range moves {
			require.Equal(t, move[1], r.outcome(t, r.play(t, move[0])), "%s: after %s", name, move[0])
		}
	}
}

// The keys of a hold that is renewed outlive its lease, however long it is renewed, and whoever else reads or
// waits.
func TestRenewalsKeepTheKeys(t *testing.T) {
	r := newRedisRig(t, false)
	for _, others := range []string{"", "r2", "w2"} {
		for _, hold := range []string{"w1", "r1"} {
			r.reset(t)
			r.play(t, hold+"/10")
			for range 40 {
				for _, c := range append(strings.Fields(others), hold) {
					if !has(r.glance(t), r.requests(t, c)[0].Claim) {
						r.play(t, c+"/10") // it waits
					} else {
						require.Equal(t, protocol.Done, r.play(t, "="+c+"/10").Code, "%s beside %q", hold, others)
					}
				}
				for key, left := range r.ttls(t) {
					require.GreaterOrEqual(t, left, 70*time.Second, "%s beside %q: %s", hold, others, key)
				}
				r.pass(t, 9_000)
			}
		}
	}
}

// No writer comes in with the readers that one script lets in, though they seem to be over at once: before
// Redis 7.2, a clock that moves on within a script makes the server take for expired what the script has just
// set a time to live for.
func TestReadersThatSeemOverEnterAlone(t *testing.T) {
	r := newRedisRig(t, false)
	const enter = "    share(entering, deadlines, read_token())\n"
	text := source(lua.Unlock, false)
	require.Equal(t, 1, strings.Count(text, enter), "readers are let in some other way")
	r.load(t, lua.Unlock, strings.Replace(text, enter, enter+"    call('DEL', KEYS[2])\n", 1))
	r.play(t, "w1/60 r2/60 r3/60 w4/60")
	r.play(t, "-w1")
	s := r.glance(t)
	require.Empty(t, s.Holders)
	waits := func(w protocol.Waiter) bool { return is(w.Known, writer(4)) }
	require.True(t, slices.ContainsFunc(s.Waiters, waits))
}

// To look at one slot does not cost more the more there are: the server keeps a hash of many as a table.
func TestManySlotsAreATable(t *testing.T) {
	r := newRedisRig(t, false)
	r.play(t, "w1-11/60")
	require.Equal(t, "hashtable", r.client.ObjectEncoding(ctx, r.keys.Lock.(string)).Val())
}

// A lock that lives on forgets the slots of the processes that have used it once, in whatever way: there are
// no more of them than have come within some minutes. It forgets nobody who has the lock, or waits for it,
// and is not forgotten itself.
func TestSlotsOfThePastAreSwept(t *testing.T) {
	r := newRedisRig(t, false)
	for _, way := range [][2]string{ // what is before, and what each process does
		{"", "w%d/10 -w%[1]d!"},
		{"", "r%d/10 -r%[1]d!"},
		{"r1/90000", "r%d/10 -r%[1]d!"},
		{"r1/90000 r2/90000", "r%d/10 -r%[1]d!"},
		{"r1/90000 r2/90000", "=r1/30 r%d/1"}, // they die
		{"w1/90000 w2/90000", "w%d?/10"},
		{"w1/90000 r2/90000", "r%d?/10"},
		{"w1/90000", "w%d/10 -w%[1]d"},
		{"w1/90000 w2/90000", "w%d/10 -w%[1]d"},
		{"w1/90000 r2/90000", "w%d/10 -w%[1]d"},
		{"w1/90000 r2/90000", "r%d/10 -r%[1]d"},
	} {
		r.reset(t)
		r.play(t, way[0])
		for owner := 10; owner < 210; owner++ {
			r.play(t, fmt.Sprintf(way[1], owner))
			for key, ttl := range r.ttls(t) {
				require.GreaterOrEqual(t, ttl, 200*time.Second, "%s: %s, after a lease of 10 s was given", way, key)
			}
			r.pass(t, 10_000)
		}
		require.LessOrEqual(t, len(r.fields(t)), 100, "%s: fields, of 24 claims in four minutes", way)
		r.play(t, "serve")
		s := r.state(t)
		require.Len(t, strings.Fields(way[0]), len(s.Holds)+len(s.Queue), "%s: who was there before is left", way)
	}
}

// A request succeeds though the server lets nobody use channels. It says why those that have the lock now
// were not told.
func TestReplySaysWhyNobodyWasTold(t *testing.T) {
	r := newRedisRig(t, false)
	for _, s := range []*lua.Script{lua.Unlock, lua.Lock} {
		r.load(t, s, strings.ReplaceAll(source(s, false), "redis.call('RPUSH', '{told}',",
			"redis.pcall('PUBLISH',"))
	}
	require.NoError(t, r.client.Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err())
	for _, release := range []string{"-w1", "-w1!"} {
		for _, next := range []string{"w2/60", "r2/60"} {
			r.reset(t)
			r.play(t, "w1/60 "+next)
			r.pass(t, 10)
			reply := r.play(t, release)
			require.NotEmpty(t, reply.PublishError)
			require.Equal(t, ": "+next[:2]+" |", r.outcome(t, reply))
		}
	}

	r.reset(t)
	reply := r.play(t, "w1/1 r2/60 r3/60 +10 r2/60")
	require.NotZero(t, reply.Token)
	require.NotEmpty(t, reply.PublishError)
}

// A late release that finds the slot used again leaves it to the next claim, though it hands the lock over.
func TestReleaseLeavesTheSlotToItsNextClaim(t *testing.T) {
	r := newRedisRig(t, false)
	require.Equal(t, ": w2 | w4", r.outcome(t, r.play(t, "w1/60 w2/60 w4@1/60 -w1!")))
}

// A downgrade ends the claim that writes, whatever the slot of the one that reads was used for, and leaves
// the slot to its next claim.
func TestDowngradeEndsTheClaimThatWrites(t *testing.T) {
	r := newRedisRig(t, false)
	require.Equal(t, ": r10 |", r.outcome(t, r.play(t, "w10/60 -w4@20 >w10/60 w10/60")))
	r.reset(t)
	require.Equal(t, "granted: r1 | w2 w4", r.outcome(t, r.play(t, "w1/60 w2/60 w4@1/60 >w1/60")))
}

// A waiter keeps its place in the queue when it removes a dead waiter that had the same slot. A server that
// has lost the end of the earlier claim knows both.
func TestWaiterTakesTheSlotOfADeadOneAhead(t *testing.T) {
	r := newRedisRig(t, false)
	require.Equal(t, ": w5 |", r.outcome(t, r.play(t, "w1/60 w2/3 +4 w5@2/60 -w1!")))
}

// After a step that only clears dead readers away, the next writer looks again if the lease in its way is
// over.
func TestWriterAsksAgainAfterAStepThatLetsNobodyIn(t *testing.T) {
	r := newRedisRig(t, true)
	reply := r.play(t, "w1/90000 r2/1 r4/1 w3/60 r5/60 +10 force")
	require.True(t, reply.More)
	require.Equal(t, []uint64{3}, reply.Message.AskAgain)
	require.Equal(t, ": r5 | w3", r.outcome(t, r.play(t, "...")))
}

// Readers whose turn it is may give up before the step that would let them in. Later readers then wait for
// the writer.
func TestReadersWhoseTurnItIsMayGiveUp(t *testing.T) {
	r := newRedisRig(t, true)
	require.True(t, r.play(t, "w1/60 r2-6/60 w8/60 -w1!").More)
	require.Equal(t, ": r2 r3 r4 r5 | r7 w8", r.outcome(t, r.play(t, "r7/60 -r6")))
}

// A reader whose hold was lost with the hash is told so, though the set still has its lease.
func TestReleaseOfALostHashFindsNoHold(t *testing.T) {
	r := newRedisRig(t, false)
	r.play(t, "r1/60 r2/60")
	r.client.Del(ctx, r.keys.Lock.(string))
	r.play(t, "w3/60")
	require.Equal(t, protocol.NotThere, r.play(t, "-r1").Code)
	require.Equal(t, ": w3 |", r.outcome(t, r.play(t, "-r2")))
}

// Places that are left of a lock whose hash was evicted are nobody's: whoever comes to wait is next, and
// keeps its place.
func TestPlacesOfALostHashDoNotCount(t *testing.T) {
	r := newRedisRig(t, false)
	for _, holds := range []string{"w1", "r1", "r1 r2"} {
		for _, left := range []string{"w3", "r3", "w3 r4", "r4 w3"} {
			for _, next := range []string{"w5", "r5"} {
				each := func(calls, before, after string) {
					for _, c := range strings.Fields(calls) {
						r.play(t, before+c+after)
					}
				}
				r.reset(t)
				r.play(t, "w9/60")
				each(left, "", "/30")
				r.client.Del(ctx, r.keys.Lock.(string))
				each(holds, "", "/30")
				waits := r.play(t, next+"/60").Token == 0
				if s := r.state(t); waits {
					require.Len(t, s.Queue, 1, holds)
					require.Equal(t, 5, s.Queue[0].Owner, holds)
				}
				if waits {
					each(holds, "-", "")
				}
				s := r.state(t)
				require.NotNil(t, s.Hold(model.Claim{Owner: 5, Number: 5}), "%s holds it, %s comes", holds, next)
				require.Empty(t, s.Queue, "%s holds it, %s comes", holds, next)
			}
		}
	}
}

// A request about data that a server has lost leaves no mark there, which would show a process that was
// restarted.
func TestRequestAboutLostDataLeavesNoMark(t *testing.T) {
	r := newRedisRig(t, false)
	mark := []string{"{mark}"}
	reply, err := r.client.Eval(ctx, lua.Mark.Source, mark, "ask", 0, "an id", "").Slice()
	require.NoError(t, err)
	require.Empty(t, reply[0])
	require.Zero(t, r.client.Exists(ctx, mark...).Val())
}

// A server that no longer tells its run is not taken for one that was restarted.
func TestServerThatDoesNotTellItsRunKeepsItsMark(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	s := testredis.Start(t)
	admin := testredis.NewClient(t, s.Addr())
	user := []any{"ACL", "SETUSER", "quiet", "on", ">secret", "~*", "+@all", "-info"}
	require.NoError(t, admin.Do(ctx, user...).Err())
	quiet := testredis.NewClient(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "quiet", "secret" })
	known := map[string]string{"id": "an id", "run": "abc"}
	require.NoError(t, admin.HSet(ctx, "{mark}", known).Err())
	require.NoError(t, quiet.Eval(ctx, lua.Mark.Source, []string{"{mark}"}, "ask", 0, "another", "").Err())
	require.Equal(t, known, admin.HGetAll(ctx, "{mark}").Val())
}
