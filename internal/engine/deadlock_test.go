package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A toyLock is a lock as a server keeps it, without leases: phase-fair, with writers in order of arrival. It
// lets in a crowd of readers in steps.
type toyLock struct {
	holders map[string]protocol.Known // by claim
	queue   []protocol.Known
	owed    []protocol.Known // readers that go before the next writer
	step    int              // how many readers enter at a time
}

func (l *toyLock) clone() *toyLock {
	return &toyLock{maps.Clone(l.holders), slices.Clone(l.queue), slices.Clone(l.owed), l.step}
}

func (l *toyLock) has(m protocol.Mode) bool {
	for _, k := range l.holders {
		if k.Mode == m {
			return true
		}
	}
	return false
}

func (l *toyLock) nextWriter() int {
	return slices.IndexFunc(l.queue, func(k protocol.Known) bool { return k.Mode == protocol.Write })
}

func (l *toyLock) readers() []protocol.Known {
	return slices.DeleteFunc(slices.Clone(l.queue), func(k protocol.Known) bool {
		return k.Mode == protocol.Write
	})
}

// ask grants the lock, or queues the claim.
func (l *toyLock) ask(id string, k protocol.Known) bool {
	free := !l.has(protocol.Write) && l.nextWriter() < 0
	if k.Mode == protocol.Write {
		free = len(l.holders) == 0 && len(l.queue) == 0
	}
	if free {
		l.holders[id] = k
	} else {
		l.queue = append(l.queue, k)
	}
	return free
}

// end ends a claim, and returns whom that lets in.
func (l *toyLock) end(id string, k protocol.Known) []protocol.Known {
	_, held := l.holders[id]
	delete(l.holders, id)
	is := func(other protocol.Known) bool { return other == k }
	l.queue, l.owed = slices.DeleteFunc(l.queue, is), slices.DeleteFunc(l.owed, is)
	if held && k.Mode == protocol.Write && !l.has(protocol.Write) {
		l.owed = l.readers()
	}
	return l.serve()
}

// serve takes a step, and returns whom it lets in.
func (l *toyLock) serve() (in []protocol.Known) {
	if l.has(protocol.Write) {
		return nil
	}
	if l.nextWriter() < 0 {
		l.owed = l.readers()
	}
	n := min(len(l.owed), l.step)
	in, l.owed = slices.Clone(l.owed[:n]), l.owed[n:]
	if i := l.nextWriter(); i >= 0 && n == 0 && len(l.holders) == 0 {
		in = append(in, l.queue[i])
	}
	for _, k := range in {
		l.holders[nameOf(k)] = k
		l.queue = slices.DeleteFunc(l.queue, func(other protocol.Known) bool { return other == k })
	}
	return in
}

func nameOf(k protocol.Known) string {
	slot := 0
	_, _ = fmt.Sscanf(k.Slot[strings.Index(k.Slot, ":")+1:], "%d", &slot)
	return protocol.NewClaim(k.Mode, k.Instance, slot, k.Number, k.Owner).ID
}

// A tangle is an engine whose owners take several locks in any order.
type tangle struct {
	*testing.T
	*rand.Rand
	e       *Engine
	now     time.Time
	toys    map[string]*toyLock
	late    []func() // replies on their way, if there is any delay
	delay   bool
	several bool // an owner has several goroutines, which do not wait for each other
	steps   int  // how many readers a step lets in
	events  int
	holds   map[Owner][]*Hold
	calls   map[Owner][]*Hold // that wait
	since   map[*Hold]int     // by events: when a call began, or, once it has the lock, got it
	found   int
}

func newTangle(t *testing.T, seed uint64) *tangle {
	return &tangle{
		T: t, Rand: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1e9, 0), steps: 1 + int(seed%3),
		e:    New(Config{Prefix: "p", Instance: "AAAAAAAAAAA", Lease: time.Hour}),
		toys: map[string]*toyLock{}, holds: map[Owner][]*Hold{}, calls: map[Owner][]*Hold{},
		since: map[*Hold]int{},
	}
}

