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
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

var (
	repeats = flag.Int("times", 0, "how often each fault happens; 0 for twice, and once to servers that vote")
	length  = flag.Duration("for", 8*time.Second, "for how long faults happen one after the other")
	procs   = flag.Int("procs", 4, "how many processes make a history")
	seed    = flag.Uint64("seed", 1, "what random choices follow from")
	servers = flag.String("servers", "3", "how many servers vote")
	leases  = flag.String("leases", "10s", "the leases on clusters and behind sentinels")
	lends   = flag.Duration("delegate", 0, "the lease of delegations, in the tests of single servers and clusters")
	every   = flag.Bool("every", false, "every fault of clusters and sentinels, on a machine that is quiet")
)

func TestMain(m *testing.M) {
	logging.Disable()
	maybeWork()
	os.Exit(m.Run())
}

// newTable returns the rows of a table, which is logged when the test has ended.
func newTable(t *testing.T, head string, rows int) []string {
	table := make([]string, rows)
	t.Cleanup(func() { t.Log(head + strings.Join(table, "\n")) })
	return table
}

// Whatever breaks: nothing gets past the fence, the history fits a lock, everyone goes on. And where the
// promises say so, a holder that looks at its context needs no fence.
func TestNoFaultGetsPastTheFence(t *testing.T) {
	testredis.Need(t)
	for _, f := range delegated(faults(), *lends) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.run(t, max(*repeats, 2), *seed).check(t)
		})
	}
}

// A holder that is paused past its lease, and goes on without a look at its context, does harm where there is
// no fence, and none behind it; and the bank sees both.
func TestHarnessSeesWhatACarelessHolderDoes(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	r := newRig(t, plan{config: config{Careless: true, Reads: 20, Seed: *seed}})
	for range 20 {
		r.work(10)
		stops(writeHolder)(r)
		r.work(5)
		if fenced, unfenced := r.bank.Counts(); fenced.Refused > 0 && unfenced.Violations+unfenced.Late > 0 {
			break
		}
	}
	c := r.finish(fault{}).counts
	t.Logf("%+v", c)
	require.Zero(t, c.Fenced.Violations, "behind the fence")
	require.Positive(t, c.Fenced.Refused, "the fence has something to refuse")
	require.Positive(t, c.Unfenced.Violations+c.Unfenced.Late, "without a fence there is harm")
}

// Whatever processes see of a lock while things break, one lock could have shown them.
func TestHistoriesUnderFaultsFitOneLock(t *testing.T) {
	testredis.Need(t)
	for name, of := range map[string]string{
		"processes":   "^SIG|^none$",
		"server":      "^frozen|^DEBUG|^CLIENT|^SCRIPT",
		"network":     "^network|cut off|cut for|^connections|^delayed",
		"loss":        "^FLUSHALL|^key|without data|volatile",
		"persistence": "with the data",
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
			all := fault{plan: plan{procs: *procs, config: config{Hand: 15}}}
			rounds(t, func(t *testing.T, d time.Duration, seed uint64) { all.chaos(t, list, d, seed).check(t) })
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
			all := fault{plan: plan{procs: *procs}, exact: name == "without loss"}
			acquired, local := 0, 0
			rounds(t, func(t *testing.T, d time.Duration, seed uint64) {
				r := all.chaos(t, list, d, seed)
				r.check(t)
				acquired, local = acquired+r.Acquired, local+r.Local
			})
			assert.Greater(t, local, acquired/6, "holds that were granted from memory")
		})
	}
}

// rounds calls one for parts of the length of a history, each with a seed of its own: a longer history cannot
// be decided on.
func rounds(t *testing.T, one func(t *testing.T, d time.Duration, seed uint64)) {
	const most = 20 * time.Second
	for start, seed := time.Now(), *seed; time.Since(start) < *length; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { one(t, min(*length, most), seed) })
	}
}

// Where nothing excludes anybody, the money and the history both show it, and the history can be looked at.
func TestALockWithoutExclusionIsFoundOut(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	r := newRig(t, plan{locks: 1, config: config{Unlocked: true, Reads: 30, Seed: *seed}})
	r.work(200)
	r.endWorkers()
	found := r.judge(fault{}).counts
	t.Logf("%+v", found)
	require.Positive(t, found.Unfenced.Violations)
	require.NotEmpty(t, found.Broken)
	page := regexp.MustCompile(`fits no lock: see (\S+\.html)$`).FindStringSubmatch(found.Broken[len(found.Broken)-1])
	require.NotNil(t, page, "%v", found.Broken)
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
				r := f.run(t, max(*repeats, 1), *seed)
				rows[i*len(setups)+j] = r.ofVoters()
				r.check(t)
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
	r := fault{name: "one after the other", exact: true, parted: true}.chaos(t, list, *length, *seed)
	t.Log(votersHead + r.ofVoters())
	r.check(t)
}

