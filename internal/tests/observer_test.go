package tests

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-7e8842f7/rwlock"
	"github.com/seed-7e8842f7/rwlock/internal/testredis"
)

// A list may be added to by several goroutines.
type list[T any] struct {
	mu  sync.Mutex
	all []T
}

func (l *list[T]) add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, v)
}

func (l *list[T]) items() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// A journal is an observer that keeps what it is told.
type journal struct{ events list[rwlock.Event] }

func (j *journal) Observe(e rwlock.Event) { j.events.add(e) }

// of returns the events of some kinds, in order.
func (j *journal) of(kinds ...rwlock.EventKind) []rwlock.Event {
	return slices.DeleteFunc(j.events.items(), func(e rwlock.Event) bool {
		return !slices.Contains(kinds, e.Kind)
	})
}

// next waits for as many events of a kind, and returns the last.
func (j *journal) next(t testing.TB, n int, kind rwlock.EventKind) rwlock.Event {
	t.Helper()
	eventually(t, func() bool { return len(j.of(kind)) >= n }, "%d events %q", n, kind)
	list := j.of(kind)
	require.Len(t, list, n)
	return list[n-1]
}

// An observer, or a logger, that panics or ends its goroutine gets what comes next, and so do the others. A
// panic is logged.
func TestObserverThatPanicsGetsTheNextEvent(t *testing.T) {
	bubbled(t, func(w *world) {
		for name, fails := range map[string]func(){
			"panic": func() { panic("oh") }, "Goexit": runtime.Goexit,
		} {
			var before, failing, after journal
			var logged list[string]
			rw := w.newLock(rwlock.WithObserver(&before),
				rwlock.WithObserver(rwlock.ObserverFunc(func(e rwlock.Event) {
					failing.Observe(e)
					fails()
				})), rwlock.WithObserver(&after), rwlock.WithLogger(newLogger(func(r slog.Record) {
					logged.add(textOf(r))
					fails()
				})))
			for range 10 {
				unlock(w, take(w, newOwner(), rw, write, "n"))
			}
			for _, j := range []*journal{&before, &failing, &after} {
				j.next(w, 10, rwlock.EventAcquired)
				j.next(w, 10, rwlock.EventEnded)
			}
			require.NoError(w, rw.Close())
			if name == "panic" {
				require.Len(w, logged.items(), 20)
				require.Contains(w, logged.items()[19], "an observer has panicked")
				require.Contains(w, logged.items()[19], "observer_test.go")
			}
		}
	})
}

// An observer is told of each acquisition: its name, mode, owner, token, path, context, and how long it took;
// and of the end of each hold.
func TestObserverIsToldOfHolds(t *testing.T) {
	bubbled(t, func(w *world) {
		var j journal
		rw := w.newLock(rwlock.WithObserver(&j))
		type key struct{}
		ctx := context.WithValue(newOwner(), key{}, "call")
		outer := take(w, ctx, rw, write, "n")
		inner := take(w, outer.Context(), rw, read, "n")
		again := take(w, outer.Context(), rw, write, "n")
		blocked := w.enqueue(context.Background(), rw, read, "n")
		time.Sleep(time.Second)
		for _, h := range []*rwlock.Hold{inner, again, outer} {
			unlock(w, h)
		}
		local := blocked.granted()
		unlock(w, local)
		j.next(w, 4, rwlock.EventEnded)

		for i, want := range []struct {
			h    *rwlock.Hold
			path rwlock.Path
			took time.Duration
		}{
			{outer, rwlock.PathDirect, 0}, {inner, rwlock.PathDirect, 0}, {again, rwlock.PathReentry, 0},
			{local, rwlock.PathLocal, time.Second},
		} {
			e := j.of(rwlock.EventAcquired)[i]
			require.GreaterOrEqual(w, e.Duration, want.took)
			if want.h != local {
				require.Equal(w, "call", e.Context.Value(key{}))
			}
			if want.h == inner { // it reads under a write hold: a claim of its own
				want.path = e.Path
			}
			e.Time, e.Context, e.Duration = time.Time{}, nil, 0
			require.Equal(w, rwlock.Event{Kind: rwlock.EventAcquired, Name: "n", Mode: want.h.Mode(),
				Owner: want.h.Owner(), Token: want.h.Token(), Path: want.path}, e)
		}
		waiting := j.next(w, 1, rwlock.EventWaiting)
		require.Equal(w, local.Owner(), waiting.Owner)
		for i, h := range []*rwlock.Hold{inner, again, outer, local} {
			e := j.of(rwlock.EventEnded)[i]
			require.Equal(w, h.Owner(), e.Owner)
			require.Equal(w, h.Mode(), e.Mode)
			require.Equal(w, rwlock.ReasonReleased, e.Reason)
			if h != local {
				require.GreaterOrEqual(w, e.Duration, time.Second)
			}
		}
	})
}

