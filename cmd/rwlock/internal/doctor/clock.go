package doctor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/cmd/rwlock/internal/output"
)

const (
	clockTime  = time.Second // for which the clock is watched
	clockReads = 20
	clockStep  = 10 * time.Millisecond // in that time, beyond what the round trips explain
)

// clock watches the server's clock: a step ends leases early or late. A difference from this machine's clock
// does no harm to the locks. But one of the two is wrong then, and is going to be set.
func clock(ctx context.Context, c *redis.Client) Finding {
	f := Finding{Check: "clock", Status: OK}
	start := time.Now()
	// Each answer bounds how far the server's clock is from start, as it was read between the request and the
	// answer.
	least, most := time.Duration(math.MinInt64), time.Duration(math.MaxInt64)
	for n := range clockReads {
		select {
		case <-time.After(time.Until(start.Add(time.Duration(n) * clockTime / clockReads))):
		case <-ctx.Done():
		}
		asked := time.Since(start) // monotonic, whatever happens to this machine's clock
		server, err := c.Time(ctx).Result()
		if err != nil {
			f.Status, f.Detail = Unknown, err.Error()
			return f
		}
		offset := server.Sub(start.Round(0))
		least, most = max(least, offset-time.Since(start)), min(most, offset-asked)
	}
	ahead := least + (most-least)/2
	f.Detail = fmt.Sprintf("steady for %v, %s from this machine's", clockTime, output.Duration(ahead.Abs()))
	if ahead.Abs() > skewFails {
		f.Status = Failed
		f.Advice = "one of the two clocks is wrong: leases end early or late when the server's is set, and HELD FOR counts " +
			"by both; " + keepClocks
	}
	if moved := least - most; moved > clockStep {
		f.Status, f.Detail = Failed, fmt.Sprintf("moved by %s within %v", output.Duration(moved), clockTime)
		f.Advice = "leases end by this clock: have it slewed rather than stepped (chrony: makestep at start only)"
	}
	return f
}

func medianAndLongest(all []time.Duration) (median, longest time.Duration) {
	slices.Sort(all)
	return all[len(all)/2], all[len(all)-1]
}
