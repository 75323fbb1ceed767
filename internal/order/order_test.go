package order

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/puretest"
)

func TestOrderIsPure(t *testing.T) {
	t.Parallel()
	puretest.Check(t)
}

type item struct {
	Place
	Link[item]
}

func TestTimelineHasItemsInTheOrderInWhichTheyAreDue(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rng := rand.New(rand.NewPCG(1, 2))
	var line Timeline[*item]
	var items []*item
	for i := range 2 * most {
		x := &item{Place: Place{Tie: uint64(i)}}
		items = append(items, x)
		line.Set(x, start)
	}
	for _, x := range items {
		line.Set(x, start.Add(time.Duration(rng.IntN(100))))
	}
	for _, x := range items[:most/2] {
		line.Remove(x)
		line.Remove(x) // it is not there any more
		require.False(t, x.Placed())
	}
	left := slices.Clone(items[most/2:])
	require.ElementsMatch(t, left, line.All())
	slices.SortFunc(left, func(a, b *item) int {
		if c := line.Due(a).Compare(line.Due(b)); c != 0 {
			return c
		}
		return int(a.Tie) - int(b.Tie)
	})
	for _, x := range left {
		require.Same(t, x, line.First())
		at, ok := line.Next()
		require.True(t, ok)
		require.Equal(t, line.Due(x), at)
		line.Remove(x)
	}
	require.Empty(t, line.All())
	require.Zero(t, cap(line.heap), "a crowd leaves no memory behind")
	_, ok := line.Next()
	require.False(t, ok)
}

func TestZeroTimeIsNever(t *testing.T) {
	t.Parallel()
	never, first, second := time.Time{}, time.Unix(1, 0), time.Unix(2, 0)
	for _, c := range [][3]time.Time{{never, never, never}, {never, first, first}, {first, second, first}} {
		require.Equal(t, c[2], Earlier(c[0], c[1]))
		require.Equal(t, c[2], Earlier(c[1], c[0]))
	}
	require.Equal(t, second, Later(first, second))
	require.Equal(t, second, Later(second, never))
}

func TestListHasItemsInTheOrderInWhichTheyWereAdded(t *testing.T) {
	t.Parallel()
	var l List[item, *item]
	require.Nil(t, l.First())
	var items []*item
	for range 5 {
		items = append(items, &item{})
		l.PushBack(items[len(items)-1])
	}
	for _, i := range []int{2, 0, 4} { // in the middle, the first, the last
		l.Remove(items[i])
	}
	l.PushBack(items[0])
	require.Equal(t, 3, l.Len())
	for x := range l.All() {
		l.Remove(x)
		l.PushBack(x)
		if x == items[0] {
			break
		}
	}
	require.Same(t, items[1], l.First())
	require.Equal(t, []*item{items[1], items[3], items[0]}, slices.Collect(l.All()))
}

func TestShrinkGivesBackWhatAFewEntriesDoNotNeed(t *testing.T) {
	t.Parallel()
	m, n := map[int]int{}, 0
	for i := range 2 * most {
		m[i] = i
		n = len(m)
	}
	old := m
	for i := range 2*most - 1 {
		delete(m, i)
		Shrink(&m, &n)
	}
	require.Equal(t, map[int]int{2*most - 1: 2*most - 1}, m)
	require.Less(t, n, 100)
	require.NotEqual(t, len(m), len(old), "there is another map")
}
