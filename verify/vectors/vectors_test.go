package vectors_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
	"github.com/seed-7e8842f7/rwlock/verify/vectors"
)

var update = flag.Bool("update", false, "write to vectors.jsonl what comes of the steps there, on a real server")

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
		require.Greater(t, len(steps), 1000)
		if *update {
			if s.Real() {
				rewrite(t, p, steps)
			}
			return
		}
		for _, step := range steps {
			require.NoError(t, p.Replay(t.Context(), step))
		}
	})
}

// rewrite writes the steps again, with what comes of them now. A step that has an outcome without a state
// stays without: it only leads somewhere.
func rewrite(t *testing.T, p *vectors.Player, steps []vectors.Step) {
	f, err := os.Create("vectors.jsonl")
	require.NoError(t, err)
	out := json.NewEncoder(f)
	out.SetEscapeHTML(false)
	for _, step := range steps {
		o, err := p.Play(t.Context(), step)
		require.NoError(t, err)
		if step.Reply != nil && step.State == nil {
			o.State = nil
		}
		step.Outcome = o
		require.NoError(t, out.Encode(step))
	}
	require.NoError(t, f.Close())
}
