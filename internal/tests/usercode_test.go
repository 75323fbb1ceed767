package tests

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

// A handler hands each record to a function.
type handler struct {
	slog.Handler
	handle func(slog.Record)
}

func newLogger(handle func(slog.Record)) *slog.Logger {
	return slog.New(handler{slog.DiscardHandler, handle})
}

// textOf returns what a record says.
func textOf(r slog.Record) string {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	return text
}

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.handle(r)
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h handler) WithGroup(string) slog.Handler      { return h }

// A guarded context has code of its user's run when a context that was made from it is cancelled.
type guarded struct {
	context.Context
	done  chan struct{}
	leave func()
}

func (g guarded) Done() <-chan struct{}        { return g.done }
func (g guarded) AfterFunc(func()) func() bool { return func() bool { g.leave(); return true } }

// brake is a hook that holds up what is sent about some locks.
func brake(names string, hold func()) onEach {
	return func(cmd redis.Cmder) {
		if slices.ContainsFunc(cmd.Args(), func(arg any) bool { return strings.Contains(argument(arg), names) }) {
			hold()
		}
	}
}

// codePlaces are where a user's code may run when a hold is lost. Each returns an RWLock, and the context to
// take that hold with.
var codePlaces = map[string]func(w *world, code func(*rwlock.RWLock)) (rw *rwlock.RWLock, ctx context.Context){
	"logger": func(w *world, code func(*rwlock.RWLock)) (rw *rwlock.RWLock, ctx context.Context) {
		rw = w.newLock(rwlock.WithLogger(newLogger(func(slog.Record) { code(rw) })))
		return rw, newOwner()
	},
	"context": func(w *world, code func(*rwlock.RWLock)) (rw *rwlock.RWLock, ctx context.Context) {
		rw = w.newLock()
		return rw, guarded{newOwner(), make(chan struct{}), func() { code(rw) }}
	},
}

// codeDeeds are what it may do there.
var codeDeeds = map[string]func(rw *rwlock.RWLock){
	"blocks": func(*rwlock.RWLock) { time.Sleep(8 * time.Second) },
	"calls Inspect": func(rw *rwlock.RWLock) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = rw.Inspect(ctx, "kept 0")
	},
	"locks": func(rw *rwlock.RWLock) {
		h, err := rw.Lock(newOwner(), "kept 0", rwlock.MaxWait(8*time.Second))
		if err == nil {
			_ = h.Unlock(context.Background())
		}
	},
}

// A watch says when code of the user's is to run, and how often it has begun to.
type watch struct {
	armed atomic.Bool
	ran   atomic.Int32
}

// eachUserCode runs fn in bubbles for all code of the user's.
func eachUserCode(t *testing.T, fn func(w *world, rw *rwlock.RWLock, ctx context.Context, code *watch)) {
	t.Helper()
	t.Parallel()
	for where, build := range codePlaces {
		for what, code := range codeDeeds {
			t.Run(where+" "+what, func(t *testing.T) {
				bubbled(t, func(w *world) {
					var on watch
					rw, ctx := build(w, func(rw *rwlock.RWLock) {
						if on.armed.Load() {
							on.ran.Add(1)
							code(rw)
						}
					})
					fn(w, rw, ctx, &on)
				})
			})
		}
	}
}

// However long the user's code takes that runs when a hold is lost, and whatever it calls, the other holds
// are renewed.
func TestUserCodeDelaysNoRenewal(t *testing.T) {
	losses := map[string]func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold{
		"that the server tells of": func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold {
			h := take(w, ctx, rw, write, "lost", rwlock.Lease(3*time.Second))
			require.NoError(w, w.newLock().ForceUnlock(context.Background(), "lost"))
			return h
		},
		"at its deadline": func(w *world, rw *rwlock.RWLock, ctx context.Context) *rwlock.Hold {
			return take(w, ctx, rw, write, "lost", rwlock.Lease(time.Second), rwlock.NoRenew())
		},
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			eachUserCode(t, func(w *world, rw *rwlock.RWLock, ctx context.Context, code *watch) {
				var kept []*rwlock.Hold
				for i := range 4 {
					kept = append(kept, take(w, newOwner(), rw, bothModes[i%2], fmt.Sprint("kept ", i), rwlock.Lease(3*time.Second)))
				}
				time.Sleep(400 * time.Millisecond) // so that the renewals do not all travel together
				h := lose(w, rw, ctx)
				require.NoError(w, h.Context().Err())
				code.armed.Store(true)
				w.lostWhen(h)
				time.Sleep(30 * time.Second)
				require.Positive(w, code.ran.Load())
				for _, h := range kept {
					require.NoError(w, context.Cause(h.Context()), h.Name())
				}
				unlock(w, kept...)
				w.returnsIn(bound+8*time.Second, "Unlock", func() { _ = h.Unlock(context.Background()) })
			})
		})
	}
}

// However long the user's code takes that runs when a hold is lost, others learn of their own loss at their
// deadlines.
func TestUserCodeDelaysNoNoticeOfALoss(t *testing.T) {
	eachUserCode(t, func(w *world, rw *rwlock.RWLock, ctx context.Context, code *watch) {
		start := time.Now()
		first := take(w, ctx, rw, write, "lost", rwlock.Lease(time.Second), rwlock.NoRenew())
		require.NoError(w, first.Context().Err())
		second := take(w, newOwner(), rw, write, "lost as well", rwlock.Lease(2*time.Second), rwlock.NoRenew())
		code.armed.Store(true)
		require.Equal(w, time.Second-margin(time.Second), w.lostWhen(first).Sub(start))
		require.Equal(w, 2*time.Second-margin(2*time.Second), w.lostWhen(second).Sub(start))
		require.Positive(w, code.ran.Load())
		time.Sleep(time.Minute)
		for _, h := range []*rwlock.Hold{first, second} {
			w.returnsIn(bound+8*time.Second, "Unlock", func() { _ = h.Unlock(context.Background()) })
		}
	})
}

// A client's hook that holds up the requests about some locks delays no renewal of the others, also where
// their requests travel together.
func TestHookDelaysNoRenewalOfOtherLocks(t *testing.T) {
	bubbled(t, func(w *world) {
		slow := brake("held up", func() { time.Sleep(20 * time.Second) })
		rw := w.newLockVia(func(c *redis.Client) { c.AddHook(slow) })
		var kept []*rwlock.Hold
		for i := range 10 {
			kept = append(kept, take(w, newOwner(), rw, bothModes[i%2], fmt.Sprint("kept ", i)))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		var calls []*call
		for i := range 30 {
			calls = append(calls, w.launch(rwlock.WithOwner(ctx, rwlock.NewOwner()), rw, write, fmt.Sprint("held up ", i)))
			time.Sleep(970 * time.Millisecond)
		}
		for _, c := range calls {
			if h, err := c.wait(); err == nil {
				_ = h.Unlock(ctx)
			}
		}
		time.Sleep(5 * time.Minute)
		for _, h := range kept {
			require.NoError(w, context.Cause(h.Context()), h.Name())
		}
		unlock(w, kept...)
	})
}
