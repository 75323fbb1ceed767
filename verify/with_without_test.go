package verify

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-7e8842f7/rwlock/internal/delegation"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// A side is a server and two engines that use one lock on it. In one of two sides, the lock may be delegated
// to the first engine. Everything else is the same in both.
type side struct {
	server  *script.Server
	now     time.Time
	parties [2]*party
	flights []flight
	holds   []*engine.Hold // of calls, in their order
	seen    map[*engine.Hold]bool
	written int64 // the largest token of a writer
	read    int64 // and of a reader
}

// A party is an engine, with what reaches it once it goes on.
type party struct {
	engine  *engine.Engine
	layer   engine.Layer
	stopped bool
	inbox   []func()
}

type flight struct {
	of *party
	r  *engine.Request
}

const (
	holdLease     = 10 * time.Second
	lentLease     = 3 * time.Second
	hop           = 100 * time.Microsecond // what a request takes
	gated         = 100 * time.Millisecond // a call may wait so long in memory until the lock can be delegated
	withoutOption = 0
	withOption    = 1
)

func newSide(t rapid.TB, delegates bool) *side {
	sources := map[string]string{}
	for _, s := range lua.Scripts {
		sources[s.Name] = s.Source
	}
	server, err := script.NewServer(sources)
	require.NoError(t, err)
	s := &side{server: server, now: time.Unix(1_700_000_000, 0), seen: map[*engine.Hold]bool{}}
	for i := range s.parties {
		e := engine.New(engine.Config{Prefix: "p", Instance: instance(i), Lease: holdLease})
		s.parties[i] = &party{engine: e, layer: e}
		if delegates && i == 0 {
			s.parties[i].layer = delegation.New(delegation.Config{Instance: instance(i), Lease: lentLease,
				Hold: holdLease, Eager: true}, e)
		}
		s.parties[i].layer.Subscribed(s.now)
	}
	return s
}

// reach has something happen to a party, or lets it wait while the party stands still.
func (p *party) reach(do func()) {
	if p.stopped {
		p.inbox = append(p.inbox, do)
		return
	}
	do()
}

// run runs the first request that is on its way, and delivers what comes of it.
func (s *side) run(t rapid.TB) {
	f := s.flights[0]
	s.flights = s.flights[1:]
	s.now = s.now.Add(hop)
	s.server.Mini.SetTime(s.now)
	var texts []string
	for _, a := range f.r.Argv(nil) {
		texts = append(texts, a.(string))
	}
	raw, err := s.server.Run(f.r.Script.Name, texts[1:4], texts[4:])
	require.NoError(t, err)
	reply, err := protocol.Decode(f.r.Script, raw)
	require.NoError(t, err)
	for _, m := range s.server.Published {
		for _, p := range s.parties {
			if p.engine.Channel() == m[0] {
				p.reach(func() { p.layer.Heard(s.now, m[1]) })
			}
		}
	}
	f.of.reach(func() { f.of.layer.Replied(s.now, f.r, reply, nil) })
}

// settle does what is due, until nothing is. It checks the order of tokens.
func (s *side) settle(t rapid.TB) {
	for range 1000 {
		busy := false
		for _, p := range s.parties {
			if p.stopped {
				continue
			}
			if at, ok := p.layer.Next(); ok && !at.After(s.now) {
				p.layer.Tick(s.now)
				busy = true
			}
			var fx engine.Effects
			p.layer.Flush(s.now, &fx)
			for _, r := range fx.Send {
				s.flights = append(s.flights, flight{p, r})
			}
			for _, h := range fx.Wake {
				s.granted(t, h)
			}
		}
		if len(s.flights) > 0 {
			s.run(t)
			busy = true
		}
		if !busy {
			return
		}
	}
	t.Fatalf("there is always something to do")
}

func (s *side) granted(t rapid.TB, h *engine.Hold) {
	if h.State() != engine.Live || s.seen[h] {
		return
	}
	s.seen[h] = true
	if h.Mode == protocol.Write {
		require.Greater(t, h.Token(), max(s.written, s.read), "a writer's token")
		s.written = h.Token()
		return
	}
	require.GreaterOrEqual(t, h.Token(), s.written, "a reader's token")
	s.read = max(s.read, h.Token())
}

