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

// ahead is how many of those who wait are served before a claim, or 1 for some.
func (l *toyLock) ahead(k protocol.Known) int {
	if k.Mode == protocol.Read && (l.has(protocol.Write) || l.nextWriter() < 0 || slices.Contains(l.owed, k)) {
		return 0
	}
	return 1
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
	return protocol.NewClaim(k.Mode, k.Instance, slot, k.Number, k.Owner).ID.(string)
}

// A tangle is an engine whose owners, of one goroutine each, take several locks in any order.
type tangle struct {
	*testing.T
	*rand.Rand
	e     *Engine
	now   time.Time
	toys  map[string]*toyLock
	late  []func() // replies on their way, if there is any delay
	delay bool
	steps int // how many readers a step lets in
	holds map[Owner][]*Hold
	calls map[Owner]*Hold // that wait
	found int
}

func newTangle(t *testing.T, seed uint64, delay bool) *tangle {
	return &tangle{
		T: t, Rand: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1e9, 0), delay: delay, steps: 1 + int(seed%3),
		e:    New(Config{Prefix: "p", Instance: "AAAAAAAAAAA", Lease: time.Hour}),
		toys: map[string]*toyLock{}, holds: map[Owner][]*Hold{}, calls: map[Owner]*Hold{},
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
	id := r.Claim.ID.(string)
	k, err := protocol.ParseClaim(id)
	require.NoError(g, err)
	lk := g.toy(r.lock.name)
	var in []protocol.Known
	switch r.Script {
	case lua.Lock:
		if _, held := lk.holders[id]; held || !slices.Contains(lk.queue, k) && lk.ask(id, k) {
			reply.Token = 1
		} else {
			reply.Obstacle = protocol.Obstacle{Mode: protocol.Read, Again: time.Hour, Ahead: lk.ahead(k)}
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
	switch {
	case h.state == Live:
		delete(g.calls, h.Owner)
		g.holds[h.Owner] = append(g.holds[h.Owner], h)
	case h.state == Failed:
		delete(g.calls, h.Owner)
		if h.err != ErrClosed {
			require.ErrorIs(g, h.err, ErrDeadlock)
			g.found++
			require.Contains(g, g.stuck(), h.Owner, "%v", h.err) // its withdrawal has not been executed yet
		}
	}
}

// stuck returns the owners that still wait when all that can has gone on and released what it has, again and
// again.
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
	held := g.holds[o]
	switch {
	case len(g.late) > 0 && g.IntN(2) == 0:
		i := g.IntN(len(g.late))
		deliver := g.late[i]
		g.late = slices.Delete(g.late, i, i+1)
		deliver()
	case g.calls[o] != nil:
		if g.IntN(20) == 0 && g.calls[o].state == Wanted {
			g.e.GiveUp(g.now, g.calls[o], ErrClosed)
		}
	case len(held) > 0 && g.IntN(3) == 0:
		i := g.IntN(len(held))
		_, err := g.e.Release(g.now, held[i])
		require.NoError(g, err)
		g.holds[o] = slices.Delete(held, i, i+1)
	default:
		h := &Hold{Name: fmt.Sprint("n", g.IntN(names)), Owner: o, Mode: Mode(1 + g.IntN(2)), Lease: time.Hour}
		if slices.ContainsFunc(held, func(other *Hold) bool { return other.Name == h.Name }) {
			return
		}
		g.calls[o] = h
		g.e.Acquire(g.now, h)
	}
	g.run()
}

// Of owners of one goroutine each that take locks in any order and mode, a call fails with ErrDeadlock
// exactly if nothing that the others do can ever give it the lock; and when none has failed, all can go on.
func TestDeadlocksAreFoundExactly(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(400) {
		g := newTangle(t, seed, false)
		for range 150 {
			g.step(2+int(seed%5), 2+int(seed%3))
			require.Empty(t, g.stuck(), "seed %d: a deadlock that no call was told of", seed)
		}
		found += g.found
	}
	require.Greater(t, found, 1000)
}

// However late the replies come, no call fails with ErrDeadlock that could get the lock.
func TestDeadlocksAreTrueHoweverLateTheReplies(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(400) {
		g := newTangle(t, seed, true)
		for range 400 {
			g.step(2+int(seed%5), 2+int(seed%3))
		}
		found += g.found
	}
	require.Greater(t, found, 300)
}
