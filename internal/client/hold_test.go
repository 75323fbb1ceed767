package client

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A hold that is converted again and again does not keep what it was between.
func TestConversionsAreForgotten(t *testing.T) {
	t.Parallel()
	first := &Hold{}
	last := first
	for range 100 {
		next := &Hold{}
		last.next.Store(next)
		last = next
		require.Same(t, last, first.Current())
		require.Same(t, last, first.next.Load())
	}
}
