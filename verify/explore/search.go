package main

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"time"
)

// A space is what is explored: states X, and the actions that lead from one to another.
type space[X any] interface {
	start() X
	actions(X) []action
	// take returns the state after an action and after what follows from it when nothing else can happen, and
	// the first thing that is wrong with it. It adds what follows to the trace, if there is one.
	take(X, action, *trace) (X, error)
	// canonical returns the one state of all that differ in names alone, and its key. States that differ in
	// their demands alone have one key.
	canonical(X) (X, string)
	demands(X) demands
	// rank says when an action comes in a fair run: the least comes first, and never does not.
	rank(X, action) int
	// rest returns how long a fair run rests when no action comes, and whether anything has to happen.
	rest(X) (time.Duration, bool)
	// patience returns how long a fair run may take.
	patience(X) time.Duration
	describe(X, action) string
	// tidy frees memory, and reports whether it did.
	tidy() bool
}

const never = 100

// next returns what happens next in a fair run, how long it takes, and whether anything has to happen.
func next[X any](of space[X], x X) (a action, lasts time.Duration, ok bool) {
	least := never
	for _, b := range of.actions(x) {
		if r := of.rank(x, b); r < least {
			a, least = b, r
		}
	}
	if least < never {
		return a, 0, true
	}
	lasts, ok = of.rest(x)
	return action{event: event{do: pass}}, lasts, ok
}

// demands are what may still go wrong in a state, and whether something has gone wrong already.
type demands struct {
	budget
	faulty bool
}

// A search explores a space.
type search[X any] struct {
	space[X]
	setup  setup
	seeds  seeds
	visit  func(X) // sees each state; or nil
	exact  bool    // states that differ in their demands are all visited
	served map[fair]time.Duration
}

// A fair is a state in a fair run, in which it makes no difference what may still go wrong.
type fair struct {
	fingerprint
	faulty bool
}

func newSearch[X any](s setup, of space[X]) *search[X] {
	return &search[X]{space: of, setup: s, seeds: newSeeds(), served: map[fair]time.Duration{}}
}

// limits end an exploration early: after so many states, unless that is 0, and kinds of bugs.
type limits struct{ states, bugs int }

// A report says how far an exploration came.
type report struct {
	States, Transitions, Depth int
	Complete                   bool
	Time                       time.Duration
	Bugs                       []bug
}

func (r report) String() string {
	return fmt.Sprintf("%d states, %d transitions, depth %d, %v; complete: %v; bugs: %d",
		r.States, r.Transitions, r.Depth, r.Time.Round(time.Millisecond), r.Complete, len(r.Bugs))
}

// A bug is something wrong after a trace.
type bug struct {
	what  string
	trace trace
}

// A step says how a state was reached for the first time: by which of the actions of another.
type step struct {
	parent int32 // -1 for the first
	via    uint16
}

// explore visits every state that can be reached, those with the shortest traces first. What is wrong is
// reported and not followed; each kind of wrong only once.
func (s *search[X]) explore(l limits, progress io.Writer) (r report) {
	type item struct {
		x  X
		at int32 // its step
	}
	var (
		began, said = time.Now(), time.Now()
		known       = seen{map[fingerprint][]demands{}, s.exact}
		steps       []step
		frontier    []item // to be expanded
		next        []item
		kinds       = map[string]bool{}
	)
	reach := func(parent int32, via int, x X) (at int32, key string, first bool) {
		x, key = s.canonical(x)
		if !known.add(s.seeds.fingerprint(key), s.demands(x)) {
			return 0, key, false
		}
		at = int32(len(steps))
		steps, next = append(steps, step{parent, uint16(via)}), append(next, item{x, at})
		if s.visit != nil {
			s.visit(x)
		}
		return at, key, true
	}
	found := func(at int32, flaw error, fair bool) {
		if kinds[kindOf(flaw)] {
			return
		}
		kinds[kindOf(flaw)] = true
		var way []uint16
		for ; steps[at].parent >= 0; at = steps[at].parent {
			way = append(way, steps[at].via)
		}
		slices.Reverse(way)
		r.Bugs = append(r.Bugs, bug{flaw.Error(), s.retrace(way, flaw, fair)})
	}
	stop := func() bool {
		return l.states > 0 && len(steps) >= l.states || len(r.Bugs) >= l.bugs
	}
	reach(-1, 0, s.start())
	for len(next) > 0 && !stop() {
		frontier, next = next, nil
		for i, from := range frontier {
			if i%256 == 0 {
				if stop() {
					next = append(next, frontier[i:]...)
					break
				}
				s.tidy()
				if progress != nil && time.Since(said) > 5*time.Second {
					said = time.Now()
					r.States, r.Time = len(steps), time.Since(began)
					fmt.Fprintln(progress, len(frontier)-i+len(next), "to go on from,", r)
				}
			}
			for via, a := range s.actions(from.x) {
				r.Transitions++
				y, err := s.take(from.x, a, nil)
				if err != nil {
					found(from.at, err, false)
					continue
				}
				if at, key, first := reach(from.at, via, y); first {
					if err := s.fair(next[len(next)-1].x, key); err != nil {
						found(at, err, true)
					}
				}
			}
			frontier[i] = item{}
		}
		if len(next) > 0 {
			r.Depth++
		}
	}
	r.States, r.Complete, r.Time = len(steps), len(next) == 0, time.Since(began)
	return r
}

