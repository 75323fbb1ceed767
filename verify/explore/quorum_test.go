package main

import (
	"flag"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
	"github.com/seed-7e8842f7/rwlock/lua"
)

var quorumTime = flag.Duration("quorumtime", 0, "stop each exploration of a quorum after so long; 0 for no limit")

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

// Over three servers, and over one that delegates, nobody relies on the lock beside a writer, tokens have
// their order, and from every world that can be reached all comes to a good end: every call gets the lock, or
// gives up.
func TestExploreQuorum(t *testing.T) {
	list := plans
	if *large {
		list = largePlans
	}
	for _, text := range list {
		t.Run(strings.ReplaceAll(text, " ", "_"), func(t *testing.T) {
			if !*large { // which takes all the memory there is
				t.Parallel()
			}
			e := parliamentOf(t, quorumScripts(), text)
			r, err := e.explore(limits{bugs: 5, time: *quorumTime}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			for _, b := range r.Bugs {
				t.Errorf("%s\n%s", b.what, strings.Join(b.trace.steps, "\n"))
			}
			if !r.Complete && *quorumTime == 0 {
				t.Error("the exploration is not complete")
			}
		})
	}
}

// Normalization does not change what is reached. An exploration that normalizes nothing, and computes each
// step again, reaches worlds that appear the same from outside, and finds the same errors.
func TestNormalizingOfAQuorumIsSound(t *testing.T) {
	for _, c := range []struct {
		plan string
		edit edit
	}{
		{"W w", edit{}},
		{"W cold", edit{}},
		{"W passes 2", edit{}},
		{"W late 1", edit{}},
		{"W lost 1", edit{}},
		{"W twice 1", edit{}},
		{"W crashes 1", edit{}},
		{"W restarts 1", edit{}},
		{"W cuts 1", edit{}},
		{"W gives 1 late 1", edit{}},
		{"W five", edit{}},
		{"W stalls 1", edit{}},
		{"W stalls 1 passes 3", edit{}},
		{"W forces 1", edit{}},
		{"R R", edit{}},
		{"W R delegated", edit{}},
		{"WR W delegated together", edit{}},
		{"W delegated passes 4", edit{}},
		{"W W delegated late 1", edit{}},
		{"W W delegated stalls 1", edit{}},
		{"W R delegated forces 1", edit{}},
		{"W w", edit{"token = wanted > largest and wanted or string.format('%.0f', largest + 1)",
			"token = wanted"}},
	} {
		t.Run(strings.ReplaceAll(c.plan, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := quorumScripts()
			if c.edit.from != "" {
				s = c.edit.in(t, s)
			}
			looks := func(plain bool) (map[string]bool, report) {
				e := parliamentOf(t, s, c.plan)
				e.plain = plain
				seen := map[string]bool{}
				e.visit = func(w *world) { seen[e.look(w)] = true }
				r, err := e.explore(limits{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				return seen, r
			}
			normalized, a := looks(false)
			plain, b := looks(true)
			t.Logf("%d looks\nfolded: %v\nnot normalized: %v", len(normalized), a, b)
			if !maps.Equal(normalized, plain) {
				t.Errorf("%d looks once it is normalized, %d otherwise", len(normalized), len(plain))
			}
			if found := a.kinds(); !maps.Equal(found, b.kinds()) || len(found) > 0 != (c.edit.from != "") {
				t.Errorf("normalized, it finds\n%v\nand otherwise\n%v", found, b.kinds())
			}
		})
	}
}

// look returns what a world looks like from outside: what the servers have, what is in flight, what callers
// have been told, when the next timer is due, and what may yet happen. It does not ask how the clients store
// what they know.
func (e *parliament) look(w *world) string {
	var b strings.Builder
	fmt.Fprintln(&b, w.at.UnixNano(), w.allowance, w.faulty, w.wrote, w.read)
	for _, s := range w.stores {
		fmt.Fprintln(&b, s.text)
	}
	for _, n := range w.clients {
		p := n.p
		fmt.Fprintln(&b, p.Crashed, p.Stalled, p.Listens, p.Cut, p.Inbox, n.next.UnixNano())
		for _, f := range p.Flights {
			fmt.Fprintln(&b, f.R.Server, f.R.Script.Name, f.R.Argv(nil), f.Late, f.Lost, f.Reply)
		}
		for _, s := range p.Copies {
			fmt.Fprintln(&b, s.Server, s.R.Script.Name, s.R.Argv(nil))
		}
		for _, l := range p.Calls {
			fmt.Fprintln(&b, l.Granted, l.GaveUp, l.Dropped)
			if l.Hold != nil {
				fmt.Fprintln(&b, l.Hold.State(), l.Hold.Err(), l.Hold.Token(), l.Hold.Deadline().UnixNano())
			}
		}
	}
	return b.String()
}

func parliamentOf(t *testing.T, s scripts, text string) *parliament {
	p, err := parsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	e, err := newParliament(s, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// setMajority changes how many votes a quorum takes for a majority.
func setMajority(q *quorum.Quorum, n int) {
	f := reflect.ValueOf(q).Elem().FieldByName("majority")
	*(*int)(unsafe.Pointer(f.UnsafeAddr())) = n
}

// spoilNames changes what a client's layer knows of each name.
func spoilNames(p *client, spoil func(field func(string) reflect.Value)) {
	all := reflect.ValueOf(p.Layer.(*memory).Layer).Elem().FieldByName("names")
	for it := all.MapRange(); it.Next(); {
		n := it.Value().Elem()
		spoil(func(name string) reflect.Value {
			f := n.FieldByName(name)
			return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
		})
	}
}

// forgetsHolders has a client hear of a recall as if nobody held the lock under the delegation.
func forgetsHolders(p *client, d deed) {
	if d.do == hears {
		spoilNames(p, func(field func(string) reflect.Value) { field("table").SetZero() })
	}
}

// forgetsRecalls has a client begin a call as if the delegation had not been recalled.
func forgetsRecalls(p *client, d deed) {
	if d.do == begins {
		spoilNames(p, func(field func(string) reflect.Value) {
			if s := field("state"); s.Uint() == uint64(delegation.Recalled) {
				s.SetUint(uint64(delegation.Live))
			}
		})
	}
}

// countsFromReplies has a client take a reply for one to a request that was sent now.
func countsFromReplies(p *client, d deed) {
	if d.do == answers {
		for _, a := range p.Layer.(*memory).Asked {
			if a.R.Script == lua.Delegate {
				a.Of.Sent = d.at
			}
		}
	}
}

// Mistakes made on purpose are found.
func TestQuorumMistakesAreFound(t *testing.T) {
	for _, c := range []struct {
		name   string
		edit   edit
		breaks func(*parliament)
		plan   string
		what   string // that is found
	}{
		{"a server that has lost its data votes", edit{"return mark[1] == ", "return true or '' == "}, nil,
			"W W restarts 1", "a writer has the token"},
		{"one vote is enough", edit{}, func(e *parliament) {
			e.alter = func(
				q *quorum.Quorum) {
				setMajority(q, 1)
			}
		},
			"W W restarts 1", "writer"},
		{"a writer's vote has the token that is wanted",
			edit{"token = wanted > largest and wanted or string.format('%.0f', largest + 1)", "token = wanted"},
			nil, "W W", "a writer has the token"},
		{"a reader's vote has the token that is wanted", edit{"elseif token < written then", "elseif false then"},
			nil, "W R", "a reader has the token"},
		{"votes are not given back", edit{}, func(e *parliament) {
			e.mute = func(r *quorum.Request) bool { return r.Script == lua.Unlock }
		}, "W W", "does not come to an end"},
		{"nobody hears of a vote", edit{"redis.pcall('PUBLISH', channels .. instance, message)", "true"}, nil,
			"W W", "does not come to an end"},
		{"a hold that was dropped is renewed", edit{"if not held() then\n  return 0",
			"if not held() then\n  return 1"}, nil,
			"W forces 1 passes 2", "goes on to rely"},
		{"nobody tells what the marks say that others cannot read",
			edit{"what == 'tell' and", "what == 'nobody tells' and"}, nil,
			"W W W cold apart", "does not come to an end"},
		{"a delegation is returned before it is drained", edit{}, func(e *parliament) { e.spoil = forgetsHolders },
			"W W delegated", "returned while a hold is left"},
		{"a delegation lasts from the reply", edit{}, func(e *parliament) { e.spoil = countsFromReplies },
			"WW W delegated stalls 1 passes 4", "the server does not keep"},
		{"a call is granted after a recall", edit{}, func(e *parliament) { e.spoil = forgetsRecalls },
			"RR W delegated together", "after its recall"},
		{"a recall is not heeded", edit{}, func(e *parliament) {
			e.spoil = func(p *client, d deed) {
				if d.do == hears {
					p.Inbox[d.a].Text = ""
				}
			}
		}, "W W delegated", "does not come to an end"},
		{"a delegation that has ended is given again", noTombstones, nil, "W W delegated late 1",
			"does not come to an end"},
		{"no tokens are reserved", edit{"  if top > fence then\n    fence = top\n    put('fence', fence)\n  end\n" +
			"  top = fence\n", ""}, nil, "WW W delegated", "has the token"},
		{"tokens are given back of a delegation that has ended",
			edit{"if holder == claim then\n  if is_write(claim) and alive(since, lease) then\n" +
				"    local used = ARGV[5] ~= '' and ARGV[5] or unreserved()\n" +
				"    if used < fence then\n      fence = used\n      put('fence', fence)\n    end\n  end\n",
				"if is_write(claim) and ARGV[5] ~= '' and ARGV[5] < fence then\n" +
					"  fence = ARGV[5]\n  call('HSET', KEYS[1], 'fence', fence)\nend\nif holder == claim then\n"}, nil, "WW W delegated twice 1", "has the token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := quorumScripts()
			if c.edit.from != "" {
				s = c.edit.in(t, s)
			}
			e := parliamentOf(t, s, c.plan)
			if c.breaks != nil {
				c.breaks(e)
			}
			r, err := e.explore(limits{bugs: 1, states: 300_000, time: 5 * time.Minute}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Bugs) == 0 {
				t.Fatal("it is not found: ", r)
			}
			t.Logf("%v\n%s\n%s", r, r.Bugs[0].what, strings.Join(r.Bugs[0].trace.steps, "\n"))
			if !strings.Contains(r.Bugs[0].what, c.what) {
				t.Errorf("something else is found, not %q", c.what)
			}
		})
	}
}
