package verify

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
	"github.com/seed-7e8842f7/rwlock/verify/vectors"
)

var record = flag.String("vectors", "",
	"write the vectors anew to this file, out of what the differential test does: only along with another protocol number")

const (
	dawn    = 1_700_000_000_000_000 // µs: when each story begins
	longest = 150_000_000           // µs: no story lasts longer, so that no script clears away at random
	// a story at random shows so many kinds of outcomes that no earlier one shows
	worth = 8
)

func stepOf(now int64, q *protocol.Request) vectors.Step {
	s := vectors.Step{Time: now, Script: q.Script.Name}
	args := q.Argv(nil)
	for _, a := range args[1+args[0].(string)[0]-'0':] {
		s.Argv = append(s.Argv, a.(string))
	}
	return s
}

// writeVectors writes the stories that are told below, and those of the logs that show something new.
func writeVectors(t *testing.T, c *redis.Client, logs [][]vectors.Step) {
	p, err := vectors.NewPlayer(ctx, c)
	require.NoError(t, err)
	var all []vectors.Step
	seen := map[string]bool{}
	add := func(name string, story []vectors.Step, atRandom bool) {
		last, gain, before, kinds := 0, 0, &vectors.State{}, []string(nil)
		for i := range story {
			s := &story[i]
			if i > 0 && s.Time < story[i-1].Time || s.Time > dawn+longest {
				break
			}
			s.Story = name
			s.Outcome, err = p.Play(ctx, *s)
			require.NoError(t, err)
			kinds = append(kinds, news(*s, before))
			if !atRandom || !seen[kinds[i]] {
				gain, last = gain+1, i+1
			}
			if before = s.State; !atRandom && s.Does == "" {
				s.State = nil // it only leads somewhere
			}
		}
		if atRandom && gain < worth {
			return
		}
		all = append(all, story[:last]...)
		for _, what := range kinds[:last] {
			seen[what] = true
		}
	}
	for _, s := range told() {
		add(s.name, s.steps, false)
	}
	for i, log := range logs {
		add(fmt.Sprint("at random, ", i), log, true)
	}
	f, err := os.Create(*record)
	require.NoError(t, err)
	out := json.NewEncoder(f)
	out.SetEscapeHTML(false)
	for _, s := range all {
		require.NoError(t, out.Encode(s))
	}
	require.NoError(t, f.Close())
	t.Logf("%d steps, %d kinds of outcomes", len(all), len(seen))
}

var (
	digits = regexp.MustCompile(`\d{4,}`)
	names  = regexp.MustCompile(`[rw]:instance[^ "]*`)
)

// news returns what kind of outcome a step has.
func news(s vectors.Step, before *vectors.State) string {
	plain := func(v any) string {
		text, _ := json.Marshal(v)
		return digits.ReplaceAllString(names.ReplaceAllStringFunc(string(text), func(id string) string {
			return id[:1]
		}), "#")
	}
	what := []string{s.Script, fmt.Sprint(len(s.Argv)), plain(s.Reply)}
	for _, m := range slices.Sorted(maps.Values(s.Messages)) {
		what = append(what, plain(m))
	}
	for field, value := range s.State.Lock {
		if before.Lock[field] != value {
			if strings.HasPrefix(field, "instance") {
				field = "slot"
			}
			what = append(what, field+"="+plain(strings.TrimRight(value, ".")))
		}
	}
	for field := range before.Lock {
		if _, ok := s.State.Lock[field]; !ok {
			what = append(what, "no "+strings.TrimRight(field, "-0123456789_:"))
		}
	}
	slices.Sort(what[3:])
	added := func(now, was map[string]string) string { return fmt.Sprint(max(-2, min(len(now)-len(was), 2))) }
	what = append(what, added(s.State.Leases, before.Leases), added(s.State.Queue, before.Queue))
	return strings.Join(what, "|")
}

// A story is what some clients do on purpose.
type story struct {
	name  string
	steps []vectors.Step
	now   int64
	count int
}

// A person is a claim of its own client.
type person struct {
	protocol.Claim
	mode  model.Mode
	since int64 // its token, if nothing else happened at that time
}

func (s *story) person(m model.Mode) *person {
	s.count++
	return &person{Claim: claimOf(s.count, s.count, s.count, m), mode: m}
}

// does has a step follow two milliseconds after the last.
func (s *story) does(what string, q protocol.Request) {
	s.now += 2_000
	q.Keys, q.Channels = protocol.KeysOf("p", "l"), wakes
	step := stepOf(s.now, &q)
	step.Does = what
	s.steps = append(s.steps, step)
}

// asks is the request for the lock.
func (s *story) asks(p *person) protocol.Request {
	p.since = s.now + 2_000
	q := protocol.Request{Script: lua.Lock, Claim: p.Claim, Lease: lease(30_000)}
	if p.mode == model.Read {
		q.Script = lua.RLock
	}
	return q
}

func (s *story) tries(p *person) protocol.Request {
	q := s.asks(p)
	q.Try = true
	return q
}

