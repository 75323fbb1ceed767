package quorum

import (
	"slices"
	"time"
)

// noteTrip records how long an answer took. The shortest answer shows the round trip. A longer one may have
// waited for something else. If many are longer, the server is farther away than before.
func (q *Quorum) noteTrip(now time.Time, s *server, d time.Duration) {
	before := s.trip
	d = min(max(d, shortestPatience/2), longestTrip)
	if before == 0 || d < before {
		s.trip = d
	} else {
		s.trip += (d - before) / 8
	}
	if s.trip == before {
		return
	}
	q.patience = 2 * q.tripOfMajority()
	if before == 0 {
		for _, other := range q.servers {
			if other.trip == 0 && other.suspected && !other.failing {
				other.suspected = q.slow(now, other) // it may be as far away
			}
		}
	}
}

// tripOfMajority returns the longest round trip to the nearest majority, or to all servers that have answered
// if they are fewer.
func (q *Quorum) tripOfMajority() time.Duration {
	var trips []time.Duration
	for _, s := range q.servers {
		if s.trip > 0 {
			trips = append(trips, s.trip)
		}
	}
	slices.Sort(trips)
	return trips[min(q.majority, len(trips))-1]
}

// startPatience returns how long the first start waits.
func (q *Quorum) startPatience() time.Duration { return max(shortestStart, 2*q.patience) }
