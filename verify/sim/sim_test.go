package sim

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seeds   = flag.Int("seeds", 1000, "how many worlds to simulate")
	quorums = flag.Int("quorums", 200, "how many worlds to simulate in which several servers vote")
	first   = flag.Uint64("seed", env("RWLOCK_SEED", 1), "the first world's seed")
	climate = flag.String("climate", "", "simulate only this climate")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

func env(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// everyWorld lives through the worlds of so many seeds, on all processors, until a promise is broken in the
// fifth of them. It returns what happened.
func everyWorld(t *testing.T, worlds int, votes bool) tally {
	var mu sync.Mutex
	var next, failed int
	var wg sync.WaitGroup
	sum, start := tally{}, time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next < worlds && failed < 5 {
				seed := *first + uint64(next)
				next++
				mu.Unlock()
				w := simulate(seed, *climate, votes)
				report := w.report()
				mu.Lock()
				sum.add(w.seen)
				if report != "" {
					failed++
					t.Errorf("%v:\n%s", w, report)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d worlds from seed %d in %v: %v", worlds, *first, time.Since(start).Round(time.Millisecond), sum)
	require.NotZero(t, sum["holds"])
	return sum
}

// Every promise that one process, or all of them together, can see holds in every world:
//
//	go test ./sim -run EveryWorld -seed 42 -seeds 1 -v
func TestPromisesHoldInEveryWorld(t *testing.T) {
	sum := everyWorld(t, *seeds, false)
	if *seeds >= 1000 && *climate == "" {
		for _, what := range everything() {
			require.NotZero(t, sum[what], "it never happened that an engine told of: %s", what)
		}
	}
}

// Exclusion and the order of tokens hold over three and five servers, of which a minority fails, and every
// call ends:
//
//	go test ./sim -run OverAQuorum -seed 42 -quorums 1 -v
func TestPromisesHoldOverAQuorum(t *testing.T) { everyWorld(t, *quorums, true) }

// What happens in a world follows from its seed.
func TestAWorldFollowsFromItsSeed(t *testing.T) {
	for seed := range uint64(len(Climates)) {
		c := Climates[seed]
		one, other := simulate(seed, c.Name, c.Votes), simulate(seed, c.Name, c.Votes)
		require.Equal(t, one.lines, other.lines, "%v", one)
	}
}
