package rwlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// unshare makes rw the only one that has to do with a lock, which is all in one key from then on.
func (w *world) unshare(rw *rwlock.RWLock, mode rwlock.Mode, name string) {
	w.Helper()
	unlock(w, take(w, newOwner(), rw, mode, name))
	time.Sleep(2 * time.Millisecond) // a token is a time: in a bubble, that goes on only by sleep
	sole, err := w.dial().Get(context.Background(), w.prefix+":{"+name+"}:sole").Result()
	require.NoError(w, err)
	require.Contains(w, sole, " free ")
}

// Whoever comes to a lock that one process has had to itself finds its holder, waits for it, and is let in when it
// releases; readers are let in among readers.
func TestOthersMeetTheHolderOfAnUnsharedLock(t *testing.T) {
	everywhere(t, func(w *world) {
		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			rw, far := w.newLock(), w.newLock()
			w.unshare(rw, mode, name)
			h := take(w, newOwner(), rw, mode, name)
			s := inspect(w, far, name)
			require.Len(w, s.Holders, 1)
			require.Equal(w, h.Owner().String(), s.Holders[0].Owner)
			require.Equal(w, mode, s.Holders[0].Mode)
			require.Positive(w, s.Holders[0].Lease)
			require.Equal(w, h.Token(), s.Token)

			_, err := far.TryLock(newOwner(), name)
			require.ErrorIs(w, err, rwlock.ErrLocked)
			require.ErrorContains(w, err, h.Owner().String())
			reader, err := far.TryRLock(newOwner(), name)
			if mode == read {
				require.NoError(w, err)
				unlock(w, reader)
			} else {
				require.ErrorIs(w, err, rwlock.ErrLocked)
			}
			first, second := w.enqueue(newOwner(), far, write, name), w.enqueue(newOwner(), rw, read, name)
			require.NoError(w, h.Context().Err())
			unlock(w, h)
			if mode == read {
				require.Greater(w, first.granted().Token(), h.Token())
				unlock(w, first.hold)
				unlock(w, second.granted())
			} else { // which readers are owed the phase after
				unlock(w, second.granted())
				require.Greater(w, first.granted().Token(), h.Token())
				unlock(w, first.hold)
			}
			unlock(w, take(w, newOwner(), rw, mode, name), take(w, newOwner(), far, read, "other"))
		}
	})
}

// The hold of a lock that one process has to itself is kept alive, re-entered, read under, and dropped by force, as any.
func TestHoldOfAnUnsharedLock(t *testing.T) {
	everywhere(t, func(w *world) {
		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			const lease = 1500 * time.Millisecond
			rw, far := w.newLock(rwlock.WithLease(lease)), w.newLock()
			for _, then := range []func(h *rwlock.Hold){
				func(h *rwlock.Hold) {
					<-time.After(lease * 3 / 2)
					require.NoError(w, h.Context().Err())
					require.Positive(w, held(w, far, name, h.Owner(), mode).Lease)
					unlock(w, h)
				},
				func(h *rwlock.Hold) {
					inner := take(w, h.Context(), rw, mode, name)
					require.Equal(w, h.Token(), inner.Token())
					require.Equal(w, 2, held(w, far, name, h.Owner(), mode).Count)
					unlock(w, h)
					require.Equal(w, 1, held(w, far, name, h.Owner(), mode).Count)
					unlock(w, inner)
				},
				func(h *rwlock.Hold) {
					if mode == read {
						_, err := acquire(h.Context(), rw, write, name)
						require.ErrorIs(w, err, rwlock.ErrUpgrade)
						unlock(w, h)
						return
					}
					inner := take(w, h.Context(), rw, read, name)
					waiting := w.enqueue(newOwner(), far, read, name)
					unlock(w, h)
					unlock(w, inner, waiting.granted())
				},
				func(h *rwlock.Hold) {
					require.NoError(w, far.ForceUnlock(context.Background(), name))
					require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
				},
				func(h *rwlock.Hold) { // the server loses it
					w.removeKeys()
					require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
				},
			} {
				w.removeKeys()
				w.unshare(rw, mode, name)
				then(take(w, newOwner(), rw, mode, name))
				require.Empty(w, inspect(w, far, name).Holders)
			}
		}
	})
}

