package outside

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A Row is a fault of which a table has a line for each setup.
type Row struct {
	Name  string
	Needs string // what is missing for it on this machine, or ""
	// Run has the fault happen. It returns the line, and what that is short of.
	Run func(tb testing.TB, setup string) (line fmt.Stringer, misses []string)
}

// Table prints a table with the rows whose names match the regular expression which, or with all if it is
// "all", for each of the setups, which are separated by commas. If which is "list", it prints the names
// alone. It returns the status to exit with: 1 if a line is short of anything, 2 for a bad expression.
func Table(head, which, setups string, rows []Row) int {
	if which == "all" {
		which = "."
	}
	pattern, err := regexp.Compile(which)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if which != "list" {
		fmt.Println(head)
	}
	status := 0
	for _, r := range rows {
		switch {
		case which == "list":
			fmt.Println(r.Name)
		case pattern.MatchString(r.Name) && r.Needs != "":
			fmt.Fprintf(os.Stderr, "%s: %s\n", r.Name, r.Needs)
		case pattern.MatchString(r.Name):
			for setup := range strings.SplitSeq(setups, ",") {
				if r.print(setup) {
					status = 1
				}
			}
		}
	}
	return status
}

// print prints the line of a setup, and reports whether it is short of anything.
func (r Row) print(setup string) (short bool) {
	var misses []string
	err := Run(func(tb testing.TB) {
		var line fmt.Stringer
		line, misses = r.Run(tb, setup)
		fmt.Println(line)
	})
	if err != nil {
		misses = append(misses, err.Error())
	}
	for i, m := range misses {
		if i == 10 {
			fmt.Fprintf(os.Stderr, "\tand %d more\n", len(misses)-i)
			break
		}
		fmt.Fprintf(os.Stderr, "\t%s, %s: %s\n", r.Name, setup, m)
	}
	return len(misses) > 0
}
