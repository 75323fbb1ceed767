package tests

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// shutDown calls Shutdown on a goroutine of its own.
func (w *world) shutDown(ctx context.Context, rw *rwlock.RWLock) *call {
	c := &call{w: w, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = rw.Shutdown(ctx)
		c.at = time.Now()
	}()
	eventually(w, func() bool {
		h, err := rw.TryLock(newOwner(), "probe")
		if err == nil {
			unlock(w, h)
		}
		return err != nil
	}, "Shutdown")
	return c
}

// Shutdown refuses new calls, ends waiting ones at once, and waits for the holds, which are renewed and may
// be re-entered.
func TestShutdownWaitsForTheHolds(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what Shutdown waits for")
		rw, other := w.newLock(rwlock.WithLease(w.lease)), w.newLock()
		wr, r := take(w, newOwner(), rw, write, "w"), take(w, newOwner(), rw, read, "r")
		waiting := []*call{w.enqueue(newOwner(), rw, read, "w"), w.enqueue(newOwner(), rw, write, "r")}
		behind := []*call{w.enqueue(newOwner(), other, write, "w"), w.enqueue(newOwner(), other, write, "r")}
		start := time.Now()
		down := w.shutDown(context.Background(), rw)
		for _, c := range waiting {
			_, err := c.wait()
			require.ErrorIs(w, err, rwlock.ErrClosed)
			w.within(w.prompt, start, c.at)
		}
		time.Sleep(2 * w.lease)
		for name, call := range everyCall {
			if err := call(newOwner(), rw); name != "Inspect" && name != "ForceUnlock" {
				require.ErrorIs(w, err, rwlock.ErrClosed, name)
			}
		}
		require.NoError(w, wr.Context().Err())
		unlock(w, take(w, wr.Context(), rw, write, "w"), take(w, wr.Context(), rw, read, "w"), take(w, r.Context(), rw, read, "r"))
		require.ErrorIs(w, errOf(rw.Lock(r.Context(), "r")), rwlock.ErrUpgrade)
		require.ErrorIs(w, errOf(rw.Lock(r.Context(), "w")), rwlock.ErrClosed)
		require.NoError(w, wr.Extend(context.Background(), 2*w.lease))
		unlock(w, wr)
		unlock(w, behind[0].granted())
		require.ErrorIs(w, errOf(rw.Lock(rwlock.WithOwner(context.Background(), wr.Owner()), "w")), rwlock.ErrClosed)
		w.waits(down)
		unlock(w, r)
		_, err := down.wait()
		require.NoError(w, err)
		unlock(w, behind[1].granted())
		require.ErrorIs(w, errOf(rw.Inspect(newOwner(), "n")), rwlock.ErrClosed)
		require.NoError(w, rw.Shutdown(context.Background()))
		require.NoError(w, rw.Close())
	})
}

// Shutdown of what nobody holds returns at once, though its context is done.
func TestShutdownWithoutHolds(t *testing.T) {
	everywhere(t, func(w *world) {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		for _, ctx := range []context.Context{context.Background(), done} {
			rw, start := w.newLock(), time.Now()
			require.NoError(w, rw.Shutdown(ctx))
			w.within(w.prompt, start, time.Now())
			require.ErrorIs(w, errOf(rw.Lock(newOwner(), "n")), rwlock.ErrClosed)
		}
	})
}

// When its context ends first, Shutdown closes at once: the holds are released, and end with ErrClosed.
func TestShutdownThatRunsOutOfTime(t *testing.T) {
	everywhere(t, func(w *world) {
		w.ours("what Shutdown waits for")
		rw, other := w.newLock(), w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		next := w.enqueue(newOwner(), other, write, "n")
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), w.lease)
		defer cancel()
		err := rw.Shutdown(ctx)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.Regexp(w, `^rwlock: shutdown: context deadline exceeded after [0-9.]+s: 1 holds were not released$`, err.Error())
		w.within(w.lease+w.prompt, start, time.Now())
		require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrClosed)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrClosed)
		unlock(w, next.granted())
	})
}

