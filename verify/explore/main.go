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
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	debug.SetGCPercent(400) // most of what there is stays
	states := flag.Int("states", 0, "stop after so many states; 0 for no limit")
	replayed := flag.String("replay", "", "a trace to take the steps of, instead of exploring")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "explore [flags] [set-up]: setup.go has the words of set-ups")
		flag.PrintDefaults()
	}
	flag.Parse()
	text := cmp.Or(strings.Join(flag.Args(), " "), "owners 11 faults 1 crashes 1")
	if err := explore(*replayed, text, limits{states: *states, bugs: 10}); err != nil {
		log.Fatal(err)
	}
}

// explore explores, or replays a trace, and prints what comes of it. It is an error if something is found.
func explore(replayed, text string, l limits) (err error) {
	var t trace
	if replayed == "" {
		t.setup, err = parseSetup(text)
	} else {
		t, err = loadTrace(replayed)
	}
	if err != nil {
		return err
	}
	e, err := newExploration(t.setup)
	if err != nil {
		return err
	}
	if replayed != "" {
		done, err := e.replay(t)
		fmt.Print(done)
		return err
	}
	r := e.explore(l, os.Stderr)
	for _, b := range r.Bugs {
		fmt.Printf("BUG: %s\n%s\n", b.what, b.trace)
	}
	fmt.Printf("%s\n%s\n", t.setup.text, r)
	if len(r.Bugs) > 0 {
		return errors.New("promises are broken")
	}
	return nil
}

// An exploration is a search, whatever the states are.
type exploration interface {
	explore(l limits, progress io.Writer) report
	replay(t trace) (trace, error)
}

func newExploration(s setup) (exploration, error) {
	if s.calls != nil {
		e, err := newParliament(s, false)
		return newSearch(s, e), err
	}
	e, err := newExplorer(s, false)
	return newSearch(s, e), err
}
