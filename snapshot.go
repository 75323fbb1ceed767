package rwlock

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/seed-7e8842f7/rwlock/internal/client"
	"github.com/seed-7e8842f7/rwlock/internal/engine"
)

// A Snapshot is what an RWLock holds and waits for at one moment, as far as this process knows: see
// [RWLock.Snapshot].
type Snapshot struct {
	Time   time.Time
	Prefix string      // of WithPrefix
	Label  string      // of WithLabel
	Holds  []LocalHold // that can be relied on at Time; the oldest first
	Waits  []LocalWait // the oldest first

	// Servers is the number of servers, and Voting how many of them vote, as far as this RWLock knows.
	// Servers that it has not asked yet count as voting. Both are zero unless the RWLock was made by
	// NewQuorum.
	Servers, Voting int
}

// A LocalHold is a hold of this process.
type LocalHold struct {
	Name      string
	Mode      Mode
	Owner     Owner
	Token     int64
	Since     time.Time // when the call got the lock
	Deadline  time.Time // until when the hold can be relied on at the moment: see [Hold.Deadline]
	Renewed   bool      // renewals keep it until Unlock; false with NoRenew or MaxHold, and once it is forgotten
	Forgotten bool      // nothing refers to the Hold any more: it ends at Deadline
	held      *client.Hold
}

// Caller returns where the program asked for the lock, or a zero Source if that is not known.
func (h LocalHold) Caller() slog.Source { return h.held.Caller() }

// A LocalWait is a lock call of this process that has not returned yet. It waits for its turn, or only for
// the server's answer.
type LocalWait struct {
	Name    string
	Mode    Mode
	Owner   Owner
	Since   time.Time     // when the call began
	Blocked *BlockedError // who is in the way, as the server has said last; nil if it has not answered yet
	held    *client.Hold
}

// Caller returns where the program asked for the lock, or a zero Source if that is not known.
func (w LocalWait) Caller() slog.Source { return w.held.Caller() }

// Snapshot returns what this RWLock holds and waits for. It does not use the network. Unlike
// [RWLock.Inspect], it covers all names that this RWLock holds or waits for, and nothing of other RWLocks.
// Lost holds are not listed. Its cost is proportional to the number of holds and waiting calls. After Close,
// only Time, Prefix and Label are set.
func (rw *RWLock) Snapshot() Snapshot {
	s := Snapshot{Time: time.Now()}
	if rw.check(context.Background()) != nil {
		return s
	}
	s.Prefix, s.Label = rw.config.Prefix, rw.config.Label
	s.Time, s.Servers, s.Voting = rw.client.Snapshot(func(h *engine.Hold, blocked error) {
		held := h.Tag.(*client.Hold)
		if h.State() == engine.Live {
			s.Holds = append(s.Holds, LocalHold{Name: h.Name, Mode: Mode(h.Mode), Owner: Owner{h.Owner},
				Token: h.Token(), Since: h.Since(), Deadline: h.Deadline(), Renewed: h.Renewed(),
				Forgotten: h.Forgotten(), held: held})
			return
		}
		w := LocalWait{Name: h.Name, Mode: Mode(h.Mode), Owner: Owner{h.Owner}, Since: h.Since(), held: held}
		w.Blocked, _ = blocked.(*BlockedError)
		s.Waits = append(s.Waits, w)
	})
	slices.SortFunc(s.Holds, func(a, b LocalHold) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Waits, func(a, b LocalWait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return s
}
