// Soak has processes move money under locks while one thing after the other breaks, for as long as one likes:
//
//	go run ./soak -for 10m -procs 6 -faults all
//
// It ends with exit status 1 if a promise was broken. It needs a redis-server, or what RWLOCK_REDIS_SERVER names.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/verify/faults"
	"github.com/seed-7e8842f7/rwlock/verify/history"
	"github.com/seed-7e8842f7/rwlock/verify/outside"
)

var (
	length = flag.Duration("for", time.Minute, "how long to run")
	procs  = flag.Int("procs", 4, "how many processes work")
	which  = flag.String("faults", "all", "a regular expression for the names of faults, or all, or list to see them")
	epoch  = flag.Duration("epoch", 20*time.Second, "how long a history gets before it is checked")
	seed   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "what random choices follow from")
)

func main() {
	history.MaybeWork()
	flag.Parse()
	if *which == "list" {
		for _, f := range faults.All() {
			fmt.Println(f.Name)
		}
		return
	}
	list, err := choose(*which)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	total, ok := soak(list)
	report(total)
	if !ok {
		fmt.Println("FAIL")
		os.Exit(1)
	}
	fmt.Println("ok")
}

// choose returns the faults that are asked for and that this machine can have.
func choose(which string) ([]faults.Fault, error) {
	if which == "all" {
		which = "."
	}
	pattern, err := regexp.Compile(which)
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(faults.All(), func(f faults.Fault) bool {
		return !pattern.MatchString(f.Name) || f.Needs() != ""
	})
	if len(list) == 0 {
		return nil, fmt.Errorf("no fault is called %q", which)
	}
	return list, nil
}

// soak runs one epoch after the other, each with a server, processes and locks of its own.
func soak(list []faults.Fault) (total faults.Summary, ok bool) {
	fmt.Printf("seed %d, %d faults\n", *seed, len(list))
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt)
	rng := rand.New(rand.NewPCG(*seed, 0))
	ok = true
	start := time.Now()
	for time.Since(start) < *length && len(interrupt) == 0 {
		// The first of the list decides on the server, and so on what else can happen to it.
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		d := min(*epoch, *length-time.Since(start))
		var s faults.Summary
		err := outside.Run(func(tb testing.TB) { s = faults.Chaos(tb, list, d, *procs, rng.Uint64()) })
		if err != nil {
			s.Broken = append(s.Broken, err.Error())
		}
		if exact := !slices.ContainsFunc(list, func(f faults.Fault) bool { return s.Faults[f.Name] > 0 && !f.Exact }); exact && s.Unfenced.Violations > 0 {
			s.Broken = append(s.Broken, fmt.Sprintf("%d violations without a fence, though holders could rely on their holds", s.Unfenced.Violations))
		}
		if s.Fenced.Violations > 0 {
			s.Broken = append(s.Broken, fmt.Sprintf("%d violations behind the fence", s.Fenced.Violations))
		}
		ok = ok && len(s.Broken) == 0
		total.Add(s)
		fmt.Printf("%8v %s\n", time.Since(start).Round(time.Second), s)
		for _, b := range s.Broken {
			fmt.Println("         BROKEN", b)
		}
	}
	return total, ok
}

func report(s faults.Summary) {
	var b strings.Builder
	fmt.Fprintf(&b, "\noperations   %d holds, %d calls failed, %d holds lost, %d processes\n", s.Acquired, s.Failed, s.Lost, s.Processes)
	fmt.Fprintf(&b, "histories    %d of %d operations in all\n", s.Histories, s.HistoryOps)
	fmt.Fprintf(&b, "fenced       %d reads, %d writes, %d refused, %d violations\n", s.Fenced.Reads, s.Fenced.Writes, s.Fenced.Refused, s.Fenced.Violations)
	fmt.Fprintf(&b, "unfenced     %d reads, %d writes, %d violations, %d more by holders that had been paused\n",
		s.Unfenced.Reads, s.Unfenced.Writes, s.Unfenced.Violations, s.Unfenced.Late)
	fmt.Fprintf(&b, "longest wait read %v, write %v; after a crash or pause %v (lease %v)\n", s.LongestRead, s.LongestWrite, s.HandoverAfterCrash, faults.Lease)
	fmt.Fprintf(&b, "broken       %d\n", len(s.Broken))
	b.WriteString("faults\n")
	var kinds []string
	for k := range s.Faults {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for _, k := range kinds {
		fmt.Fprintf(&b, "%6d       %s\n", s.Faults[k], k)
	}
	fmt.Print(b.String())
}
