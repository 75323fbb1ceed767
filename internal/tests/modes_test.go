package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
)

const (
	read  = rwlock.Read
	write = rwlock.Write
)

// What each owner gets, whatever it and others hold. A call that must wait does wait, as long as the holder
// lives, and however many leases that takes.
func TestModeMatrix(t *testing.T) {
	const (
		atOnce  = "at once"
		waits   = "waits"
		upgrade = "ErrUpgrade"
	)
	rows := []struct {
		holds                 []rwlock.Mode
		ownRead, ownWrite     string // what the holder gets
		otherRead, otherWrite string // what others get
	}{
		{nil, atOnce, atOnce, atOnce, atOnce},
		{[]rwlock.Mode{read}, atOnce, upgrade, atOnce, waits},
		{[]rwlock.Mode{write}, atOnce, atOnce, waits, waits},
		{[]rwlock.Mode{write, read}, atOnce, atOnce, waits, waits},
	}
	everywhere(t, func(w *world) {
		rw, far := w.newLock(), w.newLock()
		check := func(holds []rwlock.Mode, asker string, mode rwlock.Mode, want string) {
			name := fmt.Sprintf("%v held: %s asks to %v", holds, asker, mode)
			owner, ctx, from := newOwner(), newOwner(), rw
			switch asker {
			case "the same owner":
				ctx = owner
			case "an owner elsewhere":
				from = far
			}
			var held []*rwlock.Hold
			for _, m := range holds {
				held = append(held, take(w, owner, rw, m, name))
			}
			before := inspect(w, rw, name)
			h, err := try(ctx, from, mode, name)
			switch want {
			case atOnce:
				require.NoError(w, err, name)
				unlock(w, h)
				unlock(w, take(w, ctx, from, mode, name))
			case upgrade:
				require.ErrorIs(w, err, rwlock.ErrUpgrade, name)
				require.ErrorIs(w, errOf(acquire(ctx, from, mode, name)), rwlock.ErrUpgrade, name)
			case waits:
				require.ErrorIs(w, err, rwlock.ErrLocked, name)
				c := w.enqueue(ctx, from, mode, name)
				w.waits(c)
				start := time.Now()
				for _, h := range held {
					require.NoError(w, h.Context().Err())
					unlock(w, h)
				}
				held = nil
				unlock(w, c.granted())
				w.within(w.prompt, start, c.at)
			}
			if want != waits {
				w.requireHolders(rw, name, len(before.Holders))
			}
			unlock(w, held...)
			w.requireHolders(rw, name, 0)
		}
		for _, row := range rows {
			check(row.holds, "the same owner", read, row.ownRead)
			check(row.holds, "the same owner", write, row.ownWrite)
			for _, asker := range []string{"another owner", "an owner elsewhere"} {
				check(row.holds, asker, read, row.otherRead)
				check(row.holds, asker, write, row.otherWrite)
			}
		}
	})
}

// The end of the last write hold of an owner that still reads lets waiting readers in at that moment. A
// writer stays out until the last reader goes. A write hold ends by Unlock, or by Hold.Downgrade, which makes
// a read hold of it: with the same context and token.
func TestDowngrade(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far, background := w.newLock(), w.newLock(), context.Background()
		for name, end := range map[string]func(*rwlock.Hold, context.Context) error{
			"Unlock": (*rwlock.Hold).Unlock, "Downgrade": (*rwlock.Hold).Downgrade,
		} {
			owner := newOwner()
			outer, inner := take(w, owner, rw, write, name), take(w, owner, rw, write, name)
			own := []*rwlock.Hold{inner, outer}
			if name == "Unlock" {
				own = []*rwlock.Hold{take(w, owner, rw, read, name)}
			}
			ctx, token := own[0].Context(), outer.Token()
			writer := w.enqueue(newOwner(), far, write, name)
			near, distant := w.enqueue(newOwner(), rw, read, name), w.enqueue(newOwner(), far, read, name)

			require.NoError(w, end(outer, background))
			require.Equal(w, write, inner.Mode())
			w.waits(writer, near, distant)
			start := time.Now()
			require.NoError(w, end(inner, background))
			readers := []*rwlock.Hold{near.granted(), distant.granted()}
			w.within(w.prompt, start, near.at)
			w.within(w.prompt, start, distant.at)

			s := inspect(w, rw, name)
			require.Equal(w, read, s.Mode)
			require.Len(w, s.Holders, 3)
			require.Equal(w, len(own), held(w, rw, name, outer.Owner(), read).Count)
			require.Equal(w, ctx, own[0].Context())
			unlock(w, readers...)
			for _, h := range own {
				w.waits(writer)
				require.NoError(w, h.Downgrade(background), "of a read hold")
				require.Equal(w, read, h.Mode())
				require.Equal(w, token, h.Token())
				require.NoError(w, h.Context().Err())
				require.ErrorIs(w, errOf(rw.Lock(h.Context(), name)), rwlock.ErrUpgrade)
				unlock(w, h)
				require.ErrorIs(w, h.Context().Err(), context.Canceled)
				require.ErrorIs(w, h.Unlock(background), rwlock.ErrNotHeld)
			}
			h := writer.granted()
			require.Greater(w, h.Token(), token)
			unlock(w, h)
		}
	})
}

