package faults

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/clock"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

var (
	times   = flag.Int("times", 0, "how often each fault happens; 0 for twice, and once to servers that vote")
	length  = flag.Duration("for", 8*time.Second, "for how long faults happen one after the other")
	procs   = flag.Int("procs", 4, "how many processes make a history")
	seed    = flag.Uint64("seed", 1, "what random choices follow from")
	servers = flag.String("servers", "3", "how many servers vote")
	leases  = flag.String("leases", "10s", "the leases on clusters and behind sentinels")
	lends   = flag.Duration("delegate", 0, "the lease of delegations, in the tests of single servers and clusters")
	every   = flag.Bool("every", false, "every fault of clusters and sentinels, on a machine that is quiet")
)

func TestMain(m *testing.M) {
	maybeWork()
	logging.Disable()
	os.Exit(m.Run())
}

// available skips the test of a fault that cannot be had on this machine, or fails it if it must be.
func available(t *testing.T, clocks bool) {
	t.Helper()
	if why := clock.Missing(); clocks && why != "" {
		require.Empty(t, os.Getenv("RWLOCK_REQUIRE_REDIS"), why)
		t.Skip(why)
	}
}

// A table is logged when all its rows are there.
type table struct {
	mu   sync.Mutex
	rows []string
}

func newTable(t *testing.T, head string, rows int) *table {
	table := &table{rows: make([]string, rows)}
	t.Cleanup(func() { t.Log(head + strings.Join(table.rows, "")) })
	return table
}

func (t *table) set(i int, row fmt.Stringer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[i] = "\n" + row.String()
}

// Whatever breaks: nothing gets past the fence, the history fits a lock, everyone goes on. And where the
// promises say so, a holder that looks at its context needs no fence.
func TestNoFaultGetsPastTheFence(t *testing.T) {
	testredis.Need(t)
	for _, f := range delegated(faults(), *lends) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			available(t, f.plan.clock)
			s := f.run(t, max(*times, 2), *seed).finish()
			t.Log(s)
			assert.Zero(t, s.Fenced.Violations, "behind the fence")
			if f.exact {
				assert.Zero(t, s.Unfenced.Violations, "without a fence, among holders that believed in their holds")
			}
			assert.Empty(t, s.Broken)
			assert.Positive(t, s.Fenced.Writes)
			assert.Positive(t, s.Unfenced.Writes)
		})
	}
}

// A holder that is paused past its lease, and goes on without a look at its context, does harm where there is
// no fence, and none behind it; and the bank sees both.
func TestHarnessSeesWhatACarelessHolderDoes(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	m := newMint(t, plan{config: config{Careless: true, Reads: 20, Seed: *seed}})
	for range 20 {
		m.work(10)
		stops(writeHolder)(m)
		m.work(5)
		if fenced, unfenced := m.bank.Counts(); fenced.Refused > 0 && unfenced.Violations+unfenced.Late > 0 {
			break
		}
	}
	s := m.finish()
	t.Log(s)
	require.Zero(t, s.Fenced.Violations, "behind the fence")
	require.Positive(t, s.Fenced.Refused, "the fence has something to refuse")
	require.Positive(t, s.Unfenced.Violations+s.Unfenced.Late, "without a fence there is harm")
}

// Whatever processes see of a lock while things break, one lock could have shown them.
func TestHistoriesUnderFaultsFitOneLock(t *testing.T) {
	testredis.Need(t)
	for name, of := range map[string]string{
		"processes":   "^SIG|^none$",
		"server":      "^Redis SIGSTOP|^DEBUG|^CLIENT|^SCRIPT",
		"network":     "^network",
		"loss":        "^FLUSHALL|^key|nothing persisted|volatile",
		"persistence": "AOF always",
		"everything":  ".",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var list []fault
			for _, f := range faults() {
				if regexp.MustCompile(of).MatchString(f.name) {
					list = append(list, f)
				}
			}
			s := chaos(t, list, *length, *procs, *seed).finish()
			t.Log(s)
			require.Empty(t, s.Broken)
			require.Zero(t, s.Fenced.Violations)
			require.Positive(t, s.HistoryOps)
		})
	}
}

