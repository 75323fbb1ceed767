package quorum

import (
	"hash/fnv"

	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// mostIdle is the number of unused locks that are remembered.
const mostIdle = 64

// A lock is what the quorum knows of one name: which of its slots are used on each server, and which server
// is the home.
type lock struct {
	order.Link[lock]
	key       string
	keys      protocol.Keys
	refs      int // by bids, endings and requests
	slots     []slots
	serving   []bool                  // by server: a request for a further step is in flight
	weights   []weight                // by server
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
		lk = &lock{key: keys.Lock.(string), keys: keys, slots: make([]slots, n), serving: make([]bool, n),
			weights: make([]weight, n)}
		for i := range lk.slots {
			lk.slots[i] = slots{next: i, step: n}
		}
		q.locks[keys.Lock] = lk
	} else if lk.refs == 0 {
		q.idle.Remove(lk)
	}
	lk.refs++
	return lk
}

// release drops a reference to a lock. The most recently used locks are remembered.
func (q *Quorum) release(lk *lock) {
	if lk.refs--; lk.refs > 0 {
		return
	}
	q.idle.PushBack(lk)
	if q.idle.Len() > mostIdle {
		oldest := q.idle.First()
		q.idle.Remove(oldest)
		delete(q.locks, oldest.keys.Lock)
	}
}

// slots are the slots of a lock on one server. Each belongs to one vote at a time. No two servers have a slot
// in common: if an address leads to another server for a while, a release that arrives there ends none of
// that server's votes.
type slots struct {
	free       []int
	next, step int
}

// take returns a slot that no vote uses.
func (s *slots) take() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next += s.step
	return s.next - s.step
}

// put returns a slot that no vote uses any more.
func (s *slots) put(slot int) { s.free = append(s.free, slot) }

// A weight orders the servers that may be the home of a name: the largest comes first (rendezvous hashing).
type weight struct {
	id   string // of the server
	hash uint64
}

// weigh returns the weight of a server for a lock. FNV hashes of names that differ only in the last bytes
// hardly differ in their first bits. After mix, each bit depends on every byte.
func weigh(id, key string) weight {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(key))
	return weight{id, mix(h.Sum64())}
}

// home returns the index of the home of a name: the first server that votes, in an order that all clients
// use. votes may be nil; otherwise home passes over servers that have refused their vote. It returns -1 if no
// server is left.
func (q *Quorum) home(lk *lock, votes []vote) int {
	best := -1
	for _, s := range q.servers {
		if !s.usable(q) || votes != nil && votes[s.index].refused != nil {
			continue
		}
		w := &lk.weights[s.index]
		if w.id != s.mark.ID {
			*w = weigh(s.mark.ID, lk.key)
		}
		if best < 0 || w.hash > lk.weights[best].hash {
			best = s.index
		}
	}
	return best
}
