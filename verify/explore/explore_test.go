package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/lua"
)

var large = flag.Bool("large", false, "explore more, as every night")

// sources are the scripts under test.
func sources(t *testing.T) scripts {
	dir := os.Getenv("RWLOCK_LUA")
	if dir == "" {
		return embedded()
	}
	s, err := scriptsIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

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

// setups are what TestExplore explores on every change, the longest first, and largeSetups what it explores
// with -large. Each has been explored to its end: docs/verification.md has the figures.
var setups, largeSetups = []string{
	"owners 11 leases 22 asks 1 faults 1 stalls 1 forces 1 ticks 3",
	"owners 11 leases 22 asks 1 faults 1 stalls 1 crashes 1 ticks 3",
	"owners 11 leases 33 asks any",
	"owners 11 leases 33 asks 1 faults 1",
	"owners 11 leases 23 asks 1 crashes 1",
	"owners 11 leases 33 asks 1 forces 1",
	"owners 11 leases 33 asks 1 stalls 1",
	"owners 11 leases 22 asks 1 stalls 1 forces 1 crashes 1",
	"owners 11 leases 33 asks 2 crashes 1 stands",
	"owners 11 leases 33 asks 2 reenter",
	"owners 11 leases 22 asks 1 faults 1 norenew bounded",
	"owners 2 leases 3 asks any",
	"owners 21 leases 33 asks 1",
	"owners 3 leases 3 asks 1",
	"owners 111 leases 333 asks 1",
	"owners 111 leases 123 asks 1",
	"owners 111 leases 333 asks 1 crashes 1",
	"owners 1111 leases 3333 asks 1 ticks 1",
	"owners 111 leases 222 asks 1 faults 1 ticks 2",
	"owners 2 leases 6 asks 1 undos 1",
	"owners 11 leases 33 asks 1 undos 1",
	"owners 11 leases 22 asks 1 faults 1 undos 1 ticks 2",
	"owners 11 leases 33 asks 1 extends 1 forces 1",
	"owners 1 leases 3 asks 2 extends 1 norenew reenter",
	"owners 11 leases 33 asks 1 maxhold 2",
	"owners 1 leases 3 asks 2 maxhold 4 extends 1 reenter",
	"owners 11 leases 33 asks 1 closes 1",
	"owners 2 leases 3 asks 1 closes 1",
	"owners 2 leases 3 asks 2 names 2 ticks 0",
}, []string{
	"owners 11 leases 22 asks 1 faults 1 stalls 1 forces 1",
	"owners 11 leases 22 asks 1 faults 1 stalls 1 forces 1 ticks 5",
	"owners 11 leases 22 asks 1 faults 1 stalls 1 crashes 1",
	"owners 11 leases 33 asks 1 faults 1 stalls 1",
	"owners 11 leases 33 asks 1 faults 1 forces 1",
	"owners 11 leases 22 asks 1 faults 2 ticks 2",
	"owners 11 leases 22 asks 1 faults 1 undos 1",
	"owners 11 leases 22 asks 2 faults 1 crashes 1 ticks 2",
	"owners 11 leases 22 asks 2 faults 1 reenter ticks 1",
	"owners 11 leases 33 asks any crashes 1",
	"owners 11 leases 33 asks any forces 1 stands",
	"owners 2 leases 3 asks 1 faults 1",
	"owners 2 leases 3 asks 2 reenter",
	"owners 111 leases 333 asks 1 faults 1",
	"owners 111 leases 333 asks 2 crashes 1",
	"owners 111 leases 123 asks 1 crashes 1 forces 1",
	"owners 1111 leases 3333 asks 1",
	"owners 11 leases 33 asks 2 undos 1",
	"owners 111 leases 333 asks 1 undos 1",
	"owners 11 leases 33 asks 2 extends 2 reenter",
	"owners 11 leases 33 asks 1 extends 1 faults 1",
	"owners 11 leases 33 asks 2 maxhold 4 extends 1",
	"owners 11 leases 33 asks 1 closes 2 faults 1",
	"owners 111 leases 333 asks 1 closes 1",
	"owners 11 leases 33 asks 1 names 2",
}

// plans and largePlans are for a quorum what setups and largeSetups are for one server.
var plans, largePlans = []string{
	"W W passes 1",
	"W R passes 1",
	"W w passes 1",
	"W W gives 1",
	"W W crashes 1",
	"W w late 1",
	"W w lost 1",
	"W w twice 1",
	"W W restarts 1",
	"W R restarts 1",
	"W W cuts 1",
	"W cold restarts 1 late 1",
	"w r cold",
	"w w cold passes 1",
	"W W W cold apart",
	"w w forces 1",
	"w w stalls 1 crashes 1",
	"WR WR delegated together",
	"W R delegated passes 4",
	"WW W delegated gives 1 passes 1",
	"WR W delegated together late 1",
	"WR W delegated together lost 1 passes 1",
	"WR R delegated together twice 1",
	"W W delegated stalls 1 passes 2",
	"W R delegated crashes 1 passes 2",
	"WR W delegated together forces 1",
	"WR W delegated together cuts 1",
	"R R W delegated late 1",
	"WWR W delegated reenter late 1",
	"WR WR delegated together late 1",
	"W W delegated forces 1 stalls 1",
	"WR w delegated together stalls 1 late 1",
}, []string{
	"W W five",
	"W r r",
	"W w cold",
	"W w five",
	"W W late 1",
	"W W lost 1",
	"W W twice 1",
	"W w late 1 passes 1",
	"w r cuts 1 lost 1",
	"w w late 1 crashes 1",
	"w w late 1 lost 1",
	"w w late 1 restarts 1",
	"w w lost 1 crashes 1",
	"W W W cold apart passes 1",
	"W W stalls 1",
	"W W forces 1",
	"W w stalls 1",
	"W R stalls 1",
	"w w stalls 1 passes 1",
	"w w stalls 1 late 1",
	"W w lost 1 crashes 1",
	"WR W delegated together cuts 1 passes 1",
	"RW RW delegated together crashes 1 passes 2",
	"WR R delegated together twice 1 passes 3",
	"WR W delegated together forces 1 passes 2",
	"W W delegated twice 1 late 1 passes 3",
}

// Every state that can be reached is one that the model allows, and keeps the promises; and from each, all
// comes to a good end.
func TestExplore(t *testing.T) { testExplore(t, setups, largeSetups) }

// Over three servers, and over one that delegates, nobody relies on the lock beside a writer, tokens have
// their order, and from every world that can be reached all comes to a good end: every call gets the lock, or
// gives up.
func TestExploreQuorum(t *testing.T) { testExplore(t, plans, largePlans) }

func testExplore(t *testing.T, list, largeList []string) {
	if *large {
		list = largeList
	}
	for _, text := range list {
		t.Run(strings.ReplaceAll(text, " ", "_"), func(t *testing.T) {
			if !*large { // which takes all the memory there is
				t.Parallel()
			}
			r := explorationOf(t, sources(t), setupOf(t, text), variant{}).explore(limits{bugs: 10}, nil)
			t.Log(r)
			for _, b := range r.Bugs {
				file, err := b.save(t.ArtifactDir())
				t.Errorf("%s\n%ssaved as %s (%v)", b.what, b.trace, file, err)
			}
			if !r.Complete {
				t.Error("the exploration is not complete")
			}
		})
	}
}

// What is listed has been run to its end: each set-up and plan has its figures in the documents.
func TestFiguresAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/verification.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, line := range slices.Concat(setups, largeSetups, plans, largePlans) {
		listed[line] = true
	}
	row := regexp.MustCompile("(?m)^\\| `((?:owners |[WwRr ]+)[a-zA-Z0-9 ]*)` \\| [0-9,]+ \\| [0-9,]+ \\| [0-9]+ \\| [0-9]+ s \\|")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if !listed[m[1]] {
			t.Errorf("the documents have figures of %q, which is not listed", m[1])
		}
		delete(listed, m[1])
	}
	for line := range listed {
		t.Errorf("the documents have no figures of %q", line)
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
			if done, err := explorationOf(t, sources(t), tr.setup, variant{}).replay(tr); err != nil {
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
	if _, err := explorationOf(t, embedded(), tr.setup, variant{}).replay(tr); !errors.Is(err, errImpossible) {
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
			done, err := explorationOf(t, c.edit.in(t, embedded()), tr.setup, c.variant).replay(tr)
			if err == nil || errors.Is(err, errImpossible) {
				t.Fatalf("the mistake is not found: %v, after\n%s", err, done)
			}
			t.Log(err)
		})
	}
}
