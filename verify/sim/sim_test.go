package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var (
	seeds   = flag.Int("seeds", 1000, "how many worlds to simulate")
	first   = flag.Uint64("seed", env("RWLOCK_SEED", 1), "the first world's seed")
	climate = flag.String("climate", "", "simulate only this climate")
)

func TestMain(m *testing.M) {
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
//	go test ./sim -seed 42 -seeds 1 -v
func TestPromisesHoldInEveryWorld(t *testing.T) {
	start := time.Now()
	var mu sync.Mutex
	var sum Tally
	t.Run("", func(t *testing.T) {
		for i := range *seeds {
			seed := *first + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				tally := Run(t, seed, *climate)
				mu.Lock()
				defer mu.Unlock()
				sum.add(tally)
			})
		}
	})
	t.Logf("%d worlds from seed %d in %v: %v simulated, %d calls, %d holds, %d re-entries, %d holds lost, %d calls given up, %d faults",
		*seeds, *first, time.Since(start).Round(time.Millisecond), sum.Simulated.Round(time.Minute),
		sum.Calls, sum.Holds, sum.Reentries, sum.Lost, sum.GaveUp, sum.Faults)
	t.Logf("alone with a lock: %d holds granted by a comparison, %d refused; taken over %d times, handed over %d times",
		sum.Sole.Granted, sum.Sole.Refused, sum.Sole.TakenOver, sum.Sole.HandedOver)
	require.NotZero(t, sum.Holds)
}
