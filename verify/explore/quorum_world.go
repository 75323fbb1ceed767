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
	"github.com/seed-7e8842f7/rwlock/lua"
	"github.com/seed-7e8842f7/rwlock/verify/model"
)

// A world is the servers of a quorum, its clients, and what may still go wrong. Something has gone wrong if a
// call may end without the lock, or a hold may be lost.
type world struct {
	at      time.Time // by the clocks of all clients
	stores  []*store
	clients []*peer
	demands

	wrote int64 // the largest token that a writer has had
	read  int64 // the largest token that a reader has had
}

// parliament knows what all worlds have in common.
type parliament struct {
	setup
	*cast[client, deed]
	plain   bool // nothing is left out of what is compared, and each step is computed again
	redis   redisServer
	stores  map[string]*store
	runs    map[string]*answer // of scripts on stores
	first   *world
	servers int
	lease   time.Duration
	tries   bool            // there are tries among the calls
	offsets []time.Duration // of the servers' clocks
	replies map[string]any  // by what names them
}

func newParliament(s setup, plain bool) (*parliament, error) {
	redis, err := newRedisServer()
	if err != nil {
		return nil, err
	}
	e := &parliament{setup: s, plain: plain, cast: newCast[client, deed](mostClients), redis: redis,
		stores: map[string]*store{}, runs: map[string]*answer{}, replies: map[string]any{},
		servers: 3, lease: 30 * time.Second, tries: strings.ContainsAny(strings.Join(s.calls, ""), "wr"),
		offsets: []time.Duration{0, time.Hour, -time.Hour, time.Minute, -time.Minute}}
	e.cast.play, e.cast.look, e.whole = e.play, e.look, plain
	if s.five {
		e.servers = 5
	}
	if s.delegated {
		e.servers, e.lease = 1, delegationLease
	}
	e.first, err = e.begin()
	return e, err
}

func (e *parliament) start() *world { return e.first }

// begin returns the world before a call.
func (e *parliament) begin() (*world, error) {
	w := &world{at: epoch, demands: demands{budget: e.budget}}
	for range e.servers {
		w.stores = append(w.stores, e.intern(map[string]entry{}))
	}
	for i, calls := range e.calls {
		c := e.newClient(i)
		c.Cut[i%e.servers] = e.apart
		if !e.cold {
			calls = "r" + calls
		}
		for _, letter := range calls {
			mode := engine.Mode(protocol.Read)
			if letter == 'W' || letter == 'w' {
				mode = engine.Mode(protocol.Write)
			}
			c.Calls = append(c.Calls, &call{Mode: mode, Try: letter == 'w' || letter == 'r'})
		}
		w.clients = append(w.clients, e.node(c))
	}
	if e.cold {
		return w, nil
	}
	// Each client has had the lock once.
	for i := range w.clients {
		a, ok := action{event: event{do: acquire}, proc: uint8(i)}, true
		for ; ok; a, _, ok = next(e, w) {
			var err error
			if w, err = e.take(w, a, nil); err != nil {
				return nil, err
			}
		}
		p := deepCopy(w.clients[i].p, false)
		p.Calls = p.Calls[1:]
		w.clients[i] = e.node(p)
	}
	w.wrote, w.read, w.faulty = 0, 0, false
	return w, nil
}

// A store is what one server of a quorum has. Stores are equal only if they are the same.
type store struct {
	id   int
	text string // names the keys and what they have
	keys map[string]entry
}

// An answer is what a run of a script on a store comes to.
type answer struct {
	ranScript
	name  string // of the reply
	store *store
	err   error
}

func (w *world) clone() *world {
	c := *w
	c.stores, c.clients = slices.Clone(w.stores), slices.Clone(w.clients)
	return &c
}

// canonical returns the world itself, and its key.
func (e *parliament) canonical(w *world) (*world, string) {
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
	return w, string(append(append(b, w.budget[:]...), bit(w.faulty)))
}

func (e *parliament) demands(w *world) demands { return w.demands }