// An observer is told of each call that fails, and why; and that the server knows of it.
func TestObserverIsToldOfRefusals(t *testing.T) {
	bubbled(t, func(w *world) {
		var j journal
		rw := w.newLock(rwlock.WithObserver(&j))
		h := take(w, newOwner(), rw, write, "n")
		require.ErrorIs(w, errOf(rw.TryRLock(newOwner(), "n")), rwlock.ErrLocked)
		e := j.next(w, 1, rwlock.EventRefused)
		require.True(w, e.Try)
		require.Equal(w, rwlock.ErrLocked, e.Err)

		require.ErrorIs(w, errOf(rw.Lock(newOwner(), "n", rwlock.MaxWait(time.Second))), context.DeadlineExceeded)
		e = j.next(w, 2, rwlock.EventRefused)
		require.Equal(w, context.DeadlineExceeded, e.Err)
		require.Equal(w, time.Second, e.Duration)
		require.False(w, e.Try)
		j.next(w, 1, rwlock.EventWithdrawn)

		r := take(w, newOwner(), rw, read, "r")
		require.ErrorIs(w, errOf(rw.Lock(r.Context(), "r")), rwlock.ErrUpgrade)
		require.Equal(w, rwlock.ErrUpgrade, j.next(w, 3, rwlock.EventRefused).Err)
		unlock(w, h, r)
	})
}

// An observer is told why a hold was lost, and of renewals.
func TestObserverIsToldOfLossesAndRenewals(t *testing.T) {
	bubbled(t, func(w *world) {
		var j journal
		rw := w.newLock(rwlock.WithObserver(&j), rwlock.WithLease(w.lease))
		ends := 0
		ended := func(h *rwlock.Hold, reason rwlock.Reason) {
			w.Helper()
			w.lostWhen(h)
			require.Empty(w, rw.Snapshot().Holds, "though it was not released")
			ends++
			e := j.next(w, ends, rwlock.EventEnded)
			require.Equal(w, reason, e.Reason)
			require.Equal(w, h.Owner(), e.Owner)
			require.ErrorIs(w, h.Unlock(context.Background()), rwlock.ErrLost)
		}
		forced := take(w, newOwner(), rw, write, "forced")
		require.NoError(w, rw.ForceUnlock(context.Background(), "forced"))
		ended(forced, rwlock.ReasonGone)
		ended(take(w, newOwner(), rw, read, "expired", rwlock.NoRenew()), rwlock.ReasonExpired)

		kept := take(w, newOwner(), rw, read, "kept")
		renewals := len(j.of(rwlock.EventRenewed))
		eventually(w, func() bool { return len(j.of(rwlock.EventRenewed)) > renewals }, "a renewal")
		e := j.of(rwlock.EventRenewed)[renewals]
		require.Equal(w, kept.Owner(), e.Owner)
		require.Less(w, e.Duration, w.lease)
		require.NoError(w, rw.Close())
		require.Equal(w, rwlock.ReasonClosed, j.next(w, ends+1, rwlock.EventEnded).Reason)
		require.ErrorIs(w, kept.Unlock(context.Background()), rwlock.ErrClosed)

		var of journal // an RWLock whose renewals fail, with the client's error
		mortal, wire := w.newMortal(rwlock.WithObserver(&of), rwlock.WithLease(w.lease))
		h := take(w, newOwner(), mortal, write, "n")
		wire.cut()
		w.isLost(h)
		require.Equal(w, rwlock.ReasonExpired, of.next(w, 1, rwlock.EventEnded).Reason)
		failed := of.of(rwlock.EventRenewalFailed)
		require.NotEmpty(w, failed)
		require.Error(w, failed[0].Err)
	})
}

