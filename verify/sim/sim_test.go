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
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var (
	seeds   = flag.Int("seeds", 2000, "how many worlds to simulate with engines")
	wholes  = flag.Int("wholes", 40, "how many worlds to simulate with whole RWLocks")
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

// Every promise that one process, or all of them together, can see holds in every world:
//
//	go test ./sim -run EveryWorld -seed 42 -seeds 1 -v
func TestPromisesHoldInEveryWorld(t *testing.T) {
	start := time.Now()
	var sum Tally
	var mu sync.Mutex
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(*seeds) || failed.Load() >= 5 {
					return
				}
				seed := *first + uint64(i-1)
				tally, report := Simulate(seed, *climate)
				mu.Lock()
				sum.Add(tally)
				if report != "" {
					failed.Add(1)
					t.Error(report)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	t.Logf("%d worlds from seed %d in %v, %.0f a second: %v",
		*seeds, *first, took.Round(time.Millisecond), float64(*seeds)/took.Seconds(), &sum)
	require.NotZero(t, sum.Holds)
	if *seeds >= 1000 && *climate == "" {
		for _, what := range Everything() {
			require.NotZero(t, sum.Seen[what], "it never happened that an engine told of: %s", what)
		}
	}
}

// What happens in a world follows from its seed.
func TestAWorldFollowsFromItsSeed(t *testing.T) {
	for seed := range uint64(2 * len(Climates)) {
		one, other := simulate(seed, Climates[seed/2].Name), simulate(seed, Climates[seed/2].Name)
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
