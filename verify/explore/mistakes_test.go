package main

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// saysDone has an engine hear that what a script was to do is done, whatever the server replies.
func saysDone(s *lua.Script) func(*engine.Request, *protocol.Reply) {
	return func(r *engine.Request, reply *protocol.Reply) {
		if r.Script == s {
			reply.Code = protocol.Done
		}
	}
}

func edits(from, to string) variant { return variant{edit: &edit{from, to}} }

// renewsLost has a server renew holds that it does not keep.
var renewsLost = edits("if not renew(ARGV[4], ARGV[6]) then\n  return 0", "if not renew(ARGV[4], ARGV[6]) then\n  return 1")

// publishesNothing has a server publish nothing.
var publishesNothing = edits("redis.pcall('PUBLISH', channels .. instance, message)", "true")

// anyWriterToken has a server of a quorum give a writer the token that it wants.
var anyWriterToken = edits("token = token > largest and token or string.format('%.0f', largest + 1)",
	"token = token")

// noTombstones has a server forget which claims have ended.
var noTombstones = edits("what == 'ended' or what == 'void'", "false")

// evictsUnnoted drops all who hold the lock, in a script, without a tombstone for one that holds it alone.
const evictsUnnoted = "if several() then drop_readers() else vacate() end"

// forgetsMaxHold and isNew change what a call asks for.
func forgetsMaxHold(h *engine.Hold) { h.MaxHold = 0 }
func isNew(h *engine.Hold)          { h.NewOwner = true }

func sends(s *lua.Script) func(*engine.Request) bool {
	return func(r *engine.Request) bool { return r.Script == s }
}

func releases(r *engine.Request) bool { return r.Script == lua.Unlock }

// withdraws, closes and isHeartbeat tell requests of an engine apart.
func withdraws(r *engine.Request) bool {
	v, ok := r.View()
	return ok && releases(r) && v.Token == 0
}

func closes(r *engine.Request) bool {
	v, ok := r.View()
	return ok && releases(r) && v.Token != 0 && r.Hold() == nil
}

func isHeartbeat(r *engine.Request) bool {
	v, ok := r.View()
	return ok && r.Script == lua.Lock && v.State == engine.Queued
}

func ignoresRefusals(_ *engine.Request, r *protocol.Reply) {
	if r.Refused {
		*r = protocol.Reply{}
	}
}

// convertsNow has an engine take a reply for one to a conversion that was sent now.
func convertsNow(r *engine.Request, _ *protocol.Reply) {
	if r.Script == lua.Convert {
		r.Sent = epoch
	}
}

// refusesAll has an engine take a conversion that is refused for one of a hold that is gone.
func refusesAll(r *engine.Request, reply *protocol.Reply) {
	if r.Script == lua.Convert && reply.Token == 0 {
		*reply = protocol.Reply{Refused: true}
	}
}

// takesOver has an engine take over each ticket.
func takesOver(r *engine.Request, reply *protocol.Reply) {
	if r.Secret != "" && reply.Refused {
		*reply = protocol.Reply{Token: firstToken + 1}
	}
}

// gives reports whether a request gives a writer's vote back.
func gives(r *quorum.Request) bool {
	return r.Script == lua.Unlock && strings.HasPrefix(r.Claim.ID, "2w")
}

// takesOneVote has a quorum take one vote for a majority.
func takesOneVote(p *client, _ deed) {
	f := reflect.ValueOf(p.Layer.(*majority).Quorum).Elem().FieldByName("majority")
	*(*int)(unsafe.Pointer(f.UnsafeAddr())) = 1
}

// ignoresMessages has a client hear nothing of what its messages say.
func ignoresMessages(p *client, d deed) {
	if d.do == hear {
		p.Inbox[d.a].Text = ""
	}
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
	if d.do == hear {
		spoilNames(p, func(field func(string) reflect.Value) { field("table").SetZero() })
	}
}

// forgetsRecalls has a client begin a call as if the delegation had not been recalled.
func forgetsRecalls(p *client, d deed) {
	if d.do == acquire {
		spoilNames(p, func(field func(string) reflect.Value) {
			if s := field("state"); s.Uint() == uint64(delegation.Recalled) {
				s.SetUint(uint64(delegation.Live))
			}
		})
	}
}

// countsFromReplies has a client take a reply for one to a request that was sent now.
func countsFromReplies(p *client, d deed) {
	if d.do == reply {
		for _, f := range p.Flights {
			if f.R.Script == lua.Delegate {
				f.Of.Sent = d.at
			}
		}
	}
}

// A mistake is made on purpose.
type mistake struct {
	name string
	variant
	setup  string // whose exploration finds it; or ""
	what   string // that is found
	traces string // that find it
}

