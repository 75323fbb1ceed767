package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// do runs a script that must not fail.
func (r *rig) do(t testing.TB, s step) protocol.Reply {
	t.Helper()
	reply, _ := r.run(t, &s.Request)
	return reply
}

// play runs the steps that a text names, and returns the last reply. "w1/30" is a request of writer 1 with a
// lease of 30 s, "w1?/30" a try, and "r3-9/30" a request of each of the readers 3 to 9. "-w1" is the release
// of writer 1, or its withdrawal. "+10" lets 10 s pass, and "..." runs serve until nothing is left to do.
func (r *rig) play(t testing.TB, text string) (reply protocol.Reply) {
	t.Helper()
	claims := map[byte]func(int) protocol.Claim{'w': writer, 'r': reader}
	scan := func(token, format string, into ...any) bool {
		n, err := fmt.Sscanf(token, format, into...)
		return err == nil && n == len(into)
	}
	for _, token := range strings.Fields(text) {
		var kind byte
		var first, last, seconds int
		switch {
		case token == "...":
			for reply.More = true; reply.More; {
				reply = r.do(t, serve)
			}
		case scan(token, "+%d", &seconds):
			r.pass(t, int64(seconds)*1000)
		case scan(token, "-%c%d", &kind, &first):
			reply = r.do(t, release(claims[kind](first), 0))
		case scan(token, "%c%d?/%d", &kind, &first, &seconds):
			reply = r.do(t, askFor(claims[kind](first), int64(seconds)*1000, true))
		case scan(token, "%c%d-%d/%d", &kind, &first, &last, &seconds),
			scan(token, "%c%d/%d", &kind, &first, &seconds):
			for owner := first; owner <= max(first, last); owner++ {
				reply = r.do(t, askFor(claims[kind](owner), int64(seconds)*1000, false))
			}
		default:
			t.Fatalf("what is %q?", token)
		}
	}
	return reply
}

// outcome returns what a reply says, and who holds the lock and waits for it then, readers first:
// "2 ahead, more: r3 r4 | r5 w2". A request is told "held" if somebody holds the lock.
func (r *rig) outcome(t testing.TB, reply protocol.Reply) string {
	t.Helper()
	var text []string
	if reply.Token > 0 {
		text = append(text, "granted")
	}
	if reply.Ahead > 0 {
		text = append(text, fmt.Sprint(reply.Ahead, " ahead"))
	}
	if reply.Code == protocol.DoneBefore {
		text = append(text, "done before")
	}
	if reply.Claim != "" || reply.Mode != protocol.None || reply.Again > 0 {
		text = append(text, "held")
	}
	if reply.More {
		text = append(text, "more")
	}
	says := strings.Join(text, ", ") + ":"
	letter := map[model.Mode]string{model.Read: "r", model.Write: "w"}
	l := r.state(t)
	slices.SortFunc(l.Holds, func(a, b model.Hold) int { return a.Owner - b.Owner })
	for _, h := range l.Holds {
		says += fmt.Sprint(" ", letter[h.Mode], h.Owner)
	}
	says += " |"
	for _, w := range l.Queue {
		says += fmt.Sprint(" ", letter[w.Mode], w.Owner)
	}
	return says
}

func held(l *model.Lock, owner int) *model.Hold {
	return l.Hold(model.Claim{Owner: owner, Number: owner})
}

// What takes more than one step, with steps of two readers: moves, and what comes of them.
type moves [][2]string

