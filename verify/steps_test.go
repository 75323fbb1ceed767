package verify

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A line builds up a queue of a step's size and more, with the scripts' steps made small.
type line struct {
	*rig
	t testing.TB
}

func newLine(t *testing.T) *line {
	testredis.Need(t)
	l := &line{newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), true), t}
	l.reset(t)
	l.client.Set(ctx, "{l}:sole", "past "+l.name(99), time.Minute) // the lock is not all in one key, whoever comes first
	return l
}

func (l *line) name(owner int) string { return id(model.Claim{Owner: owner, Number: 1}) }

func (l *line) ask(owner int, mode model.Mode, lease int64) any {
	if mode == model.Write {
		return l.run(l.t, "lock", fmt.Sprintf("{l}:done:%d", owner), l.name(owner), "", lease, "wait", "wake:", "", "")
	}
	return l.askUnder(owner, "", lease)
}

// askUnder asks to read, for an owner that may have the write hold within.
func (l *line) askUnder(owner int, within string, lease int64) any {
	return l.run(l.t, "rlock", fmt.Sprintf("{l}:done:%d", owner), l.name(owner), "", lease, "wait", "wake:", within, "")
}

func (l *line) unlock(owner int) []any {
	reply, _ := l.run(l.t, "unlock", fmt.Sprintf("{l}:done:%d", owner), l.name(owner), 1, "wake:", "", "").([]any)
	return reply
}

// serve goes on until nothing is left to do.
func (l *line) serve(first []any) {
	more := first[1]
	for steps := 0; more == int64(1); steps++ {
		if steps > 100 {
			l.t.Fatal("there is no end of it")
		}
		more = l.run(l.t, "serve", "{l}:none", processID(0), "wake:").([]any)[1]
	}
}

// A crowd of readers that is owed the next phase is let in step by step, all of it before the next writer, who is next.
func TestCrowdIsLetInByStepsBeforeTheNextWriter(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Write, 30_000)
	l.ask(2, model.Write, 30_000)
	for owner := 3; owner < 8; owner++ {
		l.ask(owner, model.Read, 30_000)
	}
	first := l.unlock(1)
	if holds := l.state(t).Holds; len(holds) != 2 {
		t.Fatalf("the first step lets in %v", holds)
	}
	l.ask(8, model.Read, 30_000) // comes too late for this phase
	l.serve(first)
	s := l.state(t)
	if len(s.Holds) != 5 || len(s.Queue) != 2 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
	for _, h := range s.Holds {
		if h.Mode != model.Read || h.Owner == 8 {
			t.Errorf("%v has it", h)
		}
	}
	for owner := 3; owner < 8; owner++ {
		l.run(t, "runlock", fmt.Sprintf("{l}:done:%d", owner), l.name(owner), 1, "wake:", "", "")
	}
	if w := l.state(t).Writer(); w == nil || w.Owner != 2 {
		t.Errorf("the writer did not come next: %v", l.state(t))
	}
}

// Dead writers in front are cleared away step by step, and then it is the turn of who lives.
func TestCrowdOfDeadIsClearedAwayBySteps(t *testing.T) {
	for _, mode := range []model.Mode{model.Read, model.Write} {
		l := newLine(t)
		l.ask(1, model.Write, 60_000)
		for owner := 2; owner < 10; owner++ {
			l.ask(owner, model.Write, 1_000)
		}
		l.ask(10, mode, 60_000)
		l.pass(t, 10_000)
		first := l.unlock(1)
		if first[1] != int64(1) {
			t.Fatalf("one step clears away all: %v", first)
		}
		if queue := l.client.ZCard(ctx, "{l}:queue").Val(); queue > 7 {
			t.Errorf("the first step leaves %d in the queue", queue)
		}
		l.serve(first)
		if h := l.state(t).Hold(model.Claim{Owner: 10, Number: 1}); h == nil || h.Mode != mode {
			t.Errorf("the one that lives did not get it: %v", l.state(t))
		}
	}
}

// A writer far down the queue is told to ask again when the one in front of it dies, if nothing else happens.
func TestWaiterBehindAShortLease(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Read, 60_000)
	l.ask(2, model.Write, 60_000)
	l.ask(3, model.Write, 10_000)
	for range 2 {
		reply := l.ask(4, model.Write, 60_000).([]any)
		if again := reply[3].(int64); again > 10_000 {
			t.Errorf("to ask again in %d ms, of 10,000", again)
		}
		if reply[4] != int64(2) {
			t.Errorf("%d are ahead, of 2", reply[4])
		}
	}
}

// A reader that finds, when it asks again, that the write hold in its way is its own owner's, leaves the queue for the lock.
func TestQueuedReaderEntersUnderItsOwnWriter(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Write, 60_000)
	if _, waits := l.askUnder(2, "", 60_000).([]any); !waits {
		t.Fatal("it does not wait")
	}
	if _, enters := l.askUnder(2, l.name(1), 60_000).(string); !enters {
		t.Error("it does not enter")
	}
	if s := l.state(t); len(s.Holds) != 2 || len(s.Queue) != 0 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// A crowd whose deadlines are lost is cleared away like the dead, and leaves nothing that does not expire.
