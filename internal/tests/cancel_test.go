package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// When the end of a wait races the grant, the call returns the lock, or an error and the lock goes on: it is
// never owned by nobody, and never by an owner who was told that he has it not.
func TestCancelRacesGrant(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rounds := 3_000
		if !w.real {
			rounds = 500
		}
		const lanes = 4
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		var wg sync.WaitGroup
		for lane := range lanes {
			wg.Go(func() {
				for i := range rounds / lanes {
					modes := [2]rwlock.Mode{write, []rwlock.Mode{read, write}[i%2]}
					if err := raceCancel(rws[0], rws[rand.IntN(2)], modes, fmt.Sprint("n", lane)); err != nil {
						w.Errorf("round %d, %v: %v", i, modes, err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

func raceCancel(a, b *rwlock.RWLock, modes [2]rwlock.Mode, name string) error {
	h, err := acquire(newOwner(), a, modes[0], name)
	if err != nil {
		return err
	}
	owner := rwlock.NewOwner()
	ctx, cancel := context.WithCancel(rwlock.WithOwner(context.Background(), owner))
	defer cancel()
	type result struct {
		hold *rwlock.Hold
		err  error
	}
	got := make(chan result)
	go func() {
		h, err := acquire(ctx, b, modes[1], name)
		got <- result{h, err}
	}()
	go func() {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		cancel()
	}()
	time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
	if err := h.Unlock(context.Background()); err != nil {
		return err
	}
	r := <-got
	for end := time.Now().Add(hang); ; {
		s, err := b.Inspect(context.Background(), name)
		switch {
		case err != nil:
			return err
		case r.err == nil:
			if len(s.Holders) != 1 || s.Holders[0].Owner != owner.String() {
				return fmt.Errorf("the lock was granted, but %+v", s)
			}
			return r.hold.Unlock(context.Background())
		case !errors.Is(r.err, context.Canceled):
			return r.err
		case s.Mode == rwlock.None && len(s.Waiters) == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("orphan: %+v", s)
		}
	}
}

// A call whose context ended before it was granted the lock returns the context's error, and the lock goes
// on.
func TestContextThatEndedBeforeTheGrant(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rw := w.newLock()
		for i := range 100 {
			h := take(w, newOwner(), rw, write, "n")
			ctx, cancel := context.WithCancel(newOwner())
			waiting := w.enqueue(ctx, rw, bothModes[i%2], "n")
			cancel()
			unlock(w, h)
			_, err := waiting.wait()
			require.ErrorIs(w, err, context.Canceled)
		}
		waitFree(w, rw, "n")
	})
}

// Many calls that give up together, while the lock is released, all return an error that says why, and leave
// nothing behind: the lock goes to whoever waits on.
func TestManyGiveUpTogether(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			for _, release := range []bool{false, true} {
				h := take(w, newOwner(), rw, write, "n")
				ctx, cancel := context.WithCancelCause(context.Background())
				cause := errors.New("the cause")
				var crowd sync.WaitGroup
				for range 300 {
					crowd.Go(func() {
						got, err := acquire(ctx, rw, mode, "n")
						if err == nil { // before the end of the context
							_ = got.Unlock(context.Background())
						} else if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
							w.Error(err)
						}
					})
				}
				waitQueued(w, rw, "n", 300)
				last := w.enqueue(newOwner(), rw, write, "n")
				if release {
					go cancel(cause)
					unlock(w, h)
				} else {
					cancel(cause)
				}
				crowd.Wait()
				require.LessOrEqual(w, len(rw.Snapshot().Waits), 1)
				if !release {
					unlock(w, h)
				}
				unlock(w, last.granted())
				waitFree(w, rw, "n")
			}
		}
	})
}

// A drowsy context has its user notice its end late.
type drowsy struct{ context.Context }

func (drowsy) Done() <-chan struct{} { return nil }

// So it is if the goroutine of the call runs only after the grant.
func TestEndOfTheContextIsNoticedAfterTheGrant(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			h := take(w, newOwner(), rw, write, "n")
			ctx, cancel := context.WithCancelCause(newOwner())
			waiting := w.enqueue(drowsy{ctx}, rw, mode, "n")
			cause := errors.New("the cause")
			cancel(cause)
			unlock(w, h)
			_, err := waiting.wait()
			require.ErrorIs(w, err, context.Canceled)
			require.ErrorIs(w, err, cause)
			requireNotBlocked(w.T, err)
			waitFree(w, rw, "n")
		}
	})
}

// A call whose context is done already returns its error, and asks the server nothing.
func TestDoneContext(t *testing.T) {
	everywhere(t, func(w *world) {
		sent := &counter{}
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(sent) })
		cause := errors.New("the cause")
		cancelled, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		expired, cancelExpired := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		defer cancelExpired()
		for ctx, want := range map[context.Context]error{cancelled: context.Canceled, expired: context.DeadlineExceeded} {
			for _, err := range []error{
				errOf(rw.Lock(ctx, "n")), errOf(rw.RLock(ctx, "n")), errOf(rw.TryLock(ctx, "n")), errOf(rw.TryRLock(ctx, "n")),
				rw.WithLock(ctx, "n", nil), rw.WithRLock(ctx, "n", nil), errOf(rw.Inspect(ctx, "n")), rw.ForceUnlock(ctx, "n"),
			} {
				require.ErrorIs(w, err, want)
				require.ErrorContains(w, err, `"n"`)
			}
		}
		require.ErrorIs(w, errOf(rw.Lock(cancelled, "n")), cause)
		require.Zero(w, sent.Load())
	})
}

