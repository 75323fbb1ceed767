// Command explore visits every state that the lock's scripts and a few owners can reach, and holds each against the model
// and the promises.
//
//	go run ./explore                                          # three owners, a claim each, one fault, one crash
//	go run ./explore -asks 2 -faults 0                        # three owners, two claims each
//	go run ./explore -processes ABCD -leases 2222 -faults 0   # four owners
//	go run ./explore -before                                  # a process had the lock to itself before
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	debug.SetGCPercent(400) // most of what there is stays
	dir := flag.String("lua", "../lua", "the directory of the scripts")
	processes := flag.String("processes", "", "the process of each owner, a letter each; as many as -owners by default")
	leases := flag.String("leases", "", "the lease of each owner, in ticks of 5 s; 2 by default")
	owners := flag.Int("owners", 3, "how many owners there are, up to 4")
	asks := flag.Uint("asks", 1, "claims that each owner may begin")
	faults := flag.Uint("faults", 1, "requests that may be late, run twice or lose their reply")
	crashes := flag.Uint("crashes", 1, "processes that may die")
	forces := flag.Uint("forces", 0, "times that all holds may be dropped")
	reenter := flag.Bool("reenter", false, "owners may lock again what they hold")
	before := flag.Bool("before", false, "the first owner's process had the lock before, and nobody else")
	states := flag.Int("states", 0, "stop after so many states; 0 for no limit")
	limit := flag.Duration("time", 0, "stop after so long; 0 for no limit")
	bugs := flag.Int("bugs", 10, "stop after so many kinds of bugs")
	save := flag.String("save", "", "a directory to save the traces of bugs in")
	quiet := flag.Bool("q", false, "do not tell of progress")
	flag.Parse()

	s := setup{*processes, *leases, options{uint8(*asks), uint8(*faults), uint8(*crashes), uint8(*forces), *reenter, *before}}
	if s.processes == "" {
		s.processes = "ABCD"[:min(max(*owners, 1), 4)]
	}
	if s.leases == "" {
		s.leases = strings.Repeat("2", len(s.processes))
	}
	e, err := newExplorer(*dir, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "explore:", err)
		os.Exit(2)
	}
	progress := os.Stderr
	if *quiet {
		progress = nil
	}
	r := e.explore(limits{*states, *limit, *bugs}, progress)
	for _, b := range r.Bugs {
		fmt.Printf("BUG: %s\n  %s\n\n", b.what, strings.Join(b.trace.steps, "\n  "))
		if *save != "" {
			file, err := b.save(*save)
			if err != nil {
				fmt.Fprintln(os.Stderr, "explore:", err)
			}
			fmt.Printf("  saved as %s\n\n", file)
		}
	}
	fmt.Println(s)
	fmt.Println(r)
	if len(r.Bugs) > 0 {
		os.Exit(1)
	}
}