// An observer is told by which path a waiting call got the lock: a message from another process, or without
// it a heartbeat, which is a missed wake-up.
func TestObserverIsToldOfWakeUps(t *testing.T) {
	everywhere(t, func(w *world) {
		var j journal
		rw, far := w.newLock(rwlock.WithObserver(&j)), w.newLock()
		h := take(w, newOwner(), far, write, "n")
		waiting := w.enqueue(newOwner(), rw, write, "n")
		eventually(w, func() bool {
			return len(channels(w, w.dial(), w.prefix)) > 0
		}, "a subscription")
		unlock(w, h)
		unlock(w, waiting.granted())
		e := j.next(w, 1, rwlock.EventAcquired)
		if e.Path == rwlock.PathMessage {
			woken := j.next(w, 1, rwlock.EventWoken)
			require.Equal(w, "n", woken.Name)
			require.Equal(w, rwlock.PathMessage, woken.Path)
		} else {
			require.Equal(w, rwlock.PathHeartbeat, e.Path) // the grant came between two requests of the waiter's
		}
		for _, woken := range j.of(rwlock.EventWoken) {
			require.NotEqual(w, rwlock.PathHeartbeat, woken.Path)
		}
	})
}

// However long an observer takes, renewals go on, and what it has no time for is counted. It may call the
// RWLock.
func TestObserverDelaysNothing(t *testing.T) {
	bubbled(t, func(w *world) {
		const more = 10_000 // than the queue has places
		var rw *rwlock.RWLock
		var told, dropped atomic.Int64
		release := make(chan struct{})
		rw = w.newLock(rwlock.WithObserver(rwlock.ObserverFunc(func(e rwlock.Event) {
			if told.Add(1) == 1 {
				_, err := rw.Inspect(context.Background(), e.Name)
				assert.NoError(w, err)
				<-release
			}
			dropped.Add(int64(e.Dropped))
		})))
		h := take(w, newOwner(), rw, read, "n")
		eventually(w, func() bool { return told.Load() == 1 }, "the first event, alone")
		for range more { // which ask the server nothing
			require.ErrorIs(w, errOf(rw.Lock(h.Context(), "n")), rwlock.ErrUpgrade)
		}
		time.Sleep(10 * w.lease)
		require.NoError(w, h.Context().Err())
		require.EqualValues(w, 1, told.Load())
		close(release)
		eventually(w, func() bool { return told.Load() > 8192 }, "the queue")
		unlock(w, h)
		eventually(w, func() bool { return dropped.Load() > 0 }, "an event that follows dropped ones")
		require.NoError(w, rw.Close())
		require.Greater(w, told.Load()+dropped.Load(), int64(more))
	})
}

// A tracer's contexts are those of the events of a call and of a hold, of the hold's own context, and of what
// is sent for them.
func TestTracerGivesContexts(t *testing.T) {
	everywhere(t, func(w *world) {
		tr := &tracer{}
		sent := &sentWith{}
		rw := w.newLockVia(sent.over, rwlock.WithObserver(tr),
			rwlock.WithTracer(tr))
		h := take(w, newOwner(), rw, write, "n")
		require.EqualValues(w, "hold n", spanOf(h.Context()))
		require.ErrorIs(w, errOf(try(context.Background(), rw, write, "n")), rwlock.ErrLocked)
		unlock(w, h)
		tr.next(w, 1, rwlock.EventEnded)
		require.EqualValues(w, "call n", spanOf(tr.next(w, 1, rwlock.EventAcquired).Context))
		require.EqualValues(w, "call n", spanOf(tr.next(w, 1, rwlock.EventRefused).Context))
		require.EqualValues(w, "hold n", spanOf(tr.next(w, 1, rwlock.EventEnded).Context))
		require.Subset(w, sent.items(), []span{"call n", "hold n"})

		// A call ends with its own context, and not with the tracer's.
		done := &tracer{done: true}
		rw = w.newLock(rwlock.WithObserver(done), rwlock.WithTracer(done))
		h = take(w, newOwner(), rw, write, "m")
		require.NoError(w, h.Context().Err())
		waiting := w.enqueue(newOwner(), rw, write, "m")
		unlock(w, h)
		unlock(w, waiting.granted())
	})
}