// Whatever ends a wait, the error matches it, comes at once, and leaves nothing behind; the next call gets
// the lock.
func TestEndOfAWait(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, u := w.newLock(), w.lease/10
		cause := errors.New("the cause")
		for _, mode := range []rwlock.Mode{read, write} {
			for _, c := range []struct {
				name string
				want error
				ctx  func() (context.Context, context.CancelFunc)
				opts []rwlock.LockOption
			}{
				{"MaxWait", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) { return newOwner(), func() {} }, []rwlock.LockOption{rwlock.MaxWait(u)}},
				{"deadline", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) { return context.WithTimeout(newOwner(), u) }, nil},
				{"cancel", context.Canceled, func() (context.Context, context.CancelFunc) {
					ctx, cancel := context.WithCancel(newOwner())
					return ctx, context.CancelFunc(func() { time.AfterFunc(u, cancel) })
				}, nil},
				{"cause", cause, func() (context.Context, context.CancelFunc) {
					ctx, cancel := context.WithCancelCause(newOwner())
					return ctx, func() { time.AfterFunc(u, func() { cancel(cause) }) }
				}, nil},
				{"MaxWait before deadline", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) {
					return context.WithTimeout(newOwner(), time.Hour)
				}, []rwlock.LockOption{rwlock.MaxWait(u)}},
			} {
				h := take(w, newOwner(), rw, write, "n")
				ctx, cancel := c.ctx()
				start := time.Now()
				waiter := w.launch(ctx, rw, mode, "n", c.opts...)
				if c.name == "cancel" || c.name == "cause" {
					cancel()
				}
				_, err := waiter.wait()
				require.ErrorIs(w, err, c.want, c.name)
				w.within(u+w.prompt, start, waiter.at)
				require.False(w, waiter.at.Before(start.Add(u)))
				eventually(w, func() bool { return len(inspect(w, rw, "n").Waiters) == 0 }, "nothing left of %s", c.name)
				unlock(w, h)
				if c.want != cause {
					cancel()
				}
				waitFree(w, rw, "n")
			}
		}
	})
}

// MaxWait bounds the wait alone: neither the hold nor its context ends with it.
func TestMaxWaitDoesNotBoundTheHold(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range []rwlock.Mode{read, write} {
			var h *rwlock.Hold
			eventually(w, func() bool { // the first time, unless the machine is busy
				var err error
				h, err = acquire(newOwner(), rw, mode, "n", rwlock.MaxWait(100*time.Millisecond))
				return err == nil
			}, "the lock")
			time.Sleep(150*time.Millisecond + w.while)
			require.NoError(w, h.Context().Err())
			unlock(w, h)
		}
	})
}

// A bad option is refused with an error that says what is wrong, and the server is asked nothing.
func TestBadOptions(t *testing.T) {
	everywhere(t, func(w *world) {
		c, sent := w.dial(), &counter{}
		const century = 100 * 365 * 24 * time.Hour
		for text, opt := range map[string]rwlock.Option{
			"lease 99ms": rwlock.WithLease(99 * time.Millisecond), "lease 0s": rwlock.WithLease(0), "lease -1s": rwlock.WithLease(-time.Second),
			"lease " + century.String(): rwlock.WithLease(century), "prefix": rwlock.WithPrefix(""), "nil option": nil,
		} {
			rw, err := rwlock.New(c, opt)
			require.Nil(w, rw)
			require.ErrorContains(w, err, "rwlock: new: ")
			require.ErrorContains(w, err, text)
		}
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(sent) }, rwlock.WithLease(100*time.Millisecond), rwlock.WithLogger(nil))
		for text, opt := range map[string]rwlock.LockOption{
			"lease 99ms": rwlock.Lease(99 * time.Millisecond), "lease 0s": rwlock.Lease(0), "lease -1s": rwlock.Lease(-time.Second),
			"lease " + century.String(): rwlock.Lease(century), "max wait 0s": rwlock.MaxWait(0), "max wait -1s": rwlock.MaxWait(-time.Second), "nil option": nil,
		} {
			for _, mode := range []rwlock.Mode{read, write} {
				for _, lock := range []lockFunc{acquire, try} {
					h, err := lock(newOwner(), rw, mode, "n", opt)
					require.Nil(w, h)
					require.Regexp(w, `^rwlock: (try)?r?lock "n": .*`+text, err.Error())
				}
			}
		}
		require.Zero(w, sent.Load())
	})
}

// A ring is refused, and so are types around one; around other clients they work.
func TestRingIsRefusedWhereverItIs(t *testing.T) {
	t.Parallel()
	type embedded struct{ *redis.Ring }
	type hidden struct{ redis.UniversalClient }
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for _, c := range []redis.UniversalClient{ring, embedded{ring}, hidden{ring}, &hidden{hidden{ring}}} {
		_, err := rwlock.New(c)
		require.ErrorContains(t, err, "a ring is not supported", "%T", c)
	}
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer c.Close()
	rw, err := rwlock.New(hidden{c})
	require.NoError(t, err)
	require.NoError(t, rw.Close())
}
