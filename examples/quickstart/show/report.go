//go:build unix && !aix && !solaris

package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// tally is what came of an act.
type tally struct {
	reads, writes int
	lost          int // writes that are not in the ledger any more
	broken        int // reads in which the accounts did not add up
	refused       int // writes that the ledger did not take, for their stale token
	longest       time.Duration
	recovery      time.Duration
	problems      []error
}

func (t *tally) problem(format string, args ...any) {
	t.problems = append(t.problems, fmt.Errorf(format, args...))
}

// judge adds to the problems of an act what a lock should have prevented.
func (a *act) judge() {
	if a.reads == 0 || a.writes == 0 {
		a.problem("%d reads and %d writes: nothing was shown", a.reads, a.writes)
	}
	if a.unlocked {
		return
	}
	if a.lost != 0 {
		a.problem("%d updates were lost", a.lost)
	}
	if a.broken != 0 {
		a.problem("%d reads were broken", a.broken)
	}
}

// report prints the closing table, and returns what went wrong.
func report(show []*act) error {
	var problems []error
	row := func(label string, cell func(*act) string) {
		fmt.Printf("  %-20s", label)
		for _, a := range show {
			fmt.Printf("%15s", cell(a))
		}
		fmt.Println()
	}
	orNone := func(text string, there bool) string {
		if there {
			return text
		}
		return "-"
	}

	fmt.Println()
	row("", func(a *act) string { return a.title })
	row("longest wait", func(a *act) string { return orNone(seconds(a.longest), !a.unlocked) })
	row("lost updates", func(a *act) string { return strconv.Itoa(a.lost) })
	row("broken reads", func(a *act) string { return strconv.Itoa(a.broken) })
	row("recovery time", func(a *act) string { return orNone(seconds(a.recovery), a.recovery > 0) })
	row("stale token refused", func(a *act) string { return orNone("yes", a.refused > 0) })

	for _, a := range show {
		a.judge()
		for _, p := range a.problems {
			problems = append(problems, fmt.Errorf("%s: %w", a.title, p))
		}
	}
	if show[0].lost == 0 {
		fmt.Println("No update was lost without a lock. That was luck: run it again.")
	}
	if len(problems) == 0 {
		fmt.Println("With the lock, no update was lost and no read was broken.")
	}
	return errors.Join(problems...)
}

var start = time.Now()

// say prints what happens, as it happens.
func say(format string, args ...any) {
	headline("  "+format, args...)
}

// headline prints what an act is about.
func headline(format string, args ...any) {
	fmt.Printf("%6.2fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
}

func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
