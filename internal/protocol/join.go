package protocol

import (
	"cmp"
	"slices"
)

// Join combines what several servers say of a lock. A state is nil if its server has not answered. A hold
// counts if a majority may have voted for it, with what a majority says of it. The queue is the home's. It is
// the longest queue instead if home is negative, has not answered, or has no queue and has voted for none of
// the holders.
func Join(states []*State, home int) State {
	j := join{majority: len(states)/2 + 1, votes: make(map[Known][]Holder)}
	for _, s := range states {
		if s == nil {
			j.missing++
		} else {
			j.count(s)
		}
	}
	j.holders()
	var queue *State // of the server that keeps it
	if home >= 0 && states[home] != nil && j.inCharge(states[home]) {
		queue = states[home]
	} else {
		for _, s := range states {
			if s != nil && (queue == nil || len(s.Waiters) > len(queue.Waiters)) {
				queue = s
			}
		}
	}
	if queue != nil {
		j.waiters(queue)
	}
	return j.joined
}

type join struct {
	majority int
	missing  int // states
	votes    map[Known][]Holder
	order    []Known
	joined   State
}

// partyOf returns who holds a lock. It leaves out the slot and the number of the claim, which differ
// between the servers that voted for it.
func partyOf(k Known) Known {
	k.Slot, k.Number = "", 0
	return k
}

// count adds the votes of one server. If it has several claims of one party, only the last one counts.
func (j *join) count(s *State) {
	j.joined.Token = max(j.joined.Token, s.Token)
	last := make(map[Known]uint64, len(s.Holders))
	for _, h := range s.Holders {
		last[partyOf(h.Known)] = max(last[partyOf(h.Known)], h.Number)
	}
	for _, h := range s.Holders {
		p := partyOf(h.Known)
		if h.Number < last[p] {
			continue
		}
		if j.votes[p] == nil {
			j.order = append(j.order, p)
		}
		j.votes[p] = append(j.votes[p], h)
	}
}

// holds reports whether a majority may have voted for someone.
func (j *join) holds(p Known) bool {
	return len(j.votes[p])+j.missing >= j.majority && len(j.votes[p]) > 0
}

// holders lists who holds the lock, the writer first.
func (j *join) holders() {
	for _, p := range j.order {
		if !j.holds(p) {
			continue
		}
		v := j.votes[p]
		h, last := v[0], min(j.majority, len(v))-1
		slices.SortFunc(v, func(a, b Holder) int { return cmp.Compare(b.Lease, a.Lease) })
		h.Lease, h.Full = v[last].Lease, v[last].Full
		slices.SortFunc(v, func(a, b Holder) int { return cmp.Compare(b.Count, a.Count) })
		h.Count = v[last].Count
		slices.SortFunc(v, func(a, b Holder) int { return cmp.Compare(a.Since, b.Since) })
		h.Since = v[last].Since
		j.joined.Holders = append(j.joined.Holders, h)
		j.joined.Mode = max(j.joined.Mode, p.Mode)
	}
	slices.SortStableFunc(j.joined.Holders, func(a, b Holder) int {
		return cmp.Compare(b.Known.Mode, a.Known.Mode)
	})
}

// inCharge reports whether claims queue on the home: it has a queue, or has voted for a holder, or nobody
// holds the lock.
func (j *join) inCharge(home *State) bool {
	return len(home.Waiters) > 0 || len(j.joined.Holders) == 0 ||
		slices.ContainsFunc(home.Holders, func(v Holder) bool { return j.holds(partyOf(v.Known)) })
}

// waiters lists the waiters: claims that are next and collect votes, and claims in the queue, unless they
// have a majority without the home. If several claims are of one party, it is withdrawing all but the last.
func (j *join) waiters(queue *State) {
	var all []Waiter
	for _, h := range queue.Holders {
		all = append(all, Waiter{Known: h.Known, Lease: h.Lease, Full: h.Full})
	}
	all = append(all, queue.Waiters...)
	last := make(map[Known]uint64, len(all))
	for _, w := range all {
		last[partyOf(w.Known)] = max(last[partyOf(w.Known)], w.Known.Number)
	}
	for _, w := range all {
		if p := partyOf(w.Known); w.Known.Number == last[p] && !j.holds(p) {
			j.joined.Waiters = append(j.joined.Waiters, w)
		}
	}
}