// The same while locks are delegated to the processes: over one server with every fault, over one with those
// that lose no data, where holders need no fence, and over a cluster.
func TestHistoriesOfDelegatedLocksFitOneLock(t *testing.T) {
	testredis.Need(t)
	lossless := slices.DeleteFunc(faults(), func(f fault) bool { return !f.exact })
	for name, list := range map[string][]fault{
		"one server": faults(), "without loss": lossless, "cluster": clusterFaults(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := delegated(list, cmp.Or(*lends, time.Second))
			acquired, local := 0, 0
			for start, seed := time.Now(), *seed; time.Since(start) < *length; seed++ {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					s := chaos(t, list, min(*length, round), *procs, seed).finish()
					t.Log(s)
					assert.Empty(t, s.Broken)
					assert.Zero(t, s.Fenced.Violations)
					if name == "without loss" {
						assert.Zero(t, s.Unfenced.Violations)
					}
					assert.Positive(t, s.HistoryOps)
					acquired, local = acquired+s.Acquired, local+s.Local
				})
			}
			assert.Greater(t, local, acquired/6, "holds that were granted from memory")
		})
	}
}

// round bounds how long a history is that is looked at.
const round = 20 * time.Second

// Where nothing excludes anybody, the money and the history both show it, and the history can be looked at.
func TestALockWithoutExclusionIsFoundOut(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	m := newMint(t, plan{names: 1, config: config{Broken: true, Reads: 30, Seed: *seed}})
	m.work(200)
	m.endWorkers()
	m.check()
	t.Log(m.summary)
	require.Positive(t, m.Unfenced.Violations)
	require.NotEmpty(t, m.Broken)
	page := regexp.MustCompile(`fits no lock: see (\S+\.html)$`).FindStringSubmatch(m.Broken[len(m.Broken)-1])
	require.NotNil(t, page, "%v", m.Broken)
	t.Cleanup(func() { _ = os.Remove(page[1]) })
	html, err := os.ReadFile(page[1])
	require.NoError(t, err)
	require.Contains(t, string(html), "<html")
}

// Whatever happens to as many of the servers as may fail: no call fails, no hold is lost that was renewed,
// and what the locks guard needs no fence, unless a clock is set forward. If it happens to more, calls say
// so, and all goes on afterwards.
func TestFaultsOfQuorumServers(t *testing.T) {
	testredis.Need(t)
	setups := strings.Split(*servers, ",")
	rows := newTable(t, votersHead, len(votersFaults(3))*len(setups))
	for j, setup := range setups {
		n, err := strconv.Atoi(setup)
		require.NoError(t, err)
		for i, f := range votersFaults(n) {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				available(t, f.plan.clock)
				r := f.run(t, max(*times, 1), *seed).votersResult(f)
				t.Log(r.summary)
				rows.set(i*len(setups)+j, r)
				assert.Empty(t, r.misses(f))
			})
		}
	}
}

// The same, one after the other, to two of five servers at a time.
func TestFaultsOfFiveServersOneAfterTheOther(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	list := slices.DeleteFunc(votersFaults(5), func(f fault) bool {
		// A clock that was set back lengthens what is left to leases: a vote that could not be given back is
		// in the way for a minute more.
		return f.plan.clock || f.beyond
	})
	for i := range list {
		list[i].plan.args = persistent
	}
	all := fault{name: "one after the other", exact: true, parted: true}
	r := chaos(t, list, *length, 0, *seed).votersResult(all)
	t.Log(votersHead + "\n" + r.String())
	t.Log(r.summary)
	assert.Empty(t, r.misses(all))
}