var crowds = []struct {
	name string
	moves
}{
	{"readers that are owed the next phase enter before the next writer, a late one does not", moves{
		{"w1/30 w2/30 r3-9/30 -w1", "more: r3 r4 | r5 r6 r7 r8 r9 w2"},
		{"r10/30", "1 ahead, held, more: r3 r4 r5 r6 | r7 r8 r9 r10 w2"},
		{"...", ": r3 r4 r5 r6 r7 r8 r9 | r10 w2"},
		{"-r3 -r4 -r5 -r6 -r7 -r8 -r9 ...", ": w2 | r10"},
	}},
	{"readers enter when the writer ahead withdraws, before one that comes between the steps", moves{
		{"r1/60 w2/60 r3-9/60 -w2", "more: r1 r3 r4 | r5 r6 r7 r8 r9"},
		{"w10/60", "3 ahead, held, more: r1 r3 r4 r5 r6 | r7 r8 r9 w10"},
		{"...", ": r1 r3 r4 r5 r6 r7 r8 r9 | w10"},
	}},
	{"a release that runs again between the steps says again that there are more", moves{
		{"w1/30 r2-7/30 -w1", "more: r2 r3 | r4 r5 r6 r7"},
		{"-w1", "done before, more: r2 r3 | r4 r5 r6 r7"},
		{"...", ": r2 r3 r4 r5 r6 r7 |"},
		{"-w1", "done before: r2 r3 r4 r5 r6 r7 |"},
	}},
	{"the first of a crowd that asks after the writer died is told that there are more", moves{
		{"w1/1 r2-7/60 +10 r2/60", "granted, more: r2 r3 | r4 r5 r6 r7"},
		{"...", ": r2 r3 r4 r5 r6 r7 |"},
	}},
	{"dead writers ahead of a writer are cleared away", moves{
		{"w1/60 w2-9/1 w10/60 +10 -w1", "more: | w4 w5 w6 w7 w8 w9 w10"},
		{"...", ": w10 |"},
	}},
	{"dead writers ahead of a reader are cleared away", moves{
		{"w1/60 w2-9/1 r10/60 +10 -w1", "more: | r10 w4 w5 w6 w7 w8 w9"},
		{"...", ": r10 |"},
	}},
	{"no reader overtakes a live writer behind dead ones", moves{
		{"r1/60 w2-9/1 w10/60 r11/60 +10 r12/60 ...", ": r1 | r11 r12 w10"},
		{"...", ": r1 | r11 r12 w10"},
	}},
	{"dead readers ahead of a writer are cleared away", moves{
		{"w1/60 r2-8/1 w9/60 +10 -w1 ...", ": w9 |"},
	}},
	{"between the steps, a writer is ahead only of readers that are not owed the phase", moves{
		{"w1/60 w2/60 r3-11/60 -w1 r11/60", "held, more: r3 r4 r5 r6 | r7 r8 r9 r10 r11 w2"},
		{"r12/60", "1 ahead, held, more: r3 r4 r5 r6 r7 r8 | r9 r10 r11 r12 w2"},
	}},
	{"between the steps, nobody is ahead of a reader if no writer waits", moves{
		{"w1/60 r3-11/60 -w1 r11/60", "held, more: r3 r4 r5 r6 | r7 r8 r9 r10 r11"},
		{"r12/60", "held, more: r3 r4 r5 r6 r7 r8 | r9 r10 r11 r12"},
	}},
	{"a writer that tries while a crowd of dead is cleared away is not told of a holder", moves{
		{"w1-9/1 +10 w10?/60", "6 ahead, more: | w4 w5 w6 w7 w8 w9"},
		{"r11/60", "1 ahead, more: | r11 w8 w9"},
	}},
	{"nor is a reader that tries", moves{
		{"w1-9/1 +10 r10?/60", "1 ahead, more: | w4 w5 w6 w7 w8 w9"},
		{"r11/60", "1 ahead, more: | r11 w8 w9"},
	}},
	{"nor is a writer that asks", moves{
		{"w1-9/1 +10 w10/60", "more: | w10"},
		{"r11/60", "held: w10 | r11"},
	}},
	{"nor is a reader that asks", moves{
		{"w1-9/1 +10 r10/60", "1 ahead, more: | r10 w6 w7 w8 w9"},
		{"r11/60", "more: | r10 r11"},
	}},
}

func TestCrowds(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	for _, c := range crowds {
		r.reset(t)
		for _, move := range c.moves {
			if got := r.outcome(t, r.play(t, move[0])); got != move[1] {
				t.Errorf("%s: after %s\n\tgot  %q\n\twant %q", c.name, move[0], got, move[1])
			}
		}
	}
}

// The keys of a hold that is renewed outlive its lease, however long it is renewed, and whoever else reads or
// waits.
func TestRenewalsKeepTheKeys(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	const lease = 10_000 // ms
	for name, others := range map[string][]protocol.Claim{"alone": nil, "beside a reader": {reader(2)},
		"before a writer": {writer(2)}} {
		for _, hold := range []protocol.Claim{writer(1), reader(1)} {
			r.reset(t)
			claims := append([]protocol.Claim{hold}, others...)
			for _, c := range claims {
				r.do(t, askFor(c, lease, false))
			}
			for range 40 {
				r.pass(t, 9_000)
				for _, c := range claims {
					if has(r.glance(t), c) == nil {
						r.do(t, askFor(c, lease, false)) // it waits
					} else if r.do(t, renew(c)).Code != protocol.Done {
						t.Fatalf("%s, %s: the hold is lost", name, c.ID)
					}
				}
				for key, left := range r.ttls(t) {
					if left < (lease+60_000)*time.Millisecond {
						t.Fatalf("%s, %s: %s is left for %v", name, hold.ID, key, left)
					}
				}
			}
		}
	}
}

