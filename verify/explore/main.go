// Command explore visits every state that the lock's scripts and a few engines, with an owner or two each,
// can reach over a network that may do its worst, and holds each against the model and the promises.
//
//	go run ./explore                                      # two processes, a call each, one fault, one crash
//	go run ./explore owners 111 leases 333                # three processes
//	go run ./explore owners 2 asks any                    # two owners of one process, for ever
//	go run ./explore owners 11 asks 2 reenter forces 1           # re-entry, and ForceUnlock
//	go run ./explore W R late 1 passes 2                  # two clients of a quorum
//	go run ./explore WR W delegated together              # one server that delegates
//	go run ./explore -replay explore/testdata/try-lets-in-untold.trace
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	debug.SetGCPercent(400) // most of what there is stays
	var l limits
	dir := flag.String("lua", "../lua", "the directory of the scripts")
	flag.IntVar(&l.states, "states", 0, "stop after so many states; 0 for no limit")
	flag.DurationVar(&l.time, "time", 0, "stop after so long; 0 for no limit")
	flag.IntVar(&l.bugs, "bugs", 10, "stop after so many kinds of bugs")
	save := flag.String("save", "", "a directory to save the traces of bugs in")
	replayed := flag.String("replay", "", "a trace to take the steps of, instead of exploring")
	quiet := flag.Bool("q", false, "do not tell of progress")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "explore [flags] [set-up]: setup.go has the words of set-ups")
		flag.PrintDefaults()
	}
	flag.Parse()
	found, err := explore(*dir, *replayed, *save, cmp.Or(strings.Join(flag.Args(), " "), "owners 11 faults 1 crashes 1"),
		l, *quiet)
	if err != nil {
		fmt.Fprintln(os.Stderr, "explore:", err)
		os.Exit(2)
	}
	if found {
		os.Exit(1)
	}
}

// explore explores, or replays a trace, and prints what comes of it. It reports whether there are bugs.
func explore(dir, replayed, save, text string, l limits, quiet bool) (found bool, err error) {
	sources, err := scriptsIn(dir)
	if err != nil {
		return false, err
	}
	var t trace
	if replayed == "" {
		t.setup, err = parseSetup(text)
	} else {
		t, err = loadTrace(replayed)
	}
	if err != nil {
		return false, err
	}
	e, err := newExploration(sources, t.setup, variant{})
	if err != nil {
		return false, err
	}
	if replayed != "" {
		done, err := e.replay(t)
		fmt.Print(done)
		if err != nil {
			fmt.Println("BUG:", err)
		}
		return err != nil, nil
	}
	var progress io.Writer
	if !quiet {
		progress = os.Stderr
	}
	r := e.explore(l, progress)
	for _, b := range r.Bugs {
		fmt.Printf("BUG: %s\n  %s\n\n", b.what, strings.Join(b.trace.steps, "\n  "))
		if save != "" {
			file, err := b.save(save)
			if err != nil {
				return true, err
			}
			fmt.Printf("  saved as %s\n\n", file)
		}
	}
	fmt.Println(t.setup.text)
	fmt.Println(r)
	return len(r.Bugs) > 0, nil
}

// An exploration is a search, whatever the states are.
type exploration interface {
	explore(l limits, progress io.Writer) report
	replay(t trace) (trace, error)
}

func newExploration(sources scripts, s setup, v variant) (exploration, error) {
	if s.calls != nil {
		e, err := newParliament(sources, s, v)
		return newSearch(s, e), err
	}
	e, err := newExplorer(sources, s, v)
	return newSearch(s, e), err
}