// Whoever dies with a lock that it had to itself is in nobody's way after its lease.
func TestHolderOfAnUnsharedLockDies(t *testing.T) {
	everywhere(t, func(w *world) {
		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			const lease = 1500 * time.Millisecond
			mortal, plug := w.newMortal(rwlock.WithLease(lease))
			rw := w.newLock(rwlock.WithLease(quiet))
			w.unshare(mortal, mode, name)
			h := take(w, newOwner(), mortal, mode, name)
			plug.pull()
			died := time.Now()
			next := take(w, newOwner(), rw, write, name)
			w.within(lease+w.slack, died, time.Now())
			require.Greater(w, next.Token(), h.Token())
			unlock(w, next)
		}
	})
}

// Replies that are lost and requests that run twice change nothing in a lock that one process has to itself.
func TestLostRepliesInAnUnsharedLock(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		for name, fault := range resent {
			rw, p := w.behindProxy()
			w.unshare(rw, mode, name)
			ask, release := p.On(script("solelock")).Times(1), p.On(script("soleunlock")).Times(1)
			fault(ask)
			fault(release)
			h := take(w, newOwner(), rw, mode, name)
			require.NoError(w, ask.WaitDone(soon(w)), name)
			s := inspect(w, rw, name)
			require.Len(w, s.Holders, 1)
			require.Equal(w, h.Token(), s.Token, "one token")
			unlock(w, h)
			require.NoError(w, release.WaitDone(soon(w)), name)
			require.Empty(w, inspect(w, rw, name).Holders)
			next := take(w, newOwner(), rw, mode, name)
			require.Greater(w, next.Token(), h.Token())
			unlock(w, next)
		}
	})
}

// Whoever finds that others have had to do with the lock since asks as they do, at once.
func TestOthersHaveHadAnUnsharedLock(t *testing.T) {
	bubbled(t, func(w *world) {
		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			rw, far := w.newLock(), w.newLock()
			w.unshare(rw, mode, name)
			unlock(w, take(w, newOwner(), far, mode, name))
			start := time.Now()
			unlock(w, take(w, newOwner(), rw, mode, name))
			w.within(w.slack, start, time.Now())
		}
	})
}

// Processes that use a lock one after the other have it in one key, too, but for those that come so soon after two others
// that one of these might be forgotten while it waits to be told of its release.
func TestOneAfterTheOther(t *testing.T) {
	everywhere(t, func(w *world) {
		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			rws := []*rwlock.RWLock{w.newLock(), w.newLock(), w.newLock()}
			var last int64
			for i, rw := range []*rwlock.RWLock{rws[0], rws[0], rws[1], rws[1], rws[1], rws[2], rws[0], rws[1]} {
				time.Sleep(time.Millisecond) // a token is a time
				h := take(w, newOwner(), rw, mode, name)
				require.Greater(w, h.Token(), last)
				last = h.Token()
				for j, other := range rws {
					_, err := other.TryLock(newOwner(), name)
					require.ErrorIs(w, err, rwlock.ErrLocked, "%d, %d", i, j)
					if rw == rws[0] || i == 4 {
						break // the first look of another hands over
					}
				}
				unlock(w, h)
				require.Empty(w, inspect(w, rw, name).Holders)
			}
		}
		rws := []*rwlock.RWLock{w.newLock(), w.newLock(), w.newLock()}
		for i, rw := range rws {
			time.Sleep(time.Millisecond)
			unlock(w, take(w, newOwner(), rw, write, "n"))
			inOne := !slices.ContainsFunc(w.keys(), func(k string) bool { return strings.HasSuffix(k, "{n}:fence") })
			require.Equal(w, i < 2, inOne)
		}
	})
}

// A release that did its work says so, though its reply is lost and others have had the lock by the time that it is sent
// again.
func TestLostReplyOfAReleaseBeforeOthersCome(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy()
		far, third := w.newLock(), w.newLock()
		w.unshare(rw, mode, "n")
		h := take(w, newOwner(), rw, mode, "n")
		gate := make(chan struct{})
		released := p.On(script("soleunlock")).Times(1).Silent().DropReply()
		again := p.On(script("soleunlock")).DelayRequest(gate)
		result := make(chan error, 1)
		go func() { result <- h.Unlock(context.Background()) }()
		require.NoError(w, released.WaitDone(soon(w)))
		for _, other := range []*rwlock.RWLock{far, far, third, far} {
			for _, mode := range bothModes {
				unlock(w, take(w, newOwner(), other, mode, "n"))
			}
		}
		require.NoError(w, again.WaitHit(soon(w)))
		close(gate)
		require.NoError(w, <-result)
	})
}

