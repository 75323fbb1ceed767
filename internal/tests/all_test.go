package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

func need(name string, mode rwlock.Mode) rwlock.Want { return rwlock.Want{Name: name, Mode: mode} }

func nothingWithAll(context.Context, []*rwlock.Hold) error { return nil }

// WithAll runs its function under all locks, each taken once in the stronger mode, with the holds in the
// order of the wants.
func TestWithAllHoldsWhatIsWanted(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, failure := w.newLock(), errors.New("failure")
		wants := []rwlock.Want{need("c", read), need("a", read), need("b", write), need("a", write), need("c", read), need("a", read)}
		modes := map[string]rwlock.Mode{"a": write, "b": write, "c": read}
		for _, want := range []error{nil, failure} {
			for _, ctx := range []context.Context{context.Background(), newOwner()} {
				err := rw.WithAll(ctx, wants, func(inner context.Context, holds []*rwlock.Hold) error {
					require.Len(w, holds, len(wants))
					owner, ok := rwlock.OwnerFromContext(inner)
					require.True(w, ok)
					if outer, ok := rwlock.OwnerFromContext(ctx); ok {
						require.Equal(w, outer, owner)
					}
					for i, h := range holds {
						require.Equal(w, wants[i].Name, h.Name())
						require.Equal(w, modes[h.Name()], h.Mode())
						require.Equal(w, owner, h.Owner())
						require.Equal(w, 1, held(w, rw, h.Name(), owner, h.Mode()).Count)
					}
					require.Same(w, holds[1], holds[3])
					unlock(w, take(w, inner, rw, write, "a")) // the same owner re-enters
					return want
				})
				require.Equal(w, want, err)
				for name := range modes {
					require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
				}
			}
		}
		ran := false
		require.NoError(w, rw.WithAll(context.Background(), nil, func(_ context.Context, holds []*rwlock.Hold) error {
			ran = true
			require.Empty(w, holds)
			return nil
		}))
		require.True(w, ran)
	})
}

// WithAll takes the locks in the order of their names, whatever the order of the wants, and releases them in
// reverse order.
func TestWithAllHasOneOrder(t *testing.T) {
	bubbled(t, func(w *world) {
		w.alone("it counts the requests")
		c := w.dial()
		var mu sync.Mutex
		var order []string
		for _, name := range []string{"a", "aa", "b", "c"} {
			c.AddHook(brake("{"+name+"}", func() {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			}))
		}
		rw := newLockOn(w, c)
		loadScripts(w.T, c)
		wants := []rwlock.Want{need("a", read), need("aa", write), need("b", read), need("c", write), need("a", write)}
		for range 10 {
			order = nil
			rand.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
			require.NoError(w, rw.WithAll(context.Background(), wants, nothingWithAll))
			require.Equal(w, "a aa b c c b aa a", strings.Join(order, " "))
		}
	})
}

