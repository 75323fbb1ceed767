package script_test

import (
	"context"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/verify/script"
)

// What a script replies, and what it leaves, is what EVAL makes of it.
func TestRunIsEval(t *testing.T) {
	t.Parallel()
	sources := map[string]string{
		"nothing": ``, "nil": `return nil`, "false": `return false`, "true": `return true`, "number": `return 3.7`,
		"text": "return 'a\\0b'",
		"list": `return {1, 'two', {3, false}, nil, 5}`, "empty list": `return {}`,
		"keys":          `return {KEYS[1], ARGV[1], #KEYS, #ARGV}`,
		"hash":          `redis.call('HSET', KEYS[1], 'f', 1) return redis.call('HMGET', KEYS[1], 'f', 'g')`,
		"status":        `return redis.call('SET', KEYS[1], 'v')`,
		"caught":        `redis.call('SET', KEYS[1], 'v') local e = redis.pcall('HGET', KEYS[1], 'f') return e.err and 'caught' or 'not caught'`,
		"error reply":   `return redis.error_reply('MINE it is')`,
		"error":         `redis.call('SET', KEYS[1], 'v') return redis.call('HGET', KEYS[1], 'f')`,
		"error in Lua":  `redis.call('SET', KEYS[1], 'v') error('no')`,
		"bad arguments": `return redis.call('SET', KEYS[1], {})`,
	}
	s, err := script.NewServer(sources)
	require.NoError(t, err)
	t.Cleanup(s.Mini.Close)
	evals := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: evals.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	for name, source := range sources {
		s.Mini.FlushAll()
		evals.FlushAll()
		want, wantErr := client.Eval(context.Background(), source, []string{"k"}, "a").Result()
		if wantErr == redis.Nil {
			wantErr = nil
		}
		got, err := s.Run(name, []string{"k"}, []string{"a"})
		assert.Equal(t, wantErr != nil, err != nil, "%s: %v and %v", name, wantErr, err)
		if err == nil {
			assert.Equal(t, want, got, name)
		} else {
			assert.Implements(t, (*redis.Error)(nil), err, name)
		}
		assert.Equal(t, evals.Dump(), s.Mini.Dump(), name)
	}
}

// Messages are those of the last run. A user who may not publish gets the error of the server.
func TestPublished(t *testing.T) {
	t.Parallel()
	s, err := script.NewServer(map[string]string{"publish": `redis.call('PUBLISH', ARGV[1], ARGV[2])`,
		"not": ``})
	require.NoError(t, err)
	t.Cleanup(s.Mini.Close)
	_, err = s.Run("publish", nil, []string{"c", "m"})
	require.NoError(t, err)
	assert.Equal(t, [][2]string{{"c", "m"}}, s.Published)
	_, err = s.Run("not", nil, nil)
	require.NoError(t, err)
	assert.Empty(t, s.Published)
	s.Mute = true
	_, err = s.Run("publish", nil, []string{"c", "m"})
	assert.ErrorContains(t, err, "NOPERM")
	assert.Empty(t, s.Published)
}