// A downgraded hold lasts as long as it would have: renewed or not, with MaxHold, and after an extension.
func TestDowngradedHoldLastsAsLong(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		for name, row := range map[string]struct {
			opts   []rwlock.LockOption
			extend time.Duration
			lasts  time.Duration // or 0 for as long as it is held
		}{
			"renewed":  {},
			"extended": {extend: 3 * w.lease},
			"NoRenew":  {opts: []rwlock.LockOption{rwlock.NoRenew()}, lasts: w.lease},
			"MaxHold":  {opts: []rwlock.LockOption{rwlock.MaxHold(2 * w.lease)}, lasts: 2 * w.lease},
		} {
			start := time.Now()
			h := take(w, newOwner(), rw, write, name, row.opts...)
			if row.extend > 0 {
				require.NoError(w, h.Extend(context.Background(), row.extend))
			}
			time.Sleep(w.lease / 2)
			before := h.Deadline()
			require.NoError(w, h.Downgrade(context.Background()), name)
			if row.lasts == 0 {
				require.False(w, h.Deadline().Before(before), name)
				time.Sleep(4 * w.lease)
				require.NoError(w, h.Context().Err(), name)
				unlock(w, h)
				continue
			}
			<-h.Context().Done()
			require.ErrorIs(w, context.Cause(h.Context()), rwlock.ErrLost, name)
			require.InDelta(w, row.lasts, time.Since(start), float64(w.lease/20), name)
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost, name)
		}
	})
}

// A downgrade that fails says so, and leaves the write hold as it is.
func TestDowngradeThatFails(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		h := take(w, newOwner(), rw, write, "n")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		requireError(w, h.Downgrade(ctx), context.Canceled, `rwlock: downgrade "n": `)
		var missing context.Context
		require.ErrorContains(w, h.Downgrade(missing), "the context is nil")
		require.Equal(w, write, h.Mode())
		require.ErrorIs(w, errOf(try(newOwner(), rw, read, "n")), rwlock.ErrLocked)
		unlock(w, take(w, h.Context(), rw, write, "n"), h)
	})
}

// While the server does not answer, Downgrade returns when its context ends, and goes on. The hold is lost at
// its deadline.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, wire := w.newMortal(rwlock.WithLease(w.lease))
		h := take(w, newOwner(), rw, write, "n")
		wire.cut()
		start := time.Now()
		require.ErrorIs(w, h.Downgrade(lasting(w, w.lease/10)), context.DeadlineExceeded)
		w.within(w.lease/10+w.slack, start, time.Now())
		require.Equal(w, read, h.Mode())
		require.NoError(w, h.Context().Err())
		w.isLost(h)
		unlock(w, take(w, newOwner(), w.newLock(), write, "n"))
	})
}

// Two owners that upgrade together are both refused at once, instead of waiting for each other for ever, also
// beside a waiting writer, and their read holds stay as they were.
func TestUpgradeIsRefused(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		holds := []*rwlock.Hold{take(w, newOwner(), rw, read, "n"), take(w, newOwner(), rw, read, "n")}
		writer := w.enqueue(newOwner(), rw, write, "n")
		start := time.Now()
		together(2, func(i int) { assert.ErrorIs(w, errOf(rw.Lock(holds[i].Context(), "n")), rwlock.ErrUpgrade) })
		w.within(w.prompt, start, time.Now())
		requireHeld(w, holds...)
		w.requireHolders(rw, "n", 2)
		unlock(w, holds...)
		unlock(w, writer.granted())
	})
}

// Calls of one owner that come together on different goroutines share what the first of them gets. One that
// waits for another still ends with its own context.
func TestGoroutinesOfOneOwner(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, name := w.newLock(), "n"
		for _, mode := range bothModes {
			owner := newOwner()
			blocker := take(w, newOwner(), rw, write, name)
			calls := []*call{w.enqueue(owner, rw, mode, name)}
			for range 9 {
				calls = append(calls, w.launch(owner, rw, mode, name))
			}
			ctx, cancel := context.WithCancel(owner)
			cancelled := w.launch(ctx, rw, mode, name)
			brief := w.launch(owner, rw, mode, name, rwlock.MaxWait(50*time.Millisecond))
			w.waits(append(calls, cancelled)...)
			waitQueued(w, rw, name, 1)
			cancel()
			require.ErrorIs(w, errOf(cancelled.wait()), context.Canceled)
			require.ErrorIs(w, errOf(brief.wait()), context.DeadlineExceeded)
			require.ErrorIs(w, errOf(try(owner, rw, mode, name)), rwlock.ErrLocked)
			unlock(w, blocker)
			var holds []*rwlock.Hold
			for _, c := range calls {
				holds = append(holds, c.granted())
				require.Equal(w, holds[0].Token(), c.hold.Token())
			}
			waitCount(w, rw, name, holds[0].Owner(), mode, 10)
			unlock(w, holds...)
			waitFree(w, rw, name)
		}
	})
}

