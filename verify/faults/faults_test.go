package faults

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/history"
)

var (
	times = flag.Int("times", 2, "how often each fault happens")
	seed  = flag.Uint64("seed", 1, "what random choices follow from")
)

func TestMain(m *testing.M) {
	history.MaybeWork()
	os.Exit(m.Run())
}

// Whatever breaks: nothing gets past the fence, the history fits a lock, everyone goes on. And where the
// promises say so, a holder that looks at its context needs no fence.
func TestNoFaultGetsPastTheFence(t *testing.T) {
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
			s := f.Run(t, *times, *seed)
			t.Log(s)
			assert.Zero(t, s.Fenced.Violations, "behind the fence")
			if f.Exact {
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
	r := NewRig(t, Plan{Careless: true, Reads: 20, Seed: *seed})
	for range 20 {
		r.Work(10)
		r.stop(WriteHolder)
		r.Work(5)
		if fenced, unfenced := r.bank.Counts(); fenced.Refused > 0 && unfenced.Violations+unfenced.Late > 0 {
			break
		}
	}
	s := r.Finish()
	t.Log(s)
	require.Zero(t, s.Fenced.Violations, "behind the fence")
	require.Positive(t, s.Fenced.Refused, "the fence has something to refuse")
	require.Positive(t, s.Unfenced.Violations+s.Unfenced.Late, "without a fence there is harm")
}
