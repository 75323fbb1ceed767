package main

import (
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
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

func explorerOf(t *testing.T, s scripts, line string) *explorer {
	setup, err := parseSetup(line)
	if err != nil {
		t.Fatal(err)
	}
	e, err := newExplorer(s, setup)
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

// Every state that can be reached is one that the model allows, and keeps the promises; and from each, all
// comes to a good end.
func TestExplore(t *testing.T) {
	list := setups
	if *large {
		list = largeSetups
	}
	for _, s := range list {
		t.Run(strings.ReplaceAll(s, " ", "_"), func(t *testing.T) {
			if !*large { // which takes all the memory there is
				t.Parallel()
			}
			e := explorerOf(t, sources(t), s)
			r := e.explore(limits{bugs: 10}, nil)
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
			e, err := newExplorer(sources(t), tr.setup)
			if err != nil {
				t.Fatal(err)
			}
			if done, err := e.replay(tr); err != nil {
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
	e, err := newExplorer(embedded(), tr.setup)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.replay(tr); !errors.Is(err, errImpossible) {
		t.Fatalf("it ends with %v", err)
	}
}

// A trace fails when what it guards is broken.
func TestTracesFailOnMistakes(t *testing.T) {
	releasesStale := func(e *explorer) { e.mute = (*engine.Request).ReleasesStale }
	extends := func(e *explorer) { e.deafen = saysDone(lua.Reenter) }
	half := func(e *explorer) { e.shorten = true }
	forever := func(e *explorer) { e.alter = func(h *engine.Hold) { h.MaxHold = 0 } }
	lazy := func(e *explorer) { e.lazy = true }
	behind := func(e *explorer) { e.behind = true }
	alone := func(e *explorer) { e.alter = func(h *engine.Hold) { h.NewOwner = true } }
	for name, breaks := range map[string]func(*explorer){
		"released-hold-comes-back":       releasesStale,
		"extended-after-it-was-dropped":  extends,
		"extended-and-renewed":           half,
		"ends-by-max-hold":               forever,
		"closed-with-a-waiter-behind":    lazy,
		"two-owners-and-two-names":       alone,
		"reader-behind-a-waiting-writer": alone,
		"reply-after-the-deadline":       behind,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failsOnTrace(t, name, embedded(), breaks)
		})
	}
	for name, d := range map[string]edit{
		"asks-after-release-told-late": {"again and 2 or 0", "0"},
		"released-before-two-others":   {"what == 'ended' or what == 'void'", "false"},
		"granted-once":                 requeues,
		"granted-twice-told":           {"of == its_number and alive(from, for_ms)", "of == its_number"},
		"late-copy-of-force":           {"return {2, unfinished(), '', ''}", "time[1] = time[1]"},
		"late-reader-before-waiting-writer": {"waits or waiting > 0 or is_write(holder) then",
			"is_write(holder) then"},
		"late-reader-beside-owed-one":       {"owed = f[7]", "owed = ''"},
		"late-writer-before-waiting-reader": {"grant(writer)", "granted[writer] = 'let in'"},
		"try-lets-in-untold":                {"note(grants, id)", "grants[id] = nil"},
		"waiter-under-own-write-hold":       {"if holder == WRITER and holder ~= '' then", "if WRITER ~= '' then"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failsOnTrace(t, name, d.in(t, embedded()), func(*explorer) {})
		})
	}
}

// failsOnTrace follows a trace with something broken.
func failsOnTrace(t *testing.T, name string, s scripts, breaks func(*explorer)) {
	tr, err := loadTrace(filepath.Join("testdata", name+".trace"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := newExplorer(s, tr.setup)
	if err != nil {
		t.Fatal(err)
	}
	breaks(e)
	done, err := e.replay(tr)
	if err == nil || errors.Is(err, errImpossible) {
		t.Fatalf("the mistake is not found: %v, after\n%s", err, done)
	}
	t.Log(err)
}

// saysDone has an engine hear that what a script was to do is done, whatever the server replies.
func saysDone(s *lua.Script) func(*engine.Request, *protocol.Reply) {
	return func(r *engine.Request, reply *protocol.Reply) {
		if r.Script == s {
			reply.Code = protocol.Done
		}
	}
}

// An edit breaks a script.
type edit struct{ from, to string }

func (d edit) in(t *testing.T, s scripts) scripts {
	s = maps.Clone(s)
	found := false
	for name, text := range s {
		s[name] = strings.ReplaceAll(text, d.from, d.to)
		found = found || s[name] != text
	}
	if !found {
		t.Fatalf("no script has %q", d.from)
	}
	return s
}

// requeues lets a lone holder whose lease has ended queue again under its number.
var requeues = edit{"not alive(since, lease) then\n    void_holder()", "not alive(since, lease) then"}

var noTombstones = edit{"what == 'ended' or what == 'void'", "false"}

// Mistakes made on purpose are found.
func TestMistakesAreFound(t *testing.T) {
	withdraws := func(r *engine.Request) bool {
		v, ok := r.View()
		return ok && (r.Script == lua.Unlock || r.Script == lua.RUnlock) && v.Token == 0
	}
	heartbeat := func(r *engine.Request) bool {
		v, ok := r.View()
		return ok && (r.Script == lua.Lock || r.Script == lua.RLock) && v.State == engine.Queued
	}
	for _, c := range []struct {
		name   string
		edit   edit
		breaks func(*explorer)
		setup  string
		what   string // that is found
	}{
		{"requests of claims that have ended are not refused", noTombstones, nil,
			"owners 11 leases 33 asks 1 faults 1", ""},
		{"a hold is granted to a waiter that is dead", edit{"and since + lease * 1000 - now > 0", ""}, nil,
			"owners 11 leases 32 asks 1 crashes 1", ""},
		{"a writer lines up behind itself", edit{"string.sub(owner, 1, 1) == 'w' and writer ~= ARGV[1] and",
			"string.sub(owner, 1, 1) == 'w' and"}, nil, "owners 11 leases 33 asks 1", ""},
		{"readers overtake writers", edit{"(not writer or owed ~= '')", "true"}, nil,
			"owners 111 leases 333 asks 1", ""},
		{"readers are owed nothing", edit{"owed = f[7]", "owed = ''"}, nil, "owners 111 leases 333 asks 1", ""},
		{"nobody hears of a grant", edit{"redis.pcall('PUBLISH', channels .. instance, message)", "true"}, nil,
			"owners 11 leases 33 asks 1", ""},
		{"a lost hold is renewed", edit{"if not held() then\n  return 0", "if not held() then\n  return 1"}, nil,
			"owners 11 leases 33 asks 1 forces 1", ""},
		{"a token is used twice", edit{"string.format('%.0f', fence + 1)", "fence"}, nil,
			"owners 11 leases 33 asks 1 stands", ""},
		{"a key lives for ever", edit{"if new_queue or short and waiting > 0 then", "if false then"}, nil,
			"owners 111 leases 333 asks 1", ""},
		{"the engine ignores that it is refused", edit{}, func(e *explorer) {
			e.deafen = func(_ *engine.Request, r *protocol.Reply) {
				if r.Refused {
					*r = protocol.Reply{}
				}
			}
		}, "owners 11 leases 33 asks 1 stalls 1", ""},
		{"the engine ignores that a hold is gone", edit{}, func(e *explorer) {
			e.deafen = saysDone(lua.Renew)
		}, "owners 11 leases 33 asks 1 forces 1", ""},
		{"the engine does not withdraw", edit{}, func(e *explorer) { e.mute = withdraws },
			"owners 11 leases 33 asks 1", ""},
		{"the engine sends no heartbeats", edit{}, func(e *explorer) { e.mute = heartbeat },
			"owners 11 leases 33 asks 1", ""},
		{"the engine does not renew", edit{}, func(e *explorer) {
			e.mute = func(r *engine.Request) bool { return r.Script == lua.Renew }
		}, "owners 11 leases 33 asks 1", ""},
		{"a release says nothing of a loss", edit{}, func(e *explorer) {
			e.deafen = saysDone(lua.Unlock)
		}, "owners 11 leases 33 asks 1 forces 1", ""},
		{"a claim that came back is not released", edit{}, func(e *explorer) { e.mute = (*engine.Request).ReleasesStale },
			"owners 2 leases 6 asks 1 undos 1", "ticks until all have had the lock"},
		{"a hold is extended for less than it should be", edit{}, func(e *explorer) { e.shorten = true },
			"owners 11 leases 33 asks 1 extends 1", "than it was extended for"},
		{"a hold that is gone is extended", edit{}, func(e *explorer) {
			e.deafen = saysDone(lua.Reenter)
		}, "owners 11 leases 33 asks 1 extends 1 forces 1", "rely on a hold that was dropped"},
		{"the engine knows of no MaxHold", edit{}, func(
			e *explorer) {
			e.alter = func(h *engine.Hold) { h.MaxHold = 0 }
		},
			"owners 11 leases 33 asks 1 maxhold 2", "longer than its MaxHold"},
		{"a reply is handled before what is due", edit{}, func(e *explorer) { e.behind = true },
			"owners 1 leases 2 asks 1 faults 1 stalls 1 ticks 3", "may be relied on again"},
		{"a claim whose lease has ended may queue again",
			requeues, nil, "owners 11 leases 22 asks 1 faults 1 stalls 1 ticks 3", ""},
		{"a claim that was dropped by force may queue again", edit{"\nvoid_holder()\n", "\n"},
			nil, "owners 11 leases 22 asks 1 faults 1 forces 1 ticks 2", ""},
		{"Close releases nothing", edit{}, func(e *explorer) {
			e.mute = func(r *engine.Request) bool {
				v, ok := r.View()
				return ok && (r.Script == lua.Unlock || r.Script == lua.RUnlock) && v.Token != 0 && r.Hold() == nil
			}
		}, "owners 11 leases 33 asks 1 closes 1", "though nothing went wrong"},
		{"Close is not heeded", edit{}, func(e *explorer) { e.lazy = true }, "owners 11 leases 33 asks 1 closes 1",
			"although its RWLock is closed"},
		{"no deadlock is looked for", edit{}, func(e *explorer) {
			e.alter = func(
				h *engine.Hold) {
				h.NewOwner = true
			}
		},
			"owners 2 leases 3 asks 2 names 2 ticks 0", "fair run"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := embedded()
			if c.edit.from != "" {
				s = c.edit.in(t, s)
			}
			e := explorerOf(t, s, c.setup)
			if c.breaks != nil {
				c.breaks(e)
			}
			r := e.explore(limits{bugs: 1, states: 300_000}, nil)
			if len(r.Bugs) == 0 {
				t.Fatal("it is not found: ", r)
			}
			t.Log(r.Bugs[0].what, "\n", r.Bugs[0].trace)
			if !strings.Contains(r.Bugs[0].what, c.what) {
				t.Errorf("something else is found, not %q", c.what)
			}
		})
	}
}

// Normalization makes no difference: without it, the same states are reached, and the same is found.
func TestNormalizingIsSound(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup string
		edit  edit
	}{
		{"calm", "owners 11 leases 22 asks 1 ticks 3", edit{}},
		{"two owners", "owners 2 leases 2 asks 1 ticks 2", edit{}},
		{"three owners", "owners 111 leases 222 asks 1 ticks 0", edit{}},
		{"asked again", "owners 1 leases 2 asks 2 faults 1 ticks 1", edit{}},
		{"entered again", "owners 1 leases 2 asks 2 faults 1 reenter ticks 1", edit{}},
		{"not renewed", "owners 11 leases 32 asks 1 norenew ticks 4", edit{}},
		{"a fault", "owners 11 leases 22 asks 1 faults 1 ticks 0", edit{}},
		{"a crash", "owners 11 leases 22 asks 1 crashes 1 ticks 2", edit{}},
		{"a stall", "owners 11 leases 22 asks 1 stalls 1 ticks 2", edit{}},
		{"force", "owners 11 leases 22 asks 1 forces 1 ticks 1", edit{}},
		{"what is forgotten", "owners 11 leases 22 asks 1 undos 1 ticks 1", edit{}},
		{"what is forgotten in one process", "owners 2 leases 2 asks 1 undos 1 ticks 1", edit{}},
		{"extended", "owners 1 leases 2 asks 1 extends 2 ticks 3", edit{}},
		{"bounded", "owners 1 leases 2 asks 1 extends 1 maxhold 3 ticks 3", edit{}},
		{"closed", "owners 11 leases 22 asks 1 closes 1 ticks 1", edit{}},
		{"two names", "owners 2 leases 2 asks 1 names 2 ticks 1", edit{}},
		{"two names of one owner", "owners 1 leases 2 asks 2 names 2 ticks 1", edit{}},
		{"a mistake", "owners 11 leases 22 asks 1 faults 1 ticks 0", noTombstones},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := sources(t)
			if c.edit.from != "" {
				s = c.edit.in(t, s)
			}
			normalized, plain := explorerOf(t, s, c.setup), explorerOf(t, s, c.setup)
			plain.normalize = false
			normalized.exact, plain.exact = true, true
			states, images := map[string]bool{}, map[string]bool{}
			normalized.visit = func(x *system) { states[normalized.withoutTTL(x)] = true }
			plain.visit = func(x *system) { images[normalized.withoutTTL(normalized.image(t, x))] = true }
			a, b := normalized.explore(limits{}, nil), plain.explore(limits{}, nil)
			t.Logf("normalized: %v\nnot normalized: %v", a, b)
			found := a.kinds()
			if !maps.Equal(found, b.kinds()) {
				t.Errorf("normalized, it finds\n%v\nand otherwise\n%v", found, b.kinds())
			}
			if len(found) > 0 != (c.edit.from != "") {
				t.Errorf("it finds %v", found)
			}
			for k := range images {
				if !states[k] {
					t.Fatal("a state is not reached once it is normalized")
				}
			}
			for k := range states {
				if !images[k] {
					t.Fatal("a state is reached only if it is normalized")
				}
			}
		})
	}
}

// kinds returns the kinds of bugs, but for what second runs show: those are made only of what is normalized.
func (r report) kinds() map[string]bool {
	kinds := map[string]bool{}
	for _, b := range r.Bugs {
		if !strings.Contains(b.what, "a second run") {
			kinds[kindOf(errors.New(b.what))] = true
		}
	}
	return kinds
}

// withoutTTL is the key of a state but for the time to live, of which normalization takes the least that is
// allowed, and for the ms that pass where nothing is normalized.
func (e *explorer) withoutTTL(x *system) string {
	y := x.clone()
	for k := range y.sites {
		s := y.sites[k].s.clone()
		y.sites[k].s, s.ttl = s, 0
		round(&s.left)
		for i := range s.slots {
			round(&s.slots[i].left)
		}
		for i := range s.leases {
			round(&s.leases[i].at)
		}
	}
	return y.key()
}

func round(left *int32) { *left = (*left + 500) / 1000 * 1000 }

// image normalizes a state that was reached without normalization.
func (e *explorer) image(t *testing.T, x *system) *system {
	y := x.clone()
	var tokens []int64
	see := func(v int64) int64 {
		if v > 1 {
			tokens = append(tokens, v)
		}
		return v
	}
	for _, at := range x.sites {
		if _, err := at.raw.parse(see); err != nil {
			t.Fatal(err)
		}
	}
	var procs []*process
	for _, n := range x.procs {
		p := deepCopy(n.p)
		back := epoch.Sub(p.Now)
		lookThrough(p, func(m meaning, _ *shape, q unsafe.Pointer) {
			switch at := (*time.Time)(q); {
			case m == moment && !at.IsZero():
				*at = at.Add(back)
			case m == token:
				see(*(*int64)(q))
			case m == numText: // when a claim was granted makes no difference to what its slot says
				if text, _ := (*(*any)(q)).(string); strings.HasSuffix(text, " ended") {
					*(*any)(q) = protocol.Released(protocol.Claim{Number: text[:12]}, firstToken)
				}
			}
		})
		p.Now = epoch
		procs = append(procs, p)
	}
	slices.Sort(tokens)
	tokens = slices.Compact(tokens)
	name := func(v int64) int64 {
		k, _ := slices.BinarySearch(tokens, v)
		return firstToken + 1 + int64(k)
	}
	for i, p := range procs {
		lookThrough(p, func(m meaning, _ *shape, q unsafe.Pointer) {
			if v := (*int64)(q); m == token && *v > 1 {
				*v = name(*v)
			}
		})
		p.normalizeAll(e.names > 1)
		y.procs[i] = e.node(p)
	}
	for k, at := range x.sites {
		s, err := at.raw.parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if last := tokens[max(len(tokens)-1, 0):]; s.undone && len(last) > 0 {
			s.floor = name(last[0])
		}
		y.sites[k] = site{s: s}
	}
	y, _ = e.canonical(y)
	return y
}
