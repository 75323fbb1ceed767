package dispatch

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Why the dispatcher uses the client itself, and no copy with a shorter timeout: a copy does not run the
// client's hooks, so one that edits keys would be left out. If this fails, the client has changed, and
// docs/design.md may, too.
func TestCopyWithATimeoutLosesTheHooks(t *testing.T) {
	t.Parallel()
	dials := 0
	client := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			dials++
			return nil, errDown
		},
	})
	defer client.Close()
	hook := &server{} // it answers in place of a server
	client.AddHook(hook)

	require.NoError(t, client.Do(t.Context(), "PING").Err())
	require.Len(t, hook.came, 1)
	require.Zero(t, dials)

	short := client.WithTimeout(time.Second)
	require.ErrorIs(t, short.Do(t.Context(), "PING").Err(), errDown)
	_, err := short.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Do(t.Context(), "PING").Err() })
	require.ErrorIs(t, err, errDown)
	require.Len(t, hook.came, 1, "the copy has run the hook")
}
