// Package verify holds the lock's scripts against the reference model.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
		s = strings.ReplaceAll(s, "local STEP = 250", "local STEP = 2")
	}
	return s
}

// A rig runs the scripts against a server whose clock it moves: the time that scripts read is in a key, and a time to live
// is cut short by what passes, and made longer by what the test takes. What it takes for one step is the slack.
type rig struct {
	client  *redis.Client
	scripts map[string]*redis.Script
	few     bool // small steps
	now     int64
	passed  int64     // ms, wherever the clock has stepped back to
	real    time.Time // up to when times to live were made longer
	over    bool      // a hold whose lease is over is still there
}

const slack = 1000 // ms

var ctx = context.Background()

func newRig(t testing.TB, client *redis.Client, few bool) *rig {
	r := &rig{client: client, few: few, scripts: map[string]*redis.Script{}}
	for _, name := range []string{"lock", "rlock", "unlock", "runlock", "renew", "reenter", "force", "serve", "inspect", "solelock", "soleunlock"} {
		r.scripts[name] = redis.NewScript(source(t, name, few))
	}
	return r
}

func (r *rig) reset(t rapid.TB) {
	if err := r.client.FlushDB(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	r.setClock(t, 1_700_000_000_000_000)
	r.real = time.Now()
}

func (r *rig) setClock(t rapid.TB, us int64) {
	r.now = us
	if err := r.client.HSet(ctx, "{clock}", "s", us/1_000_000, "us", us%1_000_000).Err(); err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass, or the clock step back.
func (r *rig) pass(t rapid.TB, ms int64) {
	r.shift(t, ms)
	r.passed += max(ms, 0)
	r.setClock(t, r.now+ms*1000)
}

// shift has the lock's keys live as if ms had passed since the last call, and nothing else.
func (r *rig) shift(t rapid.TB, ms int64) {
	past, took := strings.HasPrefix(r.sole(t), "past "), time.Since(r.real)
	pipe := r.client.Pipeline()
	for key, left := range r.ttls(t) {
		d := ms
		if key == "{l}:sole" && past {
			d = max(ms, 0) // nothing else counts on when it ends
		}
		if left > 0 && (!outlasts(key) || key == "{l}:sole" && past) {
			pipe.PExpire(ctx, key, left+took-time.Duration(d)*time.Millisecond)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	r.real = time.Now()
}

// outlasts reports whether a key lives for longer than a test takes.
func outlasts(key string) bool {
	return key == "{l}:fence" || key == "{l}:sole" || strings.HasPrefix(key, "{l}:done:")
}

// ttls returns the times to live of the lock's keys. Each has one, and what tells of a token lives for days.
func (r *rig) ttls(t rapid.TB) map[string]time.Duration {
	keys, err := r.client.Keys(ctx, "{l}*").Result()
	if err != nil {
		t.Fatal(err)
	}
	pipe, ttls := r.client.Pipeline(), map[string]time.Duration{}
	var left []*redis.DurationCmd
	for _, key := range keys {
		left = append(left, pipe.PTTL(ctx, key))
	}
	if _, err := pipe.Exec(ctx); err != nil && len(keys) > 0 {
		t.Fatal(err)
	}
	for i, key := range keys {
		least := time.Duration(0)
		switch {
		case key == "{l}:fence", key == "{l}:sole" && !strings.HasPrefix(r.sole(t), "past "):
			least = 46 * time.Hour
		}
		ttls[key] = left[i].Val()
		if ttl := ttls[key]; ttl != -2 && ttl < least { // it may have expired in between
			t.Fatalf("%s lives for %v", key, ttl)
		}
	}
	return ttls
}

// sole returns what the key says that may say all of the lock, or "".
func (r *rig) sole(t rapid.TB) string {
	s, err := r.client.Get(ctx, "{l}:sole").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return s
}

func (r *rig) try(name, done string, argv ...any) (any, error) {
	keys := []string{"{l}:writer", "{l}:queue", done, "{l}:fence", "{l}:readers", "{l}:leases", "{l}:waiters", "{l}:count", "{l}:sole"}
	if strings.HasPrefix(name, "sole") {
		keys = keys[8:]
	}
	return r.scripts[name].Run(ctx, r.client, keys, argv...).Result()
}

func (r *rig) run(t rapid.TB, name, done string, argv ...any) any {
	reply, err := r.try(name, done, argv...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return reply
}

const processes = 3

func processID(owner int) string { return fmt.Sprintf("%036d", owner%processes) }

func id(c model.Claim) string { return fmt.Sprintf("%s:%d:%d", processID(c.Owner), c.Owner, c.Number) }

func claimOf(id string) (c model.Claim) {
	parts := strings.Split(id, ":")
	c.Owner, _ = strconv.Atoi(parts[1])
	c.Number, _ = strconv.Atoi(parts[2])
	return c
}

var soleForm = regexp.MustCompile(`^(past \S+( \S+)?|\d+ (write|read) \d+ \S+( \S+)?|\d+ free 0 \S+( \S+)?)$`)

// state reads the lock by way of inspect.lua, and checks that it is in one place.
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
	r.over = false
	l := &model.Lock{Now: r.now, Token: number(reply[1].(string))}
	sole := reply[10].(string)
	if sole != "" && !soleForm.MatchString(sole) {
		t.Fatalf("sole says %q", sole)
	}
	if f := strings.Fields(sole); len(f) > 3 && f[0] != "past" {
		h := model.Hold{Claim: claimOf(f[3]), Token: number(f[0]), Until: number(f[0])/1000 + number(f[2]), Count: 1}
		h.Mode = map[string]model.Mode{"read": model.Read, "write": model.Write, "free": 0}[f[1]]
		if l.Token = max(l.Token, h.Token); h.Mode != 0 && h.Until > ms {
			l.Holds = append(l.Holds, h)
		}
		r.over = h.Mode != 0 && h.Until <= ms
		if reply[2] != "" || len(reply[5].([]any))+len(reply[7].([]any))+len(reply[8].([]any)) > 0 {
			t.Fatalf("sole is not all there is: %v", reply)
		}
	}
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
		} else {
			r.over = true
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
	// of solelock and soleunlock instead, which may leave it to another script
	claim model.Claim
	mode  model.Mode
	lease int64
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

	tokens map[model.Claim]int64  // that they had last
	taken  map[model.Claim]string // what solelock made sole say of a claim that no ordinary request asked for
	told   map[model.Claim]string // what sole is to say when the hold has ended, where a reply said that it tells of it
	free   []string               // what sole said when somebody had released the lock, as a reply told
	ending map[model.Claim]int64  // that soleunlock has released, which the process does not know; and when
	last   [processes]last
}

// A last is what a process knows of a lock that it has released.
type last struct {
	holds  []string // that it knows to have ended, of which sole told
	sole   string   // what that says if nobody else has come; or ""
	before string   // the hold that was the last before the process came, or ""
	came   int64    // when it did, in ms that have passed
}

// memory is for how long, in ms, an ended hold is remembered, if its process may not know.
const memory = 10_000

// do runs a request on both, and compares. If it is late, its slot may have been used again, and a release may be told
// less. It returns the answer.
func (p *pair) do(t *rapid.T, q request, late bool) string {
	if us := rapid.Int64Range(0, 3).Draw(t, "µs"); us > 0 {
		p.setClock(t, p.now+us)
		p.model.Advance(p.now)
	}
	switch q.script {
	case "solelock":
		return p.soleLock(t, q)
	case "soleunlock":
		return p.soleUnlock(t, q)
	}
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
		hold, sole := q.argv[0].(string), p.sole(t)
		token, before, alone := strings.Cut(v, " sole ")
		actual = token
		if alone {
			ids := strings.TrimSpace(hold + " " + before)
			if form := fmt.Sprintf("%s %s %d %s", token, soleModes[p.modes[claimOf(hold)]], q.lease, ids); sole != form || q.lease > 86_400_000 {
				t.Fatalf("%s %v: answered %q, and sole says %q", q.script, q.argv, v, sole)
			}
			if !late {
				p.come(claimOf(hold), before, token+freeMark+ids)
			}
		}
	case int64:
		actual = strconv.FormatInt(v, 10)
		if v == 3 {
			actual = "1"
			hold, sole := q.argv[0].(string), p.sole(t)
			c := claimOf(hold)
			text, told := fmt.Sprint(p.tokens[c], freeMark, hold), p.told[c]
			known := strings.HasPrefix(told, text) // and not of an earlier hold, if a late request took the lock anew
			if known && sole != told || sole != text && !strings.HasPrefix(sole, text+" ") {
				t.Fatalf("%s %v: answered %d, and sole says %q, not %q or %q", q.script, q.argv, v, sole, text, told)
			}
			if !late {
				p.leaves(c, told)
			}
		}
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
	if late && expected == "2" && actual == "0" {
		p.model.Serve() // as a release does that comes first
	}
	for more { // as the client, and heartbeats, would
		p.model.Serve()
		again := p.run(t, "serve", "{l}:none", processID(0), "wake:").([]any)
		more = again[1] == int64(1)
	}
	p.compare(t, fmt.Sprint(q.script, " ", q.argv))
	return actual
}

// come notes that a process was told that sole tells of its hold, and of the one before.
func (p *pair) come(c model.Claim, before, told string) {
	l := &p.last[c.Owner%processes]
	p.told[c] = told
	l.before, l.came = before, p.passed
}

// leaves notes that a process was told of the end of its hold, and what sole says of it if the process knows, or "".
func (p *pair) leaves(c model.Claim, sole string) {
	l := &p.last[c.Owner%processes]
	l.holds = append(l.holds, id(c))
	if l.sole = sole; sole != "" {
		p.free = append(p.free, sole)
	}
}

var soleModes = map[model.Mode]string{model.Read: "read", model.Write: "write"}

// freeMark is what sole says of a lock that is free, between the token and the last hold, which may have another behind it.
const freeMark = " free 0 "

// freed is what sole says when the hold has ended of which it says this.
func freed(text string) string {
	f := strings.SplitN(text, " ", 4)
	return f[0] + freeMark + f[3]
}

// soleLock runs solelock. What it grants, the model does, too; otherwise it leaves all as it is.
func (p *pair) soleLock(t *rapid.T, q request) string {
	before := p.sole(t)
	reply := p.run(t, q.script, "", q.argv...)
	after := p.sole(t)
	token, granted := reply.(string)
	switch {
	case !granted && reply != int64(0):
		t.Fatalf("solelock %v: answered %v", q.argv, reply)
	case !granted && before != after:
		t.Fatalf("solelock %v: refused, and sole says %q, after %q", q.argv, after, before)
	case !granted && before == q.argv[0] && before < strconv.FormatInt(p.now, 10):
		t.Fatalf("solelock %v: refused, though sole says so", q.argv)
	case !granted:
	case before != after:
		if p.model.Ask(q.claim, q.mode, q.lease, false, model.Claim{}) != model.Granted {
			t.Fatalf("solelock %v: granted, where the model does not", q.argv)
		}
		if h := p.model.Hold(q.claim); token != strconv.FormatInt(h.Token, 10) {
			t.Fatalf("solelock %v: answered %s, not %d", q.argv, token, h.Token)
		}
	// An earlier run took it: that tells of a lease from the time of that run, be it over or not.
	case p.model.Ended[q.claim] != 0, token != strconv.FormatInt(p.tokens[q.claim], 10):
		t.Fatalf("solelock %v: answered %s, of a hold that is not there", q.argv, token)
	}
	p.compare(t, fmt.Sprint(q.script, " ", q.argv))
	return fmt.Sprint(reply)
}

// soleUnlock runs soleunlock. What it releases, the model does, too; otherwise it leaves all as it is. It need not notice
// that a lease is over if nobody else has.
func (p *pair) soleUnlock(t *rapid.T, q request) string {
	before := p.sole(t)
	reply := p.run(t, q.script, "", q.argv...)
	after := p.sole(t)
	switch {
	case (before == q.argv[0]) != (reply == int64(1)), (before == q.argv[1]) != (reply == int64(2)):
		t.Fatalf("soleunlock %v: answered %v, of %q", q.argv, reply, before)
	case reply == int64(1) && after != q.argv[1], reply != int64(1) && after != before:
		t.Fatalf("soleunlock %v: answered %v, and sole says %q, after %q", q.argv, reply, after, before)
	case reply == int64(0):
	case reply == int64(1) && p.model.Hold(q.claim) == nil && p.model.Ended[q.claim] == 0:
		p.model.Ended[q.claim] = model.Released
	default:
		if expected := int64(p.model.Release(q.claim)); reply != expected {
			t.Fatalf("soleunlock %v: answered %v, not %d", q.argv, reply, expected)
		}
	}
	p.compare(t, fmt.Sprint(q.script, " ", q.argv))
	return fmt.Sprint(reply)
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
	for _, h := range p.model.Holds {
		p.tokens[h.Claim] = h.Token
	}
	p.shift(t, 0)
}

func (p *pair) slot(owner int, mode model.Mode) *slot {
	key := fmt.Sprintf("{l}:done:%d:%d", owner, mode)
	if p.slots[key] == nil {
		p.slots[key] = &slot{key: key}
	}
	return p.slots[key]
}

// leave gives up a claim's slot: a release may yet run, and nobody will hear of it.
func (p *pair) leave(c model.Claim) {
	for key, s := range p.slots {
		if s == p.used[c] {
			p.number++
			p.slots[key] = &slot{key: fmt.Sprintf("%s:%d", key, p.number)}
		}
	}
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
	return request{script: script, done: s.key, argv: []any{id(c), c.Number, "wake:", keep, counted}, on: func(l *model.Lock) string {
		return strconv.Itoa(int(l.Release(c)))
	}}
}

// end releases a claim, and makes its slot free.
func (p *pair) end(t *rapid.T, c model.Claim) string {
	q := p.release(c)
	when, again := p.ending[c]
	p.past = append(p.past, q)
	return p.do(t, q, again && p.passed-when > memory-slack)
}

// endAgain releases a claim that soleunlock has released, of which the process does not know. As long as an Unlock waits
// for its answer it is told so, whoever has come since.
func (p *pair) endAgain(t *rapid.T, c model.Claim) {
	if p.used[c].last = strconv.Itoa(c.Number); p.end(t, c) == "0" {
		p.used[c].last = "-" + p.used[c].last
	}
	delete(p.ending, c)
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

// unknown returns the claims that soleunlock has released, which the process does not know.
func (p *pair) unknown() []model.Claim {
	return slices.SortedFunc(maps.Keys(p.ending), func(a, b model.Claim) int { return a.Number - b.Number })
}

// current returns the claim that an owner has in a mode, or zero.
func (p *pair) current(owner int, mode model.Mode) model.Claim {
	for _, c := range append(p.open(), p.unknown()...) {
		if c.Owner == owner && p.modes[c] == mode {
			return c
		}
	}
	return model.Claim{}
}

// want makes a claim of any process, and the request that asks for the lock.
func (p *pair) want(t *rapid.T) (model.Claim, request) {
	return p.wantOf(t, rapid.IntRange(1, p.owners).Draw(t, "owner"))
}

// wantOf makes a claim of an owner.
func (p *pair) wantOf(t *rapid.T, owner int) (model.Claim, request) {
	mode := rapid.SampledFrom([]model.Mode{model.Read, model.Write}).Draw(t, "mode")
	lease := rapid.SampledFrom([]int64{10_000, 20_000, 30_000, 10_000, 20_000, 90_000_000}).Draw(t, "lease")
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
	known := ""
	if holds := p.last[owner%processes].holds; len(holds) > 0 {
		switch known = holds[len(holds)-1]; rapid.IntRange(0, 5).Draw(t, "known") {
		case 0:
			known = ""
		case 1:
			known = rapid.SampledFrom(holds).Draw(t, "outdated")
		}
	}
	q.argv = append(q.argv, known)
	q.claim, q.mode, q.lease = c, mode, lease
	p.claims, p.modes[c], p.used[c] = append(p.claims, c), mode, s
	return c, q
}

func (p *pair) send(t *rapid.T, q request) {
	p.asks[q.claim] = q
	p.past = append(p.past, q)
	p.do(t, q, false)
}

func (p *pair) ask(t *rapid.T) {
	_, q := p.want(t)
	p.send(t, q)
}

// alone ends all that is, and has one owner take and release the lock.
func (p *pair) alone(t *rapid.T) {
	for _, c := range p.open() {
		p.end(t, c)
	}
	if !strings.Contains(p.sole(t), " free ") {
		for _, c := range p.unknown() {
			p.endAgain(t, c)
		}
		if strings.HasPrefix(p.sole(t), "past ") {
			p.advance(t, memory+slack)
		}
	}
	c, q := p.want(t)
	p.send(t, q)
	p.end(t, c)
}

// soleAsk asks with solelock, as a process does that was the last to release the lock, as far as it knows; and then as
// others do if that is answered so.
func (p *pair) soleAsk(t *rapid.T) {
	if len(p.free) == 0 || !strings.Contains(p.sole(t), " free ") && rapid.Bool().Draw(t, "alone") {
		p.alone(t)
	}
	if len(p.free) == 0 {
		t.Skip("nobody knows what it says")
	}
	text := p.free[len(p.free)-1]
	if rapid.IntRange(0, 7).Draw(t, "outdated") == 0 {
		text = rapid.SampledFrom(p.free).Draw(t, "text")
	}
	owners := []int{}
	for owner := 1; owner <= p.owners; owner++ {
		if strings.Contains(text, freeMark+processID(owner)+":") {
			owners = append(owners, owner)
		}
	}
	p.soleTake(t, rapid.SampledFrom(owners).Draw(t, "owner"), text, rapid.IntRange(0, 7).Draw(t, "fate"))
}

// soleTake has an owner ask so, as its process knows what sole says.
func (p *pair) soleTake(t *rapid.T, owner int, text string, fate int) model.Claim {
	c, q := p.wantOf(t, owner)
	if q.lease > 86_400_000 {
		p.send(t, q)
		return c
	}
	mark := fmt.Sprintf(" %s %d %s", soleModes[q.mode], q.lease, id(c))
	l := &p.last[owner%processes]
	if p.passed-l.came > memory {
		l.before = ""
	}
	if l.before != "" {
		mark += " " + l.before
	}
	first := request{script: "solelock", claim: c, mode: q.mode, lease: q.lease, argv: []any{text, mark}}
	if rapid.Bool().Draw(t, "keep") {
		first.argv = append(first.argv, "KEEPTTL")
	} else {
		first.argv = append(first.argv, "PX", "172800000")
	}
	l.sole = ""
	p.past = append(p.past, first)
	switch fate {
	case 0: // it is given up before the request is there
		p.end(t, c)
		if rapid.Bool().Draw(t, "soon") {
			p.do(t, first, true)
		}
	case 1: // the reply is lost
		p.do(t, first, false)
		p.end(t, c)
	default:
		token := p.do(t, first, false)
		if token == "0" {
			p.send(t, q)
			return c
		}
		p.taken[c], p.told[c] = token+mark, freed(token+mark)
		if fate < 5 {
			p.soleEnd(t, c, rapid.IntRange(0, 7).Draw(t, "end"))
		}
	}
	return c
}

// untold has soleunlock release a lock, and others come, before the process finds out.
func (p *pair) untold(t *rapid.T) {
	if len(p.ending) == 0 || rapid.Bool().Draw(t, "alone") {
		p.alone(t)
	}
	sole := p.sole(t)
	for i, l := range p.last {
		if l.sole == sole && sole != "" {
			owner := rapid.SampledFrom(p.idle(t, i)).Draw(t, "owner")
			if c := p.soleTake(t, owner, sole, 7); p.taken[c] != "" {
				p.soleEnd(t, c, 1)
			}
			break
		}
	}
	for range rapid.IntRange(1, 4).Draw(t, "others") {
		owner := rapid.SampledFrom(p.idle(t, -1)).Draw(t, "owner")
		var c model.Claim
		if l := p.last[owner%processes]; l.sole != "" && rapid.Bool().Draw(t, "sole") {
			c = p.soleTake(t, owner, l.sole, 7)
		} else {
			var q request
			c, q = p.wantOf(t, owner)
			p.send(t, q)
		}
		switch {
		case p.model.Ended[c] != 0 || rapid.IntRange(0, 3).Draw(t, "stay") == 0:
		case p.taken[c] != "":
			p.soleEnd(t, c, 7)
		default:
			p.end(t, c)
		}
		if ms := rapid.SampledFrom([]int64{0, 10, 1_000, 2_000, 2_100, -300}).Draw(t, "ms"); ms >= 0 {
			p.advance(t, ms)
		} else if !p.unclear() {
			p.stepBack(t, -ms)
		}
	}
	for _, c := range p.unknown() {
		p.endAgain(t, c)
	}
}

// idle returns the owners that have nothing, of a process or, if that is negative, of all.
func (p *pair) idle(t *rapid.T, process int) (list []int) {
	for owner := 1; owner <= p.owners; owner++ {
		if (process < 0 || owner%processes == process) && p.current(owner, model.Read) == (model.Claim{}) && p.current(owner, model.Write) == (model.Claim{}) {
			list = append(list, owner)
		}
	}
	if len(list) == 0 {
		t.Skip("all have something")
	}
	return list
}

func (p *pair) soleRelease(t *rapid.T) {
	open := slices.DeleteFunc(p.open(), func(c model.Claim) bool { return p.taken[c] == "" })
	if len(open) == 0 {
		t.Skip("nothing was taken")
	}
	p.soleEnd(t, rapid.SampledFrom(open).Draw(t, "claim"), rapid.IntRange(0, 7).Draw(t, "end"))
}

// soleEnd releases with soleunlock what solelock took; and then as others do if that is answered so.
func (p *pair) soleEnd(t *rapid.T, c model.Claim, fate int) {
	text := freed(p.taken[c])
	q := request{script: "soleunlock", claim: c, argv: []any{p.taken[c], text}}
	delete(p.taken, c)
	p.past = append(p.past, q)
	if fate == 0 { // it comes late
		p.end(t, c)
		if rapid.Bool().Draw(t, "soon") {
			p.do(t, q, true)
		}
		return
	}
	switch reply := p.do(t, q, false); {
	case reply == "0":
		p.end(t, c)
	case fate == 1: // the reply is lost
		p.ending[c] = p.passed
	case fate == 2: // it takes so long that the process has sent the other script
		p.past = append(p.past, p.release(c))
		p.leave(c)
		p.leaves(c, text)
	default:
		p.leaves(c, text)
	}
}

func (p *pair) actions() map[string]func(*rapid.T) {
	keep := func(t *rapid.T, again bool) {
		c := p.pick(t)
		name := "read"
		if p.modes[c] == model.Write {
			name = "write"
		}
		lease := rapid.SampledFrom([]int64{10_000, 30_000}).Draw(t, "lease")
		q := request{script: "renew", done: p.used[c].key, argv: []any{id(c), name, lease}, on: func(l *model.Lock) string {
			return strconv.Itoa(int(one(l.Renew(c, lease))))
		}}
		if again {
			p.number++
			p.counted[c] = true
			number, count := p.number, rapid.IntRange(1, 3).Draw(t, "count")
			if rapid.Bool().Draw(t, "leave the lease") {
				lease = 0
			}
			q = request{script: "reenter", done: p.used[c].key, argv: []any{id(c), name, count, number, lease}, on: func(l *model.Lock) string {
				return strconv.Itoa(int(one(l.Reenter(c, count, number, lease))))
			}}
		}
		p.past = append(p.past, q)
		p.do(t, q, false)
	}
	return map[string]func(*rapid.T){
		"ask":             p.ask,
		"askMore":         p.ask,
		"soleAsk":         p.soleAsk,
		"soleAskMore":     p.soleAsk,
		"soleRelease":     p.soleRelease,
		"soleReleaseMore": p.soleRelease,
		"alone":           p.alone,
		"untold":          p.untold,
		"heartbeat": func(t *rapid.T) {
			q, ok := p.asks[p.pick(t)]
			if !ok {
				t.Skip("it has not asked so")
			}
			p.do(t, q, false)
		},
		"release":     func(t *rapid.T) { p.end(t, p.pick(t)) },
		"releaseMore": func(t *rapid.T) { p.end(t, p.pick(t)) },
		"releaseAgain": func(t *rapid.T) {
			if len(p.ending) == 0 {
				t.Skip("none has to")
			}
			p.endAgain(t, rapid.SampledFrom(p.unknown()).Draw(t, "claim"))
		},
		"renew":   func(t *rapid.T) { keep(t, false) },
		"reenter": func(t *rapid.T) { keep(t, true) },
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
			q := request{script: "force", done: s.key, argv: []any{processID(0), c.Number, "wake:"}, on: func(l *model.Lock) string {
				return strconv.Itoa(int(l.Force(c)))
			}}
			s.last = strconv.Itoa(c.Number)
			p.past = append(p.past, q)
			p.do(t, q, false)
		},
		"pass":     func(t *rapid.T) { p.advance(t, rapid.Int64Range(1, 35_000).Draw(t, "ms")) },
		"passLess": func(t *rapid.T) { p.advance(t, rapid.Int64Range(1, 5_000).Draw(t, "ms")) },
		"passHold": func(t *rapid.T) {
			if len(p.model.Holds) == 0 {
				t.Skip("nobody has it")
			}
			p.advance(t, rapid.SampledFrom(p.model.Holds).Draw(t, "hold").Until-p.now/1000+2*slack)
		},
		"stepBack": func(t *rapid.T) {
			d := rapid.Int64Range(1, 5_000).Draw(t, "ms")
			if p.unclear() {
				t.Skip("what is over would live again")
			}
			p.stepBack(t, d)
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
	p.compare(t, fmt.Sprint(ms, " ms"))
}

// unclear reports whether the clock cannot step back, because what is over would live again.
func (p *pair) unclear() bool { return p.over || p.close(p.now/1000) }

func (p *pair) stepBack(t *rapid.T, ms int64) {
	p.pass(t, -ms)
	p.model.Advance(p.now)
	p.compare(t, fmt.Sprint(-ms, " ms"))
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
						tokens: map[model.Claim]int64{}, taken: map[model.Claim]string{},
						told: map[model.Claim]string{}, ending: map[model.Claim]int64{},
					}
					t.Repeat(p.actions())
				})
			})
		}
	})
}
