package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/examples/internal/connect"
)

// newFleet returns two machines that share a server.
func newFleet(t *testing.T) (one, two machine) {
	client, closeAll, err := connect.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(closeAll)
	join := func() machine {
		rw, err := rwlock.New(client)
		require.NoError(t, err)
		t.Cleanup(func() { rw.Close() })
		return machine{client, rw, rwlock.NewOwner()}
	}
	return join(), join()
}

func nothing(context.Context) error { return nil }

func TestLoserSaysWhoRunsTheJob(t *testing.T) {
	t.Parallel()
	one, two := newFleet(t)
	outcome, err := one.once(t.Context(), t.Name(), "monday", func(context.Context) error {
		outcome, err := two.once(t.Context(), t.Name(), "monday", nothing)
		assert.NoError(t, err)
		assert.Equal(t, "left to "+one.owner.String(), outcome)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)
}

func TestJobRunsOnceASlot(t *testing.T) {
	t.Parallel()
	one, two := newFleet(t)
	outcome, err := one.once(t.Context(), t.Name(), "monday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)

	outcome, err = two.once(t.Context(), t.Name(), "monday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "was done by "+one.owner.String(), outcome)

	outcome, err = two.once(t.Context(), t.Name(), "tuesday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)
}

func TestJobThatFailedRunsAgain(t *testing.T) {
	t.Parallel()
	one, two := newFleet(t)
	broken := errors.New("broken")
	_, err := one.once(t.Context(), t.Name(), "monday", func(context.Context) error { return broken })
	require.ErrorIs(t, err, broken)

	outcome, err := two.once(t.Context(), t.Name(), "monday", nothing)
	require.NoError(t, err)
	assert.Equal(t, "done", outcome)
}
