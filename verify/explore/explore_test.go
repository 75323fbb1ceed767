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

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/lua"
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

func explorationOf(t *testing.T, from scripts, s setup, v variant) exploration {
	e, err := newExploration(from, s, v)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// listed returns the set-ups that docs/verification.md has figures of: those of one server, or others, that
// are explored on every change, or every night.
func listed(t *testing.T, oneServer, nightly bool) (list []string) {
	text, err := os.ReadFile("../../docs/verification.md")
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
			r := explorationOf(t, sources(), setupOf(t, text), variant{}).explore(limits{bugs: 10}, nil)
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
		t.Run(strings.TrimSuffix(filepath.Base(file), ".trace"), func(t *testing.T) {
			tr, err := loadTrace(file)
			if err != nil {
				t.Fatal(err)
			}
			if done, err := explorationOf(t, sources(), tr.setup, variant{}).replay(tr); err != nil {
				t.Errorf("%v\n%safter:\n%s", err, tr, done)
			}
		})
	}
}

// A trace whose steps cannot be taken any more shows nothing, and fails.
func TestTraceThatCannotBeFollowedFails(t *testing.T) {
	t.Parallel()
	tr, err := loadTrace("testdata/try-lets-in-untold.trace")
	if err != nil {
		t.Fatal(err)
	}
	tr.steps = append(tr.steps, "A asks to write") // it is dead
	if _, err := explorationOf(t, sources(), tr.setup, variant{}).replay(tr); !errors.Is(err, errImpossible) {
		t.Fatalf("it ends with %v", err)
	}
}

// A trace fails when what it guards is broken.
func TestTracesFailOnMistakes(t *testing.T) {
	for _, c := range []struct {
		name string
		edit edit
		variant
	}{
		{"released-hold-comes-back", edit{}, variant{mute: (*engine.Request).ReleasesStale}},
		{"extended-after-it-was-dropped", edit{}, variant{deafen: saysDone(lua.Reenter)}},
		{"extended-and-renewed", edit{}, variant{shorten: true}},
		{"ends-by-max-hold", edit{}, variant{alter: forgetsMaxHold}},
		{"closed-with-a-waiter-behind", edit{}, variant{lazy: true}},
		{"two-owners-and-two-names", edit{}, variant{alter: isNew}},
		{"reader-behind-a-waiting-writer", edit{}, variant{alter: isNew}},
		{"reply-after-the-deadline", edit{}, variant{behind: true}},
		{"asks-after-release-told-late", edit{"again and 2 or 0", "0"}, variant{}},
		{"released-before-two-others", edit{"what == 'ended' or what == 'void'", "false"}, variant{}},
		{"granted-once", requeues, variant{}},
		{"granted-twice-told", edit{"of == its_number and alive(from, for_ms)", "of == its_number"}, variant{}},
		{"late-copy-of-force", edit{"return {2, unfinished(), '', ''}", "time[1] = time[1]"}, variant{}},
		{"late-reader-before-waiting-writer", edit{"(waits or waiting > 0 or is_write(holder)",
			"(is_write(holder)"}, variant{}},
		{"late-reader-beside-owed-one", edit{"owed = f[7]", "owed = ''"}, variant{}},
		{"late-writer-before-waiting-reader", edit{"grant(writer)", "granted[writer] = 'let in'"}, variant{}},
		{"try-lets-in-untold", edit{"note(' ', id)", "notes[id] = nil"}, variant{}},
		{"waiter-under-own-write-hold", edit{"holder == WRITER and holder ~= ''", "WRITER ~= ''"},
			variant{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tr, err := loadTrace(filepath.Join("testdata", c.name+".trace"))
			if err != nil {
				t.Fatal(err)
			}
			done, err := explorationOf(t, c.edit.in(t, sources()), tr.setup, c.variant).replay(tr)
			if err == nil || errors.Is(err, errImpossible) {
				t.Fatalf("the mistake is not found: %v, after\n%s", err, done)
			}
			t.Log(err)
		})
	}
}
