package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/quorum"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A world is the servers of a quorum, its clients, and what may still go wrong.
type world struct {
	at      time.Time // by the clocks of all clients
	stores  []*store
	clients []*peer
	allowance

	faulty bool  // something has gone wrong, by which a call may end without the lock, or a hold may be lost
	wrote  int64 // the largest token that a writer has had
	read   int64 // the largest token that a reader has had
}

// An allowance is how often something may yet happen.
type allowance struct {
	late     uint8 // a request runs after any others, or fails and runs then
	twice    uint8 // a request runs once more, later
	lost     uint8 // a reply or a message is lost
	crashes  uint8 // a client dies
	restarts uint8 // a server loses its data
	cuts     uint8 // a client cannot reach a server, for as long as may be
	passes   uint8 // time passes until the next timer of a client
	gives    uint8 // a call gives up
	forces   uint8 // a client drops all holds
	stalls   uint8 // a client stands still, for as long as it likes
}

// A plan is what is explored.
type plan struct {
	calls []string // of each client: W for Lock, w for TryLock, R and r likewise for reading
	cold  bool     // the servers are new, and the clients do not know them
	five  bool     // there are five servers
	// there is one server, which delegates the lock to clients
	delegated bool
	together  bool // the calls of a client do not wait for each other
	reenter   bool // nor do those of a client's owner, who is the same, once it has the lock
	apart     bool // each client misses another server from the start on, for ever
	allowance
}

// parliament knows what all worlds of a plan have in common.
type parliament struct {
	*rack
	plan
	seeds
	servers  int
	lease    time.Duration
	tries    bool            // there are tries among the calls
	offsets  []time.Duration // of the servers' clocks
	ids      ids             // of all clients
	peers    map[fingerprint]*peer
	outcomes map[doing]*outcome
	changes  int                  // how many outcomes were worked out
	replies  map[string]any       // by what names them
	ended    map[fingerprint]bool // worlds from which a fair run comes to a good end
	visit    func(*world)         // sees each world that is reached; or nil

	// Mistakes made on purpose, to see that they are found.
	mute  func(*quorum.Request) bool     // whether a request is lost
	hears func(*quorum.Request, any) any // changes what a quorum hears
	alter func(*quorum.Quorum)           // changes a quorum at the start
	spoil func(*client, deed)            // changes a client before something happens to it
}

func newParliament(sources scripts, p plan) (*parliament, error) {
	k, err := newRack(sources)
	if err != nil {
		return nil, err
	}
	tries := strings.ContainsAny(strings.Join(p.calls, ""), "wr")
	servers, lease := 3, 30*time.Second
	if p.five {
		servers = 5
	}
	if p.delegated {
		servers, lease = 1, delegationLease
	}
	return &parliament{rack: k, plan: p, servers: servers, lease: lease, tries: tries,
		offsets: []time.Duration{0, time.Hour, -time.Hour, time.Minute, -time.Minute},
		ids:     ids{}, peers: map[fingerprint]*peer{}, outcomes: map[doing]*outcome{},
		replies: map[string]any{}, ended: map[fingerprint]bool{},
		seeds: newSeeds()}, nil
}

// A move is one step of a world.
type move struct {
	do     verb
	client int
	a      int // which call, flight, stray, letter or server
}

// A shortMove is a move in little memory.
type shortMove struct {
	do        verb
	client, a uint8
}

func (m move) short() shortMove { return shortMove{m.do, uint8(m.client), uint8(m.a)} }
func (s shortMove) long() move  { return move{s.do, int(s.client), int(s.a)} }

const (
	goes     verb = 80 + iota // a flight runs, and is answered
	goesMute                  // a flight runs, and its reply is lost
	goesOnce                  // a flight runs, and is answered; it is to run once more
	wanders                   // a stray runs
	vanishes                  // a stray is lost
	comes                     // a flight runs, and its answer waits for a client that stands still
	restarts                  // a server, without data
	advances                  // the time, to the next timer
)

