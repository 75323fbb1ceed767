package history_test

import (
	"flag"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/faults"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

var (
	length = flag.Duration("for", 8*time.Second, "how long each history lasts")
	procs  = flag.Int("procs", 4, "how many processes make it")
	seed   = flag.Uint64("seed", 1, "what random choices follow from")
)

func TestMain(m *testing.M) {
	history.MaybeWork()
	os.Exit(m.Run())
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
			pattern := regexp.MustCompile(of)
			var list []faults.Fault
			for _, f := range faults.All() {
				if pattern.MatchString(f.Name) {
					list = append(list, f)
				}
			}
			s := faults.Chaos(t, list, *length, *procs, *seed)
			t.Log(s)
			require.Empty(t, s.Broken)
			require.Zero(t, s.Fenced.Violations)
			require.Positive(t, s.HistoryOps)
		})
	}
}

// Where nothing excludes anybody, the money and the history both show it, and the history can be looked at.
func TestALockWithoutExclusionIsFoundOut(t *testing.T) {
	t.Parallel()
	testredis.Need(t)
	r := faults.NewRig(t, faults.Plan{Broken: true, Reads: 30, Names: 1, Seed: *seed})
	r.Work(200)
	r.End()
	r.Check()
	t.Log(r.Summary)
	require.Positive(t, r.Unfenced.Violations)
	require.NotEmpty(t, r.Broken)
	page := regexp.MustCompile(`fits no lock: see (\S+\.html)$`).FindStringSubmatch(r.Broken[len(r.Broken)-1])
	require.NotNil(t, page, "%v", r.Broken)
	t.Cleanup(func() { _ = os.Remove(page[1]) })
	html, err := os.ReadFile(page[1])
	require.NoError(t, err)
	require.Contains(t, string(html), "<html")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	acquire := func(owner int, write bool, token, call, ret int64) history.Op {
		return history.Op{Name: "a", Owner: owner, Kind: history.Acquire, Write: write, Token: token, Call: call, Return: ret}
	}
	end := func(kind history.Kind, owner int, write bool, call, ret int64) history.Op {
		return history.Op{Name: "a", Owner: owner, Kind: kind, Write: write, Call: call, Return: ret}
	}
	const W, R, never = true, false, history.Forever
	for name, c := range map[string]struct {
		fits bool
		ops  []history.Op
	}{
		"writers one after the other":       {true, []history.Op{acquire(1, W, 5, 1, 2), end(history.Release, 1, W, 3, 4), acquire(2, W, 6, 3, 5)}},
		"two writers":                       {false, []history.Op{acquire(1, W, 5, 1, 2), acquire(2, W, 6, 3, 4), end(history.Release, 1, W, 5, 6)}},
		"two writers, one was lost":         {true, []history.Op{acquire(1, W, 5, 1, 2), acquire(2, W, 6, 4, 5), end(history.Lose, 1, W, 3, 6)}},
		"a loss after the next writer":      {false, []history.Op{acquire(1, W, 5, 1, 2), acquire(2, W, 6, 4, 5), end(history.Lose, 1, W, 6, 7)}},
		"an unlock of unknown outcome":      {true, []history.Op{acquire(1, W, 5, 1, 2), end(history.Release, 1, W, 3, never), acquire(2, W, 6, 8, 9)}},
		"a token that does not grow":        {false, []history.Op{acquire(1, W, 5, 1, 2), end(history.Release, 1, W, 3, 4), acquire(2, W, 5, 5, 6)}},
		"readers together":                  {true, []history.Op{acquire(1, R, 5, 1, 2), acquire(2, R, 5, 1, 2), end(history.Release, 1, R, 3, 4), end(history.Release, 2, R, 3, 4)}},
		"a writer among readers":            {false, []history.Op{acquire(1, R, 5, 1, 2), acquire(2, W, 6, 3, 4), end(history.Release, 1, R, 5, 6)}},
		"an upgrade":                        {false, []history.Op{acquire(1, R, 5, 1, 2), acquire(1, W, 6, 3, 4)}},
		"a downgrade":                       {true, []history.Op{acquire(1, W, 5, 1, 2), acquire(1, R, 5, 3, 4), end(history.Release, 1, W, 5, 6), acquire(2, R, 5, 7, 8)}},
		"re-entry":                          {true, []history.Op{acquire(1, W, 5, 1, 2), acquire(1, W, 5, 3, 4), end(history.Release, 1, W, 5, 6), end(history.Release, 1, W, 7, 8), acquire(2, R, 5, 9, 10)}},
		"a writer after half of a re-entry": {false, []history.Op{acquire(1, W, 5, 1, 2), acquire(1, W, 5, 3, 4), end(history.Release, 1, W, 5, 6), acquire(2, W, 6, 7, 8), end(history.Release, 1, W, 9, 10)}},
		"re-entry with a new token":         {false, []history.Op{acquire(1, W, 5, 1, 2), acquire(1, W, 6, 3, 4)}},
		"a reader with an old token":        {false, []history.Op{acquire(1, W, 5, 1, 2), end(history.Release, 1, W, 3, 4), acquire(2, R, 4, 5, 6)}},
	} {
		t.Run(name, func(t *testing.T) {
			err := history.Check(c.ops)
			if c.fits {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "fits no lock")
			require.NoError(t, os.Remove(regexp.MustCompile(`\S+\.html`).FindString(err.Error())))
		})
	}
}