// actions lists all that can happen next.
func (e *parliament) actions(w *world) []action {
	m := &menu{budget: &w.budget}
	add := func(can bool, do verb, client, a int, hows ...how) {
		if can {
			m.add(client, event{do: do, a: int16(a)}, hows...)
		}
	}
	busy := false // something arrives before time passes
	for i, n := range w.clients {
		p := n.p
		first := true // what a client has sent runs in this order, but for what is late
		for k, f := range p.Flights {
			s := f.R.Server
			if f.Reply != "" {
				add(!p.Stalled, deliver, i, k)
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
				add(ready, run, i, k)
				continue
			}
			add(ready, run, i, k, replyLost, twice)
			add(ready && !f.Late, slowDown, i, k)
			add(f.Late || f.Lost || p.Cut[s], fail, i, k)
		}
		for k := range p.Copies {
			add(true, again, i, k)
			add(p.Crashed, vanish, i, k)
		}
		if p.Crashed {
			continue
		}
		add(!p.Stalled, sleep, i, 0)
		add(p.Stalled, wake, i, 0)
		add(p.Stalled, wake, i, 1)
		if p.Stalled {
			continue
		}
		add(true, force, i, 0)
		first = true
		for k, l := range p.Inbox {
			ready := first || l.Late
			first = first && l.Late
			add(ready, hear, i, k)
			add(ready, miss, i, k)
			add(ready && e.delegated && !l.Late, hearLater, i, k)
			add(ready && e.delegated && !l.Late, hearTwice, i, k)
			busy = busy || !l.Late
		}
		idle := true
		for k, l := range p.Calls {
			if l.Hold == nil {
				add(idle, acquire, i, k)
				break
			}
			idle = e.together || l.over() || e.reenter && l.Granted
			add(l.relies(w.at), release, i, k)
			add(l.relies(w.at) && l.Mode == engine.Mode(protocol.Write), downgrade, i, k)
			add(l.Hold.State() == engine.Wanted && !l.GaveUp, giveUp, i, k)
		}
		add(true, crash, i, 0)
		for s := range w.stores {
			add(!p.Cut[s], cut, i, s)
			add(p.Cut[s] && !(e.apart && s == i), mend, i, s)
		}
	}
	for s := range w.stores {
		add(true, restart, 0, s)
	}
	_, due := w.timer()
	add(due, pass, 0, 0)
	if busy { // a request fails after seconds, and links work again after some
		return slices.DeleteFunc(m.list, func(a action) bool {
			return a.do == pass || a.do == fail || a.do == mend
		})
	}
	return m.list
}

// timer returns when the next timer is due.
func (w *world) timer() (at time.Time, ok bool) {
	for _, n := range w.clients {
		if n.p.runs() && !n.next.IsZero() && (!ok || n.next.Before(at)) {
			at, ok = n.next, true
		}
	}
	return at, ok
}

func (e *parliament) take(w *world, a action, _ *trace) (*world, error) {
	w = w.clone()
	i, at := int(a.proc), int(a.a)
	kind := a.kind()
	w.budget.spend(kind)
	w.faulty = w.faulty || !slices.Contains([]int{free, mayRepeat, mayDowngrade, mayGiveUp, mayPass}, kind)
	var err error
	tell := func(client int, d deed) { err = cmp.Or(err, e.tell(w, client, d)) }
	switch a.do {
	case run:
		if a.how == twice {
			tell(i, deed{do: keep, a: at})
		}
		f := w.clients[i].p.Flights[at]
		res := e.runOn(w, f.R.Server, &f.R.Request)
		if res.err != nil {
			return w, res.err
		}
		do := reply
		switch {
		case w.clients[i].p.Stalled:
			do = holdReply
		case a.how == replyLost:
			do = loseReply
		}
		tell(i, deed{do: do, a: at, reply: res.name})
	case deliver:
		tell(i, deed{do: reply, a: at, reply: w.clients[i].p.Flights[at].Reply})
	case again:
		c := w.clients[i].p.Copies[at]
		if res := e.runOn(w, c.Server, &c.R); res.err != nil {
			return w, res.err
		}
		tell(i, deed{do: ran, a: at})
	case vanish:
		tell(i, deed{do: ran, a: at})
	case restart:
		w.stores[at] = e.intern(map[string]entry{})
		for k, n := range w.clients {
			if n.p.runs() {
				tell(k, deed{do: reconnect, a: at})
			}
		}
	case pass:
		if at, _ := w.timer(); at.After(w.at) {
			w.at = at
		}
		for k, n := range w.clients {
			if n.p.runs() && !n.next.IsZero() && !n.next.After(w.at) {
				tell(k, deed{do: doDue})
			}
		}
	default:
		tell(i, deed{do: a.do, a: at})
	}
	return w, cmp.Or(err, exclusive("rely on", w.reliedOn()), e.kept(w))
}

// intern returns the one store that has these keys.
func (e *parliament) intern(keys map[string]entry) *store {
	text := fmt.Sprintf("%#v", keys)
	s, ok := e.stores[text]
	if !ok {
		s = &store{len(e.stores), text, keys}
		e.stores[text] = s
	}
	return s
}