// The owner travels in the context: a Hold's context carries it on, and no context without it does.
func TestOwnerTravelsInContext(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, name := w.newLock(), "n"
		_, ok := rwlock.OwnerFromContext(context.Background())
		require.False(w, ok)
		_, ok = rwlock.OwnerFromContext(rwlock.WithOwner(newOwner(), rwlock.Owner{}))
		require.False(w, ok, "the zero Owner is nobody")

		fresh, other := take(w, context.Background(), rw, read, name), take(w, context.Background(), rw, read, name)
		require.NotEqual(w, fresh.Owner(), other.Owner())
		nobody := take(w, rwlock.WithOwner(fresh.Context(), rwlock.Owner{}), rw, read, name)
		require.NotEqual(w, fresh.Owner(), nobody.Owner())

		got, ok := rwlock.OwnerFromContext(fresh.Context())
		require.True(w, ok)
		require.Equal(w, fresh.Owner(), got)
		again := take(w, fresh.Context(), rw, read, name)
		require.Equal(w, fresh.Owner(), again.Owner())
		elsewhere := take(w, fresh.Context(), rw, write, "another lock")
		require.Equal(w, fresh.Owner(), elsewhere.Owner())

		o := rwlock.NewOwner()
		mine := take(w, rwlock.WithOwner(fresh.Context(), o), rw, read, name)
		require.Equal(w, o, mine.Owner())
		require.Equal(w, o.String(), mine.Owner().String())
		unlock(w, fresh, other, nobody, again, elsewhere, mine)
	})
}

// A body is a function that runs under a lock.
type body = func(context.Context, *rwlock.Hold) error

// A runner runs a function under the lock "n".
type runner struct {
	name string
	mode rwlock.Mode
	run  func(ctx context.Context, rw *rwlock.RWLock, fn body, opts ...rwlock.LockOption) error
}

// runners are all functions that run a function.
var runners = []runner{
	{"WithRLock", read, func(ctx context.Context, rw *rwlock.RWLock, fn body, opts ...rwlock.LockOption) error {
		return rw.WithRLock(ctx, "n", fn, opts...)
	}},
	{"WithLock", write, func(ctx context.Context, rw *rwlock.RWLock, fn body, opts ...rwlock.LockOption) error {
		return rw.WithLock(ctx, "n", fn, opts...)
	}},
	{"RDo", read, runDo(rwlock.RDo[string])},
	{"Do", write, runDo(rwlock.Do[string])},
	{"WithAll", write, func(ctx context.Context, rw *rwlock.RWLock, fn body, opts ...rwlock.LockOption) error {
		return rw.WithAll(ctx, []rwlock.Want{need("n", write), need("nn", read)},
			func(ctx context.Context, holds []*rwlock.Hold) error { return fn(ctx, holds[0]) }, opts...)
	}},
}

// runDo has a function return a value by Do or RDo. The value is returned if the function ran, or else the
// zero value.
func runDo(
	do func(context.Context, *rwlock.RWLock, string, func(context.Context, *rwlock.Hold) (string, error),
		...rwlock.LockOption) (string, error),
) func(context.Context, *rwlock.RWLock, body, ...rwlock.LockOption) error {
	return func(ctx context.Context, rw *rwlock.RWLock, fn body, opts ...rwlock.LockOption) error {
		want := ""
		got, err := do(ctx, rw, "n", func(ctx context.Context, h *rwlock.Hold) (string, error) {
			want = "value"
			return want, fn(ctx, h)
		}, opts...)
		if got != want {
			return fmt.Errorf("%q was returned instead of %q", got, want)
		}
		return err
	}
}

// eachRunner runs fn for each function that runs a function.
func eachRunner(t *testing.T, fn func(w *world, rw *rwlock.RWLock, r runner)) {
	t.Helper()
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithLease(w.lease))
		for _, r := range runners {
			fn(w, rw, r)
			waitFree(w, rw, "nn")
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode, r.name)
		}
	})
}

// A Hold says what it is, and its context has the values and the end of the context of the call.
func TestHoldAndItsContext(t *testing.T) {
	type key struct{}
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for _, mode := range bothModes {
			parent, cancel := context.WithCancel(context.WithValue(newOwner(), key{}, "value"))
			defer cancel()
			h, other := take(w, parent, rw, mode, "n"), take(w, parent, rw, mode, "n")
			require.Equal(w, "n", h.Name())
			require.Equal(w, mode, h.Mode())
			owner, _ := rwlock.OwnerFromContext(parent)
			require.Equal(w, owner, h.Owner())
			require.Positive(w, h.Token())
			require.Equal(w, "value", h.Context().Value(key{}))
			require.NoError(w, h.Context().Err())

			unlock(w, h)
			require.ErrorIs(w, h.Context().Err(), context.Canceled)
			require.NotErrorIs(w, context.Cause(h.Context()), rwlock.ErrLost)
			require.NoError(w, other.Context().Err(), "each hold has a context of its own")

			cancel()
			require.ErrorIs(w, other.Context().Err(), context.Canceled)
			require.Equal(w, 1, held(w, rw, "n", owner, mode).Count, "a done context does not release")
			require.NoError(w, other.Unlock(other.Context()))
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
		}
	})
}

