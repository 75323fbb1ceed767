// Table has one thing after the other happen to a cluster, and to servers that sentinels watch, while
// processes use locks there, and prints what that came to:
//
//	go run ./topology/table -leases 3s,10s,30s -faults all
//
// It ends with exit status 1 if something is short of what the documentation says. It needs redis-server, or
// what RWLOCK_REDIS_SERVER names, and redis-cli.
package main

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/outside"
	"github.com/seed-7e8842f7/rwlock/verify/topology"
)

var (
	leases = flag.String("leases", "3s,10s,30s", "the leases to run each fault with")
	which  = flag.String("faults", "all", "a regular expression for the names of faults, or all, or list to see them")
)

func main() {
	topology.MaybeWork()
	flag.Parse()
	var rows []outside.Row
	for _, f := range topology.All() {
		rows = append(rows, outside.Row{Name: f.Name, Needs: f.Needs(), Run: func(tb testing.TB, lease string) (fmt.Stringer, []string) {
			d, err := time.ParseDuration(lease)
			if err != nil {
				tb.Fatal(err)
			}
			result := f.Run(tb, d)
			return result, result.Misses(f)
		}})
	}
	os.Exit(outside.Table(topology.Head, *which, *leases, rows))
}
