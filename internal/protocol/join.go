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
	j := join{states: states, majority: len(states)/2 + 1, votes: make(map[party][]Holder)}
	j.count()
	j.holders()
	if q := j.queue(home); q != nil {
		j.waiters(q)
	}
	return j.joined
}

type join struct {
	states   []*State
	majority int
	missing  int // states
	votes    map[party][]Holder
	order    []party
	joined   State
}

// A party is who holds a lock, whatever the servers know its votes by.
type party struct {
	instance string
	owner    Owner
	mode     Mode
}

func partyOf(k Known) party { return party{k.Instance, k.Owner, k.Mode} }

// count lists who has which votes: one of each server, the last.
func (j *join) count() {
	for _, s := range j.states {
		if s == nil {
			j.missing++
			continue
		}
		j.joined.Token = max(j.joined.Token, s.Token)
		last := make(map[party]Holder, len(s.Holders))
		for _, h := range s.Holders {
			if of, ok := last[partyOf(h.Known)]; !ok || of.Number < h.Number {
				last[partyOf(h.Known)] = h
			}
		}
		for _, h := range s.Holders {
			p := partyOf(h.Known)
			if last[p] != h {
				continue
			}
			if j.votes[p] == nil {
				j.order = append(j.order, p)
			}
			j.votes[p] = append(j.votes[p], h)
		}
	}
}

// holds reports whether a majority may have voted for someone.
func (j *join) holds(p party) bool {
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
		h.Lease = v[last].Lease
		slices.SortFunc(v, func(a, b Holder) int { return cmp.Compare(b.Count, a.Count) })
		h.Count = v[last].Count
		slices.SortFunc(v, func(a, b Holder) int { return cmp.Compare(a.Since, b.Since) })
		h.Since = v[last].Since
		j.joined.Holders = append(j.joined.Holders, h)
		j.joined.Mode = max(j.joined.Mode, p.mode)
	}
	slices.SortStableFunc(j.joined.Holders, func(a, b Holder) int {
		return cmp.Compare(b.Known.Mode, a.Known.Mode)
	})
}

// queue returns the state of the server that keeps the queue.
func (j *join) queue(home int) (longest *State) {
	if home >= 0 && j.states[home] != nil && j.inCharge(j.states[home]) {
		return j.states[home]
	}
	for _, s := range j.states {
		if s != nil && (longest == nil || len(s.Waiters) > len(longest.Waiters)) {
			longest = s
		}
	}
	return longest
}

// inCharge reports whether claims queue on the home: it has a queue, or has voted for a holder, or nobody
// holds the lock.
func (j *join) inCharge(home *State) bool {
	return len(home.Waiters) > 0 || len(j.joined.Holders) == 0 ||
		slices.ContainsFunc(j.joined.Holders, func(h Holder) bool {
			return slices.ContainsFunc(home.Holders, func(v Holder) bool {
				return partyOf(v.Known) == partyOf(h.Known)
			})
		})
}

// waiters returns the waiters: claims that are next and collect votes, and claims in the queue, unless they
// have a majority without the home.
func (j *join) waiters(queue *State) {
	for _, h := range queue.Holders {
		if !j.holds(partyOf(h.Known)) {
			j.joined.Waiters = append(j.joined.Waiters, Waiter{Known: h.Known, Lease: h.Lease})
		}
	}
	for _, w := range queue.Waiters {
		if !j.holds(partyOf(w.Known)) {
			j.joined.Waiters = append(j.joined.Waiters, w)
		}
	}
}
