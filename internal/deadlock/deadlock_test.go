package deadlock

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/puretest"
)

// A call waits for the lock that has its number. Its owner has its number, too. 0 is no call.
type call int

func (c call) Waits() (protocol.Owner, string) {
	return protocol.Owner{Handle: uint64(c)}, fmt.Sprint(int(c))
}

// A graph has, for each call, the calls that it waits for, and 0 for each other hold of the lock.
type graph struct {
	holds  map[call][]call
	visits int
}

func (g *graph) blockers(c call) iter.Seq[call] {
	return func(yield func(call) bool) {
		for _, by := range g.holds[c] {
			if g.visits++; !yield(by) {
				return
			}
		}
	}
}

// distances returns how many steps it takes from each call to each other, and to itself. Those that cannot be
// reached are missing. It goes the simple way, which takes longer than Search may.
func (g *graph) distances(calls int) map[[2]call]int {
	all := map[[2]call]int{}
	for from, list := range g.holds {
		for _, to := range list {
			if to != 0 {
				all[[2]call{from, to}] = 1
			}
		}
	}
	for via := call(1); via <= call(calls); via++ {
		for from := call(1); from <= call(calls); from++ {
			for to := call(1); to <= call(calls); to++ {
				a, b, c := all[[2]call{from, via}], all[[2]call{via, to}], all[[2]call{from, to}]
				if a > 0 && b > 0 && (c == 0 || a+b < c) {
					all[[2]call{from, to}] = a + b
				}
			}
		}
	}
	return all
}

// cycleOf reads a cycle from the error that describes it. Each call waits for a lock that the owner of the
// next one holds.
func cycleOf(t *testing.T, err error) (cycle []call) {
	t.Helper()
	var helds []string
	for part := range strings.SplitSeq(strings.TrimPrefix(err.Error(), ErrDeadlock.Error()+": "), "; ") {
		var owner, held, waited string
		_, scanErr := fmt.Sscanf(part, "%s holds %q and waits for %q", &owner, &held, &waited)
		require.NoError(t, scanErr, part)
		n, scanErr := strconv.Atoi(waited)
		require.NoError(t, scanErr, part)
		by, _ := call(n).Waits()
		require.Equal(t, by.String(), owner)
		cycle, helds = append(cycle, call(n)), append(helds, held)
	}
	for i, c := range cycle {
		require.Equal(t, helds[(i+1)%len(cycle)], fmt.Sprint(int(c)), "the next one holds what it waits for")
	}
	return cycle
}

// Search finds a cycle exactly if there is one through the call, and describes one of the shortest.
func TestSearchFindsTheShortestCycle(t *testing.T) {
	t.Parallel()
	found, missing := 0, 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 2 + r.IntN(12)
		g := &graph{holds: map[call][]call{}}
		for range r.IntN(2 * n) {
			from := call(1 + r.IntN(n))
			g.holds[from] = append(g.holds[from], call(r.IntN(n+1)))
		}
		all := g.distances(n)
		for from := call(1); from <= call(n); from++ {
			err := Search(from, g.blockers)
			length := all[[2]call{from, from}]
			if length == 0 {
				missing++
				require.NoError(t, err, "seed %d: from %d in %v", seed, from, g.holds)
				continue
			}
			found++
			require.ErrorIs(t, err, ErrDeadlock, "seed %d: from %d in %v", seed, from, g.holds)
			cycle := cycleOf(t, err)
			require.Len(t, cycle, length)
			require.Equal(t, from, cycle[0], "it begins with the call that has completed it")
			for i, c := range cycle {
				require.Contains(t, g.holds[c], cycle[(i+1)%length], "seed %d: %v in %v", seed, err, g.holds)
			}
		}
	}
	require.Greater(t, found, 1000)
	require.Greater(t, missing, 1000)
}

// A search looks at mostVisits holds, and finds a cycle of as many. Holds whose owners do not wait count.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		holds int
		found bool
	}{{mostVisits, true}, {mostVisits + 1, false}, {100 * mostVisits, false}} {
		for _, idle := range []int{0, 1, mostVisits / 2} {
			g := &graph{holds: map[call][]call{1: make([]call, idle)}}
			last := call(test.holds - idle)
			for c := call(1); c <= last; c++ {
				g.holds[c] = append(g.holds[c], c%last+1)
			}
			err := Search(1, g.blockers)
			require.Equal(t, test.found, err != nil, "%d holds, %d of them idle", test.holds, idle)
			require.LessOrEqual(t, g.visits, mostVisits+1)
		}
	}
}

// The error names a few dozen owners of a cycle, and the beginnings of long names.
func TestLongCycleIsCutShort(t *testing.T) {
	t.Parallel()
	const n = 500
	g := &graph{holds: map[call][]call{}}
	for c := call(1); c <= n; c++ {
		g.holds[c] = []call{c%n + 1}
	}
	err := Search(1, g.blockers)
	require.ErrorContains(t, err, fmt.Sprintf("; and %d more", n-mostParts))
	require.Equal(t, mostParts, strings.Count(err.Error(), "waits for"))
	require.Equal(t, `"`+strings.Repeat("n", mostShown)+`"…`, quote(strings.Repeat("n", mostShown+1)))
	require.Equal(t, `"a\n"`, quote("a\n"))
}

// The package has no goroutine, mutex, clock, context or network.
func TestSearchIsPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t, "internal/protocol")
}

func BenchmarkLargestSearch(b *testing.B) {
	g := &graph{holds: map[call][]call{}}
	for c := call(1); c <= 40; c++ {
		for to := call(2); to <= 41; to++ {
			g.holds[c] = append(g.holds[c], to)
		}
	}
	for b.Loop() {
		if Search(1, g.blockers) != nil {
			b.Fatal("there is no cycle through the first call")
		}
	}
}
