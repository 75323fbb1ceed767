package dispatch

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A message that tells of a grant is new once, however many nodes bring it; one that asks to look again is
// new each time.
func TestEchoes(t *testing.T) {
	t.Parallel()
	var e echoes
	grant := func(i int) string { return fmt.Sprint("1753000000000000 0 ", i) }
	require.False(t, e.again(grant(1)))
	require.True(t, e.again(grant(1)))
	require.False(t, e.again("1753000000000001 0 1"), "the same claim, later")
	for range 3 {
		require.False(t, e.again(",1"))
		require.False(t, e.again("no message"))
	}
	for i := range 3 * mostEchoes {
		require.False(t, e.again(grant(10+i)))
		require.True(t, e.again(grant(10+i)))
		require.True(t, e.again(grant(10+max(0, i-mostEchoes+1))), "the last %d are known", mostEchoes)
	}
	require.Len(t, e.known, mostEchoes)
	require.Len(t, e.order, mostEchoes)
}