// Shutdown waits neither for holds that were lost nor for those that end with their lease, longer than for
// that.
func TestShutdownDoesNotWaitForLostHolds(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		lost := take(w, newOwner(), rw, write, "lost", rwlock.NoRenew(), rwlock.Lease(time.Second))
		w.lostWhen(lost)
		start := time.Now()
		brief := take(w, newOwner(), rw, write, "brief", rwlock.NoRenew())
		require.NoError(w, rw.Shutdown(context.Background()))
		require.Equal(w, w.lease-margin(w.lease), time.Since(start))
		require.ErrorIs(w, brief.Unlock(context.Background()), rwlock.ErrLost)
		require.ErrorIs(w, lost.Unlock(context.Background()), rwlock.ErrLost)
	})
}

// Shutdown returns at once when nothing is held, though the server does not answer: neither what has become
// of lost holds and of calls that failed matters, nor, for longer than Close waits or ctx lasts, a release
// that has no answer.
func TestShutdownWithoutAServer(t *testing.T) {
	t.Parallel()
	states := map[string]struct {
		build func(w *world, rw *rwlock.RWLock, begin func())
		fails bool
	}{
		"lost": {build: func(w *world, rw *rwlock.RWLock, begin func()) {
			h := take(w, newOwner(), rw, write, "n")
			begin()
			w.lostWhen(h)
		}},
		"lost and unlocked": {build: func(w *world, rw *rwlock.RWLock, begin func()) {
			h := take(w, newOwner(), rw, write, "n")
			begin()
			w.lostWhen(h)
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}},
		"a call has failed": {build: func(w *world, rw *rwlock.RWLock, begin func()) {
			begin()
			require.Error(w, errOf(rw.Lock(newOwner(), "n", rwlock.MaxWait(time.Second))))
		}},
		"a call waits": {build: func(w *world, rw *rwlock.RWLock, begin func()) {
			begin()
			w.launch(newOwner(), rw, write, "n")
			time.Sleep(time.Second)
		}},
		"unlocked": {fails: true, build: func(w *world, rw *rwlock.RWLock, begin func()) {
			h := take(w, newOwner(), rw, write, "n")
			begin()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			require.ErrorIs(w, h.Unlock(ctx), context.DeadlineExceeded)
		}},
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			eachOutage(t, func(w *world, rw *rwlock.RWLock, begin, _ func()) {
				state.build(w, rw, begin)
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				start := time.Now()
				err := rw.Shutdown(ctx)
				if state.fails {
					require.ErrorIs(w, err, context.DeadlineExceeded)
					require.ErrorContains(w, err, "1 holds end with their leases")
					w.within(4*time.Second, start, time.Now())
				} else {
					require.NoError(w, err)
					w.within(time.Second, start, time.Now())
				}
			})
		})
	}
}

// Close ends a Shutdown that waits, and several may shut down at a time.
func TestCloseEndsShutdown(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := rw.Shutdown(context.Background()); err != nil {
					w.Error(err)
				}
			})
		}
		time.Sleep(time.Hour)
		require.NoError(w, h.Context().Err())
		require.NoError(w, rw.Close())
		wg.Wait()
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrClosed)
	})
}

// Calls that race Shutdown get the lock, for which it then waits, or ErrClosed; nothing is lost, and nothing
// stays.
func TestShutdownRacesCalls(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		for range 5 {
			rw := w.newLock()
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					for {
						err := rw.WithLock(newOwner(), "n", func(ctx context.Context, h *rwlock.Hold) error {
							time.Sleep(10 * time.Microsecond)
							unlock(w, take(w, ctx, rw, bothModes[i%2], "n"))
							return context.Cause(ctx)
						})
						if err != nil {
							require.ErrorIs(w, err, rwlock.ErrClosed)
							return
						}
					}
				})
			}
			time.Sleep(5 * time.Millisecond)
			require.NoError(w, rw.Shutdown(context.Background()))
			wg.Wait()
			w.requireClean()
		}
	})
}
