// Table has one thing after the other happen to servers of quorums while processes use locks there, and prints what that came to:
//
//	go run ./quorum/table -servers 3,5 -times 3 -faults all
//
// It ends with exit status 1 if something is short of what the documentation says. It needs redis-server, or what
// RWLOCK_REDIS_SERVER names, and for the faults of clocks a C compiler.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
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
	rest    = flag.Bool("rest", true, "servers that have lost their data rest for a minute; or else their clocks are set forward")
)

func main() {
	history.MaybeWork()
	logging.Disable()
	flag.Parse()
	if *which == "all" {
		*which = "."
	}
	pattern, err := regexp.Compile(*which)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if *which != "list" {
		fmt.Println(quorum.Head)
	}
	short := false
	for _, f := range quorum.All() {
		switch {
		case *which == "list":
			fmt.Println(f.Name)
		case pattern.MatchString(f.Name) && f.Needs() != "":
			fmt.Fprintf(os.Stderr, "%s: %s\n", f.Name, f.Needs())
		case pattern.MatchString(f.Name):
			for text := range strings.SplitSeq(*servers, ",") {
				short = run(f, text) || short
			}
		}
	}
	if short {
		os.Exit(1)
	}
}

// run has a fault happen, prints what came of it, and reports whether that is short of anything.
func run(f quorum.Fault, text string) (short bool) {
	n, err := strconv.Atoi(text)
	var misses []string
	if err == nil {
		err = outside.Run(func(tb testing.TB) {
			result := f.Run(tb, quorum.Setup{Servers: n, Times: *times, Seed: *seed, Rest: *rest})
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
		fmt.Fprintf(os.Stderr, "\t%s, %s servers: %s\n", f.Name, text, m)
	}
	return len(misses) > 0
}