// A function runs under the hold, and may re-enter. What it returns is returned, and the lock is released.
func TestWithReturnsWhatFnReturns(t *testing.T) {
	eachRunner(t, func(w *world, rw *rwlock.RWLock, r runner) {
		for _, want := range []error{nil, errors.New("failure")} {
			require.Equal(w, want, r.run(context.Background(), rw, func(ctx context.Context, h *rwlock.Hold) error {
				owner, _ := rwlock.OwnerFromContext(ctx)
				require.Equal(w, h.Owner(), owner)
				require.Equal(w, r.mode, h.Mode())
				require.Equal(w, r.mode, inspect(w, rw, "n").Mode)
				require.NoError(w, r.run(ctx, rw, func(_ context.Context, inner *rwlock.Hold) error {
					require.Equal(w, h.Token(), inner.Token())
					require.Equal(w, 2, held(w, rw, "n", owner, r.mode).Count)
					return nil
				}))
				return want
			}))
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
		}
	})
}

// A function does not run if the lock cannot be had, and the error is the lock call's. One that is nil is an
// error in words.
func TestWithWithoutTheLock(t *testing.T) {
	eachRunner(t, func(w *world, rw *rwlock.RWLock, r runner) {
		h := take(w, newOwner(), rw, write, "n")
		err := r.run(newOwner(), rw, func(context.Context, *rwlock.Hold) error {
			w.Error("the function ran")
			return nil
		}, rwlock.MaxWait(time.Second))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.ErrorContains(w, err, map[rwlock.Mode]string{read: `: rlock "n"`, write: `: lock "n"`}[r.mode])
		waitWithdrawn(w, rw, "n") // otherwise the call that has given up may get the lock after h for a moment
		ctx := newOwner()         // no function is an error before the call waits for the lock
		require.EqualError(w, rw.WithLock(ctx, "n", nil), `rwlock: lock "n": the function is nil`)
		require.EqualError(w, rw.WithRLock(ctx, "n", nil), `rwlock: rlock "n": the function is nil`)
		require.EqualError(w, errOf(rwlock.Do[int](ctx, rw, "n", nil)), `rwlock: lock "n": the function is nil`)
		require.EqualError(w, errOf(rwlock.RDo[int](ctx, rw, "n", nil)), `rwlock: rlock "n": the function is nil`)
		unlock(w, h)
	})
}

// A panic in the function, and runtime.Goexit, release the lock and go on.
func TestWithReleasesOnPanic(t *testing.T) {
	eachRunner(t, func(w *world, rw *rwlock.RWLock, r runner) {
		require.PanicsWithValue(w, "oh", func() {
			_ = r.run(context.Background(), rw, func(context.Context, *rwlock.Hold) error { panic("oh") })
		})
		require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = r.run(context.Background(), rw, func(context.Context, *rwlock.Hold) error {
				runtime.Goexit()
				return nil
			})
			w.Error("Goexit ended")
		})
		wg.Wait()
	})
}

// Work done under a lost lock is not taken for done: the function's error is joined with ErrLost, be it nil,
// and even if it has released the lock itself. What it says of the loss is not said again.
func TestWithJoinsErrLost(t *testing.T) {
	failure := errors.New("failure")
	says := []struct {
		what func(ctx context.Context, h *rwlock.Hold) error
		want error // beside ErrLost
	}{
		{func(context.Context, *rwlock.Hold) error { return nil }, nil},
		{func(context.Context, *rwlock.Hold) error { return failure }, failure},
		{func(ctx context.Context, h *rwlock.Hold) error { _ = h.Unlock(ctx); return nil }, nil},
		{func(ctx context.Context, h *rwlock.Hold) error { _ = h.Unlock(ctx); return failure }, failure},
		{func(ctx context.Context, _ *rwlock.Hold) error { return context.Cause(ctx) }, nil},
		{func(ctx context.Context, _ *rwlock.Hold) error { return fmt.Errorf("at work: %w", context.Cause(ctx)) }, nil},
		{func(ctx context.Context, h *rwlock.Hold) error { return h.Unlock(ctx) }, nil},
	}
	eachRunner(t, func(w *world, rw *rwlock.RWLock, r runner) {
		for _, say := range says {
			err := r.run(context.Background(), rw, func(ctx context.Context, h *rwlock.Hold) error {
				require.NoError(w, rw.ForceUnlock(context.Background(), "n"))
				w.lostWhen(h)
				require.ErrorIs(w, context.Cause(ctx), rwlock.ErrLost)
				return say.what(ctx, h)
			})
			require.ErrorIs(w, err, rwlock.ErrLost)
			require.Equal(w, 1, strings.Count(err.Error(), rwlock.ErrLost.Error()), err)
			if say.want != nil {
				require.ErrorIs(w, err, say.want)
			}
		}
		// Released in time by the function, nothing was lost.
		require.NoError(w, r.run(context.Background(), rw, func(ctx context.Context, h *rwlock.Hold) error {
			return h.Unlock(ctx)
		}))
	})
}

