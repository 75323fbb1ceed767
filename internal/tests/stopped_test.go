package tests

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A process that was stopped for longer than its lease while it waited queues up again when it goes on, and
// gets the lock in its turn, or at once if the lock has become free.
func TestStoppedWaiterQueuesUpAgain(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw := w.newLock()
		for _, freed := range []bool{false, true} {
			h := take(w, newOwner(), rw, write, "a")
			c := w.holder(mode)
			waitQueued(w, rw, "a", 1)
			c.signal(syscall.SIGSTOP)
			waitQueued(w, rw, "a", 0)
			if freed {
				unlock(w, h)
				c.signal(syscall.SIGCONT)
			} else {
				c.signal(syscall.SIGCONT)
				waitQueued(w, rw, "a", 1)
				unlock(w, h)
			}
			c.expect("held")
			_, err := rw.TryLock(context.Background(), "a")
			require.ErrorIs(w, err, rwlock.ErrLocked)
			c.send("unlock")
			c.expect("unlocked")
		}
	})
}