// No writer comes in with the readers that one script lets in, though they seem to be over at once: before
// Redis 7.2, a clock that moves on within a script makes the server take for expired what the script has just
// set a time to live for.
func TestReadersThatSeemOverEnterAlone(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	const enter = "    share(entering, deadlines, read_token())\n"
	text := source(t, "unlock", false)
	if strings.Count(text, enter) != 1 {
		t.Fatal("readers are let in some other way")
	}
	r.load(t, lua.Unlock, strings.Replace(text, enter, enter+"    call('DEL', KEYS[2])\n", 1))
	r.play(t, "w1/60 r2/60 r3/60 w4/60")
	reply := r.do(t, release(writer(1), 0))
	if s := r.glance(t); len(s.Holders) != 0 || !waits(s, writer(4)) {
		t.Errorf("%+v: %+v", reply, s)
	}
}

// To look at one slot does not cost more the more there are: the server keeps a hash of many as a table.
func TestManySlotsAreATable(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	r.play(t, "w1-11/60")
	if kind := r.client.ObjectEncoding(ctx, r.keys.Lock.(string)).Val(); kind != "hashtable" {
		t.Errorf("they are a %s", kind)
	}
}

// A lock that lives on forgets the slots of the processes that have used it once, in whatever way: there are
// no more of them than have come within some minutes. It forgets nobody who has the lock, or waits for it,
// and is not forgotten itself.
func TestSlotsOfThePastAreSwept(t *testing.T) {
	t.Parallel()
	const long = 90_000_000
	r := newRedisRig(t, false)
	write := func(c protocol.Claim) []step { return []step{askFor(c, 10_000, false), release(c, r.now)} }
	withdraw := func(c protocol.Claim) []step { return []step{askFor(c, 10_000, false), release(c, 0)} }
	try := func(c protocol.Claim) []step { return []step{askFor(c, 10_000, true)} }
	die := func(c protocol.Claim) []step { return []step{renew(reader(1)), askFor(c, 1_000, false)} }
	for name, way := range map[string]struct {
		before []step
		claim  func(owner int) protocol.Claim
		use    func(protocol.Claim) []step
	}{
		"writers":                {nil, writer, write},
		"readers":                {nil, reader, write},
		"readers beside another": {[]step{askFor(reader(1), long, false)}, reader, write},
		"readers beside others": {[]step{askFor(reader(1), long, false), askFor(reader(2), long, false)}, reader,
			write},
		"readers that die": {[]step{askFor(reader(1), long, false), askFor(reader(2), long, false)}, reader,
			die},
		"writers that try": {[]step{askFor(writer(1), long, false), askFor(writer(2), long, false)}, writer,
			try},
		"readers that try": {[]step{askFor(writer(1), long, false), askFor(reader(2), long, false)}, reader,
			try},
		"writers that wait": {[]step{askFor(writer(1), long, false)}, writer, withdraw},
		"writers behind another": {[]step{askFor(writer(1), long, false), askFor(writer(2), long, false)}, writer,
			withdraw},
		"writers behind a reader": {[]step{askFor(writer(1), long, false), askFor(reader(2), long, false)}, writer,
			withdraw},
		"readers that wait": {[]step{askFor(writer(1), long, false), askFor(reader(2), long, false)}, reader,
			withdraw},
	} {
		r.reset(t)
		for _, s := range way.before {
			r.do(t, s)
		}
		for owner := 10; owner < 210; owner++ {
			for _, s := range way.use(way.claim(owner)) {
				r.do(t, s)
			}
			for key, ttl := range r.ttls(t) {
				if ttl < 200*time.Second {
					t.Fatalf("%s: %s lives for %v after a lease of 10 s was given", name, key, ttl)
				}
			}
			r.pass(t, 10_000)
		}
		if n := len(r.fields(t)); n > 100 {
			t.Errorf("%s: there are %d fields, of 24 claims in four minutes", name, n)
		}
		r.do(t, serve)
		s := r.state(t)
		if n := len(s.Holds) + len(s.Queue); n != len(way.before) {
			t.Errorf("%s: of %d that were there before, %d are left", name, len(way.before), n)
		}
	}
}