func (g *tangle) toy(name string) *toyLock {
	if g.toys[name] == nil {
		g.toys[name] = &toyLock{holders: map[string]protocol.Known{}, step: g.steps}
	}
	return g.toys[name]
}

// run has the server execute what the engine sends.
func (g *tangle) run() {
	for {
		g.e.Tick(g.now)
		var fx Effects
		g.e.Flush(g.now, &fx)
		for _, h := range fx.Wake {
			g.woken(h)
		}
		for _, r := range fx.Send {
			reply := g.execute(r)
			deliver := func() { g.e.Replied(g.now, r, reply, nil) }
			if g.delay {
				g.late = append(g.late, deliver)
			} else {
				deliver()
			}
		}
		if len(fx.Send) == 0 && len(fx.Wake) == 0 {
			return
		}
	}
}

func (g *tangle) execute(r *Request) (reply protocol.Reply) {
	id := r.Claim.ID
	k, err := protocol.ParseClaim(id)
	require.NoError(g, err)
	lk := g.toy(r.lock.name)
	var in []protocol.Known
	switch r.Script {
	case lua.Lock:
		if _, held := lk.holders[id]; held || !slices.Contains(lk.queue, k) && lk.ask(id, k) {
			reply.Token = 1
		} else {
			reply.Obstacle = protocol.Obstacle{Mode: protocol.Read, Again: time.Hour}
			if lk.has(protocol.Write) {
				reply.Mode = protocol.Write
			}
		}
	case lua.Renew:
		reply.Code = protocol.Done
	case lua.Unlock:
		reply.Code = protocol.Done
		in = lk.end(id, k)
	case lua.Serve:
		reply.Code = protocol.Done
		in = lk.serve()
	}
	for _, other := range in {
		reply.Message.Token = 1
		reply.Message.Granted = append(reply.Message.Granted, other.Number)
	}
	reply.More = len(lk.owed) > 0
	return reply
}

func (g *tangle) woken(h *Hold) {
	if h.state == Failed && h.err != ErrClosed {
		require.ErrorIs(g, h.err, ErrDeadlock)
		g.found++
		require.Contains(g, g.cycles(), h, "%v", h.err)
		if !g.several { // its withdrawal has not been executed yet
			require.Contains(g, g.stuck(), h.Owner, "%v", h.err)
		}
	}
	if h.state == Live || h.state == Failed {
		g.calls[h.Owner] = slices.DeleteFunc(g.calls[h.Owner], func(other *Hold) bool { return other == h })
	}
	if h.state == Live {
		g.events++
		g.since[h] = g.events
		g.holds[h.Owner] = append(g.holds[h.Owner], h)
	}
}

// cycles returns the calls that wait for themselves. A call waits for the call of an owner whose hold blocks
// it, unless another goroutine of that owner may release the hold: the owner has several calls, or its call
// began before it got the hold.
func (g *tangle) cycles() (list []*Hold) {
	next := func(call *Hold) (calls []*Hold) {
		for o, holds := range g.holds {
			for _, h := range holds {
				blocks := h.Name == call.Name && (h.Mode == protocol.Write || call.Mode == protocol.Write)
				if blocks && o != call.Owner && len(g.calls[o]) == 1 && g.since[g.calls[o][0]] > g.since[h] {
					calls = append(calls, g.calls[o][0])
				}
			}
		}
		return calls
	}
	for _, calls := range g.calls {
		for _, call := range calls {
			reached := map[*Hold]bool{}
			for work := next(call); len(work) > 0; work = work[1:] {
				if !reached[work[0]] {
					reached[work[0]] = true
					work = append(work, next(work[0])...)
				}
			}
			if reached[call] {
				list = append(list, call)
			}
		}
	}
	return list
}

// stuck returns the owners that still wait when all that can has gone on and released what it has, again and
// again. Owners are of one goroutine each.
func (g *tangle) stuck() (list []Owner) {
	toys := map[string]*toyLock{}
	for name, l := range g.toys {
		toys[name] = l.clone()
	}
	for going := true; going; {
		going = false
		waits := map[Owner]bool{}
		for _, l := range toys {
			for _, k := range l.queue {
				waits[k.Owner] = true
			}
		}
		for _, l := range toys {
			for id, k := range maps.Clone(l.holders) {
				if !waits[k.Owner] {
					l.end(id, k)
					going = true
				}
			}
			going = len(l.serve()) > 0 || going
		}
	}
	for _, l := range toys {
		for _, k := range l.queue {
			list = append(list, k.Owner)
		}
	}
	return list
}

