package tests

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A snapshot lists each hold of the RWLock, the oldest first: re-entries, readers, holds that nothing renews;
// and no hold of another RWLock.
func TestSnapshotListsHolds(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(rwlock.WithLabel("ours")), w.newLock()
		outer := take(w, newOwner(), rw, write, "a")
		time.Sleep(time.Second)
		inner := take(w, outer.Context(), rw, read, "a")
		time.Sleep(time.Second)
		again := take(w, outer.Context(), rw, write, "a")
		brief := take(w, newOwner(), rw, read, "b", rwlock.NoRenew())
		limited := take(w, newOwner(), rw, read, "c", rwlock.MaxHold(time.Hour))
		other := take(w, newOwner(), far, write, "d")

		s := rw.Snapshot()
		require.Equal(w, time.Now(), s.Time)
		require.Equal(w, w.prefix, s.Prefix)
		require.Equal(w, "ours", s.Label)
		require.Empty(w, s.Waits)
		require.Len(w, s.Holds, 5)
		for i, want := range []struct {
			h       *rwlock.Hold
			age     time.Duration
			renewed bool
		}{
			{outer, 2 * time.Second, true}, {inner, time.Second, true}, {again, 0, true}, {brief, 0, false}, {limited, 0, false},
		} {
			got := s.Holds[i]
			require.Equal(w, want.h.Name(), got.Name, "%d", i)
			require.Equal(w, want.h.Mode(), got.Mode)
			require.Equal(w, want.h.Owner(), got.Owner)
			require.Equal(w, want.h.Token(), got.Token)
			require.Equal(w, want.h.Deadline(), got.Deadline)
			require.Equal(w, want.age, s.Time.Sub(got.Since).Truncate(time.Second))
			require.Equal(w, want.renewed, got.Renewed)
			require.False(w, got.Forgotten)
		}
		unlock(w, inner, outer)
		s = rw.Snapshot()
		require.Len(w, s.Holds, 3)
		require.Equal(w, "a", s.Holds[0].Name)
		unlock(w, again, brief, limited, other)
	})
}

// A snapshot lists each lock call that waits, the oldest first: in the queue with who is in its way, and
// behind another call of its owner.
func TestSnapshotListsWaits(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		h := take(w, newOwner(), far, read, "a")
		owner := newOwner()
		first := w.enqueue(owner, rw, write, "a")
		time.Sleep(time.Second)
		reader := w.enqueue(newOwner(), rw, read, "a")
		time.Sleep(time.Second)
		behind := w.launch(owner, rw, write, "a")
		w.waits(behind)

		s := rw.Snapshot()
		require.Empty(w, s.Holds)
		require.Len(w, s.Waits, 3)
		for i, mode := range []rwlock.Mode{write, read, write} {
			require.Equal(w, "a", s.Waits[i].Name)
			require.Equal(w, mode, s.Waits[i].Mode)
			require.Equal(w, time.Duration(i)*time.Second, s.Waits[i].Since.Sub(s.Waits[0].Since).Truncate(time.Second))
		}
		require.Equal(w, s.Waits[0].Owner, s.Waits[2].Owner)
		require.Equal(w, h.Owner(), s.Waits[0].Blocked.Holder)
		require.Equal(w, read, s.Waits[0].Blocked.HeldIn)
		require.False(w, s.Waits[0].Blocked.Ours)
		require.Equal(w, 1, s.Waits[1].Blocked.Ahead)
		require.Nil(w, s.Waits[2].Blocked)

		unlock(w, h)
		unlock(w, first.granted(), behind.granted())
		unlock(w, reader.granted())
		require.Empty(w, rw.Snapshot().Waits)
	})
}

