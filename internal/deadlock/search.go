package deadlock

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// ErrDeadlock is what a call fails with that would wait for itself.
var ErrDeadlock = errors.New("deadlock")

const (
	// mostVisits is the largest number of holds and calls that one search visits. A search that needs more
	// finds nothing.
	mostVisits = 10_000
	// pause follows a search that was too large. So such searches take a small part of the time, however many
	// calls have to be searched from.
	pause = 20 * time.Millisecond
)

// A search is the memory of the current search. Calls for one lock that are blocked by the same holds share a
// gate. So each hold is visited once for each of the two gates of its lock, and not for each call.
type search struct {
	pass   uint64
	visits int // that are left
	work   []*Node
	zeros  []*gate // which no stuck hold blocks

	events        uint64 // counts searches, and calls that stopped waiting
	owners, locks int    // the most of them since the maps were made
}

// A mark is what a search notes of a node.
type mark struct {
	pass     uint64
	stuck    bool  // of a hold: it is never released unless a call gives up
	seen     bool  // of a call: from and by are known
	from, by *Node // the call from which the path came, and the hold that it went by
	peer     *Node // the next call at its gate
	searched uint64
}

// A gate has the calls for one lock that are blocked by its write hold alone, or by all holds.
type gate struct {
	reached, walked bool
	stuck           int   // holds that block it
	calls           *Node // that were reached
}

type gates struct {
	pass  uint64
	all   gate
	write gate
}

// Search looks for a cycle through a waiting call, and returns an error that describes it. If there may be a
// cycle, but that is not certain, it returns the numbers of the calls that have to ask again. Call it after
// each Wait. It does nothing if no cycle can have formed since the last search: a new cycle contains a new
// call, a call with a new reply, or a call whose owner's other call has ended.
//
// A search visits at most mostVisits holds and calls. If that is not enough, it finds nothing, and the next
// Search for the node tries again, but not within the next 20 ms.
func (g *Graph) Search(now time.Time, n *Node) (doubtful []uint64, err error) {
	s := &g.search
	if n.mark.searched != 0 && (n.of == nil || n.mark.searched > n.of.left) || now.Before(g.rest) {
		return nil, nil
	}
	s.visits = mostVisits
	var cycle, certain []*Node
	if s.mayClose(n) {
		if cycle = s.cycle(n, false); cycle != nil {
			certain = s.cycle(n, true)
		}
	}
	s.work, s.zeros = nil, nil
	switch {
	case s.visits < 0:
		g.rest = now.Add(pause)
	case certain != nil:
		return nil, fmt.Errorf("%w: %s", ErrDeadlock, describe(certain))
	case cycle != nil:
		for _, c := range cycle {
			if c.state == waits && c.inDoubt() {
				doubtful = append(doubtful, c.Number)
			}
		}
	default:
		s.events++
		n.mark.searched = s.events
	}
	return doubtful, nil
}

// visits counts a visit for each item, and stops when no more are allowed.
func visits[T any](s *search, items iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		for item := range items {
			if s.visits--; s.visits < 0 || !yield(item) {
				return
			}
		}
	}
}

// mayClose reports whether a cycle through a call is possible: someone waits for its owner, or readers wait
// for the call itself.
func (s *search) mayClose(n *Node) bool {
	if n.lock.writers.First() == n.blocking && n.lock.calls > 1 {
		return true
	}
	if n.of == nil {
		return false
	}
	for h := range visits(s, n.of.holds.All()) {
		if h.lock.calls > 0 && n.after(h) {
			return true
		}
	}
	return false
}

// after reports whether a call of an owner keeps a hold of it from being released.
func (n *Node) after(h *Node) bool { return n.Number > h.since }

// inDoubt reports whether a call may have been let in with the present readers, with the grant still in
// flight. That is excluded if the readers held the lock, and a writer waited that still waits, when the call
// last asked: the reply says who goes first.
func (n *Node) inDoubt() bool {
	w := n.lock.writers.First()
	return n.Mode == protocol.Read && w != nil && n.asked <= max(w.node.since, n.lock.newest)
}

// gate returns the gate that a call waits at, and whether all holds block it. Unless certain is set,
// uncertain blocks count.
func (s *search) gate(n *Node, certain bool) (at *gate, all bool) {
	all = n.Mode == protocol.Write
	if !all && n.lock.writers.Len() > 0 {
		all = n.behind
		if n.inDoubt() {
			all = !certain
		}
	}
	m := s.marks(n.lock)
	if all {
		return &m.all, true
	}
	return &m.write, false
}

func (s *search) marks(l *lock) *gates {
	if l.mark.pass != s.pass {
		l.mark = gates{pass: s.pass}
	}
	return &l.mark
}

// reach reports whether the search has come to a node for the first time.
func (s *search) reach(n *Node) bool {
	if n.mark.pass == s.pass {
		return false
	}
	n.mark = mark{pass: s.pass, searched: n.mark.searched}
	return true
}

