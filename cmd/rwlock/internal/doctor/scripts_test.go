package doctor

import (
	"fmt"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// The checks of scripts pass on a server that the locks work on.
func TestScriptsPass(t *testing.T) {
	t.Parallel()
	for _, f := range Scripts(t.Context(), testredis.Start(t).Client(), "rwlock") {
		require.Equal(t, OK, f.Status, "%+v", f)
	}
}

// A server whose scripts overlap loses counts.
func TestScriptsThatOverlapFail(t *testing.T) {
	t.Parallel()
	s := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	// Each second count begins where the one before began.
	var mu sync.Mutex
	n := 0
	s.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if cmd == "EVAL" {
			mu.Lock()
			n++
			s.Set(args[2], fmt.Sprint(n/2))
			c.WriteInt(n)
			mu.Unlock()
			return true
		}
		return false
	})
	f := isolation(t.Context(), client, "rwlock")
	require.Equal(t, Failed, f.Status)
	require.Equal(t, "scripts run at the same time: 100 of 200 counts were lost", f.Detail)
}

// Lua 5.3 and later calculate otherwise.
func TestOtherArithmeticIsAWarning(t *testing.T) {
	t.Parallel()
	client := answering(t, "EVAL", func(c *server.Peer) { c.WriteBulk("5.0 1763763763763764 3 11 4 true 8.0") })
	f := arithmetic(t.Context(), client, "rwlock")
	require.Equal(t, Warning, f.Status)
	require.NotEmpty(t, f.Advice)
}

// A script that may not send messages fails, and so do messages that get lost.
func TestScriptsThatDoNotPublishFail(t *testing.T) {
	t.Parallel()
	refused := answering(t, "EVAL", func(c *server.Peer) {
		c.WriteError(
			"ERR PUBLISH is not allowed in scripts")
	})
	lost := answering(t, "EVAL", func(c *server.Peer) { c.WriteInt(0) })
	for _, client := range []*redis.Client{refused, lost} {
		f := announcement(t.Context(), client, "rwlock")
		require.Equal(t, Failed, f.Status)
		require.NotEmpty(t, f.Advice)
	}
}

// answering returns a client of a server that answers a command with something of its own.
func answering(t *testing.T, command string, answer func(c *server.Peer)) *redis.Client {
	t.Helper()
	s := miniredis.RunT(t)
	s.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if cmd == command {
			answer(c)
		}
		return cmd == command
	})
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Servers that several take writes fail.
func TestActiveReplicationFails(t *testing.T) {
	t.Parallel()
	for _, i := range []info{
		{"replication": {"role": "active-replica"}},
		{"modules": {"module": "name=crdt,ver=1"}},
	} {
		f, active := replication(i)
		require.True(t, active)
		require.Equal(t, Failed, f.Status)
	}
	_, active := replication(info{"replication": {"role": "master"}, "modules": {"module": "name=search,ver=2"}})
	require.False(t, active)
}