// A snapshot says where the program asked for each lock, whichever call it used.
func TestSnapshotSaysWhereALockWasAskedFor(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, ctx := w.newLock(), context.Background()
		_, _, line, _ := runtime.Caller(0)
		h, err := rw.Lock(ctx, "lock")
		require.NoError(w, err)
		r, err := rw.TryRLock(ctx, "rlock")
		require.NoError(w, err)
		require.NoError(w, rw.WithLock(ctx, "with", func(ctx context.Context, _ *rwlock.Hold) error {
			_, err := rwlock.RDo(ctx, rw, "do", func(ctx context.Context, _ *rwlock.Hold) (int, error) {
				return 0, rw.WithAll(ctx, []rwlock.Want{{Name: "all", Mode: read}}, func(context.Context, []*rwlock.Hold) error {
					lines := map[string]int{}
					for _, h := range rw.Snapshot().Holds {
						require.Equal(w, "snapshot_test.go", filepath.Base(h.Caller().File))
						require.Contains(w, h.Caller().Function, "tests.TestSnapshotSaysWhereALockWasAskedFor")
						lines[h.Name] = h.Caller().Line - line
					}
					require.Equal(w, map[string]int{"lock": 1, "rlock": 3, "with": 5, "do": 6, "all": 7}, lines)
					return nil
				})
			})
			return err
		}))
		waiting := w.launch(ctx, rw, write, "lock")
		w.waits(waiting)
		require.Equal(w, "world_test.go", filepath.Base(rw.Snapshot().Waits[0].Caller().File))
		unlock(w, h, r)
		unlock(w, waiting.granted())
		require.Zero(w, rwlock.LocalHold{}.Caller())
		require.Zero(w, rwlock.LocalWait{}.Caller())
	})
}

// A snapshot does not list a hold that was lost, though it was not released.
func TestSnapshotOfLostHold(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what a snapshot says")
		rw := w.newLock(rwlock.WithLease(w.lease))
		h := take(w, newOwner(), rw, write, "lost", rwlock.NoRenew())
		w.lostWhen(h)
		require.Empty(w, rw.Snapshot().Holds)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
	})
}

// A snapshot says of a hold that nothing refers to any more that it is forgotten.
func TestSnapshotOfForgottenHold(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rw := w.newLock()
		_ = take(w, newOwner(), rw, write, "forgotten", rwlock.Lease(hang))
		eventually(w, func() bool {
			runtime.GC()
			holds := rw.Snapshot().Holds
			return len(holds) == 1 && holds[0].Forgotten && !holds[0].Renewed
		}, "the forgotten hold")
		require.NoError(w, rw.ForceUnlock(context.Background(), "forgotten"))
		eventually(w, func() bool { return len(rw.Snapshot().Holds) == 0 }, "its end")
	})
}

// The snapshot of an RWLock that is closed, or was not made by New, is empty.
func TestSnapshotAfterClose(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "a")
		require.NoError(w, rw.Close())
		s := rw.Snapshot()
		require.Empty(w, s.Holds)
		require.Empty(w, s.Waits)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrClosed)
		for _, unmade := range []*rwlock.RWLock{nil, {}} {
			require.Empty(w, unmade.Snapshot().Holds)
		}
	})
}

// A monitor is attached when the RWLock is made, and detached when it is closed, after the last event.
type monitor struct {
	journal
	rw       *rwlock.RWLock
	detached int // how many events there were
}

func (m *monitor) Attach(rw *rwlock.RWLock) func() {
	m.rw = rw
	return func() { m.detached += len(m.of(rwlock.EventAcquired, rwlock.EventEnded)) }
}

func TestMonitorIsAttached(t *testing.T) {
	bubbled(t, func(w *world) {
		m := &monitor{}
		rw := w.newLock(rwlock.WithObserver(m), rwlock.WithMonitor(m))
		require.Same(w, rw, m.rw)
		h := take(w, newOwner(), rw, write, "a")
		require.Len(w, m.rw.Snapshot().Holds, 1)
		require.Zero(w, m.detached)
		require.NoError(w, rw.Close())
		require.NoError(w, rw.Close())
		require.Equal(w, 2, m.detached)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrClosed)
	})
}
