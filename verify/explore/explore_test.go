package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

var large = flag.Bool("large", false, "explore more, as every night")

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // most of what there is stays
	os.Exit(m.Run())
}

func setupOf(t *testing.T, text string) setup {
	s, err := parseSetup(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func explorationOf(t *testing.T, text string) exploration {
	e, err := newExploration(setupOf(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// replay takes the steps of a trace in testdata, and more.
func replay(t *testing.T, name string, more ...string) (trace, error) {
	tr, err := loadTrace(filepath.Join("testdata", name+".trace"))
	if err != nil {
		t.Fatal(err)
	}
	tr.steps = append(tr.steps, more...)
	return explorationOf(t, tr.setup.text).replay(tr)
}

// listed returns the set-ups that verify/verification.md has figures of: those of one server, or others, that
// are explored on every change, or every night.
func listed(t *testing.T, oneServer, nightly bool) (list []string) {
	text, err := os.ReadFile("../verification.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("^\\| `((owners|[WwRr]+) [a-zA-Z0-9 ]+)` \\|")
	night := false
	for line := range strings.Lines(string(text)) {
		night = strings.HasPrefix(line, "Every night") || night && !strings.HasPrefix(line, "On every change")
		if m := row.FindStringSubmatch(line); m != nil && (m[2] == "owners") == oneServer && night == nightly {
			list = append(list, m[1])
		}
	}
	if len(list) < 15 {
		t.Fatalf("the documents list only %q", list)
	}
	return list
}

// Every state that can be reached is one that the model allows, and keeps the promises; and from each, all
// comes to a good end.
func TestExplore(t *testing.T) { testExplore(t, listed(t, true, *large)) }

// Over three servers, and over one that delegates, nobody relies on the lock beside a writer, tokens have
// their order, and from every world that can be reached all comes to a good end: every call gets the lock, or
// gives up.
func TestExploreQuorum(t *testing.T) { testExplore(t, listed(t, false, *large)) }

func testExplore(t *testing.T, list []string) {
	for _, text := range list {
		t.Run(strings.ReplaceAll(text, " ", "_"), func(t *testing.T) {
			if !*large { // which takes all the memory there is
				t.Parallel()
			}
			r := explorationOf(t, text).explore(limits{bugs: 10}, nil)
			t.Log(r)
			for _, b := range r.Bugs {
				t.Errorf("%s\n%s", b.what, b.trace)
			}
			if !r.Complete {
				t.Error("the exploration is not complete")
			}
		})
	}
}

// What was found once does not come back. A trace that can no longer be followed shows nothing, and is to be
// recorded again.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.trace")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("there are no traces in testdata")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".trace")
		t.Run(name, func(t *testing.T) {
			if done, err := replay(t, name); err != nil {
				t.Errorf("%v, after:\n%s", err, done)
			}
		})
	}
}

// A trace whose steps cannot be taken any more shows nothing, and fails.
func TestTraceThatCannotBeFollowedFails(t *testing.T) {
	t.Parallel()
	_, err := replay(t, "try-lets-in-untold", "A asks to write") // it is dead
	if !errors.Is(err, errImpossible) {
		t.Fatalf("it ends with %v", err)
	}
}
