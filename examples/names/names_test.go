package main

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect/connecttest"
)

func newBank(t *testing.T) *bank {
	_, rw := connecttest.Open(t)
	return &bank{rw, map[string]*int{"alice": new(100), "bob": new(100), "limit": new(50)}}
}

// The race detector, too, finds whether the locks guard the balances.
func TestTransfersInOppositeDirectionsKeepTheSum(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { assert.NoError(t, b.transfer(t.Context(), "alice", "bob", 3)) })
		wg.Go(func() { assert.NoError(t, b.transfer(t.Context(), "bob", "alice", 1)) })
	}
	wg.Wait()
	assert.Equal(t, 80, *b.balances["alice"])
	assert.Equal(t, 120, *b.balances["bob"])
	assert.Error(t, b.transfer(t.Context(), "alice", "bob", 51))
	assert.Equal(t, 80, *b.balances["alice"])
}

func TestLocksTakenOneByOneCanDeadlock(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	var bothHaveOne, wg sync.WaitGroup
	bothHaveOne.Add(2)
	meet := func() { bothHaveOne.Done(); bothHaveOne.Wait() }
	var ab, ba error
	wg.Go(func() { ab = b.oneByOne(t.Context(), "alice", "bob", meet) })
	wg.Go(func() { ba = b.oneByOne(t.Context(), "bob", "alice", meet) })
	wg.Wait()
	if ab == nil {
		ab, ba = ba, ab
	}
	require.ErrorIs(t, ab, rwlock.ErrDeadlock)
	assert.NoError(t, ba, "the other call goes on")
}