// Callers that want the same locks in different orders and modes never wait for each other in a circle, and
// exclude each other.
func TestWithAllDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	onServers(t, func(w *world) {
		rws := []*rwlock.RWLock{w.newLock(), w.newLock()}
		writers := map[string]*sync.RWMutex{"a": {}, "b": {}, "c": {}}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 10 {
					wants := []rwlock.Want{need("a", bothModes[rand.IntN(2)]), need("b", bothModes[rand.IntN(2)]), need("c", bothModes[rand.IntN(2)])}
					rand.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
					err := rws[i%2].WithAll(context.Background(), wants[:2+rand.IntN(2)], func(_ context.Context, holds []*rwlock.Hold) error {
						for _, h := range holds {
							m := writers[h.Name()]
							ok, end := m.TryRLock(), m.RUnlock
							if h.Mode() == write {
								if ok {
									end()
								}
								ok, end = m.TryLock(), m.Unlock
							}
							if !ok {
								return fmt.Errorf("%s is held by somebody else", h.Name())
							}
							defer end()
						}
						time.Sleep(100 * time.Microsecond)
						return nil
					}, rwlock.MaxWait(hang))
					if err != nil {
						w.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// A want that is invalid, and a function that is nil, are refused before any lock is taken.
func TestWithAllRefusesBadWants(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, ctx := w.newLock(), newOwner()
		good := rwlock.Want{Name: "a", Mode: write}
		for want, err := range map[string]error{
			`want 1: the name is empty`:                         rw.WithAll(ctx, []rwlock.Want{good, need("", read)}, nothingWithAll),
			`want 1: the name has 1025 bytes, 1024 are allowed`: rw.WithAll(ctx, []rwlock.Want{good, need(strings.Repeat("x", 1025), read)}, nothingWithAll),
			`want 2: the mode is neither Read nor Write`:        rw.WithAll(ctx, []rwlock.Want{good, good, need("b", rwlock.None)}, nothingWithAll),
			`want 0: the mode is neither Read nor Write`:        rw.WithAll(ctx, []rwlock.Want{need("b", 3), good}, nothingWithAll),
			`the function is nil`:                               rw.WithAll(ctx, []rwlock.Want{good}, nil),
			`nil option`:                                        rw.WithAll(ctx, []rwlock.Want{good}, nothingWithAll, nil),
		} {
			require.EqualError(w, err, "rwlock: lock all: "+want)
		}
		require.Empty(w, w.keys())
	})
}

// If one of the locks cannot be had, WithAll runs nothing and releases the others. MaxWait limits its waits
// together.
func TestWithAllGivesBackWhatItHas(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		a, c := take(w, newOwner(), rw, write, "a"), take(w, newOwner(), rw, write, "c")
		time.AfterFunc(time.Minute, func() { unlock(w, a) })
		start := time.Now()
		err := rw.WithAll(context.Background(), []rwlock.Want{need("c", read), need("b", write), need("a", read)}, func(context.Context, []*rwlock.Hold) error {
			w.Error("the function ran")
			return nil
		}, rwlock.MaxWait(2*time.Minute))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.ErrorContains(w, err, `rwlock: rlock "c": `)
		require.Equal(w, 2*time.Minute, time.Since(start))
		for _, name := range []string{"a", "b"} {
			require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
		}
		unlock(w, c)
	})
}

// A function is told when any of its holds is lost, and WithAll joins its error with each loss, on one line.
func TestWithAllTellsOfEachLoss(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far, failure := w.newLock(rwlock.WithLease(w.lease)), w.newLock(), errors.New("failure")
		err := rw.WithAll(context.Background(), []rwlock.Want{need("a", write), need("b", read), need("c", write)}, func(ctx context.Context, holds []*rwlock.Hold) error {
			require.NoError(w, far.ForceUnlock(context.Background(), "a"))
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), rwlock.ErrLost)
			require.NoError(w, far.ForceUnlock(context.Background(), "c"))
			w.lostWhen(holds[2])
			return failure
		})
		require.ErrorIs(w, err, failure)
		require.ErrorIs(w, err, rwlock.ErrLost)
		require.EqualError(w, err, `failure; rwlock: unlock "c": hold lost before it was released; rwlock: unlock "a": hold lost before it was released`)
		waitFree(w, rw, "b")
	})
}

// While WithAll waits for a lock, it gives up when one that it has already is lost.
func TestWithAllLosesALockWhileItWaits(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far := w.newLock(rwlock.WithLease(w.lease)), w.newLock()
		b := take(w, newOwner(), far, write, "b")
		done := make(chan error)
		go func() {
			done <- rw.WithAll(context.Background(), []rwlock.Want{need("a", write), need("b", write)}, nothingWithAll)
		}()
		waitQueued(w, far, "b", 1)
		require.NoError(w, far.ForceUnlock(context.Background(), "a"))
		require.ErrorIs(w, <-done, rwlock.ErrLost)
		unlock(w, b)
		waitFree(w, rw, "b")
	})
}

// After a panic all locks are free.
func TestWithAllPanics(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		require.PanicsWithValue(w, "panic", func() {
			_ = rw.WithAll(context.Background(), []rwlock.Want{need("a", write), need("b", read)}, func(context.Context, []*rwlock.Hold) error { panic("panic") })
		})
		for _, name := range []string{"a", "b"} {
			require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
		}
	})
}
