package sim

import (
	"container/heap"
	"iter"
	"time"
)

// A loop is a fake clock: what is to happen, in order of time, and tasks that sleep in between. One thing
// happens at a time, so all of it follows from the seed.
type loop struct {
	at      time.Time
	queue   eventHeap
	events  uint64 // so far
	current *task
	tasks   []*task
}

type event struct {
	at     time.Time
	number uint64
	do     func()
}

func (l *loop) now() time.Time { return l.at }

// after has something done, after d and after all that is to be done at that moment already.
func (l *loop) after(d time.Duration, do func()) { l.when(l.at.Add(max(d, 0)), do) }

func (l *loop) when(at time.Time, do func()) {
	l.events++
	heap.Push(&l.queue, event{at, l.events, do})
}

// crowded is the most that happens at one moment: more is a circle.
const crowded = 1_000_000

// run lets time pass until ended says so, or nothing is left to happen. It reports whether time went on.
func (l *loop) run(ended func() bool) bool {
	for n := 0; !ended() && len(l.queue) > 0; n++ {
		e := heap.Pop(&l.queue).(event)
		if e.at.After(l.at) {
			l.at, n = e.at, 0
		}
		if n > crowded {
			return false
		}
		e.do()
	}
	return true
}

// A task is a function that sleeps and waits.
type task struct {
	loop  *loop
	on    *node // its process, or nil
	group *loopGroup
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	dead  bool
	ready bool // is to go on
	again bool // was to go on while its process stood still
}

type stopped struct{}

func (l *loop) spawn(g *loopGroup, fn func()) {
	t := &task{loop: l, group: g}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(stopped); !ok {
					panic(r)
				}
			}
		}()
		fn()
	})
	l.tasks = append(l.tasks, t)
	t.wake()
}

// wake has the task go on, in a moment.
func (t *task) wake() {
	if t.dead || t.ready {
		return
	}
	t.ready = true
	t.loop.after(0, t.resume)
}

func (t *task) resume() {
	t.ready = false
	switch {
	case t.dead:
		return
	case t.on != nil && t.on.frozen:
		t.again = true
		return
	}
	before := t.loop.current
	t.loop.current = t
	if _, more := t.next(); !more {
		t.end()
	}
	t.loop.current = before
}

func (t *task) end() {
	if !t.dead {
		t.dead = true
		t.group.done()
	}
}

// kill ends a task that is not running.
func (t *task) kill() {
	if !t.dead {
		t.end()
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

// close ends all tasks.
func (l *loop) close() {
	for _, t := range l.tasks {
		t.kill()
	}
}

func (l *loop) newGroup() group { return &loopGroup{loop: l} }

// A loopGroup is tasks that someone waits for.
type loopGroup struct {
	loop    *loop
	running int
	waits   *task
}

func (g *loopGroup) spawn(fn func()) {
	g.running++
	g.loop.spawn(g, fn)
}

func (g *loopGroup) done() {
	if g.running--; g.running == 0 && g.waits != nil {
		g.waits.wake()
	}
}

func (g *loopGroup) wait(d time.Duration) bool {
	g.waits = g.loop.current
	for end := g.loop.at.Add(d); g.running > 0 && g.loop.at.Before(end); {
		g.loop.park(end)
	}
	return g.running == 0
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }

func (h eventHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].number < h[j].number
	}
	return h[i].at.Before(h[j].at)
}

func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }

func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}