// Each error names the call and the lock, and that of a wait says how long it was and who stood in the way.
func TestErrorsNameCallAndLock(t *testing.T) {
	bubbled(t, func(w *world) {
		ctx, rw, name := context.Background(), w.newLock(), "orders:42"
		h := take(w, newOwner(), rw, write, name)
		reader := take(w, newOwner(), rw, read, "read")
		first := w.enqueue(newOwner(), rw, write, name)
		second := w.enqueue(newOwner(), rw, write, name)
		third := w.enqueue(newOwner(), rw, write, name)
		wait := rwlock.MaxWait(w.lease / 5)

		by := " by " + regexp.QuoteMeta(h.Owner().String())
		ours := regexp.QuoteMeta(" (another owner of this process; if it is the caller itself, pass it the hold's Context)")
		for _, c := range []struct {
			err  error
			is   error
			text string
		}{
			{errOf(rw.Lock(newOwner(), name, wait)), context.DeadlineExceeded,
				`lock "orders:42": not free within [0-9.]+m?s: held for writing` + by +
					`, 3 waiting ahead` + ours},
			{errOf(rw.RLock(newOwner(), name, wait)), context.DeadlineExceeded,
				`rlock "orders:42": not free within [0-9.]+m?s: held for writing` + by + `.*`},
			{errOf(rw.Lock(newOwner(), "read", wait)), context.DeadlineExceeded,
				`lock "read": not free within [0-9.]+m?s: held for reading by ` +
					regexp.QuoteMeta(reader.Owner().String()) + ours},
			{errOf(rw.TryLock(newOwner(), name)), rwlock.ErrLocked,
				`trylock "orders:42": locked by another owner: held for writing` + by + `.*`},
			{errOf(rw.TryRLock(newOwner(), name)), rwlock.ErrLocked,
				`tryrlock "orders:42": locked by another owner: held for writing` + by + `.*`},
			{errOf(rw.Lock(reader.Context(), "read")), rwlock.ErrUpgrade, `lock "read": .*`},
			{errOf(rw.TryLock(reader.Context(), "read")), rwlock.ErrUpgrade, `trylock "read": .*`},
			{rw.WithLock(newOwner(), name, nothing, wait), context.DeadlineExceeded, `lock "orders:42": .*`},
			{rw.WithRLock(newOwner(), name, nothing, wait), context.DeadlineExceeded, `rlock "orders:42": .*`},
		} {
			require.ErrorIs(w, c.err, c.is)
			require.Regexp(w, `^rwlock: `+c.text+`$`, c.err.Error())
		}

		unlock(w, h, reader)
		finish(first, second, third)
		err := h.Unlock(ctx)
		require.ErrorIs(w, err, rwlock.ErrNotHeld)
		require.Regexp(w, `^rwlock: unlock "orders:42": `, err.Error())
	})
}

// everyCall makes each call of an RWLock that takes a context.
var everyCall = map[string]func(ctx context.Context, rw *rwlock.RWLock) error{
	"Lock":        func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.Lock(ctx, "n")) },
	"RLock":       func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.RLock(ctx, "n")) },
	"TryLock":     func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.TryLock(ctx, "n")) },
	"TryRLock":    func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.TryRLock(ctx, "n")) },
	"Inspect":     func(ctx context.Context, rw *rwlock.RWLock) error { return errOf(rw.Inspect(ctx, "n")) },
	"ForceUnlock": func(ctx context.Context, rw *rwlock.RWLock) error { return rw.ForceUnlock(ctx, "n") },
}

func init() {
	for _, r := range runners {
		everyCall[r.name] = func(ctx context.Context, rw *rwlock.RWLock) error { return r.run(ctx, rw, nothing) }
	}
}

func nothing(context.Context, *rwlock.Hold) error { return nil }

// A context that is nil, and an RWLock that New has not made, are errors in words.
func TestNilContextAndUnmadeRWLock(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock()
		for name, call := range everyCall {
			var none context.Context
			require.ErrorContains(w, call(none, rw), "rwlock: ", name)
			require.ErrorContains(w, call(none, rw), "the context is nil", name)
			require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
			for _, unmade := range []*rwlock.RWLock{nil, {}} {
				require.ErrorContains(w, call(newOwner(), unmade), "rwlock: ", name)
				require.ErrorContains(w, call(newOwner(), unmade), "the RWLock was not made by New", name)
			}
		}
		for _, unmade := range []*rwlock.RWLock{nil, {}} {
			require.EqualError(w, unmade.Close(), "rwlock: close: the RWLock was not made by New")
			require.EqualError(w, unmade.Shutdown(context.Background()),
				"rwlock: shutdown: the RWLock was not made by New")
			require.Empty(w, unmade.Snapshot().Holds)
		}
		var none context.Context
		require.EqualError(w, rw.Shutdown(none), "rwlock: shutdown: the context is nil")
		h := take(w, newOwner(), rw, write, "n")
		require.EqualError(w, h.Unlock(none), `rwlock: unlock "n": the context is nil`)
		unlock(w, h) // which has changed nothing
		_, ok := rwlock.OwnerFromContext(none)
		require.False(w, ok)
	})
}

