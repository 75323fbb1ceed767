package vectors_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/vectors"
)

// Keys, fields, values, replies and messages are a contract between versions that run side by side, and with
// clients in other languages. Whoever changes them has to change the protocol's number, too.
func TestProtocolIsPinned(t *testing.T) {
	testredis.Each(t, func(t *testing.T, s testredis.Backend) {
		c := s.Client()
		if s.Real() {
			c = testredis.NewClient(t, testredis.Start(t).Addr())
		}
		p, err := vectors.NewPlayer(t.Context(), c)
		require.NoError(t, err)
		steps, err := vectors.All()
		require.NoError(t, err)
		require.Greater(t, len(steps), 300)
		for _, step := range steps {
			require.NoError(t, p.Replay(t.Context(), step))
		}
	})
}
