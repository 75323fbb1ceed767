// Table has one thing after the other happen to servers of quorums while processes use locks there, and
// prints what that came to:
//
//	go run ./quorum/table -servers 3,5 -times 3 -faults all
//
// It ends with exit status 1 if something is short of what the documentation says. It needs redis-server, or
// what RWLOCK_REDIS_SERVER names, and for the faults of clocks a C compiler.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/seed-7e8842f7/rwlock/verify/history"
	"github.com/seed-7e8842f7/rwlock/verify/outside"
	"github.com/seed-7e8842f7/rwlock/verify/quorum"
)

var (
	servers = flag.String("servers", "3,5", "how many servers vote")
	which   = flag.String("faults", "all", "a regular expression for the names of faults, or all, or list to see them")
	times   = flag.Int("times", 3, "how often each fault happens")
	seed    = flag.Uint64("seed", 1, "what random choices follow from")
)

func main() {
	history.MaybeWork()
	logging.Disable()
	flag.Parse()
	var rows []outside.Row
	for _, f := range quorum.All() {
		rows = append(rows, outside.Row{Name: f.Name, Needs: f.Needs(), Run: func(tb testing.TB, servers string) (fmt.Stringer, []string) {
			n, err := strconv.Atoi(servers)
			if err != nil {
				tb.Fatal(err)
			}
			result := f.Run(tb, quorum.Setup{Servers: n, Times: *times, Seed: *seed})
			return result, result.Misses(f)
		}})
	}
	os.Exit(outside.Table(quorum.Head, *which, *servers, rows))
}