// A release of which the first answer is late, and the second later, leaves nothing behind that the next request would
// stumble over.
func TestLateRepliesOfAReleaseOfAnUnsharedLock(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy(rwlock.WithLease(1500 * time.Millisecond)) // it asks again after a sixth of that
		w.unshare(rw, mode, "n")
		h := take(w, newOwner(), rw, mode, "n")
		done := func() (all string) {
			for _, key := range w.keys() {
				if strings.Contains(key, ":done:") {
					all += w.dial().Get(context.Background(), key).Val() + " "
				}
			}
			return all
		}
		before := done()
		first, second := make(chan struct{}), make(chan struct{})
		defer close(second)
		p.On(script("soleunlock")).DelayReply(first)
		again := p.On(releaseScript(mode)).Times(1).DelayReply(second)
		result := make(chan error, 1)
		go func() { result <- h.Unlock(context.Background()) }()
		require.NoError(w, again.WaitHit(soon(w)))
		require.Eventually(w, func() bool { return done() != before }, hang, time.Millisecond) // it has run
		close(first)
		require.NoError(w, <-result)
		for _, other := range []*rwlock.RWLock{w.newLock(), w.newLock()} { // who share the lock from now on
			unlock(w, take(w, newOwner(), other, mode, "n"))
		}
		unlock(w, take(w, newOwner(), rw, mode, "n"))
	})
}

// A request for a lock that the process had to itself, which executes after it was given up, leaves nothing; nor does
// one that executes once more after its hold has ended, or under the next.
func TestRequestForAnUnsharedLockIsLate(t *testing.T) {
	t.Parallel()
	eachMode(t, func(w *world, mode rwlock.Mode) {
		rw, p := w.behindProxy()
		w.unshare(rw, mode, "n")
		gate := make(chan struct{})
		late := p.On(script("solelock")).Times(1).DelayRequest(gate)
		withdrawn := p.On(releaseScript(mode)).DelayReply(open())
		ctx, cancel := context.WithCancel(context.Background())
		waiting := w.launch(ctx, rw, mode, "n")
		require.NoError(w, late.WaitHit(soon(w)))
		cancel()
		_, err := waiting.wait()
		require.ErrorIs(w, err, context.Canceled)
		require.NoError(w, withdrawn.WaitDone(soon(w)))
		close(gate)
		require.NoError(w, late.WaitDone(soon(w)))
		require.Empty(w, inspect(w, rw, "n").Holders)

		for _, before := range []func(h *rwlock.Hold){
			func(h *rwlock.Hold) { unlock(w, h) },
			func(h *rwlock.Hold) {},
		} {
			w.removeKeys()
			w.unshare(rw, mode, "n")
			gate := make(chan struct{})
			late := p.On(script("solelock")).Times(1).DelayRequest(gate) // the client sends it again after a while
			h := take(w, newOwner(), rw, mode, "n")
			before(h)
			token := inspect(w, rw, "n").Token
			close(gate)
			require.NoError(w, late.WaitDone(soon(w)))
			require.Equal(w, token, inspect(w, rw, "n").Token)
			if err := h.Unlock(context.Background()); err != nil {
				require.ErrorIs(w, err, rwlock.ErrNotHeld)
			}
			require.Empty(w, inspect(w, rw, "n").Holders)
		}
	})
}

// What says that a process has a lock to itself lives for as long as that is used, and longer than the longest lease.
func TestUnsharedLockLivesOn(t *testing.T) {
	bubbled(t, func(w *world) {
		for name, mode := range map[string]rwlock.Mode{"w": write, "r": read} {
			rw := w.newLock()
			w.unshare(rw, mode, name)
			for range 5 {
				h := take(w, newOwner(), rw, mode, name, rwlock.Lease(23*time.Hour), rwlock.NoRenew())
				time.Sleep(22 * time.Hour)
				unlock(w, h)
				time.Sleep(2 * time.Millisecond)
			}
		}
	})
}
