// Package verify holds the lock's scripts against the reference model.
package verify

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A request is a run of a script that may be repeated.
type request struct {
	protocol.Request
	of model.Claim
	on func(l *model.Lock) (answer string) // the same of the model
	at int64                               // in ms that have passed
}

// A claim is what the client knows of one.
type claim struct {
	protocol.Claim
	mode  model.Mode
	slot  int
	ask   *request
	token int64 // that it was told; 0 if none was
	told  int64 // when, in ms that have passed
	again bool  // it was entered again, or may have been
	look  int64 // when it asks again, in ms of the clock
}

// A pair is the model and the scripts, in step.
type pair struct {
	*rig
	model  *model.Lock
	owners int
	number int
	claims map[model.Claim]*claim
	past   []*request
	back   int64 // ms: by so much the clock has stepped back, and who waits may look late
}

// late is for how long a request may be in flight, in ms.
const late = 150_000

// do runs a request on both, and compares. It returns the answer.
func (p *pair) do(t *rapid.T, q *request, again bool) string {
	if us := rapid.Int64Range(0, 3).Draw(t, "µs"); us > 0 {
		p.setClock(t, p.now+us)
		p.model.Advance(p.now)
	}
	if p.few && q.Script == lua.Lock && !p.waits(q.of) {
		// who comes while a step is left to be taken may be queued, or go, before those whose turn it was
		p.finish(t)
		p.compare(t, "serve")
	}
	expected := q.on(p.model)
	entered := slices.Clone(p.model.Entered)
	reply, told := p.run(t, &q.Request)
	reads := q.Script == lua.Unlock && p.claims[q.of].mode == model.Read
	if u := p.model.Unserved; reads && len(entered) > 0 && u != nil &&
		model.Compare(u, p.state(t), slack) == nil {
		*p.model, entered = *u, nil
	}
	actual := p.note(t, q, reply, again)
	what := fmt.Sprintf("%s %v", q.Script.Name, q.Argv(nil))
	switch {
	case expected == "either" && actual == "1":
		p.model.NoteReleased(q.of)
	case expected == "either" && actual == "0":
	case expected == "2" && actual == "0" && again: // its slot has gone on
	case !p.few:
		require.Equal(t, expected, actual, "%s: %+v", what, reply)
	}
	require.True(t, !reply.More || p.few, "%s: there is more", what)
	if reply.Token > 0 {
		entered = slices.DeleteFunc(entered, func(c model.Claim) bool { return c == q.of })
	}
	let := p.hear(t, q, reply.Message, told)
	if reply.More {
		e, l := p.finish(t)
		entered, let = append(entered, e...), append(let, l...)
	}
	require.ElementsMatch(t, entered, let, "%s: who was let in, and who was told", what)
	p.compare(t, what)
	if q.Script == lua.Lock && p.waits(q.of) && !again {
		p.looks(t, what, q.of)
	}
	return actual
}

func byNumber(a, b model.Claim) int { return a.Number - b.Number }

// finish takes the steps that are left, as clients would. It returns who was let in, and who was told.
func (p *pair) finish(t *rapid.T) (entered, let []model.Claim) {
	for more := true; more; {
		p.model.Serve()
		entered = append(entered, p.model.Entered...)
		q := &request{Request: protocol.Request{Script: lua.Serve, Claim: claimOf(0, 1, 99, model.Write)}}
		reply, told := p.run(t, &q.Request)
		let = append(let, p.hear(t, q, reply.Message, told)...)
		more = reply.More
	}
	return entered, let
}

// note takes in what a claim is told, and returns the answer.
func (p *pair) note(t *rapid.T, q *request, reply protocol.Reply, again bool) string {
	if q.Script != lua.Lock {
		return strconv.Itoa(reply.Code)
	}
	c := p.claims[q.of]
	switch {
	case reply.Refused:
		return "-1"
	case reply.Token > 0:
		c.token, c.told = reply.Token, p.passed
		return strconv.FormatInt(reply.Token, 10)
	}
	if look := p.now/1000 + reply.Again.Milliseconds(); !again || c.look > look {
		c.look = look
	}
	return "0"
}