// While servers fail over, calls wait, holds whose lease is longer go on, and waiters are served. One lock
// could have shown the processes what they see, but for writes that the servers may have lost. With -every,
// this is shown for everything that can happen to servers, and how fast it is.
func TestNothingIsBrokenByAFailover(t *testing.T) {
	testredis.Need(t)
	usual := []string{
		"CLUSTER FAILOVER TAKEOVER", "master killed", "master frozen for 10 s", "subscription's node killed",
		"SENTINEL FAILOVER", "Sentinel: master killed",
	}
	list := slices.DeleteFunc(topologyFaults(), func(f fault) bool {
		return !*every && !slices.Contains(usual, f.name)
	})
	require.GreaterOrEqual(t, len(list), 4)
	setups := strings.Split(*leases, ",")
	rows := newTable(t, jobsHead, len(list)*len(setups))
	for i, f := range list {
		for j, setup := range setups {
			t.Run(f.name, func(t *testing.T) {
				if !*every {
					t.Parallel()
				}
				lease, err := time.ParseDuration(setup)
				require.NoError(t, err)
				r := f.runJobs(t, lease)
				rows[i*len(setups)+j] = r.ofJobs()
				r.check(t)
				if *every {
					r.checkSpeed(t)
				}
			})
		}
	}
}

// What looks at the reports of workers sees each thing that it is there for.
func TestJudgeSees(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	event := func(what history.What, ms, hold int) history.Event {
		return history.Event{At: at(ms).UnixNano(), What: what, Hold: hold, Name: "a", Role: probe}
	}
	asks := func(ms, hold int) history.Event { return event(history.Asks, ms, hold) }
	has := func(ms, hold int) history.Event { return event(history.Has, ms, hold) }
	loses := func(ms, hold int) history.Event { return event(history.Loses, ms, hold) }
	left := func(ms, hold int, err string) history.Event {
		e := event(history.Left, ms, hold)
		e.Error = err
		return e
	}
	fails, stalled := event(history.Fails, 2000, 1), event(history.Stalls, 100, 0)
	fails.Error, stalled.For = "x", int64(11*time.Second)

	few := fault{exact: true, plan: plan{config: config{Lease: usual}}}
	many := fault{exact: true, beyond: true, plan: few.plan}
	jobs := fault{loses: time.Second, plan: plan{jobs: true, config: config{Lease: 30 * time.Second}}}
	type events = []history.Event
	type sees struct {
		first                               int // grant, in ms from the fault
		lost, causeless, failed, unreleased int
	}
	for what, c := range map[string]struct {
		fault  fault
		events events
		sees   sees
	}{
		"the first grant to a call that came after": {
			few, events{asks(50, 1), has(150, 1), asks(200, 2), has(300, 2)}, sees{first: 200}},
		"the first grant when enough servers are back": {
			many, events{asks(200, 2), has(1300, 2)}, sees{first: 300}},
		"a loss without cause, once": {
			few, events{asks(-5000, 1), has(-4000, 1), loses(200, 1), left(210, 1, "lost")},
			sees{lost: 1, causeless: 1}},
		"a loss as the others had not been asked again": {
			few, events{asks(0, 1), has(90, 1), loses(200, 1)}, sees{lost: 1}},
		"a loss as too many servers failed": {
			many, events{asks(-5000, 1), has(-4000, 1), loses(200, 1)}, sees{lost: 1}},
		"a loss as the process stood still": {
			few, events{asks(-5000, 1), has(-4000, 1), stalled, loses(200, 1)}, sees{lost: 1}},
		"a call that fails": {
			jobs, events{asks(1000, 1), fails}, sees{failed: 1}},
		"a release that fails": {
			jobs, events{asks(1000, 1), has(1000, 1), left(2000, 1, "x")}, sees{first: 1000, unreleased: 1}},
		"a hold lost that the servers may have lost": {
			jobs, events{asks(0, 1), has(0, 1), left(2000, 1, "lost")}, sees{lost: 1}},
		"a hold lost that they had": {
			jobs, events{asks(-2000, 1), has(-2000, 1), left(2000, 1, "lost")}, sees{lost: 1, causeless: 1}},
		"a hold lost while its process stood still": {
			jobs, events{asks(-2000, 1), has(-2000, 1), stalled, left(2000, 1, "lost")}, sees{lost: 1}},
		"the first grant to a job": {
			jobs, events{asks(-2000, 1), has(-2000, 1), asks(4000, 2), has(4000, 2)}, sees{first: 4000}},
	} {
		r, s := result{of: c.fault}, &strike{begun: at(100), over: at(1000)}
		if c.fault.plan.jobs {
			s = &strike{at: begin, begun: begin, over: at(3000)}
		}
		calls := history.Assemble(c.events, history.Known{Pauses: map[int][]history.Span{}}).Calls
		r.measure(calls, c.events, []*strike{s})
		first := r.First
		if c.fault.plan.jobs {
			r.time(calls, s)
			first = r.first
		}
		seen := sees{int(first.Milliseconds()), r.Lost, len(r.Causeless), len(r.Failed), len(r.Unreleased)}
		assert.Equal(t, c.sees, seen, what)
	}
}