// fair lets a canonical state run to its end, in which nothing goes wrong any more: whatever is in flight
// arrives, holds are released at once, and nobody asks. That must not take longer than the state's patience.
func (s *search[X]) fair(x X, key string) error {
	patience, elapsed := s.patience(x), time.Duration(0)
	var path []fair
	var took []time.Duration
	for {
		at := fair{s.seeds.fingerprint(key), s.demands(x).faulty}
		rest, known := s.served[at]
		a, lasts, ok := next(s.space, x)
		if known || !ok {
			s.served[at] = rest
			elapsed += rest
			for k := len(path) - 1; k >= 0; k-- {
				rest += took[k]
				s.served[path[k]] = rest
			}
			break
		}
		path, took = append(path, at), append(took, lasts)
		if elapsed += lasts; elapsed > patience || len(path) > 20_000 {
			break
		}
		var err error
		if x, err = s.take(x, a, nil); err != nil {
			return fmt.Errorf("in a fair run: %w", err)
		}
		x, key = s.canonical(x)
	}
	if elapsed > patience || len(path) > 20_000 {
		return fmt.Errorf("a fair run does not come to an end in %v", patience)
	}
	return nil
}

// kindOf tells errors apart by their words, not their numbers.
func kindOf(err error) string {
	kind := []byte{}
	for _, c := range []byte(err.Error()) {
		if c >= 'a' && c <= 'z' {
			kind = append(kind, c)
		}
	}
	return string(kind)
}

// retrace finds the actions on a way, by their indices, and from its end to an error, or the fair run to it.
func (s *search[X]) retrace(way []uint16, flaw error, fair bool) trace {
	t := trace{setup: s.setup}
	x := s.start()
	canonical, _ := s.canonical(x)
	for _, via := range way {
		next, _ := s.take(canonical, s.actions(canonical)[via], nil)
		var key string
		canonical, key = s.canonical(next)
		x = s.find(&t, x, func(y X, err error) bool {
			if err != nil {
				return false
			}
			y, k := s.canonical(y)
			return k == key && s.demands(y) == s.demands(canonical)
		})
	}
	if !fair {
		s.find(&t, x, func(_ X, err error) bool { return err != nil && kindOf(err) == kindOf(flaw) })
		return t
	}
	patience := s.patience(x)
	for range 100 {
		a, lasts, ok := next(s.space, x)
		if patience -= lasts; !ok || patience < 0 {
			break
		}
		t.add("  " + s.describe(x, a))
		var err error
		if x, err = s.take(x, a, nil); err != nil {
			break
		}
	}
	return t
}

// find takes the first action whose outcome is right, and appends it to a trace.
func (s *search[X]) find(t *trace, x X, right func(X, error) bool) X {
	for _, a := range s.actions(x) {
		then := trace{steps: []string{s.describe(x, a)}}
		if y, err := s.take(x, a, &then); right(y, err) {
			t.steps = append(t.steps, then.steps...)
			return y
		}
	}
	t.add("?")
	return x
}

// errImpossible says that a step of a trace cannot be taken.
var errImpossible = errors.New("can no longer happen")

// replay takes the steps of a trace, and then lets it run to its end. It returns the first thing that is
// wrong on the way, and the trace up to there, with what followed from each step.
func (s *search[X]) replay(t trace) (trace, error) {
	done := trace{setup: t.setup}
	x := s.start()
	for _, step := range t.steps {
		all := s.actions(x)
		can := make([]string, len(all))
		for i, a := range all {
			can[i] = s.describe(x, a)
		}
		i := slices.Index(can, step)
		if i < 0 {
			return done, fmt.Errorf("%s: %w; only:\n  %q", step, errImpossible, can)
		}
		done.add(step)
		var err error
		if x, err = s.take(x, all[i], &done); err != nil {
			return done, fmt.Errorf("%s: %w", step, err)
		}
	}
	return done, s.fair(s.canonical(x))
}

// A fingerprint stands for a key: keys take too much memory.
type fingerprint [2]uint64

// seeds are what an exploration makes fingerprints with.
type seeds [2]maphash.Seed

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) fingerprint(key string) fingerprint {
	return fingerprint{maphash.String(s[0], key), maphash.String(s[1], key)}
}

// seen remembers the states that were visited. Whatever can happen to a state can happen to one of the same
// key in which no less may go wrong. A state in which nothing has gone wrong yet has to meet more demands. So
// a state is not visited if one was that allows no less and has to meet the same demands, or more.
type seen struct {
	with  map[fingerprint][]demands
	exact bool // all are visited
}

// add reports whether a state is to be visited.
func (s *seen) add(p fingerprint, d demands) bool {
	for _, old := range s.with[p] {
		if old == d || !s.exact && old.allows(&d.budget) && (d.faulty || !old.faulty) {
			return false
		}
	}
	s.with[p] = append(s.with[p], d)
	return true
}