// hear takes in what a step told the caller's instance and others. It returns who was let in.
func (p *pair) hear(t *rapid.T, q *request, mine protocol.Message,
	told map[string]protocol.Message) (let []model.Claim) {
	own := instance(q.of.Owner)
	require.NotContains(t, told, own, "%s told its caller by a message", q.Script.Name)
	told[own] = mine
	for at, m := range told {
		find := func(number uint64) model.Claim {
			for c := range p.claims {
				if c.Number == int(number) && instance(c.Owner) == at {
					return c
				}
			}
			t.Fatalf("%s told %s of %d", q.Script.Name, at, number)
			return model.Claim{}
		}
		for _, n := range m.Granted {
			c := find(n)
			if let = append(let, c); !p.few {
				h := p.model.Hold(c)
				require.NotNil(t, h, "%s told %v that it has the lock", q.Script.Name, c)
				require.Equal(t, h.Token, m.Token, "%s told %v", q.Script.Name, c)
			}
			p.claims[c].token, p.claims[c].told = m.Token, p.passed
		}
		for _, n := range m.AskAgain {
			p.claims[find(n)].look = p.now / 1000
		}
		require.True(t, !m.More || p.few, "%s told %s that there is more", q.Script.Name, at)
	}
	return let
}

func (p *pair) compare(t *rapid.T, after string) {
	actual := p.state(t)
	fields := p.fields(t)
	// The dead may be forgotten at any time, and what is forgotten, or was lost, may be refused from then on.
	p.model.Queue = slices.DeleteFunc(p.model.Queue, func(w model.Waiter) bool {
		return !p.model.Lives(w) && !slices.ContainsFunc(actual.Queue, func(a model.Waiter) bool {
			return a.Claim == w.Claim
		})
	})
	for c, known := range p.claims {
		var number, stamp int
		var what string
		_, _ = fmt.Sscanf(fields[known.Slot], "%d %d %s", &number, &stamp, &what)
		if number == c.Number && what == "void" && p.model.Ended[c] == 0 && p.model.Hold(c) == nil && !p.waits(c) {
			p.model.Ended[c] = model.Withdrawn
		}
	}
	// A lease that the step back of a clock has made longer counts again: it ends by so much sooner, at most.
	for i := range p.model.Holds {
		h := &p.model.Holds[i]
		for _, a := range actual.Holds {
			if a.Claim == h.Claim && a.Until < h.Until && h.Until-a.Until <= p.back {
				h.Until = a.Until
			}
		}
	}
	require.NoError(t, model.Compare(p.model, actual, slack), "after %s: %v", after, fields)
	last := int64(0)
	for _, h := range p.model.Holds {
		last = max(last, h.Until)
	}
	for _, w := range p.model.Queue {
		if !p.model.Lives(w) {
			continue
		}
		last = max(last, w.Until)
		// Each writer, and the first of the readers, look again in time.
		if i := slices.IndexFunc(p.model.Queue, func(w model.Waiter) bool {
			return w.Mode == model.Read
		}); w.Mode == model.Write || w.Claim == p.model.Queue[i].Claim {
			p.looks(t, after, w.Claim)
		}
	}
	p.shift(t, 0)
	for key, ttl := range p.ttls(t) {
		least := last - p.now/1000 - ttlSlack
		require.GreaterOrEqual(t, ttl.Milliseconds(), least, "after %s: %s lives too short", after, key)
	}
}

// looks checks that a waiter looks again in time, though nobody does anything.
func (p *pair) looks(t *rapid.T, after string, c model.Claim) {
	next, look := p.model.Wakes(c), p.claims[c].look-p.now/1000
	if next >= 0 && look > next+p.back+slack {
		t.Fatalf("after %s: %v has to look again in %d ms, and does in %d: %v", after, c, next, look, p.fields(t))
	}
}

// waits reports whether a claim is in the queue.
func (p *pair) waits(c model.Claim) bool {
	return slices.ContainsFunc(p.model.Queue, func(w model.Waiter) bool { return w.Claim == c })
}