// pass lets time pass.
func (s *side) pass(t rapid.TB, d time.Duration) {
	end := s.now.Add(d)
	for s.settle(t); ; s.settle(t) {
		next := end
		for _, p := range s.parties {
			if at, ok := p.layer.Next(); ok && !p.stopped && at.Before(next) {
				next = at
			}
		}
		if !s.now.Before(next) {
			break
		}
		s.now = next
	}
	s.now = end.Add(max(s.now.Sub(end), 0))
}

// outcome returns what has become of a call. Whether a lost hold is known to be lost is seen at its release.
func outcome(h *engine.Hold) string {
	switch h.State() {
	case engine.Wanted, engine.Entering:
		return "waits"
	case engine.Live, engine.Lapsed:
		return "granted"
	}
	return "ended: " + kindOf(h.Err())
}

func kindOf(err error) string {
	for _, kind := range []error{engine.ErrLocked, engine.ErrLost, engine.ErrNotHeld, engine.ErrUnanswered} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	if err != nil {
		return err.Error()
	}
	return "nil"
}

// both are a side without and one with delegations, to which the same happens.
type both struct {
	sides  [2]*side
	owners uint64
	of     []int // the party that made each call
}

// do has the same happen on both sides, and compares what comes of it.
func (b *both) do(t *rapid.T, do func(s *side)) {
	for _, s := range b.sides {
		s.now = s.now.Add(time.Millisecond)
		do(s)
		s.pass(t, gated)
	}
	plain, delegated := b.sides[withoutOption], b.sides[withOption]
	for i, h := range plain.holds {
		require.Equal(t, outcome(h), outcome(delegated.holds[i]), "call %d, %v", i, h.Mode)
	}
	for _, s := range b.sides {
		s.now = plain.now
		if delegated.now.After(s.now) {
			s.now = delegated.now
		}
	}
}

// recalled reports whether the lock is delegated, and recalled.
func (s *side) recalled() bool {
	layer, ok := s.parties[0].layer.(*delegation.Layer)
	return ok && slices.ContainsFunc(layer.Views(), func(v delegation.View) bool {
		return v.State == delegation.Recalled
	})
}

