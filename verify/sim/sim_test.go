package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var (
	seeds   = flag.Int("seeds", 1000, "how many worlds to simulate with engines")
	wholes  = flag.Int("wholes", 20, "how many worlds to simulate with whole RWLocks")
	first   = flag.Uint64("seed", env("RWLOCK_SEED", 1), "the first world's seed")
	climate = flag.String("climate", "", "simulate only this climate")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	redis.SetLogger(silence{}) // it logs every connection that fails
	os.Exit(m.Run())
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func env(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// everyWorld lives through the worlds of so many seeds, on all processors. What live returns is called on one
// at a time. It ends with the fifth world in which a promise is broken.
func everyWorld(t *testing.T, worlds int, live func(seed uint64) (tally func(), report string)) {
	var mu sync.Mutex
	var next, failed int
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next < worlds && failed < 5 {
				seed := *first + uint64(next)
				next++
				mu.Unlock()
				tally, report := live(seed)
				mu.Lock()
				tally()
				if report != "" {
					failed++
					t.Error(report)
				}
			}
		})
	}
	wg.Wait()
}

// Every promise that one process, or all of them together, can see holds in every world:
//
//	go test ./sim -run EveryWorld -seed 42 -seeds 1 -v
func TestPromisesHoldInEveryWorld(t *testing.T) {
	start := time.Now()
	var sum Tally
	everyWorld(t, *seeds, func(seed uint64) (tally func(), report string) {
		one, report := Simulate(seed, *climate, false)
		return func() { sum.Add(one) }, report
	})
	took := time.Since(start)
	t.Logf("%d worlds from seed %d in %v, %.0f a second: %v",
		*seeds, *first, took.Round(time.Millisecond), float64(*seeds)/took.Seconds(), &sum)
	require.NotZero(t, sum.Seen["holds"])
	if *seeds >= 1000 && *climate == "" {
		for _, what := range Everything() {
			require.NotZero(t, sum.Seen[what], "it never happened that an engine told of: %s", what)
		}
	}
}

// What happens in a world follows from its seed.
func TestAWorldFollowsFromItsSeed(t *testing.T) {
	for seed := range uint64(len(Climates)) {
		c := Climates[seed]
		one, other := simulate(seed, c.Name, c.Votes), simulate(seed, c.Name, c.Votes)
		require.Equal(t, one.Log(1<<30), other.Log(1<<30), "%v", one)
	}
}

// The same holds for whole RWLocks, with their contexts, goroutines and connections:
//
//	go test ./sim -run WholeRWLocks -seed 42 -wholes 1 -v
func TestPromisesHoldForWholeRWLocks(t *testing.T) {
	start := time.Now()
	var mu sync.Mutex
	var sum Tally
	t.Run("", func(t *testing.T) {
		for i := range *wholes {
			seed := *first + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				tally := SimulateWhole(t, seed, *climate)
				mu.Lock()
				defer mu.Unlock()
				sum.Add(tally)
			})
		}
	})
	t.Logf("%d worlds from seed %d in %v: %v", *wholes, *first, time.Since(start).Round(time.Millisecond), &sum)
}

var parliaments = flag.Int("quorums", 200, "how many worlds to simulate in which several servers vote")

// Exclusion and the order of tokens hold over three and five servers, of which a minority fails, and every
// call ends:
//
//	go test ./sim -run OverAQuorum -seed 42 -quorums 1 -v
func TestPromisesHoldOverAQuorum(t *testing.T) {
	start := time.Now()
	var sum Tally
	everyWorld(t, *parliaments, func(seed uint64) (tally func(), report string) {
		one, report := Simulate(seed, *climate, true)
		return func() { sum.Add(one) }, report
	})
	t.Logf("%d worlds from seed %d in %v: %v", *parliaments, *first, time.Since(start).Round(time.Millisecond),
		&sum)
	require.NotZero(t, sum.Seen["holds"])
}