func (p *person) releases() protocol.Request {
	if p.mode == model.Read {
		return protocol.Request{Script: lua.RUnlock, Claim: p.Claim}
	}
	return protocol.Request{Script: lua.Unlock, Claim: p.Claim}
}

func (p *person) releasesOfLate() protocol.Request {
	q := p.releases()
	q.Record = protocol.Released(p.Claim, p.since)
	return q
}

func (p *person) reenters(count, sequence int, shorten bool) protocol.Request {
	return protocol.Request{Script: lua.Reenter, Claim: p.Claim, Lease: lease(20_000), Count: count,
		Sequence: uint64(sequence), Shorten: shorten}
}

func (p *person) renews() protocol.Request {
	return protocol.Request{Script: lua.Renew, Claim: p.Claim, Lease: lease(30_000)}
}

func told() []*story {
	return []*story{alone(), queue(), phases(), crowd(), lost(), forced(), inspected(), delegations(), votes()}
}

func newStory(name string) *story { return &story{name: name, now: dawn} }

func alone() *story {
	s := newStory("one writes, and nobody else comes")
	a, b, c := s.person(model.Write), s.person(model.Write), s.person(model.Read)
	s.does("A locks a name that was not used before", s.asks(a))
	s.does("A asks again", s.asks(a))
	s.does("A renews", a.renews())
	s.does("A re-enters", a.reenters(2, 7, false))
	s.does("A's earlier re-entry comes late", a.reenters(3, 6, false))
	s.does("A leaves one of its holds, with a shorter lease", a.reenters(1, 8, true))
	s.does("B tries to write", s.tries(b))
	s.does("B's copy comes late", s.tries(b))
	s.does("C tries to read", s.tries(c))
	s.does("A releases", a.releases())
	s.does("A releases again", a.releases())
	s.does("A's request comes late", s.asks(a))
	d, e := s.person(model.Write), s.person(model.Write)
	s.does("D locks", s.asks(d))
	s.does("D releases, soon after", d.releasesOfLate())
	s.does("E gives up a request that has not come yet", e.releases())
	s.does("E's request comes late", s.asks(e))
	return s
}

func queue() *story {
	s := newStory("readers and writers wait")
	a, b, c, d, e := s.person(model.Write), s.person(model.Write), s.person(model.Read), s.person(model.Read),
		s.person(model.Write)
	s.does("A writes", s.asks(a))
	s.does("B waits to write", s.asks(b))
	s.does("C waits to read", s.asks(c))
	s.does("D waits to read", s.asks(d))
	s.does("E waits to write", s.asks(e))
	s.does("B asks for news", s.asks(b))
	under := s.asks(&person{Claim: claimOf(1, 90, 90, model.Read), mode: model.Read})
	under.Writer = a.ID
	s.does("A reads under its write hold", under)
	s.does("A releases its write hold: a downgrade", a.releases())
	s.does("B's heartbeat", s.asks(b))
	s.does("A releases its read hold", protocol.Request{Script: lua.RUnlock, Claim: under.Claim})
	s.does("C renews", c.renews())
	s.does("C re-enters", c.reenters(2, 8, false))
	s.does("C releases", c.releases())
	s.does("D releases: B has the lock", d.releases())
	s.does("E withdraws", e.releases())
	s.does("E's heartbeat comes late", s.asks(e))
	s.does("B releases", b.releases())
	return s
}

func phases() *story {
	s := newStory("a reader that comes behind a writer waits for it")
	a, b, c, d := s.person(model.Read), s.person(model.Read), s.person(model.Write), s.person(model.Read)
	s.does("A reads", s.asks(a))
	s.does("B reads, too", s.asks(b))
	s.does("A releases, soon after", a.releasesOfLate())
	s.does("C waits to write", s.asks(c))
	s.does("D waits behind it", s.asks(d))
	s.does("C gives up: D reads", c.releases())
	s.does("B releases", b.releases())
	s.does("D releases", d.releases())
	return s
}

func crowd() *story {
	s := newStory("more wait than one step lets in")
	a := s.person(model.Write)
	s.does("A writes", s.asks(a))
	for range 251 {
		s.does("", s.asks(s.person(model.Read)))
	}
	s.does("", a.releases())
	last := &person{Claim: claimOf(252, 252, 252, model.Read), mode: model.Read}
	s.does("", s.asks(last))
	s.does("somebody serves", protocol.Request{Script: lua.Serve, Claim: a.Claim})
	return s
}

func lost() *story {
	s := newStory("a lease ends")
	a, b, c := s.person(model.Write), s.person(model.Write), s.person(model.Read)
	s.does("A writes", s.asks(a))
	s.now += 31_000_000
	s.does("B writes after A's lease", s.asks(b))
	s.does("A renews what it has lost", a.renews())
	s.does("A's request comes late", s.asks(a))
	s.does("A releases what it has lost", a.releases())
	s.does("C waits", s.asks(c))
	s.now += 29_000_000
	s.does("C's heartbeat", s.asks(c))
	s.now += 2_000_000
	s.does("C's heartbeat, after B's lease", s.asks(c))
	s.does("B re-enters what it has lost", b.reenters(2, 9, false))
	return s
}

