package main

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect/connecttest"
)

// newCache returns a cache, and the key of an entry of the test's own.
func newCache(t *testing.T) (c cache, key string) {
	client, rw := connecttest.Open(t)
	return cache{client, rw}, t.Name() + rand.Text()
}

func constant(value string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return value, nil }
}

func TestMissingEntryIsQueriedOnce(t *testing.T) {
	t.Parallel()
	c, key := newCache(t)
	var queries atomic.Int64
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			value, err := c.get(t.Context(), key, func(context.Context) (string, error) {
				queries.Add(1)
				return "new", nil
			})
			assert.NoError(t, err)
			assert.Equal(t, "new", value)
		})
	}
	callers.Wait()
	assert.EqualValues(t, 1, queries.Load())
}

func TestUpdateDropsTheEntry(t *testing.T) {
	t.Parallel()
	c, key := newCache(t)
	data := "old"
	value, err := c.get(t.Context(), key, constant(data))
	require.NoError(t, err)
	assert.Equal(t, "old", value)

	require.NoError(t, c.update(t.Context(), key, func(context.Context) error { data = "new"; return nil }))
	value, err = c.get(t.Context(), key, constant(data))
	require.NoError(t, err)
	assert.Equal(t, "new", value)
}

// A reader that loses its lock during the query, and a write that comes before its refill.
func TestWhatWasReadBeforeTheLastWriteIsNotCached(t *testing.T) {
	t.Parallel()
	c, key := newCache(t)
	h, err := c.rw.RLock(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, c.rw.ForceUnlock(t.Context(), key))
	require.NoError(t, c.update(t.Context(), key, func(context.Context) error { return nil }))

	accepted, err := put.Run(t.Context(), c.client, []string{"cache:" + key}, h.Token(), "value", "old").Int()
	require.NoError(t, err)
	assert.Zero(t, accepted)
	_, err = c.cached(t.Context(), key)
	assert.ErrorIs(t, err, redis.Nil)
	assert.ErrorIs(t, h.Unlock(t.Context()), rwlock.ErrLost)
}