// start is the world before a call.
func (e *parliament) start() (*world, error) {
	w := &world{at: epoch, allowance: e.allowance}
	empty := e.intern(map[string]entry{})
	for range e.servers {
		w.stores = append(w.stores, empty)
	}
	for i, calls := range e.calls {
		c := e.newClient(i)
		if e.alter != nil {
			e.alter(c.Layer.(*quorum.Quorum))
		}
		if e.apart {
			c.Cut[i] = true
		}
		if !e.cold {
			c.Calls = []*call{{Mode: engine.Mode(protocol.Read), Try: true}}
		}
		for _, letter := range calls {
			l := &call{Mode: engine.Mode(protocol.Read), Try: letter == 'w' || letter == 'r'}
			if letter == 'W' || letter == 'w' {
				l.Mode = engine.Mode(protocol.Write)
			}
			c.Calls = append(c.Calls, l)
		}
		w.clients = append(w.clients, e.peer(c))
	}
	if e.cold {
		return w, nil
	}
	// Each client has had the lock once.
	for i := range w.clients {
		var err error
		if w, err = e.step(w, move{do: begins, client: i}); err != nil {
			return nil, err
		}
		for {
			m, ok := e.fairMove(w)
			if !ok {
				break
			}
			if w, err = e.step(w, m); err != nil {
				return nil, err
			}
		}
		p := deepCopy(w.clients[i].p)
		p.Calls = p.Calls[1:]
		w.clients[i] = e.peer(p)
	}
	w.wrote, w.read, w.faulty = 0, 0, false
	return w, nil
}

func (w *world) clone() *world {
	c := *w
	c.stores, c.clients = slices.Clone(w.stores), slices.Clone(w.clients)
	return &c
}

// key is the same for equal worlds.
func (w *world) key() []byte {
	b := make([]byte, 0, 64)
	for _, s := range w.stores {
		b = binary.AppendVarint(b, int64(s.id))
	}
	for _, n := range w.clients {
		b = binary.AppendVarint(b, int64(n.id))
	}
	for _, n := range []int64{w.at.Sub(epoch).Microseconds(), w.wrote, w.read} {
		b = binary.AppendVarint(b, n)
	}
	return append(b, w.late, w.twice, w.lost, w.crashes, w.restarts, w.cuts, w.passes, w.gives, w.forces,
		w.stalls, bit(w.faulty))
}

func (e *parliament) print(w *world) fingerprint { return e.fingerprint(string(w.key())) }

// moves lists all that can happen next.
func (e *parliament) moves(w *world) []move {
	var list []move
	add := func(can bool, do verb, client, a int) {
		if can {
			list = append(list, move{do, client, a})
		}
	}
	busy := false // something arrives before time passes
	for i, n := range w.clients {
		p := n.p
		first := true // what a client has sent runs in this order, but for what is late
		for k, f := range p.Flights {
			s := f.R.Server
			if f.Reply != "" {
				add(!p.Stalled, takes, i, k)
				busy = busy || !p.Stalled
				continue
			}
			ready := !f.Lost && !p.Cut[s]
			if !f.Late && !f.Lost {
				ready = ready && first
				first = first && !ready
				busy = busy || ready
			}
			if p.Stalled {
				add(ready, comes, i, k)
				continue
			}
			add(ready, goes, i, k)
			add(ready && w.lost > 0, goesMute, i, k)
			add(ready && w.twice > 0, goesOnce, i, k)
			add(ready && w.late > 0 && !f.Late, delays, i, k)
			add(f.Late || f.Lost || p.Cut[s], fails, i, k)
		}
		for k := range p.Copies {
			add(true, wanders, i, k)
			add(p.Crashed, vanishes, i, k)
		}
		if p.Crashed {
			continue
		}
		add(w.stalls > 0 && !p.Stalled, sleeps, i, 0)
		add(p.Stalled, rises, i, 0)
		add(p.Stalled, rises, i, 1)
		if p.Stalled {
			continue
		}
		add(w.forces > 0, orders, i, 0)
		first = true
		for k, l := range p.Inbox {
			ready := first || l.Late
			first = first && l.Late
			add(ready, hears, i, k)
			add(ready && w.lost > 0, misses, i, k)
			add(ready && e.delegated && w.late > 0 && !l.Late, waits, i, k)
			add(ready && e.delegated && w.twice > 0 && !l.Late, repeats, i, k)
			busy = busy || !l.Late
		}
		idle := true
		for k, l := range p.Calls {
			if l.Hold == nil {
				add(idle, begins, i, k)
				break
			}
			idle = e.together || l.over() || e.reenter && l.Granted
			add(l.relies(w.at), leaves, i, k)
			add(w.gives > 0 && l.Hold.State() == engine.Wanted && !l.GaveUp, withdraws, i, k)
		}
		add(w.crashes > 0, dies, i, 0)
		for s := range w.stores {
			add(w.cuts > 0 && !p.Cut[s], parts, i, s)
			add(p.Cut[s] && !(e.apart && s == i), meets, i, s)
		}
	}
	for s := range w.stores {
		add(w.restarts > 0, restarts, 0, s)
	}
	_, due := w.next()
	add(due && w.passes > 0, advances, 0, 0)
	if busy {
		list = slices.DeleteFunc(list, move.patient)
	}
	return list
}