func forced() *story {
	s := newStory("somebody drops every hold")
	a, b, c, d := s.person(model.Write), s.person(model.Read), s.person(model.Write), s.person(model.Write)
	s.does("A writes", s.asks(a))
	s.does("B waits to read", s.asks(b))
	s.does("C waits to write", s.asks(c))
	s.does("D drops every hold: B reads", protocol.Request{Script: lua.Force, Claim: d.Claim})
	s.does("D's request comes again", protocol.Request{Script: lua.Force, Claim: d.Claim})
	s.does("A renews", a.renews())
	s.does("A's request comes late", s.asks(a))
	s.does("B releases", b.releases())
	return s
}

func inspected() *story {
	s := newStory("somebody looks")
	a, b, c := s.person(model.Read), s.person(model.Read), s.person(model.Write)
	s.does("an inspection of a name that nobody has used", protocol.Request{Script: lua.Inspect})
	s.does("A reads", s.asks(a))
	s.does("B reads", s.asks(b))
	s.does("C waits to write", s.asks(c))
	s.does("an inspection", protocol.Request{Script: lua.Inspect})
	return s
}

func delegations() *story {
	s := newStory("locks are delegated")
	d, b, c := delegate(1, 50, protocol.Write), s.person(model.Write), s.person(model.Read)
	s.does("A has the lock delegated for writing", *take(d))
	s.does("A's request comes again", *take(d))
	s.does("A renews", *keepOn(d))
	s.does("B waits to write: A's delegation is recalled", s.asks(b))
	s.does("an inspection", protocol.Request{Script: lua.Inspect})
	s.does("A renews, and hears of it", *keepOn(d))
	s.does("B's heartbeat recalls it again", s.asks(b))
	s.does("A returns it: B writes", *giveBack(d, s.now))
	s.does("A returns it again", *giveBack(d, s.now))
	s.does("A's request comes late", *take(d))
	e, f := delegate(2, 60, protocol.Read), delegate(4, 70, protocol.Read)
	s.does("E's request for a delegation is refused", *take(e))
	s.does("B releases", b.releases())
	e = delegate(2, 61, protocol.Read)
	s.does("E has the lock delegated for reading", *take(e))
	s.does("and so has F", *take(f))
	s.does("C reads, too", s.asks(c))
	g := s.person(model.Write)
	s.does("G waits to write: both are recalled", s.asks(g))
	s.does("E renews, and hears of it", *keepOn(e))
	s.does("E returns it", *giveBack(e, 0))
	s.does("C releases", c.releases())
	s.does("F returns it: G writes", *giveBack(f, 0))
	h := s.person(model.Write)
	s.does("H drops every hold, and G is told", protocol.Request{Script: lua.Force, Claim: h.Claim})
	return s
}

func votes() *story {
	s := newStory("a server of several votes")
	mark := func(what string, args ...any) {
		s.does(what, protocol.Request{Script: lua.Mark, VoteArgs: &protocol.VoteArgs{Mark: "p:mark", Args: args}})
	}
	a, b, c := s.person(model.Write), s.person(model.Read), s.person(model.Read)
	vote := func(p *person, wanted int64, generation string) protocol.Request {
		q := s.asks(p)
		q.VoteArgs = &protocol.VoteArgs{
			Mark: "p:mark", Generation: generation, ID: fmt.Sprint(dawn+2000, ":first"),
			Wanted: protocol.TokenArg(wanted),
		}
		if q.Script = lua.Vote; p.mode == model.Read {
			q.Script = lua.RVote
		}
		return q
	}
	mark("a client sees the server for the first time", "see", "30000", "first")
	s.does("a vote before the servers have begun is refused", vote(a, 1, ""))
	mark("the servers begin", "start", "30000", fmt.Sprint(dawn+2000, ":first"), "g1")
	s.does("A has its vote", vote(a, 5, "g1"))
	s.does("A asks again", vote(a, 5, "g1"))
	s.does("B waits", vote(b, 1, "g1"))
	s.does("a request of another generation is refused", vote(c, 1, "g0"))
	s.does("A gives its vote back: B has it", a.releases())
	s.does("B asks", vote(b, dawn+1_000_000, "g1"))
	s.does("C has it, too", vote(c, 1, "g1"))
	mark("a client says that it rests", "rest", "30000", fmt.Sprint(dawn+2000, ":first"), "g1", "second")
	s.does("it votes for nobody", vote(a, 5, "g1"))
	second := fmt.Sprint(s.now, ":second")
	mark("a client admits it", "admit", "30000", second, "g2", fmt.Sprint(dawn+2_000_000))
	mark("a client asks what the others' marks say", "ask", "0", second)
	mark("another tells it", "tell", "0", second, "1", "g2", "30000", fmt.Sprint(dawn+3_000_000))
	mark("a third tells it late", "tell", "0", second, "1", "g2", "60000", fmt.Sprint(dawn+2_000_000))
	return s
}
