package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// queueUp has n readers, each an owner of its own, queue up by these RWLocks in turns.
func (w *world) queueUp(n int, name string, rws ...*rwlock.RWLock) []*call {
	w.Helper()
	waiting := len(inspect(w, rws[0], name).Waiters)
	var calls []*call
	for i := range n {
		calls = append(calls, w.launch(newOwner(), rws[i%len(rws)], read, name))
	}
	waitQueued(w, rws[0], name, waiting+n)
	return calls
}

// getInBy ends the test unless every call gets the lock soon after a moment, and none gets it before.
func (w *world) getInBy(at time.Time, calls []*call) {
	w.Helper()
	for i, c := range calls {
		c.granted()
		require.WithinRange(w, c.at, at.Add(-2*time.Millisecond), at.Add(w.slack), "call %d of %d", i+1, len(calls))
	}
}

// Readers that wait behind a writer whose process died all get in when its lease is over, however many they
// are, and whoever of them finds that out.
func TestCrowdBehindADeadWriterGetsInTogether(t *testing.T) {
	t.Parallel()
	inBubbleAndAlone(t, func(w *world) {
		mortal, plug := w.newMortal(rwlock.WithLease(w.lease))
		rws := []*rwlock.RWLock{w.newLock(rwlock.WithLease(quiet))}
		for _, name := range []string{"one process", "two processes"} {
			dead := take(w, newOwner(), mortal, write, name)
			calls := w.queueUp(600, name, rws...)
			plug.pull()
			w.getInBy(time.Now().Add(w.left(rws[0], dead)), calls)
			plug.mend()
			rws = append(rws, w.newLock(rwlock.WithLease(quiet)))
		}
	})
}

// Close finishes what its releases, and those just before it, began: every reader that waited gets in, not
// only those that the first steps let in.
func TestCloseFinishesTheStepsThatItsReleasesBegan(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unlocked", "held"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubbleAndAlone(t, func(w *world) {
				holder, rw := w.newLock(), w.newLock(rwlock.WithLease(quiet))
				h := take(w, newOwner(), holder, write, name)
				calls := w.queueUp(700, name, rw)
				start := time.Now()
				if name == "unlocked" {
					unlock(w, h)
				}
				require.NoError(w, holder.Close())
				w.getInBy(start, calls)
			})
		})
	}
}
