package sim

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var parliaments = flag.Int("quorums", 1000, "how many worlds to simulate in which several servers vote")

// Exclusion and the order of tokens hold over three and five servers, of which a minority fails, and every
// call ends:
//
//	go test ./sim -run OverAQuorum -seed 42 -quorums 1 -v
func TestPromisesHoldOverAQuorum(t *testing.T) {
	start := time.Now()
	var next, failed, holds, gaveUp, faults, losses atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(*parliaments) || failed.Load() >= 3 {
					return
				}
				p, report := SimulateQuorum(*first + uint64(i-1))
				holds.Add(int64(p.Holds))
				gaveUp.Add(int64(p.GaveUp))
				faults.Add(int64(p.Faults))
				losses.Add(int64(p.Losses))
				if testing.Verbose() && *parliaments < 10 {
					t.Logf("%v after %v", p.Requests, p.at.Sub(genesis))
				}
				if report != "" {
					failed.Add(1)
					t.Error(report)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d worlds from seed %d in %v: %d holds, %d calls without, %d lost, %d faults", next.Load(), *first,
		time.Since(start).Round(time.Millisecond), holds.Load(), gaveUp.Load(), losses.Load(), faults.Load())
	require.NotZero(t, holds.Load())
}
