// Table has one thing after the other happen to a cluster, and to servers that sentinels watch, while processes use locks there, and
// prints what that came to:
//
//	go run ./topology/table -leases 3s,10s,30s -faults all
//
// It ends with exit status 1 if something is short of what the documentation says. It needs redis-server, or what
// RWLOCK_REDIS_SERVER names, and redis-cli.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
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
	if *which == "all" {
		*which = "."
	}
	pattern, err := regexp.Compile(*which)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println(topology.Head)
	short := false
	for _, f := range topology.All() {
		switch {
		case *which == "list":
			fmt.Println(f.Name)
		case pattern.MatchString(f.Name) && f.Needs() != "":
			fmt.Fprintf(os.Stderr, "%s: %s\n", f.Name, f.Needs())
		case pattern.MatchString(f.Name):
			for text := range strings.SplitSeq(*leases, ",") {
				short = run(f, text) || short
			}
		}
	}
	if short {
		os.Exit(1)
	}
}

// run has a fault happen, prints what came of it, and reports whether that is short of anything.
func run(f topology.Fault, text string) (short bool) {
	lease, err := time.ParseDuration(text)
	var misses []string
	if err == nil {
		err = outside.Run(func(tb testing.TB) {
			result := f.Run(tb, lease)
			fmt.Println(result)
			misses = result.Misses(f)
		})
	}
	if err != nil {
		misses = append(misses, err.Error())
	}
	for i, m := range misses {
		if i == 10 {
			fmt.Fprintf(os.Stderr, "\tand %d more\n", len(misses)-i)
			break
		}
		fmt.Fprintf(os.Stderr, "\t%s, %v: %s\n", f.Name, text, m)
	}
	return len(misses) > 0
}
