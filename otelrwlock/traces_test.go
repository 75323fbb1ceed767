package otelrwlock_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/seed-7e8842f7/rwlock"
)

// attributesOf returns the attributes of a span as text.
func attributesOf(s sdktrace.ReadOnlySpan) map[string]string {
	attrs := map[string]string{}
	for _, a := range s.Attributes() {
		attrs[string(a.Key)] = a.Value.String()
	}
	return attrs
}

func took(s sdktrace.ReadOnlySpan) time.Duration { return s.EndTime().Sub(s.StartTime()) }

// eventsOf returns the names of the events of a span.
func eventsOf(s sdktrace.ReadOnlySpan) (names []string) {
	for _, e := range s.Events() {
		names = append(names, e.Name)
	}
	return names
}

// A call and its hold have spans that last as long as they do, with what is known of them. Both are children
// of the caller's span.
func TestSpansOfCallAndHold(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		first := w.lock(ctx, rw, "orders:\xff")
		var calls sync.WaitGroup
		parent, root := w.tracers.Tracer("test").Start(ctx, "request")
		calls.Go(func() {
			h := w.lock(parent, rw, "orders:\xff")
			time.Sleep(3 * time.Second)
			w.unlock(h)
		})
		time.Sleep(2 * time.Second)
		w.unlock(first)
		calls.Wait()
		root.End()

		acquire, hold := w.named("rwlock.acquire")[1], w.named("rwlock.hold")[1]
		for _, s := range []sdktrace.ReadOnlySpan{acquire, hold} {
			require.Equal(w, root.SpanContext().SpanID(), s.Parent().SpanID())
			require.Equal(w, codes.Unset, s.Status().Code)
		}
		require.Equal(w, 2*time.Second, took(acquire))
		require.Equal(w, []string{"waiting"}, eventsOf(acquire))
		require.Equal(w, 3*time.Second, took(hold))
		attrs := attributesOf(acquire)
		owner, token := attrs["rwlock.owner"], attrs["rwlock.token"]
		require.NotEmpty(w, owner)
		require.NotEmpty(w, token)
		require.Equal(w, map[string]string{
			"rwlock.name": "orders:\uFFFD", "rwlock.mode": "write", "rwlock.outcome": "acquired",
			"rwlock.path":  "local",
			"rwlock.owner": owner, "rwlock.token": token,
		}, attrs)
		require.Equal(w, map[string]string{
			"rwlock.name": "orders:\uFFFD", "rwlock.mode": "write", "rwlock.owner": owner, "rwlock.token": token,
			"rwlock.reason": "released",
		}, attributesOf(hold))
	})
}

// Work under a lock is traced below the span of its hold: other spans, and calls that re-enter.
func TestWorkUnderALockIsBelowItsHold(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		outer := w.lock(ctx, rw, "a")
		_, work := w.tracers.Tracer("test").Start(outer.Context(), "work")
		work.End()
		w.unlock(w.lock(outer.Context(), rw, "a"), outer)
		hold := w.named("rwlock.hold")[1]
		for _, s := range []sdktrace.ReadOnlySpan{w.named("work")[0], w.named("rwlock.acquire")[1],
			w.named("rwlock.hold")[0]} {
			require.Equal(w, hold.SpanContext().SpanID(), s.Parent().SpanID(), s.Name())
		}
	})
}

// The spans of redisotel are children of the call's or the hold's that they are sent for.
func TestSpansOfRedisotelAreChildren(t *testing.T) {
	inBubble(t, func(w *world) {
		c := w.client()
		require.NoError(w, redisotel.InstrumentTracing(c, redisotel.WithTracerProvider(w.tracers)))
		rw := w.lockOn(c, w.observer.Options()...)
		h := w.lock(ctx, rw, "a")
		_, err := rw.Lock(ctx, "a", rwlock.MaxWait(time.Second))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		time.Sleep(10 * time.Second) // for a renewal
		w.unlock(h)

		children := func(parent sdktrace.ReadOnlySpan) (n int) {
			for _, s := range w.spans.Ended() {
				if s.Parent().SpanID() == parent.SpanContext().SpanID() {
					require.Contains(w, s.InstrumentationScope().Name, "redisotel")
					n++
				}
			}
			return n
		}
		calls, holds := w.named("rwlock.acquire"), w.named("rwlock.hold")
		require.GreaterOrEqual(w, children(calls[0]), 1, "the request for the lock")
		require.GreaterOrEqual(w, children(calls[1]), 2, "the request of the call that failed, and its withdrawal")
		require.GreaterOrEqual(w, children(holds[0]), 2, "a renewal and the release")
	})
}