// A hold that was re-entered with other leases is renewed for the longest of them. A lease that an inner hold
// asked for is not shortened when that hold is released: it is not renewed, and runs down. It ends with the
// release of the outer hold, or by itself. An outer hold that is not renewed still ends with its own lease.
func TestInnerLeaseEndsWithTheOuterHold(t *testing.T) {
	bubbled(t, func(w *world) {
		rw, other := w.newLock(rwlock.WithLease(w.lease)), w.newLock()
		for _, mode := range bothModes {
			for name, opts := range map[string][]rwlock.LockOption{"renewed": nil, "not renewed": {rwlock.NoRenew()}} {
				name := mode.String() + " " + name
				start := time.Now()
				outer := take(w, newOwner(), rw, mode, name, opts...)
				inner := take(w, outer.Context(), rw, mode, name, rwlock.Lease(quiet))
				if opts == nil {
					brief := take(w, outer.Context(), rw, mode, name, rwlock.Lease(time.Second))
					time.Sleep(quiet + time.Millisecond) // so that no renewal is in flight when they are released
					unlock(w, brief)
				}
				left := w.left(other, outer)
				require.Greater(w, left, quiet/2)
				at := inner.Deadline()
				unlock(w, inner)
				w.around(left, w.left(other, outer))
				next := w.launch(newOwner(), other, write, name)
				if opts != nil {
					w.within(w.lease, start, w.isLost(outer))
				} else {
					time.Sleep(2 * w.lease)
					require.LessOrEqual(w, w.left(other, outer), left-2*w.lease)
					time.Sleep(quiet)
					require.Greater(w, w.left(other, outer), w.lease/2)
					require.Equal(w, at, inner.Deadline(), "it stays the last such time")
					require.NoError(w, outer.Context().Err())
					unlock(w, outer)
				}
				at = time.Now()
				unlock(w, next.granted())
				w.within(w.prompt, at, next.at)
			}
		}
	})
}

// A release of one of several holds sends nothing, and says nothing of a loss that nobody knows of yet. An
// extension learns of it from the server, and all holds of the owner end then.
func TestExtendThatFindsTheLossEndsAllHolds(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, other := w.newLock(rwlock.WithLease(quiet)), w.newLock()
		for _, mode := range bothModes {
			ctx := newOwner()
			outer, inner, again := take(w, ctx, rw, mode, "n"), take(w, ctx, rw, mode, "n"),
				take(w, ctx, rw, mode, "n")
			require.NoError(w, other.ForceUnlock(context.Background(), "n"))
			taken := take(w, newOwner(), other, write, "n")
			if err := inner.Unlock(ctx); err != nil { // the message of the force has come already
				require.ErrorIs(w, err, rwlock.ErrLost)
			}
			start := time.Now()
			require.ErrorIs(w, again.Extend(context.Background(), 2*quiet), rwlock.ErrLost)
			w.within(w.prompt, start, w.lostWhen(outer))
			w.within(w.prompt, start, w.isLost(again))
			require.ErrorIs(w, outer.Unlock(context.Background()), rwlock.ErrLost)
			unlock(w, taken)
		}
	})
}

func need(name string, mode rwlock.Mode) rwlock.Want { return rwlock.Want{Name: name, Mode: mode} }

func nothingWithAll(context.Context, []*rwlock.Hold) error { return nil }

// WithAll runs its function under all locks, each taken once in the stronger mode, with the holds in the
// order of the wants.
func TestWithAllHoldsWhatIsWanted(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, failure := w.newLock(), errors.New("failure")
		wants := []rwlock.Want{need("c", read), need("a", read), need("b", write), need("a", write),
			need("c", read), need("a", read)}
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
		require.NoError(w, rw.WithAll(context.Background(), nil,
			func(_ context.Context, holds []*rwlock.Hold) error {
				ran = true
				require.Empty(w, holds)
				return nil
			}))
		require.True(w, ran)
	})
}

// WithAll takes the locks in the order of their names, whatever the order of the wants, and then releases
// each.
func TestWithAllHasOneOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.dial()
		var order list[string]
		for _, name := range []string{"a", "aa", "b", "c"} {
			c.AddHook(brake("{"+name+"}", func() { order.add(name) }))
		}
		rw := newLockOn(w, c)
		loadScripts(w.T, c)
		wants := []rwlock.Want{need("a", read), need("aa", write), need("b", read), need("c", write),
			need("a", write)}
		for i := range 10 {
			rand.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
			require.NoError(w, rw.WithAll(context.Background(), wants, nothingWithAll))
			require.Equal(w, "a aa b c", strings.Join(order.items()[8*i:][:4], " "))
			require.ElementsMatch(w, []string{"a", "aa", "b", "c"}, order.items()[8*i+4:])
		}
	})
}

// A call of WithAll returns soon after its context's end, however many names it holds: it waits for the
// answers to its releases together.
func TestWithAllEndsWithItsContext(t *testing.T) {
	inBubble(t, func(w *world) {
		const trip = 20 * time.Millisecond
		rw := newLockOn(w, w.dial(slowly(func() time.Duration { return trip / 2 })))
		ctx, cancel := context.WithCancel(context.Background())
		var wants []rwlock.Want
		for i := range 64 {
			wants = append(wants, need(fmt.Sprint(i), bothModes[i%2]))
		}
		var end time.Time
		require.NoError(w, rw.WithAll(ctx, wants, func(ctx context.Context, _ []*rwlock.Hold) error {
			end = time.Now()
			cancel()
			<-ctx.Done()
			return nil
		}))
		require.LessOrEqual(w, time.Since(end), 50*time.Millisecond)
		for _, want := range wants {
			require.Equal(w, rwlock.None, inspect(w, rw, want.Name).Mode)
		}
	})
}