// open returns the claims that have not ended.
func (p *pair) open() (list []model.Claim) {
	for c := range p.claims {
		if p.model.Ended[c] == 0 {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, byNumber)
	return list
}

func (p *pair) pick(t *rapid.T) model.Claim {
	open := p.open()
	if len(open) == 0 {
		t.Skip("nothing is open")
	}
	return rapid.SampledFrom(open).Draw(t, "claim")
}

// next makes a claim of an owner, on the first slot of its process that none of its claims has.
func (p *pair) next(owner int, mode model.Mode) model.Claim {
	p.number++
	slot, taken := 0, map[int]bool{}
	for _, c := range p.open() {
		if instance(c.Owner) == instance(owner) {
			taken[p.claims[c].slot] = true
		}
	}
	for taken[slot] {
		slot++
	}
	c := model.Claim{Owner: owner, Number: p.number}
	p.claims[c] = &claim{Claim: claimOf(owner, p.number, slot, mode), mode: mode, slot: slot}
	return c
}

func lease(ms int64) protocol.Lease { return protocol.NewLease(time.Duration(ms) * time.Millisecond) }

// ask has an owner ask for the lock.
func (p *pair) ask(t *rapid.T) {
	owner := rapid.IntRange(1, p.owners).Draw(t, "owner")
	mode := rapid.SampledFrom([]model.Mode{model.Read, model.Write}).Draw(t, "mode")
	ms := rapid.SampledFrom([]int64{10_000, 20_000, 30_000, 10_000, 20_000, 60_000, 90_000_000}).Draw(t, "lease")
	try := rapid.IntRange(0, 3).Draw(t, "try") == 0
	if slices.ContainsFunc(p.open(), func(c model.Claim) bool { return c.Owner == owner }) {
		t.Skip("it has")
	}
	c := p.next(owner, mode)
	q := &request{of: c, Request: protocol.Request{Script: lua.Lock, Claim: p.claims[c].Claim, Lease: lease(ms),
		Try: try}}
	q.on = func(l *model.Lock) string {
		switch l.Ask(c, mode, ms, try) {
		case model.Granted:
			return strconv.FormatInt(l.Hold(c).Token, 10)
		case model.Refused:
			return "-1"
		}
		return "0"
	}
	p.claims[c].ask = q
	p.send(t, q)
}

// send runs a request for the first time.
func (p *pair) send(t *rapid.T, q *request) string {
	q.at = p.passed
	p.past = append(p.past, q)
	return p.do(t, q, false)
}

// end releases a claim.
func (p *pair) end(t *rapid.T, c model.Claim) {
	known := p.claims[c]
	q := &request{of: c, Request: protocol.Request{Script: lua.Unlock, Claim: known.Claim}}
	if known.token > 0 && !known.again && p.passed-known.told < 60_000 &&
		rapid.IntRange(0, 3).Draw(t, "clock") > 0 {
		q.Record = protocol.Released(known.Claim, known.token)
	}
	q.on = func(l *model.Lock) string {
		outcome := l.Release(c)
		if outcome == model.Either {
			return "either"
		}
		return strconv.Itoa(int(outcome))
	}
	p.send(t, q)
}

var code = map[bool]string{false: "0", true: "1"}

// keep renews a hold, which says how many holds there are.
func (p *pair) keep(t *rapid.T) {
	c := p.pick(t)
	known := p.claims[c]
	ms := rapid.SampledFrom([]int64{5_000, 10_000, 30_000, 70_000}).Draw(t, "lease")
	if h := p.model.Hold(c); h != nil {
		ms = max(ms, h.Until-p.now/1000) // a renewal is for as long as its holder relies on
	}
	count := rapid.IntRange(1, 3).Draw(t, "count")
	known.again = known.again || count > 1
	q := &request{of: c,
		Request: protocol.Request{Script: lua.Renew, Claim: known.Claim, Lease: lease(ms), Count: count}}
	q.on = func(l *model.Lock) string { return code[l.Renew(c, count, ms)] }
	p.send(t, q)
}

// convert has a claim replaced by one of the other mode, or of a ticket, or, after a ticket, of an owner.
func (p *pair) convert(t *rapid.T) {
	c := p.pick(t)
	ms := rapid.SampledFrom([]int64{5_000, 10_000, 30_000, 70_000}).Draw(t, "lease")
	count := rapid.IntRange(1, 3).Draw(t, "count")
	q := &request{Request: protocol.Request{Script: lua.Convert, Lease: lease(ms), Former: p.claims[c].ID}}
	owner, mode, from := c.Owner, p.claims[c].mode, c
	switch takesOver := owner >= tickets; {
	case takesOver:
		count = 1
		owner = rapid.IntRange(1, p.owners).Draw(t, "owner")
		secret := strconv.Itoa(c.Owner)
		if rapid.IntRange(0, 5).Draw(t, "forges") == 0 {
			secret, from = "another", model.Claim{}
		}
		q.Secret = secret
	case rapid.Bool().Draw(t, "hands on"):
		count, owner = 1, tickets+p.number
	default:
		mode = model.Read + model.Write - mode
	}
	if owner != c.Owner && slices.ContainsFunc(p.open(), func(c model.Claim) bool { return c.Owner == owner }) {
		t.Skip("it has")
	}
	q.of = p.next(owner, mode)
	q.Claim, q.Count = p.claims[q.of].Claim, count
	p.claims[q.of].again = true // its token may be of before
	q.on = func(l *model.Lock) string {
		return strconv.Itoa(int(l.Convert(from, q.of, mode, q.Secret != "", count, ms)))
	}
	p.send(t, q)
}

// cuts reports whether a renewal is of before the hold was extended, and of before the clock stepped back. A
// late copy of it sets the lease again to its own: docs/semantics.md has the limit, under Loss.
func (p *pair) cuts(q *request) bool {
	h := p.model.Hold(q.of)
	if p.back == 0 || q.Script != lua.Renew && q.Script != lua.Convert || h == nil {
		return false
	}
	return h.Until-p.now/1000 > q.Lease.Duration.Milliseconds()+p.back
}

func (p *pair) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"ask":     p.ask,
		"askMore": p.ask,
		"heartbeat": func(t *rapid.T) {
			if q := p.claims[p.pick(t)].ask; q != nil && !q.Try {
				p.do(t, q, false)
			}
		},
		"release":     func(t *rapid.T) { p.end(t, p.pick(t)) },
		"releaseMore": func(t *rapid.T) { p.end(t, p.pick(t)) },
		"renew":       func(t *rapid.T) { p.keep(t) },
		"convert":     func(t *rapid.T) { p.convert(t) },
		"late": func(t *rapid.T) {
			p.past = slices.DeleteFunc(p.past, func(q *request) bool { return p.passed-q.at > late || p.cuts(q) })
			if len(p.past) == 0 {
				t.Skip("nothing has been")
			}
			p.do(t, rapid.SampledFrom(p.past).Draw(t, "request"), true)
		},
		"withdraw": func(t *rapid.T) { // a release that comes before the request
			owner := rapid.IntRange(1, p.owners).Draw(t, "owner")
			c := p.next(owner, model.Write)
			p.end(t, c)
		},
		"force": func(t *rapid.T) {
			if rapid.IntRange(0, 7).Draw(t, "really") > 0 {
				t.Skip("not so often")
			}
			p.number++
			c := model.Claim{Owner: 0, Number: p.number}
			q := &request{of: c, Request: protocol.Request{Script: lua.Force,
				Claim: claimOf(0, p.number, 99, model.Write)}}
			q.on = func(l *model.Lock) string { return strconv.Itoa(int(l.Force(c))) }
			p.send(t, q)
		},
		"pass":     func(t *rapid.T) { p.advance(t, rapid.Int64Range(1, 35_000).Draw(t, "ms")) },
		"passLess": func(t *rapid.T) { p.advance(t, rapid.Int64Range(1, 5_000).Draw(t, "ms")) },
		"passLong": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
				t.Skip("not so often")
			}
			p.advance(t, rapid.Int64Range(100_000, 400_000).Draw(t, "ms"))
		},
		"passHold": func(t *rapid.T) {
			if len(p.model.Holds) == 0 {
				t.Skip("nobody has it")
			}
			p.advance(t, rapid.SampledFrom(p.model.Holds).Draw(t, "hold").Until-p.now/1000+2*slack)
		},
		"stepBack": func(t *rapid.T) {
			d := rapid.Int64Range(1, 5_000).Draw(t, "ms")
			if p.over || p.close(p.now/1000) || p.close(p.now/1000-d) {
				t.Skip("what is over would live again")
			}
			p.pass(t, -d)
			p.model.Advance(p.now)
			p.back += d
			p.compare(t, fmt.Sprint(-d, " ms"))
		},
		"": func(*rapid.T) {},
	}
}

