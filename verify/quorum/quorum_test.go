package quorum

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/faults"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

var (
	times  = flag.Int("times", 1, "how often each fault happens")
	length = flag.Duration("for", 10*time.Second, "for how long faults happen one after the other")
	seed   = flag.Uint64("seed", 1, "what random choices follow from")
)

func TestMain(m *testing.M) {
	history.MaybeWork()
	logging.Disable()
	os.Exit(m.Run())
}

// Whatever happens to as many of the servers as may fail: no call fails, no hold is lost that was renewed,
// and what the locks guard needs no fence, unless a clock is set forward. If it happens to more, calls say
// so, and all goes on afterwards.
func TestFaultsOfQuorumServers(t *testing.T) {
	testredis.Need(t)
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			if why := f.Needs(); why != "" {
				if os.Getenv("RWLOCK_REQUIRE_REDIS") != "" {
					t.Fatal(why)
				}
				t.Skip(why)
			}
			r := f.Run(t, Setup{Servers: 3, Times: *times, Seed: *seed})
			t.Log("\n" + Head + "\n" + r.String())
			t.Log(r.Summary)
			assert.Empty(t, r.Misses(f))
		})
	}
}

// The same, one after the other, to two of five servers at a time.
func TestFaultsOfFiveServersOneAfterTheOther(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	var list []Fault
	for _, f := range All() {
		// A clock that was set back lengthens what is left to leases: a vote that could not be given back is
		// in the way for a minute more.
		if !f.Clock && !f.Beyond {
			list = append(list, f)
		}
	}
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	r := Several(t, list, Setup{Servers: 5, Seed: *seed}, *length)
	t.Log("\n" + Head + "\n" + r.String())
	t.Log(r.Summary)
	assert.Empty(t, r.Misses(Fault{Parted: true}))
}

// What measures the faults sees what it is there for.
func TestMeasure(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	event := func(ms int, what history.What, hold int) history.Event {
		return history.Event{At: at(ms).UnixNano(), What: what, Hold: hold, Name: "a", Process: 1}
	}
	strikes := []faults.Strike{{Fault: "it", At: at(100), Over: at(1000)}}
	for what, c := range map[string]struct {
		fault  Fault
		events []history.Event
		seen   func(r Result) bool
	}{
		"the first grant to a call that came after": {
			Fault{}, []history.Event{event(50, history.Asks, 1), event(150, history.Has, 1), event(200, history.Asks, 2), event(300, history.Has, 2)},
			func(r Result) bool { return r.First == 200*time.Millisecond },
		},
		"the first grant when enough servers are back": {
			Fault{Beyond: true}, []history.Event{event(200, history.Asks, 2), event(1300, history.Has, 2)},
			func(r Result) bool { return r.First == 300*time.Millisecond },
		},
		"the longest call, then and at other times": {
			Fault{}, []history.Event{event(0, history.Asks, 1), event(90, history.Has, 1), event(91, history.Asks, 2), event(500, history.Quits, 2)},
			func(r Result) bool { return r.Usual == 90*time.Millisecond && r.Longest == 409*time.Millisecond },
		},
		"a loss without cause, once": {
			Fault{}, []history.Event{event(-5000, history.Asks, 1), event(-4000, history.Has, 1), event(200, history.Loses, 1),
				{At: at(210).UnixNano(), What: history.Left, Hold: 1, Process: 1, Error: "lost"}},
			func(r Result) bool { return r.Lost == 1 && r.Uncaused == 1 },
		},
		"a loss as the others had not been asked again": {
			Fault{}, []history.Event{event(0, history.Asks, 1), event(90, history.Has, 1), event(200, history.Loses, 1)},
			func(r Result) bool { return r.Lost == 1 && r.Uncaused == 0 },
		},
		"a loss as too many servers failed": {
			Fault{Beyond: true}, []history.Event{event(200, history.Loses, 1)}, func(r Result) bool { return r.Lost == 1 && r.Uncaused == 0 },
		},
		"a loss as the process stood still": {
			Fault{}, []history.Event{{At: at(100).UnixNano(), What: history.Stalls, For: int64(Lease), Process: 1}, event(200, history.Loses, 1)},
			func(r Result) bool { return r.Lost == 1 && r.Uncaused == 0 },
		},
	} {
		assert.True(t, c.seen(c.fault.measure(c.events, strikes)), what)
	}
}