func TestCrowdOfLostIsClearedAwayBySteps(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Write, 60_000)
	for owner := 2; owner < 10; owner++ {
		l.ask(owner, model.Read, 60_000)
	}
	l.client.Del(ctx, "{l}:waiters")
	first := l.unlock(1)
	for _, key := range l.client.Keys(ctx, "{l}*").Val() {
		if ttl := l.client.PTTL(ctx, key).Val(); ttl <= 0 {
			t.Errorf("%s lives for %v", key, ttl)
		}
	}
	l.serve(first)
	if s := l.state(t); len(s.Holds) != 0 || len(s.Queue) != 0 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// While dead writers are being cleared away, no reader gets past the one behind them that lives.
func TestCrowdOfDeadDoesNotHideAWriterBetweenSteps(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Read, 60_000)
	for owner := 2; owner < 10; owner++ {
		l.ask(owner, model.Write, 1_000)
	}
	l.ask(10, model.Write, 60_000)
	l.ask(11, model.Read, 60_000)
	l.pass(t, 10_000)
	l.ask(12, model.Read, 60_000)
	l.serve(l.run(t, "serve", "{l}:none", processID(0), "wake:").([]any))
	s := l.state(t)
	if len(s.Holds) != 1 || len(s.Queue) != 3 {
		t.Errorf("%v hold the lock, %v wait", s.Holds, s.Queue)
	}
}

// A hold that is all in one key lives until its last millisecond is over, and no longer.
func TestLastMillisecond(t *testing.T) {
	testredis.Need(t)
	r := newRig(t, testredis.NewClient(t, testredis.Start(t).Addr()), false)
	hold, other := "{l}:done:1", "{l}:done:2"
	one, two := id(model.Claim{Owner: 1, Number: 1}), id(model.Claim{Owner: 2, Number: 1})
	for _, mode := range []string{"write", "read"} {
		lock, unlock := "lock", "unlock"
		if mode == "read" {
			lock, unlock = "rlock", "runlock"
		}
		runs := map[string]func() bool{ // whether it finds a live hold
			"try": func() bool {
				_, refused := r.run(t, "lock", other, two, "", 10_000, "try", "wake:", "", "").([]any)
				return refused
			},
			"read among it": func() bool {
				reply, entered := r.run(t, "rlock", other, two, "", 10_000, "try", "wake:", "", "").(string)
				return mode == "write" && !entered || mode == "read" && !strings.Contains(reply, "sole")
			},
			"ask again": func() bool {
				token := r.run(t, lock, hold, one, "", 10_000, "wait", "wake:", "", "")
				return token == "1700000000000000"
			},
			"renew":    func() bool { return r.run(t, "renew", hold, one, mode, 10_000) == int64(1) },
			"re-enter": func() bool { return r.run(t, "reenter", hold, one, mode, 2, 2, 0) == int64(1) },
			"release":  func() bool { return r.run(t, unlock, hold, one, 1, "wake:", "", "") == int64(3) },
			"look":     func() bool { return len(r.state(t).Holds) == 1 },
		}
		for what, lives := range runs {
			for _, at := range []int64{9_999, 10_000} {
				r.reset(t)
				r.run(t, lock, hold, one, "", 10_000, "wait", "wake:", "", "")
				r.setClock(t, r.now+at*1000)
				if lives() != (at < 10_000) {
					t.Errorf("%s, %s, after %d ms of 10,000: lives %v", mode, what, at, at >= 10_000)
				}
			}
		}
	}
}

// No writer comes in with the readers that one script lets in, though they seem to be over at once: before Redis 7.2, a
// clock that steps back within a script makes it take what it has just set a time to live for as expired.
func TestReadersThatSeemOverEnterAlone(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Write, 60_000)
	l.ask(2, model.Read, 60_000)
	l.ask(3, model.Write, 60_000)
	const enter = "      add_readers(entered, deadlines, token)\n"
	text := source(t, "unlock", false)
	if !strings.Contains(text, enter) {
		t.Fatal("readers are let in some other way")
	}
	l.scripts["unlock"] = redis.NewScript(strings.Replace(text, enter, enter+"call('DEL', READERS, LEASES)\n", 1))
	l.unlock(1)
	if w := l.client.Get(ctx, "{l}:writer").Val(); w != "" {
		t.Errorf("%s writes beside readers", w)
	}
}

// To look at one waiter does not cost more the more there are: the server keeps them as a table, few as they may be.
func TestWaitersAreATable(t *testing.T) {
	l := newLine(t)
	l.ask(1, model.Write, 60_000)
	l.ask(2, model.Write, 60_000)
	if kind := l.client.ObjectEncoding(ctx, "{l}:waiters").Val(); kind != "hashtable" {
		t.Errorf("they are a %s", kind)
	}
}
