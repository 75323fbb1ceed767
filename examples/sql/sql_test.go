package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect/connecttest"
)

func TestWriterThatLostItsLockChangesNothing(t *testing.T) {
	t.Parallel()
	_, rw := connecttest.Open(t)
	db, err := open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })

	err = deposit(t.Context(), rw, db, "alice", 50, func() {
		require.NoError(t, rw.ForceUnlock(t.Context(), "account:alice"))
		require.NoError(t, deposit(t.Context(), rw, db, "alice", 10, func() {}))
	})
	assert.ErrorIs(t, err, errStale)
	assert.ErrorIs(t, err, rwlock.ErrLost)

	balance, err := fenced(t.Context(), db, begin, 1<<62, "alice")
	require.NoError(t, err)
	assert.EqualValues(t, 110, balance)
}

func TestRowRefusesAnOlderTokenAsSoonAsALaterWriterHasBegun(t *testing.T) {
	t.Parallel()
	db, err := open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })

	_, err = fenced(t.Context(), db, begin, 5, "alice")
	require.NoError(t, err)
	_, err = fenced(t.Context(), db, begin, 7, "alice")
	require.NoError(t, err)
	_, err = fenced(t.Context(), db, commit, 5, "alice", 1)
	assert.ErrorIs(t, err, errStale)
	_, err = fenced(t.Context(), db, begin, 6, "alice")
	assert.ErrorIs(t, err, errStale)
	_, err = fenced(t.Context(), db, commit, 7, "alice", 2)
	assert.NoError(t, err)
}