// patient reports whether a move comes after all that is about to arrive: a request fails after seconds, and
// links work again after some.
func (m move) patient() bool { return m.do == advances || m.do == fails || m.do == meets }

// next returns when the next timer is due.
func (w *world) next() (at time.Time, ok bool) {
	for _, n := range w.clients {
		if n.p.runs() && !n.next.IsZero() && (!ok || n.next.Before(at)) {
			at, ok = n.next, true
		}
	}
	return at, ok
}

// step returns the world after a move, and the first thing that is wrong with it.
func (e *parliament) step(w *world, m move) (*world, error) {
	w = w.clone()
	i := m.client
	var err error
	tell := func(client int, do verb, a int, reply ...string) {
		err = cmp.Or(err, e.tell(w, client, deed{do: do, a: a, reply: strings.Join(reply, "")}, nil))
	}
	switch m.do {
	case goes, goesOnce:
		if m.do == goesOnce {
			w.twice--
			tell(i, doubles, m.a)
		}
		f := w.clients[i].p.Flights[m.a]
		res := e.runOn(w, f.R.Server, &f.R.Request)
		if res.err != nil {
			return w, res.err
		}
		err = cmp.Or(err, e.tell(w, i, deed{do: answers, a: m.a, reply: e.name(res.reply)}, res.reply))
	case goesMute:
		w.lost--
		w.faulty = true
		f := w.clients[i].p.Flights[m.a]
		if res := e.runOn(w, f.R.Server, &f.R.Request); res.err != nil {
			return w, res.err
		}
		tell(i, loses, m.a)
	case comes:
		f := w.clients[i].p.Flights[m.a]
		res := e.runOn(w, f.R.Server, &f.R.Request)
		if res.err != nil {
			return w, res.err
		}
		tell(i, comes, m.a, e.name(res.reply))
	case takes:
		name := w.clients[i].p.Flights[m.a].Reply
		err = cmp.Or(err, e.tell(w, i, deed{do: answers, a: m.a, reply: name}, e.replies[name]))
	case sleeps:
		w.stalls--
		w.faulty = true
		tell(i, sleeps, 0)
	case orders:
		w.forces--
		w.faulty = true
		tell(i, orders, 0)
	case delays, waits:
		w.late--
		w.faulty = true
		tell(i, m.do, m.a)
	case repeats:
		w.twice--
		tell(i, m.do, m.a)
	case wanders:
		c := w.clients[i].p.Copies[m.a]
		if res := e.runOn(w, c.Server, &c.R); res.err != nil {
			return w, res.err
		}
		tell(i, strays, m.a)
	case vanishes:
		tell(i, strays, m.a)
	case misses:
		w.lost--
		w.faulty = true
		tell(i, misses, m.a)
	case dies:
		w.crashes--
		w.faulty = true
		tell(i, dies, 0)
	case parts:
		w.cuts--
		w.faulty = true
		tell(i, parts, m.a)
	case restarts:
		w.restarts--
		w.faulty = true
		w.stores[m.a] = e.intern(map[string]entry{})
		for k, n := range w.clients {
			if n.p.runs() {
				tell(k, reconnects, m.a)
			}
		}
	case advances:
		w.passes -= min(w.passes, 1)
		if at, _ := w.next(); at.After(w.at) {
			w.at = at
		}
		for k, n := range w.clients {
			if n.p.runs() && !n.next.IsZero() && !n.next.After(w.at) {
				tell(k, wakes, 0)
			}
		}
	case withdraws:
		w.gives--
		tell(i, m.do, m.a)
	default:
		tell(i, m.do, m.a)
	}
	return w, cmp.Or(err, w.exclusive(), e.kept(w))
}