var mistakes = []mistake{
	{"requests of claims that have ended are not refused", noTombstones,
		"owners 11 leases 33 asks 1 faults 1", "", "released-before-two-others"},
	{"a hold is granted to a waiter that is dead",
		edits("of == its_number and alive(from, for_ms)", "of == its_number"),
		"owners 11 leases 32 asks 1 crashes 1", "", "granted-twice-told"},
	{"a writer lines up behind itself", edits("holder ~= ARGV[1] and (written", "(written"),
		"owners 11 leases 33 asks 1", "", ""},
	{"readers overtake writers", edits("(not writer or owed ~= '')", "true"),
		"owners 111 leases 333 asks 1", "", ""},
	{"readers are owed nothing", edits("owed = f[6]", "owed = ''"),
		"owners 111 leases 333 asks 1", "", "late-reader-beside-owed-one"},
	{"nobody hears of a grant", publishesNothing, "owners 11 leases 33 asks 1", "", ""},
	{"a lost hold is renewed", renewsLost, "owners 11 leases 33 asks 1 forces 1", "", ""},
	{"a token is used twice", edits("string.format('%.0f', fence + 1)", "fence"),
		"owners 11 leases 33 asks 1 stands", "", ""},
	{"a key lives for ever", edits("if short or new then", "if false then"),
		"owners 111 leases 333 asks 1", "", ""},
	{"a claim whose lease has ended may queue again",
		edits("ends() <= ms then\n    evict()", "ends() <= ms then\n    "+evictsUnnoted),
		"owners 11 leases 22 asks 1 faults 1 stalls 1 ticks 3", "", "granted-once"},
	{"a claim that was dropped by force may queue again", edits("\nevict()\n", "\n"+evictsUnnoted+"\n"),
		"owners 11 leases 22 asks 1 faults 1 forces 1 ticks 2", "", ""},
	{"a server that has lost its data votes",
		edits("if mark[1] ~= ARGV[10] or mark[2] ~= ARGV[8]", "if false"),
		"W W restarts 1", "a writer has the token", ""},
	{"a writer's vote has the token that is wanted", anyWriterToken, "W W", "a writer has the token", ""},
	{"a reader's vote has the token that is wanted",
		edits("elseif token < written then", "elseif false then"),
		"W R", "a reader has the token", ""},
	{"nobody hears of a vote", publishesNothing, "W W", "does not come to an end", ""},
	{"a hold that was dropped is renewed", renewsLost, "W forces 1 passes 2", "goes on to rely", ""},
	{"nobody tells what the marks say that others cannot read",
		edits("what == 'tell' and", "what == 'nobody tells' and"),
		"W W W cold apart", "does not come to an end", ""},
	{"a delegation that has ended is given again", noTombstones,
		"W W delegated late 1 passes 1", "does not come to an end", ""},
	{"the server does not note the tokens that a renewal gives", edits("    put('fence', now)\n", ""),
		"WW W delegated", "has the token", ""},
	{"the engine ignores that it is refused", variant{deafen: ignoresRefusals},
		"owners 11 leases 33 asks 1 stalls 1", "", ""},
	{"the engine ignores that a hold is gone", variant{deafen: saysDone(lua.Renew)},
		"owners 11 leases 33 asks 1 forces 1", "", ""},
	{"the engine does not withdraw", variant{mute: withdraws}, "owners 11 leases 33 asks 1", "", ""},
	{"the engine sends no heartbeats", variant{mute: isHeartbeat}, "owners 11 leases 33 asks 1", "", ""},
	{"the engine does not renew", variant{mute: sends(lua.Renew)}, "owners 11 leases 33 asks 1", "", ""},
	{"a release says nothing of a loss", variant{deafen: saysDone(lua.Unlock)},
		"owners 11 leases 33 asks 1 forces 1", "", ""},
	{"a hold is extended for less than it should be", variant{shorten: true},
		"owners 11 leases 33 asks 1 extends 1", "than it was extended for", "extended-and-renewed"},
	{"a hold that is gone is extended", variant{deafen: saysDone(lua.Renew)},
		"owners 11 leases 33 asks 1 extends 1 forces 1", "rely on a hold that was dropped",
		"extended-after-it-was-dropped"},
	{"the engine knows of no MaxHold", variant{alter: forgetsMaxHold},
		"owners 11 leases 33 asks 1 maxhold 2", "longer than its MaxHold", "ends-by-max-hold"},
	{"a reply is handled before what is due", variant{behind: true},
		"owners 1 leases 2 asks 1 faults 1 stalls 1 ticks 3", "may be relied on again",
		"reply-after-the-deadline"},
	{"Close releases nothing", variant{mute: closes},
		"owners 11 leases 33 asks 1 closes 1", "though nothing went wrong", ""},
	{"Close is not heeded", variant{lazy: true},
		"owners 11 leases 33 asks 1 closes 1", "although its RWLock is closed", "closed-with-a-waiter-behind"},
	{"no deadlock is looked for", variant{alter: isNew},
		"owners 2 leases 3 asks 2 names 2 ticks 0", "fair run",
		"two-owners-and-two-names"},
	{"a downgrade takes a write hold whose lease is over",
		edits("token_before = held()\n", "token_before = held() or holder == claim and token\n"),
		"owners 1 leases 2 asks 1 late 1 crashes 1 downgrades 1", "", ""},
	{"readers are owed nothing by a downgrade", edits("owe()\nend\nif ARGV[9]", "end\nif ARGV[9]"),
		"owners 111 leases 333 asks 1 downgrades 1", "", ""},
	{"a hold that was downgraded may be relied on from the reply", variant{deafen: convertsNow},
		"owners 1 leases 2 asks 1 late 1 stalls 1 downgrades 1", "the server does not keep", ""},
	{"an upgrade that is refused may come again",
		edits("tombstone(its_slot, its_number, 'void')", "its_slot = nil"),
		"owners 11 leases 22 asks 1 twice 1 upgrades 1", "", "late-copy-of-upgrade"},
	{"a hold is upgraded beside another reader", edits("others > 0 or first_writer()", "first_writer()"),
		"owners 11 leases 33 asks 1 upgrades 1", "", ""},
	{"a hold is upgraded before a writer that waits", edits("or first_writer() or more == 1", "or more == 1"),
		"owners 11 leases 33 asks 1 upgrades 1", "", ""},
	{"a hold that was upgraded keeps its token", edits("ARGV[9] or rises", "ARGV[9]"),
		"owners 1 leases 2 asks 1 upgrades 1", "token", ""},
	{"a hold that was upgraded may be relied on from the reply", variant{deafen: convertsNow},
		"owners 1 leases 2 asks 1 late 1 stalls 1 upgrades 1", "the server does not keep", ""},
	{"a hold ends with its upgrade that is refused", variant{deafen: refusesAll},
		"owners 11 leases 33 asks 1 upgrades 1", "lost without a cause", ""},
	{"a hold that was detached may be asked for again",
		edits("claim = into\n-- The tombstone", "claim, record = into, 'none'\n-- The tombstone"),
		"owners 1 leases 2 asks 1 twice 1 tickets 1", "", "late-copy-of-lock-after-detach"},
	{"a hold stays beside its ticket, and the ticket's beside that of who takes it over",
		edits("call('ZREM', KEYS[2], claim) -- at last", "-- at last"),
		"owners 11 leases 22 asks 1 tickets 1", "", ""},
	{"who takes over a ticket gets the token of before", edits("ARGV[9] or rises", "rises"),
		"owners 11 leases 22 asks 1 tickets 1", "token", ""},
	{"a ticket that is used up is taken over", variant{deafen: takesOver},
		"owners 11 leases 22 asks 2 tickets 1", "the server does not keep", ""},
	{"one vote is enough", variant{spoil: takesOneVote}, "W W restarts 1", "writer", ""},
	{"votes are not given back", variant{lose: gives}, "W W", "does not come to an end", ""},
	{"a delegation is returned before it is drained", variant{spoil: forgetsHolders},
		"W W delegated", "returned while a hold is left", ""},
	{"a delegation lasts from the reply", variant{spoil: countsFromReplies},
		"WW W delegated stalls 1 passes 4", "the server does not keep", ""},
	{"a call is granted after a recall", variant{spoil: forgetsRecalls},
		"RR W delegated together", "after its recall", ""},
	{"a recall is not heeded", variant{spoil: ignoresMessages}, "W W delegated", "does not come to an end", ""},
	// No small exploration finds these.
	{"", edits("again and 2 or 0", "0"), "", "", "asks-after-release-told-late"},
	{"", edits("return {2, unfinished(), '', ''}", "time[1] = time[1]"), "", "", "late-copy-of-force"},
	{"", edits("if waits or waiting > 0 or is_write(holder)", "if is_write(holder)"), "", "", "late-reader-before-waiting-writer"},
	{"", edits("grant(writer)", "granted[writer] = 'let in'"), "", "", "late-writer-before-waiting-reader"},
	{"", edits("note(' ', id)", "notes[id] = nil"), "", "", "try-lets-in-untold"},
}

// Mistakes made on purpose are found.
func TestMistakesAreFound(t *testing.T) {
	for _, m := range mistakes {
		if m.setup == "" {
			continue
		}
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r := explorationOf(t, m.setup, m.variant).explore(limits{bugs: 1, states: 300_000}, nil)
			if len(r.Bugs) == 0 {
				t.Fatal("it is not found: ", r)
			}
			t.Log(r, r.Bugs[0].what, "\n", r.Bugs[0].trace)
			if !strings.Contains(r.Bugs[0].what, m.what) {
				t.Errorf("something else is found, not %q", m.what)
			}
		})
	}
}

// A trace fails when what it guards is broken.
func TestTracesFailOnMistakes(t *testing.T) {
	for _, m := range mistakes {
		for name := range strings.FieldsSeq(m.traces) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				done, err := replay(t, name, m.variant)
				if err == nil || errors.Is(err, errImpossible) {
					t.Fatalf("the mistake is not found: %v, after\n%s", err, done)
				}
				t.Log(err)
			})
		}
	}
}