// All that is sent for a call that gets no hold is sent with the context of the call, its withdrawal
// included.
func TestTracerOfACallThatFails(t *testing.T) {
	bubbled(t, func(w *world) {
		tr := &tracer{}
		h := take(w, newOwner(), w.newLock(), write, "n")
		sent := &sentWith{}
		rw := w.newLockVia(sent.over, rwlock.WithObserver(tr),
			rwlock.WithTracer(tr))
		_, err := rw.Lock(context.Background(), "n", rwlock.MaxWait(w.lease))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		tr.next(w, 1, rwlock.EventWithdrawn)
		all := sent.items()
		require.GreaterOrEqual(w, len(all), 3)
		for _, s := range all {
			// none: the handshake of a connection, or the loading of a script
			require.Contains(w, []span{"call n", ""}, s)
		}
		require.EqualValues(w, "call n", all[len(all)-1])
		unlock(w, h)
	})
}

// Each call and each hold that a tracer has given a context has one end, which is its last event: also those
// that are in flight when the RWLock is closed, and calls that begin after that.
func TestEachCallAndHoldEndsOnce(t *testing.T) {
	bubbled(t, func(w *world) {
		tr := &tracer{}
		rw := w.newLock(rwlock.WithObserver(tr), rwlock.WithTracer(tr), rwlock.WithLease(w.lease))
		foreign := take(w, newOwner(), w.newLock(), write, "foreign")
		held := take(w, newOwner(), rw, write, "n")
		unlock(w, take(w, held.Context(), rw, read, "n"))
		downgraded := take(w, newOwner(), rw, write, "downgraded")
		require.NoError(w, downgraded.Downgrade(context.Background())) // a call, and a hold, of its own
		unlock(w, downgraded)
		require.ErrorIs(w, errOf(rw.TryRLock(newOwner(), "n")), rwlock.ErrLocked)
		_, err := rw.Lock(newOwner(), "foreign", rwlock.MaxWait(w.lease/10))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		waitWithdrawn(w, rw, "foreign")
		waiting := []*call{w.enqueue(newOwner(), rw, write, "n"), w.enqueue(newOwner(), rw, read, "foreign")}
		w.lostWhen(take(w, newOwner(), rw, write, "lost", rwlock.NoRenew()))

		require.NoError(w, rw.Close())
		runtime.KeepAlive(held)
		runtime.KeepAlive(foreign)
		for _, c := range waiting {
			require.ErrorIs(w, errOf(c.wait()), rwlock.ErrClosed)
		}
		for _, mode := range bothModes {
			for _, lock := range []lockFunc{acquire, try} {
				require.ErrorIs(w, errOf(lock(newOwner(), rw, mode, "n")), rwlock.ErrClosed)
			}
		}
		const calls, holds = 13, 5
		eventually(w, func() bool {
			return len(tr.of(rwlock.EventAcquired, rwlock.EventRefused)) >= calls &&
				len(tr.of(rwlock.EventEnded)) >= holds
		}, "%d calls and %d holds", calls, holds)
		begun := tr.begun.items()
		require.Len(w, begun, calls+holds)
		for _, span := range begun {
			events := tr.about(span)
			require.NotEmpty(w, events, "%v", *span)
			for i, e := range events {
				ends := []rwlock.EventKind{rwlock.EventAcquired, rwlock.EventRefused}
				if strings.HasPrefix(string(*span), "hold") {
					ends = []rwlock.EventKind{rwlock.EventEnded}
				}
				require.Equal(w, i == len(events)-1, slices.Contains(ends, e.Kind), "%v: %v, %d of %d", *span, e.Kind,
					i+1, len(events))
			}
		}
		unlock(w, foreign)
	})
}

type spanKey struct{}

// A span is what a tracer's context is of: a call or a hold, and the name of the lock.
type span string