// A Try call that does not get the lock, and a call that was cancelled, are no errors. A call that fails
// otherwise is one.
func TestStatusOfCalls(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		h := w.lock(ctx, rw, "a")
		_, err := rw.TryRLock(ctx, "a")
		require.ErrorIs(w, err, rwlock.ErrLocked)
		cancelled, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		_, err = rw.RLock(cancelled, "a")
		require.ErrorIs(w, err, context.Canceled)
		_, err = rw.RLock(ctx, "a", rwlock.MaxWait(time.Second))
		require.ErrorIs(w, err, context.DeadlineExceeded)
		w.unlock(h)

		calls := w.named("rwlock.acquire")[1:]
		require.Len(w, calls, 3)
		for i, want := range []struct {
			outcome string
			code    codes.Code
			text    string
		}{{"locked", codes.Unset, ""}, {"canceled", codes.Unset, ""},
			{"timeout", codes.Error, "context deadline exceeded"}} {
			require.Equal(w, want.outcome, attributesOf(calls[i])["rwlock.outcome"])
			require.Equal(w, sdktrace.Status{Code: want.code, Description: want.text}, calls[i].Status())
		}
		require.Len(w, w.named("rwlock.hold"), 1)
	})
}

// Each span ends though the RWLock is closed: those of holds and of calls that wait, and those of calls that
// begin after that.
func TestSpansEndWhenTheRWLockIsClosed(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		h := w.lock(ctx, rw, "a")
		defer runtime.KeepAlive(h)
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := rw.RLock(ctx, "a")
			require.ErrorIs(w, err, rwlock.ErrClosed)
		})
		synctest.Wait()
		require.NoError(w, rw.Close())
		calls.Wait()
		_, err := rw.TryLock(ctx, "b")
		require.ErrorIs(w, err, rwlock.ErrClosed)

		acquire := w.named("rwlock.acquire")
		require.Len(w, acquire, 3)
		require.Len(w, w.named("rwlock.hold"), 1)
		require.Len(w, w.spans.Ended(), len(w.spans.Started()))
		for _, s := range acquire[1:] {
			require.Equal(w, "closed", attributesOf(s)["rwlock.outcome"])
		}
	})
}

// A hold that was lost is an error, with the renewals that failed before.
func TestSpanOfALostHold(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		h := w.lock(ctx, rw, "a")
		w.server.SetError("LOADING the data set")
		w.lose(h)
		w.server.SetError("")
		hold := w.named("rwlock.hold")[0]
		require.Equal(w, sdktrace.Status{Code: codes.Error, Description: "the hold was lost: expired"},
			hold.Status())
		require.Contains(w, eventsOf(hold), "renewal failed")
		require.Contains(w, hold.Events()[0].Attributes[0].Value.AsString(), "LOADING")
	})
}

// A TryAll that fails under a hold does not end the span of that hold.
func TestTryAllEndsNoOtherSpan(t *testing.T) {
	inBubble(t, func(w *world) {
		rw := w.newLock()
		taken, outer := w.lock(ctx, rw, "taken"), w.lock(ctx, rw, "outer")
		_, err := rw.TryAll(outer.Context(), []rwlock.Want{{Name: "free", Mode: rwlock.Read},
			{Name: "taken", Mode: rwlock.Write}})
		require.ErrorIs(w, err, rwlock.ErrLocked)
		time.Sleep(10 * time.Second)
		w.unlock(outer)
		w.unlock(taken)
		synctest.Wait()
		for _, s := range w.named("rwlock.hold") {
			require.GreaterOrEqual(w, took(s), 10*time.Second)
		}
		require.Len(w, w.named("rwlock.hold"), 2)
	})
}

// Events of a hold that its call has lost before it returned, which are in the context of the call, end no
// other span.
func TestEventsEndNoOtherSpan(t *testing.T) {
	inBubble(t, func(w *world) {
		tracer := w.observer
		call := tracer.TraceCall(ctx, "a", rwlock.Write)
		w.observer.Observe(rwlock.Event{Kind: rwlock.EventEnded, Context: call, Time: time.Now()})
		request, root := w.tracers.Tracer("test").Start(ctx, "request")
		w.observer.Observe(rwlock.Event{Kind: rwlock.EventEnded, Context: request, Time: time.Now()})
		w.observer.Observe(rwlock.Event{Kind: rwlock.EventWithdrawn, Context: call, Time: time.Now()})
		synctest.Wait()
		require.Empty(w, w.spans.Ended())
		w.observer.Observe(rwlock.Event{Kind: rwlock.EventAcquired, Context: call, Time: time.Now()})
		require.Len(w, w.named("rwlock.acquire"), 1)
		root.End()
	})
}
