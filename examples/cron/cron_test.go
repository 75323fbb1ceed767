package main

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// newFleet returns two machines that share a server, and a job of theirs alone.
func newFleet(t *testing.T) (one, two machine, lock string) {
	client, closeAll, err := connect.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(closeAll)
	join := func(name string) machine {
		rw, err := rwlock.New(client, rwlock.WithLabel(name))
		require.NoError(t, err)
		t.Cleanup(func() { rw.Close() })
		return machine{name, client, rw}
	}
	return join("one"), join("two"), t.Name() + rand.Text()
}

func nothing(context.Context) error { return nil }

func TestLoserSaysWhoRunsTheJob(t *testing.T) {
	t.Parallel()
	one, two, lock := newFleet(t)
	outcome, err := one.once(t.Context(), lock, "monday", func(context.Context) error {
		outcome, err := two.once(t.Context(), lock, "monday", nothing)
		assert.NoError(t, err)
		assert.Equal(t, "left to one", outcome)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)
	assert.Equal(t, "another machine", two.runner(t.Context(), lock))
}

func TestJobRunsOnceASlot(t *testing.T) {
	t.Parallel()
	one, two, lock := newFleet(t)
	outcome, err := one.once(t.Context(), lock, "monday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)

	outcome, err = two.once(t.Context(), lock, "monday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "was done by one", outcome)

	outcome, err = two.once(t.Context(), lock, "tuesday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)
}

func TestJobThatFailedRunsAgain(t *testing.T) {
	t.Parallel()
	one, two, lock := newFleet(t)
	broken := errors.New("broken")
	_, err := one.once(t.Context(), lock, "monday", func(context.Context) error { return broken })
	require.ErrorIs(t, err, broken)

	outcome, err := two.once(t.Context(), lock, "monday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)
}