// While servers fail over, calls wait for that, holds whose lease is longer go on, waiters are served, and no
// two holds that exclude each other get past the fence. With -every, this is shown for everything that can
// happen to servers, and how fast it is.
func TestNothingIsBrokenByAFailover(t *testing.T) {
	testredis.Need(t)
	var list []nodesFault
	for _, f := range nodesFaults() {
		switch f.name {
		case "CLUSTER FAILOVER TAKEOVER", "master killed", "subscription's node killed", "Sentinel: master killed":
			list = append(list, f)
		default:
			if *every {
				list = append(list, f)
			}
		}
	}
	require.GreaterOrEqual(t, len(list), 4)
	setups := strings.Split(*leases, ",")
	rows := newTable(t, nodesHead, len(list)*len(setups))
	for i, f := range list {
		for j, setup := range setups {
			t.Run(f.name, func(t *testing.T) {
				if !*every {
					t.Parallel()
				}
				available(t, f.clock != 0)
				lease, err := time.ParseDuration(setup)
				require.NoError(t, err)
				r := f.run(t, lease)
				rows.set(i*len(setups)+j, r)
				if *every {
					assert.Empty(t, r.misses(f))
					return
				}
				assert.Empty(t, r.broken(f))
				assert.NotZero(t, r.first)
				assert.Less(t, r.first, r.mended+10*time.Second,
					"the first grant; by itself the client asks for the map once a minute")
				assert.NotZero(t, r.handover, "handovers afterwards")
			})
		}
	}
}

// What measures the faults of servers that vote sees what it is there for.
func TestMeasure(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	event := func(what history.What) func(ms, hold int) history.Event {
		return func(ms, hold int) history.Event {
			at := begin.Add(time.Duration(ms) * time.Millisecond).UnixNano()
			return history.Event{At: at, What: what, Hold: hold, Name: "a", Process: 1}
		}
	}
	asks, has := event(history.Asks), event(history.Has)
	quits, loses := event(history.Quits), event(history.Loses)
	lost, stalled := event(history.Left)(210, 1), event(history.Stalls)(100, 0)
	lost.Error, stalled.For = "lost", int64(usual)
	strikes := []strike{{fault: "it", at: begin.Add(100 * time.Millisecond), over: begin.Add(time.Second)}}
	few, many := fault{exact: true}, fault{exact: true, beyond: true}
	for what, c := range map[string]struct {
		fault  fault
		events []history.Event
		seen   func(r votersResult) bool
	}{
		"the first grant to a call that came after": {
			few, []history.Event{asks(50, 1), has(150, 1), asks(200, 2), has(300, 2)},
			func(r votersResult) bool { return r.first == 200*time.Millisecond },
		},
		"the first grant when enough servers are back": {
			many, []history.Event{asks(200, 2), has(1300, 2)},
			func(r votersResult) bool { return r.first == 300*time.Millisecond },
		},
		"the longest call, then and at other times": {
			few, []history.Event{asks(0, 1), has(90, 1), asks(91, 2), quits(500, 2)},
			func(r votersResult) bool { return r.usual == 90*time.Millisecond && r.longest == 409*time.Millisecond },
		},
		"a loss without cause, once": {
			few, []history.Event{asks(-5000, 1), has(-4000, 1), loses(200, 1), lost},
			func(r votersResult) bool { return r.lost == 1 && r.causes == 1 },
		},
		"a loss as the others had not been asked again": {
			few, []history.Event{asks(0, 1), has(90, 1), loses(200, 1)},
			func(r votersResult) bool { return r.lost == 1 && r.causes == 0 },
		},
		"a loss as too many servers failed": {
			many, []history.Event{asks(-5000, 1), has(-4000, 1), loses(200, 1)},
			func(r votersResult) bool { return r.lost == 1 && r.causes == 0 },
		},
		"a loss as the process stood still": {
			few, []history.Event{asks(-5000, 1), has(-4000, 1), stalled, loses(200, 1)},
			func(r votersResult) bool { return r.lost == 1 && r.causes == 0 },
		},
	} {
		assert.True(t, c.seen(c.fault.measure(c.events, strikes)), what)
	}
}

