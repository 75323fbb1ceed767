package otelrwlock

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A call that waited in vain for a majority is counted as that, also if its time limit ended it.
func TestOutcomeWithoutAMajority(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"no_majority": fmt.Errorf("%w: %w", context.DeadlineExceeded, rwlock.ErrNoMajority),
		"timeout":     fmt.Errorf("%w: held", context.DeadlineExceeded),
		"error":       errors.New("refused"),
	} {
		require.Equal(t, want, outcomeOf(rwlock.Event{Kind: rwlock.EventRefused, Err: err}))
	}
}
