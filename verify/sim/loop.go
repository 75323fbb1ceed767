package sim

import (
	"errors"
	"iter"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
)

// A loop is a fake clock: what is to happen, in order of time, and tasks that sleep in between. One thing
// happens at a time, so all of it follows from the seed.
type loop struct {
	at      time.Time
	queue   order.Timeline[*event]
	events  uint64 // so far
	current *task  // the last that went on
	tasks   []*task
}

// The first moment of every loop.
var genesis = time.Date(2030, 1, 1, 0, 0, 0, 654_321_000, time.UTC)

type event struct {
	order.Place
	do func()
}

func (l *loop) now() time.Time { return l.at }

// after has something done, after d and after all that is to be done at that moment already.
func (l *loop) after(d time.Duration, do func()) { l.when(l.at.Add(max(d, 0)), do) }

func (l *loop) when(at time.Time, do func()) {
	l.events++
	l.queue.Set(&event{order.Place{Tie: l.events}, do}, at)
}

// crowded is the most that happens at one moment: more is a circle.
const crowded = 1_000_000

// run runs a task until it has ended, and then ends all others. It returns why the task does not end, if so.
func (l *loop) run(fn func()) error {
	defer func() {
		for _, t := range l.tasks {
			t.kill()
		}
	}()
	l.spawn(fn)
	main := l.tasks[0]
	for n := 0; !main.dead; n++ {
		at, ok := l.queue.Next()
		switch {
		case !ok:
			return errors.New("nothing happens any more")
		case at.After(l.at):
			l.at, n = at, 0
		case n > crowded:
			return errors.New("there is no end to what happens at one moment")
		}
		e := l.queue.First()
		l.queue.Remove(e)
		e.do()
	}
	return nil
}

// A task is a function that sleeps and waits.
type task struct {
	loop  *loop
	on    *node // its process, or nil
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	dead  bool
	ready bool // is to go on
	again bool // was to go on while its process stood still
}

type stopped struct{}

func (l *loop) spawn(fn func()) {
	t := &task{loop: l}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			if r := recover(); r != nil && r != any(stopped{}) {
				panic(r)
			}
		}()
		fn()
	})
	l.tasks = append(l.tasks, t)
	t.wake()
}

// wake has the task go on, in a moment.
func (t *task) wake() {
	if !t.dead && !t.ready {
		t.ready = true
		t.loop.after(0, t.resume)
	}
}

func (t *task) resume() {
	t.ready = false
	if t.again = t.on != nil && t.on.frozen; t.dead || t.again {
		return
	}
	t.loop.current = t
	_, more := t.next()
	t.dead = !more
}

// kill ends a task that is not running.
func (t *task) kill() {
	if !t.dead {
		t.dead = true
		t.stop()
	}
}

// park waits until someone wakes the task that calls it, but not beyond a time, unless that is zero. It may
// return for nothing.
func (l *loop) park(end time.Time) {
	t := l.current
	if !end.IsZero() {
		l.when(end, t.wake)
	}
	if !t.yield(struct{}{}) {
		panic(stopped{})
	}
}

func (l *loop) sleep(d time.Duration) {
	for end := l.at.Add(d); l.at.Before(end); {
		l.park(end)
	}
}