// A want that is invalid, and a function that is nil, are refused before any lock is taken.
func TestWithAllRefusesBadWants(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, ctx := w.newLock(), newOwner()
		good := rwlock.Want{Name: "a", Mode: write}
		for want, err := range map[string]error{
			`want 1: the name is empty`: rw.WithAll(ctx, []rwlock.Want{good, need("", read)},
				nothingWithAll),
			`want 1: the name has 1025 bytes, 1024 are allowed`: rw.WithAll(ctx,
				[]rwlock.Want{good, need(strings.Repeat("x", 1025), read)}, nothingWithAll),
			`want 2: the mode is neither Read nor Write`: rw.WithAll(ctx,
				[]rwlock.Want{good, good, need("b", rwlock.None)}, nothingWithAll),
			`want 0: the mode is neither Read nor Write`: rw.WithAll(ctx, []rwlock.Want{need("b", 3), good},
				nothingWithAll),
			`the function is nil`: rw.WithAll(ctx, []rwlock.Want{good}, nil),
			`nil option`:          rw.WithAll(ctx, []rwlock.Want{good}, nothingWithAll, nil),
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
		err := rw.WithAll(context.Background(), []rwlock.Want{need("c", read), need("b", write), need("a", read)},
			func(context.Context, []*rwlock.Hold) error {
				w.Error("the function ran")
				return nil
			}, rwlock.MaxWait(2*time.Minute))
		requireError(w, err, context.DeadlineExceeded, `rwlock: rlock "c": `)
		require.Equal(w, 2*time.Minute, time.Since(start))
		for _, name := range []string{"a", "b"} {
			require.Equal(w, rwlock.None, inspect(w, rw, name).Mode)
		}
		unlock(w, c)
	})
}

// A function is told when any of its holds is lost, and WithAll joins its error with each loss, on one line.
// While it waits for a lock, it gives up when one that it has already is lost.
func TestWithAllTellsOfEachLoss(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, far, failure := w.newLock(rwlock.WithLease(w.lease)), w.newLock(), errors.New("failure")
		wants := []rwlock.Want{need("a", write), need("b", read), need("c", write)}
		err := rw.WithAll(context.Background(), wants, func(ctx context.Context, holds []*rwlock.Hold) error {
			require.NoError(w, far.ForceUnlock(context.Background(), "a"))
			<-ctx.Done()
			require.ErrorIs(w, context.Cause(ctx), rwlock.ErrLost)
			require.NoError(w, far.ForceUnlock(context.Background(), "c"))
			w.lostWhen(holds[2])
			return failure
		})
		requireError(w, err, failure, rwlock.ErrLost)
		require.EqualError(w, err, `failure; rwlock: unlock "c": hold lost before it was released; rwlock: unlock "a": hold lost before it was released`)
		waitFree(w, rw, "b")

		b := take(w, newOwner(), far, write, "b")
		waiting := w.start(func() error { return rw.WithAll(context.Background(), wants, nothingWithAll) })
		waitQueued(w, far, "b", 1)
		require.NoError(w, far.ForceUnlock(context.Background(), "a"))
		require.ErrorIs(w, errOf(waiting.wait()), rwlock.ErrLost)
		unlock(w, b)
		waitFree(w, rw, "b")
	})
}

// Two owners that hold what the other wants: the call that closes the circle fails at once, whether or not
// its wait is limited, and names the owners and the locks. A try is in no deadlock. Neither changes anything:
// when the owner releases what it holds, the other gets on.
func TestDeadlockOfTwoFailsAtOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock()
		for i, modes := range [][4]rwlock.Mode{ // of the holds of a and b, and of the waits for b and a
			{write, write, write, write}, {write, write, read, read}, {write, write, read, write},
			{read, read, write, write}, {write, read, write, read}, {read, write, read, write},
		} {
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			ha, hb := take(w, newOwner(), rw, modes[0], a), take(w, newOwner(), rw, modes[1], b)
			waiting := w.enqueue(ha.Context(), rw, modes[2], b)
			start := time.Now()
			for _, opts := range [][]rwlock.LockOption{nil, {rwlock.MaxWait(hang)}} {
				_, err := acquire(hb.Context(), rw, modes[3], a, opts...)
				require.ErrorIs(w, err, rwlock.ErrDeadlock)
				require.EqualError(w, err, fmt.Sprintf("rwlock: %s %q: deadlock: %v holds %q and waits for %q; %v holds %q and waits for %q",
					map[rwlock.Mode]string{read: "rlock", write: "lock"}[modes[3]], a, hb.Owner(), b, a, ha.Owner(), a, b))
			}
			w.within(w.prompt, start, time.Now())
			require.ErrorIs(w, errOf(try(hb.Context(), rw, modes[3], a)), rwlock.ErrLocked)
			w.waits(waiting)
			unlock(w, hb)
			unlock(w, waiting.granted(), ha)
		}
	})
}

