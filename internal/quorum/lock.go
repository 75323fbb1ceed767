package quorum

import (
	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// mostIdle is the number of unused locks that are remembered.
const mostIdle = 64

// A lock is what the quorum knows of one name.
type lock struct {
	order.Link[lock]
	keys protocol.Keys
	refs int // by bids and requests
	// By server: each slot belongs to one vote. No two servers have a slot in common. If an address leads to
	// another server for a while, a release that arrives there ends none of that server's votes.
	slots     []engine.Slots
	serving   []bool                  // by server: a request for a further step is in flight
	forced    []int                   // by server: how often it has answered a ForceUnlock
	contended bool                    // the last claim had to wait, so the next asks the home alone first
	held      [protocol.Write + 1]int // by mode: bids that are won
}

// taken reports whether a claim has to wait for a hold of this client.
func (lk *lock) taken(m protocol.Mode) bool {
	return lk.held[protocol.Write] > 0 || m == protocol.Write && lk.held[protocol.Read] > 0
}

// use returns the lock of a name and adds a reference to it.
func (q *Quorum) use(keys protocol.Keys) *lock {
	lk := q.locks[keys.Lock]
	if lk == nil {
		n := len(q.servers)
		lk = &lock{keys: keys, slots: make([]engine.Slots, n), serving: make([]bool, n),
			forced: make([]int, n)}
		for i, s := range q.servers {
			lk.slots[i] = engine.NewSlots(s.firstSlot, n)
		}
		q.locks[keys.Lock] = lk
		q.locksMax = max(q.locksMax, len(q.locks))
	} else if lk.refs == 0 {
		q.idle.Remove(lk)
	}
	lk.refs++
	return lk
}

// release drops a reference to a lock. The most recently used locks are remembered. If the end of a vote was
// not confirmed, a late request about it may still arrive. A server that votes for two readers of one slot
// loses the first. So no later lock uses the slot.
func (q *Quorum) release(lk *lock) {
	if lk.refs--; lk.refs > 0 {
		return
	}
	q.idle.PushBack(lk)
	if q.idle.Len() > mostIdle {
		oldest := q.idle.First()
		q.idle.Remove(oldest)
		delete(q.locks, oldest.keys.Lock)
		order.Shrink(&q.locks, &q.locksMax)
		for i, s := range q.servers {
			oldest.slots[i].Forget(&s.firstSlot)
		}
	}
}

// weigh returns the weight of a server, of that id, for the key of a lock. After mix, each bit depends on
// every byte: hashes of FNV-1a, of 64 bits, hardly differ in the first bits if the last bytes differ.
func weigh(id, key string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{id, "\x00", key} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	return mix(h)
}

// home returns the index of the home of a name: of the servers that vote, the one with the largest weight
// (rendezvous hashing). votes may be nil; otherwise home passes over servers that have refused their vote. It
// returns -1 if no server is left.
func (q *Quorum) home(keys protocol.Keys, votes []*vote) int {
	best, largest := -1, uint64(0)
	for i, s := range q.servers {
		if !s.usable() || votes != nil && votes[i].refused != nil {
			continue
		}
		if w := weigh(s.mark.ID, keys.Lock.(string)); best < 0 || w > largest {
			best, largest = i, w
		}
	}
	return best
}