// advance lets time pass: what is asked for, or some more, until it can be told what has ended by then.
func (p *pair) advance(t *rapid.T, ms int64) {
	for p.close(p.now/1000 + ms) {
		ms += slack
	}
	p.pass(t, ms)
	p.model.Advance(p.now)
	if len(p.fields(t)) == 0 { // the lock is forgotten
		p.model.Token, p.model.Ended, p.model.Over = 0, map[model.Claim]model.Ending{}, nil
		p.claims, p.past = map[model.Claim]*claim{}, nil
	}
	p.compare(t, fmt.Sprint(ms, " ms"))
}

// close reports whether anything ends so close to a moment that it cannot be told whether it has.
func (p *pair) close(ms int64) bool {
	near := func(until int64) bool { return until > ms-2*slack && until < ms+2*slack }
	return slices.ContainsFunc(p.model.Holds, func(h model.Hold) bool { return near(h.Until) }) ||
		slices.ContainsFunc(p.model.Queue, func(w model.Waiter) bool { return near(w.Until) })
}

// Whatever happens in whatever order, the scripts leave what the model says, and answer so.
func TestDifferential(t *testing.T) {
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		client := s.Client()
		if s.Real() {
			client = testredis.NewClient(t, testredis.Start(t).Addr())
		}
		for _, few := range []bool{false, true} {
			t.Run(fmt.Sprintf("few=%v", few), func(t *testing.T) {
				r := newRig(t, client, few)
				rapid.Check(t, func(t *rapid.T) {
					r.reset(t)
					p := &pair{
						rig: r, model: &model.Lock{Now: r.now, Ended: map[model.Claim]model.Ending{}},
						owners: rapid.IntRange(2, 10).Draw(t, "owners"), claims: map[model.Claim]*claim{},
					}
					t.Repeat(p.actions())
				})
			})
		}
	})
}