// run runs a request on a server at a moment of its clock.
func (e *parliament) run(s *store, r *protocol.Request, at time.Time) *answer {
	args := r.Argv(nil)
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = a.(string)
	}
	key := fmt.Sprintf("%d %d %s %q", s.id, at.UnixMicro(), r.Script.Name, texts)
	if a, ok := e.runs[key]; ok && !e.whole {
		return a
	}
	keys, _ := strconv.Atoi(texts[0])
	a := &answer{}
	a.ranScript, a.err = e.redis.execute(s.keys, at.UnixMicro(), r.Script.Name, texts[1:1+keys], texts[1+keys:])
	for name, entry := range a.keys {
		if entry.end == 0 && name != protocol.MarkOf(prefix) {
			a.err = fmt.Errorf("%s.lua leaves %s without a time to live", r.Script.Name, name)
		}
	}
	a.name, a.store = fmt.Sprintf("%#v", a.reply), e.intern(a.keys)
	e.replies[a.name] = a.reply
	e.runs[key] = a
	return a
}

// runOn runs a request on a server.
func (e *parliament) runOn(w *world, s int, r *protocol.Request) *answer {
	before, at := w.stores[s], w.at.Add(e.offsets[s])
	if r.Keep {
		at = at.Add(2 * time.Microsecond) // which are tokens for the delegation
	}
	res := e.run(before, r, at)
	if res.err != nil {
		return res
	}
	w.stores[s] = res.store
	if r.Script == lua.Force {
		for k := range w.clients {
			_ = e.tell(w, k, deed{do: dropped, a: e.delegate(before, w.at, k)})
		}
	}
	for _, msg := range res.published {
		for k := range w.clients {
			if strings.HasSuffix(msg[0], instanceOf(k)) && !w.clients[k].p.Crashed {
				_ = e.tell(w, k, deed{do: send, a: s, text: msg[1]})
			}
		}
	}
	return res
}

// tell has something happen to a client, and checks the tokens of what it is granted.
func (e *parliament) tell(w *world, i int, d deed) error {
	d.at = w.at
	c := e.happen(w.clients[i], d)
	w.clients[i] = c.to
	if c.flaw != nil {
		return c.flaw
	}
	if c.lost && !w.faulty {
		return errors.New("a call ends without the lock, or a hold is lost, though nothing went wrong")
	}
	for k, l := range c.to.p.Calls {
		if c.granted&(1<<k) == 0 {
			continue
		}
		token := l.Hold.Token()
		switch writes := l.Mode == engine.Mode(protocol.Write); {
		case l.Dropped:
		case writes && (token <= w.wrote || token <= w.read):
			return fmt.Errorf("a writer has the token %d after a writer's %d and a reader's %d", token, w.wrote, w.read)
		case writes:
			w.wrote = token
		case token < w.wrote:
			return fmt.Errorf("a reader has the token %d after a writer's %d", token, w.wrote)
		default:
			w.read = max(w.read, token)
		}
	}
	return nil
}

// reliedOn returns the holds that are relied on. One that was dropped by force does not count: its holder
// finds out when it renews it, and the fence refuses it.
func (w *world) reliedOn() (all []model.Hold) {
	for i, n := range w.clients {
		for _, l := range n.p.Calls {
			if !n.p.Crashed && !l.Dropped && l.relies(w.at) {
				c := claimName{inst: uint8(i), number: uint16(l.Hold.ClaimNumber())}
				all = append(all, model.Hold{Claim: c.model(), Mode: modeOf(l.Mode == engine.Mode(protocol.Write))})
			}
		}
	}
	return all
}

// rank says when an action comes in a fair run: links work again, whatever is in flight arrives, and holds
// are released.
func (e *parliament) rank(w *world, a action) int {
	late := func() bool { return w.clients[a.proc].p.Flights[a.a].Late }
	switch {
	case a.do == mend, a.do == wake, a.do == deliver:
		return 0
	case a.do == again:
		return 1
	case a.do == run && a.how == arrives && late(), a.do == fail && w.clients[a.proc].p.Flights[a.a].Lost:
		return 2
	case a.do == run && a.how == arrives:
		return 3
	case a.do == hear:
		return 4
	case a.do == release:
		return 5
	}
	return never
}

// rest lasts until the next timer, while a client is at work.
func (e *parliament) rest(w *world) (time.Duration, bool) {
	at, _ := w.timer()
	return max(at.Sub(w.at), 0),
		slices.ContainsFunc(w.clients, func(n *peer) bool { return !n.p.Crashed && !n.p.Engine.Idle() })
}

// patience is how long a fair run may take: half a second if nothing has gone wrong, and otherwise a lease or
// two if a client has died, the rest of a server, and retreats.
func (e *parliament) patience(w *world) time.Duration {
	switch dead := slices.ContainsFunc(w.clients, func(n *peer) bool { return n.p.Crashed }); {
	case !w.faulty && !e.apart:
		return 500 * time.Millisecond
	case e.delegated && !dead: // a message that was lost is made up for by a renewal
		return 2 * e.lease / 3
	}
	return 6 * e.lease
}