// The judge of clusters sees each thing that it is there for.
func TestCheckerSees(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	fault := nodesFault{focus: victim, loses: time.Second}
	s := struck{fault, 30 * time.Second, begin, begin, begin.Add(3 * time.Second), false}
	holds := 0
	// call returns the events of a call that is granted at once, and whose holder relies on it until a moment,
	// in seconds. What Unlock says is ends; if the call fails, that is what it says.
	call := func(write, fails bool, process, from, to int, token int64, ends string) (events []history.Event) {
		holds++
		add := func(at int, what history.What, err string) {
			events = append(events, history.Event{
				At: begin.Add(time.Duration(at) * time.Second).UnixNano(), What: what, Hold: holds, Name: "a",
				Process: process, Write: write, Token: token, Error: err, Role: probe,
			})
		}
		add(from, history.Asks, "")
		if fails {
			add(to, history.Fails, ends)
			return events
		}
		add(from, history.Has, "")
		add(to, history.Leaves, "")
		add(to, history.Left, ends)
		return events
	}
	reads := func(process, from, to int, token int64) []history.Event {
		return call(false, false, process, from, to, token, "")
	}
	writes := func(process, from, to int, token int64) []history.Event {
		return call(true, false, process, from, to, token, "")
	}
	for what, c := range map[string]struct {
		events []history.Event
		seen   func(r nodesResult) bool
	}{
		"nothing": {
			slices.Concat(reads(0, 1, 9, 1), reads(1, 2, 3, 1), writes(1, 9, 10, 2)),
			func(r nodesResult) bool { return len(r.overlaps)+len(r.tokens)+r.lost == 0 && len(r.failed) == 1 },
		},
		"waiters that got nothing": {
			nil, func(r nodesResult) bool { return r.failed[0] == "40 waiters got nothing" },
		},
		"an overlap with a reader": {
			slices.Concat(reads(0, 1, 9, 1), reads(1, 2, 3, 1), writes(1, 8, 10, 2)),
			func(r nodesResult) bool { return len(r.overlaps) == 1 && len(r.tokens) == 0 },
		},
		"an overlap of writers": {
			slices.Concat(writes(1, 8, 10, 2), writes(0, 1, 9, 1)),
			func(r nodesResult) bool { return len(r.overlaps) == 1 },
		},
		"a token given twice": {
			slices.Concat(writes(0, 1, 2, 7), writes(1, 3, 4, 7)),
			func(r nodesResult) bool { return len(r.tokens) == 1 },
		},
		"a reader's token before that of an earlier writer": {
			slices.Concat(writes(0, 1, 2, 7), reads(1, 3, 4, 6)),
			func(r nodesResult) bool { return len(r.tokens) == 1 },
		},
		"a call that fails": {
			call(true, true, 0, 1, 2, 7, "x"), func(r nodesResult) bool { return len(r.failed) == 2 },
		},
		"a release that fails": {
			call(true, false, 0, 1, 2, 7, "x"), func(r nodesResult) bool { return len(r.failed) == 2 },
		},
		"a hold lost that the servers may have lost": {
			call(true, false, 0, 0, 2, 7, "lost"),
			func(r nodesResult) bool { return r.lost == 1 && len(r.causeless) == 0 },
		},
		"a hold lost that they had": {
			call(true, false, 0, -2, 2, 7, "lost"),
			func(r nodesResult) bool { return r.lost == 1 && len(r.causeless) == 1 },
		},
		"a hold lost as its process stood still": {
			append(call(true, false, 0, -2, 2, 7, "lost"), history.Event{
				At: begin.UnixNano(), What: history.Stalls, For: int64(11 * time.Second),
			}),
			func(r nodesResult) bool { return r.lost == 1 && len(r.causeless) == 0 },
		},
		"the first grant": {
			slices.Concat(writes(0, -2, -1, 1), writes(0, 4, 5, 2)),
			func(r nodesResult) bool { return r.first == 4*time.Second },
		},
	} {
		assert.True(t, c.seen(judge(c.events, map[string]string{"a": focus}, s, nil)), what)
	}
}
