package delegation

import (
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/engine"
	"github.com/seed-7e8842f7/rwlock/internal/order"
	"github.com/seed-7e8842f7/rwlock/internal/protocol"
)

// A table is a lock in the memory of one process. It keeps what the scripts keep on a server, by the same
// rules. Its claims cannot die alone, since they share the process of the table.
type table struct {
	writer  *entry
	holders order.List[entry, *entry] // the writer, too
	readers order.List[entry, *entry] // that wait
	writers order.List[entry, *entry] // likewise
	owed    int                       // of the readers that wait: they go before the next writer
	tickets uint64
}

// step is how many readers at most are let in at a time.
const step = 250

// An entry is what the layer knows of a claim of the engine's.
type entry struct {
	order.Link[entry]
	name   *name
	ask    *engine.Request // the last that asked
	mode   protocol.Mode
	place  place
	ticket uint64          // of one that waits: when it came
	since  time.Time       // of a holder: when it was granted the lock; of one that leaves: when it was released
	until  time.Time       // of a holder: until when the engine may rely on the hold, by the last reply
	end    *engine.Request // of one that leaves: the last that releases it
	reads  *entry          // of one that leaves: what it is downgraded to, or nil
	// of a holder: the delegation was to be renewed for longer than it lasted, for an Extend
	extended bool
	counted  int // of one that the server knows: the last of name.counts that has it
}

// rely notes until when the engine may rely on a hold by the reply to a request. Its own lease may end before
// the delegation.
func (e *entry) rely(r *engine.Request) {
	e.until = order.Earlier(e.name.until, engine.Deadline(r.Sent, r.Lease.Duration))
}

// goes notes that the server knows a claim from now on.
func (e *entry) goes() {
	e.place, e.counted = remote, e.name.counts
	e.name.out[e.mode]++
}

// place is where a claim is.
type place uint8

const (
	parked place = iota // nowhere: it is not decided who answers
	remote              // the server knows it
	waits               // in the table's queue
	holds               // in the table
	leaves              // nowhere: the server is to confirm that it was there until it was released
	over                // it has ended
)

func (t *table) empty() bool { return t.holders.Len() == 0 && !t.waited() }

func (t *table) waited() bool { return t.readers.Len()+t.writers.Len() > 0 }

// ask grants the lock to an entry, or queues the entry. It reports whether the lock was granted.
func (t *table) ask(e *entry) bool {
	if !t.blocks(e) {
		t.enter(e)
		return true
	}
	t.tickets++
	e.place, e.ticket = waits, t.tickets
	t.queue(e).PushBack(e)
	return false
}

// blocks reports whether an entry has to wait.
func (t *table) blocks(e *entry) bool {
	return t.waited() || t.writer != nil || e.mode == protocol.Write && t.holders.Len() > 0
}

func (t *table) queue(e *entry) *order.List[entry, *entry] {
	if e.mode == protocol.Write {
		return &t.writers
	}
	return &t.readers
}

func (t *table) enter(e *entry) {
	e.place = holds
	t.holders.PushBack(e)
	if e.mode == protocol.Write {
		t.writer = e
	}
}

// leave removes a holder or a waiter. When a write hold ends, the readers that wait are owed the next phase.
func (t *table) leave(e *entry) {
	switch e.place {
	case holds:
		t.holders.Remove(e)
		if e == t.writer {
			t.writer, t.owed = nil, t.readers.Len()
		}
	case waits:
		if e.mode == protocol.Read && t.owed > 0 && t.before(e) < t.owed {
			t.owed--
		}
		t.queue(e).Remove(e)
	}
	e.place = over
}

// before returns how many readers wait in front of an entry, up to the number that is owed the phase.
func (t *table) before(e *entry) (n int) {
	for other := range t.readers.All() {
		if other == e || n >= t.owed {
			break
		}
		n++
	}
	return n
}

// serve grants the lock to the entries whose turn it is, at most a step of them, and calls grant for each. It
// reports whether there are more. A writer enters only if there is a token for it.
func (t *table) serve(token bool, grant func(*entry)) (more bool) {
	if t.writer != nil {
		return false
	}
	if t.writers.Len() == 0 {
		t.owed = t.readers.Len()
	}
	for range step {
		if t.owed == 0 {
			break
		}
		t.owed--
		e := t.readers.First()
		t.readers.Remove(e)
		t.enter(e)
		grant(e)
	}
	if t.owed > 0 {
		return true
	}
	if w := t.writers.First(); w != nil && t.holders.Len() == 0 && token {
		t.writers.Remove(w)
		t.enter(w)
		grant(w)
	}
	return false
}

// first removes and returns the one that has waited longest, or nil.
func (t *table) first() *entry {
	r, w := t.readers.First(), t.writers.First()
	switch {
	case r == nil && w == nil:
		return nil
	case w == nil || r != nil && r.ticket < w.ticket:
		t.readers.Remove(r)
		return r
	}
	t.writers.Remove(w)
	return w
}

// obstacle returns what keeps an entry waiting, as a script says it, and an entry that holds the lock, or
// nil. The caller adds the claim of that one.
func (t *table) obstacle(e *entry) (o protocol.Obstacle, h *entry) {
	if h = t.holders.First(); h != nil {
		if t.writer != nil {
			h = t.writer
		}
		o.Mode, o.Holder, o.Again = h.mode, h.ask.Owner(), h.ask.Lease.Duration
	}
	next := t.owed // readers that are served before the next writer
	if t.writer != nil {
		next = t.readers.Len()
	}
	switch {
	case e.mode == protocol.Write:
		if t.writers.First() == e || t.writers.Len() == 0 {
			o.Ahead = next
			break
		}
		o.Ahead = t.writers.Len() + t.readers.Len() // at most
	case t.writers.Len() > 0 && t.writer == nil && t.owed == 0:
		o.Ahead = 1
	}
	return o, h
}

// line returns the waiters in the order in which they will be served: the readers that are owed the next
// phase, a writer, the other readers, the other writers.
func (t *table) line() []*entry {
	readers, writers := slices.Collect(t.readers.All()), slices.Collect(t.writers.All())
	owed, one := t.owed, min(len(writers), 1)
	if t.writer != nil {
		owed = len(readers)
	}
	return slices.Concat(readers[:owed], writers[:one], readers[owed:], writers[one:])
}
