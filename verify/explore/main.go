// Command explore visits every state that the lock's scripts and a few engines, with an owner or two each,
// can reach over a network that may do its worst, and holds each against the model and the promises.
//
//	go run ./explore                                   # two processes, a call each, one fault, one crash
//	go run ./explore -owners 111 -leases 333           # three processes
//	go run ./explore -owners 2 -leases 3 -asks any     # two owners of one process, for ever
//	go run ./explore -reenter -forces 1                # re-entry, and ForceUnlock
//	go run ./explore -replay explore/testdata/try-lets-in-untold.trace
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

func main() {
	debug.SetGCPercent(400) // most of what there is stays
	dir := flag.String("lua", "../lua", "the directory of the scripts")
	owners := flag.String("owners", "11", "how many owners each process has, a digit each")
	leases := flag.String("leases", "", "the lease of each process, in ticks of 20 s; 3 by default")
	asks := flag.String("asks", "1", "calls that each owner may make, or any")
	faults := flag.Uint("faults", 1, "requests and messages that may be late, come twice or not at all")
	crashes := flag.Uint("crashes", 1, "processes that may die")
	forces := flag.Uint("forces", 0, "times that all holds may be dropped")
	stalls := flag.Uint("stalls", 0, "times that a process may stand still, for as long as it likes")
	undos := flag.Uint("undos", 0, "runs of scripts that the server may forget")
	extends := flag.Uint("extends", 0, "calls of Extend")
	closes := flag.Uint("closes", 0, "calls of Close, or of Shutdown")
	maxHold := flag.Uint("maxhold", 0, "the MaxHold of each hold, in ticks")
	names := flag.Uint("names", 1, "names of locks, up to three")
	ticks := flag.String("ticks", "any", "ticks that may pass, or any")
	o := options{}
	flag.BoolVar(&o.reenter, "reenter", false, "owners make a second call beside the first, and lock again what they hold")
	flag.BoolVar(&o.noRenew, "norenew", false, "holds end with their leases")
	flag.BoolVar(&o.bounded, "bounded", false, "calls do not end by themselves when no answer comes")
	flag.BoolVar(&o.stands, "stands", false, "the server's clock stands still within a tick")
	states := flag.Int("states", 0, "stop after so many states; 0 for no limit")
	limit := flag.Duration("time", 0, "stop after so long; 0 for no limit")
	bugs := flag.Int("bugs", 10, "stop after so many kinds of bugs")
	save := flag.String("save", "", "a directory to save the traces of bugs in")
	replayed := flag.String("replay", "", "a trace to take the steps of, instead of exploring")
	quiet := flag.Bool("q", false, "do not tell of progress")
	several := flag.String("quorum", "", `explore three servers instead, or one that delegates: the calls of each client and what may happen, as in "W R late 1 passes 2" or "WR W delegated together"`)
	flag.Parse()
	var progress io.Writer = os.Stderr
	if *quiet {
		progress = nil
	}
	if *several != "" {
		os.Exit(showQuorum(*several, limits{*states, *limit, *bugs}, progress))
	}

	number := func(name, text string) uint8 {
		if text == "any" {
			return unlimited
		}
		n, err := strconv.ParseUint(text, 10, 7)
		if err != nil {
			fmt.Fprintf(os.Stderr, "explore: -%s: %v\n", name, err)
			os.Exit(2)
		}
		return uint8(n)
	}
	o.asks, o.ticks = number("asks", *asks), number("ticks", *ticks)
	o.faults, o.crashes, o.forces = uint8(*faults), uint8(*crashes), uint8(*forces)
	o.stalls, o.undos, o.extends, o.closes = uint8(*stalls), uint8(*undos), uint8(*extends), uint8(*closes)
	o.maxHold, o.names = uint8(*maxHold), uint8(*names)
	s := setup{*owners, *leases, o}
	if s.leases == "" {
		s.leases = strings.Repeat("3", len(s.owners))
	}
	sources, err := scriptsIn(*dir)
	var t trace
	if err == nil && *replayed != "" {
		if t, err = loadTrace(*replayed); err == nil {
			s = t.setup
		}
	}
	if err == nil {
		var e *explorer
		if e, err = newExplorer(sources, s); err == nil {
			if *replayed != "" {
				os.Exit(showReplay(e, t))
			}
			os.Exit(show(e, limits{*states, *limit, *bugs}, *save, progress))
		}
	}
	fmt.Fprintln(os.Stderr, "explore:", err)
	os.Exit(2)
}

// show explores, and prints what comes of it. It returns the exit code.
func show(e *explorer, l limits, save string, progress io.Writer) int {
	r := e.explore(l, progress)
	for _, b := range r.Bugs {
		fmt.Printf("BUG: %s\n  %s\n\n", b.what, strings.Join(b.trace.steps, "\n  "))
		if save != "" {
			file, err := b.save(save)
			if err != nil {
				fmt.Fprintln(os.Stderr, "explore:", err)
			}
			fmt.Printf("  saved as %s\n\n", file)
		}
	}
	fmt.Println(e.setup)
	fmt.Println(r)
	if len(r.Bugs) > 0 {
		return 1
	}
	return 0
}

// showQuorum explores a lock over three servers, and prints what comes of it. It returns the exit code.
func showQuorum(text string, l limits, progress io.Writer) int {
	p, err := parsePlan(text)
	var r report
	if err == nil {
		var e *parliament
		if e, err = newParliament(quorumScripts(), p); err == nil {
			r, err = e.explore(l, progress)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "explore:", err)
		return 2
	}
	for _, b := range r.Bugs {
		fmt.Printf("BUG: %s\n  %s\n\n", b.what, strings.Join(b.trace.steps, "\n  "))
	}
	fmt.Println(text)
	fmt.Println(r)
	return min(len(r.Bugs), 1)
}

// showReplay takes the steps of a trace, and prints what follows from each. It returns the exit code.
func showReplay(e *explorer, t trace) int {
	done, err := e.replay(t)
	fmt.Print(done)
	if err != nil {
		fmt.Println("BUG:", err)
		return 1
	}
	return 0
}
