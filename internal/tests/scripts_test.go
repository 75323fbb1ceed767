package tests

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/protocol"
	"github.com/seed-7e8842f7/rwlock/lua"
)

// scriptHash returns what EVALSHA names a script by.
func scriptHash(name string) string {
	for _, s := range lua.All {
		if s.Name == name {
			return s.SHA
		}
	}
	panic("no script " + name)
}

// loadScripts makes the server know all scripts.
func loadScripts(t *testing.T, c redis.Cmdable) {
	t.Helper()
	for _, s := range lua.All {
		require.NoError(t, c.ScriptLoad(context.Background(), s.Source).Err())
	}
}

// takeAsStranger takes a lock for writing as an instance that is not in this process. release releases it.
func takeAsStranger(t *testing.T, c *redis.Client, prefix, name string) (release func()) {
	t.Helper()
	r := protocol.Request{
		Script: lua.Lock, Keys: protocol.KeysOf(prefix, name), Channels: protocol.Channels(prefix), Lease: protocol.NewLease(30 * time.Second),
		Claim: protocol.NewClaim(protocol.Write, protocol.NewInstance(), 0, 1, protocol.Owner{Process: uuid.New(), Handle: 1}),
	}
	run := func() {
		t.Helper()
		args := append([]any{"eval", r.Script.Source}, r.Argv(nil)...)
		require.NoError(t, c.Do(context.Background(), args...).Err())
	}
	run()
	return func() {
		t.Helper()
		r.Script = lua.Unlock
		run()
	}
}
