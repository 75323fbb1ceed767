package engine

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// A lock is what an engine knows of one name, while the name is in use and for a while after.
type lock struct {
	name           string
	keys           protocol.Keys
	refs           int // claims that have not ended, ownerships, requests about no claim
	owners         ownerships
	writer         *claim    // Held; or nil
	first          int       // slot
	slots          int       // how many there are, with those before the first
	free           []int     // of them, those of claims whose end the server has confirmed
	steps          int       // in a row that were not enough
	ended          time.Time // when the server last confirmed the end of a claim
	serving        bool      // a request for a further step is in flight
	notified       bool      // a message was about it
	releasingStale bool      // a claim that had ended, and came back, is being released

	order.Link[lock] // in Engine.idle
}

// mostIdle is the number of unused names that an engine remembers, which saves building their keys again.
const mostIdle = 64

// use returns the lock of that name with another reference, which the caller has to drop.
func (e *Engine) use(name string) *lock {
	lk := e.locks[name]
	switch {
	case lk == nil:
		lk = e.newLock(name, protocol.KeysOf(e.prefix, name))
		e.locks[name] = lk
		e.locksMax = max(e.locksMax, len(e.locks))
	case lk.refs == 0:
		e.idle.Remove(lk)
	}
	lk.refs++
	return lk
}

func (e *Engine) newLock(name string, keys protocol.Keys) *lock {
	return &lock{name: name, keys: keys, first: e.firstSlot, slots: e.firstSlot}
}

// forget is called before the slots of a lock are forgotten. If the end of a claim was not confirmed, a late
// request about it may still arrive, so no later lock uses its slot.
func (e *Engine) forget(lk *lock) {
	if lk.first+len(lk.free) < lk.slots {
		e.firstSlot = max(e.firstSlot, lk.slots)
	}
}

func (e *Engine) drop(lk *lock) {
	lk.refs--
	if lk.refs > 0 {
		return
	}
	if lk.slots-lk.first > mostIdle { // after a crowd
		e.forget(lk)
		*lk = *e.newLock(lk.name, lk.keys)
	}
	e.idle.PushBack(lk)
	if e.idle.Len() > mostIdle {
		oldest := e.idle.First()
		e.idle.Remove(oldest)
		e.forget(oldest)
		delete(e.locks, oldest.name)
	}
	if len(e.locks) == e.idle.Len() && e.locksMax > peak {
		locks := make(map[string]*lock, len(e.locks)) // maps.Clone keeps what the old one has room for
		maps.Copy(locks, e.locks)
		e.locks, e.locksMax = locks, len(locks)
	}
}

// takeSlot returns a slot that no other claim of the engine on the lock has.
func (lk *lock) takeSlot() int {
	if n := len(lk.free); n > 0 {
		s := lk.free[n-1]
		lk.free = lk.free[:n-1]
		return s
	}
	lk.slots++
	return lk.slots - 1
}

// An ownership is what one owner has of one lock.
type ownership struct {
	lock  *lock
	owner Owner
	claim [protocol.Write + 1]*claim // by mode: Held; or nil
	// holds that were lost and are not released: the owner's calls fail until they are
	lost   int
	asking *Hold   // a call of the owner that has a claim Asking or Queued
	behind []*Hold // calls of the owner that wait for that one
}

// ownerships are in the order of their owners' handles. The last one is usually the latest. Most locks have
// one owner, for which a map would take as much memory as the rest of the lock.
type ownerships []*ownership

func (l ownerships) find(o Owner) (i int, found bool) {
	return slices.BinarySearchFunc(l, o, func(t *ownership, o Owner) int {
		return cmp.Or(cmp.Compare(t.owner.Handle, o.Handle), bytes.Compare(t.owner.Process[:], o.Process[:]))
	})
}

// of returns what an owner has, or nil.
func (l ownerships) of(o Owner) *ownership {
	if i, found := l.find(o); found {
		return l[i]
	}
	return nil
}

func (l *ownerships) add(t *ownership) {
	i, _ := l.find(t.owner)
	*l = slices.Insert(*l, i, t)
}

func (l *ownerships) remove(t *ownership) {
	i, _ := l.find(t.owner)
	if *l = slices.Delete(*l, i, i+1); len(*l) == 0 && cap(*l) > mostIdle {
		*l = nil
	}
}

// ownership returns what an owner has of a lock; memory is for a new one.
func (e *Engine) ownership(lk *lock, o Owner, memory *ownership) *ownership {
	t := lk.owners.of(o)
	if t == nil {
		t = memory
		*t = ownership{lock: lk, owner: o}
		lk.owners.add(t)
		lk.refs++
	}
	return t
}

// takenBy reports whether the goroutine of h took everything that the owner holds, or whether this is not
// checked.
func (t *ownership) takenBy(h *Hold) bool {
	for _, c := range t.claim {
		if c != nil && c.holds[0].Caller != h.Caller {
			return false
		}
	}
	return true
}

// dropIfOver forgets an ownership that is over.
func (e *Engine) dropIfOver(t *ownership) {
	if t.claim[protocol.Read] == nil && t.claim[protocol.Write] == nil && t.lost == 0 && t.asking == nil &&
		len(t.behind) == 0 &&
		t.lock.owners.of(t.owner) == t {
		t.lock.owners.remove(t)
		e.drop(t.lock)
	}
}

// advance lets the calls go on that waited for the owner's call in progress.
func (e *Engine) advance(now time.Time, t *ownership) {
	behind := t.behind
	t.behind = nil
	for _, h := range behind {
		e.start(now, h)
	}
	e.dropIfOver(t)
}

// Force drops every hold on a name, of any RWLock. tag identifies the request. Afterwards, the holds of this
// engine are renewed immediately, which shows that they are lost.
func (e *Engine) Force(now time.Time, name string, tag any) error {
	if e.closed {
		return ErrClosed
	}
	lk := e.use(name)
	slot := lk.takeSlot()
	e.send(now, &Request{
		Request: protocol.Request{
			Script: lua.Force, Keys: lk.keys, Claim: e.newClaim(protocol.Write, slot, Owner{}), Channels: e.channels},
		Tag:  tag,
		lock: lk,
		kind: forces,
		slot: slot,
	})
	return nil
}

// verify renews the holds of the claims with these numbers, which someone has dropped by force.
func (e *Engine) verify(now time.Time, numbers []uint64) {
	for _, c := range e.timeline.All() {
		if c.state == Held && slices.Contains(numbers, c.number) {
			e.renew(now, c)
		}
	}
}

func (e *Engine) forced(now time.Time, r *Request, reply protocol.Reply, err error) {
	if err == nil {
		r.lock.free = append(r.lock.free, r.slot) // or else nobody knows whether the request may yet run
	}
	e.each(now, func(now time.Time, c *claim) {
		switch {
		case c.lock != r.lock:
		case c.state == Held && err == nil:
			e.renew(now, c)
		case c.state == Queued && reply.Code == protocol.DoneBefore:
			c.askAgain = now // the reply is lost that named whom that run let in
			e.schedule(now, c)
		}
	})
	e.out.Forced = append(e.out.Forced, Forced{r.Tag, err})
	e.drop(r.lock)
}

// Inspect returns a request that reads a lock's state. The engine does not need its reply.
func (e *Engine) Inspect(name string) protocol.Request {
	return protocol.Request{Script: lua.Inspect, Keys: protocol.KeysOf(e.prefix, name)}
}