// A request succeeds though the server lets nobody use channels. It says why those that have the lock now
// were not told.
func TestReplySaysWhyNobodyWasTold(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for _, s := range []*lua.Script{lua.Unlock, lua.RLock} {
		r.load(t, s, strings.ReplaceAll(source(t, s.Name, false), "redis.call('RPUSH', '{told}',",
			"redis.pcall('PUBLISH',"))
	}
	if err := r.client.Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	for _, token := range []int64{0, began} {
		for _, next := range []protocol.Claim{writer(2), reader(2)} {
			r.reset(t)
			r.do(t, askFor(writer(1), 60_000, false))
			r.do(t, askFor(next, 60_000, false))
			r.pass(t, 10)
			if reply := r.do(t, release(writer(1), token)); reply.Code != protocol.Done || reply.More ||
				reply.PublishError == "" {
				t.Errorf("%+v", reply)
			}
			if s := r.state(t); len(s.Holds) != 1 || held(s, 2) == nil || len(s.Queue) != 0 {
				t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
			}
		}
	}

	r.reset(t)
	r.play(t, "w1/1 r2/60 r3/60 +10")
	if reply := r.do(t, askFor(reader(2), 60_000, false)); reply.Token == 0 || reply.PublishError == "" {
		t.Errorf("%+v", reply)
	}
}

// A late release that finds the slot used again leaves it to the next claim, though it hands the lock over.
func TestReleaseLeavesTheSlotToItsNextClaim(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	r.play(t, "w1/60 w2/60")
	r.do(t, askFor(claimOf(4, 14, 1, model.Write), 60_000, false)) // on the slot of the first
	r.pass(t, 10)
	if got := r.outcome(t, r.do(t, release(writer(1), began))); got != ": w2 | w4" {
		t.Error(got)
	}
}

// A waiter keeps its place in the queue when it removes a dead waiter that had the same slot. A server that
// has lost the end of the earlier claim knows both.
func TestWaiterTakesTheSlotOfADeadOneAhead(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	r.play(t, "w1/60 w2/3")
	r.pass(t, 4_000)
	r.do(t, askFor(claimOf(5, 15, 2, model.Write), 60_000, false)) // on the slot of the second
	if got := r.outcome(t, r.do(t, release(writer(1), began))); got != ": w5 |" {
		t.Error(got)
	}
}

// Leases that are left of a lock whose hash was evicted keep nobody out.
func TestLeasesOfALostHashDoNotCount(t *testing.T) {
	t.Parallel()
	const long = 90_000_000
	r := newRedisRig(t, false)
	r.do(t, askFor(reader(1), long, false))
	r.do(t, askFor(reader(2), long, false))
	r.client.Del(ctx, r.keys.Lock.(string))
	r.play(t, "r3/10 r4/10")
	r.ttls(t) // fails if a key has none
	r.play(t, "-r3 -r4")
	if reply := r.do(t, askFor(writer(5), 10_000, true)); reply.Token == 0 {
		t.Errorf("the lock is not free: %+v", reply)
	}
}

// Places that are left of a lock whose hash was evicted are nobody's: whoever comes to wait is next, and
// keeps its place.
func TestPlacesOfALostHashDoNotCount(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	hold := func(claims ...protocol.Claim) (steps []step) {
		for _, c := range claims {
			steps = append(steps, askFor(c, 30_000, false))
		}
		return steps
	}
	for name, holds := range map[string][]step{
		"a writer": hold(writer(1)), "a reader": hold(reader(1)), "readers": hold(reader(1), reader(2)),
		"a writer that reads": append(hold(writer(1)), askUnder(1)),
	} {
		for _, left := range [][]step{hold(writer(3)), hold(reader(3)), hold(writer(3), reader(4)),
			hold(reader(4), writer(3))} {
			for _, next := range []protocol.Claim{writer(5), reader(5)} {
				r.reset(t)
				r.do(t, askFor(writer(9), 60_000, false))
				for _, s := range left {
					r.do(t, s)
				}
				r.client.Del(ctx, r.keys.Lock.(string))
				for _, s := range holds {
					r.do(t, s)
				}
				waits := r.do(t, askFor(next, 60_000, false)).Token == 0
				if s := r.state(t); waits && (len(s.Queue) != 1 || s.Queue[0].Owner != 5) {
					t.Errorf("%s: %v wait", name, s.Queue)
				}
				if name == "a writer" { // that reads later
					r.do(t, askUnder(1))
					r.do(t, release(within(1), 0))
				}
				for _, s := range holds {
					if waits {
						r.do(t, release(s.Claim, 0))
					}
				}
				if s := r.state(t); held(s, 5) == nil || len(s.Queue) != 0 {
					t.Errorf("%s holds it, %s comes: at last %v hold the lock, %v wait", name, next.ID, s.Holds, s.Queue)
				}
			}
		}
	}
}