// spanOf returns the span that a context is of, or nothing.
func spanOf(ctx context.Context) span {
	if s, ok := ctx.Value(spanKey{}).(*span); ok {
		return *s
	}
	return ""
}

type tracer struct {
	journal
	done  bool // the contexts of calls are done
	begun list[*span]
}

func (tr *tracer) begin(ctx context.Context, what, name string) context.Context {
	s := span(what + " " + name)
	tr.begun.add(&s)
	return context.WithValue(ctx, spanKey{}, &s)
}

// about returns the events whose context is of a span, and not of one within.
func (tr *tracer) about(s *span) []rwlock.Event {
	return slices.DeleteFunc(tr.events.items(), func(e rwlock.Event) bool {
		return e.Context == nil || e.Context.Value(spanKey{}) != s
	})
}

func (tr *tracer) TraceCall(ctx context.Context, name string, _ rwlock.Mode) context.Context {
	if tr.done {
		var cancel func()
		ctx, cancel = context.WithCancel(ctx)
		cancel()
	}
	return tr.begin(ctx, "call", name)
}

func (tr *tracer) TraceHold(ctx context.Context, h *rwlock.Hold) context.Context {
	return tr.begin(ctx, "hold", h.Name())
}

// sentWith keeps the spans that commands are sent with.
type sentWith struct{ list[span] }

func (s *sentWith) over(c *redis.Client) {
	c.AddHook(sending(func(ctx context.Context, _ []redis.Cmder, send func() error) error {
		s.add(spanOf(ctx))
		return send()
	}))
}

// bytesOf returns how much of the server's memory the keys of locks take, and which they are.
func bytesOf(t *testing.T, c *redis.Client) (bytes int64, keys []string) {
	t.Helper()
	keys, err := c.Keys(t.Context(), "rwlock:{*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		n, err := c.MemoryUsage(t.Context(), key).Result()
		require.NoError(t, err)
		bytes += n
	}
	return bytes, keys
}

// A lock that is held takes less than 300 bytes of the server's memory, and each owner more that reads or
// waits less than 400. A name that was used once leaves 200 bytes at most.
func TestMemoryOfALock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	c, w := s.Client(), &world{T: t}
	rw := newLockOn(t, s.Client())
	const more = 100
	for _, mode := range bothModes {
		name := "orders:" + mode.String()
		require.NoError(t, c.FlushAll(t.Context()).Err())
		unlock(t, take(t, newOwner(), rw, mode, name))
		idle, keys := bytesOf(t, c)
		require.LessOrEqual(t, idle, int64(200), "%q", keys)
		h := take(t, newOwner(), rw, mode, name)
		held, _ := bytesOf(t, c)
		require.Less(t, held, int64(300))
		var readers []*rwlock.Hold
		shared := held
		if mode == read {
			for range more {
				readers = append(readers, take(t, newOwner(), rw, read, name))
			}
			shared, _ = bytesOf(t, c)
			require.Less(t, (shared-held)/more, int64(400))
		}
		var waiting []*call
		for range more {
			waiting = append(waiting, w.launch(newOwner(), rw, write, name))
		}
		waitQueued(t, rw, name, more)
		queued, _ := bytesOf(t, c)
		require.Less(t, (queued-shared)/more, int64(400))
		t.Logf("%v: idle %d bytes, held %d, each reader more %d, each waiter %d", mode, idle, held,
			(shared-held)/more, (queued-shared)/more)
		unlock(t, append(readers, h)...)
		for _, call := range waiting {
			call.releases()
		}
		waitFree(t, rw, name)
	}
}

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
			{outer, 2 * time.Second, true}, {inner, time.Second, true}, {again, 0, true}, {brief, 0, false},
			{limited, 0, false},
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
			require.Equal(w, time.Duration(i)*time.Second, s.Waits[i].Since.Sub(s.Waits[0].Since).Truncate(
				time.Second))
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
				return 0, rw.WithAll(ctx, []rwlock.Want{{Name: "all", Mode: read}},
					func(context.Context, []*rwlock.Hold) error {
						lines := map[string]int{}
						for _, h := range rw.Snapshot().Holds {
							require.Equal(w, "observer_test.go", filepath.Base(h.Caller().File))
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
