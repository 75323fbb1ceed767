package verify

import (
	"fmt"
	"testing"

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
	return l
}

func (l *line) name(owner int) string { return id(model.Claim{Owner: owner, Number: 1}) }

func (l *line) ask(owner int, mode model.Mode, lease int64) any {
	script := "rlock"
	if mode == model.Write {
		script = "lock"
	}
	return l.run(l.t, script, fmt.Sprintf("{l}:done:%d", owner), l.name(owner), "", lease, "wait", "wake:", "")
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
