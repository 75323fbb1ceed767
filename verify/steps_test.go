package verify

import (
	"fmt"
	"reflect"
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

// play runs what a text says: "w1/30" has writer 1 ask for 30 s, "r3-9/30" readers 3 to 9, "-w1" is writer
// 1's release, or its withdrawal, and "+10" lets 10 s pass.
func (r *rig) play(t testing.TB, text string) {
	t.Helper()
	for _, token := range strings.Fields(text) {
		who := map[byte]func(int) protocol.Claim{'w': writer, 'r': reader}
		var kind byte
		var first, last, seconds int
		switch {
		case sscanf(token, "+%d", &seconds):
			r.pass(t, int64(seconds)*1000)
		case sscanf(token, "-%c%d", &kind, &first):
			r.do(t, release(who[kind](first), 0))
		case sscanf(token, "%c%d-%d/%d", &kind, &first, &last, &seconds),
			sscanf(token, "%c%d/%d", &kind, &first, &seconds):
			for owner := first; owner <= max(first, last); owner++ {
				r.do(t, askFor(who[kind](owner), int64(seconds)*1000, false))
			}
		default:
			t.Fatalf("what is %q?", token)
		}
	}
}

func sscanf(text, format string, into ...any) bool {
	n, err := fmt.Sscanf(text, format, into...)
	return err == nil && n == len(into)
}

// finish takes the steps that are left.
func (r *rig) finish(t testing.TB, first protocol.Reply) {
	t.Helper()
	more := first.More
	for steps := 0; more; steps++ {
		if steps > 100 {
			t.Fatal("there is no end of it")
		}
		more = r.do(t, serve).More
	}
}

func held(l *model.Lock, owner int) *model.Hold {
	return l.Hold(model.Claim{Owner: owner, Number: owner})
}

// A crowd of readers that is owed the next phase is let in step by step, all of it before the next writer,
// who is next.
func TestCrowdIsLetInByStepsBeforeTheNextWriter(t *testing.T) {
	t.Parallel()
	const late = 10 // the reader that comes too late for this phase
	r := newRedisRig(t, true)
	r.play(t, "w1/30 w2/30 r3-9/30")
	first := r.do(t, release(writer(1), 0))
	if holds := r.state(t).Holds; len(holds) != 2 || !first.More {
		t.Fatalf("the first step lets in %v", holds)
	}
	r.do(t, askFor(reader(late), 30_000, false))
	r.finish(t, first)
	s := r.state(t)
	if len(s.Holds) != late-3 || len(s.Queue) != 2 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
	for _, h := range s.Holds {
		if h.Mode != model.Read || h.Owner == late {
			t.Errorf("%v has it", h)
		}
	}
	var last protocol.Reply
	for owner := 3; owner < late; owner++ {
		last = r.do(t, release(reader(owner), 0))
	}
	r.finish(t, last)
	if s := r.state(t); len(s.Holds) != 1 || held(s, 2) == nil {
		t.Errorf("the writer did not come next: %v", s)
	}
}

// Readers that a writer kept waiting enter when it withdraws, and all of them before the next writer that
// comes between the steps.
func TestCrowdBehindAWriterThatWithdrewIsLetInBeforeTheNext(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	r.play(t, "r1/60 w2/60 r3-9/60")
	if reply := r.do(t, release(writer(2), 0)); !reply.More {
		t.Fatalf("one step lets in all: %+v", reply)
	}
	r.do(t, askFor(writer(10), 60_000, false))
	r.finish(t, protocol.Reply{More: true})
	if s := r.state(t); len(s.Holds) != 8 || len(s.Queue) != 1 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// The same request, run again between the steps, says again that there are more.
func TestReleaseThatRunsAgainBetweenSteps(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	r.play(t, "w1/30 r2-7/30 -w1")
	if again := r.do(t, release(writer(1), 0)); again.Code != protocol.DoneBefore || !again.More {
		t.Errorf("the second run replies %+v", again)
	}
	r.finish(t, protocol.Reply{More: true})
	if again := r.do(t, release(writer(1), 0)); again.Code != protocol.DoneBefore || again.More {
		t.Errorf("the third run replies %+v", again)
	}
	if s := r.state(t); len(s.Holds) != 6 || len(s.Queue) != 0 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// The reply to a caller that is let in along with others names those of its own instance, which gets no
// message.
func TestReplyNamesWhoElseIsLetIn(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	r.do(t, askFor(writer(1), 1_000, false))
	caller, beside := reader(2), reader(2+processes)
	r.do(t, askFor(caller, 60_000, false))
	r.do(t, askFor(beside, 60_000, false))
	r.pass(t, 10_000)
	reply := r.do(t, askFor(caller, 60_000, false))
	if reply.Token == 0 || !slices.Equal(reply.Message.Granted, []uint64{2 + processes}) {
		t.Errorf("%+v", reply)
	}
}

// The first of a crowd that asks after the writer died enters, and is told that there are more, even if none
// of them is of its process.
func TestFirstOfACrowdIsToldThatThereAreMore(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	r.play(t, "w1/1 r2-7/60 +10")
	first := r.do(t, askFor(reader(2), 60_000, false))
	if first.Token == 0 || !first.More {
		t.Errorf("%+v", first)
	}
	r.finish(t, first)
	if s := r.state(t); len(s.Holds) != 6 || len(s.Queue) != 0 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// Dead writers in front are cleared away step by step, and then it is the turn of who lives.
func TestCrowdOfDeadIsClearedAwayBySteps(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	for _, c := range []protocol.Claim{writer(10), reader(10)} {
		r.reset(t)
		r.play(t, "w1/60 w2-9/1")
		r.do(t, askFor(c, 60_000, false))
		r.pass(t, 10_000)
		first := r.do(t, release(writer(1), 0))
		if !first.More {
			t.Fatalf("one step clears away all: %+v", first)
		}
		if queue := r.client.ZCard(ctx, r.keys.Queue.(string)).Val(); queue > 7 {
			t.Errorf("the first step leaves %d in the queue", queue)
		}
		r.finish(t, first)
		if s := r.state(t); len(s.Holds) != 1 || held(s, 10) == nil {
			t.Errorf("the one that lives did not get it: %v", s)
		}
	}
}

// While dead writers are being cleared away, no reader gets past the one behind them that lives.
func TestCrowdOfDeadDoesNotHideAWriterBetweenSteps(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	r.play(t, "r1/60 w2-9/1 w10/60 r11/60 +10")
	r.finish(t, r.do(t, askFor(reader(12), 60_000, false)))
	r.finish(t, r.do(t, serve))
	if s := r.state(t); len(s.Holds) != 1 || len(s.Queue) != 3 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// A crowd of dead readers is cleared away by steps, too, and the writer behind it enters.
func TestCrowdOfDeadReadersIsClearedAwayBySteps(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	r.play(t, "w1/60 r2-8/1 w9/60 +10")
	r.finish(t, r.do(t, release(writer(1), 0)))
	if s := r.state(t); len(s.Holds) != 1 || held(s, 9) == nil || len(s.Queue) != 0 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// A writer far down the queue is told to ask again when the one in front of it dies, if nothing else happens.
func TestWaiterBehindAShortLease(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for _, first := range []protocol.Claim{writer(1), reader(1)} {
		r.reset(t)
		r.do(t, askFor(first, 60_000, false))
		r.play(t, "w2/60 w3/10")
		for range 2 {
			reply := r.do(t, askFor(writer(4), 60_000, false))
			if again := reply.Again.Milliseconds(); again > 10_000 || again < 9_000 {
				t.Errorf("to ask again in %d ms, of 10,000", again)
			}
			if reply.Ahead != 2 {
				t.Errorf("%d are ahead, of 2", reply.Ahead)
			}
		}
	}
}

// A reader that finds, when it asks again, that the write hold in its way is its own owner's, leaves the
// queue for the lock.
func TestQueuedReaderEntersUnderItsOwnWriter(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	r.do(t, askFor(writer(1), 60_000, false))
	s := askUnder(1)
	s.Writer = nil
	if reply := r.do(t, s); reply.Token != 0 {
		t.Fatalf("it does not wait: %+v", reply)
	}
	if reply := r.do(t, askUnder(1)); reply.Token != began {
		t.Errorf("it does not enter: %+v", reply)
	}
	if s := r.state(t); len(s.Holds) != 2 || len(s.Queue) != 0 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
	if n := r.client.ZCard(ctx, r.keys.Queue.(string)).Val(); n != 0 {
		t.Errorf("the queue has %d, and nobody waits", n)
	}
}

// A hold lives until its last millisecond is over, and no longer; so does who waits.
func TestLastMillisecond(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	alone := func(c protocol.Claim) []step { return []step{askFor(c, 10_000, false)} }
	beside := func(c protocol.Claim) []step {
		return []step{askFor(reader(3), 1_000, false), askFor(c, 10_000, false)}
	}
	for name, way := range map[string]struct {
		of    protocol.Claim
		build func(protocol.Claim) []step
	}{
		"a writer": {writer(1), alone}, "a reader": {reader(1), alone},
		"a reader beside another": {reader(1), beside},
	} {
		hold := way.of
		write := hold.ID.(string)[0] == 'w'
		finds := map[string]func() bool{ // whether it finds a live hold
			"try":       func() bool { return r.do(t, askFor(writer(2), 10_000, true)).Token == 0 },
			"wait":      func() bool { return r.do(t, askFor(writer(2), 10_000, false)).Token == 0 },
			"ask again": func() bool { return r.do(t, askFor(hold, 10_000, false)).Before },
			"renew":     func() bool { return r.do(t, renew(hold)).Code == protocol.Done },
			"re-enter":  func() bool { return r.do(t, reenter(hold, false)).Code == protocol.Done },
			"look":      func() bool { return len(r.glance(t).Holders) == 1 },
			"read": func() bool {
				reply := r.do(t, askFor(reader(2), 10_000, true))
				s := r.glance(t)
				return write && reply.Token == 0 || !write && has(s, hold) != nil
			},
		}
		for what, lives := range finds {
			for _, at := range []int64{9_999, 10_000} {
				r.reset(t)
				for _, s := range way.build(hold) {
					r.do(t, s)
				}
				r.setClock(t, r.now+at*1000)
				if got := lives(); got != (at < 10_000) {
					t.Errorf("%s, %s, after %d ms of 10,000: lives %v", name, what, at, got)
				}
			}
		}
	}
	for _, waiter := range []protocol.Claim{writer(2), reader(2)} {
		for _, token := range []int64{0, began} {
			for _, at := range []int64{9_999, 10_000} {
				r.reset(t)
				r.do(t, askFor(writer(1), 60_000, false))
				r.do(t, askFor(waiter, 10_000, false))
				r.setClock(t, r.now+at*1000)
				r.do(t, release(writer(1), token))
				if got := has(r.glance(t), waiter) != nil; got != (at < 10_000) {
					t.Errorf("%s waits, and after %d ms of 10,000 it is let in: %v", waiter.ID, at, got)
				}
				if s := r.state(t); len(s.Queue) != 0 {
					t.Errorf("%v still wait", s.Queue)
				}
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

// A server's clock that steps back between scripts makes no token less than one before, and no lease that
// counts from then on longer or shorter.
func TestClockStepsBackBetweenScripts(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for _, first := range []protocol.Claim{writer(1), reader(1)} {
		for _, token := range []int64{0, began} {
			for _, next := range []protocol.Claim{writer(2), reader(2)} {
				r.reset(t)
				r.do(t, askFor(first, 10_000, false))
				r.setClock(t, r.now-5_000_000)
				r.do(t, release(first, token))
				got := r.do(t, askFor(next, 10_000, false)).Token
				if got < began || next.ID == writer(2).ID && got == began {
					t.Errorf("%s has token %d after %d", next.ID, got, began)
				}
				r.setClock(t, r.now+9_999_000)
				if r.do(t, askFor(writer(3), 10_000, true)).Token != 0 || has(r.glance(t), next) == nil {
					t.Errorf("the lease of %s was over before its time", next.ID)
				}
				r.setClock(t, r.now+1_000)
				last := r.do(t, askFor(claimOf(3, 13, 13, model.Write), 10_000, true)).Token
				if last <= got {
					t.Errorf("the lease of %s ran on, or the next token is less: %d after %d", next.ID, last, got)
				}
			}
		}
	}

	// Who waits is let in all the same, with a token that is larger, and lives for its lease from when it
	// asked.
	for _, token := range []int64{0, began} {
		r.reset(t)
		r.do(t, askFor(writer(1), 10_000, false))
		r.setClock(t, r.now-5_000_000)
		r.do(t, askFor(writer(2), 10_000, false))
		r.do(t, release(writer(1), token))
		s := r.state(t)
		h := held(s, 2)
		if h == nil || s.Token <= began || h.Until != r.now/1000+10_000 {
			t.Errorf("after the step back: %+v", s)
		}
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

// Who is dead when its turn comes is passed over, however the lock is released: the next that lives has it,
// and is told.
func TestHandoverPassesTheDead(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for _, token := range []int64{0, began} {
		for _, next := range []protocol.Claim{writer(3), reader(3)} {
			r.reset(t)
			r.play(t, "w1/60 w2/1")
			r.do(t, askFor(next, 60_000, false))
			r.pass(t, 10_000)
			end := release(writer(1), token)
			reply, told := r.run(t, &end.Request)
			if len(reply.Message.Granted)+len(told) == 0 {
				t.Errorf("%s is not told: %+v", next.ID, reply)
			}
			if s := r.state(t); len(s.Holds) != 1 || held(s, 3) == nil || len(s.Queue) != 0 {
				t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
			}
		}
	}
}

// The quick way of a handover from writer to writer leaves what the other leaves, and says the same.
func TestHandoverIsTheSameEitherWay(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	ask := func(claims ...protocol.Claim) (steps []step) {
		for _, c := range claims {
			steps = append(steps, askFor(c, 30_000, false))
		}
		return steps
	}
	for name, c := range map[string]struct {
		waiters []step
		pause   int64 // ms between them
	}{
		"one":                        {ask(writer(2)), 10},
		"two":                        {ask(writer(2), writer(3)), 10},
		"four":                       {ask(writer(2), writer(3), writer(4), writer(5)), 10},
		"one of the same instance":   {ask(writer(1 + processes)), 10},
		"two, one of the same":       {ask(writer(1+processes), writer(3)), 10},
		"two in one microsecond":     {ask(writer(2), writer(3)), 0},
		"a writer that reads, one":   {append(ask(writer(2)), askUnder(1)), 10},
		"one whose slot has gone on": {ask(writer(2), claimOf(2, 12, 2, model.Write)), 10},
	} {
		type outcome struct {
			fields map[string]string
			queue  []string
			reply  protocol.Reply
			told   map[string]protocol.Message
		}
		var ways []outcome
		for _, token := range []int64{0, began} {
			r.reset(t)
			r.do(t, askFor(writer(1), 60_000, false))
			for _, s := range c.waiters {
				r.do(t, s)
				r.pass(t, c.pause)
			}
			end := release(writer(1), token)
			reply, told := r.run(t, &end.Request)
			o := outcome{r.fields(t), r.client.ZRange(ctx, r.keys.Queue.(string), 0, -1).Val(), reply, told}
			delete(o.fields, writer(1).Slot.(string))
			ways = append(ways, o)
		}
		if !reflect.DeepEqual(ways[0], ways[1]) {
			t.Errorf("%s:\n%+v\n%+v", name, ways[0], ways[1])
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

// Whoever waits is told how many are served before: a writer those that came before it, and readers that go
// first; a reader one, if a writer goes first.
func TestAheadCountsWhoIsServedBefore(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for name, c := range map[string]struct {
		holder protocol.Claim
		first  []int // as they come: of writer 2, reader 3, reader 4, writer 5
		ahead  []int // later, and of a writer and a reader that try
	}{
		"a writer holds it": {writer(1), []int{0, 0, 0, 3}, []int{2, 0, 0, 3, 4, 0}},
		"a reader holds it": {reader(1), []int{0, 1, 1, 3}, []int{0, 1, 1, 3, 4, 1}},
	} {
		r.reset(t)
		r.do(t, askFor(c.holder, 60_000, false))
		waiters := []protocol.Claim{writer(2), reader(3), reader(4), writer(5)}
		var first, ahead []int
		for _, w := range waiters {
			first = append(first, r.do(t, askFor(w, 60_000, false)).Ahead)
		}
		for _, w := range waiters {
			ahead = append(ahead, r.do(t, askFor(w, 60_000, false)).Ahead)
		}
		ahead = append(ahead, r.do(t, askFor(writer(6), 60_000, true)).Ahead,
			r.do(t, askFor(reader(7), 60_000, true)).Ahead)
		if !slices.Equal(first, c.first) || !slices.Equal(ahead, c.ahead) {
			t.Errorf("%s: first %v and later %v are ahead, of %v and %v", name, first, ahead, c.first, c.ahead)
		}
	}
}

// The dead are not counted, and not watched: a writer looks again when the last of those that live ahead of
// it is over.
func TestDeadAheadDoNotCount(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for dead := range 3 {
		r.reset(t)
		r.play(t, "w1/90 w2/80 w3/40")
		for i := range dead {
			r.do(t, askFor(writer(4+i), 1_000, false))
		}
		r.pass(t, 10_000)
		if reply := r.do(t, askFor(writer(9), 60_000, false)); reply.Ahead != 2 ||
			reply.Again.Round(time.Second) != 30*time.Second {
			t.Errorf("a writer behind %d dead: %+v", dead, reply)
		}
	}

	r.reset(t)
	r.play(t, "r1/90 w2/1 w3/40 +10")
	if reply := r.do(t, askFor(reader(4), 60_000, false)); reply.Ahead != 1 ||
		reply.Again.Round(time.Second) != 30*time.Second {
		t.Errorf("a reader: %+v", reply)
	}
}

// Between the steps in which a crowd of readers enters, no writer is ahead of those that are owed the phase,
// and one is ahead of who came later. If no writer waits, none is ahead of anybody.
func TestAheadBetweenSteps(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	for _, written := range []bool{true, false} {
		r.reset(t)
		r.do(t, askFor(writer(1), 60_000, false))
		if written {
			r.do(t, askFor(writer(2), 60_000, false))
		}
		r.play(t, "r3-11/60")
		r.do(t, release(writer(1), 0)) // lets in 3 and 4
		if reply := r.do(t, askFor(reader(11), 60_000, false)); reply.Token != 0 || reply.Ahead != 0 {
			t.Errorf("a writer waits (%v): who is owed the phase is told %+v", written, reply)
		}
		late := r.do(t, askFor(reader(12), 60_000, false))
		if expected := map[bool]int{true: 1, false: 0}[written]; late.Token != 0 || late.Ahead != expected {
			t.Errorf("a writer waits (%v): who comes late is told %+v", written, late)
		}
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

// Of readers that died, or were dropped by force, nothing is left but what the next holder has, too: the
// hash.
func TestDroppedReadersLeaveOneKey(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for name, drop := range map[string]func(){
		"died":   func() { r.pass(t, 10_000) },
		"forced": func() { r.do(t, force) },
	} {
		r.reset(t)
		r.play(t, "r1/1 r2/1")
		drop()
		if reply := r.do(t, askFor(writer(3), 10_000, false)); reply.Token == 0 {
			t.Errorf("%s: %+v", name, reply)
		}
		if keys := r.ttls(t); len(keys) != 1 {
			t.Errorf("%s: there are %v", name, keys)
		}
	}
}

// While a crowd of dead is cleared away nobody holds the lock, and who asks is told so.
func TestAskWhileNobodyHoldsTheLock(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, true)
	for _, s := range []step{
		askFor(writer(10), 60_000, true), askFor(reader(10), 60_000, true), askFor(writer(10), 60_000, false),
		askFor(reader(10), 60_000, false),
	} {
		r.reset(t)
		r.play(t, "w1-9/1 +10")
		reply := r.do(t, s)
		if reply.Token != 0 || !reply.More || reply.Mode != protocol.None || reply.Claim != "" || reply.Again != 0 {
			t.Errorf("%s: %+v", s.name, reply)
		}
		// is answered, too, though the hash says only that someone waits
		r.do(t, askFor(reader(11), 60_000, false))
	}
}

// A release of a hold that was lost says so, even if its slot has gone on, and whatever has become of the
// claim after it.
func TestReleaseOfALostHoldWhoseSlotHasGoneOn(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for _, mode := range []model.Mode{model.Read, model.Write} {
		r.reset(t)
		lost, next := claimOf(1, 1, 1, mode), claimOf(1, 2, 1, mode)
		r.do(t, askFor(lost, 1_000, false))
		r.pass(t, 10_000)
		r.do(t, askFor(next, 10_000, false))
		r.do(t, release(next, 0))
		if reply := r.do(t, release(lost, 0)); reply.Code != protocol.NotThere {
			t.Errorf("%+v", reply)
		}
		if reply := r.do(t, release(next, 0)); reply.Code != protocol.DoneBefore {
			t.Errorf("%+v", reply)
		}
	}
}

// A writer looks again no later than the lease of the writer in front of it ends. If that one withdraws, it
// is told: the next one in front may end earlier. Who waits for no one that withdraws is not disturbed.
func TestWithdrawalTellsTheWriterBehind(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	r.play(t, "w1/60 w2/10 w3/60 w4/60 r5/60 r6/60 r7/60")

	s := release(writer(3), 0)
	_, told := r.run(t, &s.Request)
	if m := told[instance(4)]; len(told) != 1 || !slices.Equal(m.AskAgain, []uint64{4}) || len(m.Granted) > 0 {
		t.Errorf("told: %v", told)
	}
	s = release(reader(6), 0)
	if _, told := r.run(t, &s.Request); len(told) > 0 {
		t.Errorf("told: %v", told)
	}
}

// Who was first in line, or the first writer, looks after what is in the way of those behind. When it
// withdraws, who is first then is told to look.
func TestWithdrawalOfTheFirstTellsTheNext(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	shorten := reenter(writer(1), true)
	for name, c := range map[string]struct {
		steps []step
		first protocol.Claim
		told  int // the one that is
	}{
		// The hold ends earlier than the readers were told when they came. The first of them was told since.
		"the first reader": {[]step{
			askFor(writer(1), 60_000, false), askFor(reader(2), 60_000, false), askFor(reader(3), 60_000, false),
			shorten,
		}, reader(2), 3},
		// Readers look again when the lease of the writer ends that is in their way, which now is one with a
		// shorter lease.
		"the first writer": {[]step{
			askFor(reader(1), 60_000, false), askFor(writer(2), 60_000, false), askFor(writer(3), 5_000, false),
			askFor(reader(4), 60_000, false),
		}, writer(2), 4},
	} {
		r.reset(t)
		for _, s := range c.steps {
			r.do(t, s)
		}
		end := release(c.first, 0)
		if _, told := r.run(t, &end.Request); !slices.Contains(told[instance(c.told)].AskAgain, uint64(c.told)) {
			t.Errorf("%s withdraws: told %v", name, told)
		}
	}
}

// Who waits for readers looks again when the last of their leases ends. When the reader that has it leaves,
// the first in line is told that it may look sooner.
func TestReleaseOfTheLongestLeaseTellsTheFirst(t *testing.T) {
	t.Parallel()
	r := newRedisRig(t, false)
	for _, token := range []int64{0, began} {
		r.reset(t)
		r.play(t, "r1/60 r2/10 w3/60")
		end := release(reader(1), token)
		if _, told := r.run(t, &end.Request); !slices.Contains(told[instance(3)].AskAgain, 3) {
			t.Errorf("told %v", told)
		}
	}
}
