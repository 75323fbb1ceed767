package deadlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/internal/puretest"
)

// A crowd is a graph with all its nodes.
type crowd struct {
	Graph
	now   uint64
	nodes []*Node
}

func (c *crowd) node(owner int, name string, m protocol.Mode) *Node {
	c.now++
	n := &Node{Owner: protocol.Owner{Handle: uint64(owner)}, Name: name, Mode: m, Number: c.now}
	c.nodes = append(c.nodes, n)
	return n
}

func (c *crowd) holds(owner int, name string, m protocol.Mode) *Node {
	n := c.node(owner, name, m)
	c.Hold(n, c.now)
	return n
}

// waits has a call wait. A reader is told that a writer goes first, if one waits.
func (c *crowd) waits(owner int, name string, m protocol.Mode) *Node {
	n := c.node(owner, name, m)
	c.asks(n, true)
	return n
}

func (c *crowd) asks(n *Node, behind bool) {
	c.now++
	c.Wait(n, c.now, c.now, behind)
}

func (c *crowd) leaves(n *Node) {
	c.Leave(n)
	c.nodes = slices.DeleteFunc(c.nodes, func(other *Node) bool { return other == n })
}

// blocks says in other words than the package which holds block which calls.
func (c *crowd) blocks(h, call *Node, certain bool) bool {
	switch {
	case h.state != holds || call.state != waits || h.Name != call.Name || h.Owner == call.Owner:
		return false
	case h.Mode == protocol.Write || call.Mode == protocol.Write:
		return true
	}
	first := call.lock.writers.First()
	switch {
	case first == nil:
		return false
	case first.node.since < call.asked && h.since < call.asked && !call.inDoubt():
		return call.behind
	default:
		return !certain
	}
}

// stuck returns the holds that are never released unless a call gives up: all but those that can be, again
// and again.
func (c *crowd) stuck(certain bool) map[*Node]bool {
	stuck := map[*Node]bool{}
	for _, h := range c.nodes {
		stuck[h] = h.state == holds
	}
	for before := -1; before != len(stuck); {
		before = len(stuck)
		for h := range stuck {
			calls := 0
			free := slices.ContainsFunc(c.nodes, func(call *Node) bool {
				if call.state != waits || call.Owner != h.Owner || call.Number <= h.since {
					return false
				}
				calls++
				return !slices.ContainsFunc(c.nodes, func(other *Node) bool {
					return stuck[other] && c.blocks(other, call, certain)
				})
			})
			if free || calls == 0 {
				delete(stuck, h)
			}
		}
	}
	return stuck
}

// reaches reports whether a path of stuck holds leads from a call to another.
func (c *crowd) reaches(from, to *Node, stuck map[*Node]bool, seen map[*Node]bool) bool {
	for h := range stuck {
		if seen[h] || !c.blocks(h, from, true) {
			continue
		}
		seen[h] = true
		for _, call := range c.nodes {
			if call.state == waits && call.Owner == h.Owner && call.Number > h.since &&
				(call == to || c.reaches(call, to, stuck, seen)) {
				return true
			}
		}
	}
	return false
}

// Whatever owners of one or several goroutines hold and wait for, Search fails a call only if it is in a
// deadlock; and once it was called for all, there is none.
func TestSearchFindsDeadlocksExactly(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, clock := &crowd{}, time.Unix(1e9, 0)
		owners, names := 2+r.IntN(4), 2+r.IntN(3)
		for range 120 {
			switch n := r.IntN(10); {
			case n < 6:
				o, name := 1+r.IntN(owners), fmt.Sprint("n", r.IntN(names))
				if slices.ContainsFunc(c.nodes, func(n *Node) bool {
					return n.Owner.Handle == uint64(o) && n.Name == name
				}) {
					continue
				}
				node := c.node(o, name, protocol.Mode(1+r.IntN(2)))
				if node.NewOwner = r.IntN(8) == 0; node.NewOwner {
					node.Owner.Handle = 100 + c.now
				}
				if r.IntN(2) == 0 {
					c.Hold(node, c.now)
				} else {
					c.asks(node, r.IntN(3) > 0)
				}
			case len(c.nodes) == 0:
			case n < 7:
				c.leaves(c.nodes[r.IntN(len(c.nodes))])
			case n < 8:
				c.Hold(c.nodes[r.IntN(len(c.nodes))], c.now)
			default:
				if n := c.nodes[r.IntN(len(c.nodes))]; n.state == waits {
					c.asks(n, r.IntN(3) > 0)
				}
			}
			for again := true; again; {
				again = false
				for _, n := range slices.Clone(c.nodes) {
					if n.state != waits {
						continue
					}
					doubtful, err := c.Search(clock, n)
					if err != nil {
						found++
						require.ErrorIs(t, err, ErrDeadlock)
						require.True(t, c.reaches(n, n, c.stuck(true), map[*Node]bool{}), "seed %d: %v", seed, err)
						c.leaves(n)
						again = true
					}
					for _, number := range doubtful {
						c.asks(c.nodes[slices.IndexFunc(c.nodes, func(n *Node) bool { return n.Number == number })],
							r.IntN(3) > 0)
						again = true
					}
				}
			}
			require.Empty(t, c.stuck(true), "seed %d: a deadlock that was not found", seed)
		}
		for _, n := range c.nodes {
			c.Leave(n)
		}
		require.Empty(t, c.owners)
		require.Empty(t, c.Graph.locks)
	}
	require.Greater(t, found, 50)
}