// pick returns the number of a call in a state, as its outcome says.
func (b *both) pick(t *rapid.T, state string) int {
	var list []int
	for i, h := range b.sides[withoutOption].holds {
		if outcome(h) == state {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		t.Skip("there is none")
	}
	return rapid.SampledFrom(list).Draw(t, "call")
}

// ask begins a call, unless delegations may make a difference to it. Calls that wait under a delegation, and
// on the server after its recall, may be served in another order. Readers on the server do not share a lock
// that is read under a write delegation.
func (b *both) ask(t *rapid.T) {
	of := rapid.IntRange(0, 1).Draw(t, "party")
	mode := rapid.SampledFrom([]protocol.Mode{protocol.Read, protocol.Write}).Draw(t, "mode")
	try := rapid.Bool().Draw(t, "try")
	for i, h := range b.sides[withoutOption].holds {
		try = try || outcome(h) == "waits"
		beside := b.of[i] == 0 && mode == protocol.Read && h.Mode == mode && outcome(h) == "granted"
		if beside && (of == 1 || b.sides[withOption].recalled()) {
			t.Skip("it reads beside those of a write delegation, perhaps")
		}
	}
	b.owners++
	b.of = append(b.of, of)
	b.do(t, func(s *side) {
		h := &engine.Hold{Name: "l", Owner: engine.Owner{Handle: b.owners}, Mode: mode, Try: try, Lease: holdLease,
			Bounded: true}
		s.holds = append(s.holds, h)
		s.parties[of].engine.Acquire(s.now, h)
	})
}

func (b *both) release(t *rapid.T) {
	i := b.pick(t, "granted")
	var errs [2]string
	b.do(t, func(s *side) {
		h := s.holds[i]
		known, err := s.parties[b.of[i]].engine.Release(s.now, h)
		s.settle(t)
		if !known {
			require.Equal(t, engine.Finished, h.State(), "it is known how the release went")
			err = h.Err()
		}
		side := withoutOption
		if s == b.sides[withOption] {
			side = withOption
		}
		errs[side] = kindOf(err)
	})
	require.Equal(t, errs[withoutOption], errs[withOption], "Unlock")
}

// downgrade has a write hold be a read hold, unless delegations make a difference: as ask says.
func (b *both) downgrade(t *rapid.T) {
	i := b.pick(t, "granted")
	for k, h := range b.sides[withoutOption].holds {
		if h.Mode == protocol.Read && (k == i || b.of[i] == 0 && outcome(h) == "waits") {
			t.Skip("it reads, or others are let in to read")
		}
	}
	b.of = append(b.of, b.of[i])
	b.do(t, func(s *side) {
		read := &engine.Hold{}
		s.holds = append(s.holds, read)
		_, _ = s.parties[b.of[i]].engine.Downgrade(s.now, s.holds[i], read)
	})
}

func (b *both) giveUp(t *rapid.T) {
	i := b.pick(t, "waits")
	b.do(t, func(s *side) { s.parties[b.of[i]].engine.GiveUp(s.now, s.holds[i], engine.ErrClosed) })
}

func (b *both) extend(t *rapid.T) {
	i := b.pick(t, "granted")
	for _, s := range b.sides {
		if s.holds[i].State() != engine.Live {
			t.Skip("it is lost")
		}
	}
	var errs []string
	b.do(t, func(s *side) {
		var x engine.Extension
		until := s.now.Add(2 * holdLease)
		begun := s.now
		s.parties[b.of[i]].engine.Extend(s.now, s.holds[i], 2*holdLease, &x)
		s.settle(t)
		over, err := x.Over()
		require.True(t, over, "Extend returns")
		require.LessOrEqual(t, s.now.Sub(begun), 20*hop, "Extend returns soon")
		errs = append(errs, kindOf(err))
		require.True(t, err != nil || !s.holds[i].Deadline().Before(until), "it lasts")
	})
	require.Equal(t, errs[0], errs[1], "Extend")
}

// force drops all holds: those under a delegation, too, are told at once.
func (b *both) force(t *rapid.T) {
	b.do(t, func(s *side) { require.NoError(t, s.parties[1].engine.Force(s.now, "l", 0, "force")) })
}

// lose has the server lose its data. A delegation is good until its next renewal, and only then calls are
// granted as without.
func (b *both) lose(t *rapid.T) {
	b.pick(t, "granted")
	for _, h := range b.sides[withoutOption].holds {
		if outcome(h) == "waits" {
			t.Skip("where waiters queue again is left to chance")
		}
	}
	b.do(t, func(s *side) { s.server.Mini.FlushAll() })
	if rapid.Bool().Draw(t, "a release comes first") {
		b.release(t)
	}
	b.do(t, func(s *side) { s.pass(t, holdLease/2) })
}

// stop has a party stand still for longer than any lease.
func (b *both) stop(t *rapid.T) {
	of := rapid.IntRange(0, 1).Draw(t, "party")
	for _, h := range b.sides[withoutOption].holds {
		if outcome(h) == "waits" {
			t.Skip("a waiter queues again, in its turn or not")
		}
	}
	b.do(t, func(s *side) {
		p := s.parties[of]
		s.settle(t)
		p.stopped = true
		s.pass(t, 4*holdLease)
		p.stopped = false
		for _, do := range p.inbox {
			do()
		}
		p.inbox = nil
	})
}

// An RWLock to which the lock is delegated answers the same calls as one without the option does, with the
// same results and errors and at the same time; tokens have the same order. The same goes for the others.
func TestCallsEndWithDelegationsAsWithout(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := &both{sides: [2]*side{newSide(t, false), newSide(t, true)}}
		t.Repeat(map[string]func(*rapid.T){
			"ask": b.ask, "askMore": b.ask, "askAgain": b.ask, "release": b.release, "releaseMore": b.release,
			"downgrade": b.downgrade, "giveUp": b.giveUp, "extend": b.extend, "force": b.force, "lose": b.lose, "stop": b.stop,
			"": func(*rapid.T) {},
		})
	})
}