// cycle returns the path from a call back to it, as holds that block and the calls of their owners in turns,
// or nil if there is none. If it need not be certain, the path may end at a reader that waits behind the
// call.
func (s *search) cycle(from *Node, certain bool) []*Node {
	s.pass++
	s.spread(from, certain)
	s.free()
	return s.path(from, certain)
}

// spread marks as stuck all holds that block a call, directly or not, and whose owners wait.
func (s *search) spread(from *Node, certain bool) {
	s.reach(from)
	s.work, s.zeros = append(s.work[:0], from), s.zeros[:0]
	for i := 0; i < len(s.work) && s.visits >= 0; i++ {
		call := s.work[i]
		at, all := s.gate(call, certain)
		call.mark.peer, at.calls = at.calls, call
		if at.reached {
			continue
		}
		at.reached = true
		for b := range visits(s, call.lock.blocked.All()) {
			h := b.node
			if (all || h.Mode == protocol.Write) && s.reach(h) {
				s.spreadFrom(h)
			}
		}
		if at.stuck == 0 {
			s.zeros = append(s.zeros, at)
		}
	}
}

// spreadFrom takes a hold for stuck if its owner waits.
func (s *search) spreadFrom(h *Node) {
	for c := range visits(s, h.of.calls.All()) {
		if !c.after(h) {
			continue
		}
		h.mark.stuck = true
		if s.reach(c) {
			s.work = append(s.work, c)
		}
	}
	if h.mark.stuck {
		s.count(h, 1)
	}
}

// count counts a stuck hold at the gates of its lock.
func (s *search) count(h *Node, d int) {
	m := s.marks(h.lock)
	m.all.stuck += d
	if d < 0 && m.all.stuck == 0 && m.all.reached {
		s.zeros = append(s.zeros, &m.all)
	}
	if h.Mode == protocol.Write {
		m.write.stuck += d
		if d < 0 && m.write.stuck == 0 && m.write.reached {
			s.zeros = append(s.zeros, &m.write)
		}
	}
}

// free unmarks stuck holds until each call of their owners waits for a stuck hold.
func (s *search) free() {
	for i := 0; i < len(s.zeros); i++ {
		for c := s.zeros[i].calls; c != nil && s.visits >= 0; c = c.mark.peer {
			if c.of == nil {
				continue
			}
			for h := range visits(s, c.of.holds.All()) {
				if h.mark.pass == s.pass && h.mark.stuck && c.after(h) {
					h.mark.stuck = false
					s.count(h, -1)
				}
			}
		}
	}
}

// path returns the shortest path of stuck holds from a call to a possible end.
func (s *search) path(from *Node, certain bool) []*Node {
	s.work = append(s.work[:0], from)
	for i := 0; i < len(s.work) && s.visits >= 0; i++ {
		call := s.work[i]
		at, all := s.gate(call, certain)
		if at.walked {
			continue
		}
		at.walked = true
		for b := range visits(s, call.lock.blocked.All()) {
			h := b.node
			if h.mark.pass != s.pass || !h.mark.stuck || !all && h.Mode != protocol.Write {
				continue
			}
			for c := range visits(s, h.of.calls.All()) {
				switch {
				case !c.after(h):
				case c == from, !certain && c.Mode == protocol.Read && from.Mode == protocol.Write && c.lock == from.lock:
					return pathTo(from, call, h, c)
				case !c.mark.seen:
					c.mark.seen, c.mark.from, c.mark.by = true, call, h
					s.work = append(s.work, c)
				}
			}
		}
	}
	return nil
}

// pathTo returns the path from a call to another, whose last steps are given.
func pathTo(from, call, h, end *Node) []*Node {
	path := []*Node{end, h}
	for ; call != from; call = call.mark.from {
		path = append(path, call, call.mark.by)
	}
	slices.Reverse(path)
	return path
}

// describe says who holds what and waits for what, beginning with the call that has closed the cycle.
func describe(cycle []*Node) string {
	n := len(cycle)
	parts := []string{part(cycle[n-2], cycle[n-1])}
	for i := 0; i < n-2 && len(parts) < mostParts; i += 2 {
		parts = append(parts, part(cycle[i], cycle[i+1]))
	}
	if more := n/2 - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func part(hold, call *Node) string {
	return fmt.Sprintf("%s holds %s and waits for %s", hold.Owner, quote(hold.Name), quote(call.Name))
}

const (
	mostShown = 64 // bytes of a name that an error shows
	mostParts = 32 // owners
)

// quote returns a name as an error shows it, on one line and not too long.
func quote(name string) string {
	if len(name) > mostShown {
		return fmt.Sprintf("%q…", name[:mostShown])
	}
	return fmt.Sprintf("%q", name)
}
