package rwlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A grant whose owner does not run, as in a process that is starved or paused, is given back when it can no longer be
// relied on.
func TestGrantThatNobodyTakesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rw, err := New(testredis.MemClient(t, testredis.Mem(t)))
		require.NoError(t, err)
		defer rw.Close()
		for _, mode := range []Mode{Write, Read} {
			rw.mu.Lock()
			c := rw.use("n").ownership(NewOwner()).newClaim(mode, time.Second, false)
			ask := c.ask()
			rw.mu.Unlock()
			rw.pipe.send(ask)
			requireState(t, c, held)
			time.Sleep(time.Second)
			requireState(t, c, ended)
			h, err := rw.TryLock(context.Background(), "n")
			require.NoError(t, err)
			require.NoError(t, h.Unlock(context.Background()))
		}
	})
}

// Once Unlock has returned, the context is done, though another goroutine has found out that the hold is lost, and has yet
// to cancel it.
func TestContextIsDoneOnceUnlockHasReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rw, err := New(testredis.MemClient(t, testredis.Mem(t)))
		require.NoError(t, err)
		defer rw.Close()
		h, err := rw.Lock(context.Background(), "n")
		require.NoError(t, err)
		ctx := h.Context()
		var b batch
		rw.mu.Lock()
		h.claim.lose(&b)
		rw.mu.Unlock()
		require.NoError(t, ctx.Err())
		require.ErrorIs(t, h.Unlock(context.Background()), ErrLost)
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		rw.run(&b)
	})
}

func requireState(t *testing.T, c *claim, want state) {
	t.Helper()
	synctest.Wait()
	c.rw().mu.Lock()
	defer c.rw().mu.Unlock()
	require.Equal(t, want, c.state)
}