// readersAndQueue has n owners read X and wait to write Y, n others read Y and wait for Q, and one hold Z and
// wait for X. Z is waited for.
func readersAndQueue(n int) (c *crowd, last *Node) {
	c = &crowd{}
	for i := range n {
		c.holds(i, "X", protocol.Read)
		c.holds(n+i, "Y", protocol.Read)
	}
	c.holds(2*n, "Z", protocol.Write)
	c.waits(2*n+1, "Z", protocol.Write)
	for i := range n {
		c.waits(n+i, "Q", protocol.Write)
		c.waits(i, "Y", protocol.Write)
	}
	return c, c.waits(2*n, "X", protocol.Write)
}

// The package has no goroutine, mutex, clock, context or network.
func TestGraphIsPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t, "internal/order", "internal/protocol")
}

// A search looks at each hold and call a few times, however many calls each hold blocks.
func TestSearchIsLinear(t *testing.T) {
	t.Parallel()
	const n = 1000
	c, last := readersAndQueue(n)
	for _, node := range c.nodes {
		if node.state != waits {
			continue
		}
		doubtful, err := c.Search(time.Time{}, node)
		require.NoError(t, err)
		require.Empty(t, doubtful)
		require.LessOrEqual(t, mostVisits-c.search.visits, 8*n+10)
		require.NotZero(t, node.mark.searched, "it has come to an end")
	}
	visits := c.search.visits
	require.Less(t, visits, mostVisits-4*n, "it was a large one")
	_, err := c.Search(time.Time{}, last)
	require.NoError(t, err)
	require.Equal(t, visits, c.search.visits, "nothing has happened since")
}

// A search that is too large ends, and does not begin again before a pause. What it did not find is found
// once it is not too large.
func TestLargeSearchIsBounded(t *testing.T) {
	t.Parallel()
	c, last := readersAndQueue(mostVisits)
	c.holds(2*mostVisits+2, "Q", protocol.Write)
	c.waits(2*mostVisits+2, "Z", protocol.Write)
	search := func(now time.Time) error {
		doubtful, err := c.Search(now, last)
		require.Empty(t, doubtful)
		return err
	}
	now := time.Unix(1e9, 0)
	require.NoError(t, search(now))
	visits := c.search.visits
	require.InDelta(t, 0, visits, 5)
	for _, n := range c.nodes[:2*mostVisits-20] {
		c.Leave(n)
	}
	require.NoError(t, search(now.Add(pause-1)))
	require.Equal(t, visits, c.search.visits, "it did not begin")
	err := search(now.Add(pause))
	require.ErrorIs(t, err, ErrDeadlock)
	require.Equal(t, 3, strings.Count(err.Error(), ";"), err)
}

// The error names a few dozen of a cycle's owners.
func TestLongCycleIsCutShort(t *testing.T) {
	t.Parallel()
	const n = 500
	c := &crowd{}
	for i := range n {
		c.holds(i, fmt.Sprint(i), protocol.Write)
	}
	for i := range n {
		_, err := c.Search(time.Time{}, c.waits(i, fmt.Sprint((i+1)%n), protocol.Write))
		if i < n-1 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("; and %d more", n-mostParts))
			require.Less(t, len(err.Error()), 100*mostParts)
		}
	}
}

func BenchmarkLargeSearch(b *testing.B) {
	c, last := readersAndQueue(1000)
	for b.Loop() {
		last.mark.searched = 0
		_, _ = c.Search(time.Time{}, last)
	}
	b.ReportMetric(float64(mostVisits-c.search.visits), "visits/op")
}