func (g *tangle) step(owners, names int) {
	o := Owner{Handle: uint64(1 + g.IntN(owners))}
	held, calls := g.holds[o], g.calls[o]
	switch {
	case len(g.late) > 0 && g.IntN(2) == 0:
		i := g.IntN(len(g.late))
		deliver := g.late[i]
		g.late = slices.Delete(g.late, i, i+1)
		deliver()
	case len(calls) > 0 && !(g.several && g.IntN(3) == 0):
		if h := calls[g.IntN(len(calls))]; g.IntN(20) == 0 && h.state == Wanted {
			g.e.GiveUp(g.now, h, ErrClosed)
		}
	case len(held) > 0 && g.IntN(3) == 0:
		i := g.IntN(len(held))
		_, err := g.e.Release(g.now, held[i])
		require.NoError(g, err)
		g.holds[o] = slices.Delete(held, i, i+1)
	default:
		h := &Hold{Name: fmt.Sprint("n", g.IntN(names)), Owner: o, Mode: Mode(1 + g.IntN(2)), Lease: time.Hour}
		has := func(other *Hold) bool { return other.Name == h.Name }
		if slices.ContainsFunc(slices.Concat(held, calls), has) {
			return
		}
		g.events++
		g.since[h] = g.events
		g.calls[o] = append(g.calls[o], h)
		g.e.Acquire(g.now, h)
	}
	g.run()
}

// Owners of one or several goroutines take locks in any order and mode. A call fails with ErrDeadlock exactly
// if it completes a cycle. If owners have one goroutine each, nothing that others do could have given it the
// lock.
func TestDeadlocksAreFoundExactly(t *testing.T) {
	t.Parallel()
	found := map[bool]int{}
	for seed := range uint64(500) {
		g := newTangle(t, seed)
		g.several = seed%7 == 0
		for range 150 {
			g.step(2+int(seed%5), 2+int(seed%4))
			if g.several { // a call that ends may leave its owner with one, which is then in a cycle
				g.e.Subscribed(g.now) // so that all ask again, as heartbeats do
				g.run()
			}
			require.Empty(t, g.cycles(), "seed %d: a deadlock that no call was told of", seed)
		}
		found[g.several] += g.found
	}
	require.Greater(t, found[false], 1000)
	require.Greater(t, found[true], 100)
}

// However late the replies come, no call fails with ErrDeadlock that could get the lock.
func TestDeadlocksAreTrueHoweverLateTheReplies(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(400) {
		g := newTangle(t, seed)
		g.delay = true
		for range 400 {
			g.step(2+int(seed%5), 2+int(seed%3))
		}
		found += g.found
	}
	require.Greater(t, found, 300)
}

// A search looks at the holds of a lock, and not at the calls that wait for it. So the cost of searches does
// not grow with the square of the waiters.
func TestSearchDoesNotLookAtWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 1000
	for _, mode := range []Mode{protocol.Read, protocol.Write} {
		g := newTangle(t, 0)
		ask := func(o int, name string, m Mode) *Hold {
			h := &Hold{Name: name, Owner: Owner{Handle: uint64(o)}, Mode: m, Lease: time.Hour}
			g.e.Acquire(g.now, h)
			g.run()
			return h
		}
		require.Equal(t, Live, ask(0, "x", mode).state)
		for o := 1; o <= waiters; o++ {
			require.Equal(t, Live, ask(o, fmt.Sprint(o), protocol.Write).state)
			c := ask(o, "x", protocol.Write).claim
			require.Equal(t, Queued, c.state)
			require.Len(t, slices.Collect(g.e.blockers(c)), 1)
		}
		lk := g.e.locks["x"]
		require.Equal(t, 1, lk.held.Len())
		require.Equal(t, waiters, lk.claims.Len())
	}
}