// elsewhere runs fn on a goroutine of its own, and returns its error.
func elsewhere(fn func() error) error {
	done := make(chan error)
	go func() { done <- fn() }()
	return <-done
}

// With strict owners, another goroutine than the one that took a lock cannot re-enter it, in any mode and by
// any call. It changes nothing, and the one that took the lock still re-enters.
func TestStrictOwnersRefuseAnotherGoroutine(t *testing.T) {
	everywhere(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		for _, held := range bothModes {
			for _, owner := range []context.Context{context.Background(), newOwner()} {
				outer := take(w, owner, rw, held, "n")
				for _, ctx := range []context.Context{outer.Context(), context.WithoutCancel(outer.Context())} {
					for _, mode := range bothModes {
						for op, call := range map[string]lockFunc{"": acquire, "try": try} {
							err := elsewhere(func() error {
								_, err := call(ctx, rw, mode, "n")
								return err
							})
							require.ErrorIs(w, err, rwlock.ErrOwner)
							require.ErrorContains(w, err, "rwlock: "+op+map[rwlock.Mode]string{read: "rlock", write: "lock"}[mode]+
								` "n": `)
						}
					}
				}
				inner := take(w, outer.Context(), rw, read, "n")
				require.Equal(w, outer.Owner(), inner.Owner())
				if held == write {
					unlock(w, take(w, inner.Context(), rw, write, "n"))
				}
				unlock(w, outer)
				require.ErrorIs(w, elsewhere(func() error {
					return errOf(try(rwlock.WithOwner(context.Background(), inner.Owner()), rw, read, "n"))
				}), rwlock.ErrOwner, "the inner hold is left")
				unlock(w, inner)
			}
		}
	})
}

// With strict owners, a goroutine may do all but re-enter: take other names for the same owner, the same name
// for another one or once it is free, and release what another goroutine holds.
func TestStrictOwnersAllowTheRest(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		outer := take(w, newOwner(), rw, read, "n")
		require.NoError(w, elsewhere(func() error {
			other, err := rw.Lock(outer.Context(), "other")
			if err != nil {
				return err
			}
			require.Equal(w, outer.Owner(), other.Owner())
			second, err := rw.RLock(rwlock.WithOwner(outer.Context(), rwlock.NewOwner()), "n")
			if err != nil {
				return err
			}
			unlock(w, second, other, outer)
			again, err := rw.Lock(rwlock.WithOwner(context.Background(), outer.Owner()), "n")
			if err != nil {
				return err
			}
			return again.Unlock(context.Background())
		}))
		require.Equal(w, rwlock.None, inspect(w, rw, "n").Mode)
	})
}

// With strict owners, a call that waited for another goroutine of its owner to get the lock fails when that
// one has it, and gets it when that one has given up.
func TestStrictOwnersBehindACallOfTheirOwn(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		for _, gets := range []bool{true, false} {
			blocker, owner := take(w, newOwner(), rw, write, "n"), newOwner()
			ctx, cancel := context.WithCancel(owner)
			first := w.enqueue(ctx, rw, write, "n")
			second := w.launch(owner, rw, write, "n")
			w.waits(first, second)
			if !gets {
				cancel()
				require.ErrorIs(w, errOf(first.wait()), context.Canceled)
			}
			unlock(w, blocker)
			if gets {
				require.ErrorIs(w, errOf(second.wait()), rwlock.ErrOwner)
				unlock(w, first.granted())
			} else {
				unlock(w, second.granted())
			}
			cancel()
		}
	})
}

// With strict owners, what runs under a lock re-enters, and goroutines that it starts do not.
func TestStrictOwnersUnderFunctions(t *testing.T) {
	everywhere(t, func(w *world) {
		rw, ran := w.newLock(rwlock.WithStrictOwners()), 0
		for _, r := range runners {
			require.NoError(w, r.run(context.Background(), rw, func(ctx context.Context, _ *rwlock.Hold) error {
				ran++
				require.ErrorIs(w, elsewhere(func() error { return rw.WithRLock(ctx, "n", nothing) }), rwlock.ErrOwner)
				return errors.Join(rw.WithRLock(ctx, "n", nothing), r.run(ctx, rw, nothing))
			}))
		}
		require.Len(w, runners, ran)
	})
}

// With strict owners, what was lost is ErrLost to every goroutine of the owner.
func TestStrictOwnersLoseAsOthersDo(t *testing.T) {
	bubbled(t, func(w *world) {
		rw := w.newLock(rwlock.WithStrictOwners())
		h := take(w, newOwner(), rw, write, "n", rwlock.NoRenew())
		time.Sleep(w.lease)
		w.lostWhen(h)
		ctx := rwlock.WithOwner(context.Background(), h.Owner())
		require.ErrorIs(w, errOf(rw.Lock(ctx, "n")), rwlock.ErrLost)
		require.ErrorIs(w, elsewhere(func() error { return errOf(rw.Lock(ctx, "n")) }), rwlock.ErrLost)
		require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
	})
}
