// Package verify holds the lock's scripts against the reference model.
package verify

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// scripts is the directory of the scripts under test.
func scripts() string {
	if dir := os.Getenv("RWLOCK_LUA"); dir != "" {
		return dir
	}
	return "../lua"
}

var include = regexp.MustCompile(`(?m)^[ \t]*--#include (\S+)\n`)

// source returns a script with what it includes, which reads the time from a hash, and takes small steps if few is set.
func source(t testing.TB, name string, few bool) string {
	read := func(path ...string) string {
		b, err := os.ReadFile(filepath.Join(append([]string{scripts()}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	s := include.ReplaceAllStringFunc(read(name+".lua"), func(line string) string {
		return read("shared", include.FindStringSubmatch(line)[1])
	})
	s = strings.ReplaceAll(s, "redis.call('TIME')", "redis.call('HMGET', '{clock}', 's', 'us')")
	if few {
		s = strings.Replace(s, "local STEP = 250", "local STEP = 2", 1)
	}
	return s
}

// A rig runs the scripts against a server whose clock it moves: the time that scripts read is in a key, and a time to live
// is cut short by what passes. What the test takes passes in addition, and is the slack.
type rig struct {
	client  *redis.Client
	scripts map[string]*redis.Script
	few     bool // small steps
	now     int64
}

const slack = 1000 // ms

var ctx = context.Background()

func newRig(t testing.TB, client *redis.Client, few bool) *rig {
	r := &rig{client: client, few: few, scripts: map[string]*redis.Script{}}
	for _, name := range []string{"lock", "rlock", "unlock", "runlock", "renew", "reenter", "force", "serve", "inspect"} {
		r.scripts[name] = redis.NewScript(source(t, name, few))
	}
	return r
}

func (r *rig) reset(t rapid.TB) {
	if err := r.client.FlushDB(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	r.setClock(t, 1_700_000_000_000_000)
}

func (r *rig) setClock(t rapid.TB, us int64) {
	r.now = us
	if err := r.client.HSet(ctx, "{clock}", "s", us/1_000_000, "us", us%1_000_000).Err(); err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass.
func (r *rig) pass(t rapid.TB, ms int64) {
	keys, err := r.client.Keys(ctx, "{l}*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		left, err := r.client.PTTL(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if left == -1 {
			t.Fatalf("key %s has no time to live", key)
		}
		// done and fence outlast all this.
		if left < 100*time.Second {
			r.client.PExpire(ctx, key, left-time.Duration(ms)*time.Millisecond)
		}
	}
	r.setClock(t, r.now+ms*1000)
}

func (r *rig) try(name, done string, argv ...any) (any, error) {
	keys := []string{"{l}:writer", "{l}:queue", done, "{l}:fence", "{l}:readers", "{l}:leases", "{l}:waiters", "{l}:count"}
	return r.scripts[name].Run(ctx, r.client, keys, argv...).Result()
}

func (r *rig) run(t rapid.TB, name, done string, argv ...any) any {
	reply, err := r.try(name, done, argv...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return reply
}

const processes = 2

func processID(owner int) string { return fmt.Sprintf("%036d", owner%processes) }

func id(c model.Claim) string { return fmt.Sprintf("%s:%d:%d", processID(c.Owner), c.Owner, c.Number) }

func claimOf(id string) (c model.Claim) {
	parts := strings.Split(id, ":")
	c.Owner, _ = strconv.Atoi(parts[1])
	c.Number, _ = strconv.Atoi(parts[2])
	return c
}

// state reads the lock by way of inspect.lua.
func (r *rig) state(t rapid.TB) *model.Lock {
	reply := r.run(t, "inspect", "{l}:none").([]any)
	pairs := func(v any) (list [][2]string) {
		for pair := range slices.Chunk(v.([]any), 2) {
			list = append(list, [2]string{pair[0].(string), pair[1].(string)})
		}
		return list
	}
	number := func(s string) int64 { f, _ := strconv.ParseFloat(s, 64); return int64(f) }
	count := func(h *model.Hold, text string) {
		f := strings.Fields(text)
		h.Count, h.Asked = int(number(f[0])), int(number(f[1]))
	}
	ms := reply[0].(int64)
	if ms != r.now/1000 {
		t.Fatalf("inspect reads %d ms, not %d", ms, r.now/1000)
	}
	l := &model.Lock{Now: r.now, Token: number(reply[1].(string))}
	if writer := reply[2].(string); writer != "" {
		h := model.Hold{Claim: claimOf(writer), Mode: model.Write, Until: ms + reply[3].(int64), Token: l.Token, Count: 1}
		if text, ok := strings.CutPrefix(reply[4].(string), writer+" "); ok {
			count(&h, text)
		}
		l.Holds = append(l.Holds, h)
	}
	until := map[string]int64{}
	for _, p := range pairs(reply[7]) {
		until[p[0]] = number(p[1])
	}
	readers := pairs(reply[5])
	if len(until) == 0 && len(readers) == 1 {
		until[readers[0][0]] = ms + reply[6].(int64)
	}
	for _, p := range readers {
		token, text, again := strings.Cut(p[1], " ")
		h := model.Hold{Claim: claimOf(p[0]), Mode: model.Read, Until: until[p[0]], Token: number(token), Count: 1}
		if again {
			count(&h, text)
		}
		if h.Until > ms {
			l.Holds = append(l.Holds, h)
		}
	}
	deadlines, owed := map[string]int64{}, int64(math.MinInt64)
	for _, p := range pairs(reply[9]) {
		switch {
		case p[0] != "owed":
			deadlines[p[0]] = number(p[1])
		case p[1] == "all":
			owed = 0
		default:
			owed = number(p[1])
		}
	}
	queue := pairs(reply[8])
	slices.SortFunc(queue, func(a, b [2]string) int { return cmp.Compare(number(a[1]), number(b[1])) })
	for _, p := range queue {
		w := model.Waiter{Claim: claimOf(p[0]), Mode: model.Write, Until: deadlines[p[0]]}
		if ticket := number(p[1]); ticket < 0 {
			w.Mode, w.Owed = model.Read, ticket <= owed
		}
		l.Queue = append(l.Queue, w)
	}
	return l
}

// A request is a run of a script that may be repeated.
type request struct {
	script, done string
	argv         []any
	on           func(l *model.Lock) (answer string) // the same of the model
}

// A slot is what an owner's claims in one mode use in turn.
type slot struct{ key, last string }

// A pair is the model and the scripts, in step.
type pair struct {
	*rig
	model   *model.Lock
	owners  int
	number  int
	claims  []model.Claim // all that ever were
	modes   map[model.Claim]model.Mode
	asks    map[model.Claim]request
	slots   map[string]*slot
	used    map[model.Claim]*slot
	past    []request
	counted map[model.Claim]bool // that were entered again
}

// do runs a request on both, and compares. If it is late, its slot may have been used again, and a release may be told
// less.
func (p *pair) do(t *rapid.T, q request, late bool) {
	before := p.open()
	expected := q.on(p.model)
	for _, c := range before {
		switch p.model.Ended[c] {
		case model.Released:
			p.used[c].last = strconv.Itoa(c.Number)
		case model.Withdrawn:
			p.used[c].last = "-" + strconv.Itoa(c.Number)
		}
	}
	reply := p.run(t, q.script, q.done, q.argv...)
	actual, more := "", p.few
	switch v := reply.(type) {
	case string:
		actual = v
	case int64:
		actual = strconv.FormatInt(v, 10)
	case []any:
		actual = fmt.Sprint(v[0])
		if v[1] == int64(1) {
			if !p.few {
				t.Fatalf("%s %v is not done: %v", q.script, q.argv, reply)
			}
			more = true
		}
	}
	if actual != expected && !p.few && (!late || expected == "-1") {
		t.Fatalf("%s %v: answered %s, not %s: %v", q.script, q.argv, actual, expected, reply)
	}
	for more { // as the client, and heartbeats, would
		p.model.Serve()
		again := p.run(t, "serve", "{l}:none", processID(0), "wake:").([]any)
		more = again[1] == int64(1)
	}
	p.compare(t, fmt.Sprint(q.script, " ", q.argv))
}

func (p *pair) compare(t *rapid.T, after string) {
	actual := p.state(t)
	// The dead may be forgotten at any time.
	p.model.Queue = slices.DeleteFunc(p.model.Queue, func(w model.Waiter) bool {
		return !p.model.Lives(w) && !slices.ContainsFunc(actual.Queue, func(a model.Waiter) bool { return a.Claim == w.Claim })
	})
	if err := model.Compare(p.model, actual, slack); err != nil {
		t.Fatalf("after %s: %v", after, err)
	}
}

func (p *pair) slot(owner int, mode model.Mode) *slot {
	key := fmt.Sprintf("{l}:done:%d:%d", owner, mode)
	if p.slots[key] == nil {
		p.slots[key] = &slot{key: key}
	}
	return p.slots[key]
}

func (p *pair) release(c model.Claim) request {
	script := "runlock"
	if p.modes[c] == model.Write {
		script = "unlock"
	}
	s := p.used[c]
	keep := ""
	if s.last != "" && s.last[0] != '-' {
		keep = "keep"
	}
	counted := ""
	if p.counted[c] {
		counted = "counted"
	}
	return request{script, s.key, []any{id(c), c.Number, "wake:", keep, counted}, func(l *model.Lock) string {
		return strconv.Itoa(int(l.Release(c)))
	}}
}

// end releases a claim, and makes its slot free.
func (p *pair) end(t *rapid.T, c model.Claim) {
	q := p.release(c)
	p.do(t, q, false)
	p.past = append(p.past, q)
}

// open returns the claims that have not ended.
func (p *pair) open() []model.Claim {
	return slices.DeleteFunc(slices.Clone(p.claims), func(c model.Claim) bool { return p.model.Ended[c] != 0 })
}

func (p *pair) pick(t *rapid.T) model.Claim {
	open := p.open()
	if len(open) == 0 {
		t.Skip("nothing is open")
	}
	return rapid.SampledFrom(open).Draw(t, "claim")
}

// current returns the claim that an owner has in a mode, or zero.
func (p *pair) current(owner int, mode model.Mode) model.Claim {
	for _, c := range p.open() {
		if c.Owner == owner && p.modes[c] == mode {
			return c
		}
	}
	return model.Claim{}
}

func (p *pair) ask(t *rapid.T) {
	owner := rapid.IntRange(1, p.owners).Draw(t, "owner")
	mode := rapid.SampledFrom([]model.Mode{model.Read, model.Write}).Draw(t, "mode")
	lease := rapid.SampledFrom([]int64{10_000, 20_000, 30_000}).Draw(t, "lease")
	try := rapid.IntRange(0, 3).Draw(t, "try") == 0
	if p.current(owner, mode) != (model.Claim{}) || mode == model.Write && p.current(owner, model.Read) != (model.Claim{}) {
		t.Skip("it has, or may not")
	}
	p.number++
	c, s := model.Claim{Owner: owner, Number: p.number}, p.slot(owner, mode)
	within, how := p.current(owner, model.Write), "wait"
	if p.model.Hold(within) == nil {
		within = model.Claim{}
	}
	if try {
		how = "try"
	}
	q := request{script: "rlock", done: s.key, argv: []any{id(c), s.last, lease, how, "wake:"}, on: func(l *model.Lock) string {
		switch l.Ask(c, mode, lease, try, within) {
		case model.Granted:
			return strconv.FormatInt(l.Hold(c).Token, 10)
		case model.Refused:
			return "-1"
		}
		return "0"
	}}
	switch {
	case mode == model.Write:
		q.script = "lock"
		q.argv = append(q.argv, rapid.SampledFrom([]string{"", "keep"}).Draw(t, "fence"))
	case within != model.Claim{}:
		q.argv = append(q.argv, id(within))
	default:
		q.argv = append(q.argv, "")
	}
	p.claims, p.modes[c], p.used[c], p.asks[c] = append(p.claims, c), mode, s, q
	p.past = append(p.past, q)
	p.do(t, q, false)
}

func (p *pair) actions() map[string]func(*rapid.T) {
	keep := func(t *rapid.T, again bool) {
		c := p.pick(t)
		name := "read"
		if p.modes[c] == model.Write {
			name = "write"
		}
		lease := rapid.SampledFrom([]int64{10_000, 30_000}).Draw(t, "lease")
		q := request{"renew", p.used[c].key, []any{id(c), name, lease}, func(l *model.Lock) string {
			return strconv.Itoa(int(one(l.Renew(c, lease))))
		}}
		if again {
			p.number++
			p.counted[c] = true
			number, count := p.number, rapid.IntRange(1, 3).Draw(t, "count")
			if rapid.Bool().Draw(t, "leave the lease") {
				lease = 0
			}
			q = request{"reenter", p.used[c].key, []any{id(c), name, count, number, lease}, func(l *model.Lock) string {
				return strconv.Itoa(int(one(l.Reenter(c, count, number, lease))))
			}}
		}
		p.past = append(p.past, q)
		p.do(t, q, false)
	}
	return map[string]func(*rapid.T){
		"ask":       p.ask,
		"askMore":   p.ask,
		"heartbeat": func(t *rapid.T) { p.do(t, p.asks[p.pick(t)], false) },
		"release":   func(t *rapid.T) { p.end(t, p.pick(t)) },
		"renew":     func(t *rapid.T) { keep(t, false) },
		"reenter":   func(t *rapid.T) { keep(t, true) },
		"late": func(t *rapid.T) {
			if len(p.past) == 0 {
				t.Skip("nothing has been")
			}
			p.do(t, rapid.SampledFrom(p.past).Draw(t, "request"), true)
		},
		"force": func(t *rapid.T) {
			if rapid.IntRange(0, 7).Draw(t, "really") > 0 {
				t.Skip("not so often")
			}
			p.number++
			c, s := model.Claim{Owner: 0, Number: p.number}, p.slot(0, 0)
			q := request{"force", s.key, []any{processID(0), c.Number, "wake:"}, func(l *model.Lock) string {
				return strconv.Itoa(int(l.Force(c)))
			}}
			s.last = strconv.Itoa(c.Number)
			p.past = append(p.past, q)
			p.do(t, q, false)
		},
		"pass": func(t *rapid.T) {
			d := rapid.Int64Range(1, 35_000).Draw(t, "ms")
			for p.close(p.now/1000 + d) {
				d += slack
			}
			p.pass(t, d)
			p.model.Advance(p.now)
			p.compare(t, fmt.Sprint(d, " ms"))
		},
		"": func(*rapid.T) {},
	}
}

// close reports whether anything ends so close to a moment that it cannot be told whether it has.
func (p *pair) close(ms int64) bool {
	near := func(until int64) bool { return until > ms-2*slack && until < ms+2*slack }
	return slices.ContainsFunc(p.model.Holds, func(h model.Hold) bool { return near(h.Until) }) ||
		slices.ContainsFunc(p.model.Queue, func(w model.Waiter) bool { return near(w.Until) })
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
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
						owners: rapid.IntRange(2, 10).Draw(t, "owners"),
						modes:  map[model.Claim]model.Mode{}, asks: map[model.Claim]request{},
						slots: map[string]*slot{}, used: map[model.Claim]*slot{}, counted: map[model.Claim]bool{},
					}
					t.Repeat(p.actions())
				})
			})
		}
	})
}
