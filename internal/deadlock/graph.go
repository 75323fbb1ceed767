// Package deadlock finds deadlocks among the owners of one RWLock. Its caller reports which owners hold which
// locks and which calls wait. The package searches the resulting graph for cycles. It is pure: it has no
// goroutine, mutex, clock or network, and it knows nothing of servers.
//
// A hold blocks a call of another owner for the same lock, and it is not released while a call of its own
// owner waits. A cycle of these never ends by itself.
//
//   - A write hold blocks every call, and every hold blocks a call for writing.
//   - A read hold blocks a call for reading if a writer waits and goes first.
//
// An owner is assumed to be one goroutine. If an owner seems to have several, the search reports no deadlock
// in case of doubt. A call that began before a hold was granted does not keep the hold from being released.
// If several calls do, all of them must be stuck.
//
// Events are ordered by numbers that the caller assigns. The numbers never decrease.
package deadlock

import (
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A Graph knows the holds and the waiting calls of all owners. The zero value is an empty graph. It is not
// safe for concurrent use.
type Graph struct {
	owners map[uint64]*owner // by handle: they all are of one process
	locks  map[string]*lock  // those of the calls, and those of the holds whose owners wait
	rest   time.Time         // no search begins before: the last one was too large

	search search
}

// A Node is a call while it waits, and then the hold that it has got. The exported fields do not change.
type Node struct {
	Owner    protocol.Owner
	Name     string
	Number   uint64 // of the call: those that begin later have larger ones
	Mode     protocol.Mode
	NewOwner bool // while the call waits, no other call has its owner

	state            state
	since            uint64 // when it came to that
	of               *owner // nil for a waiting call of a new owner
	order.Link[Node]        // in a list of the owner
	*blocking

	own owner // memory
}

// A blocking is what is known of a call, and of a hold whose owner waits. No search meets any other hold.
type blocking struct {
	lock   *lock
	asked  uint64 // when the last request was sent whose reply is known
	behind bool   // that reply said that a writer goes first
	mark   mark

	node                 *Node
	order.Link[blocking] // in a list of the lock
}

// The lists of an owner, and those of a lock.
type (
	nodes     = order.List[Node, *Node]
	blockings = order.List[blocking, *blocking]
)

type state uint8

const (
	gone state = iota
	waits
	holds
)

// An owner has at least one hold, or one waiting call.
type owner struct {
	holds, calls nodes
	left         uint64 // when one of its calls last stopped waiting, by search.events
}

// A lock is a lock that a call waits for, or that an owner with a waiting call holds.
type lock struct {
	refs    int
	blocked blockings // holds whose owners wait
	writers blockings // calls for writing, in the order in which they will be served
	calls   int       // waiting
	newest  uint64    // not less than since of each blocked hold

	mark gates
}

// Hold says that the call of a node has got its lock, whether or not it waited. If it is called again for a
// hold, the hold gets a new date: others may have been let in with it.
func (g *Graph) Hold(n *Node, now uint64) {
	if n.state != holds {
		if n.state == waits {
			g.Leave(n)
		}
		n.state = holds
		g.enter(n)
		n.of.holds.PushBack(n)
		if n.of.calls.Len() > 0 {
			g.block(n)
		}
	}
	n.since = now
	if n.blocking != nil {
		n.lock.newest = max(n.lock.newest, now)
	}
}

// Wait says that the call of a node waits, as reported by the reply to a request that was sent at the time
// asked. behind is whether that reply says that a writer goes first: then the present readers block a call
// for reading.
func (g *Graph) Wait(n *Node, now, asked uint64, behind bool) {
	if n.state == waits {
		switch {
		case asked <= n.asked:
			return // by now more is known
		case n.Mode == protocol.Read && (n.behind != behind || n.inDoubt()):
			n.mark.searched = 0
		}
		n.asked, n.behind = asked, behind
		return
	}
	n.state, n.since, n.blocking = waits, now, &blocking{lock: g.use(n.Name), node: n}
	n.asked, n.behind = asked, behind
	n.lock.calls++
	if n.Mode == protocol.Write {
		n.lock.writers.PushBack(n.blocking)
	}
	if n.NewOwner {
		return
	}
	g.enter(n)
	if n.of.calls.Len() == 0 {
		for h := range n.of.holds.All() {
			g.block(h)
		}
	}
	n.of.calls.PushBack(n)
}

// Leave says that a call no longer waits, or that a hold has ended.
func (g *Graph) Leave(n *Node) {
	switch n.state {
	case waits:
		n.lock.calls--
		if n.Mode == protocol.Write {
			n.lock.writers.Remove(n.blocking)
		}
		g.drop(n)
		if n.of == nil {
			break
		}
		n.of.calls.Remove(n)
		g.search.events++
		n.of.left = g.search.events
		if n.of.calls.Len() == 0 {
			for h := range n.of.holds.All() {
				g.unblock(h)
			}
		}
	case holds:
		if n.blocking != nil {
			g.unblock(n)
		}
		n.of.holds.Remove(n)
	}
	if o := n.of; o != nil && o.holds.Len() == 0 && o.calls.Len() == 0 {
		delete(g.owners, n.Owner.Handle)
		order.Shrink(&g.owners, &g.search.owners)
	}
	n.state, n.of = gone, nil
}

func (g *Graph) enter(n *Node) {
	o := g.owners[n.Owner.Handle]
	if o == nil {
		if g.owners == nil {
			g.owners = make(map[uint64]*owner)
		}
		o = &n.own
		*o = owner{}
		g.owners[n.Owner.Handle] = o
		g.search.owners = max(g.search.owners, len(g.owners))
	}
	n.of = o
}

func (g *Graph) block(h *Node) {
	h.blocking = &blocking{lock: g.use(h.Name), node: h}
	h.lock.blocked.PushBack(h.blocking)
	h.lock.newest = max(h.lock.newest, h.since)
}

func (g *Graph) unblock(h *Node) {
	h.lock.blocked.Remove(h.blocking)
	g.drop(h)
}

func (g *Graph) use(name string) *lock {
	l := g.locks[name]
	if l == nil {
		if g.locks == nil {
			g.locks = make(map[string]*lock)
		}
		l = new(lock)
		g.locks[name] = l
		g.search.locks = max(g.search.locks, len(g.locks))
	}
	l.refs++
	return l
}

func (g *Graph) drop(n *Node) {
	n.lock.refs--
	if n.lock.refs == 0 {
		delete(g.locks, n.Name)
		order.Shrink(&g.locks, &g.search.locks)
	}
	n.blocking = nil
}