// runOn runs a request on a server.
func (e *parliament) runOn(w *world, s int, r *protocol.Request) *answer {
	before := w.stores[s]
	res := e.run(before, r, w.at.Add(e.offsets[s]))
	if res.err != nil {
		return res
	}
	w.stores[s] = res.store
	if r.Script == lua.Force {
		for k := range w.clients {
			_ = e.tell(w, k, deed{do: drops, a: e.delegate(before, w.at, k)}, nil)
		}
	}
	for _, msg := range res.published {
		for k := range w.clients {
			if strings.HasSuffix(msg[0], instanceOf(k)) && !w.clients[k].p.Crashed {
				_ = e.tell(w, k, deed{do: publishes, a: s, text: msg[1]}, nil)
			}
		}
	}
	return res
}

// tell has something happen to a client, and checks the tokens of what it is granted.
func (e *parliament) tell(w *world, i int, d deed, raw any) error {
	d.at = w.at
	c := e.happens(w.clients[i], d, raw)
	w.clients[i] = c.to
	if c.flaw != nil {
		return c.flaw
	}
	if c.failed && !w.faulty {
		return errors.New("a call ends without the lock, or a hold is lost, though nothing went wrong")
	}
	for _, l := range c.granted {
		if l.Dropped {
			continue
		}
		token := l.Hold.Token()
		if l.Mode == engine.Mode(protocol.Write) {
			if token <= w.wrote || token <= w.read {
				return fmt.Errorf("a writer has the token %d after a writer's %d and a reader's %d", token, w.wrote,
					w.read)
			}
			w.wrote = token
			continue
		}
		if token < w.wrote {
			return fmt.Errorf("a reader has the token %d after a writer's %d", token, w.wrote)
		}
		w.read = max(w.read, token)
	}
	return nil
}

// name returns what names a reply.
func (e *parliament) name(reply any) string {
	s := fmt.Sprintf("%#v", reply)
	e.replies[s] = reply
	return s
}

// exclusive checks that no other owner relies on the lock beside a writer. A hold that was dropped by force
// does not count: its holder finds out when it renews it, and the fence refuses it.
func (w *world) exclusive() error {
	readers, writers := map[relier]bool{}, map[relier]bool{}
	for i, n := range w.clients {
		for _, l := range n.p.Calls {
			switch {
			case n.p.Crashed || l.Dropped || !l.relies(w.at):
			case l.Mode == engine.Mode(protocol.Write):
				writers[relier{i, l.Hold.Owner}] = true
			default:
				readers[relier{i, l.Hold.Owner}] = true
			}
		}
	}
	for r := range writers {
		delete(readers, r)
	}
	if len(writers) > 1 || len(writers) > 0 && len(readers) > 0 {
		return fmt.Errorf("%d writers and %d readers rely on the lock", len(writers), len(readers))
	}
	return nil
}

// A relier is an owner who relies on the lock.
type relier struct {
	client int
	owner  engine.Owner
}

// parsePlan reads a plan: the calls of each client, words of a plan, and how often something may happen, as
// in "W R late 1 passes 2".
func parsePlan(text string) (p plan, err error) {
	f := strings.Fields(text)
	for i := 0; i < len(f); i++ {
		if n := p.allowance.of(f[i]); n != nil {
			if i++; i == len(f) {
				return p, fmt.Errorf("%q needs a number", f[i-1])
			}
			many, err := strconv.ParseUint(f[i], 10, 7)
			if err != nil {
				return p, err
			}
			*n = uint8(many)
			continue
		}
		switch {
		case f[i] == "cold":
			p.cold = true
		case f[i] == "five":
			p.five = true
		case f[i] == "apart":
			p.apart = true
		case f[i] == "delegated":
			p.delegated = true
		case f[i] == "together":
			p.together = true
		case f[i] == "reenter":
			p.reenter = true
		case strings.Trim(f[i], "WwRr") == "":
			p.calls = append(p.calls, f[i])
		default:
			return p, fmt.Errorf("no such option: %q", f[i])
		}
	}
	if n := len(p.calls); n < 1 || n > len(instances) {
		return p, fmt.Errorf("there are 1 to %d clients", len(instances))
	}
	return p, nil
}

func (a *allowance) of(name string) *uint8 {
	return map[string]*uint8{"late": &a.late, "twice": &a.twice, "lost": &a.lost, "crashes": &a.crashes,
		"restarts": &a.restarts,
		"cuts":     &a.cuts, "passes": &a.passes, "gives": &a.gives, "forces": &a.forces, "stalls": &a.stalls}[name]
}
